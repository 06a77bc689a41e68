"""One class of requests and how every live profile stands to it: which filter rejects it first, what it lacks, how well it would do.

A lane follows the profiles' journal: before a decision it looks only at the profiles that changed since its last one. Of a class that is
new, or was not asked for in a long time, it looks at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projections.room import Room, quick_others
from schemas.results import NearestMiss, Rejection
from streams.scheduling.ask import Ask
from streams.scheduling.filters import Filter
from streams.scheduling.profiles.leaders import Leaders
from streams.scheduling.profiles.profile import one_by_one
from streams.scheduling.profiles.ring import greatest
from streams.scheduling.profiles.scores import Absolute
from streams.scheduling.profiles.verdicts import PASSES, TRUE, Floats, Ints, Places, Verdicts
from streams.scheduling.profiles.view import AT, View
from streams.scheduling.reference import only_amounts

QUICKLY_MOST = 48
"""Up to so many changed profiles are looked at one by one; of more, whole columns cost less."""
LEADING = 256
"""So many leaders of all profiles: with few partitions, enough of each for alternates; and each other class's choice moves one of them."""
_ORDINAL_BITS = 40
_NEVER = 1 << 62
_PARTITION = AT["partition"]


class Lane:
    """The standing of all profiles of `view` for asks like `ask`. `filters` are all there are, in order: their numbers are places."""

    def __init__(self, view: View, ask: Ask, filters: Sequence[Filter], absolute: Sequence[Absolute]) -> None:
        self.view = view
        self._verdicts = Verdicts(view, ask, filters, absolute)
        self.ask, self.checks, self.amount_places = self._verdicts.ask, self._verdicts.checks, self._verdicts.amount_places
        self.allowed = quick_others(self.ask.item)
        self.parts = [(place, filter_, check) for place, (filter_, check) in self.checks.items()]
        """All filters that take part, but those about names."""
        self.others = [check for filter_, check in self.checks.values() if not filter_.amounts]
        """What else than amounts may stand against an ask: the ledger's own test, and the filters'."""
        self.totals: dict[int, int] = {}
        """How many nodes each place rejects; how many pass is not kept up."""
        self._seen, self._is_calm = -1, False
        self._clear: tuple[Rejection, ...] = ()
        self.none_rejected: dict[int, Rejection] = {}
        """What a filter that all passed said last, by place: mostly it says so again."""
        self._reasons: dict[int, tuple[Room, str]] = {}
        self._leasts: dict[int, tuple[int, int]] = {}
        self._told: tuple[Room, int, NearestMiss | bool | None] | None = None
        self._short = Leaders()
        """Who lacks least, for minus what is missing."""
        self._leaders = Leaders(LEADING)
        """Who does best; ranks are partitions."""
        self._size(0)

    def _size(self, capacity: int) -> None:
        self.place: Places = np.full(capacity, PASSES, np.int16)
        self.missing: Floats = np.full(capacity, np.inf)
        self.floor: Floats = np.zeros(capacity)
        """0 for those that pass, −inf for the others."""
        self._left: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.places: MutableSequence[int] = one_by_one(self.place)
        self._lefts: MutableSequence[int] = one_by_one(self._left)
        self._missings: MutableSequence[float] = one_by_one(self.missing)
        self._floors: MutableSequence[float] = one_by_one(self.floor)

    def sync(self) -> None:
        """Be as the profiles are now."""
        profiles, is_calm = self.view.profiles, self._verdicts.is_quick and not self._verdicts.absolute
        journal = profiles.stirs if is_calm else profiles.journal
        now = journal.now
        if self._seen == now and self._is_calm == is_calm:
            return
        changes = journal.changes(self._seen) if self._is_calm == is_calm and len(self.place) == profiles.capacity else None
        self._is_calm = is_calm
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
        self._leaders, self._short = Leaders(LEADING), Leaders()
        block = profiles.figures[:, :live]
        places = self._verdicts.places(np.arange(live), block)
        self.place[:live], self._left[:live] = places, profiles.counts[:live]
        self.floor[:live][places != PASSES] = -np.inf
        missing = self._parts(np.arange(live), places, block)
        if missing is not None:
            self.missing[:live] = missing
        self.totals = {}
        self._count(places, self._left[:live], 1)

    def _count(self, places: Places, counts: NDArray[Any], sign: int) -> None:
        """So many nodes more (or, with a negative sign, less) at these places."""
        # Passing is numbered right behind the last filter here, so that numbers are few.
        behind = self._verdicts.last + 1
        for place, count in enumerate(np.bincount(np.minimum(places, behind), counts).tolist()):
            if count:
                at = PASSES if place == behind else place
                self.totals[at] = self.totals.get(at, 0) + sign * int(count)

    def _follow(self, changes: set[int]) -> None:
        live = self.view.profiles.live
        slots = [slot for slot in changes if slot < live]
        if len(slots) < len(changes):
            for slot in changes:
                if slot >= live:
                    self._move(slot, PASSES, (), np.inf)
                    self._leaders.put(slot, -np.inf)
        if not slots:
            return
        if len(slots) <= QUICKLY_MOST and self._verdicts.is_quick:
            self._follow_few(slots)
        else:
            self._follow_many(slots)

    def _follow_few(self, slots: list[int]) -> None:
        verdicts, at, known, leaders = self._verdicts, self.view.profiles.at, self.places, self._leaders
        for slot, (place, missing) in zip(slots, verdicts.quickly(slots), strict=True):
            profile = at[slot]
            # Nobody was rejected and nobody is: there is nothing to count.
            if place != PASSES or known[slot] != PASSES:
                self._move(slot, place, profile.ordinals, missing)
            if verdicts.absolute:
                score = verdicts.score(profile) if place == PASSES else -np.inf
                if score > leaders.floor or slot in leaders.known:
                    leaders.put(slot, score, profile.figures[_PARTITION])

    def _follow_many(self, slots: list[int]) -> None:
        profiles, verdicts = self.view.profiles, self._verdicts
        at = np.array(slots, np.intp)
        block = profiles.figures[: verdicts.often].take(at, axis=1)
        places, counts = verdicts.places(at, block), profiles.counts.take(at)
        parts = self._parts(at, places, block)
        missing: Floats = np.full(len(slots), np.inf) if parts is None else parts
        self._count(self.place.take(at), self._left.take(at), -1)
        self._count(places, counts, 1)
        self._leasts.clear()
        passing = places == PASSES
        self.place[at], self._left[at], self.missing[at], self.floor[at] = places, counts, missing, np.where(passing, 0.0, -np.inf)
        self._short.follow(slots, -missing, (places.astype(np.int64) << _ORDINAL_BITS) + profiles.firsts.take(at))
        if verdicts.absolute:
            self._leaders.follow(slots, np.where(passing, verdicts.scores(at), -np.inf), profiles.figures[_PARTITION].take(at))

    def _move(self, slot: int, place: int, ordinals: Sequence[int], missing: float) -> None:
        """This profile is at `place` with these nodes now."""
        before, left, leasts = self.places[slot], self._lefts[slot], self._leasts
        if before != place or len(ordinals) != left:
            totals = self.totals
            totals[before] = totals.get(before, 0) - left
            totals[place] = totals.get(place, 0) + len(ordinals)
            self.places[slot], self._lefts[slot] = place, len(ordinals)
            self._floors[slot] = 0.0 if place == PASSES else -np.inf
        least = leasts.get(before)
        if least is not None and least[1] == slot and (before != place or ordinals[0] > least[0]):
            del leasts[before]
        least = leasts.get(place)
        if least is not None and ordinals[0] < least[0]:
            leasts[place] = (ordinals[0], slot)
        self._missings[slot] = missing
        if -missing > self._short.floor or slot in self._short.known:
            self._short.put(slot, -missing, 0 if place == PASSES else (place << _ORDINAL_BITS) + ordinals[0])

    def _parts(self, slots: NDArray[np.intp], places: Places, block: Ints) -> Floats | None:
        """What is missing where an amount is."""
        if not self.amount_places or places[places.argmin()] == PASSES:
            return None
        short = self._verdicts.of_amounts(places)
        return self._verdicts.parts(slots, block, short) if TRUE in short.tobytes() else None

    def leading(self, count: int, partition: int, without: Collection[int] = ()) -> list[tuple[float, int]]:
        """Scores and slots of the best `count` that pass, with all equals of the last; of one partition, unless that is negative.

        Those `without` are left out. For absolute policies.
        """
        found = self._leaders.few(count, partition, without=without)
        if found is None and 2 * len(self._leaders.known) < LEADING:
            slots = (self.place[: self.view.profiles.live] == PASSES).nonzero()[0]
            self._leaders.fill(self._verdicts.scores(slots), slots, self.view.column("partition").take(slots))
            found = self._leaders.few(count, partition, without=without)
        return self._look(count, partition, without) if found is None else found

    def _look(self, count: int, partition: int, without: Collection[int]) -> list[tuple[float, int]]:
        """As `leading`, by a look at all."""
        slots = np.arange(self.view.profiles.live) if partition < 0 else self.view.beside(partition)
        slots = slots[self.place.take(slots) == PASSES]
        scores = self._verdicts.scores(slots)
        if without:
            scores[np.isin(slots, list(without))] = -np.inf
        return [(scores.item(at), slots.item(at)) for at in greatest(scores, count)]

    def nobody_rejected(self, entered: int) -> tuple[Rejection, ...]:
        """What the filters say of so many nodes when all pass all."""
        if not self._clear or self._clear[0].entered != entered:
            self._clear = tuple([Rejection(filter=filter_.name, entered=entered, rejected=0) for _, filter_, _ in self.parts])
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
        first = self.first_miss(())
        if first is None:
            return None
        told = self.tell(tell, *first)
        if not isinstance(told, bool):
            return told
        for _, place, ordinal in self.misses(()):
            told = self.tell(tell, place, ordinal)
            if not isinstance(told, bool):
                return told
        return None

    def first_miss(self, apart: Collection[int]) -> tuple[int, int] | None:
        """Place and ordinal of the first of `misses(())`; None if it is one of `apart`, or there is none."""
        profiles, slot = self.view.profiles, self._short.first
        if slot is None:
            live = profiles.live
            ranks = (self.place[:live].astype(np.int64) << _ORDINAL_BITS) + profiles.firsts[:live]
            self._short.fill(-self.missing[:live], np.arange(live), ranks)
            slot = self._short.first
        if slot is None or slot < 0 or (ordinal := profiles.at[slot].ordinals[0]) in apart:
            return None
        return self.places[slot], ordinal

    def tell(self, tell: Callable[[Lane, int, Room], NearestMiss | bool | None], place: int, ordinal: int) -> NearestMiss | bool | None:
        """What `tell` says of this node, asked once as long as that is the same."""
        room, known = self.view.rooms[ordinal], self._told
        if known is None or known[0] is not room or known[1] != place:
            known = self._told = (room, place, tell(self, place, room))
        return known[2]

    def is_only_short(self, room: Room) -> bool:
        """Whether nothing but amounts stands against a newcomer of this class on the node."""
        view = self.view
        quickly = self._verdicts.is_only_short(view.profiles.of(view.ordinals[room.node_id]).slot)
        if quickly is not None:
            return quickly
        return only_amounts(self.ask, room, self.allowed) and not any(check.rejects(room) for check in self.others)

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
