"""What one class of requests makes of profiles: which filter rejects each first, how much of what is asked for it lacks, how well it does.

Nothing here is kept of a profile: the same columns give the same verdict. `Lane` keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from projections.node import amounts_of
from projections.room import UNLIMITED, Room
from schemas.resources import RESOURCES
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters import LAST, Filter
from streams.scheduling.filters.amounts import most_of
from streams.scheduling.profiles.kinds import AMOUNTS, NAMES, PROFILED, STATIC, TOPOLOGY
from streams.scheduling.profiles.profile import Profile, one_by_one
from streams.scheduling.profiles.scores import Absolute
from streams.scheduling.profiles.seating import Seating
from streams.scheduling.profiles.view import AT, View
from streams.scheduling.reference import TOO_SMALL, is_too_small

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
_VCPUS, _PCPUS, _MEMORY, _DISK = range(_MOST.start, _MOST.stop)
_NOT_VCPUS = np.array([[False], [True], [True], [True]])
_OFTEN = _USED.stop
_NEVER = 1 << 62
TRUE = b"\1"
"""Of a few figures, a method that searches is three times as fast as one that reduces."""


class Verdicts:
    """Of asks like `ask`, on the profiles of `view`. `filters` are all there are, in order: their numbers are places."""

    def __init__(self, view: View, ask: Ask, filters: Sequence[Filter], absolute: Sequence[Absolute]) -> None:
        self.view = view
        # Group and instance differ between asks of one class, and tell nodes apart by name: the lane's own ask is for nobody's.
        self.ask = structs.replace(ask, item=structs.replace(ask.item, group=None, instance_id=NOBODY))
        self.checks: dict[int, tuple[Filter, Check]] = {}
        self._static: list[tuple[int, Check]] = []
        self._wants: list[tuple[int, Seating]] = []
        self._profiled: list[tuple[int, Check]] = []
        self.absolute = [each.prepared(ask) for each in absolute]
        self.amount_places: set[int] = set()
        asked = amounts_of(ask.item.resources)
        self._asked = [r for r in range(len(RESOURCES)) if asked[r]]
        # What is not asked for is not tested: no figure is less.
        self._least = [n or -(1 << 63) for n in asked]
        self._needs: Ints = np.array(self._least, np.int64).reshape(-1, 1)
        self._place_of = dict.fromkeys(self._asked, _NEVER)
        for place, filter_ in enumerate(filters):
            self._take(place, filter_)
        self.last = len(filters) - 1
        mosts = [most_of(ask.item.limits, resource) if n else UNLIMITED for resource, n in zip(RESOURCES, asked, strict=True)]
        self._limits: Ints | None = np.array([[most] for most in mosts], np.int64) if min(mosts) < UNLIMITED else None
        self._rows = [np.array([AT[f"{RESOURCES[r]}_{what}"] for r in self._asked], np.intp) for what in ("free", "total", "used")]
        self._rows_most = np.array([AT[f"{RESOURCES[r]}_most"] for r in self._asked], np.intp)
        self._wanted, self._mosts = (np.array([[each[r]] for r in self._asked], np.int64).reshape(-1, 1) for each in (asked, mosts))
        self._is_amount = np.array([place in self.amount_places for place in range(len(filters) + 1)])
        self._is_covered = self._limits is None and all(place < _NEVER for place in self._place_of.values())
        self._quick = [(_MOST.start + r, asked[r], self._place_of[r]) for r in self._asked]
        self._is_quick = self._is_covered and not self._profiled
        self._first_of_static = np.full(0, _UNKNOWN, np.int16)
        self._first_of_topology = np.full(0, _UNKNOWN, np.int16)
        self._statics: MutableSequence[int] = one_by_one(self._first_of_static)
        self._small_by_static = np.full(0, _UNKNOWN, np.int16)
        """1 where nodes of the class could not hold what is asked for were they empty, 0 where they could."""
        self._smalls: MutableSequence[int] = one_by_one(self._small_by_static)
        self._topologies: MutableSequence[int] = one_by_one(self._first_of_topology)

    @property
    def often(self) -> int:
        """So many of the first columns are enough."""
        return _OFTEN if self._is_covered and not self.view.uncounted else len(AT)

    @property
    def is_quick(self) -> bool:
        """Whether `quickly` says something: nothing but static classes, topologies and amounts decides."""
        return self._is_quick and not self.view.uncounted

    def quickly(self, slots: Sequence[int]) -> Iterator[tuple[int, float]]:
        """As `places` and `parts`, for a few profiles one after the other, without columns."""
        self._grow()
        statics, topologies, wants, last = self._statics, self._topologies, self._wants, self.last
        at = self.view.profiles.at
        vcpus, pcpus, memory_mib, disk_mib = self._least
        for slot in slots:
            row = at[slot].figures
            first, part = statics[row[_STATIC]], 0.0
            if first < 0:
                first = self._first_of(statics, self._static, row[_STATIC], slot)
            if row[_VCPUS] < vcpus or row[_PCPUS] < pcpus or row[_MEMORY] < memory_mib or row[_DISK] < disk_mib:
                for column, needed, place in self._quick:
                    lack = needed - row[column]
                    if lack > 0:
                        part += lack / needed if lack <= UNLIMITED // 2 else np.inf
                        first = min(first, place)
                if part and self._is_small(row[_STATIC], slot):
                    part += TOO_SMALL
            if wants and first > wants[0][0]:
                place = topologies[row[_TOPOLOGY]]
                if place < 0:
                    place = self._first_of(topologies, wants, row[_TOPOLOGY], slot)
                first = min(first, place)
            if first > last and not row[_PLAIN] and self.checks[last][1].rejects(self._room(slot)):
                first = last
            yield first, part if first in self.amount_places else np.inf

    def is_only_short(self, slot: int) -> bool | None:
        """Whether nothing but amounts stands against a newcomer on the nodes of this profile; None if that takes a look at a node."""
        figures = self.view.profiles.at[slot].figures
        if not self.is_quick or self._wants or not figures[_PLAIN]:
            return None
        self._grow()
        return self._first_of(self._statics, self._static, figures[_STATIC], slot) == PASSES

    def of_amounts(self, places: Places) -> Mask:
        """Which of these places are of filters of amounts."""
        found: Mask = self._is_amount[np.minimum(places, self.last + 1)]
        return found

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
            item = self.ask.item
            seating = Seating(item)
            if name == "PciPassthroughFilter" and item.numa:
                seating = Seating(structs.replace(item, numa=()), other=seating)
            self._wants.append((place, seating))
        elif name == LAST.name:
            item = self.ask.item
            if (item.numa or item.pci) and all(seating.item != item for _, seating in self._wants):
                self._wants.append((place, Seating(item)))
        else:
            # Code for every profile, and what no node passes ("request").
            assert name in PROFILED or name == "request", name
            self._profiled.append((place, check))

    def scores(self, slots: NDArray[np.intp]) -> Floats:
        """The sum of what the policy's absolute weighers make of these profiles."""
        profiles = self.view.profiles
        used, wholes = profiles.figures[_USED].take(slots, axis=1), profiles.floats[: len(RESOURCES)].take(slots, axis=1)
        first, *others = self.absolute
        total: Floats = first.raw(used, wholes)
        if first.multiplier != 1.0:
            total = total * first.multiplier
        for each in others:
            total = total + each.multiplier * each.raw(used, wholes)
        return total

    def score(self, profile: Profile) -> float:
        """As `scores`, of one profile."""
        used, wholes = profile.figures[_USED], profile.floats
        first, *others = self.absolute
        total = first.of_one(used, wholes)
        if first.multiplier != 1.0:
            total = total * first.multiplier
        for each in others:
            total = total + each.multiplier * each.of_one(used, wholes)
        return total

    def places(self, slots: NDArray[np.intp], block: Ints) -> Places:
        """The first filter that rejects each of these profiles, whose columns are `block`."""
        self._grow()
        first = self._by_class(slots, block[_STATIC])
        short, over = block[_MOST] < self._needs, None
        if self._limits is not None:
            over = block[_USED] > self._limits - np.maximum(self._needs, 0)
            short |= over & ((block[_TOTAL] >= 0) | _NOT_VCPUS)
        if TRUE in short.tobytes():
            for r in self._asked:
                if self._place_of[r] < _NEVER:
                    np.minimum(first, np.where(short[r], np.int16(self._place_of[r]), np.int16(PASSES)), out=first)
        if not self._is_covered or self.view.uncounted:
            short = block[_FREE] < self._needs
            if over is not None:
                short |= over
            np.minimum(first, np.where(short.any(axis=0), np.int16(self.last), np.int16(PASSES)), out=first)
        for place, check in self._profiled:
            self._one_by_one(slots, first, first > place, place, check)
        if self._wants:
            self._by_topology(slots, block[_TOPOLOGY], first)
        plain = block[_PLAIN]
        if not plain[plain.argmin()]:
            self._one_by_one(slots, first, (plain == 0) & (first > self.last), self.last, self.checks[self.last][1])
        return first

    def _one_by_one(self, slots: NDArray[np.intp], first: Places, among: Mask, place: int, check: Check) -> None:
        for at in np.flatnonzero(among).tolist():
            if check.rejects(self._room(int(slots[at]))):
                first[at] = place

    def _room(self, slot: int) -> Room:
        return self.view.rooms[self.view.profiles.at[slot].ordinals[0]]

    def _grow(self) -> None:
        """Have an entry for each static class and each topology that there is."""
        if len(self._first_of_static) < self.view.classes:
            self._first_of_static = _grown(self._first_of_static, self.view.classes)
            self._statics = one_by_one(self._first_of_static)
            self._small_by_static = _grown(self._small_by_static, self.view.classes)
            self._smalls = one_by_one(self._small_by_static)
        if len(self._first_of_topology) < self.view.topologies:
            self._first_of_topology = _grown(self._first_of_topology, self.view.topologies)
            self._topologies = one_by_one(self._first_of_topology)

    def _first_of(self, firsts: MutableSequence[int], tests: Sequence[tuple[int, Check | Seating]], number: int, slot: int) -> int:
        """The first of `tests` that rejects the static class or topology with this number, by this profile of it; kept in `firsts`."""
        found = firsts[number]
        if found < 0:
            room = self._room(slot)
            found = firsts[number] = next((place for place, test in tests if test.rejects(room)), PASSES)
        return found

    def _is_small(self, number: int, slot: int) -> bool:
        """Whether what the static class with this number has in all is too little; this profile is of it."""
        found = self._smalls[number]
        if found < 0:
            found = self._smalls[number] = is_too_small(self.ask, self._room(slot))
        return found > 0

    def _are_small(self, slots: NDArray[np.intp], classes: Ints) -> Mask:
        """As `_is_small`, of many."""
        unknown = self._small_by_static[classes] < 0
        for number, slot in dict(zip(classes[unknown].tolist(), slots[unknown].tolist(), strict=True)).items():
            self._is_small(number, slot)
        found: Mask = self._small_by_static[classes] > 0
        return found

    def _by_class(self, slots: NDArray[np.intp], classes: Ints) -> Places:
        first: Places = self._first_of_static[classes]
        if len(first) and first[first.argmin()] < 0:
            unknown = first < 0
            for number, slot in dict(zip(classes[unknown].tolist(), slots[unknown].tolist(), strict=True)).items():
                self._first_of(self._statics, self._static, number, slot)
            first = self._first_of_static[classes]
        return first

    def _by_topology(self, slots: NDArray[np.intp], states: Ints, first: Places) -> None:
        table = self._first_of_topology
        unknown = (table[states] < 0) & (first > self._wants[0][0])
        for number, slot in dict(zip(states[unknown].tolist(), slots[unknown].tolist(), strict=True)).items():
            self._first_of(self._topologies, self._wants, number, slot)
        known = table[states]
        np.minimum(first, np.where(known < 0, np.int16(PASSES), known), out=first)

    def parts(self, slots: NDArray[np.intp], block: Ints, short: Mask) -> Floats:
        """See `reference.missing_part`: infinite where it is None, and where a profile is not short of amounts."""
        at = short.nonzero()[0]
        parts: Floats = np.full(len(short), np.inf)
        if not self._asked:
            parts[at] = 0.0
            return parts
        missing = self._missing(block, at)
        missing[self._are_small(slots.take(at), block[_STATIC].take(at))] += TOO_SMALL
        parts[at] = missing
        return parts

    def _missing(self, block: Ints, at: NDArray[np.intp]) -> Floats:
        """The part that is missing of these columns of `block`."""
        if self._limits is None and not self.view.uncounted:
            # What there is is what may be asked for, in one column.
            lack = self._wanted - block[self._rows_most].take(at, axis=1)
            part = np.maximum(lack, 0) / self._wanted
            found: Floats = part[0]
            for row in part[1:]:
                found = found + row
            if lack.max() > UNLIMITED // 2:
                found[(lack > UNLIMITED // 2).any(axis=0)] = np.inf
            return found
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
        return found


def _grown(table: Places, size: int) -> Places:
    grown = np.full(max(2 * len(table), size, 16), _UNKNOWN, np.int16)
    grown[: len(table)] = table
    return grown
