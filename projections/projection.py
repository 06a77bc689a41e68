"""The contract of a projection: something that folds one partition of the log, record by record, in order."""

from typing import Protocol


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


class ProjectionError(Exception):
    """The fold cannot go on: the message says where and what to do. A process that meets one exits non-zero."""


class OffsetGap(ProjectionError):
    """A record came before those in front of it: fetch them first. Compacted or expired history cannot be folded."""


class UnknownRules(ProjectionError):
    """The log has moved to rules that this version of claimlog does not know."""


class WrongLedger(ProjectionError):
    """The log is not the one that the state came from, or the partition is not the one asked for."""
