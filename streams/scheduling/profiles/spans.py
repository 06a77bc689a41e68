"""The columns that move Nova's scores, within the weighers' bounds: least and most of each, and the best by the sum of their shares.

They follow the profiles' journal like a lane, for all classes of requests together: what a weigher makes of a profile depends on the class
only through the candidates' least and most. Those move with nearly every decision, and with them every score. So what is kept of each
profile is a sum that is only nearly right but quick to mend when an end moves; how wrong it may be is bounded, and whoever may be among the
best by that is scored exactly, step by step as the reference does.
"""

from __future__ import annotations

from collections.abc import Collection, MutableSequence, Sequence
from operator import gt, lt, mul

import numpy as np
from numpy.typing import NDArray

from streams.scheduling.profiles.leaders import Leaders
from streams.scheduling.profiles.profile import Profiles, one_by_one

Floats = NDArray[np.float64]
Bounds = tuple[list[float], list[float]]
"""The low end of each row over some candidates, and how far its high end is."""

ONE_BY_ONE_MOST = 24
"""Of more changed profiles than this, a look at whole columns is cheaper."""

LEADING = 128
"""So many leaders of the sums: with few partitions, enough of each for alternates; and each choice moves one of them."""
STEPS_MOST = 16
"""So often sums are mended before they are made anew: each time adds to what they may be wrong by."""
SLACK = 2.0**-42
"""Of the largest that sums and scores can be together. Of 13 rows, making a sum rounds by 15 × 2^-53 of it at most, each time of mending
it by 30 × 2^-53, and an exact score by 16 × 2^-53; for two that are compared this is twice 511 × 2^-53, below 2^-43."""
UNKNOWN = -1
"""The slot of an end that is to be looked for. No figure is beyond it: the least is −inf then, the most +inf."""
SCORES_MAX = 4096
"""So many scores are kept over the same bounds."""


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
        self._profiles, self._rows = profiles, list(rows)
        self._lowest, self._highest, self._multipliers = list(lowest), list(highest), list(multipliers)
        self._own, self._partition = list(zip(lowest, highest, strict=True)), partition
        bounds = [(k, _or(low, -np.inf), _or(high, np.inf)) for k, (low, high) in enumerate(zip(lowest, highest, strict=True))]
        self._bounded = [each for each in bounds if each[1:] != (-np.inf, np.inf)]
        self._seen = -1
        self._resize(0)
        self._least, self._most = End(-np.inf, len(rows)), End(np.inf, len(rows))
        self._whole: Bounds | None = None
        """What `bounds` says of all live profiles; None as long as it is to be worked out."""
        self._holders: set[int] = set()
        """The slots that have the ends in that."""
        self._over: Bounds = ([], [])
        """The low ends of the rows over the candidates that were asked for last, and how far their high ends are."""
        self._active: list[tuple[int, float, float, float]] = []
        """The rows that count over those: number, multiplier, low end and span."""
        self._scores: dict[int, float] = {}
        """Scores over those, by slot."""
        self._weights: list[float] = []
        """What the sums were made with: multiplier / span of each row; none: they are nobody's."""
        self._weights_of: Bounds | None = None
        """The bounds that those were worked out from."""
        self._leaders = Leaders(LEADING)
        """Who has the largest sums."""
        self._reweighed = -1
        """Where the journal stood when all sums became others."""
        self._slack = -1.0
        """See `sums`; negative: to be worked out."""
        self._heaviest: list[float] = []
        """The largest weight of each row, without its sign, since the sums were made."""
        self._largest = [0.0] * len(self._rows)
        """The largest figure of each row likewise, since all profiles were looked at."""
        self._multiplied = sum([abs(multiplier) for multiplier in multipliers])
        self._steps = 0
        """How often the sums were mended since they were made."""
        self._stale: set[int] = set()

    def _resize(self, capacity: int) -> None:
        self._figures: Floats = np.zeros((len(self._rows), capacity))
        self._figures_of: list[tuple[float, ...] | None] = [None] * capacity
        self._sums, self._part, self._masked = np.zeros(capacity), np.zeros(capacity), np.zeros(capacity)
        self._sum_at: MutableSequence[float] = one_by_one(self._sums)

    def sync(self) -> None:
        """Be as the profiles are now."""
        profiles = self._profiles
        now = profiles.journal.now
        if self._seen == now:
            return
        changes = profiles.journal.changes(self._seen) if len(self._sums) == profiles.capacity else None
        if changes is None or len(changes) > ONE_BY_ONE_MOST:
            self._begin()
        else:
            self._follow(changes)
        self._seen = now

    def _begin(self) -> None:
        profiles = self._profiles
        if len(self._sums) != profiles.capacity:
            self._resize(profiles.capacity)
        for k, row in enumerate(self._rows):
            figures = self._figures[k, : profiles.live]
            figures[:] = profiles.floats[row, : profiles.live]
            low, high = self._lowest[k], self._highest[k]
            if low is not None:
                np.maximum(figures, low, out=figures)
            if high is not None:
                np.minimum(figures, high, out=figures)
            self._largest[k] = max(float(figures.max(initial=0.0)), -float(figures.min(initial=0.0)))
        self._whole, self._slack = None, -1.0
        self._least, self._most = End(-np.inf, len(self._rows)), End(np.inf, len(self._rows))
        self._scores.clear()
        self._figures_of = [None] * profiles.capacity
        self._weights, self._weights_of, self._leaders = [], None, Leaders(LEADING)

    def _follow(self, changes: Collection[int]) -> None:
        live, least, most, largest = self._profiles.live, self._least, self._most, self._largest
        if self._whole is None or not self._holders.isdisjoint(changes):
            self._whole = None
            least.forget(changes)
            most.forget(changes)
        self._stale.update(changes)
        for slot in changes:
            self._scores.pop(slot, None)
            if slot >= live:
                continue
            self._figures_of[slot] = None
            figures = self._of(slot)
            if any(map(lt, figures, least.figures)) or any(map(gt, figures, most.figures)):
                self._whole = None
                for k, figure in enumerate(figures):
                    if figure < least.figures[k]:
                        least.put(k, figure, slot)
                    elif figure > most.figures[k]:
                        most.put(k, figure, slot)
            if any(map(gt, map(abs, figures), largest)):
                self._slack = -1.0
                self._largest = largest = [max(known, abs(figure)) for known, figure in zip(largest, figures, strict=True)]
            self._figures[:, slot] = figures

    def _of(self, slot: int) -> tuple[float, ...]:
        """The figures of one profile within the bounds, row by row."""
        known = self._figures_of[slot]
        if known is not None:
            return known
        figures = list(map(self._profiles.at[slot].floats.__getitem__, self._rows))
        for k, low, high in self._bounded:
            if figures[k] < low:
                figures[k] = low
            elif figures[k] > high:
                figures[k] = high
        # A tuple of numbers is none of the garbage collector's business, and there is one for each profile.
        found = self._figures_of[slot] = tuple(figures)
        return found

    def bounds(self, floor: Floats | None, beside: Collection[int], without: Collection[int] = ()) -> Bounds:
        """The bounds over the candidates; what is asked for next is over these. The same object as long as they are the same.

        They are those where `floor` is 0 and not −inf (None: all) but those `without`, and the slots `beside`.
        """
        over = self._whole
        if over is None:
            over = self._whole = self._bounds(None, ())
            self._holders = {slot for slot in (*self._least.slots, *self._most.slots) if slot != UNKNOWN}
        is_shut = floor is not None and any(floor.item(slot) for slot in self._holders if slot not in beside)
        if is_shut or (without and not self._holders.isdisjoint(without)):
            # Who has an end is no candidate, and who has the next may be one of `without` as well.
            over = self._bounds(lowered(floor, without, self._profiles.live) if without else floor, beside)
        if self._over is not over and self._over != over:
            self._over = over
            self._scores.clear()
            rows = zip(self._multipliers, *over, strict=False)
            self._active = [(k, multiplier, low, span) for k, (multiplier, low, span) in enumerate(rows) if span]
        return self._over

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
        if known.slots[k] == UNKNOWN:
            figures = self._figures[k, : self._profiles.live]
            at = int(figures.argmax() if sign > 0 else figures.argmin())
            known.put(k, figures.item(at), at)
        known_end, slot = known.figures[k], known.slots[k]
        if floor is None or not floor.item(slot) or slot in beside:
            return known_end
        figures = self._figures[k, : self._profiles.live]
        # The one that has it is no candidate: a look at those that are.
        masked = (np.add if sign > 0 else np.subtract)(figures, floor, out=self._part[: self._profiles.live])
        end: float = masked.item(int(masked.argmax() if sign > 0 else masked.argmin()))
        for each in beside:
            value: float = figures.item(each)
            if sign * value > sign * end:
                end = value
        return end

    def score(self, slot: int) -> float:
        """The sum of multiplier × (figure − low) / span of one live profile, row by row, in the reference's order of steps."""
        total = self._scores.get(slot)
        if total is None:
            figures, total = self._figures_of[slot] or self._of(slot), 0.0
            for k, multiplier, low, span in self._active:
                total += multiplier * ((figures[k] - low) / span)
            if len(self._scores) >= SCORES_MAX:
                self._scores.clear()
            self._scores[slot] = total
        return total

    def scores(self, slots: NDArray[np.intp]) -> Floats:
        """As `score`, of many."""
        total: Floats = np.zeros(len(slots))
        for k, multiplier, low, span in self._active:
            total += multiplier * ((self._figures[k].take(slots) - low) / span)
        return total

    def sums(self, floor: Floats | None) -> tuple[Floats, float]:
        """What every live profile's score nearly is, but for a figure that is the same for all; −inf where `floor` is.

        And by how much two of them may differ the other way round than the candidates' scores do. Read them before the next call.
        """
        self._mend()
        live = self._profiles.live
        sums = self._sums[:live]
        return sums if floor is None else np.add(sums, floor, out=self._masked[:live]), self._slack

    def leading(self, count: int, partition: int, floor: Floats | None, without: Collection[int] = ()) -> list[int] | None:
        """The slots of all that may be among the best `count` by score; of one partition, unless that is negative. Not in order.

        They are the `greatest` of `sums`, but those `without`; None if those are found quicker by a look at all.
        """
        self._mend()
        leaders, floors = self._leaders, None if floor is None else one_by_one(floor)
        found = leaders.few(count, partition, slack=self._slack, floor=floors, without=without)
        if found is None and self._reweighed != self._seen and 2 * len(leaders.known) < LEADING:
            live, at, partition_at = self._profiles.live, self._profiles.at, self._partition
            leaders.fill(self._sums[:live], np.arange(live), rank_of=lambda slot: at[slot].figures[partition_at])
            found = leaders.few(count, partition, slack=self._slack, floor=floors, without=without)
        return None if found is None else [slot for _, slot in found]

    def _mend(self) -> None:
        """Make the sums what they are over the present bounds, and the leaders theirs."""
        if self._weights_of is self._over and not self._stale and self._slack >= 0.0:
            return
        live = self._profiles.live
        if self._weights_of is not self._over:
            self._weights_of = self._over
            weights = [multiplier / span if span else 0.0 for multiplier, span in zip(self._multipliers, self._over[1], strict=False)]
            if weights != self._weights:
                self._reweigh(self._sums[:live], weights)
                self._leaders, self._slack, self._reweighed = Leaders(LEADING), -1.0, self._seen
        leaders, at = self._leaders, self._profiles.at
        for slot in self._stale:
            if slot < live:
                total = self._sum_at[slot] = sum(map(mul, self._weights, self._of(slot)), 0.0)
                if total > leaders.floor or slot in leaders.known:
                    leaders.put(slot, total, at[slot].figures[self._partition])
            elif slot in leaders.known:
                leaders.put(slot, -np.inf)
        self._stale.clear()
        if self._slack < 0.0:
            sizes = zip(self._heaviest, self._largest, strict=False)
            self._slack = SLACK * (self._multiplied + sum([weight * figure for weight, figure in sizes]))

    def _reweigh(self, sums: Floats, weights: list[float]) -> None:
        """Mend the sums, or make them anew."""
        before, part = self._weights, self._part[: len(sums)]
        if not before or self._steps >= STEPS_MOST:
            sums[:] = 0.0
            before = self._heaviest = [0.0] * len(weights)
            self._steps = 0
        for k, (old, new) in enumerate(zip(before, weights, strict=True)):
            if old != new:
                np.add(sums, np.multiply(self._figures[k, : len(sums)], new - old, out=part), out=sums)
        self._heaviest = [max(most, abs(weight)) for most, weight in zip(self._heaviest, weights, strict=True)]
        self._weights = weights
        self._steps += 1


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


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound
