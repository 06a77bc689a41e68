"""Weighing over columns: the same floats as `weighers.weigh` gives node by node, step by step in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from projections.node import amounts_of
from schemas.resources import RESOURCES
from schemas.results import Weight
from streams.scheduling.ask import Ask
from streams.scheduling.raws import BIN_PACK_MOST, POWER_STEPS, POWERS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_POWERS = np.array(POWERS)


class Absolute(Struct):
    """An absolute weigher of a policy: its name and multiplier. `prepared` makes its figures for one class of requests."""

    name: str
    multiplier: float

    def prepared(self, ask: Ask) -> AbsoluteRaw:
        """For asks of these amounts."""
        asked = amounts_of(ask.item.resources)
        rows = [r for r in range(len(RESOURCES)) if asked[r]]
        return AbsoluteRaw(self.multiplier, _RAWS[self.name], np.array(asked, np.int64).reshape(-1, 1), rows)


class AbsoluteRaw(Struct):
    """Figures of use and wholes, one row a resource, to the raw figure of each profile (see `raws.pack` and the others)."""

    multiplier: float
    figure: Callable[[Floats, list[int]], Floats]
    asked: Ints
    rows: list[int]

    def raw(self, used: Ints, wholes: Floats) -> Floats:
        """The raw figure of each profile."""
        parts: Floats = np.minimum((used + self.asked) / wholes, 1.0)
        return self.figure(parts, self.rows)


def _pack(parts: Floats, rows: list[int]) -> Floats:
    if not rows:
        return np.zeros(parts.shape[1])
    total: Floats = parts[rows[0]]
    for r in rows[1:]:
        total = total + parts[r]
    return total / len(rows)


def _spread(parts: Floats, rows: list[int]) -> Floats:
    return 1.0 - _pack(parts, rows)


def _best_fit(parts: Floats, rows: list[int]) -> Floats:
    found: Floats = parts[rows].max(axis=0) if rows else np.zeros(parts.shape[1])
    return found


def _bin_pack(parts: Floats, _: list[int]) -> Floats:
    steps = POWER_STEPS - np.floor(parts[[0, 2]] * POWER_STEPS).astype(np.intp)
    powers = _POWERS[steps]
    found: Floats = np.minimum(np.maximum(20.0 - powers[0] - powers[1], 0.0), BIN_PACK_MOST) / BIN_PACK_MOST
    return found


_RAWS: dict[str, Callable[[Floats, list[int]], Floats]] = {
    "PackWeigher": _pack,
    "SpreadWeigher": _spread,
    "BestFitWeigher": _best_fit,
    "BinPackWeigher": _bin_pack,
}


class Share(Struct, gc=False):
    """One weigher over all candidates: what makes a raw figure a share of the score (see `weighers.Column`)."""

    weigher: str
    multiplier: float
    lowest: float | None
    highest: float | None
    low: float
    span: float

    def weight(self, raw: float, multiplier: float | None = None) -> Weight:
        """The share of one candidate."""
        bounded = raw
        if self.lowest is not None and bounded < self.lowest:
            bounded = self.lowest
        if self.highest is not None and bounded > self.highest:
            bounded = self.highest
        normalised = (bounded - self.low) / self.span if self.span else 0.0
        factor = self.multiplier if multiplier is None else multiplier
        return Weight(weigher=self.weigher, raw=raw, normalised=normalised, multiplied=factor * normalised)


def bounded(raws: Floats, lowest: Sequence[float | None], highest: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Brings the figures (a row a weigher) within the weighers' own bounds, in place; the least and the most of each row."""
    least: list[float] = np.minimum.reduce(raws, axis=1).tolist()
    most: list[float] = np.maximum.reduce(raws, axis=1).tolist()
    for row, (low, high) in enumerate(zip(lowest, highest, strict=True)):
        if low is not None and least[row] < low:
            np.maximum(raws[row], low, out=raws[row])
            least[row], most[row] = low, max(most[row], low)
        if high is not None and most[row] > high:
            np.minimum(raws[row], high, out=raws[row])
            least[row], most[row] = min(least[row], high), high
    return least, most
