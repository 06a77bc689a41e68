"""Reading the embedded log: what is served, from memory and around damage, while others append, compact and truncate."""

from pathlib import Path
from typing import Any

import pytest

from streams.log.base import BareRecord, LogDamaged, Message, OffsetOutOfRange, TopicSpec
from streams.log.blocks import RECORDS_MAX, Block
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_shelf import Place


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def made(path: Path) -> SqliteLog:
    log = SqliteLog.open(path, create=True)
    log.create([TopicSpec("claims", 1), TopicSpec("rows", 1, compacted=True)])
    return log


def filled(path: Path) -> None:
    """A closed log of 50 blocks of 10 records, each value its own offset."""
    with made(path) as log:
        for first in range(0, 500, 10):
            log.append([Message("claims", b"k", b"value-%03d" % (first + at)) for at in range(10)])


def damage(path: Path, *offsets: int) -> None:
    data = path.read_bytes()
    for offset in offsets:
        data = data.replace(b"value-%03d" % offset, b"value-XXX")
    path.write_bytes(data)


def test_who_is_overtaken_by_a_truncation_is_told_that_the_records_left_and_of_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a read's look at the partition's start and its look at the blocks."""
    filled(path)
    with SqliteLog.open(path) as log, SqliteLog.open(path) as other:
        blocks_from = log._shelf.blocks_from

        def after_others(place: Place, *wanted: int) -> list[Block]:
            other.truncate("claims", 0, 200)
            return blocks_from(place, *wanted)

        with monkeypatch.context() as patch:
            patch.setattr(log._shelf, "blocks_from", after_others)
            with pytest.raises(OffsetOutOfRange, match=r"claims/0@100: at hand are offsets 200 to 499; the others were archived"):
                log.read("claims", 0, 100)

        assert log.append([Message("claims", b"k", b"more")]) == [500]


def test_what_is_before_damage_is_served_after_it_was_met_too(path: Path) -> None:
    filled(path)
    damage(path, 300, 400)

    with SqliteLog.open(path) as log:
        for offset in (400, 300):
            with pytest.raises(LogDamaged, match=f"claims/0@{offset}"):
                log.read("claims", 0, offset)
        found = log.read("claims", 0, 0)
        with pytest.raises(LogDamaged, match="claims/0@300"):
            log.read("claims", 0, 305)

    assert [record.offset for record in found] == list(range(300))


def test_behind_damage_at_the_very_start_nothing_is_appended(path: Path) -> None:
    filled(path)
    damage(path, 200)

    with SqliteLog.open(path) as log:
        log.truncate("claims", 0, 200)
        with pytest.raises(LogDamaged, match="claims/0@200"):
            log.read("claims", 0, 200)
        with pytest.raises(LogDamaged, match="claims/0@200"):
            log.append([Message("claims", b"k", b"more")])

        log.truncate("claims", 0, 210)
        assert [record.offset for record in log.read("claims", 0, 210, 3)] == [210, 211, 212]
        assert log.append([Message("claims", b"k", b"more")]) == [500]


def test_a_lazy_read_behind_a_gap_of_compaction_gives_no_more_than_was_asked_for(path: Path) -> None:
    with made(path) as log:
        log.append([Message("rows", b"k%d" % (at if at > 300 else 7), b"v") for at in range(600)])
        log.compact("rows", 0)

        found = [[record.offset for record in log.read_lazily("rows", 0, offset, 3)] for offset in (0, 200, 295)]

    assert all(1 <= len(offsets) <= 3 and offsets[0] == 300 for offsets in found)


def test_the_first_record_alone_is_read(path: Path) -> None:
    with made(path) as log:
        assert log.read("claims", 0, 0, 1) == []
        log.append([Message("claims", b"k", b"%d" % at) for at in range(2)])

        assert [record.value for record in log.read("claims", 0, 0, 1)] == [b"0"]


def fetches_nothing(*_: object, **__: object) -> list[BareRecord]:
    raise AssertionError("fetched from the file")


def test_no_more_than_a_block_is_kept_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(path) as log:
        log.append_early([Message("claims", b"k", b"%d" % at) for at in range(RECORDS_MAX)])
        log.append_early([Message("rows", b"k", b"%d" % at) for at in range(RECORDS_MAX + 1)])

        monkeypatch.setattr(log._reader, "_records", fetches_nothing)
        kept = log.read_early("claims", 0, 0)
        with pytest.raises(AssertionError, match="fetched from the file"):
            log.read_early("rows", 0, 0)

    assert [record.value for record in kept] == [b"%d" % at for at in range(RECORDS_MAX)]


def test_one_value_that_may_change_keeps_a_whole_batch_out_of_memory(path: Path) -> None:
    value = bytearray(b"abc")
    odd: Any = Message("claims", b"k", value)  # type: ignore[arg-type] # As a caller without types may.
    with made(path) as log:
        log.append_early([Message("claims", b"k", b"first"), odd])
        value[:] = b"xyz"

        assert [record.value for record in log.read_early("claims", 0, 0)] == [b"first", b"abc"]
