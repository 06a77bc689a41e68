"""The stream processor's engines without state: the carrier of observations and the watcher for dead letters.

An engine is handed a log and does one `turn` at a time: read a batch, append what follows from it, and now and then commit where it
stands. A crash repeats what came after the last commit, which changes nothing (rule 4; a dead letter carries its position).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from schemas.codec import Unreadable, decode_keyed
from schemas.partitioner import partition_of
from schemas.topics import DEAD_LETTERS, SNAPSHOTS
from streams.carried import first_to_carry
from streams.dead_letters import dead_letter, kind_of
from streams.ledger_topics import expected
from streams.log.base import Log, LogDamaged, Message, Partition, Record, is_stand_in, partition_count, read_at_hand
from streams.log.holes import CAUSE, Holes
from streams.looked_through import Letters
from streams.reconciler import CARRIERS, SOURCES, reconcile
from streams.topology import WATCHED_TOPICS

CountDead = Callable[[str, str], None]
"""Hears topic and kind of each message that counts for nothing."""
BATCH_RECORDS = 2000
"""One transaction a batch: large enough that syncing costs little a record, small enough that other writers wait for milliseconds."""

WATCHERS = "watcher"
"""The group whose committed offsets say how far the topics that nobody carries are looked through."""

COMMIT_EVERY_SECONDS = 1.0
"""On Kafka a commit takes longer than a batch, and all it saves is that whoever comes next reads a batch again."""
NEXT_REPORTS = "what hosts report next says what is there, and `claimlog leaks` what they left behind"
"""What becomes of observations that are lost."""
RENEWED_SECONDS = 86_400.0
"""A broker forgets the offset of a group without members a week after it was stored (`offsets.retention.minutes`), moved or not."""


def from_the_first(_partition: int) -> int:
    """Nothing is stored, so nothing was read."""
    return 0


def not_counted(_topic: str, _kind: str) -> None:
    """Nobody wants to know how many."""


def not_told(_sentence: str) -> None:
    """Nobody listens."""


class Reader:
    """Where a group stands in one topic, per partition; commits after the batch is dealt with.

    `clock` gives seconds and only runs; `tell` hears of a log that was rewound under the group, and with `needs_all` of records that left
    before they were read and of holes; `unstored` says where to begin in a partition of which nothing is stored.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        topic: str,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = not_told,
        unstored: Callable[[int], int] = from_the_first,
        *,
        passed_over: Callable[[str], None] | None = None,
        needs_all: bool = False,
    ) -> None:
        self._log, self._group, self.topic, self._passed_over = log, group, topic, passed_over or tell
        self._clock, self._tell, self._unstored, self._needs_all = clock, tell, unstored, needs_all
        self._all_stored: float | None = None
        self._commit_due: float | None = None
        self._next: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._holes: dict[int, Holes] = {}

    def read(self, partition: int) -> list[Record]:
        """The next batch of a partition; the same again until `advance`."""
        if partition not in self._next:
            self._next[partition] = self._begin(partition)
        wanted = self._next[partition]
        start, records = read_at_hand(self._log, Partition(self.topic, partition), wanted, BATCH_RECORDS)
        if start != wanted:
            # Somebody dropped what stood here: old snapshots are no loss, and an archive takes only what was read.
            self._lost(partition, wanted, start)
            self._next[partition] = start
        return records

    def _begin(self, partition: int) -> int:
        """The stored offset, unless the log has none such: then what is there now was never read, and reading some twice does no harm."""
        known = self._log.committed(self._group, self.topic).get(partition)
        stored = self._unstored(partition) if known is None else known
        start, end = self._log.start(self.topic, partition), self._log.end(self.topic, partition)
        self._committed[partition] = known or 0
        if stored > end:
            place = f"{self.topic}/{partition}"
            what = f"{rewound(self._group, stored, end)}; the stored offset is discarded, it is read again from {start}"
            self._passed_over(f"{place}: {what}")
            return start
        if stored < start:
            self._committed[partition] = start
            if known is not None:
                self._lost(partition, known, start)
        return max(stored, start)

    def _lost(self, partition: int, first: int, start: int) -> None:
        if self._needs_all:
            place = f"{self.topic}/{partition}"
            self._tell(f"{place}: the records from {first} to {start - 1} have left the log before {self._group} read them; {NEXT_REPORTS}")

    def advance(self, records: list[Record]) -> None:
        """Go on behind these records of one partition."""
        partition = records[-1].partition
        if self._needs_all:
            for hole in self._holes.setdefault(partition, Holes()).ended(records):
                self._tell(f"{hole}: {CAUSE}; {NEXT_REPORTS}")
        self._next[partition] = records[-1].offset + 1

    def commit(self, *, at_once: bool = False) -> None:
        """Store where this group stands, if it moved; but for `at_once` not sooner than a second after the last time.

        Once a day everything is stored again, so that brokers do not forget it.
        """
        now = self._clock()
        if self._commit_due is not None and now < self._commit_due and not at_once:
            return
        renews = self._all_stored is not None and now - self._all_stored > RENEWED_SECONDS
        moved = {partition: offset for partition, offset in self._next.items() if renews or self._committed[partition] != offset}
        if moved:
            self._log.commit(self._group, self.topic, moved)
            self._committed.update(moved)
            self._commit_due = now + COMMIT_EVERY_SECONDS
        if renews or self._all_stored is None:
            self._all_stored = now

    def forget(self, partitions: frozenset[int]) -> None:
        """Read these anew from what is committed: somebody else had them."""
        for partition in partitions:
            self._next.pop(partition, None)
            self._holes.pop(partition, None)

    def waits_for(self, partition: int) -> int:
        """The offset at which something new would stand."""
        return self._next.get(partition, 0)


class Carrier:
    """Hosts the reconciler: every observation of the owned partitions into `claims`, in order, each at least once."""

    name = "carrier"

    def __init__(
        self,
        log: Log,
        group: str = CARRIERS,
        *,
        count_dead: CountDead = not_counted,
        tell: Callable[[str], None] = not_told,
        passed_over: Callable[[str], None] | None = None,
    ) -> None:
        """`passed_over` hears of offsets that are not used, as a topic was rewound under the group; without it `tell` does."""
        self._log, self._count_dead = log, count_dead
        self.readers = [
            Reader(log, group, topic, tell=tell, unstored=partial(self._unstored, topic), passed_over=passed_over, needs_all=True)
            for topic in SOURCES
        ]
        self._letters = Letters(log)
        self._has_letters: dict[Partition, int | None] = {}
        """Partitions of which no offset was stored: below which one what cannot be read has its letter, once that was asked."""
        self._owned: frozenset[int] = frozenset()
        self._is_sound = True
        self.dead = 0

    def turn(self, partitions: frozenset[int]) -> int:
        """One batch of each source and partition; returns how many records were read."""
        count = 0
        self._is_sound = False
        lost, self._owned = self._owned - partitions, partitions
        for reader in self.readers:
            reader.forget(lost)
            total = partition_count(self._log, reader.topic)
            messages: list[Message] = []
            batches: list[list[Record]] = []
            for partition in sorted(partitions):
                records = reader.read(partition)
                if records:
                    messages.extend(filter(None, (self._carried(record, total) for record in records if not is_stand_in(record))))
                    batches.append(records)
                    count += len(records)
            if messages:
                self._log.append(messages)
            # Only now: what could not be appended is read and appended again, the same bytes.
            self.dead += _counted([each for each in messages if each.topic == DEAD_LETTERS], reader.topic, self._count_dead)
            for records in batches:
                reader.advance(records)
            reader.commit()
        self._is_sound = True
        return count

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`."""
        return {Partition(reader.topic, number): reader.waits_for(number) for reader in self.readers for number in partitions}

    def close(self) -> None:
        """Commit how far it got; not after a turn that failed, since the log may still be away and a commit only saves some reading."""
        for reader in self.readers if self._is_sound else ():
            reader.commit(at_once=True)

    def _unstored(self, topic: str, partition: int) -> int:
        """Where to begin if nobody knows how far it was carried: behind the newest record that was."""
        self._letters.forget()
        self._has_letters[Partition(topic, partition)] = None
        return first_to_carry(self._log, topic, partition)

    def _has_letter(self, record: Record) -> bool:
        """Whether a record that cannot be read has its letter: they stand in the order of what they are of, so all up to the newest do."""
        place = Partition(record.topic, record.partition)
        if place not in self._has_letters:
            return False
        below = self._has_letters[place]
        if below is None:
            below = self._has_letters[place] = self._letters.first_behind(place)
        return record.offset < below

    def _carried(self, record: Record, partitions: int) -> Message | None:
        """What the record becomes; nothing where it has its letter."""
        result = reconcile(record, partitions)
        if isinstance(result, Unreadable):
            return None if self._has_letter(record) else dead_letter(record, result)
        return result


class Watcher:
    """Looks over the topics that no fold judges, and puts what cannot be read there into the dead letters.

    All topics are one process's work: that of the owner of the ledger's partition 0.
    """

    name = "watcher"

    def __init__(
        self,
        log: Log,
        group: str = WATCHERS,
        *,
        count_dead: CountDead = not_counted,
        tell: Callable[[str], None] = not_told,
        passed_over: Callable[[str], None] | None = None,
    ) -> None:
        """`passed_over` as for the carrier."""
        self._log, self._count_dead = log, count_dead
        watched = expected(log.topics(), WATCHED_TOPICS)
        self.readers = [
            Reader(log, group, topic, tell=tell, unstored=partial(self._unstored, topic), passed_over=passed_over) for topic in watched
        ]
        self._tell = tell
        self._letters = Letters(log)
        self._is_sound = True
        self._damaged: set[Partition] = set()
        """Partitions of `ledger-snapshots` that cannot be read on; whoever writes the next snapshot there drops what is damaged."""
        self.dead = 0

    def turn(self, partitions: frozenset[int]) -> int:
        """One batch of each topic and partition, for the owner of partition 0; returns how many records were read."""
        if 0 not in partitions:
            self._forget()
            return 0
        count = 0
        self._is_sound = False
        for reader in self.readers:
            letters: list[Message] = []
            batches: list[list[Record]] = []
            total = partition_count(self._log, reader.topic)  # Asked for each record it is a question to the file while others write.
            for partition in range(total):
                records = self._read(reader, partition)
                if records:
                    letters.extend(dead_letter(record, fault) for record in records if (fault := _fault(record, total)) is not None)
                    batches.append(records)
                    count += len(records)
            if letters:
                self._log.append(letters)
            # As in the carrier.
            self.dead += _counted(letters, reader.topic, self._count_dead)
            for records in batches:
                reader.advance(records)
            reader.commit()
        self._is_sound = True
        return count

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`."""
        if 0 not in partitions:
            return {}
        places = [(r, Partition(r.topic, number)) for r in self.readers for number in range(partition_count(self._log, r.topic))]
        waits = {place: reader.waits_for(place.number) for reader, place in places}
        return {place: offset for place, offset in waits.items() if place not in self._damaged}

    def close(self) -> None:
        """Commit how far it got; not after a turn that failed, since the log may still be away and a commit only saves some reading."""
        for reader in self.readers if self._is_sound else ():
            reader.commit(at_once=True)

    def _unstored(self, topic: str, partition: int) -> int:
        return self._letters.first_behind(Partition(topic, partition))

    def _forget(self) -> None:
        self._letters.forget()
        for reader in self.readers:
            reader.forget(frozenset(range(partition_count(self._log, reader.topic))))

    def _read(self, reader: Reader, partition: int) -> list[Record]:
        """The next batch; none of snapshots that are damaged, which nobody needs."""
        place = Partition(reader.topic, partition)
        try:
            records = reader.read(partition)
        except LogDamaged as problem:
            if reader.topic != SNAPSHOTS:
                raise
            if place not in self._damaged:
                self._damaged.add(place)
                bad = problem.position or place
                self._tell(f"{bad}: the bytes are not what was written; {place} is not looked through until a new one is written there")
            return []
        self._damaged.discard(place)
        return records


def _counted(letters: Sequence[Message], topic: str, count: CountDead) -> int:
    """Count the letters of records of a topic, once they are appended; returns how many they are."""
    for letter in letters:
        count(topic, kind_of(letter))
    return len(letters)


def _fault(record: Record, partitions: int) -> Unreadable | None:
    """What is wrong with a record, if anything. Where a partition of so many follows from the key, a wrong one is a fault too."""
    if is_stand_in(record):
        return None
    event = decode_keyed(record.topic, record.key, record.value)
    if isinstance(event, Unreadable):
        return event
    if record.topic in KEYED_TOPICS and (belongs := partition_of(record.key, partitions)) != record.partition:
        return Unreadable("wrong-partition", f"key {record.key[:80]!r} belongs to partition {belongs}, got {record.partition}")
    return None


def rewound(group: str, stored: int, end: int) -> str:
    """What a group that stands beyond the end of a partition means."""
    return f"{group} has read up to {stored}, but the log ends at {end}: it was made anew or has lost records"


KEYED_TOPICS = frozenset(WATCHED_TOPICS[:2])
"""Requests and results lie where their request's key belongs; derived topics lie in the partition of the ledger that they come from."""
