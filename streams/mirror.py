"""Copies a ledger from one log to another, whichever hosts they are on: same offsets, same times, same bytes, so the same ledger.

What is copied is what cannot be made again: everything that somebody said. What the stream processor derives it derives there anew, with
the same ids. Nobody else may write to the new log meanwhile; if writers of the old one go on, copy
again until nothing is left. A copy made under load is one moment of the ledger all the same: nothing in it lacks what it rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from msgspec.structs import replace

from projections.ledger import Ledger
from projections.reading import where_archived
from projections.replay import fold
from schemas import topics
from schemas.topics import MADE_AGAIN, TOPICS
from streams.engines import WATCHERS
from streams.ledger_topics import check_topics, topic_specs
from streams.log import copy_mark
from streams.log.base import Log, LogError, Message, OffsetOutOfRange, Partition, Record, TopicSpec
from streams.reconciler import CARRIERS, SOURCES
from streams.scheduler import GROUP as SCHEDULERS

COPIED: Final = (topics.CLAIMS, *(name for name in TOPICS if name not in {topics.CLAIMS, *MADE_AGAIN}))
"""Claims first: an interrupted copy already is the same ledger, and nobody opens another one there."""
EFFECTS_FIRST: Final = (topics.RESULTS, topics.CLAIMS, topics.REQUESTS, topics.LIFECYCLE, topics.AUDITS, topics.DEAD_LETTERS)
"""Ends are looked up in this order, so that a copy made under load has the claims of every result and the request of every claim."""
GROUPS: Final = ((CARRIERS, SOURCES), (WATCHERS, (topics.REQUESTS, topics.RESULTS)), (SCHEDULERS, (topics.REQUESTS,)))
"""How far steps have come: who begins at 0 would carry every observation once more."""
BATCH_RECORDS: Final = 2000

WHY_NOT: Final = "does somebody else write to the new log, or copy to it at once? Delete it and copy again"
Progress = Callable[[int], None]
"""Hears how many records were copied just now."""


class Target(Log, Protocol):
    """A log that takes records with the times they have."""

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        """Append each with its time."""
        ...


@runtime_checkable
class TakesTimes(Protocol):
    """A log whose topics must be told that writers say the times: Kafka."""

    def create(self, topics: Sequence[TopicSpec], copied: Collection[str] = ()) -> None:
        """As any log does; in those that are `copied` a record's time is what its writer says, from the start."""
        ...

    def take_times(self, topics: Sequence[str], *, of_writers: bool) -> None:
        """From now on a record's time is what its writer says, or the log's own again."""
        ...


class NotAsCopied(LogError):  # noqa: N818 - see streams.log.base
    """What was copied does not stand there as it was: somebody else writes to the new log, such as a second copy made at once."""


class OtherLedger(LogError):  # noqa: N818 - see streams.log.base
    """What stands in the new log is not a copy of the old one's beginning."""


def check_begins(source: Log) -> None:
    """Raise unless a copy can begin: as `_check_ledger`, and OffsetOutOfRange for history that left `source`."""
    _check_ledger(source)
    for place in _places(source.topics()):
        _check_at_hand(source, place, 0)


def _check_ledger(source: Log) -> None:
    """Raises TopicMismatch if `source` is no ledger, WrongLedger if its partitions are not what their first records say."""
    check_topics(source, COPIED)
    for number, end in source.ends(topics.CLAIMS).items():
        if end and not source.start(topics.CLAIMS, number):
            fold(source, Ledger(number, source.topics()[topics.CLAIMS]), 1)


def _places(counts: Mapping[str, int]) -> list[Partition]:
    """Every partition that is copied, in the order in which it is."""
    return [Partition(topic, number) for topic in COPIED for number in range(counts[topic])]


def mirror(source: Log, target: Target, progress: Progress = lambda _: None) -> dict[Partition, int]:
    """Copy what `target` does not have yet, check every record copied, and return how many went where. Interrupted, do it again.

    Raises as `_check_ledger`, TopicMismatch if `target` has other numbers of partitions, OtherLedger if it holds something else,
    OffsetOutOfRange for history that left `source` (open it with its archive), NotAsCopied for a copy that reads back differently or is
    longer than what was copied; readers refuse it from then on.
    """
    _check_ledger(source)  # A file of lines has no topics but those that are copied.
    counts = source.topics()
    stands = {(group, topic): source.committed(group, topic) for group, names in GROUPS for topic in names}
    ends = {topic: source.ends(topic) for topic in EFFECTS_FIRST}
    copied: dict[Partition, int] = {}
    places = _places(counts)
    there = target.topics()
    for place in places:  # Before topics are made: without records they are a ledger too, and a copy that cannot begin is none.
        _check_begun(source, target, place, target.end(*place) if place.number < there.get(place.topic, 0) else 0)
    specs = topic_specs(counts[topics.CLAIMS], counts[topics.REQUESTS])
    if isinstance(target, TakesTimes):  # On Kafka these times are what makes readers look whether the copy is whole.
        target.create(specs, COPIED)
    else:
        target.create(specs)
    copy_mark.mark(target, ends)
    if isinstance(target, TakesTimes):  # Of topics that were there, and of all of them how far ahead these times may be.
        target.take_times(COPIED, of_writers=True)
    try:
        for place in places:
            copied[place] = _copy(source, target, place, ends[place.topic][place.number], progress)
        if isinstance(target, TakesTimes):
            target.take_times(COPIED, of_writers=False)
        # After that, so that of two copies made at once the later one to append has the last word on whose times these are.
        for place in places:
            _check_ended(source, target, place, ends[place.topic][place.number])
    except NotAsCopied:
        copy_mark.spoil(target, places)
        if isinstance(target, TakesTimes):
            target.take_times(COPIED, of_writers=True)
        raise
    for (group, topic), offsets in stands.items():
        target.commit(group, topic, offsets)
    return copied


def one_moment(source: Log) -> dict[str, dict[int, int]]:
    """The ends of all that is copied, in which nothing lacks what it rests on. Raises as `_check_ledger`."""
    _check_ledger(source)
    return {topic: source.ends(topic) for topic in EFFECTS_FIRST}


def told(source: Log, ends: Mapping[str, Mapping[int, int]], progress: Progress = lambda _: None) -> Iterator[Record]:
    """What `mirror` copies up to `ends`, record by record with the times that every fold takes them for.

    Raises OffsetOutOfRange for history that left `source`.
    """
    for topic in COPIED:
        for number in sorted(ends[topic]):
            yield from _told(source, Partition(topic, number), ends[topic][number], progress)


def _told(source: Log, place: Partition, end: int, progress: Progress) -> Iterator[Record]:
    at = latest_ms = 0
    if source.start(*place):
        raise OffsetOutOfRange(f"{place}: the log begins at {source.start(*place)}; {where_archived(source)}")
    while at < end:
        records = source.read(*place, at, min(BATCH_RECORDS, end - at))
        if not records:
            raise OffsetOutOfRange(f"{place}@{at} is missing in the log")
        for record in records:
            if record.offset != at:
                raise OffsetOutOfRange(f"{place}@{at} is missing in the log")
            latest_ms, at = max(latest_ms, record.time_ms), at + 1
            yield replace(record, time_ms=latest_ms)
        progress(len(records))


def _check_begun(source: Log, target: Log, place: Partition, at: int) -> None:
    """Raises OtherLedger unless the target's partition is the beginning of the source's, OffsetOutOfRange if what comes next has left."""
    if at > source.end(*place):
        raise OtherLedger(f"{place}: the new log ends at {at}, the old one at {source.end(*place)}; copy to one that is empty")
    _check_at_hand(source, place, max(at - 1, 0))  # the last one that was copied is compared
    if at:
        (before,), (copied,) = source.read(*place, at - 1, 1), target.read(*place, at - 1, 1)
        if _said(before) != _said(copied):
            raise OtherLedger(f"{place}@{at - 1} is another record than in the old log; copy to a log that is empty")


def _check_at_hand(source: Log, place: Partition, needed: int) -> None:
    if (start := source.start(*place)) > needed:
        raise OffsetOutOfRange(f"{place}: the old log begins at {start}, and {needed} is next to read; {where_archived(source)}")


def _copy(source: Log, target: Target, place: Partition, end: int, progress: Progress) -> int:
    """Copy one partition from where the target ends up to `end`; returns how many records."""
    at = begun = target.end(*place)
    latest_ms = target.read(*place, at - 1, 1)[0].time_ms if at else 0
    while at < end:
        records = source.read(*place, at, min(BATCH_RECORDS, end - at))
        times_ms = []
        if not records:
            raise OffsetOutOfRange(f"{place}@{at} is missing in the old log, so what follows would get other offsets")
        for offset, record in enumerate(records, at):
            if record.offset != offset:
                raise OffsetOutOfRange(f"{place}@{offset} is missing in the old log, so what follows would get other offsets")
            # What every fold takes a record's time for.
            latest_ms = max(latest_ms, record.time_ms)
            times_ms.append(latest_ms)
        target.append_at([Message(place.topic, r.key, r.value, r.headers, place.number) for r in records], times_ms)
        _check(target, place, records, times_ms)
        at += len(records)
        progress(len(records))
    return at - begun


def _check(target: Log, place: Partition, records: Sequence[Record], times_ms: Sequence[int]) -> None:
    """Read back what was copied. Raises LogError if it is not the same."""
    at = 0
    while at < len(records):
        for found in target.read(*place, records[at].offset, len(records) - at):
            is_other = _said(found) != _said(records[at])
            if is_other or found.time_ms != times_ms[at]:
                other = "as another record" if is_other else f"with another time ({found.time_ms}, not {times_ms[at]})"
                raise NotAsCopied(f"{place}@{found.offset} reads back {other}: {WHY_NOT}")
            at += 1


def _check_ended(source: Log, target: Target, place: Partition, end: int) -> None:
    """Raises NotAsCopied if the target is longer than what was copied, and not by what the old log has there."""
    if (found := target.end(*place)) > end:
        try:
            _check_begun(source, target, place, found)
        except OtherLedger as problem:
            raise NotAsCopied(f"{problem}; {WHY_NOT}") from None


def _said(record: Record) -> tuple[int, bytes, bytes, tuple[tuple[str, bytes], ...]]:
    """Everything of a record but its time."""
    return record.offset, record.key, record.value, tuple(record.headers)
