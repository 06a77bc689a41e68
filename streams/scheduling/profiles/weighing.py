"""All weighers of a policy over the candidates of one ask, as columns; and what each made of one candidate, as evidence.

A weigher that says the same of every live profile moves no score and is left out of the sum; its evidence is one object for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from projections.room import Room
from schemas.resources import RESOURCES
from schemas.results import Weight
from streams.scheduling import raws
from streams.scheduling.ask import Ask
from streams.scheduling.options import MULTIPLIERS, Options
from streams.scheduling.profiles.kinds import ABSOLUTE, CROSS_CELL, GROUP_WEIGHERS
from streams.scheduling.profiles.lane import Lane
from streams.scheduling.profiles.recent import recall
from streams.scheduling.profiles.ring import Best
from streams.scheduling.profiles.scores import Absolute, Floats, Share, bounded
from streams.scheduling.profiles.spans import OVERS_MAX, Bounds, Spans, lowered
from streams.scheduling.profiles.view import AT, View
from streams.scheduling.profiles.weighed import Followed, Led, Listed, Slots, Told, Weighed
from streams.scheduling.raws import Raw
from streams.scheduling.weighers import Weigher, multiplier_of, read_by


class Plan(Struct):
    """Which weighers can move a score: by number, the first `counting` of them do. With their columns, their bounds, and other weights.

    `constants` and `overrides` are those it was made for, `flats` the weights of a weigher that moves none, by static class; None for one
    that is left out.
    """

    constants: list[float | None]
    overrides: bool
    shares: list[int]
    rows: Slots
    lowest: list[float | None]
    highest: list[float | None]
    counting: int
    spans: Spans
    names: list[str]
    multipliers: list[float]
    left_out: frozenset[int]
    flats: dict[int, list[Weight | None]] = field(default_factory=dict)
    _told: list[Told] = field(default_factory=list)

    def told(self, bounds: Bounds) -> Told:
        """The weighers' shares over these bounds, and what they made of profiles; the same as long as they are remembered."""
        kept = self._told
        if not kept or kept[0].bounds is not bounds:
            known = kept[0].shares if kept else ()
            recall(kept, OVERS_MAX, lambda told: told.bounds == bounds, lambda: Told(bounds, self._shares(bounds, known)))
        return kept[0]

    def _shares(self, bounds: Bounds, known: Sequence[tuple[int, int, Share]]) -> list[tuple[int, int, Share]]:
        """Those of `known` whose bounds are the same stay: they remember what they made of figures."""
        found = []
        for k, (low, span) in enumerate(zip(*bounds, strict=True)):
            is_known = k < len(known) and (known[k][2].low, known[k][2].span) == (low, span)
            found.append(known[k] if is_known else (self.shares[k], int(self.rows[k]), self._share(k, low, span)))
        return found

    def _share(self, k: int, low: float, span: float) -> Share:
        return Share(self.names[k], self.multipliers[k], self.lowest[k], self.highest[k], low, span)


class Candidates(Struct):
    """Who is weighed: the live profiles where `floor` is 0 and not −inf (None: all), and each node of `single`, looked at by itself.

    `is_closed`: no profile is. `emptied` are the slots of profiles whose nodes are all looked at by themselves: no candidates either.
    """

    floor: Floats | None
    single: list[Room]
    emptied: list[int]
    is_closed: bool

    def slots(self, live: int) -> Slots | None:
        """The slots of the profiles; None for all that are live."""
        if self.is_closed:
            return np.zeros(0, np.intp)
        if self.floor is None and not self.emptied:
            return None
        slots: Slots = (lowered(self.floor, self.emptied, live) == 0.0).nonzero()[0]
        return slots


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
        self._askers = [i for i, row in enumerate(self._row) if row is None]
        self._are_of_groups = all(self._weighers[i][0].name in GROUP_WEIGHERS | {CROSS_CELL} for i in self._askers)
        """Whether all of those have something to say of members of groups and of moves between cells only."""
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._multipliers: dict[int, list[float]] = {}

    def begin(self) -> None:
        """The fleet is another one."""
        self._plans.clear()
        self._multipliers.clear()

    @property
    def is_led(self) -> bool:
        """Whether the lanes' leaders are the best: they know nothing of candidates' other multipliers."""
        return self._cached and not self._view.overrides

    def weigh(self, lane: Lane, ask: Ask, candidates: Candidates, passed: int) -> Weighed:
        """As `weighers.weigh`, over the candidates, of which there are `passed`."""
        profiles, single = self._view.profiles, candidates.single
        if passed < 2:
            slots = candidates.slots(profiles.live)
            return Listed(self._view, np.zeros(profiles.live if slots is None else len(slots)), slots, [0.0] * len(single), _nothing)
        if self.is_led:
            return self._absolute(lane, ask, candidates)
        if not (candidates.is_closed or self._view.overrides or self._is_asked(ask)):
            return self._followed(candidates)
        return self._normalised(ask, single, candidates.slots(profiles.live))

    def _is_asked(self, ask: Ask) -> bool:
        """Whether a weigher makes figures for this ask alone."""
        if self._are_of_groups and ask.item.group is None and not ask.request.cross_cell_move:
            return False
        return any(read_by(*self._weighers[i][:2], ask, self._options) is not raws.nothing for i in self._askers)

    def _followed(self, candidates: Candidates) -> Weighed:
        """Where no figure depends on the ask: by the columns that follow the profiles."""
        view, plan = self._view, self._plan(())
        beside = [view.profiles.of(view.ordinals[room.node_id]).slot for room in candidates.single]
        return Followed(view, plan.spans, candidates.floor, candidates.emptied, beside, plan.told, self._flats(plan, -1))

    def _absolute(self, lane: Lane, ask: Ask, candidates: Candidates) -> Weighed:
        made = [(weigher, multiplier, read_by(weigher, multiplier, ask, self._options)) for weigher, multiplier, _ in self._weighers]
        is_one = len(made) == 1 and made[0][1] == 1.0
        rooms = self._view.rooms

        def tell(best: Best, apart: Mapping[int, Room]) -> tuple[Weight, ...]:
            if is_one:  # The score is the figure itself.
                return (_absolute_weight(made[0][0].name, 1.0, best.score),)
            room = apart.get(best.ordinal) or rooms[best.ordinal]
            return tuple([_absolute_weight(weigher.name, multiplier, raw(room)) for weigher, multiplier, raw in made])

        alone = []
        for room in candidates.single:
            score = 0.0
            for _, multiplier, raw in made:
                score += multiplier * raw(room)
            alone.append(score)
        if candidates.is_closed:
            return Listed(self._view, np.zeros(0), candidates.slots(0), alone, tell)
        return Led(lane, candidates.emptied, alone, tell)

    def _normalised(self, ask: Ask, single: list[Room], slots: Slots | None) -> Weighed:
        view = self._view
        profiles = view.profiles
        count = profiles.live if slots is None else len(slots)
        if single:
            beside = [profiles.of(view.ordinals[room.node_id]).slot for room in single]
            slots = np.concatenate([np.arange(count) if slots is None else slots, beside]).astype(np.intp, copy=False)
        asked = self._asked_rows(ask, single, slots, count)
        plan = self._plan(tuple(asked))
        if not plan.shares:
            scores: Floats = np.zeros(count + len(single))
            return Listed(
                view,
                scores[:count],
                _without(slots, count),
                scores[count:].tolist(),
                self._teller(plan, [], None, slots, single, count),
            )
        matrix: Floats = profiles.floats[plan.rows, : profiles.live] if slots is None else profiles.floats[plan.rows].take(slots, axis=1)
        for k, i in enumerate(plan.shares):
            if i in asked:
                matrix[k] = asked[i]
        kept = matrix.copy() if asked else None
        least, most = bounded(matrix, plan.lowest, plan.highest)
        low = [each if lowest is None else lowest for each, lowest in zip(least, plan.lowest, strict=True)]
        span = [(each if highest is None else highest) - low[k] for k, (each, highest) in enumerate(zip(most, plan.highest, strict=True))]
        shares = [share for _, _, share in plan.told((low, span)).shares]
        scores = self._sum(matrix, low, span, plan, slots)
        return Listed(
            view,
            scores[:count],
            _without(slots, count),
            scores[count:].tolist(),
            self._teller(plan, shares, kept, slots, single, count),
        )

    def _plan(self, asked: tuple[int, ...]) -> Plan:
        """Which weighers can move a score now, those that count in it first.

        Kept until another column begins to vary, or an aggregate to multiply: then a weigher counts that the policy multiplies by 0.
        """
        view = self._view
        known = self._plans.get(asked)
        if known is not None and known.constants is view.constants and known.overrides == view.overrides:
            return known
        active: list[int] = []
        for i, (weigher, _, _) in enumerate(self._weighers):
            row = self._row[i]
            value = None if row is None else view.constants[row - len(RESOURCES)]
            if i in asked if row is None else value is None or (weigher.lowest is not None and value > weigher.lowest):
                active.append(i)
        counting = [i for i in active if self._weighers[i][1] or view.overrides]
        shares = counting + [i for i in active if i not in counting]
        rows = [self._row[i] or 0 for i in shares]
        lowest, highest = ([getattr(self._weighers[i][0], name) for i in shares] for name in ("lowest", "highest"))
        names, multipliers = [self._weighers[i][0].name for i in shares], [self._weighers[i][1] for i in shares]
        spans = Spans(view.profiles, rows, lowest, highest, multipliers[: len(counting)], AT["partition"])
        left_out = frozenset([i for i in self._askers if self._weighers[i][0].of_groups and i not in asked])
        basis, columns = (view.constants, view.overrides), np.array(rows, np.intp)
        plan = Plan(*basis, shares, columns, lowest, highest, len(counting), spans, names, multipliers, left_out)
        self._plans[asked] = plan
        return plan

    def _asked_rows(self, ask: Ask, single: list[Room], slots: Slots | None, count: int) -> dict[int, Floats]:
        """The figures of the weighers that depend on the ask, where they make a difference, by number."""
        found: dict[int, Floats] = {}
        for i in self._askers:
            figures = self._asked(i, ask, single, slots, count)
            if figures is not None:
                found[i] = figures
        return found

    def _asked(self, i: int, ask: Ask, single: list[Room], slots: Slots | None, count: int) -> Floats | None:
        """The figures of a weigher that depends on the ask; None if it makes no difference for this one."""
        view, (weigher, multiplier, _) = self._view, self._weighers[i]
        raw = read_by(weigher, multiplier, ask, self._options)
        if raw is raws.nothing:
            return None
        rest = np.arange(count) if slots is None else slots[:count]
        if weigher.name in ABSOLUTE:
            used = view.profiles.figures[AT["vcpus_used"] : AT["vcpus_used"] + len(RESOURCES)].take(rest, axis=1)
            figures = Absolute(weigher.name, 1.0).prepared(ask).raw(used, view.profiles.floats[: len(RESOURCES)].take(rest, axis=1))
        elif weigher.name == CROSS_CELL:
            wanted = np.array([1.0 if cell == ask.request.preferred_cell else -1.0 for cell in view.cells])
            figures = wanted[view.profiles.figures[AT["static"]].take(rest)]
        else:
            # No node outside `single` has members of the group.
            figures = np.full(count, -0.0 if weigher.name == "ServerGroupSoftAntiAffinityWeigher" else 0.0)
        return np.concatenate([figures, [raw(room) for room in single]]) if single else figures

    def _sum(self, matrix: Floats, low: list[float], span: list[float], plan: Plan, slots: Slots | None) -> Floats:
        """The sum of multiplier × (bounded − low) / span, weigher by weigher, in the reference's order of steps."""
        view, counting = self._view, plan.counting
        moving = [k for k in range(counting) if span[k]]
        if not moving:
            return np.zeros(matrix.shape[1])
        matrix = matrix[:counting] if len(moving) == counting else matrix[moving]
        lows, spans = [low[k] for k in moving], [span[k] for k in moving]
        if any(lows):
            matrix -= np.array(lows)[:, None]
        matrix /= np.array(spans)[:, None]
        for row, k in enumerate(moving):
            i = plan.shares[k]
            if view.overrides:
                classes = view.profiles.figures[AT["static"]]
                matrix[row] *= np.array(self._by_class(i))[classes[: view.profiles.live] if slots is None else classes[slots]]
            elif (multiplier := self._weighers[i][1]) != 1.0:
                matrix[row] *= multiplier
        # Along the first axis numpy adds row by row, as the reference adds weigher by weigher.
        scores: Floats = np.add.reduce(matrix, axis=0)
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
        self, plan: Plan, shares: list[Share], kept: Floats | None, slots: Slots | None, single: list[Room], count: int
    ) -> Callable[[Best, Mapping[int, Room]], tuple[Weight, ...]]:
        view = self._view
        floats = view.profiles.floats

        def tell(best: Best, _apart: Mapping[int, Room]) -> tuple[Weight, ...]:
            slot = best.slot if best.slot >= 0 else view.profiles.of(best.ordinal).slot
            column = -1
            if kept is not None:
                if best.slot < 0:
                    column = count + next(n for n, room in enumerate(single) if view.ordinals[room.node_id] == best.ordinal)
                else:
                    column = slot if slots is None else int(np.searchsorted(slots[:count], slot))
            number = int(view.profiles.figures[AT["static"], slot]) if view.overrides else -1
            weights = self._flats(plan, number)
            for k, i in enumerate(plan.shares):
                row = self._row[i]
                raw = float(floats[row, slot]) if row is not None else float(kept[k, column]) if kept is not None else 0.0
                weights[i] = shares[k].weight(raw, self._by_class(i)[number] if number >= 0 else None)
            return tuple([weight for weight in weights if weight is not None])

        return tell

    def _flats(self, plan: Plan, number: int) -> list[Weight | None]:
        """The weights of all weighers as they are where they move no score; `number` is the static class, if aggregates multiply.

        None stands for one that is left out: so each is at its weigher's number.
        """
        known = plan.flats.get(number)
        if known is None:
            known = plan.flats[number] = []
            for i, (weigher, multiplier, _) in enumerate(self._weighers):
                if i in plan.left_out:
                    known.append(None)
                    continue
                row = self._row[i]
                raw = 0.0 if row is None else self._view.constants[row - len(RESOURCES)] or 0.0
                factor = self._by_class(i)[number] if number >= 0 else multiplier
                known.append(Weight(weigher=weigher.name, raw=raw, normalised=0.0, multiplied=factor * 0.0))
        return list(known)


def _without(slots: Slots | None, count: int) -> Slots | None:
    """The slots without those of nodes that are looked at by themselves, which come last."""
    return None if slots is None else slots[:count]


def _nothing(_best: Best, _apart: Mapping[int, Room]) -> tuple[Weight, ...]:
    return ()


def _absolute_weight(name: str, multiplier: float, raw: float) -> Weight:
    return Weight(weigher=name, raw=raw, normalised=raw, multiplied=multiplier * raw)
