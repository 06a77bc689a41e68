"""Where a request holds its instances already: the choice of whoever answers it after somebody else began to.

A scheduler that takes a request over makes claims of its own, while those of the one before are held until the counting
result goes without them. Claims of one instance on one node overlap (rule 3); on two nodes they take the room of two, and others who ask
meanwhile may hear that there is none. So the node that is held is chosen as long as every filter lets it pass; only else all are looked at.

The decision's own evidence says so: `held-nodes` among its filters, which rejected all others. By that it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

from projections.node import Claim
from schemas.requests import PlacementRequested
from schemas.results import Decision
from streams.scheduling.ask import Ask
from streams.scheduling.filters.restrict import HELD_NODES
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy

NOWHERE: frozenset[str] = frozenset()


class Choice(NamedTuple):
    """A decision and the ask that it answers."""

    ask: Ask
    decision: Decision


def choose(
    decide: Callable[[Fleet, Ask, Policy, str], Decision],
    fleet: Fleet,
    ask: Ask,
    policy: Policy,
    policy_digest: str,
    held: frozenset[str],
) -> Choice:
    """The decision of the engine `decide` for `ask`: on the nodes that are held for it, if any of them will do, else on all."""
    if held:
        there = ask.only_on(held)
        decision = decide(fleet, there, policy, policy_digest)
        if decision.chosen:
            return Choice(there, decision)
    return Choice(ask, decide(fleet, ask, policy, policy_digest))


def nodes_held(claims: Iterable[Claim], request: PlacementRequested, index: int) -> frozenset[str]:
    """The nodes where one of these claims holds instance number `index` of `request`, for that very request.

    Not those that its instance leaves and keeps; and none for a group that stays together, whose home says where.
    """
    if request.group is not None and request.group.policy == "affinity":
        return NOWHERE
    request_id, instance_id = request.request_id, request.instance(index)
    there = (claim for claim in claims if claim.request_id == request_id and claim.instance_id == instance_id and not claim.keep)
    return frozenset(claim.node_id for claim in there)


def nodes_begun(claims: Iterable[Claim], request: PlacementRequested) -> frozenset[str]:
    """The nodes where one of these claims holds any instance of `request`, for that very request; a single instance has no others."""
    if request.count == 1:
        return NOWHERE
    return frozenset(claim.node_id for claim in claims if claim.request_id == request.request_id and not claim.keep)


def nodes_begun_by(fleet: Fleet, request: PlacementRequested) -> frozenset[str]:
    """The same of all that is held; `fleet` is at the cut of a decision."""
    return nodes_begun(chain.from_iterable(ledger.claims.values() for ledger in fleet.ledgers), request)


def nodes_chosen_from(fleet: Fleet, request: PlacementRequested, index: int, recorded: Decision) -> frozenset[str]:
    """The nodes that a recorded decision was restricted to because they were held; none if it was not. `fleet` is at its cut.

    Where the evidence had no room for its counts, it was if it chose what is held and nothing else passed.
    """
    counted = recorded.rejections
    if counted and all(each.filter != HELD_NODES for each in counted):
        return NOWHERE
    held = nodes_held(chain.from_iterable(ledger.claims.values() for ledger in fleet.ledgers), request, index)
    return held if counted or (recorded.chosen in held and recorded.passed <= len(held)) else NOWHERE
