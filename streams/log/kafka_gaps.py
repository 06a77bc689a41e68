"""Offsets without a record: the marks that Kafka's transactions leave, one in each partition that was written to.

Every fold counts offsets, so each has to be something. In topics that outsiders write (requests, observations), and in what is derived,
such an offset reads as an empty record that says what it is, and everybody passes over it. In `claims` and `placement-results` it may as
well be a record that a disk or a compaction lost, on which a number would rest: nothing is served from there on. Pure.
"""

from __future__ import annotations

from typing import Final

from schemas.topics import CLAIMS, RESULTS, TOPICS
from streams.log.base import NO_RECORD, LogCutShort, Partition, Position, Record

WHOLE: Final = frozenset((CLAIMS, RESULTS))
"""Where each offset must be a record."""
FILLED: Final = frozenset(topic.name for topic in TOPICS.values() if topic.kept != "compacted") - WHOLE
"""Where one that is not is passed over. In compacted topics most offsets have no record, and nobody counts them."""


def without_gaps(place: Partition, begin: int, records: list[Record]) -> list[Record]:
    """What was fetched of a partition from `begin` on, with a stand-in for each offset that has no record.

    Where each must have one it goes up to the first that has not.
    """
    if not records or records[-1].offset - begin + 1 == len(records) or place.topic not in FILLED | WHOLE:
        return records
    found: list[Record] = []
    for record in records:
        if record.offset > begin and place.topic in WHOLE:
            break
        found += [_stand_in(place, offset, record.time_ms) for offset in range(begin, record.offset)]
        found.append(record)
        begin = record.offset + 1
    return found


def behind_the_last(place: Partition, begin: int, end: int, time_ms: int) -> list[Record]:
    """Stand-ins for the offsets from `begin` up to the `end` of a partition, behind its last record, which is of `time_ms`.

    Of a compacted topic the last alone: who has read that has read all.
    """
    if place.topic not in TOPICS:
        return []
    return [_stand_in(place, offset, time_ms) for offset in range(begin if place.topic in FILLED else max(begin, end - 1), end)]


def missing(place: Partition, offset: int) -> LogCutShort:
    """Why nothing is served from an offset without a record on."""
    position = Position(*place, offset)
    return LogCutShort(
        f"{position}: no record has this offset, and every one is needed: somebody wrote here in a transaction, whose mark takes an "
        "offset, or a compaction or a disk lost it. Only claimlog may write here (docs/kafka.md); go on from a copy of before "
        "(`claimlog copy`)",
        position,
    )


def _stand_in(place: Partition, offset: int, time_ms: int) -> Record:
    return Record(place.topic, place.number, offset, time_ms, b"", b"", NO_RECORD)
