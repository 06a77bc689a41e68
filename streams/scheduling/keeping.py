"""What an instance that is to be moved leaves: the place that it keeps there until that is confirmed or reverted, and its company."""

from __future__ import annotations

from projections.differences import by_age
from schemas.claims import ClaimItem, GroupMember
from schemas.few import few
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES, Resources
from streams.scheduling.fleet import Fleet


def can_be_reverted(request: PlacementRequested) -> bool:
    """Whether it is a migration after which its instances may come back to where they were."""
    return request.action == "migrate" and not request.live


def has_to_keep(request: PlacementRequested) -> bool:
    """Whether its instances keep the places that they leave: nothing is claimed in a dry run, so nothing is kept either."""
    return can_be_reverted(request) and not request.dry_run


def refused_move(fleet: Fleet, request: PlacementRequested, index: int) -> str:
    """Why instance number `index` cannot be moved as it is asked, whatever nodes there are; empty if it can, or is not moved.

    It has to keep its place, and has none on the source node, or would lose a part of it, or it is on another; or it is a member of a
    server group there, which the request leaves out: its claim at the destination would be no member's, and the next member be granted
    beside it. A dry run is told the same, as it asks whether the move would go.
    """
    if can_be_reverted(request):
        if kept_item(fleet, request, index) is None:
            return f"instance {request.instance(index)} is neither claimed nor shown on source_node {request.source_node}"
        if lost := _lost(fleet, request, index):
            kept = f"its place would be kept there without {few(lost)}; wait until its host shows the new size, or take the resize back"
            return f"instance {request.instance(index)} has a resize on {request.source_node} that is not confirmed, so {kept}"
    if request.action not in {"migrate", "evacuate"}:
        return ""
    if elsewhere := _moved_already(fleet, request, request.instance(index)):
        return f"instance {request.instance(index)} is on {few(elsewhere)}, and not on source_node {request.source_node}"
    named = None if request.group is None else request.group.group_id
    member_at = _memberships(fleet, request, request.instance(index))
    if not member_at or any(named in groups for groups in member_at.values()):
        return ""
    (node_id, groups), *_ = member_at.items()
    said = f"instance {request.instance(index)} is a member of server group {groups[0]} on {node_id}"
    alone = ", in a request without those that are members of no or of another group" if request.count > 1 else ""
    return f"{said}, and the request has {'no' if named is None else 'another'} `group`: name that one{alone}"


def _lost(fleet: Fleet, request: PlacementRequested, index: int) -> list[str]:
    """The dedicated CPUs and devices of an instance that its place would be kept without: what is kept are those of its newest claim."""
    claims = [claim for claim in fleet.room_of(request.source_node).node.claims.get(request.instance(index), ()) if not claim.keep]
    newest = max(claims, key=by_age, default=None)
    if newest is None or not newest.resize or newest.confirmed_ms is not None:
        return []
    cpus = {cpu for claim in claims for cpu in claim.pinned_cpus} - {*newest.pinned_cpus}
    devices = {address for claim in claims for address in claim.pci_addresses} - {*newest.pci_addresses}
    return [*(f"CPU {cpu}" for cpu in sorted(cpus)), *(f"device {address}" for address in sorted(devices))]


def _moved_already(fleet: Fleet, request: PlacementRequested, instance_id: str) -> list[str]:
    """The nodes that show an instance, and have since its source node did, which neither shows it any more nor waits for it.

    A dead node goes on showing what it had: of a guest that was evacuated from it that says nothing once it was seen elsewhere.
    """
    seen_ms = -1
    if fleet.is_known(request.source_node):
        node = fleet.room_of(request.source_node).node
        awaited = any(claim.confirmed_ms is None and not claim.keep for claim in node.claims.get(instance_id, ()))
        if awaited or (instance_id in node.shown and node.unknown_since_ms is None):
            return []
        seen_ms = node.seen_ms(instance_id)
    there = (room.node for room in fleet.rooms_of(instance_id) if instance_id in room.node.shown)
    return [node.node_id for node in there if node.seen_ms(instance_id) > seen_ms]


def _memberships(fleet: Fleet, request: PlacementRequested, instance_id: str) -> dict[str, tuple[str, ...]]:
    """The server groups of an instance by node: on its source node, or wherever else the fold has it, as the request may be wrong there."""
    if fleet.is_known(request.source_node):
        groups = fleet.room_of(request.source_node).node.groups_among(instance_id)
        if groups:
            return {request.source_node: groups}
    return {room.node_id: found for room in fleet.rooms_of(instance_id) if (found := room.node.groups_of.get(instance_id))}


def any_refused_move(fleet: Fleet, request: PlacementRequested) -> str:
    """The same of the first of its instances of which it is so: they are moved together, or not at all."""
    return next(filter(None, (refused_move(fleet, request, index) for index in range(request.count))), "")


def kept_item(fleet: Fleet, request: PlacementRequested, index: int) -> ClaimItem | None:
    """The claim, without its id, for all that instance number `index` uses on the source node; None if it has nothing there.

    It stays a member of its group there: whoever comes back must find nobody beside whom it may not be.
    """
    instance_id, source = request.instance(index), request.source_node
    if not fleet.is_known(source):
        return None
    node = fleet.room_of(source).node
    use = node.uses.get(instance_id)
    if use is None:
        return None
    group = request.group
    return ClaimItem(
        claim_id="",
        instance_id=instance_id,
        nodes=(source,),
        resources=Resources(**dict(zip(RESOURCES, use, strict=True))),
        keep=True,
        group=None if group is None else GroupMember(group_id=group.group_id, policy=group.policy, max_per_node=group.max_per_node),
        project_id=request.project_id,
        flavor=min(node.flavors(instance_id), default=""),
    )
