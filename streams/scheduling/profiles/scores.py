"""Weighing over columns: the same floats as `weighers.weigh` gives node by node, step by step in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor

import numpy as np
from msgspec import Struct, field
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
        # Bin-packing looks at CPU and memory, whatever is asked for.
        rows = [0, 2] if self.name == "BinPackWeigher" else [r for r in range(len(RESOURCES)) if asked[r]]
        amounts = [asked[r] for r in rows]
        return AbsoluteRaw(
            self.multiplier, *_RAWS[self.name], rows, list(zip(rows, amounts, strict=True)), np.array(amounts, np.int64).reshape(-1, 1)
        )


class AbsoluteRaw(Struct):
    """Figures of use and wholes, one row a resource, to the raw figure of each profile (see `raws.pack` and the others).

    `rows` are the resources that it reads, `terms` the same with what is asked for of each.
    """

    multiplier: float
    figure: Callable[[Floats], Floats]
    figure_of_one: Callable[[list[float]], float]
    rows: list[int]
    terms: list[tuple[int, int]]
    asked: Ints

    def raw(self, used: Ints, wholes: Floats) -> Floats:
        """The raw figure of each profile."""
        return self.figure(np.minimum((used[self.rows] + self.asked) / wholes[self.rows], 1.0))

    def of_one(self, used: Sequence[int], wholes: Sequence[float]) -> float:
        """The raw figure of one profile: the same float, step by step."""
        return self.figure_of_one([part if (part := (used[r] + n) / wholes[r]) < 1.0 else 1.0 for r, n in self.terms])


def _pack(parts: Floats) -> Floats:
    if not len(parts):
        return np.zeros(parts.shape[1])
    total: Floats = parts[0]
    for each in parts[1:]:
        total = total + each
    return total / len(parts)


def _spread(parts: Floats) -> Floats:
    return 1.0 - _pack(parts)


def _best_fit(parts: Floats) -> Floats:
    found: Floats = parts.max(axis=0) if len(parts) else np.zeros(parts.shape[1])
    return found


def _bin_pack(parts: Floats) -> Floats:
    steps = POWER_STEPS - np.floor(parts * POWER_STEPS).astype(np.intp)
    powers = _POWERS[steps]
    found: Floats = np.minimum(np.maximum(20.0 - powers[0] - powers[1], 0.0), BIN_PACK_MOST) / BIN_PACK_MOST
    return found


def _pack_one(parts: list[float]) -> float:
    total = 0.0
    for part in parts:
        total += part
    return total / len(parts) if parts else 0.0


def _spread_one(parts: list[float]) -> float:
    return 1.0 - _pack_one(parts)


def _best_fit_one(parts: list[float]) -> float:
    return max(parts, default=0.0)


def _bin_pack_one(parts: list[float]) -> float:
    cpu, memory = (POWERS[POWER_STEPS - floor(part * POWER_STEPS)] for part in parts)
    return float(min(max(20.0 - cpu - memory, 0.0), BIN_PACK_MOST) / BIN_PACK_MOST)


_RAWS: dict[str, tuple[Callable[[Floats], Floats], Callable[[list[float]], float]]] = {
    "PackWeigher": (_pack, _pack_one),
    "SpreadWeigher": (_spread, _spread_one),
    "BestFitWeigher": (_best_fit, _best_fit_one),
    "BinPackWeigher": (_bin_pack, _bin_pack_one),
}
"""Each for many profiles, and for one."""


SHARES_MAX = 4096
"""So many weights of one weigher are kept over the same candidates."""


class Share(Struct):
    """One weigher over all candidates: what makes a raw figure a share of the score (see `weighers.Column`)."""

    weigher: str
    multiplier: float
    lowest: float | None
    highest: float | None
    low: float
    span: float
    known: dict[float, Weight] = field(default_factory=dict)

    def weight_of(self, raw: float) -> Weight:
        """As `weight`; one object as long as it is the same."""
        found = self.known.get(raw)
        if found is None:
            if len(self.known) >= SHARES_MAX:
                self.known.clear()
            found = self.known[raw] = self.weight(raw)
        return found

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
