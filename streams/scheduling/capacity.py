"""How many more instances of one kind each node takes, and why no more.

In closed form: of each resource asked for, what is free by what one instance takes; of limits on instances, on I/O operations and on
members of a group, what is left of them. The filters of the policy are asked once, for the first instance. Where that does not say it
all (cells, dedicated CPUs, pages, devices, capabilities, exact amounts, queries, code from outside), instances are laid over the node one
after the other until one does not fit.

Not counted: that a claim in flight counts as an I/O operation only until its instance is there; that an instance which is somewhere
already may need less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from projections.room import UNLIMITED, Room
from schemas.claims import ClaimItem
from schemas.guests import NumaWant, PciWant
from schemas.ids import NOBODYS
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES, Limits
from streams.scheduling.ask import Ask
from streams.scheduling.filters.labels import zones
from streams.scheduling.fleet import Fleet
from streams.scheduling.limits import least
from streams.scheduling.policy import Policy
from streams.scheduling.reference import Prepared, prepare, rooms_for, run_filters

TRIALS_MAX = 256
"""Instances laid over one node in a trial: more than nodes mostly run. Where more may fit, the answer says that it is the least."""
OWNER = "capacity"
TOGETHER = frozenset({"ServerGroupAffinityFilter", "group-home"})
"""They take part for groups with affinity only: once the first member is somewhere, all others go there."""

CLOSED = frozenset(
    {
        "AllHostsFilter", "RetryFilter", "ComputeFilter", "AvailabilityZoneFilter", "TraitsFilter",
        "ImagePropertiesFilter", "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter", "DifferentHostFilter", "SameHostFilter",
        "SimpleCIDRAffinityFilter", "IsolatedHostsFilter", "AggregateImagePropertiesIsolation", "AggregateInstanceExtraSpecsFilter",
        "AggregateMultiTenancyIsolation", "AggregateTypeAffinityFilter", "isolate_aggregates",
        "require_tenant_aggregate", "require_image_type_support", "transform_image_metadata", "MetricsFilter", "IoOpsFilter",
        "AggregateIoOpsFilter", "NumInstancesFilter", "AggregateNumInstancesFilter", "CoreFilter", "RamFilter", "DiskFilter",
        "AggregateCoreFilter", "AggregateRamFilter", "AggregateDiskFilter", "NUMATopologyFilter", "PciPassthroughFilter",
    }
)  # fmt: skip
"""Filters that say the same of the next instance, or whose limits say how many more there may be. All others are tried: capabilities, too,
since a flavor may name what the next instance changes, such as the number of instances."""


class NodeCapacity(Struct, frozen=True, gc=False):
    """One node: how many more it takes, and what then is the limit.

    `zones` are all that it is in, in order: mostly one. `fits` is None where nothing limits it. `bound` is a resource, `instances`,
    `io_ops`, `group`, or the filter that rejects the next one.
    `at_least` says that a trial ended at `TRIALS_MAX` with all of them accepted: there may be room for more, and no bound was met.
    """

    node_id: str
    zones: tuple[str, ...]
    fits: int | None
    bound: str
    at_least: bool = False


class Capacity(Struct, frozen=True, kw_only=True):
    """One kind of instance: the nodes that take any, best first, and how many nodes each filter keeps from taking the first one.

    `fits` is their sum (None: no limit somewhere), or `together` the most that one node takes: of a group with affinity that is nowhere
    yet. `tried` says that instances were laid one by one, `at_least` that there may be room for more than `fits`. `numa` and `pci` are the
    cells and devices that one instance takes beside its amounts; `unusable` is why no node will ever do, such as an alias that the policy
    does not know.
    """

    fits: int | None
    at_least: bool
    nodes: tuple[NodeCapacity, ...]
    nodes_known: int
    rejected: dict[str, int]
    tried: bool
    together: bool = False
    numa: tuple[NumaWant, ...] = ()
    pci: tuple[PciWant, ...] = ()
    unusable: str = ""


def capacity(
    fleet: Fleet, request: PlacementRequested, policy: Policy, unusable: str = "", looked_at: Callable[[int], object] = lambda _: None
) -> Capacity:
    """How many more instances of `request`'s kind (its count aside) the fleet takes, each node by itself. Leaves the fleet as it was.

    `unusable` is why no scheduler of this policy would place it, if there is anything. `looked_at` is told how many nodes are done with.
    """
    one = replace(request, request_id=NOBODYS, count=1, instance_ids=())
    home = fleet.empty_home(one.group.group_id) if one.group is not None and one.group.policy == "affinity" else None
    if home is None or one.group is None:
        return _capacity(fleet, one, policy, unusable, looked_at)
    fleet.leave_home(one.group.group_id, home.epoch)  # A group that is nowhere leaves a home that does not take what is asked for.
    try:
        return _capacity(fleet, one, policy, unusable, looked_at)
    finally:
        fleet.take_home_back(one.group.group_id)


def _capacity(fleet: Fleet, one: PlacementRequested, policy: Policy, unusable: str, looked_at: Callable[[int], object]) -> Capacity:
    ask = fleet.ask_seeded(one, 0, seed=0, options=policy.options).unless(unusable)
    prepared = prepare(ask, policy)
    sieve = run_filters(rooms_for(fleet.rooms(), ask), prepared)
    closed = {filter_.name for filter_, _ in prepared} - _ALWAYS <= CLOSED
    tried = not closed or bool(ask.item.numa or ask.item.pci)

    def on_node(room: Room) -> NodeCapacity:
        looked_at(1)
        fits, bound = _closed(room, ask.item, prepared)
        inside = tuple(sorted(zones(room.node, policy.options.default_availability_zone)))
        if tried:
            laid, rejecting = _by_trial(fleet, room, one, policy, steadily=closed)
            if not rejecting and laid != fits:
                return NodeCapacity(room.node_id, inside, laid, "", at_least=True)
            fits, bound = laid, rejecting or bound
        return NodeCapacity(room.node_id, inside, None if fits >= UNLIMITED else fits, "" if fits >= UNLIMITED else bound)

    passed = list(sieve.passed)
    looked_at(len(fleet.rooms()) - len(passed))
    nodes = [on_node(room) for room in passed]
    nodes.sort(key=lambda node: (node.fits is not None, -(node.fits or 0), node.node_id))
    together = not ask.group_nodes and any(filter_.name in TOGETHER for filter_, _ in prepared)
    return Capacity(
        fits=total(nodes, together=together),
        together=together,
        at_least=any(node.at_least for node in nodes),
        nodes=tuple(nodes),
        nodes_known=len(fleet.rooms()),
        rejected={each.filter: each.rejected for each in sieve.rejections if each.rejected},
        tried=tried,
        numa=ask.item.numa,
        pci=ask.item.pci,
        unusable=ask.unusable,
    )


def total(nodes: Sequence[NodeCapacity], *, together: bool) -> int | None:
    """How many of one kind these nodes take, or one of them where all of them go to one; None if one has no limit."""
    numbers = [node.fits for node in nodes]
    if None in numbers:
        return None
    found = [number for number in numbers if number is not None]
    return max(found, default=0) if together else sum(found)


_ALWAYS = frozenset(
    {
        *("ignored-nodes", "ignored-hosts", "forced-hosts", "forced-nodes", "requested-nodes", "requested-hosts"),
        *("source-node", "group-home", "fit"),
    }
)


def _closed(room: Room, item: ClaimItem, prepared: Sequence[Prepared]) -> tuple[int, str]:
    """The number in closed form, and what bounds it: the first of the least. A forced instance keeps to no ratio and no limit."""
    given = None if item.forced else item.limits
    limits = least(given or Limits(), *(check.limits(room) for _, check in prepared if check.limits is not None))
    bounds: list[tuple[int, str]] = []
    for resource in RESOURCES:
        asked: int = getattr(item.resources, resource)
        if asked and not item.forced:
            free: int = getattr(room, f"{resource}_free")
            limit: int | None = getattr(limits, resource)
            left = free if limit is None else min(free, limit - getattr(room, f"{resource}_used"))
            bounds.append((UNLIMITED if left >= UNLIMITED else left // asked, resource))
    if limits.instances_max is not None:
        bounds.append((limits.instances_max - len(room.instances), "instances"))
    if limits.io_ops_max is not None:
        bounds.append((limits.io_ops_max - room.io_ops, "io_ops"))
    if item.group is not None and item.group.policy == "anti-affinity":
        bounds.append((item.group.max_per_node - len(room.members(item.group.group_id)), "group"))
    fits, bound = min(bounds, key=lambda each: each[0], default=(UNLIMITED, ""))
    return max(fits, 0), bound


def _by_trial(fleet: Fleet, room: Room, request: PlacementRequested, policy: Policy, *, steadily: bool) -> tuple[int, str]:
    """Instances laid over the node until one is rejected, and by which filter: "" if `TRIALS_MAX` were not. Taken off again at the end.

    Where what rejects one rejects all that come after it (`steadily`), the first rejected is found by halves: each look costs as much as
    instances are laid.
    """
    trial = _Trial(fleet, room, request, policy)
    try:
        fits, beyond = 0, TRIALS_MAX + 1
        while beyond - fits > 1:
            step = max(1, min(fits, (beyond - fits) // 2)) if steadily else 1
            if trial.rejecting(fits + step - 1):
                beyond = fits + step
            else:
                fits += step
        return fits, trial.rejecting(fits) if fits < TRIALS_MAX else ""
    finally:
        trial.lay(0)


class _Trial:
    """Instances of one kind on one node, so many as are asked for at a time."""

    def __init__(self, fleet: Fleet, room: Room, request: PlacementRequested, policy: Policy) -> None:
        self._fleet, self._node_id, self._partition = fleet, room.node_id, room.partition
        self._request, self._policy = request, policy
        self._laid: list[str] = []
        self._said: dict[int, str] = {}

    def rejecting(self, laid: int) -> str:
        """The filter that rejects one more when so many are laid; "" if none does."""
        if laid not in self._said:
            self.lay(laid)
            ask = self._ask(laid)
            sieve = run_filters(rooms_for([self._fleet.room_of(self._node_id)], ask), prepare(ask, self._policy))
            self._said[laid] = "" if sieve.passed else next(each.filter for each in sieve.rejections if each.rejected)
        return self._said[laid]

    def lay(self, number: int) -> None:
        """Lay more, or take some off again, until so many are laid."""
        while len(self._laid) > number:
            self._fleet.lift(self._laid.pop())
        while len(self._laid) < number:
            claim_id = f"{OWNER}-{len(self._laid)}/0/{OWNER}-0.0"
            item = replace(self._ask(len(self._laid)).item, claim_id=claim_id)
            self._fleet.lay(item, self._node_id, self._partition)
            self._laid.append(claim_id)

    def _ask(self, number: int) -> Ask:
        request = replace(self._request, request_id=f"{NOBODYS}{number}")
        return self._fleet.ask_seeded(request, 0, seed=0, options=self._policy.options)
