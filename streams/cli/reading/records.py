"""Records of several topics in one order, between two moments: what `events` and `timeline` read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple

from projections.cut import Cut
from projections.ledger_id import check_cut, ledger_id_of
from projections.reading import HistoryMissing, between, where_archived
from projections.replay import check_at_hand
from projections.snapshots import load_newest
from schemas.topics import CLAIMS, FOLDED, TOPICS
from streams.cli.given.timegrammar import Instant, Moment
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.log.base import Log, LogDamaged, Partition, Record
from streams.log.reading import partition_records, places


def check_claims_at_hand(log: Log, partition: int, offset: int) -> None:
    """Raises AnswerIncomplete where a partition of `claims` begins behind `offset`, from which on it is needed."""
    if offset < (start := log.start(CLAIMS, partition)):
        needed = f"{CLAIMS}/{partition}: records from {offset} on are needed"
        raise AnswerIncomplete(f"{needed}, at hand are those from {start} on; {where_archived(log)}")


class Range(NamedTuple):
    """From the first record at or after `since` to the last one before `until`; None is no bound.

    A cut bounds each partition it names, and by `naming` all others as well.
    """

    since: Moment | None
    until: Moment | None

    def naming(self, log: Log, topics: Sequence[str]) -> Range:
        """The same range for these topics: what a cut of another kind of answer does not name ends with the newest record that it includes.

        Raises as `check`.
        """
        self.check(log, topics)
        return Range(_naming(log, self.since, topics), _naming(log, self.until, topics))

    def check(self, log: Log, topics: Sequence[str]) -> None:
        """Refuse cuts that are not of this log, or not of this much of `topics`, and times among what has left it.

        Raises WrongCut, HistoryMissing, UsageProblem.
        """
        for moment in (self.since, self.until):
            if isinstance(moment, Cut):
                check_cut(log, moment, topics)
        if _has_left(log, topics):
            if isinstance(self.since, Instant):
                _check_none_left_since(log, self.since.time_ms)
            if isinstance(self.until, Instant):
                ends = {number: at_time(log, CLAIMS, number, self.until.time_ms) for number in range(log.topics().get(CLAIMS, 0))}
                check_at_hand(log, ends, self.until.time_ms)
        if self.since is not None and self.until is not None and _after(self.since, self.until):
            raise UsageProblem("--since is after --until, so there is nothing between them; exchange them")

    def starts(self, log: Log, topic: str, partition: int) -> int:
        """The first offset to read of a partition."""
        first, end = log.start(topic, partition), log.end(topic, partition)
        if self.since is None:
            return first
        if isinstance(self.since, Instant):
            return at_time(log, topic, partition, self.since.time_ms)
        bound = self.since.next_offset(topic, partition) or 0
        if bound < first and TOPICS[topic].kept == "ever":
            needed = f"{topic}/{partition}: records from {bound} on are needed, at hand are those from {first} on"
            raise HistoryMissing(f"{needed}; {where_archived(log)}")
        return min(end, max(first, bound))

    def ends(self, log: Log, topic: str, partition: int) -> int:
        """The offset before which reading stops."""
        end = log.end(topic, partition)
        if self.until is None:
            return end
        if isinstance(self.until, Instant):
            return at_time(log, topic, partition, self.until.time_ms)
        bound = self.until.next_offset(topic, partition)
        return end if bound is None else min(end, bound)

    def includes(self, topic: str, partition: int, offset: int, time_ms: int) -> bool:
        """Whether a record that stands there is inside."""
        return not _before(self.since, topic, partition, offset, time_ms) and (
            self.until is None or _before(self.until, topic, partition, offset, time_ms)
        )


def _naming(log: Log, moment: Moment | None, topics: Sequence[str]) -> Moment | None:
    if not isinstance(moment, Cut):
        return moment
    unnamed = [place for place in places(log, *topics) if moment.next_offset(*place) is None]
    if unnamed:
        after_ms = _newest_ms(log, moment) + 1
        for place in unnamed:
            moment = moment.naming(*place, at_time(log, *place, after_ms))
    return moment


def _newest_ms(log: Log, cut: Cut) -> int:
    """The time of the newest record that a cut includes, of the ledger where it includes that; 0 for none. Raises HistoryMissing."""
    telling = [place for place in cut.places if place.topic in FOLDED] or cut.places
    check_cut(log, cut, {place.topic for place in telling})
    times_ms = [0]
    for topic, number, end in telling:
        if end == 0:
            continue
        if end <= (start := log.start(topic, number)):
            needed = f"{topic}/{number}: record {end - 1} is needed to tell the time of the cut, at hand are those from {start} on"
            raise HistoryMissing(f"{needed}; {where_archived(log)}")
        times_ms += [record.time_ms for record in log.read(topic, number, end - 1, 1) if record.offset < end]
    return max(times_ms)


def lost_before(log: Log, *topics: str) -> str:
    """Which of these topics begins late, so that not all that was said there is at hand, and what to do about it; nothing if none does."""
    found = next(((place, start) for place in places(log, *topics) if (start := log.start(*place))), None)
    if found is None:
        return ""
    (topic, number), start = found
    return f"{topic}/{number} begins at record {start}; {where_archived(log)}"


def _has_left(log: Log, topics: Sequence[str]) -> bool:
    """Whether some of these topics begin late. What leaves the log is that of all of them up to one moment, and `claims` knows which."""
    return any(log.start(*place) > 0 for place in places(log, *_kept_for_ever(topics)))


def _kept_for_ever(topics: Sequence[str]) -> list[str]:
    return [topic for topic in topics if TOPICS[topic].kept == "ever"]


def _check_none_left_since(log: Log, time_ms: int) -> None:
    """Raises HistoryMissing where a record that has left the log is surely as new: the newest snapshot of what left says how new."""
    for number in range(log.topics().get(CLAIMS, 0)):
        start = log.start(CLAIMS, number)
        left = load_newest(log, number, at_most=start) if start > 0 else None
        if left is not None and left.time_ms >= time_ms:
            among = f"records since that moment are among those below {start}, which have left the log"
            raise HistoryMissing(f"{CLAIMS}/{number}: {among}; {where_archived(log)}")


def cut_of(log: Log, topics: Sequence[str], within: Range) -> Cut:
    """Where a range of `topics` ends, as a cut: whoever reads up to it reads the same, however much is appended meanwhile.

    Raises as `Range.check`.
    """
    within = within.naming(log, topics)
    return Cut.of({place: within.ends(log, *place) for place in places(log, *topics)}, ledger_id_of(log))


def begins_late(log: Log, topics: Sequence[str], within: Range) -> list[str]:
    """What to say of topics that are kept for ever and begin, as far as is at hand, where the range does: there may be more before."""
    return said_late(log, late_places(log, topics, within))


def late_places(log: Log, topics: Sequence[str], within: Range) -> list[Partition]:
    """The partitions of such topics."""
    if isinstance(within.since, Cut):
        return []  # A cut among what has left is refused.
    starts = {place: log.start(*place) for place in places(log, *_kept_for_ever(topics))}
    late = [place for place, start in starts.items() if 0 < start == within.starts(log, *place)]
    if late and isinstance(within.since, Instant):
        lacking = _may_lack_since(log, within.since.time_ms)
        late = [place for place in late if (place.number in lacking if place.topic == CLAIMS else lacking)]
    return late


def said_late(log: Log, late: Sequence[Partition]) -> list[str]:
    """What to say of partitions of which records have left."""
    said = ", ".join(f"{place}@{log.start(*place)}" for place in late)
    return [f"at hand are records from {said} on only; {where_archived(log)}"] if late else []


def _may_lack_since(log: Log, time_ms: int) -> set[int]:
    """The partitions of `claims` of which a record may have left that is as new as this; if there is none, what left is older everywhere.

    Older is what left before a record that is older itself, or below a snapshot that is.
    """
    starts = {number: start for number in range(log.topics().get(CLAIMS, 0)) if (start := log.start(CLAIMS, number)) > 0}
    unsure = {number for number, start in starts.items() if at_time(log, CLAIMS, number, time_ms) == start}
    left = {number: load_newest(log, number, at_most=starts[number]) for number in unsure}
    older = {number for number, ledger in left.items() if ledger and ledger.next_offset == starts[number] and ledger.time_ms < time_ms}
    return unsure - older


def at_time(log: Log, topic: str, partition: int, time_ms: int) -> int:
    """As the log's `at_time`; where that meets damage without knowing at which offset, the partition is read up to it.

    Raises LogDamaged with the first bad position, as reading does.
    """
    try:
        return log.at_time(topic, partition, time_ms)
    except LogDamaged as damage:
        if damage.position is None:
            for _ in partition_records(log, topic, partition):
                pass
        raise


def _after(one: Moment, other: Moment) -> bool:
    """Whether the first is certainly later. A time and a cut have no order, nor have two cuts each of which is ahead somewhere."""
    if isinstance(one, Instant) and isinstance(other, Instant):
        return one.time_ms > other.time_ms
    if isinstance(one, Cut) and isinstance(other, Cut):
        pairs = [(end, other.next_offsets[place]) for place, end in one.next_offsets.items() if place in other.next_offsets]
        return any(end > bound for end, bound in pairs) and all(end >= bound for end, bound in pairs)
    return False


def _before(moment: Moment | None, topic: str, partition: int, offset: int, time_ms: int) -> bool:
    """Whether a record stands before a moment. What a cut does not name is before none."""
    if moment is None:
        return False
    if isinstance(moment, Instant):
        return time_ms < moment.time_ms
    bound = moment.next_offset(topic, partition)
    return bound is not None and offset < bound


def count_of(log: Log, topics: Sequence[str], within: Range) -> int:
    """How many records `records_of` has at most: offsets that no record has any more, or that stand for none, count as well."""
    return sum([max(within.ends(log, *place) - within.starts(log, *place), 0) for place in places(log, *topics)])


def records_of(log: Log, topics: Sequence[str], within: Range, batch: int) -> Iterator[Record]:
    """The records of all partitions of `topics`, by append time, and by topic and partition where times are equal.

    Topics that the log does not have are passed over. Raises UsageProblem, WrongCut, HistoryMissing, OffsetOutOfRange, LogDamaged.
    """
    within.check(log, topics)
    streams = [between(log, *place, within.starts(log, *place), within.ends(log, *place), batch) for place in places(log, *topics)]
    ranks = {topic: rank for rank, topic in enumerate(topics)}
    yield from merge(*streams, key=lambda record: (record.time_ms, ranks[record.topic], record.partition, record.offset))
