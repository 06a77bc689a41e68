"""The columns that move Nova's scores, within the weighers' bounds: least and most of each, and the sum of their shares.

They follow the profiles' journal like a lane, for all classes of requests together: what a weigher makes of a profile depends on the class
only through the candidates' least and most. As long as these stay, only what changed is summed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from streams.scheduling.profiles import Profiles

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ONE_BY_ONE_MOST = 24
"""Of more changed profiles than this, a look at whole columns is cheaper."""

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
        self._figures: Floats = np.zeros((len(rows), 0))
        self._sums: Floats = np.zeros(0)
        self._part: Floats = np.zeros(0)
        self._least, self._most = [_UNKNOWN] * len(rows), [_UNKNOWN] * len(rows)
        """The least and the most of each row, with a slot that has it; −1: to be looked for."""
        self._summed: tuple[list[float], list[float]] | None = None
        self._stale: set[int] = set()

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
            self._figures = np.zeros((len(self._rows), profiles.capacity))
            self._sums, self._part = np.zeros(profiles.capacity), np.zeros(profiles.capacity)
        for k, row in enumerate(self._rows):
            figures = self._figures[k, : profiles.live]
            figures[:] = profiles.floats[row, : profiles.live]
            low, high = self._lowest[k], self._highest[k]
            if low is not None:
                np.maximum(figures, low, out=figures)
            if high is not None:
                np.minimum(figures, high, out=figures)
        self._least, self._most = [_UNKNOWN] * len(self._rows), [_UNKNOWN] * len(self._rows)
        self._summed = None

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
            raws: list[float] = profiles.floats[:, slot].tolist()
            figures = [raws[row] for row in self._rows]
            for k, low, high in self._bounded:
                figures[k] = low if figures[k] < low else min(figures[k], high)
            for k, figure in enumerate(figures):
                if figure < self._least[k][0] and self._least[k] is not _UNKNOWN:
                    self._least[k] = figure, slot
                if figure > self._most[k][0] and self._most[k] is not _UNKNOWN:
                    self._most[k] = figure, slot
            self._figures[:, slot] = figures
            self._stale.add(slot)

    def bounds(self, inside: Mask | None, beside: Collection[int]) -> tuple[list[float], list[float]]:
        """The low end of each row over the candidates and how far its high end is: those `inside` (None: all), and the slots `beside`."""
        lows: list[float] = []
        spans: list[float] = []
        for k, (lowest, highest) in enumerate(zip(self._lowest, self._highest, strict=True)):
            low = self._end(k, self._least, -1.0, inside, beside) if lowest is None else lowest
            high = self._end(k, self._most, 1.0, inside, beside) if highest is None else highest
            lows.append(low)
            spans.append(high - low)
        return lows, spans

    def _end(self, k: int, known: list[tuple[float, int]], sign: float, inside: Mask | None, beside: Collection[int]) -> float:
        """The most (or with a negative sign, the least) of a row."""
        if known[k] is _UNKNOWN:
            figures = self._figures[k, : self._profiles.live]
            at = int(figures.argmax() if sign > 0 else figures.argmin())
            known[k] = figures.item(at), at
        known_end, slot = known[k]
        if inside is None or inside[slot] or slot in beside:
            return known_end
        figures = self._figures[k, : self._profiles.live]
        # The one that has it is no candidate: a look at those that are.
        masked = np.where(inside, figures, -sign * np.inf)
        end: float = masked.item(int(masked.argmax() if sign > 0 else masked.argmin()))
        for each in beside:
            value: float = figures.item(each)
            if sign * value > sign * end:
                end = value
        return end

    def sums(self, lows: list[float], spans: list[float]) -> Floats:
        """The sum of multiplier × (figure − low) / span of every live profile, row by row, in the reference's order of steps.

        Read it before the next call, and leave it as it is.
        """
        live = self._profiles.live
        sums = self._sums[:live]
        if self._summed == (lows, spans):
            for slot in self._stale:
                if slot < live:
                    sums[slot] = self._sum(slot, lows, spans)
        else:
            self._sum_all(sums, lows, spans)
            self._summed = lows, spans
        self._stale.clear()
        return sums

    def _sum(self, slot: int, lows: list[float], spans: list[float]) -> float:
        figures: list[float] = self._figures[:, slot].tolist()
        total = 0.0
        for k, multiplier in enumerate(self._multipliers):
            if spans[k]:
                total += multiplier * ((figures[k] - lows[k]) / spans[k])
        return total

    def _sum_all(self, sums: Floats, lows: list[float], spans: list[float]) -> None:
        is_first = True
        for k, multiplier in enumerate(self._multipliers):
            if not spans[k]:
                continue
            figures = self._figures[k, : len(sums)]
            part = sums if is_first else self._part[: len(sums)]
            if lows[k]:
                figures = np.subtract(figures, lows[k], out=part)
            np.divide(figures, spans[k], out=part)
            if multiplier != 1.0:
                np.multiply(part, multiplier, out=part)
            if not is_first:
                np.add(sums, part, out=sums)
            is_first = False
        if is_first:
            sums[:] = 0.0


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound
