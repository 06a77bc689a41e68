"""One class of requests and how every live profile stands to it: which filter rejects it first, what it lacks, how well it would do.

A lane follows the profiles' journal: before a decision it looks only at the profiles that changed since its last one. Of a class that is
new, or was not asked for in a long time, it looks at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from projections.room import Room, quick_others
from schemas.results import NearestMiss, Rejection
from streams.scheduling.ask import Ask
from streams.scheduling.filters import Filter
from streams.scheduling.scores import Absolute
from streams.scheduling.verdicts import PASSES, TRUE, Floats, Ints, Mask, Places, Verdicts
from streams.scheduling.view import View

QUICKLY_MOST = 48
"""Up to so many changed profiles are looked at one by one; of more, whole columns cost less."""
_NEVER = 1 << 62
_NOTHING = (-1, -1)


class Lane:
    """The standing of all profiles of `view` for asks like `ask`. `filters` are all there are, in order: their numbers are places."""

    def __init__(self, view: View, ask: Ask, filters: Sequence[Filter], absolute: Sequence[Absolute]) -> None:
        self.view = view
        self._verdicts = Verdicts(view, ask, filters, absolute)
        self.ask, self.checks, self.amount_places = self._verdicts.ask, self._verdicts.checks, self._verdicts.amount_places
        self.allowed = quick_others(self.ask.item)
        self.others = [check for filter_, check in self.checks.values() if not filter_.amounts]
        """What else than amounts may stand against an ask: the ledger's own test, and the filters'."""
        self.totals: dict[int, int] = {}
        """How many nodes each place rejects; how many pass is not kept up."""
        self._seen = -1
        self._clear: tuple[Rejection, ...] = ()
        self._reasons: dict[int, tuple[Room, str]] = {}
        self._leasts: dict[int, tuple[int, int]] = {}
        self._least: tuple[float, int, int] | None = None
        self._touched: Collection[int] = ()
        self._told: tuple[Room, int, NearestMiss | bool | None] | None = None
        self._size(0)

    def _size(self, capacity: int) -> None:
        self.place: Places = np.full(capacity, PASSES, np.int16)
        self.inside: Mask = np.zeros(capacity, np.bool_)
        self.missing: Floats = np.full(capacity, np.inf)
        self.scores: Floats = np.full(capacity if self._verdicts.absolute else 0, -np.inf)
        self._left: Ints = np.zeros(capacity, np.int64)

    def sync(self) -> None:
        """Be as the profiles are now."""
        profiles = self.view.profiles
        now = profiles.now
        if self._seen == now:
            return
        changes = profiles.changes(self._seen) if len(self.place) == profiles.capacity else None
        if changes is None or 4 * len(changes) > profiles.live + 256:
            self._begin()
        elif changes:
            self._follow(changes)
        self._seen = now

    def _begin(self) -> None:
        profiles = self.view.profiles
        live = profiles.live
        self._size(profiles.capacity)
        self._leasts.clear()
        self._least = None
        slots = np.arange(live)
        places = self._verdicts.places(slots, profiles.figures[:, :live])
        self.place[:live], self._left[:live] = places, profiles.counts[:live]
        self._stand(slots, places, profiles.figures[:, :live])
        found, at = np.unique(places, return_inverse=True)
        sums = np.bincount(at, self._left[:live], len(found)).tolist()
        self.totals = {place: int(total) for place, total in zip(found.tolist(), sums, strict=True)}

    def _follow(self, changes: set[int]) -> None:
        profiles = self.view.profiles
        live = profiles.live
        self._touched = changes
        if self._least is not None and self._least[1] in changes:
            self._least = None
        gone = [slot for slot in changes if slot >= live]
        for slot in gone:
            self._forget(slot)
            self.place[slot], self._left[slot], self.inside[slot], self.missing[slot] = PASSES, 0, False, np.inf
            if self._verdicts.absolute:
                self.scores[slot] = -np.inf
        if len(gone) == len(changes):
            return
        changed = [slot for slot in changes if slot < live] if gone else list(changes)
        slots = np.array(changed, np.intp)
        block = profiles.figures[: self._verdicts.often].take(slots, axis=1)
        if len(changed) <= QUICKLY_MOST and self._verdicts.is_quick and self._follow_quickly(changed, slots, block):
            return
        places = self._verdicts.places(slots, block)
        counts = profiles.counts.take(slots)
        old = self.place.take(slots)
        self._recount(changed, old.tolist(), self._left[slots].tolist(), places.tolist(), counts.tolist())
        self.place[slots], self._left[slots] = places, counts
        self._stand(slots, places, block)

    def _follow_quickly(self, changed: list[int], slots: NDArray[np.intp], block: Ints) -> bool:
        """Look at a few profiles without columns; False, and nothing done, if one of them takes more."""
        verdicts = self._verdicts
        rows = block.T.tolist()
        places = verdicts.quickly(rows)
        if not places:
            return False
        old: list[int] = self.place.take(slots).tolist()
        if min(places) != PASSES or min(old) != PASSES:
            counts: list[int] = self.view.profiles.counts.take(slots).tolist()
            self._recount(changed, old, self._left.take(slots).tolist(), places, counts)
            for slot, place, count, row in zip(changed, places, counts, rows, strict=True):
                self.place[slot], self._left[slot], self.inside[slot] = place, count, place == PASSES
                missing = verdicts.missing(row) if place in self.amount_places else np.inf
                self.missing[slot] = missing
                known = self._least
                if known is not None and missing <= known[0]:
                    # Of two that lack as much, the one comes first that a search finds.
                    self._least = (missing, slot, place) if missing < known[0] else None
        else:
            # Nobody was rejected and nobody is: there is nothing to count.
            self.inside[slots] = True
        if verdicts.absolute:
            scores = verdicts.scores(slots, block)
            self.scores[slots] = scores if min(places) == PASSES else np.where(np.array(places) == PASSES, scores, -np.inf)
        return True

    def _recount(self, changed: list[int], old: list[int], left: list[int], places: list[int], counts: list[int]) -> None:
        """These profiles, of which `left` nodes were at the `old` places, are at `places` with `counts` now."""
        totals, profiles = self.totals, self.view.profiles
        for slot, before, had, place, has in zip(changed, old, left, places, counts, strict=True):
            totals[before] = totals.get(before, 0) - had
            totals[place] = totals.get(place, 0) + has
            if before != PASSES and self._leasts.get(before, _NOTHING)[1] == slot:
                del self._leasts[before]
            if place != PASSES and place in self._leasts:
                first = profiles.at[slot].ordinals[0]
                if first < self._leasts[place][0]:
                    self._leasts[place] = (first, slot)

    def _forget(self, slot: int) -> None:
        before = int(self.place[slot])
        self.totals[before] = self.totals.get(before, 0) - int(self._left[slot])
        if self._leasts.get(before, _NOTHING)[1] == slot:
            del self._leasts[before]

    def _stand(self, slots: NDArray[np.intp], places: Places, block: Ints) -> None:
        """What follows from the places: who is inside, what is missing, and scores."""
        inside = places == PASSES
        self.inside[slots] = inside
        if self.amount_places:
            short = None
            if not inside[inside.argmin()]:
                short = self._verdicts.of_amounts(places)
            missing = self._verdicts.parts(block, short) if short is not None and TRUE in short.tobytes() else None
            self.missing[slots] = np.inf if missing is None else missing
            known = self._least
            if known is not None and (known[1] in self._touched or (missing is not None and missing[missing.argmin()] <= known[0])):
                self._least = None
        if self._verdicts.absolute:
            self.scores[slots] = np.where(inside, self._verdicts.scores(slots, block), -np.inf)

    def nobody_rejected(self, entered: int) -> tuple[Rejection, ...]:
        """What the filters say of so many nodes when all pass all."""
        if not self._clear or self._clear[0].entered != entered:
            self._clear = tuple([Rejection(filter=filter_.name, entered=entered, rejected=0) for filter_, _ in self.checks.values()])
        return self._clear

    @property
    def rejects(self) -> bool:
        """Whether any place rejects a node."""
        return any(total and place != PASSES for place, total in self.totals.items())

    def rejected(self) -> dict[int, int]:
        """How many nodes each place rejects."""
        return {place: total for place, total in self.totals.items() if total and place != PASSES}

    def first(self, place: int, apart: Collection[int]) -> int:
        """The least ordinal of the nodes that this place rejects, those in `apart` left out; there is one."""
        known = self._leasts.get(place)
        profiles = self.view.profiles
        if known is None or profiles.at[known[1]].ordinals[0] != known[0]:
            slots = np.flatnonzero(self.place[: profiles.live] == place)
            firsts = profiles.firsts[slots]
            at = int(firsts.argmin())
            known = self._leasts[place] = (int(firsts[at]), int(slots[at]))
        if known[0] not in apart:
            return known[0]
        slots = np.flatnonzero(self.place[: profiles.live] == place)
        return min(first for slot in slots.tolist() if (first := profiles.first(slot, apart)) is not None)

    def reason(self, place: int, room: Room) -> str:
        """Why this place rejects the node; kept as long as the room is the same."""
        known = self._reasons.get(place)
        if known is None or known[0] is not room:
            known = self._reasons[place] = (room, self.checks[place][1].reason(room))
        return known[1]

    def nearest(self, tell: Callable[[Lane, int, Room], NearestMiss | bool | None]) -> NearestMiss | None:
        """The first of `misses` that `tell` makes a miss of, or ends the search with; its word on a node is kept while that is the same."""
        known = self._least
        if known is not None:
            told = self._tell(tell, known[2], self.view.profiles.at[known[1]].ordinals[0])
            if not isinstance(told, bool):
                return told
        for part, place, ordinal in self.misses(()):
            if self._least is None:
                self._least = (part, self.view.profiles.of(ordinal).slot, place)
            told = self._tell(tell, place, ordinal)
            if not isinstance(told, bool):
                return told
        return None

    def _tell(self, tell: Callable[[Lane, int, Room], NearestMiss | bool | None], place: int, ordinal: int) -> NearestMiss | bool | None:
        room, known = self.view.rooms[ordinal], self._told
        if known is None or known[0] is not room or known[1] != place:
            known = self._told = (room, place, tell(self, place, room))
        return known[2]

    def misses(self, apart: Collection[int]) -> Iterator[tuple[float, int, int]]:
        """One node of each profile that is short of amounts: the part that is missing, the place, the ordinal; in ascending order."""
        profiles = self.view.profiles
        missing = self.missing[: profiles.live]
        is_copy = False
        while profiles.live:
            at = int(missing.argmin())
            least = float(missing[at])
            if least == np.inf:
                return
            # Mostly there is one: another look for the least is cheaper than a comparison with all.
            missing[at] = np.inf
            is_alone = float(missing[int(missing.argmin())]) != least
            missing[at] = least
            tied = np.array([at]) if is_alone else (missing == least).nonzero()[0]
            found = [
                (float(least), int(self.place[slot]), _NEVER if (first := profiles.first(slot, apart)) is None else first)
                for slot in tied.tolist()
            ]
            yield from sorted(each for each in found if each[2] != _NEVER)
            if not is_copy:
                missing, is_copy = missing.copy(), True
            missing[tied] = np.inf
