"""`--at` and `--until`: every verb that takes a moment says again what it said then."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import rmtree

import pytest

from schemas.lifecycle import InstanceDeleted
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import AUDITS, CLAIMS, REQUESTS
from streams.log.base import Message
from tests.cli_log import FleetLog

VERBS = (
    ("leaks", "--at"),
    ("nodes", "--at"),
    ("node show c01", "--at"),
    ("claims list", "--at"),
    ("events --for node/c01", "--until"),
    ("timeline node/c01", "--until"),
    ("replay", "--until"),
)


def ageless(text: str) -> str:
    """An answer without its cut, which names what was read, and without how old things are by now."""
    return re.sub(r'"cut": "[^"]*"|"\w*age_ms": -?\d+', "", text)


@pytest.mark.parametrize("by", ["cut", "time"])
def test_every_verb_says_again_what_it_said_at_a_moment(by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048)
    fleet.lived("c01", "i-77", 2048)
    fleet.now_ms += 60_000
    fleet.audit("c01", {"i-77": 2048, "ghost": 64})
    fleet.now_ms += 60_000
    fleet.audit("c01", {"ghost": 64})
    time_ms = str(fleet.now_ms + 1)
    before = [fleet.run(capsys, *verb.split(), "-o", "json") for verb, _ in VERBS]
    moments = [said.json["cut"] if by == "cut" else time_ms for said in before]
    fleet.now_ms += 60_000
    fleet.lived("c01", "i-77", 2048, InstanceDeleted)
    fleet.audit("c01", {})
    fleet.claim("r2/0/s-1.1", "i-78", "c01", memory_mib=512)
    now = [fleet.run(capsys, *verb.split(), "-o", "json") for verb, _ in VERBS]

    asked = zip(VERBS, moments, strict=True)
    again = [fleet.run(capsys, *verb.split(), flag, moment, "-o", "json") for (verb, flag), moment in asked]

    for (verb, _), said, later, newest in zip(VERBS, before, again, now, strict=True):
        assert (later.code, ageless(later.out)) == (said.code, ageless(said.out)), verb
        assert ageless(newest.out) != ageless(said.out), verb


@pytest.mark.parametrize("by", ["cut", "time"])
@pytest.mark.parametrize("lost", ["without the archive", "without the files of what hosts reported"])
@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
def test_what_had_been_reported_and_was_not_carried_yet_is_at_hand_or_missed(
    by: str, lost: str, ahead_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetLog(tmp_path)
    history = tmp_path / "history"
    fleet.audit("c01", memory_mib=8192, ahead_ms=ahead_ms)
    fleet.run(capsys, "snapshot", "write")
    fleet.audit("c01", {"i-1": 1024}, memory_mib=8192, carry=False, ahead_ms=ahead_ms)
    fleet.now_ms += 60_000
    said = fleet.run(capsys, "nodes", "-o", "json")
    moment = said.json["cut"] if by == "cut" else str(fleet.now_ms)
    fleet.now_ms += 60_000
    fleet.carry()
    fleet.audit("c01", memory_mib=8192, ahead_ms=ahead_ms)
    fleet.run(capsys, "snapshot", "write")
    fleet.run(capsys, "archive", str(history), "--below", moment if by == "time" else str(fleet.now_ms - 90_000))
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(history))
    whole = {verb: fleet.run(capsys, verb, "--at", moment, "-o", "json") for verb in ("nodes", "leaks")}
    if lost == "without the archive":
        monkeypatch.delenv("CLAIMLOG_ARCHIVE")
    else:
        rmtree(history / AUDITS)

    missed = {verb: fleet.run(capsys, verb, "--at", moment, "-o", "json") for verb in ("nodes", "leaks")}

    assert ageless(whole["nodes"].out) == ageless(said.out)
    assert "1 observation not yet in the ledger is included" in whole["nodes"].err
    for answer in missed.values():
        assert (answer.code, answer.out) == (6, "")
        assert "hypervisor-audits/" in answer.err
        assert "which the ledger did not have yet" in answer.err


def test_an_observation_that_was_carried_twice_is_not_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A carrier that was killed between its append and its commit carries again; the history before the moment has left the log."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", memory_mib=8192)
    number = fleet.log.partition(AUDITS, b"c01")
    (carried,) = [each for each in fleet.log.read(CLAIMS, number, 0) if b"node-observed" in each.value]
    fleet.claim("k1", "i-1", "c01")
    fleet.run(capsys, "snapshot", "write")
    fleet.now_ms += 5_000
    below = str(fleet.now_ms)
    fleet.claim("k2", "i-2", "c01")
    fleet.now_ms += 5_000
    moment = str(fleet.now_ms)
    said = fleet.run(capsys, "nodes", "--at", moment, "-o", "json")
    fleet.log.append([Message(CLAIMS, carried.key, carried.value, carried.headers, number)])
    fleet.now_ms += 60_000
    fleet.audit("c01", memory_mib=8192)
    assert fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", below).code == 0

    again = fleet.run(capsys, "nodes", "--at", moment, "-o", "json")

    assert fleet.log.start(CLAIMS, number) > carried.offset
    assert (again.code, again.out) == (0, said.out)


def test_a_cut_of_another_kind_of_answer_bounds_what_it_does_not_name_by_its_newest_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nodes` reads the ledger alone, and its cut names nothing else."""
    fleet = FleetLog(tmp_path)
    verbs = ("events --for node/c01", "timeline node/c01", "dead-letters list", "capacity")

    def happens(request: str) -> None:
        fleet.append(REQUESTS, PlacementRequested(request_id=request, flavor=Flavor(name=request, vcpus=1, memory_mib=64)))
        fleet.log.append([Message(AUDITS, b"c01", b"{")])
        fleet.audit("c01")

    happens("small")
    cut = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    said = [fleet.run(capsys, *verb.split(), "--at" if verb == "capacity" else "--until", cut, "-o", "json") for verb in verbs]
    fleet.now_ms += 60_000
    happens("large")

    again = [fleet.run(capsys, *verb.split(), "--at" if verb == "capacity" else "--until", cut, "-o", "json") for verb in verbs]
    since = fleet.run(capsys, "events", "--since", cut, "-o", "json").json["items"]

    assert [(each.code, ageless(each.out)) for each in again] == [(each.code, ageless(each.out)) for each in said]
    assert [len(each.json["items"]) > 0 for each in said] == [True] * len(verbs)
    assert {item["key"] for item in since if item["type"] == "placement-requested"} == {"large"}


def test_a_cut_whose_newest_record_has_left_the_log_tells_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    cut = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    fleet.now_ms += 60_000
    fleet.audit("c01", {"i": 64})
    fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", str(fleet.now_ms))

    said = fleet.run(capsys, "events", "--topic", AUDITS, "--until", cut)

    assert (said.code, said.out) == (6, "")
    assert re.search(r"claims/\d: record \d is needed to tell the time of the cut, at hand are those from \d on", said.err)


def test_at_a_cut_ages_count_to_what_had_been_reported_and_not_carried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.claim("r1/0/s-1.1", "i-1", "c01", ttl_ms=60_000)
    fleet.now_ms += 600_000
    fleet.audit("c01", {"i-2": 64}, carry=False)
    cut = fleet.run(capsys, "claims", "list", "-o", "json").json["cut"]

    (claim,) = fleet.run(capsys, "claims", "list", "--at", cut, "-o", "json").json["items"]
    overdue = fleet.run(capsys, "claims", "list", "--at", cut, "--state", "overdue", "-o", "json").json["items"]

    assert (claim["state"], claim["age_ms"]) == ("overdue", 601_000)
    assert overdue == [claim]


def test_with_the_archive_in_the_environment_it_is_kept_in_one_folder_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has left the log was told to be in it, and left it again into a second folder, with which the first one is worth nothing."""
    fleet, one = FleetLog(tmp_path), tmp_path / "one"
    fleet.audit("c01")
    fleet.run(capsys, "archive", str(one), "--below", "now")
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(one))

    again = fleet.run(capsys, "archive", str(one), "--below", "now", "-o", "json")
    elsewhere = fleet.run(capsys, "archive", str(tmp_path / "two"), "--below", "now")

    starts = {(each["topic"], each["partition"]): each["start"] for each in again.json["items"]}
    assert starts == {place: fleet.log.start(*place) for place in starts}
    assert any(starts.values())
    assert (elsewhere.code, elsewhere.out) == (1, "")
    assert "archive into the folder that has it" in elsewhere.err.lower()
