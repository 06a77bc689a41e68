"""Observations that nobody has carried into the ledger yet, laid on the end of a fold in memory by the same reconciler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TextIO

from projections.evidence import would_count
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.observed import Observed
from projections.reading import HistoryMissing, between, where_archived
from projections.rules import SKEW_MS
from schemas.claims import InstanceObserved, NodeObserved
from schemas.codec import Unreadable, decode
from schemas.envelope import from_headers
from schemas.topics import CLAIMS
from streams.carried import last_carried, next_carried
from streams.cli.given.timegrammar import Instant, Moment
from streams.cli.printed import units
from streams.cli.reading.state import READ_RECORDS, State
from streams.log.base import Log, Record, is_stand_in
from streams.log.holes import CAUSE, holes_in, told
from streams.log.reading import by_time
from streams.reconciler import reconcile

Each = Callable[[Ledger, Observed, Step], None]
"""Called for every record after ledger and views are folded."""


def behind_of(committed: Mapping[str, Mapping[int, int]], sources: Mapping[str, Mapping[int, int]]) -> dict[int, dict[str, int]]:
    """The partitions that have something to carry: the ends of those sources that go beyond what is `committed`."""
    found: dict[int, dict[str, int]] = {}
    for topic, ends in sources.items():
        for number, end in ends.items():
            if end > committed.get(topic, {}).get(number, 0):
                found.setdefault(number, {})[topic] = end
    return dict(sorted(found.items()))


def lay_pending(
    log: Log,
    state: State,
    committed: Mapping[str, Mapping[int, int]],
    sources: Mapping[int, Mapping[str, int]],
    each: Each | None,
    at: Moment | None = None,
) -> None:
    """Carry what the reconciler has not, in memory. What it has after all is ignored by the fold (rule 4) and not counted.

    An owner's word that the fold ignores and the views heed is counted: the answer rests on it.

    `sources` are as from `behind_of`, where nobody has committed more than is `committed`. Raises HistoryMissing where observations that
    were pending at the moment `at` are not at hand.
    """
    for number, behind in sources.items():
        records: list[list[Record]] = []
        starts = _carried_to(log, number, state.ends[number], behind)
        if at is not None:
            _check_at_hand(log, state, number, starts, behind, at)
        for topic, start in starts.items():
            first, stored = log.start(topic, number), committed.get(topic, {}).get(number)
            # With nothing stored it may all have been carried, and left with the history that showed it.
            state.lost += 0 if stored is None else max(first - max(start, stored), 0)
            found = list(between(log, topic, number, max(start, first), behind[topic], READ_RECORDS))
            state.holes += holes_in(found)
            records.append(found)
        for record in by_time(records):
            _lay(state, record, each, is_judged=record.offset < committed.get(record.topic, {}).get(number, 0))


def _lay(state: State, record: Record, each: Each | None, *, is_judged: bool) -> None:
    """Fold one observation. One that `is_judged` has its dead letter if it cannot be read."""
    if is_stand_in(record):
        return
    message = reconcile(record, state.partitions)
    if isinstance(message, Unreadable):
        state.unreadable += not is_judged
        return
    ledger = state.ledgers[record.partition]
    offset = ledger.next_offset
    state.laid[record.partition, offset] = record.position
    step = state.step(record.partition, offset, record.time_ms, message.key, message.value)
    if step is not None and step.event is not None and (not step.ignored or state.observed[record.partition].heeds(step)):
        state.pending += 1
        if each is not None:
            each(ledger, state.observed[record.partition], step)


def _carried_to(log: Log, number: int, claims_end: int, behind: Mapping[str, int]) -> dict[str, int]:
    """Up to where each source was carried. Too low is right as well, only slower; a source that was never carried starts at 0."""
    has_claims = number < log.topics().get(CLAIMS, 0)
    carried = last_carried(log, number, claims_end, behind) if has_claims else {}
    return {topic: min(carried[topic][0] + 1 if topic in carried else 0, end) for topic, end in behind.items()}


def _check_at_hand(log: Log, state: State, number: int, starts: Mapping[str, int], ends: Mapping[str, int], at: Moment) -> None:
    """Raises HistoryMissing where some that the ledger did not have at that moment, but had been reported by then, have left the log.

    The ledger knows of them by what it has of each source behind that moment. A time is compared with theirs, as the host says it:
    nobody knows any more when they were appended. A host whose clock is ahead of the record that carried its word says nothing by it.
    """
    firsts = {topic: log.start(topic, number) for topic in starts}
    left = {topic: start for topic, start in starts.items() if start < firsts[topic]}
    if not left or number >= log.topics().get(CLAIMS, 0):
        return
    later = next_carried(log, number, state.ends[number], left, lambda record: not _would_count(state.ledgers[number], record))
    for topic, start in left.items():
        if topic in later:
            offset, record = later[topic]
            was_reported = _may_be_before(record, at) if isinstance(at, Instant) else offset < ends[topic]
        else:  # Nobody ever carried them, and a cut that names them had them.
            offset, was_reported = start, start > 0 and not isinstance(at, Instant) and start < ends[topic]
        if offset < firsts[topic] and was_reported:
            raise HistoryMissing(
                f"{topic}/{number}: what hosts had reported by then includes records from {offset} on, which the ledger did not have yet; "
                f"at hand are those from {firsts[topic]} on; {where_archived(log)}"
            )


def _may_be_before(carried: Record, at: Instant) -> bool:
    """Whether the observation that this record carried may have been there before that time."""
    time_ms = from_headers(carried.headers).time_ms
    return time_ms is not None and (time_ms < at.time_ms or time_ms > carried.time_ms + SKEW_MS)


def _would_count(ledger: Ledger, record: Record) -> bool:
    event = decode(CLAIMS, record.value)
    return isinstance(event, (NodeObserved, InstanceObserved)) and would_count(ledger.nodes.get(event.node_id), event)


def say_pending(state: State, stderr: TextIO) -> None:
    """How many there are, if there are any."""
    if state.pending:
        verb = "is" if state.pending == 1 else "are"
        stderr.write(f"{units.counted(state.pending, 'observation')} not yet in the ledger {verb} included; `claimlog run` carries them\n")
    if state.lost:
        stderr.write(
            f"{units.counted(state.lost, 'observation')} left the log before the ledger had what they said: a retention is set, or "
            "somebody deleted them; what hosts report next says what is there\n"
        )
    if state.holes:
        stderr.write(f"{told(state.holes)}, and were not carried into the ledger: {CAUSE}; what hosts report next says what is there\n")
    if state.unreadable:
        stderr.write(f"{units.counted(state.unreadable, 'observation')} cannot be read, and count for nothing; see `claimlog events`\n")
