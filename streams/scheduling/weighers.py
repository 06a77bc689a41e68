"""The weighers by name, and the score: the sum of multiplier × normalised over the nodes that passed (Nova's BaseWeightHandler).

normalised = (raw − lowest) / (highest − lowest) over the candidates, 0 for all where those are equal; a weigher with a `lowest` of its own
uses that and lifts what is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from projections.room import Room
from schemas.results import Weight


class Weigher(Struct, frozen=True, gc=False):
    """One weigher: the raw figure of a node, larger is better, and its own bounds if it has any."""

    name: str
    raw: Callable[[Room], float]
    lowest: float | None = None
    highest: float | None = None


WEIGHERS: Mapping[str, Weigher] = {
    weigher.name: weigher
    for weigher in (
        Weigher("RAMWeigher", attrgetter("memory_mib_left"), lowest=0.0),
        Weigher("CPUWeigher", attrgetter("vcpus_left"), lowest=0.0),
        Weigher("DiskWeigher", attrgetter("disk_mib_left"), lowest=0.0),
    )
}
"""RAM, CPU and disk as in Nova: what is left after reserved and used; CPUs times their ratio."""


class Column(Struct, gc=False):
    """One weigher's figures for all candidates: `raw` as they are, `bounded` within the weigher's own bounds."""

    weigher: str
    multiplier: float
    raw: list[float]
    bounded: list[float]
    low: float
    span: float

    def weight(self, at: int) -> Weight:
        """The share of candidate number `at`, as evidence: computed as in the score, so that the parts give it exactly."""
        normalised = (self.bounded[at] - self.low) / self.span if self.span else 0.0
        return Weight(weigher=self.weigher, raw=self.raw[at], normalised=normalised, multiplied=self.multiplier * normalised)


def normalise(values: Sequence[float], lowest: float | None = None, highest: float | None = None) -> list[float]:
    """`values` from 0 to 1 within their own range, or within the bounds that are given."""
    if not values:
        return []
    low, span = _range(values, lowest, highest)
    return [(value - low) / span for value in values] if span else [0.0] * len(values)


def weigh(rooms: Sequence[Room], weighers: Sequence[tuple[str, float]]) -> tuple[list[float], list[Column]]:
    """The score of each room and where it comes from; a single candidate is not weighed, as in Nova."""
    scores = [0.0] * len(rooms)
    columns: list[Column] = []
    if len(rooms) < 2:
        return scores, columns
    for name, multiplier in weighers:
        weigher = WEIGHERS[name]
        raw = list(map(weigher.raw, rooms))
        bounded = _bounded(raw, weigher.lowest, weigher.highest)
        low, span = _range(bounded, weigher.lowest, weigher.highest)
        columns.append(Column(name, multiplier, raw, bounded, low, span))
    active = [column for column in columns if column.span]
    if len(active) == 3:
        scores = _sums_of_three(*active)
    else:
        for column in active:
            multiplier, low, span = column.multiplier, column.low, column.span
            scores = [score + multiplier * ((value - low) / span) for score, value in zip(scores, column.bounded, strict=True)]
    return scores, columns


def _sums_of_three(one: Column, two: Column, three: Column) -> list[float]:
    """The same sums in one pass, for the usual three weighers: a third of the time of three passes."""
    (m1, low1, span1), (m2, low2, span2), (m3, low3, span3) = ((each.multiplier, each.low, each.span) for each in (one, two, three))
    return [
        m1 * ((a - low1) / span1) + m2 * ((b - low2) / span2) + m3 * ((c - low3) / span3)
        for a, b, c in zip(one.bounded, two.bounded, three.bounded, strict=True)
    ]


def _range(values: Sequence[float], lowest: float | None, highest: float | None) -> tuple[float, float]:
    low = min(values) if lowest is None else lowest
    return low, (max(values) if highest is None else highest) - low


def _bounded(values: list[float], lowest: float | None, highest: float | None) -> list[float]:
    if lowest is not None and min(values) < lowest:
        values = [max(value, lowest) for value in values]
    if highest is not None and max(values) > highest:
        values = [min(value, highest) for value in values]
    return values
