"""The log's contract: ordered partitions of records, appended in atomic batches and read by offset.

Everything else in claimlog is a fold over what this contract hands out, so it says only what Kafka and SQLite can both keep:

- `append` returns after the records are durable, or raises; a batch is atomic on SQLite and in order per partition everywhere.
- Offsets of a partition start at 0 and grow by one a record (compacted topics may have gaps below the newest record of a key).
- A record's time is its append time, never below the time of the record before it in its partition.
- A record whose append was not acknowledged may still be in the log. Append it again byte for byte: every fold ignores the copy.
"""

# ruff: noqa: N818 - an error is named by what is wrong ("the log is full"), as its message is

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from msgspec import Struct

from projections.reading import RecordsDamaged

Headers = tuple[tuple[str, bytes], ...]


class Partition(NamedTuple):
    """One ordered sequence of records."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Position(NamedTuple):
    """Where one record stands: `claims/0@1204`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class Message(Struct, frozen=True, gc=False):
    """What is to be appended. `partition` None means: where the key belongs."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers = ()
    partition: int | None = None


class BareRecord(Struct, frozen=True, gc=False, array_like=True):
    """What stands in the log, as a fold needs it: to decode the headers takes as long as all the rest three times over.

    `time_ms` is its append time in milliseconds since 1970, UTC.
    """

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: bytes
    value: bytes


class Record(BareRecord, frozen=True, gc=False, array_like=True):
    """What stands in the log."""

    headers: Headers = ()

    @property
    def position(self) -> Position:
        """Where this record stands."""
        return Position(self.topic, self.partition, self.offset)


NO_RECORD: Final[Headers] = (("claimlog-no-record", b""),)
"""The headers of a stand-in for an offset that has no record on Kafka (`streams.log.kafka_gaps`); copies of a log keep it."""


def is_stand_in(record: Record) -> bool:
    """Whether it is no record but stands where none is: nobody's mistake, so no dead letter."""
    return record.headers == NO_RECORD and not record.value


HIDES = "Brokers hide topics from users who may not read or describe them"
"""What else a missing topic may mean."""


class TopicSpec(Struct, frozen=True, gc=False):
    """A topic to make: its number of partitions never changes afterwards."""

    name: str
    partitions: int
    compacted: bool = False

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ValueError(f"topic {self.name!r} needs at least one partition, not {self.partitions}")


class LogError(Exception):
    """Something outside is wrong: the message names the place, what was expected and what to do."""


class LogUnreachable(LogError):
    """The log cannot be opened or reached, now (command line: exit 5)."""


class LogOutdated(LogError):
    """The log lets nobody in who says who he is as this process does, and what that was read from has changed since (exit 5)."""


class LogDamaged(LogError, RecordsDamaged):
    """Bytes in the log are not what was written. The message names the first bad position; nothing is served from there on."""

    def __init__(self, message: str, position: Position | None = None) -> None:
        super().__init__(message)
        self.position = position


class LogCutShort(LogDamaged):
    """A copy lacks records that it says it has (command line: exit 6)."""


class LogFull(LogError):
    """There is no room left. Nothing acknowledged is lost; appends go through again when there is room."""


class OffsetOutOfRange(LogError):
    """The offset asked for is below what is at hand (archived, deleted) or above the end (command line: exit 6)."""


class LogReadOnly(LogError):
    """This log can be read but not written: a file of JSON lines, or a log opened for reading."""


class TopicMismatch(LogError):
    """A topic is missing or has another number of partitions than asked for."""


class NameTaken(LogError):
    """Another process shares a topic under this member's name, and began later: the one that meets this ends."""


class Lease(Protocol):
    """A member's share of a topic's partitions within a group; several members divide them among themselves.

    A lease decides who works on what, never what is true: a member that lost its partitions and goes on (a zombie) does no harm.
    """

    def partitions(self) -> frozenset[int]:
        """Renew this member's hold if due and return the partitions it owns now; cheap enough to call in every turn of a loop.

        Raises NameTaken where members are known by their names alone; Kafka tells two of one name apart, and they share.
        """
        ...

    def waits_for(self) -> str:
        """What keeps this member from having any share yet, in words; nothing once it is known what its share is."""
        ...

    def is_rest_at_work(self, seconds: float) -> bool:
        """Whether all that is not this member's is with others that were heard from within the last so many seconds.

        A member that was killed has its partitions until the time-out: until then they are nobody's work.
        """
        ...

    def release(self) -> None:
        """Give everything up at once, so that others need not wait for the time-out."""
        ...


class Log(Protocol):
    """See the module's docstring. One instance belongs to one thread; open another for another thread or process."""

    @property
    def ledger_id(self) -> str:
        """Which ledger this log carries: made with the log, and never the same twice. Empty for lines of JSON that do not say it."""
        ...

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Make the topics that are missing. Raises TopicMismatch if one exists with another number of partitions."""
        ...

    def topics(self) -> Mapping[str, int]:
        """Number of partitions of each topic."""
        ...

    def partition(self, topic: str, key: bytes) -> int:
        """The partition a key belongs to: murmur2 as in Kafka's own clients, on every host."""
        ...

    def append(self, messages: Sequence[Message]) -> list[int]:
        """Append all, in order, and return their offsets once durable.

        Raises LogFull, LogUnreachable, LogDamaged, LogReadOnly, and TopicMismatch for an unknown topic or partition.
        """
        ...

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """Records from `offset` on, at least one if there is one, none at the end. Raises OffsetOutOfRange, LogDamaged."""
        ...

    def start(self, topic: str, partition: int) -> int:
        """The first offset at hand (0 unless history was archived or deleted)."""
        ...

    def end(self, topic: str, partition: int) -> int:
        """The offset that the next record will have."""
        ...

    def ends(self, topic: str) -> dict[int, int]:
        """`end` of every partition, read at one moment."""
        ...

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """The offset of the first record with an append time at or after `time_ms`; `end` if there is none."""
        ...

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        """Sleep until some partition has a record at or above its offset given here (True), or the time is up (False)."""
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The next offset to read that `group` stored, per partition; partitions without one are absent."""
        ...

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store the next offsets to read, durably."""
        ...

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> Lease:
        """Join the members that share `topic`; a member not heard from for `timeout_seconds` loses its partitions to the others."""
        ...

    def compact(self, topic: str, partition: int) -> int:
        """Drop every record of a compacted topic that a newer one of the same key replaces; returns how many (Kafka does it by itself: 0).

        Raises TopicMismatch if the topic is not compacted.
        """
        ...

    def truncate(self, topic: str, partition: int, before: int) -> int:
        """Drop the records below the offset `before` and return how many; `start` is `before` afterwards.

        Raises OffsetOutOfRange if `before` is above the end.
        """
        ...

    def close(self) -> None:
        """Release files, sockets and leases. Closing twice does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None: ...


def may_write(log: Log, topic: str) -> bool:
    """Whether this user may write a topic; only a log that many share knows of any who may not."""
    asked: Callable[[str], bool] | None = getattr(log, "may_write", None)
    return asked is None or asked(topic)


def file_of(log: Log) -> Path | None:
    """The file of an embedded log; None for one that is elsewhere, or in memory."""
    path: Path | None = getattr(log, "path", None)
    return path


def present_of(log: Log) -> Log:
    """The log as it is now, without history that stands elsewhere: for what one kind of log alone can do."""
    present: Log = getattr(log, "present", log)
    return present


def full_name_of(log: Log) -> Callable[[str], str] | None:
    """What tells how Kafka's own tools call a topic; None for a log that is not on Kafka."""
    settings = getattr(log, "settings", None)
    full_name: Callable[[str], str] | None = None if settings is None else settings.topic
    return full_name


def topic_id_of(log: Log, topic: str) -> str:
    """What no other topic has, not even one of that name that is made later; empty where the log, or its brokers, know of none."""
    ask = getattr(log, "topic_id", None)
    return "" if ask is None else str(ask(topic))


def partition_count(log: Log, topic: str) -> int:
    """The number of partitions of a topic. Raises TopicMismatch for one that is not there, or not any more."""
    count = log.topics().get(topic)
    if count is None:
        raise TopicMismatch(f"topic {topic} is missing: it was never made, or was deleted; `claimlog topics check` says what is there")
    return count


def read_at_hand(log: Log, place: Partition, offset: int, records_max: int) -> tuple[int, list[Record]]:
    """Records of a partition from `offset` on, or where those there have left the log from the first at hand; and from where they are.

    Raises OffsetOutOfRange for an offset behind the end.
    """
    try:
        return offset, log.read(*place, offset, records_max)
    except OffsetOutOfRange:
        start = log.start(*place)
        if start <= offset:
            raise
        return start, log.read(*place, start, records_max)
