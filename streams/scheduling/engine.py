"""The profile engine: the choice and the evidence of the plain full scan, from the live profiles instead of the nodes.

Rules are told apart by what they read. *Static* ones read the ask and a node's static class: their verdicts are kept per ask's class, one
byte a static class. *Amounts* are columns. Rules about *names* (hosts, instances, groups) tell a few nodes apart from all others: those few
leave their profiles for this one decision and go through the filters one by one, as in the plain scan, and the others share one verdict.
An ask that needs anything else, or a policy with rules unknown here, takes the plain scan.

The worst decision costs one pass over the live profiles for each rule, and they are never more than the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from projections.node import amounts_of
from projections.room import UNLIMITED, Room, quick_others, room_for
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from schemas.results import Decision, NearestMiss, Rejection, Weighed, Weight
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters import LAST, Filter, filters_of
from streams.scheduling.filters.amounts import most_of, shortfalls
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy
from streams.scheduling.reference import (
    BEST_FEW,
    REASON_CHARACTERS_MAX,
    Prepared,
    missing_part,
    only_amounts,
    prepare,
    reference_select,
    ring_start,
)
from streams.scheduling.ring import Ring
from streams.scheduling.view import View
from streams.scheduling.weighers import WEIGHERS, has_overrides

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STATIC: Mapping[str, Callable[[PlacementRequested], object]] = {
    "ComputeFilter": lambda _request: None,
    "AvailabilityZoneFilter": lambda request: request.availability_zone,
    "TraitsFilter": lambda of: (of.traits_required, of.traits_forbidden, of.flavor.extra_specs, of.image.properties),
    "ImagePropertiesFilter": lambda request: request.image.properties,
    "AggregateImagePropertiesIsolation": lambda request: request.image.properties,
    "AggregateInstanceExtraSpecsFilter": lambda request: request.flavor.extra_specs,
    "AggregateMultiTenancyIsolation": lambda request: request.project_id,
    "require_tenant_aggregate": lambda request: request.project_id,
    "AggregateTypeAffinityFilter": lambda request: request.flavor.name,
    "isolate_aggregates": lambda request: (request.traits_required, request.flavor.extra_specs, request.image.properties),
    "require_image_type_support": lambda request: (request.image.properties, request.boot_from_volume),
    "transform_image_metadata": lambda request: request.image.properties,
}
"""What each of them reads of a request; of a node they read what its static class says."""
AMOUNTS = {"CoreFilter": ("vcpus", "pcpus"), "RamFilter": ("memory_mib",), "DiskFilter": ("disk_mib",)}
NAMES = frozenset(
    {
        "RetryFilter",
        "DifferentHostFilter",
        "SameHostFilter",
        "ServerGroupAffinityFilter",
        "ServerGroupAntiAffinityFilter",
    }
)
KNOWN = STATIC.keys() | NAMES | AMOUNTS.keys()
RAWS = frozenset({"RAMWeigher", "CPUWeigher", "DiskWeigher"})
"""Weighers that read what a profile's key holds."""
STATIC_KEPT = 4096
"""Classes of asks whose static verdicts are kept: at most as many bytes as there are static classes, for each."""
NAME = "profiles"
_NEVER = 1 << 62
_NOBODY: frozenset[int] = frozenset()
_NONE: frozenset[str] = frozenset()


class Sifted(Struct, gc=False):
    """What the filters left: `inside` marks the live profiles that passed, `left` how many of their nodes are not looked at one by one.

    `failed` is the place of the filter that rejected a profile, `apart` the nodes looked at one by one that passed, `short` those of them
    that lacked amounts, with the place of the filter.
    """

    inside: Mask
    left: Ints
    failed: NDArray[np.int16]
    apart: list[Room]
    short: list[tuple[int, Room]]
    rejections: list[Rejection]


class ProfileEngine:
    """One policy on one fleet; follows the fleet (see `Fleet.followers`)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._weighers = [(WEIGHERS[name], multiplier) for name, multiplier in policy.pairs]
        self.view = View([weigher.raw for weigher, _ in self._weighers], ())
        self._known: dict[tuple[str, bytes], NDArray[np.int8]] = {}

    def follow(self, rooms: list[Room]) -> None:
        """See `Fleet.followers`."""
        self.view.follow(rooms)

    def changed(self, ordinal: int) -> None:
        """See `Fleet.followers`."""
        self.view.changed(ordinal)

    def select(self, fleet: Fleet, ask: Ask, policy_digest: str) -> Decision:
        """Choose a node for `ask`, or none, with the whole evidence."""
        prepared = prepare(ask, self._policy)
        apart = self._apart(ask)
        sifted = self._sift(ask, prepared, apart)
        passed = int(sifted.left[sifted.inside].sum()) + len(sifted.apart)
        places, best = self._choose(sifted, ask, passed, apart) if passed else ([], [])
        return Decision(
            instance_id=ask.instance_id,
            cut=fleet.cut,
            overlay=fleet.overlay,
            seed=ask.seed,
            policy_digest=policy_digest,
            engine=NAME,
            nodes_known=len(self.view.rooms),
            rejections=tuple(sifted.rejections),
            passed=passed,
            chosen=places[0] if places else "",
            alternates=tuple(places[1:]),
            nearest_miss=self._nearest_miss(ask, sifted, prepared, apart),
            best=tuple(best),
            attempt=ask.attempt,
        )

    def _apart(self, ask: Ask) -> dict[int, Room]:
        """The nodes that rules about names tell apart, by ordinal in order, as rooms for this very instance."""
        view, request, item = self.view, ask.request, ask.item
        ordinals: set[int] = set()
        hints = request.hints
        for instance_id in (item.instance_id, *hints.same_host, *hints.different_host):
            ordinals |= view.on.get(instance_id, _NOBODY)
        if item.group is not None:
            ordinals |= view.grouped.get(item.group.group_id, _NOBODY)
        named = [*request.ignored_nodes, *request.forced_nodes, *request.requested_nodes, *request.retry_nodes]
        named += [request.source_node, *ask.group_nodes]
        ordinals.update([ordinal for node_id in named if (ordinal := view.ordinals.get(node_id)) is not None])
        own, forced = view.on.get(item.instance_id, _NOBODY), frozenset(request.forced_nodes) if item.forced else _NONE
        rooms = view.rooms
        return {
            at: room_for(rooms[at], item, request.request_id) if (rooms[at].node_id in forced if item.forced else at in own) else rooms[at]
            for at in sorted(ordinals)
        }

    def _sift(self, ask: Ask, prepared: Sequence[Prepared], apart: dict[int, Room]) -> Sifted:
        profiles = self.view.profiles
        left = profiles.counts[: profiles.live].copy()
        for ordinal in apart:
            left[profiles.of(ordinal).slot] -= 1
        inside = left > 0
        sifted = Sifted(inside, left, np.full(profiles.live, -1, np.int16), list(apart.values()), [], [])
        entered = len(self.view.rooms)
        for place, (filter_, check) in enumerate(prepared):
            passes = self._passes(filter_, check, ask, sifted.inside, apart)
            rejected = sifted.inside & ~passes
            count, first = 0, _NEVER
            if rejected.any():
                count = int(left[rejected].sum())
                first = self._first(rejected, apart)
                sifted.failed[rejected] = place
                sifted.inside = sifted.inside & passes
            if sifted.apart:
                out = self._one_by_one(sifted, check, place if filter_.amounts else -1)
                count += len(out)
                first = min([first, *[self.view.ordinals[room.node_id] for room in out[:1]]])
            if count:
                room = apart.get(first) or self.view.rooms[first]
                reason = check.reason(room)[:REASON_CHARACTERS_MAX]
                sifted.rejections.append(
                    Rejection(filter=filter_.name, entered=entered, rejected=count, node_id=room.node_id, reason=reason)
                )
            else:
                sifted.rejections.append(Rejection(filter=filter_.name, entered=entered, rejected=0))
            entered -= count
        return sifted

    def _one_by_one(self, sifted: Sifted, check: Check, short_at: int) -> list[Room]:
        passed = check.keep(sifted.apart)
        if len(passed) == len(sifted.apart):
            return []
        kept = set(map(id, passed))
        out = [room for room in sifted.apart if id(room) not in kept]
        if short_at >= 0:
            sifted.short += [(short_at, room) for room in out]
        sifted.apart = passed
        return out

    def _first(self, slots: Mask, apart: dict[int, Room]) -> int:
        """The least ordinal in these profiles that is not looked at one by one."""
        profiles = self.view.profiles
        first = int(profiles.firsts[: profiles.live][slots].min())
        if first not in apart:
            return first
        firsts = [profiles.first(slot, apart) for slot in np.flatnonzero(slots).tolist()]
        return min(first for first in firsts if first is not None)

    def _passes(self, filter_: Filter, check: Check, ask: Ask, inside: Mask, apart: dict[int, Room]) -> Mask:
        """Which live profiles pass. What is said of those that are not inside does not matter."""
        name = filter_.name
        if name in AMOUNTS:
            return self._has(ask, AMOUNTS[name], own_limit=True)
        if name in STATIC:
            return self._static(name, check, ask)
        if name == LAST.name:
            return self._fit(ask, check, inside, apart)
        slots = np.flatnonzero(inside)
        if not len(slots):
            return inside
        return np.full(len(inside), not check.rejects(self._example(int(slots[0]), apart)))

    def _example(self, slot: int, apart: dict[int, Room]) -> Room:
        ordinal = self.view.profiles.first(slot, apart)
        assert ordinal is not None, "a profile inside has a node that is not looked at one by one"
        return self.view.rooms[ordinal]

    def _static(self, name: str, check: Check, ask: Ask) -> Mask:
        signature = msgspec.json.encode(STATIC[name](ask.request))
        known = self._known.get((name, signature))
        classes = self.view.column("static")
        if known is None or len(known) < self.view.classes:
            if len(self._known) >= STATIC_KEPT:
                self._known.clear()
            grown = np.full(max(self.view.classes, 1), -1, np.int8)
            if known is not None:
                grown[: len(known)] = known
            known = self._known[name, signature] = grown
        verdicts = known[classes]
        if verdicts.min(initial=1) < 0:
            for number in set(classes[verdicts < 0].tolist()):
                slot = int(np.flatnonzero(classes == number)[0])
                known[number] = not check.rejects(self.view.rooms[self.view.profiles.at[slot].ordinals[0]])
            verdicts = known[classes]
        passes: Mask = verdicts > 0
        return passes

    def _has(self, ask: Ask, resources: Iterable[str], *, own_limit: bool) -> Mask:
        """Whether the amounts are free; `own_limit`: and the whole node has them (an instance larger than its node is never put there)."""
        view, passes = self.view, np.ones(self.view.profiles.live, np.bool_)
        for resource in resources:
            n = getattr(ask.item.resources, resource)
            if not n:
                continue
            total, enough = view.column(f"{resource}_total"), view.column(f"{resource}_free") >= n
            if own_limit:
                enough &= (total >= n) | (total < 0)
            most = most_of(ask.item.limits, resource)
            if most < UNLIMITED:
                enough &= view.column(f"{resource}_used") + n <= most
            if own_limit and resource == "vcpus":
                enough |= total < 0  # CoreFilter leaves CPUs that nobody reports to the ledger.
            passes &= enough
        return passes

    def _fit(self, ask: Ask, check: Check, inside: Mask, apart: dict[int, Room]) -> Mask:
        plain = self.view.column("plain") > 0
        passes = self._has(ask, RESOURCES, own_limit=False)
        for slot in np.flatnonzero(inside & ~plain).tolist():
            passes[slot] = not check.rejects(self._example(slot, apart))
        return passes

    def _choose(self, sifted: Sifted, ask: Ask, passed: int, apart: dict[int, Room]) -> tuple[list[str], list[Weighed]]:
        """Node ids of the chosen one and its alternates, and the evidence of the best few."""
        view, ring = self.view, Ring(self.view, ring_start(ask.seed), apart, sifted.inside, sifted.apart)
        columns, scores = self._weigh(ring.slots, sifted.apart, passed)
        best = ring.best(scores, BEST_FEW, None)
        partition = view.rooms[best[0][0]].partition
        beside = ring.partitions() == partition
        places = ring.best(scores, self._policy.alternates_max + 1, beside)
        evidence = [
            Weighed(node_id=view.rooms[ordinal].node_id, score=float(scores[at]), weights=tuple([column.weight(at) for column in columns]))
            for ordinal, at in best
        ]
        return [view.rooms[ordinal].node_id for ordinal, _ in places], evidence

    def _weigh(self, slots: Ints, apart: list[Room], passed: int) -> tuple[list[Figures], Floats]:
        """As `weighers.weigh`, over profiles and the nodes looked at one by one (which come last)."""
        scores = np.zeros(len(slots) + len(apart))
        columns: list[Figures] = []
        if passed < 2:
            return columns, scores
        raws = self.view.profiles.floats[:, slots]
        for row, (weigher, multiplier) in enumerate(self._weighers):
            raw: Floats = raws[row]
            if apart:
                raw = np.concatenate([raw, [weigher.raw(room) for room in apart]])
            bounded = raw
            if weigher.lowest is not None:
                bounded = np.maximum(bounded, weigher.lowest)
            if weigher.highest is not None:
                bounded = np.minimum(bounded, weigher.highest)
            low = float(bounded.min()) if weigher.lowest is None else weigher.lowest
            span = (float(bounded.max()) if weigher.highest is None else weigher.highest) - low
            columns.append(Figures(weigher.name, multiplier, raw, bounded, low, span))
            if span:
                scores = scores + multiplier * ((bounded - low) / span)
        return columns, scores

    def _nearest_miss(self, ask: Ask, sifted: Sifted, prepared: Sequence[Prepared], apart: dict[int, Room]) -> NearestMiss | None:
        """See `reference.nearest_miss`: the same order, over profiles and the nodes looked at one by one."""
        view = self.view
        places = [place for place, (filter_, _) in enumerate(prepared) if filter_.amounts]
        short = np.isin(sifted.failed, places)
        if not sifted.short and not short.any():
            return None
        missing, allowed = missing_part(ask), quick_others(ask.item)
        single = [(missing(room), place, view.ordinals[room.node_id]) for place, room in sifted.short]
        known = sorted([(part, place, ordinal) for part, place, ordinal in single if part is not None])
        others = [check.rejects for filter_, check in prepared if not filter_.amounts]
        for _, place, ordinal in merge(known, self._in_order(self._missing(ask, short), sifted.failed, apart)):
            room = apart.get(ordinal) or view.rooms[ordinal]
            if only_amounts(ask, room, allowed) and not any(rejects(room) for rejects in others):
                lacks = shortfalls(ask, room, *RESOURCES)
                return NearestMiss(node_id=room.node_id, filter=prepared[place][0].name, shortfalls=lacks) if lacks else None
        return None

    def _in_order(self, parts: Floats, failed: NDArray[np.int16], apart: dict[int, Room]) -> Iterator[tuple[float, int, int]]:
        """One node of each profile: part that is missing, place of the filter, ordinal; in ascending order."""
        while (least := float(parts.min(initial=np.inf))) < np.inf:
            tied = np.flatnonzero(parts == least)
            parts[tied] = np.inf
            yield from sorted([(least, int(failed[slot]), self._ordinal(slot, apart)) for slot in tied.tolist()])

    def _ordinal(self, slot: int, apart: dict[int, Room]) -> int:
        ordinal = self.view.profiles.first(slot, apart)
        return _NEVER if ordinal is None else ordinal

    def _missing(self, ask: Ask, short: Mask) -> Floats:
        """See `reference.missing_part`: infinite where it is None, and where a profile is not short of amounts."""
        view = self.view
        parts = np.where(short, 0.0, np.inf)
        for resource, n in zip(RESOURCES, amounts_of(ask.item.resources), strict=True):
            if not n:
                continue
            most = most_of(ask.item.limits, resource)
            free, total, used = (view.column(f"{resource}_{what}") for what in ("free", "total", "used"))
            lacking = (free < n) | (total < n) | (used + n > most)
            parts[lacking & (free == -UNLIMITED)] = np.inf
            has = np.minimum(np.minimum(free, total), most - used)
            parts += np.where(lacking, (n - has) / n, 0.0)
        return parts


class Figures(Struct, gc=False):
    """One weigher's figures for all candidates (see `weighers.Column`)."""

    weigher: str
    multiplier: float
    raw: Floats
    bounded: Floats
    low: float
    span: float

    def weight(self, at: int) -> Weight:
        """The share of candidate number `at`."""
        normalised = (float(self.bounded[at]) - self.low) / self.span if self.span else 0.0
        return Weight(weigher=self.weigher, raw=float(self.raw[at]), normalised=normalised, multiplied=self.multiplier * normalised)


def takes(policy: Policy, ask: Ask) -> bool:
    """Whether the profile engine knows all that this policy and ask read; otherwise the plain scan decides."""
    item = ask.item
    if item.numa or item.pci or (item.limits is not None and (item.limits.instances_max is not None or item.limits.io_ops_max is not None)):
        return False
    if item.group is not None and item.group.max_per_node < 1:
        return False
    options = policy.options
    if ask.request.forced_hosts or ask.request.ignored_hosts or options.host_subset_size > 1 or not options.shuffle_best_same_weighed_hosts:
        return False
    # A filter that the engine does not know is no matter where it has nothing to test.
    unknown = [filter_ for filter_ in filters_of(policy) if filter_.name not in KNOWN]
    return not any(filter_.prepare(ask) is not None for filter_ in unknown) and all(name in RAWS for name, _ in policy.pairs)


def profile_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """Choose a node for `ask`, or none: what `reference_select` gives, but for the engine's name."""
    if not takes(policy, ask) or (fleet.rooms() and fleet.crowd.figures(has_overrides).most()):
        return reference_select(fleet, ask, policy, policy_digest)
    engine = fleet.followers.get(policy_digest)
    if not isinstance(engine, ProfileEngine):
        engine = ProfileEngine(policy)
        fleet.followed(policy_digest, engine)
    fleet.rooms()
    return engine.select(fleet, ask, policy_digest)
