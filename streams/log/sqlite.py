"""The embedded log: one SQLite file that several processes append to and read at once. The default; it needs no broker.

Tables: `topics`, `partitions` (start, end and newest time of each), `blocks` (the records, see `streams.log.blocks`), `commits`,
`members` and `holds` (leases). The key of a block is its partition's number in this file, shifted, plus its first offset.

- A commit is synced to disk before `append` returns (WAL, synchronous=FULL). Beside the file stand SQLite's `-wal` and `-shm`, and
  `-wake`, which carries nothing (see `streams.log.wake`).
- No transaction is open while anybody waits, so that the WAL can always be folded back; `WAL_PAGES_MAX` bounds it.
- Every read checks every checksum. What SQLite cannot show is damage in the WAL of a log whose last process died: SQLite takes a frame
  there that does not hold for the torn end of an unacknowledged commit.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

import apsw

from schemas.partitioner import partition_of
from streams.log.base import (
    ClockMs,
    LogDamaged,
    LogError,
    LogFull,
    LogUnreachable,
    Message,
    OffsetOutOfRange,
    Partition,
    Position,
    Record,
    TopicMismatch,
    TopicSpec,
    wall_clock_ms,
)
from streams.log.blocks import Block, BlockDamaged, blocks_of, checked, encode_record, opened, salvaged, seed_of
from streams.log.leases import Group, Heartbeat, RosterLease, turn, without
from streams.log.partitioner import no_partition, other_count, route, unknown_topic
from streams.log.wake import Bell, Ear

FORMAT_VERSION: Final = 1
APPLICATION_ID: Final = 0x636C6D67  # "clmg": so that another program's database is never taken for a log
OFFSET_BITS: Final = 40  # 10^12 records a partition, 8 million partitions
BUSY_SECONDS: Final = 60.0  # writers wait for each other; more than this means that one is stopped
# The WAL is folded back at 16 MiB, beside readers, and at 64 MiB the writer waits until no reader is inside and starts it anew.
WAL_PAGES_FOLDED: Final = 4_096
WAL_PAGES_MAX: Final = 16_384
TRUNCATE_STEP: Final = 200_000  # offsets dropped in one transaction, so that other writers get their turn
COMPACT_STEP: Final = 4_096  # records rewritten in one transaction, likewise
SPURIOUS_SECONDS: Final = 0.0005  # rest of a waiter that is woken for other partitions, so that a busy log does not keep it spinning

_SCHEMA = """
CREATE TABLE ledger (name TEXT PRIMARY KEY, value TEXT NOT NULL, mark INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL, partitions INTEGER NOT NULL, compacted INTEGER NOT NULL, mark INTEGER NOT NULL);
CREATE TABLE partitions (id INTEGER PRIMARY KEY, start INTEGER NOT NULL, end INTEGER NOT NULL, time_ms INTEGER NOT NULL, mark INTEGER NOT NULL);
CREATE TABLE blocks (id INTEGER PRIMARY KEY, span INTEGER NOT NULL, count INTEGER NOT NULL, mark INTEGER NOT NULL,
                     records BLOB NOT NULL, marks BLOB NOT NULL);
CREATE TABLE commits (reader TEXT, topic TEXT, partition INTEGER, next INTEGER NOT NULL, mark INTEGER NOT NULL,
                      PRIMARY KEY (reader, topic, partition)) WITHOUT ROWID;
CREATE TABLE members (team TEXT, topic TEXT, member TEXT, at_ms INTEGER NOT NULL, timeout_ms INTEGER NOT NULL,
                      PRIMARY KEY (team, topic, member)) WITHOUT ROWID;
CREATE TABLE holds (team TEXT, topic TEXT, partition INTEGER, member TEXT NOT NULL, PRIMARY KEY (team, topic, partition)) WITHOUT ROWID;
"""  # noqa: E501 - tables read best in columns
_BLOCKS_FROM = """SELECT id, span, count, mark, records FROM blocks
    WHERE id >= ifnull((SELECT max(id) FROM blocks WHERE id BETWEEN ?1 AND ?2), ?1) AND id < ?3 ORDER BY id"""
_BLOCK_AT = "SELECT id, span, count, mark, records, marks FROM blocks WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1"
_BLOCK_PUT = "INSERT INTO blocks (id, span, count, mark, records, marks) VALUES (?, ?, ?, ?, ?, ?)"

Progress = Callable[[Partition, int, int], None]


class _Place(NamedTuple):
    """A partition as this file knows it."""

    topic: str
    number: int
    id: int
    seed: int
    compacted: bool

    @property
    def base(self) -> int:
        return self.id << OFFSET_BITS


class _State(NamedTuple):
    start: int
    end: int
    time_ms: int


class SqliteLog:
    """See `streams.log.base.Log`. Made by `SqliteLog.open`; one instance belongs to one thread."""

    def __init__(self, path: Path, db: apsw.Connection, bell: Bell, clock: ClockMs, ledger_id: str) -> None:
        self.path, self.ledger_id = path, ledger_id
        self._db, self._bell, self._clock = db, bell, clock
        self._ear: Ear | None = None
        self._leases: list[RosterLease] = []
        self._specs: dict[str, TopicSpec] = {}
        self._places: dict[tuple[str, int], _Place] = {}
        self._damage: dict[Partition, LogDamaged] = {}
        self._tails_checked: set[int] = set()
        self._wal_pages = 0
        self._fold_at_pages = WAL_PAGES_FOLDED
        self._closed = False
        db.set_wal_hook(self._after_commit)

    @classmethod
    def open(cls, path: str | Path, *, create: bool = False, clock: ClockMs = wall_clock_ms) -> Self:
        """Open the log at `path`; with `create` make it if it is missing.

        Raises LogUnreachable if there is no log or no way to it, LogDamaged if it is not one or of another version, LogFull.
        """
        path = Path(path)
        _find(path, create=create)
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        db: apsw.Connection | None = None
        try:
            db = apsw.Connection(str(path), flags=flags)
            ledger_id = _prepare(db, create=create)
            return cls(path, db, Bell(path.with_name(path.name + "-wake")), clock, ledger_id)
        except _TROUBLE as problem:
            trouble = _trouble(problem, db, str(path))
            if db is not None:
                db.close(force=True)
            raise trouble from problem
        except LogError as problem:
            if db is not None:
                db.close(force=True)
            raise type(problem)(f"{path}: {problem}") from None

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """See the contract."""
        with self._writing("create topics"):
            self._load_topics()
            for spec in topics:
                there = self._specs.get(spec.name)
                if there is not None and there.partitions != spec.partitions:
                    raise TopicMismatch(other_count(spec, there.partitions))
            for spec in topics:
                if spec.name not in self._specs:
                    self._create(spec)
                    self._load_topics()

    def _create(self, spec: TopicSpec) -> None:
        # A topic's id is that of its first partition, so that ids stay small and no second table of ids is needed.
        ((first,),) = self._rows("SELECT ifnull(max(id), 0) + 1 FROM partitions")
        row = (first, spec.name, spec.partitions, int(spec.compacted))
        self._db.execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", (*row, _mark(*row)))
        for id_ in range(first, first + spec.partitions):
            self._db.execute("INSERT INTO partitions VALUES (?, 0, 0, 0, ?)", (id_, _mark(id_, 0, 0, 0)))

    def topics(self) -> Mapping[str, int]:
        """See the contract."""
        with self._guarded("topics"):
            self._load_topics()
        return {name: spec.partitions for name, spec in self._specs.items()}

    def partition(self, topic: str, key: bytes) -> int:
        """See the contract."""
        return partition_of(key, self._spec(topic).partitions)

    def append(self, messages: Sequence[Message]) -> list[int]:
        """See the contract. Raises TypeError for a message that could not be read back."""
        if not messages:
            return []
        numbers = self._route(messages)
        batches: dict[tuple[str, int], list[int]] = {}
        for at, (message, number) in enumerate(zip(messages, numbers, strict=True)):
            batches.setdefault((message.topic, number), []).append(at)
        offsets = [0] * len(messages)
        self._fold_wal_back()
        now_ms = self._clock()
        with self._writing("append"):
            for (topic, number), ats in batches.items():
                first = self._append(self._place(topic, number), [messages[at] for at in ats], now_ms)
                for offset, at in enumerate(ats, first):
                    offsets[at] = offset
        self._bell.ring()
        return offsets

    def _append(self, place: _Place, messages: list[Message], now_ms: int) -> int:
        """Append to one partition inside the caller's transaction; returns the first offset."""
        state = self._state(place)
        self._refuse_if_damaged(place, state)
        end = state.end + len(messages)
        time_ms = max(state.time_ms, now_ms)
        topic, number = place.topic, place.number
        encoded = [
            encode_record((topic, number, offset, time_ms, message.key, message.value, message.headers))
            for offset, message in enumerate(messages, state.end)
        ]
        checked(encoded)
        self._put(place, blocks_of(range(state.end, end), encoded, state.end, end, place.seed))
        self._keep_state(place, _State(state.start, end, time_ms))
        return state.end

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See the contract."""
        place = self._place(topic, partition)
        with self._guarded(f"{topic}/{partition}"):
            state = self._state(place)
            _check_offset(place, offset, state)
            known = self._damage.get(Partition(topic, partition))
            if known is not None and known.position is not None and offset >= known.position.offset:
                raise known
            while offset < state.end:
                records, covered = self._read(place, offset, state.end, records_max, bytes_max)
                if records:
                    return records
                offset = covered
            return []

    def _read(self, place: _Place, offset: int, end: int, records_max: int, bytes_max: int) -> tuple[list[Record], int]:
        """Records at or above `offset`, and the offset up to which there are no others; the first are none in a gap of compaction."""
        try:
            blocks = self._blocks(place, offset, end, records_max, bytes_max)
            records = opened(blocks, place.seed)
        except (BlockDamaged, *_BROKEN):
            # Either damage, or another process compacted or truncated between two of our statements: look again, under one transaction.
            return self._probe(place, offset, records_max, bytes_max)
        skip = 0
        if blocks[0].first < offset:
            skip = sum(record.offset < offset for record in records[: blocks[0].held])
        found = records[skip : skip + max(records_max, 1)] if skip or len(records) > records_max else records
        if sum(len(block.records) for block in blocks) > bytes_max:
            found = _bounded(found, bytes_max)
        return found, blocks[-1].end

    def _blocks(self, place: _Place, offset: int, end: int, records_max: int, bytes_max: int) -> list[Block]:
        """Blocks from the one with `offset` on, until they hold enough. Raises BlockDamaged if one is missing at either end."""
        base = place.base
        cursor = self._db.execute(_BLOCKS_FROM, (base, base + offset, base + end))
        blocks: list[Block] = []
        count, size, step = 0, 0, 16
        try:
            while rows := list(islice(cursor, step)):
                blocks += [Block(id_ - base, span, number, mark, records) for id_, span, number, mark, records in rows]
                count = sum(block.held for block in blocks) - (offset - blocks[0].first)
                size += sum(len(row[4]) for row in rows)
                if count >= records_max or size >= bytes_max:
                    break
                step = 4 * step
        finally:
            cursor.close()
        if not (blocks and blocks[0].first <= offset < blocks[0].end):
            raise BlockDamaged(f"the block with offset {offset} is missing")
        if blocks[-1].end < end and count < records_max and size < bytes_max:
            raise BlockDamaged(f"the block with offset {blocks[-1].end} is missing")
        return blocks

    def _probe(self, place: _Place, offset: int, records_max: int, bytes_max: int) -> tuple[list[Record], int]:
        """As `_read`, block by block under one transaction; serves what is good before the first bad record, else raises LogDamaged."""
        good: list[Record] = []
        with self._reading():
            state = self._state(place)
            _check_offset(place, offset, state)
            at, size = offset, 0
            while at < state.end and len(good) < records_max and size < bytes_max:
                block: Block | None = None
                try:
                    block = self._block_at(place, at)
                    found = opened([block], place.seed)
                    at, size = block.end, size + len(block.records)
                except (BlockDamaged, *_BROKEN) as problem:
                    found = [] if block is None else salvaged(block, place.seed)
                    bad = max(at, found[-1].offset + 1 if found else 0)
                    good += [record for record in found if record.offset >= at]
                    damaged = self._mark_damaged(place, bad, problem)
                    if not good:
                        raise damaged from problem
                    break
                good += [record for record in found if record.offset >= offset]
        return _bounded(good[:max(records_max, 1)], bytes_max), at

    def _block_at(self, place: _Place, offset: int) -> Block:
        rows = self._rows(_BLOCK_AT, (place.base, place.base + offset))
        if not rows:
            raise BlockDamaged(f"the block with offset {offset} is missing")
        block = Block(rows[0][0] - place.base, *rows[0][1:])
        if offset >= block.end:
            raise BlockDamaged(f"the block with offset {offset} is missing")
        return block

    def start(self, topic: str, partition: int) -> int:
        """See the contract."""
        with self._guarded(f"{topic}/{partition}"):
            return self._state(self._place(topic, partition)).start

    def end(self, topic: str, partition: int) -> int:
        """See the contract."""
        with self._guarded(f"{topic}/{partition}"):
            return self._state(self._place(topic, partition)).end

    def ends(self, topic: str) -> dict[int, int]:
        """See the contract."""
        spec = self._spec(topic)
        with self._guarded(topic), self._reading():
            return {number: self._state(self._place(topic, number)).end for number in range(spec.partitions)}

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """See the contract. A binary search over blocks: about 20 of them are read among a million records."""
        place = self._place(topic, partition)
        with self._guarded(f"{topic}/{partition}"), self._reading():
            state = self._state(place)
            low, high = state.start, state.end
            while low < high:
                block = self._block_at(place, (low + high) // 2)
                records = [record for record in opened([block], place.seed) if record.offset >= state.start]
                if not records or records[-1].time_ms < time_ms:
                    low = block.end
                elif records[0].time_ms >= time_ms and block.first > low:
                    high = block.first
                else:
                    return next(record.offset for record in records if record.time_ms >= time_ms)
            if low == state.end:
                return low
            return opened([self._block_at(place, low)], place.seed)[0].offset

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        """See the contract. Wakes within a millisecond or so of another process's append, and costs nearly nothing until then."""
        until = time.monotonic() + timeout_seconds
        places = [(self._place(*partition), offset) for partition, offset in offsets.items()]
        with self._guarded("wait"):
            if self._ear is None:
                self._ear = Ear(self.path.with_name(self.path.name + "-wake"))
            woken = False
            while True:
                if any(self._end(place) > offset for place, offset in places):
                    return True
                left_seconds = until - time.monotonic()
                if left_seconds <= 0:
                    return False
                if woken:
                    time.sleep(min(SPURIOUS_SECONDS, left_seconds))
                self._ear.sleep(left_seconds)
                woken = True

    def _end(self, place: _Place) -> int:
        ((end,),) = self._rows("SELECT end FROM partitions WHERE id = ?", (place.id,))
        return int(end)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """See the contract."""
        self._spec(topic)
        with self._guarded(f"offsets of group {group!r}"):
            rows = self._rows("SELECT partition, next, mark FROM commits WHERE reader = ? AND topic = ?", (group, topic))
            for number, offset, mark in rows:
                if mark != _mark(group, topic, number, offset):
                    raise LogDamaged(f"the offset of group {group!r} in {topic}/{number} is damaged. Commit it again, or a lower one")
            return {number: offset for number, offset, _ in rows}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See the contract."""
        rows = [(group, self._place(topic, number).topic, number, offset) for number, offset in offsets.items()]
        with self._writing(f"offsets of group {group!r}"):
            self._db.executemany("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?)", [(*row, _mark(*row)) for row in rows])

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> RosterLease:
        """See the contract."""
        lease = RosterLease(_SqliteRoster(self, group, self._spec(topic)), member, int(timeout_seconds * 1000), self._clock)
        self._leases.append(lease)
        return lease

    def compact(self, topic: str, partition: int) -> int:
        """See the contract. Others append and read meanwhile: it rewrites a few thousand records at a time."""
        if not self._spec(topic).compacted:
            raise TopicMismatch(f"topic {topic!r} is not compacted: every record of it is kept")
        place = self._place(topic, partition)
        start, end = self.start(topic, partition), self.end(topic, partition)
        newest: dict[bytes, int] = {}
        at = start
        while at < end:
            records = self.read(topic, partition, at, records_max=COMPACT_STEP)
            newest |= {record.key: record.offset for record in records}
            at = records[-1].offset + 1
        dropped, at = 0, start
        while at < end:
            with self._writing("compact"):
                at, count = self._compact(place, at, end, newest)
                dropped += count
        return dropped

    def _compact(self, place: _Place, at: int, end: int, newest: Mapping[bytes, int]) -> tuple[int, int]:
        """Rewrite blocks from the one with `at` on; returns where to go on and how many records were dropped."""
        kept: list[Record] = []
        state = self._state(place)
        first: int | None = None
        at = max(at, state.start)
        seen = gone = blocks_seen = 0
        # An empty block is never written: the block before a record is in charge of the gap, so go on until one is kept.
        while at < state.end and (seen < COMPACT_STEP or not kept):
            block = self._block_at(place, at)
            records = opened([block], place.seed)
            stay = [record for record in records if record.offset >= end or newest.get(record.key, record.offset) <= record.offset]
            gone += sum(record.offset >= state.start for record in records) - sum(record.offset >= state.start for record in stay)
            first = block.first if first is None else first
            kept += stay
            seen += len(records)
            blocks_seen += 1
            at = block.end
        if first is not None and len(kept) < seen:
            self._db.execute("DELETE FROM blocks WHERE id BETWEEN ? AND ?", (place.base + first, place.base + at - 1))
            encoded = [encode_record(record) for record in kept]
            self._put(place, blocks_of([record.offset for record in kept], encoded, first, at, place.seed))
        return at, gone

    def truncate(self, topic: str, partition: int, before: int) -> int:
        """See the contract."""
        place = self._place(topic, partition)
        dropped, done = 0, False
        while not done:
            self._fold_wal_back()
            with self._writing("truncate"):
                state = self._state(place)
                if before > state.end:
                    raise OffsetOutOfRange(f"{topic}/{partition}: cannot drop records below {before}; the end is {state.end}")
                until = min(before, state.start + TRUNCATE_STEP)
                done = until >= before
                if until > state.start:
                    dropped += self._held_below(place, until) - self._held_below(place, state.start)
                    self._db.execute(
                        "DELETE FROM blocks WHERE id BETWEEN ?1 AND ?2 AND id + span <= ?2", (place.base, place.base + until)
                    )
                    self._keep_state(place, state._replace(start=until))
        known = self._damage.get(Partition(topic, partition))
        if known is not None and known.position is not None and known.position.offset < before:
            del self._damage[Partition(topic, partition)]
        return dropped

    def _held_below(self, place: _Place, offset: int) -> int:
        """How many records are in the file below `offset`."""
        ((whole,),) = self._rows(
            "SELECT ifnull(sum(count), 0) FROM blocks WHERE id BETWEEN ?1 AND ?2 AND id + span <= ?2", (place.base, place.base + offset)
        )
        rows = self._rows(_BLOCK_AT, (place.base, place.base + offset))
        last = Block(rows[0][0] - place.base, *rows[0][1:]) if rows else None
        if last is None or last.end <= offset:
            return int(whole)
        return int(whole) + sum(record.offset < offset for record in opened([last], place.seed))

    def verify(self, progress: Progress | None = None) -> int:
        """Read every record of every topic; returns how many. Raises LogDamaged for the first bad position.

        `progress` is called now and then with a partition, the offset reached there and its end.
        """
        count = 0
        for topic, partitions in self.topics().items():
            for number in range(partitions):
                at, end = self.start(topic, number), self.end(topic, number)
                while at < end:
                    records = self.read(topic, number, at, records_max=10_000)
                    count += len(records)
                    at = records[-1].offset + 1 if records else end
                    if progress is not None:
                        progress(Partition(topic, number), at, end)
        with self._guarded("structure"):
            ((answer,),) = self._rows("PRAGMA quick_check(1)")
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
        self._db.close(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Where topics and partitions are looked up.

    def _load_topics(self) -> None:
        for id_, name, partitions, compacted, mark in self._rows("SELECT id, name, partitions, compacted, mark FROM topics"):
            if name in self._specs:
                continue
            if mark != _mark(id_, name, partitions, compacted):
                raise LogDamaged(f"{self.path}: the row of topic {name!r} is damaged. Restore the log from a copy")
            self._specs[name] = TopicSpec(name, partitions, bool(compacted))
            for number in range(partitions):
                self._places[name, number] = _Place(name, number, id_ + number, seed_of(name, number), bool(compacted))

    def _spec(self, topic: str) -> TopicSpec:
        spec = self._specs.get(topic)
        if spec is None:
            known = self.topics()
            spec = self._specs.get(topic)
            if spec is None:
                raise TopicMismatch(unknown_topic(topic, known))
        return spec

    def _place(self, topic: str, number: int) -> _Place:
        place = self._places.get((topic, number))
        if place is None:
            spec = self._spec(topic)
            place = self._places.get((topic, number))
            if place is None:
                raise TopicMismatch(no_partition(topic, number, spec.partitions))
        return place

    def _route(self, messages: Sequence[Message]) -> list[int]:
        for topic in {message.topic for message in messages}:
            self._spec(topic)
        return route(messages, {name: spec.partitions for name, spec in self._specs.items()})

    def _state(self, place: _Place) -> _State:
        rows = self._rows("SELECT start, end, time_ms, mark FROM partitions WHERE id = ?", (place.id,))
        if not rows or rows[0][3] != _mark(place.id, *rows[0][:3]):
            raise self._mark_damaged(place, 0, BlockDamaged("the partition's own row is damaged"))
        return _State(*rows[0][:3])

    def _keep_state(self, place: _Place, state: _State) -> None:
        self._db.execute(
            "UPDATE partitions SET start = ?, end = ?, time_ms = ?, mark = ? WHERE id = ?", (*state, _mark(place.id, *state), place.id)
        )

    def _put(self, place: _Place, blocks: Iterator[Block]) -> None:
        self._db.executemany(_BLOCK_PUT, [(place.base + block.first, *block[1:]) for block in blocks])

    def _rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._db.execute(sql, bindings).fetchall()

    # Damage.

    def _refuse_if_damaged(self, place: _Place, state: _State) -> None:
        known = self._damage.get(Partition(place.topic, place.number))
        if known is not None:
            raise known
        if place.id in self._tails_checked or state.start == state.end:
            return
        try:
            block = self._block_at(place, state.end - 1)
            if block.end != state.end:
                raise BlockDamaged(f"the last block ends at {block.end}, not at {state.end}")
            opened([block], place.seed)
        except (BlockDamaged, *_BROKEN) as problem:
            raise self._mark_damaged(place, state.end - 1, problem) from problem
        self._tails_checked.add(place.id)

    def _mark_damaged(self, place: _Place, offset: int, problem: Exception) -> LogDamaged:
        position = Position(place.topic, place.number, offset)
        damaged = LogDamaged(
            f"{self.path}: {position}: {problem}. Nothing is served from there on and nothing appended; "
            f"restore the file from a copy, or start a new log from a snapshot below {offset}",
            position,
        )
        known = self._damage.setdefault(Partition(place.topic, place.number), damaged)
        if known.position is not None and known.position.offset > offset:
            self._damage[Partition(place.topic, place.number)] = damaged
        return damaged

    # Transactions.

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        with self._guarded(what):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        nested = self._db.in_transaction
        if nested:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Turn SQLite's errors into the log's."""
        try:
            yield
        except _TROUBLE as problem:
            if self._closed:
                raise LogUnreachable(f"{self.path}: this log was closed; open it again") from problem
            raise _trouble(problem, self._db, f"{self.path}: {what}") from problem
        except BlockDamaged as problem:
            raise LogDamaged(f"{self.path}: {what}: {problem}. Restore the file from a copy") from problem

    def _after_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _fold_wal_back(self) -> None:
        """Bound the WAL, before an append rather than after one: what goes wrong here must not look like a failed append."""
        if self._wal_pages < self._fold_at_pages:
            return
        full = self._wal_pages >= WAL_PAGES_MAX
        try:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART if full else apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.BusyError, apsw.FullError, apsw.IOError):
            # Somebody else is at it, or there is no room: then the append itself says so, or finds room in the WAL.
            self._fold_at_pages = self._wal_pages + WAL_PAGES_FOLDED
        else:
            self._fold_at_pages = WAL_PAGES_FOLDED if full else self._wal_pages + WAL_PAGES_FOLDED
            self._wal_pages = 0 if full else self._wal_pages


class _SqliteRoster:
    """See `streams.log.leases.Roster`."""

    def __init__(self, log: SqliteLog, group: str, topic: TopicSpec) -> None:
        self._log, self._share, self._partitions = log, (group, topic.name), topic.partitions

    def turn(self, member: str, timeout_ms: int, now_ms: int) -> Group:
        with self._log._guarded("lease"), self._log._reading():
            group = self._group()
        if turn(group, self._partitions, member, timeout_ms, now_ms) == group:
            return group
        with self._log._writing("lease"):
            group = turn(self._group(), self._partitions, member, timeout_ms, now_ms)
            self._store(group)
        return group

    def leave(self, member: str) -> None:
        with self._log._writing("lease"):
            self._store(without(self._group(), member))

    def _group(self) -> Group:
        members = self._log._rows("SELECT member, at_ms, timeout_ms FROM members WHERE team = ? AND topic = ?", self._share)
        holds = self._log._rows("SELECT partition, member FROM holds WHERE team = ? AND topic = ?", self._share)
        return Group({row[0]: Heartbeat(*row) for row in members}, dict(holds))

    def _store(self, group: Group) -> None:
        db = self._log._db
        db.execute("DELETE FROM members WHERE team = ? AND topic = ?", self._share)
        db.execute("DELETE FROM holds WHERE team = ? AND topic = ?", self._share)
        db.executemany("INSERT INTO members VALUES (?, ?, ?, ?, ?)", [(*self._share, *beat) for beat in group.heartbeats.values()])
        db.executemany("INSERT INTO holds VALUES (?, ?, ?, ?)", [(*self._share, *hold) for hold in group.held.items()])


# What SQLite, or what it gives back, may raise when the file's bytes are not what was written.
_BROKEN = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.MismatchError, apsw.TooBigError, apsw.NoMemError, UnicodeDecodeError)
_TROUBLE = (apsw.Error, UnicodeDecodeError, OSError, MemoryError)
_UNREACHABLE = (apsw.BusyError, apsw.LockedError, apsw.CantOpenError, apsw.PermissionsError, apsw.ReadOnlyError, apsw.AuthError, OSError)


def _trouble(problem: BaseException, db: apsw.Connection | None, place: str) -> LogError:
    """The log's error for SQLite's, in words that say what to do."""
    number = problem.errno if isinstance(problem, OSError) else db.system_errno if isinstance(problem, apsw.IOError) and db else 0
    if isinstance(problem, apsw.FullError) or number in {errno.ENOSPC, errno.EDQUOT}:
        return LogFull(f"{place}: no room left on the disk ({problem}). Nothing acknowledged is lost; make room and go on")
    if isinstance(problem, apsw.BusyError):
        return LogUnreachable(f"{place}: another process held the write lock for {BUSY_SECONDS:.0f} s ({problem}). Is one stopped?")
    if isinstance(problem, (*_UNREACHABLE, apsw.IOError)):
        return LogUnreachable(f"{place}: {problem}. Check that the file and its folder can be read and written by this user")
    if isinstance(problem, (apsw.MisuseError, apsw.ThreadingViolationError, apsw.ConnectionClosedError, apsw.BindingsError)):
        return LogUnreachable(f"{place}: {problem}. The log is closed or used by two threads at once; open one for each")
    return LogDamaged(f"{place}: {problem}. The file is not what was written; restore it from a copy")


def _find(path: Path, *, create: bool) -> None:
    """Raises LogUnreachable in plain words for what SQLite would only call 'unable to open database file'."""
    if path.is_dir():
        raise LogUnreachable(f"{path} is a folder; a log is a file, such as {path}/claimlog.db")
    if not path.parent.is_dir():
        raise LogUnreachable(f"{path}: there is no folder {path.parent}; make it first")
    if not path.exists():
        if not create:
            raise LogUnreachable(f"{path}: there is no log; check the path, or make one with `claimlog run` or `claimlog topics apply`")
        if not os.access(path.parent, os.W_OK):
            raise LogUnreachable(f"{path}: the folder {path.parent} cannot be written by this user")
    elif not os.access(path, os.R_OK | os.W_OK):
        raise LogUnreachable(f"{path} cannot be read and written by this user; open a copy of it (with its -wal file) instead")


def _prepare(db: apsw.Connection, *, create: bool) -> str:
    """Set a fresh connection up, make the tables of a new log, and return the ledger id."""
    waited_since = time.monotonic()

    def wait_for_others(attempts: int) -> bool:
        nonlocal waited_since
        waited_since = time.monotonic() if attempts == 0 else waited_since
        # A commit takes a quarter of a millisecond: SQLite's own waits of up to 100 ms would let one writer starve another.
        time.sleep(min(0.0002 * (attempts + 1), 0.005))
        return time.monotonic() - waited_since < BUSY_SECONDS

    db.set_busy_handler(wait_for_others)
    ((found,),) = db.execute("PRAGMA application_id")
    ((tables,),) = db.execute("SELECT count(*) FROM sqlite_schema")
    if found != APPLICATION_ID and (tables or not create):
        raise LogDamaged("this is not a claimlog log (or its first bytes are damaged); check the path")
    _use_wal(db, time.monotonic() + BUSY_SECONDS)
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"PRAGMA journal_size_limit={WAL_PAGES_MAX * 4096}")
    if found != APPLICATION_ID:
        _make(db)
    ((version,),) = db.execute("PRAGMA user_version")
    if version != FORMAT_VERSION:
        raise LogDamaged(f"format version {version} where this claimlog knows {FORMAT_VERSION} only; use the claimlog that wrote it")
    rows = db.execute("SELECT value, mark FROM ledger WHERE name = 'ledger_id'").fetchall()
    if not rows or rows[0][1] != _mark("ledger_id", str(rows[0][0])):
        raise LogDamaged("the row with the ledger's id is damaged; restore the file from a copy")
    return str(rows[0][0])


def _use_wal(db: apsw.Connection, until: float) -> None:
    while True:
        try:
            ((mode,),) = db.execute("PRAGMA journal_mode=WAL")
        except apsw.BusyError:  # raised at once, without asking the busy handler, while another process makes the file
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise LogUnreachable(f"SQLite's journal is {mode!r} instead of 'wal'; the log needs a local file system with shared memory")
        return


def _make(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        ((tables,),) = db.execute("SELECT count(*) FROM sqlite_schema")
        if not tables:  # else another process made it just now
            db.execute(_SCHEMA)
            ledger_id = secrets.token_hex(8)
            db.execute("INSERT INTO ledger VALUES ('ledger_id', ?, ?)", (ledger_id, _mark("ledger_id", ledger_id)))
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _mark(*fields: str | int) -> int:
    """The checksum of a row."""
    return crc32(repr(fields).encode())


def _check_offset(place: _Place, offset: int, state: _State) -> None:
    if not state.start <= offset <= state.end:
        raise OffsetOutOfRange(f"{place.topic}/{place.number}@{offset}: at hand are offsets {state.start} to {state.end}")


def _bounded(records: list[Record], bytes_max: int) -> list[Record]:
    size = 0
    for at, record in enumerate(records):
        size += len(record.key) + len(record.value)
        if size > bytes_max and at:
            return records[:at]
    return records
