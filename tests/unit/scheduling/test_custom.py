"""Filters and weighers from outside: by function and, Nova's way, by class; and what is said of names that lead nowhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from projections.node import Node
from projections.room import Room, mark_of, room
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from streams.cli.exits import Exit, guarded
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.custom_error import CustomError
from streams.scheduling.filters import filters_of, reason
from streams.scheduling.fleet import Fleet
from streams.scheduling.loading import PolicyError, from_dict, from_text, from_toml
from streams.scheduling.policy import Policy, digest, text
from streams.scheduling.select import engine
from streams.scheduling.weighers import weigh
from tests.scheduling_world import world

PLUG_INS = """
def even(ask, room):
    return None if room.node_id[-1] in "02468" else f"{room.node_id} is odd"

def number(ask, room):
    return float(room.node_id[-1])

class RoomyFilter:
    def host_passes(self, host_state, spec_obj):
        return host_state.free_ram_mb >= 2 * spec_obj.flavor.memory_mib

class VcpusWeigher:
    minval = 0
    def _weigh_object(self, host_state, weight_properties):
        return host_state.vcpus_total

class FewVcpusWeigher(VcpusWeigher):
    minval = None
    maxval = 4

def boom(ask, room):
    raise RuntimeError("no rack")

def nonsense(ask, room):
    return 42

def nan(ask, room):
    return float("nan")

def heavy(ask, room):
    return "heavy"

class Astray:
    def host_passes(self, host_state, spec_obj):
        raise KeyError("no such fact")

NOTHING = 3
class Empty:
    pass
"""


@pytest.fixture(autouse=True)
def plug_ins(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "our_plug_ins.py").write_text(PLUG_INS)
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path.remove(str(tmp_path))
    sys.modules.pop("our_plug_ins", None)


def host(name: str, memory_mib: int = 4096, vcpus: int = 8) -> Room:
    return room(Node(name, hypervisor=Hypervisor(vcpus=vcpus, memory_mib=memory_mib)), 0, mark_of(name))


def ask(memory_mib: int = 1024) -> Ask:
    return ask_of(PlacementRequested(request_id="r", flavor=Flavor(memory_mib=memory_mib)), 0, seed=1)


def test_a_function_and_a_class_in_novas_style_filter() -> None:
    policy = from_dict({"filters": ["our_plug_ins:even", "our_plug_ins.RoomyFilter"]}, source="p")

    even, roomy = filters_of(policy)

    assert reason(even, ask(), host("n2")) is None
    assert reason(even, ask(), host("n3")) == "n3 is odd"
    assert reason(roomy, ask(2048), host("n2")) is None
    assert reason(roomy, ask(2049), host("n2")) == "RoomyFilter does not let it pass"


def test_a_function_and_a_class_in_novas_style_weigh() -> None:
    policy = from_toml('[[weighers]]\nweigher = "our_plug_ins:number"\n[[weighers]]\nweigher = "our_plug_ins.VcpusWeigher"\n', source="p")

    scores, columns = weigh([host("n1"), host("n3", vcpus=16)], policy.pairs, ask=ask())

    assert scores == [0.5, 2.0]
    assert [column.raw for column in columns] == [[1.0, 3.0], [8.0, 16.0]]


def test_a_weighers_own_bound_is_the_most_that_a_node_counts_for() -> None:
    policy = from_dict({"weighers": [{"weigher": "our_plug_ins.FewVcpusWeigher"}]}, source="p")

    scores, (column,) = weigh([host("n1", vcpus=2), host("n2", vcpus=3), host("n3", vcpus=8)], policy.pairs, ask=ask())

    assert scores == [0.0, 0.5, 1.0]
    assert (column.raw, column.bounded) == ([2.0, 3.0, 8.0], [2.0, 3.0, 4.0])


@pytest.mark.parametrize("policy", [{"filters": ["our_plug_ins:even"]}, {"weighers": [{"weigher": "our_plug_ins:number"}]}])
def test_a_policy_with_code_from_outside_is_left_to_the_plain_scan(policy: dict[str, Any]) -> None:
    here = world()
    for name in ("n1", "n2"):
        here.host(name)
    fleet, ours = Fleet(here.ledgers()), from_dict(policy, source="p")
    asked = fleet.ask(PlacementRequested(request_id="r", flavor=Flavor(vcpus=1)), 0, owner="s")

    found = engine("profiles")(fleet, asked, ours, digest(ours))

    assert (found.engine, found.chosen) == ("reference", "n2")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("our_plug_ins:boom", "our_plug_ins:boom failed: RuntimeError: no rack"),
        ("our_plug_ins:nonsense", "our_plug_ins:nonsense failed: expected None or why not, in words, got 42"),
        ("our_plug_ins.Astray", "our_plug_ins.Astray failed: KeyError: 'no such fact'"),
    ],
)
def test_a_filter_that_fails_rejects_the_node_and_says_so_in_the_evidence(name: str, said: str) -> None:
    (failing,) = filters_of(from_dict({"filters": [name]}, source="p"))

    assert reason(failing, ask(), host("n1")) == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("boom", "RuntimeError: no rack"),
        ("nan", "expected a number up to 1e.100, got nan"),
        ("heavy", "expected a number up to 1e.100, got 'heavy'"),
    ],
)
def test_a_weigher_that_fails_is_named_with_the_node(name: str, said: str) -> None:
    pairs = [(f"our_plug_ins:{name}", 1.0)]

    with pytest.raises(CustomError, match=f"weigher 'our_plug_ins:{name}' failed on node n1: {said}"):
        weigh([host("n1"), host("n2")], pairs, ask=ask())


def test_the_command_line_says_what_failed_in_code_from_outside_in_one_line() -> None:
    said = StringIO()

    def run() -> int:
        raise CustomError("weigher 'rack:weight' failed on node n1")

    assert guarded(run, said) == Exit.ERROR
    assert said.getvalue() == "claimlog: weigher 'rack:weight' failed on node n1\n"


def test_novas_own_class_paths_are_the_filters_here() -> None:
    policy = from_dict(
        {
            "filters": ["nova.scheduler.filters.compute_filter.ComputeFilter"],
            "weighers": [{"weigher": "nova.scheduler.weights.ram.RAMWeigher"}],
        },
        source="p",
    )

    assert policy.filters == ("ComputeFilter",)
    assert policy.pairs == (("RAMWeigher", 1.0),)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "No module named 'no_such_module'; expected module:function or module.Class"),
        ("our_plug_ins:f", "module our_plug_ins has no f"),
        ("our_plug_ins:NOTHING", "expected a function or a class, got int"),
        ("our_plug_ins.Empty", "expected a class with host_passes"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        from_dict({"filters": [name]}, source="p")


def test_a_log_does_not_choose_what_code_its_readers_run() -> None:
    policy = Policy(filters=("our_plug_ins:even",))

    with pytest.raises(PolicyError, match="not run on the word of a log"):
        from_text(text(policy))
    assert "our_plug_ins" not in sys.modules
    assert from_text(text(policy), trusted=policy.filters) == policy
