"""The log as a fold reads it, record by record in order, and what ends a fold."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar


class Recorded(Protocol):
    """A record of the log as a fold sees it: where it stands, when it was appended, and its bytes."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def time_ms(self) -> int:
        """Its append time."""
        ...

    @property
    def key(self) -> bytes:
        """Its key."""
        ...

    @property
    def value(self) -> bytes:
        """Its bytes."""
        ...


class RecordsDamaged(Exception):  # noqa: N818 - as in `streams.log.base`: an error is named by what is wrong
    """Bytes in the log are not what was written; the message names the first bad position. Raised by what reads a log."""


class Readable(Protocol):
    """A log as a fold reads it: the reading half of `streams.log.base.Log`, which every log keeps."""

    @property
    def ledger_id(self) -> str:
        """Which ledger this log carries; empty if it does not say it."""
        ...

    def topics(self) -> Mapping[str, int]:
        """Number of partitions of each topic."""
        ...

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> Sequence[Recorded]:
        """Records from `offset` on, at least one if there is one. Raises RecordsDamaged."""
        ...

    def start(self, topic: str, partition: int) -> int:
        """The first offset at hand."""
        ...

    def end(self, topic: str, partition: int) -> int:
        """The offset that the next record will have."""
        ...

    def ends(self, topic: str) -> Mapping[int, int]:
        """`end` of every partition, read at one moment."""
        ...

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """The offset of the first record with an append time at or after `time_ms`; `end` if there is none."""
        ...


def where_archived(log: object) -> str:
    """What to do about records that have left `log`, and are not in the archive that is read with it, if one is."""
    directory = getattr(log, "history", None)
    if directory is None:
        return "set CLAIMLOG_ARCHIVE to the folder that `claimlog archive` wrote the others to"
    return f"the archive in {directory} lacks the others: restore its files, or name the folder that `claimlog archive` wrote them to"


Record_co = TypeVar("Record_co", bound=Recorded, covariant=True)


class Reads(Protocol[Record_co]):
    """Of a log no more than that it is read."""

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> Sequence[Record_co]:
        """See `Readable`."""
        ...


def between(log: Reads[Record_co], topic: str, partition: int, start: int, end: int, batch: int) -> Iterator[Record_co]:
    """The records of a partition from `start` up to `end`, exclusive, read so many at a time; fewer where the log has no more there."""
    while start < end:
        records = log.read(topic, partition, start, min(batch, end - start))
        if not records:
            return
        for record in records:
            if record.offset >= end:
                return
            yield record
        start = records[-1].offset + 1


def bare_reading(log: Readable) -> Callable[[str, int, int, int], Sequence[Recorded]]:
    """How to read `log` for values and keys: topic, partition, offset, number of records. Headers come if the log cannot leave them out."""
    bare: Callable[[str, int, int, int], Sequence[Recorded]] | None = getattr(log, "read_bare", None)
    return log.read if bare is None else bare


def for_a_fold(log: Readable) -> Callable[[str, int, int, int], Iterable[Recorded]]:
    """As `bare_reading`, for a fold over a long log, which looks at each record once."""
    lazily: Callable[[str, int, int, int], Iterable[Recorded]] | None = getattr(log, "read_lazily", None)
    return log.read if lazily is None else lazily


def at_hand(start: int, end: int) -> str:
    """Which records of a partition there are, in words: from `start` to the one before `end`."""
    return f"at hand are offsets {start} to {end - 1}" if start < end else "none is at hand"


class ProjectionError(Exception):
    """The fold cannot go on: the message says where and what to do. A process that meets one exits non-zero."""


class OffsetGap(ProjectionError):
    """A record came before those in front of it: fetch them first. Compacted or expired history cannot be folded."""


class UnknownRules(ProjectionError):
    """The log has moved to rules that this version of claimlog does not know."""


class WrongLedger(ProjectionError):
    """The log is not the one that the state came from, or the partition is not the one asked for."""


class WrongDigest(ProjectionError):
    """This process had another state than the records give: its memory, its disk or its code is wrong (rule 12)."""


class WrongCut(ProjectionError):
    """A cut was taken on another log: what was asked for does not exist here (command line: exit 2)."""


class HistoryMissing(ProjectionError):
    """Records that the answer needs are no longer at hand: the message says which, and where they may be (command line: exit 6)."""
