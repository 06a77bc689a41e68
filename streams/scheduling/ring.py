"""The best candidates of the profile engine: by score, and among equals by how far their marks follow the seed's place on the ring."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projections.room import Room
from streams.scheduling.reference import MASK_64
from streams.scheduling.view import AT, View

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]
NOTHING = float("-inf")
TIED_FEW = 8
"""So many equal candidates are found one by one; more of them by one look at all."""


class Best(NamedTuple):
    """One of the best: its node's ordinal, its score, and the slot of its profile (−1: it is looked at by itself)."""

    ordinal: int
    score: float
    slot: int


class Ring:
    """Candidates in order of score and then of their marks from where the seed says: profiles, and the nodes that are looked at apart.

    `scores` has a figure for each of `slots` (None: for all slots, −inf where one is no candidate) and is given back as it came.
    """

    def __init__(self, view: View, start: int, apart: Collection[int], scores: Floats, slots: Ints | None) -> None:
        self._view, self._start, self._apart = view, start, apart
        self._scores, self._slots = scores, slots

    def best(self, count: int, single: list[tuple[float, Room]], partition: int = -1) -> list[Best]:
        """The best `count`, those of `single` among them; of one partition, if it is named."""
        scores, slots = self._scores, self._slots
        if partition >= 0:
            partitions = self._view.profiles.figures[AT["partition"], : self._view.profiles.live]
            beside = ((partitions if slots is None else partitions.take(slots)) == partition).nonzero()[0]
            scores, slots = scores[beside], beside if slots is None else slots[beside]
            single = [each for each in single if each[1].partition == partition]
        left = sorted(single, key=lambda each: -each[0])
        found: list[Best] = []
        taken: list[tuple[int, float]] = []
        at = int(scores.argmax()) if len(scores) else -1
        most = float(scores[at]) if at >= 0 else NOTHING
        while len(found) < count:
            top = max(most, left[0][0]) if left else most
            if top == NOTHING:
                break
            tied: list[int] = []
            while most == top:
                tied.append(at)
                scores[at] = NOTHING
                if len(tied) == TIED_FEW:
                    rest = (scores == top).nonzero()[0]
                    scores[rest] = NOTHING
                    tied += rest.tolist()
                at = int(scores.argmax())
                most = float(scores[at])
            taken += [(each, top) for each in tied]
            alike = [room for score, room in left if score == top] if left else []
            left = left[len(alike) :]
            if len(tied) == 1 and not alike:
                slot = tied[0] if slots is None else int(slots[tied[0]])
                marks = self._view.profiles.marked(slot, self._start, count - len(found), self._apart)
                found += [Best(self._view.profiles.ordinal(mark), top, slot) for mark in marks]
            else:
                found += self._in_order(tied, slots, alike, count - len(found), top)
        for each, score in taken:
            scores[each] = score
        return found

    def _in_order(self, tied: list[int], slots: Ints | None, alike: list[Room], count: int, score: float) -> list[Best]:
        view, start = self._view, self._start
        profiles = view.profiles
        found: list[tuple[int, int, int]] = []
        for at in tied:
            slot = at if slots is None else int(slots[at])
            found += [((mark - start) & MASK_64, mark, slot) for mark in profiles.marked(slot, start, count, self._apart)]
        found += [((room.mark - start) & MASK_64, room.mark, -1) for room in alike]
        if len(found) > 1:
            found.sort()
        return [Best(profiles.ordinal(mark), score, slot) for _, mark, slot in found[:count]]
