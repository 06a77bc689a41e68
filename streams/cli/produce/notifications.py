"""OpenStack's notifications as they are read, and what goes into the log for them: life-cycle events, or a dead letter with its place.

A source hands out records with a place (`file:nova.jsonl/0@17`, a line; `versioned_notifications.info/2@1204` on a Kafka bus). The bus of
another system is only read: nothing is committed there, every start reads all that is there again, and says only what is new.
"""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import takewhile
from operator import attrgetter
from typing import BinaryIO, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from producers.openstack import PRODUCER, OpenStack, Told
from producers.openstack_fleet import RECORD_PREFIX, together
from producers.openstack_payloads import SWAP_MIB_MAX
from producers.source import epoch_after, said
from schemas.claims import NodeConfigured
from schemas.codec import Unreadable, decode_keyed
from schemas.lifecycle import InstanceDeleted, InstanceDeparted, LifecycleEvent
from schemas.topics import CLAIMS, DEAD_LETTERS, LIFECYCLE
from streams.cli.printed import units
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.produce.publishing import message
from streams.dead_letters import PREFIX, dead_letter
from streams.log.base import Log, Message, Partition, Record, read_at_hand
from streams.log.reading import places, topic_records
from streams.message import message_of

BATCH_RECORDS = 500
COME_TRIES, COME_SECONDS = 20, 0.1
"""How often messages that a bus has are asked for again where none are at hand, and the pause between."""
CE_SOURCE = f"claimlog/{PRODUCER}"
NO_TEXT = {
    b"\x1f\x8b": "packed by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ\x00": "packed by xz",
    BOM_UTF16_LE: "UTF-16",
    BOM_UTF16_BE: "UTF-16",
}
"""What files begin with that were packed when they were put aside, or written by another editor."""
HASH_HEADER = PREFIX + "hash"


class Source(Protocol):
    """Where notifications come from."""

    name: str

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow any more."""
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
    """The messages of a whole file; what is no JSON at all is one message, which then says so."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return iter([(1, text)])
    messages = document if isinstance(document, list) else [document]
    return enumerate(map(msgspec.json.encode, messages), start=1)


class Bus:
    """Topics of a Kafka cluster, from the oldest message they still have. `named` gives a topic's name on the cluster."""

    is_over = False

    def __init__(self, log: Log, topics: Iterable[str], named: Callable[[str], str], tell: Callable[[str], None]) -> None:
        self._log, self._named, self._tell = log, named, tell
        counts = log.topics()
        self._next = {Partition(topic, number): log.start(topic, number) for topic in topics for number in range(counts[topic])}
        self.name = ", ".join(sorted({named(place.topic) for place in self._next}))

    def read(self) -> list[Record]:
        """See `Source`. In about the order of time over all partitions. If it raises, the same are read again."""
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
        """The next messages of a partition up to `end`; a broker may not have sent them yet. Offsets may be without a record, too."""
        for _ in range(COME_TRIES):
            if self._next[place] >= end:
                break
            if records := self._at_hand(place):
                return records
            self._log.wait({}, COME_SECONDS)
        return []

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


class Letter(NamedTuple):
    """A dead letter by its place and its bytes: line 3 of another day's file, or of another standard input, is another message."""

    place: bytes
    value_hash: bytes


class Tally(Struct):
    """What became of the messages."""

    notifications: int = 0
    events: int = 0
    configured: int = 0
    dead_letters: int = 0


class Feed:
    """Turns records of sources into messages for the log. `known` are the dead letters that are in the log already."""

    def __init__(self, follower: OpenStack, known: Iterable[Letter] = ()) -> None:
        self.follower = follower
        self.tally = Tally()
        self._known = set(known)

    def take(self, records: Iterable[Record]) -> list[Message]:
        """What to append for these records, in order."""
        messages: list[Message] = []
        for record in records:
            self.tally.notifications += 1
            found = self.follower.take(record.value)
            if isinstance(found, Unreadable):
                messages += self._letter(record, found)
                continue
            messages += self.told(found)
        return messages

    def told(self, events: Iterable[LifecycleEvent]) -> list[Message]:
        """Events as messages."""
        messages = []
        for event in events:
            self.tally.events += 1
            messages.append(message(said(LIFECYCLE, event)))
        return messages

    def settle(self) -> list[Message]:
        """What else is to be said when all that is there now has been read: of instances told of before, and of nodes' settings."""
        messages = self.told(self.follower.caught_up())
        for record in self.follower.configured():
            messages.append(message_of(CLAIMS, record, event_id=record.record_id, source=CE_SOURCE, subject=record.node_id))
            self.tally.configured += 1
        return messages

    def _letter(self, record: Record, fault: Unreadable) -> Sequence[Message]:
        self.tally.dead_letters += 1
        letter = dead_letter(record, fault)
        known = Letter(letter.key, dict(letter.headers)[HASH_HEADER])
        if known in self._known:
            return ()
        self._known.add(known)
        return (letter,)


class Before(Struct):
    """What earlier processes of this producer put into the log: the last word on each instance and node, and the epochs used."""

    told: dict[tuple[str, str], Told]
    epochs: dict[str, int]

    def epoch_of(self, start_ms: int) -> Callable[[str], int]:
        """Gives each node an epoch above those used before."""
        return lambda node_id: epoch_after(self.epochs.get(node_id), start_ms)


def told_before(log: Log) -> Before:
    """Read what this producer said from the whole of the life-cycle topic."""
    before = Before({}, {})
    for record in _marked(log, LIFECYCLE, b'"producer":' + msgspec.json.encode(PRODUCER)):
        event = decode_keyed(LIFECYCLE, record.key, record.value)
        if isinstance(event, Unreadable) or event.producer != PRODUCER:
            continue
        is_gone = isinstance(event, InstanceDeparted | InstanceDeleted)
        before.told[event.instance.instance_id, event.node_id] = Told(
            event.event_time_ms, None if is_gone else event.instance, isinstance(event, InstanceDeleted)
        )
        before.epochs[event.node_id] = max(event.epoch, before.epochs.get(event.node_id, 0))
    return before


def configured_before(log: Log) -> dict[str, NodeConfigured]:
    """What this producer said of each node's settings, all its words together."""
    before: dict[str, NodeConfigured] = {}
    for record in _marked(log, CLAIMS, f'"record_id":"{RECORD_PREFIX}/'.encode()):
        event = decode_keyed(CLAIMS, record.key, record.value)
        if isinstance(event, NodeConfigured):
            before[event.node_id] = together(before.get(event.node_id), event)
    return before


def _marked(log: Log, topic: str, mark: bytes) -> Iterator[Record]:
    """The records of a topic that may be this producer's: all that have these bytes somewhere."""
    with Progress("read", sum(log.end(*place) - log.start(*place) for place in places(log, topic))) as progress:
        for record in topic_records(log, topic):
            progress.add()
            if mark in record.value:
                yield record


def letters_before(log: Log) -> set[Letter]:
    """The dead letters that are there."""
    return {Letter(record.key, dict(record.headers).get(HASH_HEADER, b"")) for record in topic_records(log, DEAD_LETTERS)}


def swaps(texts: Iterable[str]) -> Mapping[str, int]:
    """The table of `--swap-mib FLAVOR=MIB`. Raises UsageProblem."""
    table: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.isdecimal():
            raise UsageProblem(f"--swap-mib {text!r}: expected FLAVOR=MIB, such as m1.small=512")
        swap_mib = Decimal(number)  # An `int` is not read from thousands of digits.
        if swap_mib > SWAP_MIB_MAX:
            raise UsageProblem(f"--swap-mib {text!r}: expected at most {SWAP_MIB_MAX} MiB")
        if table.setdefault(name, int(swap_mib)) != swap_mib:
            raise UsageProblem(f"--swap-mib {text!r}: another one says {table[name]} MiB of it; expected one of them")
    return table
