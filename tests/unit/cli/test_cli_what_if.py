"""`claimlog what-if`: what would be decided if something were otherwise, and nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.codec import decode
from schemas.ids import instance_id
from schemas.results import InstancesPlaced, SchedulerStarted
from schemas.topics import RESULTS
from streams.cli.main import run
from streams.scheduling.policy import DEFAULT, PACK, Policy, digest, text
from tests.cli_log import FleetLog, code_of_its_own


def test_a_node_cannot_be_drained_and_enabled_at_once(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "what-if", "--memory", "1GiB", "--drain", "c01", "--enable", "c01")

    assert (said.code, said.err) == (2, "claimlog: --drain c01 and --enable c01: a node is one or the other\n")


def chosen(fleet: FleetLog, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str | None]]:
    said = fleet.run(capsys, "what-if", *arguments, "-o", "json")
    items = said.json["items"]
    return said.code, [item["chosen"] for item in items], [item["unchanged"] for item in items]


def test_a_refused_request_would_be_placed_with_another_ratio_or_a_node_more(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB", "--count", "2")

    assert fleet.run(capsys, "explain", "r1").code == 4
    assert chosen(fleet, capsys, "r1") == (4, ["c01", ""], ["c01", ""])
    assert chosen(fleet, capsys, "r1", "--ratio", "memory=1.5") == (0, ["c01", "c01"], ["c01", ""])
    assert chosen(fleet, capsys, "r1", "--add", "c01=2")[0] == 0
    assert chosen(fleet, capsys, "r1", "--count", "1") == (0, ["c01"], ["c01"])
    said = fleet.run(capsys, "what-if", "r1", "--count", "1", "--drain", "c02")
    assert said.out.startswith("what if  1 instance instead of 2, ")
    assert fleet.run(capsys, "what-if", "r1", "--count", "1", "-o", "json").json["summary"]["changes"] == ["1 instance instead of 2"]
    assert fleet.run(capsys, "what-if", "r1", "--count", "2", "-o", "json").json["summary"]["changes"] == []


@pytest.mark.parametrize(("name", "words"), [("-5", ("-5",)), ("-5", ("--", "-5")), ("--zone", ("--", "--zone"))])
def test_a_request_whose_id_begins_with_a_hyphen_is_asked_about(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], name: str, words: tuple[str, ...]
) -> None:
    assert fleet.run(capsys, "place", "--memory", "1GiB", f"--request={name}", "--wait", "0s").code == 0
    fleet.schedule()

    said = run(["what-if", "-o", "json", "--log", fleet.spec, *words])

    assert (said, json.loads(capsys.readouterr().out)["summary"]["request"]["request_id"]) == (0, name)


@pytest.mark.parametrize("verb", ["what-if", "explain"])
def test_a_flag_behind_two_dashes_is_told_as_one(fleet: FleetLog, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code = run([verb, "--", "-5", "--log", fleet.spec])

    said = capsys.readouterr().err
    assert (code, said.splitlines()[0]) == (2, "claimlog: --log stands behind --, where every word is a name; flags go before it")


def test_an_id_that_is_longer_than_names_of_files_is_one(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    request_id = "\u6f22" * 100
    fleet.asked(capsys, request_id, "--memory", "1GiB")

    assert fleet.run(capsys, "what-if", request_id).code == 0
    assert fleet.run(capsys, "what-if", "\u5b57" * 100).code == 2


def test_a_result_that_lacks_a_decision_is_followed_up_to_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    whole, other = FleetLog(tmp_path), FleetLog(tmp_path / "other")
    for fleet in (whole, other):
        fleet.audit("c01", {}, memory_mib=8192)
    whole.asked(capsys, "r", "--memory", "2GiB", "--count", "3")
    assert other.run(capsys, "place", "--memory", "2GiB", "--count", "3", "--request", "r", "--wait", "0s").code == 0
    for number in whole.log.ends(RESULTS):
        for record in whole.log.read(RESULTS, number, 0):
            result = decode(RESULTS, record.value)
            other.append(RESULTS, replace(result, decisions=result.decisions[::2]) if isinstance(result, InstancesPlaced) else result)

    assert chosen(whole, capsys, "r") == (0, ["c01"] * 3, ["c01"] * 3)
    assert chosen(other, capsys, "r") == (0, ["c01"] * 3, ["c01", None, None])


def test_it_is_decided_where_its_scheduler_stood_unless_another_moment_is_named(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB")
    fleet.asked(capsys, "r2", "--memory", "5GiB")
    fleet.audit("c03", {}, memory_mib=8192)

    assert chosen(fleet, capsys, "r1") == (0, ["c01"], ["c01"])
    assert chosen(fleet, capsys, "r1", "--drain", "c01") == (4, [""], ["c01"])
    assert chosen(fleet, capsys, "r2") == (4, [""], [""])
    assert chosen(fleet, capsys, "r2", "--at", "now") == (0, ["c03"], ["c03"])


def test_files_are_utf_8_whatever_the_locale_says(fleet: FleetLog) -> None:
    (fleet.path.parent / "fleet.toml").write_text('[defaults]\nzone = "süd"\n', encoding="utf-8")
    (fleet.path.parent / "pack.toml").write_text("# für alle\nweighers = []\n", encoding="utf-8")
    flags = ("--memory", "1GiB", "--fleet", "fleet.toml", "--by", "pack.toml", "--log", fleet.spec)

    told = subprocess.run(
        [sys.executable, "-c", "from streams.cli.main import main; main()", "what-if", *flags],
        cwd=fleet.path.parent,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
    )

    assert (told.returncode, told.stderr.startswith(b"cut:")) == (0, True)


@pytest.mark.parametrize("verb", ["what-if", "capacity"])
def test_at_its_own_cut_an_answer_is_by_the_same_policy_though_its_scheduler_started_after_all_of_the_ledger(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    fleet.now_ms += 1000
    fleet.schedule(owner="quiet", policy=PACK)
    answer = fleet.run(capsys, verb, "--memory", "1GiB", "-o", "json").json
    fleet.now_ms += 1000
    fleet.schedule(owner="later", policy=DEFAULT)

    again = fleet.run(capsys, verb, "--memory", "1GiB", "-o", "json", "--at", answer["cut"]).json

    assert answer["summary"]["policy_digest"] == again["summary"]["policy_digest"] == digest(PACK)
    assert (again["cut"], again["items"]) == (answer["cut"], answer["items"])


@pytest.mark.parametrize("verb", ["what-if", "capacity"])
def test_a_fleet_file_is_refused_where_fleet_apply_refuses_it_but_may_name_added_nodes(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    file = fleet.path.parent / "fleet.toml"
    file.write_bytes(b'\xef\xbb\xbf[nodes."c01+1"]\nzone = "east"\n[nodes."d*"]\nzone = "west"\n')
    flags = ("--memory", "1GiB", "--fleet", str(file))

    mistyped, added = fleet.run(capsys, verb, *flags), fleet.run(capsys, verb, *flags, "--add", "c01")

    assert fleet.run(capsys, "fleet", "apply", str(file)).code == 2
    assert (mistyped.code, mistyped.out) == (2, "")
    assert "node 'c01+1' is not known at this cut" in mistyped.err
    assert added.code == 0


def test_a_fleet_file_of_today_may_name_nodes_that_came_after_the_moment_that_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=1000)
    fleet.asked(capsys, "r1", "--memory", "1600")
    before = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    fleet.audit("c02", {}, memory_mib=1000)
    file = tmp_path / "fleet.toml"
    file.write_text('[nodes.c01]\nzone = "east"\n[nodes.c02]\nzone = "west"\n')

    for words in (("what-if", "r1"), ("what-if", "r1", "--at", before), ("capacity", "--memory", "1", "--at", before)):
        said = fleet.run(capsys, *words, "--fleet", str(file))
        assert (said.code, "not known" in said.err) == (4 if words[0] == "what-if" else 0, False)
    file.write_text('[nodes.c03]\nzone = "west"\n')
    assert fleet.run(capsys, "what-if", "r1", "--fleet", str(file)).code == 2


def test_what_nobody_asked_for_yet_is_decided_on_the_present(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    (fleet.path.parent / "fleet.toml").write_text('[nodes.c02]\nmemory_mib = { ratio = 4 }\nzone = "east"\n')
    flags = ("--memory", "3GiB", "--count", "5")

    code, nodes, before = chosen(fleet, capsys, *flags, "--fleet", str(fleet.path.parent / "fleet.toml"), "--by", "pack")
    told = fleet.run(capsys, "what-if", *flags)

    assert (code, len(nodes), before[:3].count(""), len(before)) == (0, 5, 0, 5)
    assert told.code == 4
    assert "what if  nothing were otherwise" in told.out
    assert "3 of 5 have a node: not placed: all or none" in told.out
    assert "RamFilter  2 -> 0  c01: short 1 GiB memory (3 GiB needed of 2 GiB) · c02: short 2 GiB memory" in told.out
    assert told.err.startswith("cut:")


def test_what_hosts_reported_and_nobody_carried_yet_counts_and_the_cut_says_so(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c01", {"late": 8192}, carry=False)

    said = fleet.run(capsys, "what-if", "--memory", "6GiB", "-o", "json")

    assert said.code == 4
    assert said.json["items"][0]["cut"] == [fleet.log.end("claims", 0), fleet.log.end("claims", 1)]
    assert fleet.run(capsys, "what-if", "--memory", "6GiB", "--at", said.json["cut"]).code == 4


def test_a_request_in_a_file_and_on_another_cut(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    cut = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    fleet.audit("c01", {"late": 8192})
    path = fleet.path.parent / "request.json"
    path.write_text('{"request_id": "f1", "flavor": {"memory_mib": 6144}}')

    assert chosen(fleet, capsys, str(path))[:2] == (4, [""])
    assert chosen(fleet, capsys, str(path), "--at", cut)[:2] == (0, ["c01"])


def test_of_another_moment_the_policy_of_then_counts(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    def source(verb: str, *flags: str) -> str:
        said: str = fleet.run(capsys, verb, "--memory", "1GiB", *flags, "-o", "json").json["summary"]["policy_source"]
        return said

    before = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    fleet.now_ms += 1000
    fleet.schedule(owner="spreads")
    fleet.audit("c01", {"one": 1024}, memory_mib=8192)
    then, then_ms = fleet.run(capsys, "nodes", "-o", "json").json["cut"], fleet.now_ms
    fleet.now_ms += 60_000
    fleet.schedule(owner="packs", policy=PACK)

    for verb in ("what-if", "capacity"):
        assert source(verb) == "that of packs, which started last"
        assert source(verb, "--at", then) == "that of spreads, which started last by then"
        assert source(verb, "--at", before) == "the default, as no scheduler had started here by then"
        assert source(verb, "--at", then, "--by", "nova") == "nova"
    fleet.audit("c02", {}, memory_mib=4096)
    assert source("what-if", "--at", f"{then_ms + 1000}") == "that of spreads, which started last by then"
    assert chosen(fleet, capsys, "--memory", "1GiB", "--at", then)[1] == ["c01"]
    assert chosen(fleet, capsys, "--memory", "1GiB", "--at", "now")[1] == ["c02"]


def test_another_policy_is_tried_where_that_of_the_scheduler_names_code_of_its_own(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Policy(filters=("json:loads",))
    fleet.append(RESULTS, SchedulerStarted(owner="s1", started_ms=1, policy_digest=digest(own), policy=text(own)))

    refused = fleet.run(capsys, "what-if", "--memory", "1GiB")
    tried = fleet.run(capsys, "what-if", "--memory", "1GiB", "--by", "pack", "-o", "json")

    assert (refused.code, tried.code) == (2, 0)
    assert "names code of its own, 'json:loads', which is not run on the word of a log; name one with --by" in refused.err
    assert tried.json["summary"]["policy_source"] == "pack"
    assert tried.json["items"][0]["unchanged"] is None


SMALL = "def small(ask, room):\n    return -room.memory_mib_total\n"
OWN = '[[weighers]]\nweigher = "MODULE:small"\n'


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    with code_of_its_own(tmp_path, SMALL, OWN) as path:
        yield path


def test_a_policy_that_by_names_vouches_for_the_code_that_the_recorded_one_names_too(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], own: Path
) -> None:
    fleet.decided_by_code(capsys, own, "--memory", "1GiB", "--count", "2")
    heavier = own.with_name("heavier.toml")
    heavier.write_text(own.read_text() + "multiplier = -1\n")

    as_it_is = chosen(fleet, capsys, "r1", "--by", str(own))
    with_less = chosen(fleet, capsys, "r1", "--by", str(own), "--drain", "c02")
    otherwise = chosen(fleet, capsys, "r1", "--by", str(heavier))
    on_the_present = chosen(fleet, capsys, "--memory", "1GiB", "--by", str(heavier))

    assert as_it_is == (0, ["c02", "c02"], ["c02", "c02"])
    assert with_less == (0, ["c01", "c01"], ["c02", "c02"])
    assert otherwise == (0, ["c01", "c01"], ["c02", "c02"])
    assert on_the_present == (0, ["c01"], ["c02"])


def test_code_that_only_the_log_names_is_not_run(fleet: FleetLog, capsys: pytest.CaptureFixture[str], own: Path) -> None:
    fleet.decided_by_code(capsys, own, "--memory", "1GiB", "--count", "2")

    said = [fleet.run(capsys, "what-if", "r1", *flags) for flags in ((), ("--by", "pack"))]
    present = chosen(fleet, capsys, "--memory", "1GiB", "--by", "pack")

    why = f"code of its own, '{own.parent.name}:small', which is not run on the word of a log; a policy file that names it, given with --by"
    for each in said:
        assert (each.code, why in each.err) == (6, True)
        assert "--at now decides on the present" in each.err
    assert present == (0, ["c02"], [None])
    assert own.parent.name not in sys.modules


def test_at_the_cut_of_an_answer_the_scheduler_that_gave_it_had_started(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.now_ms += 60_000
    fleet.asked(capsys, "r1", "--memory", "1GiB", owner="packs", policy=PACK)
    cut = fleet.run(capsys, "explain", "r1", "-o", "json").json["cut"]

    said = fleet.run(capsys, "what-if", "r1", "--at", cut, "-o", "json").json

    assert said["summary"]["policy_source"] == "that of packs, which started last by then"
    assert [item["chosen"] for item in said["items"]] == ["c02"]


@pytest.mark.parametrize("behind_ms", [0, 40])
def test_a_scheduler_that_starts_at_that_very_time_had_not_started_by_then(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], behind_ms: int
) -> None:
    """`behind_ms`: the clock of the broker that stamps results is behind that of the ledger's."""
    fleet.schedule(owner="spreads")
    fleet.now_ms += 60_000
    fleet.audit("c01", {"one": 1024}, memory_mib=8192)
    asked = {verb: fleet.run(capsys, verb, "--memory", "1GiB", "-o", "json").json for verb in ("what-if", "capacity")}
    then_ms = fleet.now_ms
    fleet.now_ms -= behind_ms
    fleet.schedule(owner="packs", policy=PACK)
    fleet.now_ms += 60_000
    fleet.audit("c02", {}, memory_mib=4096)

    for verb, before in asked.items():
        at_the_cut = fleet.run(capsys, verb, "--memory", "1GiB", "--at", before["cut"], "-o", "json").json
        at_the_time = fleet.run(capsys, verb, "--memory", "1GiB", "--at", str(then_ms - behind_ms), "-o", "json").json
        assert before["summary"]["policy_source"] == "that of spreads, which started last"
        for then in (at_the_cut, at_the_time):
            assert then["summary"]["policy_source"] == "that of spreads, which started last by then"
        assert at_the_cut["items"] == before["items"]
        assert at_the_cut["cut"] == before["cut"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("r1", "--drain", "c99"), "node 'c99' is not known at this cut"),
        (("r1", "--ratio", "ram=2"), "expected RESOURCE=RATIO"),
        (("r1", "--ratio", "memory=many"), "expected a number such as 1.5"),
        (("r1", "--ratio", "memory=sNaN"), "expected a number such as 1.5"),
        (("r1", "--ratio", "memory=1e999999"), "is out of range"),
        (("r1", "--add", "c01=0"), "expected NODE or NODE=COUNT"),
        (("r1", "--memory", "4GiB"), "the request is given already"),
        (("r1", "--by", "nobody"), "--by: nobody"),
        (("r1", "--count", "0"), "expected 1 to 1000"),
        (("nowhere",), "it is not on this log"),
        ((), "nothing is asked for"),
    ],
)
def test_a_wrong_command_line_exits_2(fleet: FleetLog, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB")

    said = fleet.run(capsys, "what-if", *arguments)

    assert (said.code, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize(
    ("said", "why", "code"),
    [
        ({"group": {"group_id": "g", "policy": "affinity"}}, "an affinity group needs ServerGroupAffinityFilter", 1),
        ({"source_node": "c02"}, "source_node goes with actions that move instances", 1),
        (
            {"action": "migrate", "instance_ids": ["vm"], "source_node": "c02"},
            "instance vm is neither claimed nor shown on source_node c02",
            4,
        ),
    ],
)
def test_what_a_scheduler_refuses_whatever_nodes_there_are_is_placed_nowhere(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], said: dict[str, Any], why: str, code: int
) -> None:
    path, policy = fleet.path.parent / "request.json", fleet.path.parent / "policy.toml"
    path.write_text(json.dumps({"request_id": "r", "flavor": {"memory_mib": 1024}} | said))
    policy.write_text('filters = ["RamFilter"]\n')

    played = fleet.run(capsys, "what-if", str(path), "--by", str(policy))
    asked_for = fleet.run(capsys, "place", str(path), "--wait", "0s")
    fleet.schedule(policy=Policy(filters=("RamFilter",)))

    assert (played.code, asked_for.code, fleet.run(capsys, "explain", "r").code) == (4, 0, code)
    assert why in played.out


def test_what_is_asked_about_is_nowhere_whatever_requests_are_called(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    """A request of the verb's own name has instances, too, and they need no room where they are."""
    fleet.audit("c01", {instance_id("what-if", 0): 4096, instance_id("what-if", 1): 4096})

    code = fleet.run(capsys, "what-if", "--memory", "4GiB", "--on", "c01", "--count", "2").code

    assert code == 4


def test_of_an_instance_its_request_is_named(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB", "--count", "2")

    said = fleet.run(capsys, "what-if", instance_id("r1", 1))

    assert said.code == 2
    assert f"'{instance_id('r1', 1)}' is an instance of request r1; " in said.err


def test_an_affinity_group_goes_where_something_else_would_have_sent_it_though_its_request_has_proposed_a_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The home stands in the log before the instances are decided; what chose it is what would be otherwise."""
    fleet = FleetLog(tmp_path)
    for name, memory_mib in (("big", 65_536), ("small", 8192), ("mid", 16_384)):
        fleet.audit(name, {}, memory_mib=memory_mib)
    ask = ("--memory", "1GiB", "--count", "2", "--group", "g", "--policy", "affinity")
    fresh = chosen(fleet, capsys, *ask, "--by", "pack")[1]
    fleet.asked(capsys, "web", *ask)

    again, packed, drained = (chosen(fleet, capsys, "web", *flags) for flags in ((), ("--by", "pack"), ("--drain", "big")))

    assert fresh == ["small", "small"]
    assert again == (0, ["big", "big"], ["big", "big"])
    assert packed == (0, ["small", "small"], ["big", "big"])
    assert drained == (0, ["mid", "mid"], ["big", "big"])

    fleet.asked(capsys, "more", *ask)

    assert chosen(fleet, capsys, "more", "--by", "pack")[1] == ["big", "big"], "that its group lives there is not of its own making"


@pytest.mark.parametrize("verb", [("what-if", "--memory", "1GiB"), ("capacity", "--memory", "1GiB"), ("explain", "r1")])
def test_what_code_of_one_s_own_prints_is_no_part_of_the_answer(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: tuple[str, ...]
) -> None:
    code = "def tells(ask, room):\n    print('tested')\n"
    with code_of_its_own(tmp_path, code, 'filters = ["MODULE:tells"]\n') as talks:
        fleet.decided_by_code(capsys, talks, "--memory", "1GiB")
        said = fleet.run(capsys, *verb, "--by", str(talks), "-o", "json")

    assert said.code == 0
    assert said.json["items"]
    assert "tested" in said.err
