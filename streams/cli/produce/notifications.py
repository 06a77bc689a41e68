"""OpenStack's notifications as they are read, and what goes into the log for them: life-cycle events, or a dead letter with its place.

Every start reads all that its sources have (`streams.cli.produce.sources`), and says only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

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
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.produce.publishing import message
from streams.dead_letters import PREFIX, dead_letter
from streams.log.base import Log, Message, NameTaken, Record
from streams.log.reading import newer, topic_records
from streams.message import message_of

LOOK_SECONDS = 5.0
"""Between two looks at what others of this producer have said: what is read for that is mostly one's own."""
CE_SOURCE = f"claimlog/{PRODUCER}"
HASH_HEADER = PREFIX + "hash"
SETTINGS_MARK = f'"record_id":"{RECORD_PREFIX}/'.encode()
"""In each record on a node's settings."""
OWN_MARK = b'"producer":' + msgspec.json.encode(PRODUCER)
"""In each record of this producer, as it is written."""


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
    """Read what this producer said from the whole of the life-cycle topic, but for what counts for nothing: it is to be said again."""
    before = Before({}, {})
    last: dict[str, tuple[int, int]] = {}
    for record in _marked(log, LIFECYCLE, OWN_MARK, {}):
        event = decode_keyed(LIFECYCLE, record.key, record.value)
        if isinstance(event, Unreadable) or event.producer != PRODUCER or (event.epoch, event.counter) <= last.get(event.node_id, (-1, -1)):
            continue
        last[event.node_id] = event.epoch, event.counter
        is_gone = isinstance(event, InstanceDeparted | InstanceDeleted)
        before.told[event.instance.instance_id, event.node_id] = Told(
            event.event_time_ms, None if is_gone else event.instance, isinstance(event, InstanceDeleted)
        )
        before.epochs[event.node_id] = event.epoch
    return before


class Overtaken:
    """Whether another process of this producer, which began later, has spoken of a node since: what this one says of it counts for nothing.

    The other may be one that only reads what a bus had lost, and ends.
    """

    def __init__(self, log: Log, follower: OpenStack, since: Mapping[int, int], seconds: Callable[[], float]) -> None:
        """`since` are the ends before this process read what was said before."""
        self._log, self._follower, self._next, self._seconds = log, follower, dict(since), seconds
        self._due = 0.0

    def check(self) -> None:
        """Look, now and then, at what has come since the last time. Raises NameTaken."""
        if self._seconds() >= self._due:
            self.look()
            self._due = self._seconds() + LOOK_SECONDS

    def look(self) -> None:
        """Look at what has come since the last time. Raises NameTaken."""
        for record in newer(self._log, LIFECYCLE, self._next):
            event = decode_keyed(LIFECYCLE, record.key, record.value) if OWN_MARK in record.value else None
            if event is None or isinstance(event, Unreadable) or event.producer != PRODUCER:
                continue
            if event.epoch > self._follower.epoch(event.node_id):
                raise NameTaken(
                    f"another `claimlog produce openstack`, which began later, told of {event.node_id} at {record.position}: what this one "
                    "says there counts for nothing from then on. Start it again once the other has ended; it says what is missing"
                )


class Settings:
    """What this producer said of each node's settings, all its words together, in whatever process: another may have spoken meanwhile."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next: dict[int, int] = {}
        self._said: dict[str, NodeConfigured] = {}

    def __call__(self) -> dict[str, NodeConfigured]:
        """As of now. The first time all of `claims` is read, and then what has come since. Raises LogUnreachable."""
        for record in _marked(self._log, CLAIMS, SETTINGS_MARK, self._next):
            event = decode_keyed(CLAIMS, record.key, record.value)
            if isinstance(event, NodeConfigured):
                self._said[event.node_id] = together(self._said.get(event.node_id), event)
        return self._said


def _marked(log: Log, topic: str, mark: bytes, positions: dict[int, int]) -> Iterator[Record]:
    """The records of a topic that may be this producer's: all that have these bytes somewhere, behind positions that move along."""
    ends = log.ends(topic)
    for number in ends:
        positions.setdefault(number, log.start(topic, number))
    with Progress("read", sum(max(0, end - positions[number]) for number, end in ends.items())) as progress:
        for record in newer(log, topic, positions):
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
