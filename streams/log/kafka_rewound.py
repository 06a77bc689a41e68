"""Notices a partition that was rewound under its readers and written on: a leader was elected that lacks records, or a topic made anew.

Once as many records have come as were lost, offsets do not show it. Each leader has an epoch of its own: so wherever the epoch rises, and
wherever a consumer begins anew, the last record that was read before is read again, and must be the same. Only of topics on which a
number rests; librdkafka looks at epochs as well, but not for a partition that is given to it by its offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

from confluent_kafka import Consumer

from projections.reading import at_hand
from streams.log.base import LogUnreachable, OffsetOutOfRange, Partition, Record
from streams.log.kafka_client import OLDEST, Clients
from streams.log.kafka_fetch import HISTORY, Fetcher
from streams.log.kafka_gaps import WHOLE

UNKNOWN: Final = -1
"""The epoch of what a broker says nothing of."""


WHY: Final = (
    "the topic was deleted and made anew, or records were lost, with a disk or since a broker without them was made its leader. What was "
    "made of them is of no use; start this process again, it begins anew"
)


class Rewound(OffsetOutOfRange):
    """What was read before is not in the log any more (command line: exit 6)."""


class Led(Protocol):
    """A message as the client has it."""

    def leader_epoch(self) -> int | None:
        """The epoch of the leader that took it."""
        ...


def not_at_hand(place: Partition, offset: int, start: int, end: int) -> OffsetOutOfRange:
    """Why the broker refuses an offset, which it does not say: it has those from `start` up to `end`."""
    if start <= offset <= end:
        return Rewound(f"{place}: the log does not go on at offset {offset} as it was read up to there: {WHY}")
    said = "the others were archived, or deleted (`claimlog topics check` says whether a retention is set)"
    if offset > end:
        said = (
            "where there were more, the topic was deleted and made anew, or records were lost with a disk or since a broker without them "
            "was made the partition's leader; a process that read on here is to be started again, and begins anew with what is there"
        )
    return OffsetOutOfRange(f"{place}@{offset}: {at_hand(start, end)}; {said}")


def epoch_of(message: Led) -> int:
    """The epoch of the leader that took a message."""
    epoch = message.leader_epoch()
    return UNKNOWN if epoch is None else epoch


class Memory:
    """The newest record that was fetched of each partition, and those that have to be read again before anything is handed out."""

    def __init__(self) -> None:
        self._newest: dict[Partition, tuple[Record, int]] = {}
        self.doubted: dict[Partition, list[Record]] = {}

    def note(self, place: Partition, records: Sequence[Record], messages: Sequence[Led], *, begins: bool) -> None:
        """These were fetched in a row; `begins` says that they are a consumer's first of this partition."""
        if place.topic not in WHOLE:
            return
        first, last = epoch_of(messages[0]), epoch_of(messages[-1])
        doubted = []
        newest = self._newest.get(place)
        if newest is None or newest[0].offset < records[-1].offset:
            # A row that goes on behind it, of the same leader, does so in what was read before; one that begins below it need not.
            if newest is not None and (begins or newest[1] < (first if newest[0].offset < records[0].offset else last)):
                doubted.append(newest[0])
            self._newest[place] = (records[-1], last)
        begin = 0
        while first < last:
            begin = bisect_left(messages, first + 1, begin, key=epoch_of)
            doubted.append(records[begin - 1])
            first = epoch_of(messages[begin])
        if doubted:
            self.doubted[place] = [*self.doubted.get(place, ()), *doubted]


class _Knowing:
    """What is read again is known, and not remembered a second time."""

    def note(self, place: Partition, records: Sequence[Record], messages: Sequence[Led], *, begins: bool) -> None:
        """Remember nothing."""


class Prover:
    """Reads again what is doubted, with a consumer of its own, which is made when something is."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self.memory = clients, Memory()
        self._reader: Fetcher | None = None
        self._ends: dict[Partition, int] = {}

    def prove(self, place: Partition) -> None:
        """All that was read of a partition is in the log still. Raises Rewound, LogUnreachable."""
        if place not in self.memory.doubted:
            return
        doubted = self.memory.doubted[place]
        while doubted:
            again = self._again(place, doubted[0].offset)
            if again is None or (again.time_ms, again.key, again.value) != (doubted[0].time_ms, doubted[0].key, doubted[0].value):
                raise Rewound(f"{place}: the log has another record at offset {doubted[0].offset} than it had when that was read: {WHY}")
            del doubted[0]
        del self.memory.doubted[place]

    def _again(self, place: Partition, offset: int) -> Record | None:
        """The record at this offset now; None where there is none any more. One that was archived meanwhile is taken for what it was."""
        if self._reader is None:
            self._reader = Fetcher(self._clients.consumer(**HISTORY), self._clients.settings, self._ends, _Knowing())
        self._ends[place] = offset + 1
        self._reader.follow({place: offset})
        try:
            if not self._reader.await_beyond(place, offset, self._clients.patience()):
                self._clients.aside.give_up(self._reader.give_up())
                self._reader = None
                raise LogUnreachable(f"{self._clients.settings.place}: {place}@{offset} did not come again; check the partition's leader")
            found = self._reader.take(place, offset, 1, 1)
        except OffsetOutOfRange:
            start = self._clients.offsets([place], OLDEST)[0]
            return self.memory.doubted[place][0] if offset < start else None
        finally:
            if self._reader is not None:
                self._reader.drop([place])
        return found[0] if found and found[0].offset == offset else None

    def give_up(self) -> list[Consumer]:
        """Read no more; returns the consumer, if there is one, which the caller ends."""
        reader, self._reader = self._reader, None
        return [] if reader is None else [reader.give_up()]
