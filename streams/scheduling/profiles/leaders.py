"""The best few by score, kept up while scores change: only who may be among them is kept, so a change mostly costs one comparison.

All whose score is above a floor stand here, and nobody else. What falls goes; what rises above the floor comes; and when too few are left
above it, they are looked for anew among all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

KEPT = 32
"""So many stand here after a look at all: the next look comes when nearly all of them have fallen."""
NOTHING = float("-inf")


Entry = tuple[float, int, int]
"""Minus the score, the rank among equals, and the slot."""


class Leaders:
    """Scores by slot. At first nobody is known, not even that there is nobody: `few` says so. `kept` stand here after a look at all.

    Equals stand in order of their ranks, which may as well say what group a slot is of.
    """

    __slots__ = ("_groups", "_kept", "_most", "_ranked", "floor", "known")

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self.floor = float("inf")
        """Nobody is left out whose score is above."""
        self._ranked: list[Entry] = []
        """In ascending order, so best first."""
        self._groups: dict[int, list[Entry]] | None = None
        """The same by rank; None as long as nobody asks."""
        self.known: dict[int, Entry] = {}
        """Those that stand here, by slot. A slot that is not here and not above the floor need not be `put`."""
        self._most = 2 * kept
        """Of more than so many, whoever stands behind the first `kept` and their equals goes."""

    def fill(
        self,
        scores: NDArray[np.float64],
        slots: NDArray[np.intp],
        ranks: NDArray[np.int64] | None = None,
        rank_of: Callable[[int], int] | None = None,
    ) -> None:
        """These are all scores, of these slots; −inf is nobody. Their ranks, or what says the rank of the few that stand here then."""
        self.floor = NOTHING
        if len(scores) > self._kept:
            least = np.partition(scores, len(scores) - self._kept)[len(scores) - self._kept]
            below = scores[scores < least]
            self.floor = float(below.max()) if len(below) else NOTHING
        among = (scores > self.floor).nonzero()[0]
        found = slots[among].tolist()
        order = ranks[among].tolist() if ranks is not None else [0] * len(found) if rank_of is None else map(rank_of, found)
        self._rank(sorted(zip((-scores[among]).tolist(), order, found, strict=True)))
        self._most = len(self._ranked) + self._kept

    def _rank(self, ranked: list[Entry]) -> None:
        """These stand here, in this order."""
        self._ranked, self.known, self._groups = ranked, {each[2]: each for each in ranked}, None

    def put(self, slot: int, score: float, rank: int = 0) -> None:
        """The score of this slot is another one; −inf: it has none any more."""
        known, groups = self.known.pop(slot, None), self._groups
        if known is not None:
            del self._ranked[bisect_left(self._ranked, known)]
            if groups is not None:
                group = groups[known[1]]
                del group[bisect_left(group, known)]
        if score > self.floor:
            entry = self.known[slot] = (-score, rank, slot)
            insort(self._ranked, entry)
            if groups is not None:
                insort(groups.setdefault(rank, []), entry)
            if len(self._ranked) > self._most:
                self._cut()

    def follow(self, slots: Sequence[int], scores: NDArray[np.float64], ranks: NDArray[np.int64] | None = None) -> None:
        """As `put` for each of these."""
        rising = (scores > self.floor).nonzero()[0].tolist()
        order = [0] * len(slots) if ranks is None else ranks.tolist()
        gone = self.known.keys() & set(slots)
        ranked = [each for each in self._ranked if each[2] not in gone] if gone else self._ranked
        ranked += [(-scores.item(at), order[at], slots[at]) for at in rising]
        ranked.sort()
        self._rank(ranked)
        if len(ranked) > self._most:
            self._cut()

    def few(
        self, count: int, rank: int = -1, *, slack: float = 0.0, floor: Sequence[float] | None = None, without: Collection[int] = ()
    ) -> list[tuple[float, int]] | None:
        """Scores and slots of the best `count` with all equals of the last one, best first; None if that takes a look at all.

        And of all that are below the last one by `slack` at most. Of those only whose rank is `rank`, unless that is negative, and where
        `floor` is 0 and not −inf, unless that is None, but those `without`.
        """
        found: list[tuple[float, int]] = []
        most = -NOTHING
        for minus, _, slot in self._ranked if rank < 0 else self._grouped().get(rank, ()):
            if minus > most:
                break
            if (floor is not None and floor[slot]) or slot in without:
                continue
            found.append((-minus, slot))
            if len(found) == count:
                most = minus + slack
                if most >= -self.floor:
                    return None
        return found if len(found) >= count or self.floor == NOTHING else None

    def _grouped(self) -> dict[int, list[Entry]]:
        groups = self._groups
        if groups is None:
            groups = self._groups = {}
            for each in self._ranked:
                groups.setdefault(each[1], []).append(each)
        return groups

    @property
    def first(self) -> int | None:
        """The slot of the best, and of equals the least rank; −1 if there is nobody, None if that takes a look at all."""
        return self._ranked[0][2] if self._ranked else None if self.floor != NOTHING else -1

    def _cut(self) -> None:
        """Keep the first `kept` and their equals; the first that goes is the floor."""
        end = self._kept
        last = self._ranked[end - 1][0]
        while end < len(self._ranked) and self._ranked[end][0] == last:
            end += 1
        if end < len(self._ranked):
            self.floor = -self._ranked[end][0]
            self._rank(self._ranked[:end])
        # Equals cannot be cut: another try is worth its while when so many more have come.
        self._most = len(self._ranked) + self._kept
