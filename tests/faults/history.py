"""Histories: what each client asked of the log and was told, as it happened; and five checkers of what no log may do.

A call that changes something is written down before it is made and again when it is answered, so that a client that is killed in between
leaves a call without answer: it may have been carried out or not. Times are of the machine's monotonic clock, one for all processes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, field

from schemas.resources import RESOURCES, Resources
from streams.log.base import Message, Partition, Record

UNANSWERED = 0


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of one client on one partition.

    `seen` are offsets and identities: of what was appended (offset -1 until it is known) or read. `offset` is where a read began;
    `answered_ns` is `UNANSWERED` for a call that failed, or whose client was killed.
    """

    client: str
    number: int
    kind: Literal["append", "read"]
    topic: str
    partition: int
    asked_ns: int
    answered_ns: int = UNANSWERED
    offset: int = -1
    seen: tuple[tuple[int, str], ...] = ()

    @property
    def place(self) -> Partition:
        """The partition it was made on."""
        return Partition(self.topic, self.partition)


class Use(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client knew to be placed on a node, from when it was told until before it gave it back."""

    at_ns: int
    name: str
    node_id: str = ""
    resources: Resources | None = None


class History(Struct):
    """What all clients wrote down."""

    calls: list[Call] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)


AtRest = Mapping[Partition, Mapping[int, str]]
"""The identity of every record of the log when nothing happens any more."""


class Client(Protocol):
    """The part of a log that clients use."""

    def topics(self) -> Mapping[str, int]: ...
    def partition(self, topic: str, key: bytes) -> int: ...
    def append(self, messages: Sequence[Message]) -> list[int]: ...
    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]: ...
    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool: ...


class Journal:
    """Lines of a file, each in it before the call returns and whole even if this process is killed the next moment."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, entries: Iterable[Struct]) -> None:
        os.write(self._file, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))


class Recorded:
    """A log as one client uses it; everything the client asks and is told goes into `folder`."""

    def __init__(self, log: Client, folder: Path, client: str) -> None:
        self._log, self._client, self._number = log, client, 0
        self._calls, self._uses = Journal(folder / f"{client}.calls"), Journal(folder / f"{client}.uses")

    def topics(self) -> Mapping[str, int]:
        return self._log.topics()

    def partition(self, topic: str, key: bytes) -> int:
        return self._log.partition(topic, key)

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        return self._log.wait(offsets, timeout_seconds)

    def append(self, messages: Sequence[Message]) -> list[int]:
        """As the log's. One call for each partition: that is where a log keeps order."""
        self._number += 1
        places = [Partition(m.topic, self._log.partition(m.topic, m.key) if m.partition is None else m.partition) for m in messages]
        identities = [identity(message.key, message.value) for message in messages]
        asked_ns = time.monotonic_ns()
        self._appended(places, [(-1, each) for each in identities], asked_ns, UNANSWERED)
        offsets = self._log.append(messages)
        self._appended(places, list(zip(offsets, identities, strict=True)), asked_ns, time.monotonic_ns())
        return offsets

    def _appended(self, places: Sequence[Partition], seen: Sequence[tuple[int, str]], asked_ns: int, answered_ns: int) -> None:
        by_place: dict[Partition, list[tuple[int, str]]] = {}
        for place, each in zip(places, seen, strict=True):
            by_place.setdefault(place, []).append(each)
        self._calls.write(self._call("append", place, asked_ns, answered_ns, -1, entries) for place, entries in by_place.items())

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """As the log's. A read without answer told nobody anything, so it is not written down."""
        self._number += 1
        asked_ns = time.monotonic_ns()
        found = self._log.read(topic, partition, offset, records_max, bytes_max)
        seen = [(record.offset, identity(record.key, record.value)) for record in found]
        self._calls.write([self._call("read", Partition(topic, partition), asked_ns, time.monotonic_ns(), offset, seen)])
        return found

    def _call(
        self, kind: Literal["append", "read"], place: Partition, asked_ns: int, answered_ns: int, offset: int, seen: list[tuple[int, str]]
    ) -> Call:
        return Call(
            client=self._client, number=self._number, kind=kind, topic=place.topic, partition=place.number,
            asked_ns=asked_ns, answered_ns=answered_ns, offset=offset, seen=tuple(seen),
        )  # fmt: skip

    def holds(self, name: str, node_id: str, resources: Resources) -> None:
        """The client was told that this is placed on the node; say so after it knows."""
        self._uses.write([Use(at_ns=time.monotonic_ns(), name=name, node_id=node_id, resources=resources)])

    def gives_back(self, name: str) -> None:
        """The client is about to give it back; say so before."""
        self._uses.write([Use(at_ns=time.monotonic_ns(), name=name)])


def identity(key: bytes, value: bytes) -> str:
    """What tells a record from every other: producers never write the same bytes for two things."""
    return blake2b(len(key).to_bytes(4, "big") + key + value, digest_size=12).hexdigest()


def read_history(folder: Path) -> History:
    """What the clients of a folder wrote down, calls with their answers, in the order of time."""
    calls: dict[tuple[str, int, Partition], Call] = {}
    for path in folder.glob("*.calls"):
        for line in path.read_bytes().splitlines():
            call = msgspec.json.decode(line, type=Call)
            calls[call.client, call.number, call.place] = call
    uses = [msgspec.json.decode(line, type=Use) for path in folder.glob("*.uses") for line in path.read_bytes().splitlines()]
    return History(sorted(calls.values(), key=lambda call: call.asked_ns), sorted(uses, key=lambda use: use.at_ns))


def at_rest(records: Iterable[Record]) -> AtRest:
    """The identities of these records by place."""
    found: dict[Partition, dict[int, str]] = {}
    for record in records:
        found.setdefault(Partition(record.topic, record.partition), {})[record.offset] = identity(record.key, record.value)
    return found


def _appends(history: History) -> Iterator[Call]:
    return (call for call in history.calls if call.kind == "append")


def _reads(history: History) -> Iterator[Call]:
    return (call for call in history.calls if call.kind == "read")


def _instead(rest: AtRest, place: Partition, offset: int) -> str:
    return "another record" if offset in rest.get(place, {}) else "not there"


def lost_writes(history: History, rest: AtRest) -> list[str]:
    """Records that a client was told are in the log, and that are not where it was told."""
    return [
        f"{call.client}: {call.place}@{offset} was acknowledged and is {_instead(rest, call.place, offset)}"
        for call in _appends(history)
        for offset, each in call.seen
        if call.answered_ns and rest.get(call.place, {}).get(offset) != each
    ]


def _counted(history: History, rest: AtRest) -> tuple[Counter[tuple[Partition, str]], Counter[tuple[Partition, str]]]:
    """How often each record was appended by clients, and how often it stands in the log."""
    appended = Counter((call.place, each) for call in _appends(history) for _, each in call.seen)
    return appended, Counter((place, each) for place, records in rest.items() for each in records.values())


def duplicates(history: History, rest: AtRest) -> list[str]:
    """Records that stand in the log more often than clients appended them, and offsets that two of their appends were given."""
    appended, stands = _counted(history, rest)
    given = Counter((call.place, offset) for call in _appends(history) for offset, _ in call.seen if call.answered_ns)
    found = [
        f"{place}: {each} stands {stands[place, each]} times, and was appended {times} times"
        for (place, each), times in appended.items()
        if stands[place, each] > times
    ]
    return found + [f"{place}@{offset} was given to {times} appends" for (place, offset), times in given.items() if times > 1]


def phantom_reads(history: History, rest: AtRest, only_clients_write: Iterable[str] = ()) -> list[str]:
    """Records that were read and are not in the log, or were read before anybody appended them.

    On topics of `only_clients_write` each record must be from a client whose calls are in the history.
    """
    closed = frozenset(only_clients_write)
    asked_ns: dict[tuple[Partition, str], int] = {}
    for call in _appends(history):
        for _, each in call.seen:
            asked_ns.setdefault((call.place, each), call.asked_ns)
    found = []
    for call in _reads(history):
        for offset, each in call.seen:
            what = f"{call.client}: {call.place}@{offset} was read"
            first_ns = asked_ns.get((call.place, each))
            if rest.get(call.place, {}).get(offset) != each:
                found.append(f"{what} and is {_instead(rest, call.place, offset)} at rest")
            elif first_ns is None and call.topic in closed:
                found.append(f"{what} and nobody appended it")
            elif first_ns is not None and first_ns > call.answered_ns:
                found.append(f"{what} before anybody appended it")
    return found


def over_grants(history: History, limits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Moments at which clients knew more to be placed on a node than it may have. `limits` are by node and resource; none is no limit.

    This asks neither the fold nor the log: it adds up what clients were told and had not begun to give back.
    """
    used: dict[str, Counter[str]] = {}
    held: dict[str, Use] = {}
    found = []
    for use in history.uses:
        before = held.pop(use.name, None)
        if before is not None and before.resources is not None:
            used[before.node_id].subtract(_amounts(before.resources))
        if use.resources is None:
            continue
        held[use.name] = use
        on_node = used.setdefault(use.node_id, Counter())
        on_node.update(_amounts(use.resources))
        for name, limit in limits.get(use.node_id, {}).items():
            if getattr(use.resources, name) and on_node[name] > limit:
                found.append(f"{use.node_id} was told to have {use.name}: {name} {on_node[name]} of {limit}")
    return found


def _amounts(resources: Resources) -> dict[str, int]:
    return {name: getattr(resources, name) for name in RESOURCES}


def non_monotonic_reads(history: History) -> list[str]:
    """Reads that skip, go back, give another record for an offset, or find nothing where the same client has read or written before."""
    known: dict[tuple[str, Partition], dict[int, str]] = {}
    far: dict[tuple[str, Partition], int] = {}
    found = []
    for call in sorted((call for call in history.calls if call.answered_ns), key=lambda call: (call.client, call.number)):
        mine = call.client, call.place
        seen_before, what = known.setdefault(mine, {}), f"{call.client}: a read of {call.place}@{call.offset}"
        offsets = [offset for offset, _ in call.seen]
        if call.kind == "read":
            if offsets != list(range(call.offset, call.offset + len(offsets))):
                found.append(f"{what} gave the offsets {offsets[:3]} ...")
            if not offsets and call.offset <= far.get(mine, -1):
                found.append(f"{what} found nothing, though {far[mine]} was known to be there")
            others = [offset for offset, each in call.seen if seen_before.get(offset, each) != each]
            found += [f"{what} gave another record at {offset} than before" for offset in others]
        seen_before.update(call.seen)
        far[mine] = max([far.get(mine, -1), *offsets])
    return found


def sent_again(history: History, rest: AtRest) -> int:
    """How many records stand twice that were appended once: after a change of leaders the client itself may send again what has landed."""
    appended, stands = _counted(history, rest)
    return sum(stands[each] == 2 for each, times in appended.items() if times == 1)


def history_wrong(
    history: History,
    rest: AtRest,
    limits: Mapping[str, Mapping[str, int]],
    only_clients_write: Iterable[str] = (),
    copies_max: int = 0,
) -> list[str]:
    """All that the five checkers find; records that were `sent_again` are none of it up to so many."""
    doubled = duplicates(history, rest)
    return [
        *lost_writes(history, rest),
        *(doubled if len(doubled) > min(sent_again(history, rest), copies_max) else ()),
        *phantom_reads(history, rest, only_clients_write),
        *over_grants(history, limits),
        *non_monotonic_reads(history),
    ]
