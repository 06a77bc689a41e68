"""Sums that are only nearly the profiles' scores, and who has the largest of them.

What a weigher makes of a profile depends on the class of a request only through the candidates' least and most. Where an end moves, every
score does; so what is kept of each profile is a sum that is quick to mend then. How wrong it may be is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, MutableSequence, Sequence
from operator import mul

import numpy as np

from streams.scheduling.profiles.leaders import Leaders
from streams.scheduling.profiles.profile import one_by_one
from streams.scheduling.profiles.rows import Floats, Rows

ONE_BY_ONE_MOST = 24
"""Of more changed profiles than this, a look at whole columns is cheaper."""
LEADING = 128
"""So many leaders of the sums: with few partitions, enough of each for alternates; and each choice moves one of them."""
STEPS_MOST = 16
"""So often sums are mended before they are made anew: each time adds to what they may be wrong by."""
SLACK = 2.0**-42
"""Of the largest that sums and scores can be together. Of 13 rows, making a sum rounds by 15 × 2^-53 of it at most, each time of mending
it by 30 × 2^-53, and an exact score by 16 × 2^-53; for two that are compared this is twice 511 × 2^-53, below 2^-43."""


class Sums:
    """Of each live profile the sum of weight × figure over the first of the `rows`, one a weight; `multiplied` is what no sum is above.

    A weight is multiplier / span of a row. With `before`, which is of other weights and as the profiles are, it is mended from that.
    """

    def __init__(self, rows: Rows, weights: list[float], multiplied: float, seen: int, before: Sums | None) -> None:
        self.weights = weights
        self._rows, self._multiplied = rows, multiplied
        self._made = seen
        """Where the journal stood when all sums were made."""
        capacity = rows.matrix.shape[1]
        self.every: Floats = np.zeros(capacity)
        """By slot; what stands behind the live ones is nobody's."""
        self._sum_at: MutableSequence[float] = one_by_one(self.every)
        self.steps, self.heaviest, basis = 0, [0.0] * len(weights), [0.0] * len(weights)
        """How often they were mended since they were made, and the largest weight of each row since then, without its sign."""
        if before is not None and before.steps < STEPS_MOST:
            self.every[:] = before.every
            self.steps, self.heaviest, basis = before.steps, before.heaviest, before.weights
        self._weigh(basis)
        self.stale: set[int] = set()
        """Slots that changed since the sums were looked at."""
        self._leaders = Leaders(LEADING)
        """Who has the largest sums."""
        self._slack = -1.0
        """By how much two sums may differ the other way round than the candidates' scores do; negative: to be worked out."""

    def outgrown(self) -> None:
        """A figure is larger than any was."""
        self._slack = -1.0

    def values(self) -> tuple[Floats, float]:
        """The sum of every live profile, and by how much two may differ the other way round than scores. Read them before the next call."""
        self.mend()
        return self.every[: self._rows.profiles.live], self._slack

    def leading(self, count: int, partition: int, floor: Floats | None, without: Collection[int], seen: int) -> list[int] | None:
        """See `Spans.leading`; `seen` is where the journal stands."""
        self.mend()
        leaders, floors = self._leaders, None if floor is None else one_by_one(floor)
        found = leaders.few(count, partition, slack=self._slack, floor=floors, without=without)
        if found is None and self._made != seen and 2 * len(leaders.known) < LEADING:
            self._fill()
            found = leaders.few(count, partition, slack=self._slack, floor=floors, without=without)
        return None if found is None else [slot for _, slot in found]

    def _fill(self) -> None:
        live, at, partition = self._rows.profiles.live, self._rows.profiles.at, self._rows.partition
        self._leaders.fill(self.every[:live], np.arange(live), rank_of=lambda slot: at[slot].figures[partition])

    def mend(self) -> None:
        """Make sums and leaders what they are as the profiles are now."""
        if self.stale:
            if len(self.stale) > ONE_BY_ONE_MOST:
                self._make()
            else:
                self._follow()
            self.stale.clear()
        if self._slack < 0.0:
            sizes = zip(self.heaviest, self._rows.largest, strict=False)
            self._slack = SLACK * (self._multiplied + sum([weight * figure for weight, figure in sizes]))

    def _follow(self) -> None:
        profiles, partition, of, leaders = self._rows.profiles, self._rows.partition, self._rows.of, self._leaders
        live, at = profiles.live, profiles.at
        for slot in self.stale:
            if slot < live:
                total = self._sum_at[slot] = sum(map(mul, self.weights, of(slot)), 0.0)
                if total > leaders.floor or slot in leaders.known:
                    leaders.put(slot, total, at[slot].figures[partition])
            elif slot in leaders.known:
                leaders.put(slot, -np.inf)

    def _make(self) -> None:
        self.every[:] = 0.0
        self.steps, self.heaviest, self._leaders, self._slack = 0, [0.0] * len(self.weights), Leaders(LEADING), -1.0
        self._weigh([0.0] * len(self.weights))

    def _weigh(self, basis: Sequence[float]) -> None:
        """Go over from the weights that the sums are of."""
        live = self._rows.profiles.live
        sums = self.every[:live]
        for k, (old, new) in enumerate(zip(basis, self.weights, strict=True)):
            if old != new:
                np.add(sums, self._rows.matrix[k, :live] * (new - old), out=sums)
        self.heaviest = [max(most, abs(weight)) for most, weight in zip(self.heaviest, self.weights, strict=True)]
        self.steps += 1
