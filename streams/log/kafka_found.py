"""Where records stand that were acknowledged without an offset: they are looked for in the log, from behind.

The acknowledgement of a batch may be lost with its leader. That of one behind it says that it has landed, and not where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from streams.log.base import LogUnreachable, Message, Partition, Record
from streams.log.kafka_send import UNKNOWN

BATCH_RECORDS: Final = 500
BACK_RECORDS_MAX: Final = 20_000
"""How many records others may have written since: what they write in the half a minute that an append may take."""


def found(
    read: Callable[[str, int, int, int], Sequence[Record]],
    start: Callable[[str, int], int],
    end: Callable[[str, int], int],
    messages: Sequence[Message],
    numbers: Sequence[int],
    offsets: Sequence[int],
) -> list[int]:
    """The offsets of appended messages, those that are UNKNOWN looked for; `numbers` are their partitions.

    Raises LogUnreachable where one is not found, which is then to be appended again.
    """
    complete = list(offsets)
    below: dict[Partition, int] = {}
    for index in reversed(range(len(messages))):
        place = Partition(messages[index].topic, numbers[index])
        if complete[index] == UNKNOWN:
            complete[index] = _last_below(read, place, start(*place), below.get(place) or end(*place), messages[index])
        below[place] = complete[index]
    return complete


def _last_below(read: Callable[[str, int, int, int], Sequence[Record]], place: Partition, start: int, below: int, message: Message) -> int:
    """The offset of the last record with these bytes that stands below an offset, and not below the log's start. Raises LogUnreachable."""
    lowest = max(below - BACK_RECORDS_MAX, start)
    while below > lowest:
        first = max(below - BATCH_RECORDS, lowest)
        records: list[Record] = []
        while (at := records[-1].offset + 1 if records else first) < below and (more := read(*place, at, below - at)):
            records += more
        for record in reversed(records):
            if record.offset < below and (record.key, record.value) == (message.key, message.value):
                return record.offset
        below = first
    raise LogUnreachable(f"{place}: appending: acknowledged, and nobody says where; append the same bytes again")
