"""One class of requests and how every live profile stands to it: which filter rejects it first, what it lacks, how well it would do.

A lane follows the profiles' journal: before a decision it looks only at the profiles that changed since its last one. Of a class that is
new, or was not asked for in a long time, it looks at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from projections.node import amounts_of
from projections.numa_node import lacking
from projections.room import UNLIMITED, Room
from schemas.resources import RESOURCES
from schemas.results import NearestMiss
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.filters import LAST, Filter
from streams.scheduling.filters.amounts import most_of
from streams.scheduling.kinds import AMOUNTS, NAMES, PROFILED, STATIC, TOPOLOGY
from streams.scheduling.scores import Absolute
from streams.scheduling.view import AT, View

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Places = NDArray[np.int16]

PASSES = 32_000
"""The place of no filter: behind all of them."""
NOBODY = "\0"
"""An instance that is nowhere."""
_UNKNOWN = -1
_STATIC, _TOPOLOGY, _PLAIN = AT["static"], AT["topology"], AT["plain"]
_MOST, _USED, _FREE, _TOTAL = (slice(at, at + len(RESOURCES)) for at in (AT[f"vcpus_{what}"] for what in ("most", "used", "free", "total")))
_NOT_VCPUS = np.array([[False], [True], [True], [True]])
_OFTEN = _USED.stop
"""So many columns are enough for most."""
_NEVER = 1 << 62
# Of a few figures, a method that searches is three times as fast as one that reduces.
_TRUE = b"\1"


class Lane:
    """The standing of all profiles of `view` for asks like `ask`. `filters` are all there are, in order: their numbers are places."""

    def __init__(self, view: View, ask: Ask, filters: Sequence[Filter], absolute: Sequence[Absolute]) -> None:
        self.view = view
        # Group and instance differ between asks of one class, and tell nodes apart by name: the lane's own ask is for nobody's.
        self.ask = structs.replace(ask, item=structs.replace(ask.item, group=None, instance_id=NOBODY))
        self.checks: dict[int, tuple[Filter, Check]] = {}
        self.totals: dict[int, int] = {}
        """How many nodes each place rejects; how many pass is not kept up."""
        self._seen = -1
        self._static: list[tuple[int, Check]] = []
        self._wants: list[tuple[int, Check]] = []
        self._profiled: list[tuple[int, Check]] = []
        self._absolute = [each.prepared(ask) for each in absolute]
        self.amount_places: set[int] = set()
        asked = amounts_of(ask.item.resources)
        self._asked = [r for r in range(len(RESOURCES)) if asked[r]]
        # What is not asked for is not tested: no figure is less.
        self._needs: Ints = np.array([[n or -(1 << 63)] for n in asked], np.int64)
        self._place_of = dict.fromkeys(self._asked, _NEVER)
        for place, filter_ in enumerate(filters):
            self._take(place, filter_)
        self._last = len(filters) - 1
        mosts = [most_of(ask.item.limits, resource) if n else UNLIMITED for resource, n in zip(RESOURCES, asked, strict=True)]
        self._limits: Ints | None = np.array([[most] for most in mosts], np.int64) if min(mosts) < UNLIMITED else None
        self._rows = [np.array([AT[f"{RESOURCES[r]}_{what}"] for r in self._asked], np.intp) for what in ("free", "total", "used")]
        self._rows_most = np.array([AT[f"{RESOURCES[r]}_most"] for r in self._asked], np.intp)
        self._wanted, self._mosts = (np.array([[each[r]] for r in self._asked], np.int64).reshape(-1, 1) for each in (asked, mosts))
        self._is_amount = np.array([place in self.amount_places for place in range(len(filters) + 1)])
        self._is_covered = self._limits is None and all(place < _NEVER for place in self._place_of.values())
        self._first_of_static = np.full(0, _UNKNOWN, np.int16)
        self._first_of_topology = np.full(0, _UNKNOWN, np.int16)
        self._reasons: dict[int, tuple[Room, str]] = {}
        self._leasts: dict[int, tuple[int, int]] = {}
        self._least: tuple[float, int, int] | None = None
        self._touched: Collection[int] = ()
        self._told: tuple[Room, int, NearestMiss | bool | None] | None = None
        self._size(0)

    def _take(self, place: int, filter_: Filter) -> None:
        name = filter_.name
        check = filter_.prepare(self.ask) if name not in NAMES else None
        if check is None:
            return
        self.checks[place] = (filter_, check)
        if filter_.amounts:
            self.amount_places.add(place)
        if name in STATIC:
            self._static.append((place, check))
        elif name in AMOUNTS:
            for resource in AMOUNTS[name]:
                self._place_of[RESOURCES.index(resource)] = place
        elif name in TOPOLOGY:
            self._wants.append((place, check))
        elif name == LAST.name:
            item = self.ask.item
            if item.numa or item.pci:
                lacks = per_node(lambda room: "lacks" if lacking(room.node, item, room.overlay) else None)
                self._wants.append((place, lacks))
        else:
            # Code for every profile, and what no node passes ("request").
            assert name in PROFILED or name == "request", name
            self._profiled.append((place, check))

    def _size(self, capacity: int) -> None:
        self.place: Places = np.full(capacity, PASSES, np.int16)
        self.inside: Mask = np.zeros(capacity, np.bool_)
        self.missing: Floats = np.full(capacity, np.inf)
        self.scores: Floats = np.full(capacity if self._absolute else 0, -np.inf)
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
        places = self._places(slots, profiles.figures[:, :live])
        self.place[:live], self._left[:live] = places, profiles.counts[:live]
        self._stand(slots, places, profiles.figures[:, :live])
        found, at = np.unique(places, return_inverse=True)
        sums = np.bincount(at, self._left[:live], len(found)).tolist()
        self.totals = {place: int(total) for place, total in zip(found.tolist(), sums, strict=True)}

    def _follow(self, changes: set[int]) -> None:
        profiles = self.view.profiles
        totals, live = self.totals, profiles.live
        self._touched = changes
        if self._least is not None and self._least[1] in changes:
            self._least = None
        gone = [slot for slot in changes if slot >= live]
        for slot in gone:
            self._forget(slot)
            self.place[slot], self._left[slot], self.inside[slot], self.missing[slot] = PASSES, 0, False, np.inf
            if self._absolute:
                self.scores[slot] = -np.inf
        if len(gone) == len(changes):
            return
        changed = [slot for slot in changes if slot < live] if gone else list(changes)
        slots = np.array(changed, np.intp)
        is_plain = self._is_covered and not self.view.uncounted
        block = (profiles.figures[:_OFTEN] if is_plain else profiles.figures).take(slots, axis=1)
        places = self._places(slots, block)
        counts = profiles.counts.take(slots)
        old = self.place.take(slots)
        if places[places.argmin()] == PASSES == old[old.argmin()]:
            # Nobody was rejected and nobody is: there is nothing to count.
            self._left[slots] = counts
            if self._absolute:
                self.scores[slots] = self.absolute(slots, block)
            self.inside[slots] = True
            return
        for slot, before, had, place, has in zip(
            changed, old.tolist(), self._left[slots].tolist(), places.tolist(), counts.tolist(), strict=True
        ):
            totals[before] = totals.get(before, 0) - had
            totals[place] = totals.get(place, 0) + has
            if before != PASSES and self._leasts.get(before, _NOTHING)[1] == slot:
                del self._leasts[before]
            if place != PASSES and place in self._leasts:
                first = profiles.at[slot].ordinals[0]
                if first < self._leasts[place][0]:
                    self._leasts[place] = (first, slot)
        self.place[slots], self._left[slots] = places, counts
        self._stand(slots, places, block)

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
                short = self._is_amount[np.minimum(places, self._last + 1)]
            missing = self._parts(block, short) if short is not None and _TRUE in short.tobytes() else None
            self.missing[slots] = np.inf if missing is None else missing
            known = self._least
            if known is not None and (known[1] in self._touched or (missing is not None and missing[missing.argmin()] <= known[0])):
                self._least = None
        if self._absolute:
            self.scores[slots] = np.where(inside, self.absolute(slots, block), -np.inf)

    def absolute(self, slots: NDArray[np.intp], block: Ints) -> Floats:
        """The sum of what the policy's absolute weighers make of these profiles."""
        wholes = self.view.profiles.floats[: len(RESOURCES)].take(slots, axis=1)
        first, *others = self._absolute
        total: Floats = first.raw(block[_USED], wholes)
        if first.multiplier != 1.0:
            total = total * first.multiplier
        for each in others:
            total = total + each.multiplier * each.raw(block[_USED], wholes)
        return total

    def _places(self, slots: NDArray[np.intp], block: Ints) -> Places:
        """The first filter that rejects each of these profiles, whose columns are `block`."""
        first = self._by_class(slots, block[_STATIC])
        short, over = block[_MOST] < self._needs, None
        if self._limits is not None:
            over = block[_USED] > self._limits - np.maximum(self._needs, 0)
            short |= over & ((block[_TOTAL] >= 0) | _NOT_VCPUS)
        if _TRUE in short.tobytes():
            for r in self._asked:
                if self._place_of[r] < _NEVER:
                    np.minimum(first, np.where(short[r], np.int16(self._place_of[r]), np.int16(PASSES)), out=first)
        if not self._is_covered or self.view.uncounted:
            short = block[_FREE] < self._needs
            if over is not None:
                short |= over
            np.minimum(first, np.where(short.any(axis=0), np.int16(self._last), np.int16(PASSES)), out=first)
        for place, check in self._profiled:
            self._one_by_one(slots, first, first > place, place, check)
        if self._wants:
            self._by_topology(slots, block[_TOPOLOGY], first)
        plain = block[_PLAIN]
        if not plain[plain.argmin()]:
            self._one_by_one(slots, first, (plain == 0) & (first > self._last), self._last, self.checks[self._last][1])
        return first

    def _one_by_one(self, slots: NDArray[np.intp], first: Places, among: Mask, place: int, check: Check) -> None:
        for at in np.flatnonzero(among).tolist():
            if check.rejects(self._room(int(slots[at]))):
                first[at] = place

    def _room(self, slot: int) -> Room:
        return self.view.rooms[self.view.profiles.at[slot].ordinals[0]]

    def _by_class(self, slots: NDArray[np.intp], classes: Ints) -> Places:
        if len(self._first_of_static) < self.view.classes:
            self._first_of_static = _grown(self._first_of_static, self.view.classes)
        first: Places = self._first_of_static[classes]
        if len(first) and first[first.argmin()] < 0:
            for at in np.flatnonzero(first < 0).tolist():
                number = int(classes[at])
                if self._first_of_static[number] < 0:
                    room = self._room(int(slots[at]))
                    self._first_of_static[number] = next((place for place, check in self._static if check.rejects(room)), PASSES)
            first = self._first_of_static[classes]
        return first

    def _by_topology(self, slots: NDArray[np.intp], states: Ints, first: Places) -> None:
        if len(self._first_of_topology) < self.view.topologies:
            self._first_of_topology = _grown(self._first_of_topology, self.view.topologies)
        table = self._first_of_topology
        for at in np.flatnonzero((table[states] < 0) & (first > self._wants[0][0])).tolist():
            number = int(states[at])
            if table[number] < 0:
                room = self._room(int(slots[at]))
                table[number] = next((place for place, check in self._wants if check.rejects(room)), PASSES)
        known = table[states]
        np.minimum(first, np.where(known < 0, np.int16(PASSES), known), out=first)

    def _parts(self, block: Ints, short: Mask) -> Floats:
        """See `reference.missing_part`: infinite where it is None, and where a profile is not short of amounts."""
        at = short.nonzero()[0]
        parts: Floats = np.full(len(short), np.inf)
        if not self._asked:
            parts[at] = 0.0
            return parts
        if self._limits is None and not self.view.uncounted:
            # What there is is what may be asked for, in one column.
            lack = self._wanted - block[self._rows_most].take(at, axis=1)
            part = np.maximum(lack, 0) / self._wanted
            found: Floats = part[0]
            for row in part[1:]:
                found = found + row
            if lack.max() > UNLIMITED // 2:
                found[(lack > UNLIMITED // 2).any(axis=0)] = np.inf
            parts[at] = found
            return parts
        free, total, used = (block[rows].take(at, axis=1) for rows in self._rows)
        n = self._wanted
        over = used + n > self._mosts
        lacking = (free < n) | (total < n) | over
        has = np.minimum(np.minimum(free, total), self._mosts - used)
        part = np.where(lacking, (n - has) / n, 0.0)
        found = np.zeros(len(at))
        for row in part:
            found += row
        found[(lacking & (free == -UNLIMITED)).any(axis=0)] = np.inf
        parts[at] = found
        return parts

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


_NOTHING = (-1, -1)


def _grown(table: Places, size: int) -> Places:
    grown = np.full(max(2 * len(table), size, 16), _UNKNOWN, np.int16)
    grown[: len(table)] = table
    return grown
