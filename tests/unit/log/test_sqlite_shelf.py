"""The partitions of the embedded log: what is fetched, rewritten, dropped, and missed where it was lost."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from streams.log import sqlite, sqlite_shelf
from streams.log.base import LogDamaged, LogFull, Message, OffsetOutOfRange, TopicSpec
from streams.log.sqlite import SqliteLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def made(path: Path) -> SqliteLog:
    log = SqliteLog.open(path, create=True)
    log.create([TopicSpec("before", 1), TopicSpec("claims", 1), TopicSpec("rows", 1, compacted=True)])
    return log


def execute(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


def filled(path: Path) -> None:
    """A closed log with 10 blocks of 10 records in one partition."""
    with made(path) as log:
        log.append([Message("before", b"k", b"before")])
        for first in range(0, 100, 10):
            log.append([Message("claims", b"k", b"%d" % (first + at)) for at in range(10)])


@pytest.mark.parametrize("lost", [0, 50, 90])
def test_a_block_that_is_lost_is_named_and_nothing_is_passed_over(path: Path, lost: int) -> None:
    filled(path)
    execute(path, f"DELETE FROM blocks WHERE id = (2 << {sqlite_shelf.OFFSET_BITS}) + {lost}")

    acts: tuple[Callable[[SqliteLog], object], ...] = (
        lambda log: log.read("claims", 0, lost),
        lambda log: log.read("claims", 0, lost + 9),
        lambda log: [*log.read_lazily("claims", 0, lost, 1)],
        SqliteLog.verify,
    )
    for act in acts:
        with SqliteLog.open(path) as log, pytest.raises(LogDamaged, match=r"claims/0@\d+: the block with offset \d+ is missing"):
            act(log)
    with SqliteLog.open(path) as log:
        for how in (log.read, log.read_lazily):
            assert [record.offset for record in (how("claims", 0, 0) if lost else ())] == list(range(lost))
        with pytest.raises(LogDamaged, match=f"claims/0@{lost}: "):
            log.read("claims", 0, lost)
        with pytest.raises(LogDamaged, match=f"claims/0@{lost}: "):
            log.append([Message("claims", b"k", b"more")])


def test_behind_a_last_block_that_is_lost_nothing_is_appended(path: Path) -> None:
    filled(path)
    execute(path, f"DELETE FROM blocks WHERE id = (2 << {sqlite_shelf.OFFSET_BITS}) + 90")

    with SqliteLog.open(path) as log, pytest.raises(LogDamaged, match="claims/0@99: the block with offset 99 is missing"):
        log.append([Message("claims", b"k", b"more")])


def test_among_gaps_of_compaction_a_block_that_is_lost_is_no_gap(path: Path) -> None:
    with made(path) as log:
        log.append([Message("rows", b"k%d" % (at if at % 3 else 0), b"v") for at in range(600)])
        log.compact("rows", 0)
        place = log._catalog.place("rows", 0)
        *_, lost, _ = log._shelf.blocks_from(place, 0, 600, 600, 1 << 20)
    execute(path, f"DELETE FROM blocks WHERE id = {place.base + lost.first}")

    with SqliteLog.open(path) as log:
        found = log.read("rows", 0, 0)
        with pytest.raises(LogDamaged, match=f"rows/0@{lost.first}: "):
            log.read("rows", 0, found[-1].offset + 1)

    assert [record.offset for record in found] == [at for at in range(lost.first) if at % 3]


def test_a_partition_whose_row_is_lost_is_damaged(path: Path) -> None:
    filled(path)
    execute(path, "UPDATE partitions SET id = 99 WHERE id = 2")

    with SqliteLog.open(path) as log:
        with pytest.raises(LogDamaged, match="claims/0@0: the row with the partition's start and end does not hold"):
            log.end("claims", 0)
        assert log.end("before", 0) == 1


@pytest.mark.parametrize("damage", ["records = x'00'", "marks = 5", "marks = 'eight.ch'", "marks = CAST(x'A5' AS TEXT)"])
def test_one_damaged_block_among_sound_ones_is_dropped_only_if_pages_hang_together(
    damage: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    execute(path, f"UPDATE blocks SET {damage} WHERE id = (2 << {sqlite_shelf.OFFSET_BITS}) + 50")

    with SqliteLog.open(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(log._file, "structure", lambda: "Page 7: never used")
            with pytest.raises(LogDamaged, match=r"SQLite's structure does not hold: Page 7: never used\. Nothing is dropped"):
                log.truncate("claims", 0, 90)
            assert log.start("claims", 0) == 0
            assert log.truncate("claims", 0, 50) == 50
        assert log.truncate("claims", 0, 90) == 40
        assert log.verify() == 11


def test_no_more_is_fetched_than_is_wanted(path: Path) -> None:
    with made(path) as log:
        for at in range(150):
            log.append_early([Message("claims", b"k", b"%d" % at + bytes(100))])
        place = log._catalog.place("claims", 0)

        assert len(log._shelf.blocks_from(place, 0, 150, 1, 1 << 20)) == 1
        assert 10 <= len(log._shelf.blocks_from(place, 50, 150, 10, 1 << 20)) < 60
        assert len(log._shelf.blocks_from(place, 0, 150, 150, 1_000)) < 60


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction and truncation take as many turns as among millions of records."""
    monkeypatch.setattr(sqlite, "COMPACT_STEP", 4)
    monkeypatch.setattr(sqlite_shelf, "COMPACT_STEP", 4)
    monkeypatch.setattr(sqlite, "TRUNCATE_STEP", 3)


@pytest.mark.usefixtures("small_steps")
def test_compaction_in_many_steps_keeps_the_newest_and_what_stands_beside(path: Path) -> None:
    keys = [*[b"c"] * 6, b"a", b"b", *[b"c"] * 20, b"d", b"c", b"e", *[b"f"] * 9, b"b"]
    with made(path) as log:
        for at, key in enumerate(keys):
            log.append([Message("claims", b"k", b"%d" % at), Message("rows", key, b"%d" % at)])
        newest = {key: at for at, key in enumerate(keys)}

        assert log.compact("rows", 0) == len(keys) - len(newest)
        assert [(record.offset, record.key) for record in log.read("rows", 0, 0)] == sorted((at, key) for key, at in newest.items())
        assert log.verify() == len(keys) + len(newest)
        assert log.compact("rows", 0) == 0


@pytest.mark.parametrize(
    ("fails", "act"),
    [("put", lambda log: log.compact("rows", 0)), ("keep_state", lambda log: log.truncate("rows", 0, 7))],
)
def test_what_fails_halfway_leaves_everything_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, act: Callable[[SqliteLog], int]
) -> None:
    def no_room(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    with made(path) as log, SqliteLog.open(path) as other:
        for _ in range(5):
            log.append([Message("rows", b"k", b"v"), Message("rows", b"k", b"v")])
        before = log.read("rows", 0, 0)
        with monkeypatch.context() as patch, pytest.raises(LogFull, match="no room left"):
            patch.setattr(log._shelf, fails, no_room)
            act(log)

        assert other.start("rows", 0) == 0
        assert other.read("rows", 0, 0) == before
        assert act(log) > 0


@pytest.mark.usefixtures("small_steps")
def test_truncation_in_many_steps_drops_what_one_would(path: Path) -> None:
    with made(path) as log:
        for size in (1, 5, 11, 2, 1):
            log.append([Message("claims", b"k", b"v")] * size)

        assert log.truncate("claims", 0, 13) == 13
        assert (log.start("claims", 0), [record.offset for record in log.read("claims", 0, 13)]) == (13, list(range(13, 20)))
        with pytest.raises(OffsetOutOfRange):
            log.read("claims", 0, 12)
        assert log.truncate("claims", 0, 20) == 7


@pytest.mark.usefixtures("small_steps")
def test_from_within_a_gap_at_the_end_of_a_block_what_comes_next_is_found(path: Path) -> None:
    now_ms = [1_000]
    with SqliteLog.open(path, create=True, clock=lambda: now_ms[0]) as log:
        log.create([TopicSpec("rows", 1, compacted=True)])
        for key in (b"a", b"b", b"b", b"b", b"b"):
            log.append([Message("rows", key, b"v")])
            now_ms[0] += 10
        log.compact("rows", 0)
        log.truncate("rows", 0, 2)

        assert [log.at_time("rows", 0, time_ms) for time_ms in (0, 1_000, 1_020, 1_040, 1_041)] == [4, 4, 4, 4, 5]
        assert [record.offset for record in log.read("rows", 0, 2)] == [4]
        assert [record.offset for record in log.read_lazily("rows", 0, 2, 1)] == [4]
