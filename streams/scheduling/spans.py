"""The columns that move Nova's scores, within the weighers' bounds: least and most of each, and the best by the sum of their shares.

They follow the profiles' journal like a lane, for all classes of requests together: what a weigher makes of a profile depends on the class
only through the candidates' least and most. Those move with nearly every decision, and with them every score. So what is kept of each
profile is a sum that is only nearly right but quick to mend when an end moves; how wrong it may be is bounded, and whoever may be among the
best by that is scored exactly, step by step as the reference does.
"""

from __future__ import annotations

from collections.abc import Collection, MutableSequence, Sequence

import numpy as np
from numpy.typing import NDArray

from streams.scheduling.profiles import Profiles, one_by_one

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ONE_BY_ONE_MOST = 24
"""Of more changed profiles than this, a look at whole columns is cheaper."""

STEPS_MOST = 16
"""So often sums are mended before they are made anew: each time adds to what they may be wrong by."""
SLACK = 2.0**-42
"""Of the largest that sums and scores can be together. Of 13 rows, making a sum rounds by 15 × 2^-53 of it at most, each time of mending
it by 30 × 2^-53, and an exact score by 16 × 2^-53; for two that are compared this is twice 511 × 2^-53, below 2^-43."""
_UNKNOWN = (0.0, -1)


class Spans:
    """Rows of `profiles.floats`, one for each of the weighers that tell profiles apart, in the order of their sum.

    `lowest` and `highest` are the weighers' own bounds; `multipliers` are those of the first of them, which count in the sum.
    """

    def __init__(
        self,
        profiles: Profiles,
        rows: Sequence[int],
        lowest: Sequence[float | None],
        highest: Sequence[float | None],
        multipliers: Sequence[float],
    ) -> None:
        self._profiles, self._rows = profiles, list(rows)
        self._lowest, self._highest, self._multipliers = list(lowest), list(highest), list(multipliers)
        bounds = [(k, _or(low, -np.inf), _or(high, np.inf)) for k, (low, high) in enumerate(zip(lowest, highest, strict=True))]
        self._bounded = [each for each in bounds if each[1:] != (-np.inf, np.inf)]
        self._seen = -1
        self._resize(0)
        self._least, self._most = [_UNKNOWN] * len(rows), [_UNKNOWN] * len(rows)
        """The least and the most of each row, with a slot that has it; −1: to be looked for."""
        self._weights: list[float] | None = None
        """What the sums were made with: multiplier / span of each row; None: they are nobody's."""
        self._steps, self._magnitude = 0, 0.0
        """How often they were mended since they were made, and the largest that they can have been."""
        self._stale: set[int] = set()

    def _resize(self, capacity: int) -> None:
        self._figures: Floats = np.zeros((len(self._rows), capacity))
        self._sums, self._part, self._masked = np.zeros(capacity), np.zeros(capacity), np.zeros(capacity)
        self._sum_at: MutableSequence[float] = one_by_one(self._sums)

    def sync(self) -> None:
        """Be as the profiles are now."""
        profiles = self._profiles
        if self._seen == profiles.now:
            return
        changes = profiles.changes(self._seen) if len(self._sums) == profiles.capacity else None
        if changes is None or len(changes) > ONE_BY_ONE_MOST:
            self._begin()
        else:
            self._follow(changes)
        self._seen = profiles.now

    def _begin(self) -> None:
        profiles = self._profiles
        if len(self._sums) != profiles.capacity:
            self._resize(profiles.capacity)
        for k, row in enumerate(self._rows):
            figures = self._figures[k, : profiles.live]
            figures[:] = profiles.floats[row, : profiles.live]
            low, high = self._lowest[k], self._highest[k]
            if low is not None:
                np.maximum(figures, low, out=figures)
            if high is not None:
                np.minimum(figures, high, out=figures)
        self._least, self._most = [_UNKNOWN] * len(self._rows), [_UNKNOWN] * len(self._rows)
        self._weights = None

    def _follow(self, changes: Collection[int]) -> None:
        profiles = self._profiles
        live = profiles.live
        for ends in (self._least, self._most):
            for k, (_, slot) in enumerate(ends):
                if slot in changes:
                    ends[k] = _UNKNOWN
        for slot in changes:
            if slot >= live:
                continue
            figures = self._of(slot)
            for k, figure in enumerate(figures):
                if figure < self._least[k][0] and self._least[k] is not _UNKNOWN:
                    self._least[k] = figure, slot
                if figure > self._most[k][0] and self._most[k] is not _UNKNOWN:
                    self._most[k] = figure, slot
            self._figures[:, slot] = figures
            self._stale.add(slot)

    def _of(self, slot: int) -> list[float]:
        """The figures of one profile within the bounds, row by row."""
        raws = self._profiles.at[slot].floats
        figures = [raws[row] for row in self._rows]
        for k, low, high in self._bounded:
            figures[k] = low if figures[k] < low else min(figures[k], high)
        return figures

    def bounds(self, floor: Floats | None, beside: Collection[int]) -> tuple[list[float], list[float]]:
        """The low end of each row over the candidates and how far its high end is.

        They are those where `floor` is 0 and not −inf (None: all), and the slots `beside`.
        """
        lows: list[float] = []
        spans: list[float] = []
        for k, (lowest, highest) in enumerate(zip(self._lowest, self._highest, strict=True)):
            low = self._end(k, self._least, -1.0, floor, beside) if lowest is None else lowest
            high = self._end(k, self._most, 1.0, floor, beside) if highest is None else highest
            lows.append(low)
            spans.append(high - low)
        return lows, spans

    def _end(self, k: int, known: list[tuple[float, int]], sign: float, floor: Floats | None, beside: Collection[int]) -> float:
        """The most (or with a negative sign, the least) of a row."""
        if known[k] is _UNKNOWN:
            figures = self._figures[k, : self._profiles.live]
            at = int(figures.argmax() if sign > 0 else figures.argmin())
            known[k] = figures.item(at), at
        known_end, slot = known[k]
        if floor is None or not floor.item(slot) or slot in beside:
            return known_end
        figures = self._figures[k, : self._profiles.live]
        # The one that has it is no candidate: a look at those that are.
        masked = (np.add if sign > 0 else np.subtract)(figures, floor, out=self._part[: self._profiles.live])
        end: float = masked.item(int(masked.argmax() if sign > 0 else masked.argmin()))
        for each in beside:
            value: float = figures.item(each)
            if sign * value > sign * end:
                end = value
        return end

    def score(self, slot: int, lows: list[float], spans: list[float]) -> float:
        """The sum of multiplier × (figure − low) / span of one live profile, row by row, in the reference's order of steps."""
        figures, total = self._of(slot), 0.0
        for k, multiplier in enumerate(self._multipliers):
            if spans[k]:
                total += multiplier * ((figures[k] - lows[k]) / spans[k])
        return total

    def scores(self, slots: NDArray[np.intp], lows: list[float], spans: list[float]) -> Floats:
        """As `score`, of many."""
        total: Floats = np.zeros(len(slots))
        for k, multiplier in enumerate(self._multipliers):
            if spans[k]:
                total += multiplier * ((self._figures[k].take(slots) - lows[k]) / spans[k])
        return total

    def sums(self, lows: list[float], spans: list[float], floor: Floats | None) -> tuple[Floats, float]:
        """What every live profile's score nearly is, but for a figure that is the same for all; −inf where `floor` is.

        And by how much two of them may differ the other way round than the candidates' scores do. Read them before the next call.
        """
        live = self._profiles.live
        sums = self._sums[:live]
        weights = [multiplier / span if span else 0.0 for multiplier, span in zip(self._multipliers, spans, strict=False)]
        magnitude = 0.0
        for k, weight in enumerate(weights):
            most, least = self._most[k], self._least[k]
            # An end that nobody looked for is a bound of the weigher's own.
            high = spans[k] + lows[k] if most is _UNKNOWN else most[0]
            magnitude += abs(weight) * max(abs(high), abs(lows[k] if least is _UNKNOWN else least[0]))
        if self._weights is None or self._steps >= STEPS_MOST:
            self._sum_all(sums, weights)
            self._steps, self._magnitude = 0, magnitude
        elif self._weights != weights:
            for k, (before, now) in enumerate(zip(self._weights, weights, strict=True)):
                if before != now:
                    np.multiply(self._figures[k, :live], now - before, out=self._part[:live])
                    np.add(sums, self._part[:live], out=sums)
            self._steps += 1
            self._magnitude = max(self._magnitude, magnitude)
        self._weights = weights
        for slot in self._stale:
            if slot < live:
                total = 0.0
                for weight, figure in zip(weights, self._of(slot), strict=False):
                    total += weight * figure
                self._sum_at[slot] = total
        self._stale.clear()
        if floor is not None:
            sums = np.add(sums, floor, out=self._masked[:live])
        return sums, SLACK * (self._magnitude + sum([abs(multiplier) for multiplier in self._multipliers]))

    def _sum_all(self, sums: Floats, weights: list[float]) -> None:
        sums[:] = 0.0
        part = self._part[: len(sums)]
        for k, weight in enumerate(weights):
            if weight:
                np.add(sums, np.multiply(self._figures[k, : len(sums)], weight, out=part), out=sums)


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound
