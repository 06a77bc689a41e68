"""The plain full scan: every node through every filter, the rest weighed, the best chosen. Slow, obvious, and the oracle of any faster one.

The counts add up: nodes known = the sum of all rejected + passed, and a node counts for the first filter that rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, nlargest
from itertools import islice
from operator import attrgetter

from msgspec import Struct

from projections.fit import fits
from projections.node import amounts_of
from projections.room import UNLIMITED, Room, quick_others, room_for, rooms_with
from schemas.resources import RESOURCES
from schemas.results import Decision, NearestMiss, Rejection, Weighed
from streams.scheduling.ask import SEED_BITS, Ask, Check
from streams.scheduling.choosing import draw_first, drawn_by, shuffled
from streams.scheduling.crowd import Crowd, Figure
from streams.scheduling.facts import host_of
from streams.scheduling.filters import LAST, RESTRICTIONS, Filter, filters_of
from streams.scheduling.filters.amounts import most_of, shortfalls
from streams.scheduling.fleet import Fleet
from streams.scheduling.options import Options
from streams.scheduling.policy import Policy
from streams.scheduling.weighers import Column, weigh

BEST_FEW = 3
"""Nodes whose scores are taken apart in the evidence."""
FIRST_LOOK = 16
LOOK_FURTHER = 8
"""First fit looks at 16 nodes, then at 128, then at 1,024: two partitions' worth is mostly enough for a choice and its alternates."""
# A reason is one sentence; names of many nodes or aggregates must not make the record large.
REASON_CHARACTERS_MAX = 500
MASK_64 = (1 << 64) - 1

Prepared = tuple[Filter, Check]


class Sieve(Struct, gc=False):
    """What the filters left, what they rejected, and which of the rejected lacked amounts."""

    passed: list[Room]
    rejections: list[Rejection]
    short: list[tuple[str, Room]]


Order = Callable[[list[Room], Ask, Policy, Crowd | None], tuple[list[int], list[Weighed]]]
"""Ranks those that passed: places in the list, the chosen one and its alternates, best first; and the evidence of the best few. The crowd
is there if all of the fleet passed."""


def reference_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """Choose a node for `ask`, or none, with the whole evidence."""
    return _decide(fleet, fleet.rooms(), ask, policy, policy_digest, "reference", by_score)


def first_fit_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """The first node that passes, from a place in the fleet that the seed gives, and the next ones as alternates; nothing is weighed.

    It looks at few nodes, more if none of them will do, in the end at all: `nodes_known` are those it looked at.
    """
    rooms = fleet.rooms()
    start, looked_at = ask.seed % max(len(rooms), 1), FIRST_LOOK
    while looked_at < len(rooms):
        window = rooms[start : start + looked_at]
        window += rooms[: looked_at - len(window)]
        decision = _decide(fleet, window, ask, policy, policy_digest, "first-fit", in_order)
        if decision.chosen:
            return decision
        looked_at *= LOOK_FURTHER
    return _decide(fleet, rooms, ask, policy, policy_digest, "first-fit", in_order)


def _decide(fleet: Fleet, known: list[Room], ask: Ask, policy: Policy, policy_digest: str, engine: str, order: Order) -> Decision:
    # Of a few rooms each is asked: what a fleet keeps side by side pays for whoever looks at all of them.
    crowd = fleet.crowd if known and known is fleet.rooms() else None
    is_newcomer = crowd is not None and not (ask.item.forced or ask.company or ask.begun_nodes or fleet.knows(ask.instance_id))
    rooms = known if is_newcomer else rooms_for(known, ask)
    prepared = prepare(ask, policy)
    sieve = run_filters(rooms, prepared, pass_all(crowd, ask, policy) if crowd is not None and rooms is known else frozenset())
    if sieve.passed is not known:
        crowd = None
    places, best = order(sieve.passed, ask, policy, crowd) if sieve.passed else ([], [])
    names = [sieve.passed[at].node_id for at in places]
    return Decision(
        instance_id=ask.instance_id,
        cut=fleet.cut,
        overlay=fleet.overlay,
        seed=ask.seed,
        policy_digest=policy_digest,
        engine=engine,
        nodes_known=len(rooms),
        rejections=tuple(sieve.rejections),
        passed=len(sieve.passed),
        chosen=names[0] if names else "",
        alternates=tuple(names[1:]),
        nearest_miss=nearest_miss(ask, sieve.short, prepared) if sieve.short else None,
        best=tuple(best),
        attempt=ask.attempt,
    )


def rooms_for(rooms: list[Room], ask: Ask, *, everywhere: bool = False) -> list[Room]:
    """Rooms for this very instance: its own where it, or its request, is already, or the claim is forced; all with its company on them.

    A forced claim is not tested on others, which its request rules out; with `everywhere` they have such rooms, too.
    """
    item, request = ask.item, ask.request
    if ask.company:
        rooms = rooms_with(rooms, ask.company)
    if item.forced:
        nodes, hosts = frozenset(request.forced_nodes), frozenset(name.lower() for name in request.forced_hosts)
        return [
            room_for(room, item, request.request_id)
            if everywhere or room.node_id in nodes or (hosts and host_of(room).lower() in hosts)
            else room
            for room in rooms
        ]
    instance_id = item.instance_id
    begun = ask.begun_nodes
    there = [at for at, room in enumerate(rooms) if instance_id in room.instances or (begun and room.node_id in begun)]
    if not there:
        return rooms
    own = list(rooms)
    for at in there:
        own[at] = room_for(rooms[at], item, request.request_id)
    return own


def prepare(ask: Ask, policy: Policy) -> list[Prepared]:
    """The filters that have something to test for this ask, in order. A forced request skips those of the policy, as in Nova."""
    chosen = () if ask.item.forced else filters_of(policy)
    # Each filter's `prepare`, spelled out: it runs for every filter of every decision.
    return [(each, check) for each in (*RESTRICTIONS, *chosen, LAST) if (check := each.test(ask, each.options)) is not None]


def pass_all(crowd: Crowd, ask: Ask, policy: Policy) -> frozenset[str]:
    """Filters that let every room of the fleet pass, which its least figures show without a look at each. Others may do so as well."""
    item = ask.item
    if item.forced or item.resize or item.limits is not None or item.numa or item.pci:
        return frozenset()
    names: set[str] = set()
    if crowd.figures(_takes_part).least():
        names.add("ComputeFilter")
    for name, resources in _AMOUNTS.items():
        asked = [(n, figures) for resource, figures in resources if (n := getattr(item.resources, resource))]
        if all(crowd.figures(figure).least() >= n for n, figures in asked for figure in figures):
            names.add(name)
    apart = item.group is not None and item.group.policy == "anti-affinity"
    counted = not item.resources.vcpus or crowd.figures(_vcpus_total).least() >= 0
    if counted and not apart and not crowd.figures(_has_units).most() and _TESTS_FOR_FIT.issubset(policy.filters):
        names.add(LAST.name)
    return frozenset(names)


_takes_part: Figure = lambda room: room.ready and room.node.silent_since_ms is None  # noqa: E731 - a figure, like the getters below
TOO_SMALL = 1e9
"""Ranks a miss behind all that more room would mend: larger than what any node lacks of what is asked for, by far."""
_has_units = attrgetter("has_units")
_vcpus_total = attrgetter("vcpus_total")
_AMOUNTS = {
    name: tuple((resource, (attrgetter(f"{resource}_free"), attrgetter(f"{resource}_total"))) for resource in resources)
    for name, resources in (("CoreFilter", ("vcpus", "pcpus")), ("RamFilter", ("memory_mib",)), ("DiskFilter", ("disk_mib",)))
}
_TESTS_FOR_FIT = frozenset({"ComputeFilter", *_AMOUNTS})
"""Together they ask what the last filter asks, unless there are units, limits, a group that stays apart, or CPUs that nobody reports."""


def run_filters(rooms: list[Room], prepared: Sequence[Prepared], pass_all: Collection[str] = ()) -> Sieve:
    """Every room through the filters in order. Those named in `pass_all` are known to reject none of them."""
    left = rooms
    rejections: list[Rejection] = []
    short: list[tuple[str, Room]] = []
    for filter_, check in prepared:
        passed = left if filter_.name in pass_all else check.keep(left)
        if len(passed) == len(left):
            rejections.append(Rejection(filter=filter_.name, entered=len(left), rejected=0))
            continue
        kept = set(map(id, passed))
        out = [room for room in left if id(room) not in kept]
        rejections.append(
            Rejection(
                filter=filter_.name,
                entered=len(left),
                rejected=len(out),
                node_id=out[0].node_id,
                reason=check.reason(out[0])[:REASON_CHARACTERS_MAX],
            )
        )
        if filter_.amounts:
            short.extend([(filter_.name, room) for room in out])
        left = passed
    return Sieve(left, rejections, short)


def nearest_miss(ask: Ask, short: Sequence[tuple[str, Room]], prepared: Sequence[Prepared]) -> NearestMiss | None:
    """The rejected node that would do if amounts were freed, and lacks the smallest part of what is asked for."""
    missing = missing_part(ask)
    allowed = quick_others(ask.item)
    others = [check.rejects for filter_, check in prepared if not filter_.amounts]
    ranked = [(part, at) for at, (_, room) in enumerate(short) if (part := missing(room)) is not None]
    heapify(ranked)
    while ranked:
        _, at = heappop(ranked)
        name, room = short[at]
        if only_amounts(ask, room, allowed) and not any(rejects(room) for rejects in others):
            lacks = shortfalls(ask, room, *RESOURCES)
            return NearestMiss(node_id=room.node_id, filter=name, shortfalls=lacks) if lacks else None
    return None


def missing_part(ask: Ask) -> Callable[[Room], float | None]:
    """How much of what is asked for a room lacks: the sum over resources of missing / asked. None where no total is reported.

    `TOO_SMALL` more where the node could not hold it were it empty: nothing that is freed there is of any help.
    """
    asked = [(r, name, n) for r, (name, n) in enumerate(zip(RESOURCES, amounts_of(ask.item.resources), strict=True)) if n]
    figures = attrgetter("node_id", *(f"{name}_{what}" for _, name, _ in asked for what in ("free", "total", "used")))
    wanted = [(3 * k + 1, r, n, most_of(ask.item.limits, name)) for k, (r, name, n) in enumerate(asked)]

    def missing(room: Room) -> float | None:
        part, has, is_small = 0.0, figures(room), False
        for at, r, needed, most in wanted:
            free, total = has[at], has[at + 1]
            if free >= needed <= total and has[at + 2] + needed <= most:
                continue
            if free == -UNLIMITED:
                return None
            part += (needed - min(free, total, most - has[at + 2])) / needed
            is_small = is_small or _is_beyond(room, r, needed, total, most)
        return part + TOO_SMALL if is_small else part

    return missing


def is_too_small(ask: Ask, room: Room) -> bool:
    """Whether the node could not hold what is asked for were it empty, by its totals, its limits or the request's own."""
    asked = zip(RESOURCES, amounts_of(ask.item.resources), strict=True)
    return any(
        needed and _is_beyond(room, r, needed, getattr(room, f"{name}_total"), most_of(ask.item.limits, name))
        for r, (name, needed) in enumerate(asked)
    )


def _is_beyond(room: Room, r: int, needed: int, total: int, most: int) -> bool:
    """Whether so much of a resource is more than the node has in all, may have in use, or the request lets it."""
    return total < needed or room.node.limits[r] < needed or most < needed


def only_amounts(ask: Ask, room: Room, allowed: Callable[[Room], bool]) -> bool:
    """Whether nothing but amounts stands against this ask on the node."""
    if room.lacks is None:
        return allowed(room)
    return all(lack.resource in RESOURCES for lack in fits(room.node, ask.item, ask.request.request_id, room.overlay))


def by_score(passed: list[Room], ask: Ask, policy: Policy, crowd: Crowd | None = None) -> tuple[list[int], list[Weighed]]:
    """Highest score first; equal ones in the order of their tie keys. Alternates are of the partition of the best."""
    scores, columns = weigh(passed, policy.pairs, crowd, ask=ask, options=policy.options)
    if policy.options.host_subset_size > 1 or not policy.options.shuffle_best_same_weighed_hosts:
        ranked = _as_nova(passed, scores, ask.seed, policy.options)
        beside = [at for at in ranked if passed[at].partition == passed[ranked[0]].partition]
        few = sorted({*sorted(ranked, key=lambda at: -scores[at])[:BEST_FEW], ranked[0]}, key=lambda at: -scores[at])
        return beside[: policy.alternates_max + 1], [_weighed(passed[at], scores[at], columns, at) for at in few]
    best = _top(None, scores, passed, ask.seed, BEST_FEW)
    partition = passed[best[0]].partition
    beside = crowd.places(partition) if crowd is not None else [at for at, room in enumerate(passed) if room.partition == partition]
    places = _top(beside, scores, passed, ask.seed, policy.alternates_max + 1)
    return places, [_weighed(passed[at], scores[at], columns, at) for at in best]


def _as_nova(passed: list[Room], scores: list[float], seed: int, options: Options) -> list[int]:
    """Places in Nova's order: by score, equal ones as they stand, the best of them shuffled if that is wanted, one of the first drawn."""
    ranked = sorted(range(len(passed)), key=lambda at: -scores[at])
    if options.shuffle_best_same_weighed_hosts:
        start = ring_start(seed)
        best_first = [scores[at] for at in ranked]
        ranked = shuffled(ranked, best_first, lambda best: sorted(best, key=lambda at: tie_key(passed[at], start)))
    return draw_first(ranked, options.host_subset_size, drawn_by(seed))


def in_order(passed: list[Room], ask: Ask, policy: Policy, crowd: Crowd | None = None) -> tuple[list[int], list[Weighed]]:
    """The first, and the next of its partition."""
    del ask, crowd
    partition = passed[0].partition
    return list(islice((at for at, room in enumerate(passed) if room.partition == partition), policy.alternates_max + 1)), []


def ring_start(seed: int) -> int:
    """Where on the ring of marks the seed points to."""
    return (seed << (64 - SEED_BITS)) & MASK_64


def tie_key(room: Room, start: int) -> int:
    """Where a node stands among equals: how far it follows `start` on the ring. The same for whoever decides again with this seed."""
    return (room.mark - start) & MASK_64


def _top(places: list[int] | None, scores: list[float], rooms: list[Room], seed: int, count: int) -> list[int]:
    """The `count` best of `places` (None: of all). Tie keys are worked out only for those that can be among them."""
    if places is None:
        least = nlargest(count, scores)[-1]
        places = [at for at, score in enumerate(scores) if score >= least]
    elif len(places) > count:
        least = nlargest(count, [scores[at] for at in places])[-1]
        places = [at for at in places if scores[at] >= least]
    start = ring_start(seed)
    return sorted(places, key=lambda at: (-scores[at], tie_key(rooms[at], start)))[:count]


def _weighed(room: Room, score: float, columns: list[Column], at: int) -> Weighed:
    return Weighed(node_id=room.node_id, score=score, weights=tuple([column.weight(at) for column in columns]))
