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
from streams.scheduling.crowd import Crowd, Figures


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
    low = min(values) if lowest is None else lowest
    span = (max(values) if highest is None else highest) - low
    return [(value - low) / span for value in values] if span else [0.0] * len(values)


def weigh(
    rooms: Sequence[Room], weighers: Sequence[tuple[str, float]], crowd: Crowd | None = None
) -> tuple[list[float], list[Column]]:
    """The score of each room and where it comes from; a single candidate is not weighed, as in Nova.

    `crowd` has the figures of exactly these rooms, if anybody keeps them.
    """
    scores = [0.0] * len(rooms)
    columns: list[Column] = []
    if len(rooms) < 2:
        return scores, columns
    for name, multiplier in weighers:
        weigher = WEIGHERS[name]
        figures = Figures(list(map(weigher.raw, rooms))) if crowd is None else crowd.figures(weigher.raw)
        columns.append(_column(weigher, multiplier, figures))
    active = [column for column in columns if column.span]
    if len(active) == 3:
        scores = _sums_of_three(*active)
    else:
        for column in active:
            multiplier, low, span = column.multiplier, column.low, column.span
            scores = [score + multiplier * ((value - low) / span) for score, value in zip(scores, column.bounded, strict=True)]
    return scores, columns


def _column(weigher: Weigher, multiplier: float, figures: Figures) -> Column:
    raw, lowest, highest = figures.values, weigher.lowest, weigher.highest
    bounded, least, most = raw, figures.least(), figures.most()
    if lowest is not None and least < lowest:
        bounded, least, most = [max(value, lowest) for value in bounded], lowest, max(most, lowest)
    if highest is not None and most > highest:
        bounded, least, most = [min(value, highest) for value in bounded], min(least, highest), highest
    low = least if lowest is None else lowest
    return Column(weigher.name, multiplier, raw, bounded, low, (most if highest is None else highest) - low)


def _sums_of_three(one: Column, two: Column, three: Column) -> list[float]:
    """The same sums in one pass, for the usual three weighers: a third of the time of three passes."""
    (m1, low1, span1), (m2, low2, span2), (m3, low3, span3) = ((each.multiplier, each.low, each.span) for each in (one, two, three))
    if low1 == low2 == low3 == 0 and m1 == m2 == m3 == 1:
        # The same floats without the steps that change none.
        return [a / span1 + b / span2 + c / span3 for a, b, c in zip(one.bounded, two.bounded, three.bounded, strict=True)]
    return [
        m1 * ((a - low1) / span1) + m2 * ((b - low2) / span2) + m3 * ((c - low3) / span3)
        for a, b, c in zip(one.bounded, two.bounded, three.bounded, strict=True)
    ]
