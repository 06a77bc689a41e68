"""Which nodes an instance is on: an index that follows the fleet, so that nobody looks through all."""

from __future__ import annotations

from projections.room import Room


class Whereabouts:
    """The index; see `Fleet.followers`."""

    def __init__(self) -> None:
        self.on: dict[str, tuple[int, ...]] = {}
        """Numbers of the rooms that an instance is on: one in nearly all cases, and all instances of a room share it."""
        self._rooms: list[Room] = []
        self._instances: list[frozenset[str]] = []
        self._alone: list[tuple[int, ...]] = []

    def follow(self, rooms: list[Room]) -> None:
        """These are the rooms from now on."""
        self.on.clear()
        self._rooms, self._instances = rooms, [frozenset()] * len(rooms)
        self._alone = [(ordinal,) for ordinal in range(len(rooms))]
        for ordinal in range(len(rooms)):
            self.changed(ordinal)

    def changed(self, ordinal: int) -> None:
        """The room with this number was made anew."""
        before, there = self._instances[ordinal], self._rooms[ordinal].instances
        if len(before) != len(there) or not before.issuperset(there):
            now, on, alone = frozenset(there), self.on, self._alone[ordinal]
            for instance_id in now - before:
                on[instance_id] = on[instance_id] + alone if instance_id in on else alone
            for instance_id in before - now:
                others = tuple([each for each in on.pop(instance_id) if each != ordinal])
                if others:
                    on[instance_id] = others
            self._instances[ordinal] = now
