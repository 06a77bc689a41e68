"""Where records stand that were acknowledged without an offset: they are looked for in the log, from behind.

The acknowledgement of a batch may be lost with its leader. That of one behind it says that it has landed, and not where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streams.log.base import Log, LogUnreachable, Message, Partition
from streams.log.kafka_send import UNKNOWN
from streams.log.reading import backwards

BATCH_RECORDS: Final = 500
BACK_RECORDS_MAX: Final = 20_000
"""How many records others may have written since: what they write in the half a minute that an append may take."""


def found(log: Log, messages: Sequence[Message], numbers: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """The offsets of appended messages, those that are UNKNOWN looked for; `numbers` are their partitions.

    Raises LogUnreachable where one is not found, which is then to be appended again.
    """
    complete = list(offsets)
    below: dict[Partition, int] = {}
    for index in reversed(range(len(messages))):
        place = Partition(messages[index].topic, numbers[index])
        if complete[index] == UNKNOWN:
            complete[index] = _last_below(log, place, below.get(place) or log.end(*place), messages[index])
        below[place] = complete[index]
    return complete


def _last_below(log: Log, place: Partition, below: int, message: Message) -> int:
    """The offset of the last record with these bytes that stands below an offset, and not below the log's start. Raises LogUnreachable."""
    lowest = max(below - BACK_RECORDS_MAX, log.start(*place))
    for record in backwards(log, place, lowest, below, BATCH_RECORDS):
        if (record.key, record.value) == (message.key, message.value):
            return record.offset
    raise LogUnreachable(f"{place}: appending: acknowledged, and nobody says where; append the same bytes again")
