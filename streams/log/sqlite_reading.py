"""Reading the embedded log: what is asked for out of blocks, and where damage was met, from where on nothing is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from projections.reading import at_hand
from streams.log.base import BareRecord, LogDamaged, Message, OffsetOutOfRange, Position, Record
from streams.log.blocks import BYTES_MAX, RECORDS_MAX, Block, BlockDamaged, in_bites, opened, opened_bare, salvaged
from streams.log.sqlite_ends import Ends
from streams.log.sqlite_file import BROKEN, SqliteFile
from streams.log.sqlite_lost import check_end
from streams.log.sqlite_names import RESTORE
from streams.log.sqlite_shelf import Place, Shelf, State

LAZILY_RECORDS = 512
"""Read at once for who reads lazily: 300 kB, a part of one core's cache. A query more for so many records costs nothing."""

_Some = TypeVar("_Some", Record, BareRecord)
Opening = Callable[[Sequence[Block], int], list[Any]]
"""`opened` or `opened_bare`."""


class Said(NamedTuple):
    """What this process appended to a partition in one transaction, from the offset `first` on."""

    place: Place
    first: int
    time_ms: int
    messages: Sequence[Message]

    def records(self) -> list[BareRecord] | None:
        """What a fold reads of it, if all of it is bytes for good and no longer than a block."""
        if len(self.messages) > RECORDS_MAX:
            return None
        place, time_ms = self.place, self.time_ms
        fields = [(message.key, message.value) for message in self.messages]
        if not all(type(key) is type(value) is bytes for key, value in fields):
            return None
        if sum([len(key) + len(value) for key, value in fields]) > BYTES_MAX:
            return None
        return [BareRecord(place.topic, place.number, offset, time_ms, *both) for offset, both in enumerate(fields, self.first)]


class Reader:
    """The reading half of one file: it serves what is on disk, and has it put there. `damage` has what was met, by topic and partition."""

    def __init__(self, path: Path, file: SqliteFile, shelf: Shelf, ends: Ends) -> None:
        self.damage: dict[tuple[str, int], LogDamaged] = {}
        self._path, self._file, self._shelf, self._ends = path, file, shelf, ends
        self._said: dict[int, list[BareRecord]] = {}
        self._durable: dict[int, int] = {}
        """The end of each partition that is known to be on disk."""
        self._ends_checked: set[int] = set()

    def keep(self, said: Sequence[Said]) -> None:
        """Remember what was appended last to each partition, for the next `early` there."""
        for each in said:
            records = each.records()
            if records is not None:
                self._said[each.place.id] = records
            else:
                self.forget(each.place)

    def forget(self, place: Place) -> None:
        """What was appended to this partition may not be there any more."""
        self._said.pop(place.id, None)

    def early(self, place: Place, offset: int, records_max: int, bytes_max: int) -> list[BareRecord]:
        """What `records` makes with `opened_bare`, on disk or not. What this process said last is not fetched if it is all.

        A loop that decides on its own fold reads back all that it says: to fetch and open it would take a tenth of a placement's time.
        """
        own = self._said.pop(place.id, None)
        if own is not None and own[0].offset == offset and len(own) <= records_max and bytes_max >= BYTES_MAX:
            with self._file.guarded(f"{place.topic}/{place.number}"):
                if self._end_for(place, offset) == own[-1].offset + 1:
                    return own
        return self._records(opened_bare, place, offset, records_max, bytes_max, early=True)

    def early_whole(self, place: Place, offset: int, records_max: int, bytes_max: int) -> list[Record]:
        """What `records` makes with `opened`, on disk or not."""
        return self._records(opened, place, offset, records_max, bytes_max, early=True)

    def state(self, place: Place) -> State:
        """The partition's figures. Raises LogDamaged."""
        try:
            if place.id not in self._ends_checked:
                self._check_end(place)
            return self._shelf.state(place)
        except (BlockDamaged, *BROKEN) as problem:
            raise self.mark_damaged(place, 0, problem) from problem

    def _check_end(self, place: Place) -> None:
        """Once for each partition: else a log that lost its last records would pass for one that never had them."""
        with self._file.reading():
            state = self._shelf.state(place)
            with suppress(*BROKEN):  # for a read to find, which serves what is before it
                if self._shelf.goes_on(place, state):
                    raise BlockDamaged(f"its end is said to be {state.end}, and records stand behind it")
        self._ends_checked.add(place.id)

    def records(self, opening: Opening, place: Place, offset: int, records_max: int, bytes_max: int) -> list[Any]:
        """As `Log.read`: what `opening` makes of the blocks. Raises as it does."""
        return self._records(opening, place, offset, records_max, bytes_max, early=False)

    def _records(self, opening: Opening, place: Place, offset: int, records_max: int, bytes_max: int, *, early: bool) -> list[Any]:
        records_max, bytes_max = max(records_max, 1), max(bytes_max, 1)
        with self._file.guarded(f"{place.topic}/{place.number}"):
            while True:
                end = self._end_for(place, offset) if early else self._durable_end_for(place, offset, records_max)
                if offset >= end:
                    return []
                records, covered = self._read(opening, place, offset, end, records_max, bytes_max)
                if records:
                    return records
                offset = covered

    def bare_lazily(self, place: Place, offset: int, records_max: int, bytes_max: int) -> Iterator[Sequence[BareRecord]]:
        """What `records` makes with `opened_bare`, some at a time: no block is read, and no record decoded, long before its turn.

        A fold finds them in the processor's cache then, and the next ones take their place there; thousands at once are waited for twice.
        """
        at, found = offset, 0
        with self._file.guarded(f"{place.topic}/{place.number}"):
            until = min(offset + max(records_max, 1), self._durable_end_for(place, offset, records_max))
            with suppress(BlockDamaged, *BROKEN):
                while at < until:
                    for bite in in_bites(self._shelf.blocks_from(place, at, until, LAZILY_RECORDS, bytes_max)):
                        records = opened_bare(bite, place.seed)
                        if bite[0].first < at or bite[-1].end > until:
                            records = [record for record in records if at <= record.offset < until]
                        found += len(records)
                        yield records
                        at = bite[-1].end
        if at < until or not found:  # Damage, or a gap of compaction: the careful way knows.
            yield self.records(opened_bare, place, at if found else offset, max(until - at, 1), bytes_max)

    def _end_for(self, place: Place, offset: int) -> int:
        """The partition's end for who reads from `offset` on. Raises LogDamaged where known damage is there, and OffsetOutOfRange."""
        state = self.state(place)
        if offset > state.end:
            told = self._ends.end(place.id)  # before another look, as somebody may append meanwhile
            state = self.state(place)
            check_end(self._file, told, (place.topic, place.number), state.end)
        _check_offset(place, offset, state)
        known = self.known_damage(place, state)
        if known is not None and known.position is not None and offset >= known.position.offset:
            raise known
        return state.end

    def _durable_end_for(self, place: Place, offset: int, records_max: int) -> int:
        """As `_end_for`, or less, but enough for so many; up to there everything is on disk, if there is anything to read at all.

        Who reads what has been there for long does not wait for the disk whenever somebody appends.
        """
        end, known = self._end_for(place, offset), self._durable.get(place.id, 0)
        if offset + max(records_max, 1) <= known:
            return known
        if offset < end and known < end:
            self._file.sync()
            self._durable[place.id] = end
            self._ends.told(place.id, end)
        return end

    def _read(self, opening: Opening, place: Place, offset: int, end: int, records_max: int, bytes_max: int) -> tuple[list[Any], int]:
        """Records from `offset` up to `end`, and the offset up to which there are no others; the first are none in a gap of compaction."""
        try:
            blocks = self._shelf.blocks_from(place, offset, end, records_max, bytes_max)
            records = opening(blocks, place.seed)
        except (BlockDamaged, *BROKEN):
            # Either damage, or another process compacted or truncated between two of our statements: look again, under one transaction.
            return self._probe(place, offset, end, records_max, bytes_max)
        if blocks[-1].end > end:  # Another process compacted meanwhile, and put into one block with ours what came later.
            records = [record for record in records if record.offset < end]
        skip = 0
        if blocks[0].first < offset:
            skip = sum(record.offset < offset for record in records[: blocks[0].held])
        found = records[skip : skip + max(records_max, 1)] if skip or len(records) > records_max else records
        if sum(len(block.records) for block in blocks) > bytes_max:
            found = _bounded(found, bytes_max)
        return found, min(blocks[-1].end, end)

    def _probe(self, place: Place, offset: int, end: int, records_max: int, bytes_max: int) -> tuple[list[Record], int]:
        """As `_read`, block by block under one transaction; serves what is good before the first bad record, else raises LogDamaged."""
        good: list[Record] = []
        with self._file.reading():
            state = self.state(place)
            _check_offset(place, offset, state)
            at, size = offset, 0
            while at < end and len(good) < records_max and size < bytes_max:
                block: Block | None = None
                try:
                    block = self._shelf.block_at(place, at)
                    found = opened([block], place.seed)
                    at, size = block.end, size + len(block.records)
                except (BlockDamaged, *BROKEN) as problem:
                    found = [] if block is None else salvaged(block, place.seed)
                    bad = max(at, found[-1].offset + 1 if found else 0)
                    good += [record for record in found if record.offset >= at]
                    damaged = self.mark_damaged(place, bad, problem)
                    if not good:
                        raise damaged from problem
                    break
                good += [record for record in found if offset <= record.offset < end]
        return _bounded(good[: max(records_max, 1)], bytes_max), min(at, end)

    def known_damage(self, place: Place, state: State) -> LogDamaged | None:
        """What was met in a partition and is still there: another process may have dropped the records in question meanwhile."""
        known = self.damage.get((place.topic, place.number))
        if known is not None and known.position is not None and known.position.offset < state.start:
            del self.damage[place.topic, place.number]
            return None
        return known

    def mark_damaged(self, place: Place, offset: int, problem: Exception) -> LogDamaged:
        """Remember the first bad offset of a partition, and what to raise for it."""
        position = Position(place.topic, place.number, offset)
        served = f"Nothing is served from there on and nothing appended there; {RESTORE}"
        damaged = LogDamaged(f"{self._path}: {position}: {problem}. {served}", position)
        known = self.damage.setdefault((place.topic, place.number), damaged)
        if known.position is not None and known.position.offset > offset:
            self.damage[place.topic, place.number] = damaged
        return damaged


def _check_offset(place: Place, offset: int, state: State) -> None:
    if not state.start <= offset <= state.end:
        gone = "; the others were archived" if offset < state.start else ""
        raise OffsetOutOfRange(f"{place.topic}/{place.number}@{offset}: {at_hand(state.start, state.end)}{gone}")


def _bounded(records: list[_Some], bytes_max: int) -> list[_Some]:
    size = 0
    for at, record in enumerate(records):
        size += len(record.key) + len(record.value)
        if size > bytes_max and at:
            return records[:at]
    return records
