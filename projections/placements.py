"""Requests and what became of them: the fold of one partition of `placement-requests` and `placement-results`.

Of all results of a request one counts: the first in the partition whose append time is not after its `commit_by_ms`. A
failure has no such time and always may count. Who reads both topics up to the same offsets has the same answers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from itertools import islice, takewhile
from sys import intern
from typing import NamedTuple

from msgspec import Struct

from projections.filed import Filed
from projections.reading import OffsetGap
from schemas.codec import Unreadable, decode_keyed
from schemas.partitioner import partition_of
from schemas.requests import PlacementCancelled, PlacementRequested
from schemas.results import FailureReason, InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import REQUESTS, RESULTS


class Named(NamedTuple):
    """A claim that a result names: its id, its partition of `claims`, its node."""

    claim_id: str
    partition: int
    node_id: str


class Answer(Struct, gc=False):
    """One result of a request. `named` is empty and `reason` is not for a failure; `late`: appended after its `commit_by_ms`.

    `kept`, which are the last of `named`: the places that instances leave and keep.
    """

    request_id: str
    offset: int
    time_ms: int
    owner: str
    named: tuple[Named, ...] = ()
    reason: FailureReason | None = None
    late: bool = False
    kept: tuple[Named, ...] = ()

    @property
    def placed(self) -> bool:
        """Whether the instances were placed."""
        return self.reason is None

    def names(self, claim_id: str) -> bool:
        """Whether the result names this claim."""
        return any(named.claim_id == claim_id for named in self.named)


class Asked(Struct, gc=False):
    """A request without counting result, where it stands and when it was appended."""

    request: PlacementRequested
    offset: int
    time_ms: int


class Cancel(Struct, gc=False):
    """A cancellation, where it stands and when it was appended."""

    request_id: str
    record_id: str
    offset: int
    time_ms: int


class Answered(Struct, gc=False):
    """What one result did: `counts` if it is the one that counts; `asked` is then the request it answers, if that was read before."""

    answer: Answer
    counts: bool
    asked: Asked | None = None


class Placements:
    """Answers, open requests and losing results of one partition, up to the next offsets of both topics."""

    def __init__(self, partition: int, partitions: int, *, requests_next: int = 0, results_next: int = 0) -> None:
        self.partition = partition
        self.partitions = partitions
        self.requests_next = requests_next
        self.results_next = results_next
        self.results_time_ms = 0
        self.doubtful_ms = 0
        """A result up to this time may not be the first of its request: older ones have left the log."""
        self.answers: dict[str, Answer] = {}
        """By request, in the order of the log."""
        self.filed = Filed()
        """Requests of whose answer nothing else is kept."""
        self.open: dict[str, Asked] = {}
        """Requests without counting result, in the order of the log."""
        self.cancels: dict[str, Cancel] = {}
        """The first cancellation of each request."""
        self.losing: dict[str, list[Answer]] = {}
        """Results that do not count, by request: of other owners, of frozen ones, too late."""
        self.dead = 0

    def apply_request(self, offset: int, time_ms: int, key: bytes, value: bytes) -> Asked | Cancel | Unreadable | None:
        """Fold the next record of `placement-requests`; None if it changes nothing (a copy, or answered already).

        Raises OffsetGap above the next offset.
        """
        if offset < self.requests_next:
            return None
        if offset > self.requests_next:
            raise _gap(REQUESTS, self.partition, self.requests_next, offset)
        self.requests_next = offset + 1
        record = self._read(REQUESTS, key, value)
        if isinstance(record, PlacementRequested):
            if record.request_id in self.open or self.is_answered(record.request_id):
                return None
            asked = self.open[record.request_id] = Asked(record, offset, time_ms)
            return asked
        if isinstance(record, PlacementCancelled):
            cancel = Cancel(record.request_id, record.record_id, offset, time_ms)
            self.cancels.setdefault(record.request_id, cancel)
            return cancel
        assert isinstance(record, Unreadable)
        return record

    def apply_result(self, offset: int, time_ms: int, key: bytes, value: bytes) -> Answered | Unreadable | None:
        """Fold the next record of `placement-results`; None if it is no result of a request. Raises OffsetGap above the next offset."""
        if offset < self.results_next:
            return None
        if offset > self.results_next:
            raise _gap(RESULTS, self.partition, self.results_next, offset)
        self.results_next = offset + 1
        self.results_time_ms = max(self.results_time_ms, time_ms)
        record = self._read(RESULTS, key, value)
        if isinstance(record, Unreadable):
            return record
        if isinstance(record, SchedulerStarted):
            return None
        assert isinstance(record, InstancesPlaced | PlacementFailed)
        answer = _answer(record, offset, self.results_time_ms)
        asked = self.open.get(answer.request_id)
        if answer.late or (asked is None and self.is_answered(answer.request_id)):
            if answer.request_id not in self.filed:
                self.losing.setdefault(answer.request_id, []).append(answer)
            return Answered(answer, counts=False)
        self.answers[answer.request_id] = answer
        self.open.pop(answer.request_id, None)
        return Answered(answer, counts=True, asked=asked)

    def is_answered(self, request_id: str) -> bool:
        """Whether a result of this request counts, as far as results were read."""
        return request_id in self.answers or request_id in self.filed

    def file_away(self, before_ms: int, but: AbstractSet[str] = frozenset(), answers_max: int | None = None) -> list[Answer]:
        """Keep of the answers before this time only that there was one, and nothing else of their requests; returns them, oldest first.

        Up to the first that is of a request of `but`, and so many at most.
        """
        old = takewhile(lambda answer: answer.time_ms < before_ms and answer.request_id not in but, self.answers.values())
        found = list(islice(old, answers_max))
        for answer in found:
            self.filed.add(self.partition, answer.request_id, answer.offset, answer.time_ms)
            del self.answers[answer.request_id]
            self.losing.pop(answer.request_id, None)
            self.cancels.pop(answer.request_id, None)
        return found

    def _read(self, topic: str, key: bytes, value: bytes) -> object:
        """The record; one in a partition where its key does not belong is no record (two partitions could then answer one request)."""
        record: object = decode_keyed(topic, key, value)
        if not isinstance(record, Unreadable) and partition_of(key, self.partitions) != self.partition:
            belongs = partition_of(key, self.partitions)
            record = Unreadable("wrong-partition", f"key {key[:80]!r} belongs to {topic}/{belongs}, this is {topic}/{self.partition}")
        self.dead += isinstance(record, Unreadable)
        return record


def _gap(topic: str, partition: int, expected: int, got: int) -> OffsetGap:
    return OffsetGap(f"{topic}/{partition}: expected offset {expected}, got {got}; read the records between first")


def _answer(record: InstancesPlaced | PlacementFailed, offset: int, time_ms: int) -> Answer:
    if isinstance(record, PlacementFailed):
        return Answer(record.request_id, offset, time_ms, intern(record.owner), reason=record.reason)
    named = tuple(Named(p.claim_id, p.partition, intern(p.node_id)) for p in (*record.placements, *record.kept))
    late, kept = time_ms > record.commit_by_ms, named[len(record.placements) :]
    return Answer(record.request_id, offset, time_ms, intern(record.owner), named, late=late, kept=kept)
