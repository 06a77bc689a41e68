"""The best few by score, kept up while scores change: only who may be among them is kept, so a change mostly costs one comparison.

All whose score is above a floor stand here, and nobody else. What falls goes; what rises above the floor comes; and when too few are left
above it, they are looked for anew among all.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

KEPT = 32
"""So many stand here after a look at all: the next look comes when nearly all of them have fallen."""
KEPT_MOST = 2 * KEPT
"""More are cut back, so that a change costs little; only equals of the last one may be more."""
NOTHING = float("-inf")


class Leaders:
    """Scores by slot. At first nobody is known, not even that there is nobody: `few` says so."""

    __slots__ = ("_ranked", "floor", "known")

    def __init__(self) -> None:
        self.floor = float("inf")
        """Nobody is left out whose score is above."""
        self._ranked: list[tuple[float, int, int]] = []
        """Minus the score, the rank among equals, and the slot: in ascending order, so best first."""
        self.known: dict[int, tuple[float, int, int]] = {}
        """Those that stand here, by slot. A slot that is not here and not above the floor need not be `put`."""

    def fill(self, scores: NDArray[np.float64], slots: NDArray[np.intp], ranks: NDArray[np.int64] | None = None) -> None:
        """These are all scores, of these slots; −inf is nobody. Equals stand in order of `ranks`."""
        self.floor = NOTHING
        if len(scores) > KEPT:
            least = np.partition(scores, len(scores) - KEPT)[len(scores) - KEPT]
            below = scores[scores < least]
            self.floor = float(below.max()) if len(below) else NOTHING
        among = (scores > self.floor).nonzero()[0]
        order = [0] * len(among) if ranks is None else ranks[among].tolist()
        self._ranked = sorted(zip((-scores[among]).tolist(), order, slots[among].tolist(), strict=True))
        self.known = {each[2]: each for each in self._ranked}

    def put(self, slot: int, score: float, rank: int = 0) -> None:
        """The score of this slot is another one; −inf: it has none any more."""
        known = self.known.pop(slot, None)
        if known is not None:
            del self._ranked[bisect_left(self._ranked, known)]
        if score > self.floor:
            self.known[slot] = (-score, rank, slot)
            insort(self._ranked, (-score, rank, slot))
            if len(self._ranked) > KEPT_MOST:
                self._cut()

    def few(self, count: int) -> list[tuple[float, int]] | None:
        """Scores and slots of the best `count` with all equals of the last one, best first; None if that takes a look at all."""
        ranked = self._ranked
        if len(ranked) < count:
            if self.floor != NOTHING:
                return None
            return [(-score, slot) for score, _, slot in ranked]
        last, end = ranked[count - 1][0], count
        while end < len(ranked) and ranked[end][0] == last:
            end += 1
        return [(-score, slot) for score, _, slot in ranked[:end]]

    @property
    def first(self) -> int | None:
        """The slot of the best, and of equals the least rank; −1 if there is nobody, None if that takes a look at all."""
        return self._ranked[0][2] if self._ranked else None if self.floor != NOTHING else -1

    def _cut(self) -> None:
        """Keep the first `KEPT` and their equals; the first that goes is the floor."""
        last, end = self._ranked[KEPT - 1][0], KEPT
        while end < len(self._ranked) and self._ranked[end][0] == last:
            end += 1
        if end < len(self._ranked):
            self.floor = -self._ranked[end][0]
            for _, _, slot in self._ranked[end:]:
                del self.known[slot]
            del self._ranked[end:]
