"""Where OpenStack's notifications come from: files, what another process writes, a bus.

A source hands out records with a place (`file:nova.jsonl/0@17`, a line; `versioned_notifications.info/2@1204` on a Kafka bus). The bus of
another system is only read: nothing is committed there, every start reads all that is there again.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from operator import attrgetter
from select import POLLIN, poll
from typing import BinaryIO, Protocol

import msgspec

from streams.cli.printed import units
from streams.cli.problems import UsageProblem
from streams.clock import Clock
from streams.log.base import Log, Partition, Record, TopicMismatch, read_at_hand, topic_id_of

BATCH_RECORDS = 500
PIPE_BYTES = 1 << 16
REST_MS, BACKLOG_MS = 3_000, 60_000
ANEW = "it was made anew, and is read from its start"
NO_TEXT = {
    b"\x1f\x8b": "packed by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ\x00": "packed by xz",
    BOM_UTF16_LE: "UTF-16",
    BOM_UTF16_BE: "UTF-16",
}
"""What files begin with that were packed when they were put aside, or written by another editor."""


class Source(Protocol):
    """Where notifications come from."""

    @property
    def name(self) -> str:
        """What to call it; empty while there is nothing of it."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow any more."""
        ...

    @property
    def rests(self) -> bool:
        """After a reading that gave none: whether all that there is now has been read."""
        ...

    def read(self) -> list[Record]:
        """The next messages; none if there are none now."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep until there is something to read, or the time is up."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class Lines:
    """JSON lines, or a file that is one JSON document: a message or a list of them. A record's offset is its line, or place in the list."""

    rests = True

    def __init__(self, name: str, file: BinaryIO, time_ms: int, *, is_document: bool = False) -> None:
        """`time_ms` is when it was read: a file keeps no time of its own for each line. Raises UsageProblem for what is no text."""
        self.name = name
        self.is_over = False
        self._file, self._time_ms = file, time_ms
        self._values = _document(_text(name, file.read())) if is_document else _numbered(name, file)

    def read(self) -> list[Record]:
        """See `Source`. Raises UsageProblem for what is no text."""
        records: list[Record] = []
        for number, value in self._values:
            if value.strip():
                records.append(Record(self.name, 0, number, self._time_ms, b"", value.rstrip(b"\r\n")))
            if len(records) == BATCH_RECORDS:
                return records
        self.is_over = True
        return records

    def wait(self, seconds: float) -> None:
        """See `Source`: a file is there or not."""

    def close(self) -> None:
        """See `Source`."""
        self._file.close()


def _numbered(name: str, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file."""
    for number, line in enumerate(file, start=1):
        yield number, _text(name, line) if number == 1 else line


def _text(name: str, start: bytes) -> bytes:
    """What a file begins with, without a mark of UTF-8. Raises UsageProblem for no text: each line were a dead letter."""
    for mark, what in NO_TEXT.items():
        if start.startswith(mark):
            raise UsageProblem(f"{name} is {what}, and JSON in UTF-8 was expected: turn it into that, or pipe it to --from -")
    return start.removeprefix(BOM_UTF8)


def _document(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of a whole file, which may be lines all the same; what is no JSON at all is one message, which then says so."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        lines = text.splitlines()
        first = next((line for line in lines if line.strip()), b"")
        return enumerate(lines, start=1) if len(lines) > 1 and _is_json(first) else iter([(1, text)])
    messages = document if isinstance(document, list) else [document]
    return enumerate(map(msgspec.json.encode, messages), start=1)


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class Piped:
    """JSON lines as another process writes them: what is there is read, and what is not is not waited for. Raises as `Lines`."""

    def __init__(self, name: str, file: BinaryIO, clock: Clock) -> None:
        self.name = name
        self._file, self._clock = file, clock
        self._began_ms = self._heard_ms = clock.boot_ms()
        self._has_rested = False
        self._readable = poll()
        self._readable.register(file, POLLIN)
        self._begun, self._number = bytearray(), 0
        self._lines: deque[bytes] = deque()
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """See `Source`."""
        return self._has_ended and not self._lines

    @property
    def rests(self) -> bool:
        """Whether nothing has come for a while, once: who writes may only be about to begin with what it has, or be slower than its reader.

        One that never pauses for so long has told what it has after a minute.
        """
        now_ms = self._clock.boot_ms()
        self._has_rested |= now_ms - self._heard_ms >= REST_MS or now_ms - self._began_ms >= BACKLOG_MS
        return self._has_rested or self.is_over

    def read(self) -> list[Record]:
        """See `Source`. Raises UsageProblem for what is no text."""
        records: list[Record] = []
        while len(records) < BATCH_RECORDS and (self._lines or self._has_more(0)):
            if not self._lines:
                continue
            line = self._lines.popleft()
            self._number += 1
            if self._number == 1:
                line = _text(self.name, line)
            if line.strip():
                records.append(Record(self.name, 0, self._number, self._clock.wall_ms(), b"", line.rstrip(b"\r")))
        return records

    def _has_more(self, seconds: float) -> bool:
        """Wait until something has come, and take it; False if nothing has, or nothing will."""
        if self._has_ended or not self._readable.poll(seconds * 1000):
            return False
        chunk = os.read(self._file.fileno(), PIPE_BYTES)
        self._begun += chunk
        self._heard_ms = self._clock.boot_ms()
        *lines, rest = self._begun.split(b"\n")
        if not chunk:
            self._has_ended, lines, rest = True, [*lines, rest] if rest else lines, bytearray()
        self._lines.extend(map(bytes, lines))
        self._begun = rest
        return True

    def wait(self, seconds: float) -> None:
        """See `Source`."""
        if not self._lines:
            self._has_more(seconds)

    def close(self) -> None:
        """See `Source`."""
        self._file.close()


class Bus:
    """Topics of a Kafka cluster, from the oldest message they still have, and those that come later from their first one.

    `opened` connects to the cluster, `chosen` says which of its topics are read, and `named` gives a topic's name on the cluster.
    """

    is_over = False
    rests = True

    def __init__(
        self,
        opened: Callable[[], Log],
        chosen: Callable[[Iterable[str]], list[str]],
        named: Callable[[str], str],
        tell: Callable[[str], None],
    ) -> None:
        self._opened, self._chosen, self._named, self._tell = opened, chosen, named, tell
        self._log, self._next = opened(), dict[Partition, int]()
        self._counts: Mapping[str, int] = {}
        self._ids = dict[str, str]()
        """Of the topics that are read, where they have any: one that was deleted and made anew has the same name."""
        self._look()

    @property
    def name(self) -> str:
        """See `Source`: its topics of now."""
        return ", ".join(sorted({self._named(place.topic) for place in self._next}))

    def _look(self) -> None:
        """Take up topics and partitions that have come, as oslo.messaging makes them with the first message, and leave those that went."""
        try:
            counts = self._log.topics()
        except TopicMismatch:  # A topic has other partitions than before: whoever reads a ledger ends then, and so does this connection.
            counts = self._connected_anew()
        if counts is self._counts:
            return
        chosen = self._chosen(counts)
        ids = {topic: found for topic in chosen if (found := topic_id_of(self._log, topic))}
        anew = {topic for topic, found in ids.items() if self._ids.get(topic, found) != found}
        there = {Partition(topic, number) for topic in chosen for number in range(counts[topic])}
        if anew or self._next.keys() - there:
            self._connected_anew()  # The old connection goes on asking for what has gone, and gets no answer.
        self._next = {place: offset for place, offset in self._next.items() if place in there and place.topic not in anew}
        for place in there - self._next.keys():
            self._next[place] = self._log.start(*place)
        for topic in sorted(anew):
            self._tell(f"{self._named(topic)}: {ANEW}")
        self._counts, self._ids = counts, ids

    def _connected_anew(self) -> Mapping[str, int]:
        before, self._log = self._log, self._opened()
        before.close()
        return self._log.topics()

    def read(self) -> list[Record]:
        """See `Source`. In about the order of time over all partitions. If it raises, the same are read again."""
        self._look()
        ends = {topic: self._log.ends(topic) for topic in {place.topic for place in self._next}}
        found = {place: self._come(place, ends[place.topic][place.number]) for place in self._next}
        # A partition with more to come is read no further than the others: a full one would be days behind a small one, of which all is at
        # hand at once. Times are the senders' own and may go back, so the newest at hand bounds the others: of that partition all is taken.
        full = [records for place, records in found.items() if records and records[-1].offset + 1 < ends[place.topic][place.number]]
        horizon_ms = min((max(each.time_ms for each in records) for records in full), default=None)
        if horizon_ms is not None:
            found = {place: list(takewhile(lambda each: each.time_ms <= horizon_ms, records)) for place, records in found.items()}
        self._next |= {place: records[-1].offset + 1 for place, records in found.items() if records}
        together = sorted((each for records in found.values() for each in records), key=attrgetter("time_ms"))
        return [msgspec.structs.replace(each, topic=self._named(each.topic)) for each in together]

    def _come(self, place: Partition, end: int) -> list[Record]:
        """The next messages of a partition up to `end`. Where none come the offsets there are marks of transactions."""
        if self._next[place] > end:
            self._tell(f"{self._named(place.topic)}/{place.number}: {ANEW}")
            self._next[place] = self._log.start(*place)
        if self._next[place] == end:
            return []
        records = self._at_hand(place)
        if not records:
            self._next[place] = end
        return records

    def _at_hand(self, place: Partition) -> list[Record]:
        offset = self._next[place]
        start, records = read_at_hand(self._log, place, offset, BATCH_RECORDS)
        if start != offset:
            self._next[place] = start  # Told once, also where nothing is left.
            gone = units.counted(start - offset, "message")
            self._tell(f"{self._named(place.topic)}/{place.number}: {gone} deleted before they were read")
        return records

    def wait(self, seconds: float) -> None:
        """See `Source`."""
        self._log.wait(self._next, seconds)

    def close(self) -> None:
        """See `Source`."""
        self._log.close()
