"""Why a scheduler does not place a request, in words: it cannot do what the request says, or no node takes it."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote

from schemas.ids import claim_id as make_claim_id
from schemas.requests import PlacementRequested
from schemas.results import Decision
from schemas.units import NAME_CHARACTERS_MAX
from streams.placement.homes import has_home
from streams.placement.work import Work
from streams.scheduling.filters.labels import forbidden_traits, required_traits
from streams.scheduling.filters.restrict import listed
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy

# What ids made from a request's id add to it: index, process, epoch, counter, reason of a release.
_COUNTER_CHARACTERS = 16
AFFINITY, TRAITS = "ServerGroupAffinityFilter", "TraitsFilter"


def unfit(request: PlacementRequested, policy: Policy, owner: str, epoch: int, fleet: Fleet) -> str:
    """Why this scheduler cannot act on a well-formed request, and what to do about it; empty if it can."""
    longest = len(make_claim_id(request.request_id, request.count, owner, epoch, 10**_COUNTER_CHARACTERS)) + len("/cancelled")
    if longest > NAME_CHARACTERS_MAX:
        room = NAME_CHARACTERS_MAX - (longest - len(request.request_id))
        return f"request_id has {len(request.request_id)} characters; expected at most {room}, because claim ids begin with it"
    return unkept(request, policy) or _misdirected(request) or _contradicts(request, policy) or _divides(request, fleet)


def unkept(request: PlacementRequested, policy: Policy) -> str:
    """Why this policy cannot keep what the request says of its group; empty if it can."""
    if has_home(request) and not request.forced and AFFINITY not in policy.filters:
        return f"an affinity group needs {AFFINITY} among the policy's filters; add it there, or ask for soft-affinity"
    return ""


def _misdirected(request: PlacementRequested) -> str:
    """What a request says of instances that are somewhere already, and cannot mean."""
    action = request.action
    if request.live and action != "migrate":
        return f"live goes with action migrate only, this is {action}; leave it out"
    if action == "create":
        return "source_node goes with actions that move instances, this is create; leave it out" if request.source_node else ""
    if not request.instance_ids:
        return f"action {action} needs instance_ids: name the instances that are there"
    if action in {"migrate", "evacuate"} and not request.source_node:
        return f"action {action} needs source_node: name the node that the instances leave"
    return ""


def _contradicts(request: PlacementRequested, policy: Policy) -> str:
    """Which trait a request requires and forbids, if this policy asks for traits: no node has it and has it not."""
    forbidden = forbidden_traits(request) if TRAITS in policy.filters and not request.forced else frozenset[str]()
    both = sorted(forbidden & required_traits(request)) if forbidden else []
    return f"trait {both[0]} is required and forbidden; leave one out" if both else ""


def _divides(request: PlacementRequested, fleet: Fleet) -> str:
    """Which policy a request names for a server group none of whose members has it: a group has one, as in Nova, or it keeps none.

    Members that were claimed at the same time under two policies can be moved under their own. Numbers of `max_per_node` are not compared.
    """
    group = request.group
    other = None if group is None else fleet.other_policy(group.group_id, group.policy)
    if group is None or other is None:
        return ""
    policy, node_id = other
    says = f"as its members on {node_id} say, and not {group.policy}"
    return f"server group {group.group_id} has policy {policy}, {says}; name that or another"


def gave_up(work: Work) -> str:
    """The sentence for a request that took too long, or whose result came too late, and that was begun again often enough."""
    again = f", begun again {work.restarts} times" if work.restarts else ""
    if work.late:
        by = f"its commit_by of {work.commit_by_ms} ms"
        return f"its result was appended after {by}{again}: this scheduler is held up"
    states = [seat.state for seat in work.seats]
    counts = f"of {len(states)} claims {states.count('held')} held, {states.count('sent')} in flight"
    return f"not placed within {work.give_up_ms} ms{again}: {counts}"


def no_valid_node(request: PlacementRequested, index: int, decision: Decision, is_known: Callable[[str], bool]) -> str:
    """The sentence for a request that fits nowhere: the counts in order, the nearest miss, and which nodes it names that there are not."""
    if not decision.nodes_known:
        return f"no node for instance {index} of {request.count}: no node is known yet; ask again when a hypervisor has been audited"
    rejected = ", ".join(f"{each.filter} {each.rejected}" for each in decision.rejections if each.rejected)
    text = f"no node for instance {index} of {request.count}: of {decision.nodes_known} nodes rejected by {rejected or 'nobody'}"
    if index == 0 and request.count > 1 and has_home(request):
        text += f" (affinity: one node has to take all {request.count})"
    if request.group is not None and has_home(request) and request.action == "evacuate":
        closing = f"claimlog node close-home {quote(request.source_node)} --group {quote(request.group.group_id)}"
        text += f" (affinity: `{closing}` lets the group live elsewhere, if that node was its home)"
    if (miss := decision.nearest_miss) is not None:
        text += f"; nearest {miss.node_id}: {'; '.join(map(str, miss.shortfalls))}"
    named = dict.fromkeys((*request.forced_nodes, *request.requested_nodes))
    unknown = [node_id for node_id in named if not is_known(node_id)]
    return f"{text}; {listed(unknown, 'no node is known as')}" if unknown else text
