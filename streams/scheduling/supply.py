"""What the fleet has of each resource that a request needs: is all of it short, or one node, by how much, and what is free where."""

from __future__ import annotations

from msgspec import Struct

from projections.node import NOTHING
from projections.room import Room
from schemas.resources import RESOURCES
from streams.scheduling.ask import Ask
from streams.scheduling.filters import RESTRICTIONS
from streams.scheduling.fleet import Fleet


class Supply(Struct, frozen=True, kw_only=True, gc=False):
    """One resource over the nodes that take part: how much is needed on one node, and what there is of it.

    That is what one instance needs, or several that go to one node together. A node `has` it free, or is `full` (it could hold them were
    it empty), or is `small` (it never could), or does not report a total (`unknown`). `limit`, `used` and `free` are sums over the nodes
    with a limit, `unlimited` counts those without; limits and free amounts count from 0, since what one node lacks is no less on another.
    What the instance itself uses on a node is free for it there.
    """

    resource: str
    needed: int
    nodes: int = 0
    has: int = 0
    full: int = 0
    small: int = 0
    unknown: int = 0
    unlimited: int = 0
    limit: int = 0
    used: int = 0
    free: int = 0
    free_most: int = 0
    free_most_node: str = ""
    limit_most: int = 0


def supplies(fleet: Fleet, ask: Ask) -> tuple[Supply, ...]:
    """What the nodes that are ready and not silent, and that the request itself does not rule out, have of each resource asked for."""
    rooms = [room for room in fleet.rooms() if room.ready and room.node.silent_since_ms is None]
    for check in [each.prepare(ask) for each in RESTRICTIONS]:
        rooms = rooms if check is None else check.keep(rooms)
    return _of(rooms, ask)


def supplies_on(fleet: Fleet, ask: Ask, node_id: str) -> tuple[Supply, ...]:
    """The same of one node, whether it takes part or not."""
    return _of([room for room in fleet.rooms() if room.node_id == node_id], ask)


def _of(rooms: list[Room], ask: Ask) -> tuple[Supply, ...]:
    return tuple([_supply(name, rooms, ask) for name in RESOURCES if getattr(ask.item.resources, name)])


def _supply(resource: str, rooms: list[Room], ask: Ask) -> Supply:
    size: int = getattr(ask.item.resources, resource)
    needed, at = size * (1 + len(ask.company)), RESOURCES.index(resource)
    counts = dict.fromkeys(("has", "full", "small", "unknown", "unlimited", "limit", "used", "free"), 0)
    free_most, free_most_node, limit_most = 0, "", 0
    for room in rooms:
        total, limit = room.node.total(resource), room.node.limit(resource)
        if total is None:
            counts["unknown"] += 1
        elif limit is None:
            counts["unlimited"] += 1
            counts["has" if size <= total else "small"] += 1
        else:
            used: int = getattr(room, f"{resource}_used") - room.node.uses.get(ask.instance_id, NOTHING)[at]
            free = max(limit - used, 0)
            counts["limit"] += max(limit, 0)
            counts["used"] += used
            counts["free"] += free
            limit_most = max(limit_most, limit)
            if free > free_most:
                free_most, free_most_node = free, room.node_id
            # Nova's filters put no instance on a node that is smaller than it, whatever the ratio.
            large = size <= total and needed <= limit
            counts["has" if large and free >= needed else "full" if large else "small"] += 1
    return Supply(
        resource=resource,
        needed=needed,
        nodes=len(rooms),
        free_most=free_most,
        free_most_node=free_most_node,
        limit_most=limit_most,
        **counts,
    )
