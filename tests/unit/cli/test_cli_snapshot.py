"""`claimlog snapshot`: what there is, what is wrong with it, and one more that is what the log gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from projections.ledger import Ledger
from projections.replay import fold
from projections.snapshots import chunks_of
from projections.state import STATE_VERSION
from schemas.codec import encode, key_of
from schemas.results import SnapshotChunk
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.cli.main import run
from streams.cli.reading import apart
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
from tests.cli_log import PARTITIONS, FleetLog, Said

Capture = pytest.CaptureFixture[str]


def fleet_of_four(directory: Path) -> FleetLog:
    fleet = FleetLog(directory)
    for number in range(4):
        fleet.audit(f"c{number:02}", {f"i{number}": 1024})
    return fleet


def chunks(fleet: FleetLog, number: int, end: int, chunk_bytes: int = 1 << 20) -> list[SnapshotChunk]:
    """The snapshot of a partition at an offset, as the stream processor makes it."""
    return chunks_of(fold(fleet.log, Ledger(number, PARTITIONS), end).ledger, chunk_bytes)


def publish(fleet: FleetLog, found: list[SnapshotChunk]) -> None:
    fleet.log.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk), (), chunk.partition) for chunk in found])


def test_a_snapshot_that_several_processes_fold_is_the_one_that_one_folds(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "RECORDS_MIN", 1)
    fleet = fleet_of_four(tmp_path)
    fleet.claim("r/0/s-1.1", "gone", "c00", memory_mib=512)
    copy = f"sqlite:{tmp_path / 'copy.db'}"
    fleet.run(capsys, "copy", copy)

    assert fleet.run(capsys, "snapshot", "write", "--jobs", "1").code == 0
    assert run(["snapshot", "write", "--jobs", "2", "--log", copy]) == 0

    with SqliteLog.open(tmp_path / "copy.db") as other:
        one, two = ([[each.value for each in log.read(SNAPSHOTS, n, 0)] for n in range(PARTITIONS)] for log in (fleet.log, other))
    assert one == two
    assert all(one)


def says(said: Said) -> list[tuple[int, int, str]]:
    return [(item["partition"], item["offset"], item["says"]) for item in said.json["items"]]


def test_a_ledger_without_snapshots_gets_one_a_partition_and_the_second_call_finds_them_right(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_four(tmp_path)
    ends = dict(fleet.log.ends(CLAIMS))

    none = fleet.run(capsys, "snapshot", "list", "-o", "json")
    first = fleet.run(capsys, "snapshot", "write")
    again = fleet.run(capsys, "snapshot", "write")
    found = fleet.run(capsys, "snapshot", "list", "-o", "json")
    verified = fleet.run(capsys, "snapshot", "list", "--verify", "-o", "json")

    assert (none.code, none.json["items"]) == (0, [])
    assert first.out == "".join(f"claims/{n}: the snapshot of offset {end - 1} is written and read back\n" for n, end in ends.items())
    assert again.out == "".join(
        f"claims/{n}: the snapshot of offset {end - 1} was there already, and is what the log gives\n" for n, end in ends.items()
    )
    assert says(found) == [(number, end - 1, "usable") for number, end in ends.items()]
    assert {(item["behind"], item["has_views"]) for item in found.json["items"]} == {(0, True)}
    assert says(verified) == [(number, end - 1, "verified") for number, end in ends.items()]
    assert (first.code, again.code, found.code, verified.code) == (0, 0, 0, 0)


def test_what_was_true_at_a_cut_is_told_again_from_the_snapshots_written_there(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_four(tmp_path)
    fleet.claim("lost", "i9", "c00", memory_mib=2048)
    cut = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    asked = (
        ("nodes", "--at", cut, "-c", "node_id", "-c", "memory_mib.free"),
        ("leaks", "--at", cut, "-o", "value"),
        ("replay", "--until", cut, "--verify", "-o", "value"),
    )
    before = [fleet.run(capsys, *verb).out for verb in asked]

    fleet.run(capsys, "snapshot", "write")
    fleet.audit("c00", {"i0": 1024})
    after = [fleet.run(capsys, *verb).out for verb in asked]

    assert after == before
    assert "c00" in before[0]
    behind = [item["behind"] for item in fleet.run(capsys, "snapshot", "list", "-o", "json").json["items"]]
    assert sorted(behind) == [0, 1], "the audit came after one of them"


def test_what_is_no_snapshot_is_dropped_by_the_next_one_and_nobody_is_told_of_it_any_more(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_four(tmp_path)
    fleet.run(capsys, "snapshot", "write")
    fleet.log.append([Message(SNAPSHOTS, b"0", b"somebody else's", partition=0)])

    told = fleet.run(capsys, "doctor")
    written = fleet.run(capsys, "snapshot", "write")
    after = fleet.run(capsys, "snapshot", "list")

    assert "`claimlog snapshot write` writes new ones from the ledger and drops what is damaged" in told.out
    assert written.out.splitlines()[0].endswith("is written and read back")
    assert (after.code, after.err.count("passed over")) == (0, 0)


def test_one_that_is_not_what_the_log_gives_is_found_and_exits_3(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_four(tmp_path)
    end = fleet.log.end(CLAIMS, 0)
    ledger = fold(fleet.log, Ledger(0, PARTITIONS), end).ledger
    next(iter(ledger.nodes.values())).zone = "elsewhere"
    publish(fleet, chunks_of(ledger))

    listed = fleet.run(capsys, "snapshot", "list", "-o", "json")
    verified = fleet.run(capsys, "snapshot", "list", "--verify", "-o", "json")
    written = fleet.run(capsys, "snapshot", "write", "--partition", "0")

    assert (listed.code, says(listed)) == (0, [(0, end - 1, "usable")])
    assert (verified.code, says(verified)) == (3, [(0, end - 1, "not what the log gives")])
    assert written.code == 1
    assert f"the snapshot of offset {end - 1} is not what the log gives; nothing was done" in written.err


def test_one_of_another_log_or_version_says_so_and_one_half_written_is_no_finding(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "other").mkdir()
    fleet, other = fleet_of_four(tmp_path), FleetLog(tmp_path / "other")
    other.audit("c00", {"elsewhere": 512})
    publish(fleet, chunks(fleet, 0, 2, chunk_bytes=200)[:-1])

    half = fleet.run(capsys, "snapshot", "list", "-o", "json")
    publish(fleet, [replace(chunk, state_version=chunk.state_version + 1) for chunk in chunks(fleet, 0, 1)])
    publish(fleet, chunks(other, 1, 1))
    bad = fleet.run(capsys, "snapshot", "list", "-o", "json")

    assert half.code == 0
    ((_, _, incomplete),) = says(half)
    assert incomplete.startswith("incomplete: ")
    assert bad.code == 3
    assert says(bad)[0][2].startswith("of state version ")
    assert "the log has another record at offset 0" in says(bad)[-1][2]


def test_a_partition_that_is_not_there_is_a_usage_error(tmp_path: Path, capsys: Capture) -> None:
    fleet = fleet_of_four(tmp_path)

    said = fleet.run(capsys, "snapshot", "write", "--partition", "9")

    assert (said.code, said.out) == (2, "")
    assert said.err == "claimlog: --partition 9: claims has the partitions 0 to 1\n"


def test_without_the_first_records_nothing_is_written_and_the_exit_code_is_6(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_of_four(tmp_path)
    fleet.run(capsys, "archive", str(tmp_path / "old"), "--below", "now")
    fleet.audit("c00", {"i0": 2048})
    fleet.audit("c01", {"i1": 2048})
    fleet.audit("c03", {"i3": 2048})
    before = dict(fleet.log.ends(SNAPSHOTS))

    without = fleet.run(capsys, "snapshot", "write")
    nothing = dict(fleet.log.ends(SNAPSHOTS))
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path / "old"))
    with_it = fleet.run(capsys, "snapshot", "write")

    assert (without.code, nothing) == (6, before)
    assert "set CLAIMLOG_ARCHIVE to the folder" in without.err
    assert with_it.code == 0
    assert "is written and read back" in with_it.out


def test_a_version_that_knows_no_snapshot_of_an_archived_log_says_what_to_do_and_then_begins(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, history = fleet_of_four(tmp_path), tmp_path / "history"
    run = ("run", "--only", "scheduler", "--until-idle")
    assert fleet.run(capsys, "archive", str(history), "--below", "now").code == 0
    for module in ("projections.state", "projections.snapshots"):
        monkeypatch.setattr(f"{module}.STATE_VERSION", STATE_VERSION + 1)

    without = fleet.run(capsys, *run)
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(history))
    written = fleet.run(capsys, "snapshot", "write")
    begun = fleet.run(capsys, *run)

    assert (without.code, written.code, begun.code) == (6, 0, 0)
    assert f"known here: {STATE_VERSION + 1}; `claimlog snapshot write` with CLAIMLOG_ARCHIVE writes one to begin at\n" in without.err
    assert "; the others were archived\n" in without.err
    assert "writes one to begin at" not in written.err


def test_a_snapshot_behind_which_records_were_archived_is_listed_and_no_finding(tmp_path: Path, capsys: Capture) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(8):
        fleet.audit(f"c{number}", {})
    assert fleet.run(capsys, "snapshot", "write").code == 0
    for number in range(8):
        fleet.audit(f"c{number}", {"i": 512})
    assert fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", "now").code == 0

    said = fleet.run(capsys, "snapshot", "list", "-o", "json")

    assert said.code == 0
    assert sorted("usable" if item["says"] == "usable" else item["says"][:24] for item in said.json["items"]) == [
        "the log begins at offset", "the log begins at offset", "usable", "usable",
    ]  # fmt: skip
