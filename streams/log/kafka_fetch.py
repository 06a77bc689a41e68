"""Reads partitions by offset through one consumer, ahead of those who ask, and sleeps until records come.

It never joins a group: every partition is given its offset, and moved by us alone. What comes is put into one `Window` a partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as Fetched

from streams.log.base import Headers, Partition, Record
from streams.log.kafka_client import NEWEST
from streams.log.kafka_errors import is_end, log_error
from streams.log.kafka_gaps import WHOLE, behind_the_last, missing, without_gaps
from streams.log.kafka_settings import KafkaSettings
from streams.log.kafka_window import AHEAD_BYTES, Window

# A consumer waits for records at the end of its partitions; a partition given to it meanwhile waits as long for its first fetch.
TAIL: Final = {"fetch_wait_max_ms": 25, "queued_max_messages_kbytes": 16 << 10, "fetch_queue_backoff_ms": 2}
# One that reads history is asked for something that is there, so nothing may be in its way.
HISTORY: Final = {"fetch_wait_max_ms": 5, "queued_max_messages_kbytes": 16 << 10, "fetch_queue_backoff_ms": 2}

CONSUME_RECORDS: Final = 5000
"""Messages taken from the client at once: a fraction of its queue, and enough that the call costs little a record."""
NUDGE_SECONDS: Final = 0.03
"""How long records that are known to be there may take before the client is woken; a busy broker takes half of it."""
METADATA_SECONDS: Final = 5.0
"""How long a client may look for topics; it only saves time."""
DRY_SECONDS: Final = 0.0002
"""After nothing had come so long nothing is looked for again: a turn of a loop reads a score of partitions, and one look is for all."""
INTERRUPT_SECONDS: Final = 0.25
"""How late an interrupt may come: none is taken while the client waits."""
RENEWED: Final = 2 / 3
"""With so much of the patience left, who waits for a record tries another consumer: after some troubles one waits for good."""
RENEWED_SECONDS: Final = 3 * METADATA_SECONDS
"""Of a patience that is shorter nothing is taken for that: a new one may have to look for its topics first."""
REST_SECONDS: Final = 3.0
"""How long history that nobody asks for is fetched on: a broker is asked for it two hundred times a second where nothing comes."""
REST_UNREAD_SECONDS: Final = 30.0
"""The same where there is something that was fetched and not read: it would have to be fetched again."""
IDLE_SECONDS: Final = 10.0
"""A partition that runs full and was not asked for so long is let go."""

UNREADABLE_HEADERS: Final[Headers] = (("claimlog-headers-unreadable", b""),)
"""What the headers of a record read as if a name among them is no text."""

_second = itemgetter(1)
_place = attrgetter("topic", "partition")


class Noting(Protocol):
    """Whoever remembers what was fetched (`kafka_rewound`)."""

    def note(self, place: Partition, records: Sequence[Record], messages: Sequence[Fetched], *, begins: bool) -> None:
        """These were fetched in a row; `begins` says that they are a consumer's first of this partition."""
        ...


class Fetcher:
    """The windows of all partitions that one consumer reads. `ends` is shared: the highest offset known to come, by partition."""

    def __init__(self, consumer: Consumer, settings: KafkaSettings, ends: dict[Partition, int], memory: Noting) -> None:
        self._consumer, self._settings, self._ends, self._memory = consumer, settings, ends, memory
        self.windows: dict[Partition, Window] = {}
        self._names: dict[str, str] = {}
        self._learnt: set[str | None] = set()
        self._look_again = 0.0
        self._awaited: Partition | None = None

    def follow(self, offsets: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets on; what was held of them is dropped."""
        self.drop(offsets)
        if offsets:
            self._learn({place.topic for place in offsets})
            idle = all(window.parked for window in self.windows.values())
            self._consumer.incremental_assign([self._there(place, offset) for place, offset in offsets.items()])
            now = time.monotonic()
            self.windows |= {place: Window(offset, now) for place, offset in offsets.items()}
            if idle:
                self._nudge(next(iter(offsets)))

    def _learn(self, topics: set[str]) -> None:
        """Let the client know where topics are before it is given their partitions; else it may look for them once a second only."""
        if not topics <= self._learnt:
            # If no broker answers now, what is read next finds out.
            with suppress(KafkaException):
                self._learnt = {self._settings.own(name) for name in self._consumer.list_topics(timeout=METADATA_SECONDS).topics}

    def drop(self, places: Iterable[Partition]) -> None:
        """Stop reading these."""
        held = {place: self.windows.pop(place) for place in places if place in self.windows}
        given = [self._there(place) for place, window in held.items() if not window.parked]
        if given:
            self._consumer.incremental_unassign(given)

    def rest(self, now: float) -> None:
        """Stop reading what nobody has asked for of late; whoever does again is served from there on, a few milliseconds later."""
        idle = {place: window for place, window in self.windows.items() if now - window.asked_seconds > REST_SECONDS}
        self.drop([place for place, window in idle.items() if window.is_read() or now - window.asked_seconds > REST_UNREAD_SECONDS])

    def is_dry(self, place: Partition, offset: int, now: float) -> bool:
        """Whether nothing is at hand from `offset` on in a partition that this one reads, and a look a moment ago found nothing either."""
        window = self.windows.get(place)
        if window is None or window.next != offset or window.fault is not None or now >= self._look_again:
            return False
        window.asked_seconds = now
        return True

    def look(self, now: float) -> None:
        """Take in what has come, without waiting, unless that was done a moment ago."""
        if now >= self._look_again:
            self.poll(0)

    def take(self, place: Partition, offset: int, records_max: int, bytes_max: int) -> list[Record]:
        """What is at hand of a partition that this one reads, without waiting. With nothing there raises its fault and reads it no more."""
        window = self.windows[place]
        window.asked_seconds = now = time.monotonic()
        if window.next < offset + records_max and now >= self._look_again:
            self.poll(0)
        found = window.take(offset, records_max, bytes_max)
        if not found:
            self._sound(place)
        if window.parked and window.ahead_bytes() < AHEAD_BYTES // 4:
            window.parked = False
            self._consumer.incremental_assign([self._there(place, window.next)])
        return found

    def await_beyond(self, place: Partition, offset: int, left: Callable[[], float], least: float = 0.0) -> bool:
        """Wait until records at or above `offset` are there or the end is known to be at hand; False once `least` seconds are `left`."""
        while self.windows[place].next <= offset < self._ends.get(place, 0):
            self._sound(place)
            seconds = left() - least
            if seconds <= 0:
                return False
            self._awaited = place
            try:
                came = self.poll(min(seconds, NUDGE_SECONDS))
            finally:
                self._awaited = None
            if not came:
                self._nudge(place)
        return True

    def _nudge(self, place: Partition) -> None:
        """Ask anything: librdkafka's thread of a broker sleeps for a second if it fetches nothing; a new partition does not wake it."""
        with suppress(KafkaException):
            self._consumer.offsets_for_times([self._there(place, NEWEST)], timeout=NUDGE_SECONDS)

    def poll(self, timeout_seconds: float) -> bool:
        """Take in what has come, waiting at most so long for the first of it; returns whether anything has."""
        # Asked for many, the client would sleep until it has as many.
        messages = self._consumer.consume(1, min(timeout_seconds, INTERRUPT_SECONDS)) if timeout_seconds > 0 else []
        if messages or timeout_seconds <= 0:
            messages += self._consumer.consume(CONSUME_RECORDS, 0)
        if len(messages) < CONSUME_RECORDS:
            self._look_again = time.monotonic() + DRY_SECONDS
        if not messages:
            return False
        events: list[Fetched] = []
        if any(map(Fetched.error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        end = 0
        for (name, number), run in groupby(_records(messages, self._names, self._settings), key=_place):
            records = list(run)
            begin, end = end, end + len(records)
            self._put(Partition(name, number), records, messages[begin:end])
        # The end of a partition comes behind its records, and moves the window there.
        for event in events:
            self._heed(event)
        return True

    def _put(self, place: Partition, records: list[Record], messages: Sequence[Fetched]) -> None:
        window = self.windows.get(place)
        if window is None or window.fault is not None:
            return
        self._memory.note(place, records, messages, begins=window.next == window.first)
        whole = without_gaps(place, window.next, records)
        if whole:
            window.put(whole)
        if window.next <= records[-1].offset:
            window.fault = missing(place, window.next)
        self._ends[place] = max(self._ends.get(place, 0), window.next)
        if not window.parked and window.ahead_bytes() > AHEAD_BYTES:
            # Taken away and given back at its offset: a partition that is paused and resumed stands still for a second.
            self._consumer.incremental_unassign([self._there(place)])
            window.parked = True
            # Who waits asks for it, however long a broker or this process stood still.
            if place != self._awaited and time.monotonic() - window.asked_seconds > IDLE_SECONDS:
                del self.windows[place]

    def _heed(self, message: Fetched) -> None:
        """Deal with a message that is no record: the end of a partition, or why it cannot be read on."""
        error = message.error()
        if error is None:
            return
        place = Partition(self._settings.own(message.topic() or "") or "", message.partition() or 0)
        window = self.windows.get(place)
        if window is None:
            if error.fatal():
                raise log_error(error, self._settings.place, "reading")
        elif is_end(error):
            self._end_at(place, window, message.offset() or 0)
        else:
            window.fault = log_error(error, f"{place}@{window.next}", "reading", was_there=True)

    def _end_at(self, place: Partition, window: Window, end: int) -> None:
        """Behind the last record there may be offsets without one: markers, or what compaction took."""
        if window.fault is not None or end <= window.next:
            return
        if place.topic in WHOLE:
            window.fault = missing(place, window.next)
            return
        stand_ins = behind_the_last(place, window.next, end, window.newest_ms)
        if stand_ins:
            window.put(stand_ins)
        window.next = end
        self._ends[place] = max(self._ends.get(place, 0), end)

    def _sound(self, place: Partition) -> Window:
        window = self.windows[place]
        if window.fault is not None:
            self.drop([place])
            raise window.fault
        return window

    def _there(self, place: Partition, offset: int | None = None) -> TopicPartition:
        name = self._settings.topic(place.topic)
        return TopicPartition(name, place.number) if offset is None else TopicPartition(name, place.number, offset)

    def give_up(self) -> Consumer:
        """Read no more; returns the consumer, which the caller ends."""
        self.windows.clear()
        return self._consumer


def _records(messages: list[Fetched], names: dict[str, str], settings: KafkaSettings) -> Iterable[Record]:
    """The records of messages. Field by field through `map`, since a loop in Python over seven calls each would halve the speed."""
    topics = list(map(Fetched.topic, messages))
    for topic in set(topics) - names.keys():
        names[topic or ""] = settings.own(topic or "") or ""
    return map(
        Record,
        [names[topic or ""] for topic in topics],
        map(Fetched.partition, messages),
        map(Fetched.offset, messages),
        map(_second, map(Fetched.timestamp, messages)),
        _present(map(Fetched.key, messages)),
        _present(map(Fetched.value, messages)),
        _headers(_given_headers(messages)),
    )


def _present(values: Iterable[bytes | None]) -> list[bytes]:
    """A key or value that is missing (another client's) reads as an empty one."""
    return [value or b"" for value in values]


def _given_headers(messages: list[Fetched]) -> list[Any]:
    """The headers as the client has them. It fails on names that are not UTF-8, which other clients write: no record counts by headers.

    Each message is asked once: a second answer of one that failed is a broken list, which ends the process.
    """
    given: list[Any] = []
    headers = map(Fetched.headers, messages)
    while len(given) < len(messages):
        try:
            given.extend(headers)
        except (SystemError, UnicodeDecodeError):
            given.append(UNREADABLE_HEADERS)
    return given


def _headers(given: list[Any]) -> list[Headers]:
    """Lists of pairs, or None where there is no header; a value that is missing reads as an empty one."""
    found: list[Headers] = [tuple(headers) if headers else () for headers in given]
    if None in map(_second, chain.from_iterable(found)):
        return [tuple([(name, value or b"") for name, value in headers]) for headers in found]
    return found
