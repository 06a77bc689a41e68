"""Up to where observations were carried into the ledger, from the ledger itself: each carried record has its source's position as its id.

For when nobody else knows it: brokers forget what a group has stored after a while, and carrying everything again would double the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from projections.reading import between
from schemas.codec import Unreadable, decode_keyed
from schemas.topics import CLAIMS
from streams.log.base import Log, LogDamaged, OffsetOutOfRange, Partition, Record
from streams.log.reading import backwards
from streams.reconciler import reconcile

BATCH_RECORDS: Final = 5_000
LOOK_BACK_RECORDS: Final = 1_000_000
"""So far back is looked, which takes seconds; what was carried before that is carried again, and the fold ignores it. As far ahead, too."""
DOUBTS_MAX: Final = 64
"""So many records that are not what they say to be are passed over: of a source that was made anew all are."""
OFFSET_DIGITS_MAX: Final = 19


def last_carried(log: Log, partition: int, claims_end: int, sources: Collection[str]) -> dict[str, tuple[int, Record]]:
    """The newest record of each source that stands in the ledger's partition below `claims_end`: its offset there, and what it became.

    An older one than there is does no harm: from there on some are carried again, which changes nothing. A record that only says that it is
    one (others may write to the ledger, or the source was made anew) is passed over; after some of those nothing of the source is found.
    """
    found: dict[str, tuple[int, Record]] = {}
    doubts, given_up = Counter[str](), set[str]()
    lowest = max(log.start(CLAIMS, partition), claims_end - LOOK_BACK_RECORDS)
    for record in backwards(log, Partition(CLAIMS, partition), lowest, claims_end, BATCH_RECORDS) if sources else ():
        topic, offset = _source_of(record)
        if topic not in sources or topic in found or topic in given_up or offset < 0:
            continue
        if _may_be_of(log, topic, partition, offset, record):
            found[topic] = offset, record
        else:
            doubts[topic] += 1
            if doubts[topic] >= DOUBTS_MAX:
                given_up.add(topic)
        if len(found) + len(given_up) == len(sources):
            break
    return found


def _may_be_of(log: Log, source: str, partition: int, offset: int, became: Record) -> bool:
    """Whether the source's record at this offset becomes this one, or has left the log."""
    if isinstance(decode_keyed(CLAIMS, became.key, became.value), Unreadable):
        return False
    if offset < log.start(source, partition):
        return True
    if offset >= log.end(source, partition):
        return False
    try:
        (record, *_) = log.read(source, partition, offset, 1)
    except (OffsetOutOfRange, LogDamaged):
        return True  # It left just now, or cannot be told.
    message = reconcile(record, log.topics()[CLAIMS])
    is_same = not isinstance(message, Unreadable) and (message.key, message.value) == (became.key, became.value)
    return is_same and record.offset == offset


def next_carried(
    log: Log, partition: int, claims_end: int, sources: Mapping[str, int], is_copy: Callable[[Record], bool]
) -> dict[str, tuple[int, Record]]:
    """The first record of each source that stands in the ledger's partition from `claims_end` on: its offset there, and what it became.

    They are carried in order, but for copies: what stands below a source's offset in `sources` is one, and whatever `is_copy` says.
    """
    found: dict[str, tuple[int, Record]] = {}
    highest = min(log.end(CLAIMS, partition), claims_end + LOOK_BACK_RECORDS)
    for record in between(log, CLAIMS, partition, claims_end, highest, BATCH_RECORDS):
        topic, offset = _source_of(record)
        if topic in sources and topic not in found and offset >= sources[topic] and not is_copy(record):
            found[topic] = offset, record
            if len(found) == len(sources):
                break
    return found


def _source_of(record: Record) -> tuple[str, int]:
    """Topic and offset of the observation that this record carries; the offset is -1 where it carries none."""
    topic, _, offset = dict(record.headers).get("ce_id", b"").decode(errors="replace").rpartition(f"/{record.partition}@")
    return topic, int(offset) if offset.isdecimal() and len(offset) <= OFFSET_DIGITS_MAX else -1


def first_to_carry(log: Log, source: str, partition: int) -> int:
    """The first offset of a source that the ledger does not show to be carried; 0 where that is not this source's record.

    So it is where the topic was made anew: what stands at an offset now is not what was carried from there.
    """
    start, end = log.start(source, partition), log.end(source, partition)
    carried = last_carried(log, partition, log.end(CLAIMS, partition), (source,)).get(source) if end > start else None
    return carried[0] + 1 if carried is not None and carried[0] >= start else 0
