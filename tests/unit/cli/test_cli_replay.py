"""`claimlog replay` and `claimlog archive`: the same digests from the log, from snapshots and from files, and a difference is exit 3."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from projections.cut import Cut
from projections.ledger import Ledger
from projections.replay import fold
from projections.snapshots import chunks_of
from schemas.codec import encode, key_of
from schemas.lifecycle import InstanceStarted
from schemas.results import LedgerDigest
from schemas.topics import CLAIMS, DIGESTS, SNAPSHOTS
from streams.log.base import Message, TopicSpec
from streams.log.sqlite import SqliteLog
from tests.cli_log import PARTITIONS, START_MS, FleetLog

Capture = pytest.CaptureFixture[str]


def busy(directory: Path) -> FleetLog:
    """Four nodes in two partitions with claims, guests and one refusal."""
    fleet = FleetLog(directory)
    for number in range(4):
        node_id = f"c{number:02}"
        fleet.audit(node_id)
        fleet.claim(f"r{number}/0/s-1.1", f"i{number}", node_id, memory_mib=512)
        fleet.lived(node_id, f"i{number}", 512, InstanceStarted)
        fleet.audit(node_id, {f"i{number}": 512})
    fleet.claim("r9/0/s-1.2", "i9", "c00", memory_mib=1 << 20)
    return fleet


def end_of(fleet: FleetLog, number: int) -> int:
    return fleet.log.end(CLAIMS, number)


def snapshot(fleet: FleetLog, number: int, end: int) -> Ledger:
    ledger = fold(fleet.log, Ledger(number, PARTITIONS), end).ledger
    fleet.log.create([TopicSpec(SNAPSHOTS, PARTITIONS)])
    fleet.log.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk), (), number) for chunk in chunks_of(ledger)])
    return ledger


def test_replay_prints_each_partition_with_its_digest_and_counts(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)

    said = fleet.run(capsys, "replay", "-o", "json")

    assert said.code == 0
    items = said.json["items"]
    assert [item["next_offset"] for item in items] == [end_of(fleet, number) for number in range(PARTITIONS)]
    folded = [fold(fleet.log, Ledger(number, PARTITIONS), end_of(fleet, number)).ledger for number in range(PARTITIONS)]
    assert [item["digest"] for item in items] == [ledger.digest.hex() for ledger in folded]
    totals = {name: sum(item[name] for item in items) for name in ("nodes", "claims", "granted", "refused", "dead")}
    assert totals == {"nodes": 4, "claims": 4, "granted": 4, "refused": 1, "dead": 0}


def test_the_cut_of_an_answer_gives_it_again(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    first = fleet.run(capsys, "replay", "--until", str((START_MS + 9_000) / 1000), "-o", "json")
    fleet.audit("c01")

    again = fleet.run(capsys, "replay", "--until", first.json["cut"], "-o", "json")

    assert again.json == first.json
    assert 0 < sum(item["next_offset"] for item in first.json["items"]) < sum(end_of(fleet, number) for number in range(PARTITIONS))


@pytest.mark.parametrize("flags", [("--until",), ("--verify", "--until")])
def test_the_cut_of_another_log_is_refused(tmp_path: Path, capsys: Capture, flags: tuple[str, ...]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one, other = busy(tmp_path / "one"), busy(tmp_path / "other")
    cut = one.run(capsys, "replay", "-o", "json").json["cut"]

    said = other.run(capsys, "replay", *flags, cut)

    assert (said.code, said.out) == (2, "")
    assert "this cut was taken on another log" in said.err


def test_a_cut_with_observations_that_the_log_does_not_have_is_incomplete(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    ends = {(CLAIMS, number): end_of(fleet, number) for number in range(PARTITIONS)}
    audits_end = fleet.log.end("hypervisor-audits", 0)

    there = fleet.run(capsys, "replay", "--until", str(Cut.of({**ends, ("hypervisor-audits", 0): audits_end})))
    beyond = fleet.run(capsys, "replay", "--until", str(Cut.of({**ends, ("hypervisor-audits", 0): audits_end + 7})))

    assert (there.code, beyond.code, beyond.out) == (0, 6, "")
    assert "what the cut includes of hypervisor-audits is no part of it" in there.err
    assert f"the cut includes hypervisor-audits/0 up to {audits_end + 7}, this log ends at {audits_end}" in beyond.err


def test_from_snapshots_gives_the_same_digests_and_says_from_where_it_counted(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    snapshot(fleet, 0, 5)

    quick = fleet.run(capsys, "replay", "-o", "json").json["items"]
    whole = fleet.run(capsys, "replay", "--no-from-snapshots", "-o", "json").json["items"]

    assert [item["digest"] for item in quick] == [item["digest"] for item in whole]
    assert ([item["from"] for item in quick], [item["from"] for item in whole]) == ([5, 0], [0, 0])


def test_verify_says_what_it_compared(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    snapshot(fleet, 0, 5)

    said = fleet.run(capsys, "replay", "--verify")

    assert said.code == 0
    assert "verified: two folds are equal, and so are 0 digests, 0 node rows and 1 snapshots" in said.err


def test_a_difference_exits_3_and_is_named(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    ledger = snapshot(fleet, 0, 5)
    wrong = LedgerDigest(ledger_id="x", partition=0, process="p7", offset=4, digest="00", rules_version=1)
    fleet.log.create([TopicSpec(DIGESTS, PARTITIONS)])
    right = replace(wrong, process="p8", digest=ledger.digest.hex())
    fleet.log.append([Message(DIGESTS, key_of(each) or b"", encode(each), (), 0) for each in (wrong, right)])

    said = fleet.run(capsys, "replay", "--verify", "-o", "json")

    assert said.code == 3
    differs = f"the digest of process p7 (claimlog unknown, rules 1) differs: the log gives {ledger.digest.hex()}, found 00"
    assert f"claims/0@4: {differs}" in said.err
    assert said.json["summary"]["verified"] is False
    assert [each["what"] for each in said.json["summary"]["differences"]] == ["the digest of process p7 (claimlog unknown, rules 1)"]


def test_archived_history_leaves_the_log_and_replays_to_the_same_digests(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    before = fleet.run(capsys, "replay", "-o", "json").json

    archived = fleet.run(capsys, "archive", str(tmp_path / "files"), "--below", str((START_MS + 9_000) / 1000), "-o", "json")

    assert archived.code == 0
    moved = {item["partition"]: item["moved"] for item in archived.json["items"] if item["topic"] == CLAIMS}
    assert sum(moved.values()) > 0
    assert {number: fleet.log.start(CLAIMS, number) for number in moved} == moved
    quick = fleet.run(capsys, "replay", "-o", "json").json
    assert quick["cut"] == before["cut"]
    assert [item["digest"] for item in quick["items"]] == [item["digest"] for item in before["items"]]
    assert fleet.run(capsys, "replay", "--verify").code == 6
    verified = fleet.run(capsys, "replay", "--verify", "--archive", str(tmp_path / "files"), "-o", "json")
    assert (verified.code, [item["digest"] for item in verified.json["items"]]) == (0, [item["digest"] for item in before["items"]])


def test_the_first_archive_makes_the_folder_that_the_environment_names_already(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = busy(tmp_path)
    before = fleet.run(capsys, "replay", "-o", "json").json
    files = tmp_path / "archives" / "files"
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(files))

    too_early = fleet.run(capsys, "nodes")
    archived = fleet.run(capsys, "archive", str(files), "--below", "now")

    assert (too_early.code, archived.code) == (2, 0), archived.err
    assert fleet.run(capsys, "replay", "--verify", "-o", "json").json["items"] == before["items"]


def test_archiving_again_goes_on_where_it_ended(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    files = str(tmp_path / "files")
    before = fleet.run(capsys, "replay", "-o", "json").json
    for seconds in (6, 9, 9, 1000):
        assert fleet.run(capsys, "archive", files, "--below", str((START_MS + seconds * 1000) / 1000)).code == 0

    verified = fleet.run(capsys, "replay", "--verify", "--archive", files, "-o", "json")

    assert [fleet.log.start(CLAIMS, number) for number in range(PARTITIONS)] == [end_of(fleet, number) for number in range(PARTITIONS)]
    assert verified.json["items"] == before["items"]
    assert fleet.run(capsys, "replay").code == 0


def test_nothing_leaves_the_log_below_a_snapshot_that_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    ledger = fold(fleet.log, Ledger(0, PARTITIONS), end_of(fleet, 0)).ledger
    ledger.nodes[min(ledger.nodes)].zone = "tampered"
    fleet.log.create([TopicSpec(SNAPSHOTS, PARTITIONS)])
    fleet.log.append([Message(SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks_of(ledger)])

    said = fleet.run(capsys, "archive", str(tmp_path / "files"), "--below", "now")

    assert said.code == 1
    assert "is not what the log gives; nothing was done" in said.err
    assert fleet.log.start(CLAIMS, 0) == 0


def test_observations_that_the_ledger_has_not_taken_over_stay(tmp_path: Path, capsys: Capture) -> None:
    fleet = busy(tmp_path)
    fleet.audit("c01", carry=False)
    number = fleet.log.partition("hypervisor-audits", b"c01")
    waiting = fleet.log.end("hypervisor-audits", number) - 1

    fleet.run(capsys, "archive", str(tmp_path / "files"), "--below", str(START_MS // 1000 + 10_000))

    assert fleet.log.start("hypervisor-audits", number) == waiting


def test_a_missing_archive_folder_is_a_mistake_in_use(tmp_path: Path, capsys: Capture) -> None:
    said = busy(tmp_path).run(capsys, "replay", "--archive", str(tmp_path / "nowhere"))

    assert (said.code, said.out) == (2, "")
    assert "there is no such folder" in said.err


def test_a_log_without_ledger_is_said_to_have_none(tmp_path: Path, capsys: Capture) -> None:
    fleet = FleetLog(tmp_path, opened=False)

    said = fleet.run(capsys, "replay")

    assert said.code == 1
    assert "claimlog run" in said.err
    assert isinstance(fleet.log, SqliteLog)
