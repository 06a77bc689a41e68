"""The best candidates of the profile engine: by score, and among equals by how far their marks follow the seed's place on the ring."""

from __future__ import annotations

from collections.abc import Collection, MutableSequence
from operator import itemgetter

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from projections.room import Room
from streams.scheduling.profiles.profile import one_by_one
from streams.scheduling.profiles.view import View
from streams.scheduling.reference import MASK_64

Floats = NDArray[np.float64]
NOTHING = float("-inf")
TIED_FEW = 8
"""So many equal candidates are found one by one; more of them by one look at all."""
_score = itemgetter(0)


class Best(Struct, gc=False):
    """One of the best: its node's ordinal, its score, and the slot of its profile (−1: it is looked at by itself)."""

    ordinal: int
    score: float
    slot: int


def greatest(scores: Floats, count: int, slack: float = 0.0) -> list[int]:
    """The places of the `count` greatest, greatest first, and of all that are below the last of them by `slack` at most; −inf is nobody.

    `scores` are given back as they came.
    """
    found: list[tuple[int, float]] = []
    one: MutableSequence[float] = one_by_one(scores)
    least, argmax = NOTHING, scores.argmax
    for tried in range(1, len(scores) + 1):
        at = int(argmax())
        score = one[at]
        if score == NOTHING or score < least:
            break
        found.append((at, score))
        one[at] = NOTHING
        if tried == count:
            least = score - slack
        elif tried == count + TIED_FEW:
            rest = (scores >= least).nonzero()[0]
            found += zip(rest.tolist(), scores.take(rest).tolist(), strict=True)
            break
    for at, score in found:
        one[at] = score
    return [at for at, _ in found]


class Ring:
    """Candidates in order of score and then of their marks from where the seed says: profiles, and the nodes that are looked at `apart`."""

    def __init__(self, view: View, start: int, apart: Collection[int]) -> None:
        self._view, self._start, self._apart = view, start, apart

    def best(self, count: int, few: list[tuple[float, int]], single: list[tuple[float, Room]]) -> list[Best]:
        """The best `count` of `few` (scores and slots of profiles, best first) and `single`."""
        found: list[Best] = []
        at = 0
        if not single and not self._apart:
            profiles = self._view.profiles.at
            nodes = [profiles[slot].ordinals for _, slot in few]
            if len({score for score, _ in few}) == len(few) == sum(map(len, nodes)):
                # The plain case: of each score there is one node.
                return [Best(ordinal, score, slot) for (ordinal,), (score, slot) in zip(nodes, few, strict=True)][:count]
        left = sorted(single, key=_score, reverse=True) if single else single
        while len(found) < count:
            top = few[at][0] if at < len(few) else NOTHING
            if left and left[0][0] > top:
                top = left[0][0]
            if top == NOTHING:
                break
            end = at
            while end < len(few) and few[end][0] == top:
                end += 1
            alike = [room for score, room in left if score == top] if left else []
            if end == at + 1 and not alike:
                found += self._of_one(few[at][1], count - len(found), top)
            else:
                found += self._in_order([slot for _, slot in few[at:end]], alike, count - len(found), top)
                left = left[len(alike) :]
            at = end
        return found

    def _of_one(self, slot: int, count: int, score: float) -> list[Best]:
        profiles, apart = self._view.profiles, self._apart
        ordinals = profiles.at[slot].ordinals
        if len(ordinals) == 1 and not apart:
            return [Best(ordinals[0], score, slot)]
        return [Best(profiles.ordinal(mark), score, slot) for mark in profiles.marked(slot, self._start, count, apart)]

    def _in_order(self, tied: list[int], alike: list[Room], count: int, score: float) -> list[Best]:
        start, profiles = self._start, self._view.profiles
        found: list[tuple[int, int, int]] = []
        for slot in tied:
            found += [((mark - start) & MASK_64, mark, slot) for mark in profiles.marked(slot, start, count, self._apart)]
        found += [((room.mark - start) & MASK_64, room.mark, -1) for room in alike]
        found.sort()
        return [Best(profiles.ordinal(mark), score, slot) for _, mark, slot in found[:count]]
