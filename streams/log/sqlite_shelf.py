"""The partitions of the embedded log: their blocks of records, and the row with start, end and newest time, read and written in its file.

The key of a block is its partition's number in this file, shifted, plus its first offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from streams.log.base import OffsetOutOfRange, Record
from streams.log.blocks import RECORDS_MAX, Block, BlockDamaged, blocks_of, encode_record, is_whole, opened
from streams.log.sqlite_file import BROKEN, Row, SqliteFile, row_mark

OFFSET_BITS: Final = 40  # 10^12 records a partition, 8 million partitions
COMPACT_STEP: Final = 4_096  # records rewritten in one transaction, so that other writers get their turn
_BLOCKS_FROM = """SELECT id, span, count, mark, records FROM blocks
    WHERE id >= ifnull((SELECT max(id) FROM blocks WHERE id BETWEEN ?1 AND ?2), ?1) AND id < ?3 ORDER BY id"""
_BLOCK_AT = "SELECT id, span, count, mark, records, marks FROM blocks WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1"
_BLOCK_PUT = "INSERT INTO blocks (id, span, count, mark, records, marks) VALUES (?, ?, ?, ?, ?, ?)"
_BLOCKS_BELOW = "SELECT id, span, count, mark, records, marks FROM blocks WHERE id BETWEEN ?1 AND ?2 AND id + span <= ?2 ORDER BY id"
_WHOLE_BELOW = "FROM blocks WHERE id BETWEEN ?1 AND ?2 AND id + span <= ?2"


class Place(NamedTuple):
    """A partition as this file knows it."""

    topic: str
    number: int
    id: int
    seed: int

    @property
    def base(self) -> int:
        """What is added to an offset to make the key of a block."""
        return self.id << OFFSET_BITS


class State(NamedTuple):
    """The figures of a partition."""

    start: int
    end: int
    time_ms: int


class Shelf:
    """Reads and writes one file's partitions, within the transactions of the caller. Raises BlockDamaged and what SQLite raises."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def state(self, place: Place) -> State:
        """The partition's first offset, end and newest time. Raises BlockDamaged."""
        rows = self._file.rows("SELECT start, end, time_ms, mark FROM partitions WHERE id = ?", (place.id,))
        if not rows or rows[0][3] != row_mark(place.id, *rows[0][:3]):
            raise BlockDamaged("the row with the partition's start and end does not hold")
        return State(*rows[0][:3])

    def goes_on(self, place: Place, state: State) -> bool:
        """Whether blocks stand behind the end: the row is an older one, of a disk that lost a write, say, or of a copy taken in use."""
        behind = (place.base + state.end, place.base + (1 << OFFSET_BITS) - 1)
        return bool(self._file.rows("SELECT 1 FROM blocks WHERE id BETWEEN ? AND ? LIMIT 1", behind))

    def ends(self) -> dict[int, int]:
        """The end of every partition, by the partition's number in this file, as its row says: unchecked, to know where to look."""
        ends: dict[int, int] = dict(self._file.rows("SELECT id, end FROM partitions"))
        if not set(map(type, ends.values())) <= {int}:
            raise BlockDamaged("the row with a partition's end has another type of field")
        return ends

    def keep_state(self, place: Place, state: State) -> None:
        """Store the partition's figures."""
        row = (*state, row_mark(place.id, *state), place.id)
        self._file.rows("UPDATE partitions SET start = ?, end = ?, time_ms = ?, mark = ? WHERE id = ?", row)

    def put(self, place: Place, blocks: Iterator[Block]) -> None:
        """Add blocks."""
        self._file.run_many(_BLOCK_PUT, [(place.base + block.first, *block[1:]) for block in blocks])

    def blocks_from(self, place: Place, offset: int, end: int, records_max: int, bytes_max: int) -> list[Block]:
        """Blocks from the one with `offset` on, until they hold enough. Raises BlockDamaged if one is missing at either end."""
        base, size = place.base, 0
        blocks: list[Block] = []
        # How many more records are wanted at least, and so, with one record in each, how many blocks at most.
        missing, step = max(records_max, 1), max(records_max, 1) // RECORDS_MAX + 1
        with self._file.rows_lazily(_BLOCKS_FROM, (base, base + offset, base + end)) as take:
            while missing > 0 and size < bytes_max and (rows := take(min(step, missing))):
                found = [_block(base, row) for row in rows]
                missing -= sum(block.held for block in found) - (0 if blocks else max(offset - found[0].first, 0))
                size += sum(len(block.records) for block in found)
                blocks += found
                step *= 4
        if not (blocks and blocks[0].first <= offset < blocks[0].end):
            raise BlockDamaged(f"the block with offset {offset} is missing")
        if missing > 0 and size < bytes_max and blocks[-1].end < end:
            raise BlockDamaged(f"the block with offset {blocks[-1].end} is missing")
        return blocks

    def block_at(self, place: Place, offset: int) -> Block:
        """The block with `offset`. Raises BlockDamaged where there is none."""
        block = self._last_block(place, offset)
        if block is None or offset >= block.end:
            raise BlockDamaged(f"the block with offset {offset} is missing")
        return block

    def at_time(self, place: Place, time_ms: int) -> int:
        """The offset of the first record at or after `time_ms`, by a binary search over blocks."""
        state = self.state(place)
        low, high = state.start, state.end
        while low < high:
            block = self.block_at(place, (low + high) // 2)
            records = [record for record in opened([block], place.seed) if record.offset >= state.start]
            if not records or records[-1].time_ms < time_ms:
                low = block.end
            elif records[0].time_ms >= time_ms and block.first > low:
                high = block.first
            else:
                return next(record.offset for record in records if record.time_ms >= time_ms)
        if low == state.end:
            return low
        return opened([self.block_at(place, low)], place.seed)[0].offset

    def check_below(self, place: Place, before: int, step: int) -> None:
        """Look at what `drop_below` is about to drop. Raises BlockDamaged where SQLite's own structure may be what is damaged.

        A row that is longer than a page names the pages that it goes on in. One that names pages of other rows, dropped, would give
        these away to be written over, perhaps pages of the ledger itself.
        """
        start = self.state(place).start
        until = min(before, start + step)
        try:
            with self._file.rows_lazily(_BLOCKS_BELOW, (place.base, place.base + until)) as take:
                while rows := take(RECORDS_MAX):
                    if not all(is_whole(_block(place.base, row), place.seed) for row in rows):
                        raise BlockDamaged("a checksum does not hold")
        except (BlockDamaged, *BROKEN) as problem:
            if (found := self._file.structure()) != "ok":
                raise BlockDamaged(f"{problem}, and SQLite's structure does not hold: {found}. Nothing is dropped") from problem

    def drop_below(self, place: Place, before: int, step: int) -> tuple[int, bool]:
        """Move the start up to `before`, at most by `step` offsets; returns how many records that hides, and whether it is done.

        Raises OffsetOutOfRange for a start behind the end.
        """
        state = self.state(place)
        if before > state.end:
            raise OffsetOutOfRange(f"{place.topic}/{place.number}: cannot drop records below {before}; the end is {state.end}")
        until = min(before, state.start + step)
        if until <= state.start:
            return 0, True
        dropped = self._held_below(place, until) - self._held_below(place, state.start)
        self._file.rows(f"DELETE {_WHOLE_BELOW}", (place.base, place.base + until))
        self.keep_state(place, state._replace(start=until))
        return dropped, until == before

    def compact_from(self, place: Place, at: int, end: int, newest: Mapping[bytes, int]) -> tuple[int, int]:
        """Rewrite blocks from the one with `at` on without what is older than `newest`, known for all records below `end`.

        Returns where to go on and how many records were dropped.
        """
        state = self.state(place)
        if max(at, state.start) >= state.end:
            return end, 0  # Another process has dropped it all.
        first = self.block_at(place, max(at, state.start)).first
        at, seen, hidden = first, 0, 0
        kept: list[Record] = []
        # An empty block is never written: the block of a record is in charge of the gap before it, so go on until one is kept.
        while at < state.end and (seen < COMPACT_STEP or not kept):
            block = self.block_at(place, at)
            records = opened([block], place.seed)
            there = [record for record in records if record.offset >= state.start]
            kept += [record for record in there if record.offset >= end or newest[record.key] <= record.offset]
            seen, hidden, at = seen + len(records), hidden + len(records) - len(there), block.end
        if len(kept) < seen:
            self._file.rows("DELETE FROM blocks WHERE id BETWEEN ? AND ?", (place.base + first, place.base + at - 1))
            encoded = [encode_record(record) for record in kept]
            self.put(place, blocks_of([record.offset for record in kept], encoded, first, at, place.seed))
        return at, seen - hidden - len(kept)

    def _last_block(self, place: Place, offset: int) -> Block | None:
        """The last block that starts at or below `offset`."""
        rows: list[Row] = self._file.rows(_BLOCK_AT, (place.base, place.base + offset))
        block = _block(place.base, rows[0]) if rows else None
        if block is not None and block.first > offset:  # SQLite goes by the order of pages, and what is out of order misleads it.
            raise BlockDamaged(f"the block with offset {offset} is missing, or not where it belongs")
        return block

    def _held_below(self, place: Place, offset: int) -> int:
        """How many records are in the file below `offset`."""
        ((whole,),) = self._file.rows(f"SELECT ifnull(sum(count), 0) {_WHOLE_BELOW}", (place.base, place.base + offset))
        try:
            last = self._last_block(place, offset)
        except (BlockDamaged, UnicodeDecodeError):
            return int(whole)  # nobody knows how many it held, and to drop it is what mends the partition
        if last is None or last.end <= offset:
            return int(whole)
        if last.held == last.span:
            return int(whole) + offset - last.first
        return int(whole) + sum(record.offset < offset for record in opened([last], place.seed))


def _block(base: int, row: Row) -> Block:
    """The block in a row. SQLite keeps the type of each value beside it, so damage can make a number of a text."""
    if [type(field) for field in row[1:5]] != [int, int, int, bytes]:
        raise BlockDamaged("a block's row has fields of wrong types")
    return Block(row[0] - base, *row[1:])
