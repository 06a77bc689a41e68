"""All weighers of a policy over the candidates of one ask, as columns; and what each made of one candidate, as evidence.

A weigher that says the same of every live profile moves no score and is left out of the sum; its evidence is one object for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from projections.room import Room
from schemas.resources import RESOURCES
from schemas.results import Weight
from streams.scheduling import raws
from streams.scheduling.ask import Ask
from streams.scheduling.kinds import ABSOLUTE
from streams.scheduling.lane import Lane
from streams.scheduling.options import MULTIPLIERS, Options
from streams.scheduling.raws import Raw
from streams.scheduling.ring import Best
from streams.scheduling.scores import Absolute, Floats, Share, bounded
from streams.scheduling.view import AT, View
from streams.scheduling.weighers import Weigher, multiplier_of

Slots = NDArray[np.intp]
_FEW_KEPT = 4096


class Weighed:
    """The scores of the candidates: `scores` of `slots` (None: of all slots, −inf where one is no candidate), `single` of the others."""

    __slots__ = ("_tell", "scores", "single", "slots")

    def __init__(
        self, scores: Floats, slots: Slots | None, single: list[float], tell: Callable[[Best, Mapping[int, Room]], tuple[Weight, ...]]
    ) -> None:
        self.scores, self.slots, self.single, self._tell = scores, slots, single, tell

    def weights(self, best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
        """What each weigher made of one of the candidates; `apart` are the rooms that were looked at by themselves."""
        return self._tell(best, apart)


class Weighing:
    """The weighers of a policy: each with its multiplier and its column's figure (None: it depends on the ask).

    `cached`: all are absolute, and lanes keep their sums.
    """

    def __init__(self, view: View, weighers: Sequence[tuple[Weigher, float, Raw | None]], options: Options, *, cached: bool) -> None:
        self._view, self._weighers, self._options, self._cached = view, list(weighers), options, cached
        self._row: list[int | None] = []
        row = len(RESOURCES)
        for _, _, raw in weighers:
            self._row.append(None if raw is None else row)
            row += raw is not None
        self._flat: dict[tuple[int, float, float], Weight] = {}
        self._multipliers: dict[int, list[float]] = {}

    def begin(self) -> None:
        """The fleet is another one."""
        self._flat.clear()
        self._multipliers.clear()

    def weigh(self, lane: Lane, ask: Ask, single: list[Room], passed: int, candidates: Callable[[], Slots], *, is_closed: bool) -> Weighed:
        """As `weighers.weigh`, over the candidate profiles and the nodes looked at one by one (`is_closed`: these alone)."""
        if passed < 2:
            slots = candidates()
            return Weighed(np.zeros(len(slots)), slots, [0.0] * len(single), lambda *_: ())
        if self._cached and not self._view.overrides:
            return self._absolute(lane, ask, single, candidates, is_closed=is_closed)
        return self._normalised(ask, single, candidates())

    def _absolute(self, lane: Lane, ask: Ask, single: list[Room], candidates: Callable[[], Slots], *, is_closed: bool) -> Weighed:
        made = [(weigher, multiplier, _raw(weigher, ask, self._options)) for weigher, multiplier, _ in self._weighers]
        rooms = self._view.rooms

        def tell(best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
            room = apart.get(best.ordinal) or rooms[best.ordinal]
            return tuple([_absolute_weight(weigher.name, multiplier, raw(room)) for weigher, multiplier, raw in made])

        alone = []
        for room in single:
            score = 0.0
            for _, multiplier, raw in made:
                score += multiplier * raw(room)
            alone.append(score)
        if is_closed:
            slots = candidates()
            return Weighed(lane.scores[slots], slots, alone, tell)
        return Weighed(lane.scores[: self._view.profiles.live], None, alone, tell)

    def _normalised(self, ask: Ask, single: list[Room], slots: Slots) -> Weighed:
        view = self._view
        profiles, count = view.profiles, len(slots)
        at = np.concatenate([slots, [profiles.of(view.ordinals[room.node_id]).slot for room in single]]) if single else slots
        at = at.astype(np.intp, copy=False)
        active, matrix = self._matrix(ask, single, at, count)
        made: dict[int, tuple[Share, int]] = {}
        scores: Floats = np.zeros(len(at))
        if active:
            weighers = [self._weighers[i][0] for i in active]
            lowest = [-np.inf if each.lowest is None else each.lowest for each in weighers]
            highest = [np.inf if each.highest is None else each.highest for each in weighers]
            kept = matrix.copy() if any(self._row[i] is None for i in active) else None
            matrix, least, most = bounded(matrix, lowest, highest)
            low = np.array([float(least[k]) if each.lowest is None else each.lowest for k, each in enumerate(weighers)])
            span = np.array([float(most[k]) if each.highest is None else each.highest for k, each in enumerate(weighers)]) - low
            for k, i in enumerate(active):
                weigher, multiplier, _ = self._weighers[i]
                made[i] = (Share(weigher.name, multiplier, weigher.lowest, weigher.highest, float(low[k]), float(span[k])), k)
            scores = self._sum(matrix, low, span, active, at)
            return Weighed(scores[:count], slots, scores[count:].tolist(), self._teller(made, kept, slots, single, count))
        return Weighed(scores[:count], slots, scores[count:].tolist(), self._teller(made, None, slots, single, count))

    def _matrix(self, ask: Ask, single: list[Room], at: Slots, count: int) -> tuple[list[int], Floats]:
        """The weighers that can move a score, and their raw figures, a row each."""
        view = self._view
        floats = view.profiles.floats
        active: list[int] = []
        rows: list[int] = []
        asked: dict[int, Floats] = {}
        for i, (weigher, _, raw) in enumerate(self._weighers):
            row = self._row[i]
            if row is not None:
                value = view.constants[row - len(RESOURCES)]
                if value is None or (weigher.lowest is not None and value > weigher.lowest):
                    active.append(i)
                    rows.append(row)
                continue
            del raw
            figures = self._asked(weigher, ask, single, at, count)
            if figures is not None:
                active.append(i)
                rows.append(0)
                asked[len(rows) - 1] = figures
        if not rows:
            return [], floats[:0, : len(at)]
        matrix: Floats = (
            floats[rows, : view.profiles.live] if len(at) == view.profiles.live and not single else floats[rows].take(at, axis=1)
        )
        for k, figures in asked.items():
            matrix[k] = figures
        return active, matrix

    def _asked(self, weigher: Weigher, ask: Ask, single: list[Room], at: Slots, count: int) -> Floats | None:
        """The figures of a weigher that depends on the ask; None if it makes no difference for this one."""
        view = self._view
        raw = _raw(weigher, ask, self._options)
        if raw is raws.nothing:
            return None
        rest = at[:count]
        if weigher.name in ABSOLUTE:
            used = view.profiles.figures[AT["vcpus_used"] : AT["vcpus_used"] + len(RESOURCES)].take(rest, axis=1)
            figures = Absolute(weigher.name, 1.0).prepared(ask).raw(used, view.profiles.floats[: len(RESOURCES)].take(rest, axis=1))
        elif weigher.name == "CrossCellWeigher":
            wanted = np.array([1.0 if cell == ask.request.preferred_cell else -1.0 for cell in view.cells])
            figures = wanted[view.profiles.figures[AT["static"]].take(rest)]
        else:
            # No node outside `single` has members of the group.
            figures = np.full(count, -0.0 if weigher.name == "ServerGroupSoftAntiAffinityWeigher" else 0.0)
        return np.concatenate([figures, [raw(room) for room in single]]) if single else figures

    def _sum(self, matrix: Floats, low: Floats, span: Floats, active: list[int], at: Slots) -> Floats:
        """The sum of multiplier × (bounded − low) / span, weigher by weigher, in the reference's order of steps."""
        view = self._view
        moving = [k for k in range(len(active)) if span[k]]
        if not view.overrides:
            moving = [k for k in moving if self._weighers[active[k]][1]]
        if not moving:
            return np.zeros(len(at))
        if len(moving) < len(active):
            matrix, low, span = matrix[moving], low[moving], span[moving]
        if low.any():
            matrix -= low[:, None]
        matrix /= span[:, None]
        multipliers = [self._weighers[active[k]][1] for k in moving]
        if view.overrides:
            classes = view.profiles.figures[AT["static"]].take(at)
            for row, k in enumerate(moving):
                matrix[row] *= np.array(self._by_class(active[k]))[classes]
        elif any(multiplier != 1.0 for multiplier in multipliers):
            matrix *= np.array(multipliers)[:, None]
        scores: Floats = matrix[0]
        for row in range(1, len(moving)):
            scores = scores + matrix[row]
        return scores

    def _by_class(self, i: int) -> list[float]:
        """A weigher's multiplier on each static class."""
        known = self._multipliers.setdefault(i, [])
        weigher, multiplier, _ = self._weighers[i]
        for aggregates in self._view.aggregates[len(known) :]:
            if weigher.name not in MULTIPLIERS:
                known.append(multiplier)
            else:
                sign = -1.0 if weigher.negated else 1.0
                known.append(sign * multiplier_of(weigher.name, sign * multiplier, aggregates))
        return known

    def _teller(
        self, made: dict[int, tuple[Share, int]], kept: Floats | None, slots: Slots, single: list[Room], count: int
    ) -> Callable[[Best, Mapping[int, Room]], tuple[Weight, ...]]:
        view = self._view
        floats = view.profiles.floats

        def tell(best: Best, _apart: Mapping[int, Room]) -> tuple[Weight, ...]:
            slot = best.slot if best.slot >= 0 else view.profiles.of(best.ordinal).slot
            column = -1
            if kept is not None:
                if best.slot >= 0:
                    column = int(np.searchsorted(slots, best.slot))
                else:
                    column = count + next(n for n, room in enumerate(single) if view.ordinals[room.node_id] == best.ordinal)
            number = int(view.profiles.figures[AT["static"], slot]) if view.overrides else -1
            figures = floats[:, slot].tolist()
            weights = []
            for i, (weigher, multiplier, _) in enumerate(self._weighers):
                row, share = self._row[i], made.get(i)
                if share is None:
                    factor = self._by_class(i)[number] if number >= 0 else multiplier
                    weights.append(self._flat_weight(i, weigher, factor, 0.0 if row is None else figures[row]))
                else:
                    raw = figures[row] if row is not None else float(kept[share[1], column]) if kept is not None else 0.0
                    weights.append(share[0].weight(raw, self._by_class(i)[number] if number >= 0 else None))
            return tuple(weights)

        return tell

    def _flat_weight(self, i: int, weigher: Weigher, multiplier: float, raw: float) -> Weight:
        known = self._flat.get((i, raw, multiplier))
        if known is None:
            if len(self._flat) > _FEW_KEPT:
                self._flat.clear()
            known = self._flat[i, raw, multiplier] = Weight(weigher=weigher.name, raw=raw, normalised=0.0, multiplied=multiplier * 0.0)
        return known


def _raw(weigher: Weigher, ask: Ask, options: Options) -> Raw:
    return weigher.raw if weigher.reads is None else weigher.reads(ask, options)


def _absolute_weight(name: str, multiplier: float, raw: float) -> Weight:
    return Weight(weigher=name, raw=raw, normalised=raw, multiplied=multiplier * raw)
