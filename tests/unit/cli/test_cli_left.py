"""What left the log, by a retention or because somebody deleted it, is missing from an answer only where that is said, or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from schemas.topics import AUDITS, DEAD_LETTERS, REQUESTS, RESULTS
from streams.cli.main import run
from streams.log.base import Message
from streams.scheduling.policy import DEFAULT, POLICIES, Policy, digest
from tests.cli_log import FleetLog

PACK = POLICIES["pack"]
OWN = structs.replace(
    DEFAULT, filters=("ComputeFilter", "NumInstancesFilter"), options=structs.replace(DEFAULT.options, max_instances_per_host=1)
)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "c03"):
        fleet.audit(node_id, memory_mib=8192)
    return fleet


def left(fleet: FleetLog, topic: str, number: int) -> None:
    """All that stands in a partition leaves the log."""
    fleet.log.truncate(topic, number, fleet.log.end(topic, number))


def started(fleet: FleetLog, policy: object, *, other_than: int = -1) -> tuple[str, int]:
    """A scheduler that starts with this policy, and says so in a partition other than that one."""
    owner = next(name for name in map("s{}".format, range(100)) if fleet.log.partition(RESULTS, name.encode()) != other_than)
    fleet.now_ms += 1000
    fleet.schedule(owner=owner, policy=policy)
    return owner, fleet.log.partition(RESULTS, owner.encode())


@pytest.mark.parametrize("verb", ["what-if", "capacity"])
def test_where_a_later_start_of_a_scheduler_may_have_left_none_is_taken_for_the_last(fleet: FleetLog, capsys: Capture, verb: str) -> None:
    asked = (verb, "--memory", "1GiB")
    first, number = started(fleet, PACK)
    second, other = started(fleet, OWN, other_than=number)
    before = fleet.run(capsys, *asked, "-o", "json").json
    left(fleet, RESULTS, other)

    said = [fleet.run(capsys, *asked), fleet.run(capsys, *asked, "--at", before["cut"])]
    named = fleet.run(capsys, *asked, "--by", "pack", "-o", "json")

    assert before["summary"]["policy_source"] == f"that of {second}, which started last"
    assert [(each.code, each.out) for each in said] == [(6, "")] * 2
    for each in said:
        assert f"which scheduler started last is not known; at hand are records from {RESULTS}/{other}@" in each.err
        assert "; or name a policy with --by" in each.err
    assert (named.code, named.json["summary"]["policy_source"]) == (0, "pack")
    assert first != second


@pytest.mark.parametrize("verb", ["what-if", "capacity"])
def test_a_file_without_the_results_that_a_cut_names_gives_no_answer_by_another_policy(
    fleet: FleetLog, capsys: Capture, tmp_path: Path, verb: str
) -> None:
    asked = (verb, "--memory", "1GiB")
    started(fleet, PACK)
    cut = fleet.run(capsys, *asked, "-o", "json").json["cut"]
    assert fleet.run(capsys, "copy", str(tmp_path / "all.jsonl")).code == 0
    lines = [line for line in (tmp_path / "all.jsonl").read_text().splitlines(keepends=True) if f'"{RESULTS}"' not in line]
    (tmp_path / "less.jsonl").write_text("".join(lines))

    def run_on(name: str, *flags: str) -> int:
        return run([*asked, "--at", cut, *flags, "--log", str(tmp_path / name)])

    whole, named, less = run_on("all.jsonl"), run_on("less.jsonl", "--by", "pack"), run_on("less.jsonl")

    assert (whole, less, named) == (0, 6, 0)
    assert f"the cut includes {RESULTS}/" in capsys.readouterr().err


@pytest.mark.parametrize(("policy", "is_known"), [(PACK, True), (DEFAULT, True), (OWN, False)])
def test_who_answered_last_tells_the_policy_where_all_starts_have_left(
    fleet: FleetLog, capsys: Capture, policy: Policy, is_known: bool
) -> None:
    owner = "answers"
    last = fleet.log.partition(RESULTS, owner.encode())
    for number in sorted(range(fleet.log.topics()[RESULTS]), key=lambda number: number == last):
        fleet.now_ms += 1000
        fleet.asked(capsys, _in(RESULTS, number, fleet), "--memory", "1GiB", owner=owner, policy=policy)
        fleet.log.truncate(RESULTS, number, fleet.log.end(RESULTS, number) - 1)
    assert {fleet.log.end(RESULTS, number) - fleet.log.start(RESULTS, number) for number in fleet.log.ends(RESULTS)} == {1}

    said = [fleet.run(capsys, *verb, "--memory", "1GiB", "-o", "json") for verb in (["what-if"], ["what-if", "--at", "now"], ["capacity"])]

    for each in said:
        if is_known:
            assert each.json["summary"]["policy_source"] == f"that of {owner}, which answered last"
            assert each.json["summary"]["policy_digest"] == digest(policy)
        else:
            assert (each.code, each.out) == (6, "")
            assert "which scheduler started last is not known" in each.err


def test_an_answer_that_is_older_than_what_left_tells_nothing(fleet: FleetLog, capsys: Capture) -> None:
    owner = "answers"
    last = fleet.log.partition(RESULTS, owner.encode())
    fleet.asked(capsys, _in(RESULTS, last, fleet), "--memory", "1GiB", owner=owner, policy=PACK)
    fleet.log.truncate(RESULTS, last, fleet.log.end(RESULTS, last) - 1)
    for other in set(fleet.log.ends(RESULTS)) - {last}:
        fleet.now_ms += 1000
        for _ in range(2):
            fleet.schedule(owner=_in(RESULTS, other, fleet), policy=OWN)
        left(fleet, RESULTS, other)

    said = fleet.run(capsys, "what-if", "--memory", "1GiB")

    assert (said.code, said.out) == (6, "")
    assert "which scheduler started last is not known" in said.err


def _in(topic: str, number: int, fleet: FleetLog) -> str:
    """A name whose records go to that partition."""
    return next(name for name in map("r{}".format, range(100)) if fleet.log.partition(topic, name.encode()) == number)


def test_a_request_whose_answer_may_have_left_is_not_decided_as_if_it_were_open(fleet: FleetLog, capsys: Capture) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB", policy=PACK)
    place = fleet.log.partition(RESULTS, b"r1")
    answered = fleet.run(capsys, "what-if", "r1").code
    left(fleet, RESULTS, place)

    said = fleet.run(capsys, "what-if", "r1")
    now = fleet.run(capsys, "what-if", "r1", "--at", "now", "--by", "pack")

    assert answered == 0
    assert (said.code, said.out) == (6, "")
    assert "whether it was answered, and how, is not known; at hand are records from " in said.err
    assert "--at now decides on the present" in said.err
    assert now.code == 0


def test_a_request_that_came_after_what_left_is_open(fleet: FleetLog, capsys: Capture) -> None:
    number = fleet.log.partition(RESULTS, b"r1")
    owner = next(name for name in map("s{}".format, range(100)) if fleet.log.partition(RESULTS, name.encode()) == number)
    for _ in range(2):
        fleet.now_ms += 1000
        fleet.schedule(owner=owner, policy=PACK)
    fleet.log.truncate(RESULTS, number, fleet.log.end(RESULTS, number) - 1)
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r1", "--wait", "0s")

    assert fleet.run(capsys, "what-if", "r1", "--by", "pack").code == 0


def test_a_timeline_and_flavors_lack_what_left_and_say_so(fleet: FleetLog, capsys: Capture) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB", "--flavor", "small", policy=PACK)
    whole = fleet.run(capsys, "timeline", "request/r1", "-o", "json").json["items"]
    number = fleet.log.partition(REQUESTS, b"r1")
    fleet.run(capsys, "place", "--memory", "2GiB", "--flavor", "large", "--request", _beside("r1", number, fleet), "--wait", "0s")
    fleet.log.truncate(REQUESTS, number, fleet.log.end(REQUESTS, number) - 1)

    lacking = fleet.run(capsys, "timeline", "request/r1", "-o", "json")
    flavors = fleet.run(capsys, "capacity", "-o", "json")
    left(fleet, REQUESTS, number)
    none = fleet.run(capsys, "capacity")

    assert [item["event"] for item in whole].count("placement-requested") == 1
    assert [item["event"] for item in lacking.json["items"]] == [item["event"] for item in whole if item["event"] != "placement-requested"]
    assert lacking.code == 6
    assert f"at hand are records from {REQUESTS}/{number}@1 on only" in lacking.err
    assert [item["flavor"] for item in flavors.json["items"]] == ["large"]
    assert f"flavors are those of the requests at hand: {REQUESTS}/{number} begins at record 1" in flavors.err
    assert (none.code, none.out) == (6, "")
    assert f"no request is at hand: {REQUESTS}/{number} begins at record 2" in none.err


def test_what_left_other_partitions_is_not_missed_in_a_timeline(fleet: FleetLog, capsys: Capture) -> None:
    for number in fleet.log.ends(REQUESTS):
        fleet.asked(capsys, _in(REQUESTS, number, fleet), "--memory", "1GiB", policy=PACK)
    mine, other = sorted(fleet.log.ends(REQUESTS))
    left(fleet, REQUESTS, other)

    whole = fleet.run(capsys, "timeline", f"request/{_in(REQUESTS, mine, fleet)}")
    lacking = fleet.run(capsys, "timeline", f"request/{_in(REQUESTS, other, fleet)}")

    assert (whole.code, lacking.code) == (0, 6)
    assert "at hand are records" not in whole.err


def _beside(name: str, number: int, fleet: FleetLog) -> str:
    """Another request of the same partition."""
    return next(each for each in map(f"{name}-{{}}".format, range(100)) if fleet.log.partition(REQUESTS, each.encode()) == number)


def test_requests_that_left_before_anybody_read_them_are_told_by_doctor(fleet: FleetLog, capsys: Capture) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB", policy=PACK)
    number = fleet.log.partition(REQUESTS, b"r1")
    for _ in range(3):
        fleet.run(capsys, "place", "--memory", "1GiB", "--request", _beside("r1", number, fleet), "--wait", "0s")
    before = {item["check"]: item for item in fleet.run(capsys, "doctor", "-o", "json").json["items"]}
    left(fleet, REQUESTS, number)

    after = {item["check"]: item for item in fleet.run(capsys, "doctor", "-o", "json").json["items"]}

    assert before["schedulers"]["status"] == "ok"
    assert after["schedulers"]["status"] == "warn"
    assert f"records that it had not read are not at hand ({REQUESTS}/{number}@1 to 3)" in after["schedulers"]["says"]


def test_letters_that_left_are_told(fleet: FleetLog, capsys: Capture) -> None:
    for _ in range(2):
        fleet.log.append([Message(AUDITS, b"c01", b"{")])
    fleet.run(capsys, "run", "--until-idle")
    whole = fleet.run(capsys, "dead-letters", "list", "-o", "json").json["items"]
    left(fleet, DEAD_LETTERS, 0)

    listed = fleet.run(capsys, "dead-letters", "list", "-o", "json")
    shown = [fleet.run(capsys, "dead-letters", "show", name) for name in (f"{DEAD_LETTERS}/0@0", "claims/0@77")]
    redriven = fleet.run(capsys, "dead-letters", "redrive", "--all", "--dry-run")

    assert len(whole) == 2
    assert (listed.code, listed.json["items"]) == (6, [])
    assert [each.code for each in shown] == [6, 6]
    assert redriven.code == 0
    for each in (listed, *shown, redriven):
        assert f"those below {DEAD_LETTERS}/0@2 have left the log" in each.err
