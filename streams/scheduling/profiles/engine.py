"""The profile engine: the choice and the evidence of the plain full scan, from the live profiles instead of the nodes.

Rules are told apart by what they read (`kinds`). Those that read what a profile says are answered once for each class of requests and
profile, in the class's `Lane`, which before a decision looks only at the profiles that changed. Rules about *names* (hosts, instances,
groups) tell a few nodes apart from all others: those few leave their profiles for this one decision and go through the filters one by
one, as in the plain scan, and the others share one verdict. An ask or a policy that needs anything else takes the plain scan, and the
evidence names that engine.

The worst decision is that of a class that was never asked for: a few passes over the live profiles, which are never more than the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge

import msgspec
import numpy as np

from projections.node import amounts_of
from projections.room import Room, quick_others
from schemas.resources import RESOURCES
from schemas.results import Decision, NearestMiss, Rejection, Weighed
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters.amounts import shortfalls
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy
from streams.scheduling.profiles.kinds import ABSOLUTE, Unprofiled, columns, extras, refusal, signature, tags
from streams.scheduling.profiles.lane import Lane
from streams.scheduling.profiles.ring import Best, Ring
from streams.scheduling.profiles.scores import Absolute
from streams.scheduling.profiles.standing import Filtering, Standing
from streams.scheduling.profiles.verdicts import PASSES
from streams.scheduling.profiles.view import View
from streams.scheduling.profiles.weighing import Candidates, Weighing
from streams.scheduling.reference import (
    BEST_FEW,
    REASON_CHARACTERS_MAX,
    missing_part,
    only_amounts,
    reference_select,
    ring_start,
)

LANES_CELLS_MAX = 1 << 22
"""Bounds the memory of all lanes together, in profiles times classes: about 20 bytes each. The class least lately asked for goes first."""
LANE_CELLS = 1024
"""A class keeps so much besides, counted as profiles: its tests, leaders and evidence, about 20 to 40 kB."""
NAME = "profiles"


class ProfileEngine:
    """One policy on one fleet; follows the fleet (see `Fleet.followers`). Raises `kinds.Unprofiled` for a policy it cannot answer."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        weighers = columns(policy)
        self._absolute = [Absolute(weigher.name, multiplier) for weigher, multiplier, _ in weighers if weigher.name in ABSOLUTE]
        self._is_absolute = bool(weighers) and len(self._absolute) == len(weighers)
        self.view = View([raw for _, _, raw in weighers if raw is not None], extras(policy, weighers), tags(policy))
        self._weighing = Weighing(self.view, weighers, policy.options, cached=self._is_absolute)
        self._filtering = Filtering(self.view, policy)
        self._weighs_io_ops = any(weigher.name == "IoOpsWeigher" for weigher, _, _ in weighers)
        self._lanes: dict[bytes, Lane] = {}
        self._encoder = msgspec.msgpack.Encoder()

    def follow(self, rooms: list[Room]) -> None:
        """See `Fleet.followers`."""
        self._lanes.clear()
        self.view.follow(rooms)
        self._weighing.begin()

    def changed(self, ordinal: int) -> None:
        """See `Fleet.followers`."""
        self.view.changed(ordinal)

    def select(self, fleet: Fleet, ask: Ask, policy_digest: str) -> Decision:
        """Choose a node for `ask`, or none, with the whole evidence."""
        lane = self._lane(ask)
        lane.sync()
        standing = self._filtering.stand(lane, ask)
        rejections, entered = self._rejections(lane, standing)
        if entered > 1 and self._weighs_io_ops and self._is_at_its_own_work(standing):
            return reference_select(fleet, ask, self._policy, policy_digest)
        places: list[Best] = []
        best: list[Weighed] = []
        if entered:
            places, best = self._choose(lane, ask, standing, entered)
        rooms = self.view.rooms
        names = [rooms[each.ordinal].node_id for each in places]
        return Decision(
            instance_id=ask.instance_id,
            cut=fleet.cut,
            overlay=fleet.overlay,
            seed=ask.seed,
            policy_digest=policy_digest,
            engine=NAME,
            nodes_known=len(rooms),
            rejections=tuple(rejections),
            passed=entered,
            chosen=names[0] if names else "",
            alternates=tuple(names[1:]),
            nearest_miss=self._nearest_miss(lane, ask, standing),
            best=tuple(best),
            attempt=ask.attempt,
        )

    def _lane(self, ask: Ask) -> Lane:
        # A live migration asks for what its guest has, and a move is refused for what its source has not: no request says either.
        moving = ask.item.numa if ask.request.live else None
        key = self._encoder.encode((signature(ask.request), ask.item.resources, ask.item.pci, moving, ask.unusable))
        lane = self._lanes.pop(key, None)
        if lane is None:
            self.view.ask(amounts_of(ask.item.resources))
            lane = Lane(self.view, ask, self._filtering.filters(ask), self._absolute if self._is_absolute else ())
            most = max(LANES_CELLS_MAX // (self.view.profiles.capacity + LANE_CELLS), 1)
            while len(self._lanes) >= most:
                del self._lanes[next(iter(self._lanes))]
        self._lanes[key] = lane
        return lane

    def _is_at_its_own_work(self, standing: Standing) -> bool:
        """Whether a node that passed has less at work than its profile says, since some of it was begun for this very request."""
        rooms, ordinals = self.view.rooms, self.view.ordinals
        return standing.is_own and any(room.io_ops != rooms[ordinals[room.node_id]].io_ops for room in standing.single)

    def _rejections(self, lane: Lane, standing: Standing) -> tuple[Sequence[Rejection], int]:
        """The funnel, and how many nodes came through."""
        entered, found, none = len(self.view.rooms), [], lane.none_rejected
        if not standing.names and not standing.counts:
            return lane.nobody_rejected(entered), entered
        parts = lane.parts
        if standing.names:
            parts = sorted([*parts, *standing.names], key=lambda each: each[0])
        for place, filter_, check in parts:
            count = standing.counts.get(place, 0)
            if not count:
                known = none.get(place)
                if known is None or known.entered != entered:
                    known = none[place] = Rejection(filter=filter_.name, entered=entered, rejected=0)
                found.append(known)
                continue
            room, reason = self._example(lane, place, check, standing)
            found.append(
                Rejection(filter=filter_.name, entered=entered, rejected=count, node_id=room.node_id, reason=reason[:REASON_CHARACTERS_MAX])
            )
            entered -= count
        return found, entered

    def _example(self, lane: Lane, place: int, check: Check, standing: Standing) -> tuple[Room, str]:
        """The first node that this place rejects, and why."""
        apart, rest = standing.apart, None
        if place == standing.closed:
            rest = self._first_behind(lane, place, apart)
        elif place < standing.closed and self._has_rest(lane, place, apart):
            rest = lane.first(place, apart)
        single = standing.firsts.get(place)
        if single is not None and (rest is None or single[0] < rest):
            return apart[single[0]], single[1].reason(apart[single[0]])
        assert rest is not None, "somebody was rejected here"
        room = self.view.rooms[rest]
        return room, check.reason(room) if place == standing.closed else lane.reason(place, room)

    def _has_rest(self, lane: Lane, place: int, apart: dict[int, Room]) -> bool:
        count, of = lane.totals.get(place, 0), self.view.profiles.of
        return count > sum([lane.places[of(ordinal).slot] == place for ordinal in apart]) if apart else count > 0

    def _first_behind(self, lane: Lane, closed: int, apart: dict[int, Room]) -> int | None:
        """The least ordinal of the nodes that reach `closed`, those in `apart` left out."""
        profiles = self.view.profiles
        slots = np.flatnonzero(lane.place[: profiles.live] >= closed)
        while len(slots):
            at = int(profiles.firsts[slots].argmin())
            slot = int(slots[at])
            first = int(profiles.firsts[slot])
            if first not in apart:
                return first
            firsts = [known for each in slots.tolist() if (known := profiles.first(each, apart)) is not None]
            return min(firsts, default=None)
        return None

    def _choose(self, lane: Lane, ask: Ask, standing: Standing, passed: int) -> tuple[list[Best], list[Weighed]]:
        """The chosen one and its alternates, and the evidence of the best few."""
        rooms = self.view.rooms
        weighed = self._weighing.weigh(lane, ask, self._candidates(lane, standing), passed)
        ring = Ring(self.view, ring_start(ask.seed), standing.apart)
        single = list(zip(weighed.single, standing.single, strict=True))
        best = ring.best(BEST_FEW, weighed.few(BEST_FEW), single)
        partition, count = rooms[best[0].ordinal].partition, self._policy.alternates_max + 1
        beside = [each for each in single if each[1].partition == partition]
        return ring.best(count, weighed.few(count, partition), beside), [
            Weighed(node_id=rooms[each.ordinal].node_id, score=each.score, weights=weighed.weights(each, standing.apart)) for each in best
        ]

    def _candidates(self, lane: Lane, standing: Standing) -> Candidates:
        """The profiles of which a node passed that is not looked at one by one, and those nodes that are."""
        if standing.closed != PASSES:
            return Candidates(None, standing.single, [], is_closed=True)
        profiles, emptied = self.view.profiles, []
        if standing.apart:
            left: dict[int, int] = {}
            for ordinal in standing.apart:
                profile = profiles.of(ordinal)
                left[profile.slot] = left.get(profile.slot, len(profile.ordinals)) - 1
            emptied = [slot for slot, count in left.items() if not count and lane.places[slot] == PASSES]
        return Candidates(lane.floor[: profiles.live] if lane.rejects else None, standing.single, emptied, is_closed=False)

    def _nearest_miss(self, lane: Lane, ask: Ask, standing: Standing) -> NearestMiss | None:
        """See `reference.nearest_miss`: the same order, over profiles and the nodes looked at one by one."""
        if not standing.counts:
            return None
        rest = standing.closed == PASSES and any(standing.counts.get(place) for place in lane.amount_places)
        if not standing.short and not rest:
            return None
        view = self.view
        if not standing.apart and not standing.names:
            return lane.nearest(self._miss)
        if rest and not standing.is_own:
            # Whom rules about names tell apart is looked at one by one: any other node is to this ask what it is to its class.
            first = lane.first_miss(standing.apart)
            told = True if first is None else lane.tell(self._miss, *first)
            if not isinstance(told, bool):
                return told
        missing = missing_part(ask)
        single = [(missing(room), place, view.ordinals[room.node_id]) for place, room in standing.short]
        known = sorted([(part, place, ordinal) for part, place, ordinal in single if part is not None])
        others = [check for _, _, check in standing.names]
        if standing.is_own:
            others += [made for filter_, _ in lane.checks.values() if not filter_.amounts and (made := filter_.prepare(ask)) is not None]
        else:
            others += lane.others
        allowed = quick_others(ask.item)
        for _, place, ordinal in merge(known, lane.misses(standing.apart) if rest else ()):
            room = standing.apart.get(ordinal) or view.rooms[ordinal]
            if only_amounts(ask, room, allowed) and not any(check.rejects(room) for check in others):
                return self._missed(ask, place, room)
        return None

    def _miss(self, lane: Lane, place: int, room: Room) -> NearestMiss | bool | None:
        """The miss that this node is, None if it ends the search without one, True if another must be looked at."""
        return self._missed(lane.ask, place, room) if lane.is_only_short(room) else True

    def _missed(self, ask: Ask, place: int, room: Room) -> NearestMiss | None:
        lacks = shortfalls(ask, room, *RESOURCES)
        return NearestMiss(node_id=room.node_id, filter=self._filtering.filters(ask)[place].name, shortfalls=lacks) if lacks else None


def profile_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """Choose a node for `ask`, or none: what `reference_select` gives, but for the engine's name."""
    rooms = fleet.rooms()
    engine = fleet.followers.get(policy_digest)
    if not rooms or refusal(policy, ask):
        return reference_select(fleet, ask, policy, policy_digest)
    if not isinstance(engine, ProfileEngine):
        try:
            engine = ProfileEngine(policy)
        except Unprofiled:
            return reference_select(fleet, ask, policy, policy_digest)
        fleet.followed(policy_digest, engine)
    return engine.select(fleet, ask, policy_digest)
