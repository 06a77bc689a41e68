"""Whether a claim fits a node, and if not, everything that is missing: the one feasibility function (rule 2).

The fold decides with it, the scheduler selects with it, and `explain`, `what-if` and `capacity` answer with it, so they cannot disagree.
"""

from collections.abc import Iterable, Sequence

from projections import numa_node
from projections.node import NO_TOTAL, NOTHING, Amounts, Node, amounts_of, largest
from schemas.claims import ClaimItem
from schemas.inventory import ResourceRule
from schemas.resources import RESOURCES, Limits, Shortfall

Overlay = Sequence[ClaimItem]
"""Claims not yet in the fold, laid over a node: those of the same record before this one, or a scheduler's own in flight."""


def fits(node: Node | None, item: ClaimItem, request_id: str, overlay: Overlay = ()) -> tuple[Shortfall, ...]:
    """Every shortfall of `item` on `node`, in a fixed order; empty means that it fits.

    `request_id` is the claim's request (rule 7 asks whose resize is in flight). A resource not asked for is not tested; one whose use
    does not grow is not either, if the instance has a claim here already: one that is only shown may have come back with an audit that
    arrived late, after its room was given to others, so a first claim of it must find its whole size below the limit. A forced claim
    skips the ratio limits and the limits it carries, nothing else. One that keeps what is there takes nothing.
    """
    if node is not None and not overlay:
        if fits_at_once(node, item):
            return ()
        if lacks := lacks_at_once(node, item):
            return lacks
    if item.keep:
        return tuple(_kept(node, item))
    if node is None or node.hypervisor is None:
        return (Shortfall(resource="node", detail="no audit of it is known"),)
    found: list[Shortfall] = []
    if node.status != "enabled":
        found.append(Shortfall(resource="status", detail=node.status + (f" ({node.status_reason})" if node.status_reason else "")))
    if item.resize and _resize_in_flight(node, item, request_id):
        found.append(Shortfall(resource="resize", detail="another request's claim of this instance is not confirmed yet"))
    found.extend(_resources(node, item, overlay))
    if item.limits is not None and not item.forced:
        found.extend(_counts(node, item, item.limits, overlay))
    found.extend(_group(node, item, overlay))
    if item.numa or item.pci:
        found.extend(numa_node.lacking(node, item, overlay))
    return tuple(found)


def fits_at_once(node: Node, item: ClaimItem) -> bool:
    """True only for what surely fits: the plain case of an instance new to a node without special rules. False says nothing.

    Four comparisons instead of four walks; a property test holds that it never disagrees with the long way.
    """
    if not _is_plain(node, item):
        return False
    vcpus, pcpus, memory_mib, disk_mib = amounts_of(item.resources)
    used, limits = node.used, node.limits
    return (
        (not vcpus or used[0] + vcpus <= limits[0])
        and (not pcpus or used[1] + pcpus <= limits[1])
        and (not memory_mib or used[2] + memory_mib <= limits[2])
        and (not disk_mib or used[3] + disk_mib <= limits[3])
    )


def lacks_at_once(node: Node, item: ClaimItem) -> tuple[Shortfall, ...]:
    """What surely is all that is lacking, in the same plain case: amounts. Empty says nothing."""
    if item.forced or not _is_plain(node, item):
        return ()
    used, limits = node.used, node.limits
    found: list[Shortfall] = []
    for r, asked in enumerate(amounts_of(item.resources)):
        if asked and used[r] + asked > limits[r]:
            if limits[r] == NO_TOTAL:
                return ()
            found.append(Shortfall(resource=RESOURCES[r], needed=asked, free=limits[r] - used[r]))
    return tuple(found)


def _is_plain(node: Node, item: ClaimItem) -> bool:
    """Whether nothing but amounts decides: an audited, enabled node, an instance new to it, no special rules."""
    return (
        node.status == "enabled"
        and node.whole_units
        and node.hypervisor is not None
        and item.instance_id not in node.uses
        and item.limits is None
        and item.group is None
        and not (item.numa or item.pci or item.keep)
    )


def _kept(node: Node | None, item: ClaimItem) -> Iterable[Shortfall]:
    """What is kept is there already, whatever the node's status: the instance, and no more of it than it uses."""
    use = node.uses.get(item.instance_id) if node is not None else None
    if use is None:
        yield Shortfall(resource="keep", detail="the instance is neither claimed nor shown here, so there is nothing to keep")
        return
    for resource, asked, used in zip(RESOURCES, amounts_of(item.resources), use, strict=True):
        if asked > used:
            yield Shortfall(resource="keep", detail=f"{resource}: {asked} to keep, the instance uses {used}")


def overrun(node: Node, item: ClaimItem, overlay: Overlay = ()) -> tuple[Shortfall, ...]:
    """What a forced claim takes beyond the limits: what `fits` would have said without `forced`."""
    over = tuple(_amounts(node, item, overlay, forced=False))
    return over + numa_node.over_ratios(node, item, overlay) if item.numa else over


def _resize_in_flight(node: Node, item: ClaimItem, request_id: str) -> bool:
    return any(claim.confirmed_ms is None and claim.request_id != request_id for claim in node.claims.get(item.instance_id, ()))


def _resources(node: Node, item: ClaimItem, overlay: Overlay) -> Iterable[Shortfall]:
    for r, asked in enumerate(amounts_of(item.resources)):
        if asked:
            yield from _units(RESOURCES[r], asked, node.rule(RESOURCES[r]))
    yield from _amounts(node, item, overlay, forced=item.forced)


def _units(resource: str, asked: int, rule: ResourceRule) -> Iterable[Shortfall]:
    """Placement's min_unit, max_unit and step_size."""
    if asked < rule.min_unit:
        yield Shortfall(resource="min_unit", detail=f"{resource}: {asked} needed, at least {rule.min_unit} must be asked for")
    if rule.max_unit is not None and asked > rule.max_unit:
        yield Shortfall(resource="max_unit", detail=f"{resource}: {asked} needed, at most {rule.max_unit} may be asked for")
    if rule.step_size > 1 and asked % rule.step_size:
        yield Shortfall(resource="step_size", detail=f"{resource}: {asked} needed, only multiples of {rule.step_size} are given")


def _amounts(node: Node, item: ClaimItem, overlay: Overlay, *, forced: bool) -> Iterable[Shortfall]:
    asked = amounts_of(item.resources)
    before, after = growth(node, item, overlay)
    others = laid_over(node, overlay, item.instance_id)
    for r, resource in enumerate(RESOURCES):
        grown = after[r] - before[r]
        if not asked[r] or grown <= 0:
            continue
        total, rule = node.total(resource), node.rule(resource)
        if total is None:
            yield Shortfall(resource=resource, detail="the node reports no total of it")
            continue
        if forced:
            continue
        used = node.used[r] + before[r] - node.uses.get(item.instance_id, NOTHING)[r] + others[r]
        if rule.ratio_milli is not None and (used + grown) * 1000 > (total - rule.reserved) * rule.ratio_milli:
            yield Shortfall(resource=resource, needed=grown, free=(total - rule.reserved) * rule.ratio_milli // 1000 - used)
        elif item.limits is not None:
            limit: int | None = getattr(item.limits, resource)
            if limit is not None and used + grown > limit:
                yield Shortfall(resource=resource, needed=grown, free=limit - used)


def growth(node: Node, item: ClaimItem, overlay: Overlay) -> tuple[Amounts, Amounts]:
    """Use of the item's instance on the node before and after the claim, overlaid claims of the same instance included.

    The first claim of an instance that is only shown finds nothing there before: see `fits`.
    """
    laid: Amounts | None = None
    for other in overlay:
        if other.instance_id == item.instance_id:
            laid = largest(laid or NOTHING, amounts_of(other.resources))
    if laid is not None:
        before = node.use_of(item.instance_id, laid)
    else:
        before = node.uses.get(item.instance_id, NOTHING) if item.instance_id in node.claims else NOTHING
    return before, node.use_of(item.instance_id, largest(laid or NOTHING, amounts_of(item.resources)))


def laid_over(node: Node, overlay: Overlay, instance_id: str) -> Amounts:
    """What overlaid claims of instances other than `instance_id` add to the node."""
    if not overlay:
        return NOTHING
    by_instance: dict[str, Amounts] = {}
    for other in overlay:
        if other.instance_id != instance_id:
            by_instance[other.instance_id] = largest(by_instance.get(other.instance_id, NOTHING), amounts_of(other.resources))
    added = [0, 0, 0, 0]
    for i, amounts in by_instance.items():
        before, after = node.uses.get(i, NOTHING), node.use_of(i, amounts)
        for r in range(4):
            added[r] += after[r] - before[r]
    return (added[0], added[1], added[2], added[3])


def _counts(node: Node, item: ClaimItem, limits: Limits, overlay: Overlay) -> Iterable[Shortfall]:
    """Nova's NumInstancesFilter and IoOpsFilter, as limits that the claim carries."""
    if limits.instances_max is not None:
        others = (set(node.uses) | {other.instance_id for other in overlay}) - {item.instance_id}
        if item.instance_id not in node.uses and len(others) + 1 > limits.instances_max:
            yield Shortfall(resource="instances", needed=1, free=limits.instances_max - len(others))
    if limits.io_ops_max is not None:
        running = node.io_ops() + len(overlay)
        if running + 1 > limits.io_ops_max:
            yield Shortfall(resource="io_ops", needed=1, free=limits.io_ops_max - running)


def _group(node: Node, item: ClaimItem, overlay: Overlay) -> Iterable[Shortfall]:
    """Nova's ServerGroupAntiAffinityFilter: members on the node stay below `max_per_node`; the instance itself does not count."""
    group = item.group
    if group is None or group.policy != "anti-affinity":
        return
    members = node.members(group.group_id) | {o.instance_id for o in overlay if o.group is not None and o.group.group_id == group.group_id}
    others = len(members - {item.instance_id})
    if others + 1 > group.max_per_node:
        yield Shortfall(resource="group", needed=1, free=group.max_per_node - others)
