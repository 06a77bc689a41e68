"""Content-addressed node profiles: nodes that no rule can tell apart share one, and engines scan the live profiles instead of the nodes.

A profile's figures never change, so nothing that was worked out from them is ever invalid: a change of a node moves it to another profile,
one that has no node left is gone, and there are never more of them than nodes. What separates equal nodes is only their place in the fleet
(for what an operator reads first) and their mark on a ring (for ties).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

CAPACITY_LEAST = 64
JOURNAL_LEAST = 4096

_figures, _floats = attrgetter("figures"), attrgetter("floats")

Key = tuple[Any, ...]
"""What rules read of a node, as numbers; the first is its static class."""
Calm = Callable[[Sequence[int], Sequence[int]], bool]
Reading = tuple[Sequence[int], Sequence[float]]
"""What stands in the columns for one key: integers and floats."""


def one_by_one(column: NDArray[Any]) -> Any:
    """The memory of a column, to be read and written one by one: several times as fast as through numpy."""
    buffer: Any = column  # Its types say that it is one from Python 3.12 on.
    return memoryview(buffer)


class Profile:
    """One live profile: its place in the columns and its nodes, by ordinal and by mark, both ascending.

    `figures` and `floats` are what stands in the columns; of a few profiles they are read much quicker here.
    """

    __slots__ = ("figures", "floats", "key", "marks", "ordinals", "slot")

    def __init__(self, key: Key, slot: int, reading: Reading) -> None:
        self.key, self.slot = key, slot
        self.figures, self.floats = reading
        self.ordinals: list[int] = []
        self.marks: list[int] = []


class Journal:
    """The slots whose content became another one, in order; those that are empty then as well. Old ones are forgotten."""

    __slots__ = ("_before", "_slots", "now")

    def __init__(self) -> None:
        self.now = 0
        """The end."""
        self._before = 0
        self._slots: list[int] = []

    def note(self, slot: int, live: int) -> None:
        """This slot is another one now, of so many live ones."""
        slots = self._slots
        slots.append(slot)
        self.now += 1
        if len(slots) > JOURNAL_LEAST and len(slots) > 2 * live:
            # What is so long ago is forgotten: a look at all the live profiles is quicker.
            dropped = len(slots) // 2
            del slots[:dropped]
            self._before += dropped

    def changes(self, since: int) -> set[int] | None:
        """The slots that changed since this was the end; None if that is not known any more."""
        return set(self._slots[since - self._before :]) if since >= self._before else None

    def restart(self) -> None:
        """Every slot changed: nobody can read on from where it was."""
        self.now += 1
        self._before, self._slots = self.now, []


class Profiles:
    """The live profiles of numbered nodes. `read` works out the columns of a new key, from that and one node (its ordinal) that has it.

    `is_calm` says of two rows of integers that no verdict of any class tells them apart: where a profile goes over from one to the other
    with its only node, `journal` has it and `stirs` does not.

    Columns are dense in `[:live]`: `figures[i]` and `floats[i]` hold the i-th integer and float of each profile, `counts` how many nodes it
    has, `firsts` the least ordinal among them. Those of what changed are written when they are read: a few profiles are looked at one by
    one. Who keeps something by slot follows the journal.
    """

    def __init__(
        self, integers: int, floats: int, read: Callable[[Key, int], Reading], is_calm: Calm = lambda _before, _now: False
    ) -> None:
        self.live = 0
        self.at: list[Profile] = []
        self.journal, self.stirs = Journal(), Journal()
        self._read, self._is_calm = read, is_calm
        self._by_key: dict[Key, Profile] = {}
        self._of: dict[int, Profile] = {}
        self._mark: dict[int, int] = {}
        self._ordinal: dict[int, int] = {}
        self.layout = 0
        """Goes up whenever a profile comes, goes or takes another place."""
        self._figures: NDArray[np.int64] = np.zeros((integers, CAPACITY_LEAST), np.int64)
        self._floats: NDArray[np.float64] = np.zeros((floats, CAPACITY_LEAST), np.float64)
        self._unwritten: set[int] = set()
        """Slots whose columns are not what their profiles say."""
        self.counts: NDArray[np.int64] = np.zeros(CAPACITY_LEAST, np.int64)
        self.firsts: NDArray[np.int64] = np.zeros(CAPACITY_LEAST, np.int64)

    def __len__(self) -> int:
        return len(self._of)

    @property
    def capacity(self) -> int:
        """Slots that there are, live or not."""
        return len(self.counts)

    @property
    def figures(self) -> NDArray[np.int64]:
        """The columns of integers. Read them before the next change."""
        if self._unwritten:
            self._write()
        return self._figures

    @property
    def floats(self) -> NDArray[np.float64]:
        """The columns of floats. Read them before the next change."""
        if self._unwritten:
            self._write()
        return self._floats

    def _write(self) -> None:
        profiles = [self.at[slot] for slot in self._unwritten if slot < self.live]
        slots = [profile.slot for profile in profiles]
        self._unwritten.clear()
        if slots:
            # Element by element: three times as fast as an array of tuples.
            figures = np.fromiter(chain.from_iterable(map(_figures, profiles)), np.int64, len(slots) * len(self._figures))
            floats = np.fromiter(chain.from_iterable(map(_floats, profiles)), np.float64, len(slots) * len(self._floats))
            self._figures[:, slots] = figures.reshape(len(slots), -1).T
            self._floats[:, slots] = floats.reshape(len(slots), -1).T

    def fill(self, nodes: Iterable[tuple[int, int, Key]]) -> None:
        """Begin anew with these nodes: ordinal, mark, key. Marks are all different."""
        self.live = 0
        self.layout += 1
        for known in (self.at, self._by_key, self._of, self._mark, self._ordinal, self._unwritten):
            known.clear()
        for ordinal, mark, key in nodes:
            profile = self._by_key.get(key) or self._open(key, ordinal)
            profile.ordinals.append(ordinal)
            profile.marks.append(mark)
            self._of[ordinal], self._mark[ordinal], self._ordinal[mark] = profile, mark, ordinal
        for profile in self.at:
            profile.ordinals.sort()
            profile.marks.sort()
            self._count(profile)
        self.journal.restart()
        self.stirs.restart()

    def move(self, ordinal: int, key: Key) -> None:
        """A node reads differently now. Costs a search in the nodes of two profiles."""
        old = self._of[ordinal]
        if old.key == key:
            return
        new = self._by_key.get(key)
        if new is None and len(old.ordinals) == 1:
            self._turn(old, key, ordinal)
            return
        mark = self._mark[ordinal]
        new = new or self._open(key, ordinal)
        insort(new.ordinals, ordinal)
        insort(new.marks, mark)
        self._of[ordinal] = new
        self._count(new)
        del old.ordinals[bisect_left(old.ordinals, ordinal)]
        del old.marks[bisect_left(old.marks, mark)]
        if old.ordinals:
            self._count(old)
        else:
            self._close(old)

    def _turn(self, profile: Profile, key: Key, ordinal: int) -> None:
        """Its only node reads as none did: the new profile takes its place, with less to move than by `_open` and `_close`."""
        del self._by_key[profile.key]
        profile.key, self._by_key[key], slot, before = key, profile, profile.slot, profile.figures
        profile.figures, profile.floats = self._read(key, ordinal)
        self._unwritten.add(slot)
        self.journal.note(slot, self.live)
        if not self._is_calm(before, profile.figures):
            self.stirs.note(slot, self.live)

    def _note(self, slot: int) -> None:
        self.journal.note(slot, self.live)
        self.stirs.note(slot, self.live)

    def of(self, ordinal: int) -> Profile:
        """The profile of a node."""
        return self._of[ordinal]

    def first(self, slot: int, without: Collection[int]) -> int | None:
        """The least ordinal of a profile that is not in `without`."""
        return next((ordinal for ordinal in self.at[slot].ordinals if ordinal not in without), None)

    def ordinal(self, mark: int) -> int:
        """The node with this mark."""
        return self._ordinal[mark]

    def marked(self, slot: int, start: int, count: int, without: Collection[int]) -> list[int]:
        """The marks of the `count` nodes of a profile that follow `start` first on their ring, and are not in `without` (ordinals)."""
        marks = self.at[slot].marks
        if len(marks) == 1 and not without:
            return marks[:count]
        at = bisect_left(marks, start)
        if not without:
            found = marks[at : at + count]
            return found if len(found) == count else found + marks[: min(at, count - len(found))]
        found = []
        for i in range(len(marks)):
            mark = marks[(at + i) % len(marks)]
            if self._ordinal[mark] not in without:
                found.append(mark)
                if len(found) == count:
                    break
        return found

    def _open(self, key: Key, ordinal: int) -> Profile:
        slot = self.live
        if slot == len(self.counts):
            self._grow()
        profile = self._by_key[key] = Profile(key, slot, self._read(key, ordinal))
        self.at.append(profile)
        self._unwritten.add(slot)
        self.live += 1
        self.layout += 1
        return profile

    def _close(self, profile: Profile) -> None:
        """Its place goes to the last one, so that the columns stay dense."""
        del self._by_key[profile.key]
        self.live -= 1
        self.layout += 1
        slot, last = profile.slot, self.at.pop()
        self._note(self.live)
        if last is not profile:
            self.at[slot], last.slot = last, slot
            self._unwritten.add(slot)
            self.counts[slot], self.firsts[slot] = self.counts[self.live], self.firsts[self.live]
            self._note(slot)

    def _count(self, profile: Profile) -> None:
        slot = profile.slot
        self.counts[slot], self.firsts[slot] = len(profile.ordinals), profile.ordinals[0]
        self._note(slot)

    def _grow(self) -> None:
        more = len(self.counts)
        self._figures = np.pad(self._figures, ((0, 0), (0, more)))
        self._floats = np.pad(self._floats, ((0, 0), (0, more)))
        self.counts, self.firsts = np.pad(self.counts, (0, more)), np.pad(self.firsts, (0, more))
