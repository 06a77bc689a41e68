"""The weighers by name, and the score: the sum of multiplier × normalised over the nodes that passed (Nova's BaseWeightHandler).

normalised = (raw − lowest) / (highest − lowest) over the candidates, 0 for all where those are equal; a weigher with a `lowest` of its own
uses that and lifts what is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter

from msgspec import Struct

from projections.room import Room
from schemas.inventory import Aggregate
from schemas.results import Weight
from streams.scheduling import raws
from streams.scheduling.aggregates import override
from streams.scheduling.ask import Ask
from streams.scheduling.crowd import Crowd, Figures
from streams.scheduling.custom import custom_weigher
from streams.scheduling.options import MULTIPLIER_SUFFIX, MULTIPLIERS, OPTIONS, Options
from streams.scheduling.raws import Raw


class Weigher(Struct, frozen=True, gc=False):
    """One weigher: the raw figure of a node, larger is better, and its own bounds if it has any.

    `reads` makes the figure for one ask and the policy's options where it depends on them, `reads_by` where it depends on the weigher's
    multiplier too; `raw` is the figure without an ask. With
    both bounds a weigher is absolute: what it says of a node does not depend on the others. `negated`: its multiplier counts against.
    `costly`: not worked out where its multiplier is 0. `of_groups`: it has something to say of members of a group only, and is left out,
    of the evidence too, where an instance is in none of its kind. `own_multiplier`: what it says itself of a node's multiplier (Nova's
    weight_multiplier), times the policy's.
    """

    name: str
    raw: Raw
    lowest: float | None = None
    highest: float | None = None
    reads: Callable[[Ask | None, Options], Raw] | None = None
    reads_by: Callable[[Ask | None, Options, float], Raw] | None = None
    negated: bool = False
    costly: bool = False
    of_groups: bool = False
    own_multiplier: Callable[[Room], float] | None = None


WEIGHERS: Mapping[str, Weigher] = {
    weigher.name: weigher
    for weigher in (
        Weigher("RAMWeigher", attrgetter("memory_mib_left"), lowest=0.0),
        Weigher("CPUWeigher", attrgetter("vcpus_left"), lowest=0.0),
        Weigher("DiskWeigher", attrgetter("disk_mib_left"), lowest=0.0),
        Weigher("IoOpsWeigher", raws.io_ops, lowest=0.0, reads=raws.stepped_io_ops),
        Weigher("NumInstancesWeigher", raws.num_instances),
        Weigher("HypervisorVersionWeigher", raws.hypervisor_version),
        Weigher("PCIWeigher", raws.pci),
        Weigher("ServerGroupSoftAffinityWeigher", raws.nothing, reads=raws.soft_affinity, of_groups=True),
        Weigher("ServerGroupSoftAntiAffinityWeigher", raws.nothing, reads=raws.soft_anti_affinity, of_groups=True),
        Weigher("BuildFailureWeigher", raws.failed_builds, negated=True),
        Weigher("CrossCellWeigher", raws.nothing, reads=raws.cross_cell),
        Weigher("MetricsWeigher", raws.nothing, reads_by=raws.metrics),
        Weigher("ImagePropertiesWeigher", raws.nothing, reads=raws.image_properties, costly=True),
        Weigher("PackWeigher", raws.nothing, lowest=0.0, highest=1.0, reads=raws.pack),
        Weigher("SpreadWeigher", raws.nothing, lowest=0.0, highest=1.0, reads=raws.spread),
        Weigher("BestFitWeigher", raws.nothing, lowest=0.0, highest=1.0, reads=raws.best_fit),
        Weigher("BinPackWeigher", raws.nothing, lowest=0.0, highest=1.0, reads=raws.bin_pack),
    )
}
"""All thirteen of Nova, and four absolute ones; what each reads stands in `raws`."""


def has_overrides(room: Room) -> bool:
    """Whether the node's aggregates multiply any weigher in their own way."""
    return any(key.endswith(MULTIPLIER_SUFFIX) for aggregate in room.node.aggregates for key in aggregate.metadata)


def multiplier_of(weigher: str, default: float, aggregates: Iterable[Aggregate]) -> float:
    """A weigher's multiplier on a node: the least that its aggregates give under the option's name, else the policy's (Nova's rule)."""
    option, _ = MULTIPLIERS.get(weigher, ("", 0.0))
    return override(aggregates, option, default, float) if option else default


class Column(Struct, gc=False):
    """One weigher's figures for all candidates: `raw` as they are, `bounded` within the weigher's own bounds.

    `multipliers` has one for each candidate where aggregates override them, or the weigher has its own.
    """

    weigher: str
    multiplier: float
    raw: list[float]
    bounded: list[float]
    low: float
    span: float
    multipliers: list[float] | None = None

    def weight(self, at: int) -> Weight:
        """The share of candidate number `at`, as evidence: computed as in the score, so that the parts give it exactly."""
        normalised = (self.bounded[at] - self.low) / self.span if self.span else 0.0
        multiplier = self.multiplier if self.multipliers is None else self.multipliers[at]
        return Weight(weigher=self.weigher, raw=self.raw[at], normalised=normalised, multiplied=multiplier * normalised)


def weigh(
    rooms: Sequence[Room],
    weighers: Sequence[tuple[str, float]],
    crowd: Crowd | None = None,
    *,
    ask: Ask | None = None,
    options: Options = OPTIONS,
) -> tuple[list[float], list[Column]]:
    """The score of each room and where it comes from; a single candidate is not weighed, as in Nova.

    `crowd` has the figures of exactly these rooms, if anybody keeps them. Raises `raws.MetricMissing`.
    """
    scores = [0.0] * len(rooms)
    columns: list[Column] = []
    if len(rooms) < 2:
        return scores, columns
    overridden = any(map(has_overrides, rooms)) if crowd is None else crowd.figures(has_overrides).most()
    for name, multiplier in weighers:
        weigher = weigher_of(name)
        if weigher.of_groups and read_by(weigher, multiplier, ask, options) is raws.nothing:
            continue
        figures = _figures(weigher, multiplier, rooms, crowd, ask, options)
        column = column_of(weigher, -multiplier if weigher.negated else multiplier, figures)
        if overridden and name in MULTIPLIERS:
            sign = -1.0 if weigher.negated else 1.0
            column.multipliers = [sign * multiplier_of(name, multiplier, room.node.aggregates) for room in rooms]
        elif weigher.own_multiplier is not None:
            column.multipliers = [multiplier * own for own in map(weigher.own_multiplier, rooms)]
        columns.append(column)
    active = [column for column in columns if column.span]
    if len(active) == 3 and all(column.multipliers is None for column in active):
        scores = _sums_of_three(*active)
    else:
        for column in active:
            multipliers, low, span = column.multipliers or repeat(column.multiplier, len(rooms)), column.low, column.span
            shares = zip(scores, multipliers, column.bounded, strict=True)
            scores = [score + multiplier * ((value - low) / span) for score, multiplier, value in shares]
    return scores, columns


def weigher_of(name: str) -> Weigher:
    """The weigher of that name, or the custom one that the name leads to. Raises CustomError."""
    return WEIGHERS[name] if name in WEIGHERS else _custom(name)


@lru_cache(maxsize=64)
def _custom(name: str) -> Weigher:
    custom = custom_weigher(name)

    def reads(ask: Ask | None, _: Options) -> Raw:
        return raws.nothing if ask is None else custom.figure(ask)

    return Weigher(name, raws.nothing, custom.lowest, custom.highest, reads=reads, own_multiplier=custom.multiplier)


def read_by(weigher: Weigher, multiplier: float, ask: Ask | None, options: Options) -> Raw:
    """The figure that a weigher reads of a node for this ask; `raws.nothing` if it tells no nodes apart."""
    if weigher.reads_by is not None:
        return weigher.reads_by(ask, options, multiplier)
    return weigher.raw if weigher.reads is None else weigher.reads(ask, options)


def _figures(weigher: Weigher, multiplier: float, rooms: Sequence[Room], crowd: Crowd | None, ask: Ask | None, options: Options) -> Figures:
    raw = read_by(weigher, multiplier, ask, options)
    if weigher.costly and not multiplier:
        raw = raws.nothing
    # A figure that is made for one ask is nobody else's: only those that stand for themselves are kept.
    return crowd.figures(raw) if crowd is not None and raw is weigher.raw else Figures(list(map(raw, rooms)))


def column_of(weigher: Weigher, multiplier: float, figures: Figures) -> Column:
    """The figures of at least one node, within the weigher's own bounds: normalised from 0 to 1 within these, or within their own range."""
    return normalised(weigher, multiplier, figures.values, _within(figures, weigher.lowest, weigher.highest))


def _within(figures: Figures, lowest: float | None, highest: float | None) -> Figures:
    """The figures with those beyond a bound moved to it."""
    if lowest is not None and figures.least() < lowest:
        figures = Figures([max(value, lowest) for value in figures.values], lowest)
    if highest is not None and figures.most() > highest:
        figures = Figures([min(value, highest) for value in figures.values], highest=highest)
    return figures


def normalised(weigher: Weigher, multiplier: float, raw: list[float], figures: Figures) -> Column:
    """The figures of at least one node, from 0 at the weigher's lower bound to 1 at its upper one, or at the ends of their own range."""
    low = figures.least() if weigher.lowest is None else weigher.lowest
    high = figures.most() if weigher.highest is None else weigher.highest
    return Column(weigher.name, multiplier, raw, figures.values, low, high - low)


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
