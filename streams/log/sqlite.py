"""The embedded log: one SQLite file that several processes append to and read at once. The default; it needs no broker.

Beside the file stand SQLite's `-wal` and `-shm`, `-wake`, which carries nothing (see `streams.log.wake`), and `-ends`, by which a tail that
vanished is noticed (see `streams.log.sqlite_ends`). Every read of the file checks every checksum; only a fold that reads back what its
process said last has it from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from schemas.partitioner import partition_of
from streams.clock import ClockMs, wall_clock_ms
from streams.log.base import BareRecord, LogDamaged, LogError, LogUnreachable, Message, Partition, Record, TopicMismatch, TopicSpec
from streams.log.blocks import BlockDamaged, blocks_of, check_readable, encode_record, opened, opened_bare
from streams.log.leases import RosterLease
from streams.log.partitioner import route
from streams.log.sqlite_catalog import Catalog
from streams.log.sqlite_ends import Ends, ends_file
from streams.log.sqlite_file import BROKEN, SqliteFile, row_mark
from streams.log.sqlite_lost import check_ends, refuse_emptied, refuse_left_behind
from streams.log.sqlite_reading import Reader, Said
from streams.log.sqlite_roster import SqliteRoster
from streams.log.sqlite_shelf import COMPACT_STEP, Place, Shelf, State
from streams.log.wake import Bell, Ear, wake_file

TRUNCATE_STEP: Final = 200_000  # offsets dropped in one transaction, so that other writers get their turn
SPURIOUS_SECONDS: Final = 0.0002  # rest of a waiter that is woken for other partitions, so that a busy log does not keep it spinning

Progress = Callable[[Partition, int, int], None]

_topic = attrgetter("topic")


class SqliteLog:
    """See `streams.log.base.Log`. Made by `SqliteLog.open`; one instance belongs to one thread."""

    def __init__(self, file: SqliteFile, ends: Ends, bell: Bell, clock: ClockMs) -> None:
        self.path, self.ledger_id = file.path, file.ledger_id
        self._file, self._catalog, self._shelf = file, Catalog(file), Shelf(file)
        self._ends, self._bell, self._clock = ends, bell, clock
        self._ear: Ear | None = None
        self._leases: list[RosterLease] = []
        self._reader = Reader(self.path, file, self._shelf, ends)
        self._tails_checked: set[int] = set()
        self._appended_bytes = 0
        self._closed = False

    @classmethod
    def open(cls, path: str | Path, *, create: bool = False, clock: ClockMs = wall_clock_ms) -> Self:
        """Open the log at `path`; with `create` make it if it is missing. `clock` stamps the records and times the leases.

        Raises LogUnreachable if there is no log or no way to it, LogDamaged if it is not one or of another version, LogFull.
        """
        path = Path(path)
        refuse_emptied(path)
        if create:
            refuse_left_behind(path)
        file = SqliteFile.open(path, create=create)
        with ExitStack() as stack:
            stack.callback(file.close)
            ends = stack.enter_context(closing(Ends(ends_file(path), path, file.ledger_id)))
            bell = stack.enter_context(closing(_bell(path)))
            try:
                with file.guarded("what was acknowledged"):
                    check_ends(file, ends)
            except LogDamaged:
                file.keep_wal()
                raise
            stack.pop_all()
        return cls(file, ends, bell, clock)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """See the contract."""
        self._catalog.create(topics)
        self._file.sync()

    def topics(self) -> Mapping[str, int]:
        """See the contract."""
        return dict(self._catalog.counts())

    def partition(self, topic: str, key: bytes) -> int:
        """See the contract."""
        return partition_of(key, self._catalog.spec(topic).partitions)

    def append(self, messages: Sequence[Message]) -> list[int]:
        """See the contract. Raises TypeError for a message that could not be read back."""
        if not messages:
            return []
        offsets, said = self._commit(messages)
        self._sync_said(said)
        return offsets

    def append_early(self, messages: Sequence[Message]) -> list[int]:
        """As `append`, without waiting for the disk. Others see them; whoever is given one by `read` may rely on it, as it is on disk then.

        On disk nothing is without what was appended before it, and what follows from a record stands behind it.
        """
        if not messages:
            return []
        offsets, said = self._commit(messages)
        self._reader.keep(said)
        return offsets

    def _commit(self, messages: Sequence[Message]) -> tuple[list[int], list[Said]]:
        """Append all in one transaction and wake who waits for it."""
        numbers = self._route(messages)
        self._file.bound_wal(self._appended_bytes)
        now_ms = self._clock()
        with self._file.writing("append"):
            if len(set(numbers)) == 1 and len(set(map(_topic, messages))) == 1:
                said = [self._append(self._catalog.place(messages[0].topic, numbers[0]), messages, now_ms)]
                offsets = list(range(said[0].first, said[0].first + len(messages)))
            else:
                said, offsets = self._append_scattered(messages, numbers, now_ms)
        self._bell.ring()
        self._appended_bytes = sum([len(message.value) for message in messages])
        return offsets, said

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        """Append copies of another log's records with the times they have there, in one transaction. Raises as `append` does."""
        numbers = self._route(messages)
        self._file.bound_wal()
        said = []
        with self._file.writing("append"):
            for (*to, time_ms), run in groupby(zip(map(_topic, messages), numbers, times_ms, messages, strict=True), itemgetter(0, 1, 2)):
                said.append(self._append(self._catalog.place(*to), [message for *_, message in run], time_ms))
        self._bell.ring()
        self._sync_said(said)

    def _sync_said(self, said: Sequence[Said]) -> None:
        self._file.sync()
        for each in said:
            self._ends.told(each.place.id, each.first + len(each.messages))

    def _append_scattered(self, messages: Sequence[Message], numbers: Sequence[int], now_ms: int) -> tuple[list[Said], list[int]]:
        """Append to several partitions inside the caller's transaction; returns also the offsets in the order of the messages."""
        batches: dict[tuple[str, int], list[int]] = {}
        for at, (message, number) in enumerate(zip(messages, numbers, strict=True)):
            batches.setdefault((message.topic, number), []).append(at)
        said, offsets = [], [0] * len(messages)
        for (topic, number), ats in batches.items():
            there = self._append(self._catalog.place(topic, number), [messages[at] for at in ats], now_ms)
            said.append(there)
            for offset, at in enumerate(ats, there.first):
                offsets[at] = offset
        return said, offsets

    def _append(self, place: Place, messages: Sequence[Message], now_ms: int) -> Said:
        """Append to one partition inside the caller's transaction."""
        state = self._reader.state(place)
        self._refuse_if_damaged(place, state)
        end = state.end + len(messages)
        time_ms = max(state.time_ms, now_ms)
        topic, number = place.topic, place.number
        encoded = [
            encode_record((topic, number, offset, time_ms, message.key, message.value, message.headers))
            for offset, message in enumerate(messages, state.end)
        ]
        check_readable(messages, encoded)
        self._shelf.put(place, blocks_of(range(state.end, end), encoded, state.end, end, place.seed))
        self._shelf.keep_state(place, State(state.start, end, time_ms))
        return Said(place, state.end, time_ms, messages)

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See the contract."""
        return self._reader.records(opened, self._catalog.place(topic, partition), offset, records_max, bytes_max)

    def read_bare(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[BareRecord]:
        """As `read`, in a third of the time: the records come without headers."""
        return self._reader.records(opened_bare, self._catalog.place(topic, partition), offset, records_max, bytes_max)

    def read_early(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[BareRecord]:
        """As `read_bare`, but of records that a power failure may still take away, and what this process appended last is not fetched.

        For who says what follows from them in this log and nowhere else: that stands behind them, and is taken away with them.
        """
        return self._reader.early(self._catalog.place(topic, partition), offset, records_max, bytes_max)

    def read_early_whole(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """As `read_early`, with headers."""
        return self._reader.early_whole(self._catalog.place(topic, partition), offset, records_max, bytes_max)

    def read_lazily(
        self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20
    ) -> Iterator[BareRecord]:
        """As `read_bare`, for who reads thousands and keeps none: each is decoded shortly before its turn. Raises when it is iterated."""
        return chain.from_iterable(self._reader.bare_lazily(self._catalog.place(topic, partition), offset, records_max, bytes_max))

    def start(self, topic: str, partition: int) -> int:
        """See the contract."""
        with self._file.guarded(f"{topic}/{partition}"):
            return self._reader.state(self._catalog.place(topic, partition)).start

    def end(self, topic: str, partition: int) -> int:
        """See the contract."""
        with self._file.guarded(f"{topic}/{partition}"):
            return self._reader.state(self._catalog.place(topic, partition)).end

    def ends(self, topic: str) -> dict[int, int]:
        """See the contract."""
        spec = self._catalog.spec(topic)
        with self._reading(topic):
            return {number: self._reader.state(self._catalog.place(topic, number)).end for number in range(spec.partitions)}

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """See the contract. A binary search: about 20 blocks are read among a million records."""
        place = self._catalog.place(topic, partition)
        with self._reading(f"{place.topic}/{place.number}"):
            return self._shelf.at_time(place, time_ms)

    def news(self, offsets: Mapping[Partition, int]) -> frozenset[Partition]:
        """Those of these partitions whose end is another than said: one look, where a read of each that finds nothing costs as much."""
        places = [(self._catalog.place(*partition).id, partition, offset) for partition, offset in offsets.items()]
        with self._file.guarded("ends"):
            ends = self._shelf.ends()
        return frozenset([partition for number, partition, offset in places if ends.get(number) != offset])

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        """See the contract. Wakes within a millisecond or so of another process's append, and costs nearly nothing until then."""
        until = time.monotonic() + timeout_seconds
        places = [(self._catalog.place(*partition).id, offset) for partition, offset in offsets.items()]
        with self._file.guarded("wait"):
            if places:
                self._file.check_in_place()  # else it would wait for ever for what others append
            if self._ear is None:
                self._ear = Ear(wake_file(self.path))
            woken = False
            while True:
                ends = self._shelf.ends() if places else {}
                if any(ends.get(number, 0) > offset for number, offset in places):
                    return True
                left_seconds = until - time.monotonic()
                if left_seconds <= 0:
                    return False
                if woken:
                    time.sleep(min(SPURIOUS_SECONDS, left_seconds))
                self._ear.sleep(left_seconds)
                woken = True

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """See the contract. If damage took an offset away it is absent: the group reads again, which every step bears."""
        self._catalog.spec(topic)
        with self._file.guarded(f"offsets of group {group!r}"):
            rows = self._file.rows("SELECT partition, next, mark FROM commits WHERE reader = ? AND topic = ?", (group, topic))
            for number, offset, mark in rows:
                if mark != row_mark(group, topic, number, offset):
                    raise LogDamaged(f"the offset of group {group!r} in {topic}/{number} is damaged. Commit it again, or a lower one")
            return {number: offset for number, offset, _ in rows}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See the contract."""
        rows = [(group, self._catalog.place(topic, number).topic, number, offset) for number, offset in offsets.items()]
        with self._file.writing(f"offsets of group {group!r}"):
            self._file.run_many("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?)", [(*row, row_mark(*row)) for row in rows])
        self._file.sync()

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> RosterLease:
        """See the contract."""
        lease = RosterLease(
            SqliteRoster(self._file, group, topic, self._catalog.spec(topic).partitions), member, int(timeout_seconds * 1000), self._clock
        )
        self._leases.append(lease)
        return lease

    def compact(self, topic: str, partition: int) -> int:
        """See the contract. Others append and read meanwhile: it rewrites a few thousand records at a time."""
        if not self._catalog.spec(topic).compacted:
            raise TopicMismatch(f"topic {topic!r} is not compacted: every record of it is kept")
        place = self._catalog.place(topic, partition)
        start, end = self.start(topic, partition), self.end(topic, partition)
        newest: dict[bytes, int] = {}
        at = start
        while at < end:
            records = self.read(topic, partition, at, records_max=COMPACT_STEP)
            newest |= {record.key: record.offset for record in records}
            at = records[-1].offset + 1
        dropped, at = 0, start
        self._reader.forget(place)
        while at < end:
            self._file.bound_wal()
            with self._file.writing("compact"):
                at, count = self._shelf.compact_from(place, at, end, newest)
                dropped += count
        self._file.sync()
        return dropped

    def truncate(self, topic: str, partition: int, before: int) -> int:
        """See the contract."""
        place = self._catalog.place(topic, partition)
        dropped, done = 0, False
        while not done:
            with self._reading(f"{topic}/{partition}"):
                self._shelf.check_below(place, before, TRUNCATE_STEP)
            self._file.bound_wal()
            with self._file.writing("truncate"):
                count, done = self._shelf.drop_below(place, before, TRUNCATE_STEP)
                dropped += count
        self._file.sync()
        return dropped

    def spare_bytes(self) -> int:
        """Room inside of the file that was of records which are gone: what is appended goes there first."""
        with self._file.guarded("room"):
            ((pages,),), ((size,),) = (self._file.rows(f"PRAGMA {name}") for name in ("freelist_count", "page_size"))
        return int(pages) * int(size)

    def verify(self, progress: Progress | None = None, *, without: Collection[str] = ()) -> int:
        """Read every record of every topic, but of those `without`; returns how many. Raises LogDamaged for the first bad position.

        `progress` is called now and then with a partition, the offset reached there and its end.
        """
        count = 0
        for topic, partitions in self.topics().items():
            if topic in without:
                continue
            for number in range(partitions):
                at, end = self.start(topic, number), self.end(topic, number)
                while at < end:
                    records = self.read(topic, number, at, records_max=10_000)
                    count += len(records)
                    at = records[-1].offset + 1 if records else end
                    if progress is not None:
                        progress(Partition(topic, number), at, end)
        with self._file.guarded("structure"):
            answer = self._file.structure()
            if answer != "ok":
                raise LogDamaged(f"{self.path}: all records are sound, but not SQLite's structure: {answer}. Copy them to a new log")
        return count

    def close(self) -> None:
        """See the contract."""
        if self._closed:
            return
        for lease in self._leases:
            # A lease that cannot be given up, on a full disk say, runs out by itself.
            with suppress(LogError):
                lease.release()
        if self._ear is not None:
            self._ear.close()
        self._closed = True
        self._bell.close()
        self._ends.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _route(self, messages: Sequence[Message]) -> list[int]:
        for topic in {message.topic for message in messages}:
            self._catalog.spec(topic)
        return route(messages, self._catalog.counts(fresh=False))

    def _refuse_if_damaged(self, place: Place, state: State) -> None:
        """Before the first append to a partition its last record is read; later ones cost nothing more."""
        known = self._reader.known_damage(place, state)
        if known is not None:
            raise known
        if place.id in self._tails_checked:
            return
        try:
            if state.start < state.end:
                opened([self._shelf.block_at(place, state.end - 1)], place.seed)
        except (BlockDamaged, *BROKEN) as problem:
            raise self._reader.mark_damaged(place, state.end - 1, problem) from problem
        self._tails_checked.add(place.id)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        with self._file.guarded(what), self._file.reading():
            yield


def _bell(log: Path) -> Bell:
    path = wake_file(log)
    try:
        return Bell(path, log)
    except OSError as problem:
        said = problem.strerror or problem
        raise LogUnreachable(f"{path}: {said}. It must be writable by all who use the log, as the log itself") from problem
