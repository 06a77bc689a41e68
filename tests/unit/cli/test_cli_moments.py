"""Moments that an answer cannot be true for: among records that have left the log, or still to come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.partitioner import partition_of
from streams.clock import wall_clock_ms
from tests.cli_log import PARTITIONS, START_MS, FleetLog, Said

Capture = pytest.CaptureFixture[str]
NAMES = [f"c{number:02}" for number in range(20)]
ASKED = (("nodes", "--at"), ("leaks", "--at"), ("diff", "--at"), ("replay", "--until"))


def archived(directory: Path, capsys: Capture) -> FleetLog:
    """Ten seconds of history, all of which has left the log."""
    fleet = FleetLog(directory)
    for size in (1024, 2048, 3072, 4096):
        fleet.audit("c00", {"i0": size})
        fleet.audit("c01", {"i1": size})
        fleet.audit("c02", {"i2": size})
    fleet.run(capsys, "archive", str(directory / "old"), "--below", "now")
    return fleet


@pytest.mark.parametrize("verb", [*ASKED, ("claims", "list", "--at")])
def test_a_time_among_records_that_have_left_the_log_is_answered_from_the_archive_or_exits_6(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    fleet = archived(tmp_path, capsys)
    early = str(START_MS + 3000)

    alone = fleet.run(capsys, *verb, early)
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path))
    without_files = fleet.run(capsys, *verb, early)
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path / "old"))
    with_it = fleet.run(capsys, *verb, early)

    assert (alone.code, alone.out) == (6, "")
    assert "which have left the log; set CLAIMLOG_ARCHIVE" in alone.err
    assert (without_files.code, "set CLAIMLOG_ARCHIVE" in without_files.err) == (6, False)
    assert f"which have left the log; the archive in {tmp_path} lacks the others: restore its files" in without_files.err
    assert with_it.code in {0, 3}
    assert with_it.out != ""


def test_a_time_after_all_that_has_left_the_log_is_answered_without_the_archive(tmp_path: Path, capsys: Capture) -> None:
    fleet = archived(tmp_path, capsys)
    late = str(fleet.now_ms + 1)

    said = fleet.run(capsys, "nodes", "--at", late, "-o", "json")

    assert said.code == 0
    assert [item["memory_mib"]["reported"] for item in said.json["items"]] == [4096, 4096, 4096]


@pytest.mark.parametrize("verb", ASKED)
def test_a_time_that_has_not_come_has_no_answer_yet(tmp_path: Path, capsys: Capture, verb: tuple[str, ...]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c00", {"i0": 1024})

    said = fleet.run(capsys, *verb, "2999-01-01")

    assert (said.code, said.out) == (6, "")
    assert said.err == "claimlog: 2999-01-01 is 2999-01-01T00:00:00.000Z, which has not come yet; for the end of the log write now\n"


def test_events_say_where_what_is_at_hand_begins_and_a_cut_before_it_exits_6(tmp_path: Path, capsys: Capture) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c00", {"i0": 1024})
    cut = fleet.run(capsys, "events", "-o", "json").json["cut"]
    fleet.audit("c00", {"i0": 2048})
    whole = fleet.run(capsys, "events", "--topic", "claims")
    fleet.run(capsys, "archive", str(tmp_path / "old"), "--below", "now")
    fleet.audit("c00", {"i0": 3072})

    rest = fleet.run(capsys, "events", "--topic", "claims", "-o", "json")
    since = fleet.run(capsys, "events", "--topic", "claims", "--since", cut)

    assert "at hand are records from" not in whole.err
    assert (rest.code, len(rest.json["items"])) == (6, 1)
    assert "at hand are records from claims/" in rest.err
    assert (since.code, since.out) == (6, "")
    assert "set CLAIMLOG_ARCHIVE" in since.err


@pytest.mark.parametrize("topic", ["claims", "hypervisor-audits"])
def test_events_since_or_until_a_time_among_what_has_left_the_log_exit_6_and_those_after_it_are_all_there(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c00", {"i0": 1024})
    among_ms = fleet.now_ms
    fleet.audit("c00", {"i0": 2048})
    fleet.run(capsys, "archive", str(tmp_path / "old"), "--below", "now")
    after_ms = fleet.now_ms + 500
    fleet.audit("c00", {"i0": 3072})
    asked = ("events", "--topic", topic, "-o", "json")

    since, until = fleet.run(capsys, *asked, "--since", str(among_ms)), fleet.run(capsys, *asked, "--until", str(among_ms))
    after = fleet.run(capsys, *asked, "--since", str(after_ms))
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path / "old"))
    whole = fleet.run(capsys, *asked, "--since", str(among_ms))

    assert (since.code, since.out, until.code, until.out) == (6, "", 6, "")
    assert "set CLAIMLOG_ARCHIVE" in since.err
    assert (after.code, len(after.json["items"]), after.err) == (0, 1, "")
    assert (whole.code, len(whole.json["items"])) == (0, 3)


def test_events_since_a_time_are_all_there_from_the_first_record_at_hand_on_and_before_it_where_a_snapshot_says_so(
    tmp_path: Path, capsys: Capture
) -> None:
    """The snapshot that the archive makes ends behind the first record that stays, so nothing says how new the last one is that left."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c00", {"i0": 1024})
    fleet.now_ms += 60_000
    pause, later = str(fleet.now_ms - 30_000), str(fleet.now_ms + 1_500)
    fleet.audit("c00", {"i0": 2048})
    fleet.audit("c00", {"i0": 3072})
    fleet.run(capsys, "archive", str(tmp_path / "old"), "--below", pause)

    def said(*flags: str) -> Said:
        return fleet.run(capsys, "events", "--topic", "claims", "-o", "json", *flags)

    before, since, until, cut = said("--since", pause), said("--since", later), said("--until", pause), said("--since", said().json["cut"])

    assert sum(fleet.log.start("claims", number) for number in range(PARTITIONS)) > 0
    assert (before.code, len(before.json["items"])) == (6, 2)
    assert (since.code, len(since.json["items"]), since.err) == (0, 1, "")
    assert (cut.code, cut.json["items"]) == (0, [])
    assert until.code == 6


def test_events_of_partitions_that_begin_at_different_moments_are_not_taken_for_all_there(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition reaches back before the time, the other has lost what is newer: brokers deleted records, or a file has their tails."""
    fleet = FleetLog(tmp_path)
    names = [next(name for name in NAMES if partition_of(name.encode(), PARTITIONS) == number) for number in range(2)]
    for number in (1, 0, 1, 0, 0):
        fleet.audit(names[number], {})
    moment = fleet.log.read("claims", 0, 1, 1)[0].time_ms
    fleet.run(capsys, "copy", str(tmp_path / "all.jsonl"))
    kept = []
    for line in (tmp_path / "all.jsonl").read_text().splitlines()[1:]:
        place = json.loads(line)
        if place["topic"] == "claims" and place["offset"] >= {0: 3, 1: 1}.get(place["partition"], 0):
            kept.append(line)
    (tmp_path / "tails.jsonl").write_text("\n".join(kept) + "\n")

    def said(file: str) -> Said:
        monkeypatch.setattr(fleet, "spec", str(tmp_path / file))
        return fleet.run(capsys, "events", "--topic", "claims", "--since", str(moment), "-o", "json")

    whole, tails = said("all.jsonl"), said("tails.jsonl")

    assert (whole.code, len(whole.json["items"])) == (0, 4)
    assert (tails.code, len(tails.json["items"]), "claims/0@3 on only" in tails.err) == (6, 2, True)


@pytest.mark.parametrize("verb", [*ASKED, ("timeline", "node/c00", "--until")])
def test_a_time_before_the_first_record_is_said_to_be_one_and_said_once(tmp_path: Path, capsys: Capture, verb: tuple[str, ...]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c00", {})

    before = fleet.run(capsys, *verb, "2016-11-22T10:00:00Z")
    after = fleet.run(capsys, *verb, str(START_MS + 500_000))

    assert before.err.count("2016-11-22T10:00:00.000Z lies before the first record of the ledger") == 1
    assert "lies before" not in after.err


def test_of_a_ledger_whose_clock_is_ahead_a_time_is_answered_with_a_warning(tmp_path: Path, capsys: Capture) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c00", {"i0": 1024})
    then_ms = fleet.now_ms
    fleet.now_ms = wall_clock_ms() + 3_600_000
    fleet.audit("c00", {"i0": 2048})

    at_a_time, at_its_end = fleet.run(capsys, "nodes", "--at", str(then_ms + 1)), fleet.run(capsys, "nodes")

    assert at_a_time.code == 0
    assert at_a_time.err.count("which is still to come: a clock is wrong, there or here") == 1
    assert "still to come" not in at_its_end.err
