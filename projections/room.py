"""What a node has left, as a few integers: what engines read instead of asking `fit.fits` of every node for every request.

`fits` is exact and names every shortfall, which costs microseconds. A room holds the same arithmetic worked out once for each change of the
node; `quick_fit` reads it and answers yes or no. A property test holds the two equal, and reasons always come from `fits`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from msgspec import Struct, field
from msgspec.structs import replace

from projections.fit import Overlay, fits, growth, laid_over
from projections.node import NO_LIMIT, NOTHING, Amounts, Node, amounts_of
from projections.numa_node import NumaStanding, lacking, standing
from schemas.claims import ClaimItem
from schemas.resources import RESOURCES, Limits, Shortfall

UNLIMITED = NO_LIMIT
"""Larger than any sum of amounts: free where nothing limits. Its negative stands where a total is not reported: nothing fits."""

RoomTest = Callable[["Room"], bool]


class Room(Struct, gc=False):
    """One node for one that asks, with the decider's own claims in flight (`overlay`) laid over it.

    `…_free` is the most that may still be asked for, `…_used` what counts now, `…_total` −1 if not reported; `…_left` is total − reserved −
    used as the weighers read it (vCPUs times their ratio). `plain`: nothing but amounts stands against a newcomer without group or limits.
    `lacks` is None for an instance that has nothing on the node; otherwise the room is made for that instance (`room_for`) and `lacks` is
    what `fits` says. Of what does not grow, or is forced, `…_free` is then UNLIMITED and `…_used` its negative, so that every test passes;
    what really counts is in `counted` (see `in_use`).
    """

    node: Node
    node_id: str
    partition: int
    mark: int
    overlay: tuple[ClaimItem, ...]
    instances: Collection[str]
    ready: bool
    plain: bool
    has_units: bool
    io_ops: int
    vcpus_total: int
    pcpus_total: int
    memory_mib_total: int
    disk_mib_total: int
    vcpus_used: int
    pcpus_used: int
    memory_mib_used: int
    disk_mib_used: int
    vcpus_free: int
    pcpus_free: int
    memory_mib_free: int
    disk_mib_free: int
    vcpus_left: float
    memory_mib_left: float
    disk_mib_left: float
    lacks: tuple[Shortfall, ...] | None = None
    counted: Amounts | None = None
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    stood: NumaStanding | None = None

    def standing(self) -> NumaStanding:
        """How its cells and devices stand, claims in flight included; worked out when first asked for."""
        if self.stood is None:
            self.stood = standing(self.node, self.overlay)
        return self.stood

    def members(self, group_id: str) -> frozenset[str]:
        """The group's instances on the node, those in flight included; worked out when first asked for."""
        members = self.groups.get(group_id)
        if members is None:
            laid = {item.instance_id for item in self.overlay if item.group is not None and item.group.group_id == group_id}
            members = self.groups[group_id] = frozenset(self.node.members(group_id) | laid)
        return members


def mark_of(node_id: str) -> int:
    """64 bits that stand for the node in tie-breaks."""
    return int.from_bytes(blake2b(node_id.encode(), digest_size=8).digest())


def room(node: Node, partition: int, mark: int, overlay: Overlay = (), laid: Amounts | None = None) -> Room:
    """The room for an instance that has nothing on the node, neither in the fold nor in `overlay`.

    `laid` is what the overlay adds to the node's use, where the caller knows.
    """
    u0, u1, u2, u3 = node.used
    if overlay:
        a0, a1, a2, a3 = laid_over(node, overlay, "") if laid is None else laid
        u0, u1, u2, u3 = u0 + a0, u1 + a1, u2 + a2, u3 + a3
    host, limits = node.hypervisor, node.limits
    t0 = t1 = t2 = t3 = -1
    if host is not None:
        t0 = -1 if host.vcpus is None else host.vcpus
        t1 = -1 if host.pcpus is None else host.pcpus
        t2 = -1 if host.memory_mib is None else host.memory_mib
        t3 = -1 if host.disk_mib is None else host.disk_mib
    ready, whole_units = host is not None and node.status == "enabled", node.whole_units
    # By position, in the order of the fields: by name takes three times as long, and a room is made for every claim.
    return Room(
        node,
        node.node_id,
        partition,
        mark,
        tuple(overlay),
        node.uses.keys() | {item.instance_id for item in overlay} if overlay else node.uses,
        ready,
        ready and whole_units,
        not whole_units,
        node.io_ops() + len(overlay),
        *(t0, t1, t2, t3),
        *(u0, u1, u2, u3),
        *(_free(limits[0], u0), _free(limits[1], u1), _free(limits[2], u2), _free(limits[3], u3)),
        _vcpus_left(node, t0, u0),
        float(max(t2, 0) - node.memory_mib.reserved - u2),
        float(_disk_left(node, t3, u3)),
    )


def rooms_with(rooms: Sequence[Room], others: Overlay) -> list[Room]:
    """Each of the rooms as it is with `others` laid over it as well: claims of different instances, which go to one node together."""
    ids = frozenset(other.instance_id for other in others)
    t0, t1, t2, t3 = map(sum, zip(*(amounts_of(other.resources) for other in others), strict=True))

    def with_others(base: Room) -> Room:
        node, overlay = base.node, (*base.overlay, *others)
        if not ids.isdisjoint(base.instances):
            return room(node, base.partition, base.mark, overlay)
        u0, u1, u2, u3 = node.used
        laid = base.vcpus_used - u0 + t0, base.pcpus_used - u1 + t1, base.memory_mib_used - u2 + t2, base.disk_mib_used - u3 + t3
        return room(node, base.partition, base.mark, overlay, laid)

    return [with_others(base) for base in rooms]


def room_for(base: Room, item: ClaimItem, request_id: str) -> Room:
    """The room for an instance that is on the node already, or whose claim is forced: what counts is by how much its use grows.

    Of what is at work there, what its own request began is no more than its other instances (`begun_before`).
    """
    node, overlay = base.node, base.overlay
    if (begun := begun_before(base, item, request_id)) and item.limits is not None:
        item = replace(item, limits=above(item.limits, begun))
    asked = amounts_of(item.resources)
    before, after = growth(node, item, overlay)
    others = laid_over(node, overlay, item.instance_id)
    own = node.uses.get(item.instance_id, NOTHING)
    changes: dict[str, int] = {"io_ops": base.io_ops - begun}
    counted = list[int]()
    for r, resource in enumerate(RESOURCES):
        total, limit = getattr(base, f"{resource}_total"), node.limits[r]
        grown = after[r] - before[r]
        used = node.used[r] + before[r] - own[r] + others[r] - (asked[r] - grown)
        counted.append(used)
        if grown <= 0 or (item.forced and total >= 0):
            changes[f"{resource}_used"], changes[f"{resource}_free"] = -UNLIMITED, UNLIMITED
        else:
            changes[f"{resource}_used"], changes[f"{resource}_free"] = used, _free(limit, used)
    values = {name: getattr(base, name) for name in Room.__struct_fields__}
    c0, c1, c2, c3 = counted
    own_facts = {"lacks": fits(node, item, request_id, overlay), "counted": (c0, c1, c2, c3), "plain": False, "stood": None}
    return Room(**(values | changes | own_facts))


def in_use(room: Room, r: int) -> int:
    """What of a resource will be in use with the instance there, less what is asked for: `…_used`, but where that only lets tests pass."""
    used: int = getattr(room, f"{RESOURCES[r]}_used") if room.counted is None else room.counted[r]
    return used


def with_real_figures(room: Room) -> Room:
    """The room as others read it, who know nothing of figures that only let tests pass."""
    if room.counted is None:
        return room
    limits, figures = room.node.limits, dict[str, int]()
    for r, resource in enumerate(RESOURCES):
        used = room.counted[r]
        figures |= {f"{resource}_used": used, f"{resource}_free": _free(limits[r], used)}
    return replace(room, **figures)


def begun_before(base: Room, item: ClaimItem, request_id: str) -> int:
    """How many of a node's I/O operations are this request's claims for this very instance, or further ones for others of its instances.

    They are of whoever began to answer it before: its claims are held beside the new ones until there is a result.
    """
    node, its = base.node, f"{request_id}/"
    begun = [claim.instance_id for claim in node.held() if claim.request_id == request_id and claim.confirmed_ms is None]
    begun += [laid.instance_id for laid in base.overlay if laid.claim_id.startswith(its)]
    return len(begun) - len(set(begun) - {item.instance_id})


def above(limits: Limits, begun: int) -> Limits:
    """The limits that let as much in as these do without so many I/O operations."""
    return limits if limits.io_ops_max is None else replace(limits, io_ops_max=limits.io_ops_max + begun)


def quick_fit(item: ClaimItem) -> RoomTest:
    """Whether a room takes `item`: the same answer as `fits(…) == ()`. A forced item needs rooms of its own (`room_for`)."""
    amounts, others = quick_amounts(item), quick_others(item)
    return lambda room: (amounts(room) and others(room)) if room.lacks is None else not room.lacks


def keep_fitting(item: ClaimItem) -> Callable[[list[Room]], list[Room]]:
    """`quick_fit` over many rooms; the plain case is spelled out, because it runs for every node of every decision."""
    others = item.limits is not None or item.numa or item.pci or (item.group is not None and item.group.policy == "anti-affinity")
    if item.forced or others:
        fitting = quick_fit(item)
        return lambda rooms: [room for room in rooms if fitting(room)]
    made: list[RoomTest] = []

    def takes(room: Room) -> bool:
        # Made for the first room that is not plain, and most fleets have none.
        if not made:
            made.append(quick_fit(item))
        return made[0](room)

    vcpus, pcpus, memory_mib, disk_mib = (asked or -2 * UNLIMITED for asked in amounts_of(item.resources))
    return lambda rooms: [
        room
        for room in rooms
        if (
            room.memory_mib_free >= memory_mib and room.vcpus_free >= vcpus and room.disk_mib_free >= disk_mib and room.pcpus_free >= pcpus
            if room.plain
            else takes(room)
        )
    ]


def quick_amounts(item: ClaimItem) -> RoomTest:
    """Whether the amounts of `item` are there, within the node's limits and those that it carries."""
    # What is not asked for is not tested: nothing is less than −UNLIMITED.
    vcpus, pcpus, memory_mib, disk_mib = (asked or -2 * UNLIMITED for asked in amounts_of(item.resources))
    limits = item.limits

    def by_node(room: Room) -> bool:
        return (
            room.memory_mib_free >= memory_mib and room.vcpus_free >= vcpus and room.disk_mib_free >= disk_mib and room.pcpus_free >= pcpus
        )

    if limits is None or item.forced:
        return by_node
    most = [UNLIMITED if limit is None else limit for limit in (limits.vcpus, limits.pcpus, limits.memory_mib, limits.disk_mib)]

    def by_both(room: Room) -> bool:
        return (
            by_node(room)
            and room.vcpus_used + vcpus <= most[0]
            and room.pcpus_used + pcpus <= most[1]
            and room.memory_mib_used + memory_mib <= most[2]
            and room.disk_mib_used + disk_mib <= most[3]
        )

    return by_both


def quick_others(item: ClaimItem) -> RoomTest:
    """Whether all that is no amount allows `item`: status, units, limits of instances and I/O, group, cells and devices. For a newcomer."""
    asked = [(resource, amount) for resource, amount in zip(RESOURCES, amounts_of(item.resources), strict=True) if amount]
    limits = None if item.forced else item.limits
    instances_max = UNLIMITED if limits is None or limits.instances_max is None else limits.instances_max
    io_ops_max = UNLIMITED if limits is None or limits.io_ops_max is None else limits.io_ops_max
    is_counted = instances_max < UNLIMITED or io_ops_max < UNLIMITED
    group = item.group if item.group is not None and item.group.policy == "anti-affinity" else None
    wants = bool(item.numa or item.pci)

    def allows(room: Room) -> bool:
        if not room.ready or (room.has_units and not all(_in_units(room.node, resource, amount) for resource, amount in asked)):
            return False
        if is_counted and (len(room.instances) + 1 > instances_max or room.io_ops + 1 > io_ops_max):
            return False
        if group is not None and len(room.members(group.group_id)) + 1 > group.max_per_node:
            return False
        return not wants or not lacking(room.node, item, room.overlay)

    return allows


def _free(limit: int, used: int) -> int:
    """What is left of one of `Node.limits`; what is no limit and what no total is known of stay what they are."""
    return limit - used if -UNLIMITED < limit < UNLIMITED else limit


def _in_units(node: Node, resource: str, amount: int) -> bool:
    rule = node.rule(resource)
    if amount < rule.min_unit or (rule.max_unit is not None and amount > rule.max_unit):
        return False
    return rule.step_size <= 1 or amount % rule.step_size == 0


def _disk_left(node: Node, total: int, used: int) -> int:
    """Nova's DiskWeigher: total − used, but not above what the host says it has left (images that grew count there)."""
    left = max(total, 0) - node.disk_mib.reserved - used
    least = node.hypervisor.physical.disk_mib_available_least if node.hypervisor is not None else None
    return left if least is None else min(left, least)


def _vcpus_left(node: Node, total: int, used: int) -> float:
    """Nova's CPUWeigher: total × ratio − used, where what is reserved counts as used and is not multiplied."""
    rule = node.vcpus
    ratio_milli = 1000 if rule.ratio_milli is None else rule.ratio_milli
    return max(total, 0) * ratio_milli / 1000 - rule.reserved - used
