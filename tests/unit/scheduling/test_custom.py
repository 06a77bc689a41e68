"""Filters and weighers from outside: by function and, Nova's way, by class; and what is said of names that lead nowhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from projections.ledger import Ledger
from projections.node import Node, Shown
from projections.room import Room, mark_of, room
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimRequested, NodeConfigured, NodeObserved
from schemas.codec import encode
from schemas.inventory import Aggregate, Hypervisor, OperatorFields
from schemas.requests import Flavor, Hints, Image, PciWant, PlacementRequested, ServerGroup
from schemas.resources import Limits
from schemas.topics import CLAIMS
from streams.cli.exits import Exit, guarded
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.custom_error import CustomError
from streams.scheduling.filters import Filter, filters_of, reason
from streams.scheduling.fleet import Fleet
from streams.scheduling.loading import NotVouchedFor, PolicyError, from_dict, from_text, from_toml
from streams.scheduling.policy import Policy, digest, text
from streams.scheduling.reference import rooms_for
from streams.scheduling.select import engine
from streams.scheduling.weighers import weigh
from streams.scheduling.what_if import Basis, decide
from tests.scheduling_world import START_MS, TTL_MS, world

PLUG_INS = """
import copy

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

def wordless(ask, room):
    return " "

def nan(ask, room):
    return float("nan")

def heavy(ask, room):
    return "heavy"

class EmptyFilter:
    def host_passes(self, host_state, spec_obj):
        return not host_state.instances

class EmptyOnce(EmptyFilter):
    run_filter_once_per_request = True

class EmptyAtFirst(EmptyFilter):
    def run_filter_for_index(self, index):
        return index == 0

class EmptyAlways(EmptyOnce):
    def run_filter_for_index(self, index):
        return True

class AloneOnce(EmptyOnce):
    def host_passes(self, host_state, spec_obj):
        return set(host_state.instances) <= {spec_obj.instance_uuid}

class IdleOnce(EmptyOnce):
    def host_passes(self, host_state, spec_obj):
        return host_state.num_instances + host_state.num_io_ops + host_state.vcpus_used == 0

class Tells:
    def host_passes(self, host_state, spec_obj):
        seen = {"spec": spec_obj, "host": host_state, "copy": copy.copy}
        raise LookupError(repr(eval(spec_obj.get_scheduler_hint("tell"), seen)))

class Writes:
    def host_passes(self, host_state, spec_obj):
        host_state.limits["memory_mb"] = 1
        return True

class ByHostWeigher(VcpusWeigher):
    def weight_multiplier(self, host_state):
        return 10.0 if host_state.nodename == "n3" else 1.0

class HalfWeigher(VcpusWeigher):
    weight_multiplier = 0.5

class LostWeigher(VcpusWeigher):
    def weight_multiplier(self, host_state):
        return host_state.no_such_fact

class EndlessWeigher(VcpusWeigher):
    maxval = float("inf")

class OfAll:
    def filter_all(self, filter_obj_list, spec_obj):
        return filter_obj_list

class Configured:
    def __init__(self, file):
        self.file = file
    def host_passes(self, host_state, spec_obj):
        return True

class Astray:
    def host_passes(self, host_state, spec_obj):
        raise KeyError("no such fact")

def _written(ask, room):
    node, request = room.node, ask.request
    node.used[2] = -10**6
    node.limits = (0, 0, 0, 0)
    node.shown["guest"].report.image_properties.clear()
    node.aggregates[0].metadata.clear()
    node.hypervisor.stats["rack"] = "other"
    for mapping in (node.claims, node.uses, node.groups_of, node.shown, room.instances, request.flavor.extra_specs):
        mapping.clear()
    del node.sources, room.overlay, ask.item

def meddles(ask, room):
    _written(ask, room)

def meddling(ask, room):
    _written(ask, room)
    return 1.0

class Meddles:
    def host_passes(self, host_state, spec_obj):
        for aggregate in host_state.aggregates:
            aggregate.metadata.clear()
        spec_obj.flavor.extra_specs.clear()
        return True

class MeddlingWeigher(Meddles):
    def _weigh_object(self, host_state, spec_obj):
        return self.host_passes(host_state, spec_obj)
    def weight_multiplier(self, host_state):
        host_state.aggregates[0].metadata.clear()
        return 1.0

def cancels(ask, room):
    import asyncio
    raise asyncio.CancelledError("too slow")

NOTHING = 3
class Empty:
    pass

def true(ask, room):
    return room.node_id == "n1"

def of_numpy(ask, room):
    from numpy import float32, float64, int64
    return {"n1": float64(1.5), "n2": float32(2.5), "n3": int64(4)}[room.node_id]

def huge(ask, room):
    return 10 ** 400

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")
    __repr__ = __str__

def unspeakable(ask, room):
    raise Unspeakable

def says_the_unspeakable(ask, room):
    return Unspeakable()

def half(ask, room):
    return "rack \\udcff"

def raises_half(ask, room):
    raise ValueError("rack \\udcff")

def leaves(ask, room):
    raise SystemExit(3)

class Crossed(VcpusWeigher):
    minval = 5
    maxval = 1
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


def ask(memory_mib: int = 1024, **flavor: Any) -> Ask:
    return ask_of(PlacementRequested(request_id="r", flavor=Flavor(memory_mib=memory_mib, **flavor)), 0, seed=1)


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


@pytest.mark.parametrize(("name", "figures"), [("true", [1.0, 0.0, 0.0]), ("of_numpy", [1.5, 2.5, 4.0])])
def test_a_number_of_any_kind_is_written_as_it_is_read_back(name: str, figures: list[float]) -> None:
    policy = from_dict({"weighers": [{"weigher": f"our_plug_ins:{name}"}]}, source="p")

    _, (column,) = weigh([host("n1"), host("n2"), host("n3")], policy.pairs, ask=ask())

    assert column.raw == figures
    assert {type(figure) for figure in column.raw} == {float}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unspeakable", "our_plug_ins:unspeakable failed: Unspeakable"),
        ("says_the_unspeakable", "expected None or why not, in words, got a Unspeakable that cannot be shown"),
        ("half", "rack ?"),
        ("raises_half", "our_plug_ins:raises_half failed: ValueError: rack ?"),
        ("leaves", "our_plug_ins:leaves failed: SystemExit: 3"),
    ],
)
def test_whatever_a_filter_ends_in_rejects_the_node_in_words_that_a_record_can_carry(name: str, why: str) -> None:
    told = reason(filter_named(f"our_plug_ins:{name}"), ask(), host("n1"))

    assert told is not None
    assert told.endswith(why)
    assert told.encode()


@pytest.mark.parametrize(("name", "why"), [("unspeakable", "n1: Unspeakable"), ("leaves", "n1: SystemExit: 3"), ("huge", "got 1000")])
def test_whatever_a_weigher_ends_in_is_told_with_its_name_and_the_node(name: str, why: str) -> None:
    policy = from_dict({"weighers": [{"weigher": f"our_plug_ins:{name}"}]}, source="p")

    with pytest.raises(CustomError, match=f"weigher 'our_plug_ins:{name}' failed on node .*{why}"):
        weigh([host("n1"), host("n2")], policy.pairs, ask=ask())


def test_bounds_that_make_all_nodes_alike_are_refused() -> None:
    with pytest.raises(PolicyError, match="minval 5 is above maxval 1: every node would be worth the same"):
        from_dict({"weighers": [{"weigher": "our_plug_ins.Crossed"}]}, source="p")


def test_a_weighers_own_bound_is_the_most_that_a_node_counts_for() -> None:
    policy = from_dict({"weighers": [{"weigher": "our_plug_ins.FewVcpusWeigher"}]}, source="p")

    scores, (column,) = weigh([host("n1", vcpus=2), host("n2", vcpus=3), host("n3", vcpus=8)], policy.pairs, ask=ask())

    assert scores == [0.0, 0.5, 1.0]
    assert (column.raw, column.bounded) == ([2.0, 3.0, 8.0], [2.0, 3.0, 4.0])


def filter_named(name: str) -> Filter:
    (found,) = filters_of(from_dict({"filters": [name]}, source="p"))
    return found


def one_of(request: PlacementRequested, index: int, node_id: str = "n1") -> ClaimItem:
    """What instance number `index` would claim there."""
    claim_id = f"{request.request_id}/{index}/s-1.{index}"
    return replace(ask_of(request, index, seed=1).item, claim_id=claim_id, nodes=(node_id,))


def showing(node_id: str, instance_id: str) -> NodeObserved:
    """An audit after the first one, with this instance."""
    report, has = InstanceReport(instance_id=instance_id), Hypervisor(vcpus=8, pcpus=0, memory_mib=16_384, disk_mib=102_400)
    later: dict[str, Any] = {"epoch": 1, "counter": 2, "taken_at_ms": START_MS + 1000, "mono_ms": 1001}
    return NodeObserved(node_id=node_id, producer=f"audits of {node_id}", hypervisor=has, instances=(report,), **later)


def with_laid(*items: ClaimItem) -> Room:
    return room(host("n1").node, 0, mark_of("n1"), items)


OURS, THEIRS = (PlacementRequested(request_id=name, flavor=Flavor(vcpus=2, memory_mib=512), count=3) for name in ("ours", "theirs"))
M1 = Flavor(name="m1", vcpus=2, memory_mib=2048, root_gib=10, ephemeral_gib=1, swap_mib=64)
TOGETHER = replace(OURS, group=ServerGroup(group_id="g", policy="affinity"))


@pytest.mark.parametrize("name", ["EmptyOnce", "EmptyAtFirst"])
def test_a_filter_that_runs_once_per_request_says_of_later_instances_what_it_said_of_the_first(name: str) -> None:
    once, each = filter_named(f"our_plug_ins.{name}"), filter_named("our_plug_ins.EmptyFilter")
    third = ask_of(OURS, 2, seed=1)

    beside_ours = with_laid(one_of(OURS, 0), one_of(OURS, 1))
    beside_theirs = with_laid(one_of(OURS, 0), one_of(THEIRS, 1))

    assert (reason(once, third, beside_ours), reason(each, third, beside_ours)) == (None, "EmptyFilter does not let it pass")
    assert reason(once, third, beside_theirs) == f"{name} does not let it pass"
    assert reason(once, ask_of(OURS, 0, seed=1), beside_theirs) == f"{name} does not let it pass"


def test_where_a_filter_says_for_which_instances_it_runs_that_counts() -> None:
    always = filter_named("our_plug_ins.EmptyAlways")

    assert reason(always, ask_of(OURS, 1, seed=1), with_laid(one_of(OURS, 0))) == "EmptyAlways does not let it pass"


def test_a_filter_that_runs_once_does_not_meet_those_that_have_to_go_to_the_same_node() -> None:
    here = world()
    here.host("n1")
    fleet = Fleet(here.ledgers())

    together = fleet.ask(TOGETHER, 0, owner="s")
    (there,) = rooms_for(fleet.rooms(), together)

    assert len(there.instances) == 2
    assert reason(filter_named("our_plug_ins.EmptyOnce"), together, there) is None
    assert reason(filter_named("our_plug_ins.EmptyFilter"), together, there) == "EmptyFilter does not let it pass"


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_filter_that_runs_once_does_not_meet_what_its_request_holds_by_then(is_shown: bool) -> None:
    here = world(claims=1)
    here.host("n1")
    here.say(CLAIMS, ClaimRequested(request_id="ours", owner="s", basis=0, ttl_ms=TTL_MS, items=(one_of(OURS, 0),)))
    if is_shown:
        here.say(CLAIMS, showing("n1", OURS.instance(0)))
    fleet = Fleet(here.ledgers())
    node = fleet.rooms()[0].node
    before = deepcopy(node)

    said = [reason(filter_named(f"our_plug_ins.{name}"), ask_of(OURS, 1, seed=1), fleet.rooms()[0]) for name in ("IdleOnce", "EmptyFilter")]
    of_theirs = reason(filter_named("our_plug_ins.IdleOnce"), ask_of(THEIRS, 1, seed=1), fleet.rooms()[0])

    assert said == [None, "EmptyFilter does not let it pass"]
    assert of_theirs == "IdleOnce does not let it pass"
    assert node == before


def test_a_filter_that_runs_once_meets_the_guests_that_its_request_resizes() -> None:
    here = world(claims=1)
    here.host("n1")
    here.say(CLAIMS, showing("n1", OURS.instance(0)))
    resizing = replace(OURS, action="resize", instance_ids=tuple(map(OURS.instance, range(3))))
    here.say(CLAIMS, ClaimRequested(request_id="ours", owner="s", basis=0, ttl_ms=TTL_MS, items=(one_of(resizing, 0),)))
    (there,) = Fleet(here.ledgers()).rooms()

    said = [reason(filter_named("our_plug_ins.EmptyOnce"), ask_of(request, 1, seed=1), there) for request in (resizing, OURS)]

    assert said == ["EmptyOnce does not let it pass", None]


def test_a_filter_that_runs_once_meets_its_own_instance_where_that_is_already() -> None:
    here = world(claims=1)
    here.host("n1")
    for index in (0, 1):
        here.say(CLAIMS, ClaimRequested(request_id="ours", owner="s", basis=0, ttl_ms=TTL_MS, items=(one_of(OURS, index),)))
    fleet = Fleet(here.ledgers())
    (own,) = rooms_for(fleet.rooms(), ask_of(OURS, 1, seed=1))

    assert reason(filter_named("our_plug_ins.AloneOnce"), ask_of(OURS, 1, seed=1), own) is None
    assert reason(filter_named("our_plug_ins.EmptyOnce"), ask_of(OURS, 1, seed=1), own) == "EmptyOnce does not let it pass"


def test_the_second_of_a_request_goes_where_the_first_is_if_only_one_that_runs_once_would_mind() -> None:
    here = world()
    here.host("n1")

    outcomes = []
    for name in ("EmptyOnce", "EmptyFilter"):
        fleet, policy = Fleet(here.ledgers()), from_dict({"filters": [f"our_plug_ins.{name}"]}, source="p")
        outcomes.append(decide(OURS, lambda index, _, fleet=fleet: Basis(fleet, seed=index), policy))  # type: ignore[misc]

    assert [outcome.placed for outcome in outcomes] == [3, 1]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(spec.memory_mb, spec.vcpus, spec.root_gb, spec.ephemeral_gb, spec.swap)", (2048, 2, 10, 1, 64)),
        ("[getattr(spec.flavor, name) for name in ('memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb', 'swap')]", [2048, 2, 10, 1, 64]),
        ("(spec.flavor.name, spec.flavor.flavorid, spec.flavor.extra_specs)", ("m1", "m1", {"hw:watchdog_action": "none"})),
        ("(spec.flavor.memory_mib, spec.request_id, spec.count, spec.project_id, spec.group.group_id)", (2048, "r", 2, "p", "g")),
        ("(spec.image.id, spec.image.image_id, spec.image.properties['architecture'])", ("img", "img", "x86_64")),
        ("(spec.image.properties.architecture, spec.image.properties.hw_architecture)", ("x86_64", "x86_64")),
        ("(spec.image.properties.get('os_distro', 'any'), hasattr(spec.image.properties, 'os_distro'))", ("any", False)),
        ("spec.scheduler_hints['different_host'], spec.scheduler_hints['rack']", (["i7", "i8"], ["4"])),
        ("spec.get_scheduler_hint('different_host'), spec.get_scheduler_hint('rack')", (["i7", "i8"], "4")),
        ("spec.get_scheduler_hint('cidr'), spec.get_scheduler_hint('cidr', 'none')", (None, "none")),
        ("(spec.num_instances, spec.instance_uuid, spec.user_id, spec.availability_zone, spec.is_bfv)", (2, "i1", "u", "east", True)),
        ("(spec.ignore_hosts, spec.force_hosts, spec.force_nodes)", (["h8"], [], [])),
        ("(spec.instance_group.uuid, spec.instance_group.policy)", ("g", "anti-affinity")),
        ("(spec.instance_group.rules, spec.instance_group.max_server_per_host)", ({"max_server_per_host": 2}, 2)),
        ("(spec.instance_group.members, spec.instance_group.hosts)", (["i0"], ["h1"])),
        ("(spec.requested_destination.host, spec.requested_destination.node)", ("h1", "n1")),
        ("[(each.host, each.nodename) for each in spec.retry.hosts], spec.retry.num_attempts", ([("n9", "n9"), ("h9", None)], 2)),
        ("(spec.limits.vcpu, spec.limits.memory_mb, spec.limits.memory_mib, spec.limits.disk_gb)", (None, 4096, 4096, 1)),
        ("(spec.numa_topology, spec.requested_resources)", (None, [])),
        ("[(each.alias_name, each.count) for each in spec.pci_requests.requests]", [("gpu", 1)]),
        ("'retry' in spec, 'no_such' in spec, spec.obj_attr_is_set('limits')", (True, False, True)),
        ("'extra_specs' in spec.flavor, 'rules' in spec.instance_group, 'size' in spec.image", (True, True, False)),
        ("sorted(spec.image.properties.to_dict())", ["architecture", "hw_architecture"]),
        ("(copy(spec).count, sorted(copy(host).instances))", (2, ["guest", "i0"])),
        ("host.limits, sorted(host.instances), host.num_instances", ({}, ["guest", "i0"], 2)),
        ("[(i.uuid, i.project_id, i.flavor.name) for i in host.instances.values()]", [("guest", None, "m2"), ("i0", "p", "m1")]),
        ("host.instances['guest'].image_meta.properties.os_distro", "debian"),
        ("host.instances['i0'].image_properties.get('os_distro')", None),
    ],
)
def test_a_class_in_novas_style_reads_what_novas_objects_have_and_our_own_names_beside(expression: str, value: object) -> None:
    request = PlacementRequested(
        request_id="r",
        count=2,
        instance_ids=("i0", "i1"),
        flavor=replace(M1, extra_specs={"hw:watchdog_action": "none"}),
        image=Image(image_id="img", properties={"architecture": "x86_64"}),
        hints=Hints(different_host=("i7", "i8"), other={"rack": "4", "tell": expression}),
        group=ServerGroup(group_id="g", policy="anti-affinity", max_per_node=2),
        project_id="p",
        user_id="u",
        availability_zone="east",
        ignored_hosts=("h8",),
        requested_nodes=("n1", "n2"),
        retry_nodes=("n9",),
        retry_hosts=("h9",),
        limits=Limits(memory_mib=4096, disk_mib=1536),
        pci=(PciWant(alias="gpu"),),
        boot_from_volume=True,
    )
    node = Node("n1", hypervisor=Hypervisor(vcpus=8, memory_mib=4096, service_host="h1"))
    report = InstanceReport(instance_id="guest", flavor="m2", image_properties={"os_distro": "debian"})
    node.shown["guest"] = Shown(report, (1, 0, 512, 0), seen_ms=1)
    node.recount("guest")

    said = reason(filter_named("our_plug_ins.Tells"), ask_of(request, 1, seed=1), room(node, 0, mark_of("n1"), [one_of(request, 0)]))

    assert said == f"our_plug_ins.Tells failed: LookupError: {value!r}"


@pytest.mark.parametrize("name", ["instance_group", "requested_destination", "retry", "limits", "pci_requests"])
def test_what_a_request_does_not_say_is_none(name: str) -> None:
    asked = PlacementRequested(request_id="r", flavor=Flavor(), hints=Hints(other={"tell": f"spec.{name}"}))

    said = reason(filter_named("our_plug_ins.Tells"), ask_of(asked, 0, seed=1), host("n1"))

    assert said == "our_plug_ins.Tells failed: LookupError: None"


def test_a_name_that_neither_nova_nor_we_have_is_named_in_the_evidence() -> None:
    asked = PlacementRequested(request_id="r", flavor=Flavor(), hints=Hints(other={"tell": "spec.image.properties.colour"}))

    said = reason(filter_named("our_plug_ins.Tells"), ask_of(asked, 0, seed=1), host("n1"))

    assert said == "our_plug_ins.Tells failed: AttributeError: the image has no property 'colour'; .get('colour') gives None then"


def test_an_affinity_is_bound_to_the_hosts_of_its_group() -> None:
    asked = replace(TOGETHER, hints=Hints(other={"tell": "spec.instance_group.hosts, spec.instance_group.rules"}))
    bound = ask_of(asked, 1, seed=1, group_nodes=frozenset({"n2"}))

    said = [reason(filter_named("our_plug_ins.Tells"), bound, host(name)) for name in ("n1", "n2")]

    assert said == ["our_plug_ins.Tells failed: LookupError: (['n2'], {})"] * 2


def test_what_a_filter_writes_into_limits_stays_with_it() -> None:
    policy = from_dict({"filters": ["our_plug_ins.Writes", "our_plug_ins.Tells"]}, source="p")
    asked = PlacementRequested(request_id="r", flavor=Flavor(), hints=Hints(other={"tell": "host.limits"}))

    writes, tells = [reason(each, ask_of(asked, 0, seed=1), host("n1")) for each in filters_of(policy)]

    assert (writes, tells) == (None, "our_plug_ins.Tells failed: LookupError: {}")


def test_a_weighers_own_multiplier_counts_times_that_of_the_policy() -> None:
    rooms = [host("n1", vcpus=8), host("n2", vcpus=12), host("n3", vcpus=16)]
    policies: list[dict[str, Any]] = [
        {"weigher": "our_plug_ins.ByHostWeigher"},
        {"weigher": "our_plug_ins.ByHostWeigher", "multiplier": -2.0},
        {"weigher": "our_plug_ins.HalfWeigher"},
        {"weigher": "our_plug_ins.HalfWeigher", "multiplier": 3},
    ]

    scored = [weigh(rooms, from_dict({"weighers": [policy]}, source="p").pairs, ask=ask()) for policy in policies]

    assert [scores for scores, _ in scored] == [[0.5, 0.75, 10.0], [-1.0, -1.5, -20.0], [0.25, 0.375, 0.5], [0.75, 1.125, 1.5]]
    assert [[column.weight(2).multiplied for column in columns] for _, columns in scored] == [[10.0], [-20.0], [0.5], [1.5]]


def test_the_parts_of_a_score_with_own_multipliers_add_up_beside_others() -> None:
    names = ("RAMWeigher", "our_plug_ins.ByHostWeigher", "CPUWeigher")
    policy = from_dict({"weighers": [{"weigher": name} for name in names]}, source="p")

    scores, columns = weigh([host("n1", vcpus=8), host("n3", vcpus=16)], policy.pairs, ask=ask())

    assert scores == [1.0 + 0.5 + 0.5, 1.0 + 10.0 + 1.0]
    assert [sum(column.weight(at).multiplied for column in columns) for at in (0, 1)] == scores


def test_a_multiplier_that_fails_is_named_with_the_node() -> None:
    with pytest.raises(CustomError, match=r"LostWeigher.weight_multiplier' failed on node n1: AttributeError: .*no_such_fact"):
        weigh([host("n1"), host("n2")], [("our_plug_ins.LostWeigher", 1.0)], ask=ask())


def test_a_bound_that_is_no_number_is_named_with_its_weigher() -> None:
    with pytest.raises(PolicyError, match=r"p: weigher 'our_plug_ins.EndlessWeigher': maxval: expected None or a number .*, got inf"):
        from_dict({"weighers": [{"weigher": "our_plug_ins.EndlessWeigher"}]}, source="p")


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
        ("our_plug_ins:cancels", "our_plug_ins:cancels failed: CancelledError: too slow"),
        ("our_plug_ins:boom", "our_plug_ins:boom failed: RuntimeError: no rack"),
        ("our_plug_ins:nonsense", "our_plug_ins:nonsense failed: expected None or why not, in words, got 42"),
        ("our_plug_ins:wordless", "our_plug_ins:wordless failed: expected None or why not, in words, got ' '"),
        ("our_plug_ins.Astray", "our_plug_ins.Astray failed: KeyError: 'no such fact'"),
    ],
)
def test_a_filter_that_fails_rejects_the_node_and_says_so_in_the_evidence(name: str, said: str) -> None:
    (failing,) = filters_of(from_dict({"filters": [name]}, source="p"))

    assert reason(failing, ask(), host("n1")) == said


@pytest.mark.parametrize(
    ("filters", "weighers"),
    [
        (["our_plug_ins:meddles"], []),
        (["our_plug_ins.Meddles"], []),
        ([], [{"weigher": "our_plug_ins:meddling"}]),
        ([], [{"weigher": "our_plug_ins.MeddlingWeigher"}]),
    ],
)
def test_what_code_from_outside_writes_is_written_nowhere_else(filters: list[str], weighers: list[dict[str, str]]) -> None:
    """The scheduler judges its claims on these very nodes: a filter that wrote into one had it grant what the ledger refuses."""
    policy = from_dict({"filters": filters, "weighers": weighers}, source="p")
    ledger = Ledger(0, 1)
    rich = Hypervisor(vcpus=8, pcpus=0, memory_mib=16_384, disk_mib=102_400, stats={"rack": "7"})
    there = (InstanceReport(instance_id="guest", image_properties={"os": "linux"}),)
    configured = OperatorFields(aggregates=(Aggregate(name="a", metadata={"ssd": "true"}),))
    for record in (
        NodeObserved(node_id="n1", producer="p", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, hypervisor=rich, instances=there),
        NodeConfigured(node_id="n1", record_id="c", fields=configured),
    ):
        ledger.apply(ledger.next_offset, START_MS, b"n1", encode(record))
    asked, before = ask(extra_specs={"quota": "1"}), deepcopy(ledger.nodes["n1"])
    asked_before, fleet = deepcopy(asked), Fleet([ledger])

    decision = engine("reference")(fleet, asked, policy, digest(policy))

    assert decision.chosen == "n1", decision.rejections
    assert (ledger.nodes["n1"], asked) == (before, asked_before)
    assert list(fleet.rooms()[0].instances) == ["guest"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("boom", "RuntimeError: no rack"),
        ("cancels", "CancelledError: too slow"),
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
        ("our_plug_ins.Empty", r"expected a class with host_passes\(host_state, spec\)$"),
        ("our_plug_ins.OfAll", r"expected a class with host_passes\(host_state, spec\); filter_all looks at all nodes at once, here each"),
        ("our_plug_ins.Configured", "expected a class that is made without arguments; TypeError: .*'file'"),
        (":f", "importing '' failed: ValueError"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        from_dict({"filters": [name]}, source="p")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nova.scheduler.filters.foo.Foo", "No module named 'nova'.*; known: AllHostsFilter, .*, ExactDiskFilter$"),
        ("mynova.RamFiltre", "No module named 'mynova'.*; known: AllHostsFilter, .*; did you mean 'RamFilter'"),
        ("mynova.ram_filter:RamFilter", "; known: AllHostsFilter, .*; 'RamFilter' is known by that name alone, write that"),
        ("our_plug_ins.DiskFilter", "module our_plug_ins has no DiskFilter; known: .*; 'DiskFilter' is known by that name alone"),
        ("nova.scheduler.filters.all_filters", "; all of these may be named without it, write those that you want"),
    ],
)
def test_of_a_filter_that_leads_nowhere_the_known_ones_are_told_and_the_nearest(name: str, said: str) -> None:
    with pytest.raises(PolicyError, match=f"p: filter '{name}': .*{said}"):
        from_dict({"filters": [name]}, source="p")


def test_of_a_weigher_that_leads_nowhere_the_known_ones_are_told_and_the_nearest() -> None:
    said = "p: weigher 'mynova.RAMWeigher': No module .*; known: RAMWeigher, .*; 'RAMWeigher' is known by that name alone, write that"

    with pytest.raises(PolicyError, match=said):
        from_dict({"weighers": [{"weigher": "mynova.RAMWeigher"}]}, source="p")


def test_what_breaks_while_it_is_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken_plug_in.py").write_text("1 / 0\n")

    with pytest.raises(PolicyError, match="importing 'broken_plug_in' failed: ZeroDivisionError: division by zero; known: "):
        from_dict({"filters": ["broken_plug_in.Filter"]}, source="p")


def test_a_log_does_not_choose_what_code_its_readers_run() -> None:
    policy = Policy(filters=("our_plug_ins:even",))

    with pytest.raises(NotVouchedFor, match="not run on the word of a log"):
        from_text(text(policy))
    with pytest.raises(NotVouchedFor, match="'our_plug_ins:even'"):
        from_text(text(policy), trusted=("our_plug_ins:number",))
    assert "our_plug_ins" not in sys.modules
    assert from_text(text(policy), trusted=policy.filters) == policy
