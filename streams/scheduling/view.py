"""A fleet as the profile engine reads it: live profiles of its rooms, and which nodes an instance, a group or a name is on.

It follows the fleet: told of each room that was made anew, it moves that node to the profile it now has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from projections.node import Node
from projections.room import Room
from schemas.inventory import Physical
from schemas.resources import RESOURCES
from streams.scheduling.profiles import Key, Profiles, Reading

FIGURES = ("static", "partition", "ready", "plain", *(f"{name}_{what}" for what in ("free", "total", "used") for name in RESOURCES))
"""The integer columns, in order."""
AT = {name: number for number, name in enumerate(FIGURES)}

Raw = Callable[[Room], float]
Extra = Callable[[Room], int]


class View:
    """Profiles of `rooms` (in order of node id). `raws` are the float columns, `extras` what else the policy's rules read of a node."""

    def __init__(self, raws: Sequence[Raw], extras: Sequence[Extra]) -> None:
        self.rooms: list[Room] = []
        self.ordinals: dict[str, int] = {}
        self.classes = 0
        self.on: dict[str, set[int]] = {}
        """Ordinals of the nodes that an instance is on."""
        self.grouped: dict[str, set[int]] = {}
        """Ordinals of the nodes that have members of a group, or are closed to one."""
        self.profiles = Profiles(len(FIGURES), len(raws), self._read)
        self._raws, self._extras = tuple(raws), tuple(extras)
        self._class_of: dict[bytes, int] = {}
        self._facts: dict[str, tuple[tuple[Any, ...], int]] = {}
        self._instances: list[frozenset[str]] = []
        self._groups: list[frozenset[str]] = []

    def column(self, name: str) -> NDArray[np.int64]:
        """A live column of integers."""
        live: NDArray[np.int64] = self.profiles.figures[AT[name], : self.profiles.live]
        return live

    def follow(self, rooms: list[Room]) -> None:
        """The fleet's list is another one, or has new nodes: begin anew."""
        self.rooms = rooms
        self.ordinals = {room.node_id: ordinal for ordinal, room in enumerate(rooms)}
        self.on.clear()
        self.grouped.clear()
        self._instances = [frozenset()] * len(rooms)
        self._groups = [frozenset()] * len(rooms)
        for ordinal in range(len(rooms)):
            self._index(ordinal)
        self.profiles.fill((ordinal, room.mark, self._key(room)) for ordinal, room in enumerate(rooms))

    def changed(self, ordinal: int) -> None:
        """The room with this number was made anew."""
        self._index(ordinal)
        self.profiles.move(ordinal, self._key(self.rooms[ordinal]))

    def _key(self, room: Room) -> Key:
        more = [extra(room) for extra in self._extras]
        return (self._static(room), room.vcpus_used, room.pcpus_used, room.memory_mib_used, room.disk_mib_used, *more)

    def _read(self, ordinal: int) -> Reading:
        room = self.rooms[ordinal]
        integers = [self._static(room), room.partition, room.ready, room.plain]
        integers += [getattr(room, name) for name in FIGURES[4:]]
        return integers, [raw(room) for raw in self._raws]

    def _static(self, room: Room) -> int:
        """The number of the node's static class: whatever rules read that neither claims nor measurements change."""
        node = room.node
        silent = node.silent_since_ms is not None
        facts = (
            (node.hypervisor, node.aggregates, node.traits, node.vcpus, node.pcpus, node.memory_mib, node.disk_mib),
            (node.status, node.zone, silent),
        )
        known = self._facts.get(node.node_id)
        if known is not None and all(map(_is, known[0][0], facts[0])) and known[0][1] == facts[1]:
            return known[1]
        text = _static_text(node, room.partition, silent=silent)
        number = self._class_of.setdefault(text, len(self._class_of))
        self.classes = len(self._class_of)
        self._facts[node.node_id] = (facts, number)
        return number

    def _index(self, ordinal: int) -> None:
        room = self.rooms[ordinal]
        before, now = self._instances[ordinal], frozenset(room.instances)
        if before != now:
            _entered(self.on, ordinal, now - before)
            _left(self.on, ordinal, before - now)
            self._instances[ordinal] = now
        groups = _groups(room)
        if groups != self._groups[ordinal]:
            _entered(self.grouped, ordinal, groups - self._groups[ordinal])
            _left(self.grouped, ordinal, self._groups[ordinal] - groups)
            self._groups[ordinal] = groups


def _is(left: object, right: object) -> bool:
    return left is right


def _static_text(node: Node, partition: int, *, silent: bool) -> bytes:
    hypervisor = node.hypervisor
    if hypervisor is not None:
        # What a measurement moves, or what names one host, would give each node a class of its own.
        hypervisor = msgspec.structs.replace(
            hypervisor,
            metrics=(),
            io_workload=0,
            failed_builds=0,
            physical=Physical(),
            host_uuid="",
            host_ip="",
            service_host="",
            pci_devices=(),
        )
    operator = (node.status, node.zone, node.aggregates, node.traits, node.vcpus, node.pcpus, node.memory_mib, node.disk_mib)
    return msgspec.json.encode((partition, silent, hypervisor, operator))


def _groups(room: Room) -> frozenset[str]:
    node = room.node
    groups = {shown.group_id for shown in node.shown.values() if shown.group_id}
    groups.update([claim.group.group_id for claims in node.claims.values() for claim in claims if claim.group is not None])
    groups.update([item.group.group_id for item in room.overlay if item.group is not None])
    groups.update(node.homes_closed)
    return frozenset(groups)


def _entered(index: dict[str, set[int]], ordinal: int, names: frozenset[str]) -> None:
    for name in names:
        index.setdefault(name, set()).add(ordinal)


def _left(index: dict[str, set[int]], ordinal: int, names: frozenset[str]) -> None:
    for name in names:
        there = index[name]
        there.discard(ordinal)
        if not there:
            del index[name]
