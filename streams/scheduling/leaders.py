"""The best few by score, kept up while scores change: only who may be among them is kept, so a change mostly costs one comparison.

All whose score is above a floor stand here, and nobody else. What falls goes; what rises above the floor comes; and when too few are left
above it, they are looked for anew among all.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

KEPT = 64
"""So many stand here after a look at all: the next look comes when nearly all of them have fallen."""
KEPT_MOST = 4 * KEPT
"""More are cut back, so that a change costs little; only equals of the last one may be more."""
NOTHING = float("-inf")


class Leaders:
    """Scores by slot. At first nobody is known, not even that there is nobody: `few` says so."""

    __slots__ = ("_floor", "_of", "_ranked")

    def __init__(self) -> None:
        self._floor = float("inf")
        self._ranked: list[tuple[float, int]] = []
        """Minus the score, and the slot: in ascending order, so best first."""
        self._of: dict[int, float] = {}

    def fill(self, scores: NDArray[np.float64], slots: NDArray[np.intp]) -> None:
        """These are all scores, of these slots; −inf is nobody."""
        self._floor = NOTHING
        if len(scores) > KEPT:
            least = np.partition(scores, len(scores) - KEPT)[len(scores) - KEPT]
            below = scores[scores < least]
            self._floor = float(below.max()) if len(below) else NOTHING
        among = (scores > self._floor).nonzero()[0]
        found = [(-score, slot) for score, slot in zip(scores[among].tolist(), slots[among].tolist(), strict=True)]
        self._ranked = sorted(found)
        self._of = {slot: score for score, slot in found}

    def put(self, slot: int, score: float) -> None:
        """The score of this slot is another one; −inf: it has none any more."""
        known = self._of.pop(slot, None)
        if known is not None:
            del self._ranked[bisect_left(self._ranked, (known, slot))]
        if score > self._floor:
            self._of[slot] = -score
            insort(self._ranked, (-score, slot))
            if len(self._ranked) > KEPT_MOST:
                self._cut()

    def few(self, count: int) -> list[tuple[float, int]] | None:
        """Scores and slots of the best `count` with all equals of the last one, best first; None if that takes a look at all."""
        ranked = self._ranked
        if len(ranked) < count:
            if self._floor != NOTHING:
                return None
            return [(-score, slot) for score, slot in ranked]
        last, end = ranked[count - 1][0], count
        while end < len(ranked) and ranked[end][0] == last:
            end += 1
        return [(-score, slot) for score, slot in ranked[:end]]

    def _cut(self) -> None:
        """Keep the first `KEPT` and their equals; the first that goes is the floor."""
        last, end = self._ranked[KEPT - 1][0], KEPT
        while end < len(self._ranked) and self._ranked[end][0] == last:
            end += 1
        if end < len(self._ranked):
            self._floor = -self._ranked[end][0]
            for _, slot in self._ranked[end:]:
                del self._of[slot]
            del self._ranked[end:]
