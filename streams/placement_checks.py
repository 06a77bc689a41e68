"""What a scheduler refuses at once, because it could not do what the request says: a well-formed request that contradicts itself or it."""

from __future__ import annotations

from schemas.ids import claim_id as make_claim_id
from schemas.requests import PlacementRequested
from streams.placement_homes import has_home
from streams.scheduling.policy import Policy

# What ids made from a request's id add to it: index, process, epoch, counter, reason of a release. Names go up to 255 characters.
NAME_CHARACTERS_MAX = 255
_COUNTER_CHARACTERS = 16
AFFINITY = "ServerGroupAffinityFilter"


def unfit(request: PlacementRequested, policy: Policy, owner: str, epoch: int) -> str:
    """Why this scheduler cannot act on a well-formed request, and what to do about it; empty if it can."""
    longest = len(make_claim_id(request.request_id, request.count, owner, epoch, 10**_COUNTER_CHARACTERS)) + len("/cancelled")
    if longest > NAME_CHARACTERS_MAX:
        room = NAME_CHARACTERS_MAX - (longest - len(request.request_id))
        return f"request_id has {len(request.request_id)} characters; expected at most {room}, because claim ids begin with it"
    if has_home(request) and not request.forced and AFFINITY not in policy.filters:
        return f"an affinity group needs {AFFINITY} among the policy's filters; add it there, or ask for soft-affinity"
    return ""
