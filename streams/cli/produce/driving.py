"""Plays a fleet on a log: requests come, guests start where results say, lifetimes end, hypervisors report.

It stands for everything outside claimlog: requesters, the starters of guests, and the hosts with their audits and events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from msgspec import Struct

from producers.load import PRODUCER, Guest, SimulatedFleet
from producers.source import said
from producers.workload import Arrival, Departure
from projections.placements import Answered, Placements
from projections.reading import between
from schemas.codec import decode
from schemas.lifecycle import InstanceDeleted, InstanceDeparted, LifecycleEvent
from schemas.requests import TTL_MS_DEFAULT, PlacementRequested
from schemas.resources import Resources
from schemas.results import InstancesPlaced
from schemas.topics import AUDITS, LIFECYCLE, REQUESTS, RESULTS
from streams.cli.produce.publishing import message
from streams.clock import Clock
from streams.log.base import Log, Message, Partition, Record
from streams.log.reading import topic_records
from streams.message import message_of

BATCH_MESSAGES = 1_000
"""One append of the log: a transaction that others wait for some milliseconds at most."""
START_WITHIN_MS = TTL_MS_DEFAULT // 4
"""A starter acts on a result this long; later it would have to renew the claim first, which these guests never do."""


class Tally(Struct):
    """What happened so far: `requested`, `placed` and `failed` are the workload's own requests, `others` the answers to other people's."""

    requested: int = 0
    instances: int = 0
    placed: int = 0
    failed: int = 0
    started: int = 0
    ended: int = 0
    too_late: int = 0
    found: int = 0
    answered_before: int = 0
    others: int = 0
    audits: int = 0

    def __str__(self) -> str:
        """One line for stderr."""
        return (
            f"{self.requested} requested, {self.placed} placed, {self.failed} not placed, {self.started} guests started, "
            f"{self.ended} ended, {self.audits} audits"
            + (f", {self.found} of earlier runs found" if self.found else "")
            + (f", {self.too_late} started too late and left out" if self.too_late else "")
            + (f", {self.others} requests of others answered" if self.others else "")
            + (f", {self.answered_before} answered by an earlier run; another --seed asks anew" if self.answered_before else "")
        )


class Driver:
    """Does what is due at each step. `speed` is how many seconds of the workload go into one of the clock's.

    What is due when is counted by the clock that only runs: hosts report, and guests end, while the one that stamps is set.
    """

    def __init__(
        self, log: Log, fleet: SimulatedFleet, events: Iterator[Arrival | Departure], clock: Clock, *, speed: float, audit_every_ms: int
    ) -> None:
        """Results are read from now on; guests are started on the fleet's nodes whoever asked for them.

        Guests that earlier runs left on these nodes run there still, as on hosts whose producers were started anew.
        """
        self.tally = Tally()
        self._log, self._fleet, self._clock = log, fleet, clock
        self._speed = speed
        self._audit_every_ms = audit_every_ms
        self._start_ms = self._begin_ms = clock.boot_ms()
        self._events = events
        self._next: Arrival | Departure | None = next(events, None)
        self._out: list[Message] = []
        """What happened and is not acknowledged."""
        self._waiting: set[str] = set()
        self._ended: set[str] = set()
        counts = log.topics()
        self._placements = [
            Placements(number, counts[RESULTS], requests_next=log.end(REQUESTS, number), results_next=log.end(RESULTS, number))
            for number in range(counts[RESULTS])
        ]
        self._answered_before = {key for placements in self._placements for key in _keys(log, placements)}
        """Requests that have an answer already: the same seed asks for the same again, and nobody answers twice."""
        left = _left_running(log, fleet)
        for guest in left:
            fleet.adopt(guest)
        self.tally.found = len(left)
        for node_id in fleet.nodes:
            self._out.extend(message(said(LIFECYCLE, event)) for event in fleet.resync(node_id, clock.wall_ms()))
        # Spread over the interval, so that hosts do not report all at once; the first audit of each is due now.
        self._due_audits = deque((self._start_ms, node_id) for node_id in fleet.nodes)
        self._spread = audit_every_ms / max(1, len(fleet.nodes))

    @property
    def exhausted(self) -> bool:
        """Whether every request came and every lifetime ended."""
        return self._next is None

    @property
    def unsent(self) -> int:
        """How many messages the log has not acknowledged; the tally has what they say."""
        return len(self._out)

    @property
    def waiting(self) -> int:
        """How many requests have no counting result yet."""
        return len(self._waiting)

    def report(self) -> int:
        """The first audit of each host alone, appended; returns how many records. The workload may `begin` later."""
        self._audits()
        return self._flush()

    def begin(self) -> None:
        """The workload's time starts now, not when this was made."""
        self._begin_ms = self._clock.boot_ms()

    def step(self) -> int:
        """Everything that is due now, appended; returns how many records.

        After an exception of the log the next step begins with what was not acknowledged, byte for byte.
        """
        count = self._flush()
        self._answers()
        self._due_events()
        self._audits()
        return count + self._flush()

    def _flush(self) -> int:
        count = len(self._out)
        while self._out:
            self._log.append(self._out[:BATCH_MESSAGES])
            del self._out[:BATCH_MESSAGES]
        return count

    def wait(self, seconds_max: float) -> None:
        """Sleep until something is due or a result comes."""
        now_ms = self._clock.boot_ms()
        due = [self._due_audits[0][0]] if self._due_audits else []
        if self._next is not None:
            due.append(self._when(self._next.time_ms))
        seconds = min([seconds_max, *(self._clock.seconds(max(0, moment - now_ms)) for moment in due)])
        self._log.wait({Partition(RESULTS, placements.partition): placements.results_next for placements in self._placements}, seconds)

    def _when(self, time_ms: int) -> int:
        return self._begin_ms + int(time_ms / self._speed)

    def _answers(self) -> None:
        for placements in self._placements:
            while records := self._log.read(RESULTS, placements.partition, placements.results_next):
                for record in records:
                    answered = placements.apply_result(record.offset, record.time_ms, record.key, record.value)
                    if isinstance(answered, Answered) and answered.counts:
                        self._answered(record, answered)

    def _answered(self, record: Record, answered: Answered) -> None:
        request_id = answered.answer.request_id
        if request_id in self._waiting:
            self._waiting.remove(request_id)
            self.tally.placed += answered.answer.placed
            self.tally.failed += not answered.answer.placed
        else:
            self.tally.others += 1
        if not answered.answer.placed:
            return
        result = decode(RESULTS, record.value)
        assert isinstance(result, InstancesPlaced), "a result that counts and places is of this type"
        now_ms = self._clock.wall_ms()
        for placement in result.placements:
            if placement.node_id not in self._fleet.kinds or placement.instance_id in self._fleet.guests:
                continue
            if now_ms - record.time_ms > START_WITHIN_MS:
                self.tally.too_late += 1
                continue
            events = self._fleet.start_guest(
                placement.node_id, placement.instance_id, placement.resources, now_ms, claim_id=placement.claim_id
            )
            self._out.extend(message(said(LIFECYCLE, event)) for event in events)
            self.tally.started += 1
            if placement.instance_id in self._ended:
                self._end(placement.instance_id, now_ms)

    def _due_events(self) -> None:
        now_ms, ran_ms = self._clock.wall_ms(), self._clock.boot_ms()
        while self._next is not None and self._when(self._next.time_ms) <= ran_ms and len(self._out) < 10 * BATCH_MESSAGES:
            if isinstance(self._next, Arrival):
                if self._next.request.request_id in self._answered_before:
                    self.tally.answered_before += 1
                else:
                    self._waiting.add(self._next.request.request_id)
                self.tally.requested += 1
                self.tally.instances += self._next.request.count
                self._out.append(request_message(self._next.request, now_ms))
            elif self._next.instance_id in self._fleet.guests:
                self._end(self._next.instance_id, now_ms)
            else:
                # Not started yet, or never placed: should it start after all, it ends at once.
                self._ended.add(self._next.instance_id)
            self._next = next(self._events, None)

    def _end(self, instance_id: str, now_ms: int) -> None:
        self._ended.discard(instance_id)
        self.tally.ended += 1
        self._out.extend(message(said(LIFECYCLE, event)) for event in self._fleet.destroy(instance_id, now_ms))

    def _audits(self) -> None:
        now_ms, ran_ms = self._clock.wall_ms(), self._clock.boot_ms()
        for index in range(len(self._due_audits)):
            due_ms, node_id = self._due_audits[0]
            if due_ms > ran_ms:
                return
            self._out.append(message(said(AUDITS, self._fleet.audit(node_id, now_ms, ran_ms))))
            self.tally.audits += 1
            self._due_audits.popleft()
            first_round = due_ms == self._start_ms
            phase_ms = int(self._spread * index) if first_round else 0
            self._due_audits.append((max(due_ms + self._audit_every_ms, ran_ms) + phase_ms, node_id))


def _keys(log: Log, placements: Placements) -> Iterator[str]:
    """The keys of the results below those that `placements` is to fold: ids of requests, and names of schedulers, which harm nobody."""
    number = placements.partition
    for record in between(log, RESULTS, number, log.start(RESULTS, number), placements.results_next, BATCH_MESSAGES):
        yield record.key.decode(errors="replace")


def _left_running(log: Log, fleet: SimulatedFleet) -> Collection[Guest]:
    """The guests of the fleet's nodes that arrived and did not leave, as the life-cycle events on the log say."""
    found: dict[tuple[str, str], Guest] = {}
    for record in topic_records(log, LIFECYCLE):
        event = decode(LIFECYCLE, record.value)
        if not isinstance(event, LifecycleEvent) or event.node_id not in fleet.kinds or event.producer != PRODUCER:
            continue
        place = event.node_id, event.instance.instance_id
        if isinstance(event, InstanceDeparted | InstanceDeleted):
            found.pop(place, None)
        else:
            found[place] = _guest(event, found.get(place))
    return found.values()


def _guest(event: LifecycleEvent, known: Guest | None) -> Guest:
    """The guest that an event tells of; `known` is what was known of it there."""
    size, report = event.instance.resources, event.instance
    return Guest(
        instance_id=report.instance_id,
        node_id=event.node_id,
        resources=Resources(vcpus=size.vcpus or 0, pcpus=size.pcpus or 0, memory_mib=size.memory_mib or 0, disk_mib=size.disk_mib or 0),
        name=report.name,
        project_id=report.project_id,
        power_state=report.power_state,
        claim_id=event.claim_id or (known.claim_id if known is not None else None),
    )


def request_message(request: PlacementRequested, time_ms: int) -> Message:
    """A request with its headers; its own id is the correlation of everything that follows from it."""
    own = request.request_id
    return message_of(REQUESTS, request, event_id=own, source="claimlog/load", time_ms=time_ms, subject=own, correlation_id=own)
