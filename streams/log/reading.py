"""Ways through a log: the places of topics, all records of one, and those of a partition from behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Final

from projections.reading import between
from streams.log.base import Log, Partition, Record

READ_RECORDS: Final = 2_000


def places(log: Log, *topics: str) -> list[Partition]:
    """Every partition of these topics, in their order; of a topic that the log does not have there is none."""
    there = log.topics()
    return [Partition(topic, number) for topic in topics for number in range(there.get(topic, 0))]


def partition_records(log: Log, topic: str, partition: int, last: int | None = None) -> Iterator[Record]:
    """All records of a partition that are at hand now, or the `last` so many."""
    start, end = log.start(topic, partition), log.end(topic, partition)
    return between(log, topic, partition, start if last is None else max(start, end - last), end, READ_RECORDS)


def topic_records(log: Log, topic: str, last: int | None = None) -> Iterator[Record]:
    """The same of every partition of a topic, one after the other; none if the log does not have it."""
    for place in places(log, topic):
        yield from partition_records(log, *place, last)


def newer(log: Log, topic: str, positions: dict[int, int]) -> Iterator[Record]:
    """The records of a topic at and behind these positions, one for each partition, which move along.

    What has left the log meanwhile is passed over. If it raises, the next time goes on where this one was.
    """
    for number, position in list(positions.items()):
        first, end = max(position, log.start(topic, number)), log.end(topic, number)
        for record in between(log, topic, number, first, end, READ_RECORDS):
            positions[number] = record.offset + 1
            yield record


def by_time(partitions: Iterable[Sequence[Record]]) -> list[Record]:
    """Records of several partitions together, in the order of time; of each in that of the log, should its clock go back."""
    timed = [each for records in partitions for each in zip(accumulate((record.time_ms for record in records), max), records, strict=True)]
    return [record for _, record in sorted(timed, key=itemgetter(0))]


def backwards(log: Log, place: Partition, start: int, end: int, batch: int = READ_RECORDS) -> Iterator[Record]:
    """The records of a partition from before `end` down to `start`, the last one first, read so many at a time."""
    while end > start:
        first = max(end - batch, start)
        yield from reversed(list(between(log, *place, first, end, batch)))
        end = first
