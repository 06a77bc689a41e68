"""Amounts by another rule than the node's own: ratios of aggregates, and instances that must fill a node exactly.

The ledger holds a node's own ratio whatever a filter says, so an operator who lets aggregates rule gives their nodes a larger one, or none.
What these filters allow travels with the claim as its limits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from projections.room import Room, in_use
from schemas.resources import RESOURCES, Limits
from schemas.units import nearest_amount
from streams.scheduling.aggregates import override
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.filters.amounts import limits_of, shortfalls
from streams.scheduling.options import Options

RatioFilter = Callable[[Ask, Options], Check | None]

NO_RATIO = inf


def aggregate_ratio(resource: str, key: str) -> RatioFilter:
    """Nova's Aggregate{Core,Ram,Disk}Filter: the least ratio that the node's aggregates give under `key`, else the node's own."""

    def test(ask: Ask, _: Options) -> Check | None:
        asked: int = getattr(ask.item.resources, resource)
        if not asked:
            return None

        def why(room: Room) -> str | None:
            limit = _limit(room, resource, key)
            total: int = getattr(room, f"{resource}_total")
            if resource == "vcpus" and total < 0:
                return None  # As CoreFilter: not reported is the ledger's matter.
            lacks = shortfalls(ask, room, resource)
            if limit is None or total < asked:
                return "; ".join(map(str, lacks)) or None
            free = limit - getattr(room, f"{resource}_used")
            return f"{resource}: {asked} needed of {free} by its aggregates' {key}" if free < asked else None

        return per_node(why, lambda room: _limits(room, resource, key))

    return test


def exact(resource: str) -> RatioFilter:
    """Nova's Exact{Core,Ram,Disk}Filter: the instance takes exactly what the node has free, ratios aside."""

    def test(ask: Ask, _: Options) -> Check:
        asked: int = getattr(ask.item.resources, resource)

        def why(room: Room) -> str | None:
            total: int = getattr(room, f"{resource}_total")
            if total < 0:
                return f"{resource}: the node reports no total of it"
            free = _whole(room, resource) - in_use(room, RESOURCES.index(resource))
            return f"{resource}: {asked} asked, exactly {free} are free" if free != asked else None

        return per_node(why, lambda room: Limits(**{resource: nearest_amount(_whole(room, resource))}))

    return test


def _whole(room: Room, resource: str) -> int:
    """What instances may fill of a node, ratios aside."""
    total: int = getattr(room, f"{resource}_total")
    return total - room.node.rule(resource).reserved


def _limit(room: Room, resource: str, key: str) -> int | None:
    """What may be in use by the aggregates' ratio, in thousandths like every ratio; None if they give none, nothing for one below 0."""
    ratio, total = override(room.node.aggregates, key, NO_RATIO, float), room.node.total(resource)
    if ratio == NO_RATIO or total is None:
        return None
    return (total - room.node.rule(resource).reserved) * round(ratio * 1000) // 1000


def _limits(room: Room, resource: str, key: str) -> Limits:
    limit = _limit(room, resource, key)
    return limits_of(room, resource) if limit is None else Limits(**{resource: nearest_amount(limit)})
