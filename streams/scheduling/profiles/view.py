"""A fleet as the profile engine reads it: live profiles of its rooms, and which nodes an instance, a group or a name is on.

It follows the fleet: told of each room that was made anew, it moves that node to the profile it now has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, is_, sub
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from projections.node import Node
from projections.room import UNLIMITED, Room
from schemas.inventory import Aggregate, Physical
from schemas.resources import RESOURCES
from streams.scheduling.facts import host_of
from streams.scheduling.gathering import Gathering
from streams.scheduling.profiles.profile import Key, Profiles, Reading
from streams.scheduling.raws import nothing
from streams.scheduling.weighers import has_overrides
from streams.scheduling.whereabouts import Whereabouts

COLUMN_MAX = 1 << 62
"""The largest figure of a column of 64 bits: above every amount, and every limit that means none."""
FIGURES = (
    "static",
    "plain",
    "topology",
    *(f"{name}_{what}" for what in ("most", "used", "free", "total") for name in RESOURCES),
    "partition",
)
"""The integer columns, those first that are read most. `…_most` is the most that the filters of amounts let be asked for."""
AT = {name: number for number, name in enumerate(FIGURES)}
_PLAIN, _MOST = AT["plain"], AT["vcpus_most"]
_EXTRAS = 2 + len(RESOURCES)
"""Where in a key that begins which is beside static class, topology and use."""
_MOSTS = slice(_MOST, _MOST + len(RESOURCES))
_TAKEN = attrgetter(*(f"{name}_{what}" for what in ("used", "free", "total") for name in RESOURCES))
_USED = attrgetter(*(f"{name}_used" for name in RESOURCES))
_STATIC = attrgetter("hypervisor", "aggregates", "traits", "vcpus", "pcpus", "memory_mib", "disk_mib")

Raw = Callable[[Room], float]


class View:
    """Profiles of `rooms` (in order of node id). `raws` are float columns; the first are the `wholes`, what a part in use is a part of.

    `extras` are what rules read of a node beside its static class, its topology and its use; `tags` what its static class says besides.
    """

    def __init__(self, raws: Sequence[Raw], extras: Sequence[Raw], tags: Sequence[Callable[[Room], Any]] = ()) -> None:
        self.rooms: list[Room] = []
        self.ordinals: dict[str, int] = {}
        self._whereabouts, self._gathering = Whereabouts(), Gathering()
        self.on = self._whereabouts.on
        """Ordinals of the nodes that an instance is on."""
        self.grouped = self._gathering.at
        """Ordinals of the nodes that have members of a group, or are closed to one."""
        self.hosts: dict[str, list[int]] = {}
        """Ordinals of the nodes of a compute service's host, in small letters."""
        self.aggregates: list[tuple[Aggregate, ...]] = []
        """By static class."""
        self.cells: list[str] = []
        """Likewise."""
        self.overrides = False
        """Whether the aggregates of any static class multiply a weigher in their own way."""
        self.constants: list[float | None] = []
        """Of each of `raws` what it says of every profile since the fleet's list was the present one; None if that is not one figure."""
        self.uncounted = False
        """Whether any node ever came without a number of CPUs."""
        self.profiles = Profiles(len(FIGURES), len(RESOURCES) + len(raws), self._read, self._is_calm)
        self.largest = [0] * len(RESOURCES)
        """The most of each resource that any class of requests asks for that decides by what is free; it only ever grows."""
        self._raws, self._extras, self._tags = tuple(raws), tuple(extras), tuple(tags)
        self._beyond_key, self._order = _arranged(self._raws, self._extras)
        self._steady: tuple[list[int], list[float]] = ([], [])
        """The columns that are in `constants`, and their figures."""
        self._wholes: list[list[float]] = []
        self._class_of: dict[bytes, int] = {}
        self._topology_of: dict[bytes, int] = {b"": 0}
        self._facts: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], int]] = {}
        self._names: list[str] = []
        self._beside: dict[int, tuple[int, NDArray[np.intp]]] = {}

    @property
    def classes(self) -> int:
        """Static classes that were ever seen."""
        return len(self._class_of)

    @property
    def topologies(self) -> int:
        """States of cells and devices that were ever seen."""
        return len(self._topology_of)

    def beside(self, partition: int) -> NDArray[np.intp]:
        """The slots of the profiles of one partition. Read them before the next change."""
        layout = self.profiles.layout
        known = self._beside.get(partition)
        if known is None or known[0] != layout:
            known = self._beside[partition] = (layout, (self.column("partition") == partition).nonzero()[0])
        return known[1]

    def column(self, name: str) -> NDArray[np.int64]:
        """A live column of integers."""
        live: NDArray[np.int64] = self.profiles.figures[AT[name], : self.profiles.live]
        return live

    def follow(self, rooms: list[Room]) -> None:
        """The fleet's list is another one, or has new nodes: begin anew."""
        self.rooms = rooms
        self.ordinals = {room.node_id: ordinal for ordinal, room in enumerate(rooms)}
        self.hosts.clear()
        self.constants = [raw(rooms[0]) for raw in self._raws] if rooms else []
        self._remember()
        self._names = [host_of(room) for room in rooms]
        for ordinal, name in enumerate(self._names):
            self.hosts.setdefault(name.lower(), []).append(ordinal)
        self._whereabouts.follow(rooms)
        self._gathering.follow(rooms)
        self.profiles.fill((ordinal, room.mark, self._key(room)) for ordinal, room in enumerate(rooms))

    def changed(self, ordinal: int) -> None:
        """The room with this number was made anew."""
        room = self.rooms[ordinal]
        self._whereabouts.changed(ordinal)
        if self._names[ordinal] != (name := host_of(room)):
            self.hosts[self._names[ordinal].lower()].remove(ordinal)
            self.hosts.setdefault(name.lower(), []).append(ordinal)
            self._names[ordinal] = name
        self._gathering.changed(ordinal)
        self.profiles.move(ordinal, self._key(room))

    def _key(self, room: Room) -> Key:
        return (self._static(room), self._topology(room), *_USED(room), *[extra(room) for extra in self._extras])

    def _read(self, key: Key, ordinal: int) -> Reading:
        room = self.rooms[ordinal]
        taken: tuple[int, ...] = _TAKEN(room)
        _, _, _, _, f0, f1, f2, f3, t0, t1, t2, t3 = taken
        most = (
            # See `filters.amounts`: no instance larger than the whole node; CPUs that nobody reports are left to the ledger.
            UNLIMITED if t0 < 0 else min(f0, t0),
            f1 if f1 < t1 or t1 < 0 else t1,
            f2 if f2 < t2 or t2 < 0 else t2,
            f3 if f3 < t3 or t3 < 0 else t3,
        )
        self.uncounted |= t0 < 0
        static, topology = key[:2]
        amounts = (*most, *taken)
        if max(amounts) > COLUMN_MAX or min(amounts) < -COLUMN_MAX:
            # An operator's nonsense (a ratio of 2^50) has a limit beyond 64 bits: any more than fits in is without limit to every instance.
            amounts = tuple([max(-COLUMN_MAX, min(each, COLUMN_MAX)) for each in amounts])
        said = (*key, *[raw(room) for raw in self._beyond_key], 0.0)
        figures: list[float] = list(map(said.__getitem__, self._order))
        steady, known = self._steady
        if list(map(figures.__getitem__, steady)) != known:
            # Another list: whoever planned with the old one plans anew.
            self.constants = [a if a == b else None for a, b in zip(self.constants, figures, strict=True)]
            self._remember()
        return (static, room.plain, topology, *amounts, room.partition), (*self._wholes[static], *figures)

    def _remember(self) -> None:
        steady = [(column, figure) for column, figure in enumerate(self.constants) if figure is not None]
        self._steady = [column for column, _ in steady], [figure for _, figure in steady]

    def _is_calm(self, before: Sequence[int], now: Sequence[int]) -> bool:
        """Whether all the same is said of both whatever is asked for, because there is enough of everything for all classes."""
        if before[:_MOST] != now[:_MOST] or not now[_PLAIN]:
            return False
        spare: tuple[int, ...] = (*map(sub, before[_MOSTS], self.largest), *map(sub, now[_MOSTS], self.largest))
        return min(spare) >= 0

    def ask(self, amounts: Sequence[int]) -> None:
        """A class of requests asks for so much."""
        self.largest = [max(known, n) for known, n in zip(self.largest, amounts, strict=True)]

    def _topology(self, room: Room) -> int:
        host = room.node.hypervisor
        if host is None or not (host.numa_cells or host.pci_devices):
            return 0
        return self._topology_of.setdefault(room.standing().text, len(self._topology_of))

    def _static(self, room: Room) -> int:
        """The number of the node's static class: whatever rules read that neither claims nor measurements change."""
        node = room.node
        facts: tuple[Any, ...] = _STATIC(node)
        words = (node.status, node.zone, node.silent_since_ms is not None)
        known = self._facts.get(room.node_id)
        # The same objects say the same; equal ones cost more to compare than to look at once more.
        if known is not None and known[1] == words and all(map(is_, known[0], facts)):
            return known[2]
        text = _static_text(node, room.partition, [tag(room) for tag in self._tags])
        number = self._class_of.setdefault(text, len(self._class_of))
        if number == len(self.cells):
            self.aggregates.append(node.aggregates)
            self._wholes.append([_whole(room, name) for name in RESOURCES])
            self.cells.append(node.hypervisor.cell if node.hypervisor is not None else "")
            self.overrides |= has_overrides(room)
        self._facts[node.node_id] = (facts, words, number)
        return number


def _arranged(raws: Sequence[Raw], extras: Sequence[Raw]) -> tuple[list[Raw], list[int]]:
    """Those of `raws` that say something and are in no key; and where each of `raws` stands in a key with those and a 0 behind it."""
    beyond = [raw for raw in raws if raw is not nothing and raw not in extras]
    known = [*extras, *beyond, nothing]
    return beyond, [_EXTRAS + known.index(raw) for raw in raws]


def _whole(room: Room, resource: str) -> float:
    """See `raws`: the limit, else the total; so large that every part of it is 0 where neither is known, so small that all but 0 are 1."""
    limit, total = room.node.limit(resource), room.node.total(resource)
    whole = total if limit is None else limit
    return float("inf") if whole is None else float(whole) if whole > 0 else 1e-300


def _static_text(node: Node, partition: int, tags: list[Any]) -> bytes:
    hypervisor = node.hypervisor
    if hypervisor is not None:
        # What a measurement moves or what names one host would give each node a class of its own; cells and devices have their column.
        hypervisor = msgspec.structs.replace(
            hypervisor,
            metrics=(),
            io_workload=0,
            failed_builds=0,
            physical=Physical(),
            host_uuid="",
            host_ip="",
            service_host="",
            numa_cells=(),
            pci_devices=(),
            pci_pools=(),
        )
    silent = node.silent_since_ms is not None
    operator = (node.status, node.zone, node.aggregates, node.traits, node.vcpus, node.pcpus, node.memory_mib, node.disk_mib)
    return msgspec.json.encode((partition, silent, hypervisor, operator, tags))
