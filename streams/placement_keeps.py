"""What an instance that is to be moved keeps on the node that it leaves, until the move is confirmed or reverted."""

from __future__ import annotations

from schemas.claims import ClaimItem, GroupMember
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES, Resources
from streams.scheduling.fleet import Fleet


def kept_item(fleet: Fleet, request: PlacementRequested, index: int) -> ClaimItem | None:
    """The claim, without its id, for all that instance number `index` uses on the source node; None if it has nothing there.

    It stays a member of its group there: whoever comes back must find nobody beside whom it may not be.
    """
    instance_id, source = request.instance(index), request.source_node
    if not fleet.is_known(source):
        return None
    use = fleet.room_of(source).node.uses.get(instance_id)
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
    )
