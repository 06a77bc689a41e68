"""What an instance that is to be moved leaves: the place that it keeps there until that is confirmed or reverted, and its company."""

from __future__ import annotations

from schemas.claims import ClaimItem, GroupMember
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

    It has to keep its place, and has none on the source node; or it is a member of a server group there, which the request leaves out: its
    claim at the destination would be no member's, and the next member be granted beside it. A dry run is told the same, as it asks
    whether the move would go.
    """
    if can_be_reverted(request) and kept_item(fleet, request, index) is None:
        return f"instance {request.instance(index)} is neither claimed nor shown on source_node {request.source_node}"
    if request.action not in {"migrate", "evacuate"} or not fleet.is_known(request.source_node):
        return ""
    groups = fleet.room_of(request.source_node).node.groups_among(request.instance(index))
    if not groups or (request.group is not None and request.group.group_id in groups):
        return ""
    said = "the request has another `group`" if request.group is not None else "the request has no `group`"
    return f"instance {request.instance(index)} is a member of server group {groups[0]} on {request.source_node}, and {said}: name that one"


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
