"""Which nodes have members of a server group, or are closed to one: an index that follows the fleet, so that nobody looks through all."""

from __future__ import annotations

from itertools import chain

from projections.room import Room

_NO_GROUPS: frozenset[str] = frozenset()


class Gathering:
    """The index; see `Fleet.followers`."""

    def __init__(self) -> None:
        self.at: dict[str, set[int]] = {}
        """Numbers of rooms by group."""
        self._rooms: list[Room] = []
        self._groups: list[frozenset[str]] = []

    def follow(self, rooms: list[Room]) -> None:
        """These are the rooms from now on."""
        self.at.clear()
        self._rooms, self._groups = rooms, [_NO_GROUPS] * len(rooms)
        for ordinal in range(len(rooms)):
            self.changed(ordinal)

    def changed(self, ordinal: int) -> None:
        """The room with this number was made anew."""
        before, now = self._groups[ordinal], _groups(self._rooms[ordinal])
        if before != now:
            entered(self.at, ordinal, now - before)
            left(self.at, ordinal, before - now)
            self._groups[ordinal] = now


def entered(index: dict[str, set[int]], ordinal: int, names: frozenset[str]) -> None:
    """Enter a room under these names."""
    for name in names:
        index.setdefault(name, set()).add(ordinal)


def left(index: dict[str, set[int]], ordinal: int, names: frozenset[str]) -> None:
    """Strike a room off under these names; nothing is kept of a name without rooms."""
    for name in names:
        there = index[name]
        there.discard(ordinal)
        if not there:
            del index[name]


def _groups(room: Room) -> frozenset[str]:
    node = room.node
    if not (node.groups_of or node.homes_closed or room.overlay):
        return _NO_GROUPS
    groups = {*chain.from_iterable(node.groups_of.values()), *node.homes_closed}
    groups.update([item.group.group_id for item in room.overlay if item.group is not None])
    return frozenset(groups) if groups else _NO_GROUPS
