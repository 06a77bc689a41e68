"""The figures of the weighers that tell profiles apart, each within its weigher's own bounds: a row a weigher, kept as the profiles are."""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt

import numpy as np
from numpy.typing import NDArray

from streams.scheduling.profiles.profile import Profiles

Floats = NDArray[np.float64]


class Rows:
    """Rows of `profiles.floats`, as `lowest` and `highest` let them be. Whoever follows the profiles tells which slots changed."""

    def __init__(
        self, profiles: Profiles, rows: Sequence[int], lowest: Sequence[float | None], highest: Sequence[float | None], partition: int
    ) -> None:
        self.profiles, self.partition = profiles, partition
        """`partition`: the column of `profiles.figures` that says a profile's partition."""
        self._rows, self._lowest, self._highest = list(rows), list(lowest), list(highest)
        bounds = [(k, _or(low, -np.inf), _or(high, np.inf)) for k, (low, high) in enumerate(zip(lowest, highest, strict=True))]
        self._bounded = [each for each in bounds if each[1:] != (-np.inf, np.inf)]
        self.matrix: Floats = np.zeros((len(self._rows), 0))
        self.known: list[tuple[float, ...] | None] = []
        """The figures of one profile, by slot; None for one that nobody asked for since it changed. See `of`."""
        self.largest = [0.0] * len(self._rows)
        """The largest figure of each row, without its sign, since all profiles were looked at."""

    def begin(self) -> None:
        """Look at all profiles."""
        profiles = self.profiles
        if self.matrix.shape[1] != profiles.capacity:
            self.matrix = np.zeros((len(self._rows), profiles.capacity))
        for k, row in enumerate(self._rows):
            figures = self.matrix[k, : profiles.live]
            figures[:] = profiles.floats[row, : profiles.live]
            low, high = self._lowest[k], self._highest[k]
            if low is not None:
                np.maximum(figures, low, out=figures)
            if high is not None:
                np.minimum(figures, high, out=figures)
            self.largest[k] = max(float(figures.max(initial=0.0)), -float(figures.min(initial=0.0)))
        self.known = [None] * profiles.capacity

    def read(self, slot: int) -> tuple[tuple[float, ...], bool]:
        """The figures of a live profile that changed, and whether one of them is larger than the largest until now."""
        self.known[slot] = None
        figures = self.of(slot)
        self.matrix[:, slot] = figures
        is_larger = any(map(gt, map(abs, figures), self.largest))
        if is_larger:
            self.largest = [max(known, abs(figure)) for known, figure in zip(self.largest, figures, strict=True)]
        return figures, is_larger

    def of(self, slot: int) -> tuple[float, ...]:
        """The figures of one live profile, row by row."""
        known = self.known[slot]
        if known is not None:
            return known
        figures = list(map(self.profiles.at[slot].floats.__getitem__, self._rows))
        for k, low, high in self._bounded:
            if figures[k] < low:
                figures[k] = low
            elif figures[k] > high:
                figures[k] = high
        # A tuple of numbers is none of the garbage collector's business, and there is one for each profile.
        found = self.known[slot] = tuple(figures)
        return found


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound
