"""The scores of the candidates of one ask, as a choice reads them: the best few profiles, and what each weigher made of one candidate.

There are three ways to them: one by one (`Listed`), from sums that follow the profiles (`Followed`), and from a lane's leaders (`Led`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from projections.room import Room
from schemas.results import Weight
from streams.scheduling.profiles.lane import Lane
from streams.scheduling.profiles.ring import Best, greatest
from streams.scheduling.profiles.scores import Floats, Share
from streams.scheduling.profiles.spans import Bounds, Spans, lowered
from streams.scheduling.profiles.view import View

Slots = NDArray[np.intp]
Tell = Callable[[Best, Mapping[int, Room]], tuple[Weight, ...]]
TOLD_MAX = 1024
"""So many are kept: the best of one decision are mostly among the best of the next."""
ONE_BY_ONE_MOST = 24
"""So many are scored one by one; of more, columns cost less."""


class Told(Struct):
    """The weighers that tell profiles apart, over some bounds, by number and column; and what all weighers made of a profile, by slot.

    That holds for the figures that stand with it.
    """

    bounds: Bounds
    shares: list[tuple[int, int, Share]]
    weights: dict[int, tuple[Sequence[float], tuple[Weight, ...]]] = field(default_factory=dict)


class Weighed(Protocol):
    """Scores: `single` are those of the candidates that are looked at by themselves."""

    single: list[float]

    def few(self, count: int, partition: int = -1) -> list[tuple[float, int]]:
        """Scores and slots of the profiles that the best `count` nodes can be of, best first; of one partition, if it is named."""
        ...

    def weights(self, best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
        """What each weigher made of one of the candidates; `apart` are the rooms that were looked at by themselves."""
        ...


class Listed:
    """`scores` of `slots` (None: of all slots, −inf where one is no candidate)."""

    __slots__ = ("_scores", "_slots", "_tell", "_view", "single")

    def __init__(self, view: View, scores: Floats, slots: Slots | None, single: list[float], tell: Tell) -> None:
        self._view, self._scores, self._slots, self.single, self._tell = view, scores, slots, single, tell

    def few(self, count: int, partition: int = -1) -> list[tuple[float, int]]:
        """See `Weighed`."""
        scores, slots = self._scores, self._slots
        if partition >= 0:
            partitions = self._view.column("partition")
            beside = ((partitions if slots is None else partitions.take(slots)) == partition).nonzero()[0]
            scores, slots = scores.take(beside), beside if slots is None else slots.take(beside)
        found = [(scores.item(at), at) for at in greatest(scores, count)]
        return found if slots is None else [(score, slots.item(at)) for score, at in found]

    def weights(self, best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
        """See `Weighed`."""
        return self._tell(best, apart)


class Led:
    """The leaders of a lane, without the profiles that are `emptied`."""

    __slots__ = ("_emptied", "_lane", "_tell", "single")

    def __init__(self, lane: Lane, emptied: Sequence[int], single: list[float], tell: Tell) -> None:
        self._lane, self._emptied, self.single, self._tell = lane, emptied, single, tell

    def few(self, count: int, partition: int = -1) -> list[tuple[float, int]]:
        """See `Weighed`."""
        return self._lane.leading(count, partition, self._emptied)

    def weights(self, best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
        """See `Weighed`."""
        return self._tell(best, apart)


class Followed:
    """Sums that follow the profiles, over the candidates where `floor` is 0 (None: all) but those `emptied`, and the profiles `beside`.

    `told` finds the weighers that tell profiles apart over some bounds; `flats` are the weights of all as they are where they move no
    score, None for one that is left out.
    """

    __slots__ = ("_emptied", "_flats", "_floor", "_profiles", "_spans", "_told", "_view", "single")

    def __init__(
        self,
        view: View,
        spans: Spans,
        floor: Floats | None,
        emptied: Sequence[int],
        beside: Sequence[int],
        told: Callable[[Bounds], Told],
        flats: list[Weight | None],
    ) -> None:
        self._view, self._profiles, self._spans, self._flats = view, view.profiles, spans, flats
        self._floor, self._emptied = floor, emptied
        spans.sync()
        self._told = told(spans.bounds(floor, beside, emptied))
        self.single = [spans.score(slot) for slot in beside] if beside else []

    def few(self, count: int, partition: int = -1) -> list[tuple[float, int]]:
        """See `Weighed`."""
        spans = self._spans
        slots = spans.leading(count, partition, self._floor, self._emptied) or self._look(count, partition)
        if len(slots) > ONE_BY_ONE_MOST:
            found = list(zip(spans.scores(np.array(slots, np.intp)).tolist(), slots, strict=True))
        else:
            found = [(spans.score(slot), slot) for slot in slots]
        found.sort(reverse=True)
        if len(found) <= count:
            return found
        least = found[count - 1][0]
        return [each for each in found if each[0] >= least]

    def _look(self, count: int, partition: int) -> list[int]:
        """Who may be among the best, by a look at all."""
        sums, slack = self._spans.sums(lowered(self._floor, self._emptied, self._profiles.live) if self._emptied else self._floor)
        if partition < 0:
            return greatest(sums, count, slack)
        beside = self._view.beside(partition)
        return [beside.item(at) for at in greatest(sums.take(beside), count, slack)]

    def weights(self, best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
        """See `Weighed`."""
        profiles = self._profiles
        profile = profiles.at[best.slot] if best.slot >= 0 else profiles.of(best.ordinal)
        figures, told = profile.floats, self._told.weights
        known = told.get(profile.slot)
        if known is not None and known[0] is figures:
            return known[1]
        weights = self._flats.copy()
        for i, row, share in self._told.shares:
            weights[i] = share.known.get(figures[row]) or share.weight_of(figures[row])
        if len(told) >= TOLD_MAX:
            told.clear()
        made = tuple([weight for weight in weights if weight is not None])
        told[profile.slot] = figures, made
        return made
