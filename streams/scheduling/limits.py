"""The limits that a claim carries: what filters tested a node for and the ledger does not know by itself (Nova's `limits`).

Between the decision and its verdict other schedulers may claim the same node. The ledger refuses whatever oversteps a limit in the claim,
so that ratios of aggregates, exact amounts and numbers of instances and I/O operations hold for all schedulers together.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from projections.room import Room, above, begun_before
from schemas.claims import ClaimItem
from schemas.resources import Limits
from schemas.results import Decision
from streams.scheduling.ask import Ask
from streams.scheduling.filters import Filter, filters_of
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy


def claimed(fleet: Fleet, ask: Ask, policy: Policy, decision: Decision) -> ClaimItem:
    """The claim for a decision that chose: its nodes in order and its limits.

    A claim has one set of limits, so alternates where they would be others are left out. Where the request has begun before, its claims of
    then are no I/O operations of others.
    """
    nodes = (decision.chosen, *decision.alternates)
    carried = () if ask.item.forced else _carried(policy)
    if not carried and (ask.item.limits is None or ask.item.forced):
        return replace(ask.item, nodes=nodes)
    tests = [check for filter_ in carried if (check := filter_.prepare(ask)) is not None and check.limits is not None]

    def limits_on(room: Room) -> Limits:
        limits = least(ask.item.limits or Limits(), *(check.limits(room) for check in tests if check.limits is not None))
        return above(limits, begun_before(room, ask.item, ask.request.request_id)) if limits.io_ops_max is not None else limits

    limits = limits_on(fleet.room_of(decision.chosen))
    alike = tuple(node_id for node_id in nodes if limits_on(fleet.room_of(node_id)) == limits)
    return replace(ask.item, nodes=alike, limits=None if limits == Limits() else limits)


@lru_cache(maxsize=64)
def _carried(policy: Policy) -> tuple[Filter, ...]:
    return tuple([filter_ for filter_ in filters_of(policy) if filter_.carried])


def least(*several: Limits) -> Limits:
    """Of each limit the least that is given."""
    found: dict[str, int] = {}
    for limits in several:
        for name in Limits.__struct_fields__:
            limit: int | None = getattr(limits, name)
            if limit is not None:
                found[name] = min(limit, found.get(name, limit))
    return Limits(**found)
