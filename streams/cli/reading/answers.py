"""One request and what became of it, found in the log: its record, its results, and which of them counts."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, structs

from projections.cut import Cut
from projections.ledger_id import check_cut, ledger_id_of
from projections.subjects import Subject, concerns
from schemas.codec import decode_keyed
from schemas.requests import PlacementCancelled, PlacementRequested
from schemas.results import Decision, InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.cli.given.timegrammar import Instant, Moment
from streams.cli.problems import AnswerIncomplete
from streams.cli.reading.naming import Naming
from streams.cli.reading.records import Range, begins_late
from streams.log.base import Log, Partition, Position, Record
from streams.log.reading import backwards, partition_records, places, topic_records

# Of a broker that has gone nothing comes, so now and then it is asked whether it is there.
WAIT_SECONDS_MAX = 5.0

Result = InstancesPlaced | PlacementFailed


class RecordedResult(Struct, frozen=True, kw_only=True):
    """One result of a request and where it stands. `late`: it, or one before it, was appended after its `commit_by_ms`: it cannot count."""

    result: Result
    position: Position
    time_ms: int
    late: bool


class AskedAgain(NamedTuple):
    """A later record of a request's id, which counts for nothing, and whether it asks for something else."""

    position: Position
    other: bool


class RequestHistory(Struct, kw_only=True):
    """A request with everything the log has of it. `counting` is the result that counts, None before there is one."""

    request_id: str
    request: PlacementRequested | None = None
    position: Position | None = None
    time_ms: int = 0
    again: list[AskedAgain] = []
    cancels: list[Position] = []
    results: list[RecordedResult] = []

    def up_to(self, ends: Mapping[tuple[str, int], int]) -> RequestHistory:
        """What of it stands below these next offsets of its partitions; the request itself in any case."""

        def is_there(position: Position) -> bool:
            return position.offset < ends.get((position.topic, position.partition), 0)

        return structs.replace(
            self,
            again=[again for again in self.again if is_there(again.position)],
            cancels=[position for position in self.cancels if is_there(position)],
            results=[result for result in self.results if is_there(result.position)],
        )

    @property
    def asked_last(self) -> Position | None:
        """Where it was asked again last, if it was; else its position."""
        return self.again[-1].position if self.again else self.position

    @property
    def counting(self) -> RecordedResult | None:
        """The first result that was appended in time."""
        return next((result for result in self.results if not result.late), None)

    @property
    def is_known(self) -> bool:
        """Whether the log has anything of it."""
        return bool(self.request or self.cancels or self.results)


def request_history(log: Log, request_id: str) -> RequestHistory:
    """A request by its id. What is not at hand (archived, a file without the topic) is missing from it."""
    found = RequestHistory(request_id=request_id)
    key = request_id.encode()
    for record in _keyed(log, REQUESTS, key):
        event = decode_keyed(REQUESTS, record.key, record.value)
        if isinstance(event, PlacementRequested):
            if found.request is None:
                found.request, found.position, found.time_ms = event, record.position, record.time_ms
            else:
                found.again.append(AskedAgain(record.position, event != found.request))
        elif isinstance(event, PlacementCancelled):
            found.cancels.append(record.position)
    found.results = [result for record in _keyed(log, RESULTS, key) if (result := result_of(log, record)) is not None]
    return found


def may_have_been_answered(log: Log, found: RequestHistory) -> bool:
    """Whether an answer may be among the results that have left the log, though none is at hand."""
    place = Partition(RESULTS, log.partition(RESULTS, found.request_id.encode())) if RESULTS in log.topics() else None
    first_ms = None if place is None else _lacking(log, {place: 0}).get(place, -1)
    return place is not None and found.counting is None and (first_ms is None or first_ms >= found.time_ms)


def result_of(log: Log, record: Record) -> RecordedResult | None:
    """What a record of `placement-results` says of its request; None if it is no result of one."""
    event = decode_keyed(RESULTS, record.key, record.value)
    if not isinstance(event, InstancesPlaced | PlacementFailed):
        return None
    # No record is older than one before it, though the clock of the broker that stamped it may have been behind that one's.
    late = isinstance(event, InstancesPlaced) and log.at_time(RESULTS, record.partition, event.commit_by_ms + 1) <= record.offset
    return RecordedResult(result=event, position=record.position, time_ms=record.time_ms, late=late)


def awaited(log: Log, request_id: str, number: int, since: int, wait_ms: int) -> RecordedResult | None:
    """The result that counts, as soon as it is in the log at or after the offset `since`; None if the time is up first."""
    key, at = request_id.encode(), since
    deadline_seconds = time.monotonic() + wait_ms / 1000
    while True:
        records = log.read(RESULTS, number, at)
        for record in records:
            if record.key == key and (found := result_of(log, record)) is not None and not found.late:
                return found
        if records:
            at = records[-1].offset + 1
            continue
        left_seconds = deadline_seconds - time.monotonic()
        if left_seconds <= 0:
            return None
        log.wait({Partition(RESULTS, number): at}, min(left_seconds, WAIT_SECONDS_MAX))


def request_of_instance(log: Log, instance_id: str) -> str | None:
    """The request that an instance was last placed or asked for by; None if no request at hand names it.

    Of each request its first answer and, without one, its first record: later ones count for nothing. Ids that follow from a request's own
    stand in no record of it before it is answered, so all are looked at where nothing else is found.
    """
    naming = Naming([instance_id])
    answered, asked = dict[str, int](), dict[str, int]()
    for record in topic_records(log, RESULTS):
        event = decode_keyed(RESULTS, record.key, record.value) if naming.may_be_in(record.value) else None
        if isinstance(event, InstancesPlaced | PlacementFailed) and concerns(event, Subject("instance", instance_id)):
            answered.setdefault(event.request_id, record.time_ms)
    for is_derived in (False, True):
        for record in topic_records(log, REQUESTS) if not (is_derived and (answered or asked)) else ():
            event = decode_keyed(REQUESTS, record.key, record.value) if is_derived or naming.may_be_in(record.value) else None
            if isinstance(event, PlacementRequested) and concerns(event, Subject("instance", instance_id)):
                asked.setdefault(event.request_id, record.time_ms)
    newest = max(((time_ms, request_id) for request_id, time_ms in (asked | answered).items()), default=None)
    return None if newest is None else newest[1]


def not_at_hand(log: Log, *topics: str) -> str:
    """What to add where a request, or its answer, is not found: that older records of `topics` have left the log; empty if none has."""
    return "".join(f"; {late}" for late in begins_late(log, topics, Range(None, None)))


def astray(log: Log, request_id: str) -> str:
    """What to add where a request is not found: where a record with its id lies that nobody reads as one; empty if none does."""
    key = request_id.encode()
    there = (out_of_place(log, request_id, record.position) for record in topic_records(log, REQUESTS) if record.key == key)
    return next(filter(None, there), "")


def out_of_place(log: Log, request_id: str, position: Position) -> str:
    """The same of one record of the request; empty where it lies in its id's own partition."""
    own = Partition(REQUESTS, log.partition(REQUESTS, request_id.encode()))
    if position[:2] == own:
        return ""
    again = "`claimlog dead-letters redrive` appends it where it belongs, once `claimlog run` has read it"
    return f"; a record of it lies at {position}, but its id belongs to {own}, so it counts for nothing there: {again}"


def policy_text(log: Log, digest: str) -> str | None:
    """The text of a policy, from the start of a scheduler that had it; None if no start at hand had."""
    return next((start.policy for _, start in _starts(log, ends_of(log)) if start.policy_digest == digest), None)


def ends_of(log: Log) -> dict[Partition, int]:
    """Where the partitions of results end now."""
    return {place: log.end(*place) for place in places(log, RESULTS)}


def newest_start(log: Log, ends: Mapping[Partition, int]) -> SchedulerStarted | None:
    """The newest start of a scheduler below `ends`; None if there is none. Raises AnswerIncomplete if a newer one may have left."""
    found = next(_starts(log, ends), None)
    for place, first_ms in _lacking(log, ends).items():
        if found is None or (place != found[0].position[:2] and (first_ms is None or found[0].time_ms <= first_ms)):
            raise AnswerIncomplete(f"which scheduler started last is not known{not_at_hand(log, RESULTS)}")
    return None if found is None else found[1]


def newest_decision(log: Log, ends: Mapping[Partition, int]) -> tuple[str, Decision] | None:
    """Who answered last, of those below `ends`, and the last decision of that; None if no answer tells, or a newer one may have left."""
    for record, event in _results(log, ends):
        if isinstance(event, InstancesPlaced | PlacementFailed) and event.decisions:
            is_newest = all(first_ms is not None and first_ms <= record.time_ms for first_ms in _lacking(log, ends).values())
            return (event.owner, event.decisions[-1]) if is_newest else None
    return None


def results_by(log: Log, at: Moment | None, as_of_ms: int) -> dict[Partition, int] | None:
    """The next offsets of results as of a moment; None: as of now.

    A cut that names no results has those up to its ledger's newest record, which is of `as_of_ms`. One that names some may have newer ones.
    Raises HistoryMissing for a cut with more of them than this log has.
    """
    if at is None:
        return None
    if isinstance(at, Instant):
        return {place: log.at_time(*place, at.time_ms) for place in places(log, RESULTS)}
    check_cut(log, at, (RESULTS,))
    named = {place: end for place in places(log, RESULTS) if (end := at.next_offset(*place)) is not None}
    held = [(place, end - 1) for place, end in named.items() if log.start(*place) < end]
    by_ms = max(as_of_ms, *(record.time_ms for place, offset in held for record in log.read(*place, offset, 1)), 0)
    return {place: named[place] if place in named else log.at_time(*place, by_ms + 1) for place in places(log, RESULTS)}


def decided_at(log: Log, recorded: RecordedResult) -> Cut:
    """What the last decision of a result on `log` was made on, and the result itself."""
    decisions = recorded.result.decisions
    places = {(CLAIMS, number): end for number, end in enumerate(decisions[-1].cut)} if decisions else {}
    return Cut.of({**places, (RESULTS, recorded.position.partition): recorded.position.offset + 1}, ledger_id_of(log))


def _starts(log: Log, ends: Mapping[Partition, int]) -> Iterator[tuple[Record, SchedulerStarted]]:
    """Starts of schedulers below `ends`, the last one first: there are few, among many."""
    for record, event in _results(log, ends, b"scheduler-started"):
        if isinstance(event, SchedulerStarted):
            yield record, event


def _results(log: Log, ends: Mapping[Partition, int], text: bytes = b"") -> Iterator[tuple[Record, object]]:
    """Records of `placement-results` below `ends` whose bytes contain `text`, read from behind, the last one first."""
    partitions = [backwards(log, place, log.start(*place), end) for place, end in ends.items()]
    for record in heapq.merge(*partitions, key=lambda record: -record.time_ms):
        if text in record.value:
            yield record, decode_keyed(RESULTS, record.key, record.value)


def _lacking(log: Log, ends: Mapping[Partition, int]) -> dict[Partition, int | None]:
    """The partitions of which records have left, and the time of the first at hand: none of those is newer. None: none is at hand."""
    found: dict[Partition, int | None] = {}
    for place in ends:
        if (start := log.start(*place)) > 0:
            found[place] = next((record.time_ms for record in log.read(*place, start, 1)), None)
    return found


def _keyed(log: Log, topic: str, key: bytes) -> Iterator[Record]:
    """The records of a key, from the partition where it belongs."""
    if topic in log.topics():
        for record in partition_records(log, topic, log.partition(topic, key)):
            if record.key == key:
                yield record
