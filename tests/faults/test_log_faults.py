"""The embedded log against flipped bytes, a full disk, killed processes, and copies of its files taken while others write."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import apsw
import pytest

from streams.log import sqlite_file, sqlite_wal
from streams.log.base import LogDamaged, LogError, LogFull, Message, Record, TopicMismatch, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_ends import ends_file
from tests.faults.log_files import copy_log

ROOT = Path(__file__).parents[2]
FLIPS = 300
WRITER = """
import sys
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
with SqliteLog.open(sys.argv[1]) as log:
    number = 0
    while True:
        batch = [Message("claims", b"k", b"%s %d" % (sys.argv[2].encode(), number + at) + bytes(200)) for at in range(int(sys.argv[3]))]
        offsets = log.append(batch)
        number += len(batch)
        print(number, offsets[-1], flush=True)
"""


def writer(path: Path, name: str, batch: int) -> "subprocess.Popen[str]":
    """A process that appends batches for ever and prints its count and the last offset after each acknowledgement."""
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(batch)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    if process.stdout is not None:
        process.stdout.close()


def filled(path: Path) -> dict[tuple[str, int], list[Record]]:
    """A closed log with single appends, batches, a compacted and a truncated partition; returns what a reader sees in it."""
    topics = {"claims": 3, "rows": 1, "results": 1}
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 3), TopicSpec("rows", 1, compacted=True), TopicSpec("results", 1)])
        for number in range(60):
            log.append([Message("claims", b"n%d" % (number % 9), b'{"single":%d}' % number, (("ce_id", b"%d" % number),))])
            log.append([Message("rows", b"n%d" % (number % 17), b"row %d" % number + bytes(number))])
        log.append([Message("claims", b"n%d" % (at % 9), b'{"batch":%d}' % at * (at % 7), partition=at % 3) for at in range(900)])
        log.append([Message("results", b"r", bytes([at % 251]) * 700) for at in range(200)])
        log.commit("reconciler", "claims", {0: 7, 1: 3})
        log.compact("rows", 0)
        log.truncate("results", 0, 50)
        return {(topic, number): everything(log, topic, number) for topic, count in topics.items() for number in range(count)}


def everything(log: SqliteLog, topic: str, number: int) -> list[Record]:
    """All records of a partition, read in odd portions."""
    at, end = log.start(topic, number), log.end(topic, number)
    records: list[Record] = []
    while at < end:
        found = log.read(topic, number, at, records_max=97)
        records += found
        at = found[-1].offset + 1
    return records


def served(path: Path, right: dict[tuple[str, int], list[Record]]) -> bool:
    """Read everything; every record that is served must be right and in its place. Returns whether damage was reported."""
    with SqliteLog.open(path) as log:
        reported = False
        for (topic, number), records in right.items():
            there = {record.offset: record for record in records}
            expected = iter(records)
            try:
                at, end = log.start(topic, number), log.end(topic, number)
                assert (at, end) == (records[0].offset if topic == "results" else 0, records[-1].offset + 1)
                while at < end:
                    for record in log.read(topic, number, at, records_max=97):
                        assert record == next(expected), f"wrong or missing record at {record.position}"
                        at = record.offset + 1
            except LogDamaged:
                reported = True
                with pytest.raises(LogDamaged):
                    log.append([Message(topic, b"k", b"v", partition=number)])
            assert all(there[record.offset] == record for record in records)
        try:
            assert log.committed("reconciler", "claims").items() <= {0: 7, 1: 3}.items(), "a lost offset makes a group read again"
        except LogDamaged:
            reported = True
        return reported


def test_a_flipped_byte_is_harmless_or_reported_and_never_served(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    right = filled(path)
    sound = path.read_bytes()
    assert not (tmp_path / "log.db-wal").exists(), "closing folds the WAL back, so all is in the one file"
    chance = random.Random(7)
    reported = 0

    for _ in range(FLIPS):
        damaged = bytearray(sound)
        damaged[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            reported += served(path, right)
        except (LogError, TopicMismatch):
            reported += 1
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)

    assert reported > FLIPS // 2, "most of the file is records; most flips must show"


@pytest.mark.parametrize("lost", [4096, 5000, 100_000])
def test_a_file_that_was_cut_short_is_refused_with_the_byte_where_it_ends(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "log.db"
    filled(path)
    whole = path.stat().st_size
    os.truncate(path, kept := whole - lost)

    with pytest.raises(LogDamaged, match=f"it is cut short: all from byte {kept} on is missing, of {whole} that it had"):
        SqliteLog.open(path)


def test_the_first_bad_offset_is_named_and_what_is_before_it_is_served(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        log.append([Message("claims", b"k", b"value-%04d" % at) for at in range(1000)])
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"value-0700", b"value-0X00"))

    with SqliteLog.open(path) as log:
        before = log.read("claims", 0, 0)
        with pytest.raises(LogDamaged, match="claims/0@700") as raised:
            log.read("claims", 0, 700)
        with pytest.raises(LogDamaged, match="claims/0@700"):
            log.read("claims", 0, 900)
        with pytest.raises(LogDamaged, match="claims/0@700"):
            log.append([Message("claims", b"k", b"more")])

    assert [record.value for record in before] == [b"value-%04d" % at for at in range(700)]
    assert raised.value.position is not None
    assert raised.value.position.offset == 700


def test_verify_reports_the_first_bad_offset_and_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    right = filled(path)
    seen: list[str] = []
    with SqliteLog.open(path) as log:
        count = log.verify(lambda partition, offset, end: seen.append(f"{partition} {offset} {end}"))
    path.write_bytes(path.read_bytes().replace(b"row 59", b"row 58"))

    with SqliteLog.open(path) as log, pytest.raises(LogDamaged, match="rows/0@59"):
        log.verify()

    assert count == sum(map(len, right.values()))
    assert seen[-1] == "results/0 200 200"


def test_an_end_that_is_older_than_its_records_is_reported(tmp_path: Path) -> None:
    """As of a disk that lost a write, or a copy taken in use without the `-wal`: the row of the end holds, and is not the newest."""
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1), TopicSpec("other", 1)])
        log.append([Message("claims", b"k", b"early")])
    db = apsw.Connection(str(path))
    older = db.execute("SELECT * FROM partitions").fetchall()
    db.close()
    with SqliteLog.open(path) as log:
        log.append([Message("claims", b"k", b"late")])
    db = apsw.Connection(str(path))
    db.executemany("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?, ?)", older)
    db.close()
    ends_file(path).unlink()  # as it says that there were more

    acts: tuple[Callable[[SqliteLog], object], ...] = (
        lambda log: log.read("claims", 0, 0),
        lambda log: log.end("claims", 0),
        lambda log: log.ends("claims"),
        lambda log: log.append([Message("claims", b"k", b"v")]),
        SqliteLog.verify,
    )
    for act in acts:
        with SqliteLog.open(path) as log, pytest.raises(LogDamaged, match="claims/0@0: its end is said to be 1, and records stand"):
            act(log)
    with SqliteLog.open(path) as log:
        assert log.append([Message("other", b"k", b"v")]) == [0]


def grown(path: Path, chance: random.Random) -> bytes:
    """The file after some more appends, each value its own offset, and a truncation now and then."""
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        for _ in range(12):
            at, count = log.end("claims", 0), chance.choice([1, 1, 5, 60])
            log.append([Message("claims", b"k", b"%d " % (at + more) + bytes(chance.choice([0, 10, 500, 3000]))) for more in range(count)])
            if chance.random() < 0.1:
                log.truncate("claims", 0, max(log.start("claims", 0), log.end("claims", 0) - 400))
    return path.read_bytes()


def test_pages_of_two_moments_are_reported_or_harmless_and_no_record_is_passed_over(tmp_path: Path) -> None:
    """As in a copy taken in use. SQLite goes by the order of its pages, and where they are in none, says what is not asked for."""
    path, chance, reported = tmp_path / "log.db", random.Random(1), 0
    moments = [grown(path, chance) for _ in range(40)]

    for _ in range(300):
        at = chance.randrange(len(moments) - 1)
        old, mixed = moments[at], bytearray(moments[at + 1])
        share = chance.choice([0.02, 0.1, 0.5, 0.9])
        for page in range(0, len(old), 4096):
            if chance.random() < share:
                mixed[page : page + 4096] = old[page : page + 4096]
        path.write_bytes(mixed)
        try:
            with SqliteLog.open(path) as log:
                for offset, record in enumerate(everything(log, "claims", 0), log.start("claims", 0)):
                    assert (record.offset, int(record.value.rstrip(b"\0"))) == (offset, offset)
        except LogDamaged:
            reported += 1
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)

    assert reported > 150


def test_a_log_cut_short_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    right = filled(path)
    sound = path.read_bytes()

    for part in (0.3, 0.6, 0.95):
        path.write_bytes(sound[: int(len(sound) * part)])
        with suppress(LogDamaged):
            assert served(path, right)
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB; where that may not be mounted, a folder, and the test bounds the file instead."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode == 0
    yield disk
    if mounted:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def bound(log: SqliteLog, disk: Path, pages: int) -> None:
    """Without a file system of its own, the file's size is bounded."""
    if not os.path.ismount(disk):
        log._file.rows(f"PRAGMA max_page_count={pages}")


def fill_up(log: SqliteLog, acknowledged: list[bytes]) -> None:
    """Append batches of all sizes, noting what was acknowledged."""
    for number in range(10_000):
        batch = [b"%d/%d " % (number, at) + bytes(500) for at in range(1 + number % 40)]
        log.append([Message("claims", b"k", value) for value in batch])
        acknowledged += batch


def test_a_full_disk_is_reported_loses_nothing_and_appends_go_through_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "log.db"
    ballast = small_disk / "ballast"
    acknowledged: list[bytes] = []
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        ballast.write_bytes(bytes(600_000))
        bound(log, small_disk, 300)
        with pytest.raises(LogFull, match=r"room"):
            fill_up(log, acknowledged)
        full = [record.value for record in everything(log, "claims", 0)]
        with pytest.raises(LogFull):
            log.append([Message("claims", b"k", bytes(100_000))] * 20)

        ballast.unlink()
        bound(log, small_disk, 100_000)
        offsets = log.append([Message("claims", b"k", b"after")])
    with SqliteLog.open(path) as again:
        later = [record.value for record in everything(again, "claims", 0)]
        assert again.verify() == len(later)

    assert len(acknowledged) > 100
    assert full == acknowledged
    assert offsets == [len(acknowledged)]
    assert later == [*acknowledged, b"after"]


def test_on_a_full_disk_the_room_inside_of_the_file_is_used_after_one_refusal(small_disk: Path) -> None:
    """What was archived left room in the file, but the WAL cannot grow any more."""
    if not os.path.ismount(small_disk):
        pytest.skip("mounting is not allowed here")
    path, values = small_disk / "log.db", [b"%d " % number + bytes(5_000) for number in range(60)]
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        log.append([Message("claims", b"k", value) for value in values])
        log.truncate("claims", 0, len(values))
    with SqliteLog.open(path) as log, SqliteLog.open(path) as reader:
        reader.end("claims", 0)
        with suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
            ballast.write(bytes(os.statvfs(small_disk).f_bavail * 4096 - 150_000))
        refused = 0
        for value in values:
            try:
                log.append([Message("claims", b"k", value)])
            except LogFull:
                refused += 1
                log.append([Message("claims", b"k", value)])
        found = [record.value for record in everything(reader, "claims", 0)]

    assert refused > 1
    assert found == values


def test_a_killed_writer_loses_nothing_acknowledged_and_leaves_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
    chance = random.Random(11)
    acknowledged = 0

    for round_ in range(5):
        process = writer(path, str(round_), 7)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 40)):
            acknowledged = max(acknowledged, int(process.stdout.readline().split()[1]) + 1)
        stop(process)

        with SqliteLog.open(path) as log:
            assert log.end("claims", 0) >= acknowledged
            assert log.end("claims", 0) % 7 == 0
            assert log.verify() == log.end("claims", 0)


def test_a_copy_taken_at_any_acknowledgement_has_every_acknowledged_record(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
    other = writer(path, "other", 5)
    try:
        with SqliteLog.open(path) as log:
            for number in range(20):
                (offset,) = log.append([Message("claims", b"k", b"mine %d" % number)])
                copy = tmp_path / f"copy-{number}.db"
                copy_log(path, copy)
                with SqliteLog.open(copy) as copied:
                    assert copied.end("claims", 0) > offset
                    assert copied.read("claims", 0, offset, records_max=1)[0].value == b"mine %d" % number
                    assert copied.verify() == copied.end("claims", 0)
                for file in tmp_path.glob(f"copy-{number}.db*"):
                    file.unlink()
    finally:
        stop(other)


def test_a_plain_copy_at_each_acknowledgement_of_a_lone_writer_has_every_record(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        for number in range(30):
            log.append([Message("claims", b"k", bytes(3000)) for _ in range(60)])
            copy = tmp_path / f"copy-{number}.db"
            shutil.copy(path, copy)
            shutil.copy(f"{path}-wal", f"{copy}-wal")
            with SqliteLog.open(copy) as copied:
                assert copied.verify() == 60 * (number + 1)


def test_the_wal_stays_bounded_beside_readers(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    largest = 0
    with SqliteLog.open(path, create=True) as log, SqliteLog.open(path) as reader:
        log.create([TopicSpec("claims", 1)])
        for number in range(60):
            log.append([Message("claims", b"k", bytes(100_000)) for _ in range(10)])
            reader.read("claims", 0, number * 10)
            largest = max(largest, Path(f"{path}-wal").stat().st_size)

    assert path.stat().st_size > 50 << 20
    assert largest < 24 << 20


def test_writers_do_not_stand_still_for_a_reader_that_stays_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was stopped, or looks at the structure of a large file."""
    monkeypatch.setattr(sqlite_wal, "PAGES_FOLDED", 16)
    monkeypatch.setattr(sqlite_wal, "PAGES_MAX", 64)
    monkeypatch.setattr(sqlite_file, "FULL_SECONDS", 0.05)
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log, SqliteLog.open(path) as reader:
        log.create([TopicSpec("claims", 1)])
        began = time.monotonic()
        with reader._file.reading():
            reader.end("claims", 0)
            for _ in range(100):
                log.append([Message("claims", b"k", bytes(3_000))])
        took_seconds = time.monotonic() - began

    assert took_seconds < 30, "it was a minute for each 16 MiB"


def test_small_appends_have_the_wal_folded_back_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "PAGES_FOLDED", 64)
    path = tmp_path / "log.db"
    largest = 0
    with SqliteLog.open(path, create=True) as log, SqliteLog.open(path) as reader:
        log.create([TopicSpec("claims", 1)])
        for number in range(1_000):
            log.append([Message("claims", b"k", bytes(3_000))])
            assert len(reader.read("claims", 0, number)) == 1
            largest = max(largest, Path(f"{path}-wal").stat().st_size)

    assert path.stat().st_size > 3 << 20
    assert largest < 2 << 20


def test_where_no_thread_may_be_started_the_wal_is_folded_back_by_who_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sqlite_wal, "PAGES_FOLDED", 64)
    monkeypatch.setattr(Thread, "start", none_left)
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        for _ in range(200):
            log.append([Message("claims", b"k", bytes(3_000))])
        largest = Path(f"{path}-wal").stat().st_size

    assert largest < 1 << 20
