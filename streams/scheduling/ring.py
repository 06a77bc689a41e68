"""The best candidates of the profile engine: by score, and among equals by how far their marks follow the seed's place on the ring."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from projections.room import Room
from streams.scheduling.reference import tie_key
from streams.scheduling.view import View

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Ring:
    """Candidates in order of score and then of their marks from where the seed says; numbered profiles first, then the nodes apart."""

    def __init__(self, view: View, start: int, apart: Collection[int], inside: NDArray[np.bool_], single: list[Room]) -> None:
        self._view, self._start, self._apart = view, start, apart
        self.slots: Ints = np.flatnonzero(inside)
        self._single = single

    def partitions(self) -> Ints:
        """The partition of each candidate."""
        found: Ints = self._view.column("partition")[self.slots]
        return np.concatenate([found, np.array([room.partition for room in self._single], np.int64)]) if self._single else found

    def best(self, scores: Floats, count: int, among: NDArray[np.bool_] | None) -> list[tuple[int, int]]:
        """The best `count` nodes: their ordinals, and which candidate they belong to."""
        left = scores.copy() if among is None else np.where(among, scores, -np.inf)
        found: list[tuple[int, int]] = []
        while len(found) < count:
            most = left.max()
            if most == -np.inf:
                break
            tied = np.flatnonzero(left == most)
            left[tied] = -np.inf
            found += self._in_order(tied.tolist(), count - len(found))
        return found

    def _in_order(self, tied: list[int], count: int) -> list[tuple[int, int]]:
        view, profiles = self._view, len(self.slots)
        found: list[tuple[int, int]] = []
        for at in tied:
            if at < profiles:
                found += [(ordinal, at) for ordinal in view.profiles.nearest(int(self.slots[at]), self._start, count, self._apart)]
            else:
                found.append((view.ordinals[self._single[at - profiles].node_id], at))
        if len(tied) > 1:
            found.sort(key=lambda each: tie_key(view.rooms[each[0]], self._start))
        return found[:count]
