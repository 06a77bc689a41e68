"""The log in memory: for tests, for logs read from JSON lines, and for anything that need not outlive the process.

It keeps the whole contract but durability. Unlike the others it may be shared by threads, because nothing else could be.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from threading import Condition
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from projections.reading import at_hand
from schemas.partitioner import partition_of
from streams.clock import ClockMs, wall_clock_ms
from streams.log.base import LogDamaged, LogReadOnly, Message, OffsetOutOfRange, Partition, Record, TopicMismatch, TopicSpec
from streams.log.leases import Group, Heartbeat, RosterLease, turn, without
from streams.log.partitioner import no_partition, other_count, route, unknown_topic

_offset_of = attrgetter("offset")
_time_of = attrgetter("time_ms")


class _Shelf:
    """The records of one partition, with the offsets where they start and end."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.time_ms = 0
        self.records: list[Record] = []


class MemoryLog:
    """See `streams.log.base.Log`."""

    def __init__(self, topics: Sequence[TopicSpec] = (), clock: ClockMs = wall_clock_ms, *, ledger_id: str = "memory") -> None:
        self.ledger_id = ledger_id
        self._clock = clock
        self._read_only = ""
        self._specs: dict[str, TopicSpec] = {}
        self._shelves: dict[Partition, _Shelf] = {}
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._rosters: dict[tuple[str, str], _MemoryRoster] = {}
        self._changed = Condition()
        self.create(topics)

    @classmethod
    def of(cls, records: Iterable[Record], topics: Sequence[TopicSpec], *, name: str, ledger_id: str = "memory") -> Self:
        """A read-only log of `records`, which keep their offsets and times; `name` says in messages where they are from.

        A time below that of the record before it is lifted to it, as the contract has it.

        Raises LogDamaged if the offsets of a partition do not rise, TopicMismatch if a topic or partition is not in `topics`.
        """
        log = cls(topics, ledger_id=ledger_id)
        for record in records:
            shelf = log._shelf(record.topic, record.partition)
            if shelf.records and record.offset < shelf.end:
                raise LogDamaged(f"{name}: {record.position} comes after offset {shelf.end - 1}; within a partition they must rise")
            if not shelf.records:
                shelf.start = record.offset
            shelf.end, shelf.time_ms = record.offset + 1, max(shelf.time_ms, record.time_ms)
            shelf.records.append(record if record.time_ms == shelf.time_ms else replace(record, time_ms=shelf.time_ms))
        log._read_only = name
        return log

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """See the contract."""
        with self._changed:
            self._refuse_if_read_only()
            for spec in topics:
                there = self._specs.get(spec.name)
                if there is not None and there.partitions != spec.partitions:
                    raise TopicMismatch(other_count(spec, there.partitions))
            for spec in topics:
                if spec.name not in self._specs:
                    self._specs[spec.name] = spec
                    self._shelves |= {Partition(spec.name, number): _Shelf() for number in range(spec.partitions)}

    def topics(self) -> Mapping[str, int]:
        """See the contract."""
        return {name: spec.partitions for name, spec in self._specs.items()}

    def partition(self, topic: str, key: bytes) -> int:
        """See the contract."""
        return partition_of(key, self._spec(topic).partitions)

    def append(self, messages: Sequence[Message]) -> list[int]:
        """See the contract."""
        with self._changed:
            self._refuse_if_read_only()
            numbers = route(messages, self.topics())
            now_ms = self._clock()
            offsets = [self._put(message, number, now_ms) for message, number in zip(messages, numbers, strict=True)]
            self._changed.notify_all()
            return offsets

    def _put(self, message: Message, number: int, now_ms: int) -> int:
        shelf = self._shelves[Partition(message.topic, number)]
        shelf.time_ms = max(shelf.time_ms, now_ms)
        headers = tuple((name, value) for name, value in message.headers)
        shelf.records.append(Record(message.topic, number, shelf.end, shelf.time_ms, message.key, message.value, headers))
        shelf.end += 1
        return shelf.end - 1

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See the contract."""
        with self._changed:
            shelf = self._shelf(topic, partition)
            if not shelf.start <= offset <= shelf.end:
                raise OffsetOutOfRange(f"{topic}/{partition}@{offset}: {at_hand(shelf.start, shelf.end)}")
            first = bisect_left(shelf.records, offset, key=_offset_of)
            size = 0
            found: list[Record] = []
            for record in shelf.records[first : first + max(records_max, 1)]:
                size += len(record.key) + len(record.value)
                if found and size > bytes_max:
                    break
                found.append(record)
            return found

    def start(self, topic: str, partition: int) -> int:
        """See the contract."""
        return self._shelf(topic, partition).start

    def end(self, topic: str, partition: int) -> int:
        """See the contract."""
        return self._shelf(topic, partition).end

    def ends(self, topic: str) -> dict[int, int]:
        """See the contract."""
        with self._changed:
            return {number: self._shelf(topic, number).end for number in range(self._spec(topic).partitions)}

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """See the contract."""
        with self._changed:
            shelf = self._shelf(topic, partition)
            at = bisect_left(shelf.records, time_ms, key=_time_of)
            return shelf.records[at].offset if at < len(shelf.records) else shelf.end

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        """See the contract."""
        shelves = [(self._shelf(*partition), offset) for partition, offset in offsets.items()]
        until = time.monotonic() + timeout_seconds
        with self._changed:
            while not any(shelf.end > offset for shelf, offset in shelves):
                left_seconds = until - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._changed.wait(left_seconds)
        return True

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """See the contract."""
        self._spec(topic)
        return dict(self._committed.get((group, topic), {}))

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See the contract."""
        with self._changed:
            for number in offsets:
                self._shelf(topic, number)
            self._committed.setdefault((group, topic), {}).update(offsets)

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> RosterLease:
        """See the contract."""
        with self._changed:
            roster = self._rosters.setdefault((group, topic), _MemoryRoster(self._changed, self._spec(topic).partitions))
        return RosterLease(roster, member, int(timeout_seconds * 1000), self._clock)

    def compact(self, topic: str, partition: int) -> int:
        """See the contract."""
        with self._changed:
            self._refuse_if_read_only()
            shelf = self._shelf(topic, partition)
            if not self._spec(topic).compacted:
                raise TopicMismatch(f"topic {topic!r} is not compacted: every record of it is kept")
            newest = {record.key: record.offset for record in shelf.records}
            before = len(shelf.records)
            shelf.records = [record for record in shelf.records if newest[record.key] == record.offset]
            return before - len(shelf.records)

    def truncate(self, topic: str, partition: int, before: int) -> int:
        """See the contract."""
        with self._changed:
            self._refuse_if_read_only()
            shelf = self._shelf(topic, partition)
            if before > shelf.end:
                raise OffsetOutOfRange(f"{topic}/{partition}: cannot drop records below {before}; the end is {shelf.end}")
            dropped = bisect_left(shelf.records, before, key=_offset_of)
            shelf.start = max(shelf.start, before)
            del shelf.records[:dropped]
            return dropped

    def close(self) -> None:
        """Does nothing: the records stay as long as the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _refuse_if_read_only(self) -> None:
        if self._read_only:
            raise LogReadOnly(f"{self._read_only} can only be read; write to a log of its own, such as sqlite:PATH")

    def _spec(self, topic: str) -> TopicSpec:
        try:
            return self._specs[topic]
        except KeyError:
            raise TopicMismatch(unknown_topic(topic, self.topics())) from None

    def _shelf(self, topic: str, partition: int) -> _Shelf:
        try:
            return self._shelves[Partition(topic, partition)]
        except KeyError:
            raise TopicMismatch(no_partition(topic, partition, self._spec(topic).partitions)) from None


class _MemoryRoster:
    """See `streams.log.leases.Roster`."""

    def __init__(self, changed: Condition, partitions: int) -> None:
        self._changed, self._partitions = changed, partitions
        self._group = Group({}, {})

    def turn(self, member: str, timeout_ms: int, now_ms: int, beat: Heartbeat | None) -> Group:
        with self._changed:
            self._group = turn(self._group, self._partitions, member, timeout_ms, now_ms, beat)
            return self._group

    def leave(self, member: str, beat: Heartbeat | None) -> None:
        with self._changed:
            self._group = without(self._group, member, beat)
