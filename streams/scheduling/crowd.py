"""One figure of every room of a fleet, side by side: what a scan would otherwise ask of each room again for every decision.

A list of figures is made when it is first asked for, and one entry of it changes when a room does. Its least and its most are kept until a
change may have moved them. Nothing here decides anything: whoever reads a list reads exactly what the rooms say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from projections.room import Room

Figure = Callable[[Room], Any]
"""One figure of a room, such as an `attrgetter`. The same object stands for the same list."""


class Figures(Struct):
    """One figure of every room, in the order of the fleet. Read `values`, and do not keep it."""

    values: list[Any]
    lowest: Any = None
    highest: Any = None

    def least(self) -> Any:
        """The least of at least one."""
        if self.lowest is None:
            self.lowest = min(self.values)
        return self.lowest

    def most(self) -> Any:
        """The most of at least one."""
        if self.highest is None:
            self.highest = max(self.values)
        return self.highest

    def put(self, at: int, value: Any) -> None:
        """Another figure of room number `at`."""
        values = self.values
        old, values[at] = values[at], value
        if self.lowest is not None and (value < self.lowest or old == self.lowest):
            self.lowest = value if value <= self.lowest else None
        if self.highest is not None and (value > self.highest or old == self.highest):
            self.highest = value if value >= self.highest else None


class Crowd:
    """The figures of the rooms of one fleet."""

    def __init__(self) -> None:
        self._rooms: Sequence[Room] = ()
        self._figures: dict[Figure, Figures] = {}
        self._places: dict[int, list[int]] = {}

    def begin(self, rooms: Sequence[Room]) -> None:
        """These are the rooms from now on; `rooms` is kept, not copied."""
        self._rooms = rooms
        self._figures.clear()
        self._places.clear()

    def put(self, at: int, room: Room) -> None:
        """Room number `at` is another one of the same node now."""
        for figure, figures in self._figures.items():
            figures.put(at, figure(room))

    def figures(self, figure: Figure) -> Figures:
        """One figure of every room."""
        figures = self._figures.get(figure)
        if figures is None:
            figures = self._figures[figure] = Figures(list(map(figure, self._rooms)))
        return figures

    def places(self, partition: int) -> list[int]:
        """The numbers of the rooms whose node is in this partition of `claims`."""
        places = self._places.get(partition)
        if places is None:
            places = self._places[partition] = [at for at, room in enumerate(self._rooms) if room.partition == partition]
        return places
