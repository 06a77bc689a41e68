"""Snapshots whose bytes are no longer what was written: answers and steps go on without them, say so, and one verb mends it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.ledger import Ledger
from projections.reading import Recorded
from projections.replay import fold
from projections.snapshots import CHUNKS_AT_ONCE, chunks_of, damaged_at, encoded, load_newest, newest_offset
from schemas.claims import PartitionOpened
from schemas.codec import encode, key_of
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.engines import Watcher
from streams.log.base import LogDamaged, Message, Partition, Position, TopicSpec
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog
from tests.cli_log import PARTITIONS, FleetLog, Said
from tests.ledger_history import START_MS, History

Capture = pytest.CaptureFixture[str]

MENDS = "`claimlog snapshot write`"
PAGE_BYTES = 4096
ASKED = [
    ("nodes", "-o", "json"),
    ("leaks", "-o", "json"),
    ("claims", "list", "-o", "json"),
    ("replay", "-o", "json", "-c", "digest", "-c", "nodes"),
    ("capacity", "--memory", "1GiB", "-o", "json"),
    ("diff", "--at", "-1d", "--at", "now", "-o", "json"),
]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """Four nodes, each with an instance that nobody claimed, and a snapshot of each partition, followed by another audit."""
    fleet = FleetLog(tmp_path)
    for number in range(4):
        fleet.audit(f"c{number:02}", {f"i{number}": 1024})
    return fleet


def publish(log: SqliteLog, number: int, end: int, chunk_bytes: int = 1 << 20) -> list[int]:
    """Write the snapshot of a partition at an offset, as the stream processor does; returns where its chunks stand."""
    chunks = chunks_of(fold(log, Ledger(number, PARTITIONS), end).ledger, chunk_bytes)
    return log.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk), (), number) for chunk in chunks])


def flip(fleet: FleetLog, number: int, offset: int) -> str:
    """Change one byte of a chunk in the file, as a bad disk would; returns where the chunk stands."""
    value = fleet.log.read(SNAPSHOTS, number, offset, 1)[0].value
    fleet.log.close()
    with sqlite3.connect(fleet.path) as db:
        ((block, records),) = db.execute("SELECT id, records FROM blocks WHERE instr(records, ?)", (value,)).fetchall()
        at = records.index(value) + len(value) // 2
        db.execute("UPDATE blocks SET records = ? WHERE id = ?", (records[:at] + bytes([records[at] ^ 1]) + records[at + 1 :], block))
    db.close()
    fleet.log = SqliteLog.open(fleet.path, clock=lambda: fleet.now_ms)
    return f"{SNAPSHOTS}/{number}@{offset}"


def steady(said: Said) -> tuple[int, list[dict[str, object]]]:
    """Exit code and items without what grows with the clock."""
    return said.code, [{name: value for name, value in item.items() if not name.endswith("age_ms")} for item in said.json["items"]]


def answers(fleet: FleetLog, capsys: Capture) -> list[Said]:
    return [fleet.run(capsys, *verb) for verb in ASKED]


def test_answers_are_the_same_without_the_damaged_one_and_say_where_it_is_and_what_mends_it(fleet: FleetLog, capsys: Capture) -> None:
    fleet.run(capsys, "snapshot", "write")
    before = answers(fleet, capsys)
    places = [flip(fleet, number, 0) for number in range(PARTITIONS)]

    after = answers(fleet, capsys)

    assert list(map(steady, after)) == list(map(steady, before))
    assert [said.err for said in before] == [""] * len(ASKED)
    for said in after:
        assert [sum(place in line and MENDS in line for line in said.err.splitlines()) for place in places] == [1] * PARTITIONS


def test_an_older_sound_one_is_begun_at_and_a_newer_sound_one_is_used_without_a_word(fleet: FleetLog, capsys: Capture) -> None:
    end = fleet.log.end(CLAIMS, 0)
    old, middle, new = (publish(fleet.log, 0, at, chunk_bytes=300) for at in (1, end - 1, end))
    assert min(map(len, (middle, new))) > 1, "several chunks each, so that one lost makes the others useless"

    flip(fleet, 0, middle[0])
    sound = fleet.run(capsys, "replay", "-o", "json")
    place = flip(fleet, 0, new[-1])
    older = fleet.run(capsys, "replay", "-o", "json")
    fleet_log = SqliteLog.open(fleet.path)
    offset = newest_offset(fleet_log, 0)

    assert (sound.code, sound.err, sound.json["items"][0]["from"]) == (0, "", end)
    assert (older.code, older.json["items"][0]["from"]) == (0, 1)
    assert place in older.err
    assert older.json["items"][0]["digest"] == sound.json["items"][0]["digest"]
    assert (old[0], offset) == (0, end), "a part of the newest one is sound, and says where it was"


def test_a_chunk_that_cannot_be_read_is_passed_over_and_told_alike(fleet: FleetLog, capsys: Capture) -> None:
    fleet.run(capsys, "snapshot", "write")
    before = fleet.run(capsys, "nodes", "-o", "json")
    cut = fleet.log.read(SNAPSHOTS, 0, 0, 1)[0]
    fleet.log.append([Message(SNAPSHOTS, cut.key, cut.value[:200], (), 0)])

    after = fleet.run(capsys, "nodes", "-o", "json")
    doctor = fleet.run(capsys, "doctor", "--quick", "-o", "json")

    assert steady(after) == steady(before)
    assert after.code == 0
    assert f"{SNAPSHOTS}/0@1 is passed over" in after.err
    assert MENDS in after.err
    assert doctor.code == 3


def test_where_history_is_archived_nothing_else_gives_the_answer_so_it_exits_6_until_the_archive_is_at_hand(
    fleet: FleetLog, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.run(capsys, "archive", str(tmp_path / "old"), "--below", "now")
    before = [fleet.run(capsys, *verb) for verb in ASKED[:4]]
    places = [flip(fleet, number, fleet.log.start(SNAPSHOTS, number)) for number in range(PARTITIONS)]

    alone = [fleet.run(capsys, *verb) for verb in ASKED[:4]]
    unwritten = fleet.run(capsys, "snapshot", "write")
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path / "old"))
    together = [fleet.run(capsys, *verb) for verb in ASKED[:4]]

    assert [said.code for said in before] == [0, 3, 0, 0]
    assert [(said.code, said.out) for said in alone] == [(6, "")] * 4
    assert all(places[0] in said.err for said in alone)
    assert unwritten.code == 6
    assert list(map(steady, together)) == list(map(steady, before))


def test_doctor_names_the_damage_and_looks_at_all_else_and_one_verb_mends_it(fleet: FleetLog, capsys: Capture) -> None:
    fleet.run(capsys, "snapshot", "write")
    place = flip(fleet, 1, 0)

    sick = fleet.run(capsys, "doctor", "-o", "json")
    quick = fleet.run(capsys, "doctor", "--quick", "-o", "json")
    listed = fleet.run(capsys, "snapshot", "list", "-o", "json")
    mended = fleet.run(capsys, "snapshot", "write")
    well = fleet.run(capsys, "doctor", "-o", "json")
    verified = fleet.run(capsys, "snapshot", "list", "--verify", "-o", "json")

    assert (sick.code, quick.code, listed.code) == (3, 3, 3)
    failed = {item["check"]: item for item in sick.json["items"] if item["status"] == "fail"}
    assert list(failed) == ["snapshots"]
    assert place in failed["snapshots"]["says"]
    assert MENDS in failed["snapshots"]["fix"]
    assert {"integrity", "digests", "findings"} <= {item["check"] for item in sick.json["items"]}
    assert mended.code == 0
    assert "claims/1: the snapshot of offset" in mended.out
    assert (well.code, verified.code) == (0, 0)
    assert [item["says"] for item in verified.json["items"]] == ["verified"] * PARTITIONS


def test_run_goes_on_and_its_next_snapshot_takes_the_place_of_the_damaged_one(
    fleet: FleetLog, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.run(capsys, "snapshot", "write")
    place = flip(fleet, 0, 0)
    fleet.audit("c00", {"i0": 2048})
    fleet.audit("c01", {"i1": 2048})
    monkeypatch.setattr("streams.folder.SNAPSHOT_EVERY", 1)

    ran = fleet.run(capsys, "run", "--until-idle")
    doctor = fleet.run(capsys, "doctor", "-o", "json")
    nodes = fleet.run(capsys, "nodes", "-o", "json")

    assert ran.code == 0
    assert place in ran.err
    assert [item for item in doctor.json["items"] if item["status"] == "fail"] == []
    assert (nodes.code, nodes.err) == (0, "")
    assert {item["node_id"]: item["memory_mib"]["used"] for item in nodes.json["items"]}["c00"] == 2048
    assert newest_offset(fleet.log, 0) == fleet.log.end(CLAIMS, 0)


def test_damage_to_the_ledger_itself_is_refused_as_ever(fleet: FleetLog, capsys: Capture) -> None:
    fleet.run(capsys, "snapshot", "write")
    fleet.log.close()
    data = fleet.path.read_bytes()
    fleet.path.write_bytes(data.replace(b'"partition-opened"', b'"partition-openeX"'))

    said = fleet.run(capsys, "nodes")

    assert (said.code, said.out) == (1, "")
    assert "claims/0@0" in said.err
    assert "restore the file" in said.err


def test_a_watcher_leaves_damaged_snapshots_alone_says_so_once_and_looks_through_the_new_one(fleet: FleetLog, capsys: Capture) -> None:
    fleet.run(capsys, "snapshot", "write")
    flip(fleet, 0, 0)
    said: list[str] = []
    other = SqliteLog.open(fleet.path)
    watcher = Watcher(other, tell=said.append)

    watcher.turn(frozenset({0, 1}))
    watcher.turn(frozenset({0, 1}))
    waits = watcher.waits(frozenset({0, 1}))
    fleet.run(capsys, "snapshot", "write")
    watcher.turn(frozenset({0, 1}))

    assert len(said) == 1
    assert f"{SNAPSHOTS}/0@0" in said[0]
    assert Partition(SNAPSHOTS, 0) not in waits, "else its host would be woken for it without end"
    assert watcher.waits(frozenset({0, 1}))[Partition(SNAPSHOTS, 0)] == other.end(SNAPSHOTS, 0)


def test_a_process_that_met_damage_reads_on_once_another_dropped_it(fleet: FleetLog, capsys: Capture) -> None:
    fleet.run(capsys, "snapshot", "write")
    flip(fleet, 0, 0)
    with SqliteLog.open(fleet.path) as other:
        with pytest.raises(LogDamaged, match=f"{SNAPSHOTS}/0@0"):
            other.read(SNAPSHOTS, 0, 0)
        fleet.run(capsys, "snapshot", "write")

        found = other.read(SNAPSHOTS, 0, other.start(SNAPSHOTS, 0))
        written = other.append([Message(SNAPSHOTS, b"0", b"{}", (), 0)])

    assert len(found) == 1
    assert written == [found[0].offset + 1]


class Holed:
    """A log with damage at some offsets of its snapshots. As the embedded one, it serves nothing from the first on that it has met."""

    def __init__(self, log: MemoryLog, holes: frozenset[int]) -> None:
        self._log, self._holes = log, holes
        self._met = log.end(SNAPSHOTS, 0)
        self.topics, self.start, self.end, self.ends, self.at_time = log.topics, log.start, log.end, log.ends, log.at_time
        self.ledger_id = log.ledger_id

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> Sequence[Recorded]:
        """See `Log`."""
        records = self._log.read(topic, partition, offset, records_max, bytes_max)
        if topic != SNAPSHOTS or not records:
            return records
        sound = list(takewhile(lambda record: record.offset not in self._holes and record.offset < self._met, records))
        if not sound:
            self._met = min(self._met, offset)
            raise LogDamaged("not what was written", Position(topic, partition, offset))
        return sound


@given(holes=st.frozensets(st.integers(0, 30), max_size=6), parts=st.lists(st.integers(1, 2 * CHUNKS_AT_ONCE), min_size=1, max_size=4))
def test_the_newest_whole_one_is_found_wherever_the_damage_is(holes: frozenset[int], parts: list[int]) -> None:
    history, log = History(), MemoryLog((TopicSpec(CLAIMS, 1), TopicSpec(SNAPSHOTS, 1)), clock=lambda: START_MS)
    history.say(PartitionOpened(ledger_id="L", partition=0, partitions=1), 0)
    whole: list[int] = []
    for count in parts:
        log.append([Message(CLAIMS, key, value) for _, _, key, value in history.records[log.end(CLAIMS, 0) :]])
        data = len(encoded(history.ledger))
        places = log.append([Message(SNAPSHOTS, b"0", encode(each)) for each in chunks_of(history.ledger, -(-data // count))])
        whole += [history.ledger.next_offset] if holes.isdisjoint(places) else []
        history.append(b"k", b"{", 1)

    told: list[str] = []
    found = load_newest(Holed(log, holes), 0, tell=told.append)

    assert (found.next_offset if found is not None else None) == (whole[-1] if whole else None)
    assert (damaged_at(Holed(log, holes), 0) == "") == holes.isdisjoint(range(log.end(SNAPSHOTS, 0)))
    assert all(MENDS in said for said in told)


def test_a_damaged_one_whose_pages_are_the_ledgers_is_not_dropped_since_that_would_give_the_ledgers_away(
    fleet: FleetLog, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.audit("c09", {uuid4().hex: 1 for _ in range(400)})
    fleet.run(capsys, "snapshot", "write")
    number = fleet.log.partition(CLAIMS, b"c09")
    fleet.audit("c01", {"i1": 2048})
    link(fleet, number)
    monkeypatch.setattr("streams.folder.SNAPSHOT_EVERY", 1)
    before = fleet.run(capsys, "replay", "--no-from-snapshots", "-o", "json")

    written = fleet.run(capsys, "snapshot", "write", "--partition", str(number))
    ran = fleet.run(capsys, "run", "--until-idle")
    for memory_mib in range(1, 30):
        fleet.audit("c01", {uuid4().hex: memory_mib for _ in range(20)})
    after = fleet.run(capsys, "replay", "--no-from-snapshots", "--until", before.json["cut"], "-o", "json")
    copied = fleet.run(capsys, "copy", f"sqlite:{tmp_path / 'sound.db'}")
    fleet.spec = f"sqlite:{tmp_path / 'sound.db'}"

    assert (written.code, ran.code) == (1, 0)
    assert "SQLite's structure does not hold" in written.err
    assert "`claimlog copy` makes a sound log" in written.err
    assert "no snapshot of claims" in ran.err
    assert [item["digest"] for item in after.json["items"]] == [item["digest"] for item in before.json["items"]]
    assert (copied.code, fleet.run(capsys, "doctor").code) == (0, 0)


def link(fleet: FleetLog, number: int) -> None:
    """Have a page that a snapshot goes on in name a page with records of the ledger as the next one, as a few flipped bits may."""
    snapshot = fleet.log.read(SNAPSHOTS, number, 0, 1)[0].value
    (last,) = fleet.log.read(CLAIMS, number, fleet.log.end(CLAIMS, number) - 1, 1)
    fleet.log.close()
    data = bytearray(fleet.path.read_bytes())
    ledgers = data.index(last.value[:60]) // PAGE_BYTES
    pages = [data.find(snapshot[at : at + 60]) // PAGE_BYTES for at in range(0, len(snapshot) - 60, 500)]
    # Not those of the tree itself; the first four bytes of any other name the next page, and one but the last is enough.
    *_, page, _ = dict.fromkeys(page for page in pages if page >= 0 and data[page * PAGE_BYTES] == 0)
    data[page * PAGE_BYTES : page * PAGE_BYTES + 4] = (ledgers + 1).to_bytes(4, "big")
    fleet.path.write_bytes(data)
    fleet.log = SqliteLog.open(fleet.path, clock=lambda: fleet.now_ms)
