"""The columns that move Nova's scores, within the weighers' bounds: least and most of each, and the best by the sum of their shares.

They follow the profiles' journal like a lane, for all classes of requests together: what a weigher makes of a profile depends on the class
only through the candidates' least and most. As a fleet fills up, large instances have other candidates than small ones, so there are
several such bounds at a time, each with scores and sums of its own. Sums are only nearly right (see `sums`): whoever may be among the best
by them is scored exactly, step by step as the reference does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import gt, lt

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from streams.scheduling.profiles.profile import Profiles
from streams.scheduling.profiles.recent import recall
from streams.scheduling.profiles.rows import Floats, Rows
from streams.scheduling.profiles.sums import ONE_BY_ONE_MOST, Sums

Bounds = tuple[list[float], list[float]]
"""The low end of each row over some candidates, and how far its high end is."""

UNKNOWN = -1
"""The slot of an end that is to be looked for. No figure is beyond it: the least is −inf then, the most +inf."""
SCORES_MAX = 4096
"""So many scores are kept over the same bounds."""
OVERS_MAX = 8
"""So many bounds are kept with what was scored over them."""
SUMS_MAX = 4
"""So many sums are kept; nine of ten decisions on a fleet that fills up find theirs among the last three."""


class Over(Struct):
    """Candidates' bounds, and the exact scores over them by slot."""

    bounds: Bounds
    active: list[tuple[int, float, float, float]]
    """The rows that count: number, multiplier, low end and span."""
    weights: list[float]
    """Of each row that counts multiplier / span, 0 where all candidates have one figure."""
    scores: dict[int, float] = field(default_factory=dict)


class Spans:
    """Rows of `profiles.floats`, one for each of the weighers that tell profiles apart, in the order of their sum.

    `lowest` and `highest` are the weighers' own bounds; `multipliers` are those of the first of them, which count in the sum. `partition`
    is the column of `profiles.figures` that says a profile's partition.
    """

    def __init__(
        self,
        profiles: Profiles,
        rows: Sequence[int],
        lowest: Sequence[float | None],
        highest: Sequence[float | None],
        multipliers: Sequence[float],
        partition: int = 0,
    ) -> None:
        self._profiles, self._multipliers = profiles, list(multipliers)
        self._rows = Rows(profiles, rows, lowest, highest, partition)
        self._own = list(zip(lowest, highest, strict=True))
        self._seen = -1
        self._least, self._most = End(-np.inf, len(rows)), End(np.inf, len(rows))
        self._whole: Bounds | None = None
        """What `bounds` says of all live profiles; None as long as it is to be worked out."""
        self._holders: set[int] = set()
        """The slots that have the ends in that."""
        self._overs: list[Over] = []
        """Those that were asked for last, first the last one."""
        self._sums: list[Sums] = []
        """Likewise."""
        self._multiplied = sum([abs(multiplier) for multiplier in multipliers])

    def sync(self) -> None:
        """Be as the profiles are now."""
        profiles = self._profiles
        now = profiles.journal.now
        if self._seen == now:
            return
        changes = profiles.journal.changes(self._seen) if len(self._rows.known) == profiles.capacity else None
        if changes is None or len(changes) > ONE_BY_ONE_MOST:
            self._begin()
        else:
            self._follow(changes)
        self._seen = now

    def _begin(self) -> None:
        self._rows.begin()
        self._whole = None
        self._least, self._most = End(-np.inf, len(self._own)), End(np.inf, len(self._own))
        self._overs, self._sums = [], []

    def _follow(self, changes: Collection[int]) -> None:
        live, least, most, rows = self._profiles.live, self._least, self._most, self._rows
        if self._whole is None or not self._holders.isdisjoint(changes):
            self._whole = None
            least.forget(changes)
            most.forget(changes)
        for over in self._overs:
            for slot in changes:
                over.scores.pop(slot, None)
        for sums in self._sums:
            sums.stale.update(changes)
        for slot in changes:
            if slot >= live:
                continue
            figures, is_larger = rows.read(slot)
            if any(map(lt, figures, least.figures)) or any(map(gt, figures, most.figures)):
                self._whole = None
                for k, figure in enumerate(figures):
                    if figure < least.figures[k]:
                        least.put(k, figure, slot)
                    elif figure > most.figures[k]:
                        most.put(k, figure, slot)
            if is_larger:
                for sums in self._sums:
                    sums.outgrown()

    def bounds(self, floor: Floats | None, beside: Collection[int], without: Collection[int] = ()) -> Bounds:
        """The bounds over the candidates; what is asked for next is over these. The same object as long as they are remembered.

        They are those where `floor` is 0 and not −inf (None: all) but those `without`, and the slots `beside`.
        """
        found = self._whole
        if found is None:
            found = self._whole = self._bounds(None, ())
            self._holders = {slot for slot in (*self._least.slots, *self._most.slots) if slot != UNKNOWN}
        is_shut = floor is not None and any(floor.item(slot) for slot in self._holders if slot not in beside)
        if is_shut or (without and not self._holders.isdisjoint(without)):
            # Who has an end is no candidate, and who has the next may be one of `without` as well.
            found = self._bounds(lowered(floor, without, self._profiles.live) if without else floor, beside)
        overs = self._overs
        if not overs or overs[0].bounds != found:
            recall(overs, OVERS_MAX, lambda over: over.bounds == found, lambda: self._over(found))
        return overs[0].bounds

    def _over(self, bounds: Bounds) -> Over:
        rows = list(enumerate(zip(self._multipliers, *bounds, strict=False)))
        active = [(k, multiplier, low, span) for k, (multiplier, low, span) in rows if span]
        return Over(bounds, active, [multiplier / span if span else 0.0 for _, (multiplier, _, span) in rows])

    def _bounds(self, floor: Floats | None, beside: Collection[int]) -> Bounds:
        lows: list[float] = []
        spans: list[float] = []
        for k, (lowest, highest) in enumerate(self._own):
            low = self._end(k, self._least, -1.0, floor, beside) if lowest is None else lowest
            high = self._end(k, self._most, 1.0, floor, beside) if highest is None else highest
            lows.append(low)
            spans.append(high - low)
        return lows, spans

    def _end(self, k: int, known: End, sign: float, floor: Floats | None, beside: Collection[int]) -> float:
        """The most (or with a negative sign, the least) of a row."""
        figures = self._rows.matrix[k, : self._profiles.live]
        if known.slots[k] == UNKNOWN:
            at = int(figures.argmax() if sign > 0 else figures.argmin())
            known.put(k, figures.item(at), at)
        known_end, slot = known.figures[k], known.slots[k]
        if floor is None or not floor.item(slot) or slot in beside:
            return known_end
        # The one that has it is no candidate: a look at those that are.
        masked: Floats = figures + floor if sign > 0 else figures - floor
        end: float = masked.item(int(masked.argmax() if sign > 0 else masked.argmin()))
        for each in beside:
            value: float = figures.item(each)
            if sign * value > sign * end:
                end = value
        return end

    def score(self, slot: int) -> float:
        """The sum of multiplier × (figure − low) / span of one live profile, row by row, in the reference's order of steps."""
        over = self._overs[0]
        total = over.scores.get(slot)
        if total is None:
            figures, total = self._rows.known[slot] or self._rows.of(slot), 0.0
            for k, multiplier, low, span in over.active:
                total += multiplier * ((figures[k] - low) / span)
            if len(over.scores) >= SCORES_MAX:
                over.scores.clear()
            over.scores[slot] = total
        return total

    def scores(self, slots: NDArray[np.intp]) -> Floats:
        """As `score`, of many."""
        total: Floats = np.zeros(len(slots))
        for k, multiplier, low, span in self._overs[0].active:
            total += multiplier * ((self._rows.matrix[k].take(slots) - low) / span)
        return total

    def sums(self, floor: Floats | None) -> tuple[Floats, float]:
        """What every live profile's score nearly is, but for a figure that is the same for all; −inf where `floor` is.

        And by how much two of them may differ the other way round than the candidates' scores do. Read them before the next call.
        """
        sums, slack = self._sums_over().values()
        return sums if floor is None else sums + floor, slack

    def leading(self, count: int, partition: int, floor: Floats | None, without: Collection[int] = ()) -> list[int] | None:
        """The slots of all that may be among the best `count` by score; of one partition, unless that is negative. Not in order.

        They are the `greatest` of `sums`, but those `without`; None if those are found quicker by a look at all.
        """
        return self._sums_over().leading(count, partition, floor, without, self._seen)

    def _sums_over(self) -> Sums:
        """The sums over the bounds that were asked for last."""
        weights, kept = self._overs[0].weights, self._sums
        if not kept or kept[0].weights != weights:
            recall(kept, SUMS_MAX, lambda sums: sums.weights == weights, lambda: self._made(weights))
        return kept[0]

    def _made(self, weights: list[float]) -> Sums:
        before = self._sums[0] if self._sums else None
        if before is not None:
            before.mend()
        return Sums(self._rows, weights, self._multiplied, self._seen, before)


class End:
    """The least (or the most) of each row, with a slot that has it."""

    __slots__ = ("_nobody", "figures", "slots")

    def __init__(self, nobody: float, rows: int) -> None:
        self._nobody = nobody
        self.figures, self.slots = [nobody] * rows, [UNKNOWN] * rows

    def put(self, row: int, figure: float, slot: int) -> None:
        """The end of a row is this figure, which this slot has."""
        self.figures[row], self.slots[row] = figure, slot

    def forget(self, changed: Collection[int]) -> None:
        """What these slots had is to be looked for."""
        for row, slot in enumerate(self.slots):
            if slot in changed:
                self.put(row, self._nobody, UNKNOWN)


def lowered(floor: Floats | None, slots: Collection[int], live: int) -> Floats:
    """A floor (None: 0 for all) that is −inf at these slots too."""
    found: Floats = np.zeros(live) if floor is None else floor.copy()
    found[list(slots)] = -np.inf
    return found
