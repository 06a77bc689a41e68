"""CPUs, memory and disk (Nova's CoreFilter, RamFilter, DiskFilter).

Free is what `projections.fit` says, and so are the reasons. One rule is Nova's own: an instance larger than the whole node is never put
there, whatever the ratio ("no self-overcommit").
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from msgspec.structs import replace

from projections.fit import fits, laid_over
from projections.node import NOTHING, Node
from projections.room import UNLIMITED, Room
from schemas.resources import RESOURCES, Limits, Shortfall
from schemas.units import nearest_amount
from streams.scheduling.ask import Ask, Check
from streams.scheduling.options import Options


def vcpus(ask: Ask, _: Options) -> Check | None:
    """Shared and dedicated CPUs. Where no number of shared CPUs is reported, it has nothing to say (Nova's fail-safe; the ledger has)."""
    return _check(ask, "vcpus", "pcpus")


def memory(ask: Ask, _: Options) -> Check | None:
    """The node has the memory that is asked for (Nova's RamFilter), by its own ratio."""
    return _check(ask, "memory_mib")


def disk(ask: Ask, _: Options) -> Check | None:
    """Root, ephemeral and swap disk."""
    return _check(ask, "disk_mib")


def shortfalls(ask: Ask, room: Room, *resources: str) -> tuple[Shortfall, ...]:
    """What `room` lacks of `resources`, in words and numbers."""
    found = [lack for lack in lacks_of(ask, room) if lack.resource in resources]
    named = {lack.resource for lack in found}
    for resource in resources:
        asked, total = getattr(ask.item.resources, resource), getattr(room, f"{resource}_total")
        if resource not in named and asked and total < 0:
            found.append(Shortfall(resource=resource, needed=asked, detail="the node reports no total of it"))
        if resource not in named and not ask.item.forced and 0 <= total < asked:
            found.append(_too_small(resource, asked, total))
    return tuple(found)


def shortfalls_told(ask: Ask, room: Room, *resources: str) -> tuple[Shortfall, ...]:
    """The same for explanations: where the node could not hold the instance were it empty, that is said, not what of it is free.

    Nothing that is freed there would do. What decisions record stays as it is: recorded ones are made again and compared.
    """

    def told(lack: Shortfall) -> Shortfall:
        if lack.resource not in RESOURCES or ask.item.forced or not lack.needed:
            return lack
        asked, total = getattr(ask.item.resources, lack.resource), getattr(room, f"{lack.resource}_total")
        if 0 <= total < asked:
            return _too_small(lack.resource, asked, total)
        return limit_told(room.node, ask.instance_id, lack, ask.item.limits)

    return tuple(map(told, shortfalls(ask, room, *resources)))


def told_now(node: Node, instance_id: str, lack: Shortfall, limits: Limits | None = None) -> Shortfall:
    """The same of what was recorded a moment ago, as far as the node as it is now tells it; `limits` are the request's own."""
    total, limit = (node.total(lack.resource), node.limit(lack.resource)) if lack.resource in RESOURCES else (None, None)
    if lack.detail or total is None or (limit is not None and limit < lack.free):
        return _request_told(lack, limits)
    if total < lack.needed and not _is_used_by(node, instance_id, lack):
        return _too_small(lack.resource, lack.needed, total)
    return limit_told(node, instance_id, lack, limits)


def limit_told(node: Node, instance_id: str, lack: Shortfall, limits: Limits | None = None) -> Shortfall:
    """What is lacking, where the node's limit is below what is needed: that limit, and not what is free below it.

    What an instance uses there already is needed, however little is asked for; that is said. So is a limit of the request's own `limits`.
    """
    if lack.detail or lack.resource not in RESOURCES or (limit := node.limit(lack.resource)) is None or limit >= lack.needed:
        return _request_told(lack, limits)
    detail = f"{lack.needed} needed, the node's limit is {limit}"
    if _is_used_by(node, instance_id, lack):
        detail = f"{lack.needed} needed, as the instance uses there already, the node's limit is {limit}"
    return Shortfall(resource=lack.resource, needed=lack.needed, free=limit, detail=detail)


def _request_told(lack: Shortfall, limits: Limits | None) -> Shortfall:
    """The same of what the request itself lets be in use: no node has more for it."""
    if lack.detail or lack.resource not in RESOURCES or (most := most_of(limits, lack.resource)) >= lack.needed:
        return lack
    detail = f"{lack.needed} needed, the request's own limit is {most}"
    return Shortfall(resource=lack.resource, needed=lack.needed, free=most, detail=detail)


def _is_used_by(node: Node, instance_id: str, lack: Shortfall) -> bool:
    return node.uses.get(instance_id, NOTHING)[RESOURCES.index(lack.resource)] == lack.needed


def _too_small(resource: str, asked: int, total: int) -> Shortfall:
    return Shortfall(resource=resource, needed=asked, free=total, detail=f"{asked} needed, the whole node has {total}")


def lacks_of(ask: Ask, room: Room) -> tuple[Shortfall, ...]:
    """All that `fits` says of the room. Of instances that go to one node together, the amounts are those of all of them.

    `fits` names the node's own limit where the request's is exceeded as well, whichever is the lower; free is what the lower one leaves.
    """
    found = fits(room.node, ask.item, ask.request.request_id, room.overlay)
    if not ask.company and ask.item.limits is None:
        return found
    others = dict(zip(RESOURCES, laid_over(room.node, ask.company, ask.instance_id), strict=True))

    def told(lack: Shortfall) -> Shortfall:
        if lack.resource not in others or not lack.needed:
            return lack
        asked, used = getattr(ask.item.resources, lack.resource), getattr(room, f"{lack.resource}_used")
        free = min(lack.free, most_of(ask.item.limits, lack.resource) - used - (asked - lack.needed))
        return replace(lack, needed=lack.needed + others[lack.resource], free=free + others[lack.resource])

    return tuple([told(lack) for lack in found])


def limits_of(room: Room, *resources: str) -> Limits:
    """The node's own limits of these resources; None where it has none. Below zero is nothing."""
    found = {resource: limit for resource in resources if (limit := room.node.limit(resource)) is not None}
    return Limits(**{resource: nearest_amount(limit) for resource, limit in found.items()})


def _check(ask: Ask, *resources: str) -> Check | None:
    keeps = [keep for resource in resources if (keep := _keep(ask, resource)) is not None]
    if not keeps:
        return None
    first, *others = keeps

    def keep_all(rooms: list[Room]) -> list[Room]:
        for keep in keeps:
            rooms = keep(rooms)
        return rooms

    return Check(
        keep_all if others else first,
        lambda room: "; ".join(str(lack) for lack in shortfalls(ask, room, *resources)),
        lambda room: limits_of(room, *resources),
    )


def _keep(ask: Ask, resource: str) -> Callable[[list[Room]], list[Room]] | None:
    """The cheap way to the same answer as `shortfalls`; spelled out where it runs for every node of every decision."""
    n: int = getattr(ask.item.resources, resource)
    if not n:
        return None
    most = most_of(ask.item.limits, resource)
    if most < UNLIMITED:
        figures = attrgetter(f"{resource}_free", f"{resource}_total", f"{resource}_used")
        unknown = -1 if resource == "vcpus" else -2
        return lambda rooms: [
            r for r in rooms if ((has := figures(r))[0] >= n and not 0 <= has[1] < n and has[2] + n <= most) or has[1] == unknown
        ]
    match resource:
        case "vcpus":
            return lambda rooms: [r for r in rooms if (r.vcpus_free >= n and not 0 <= r.vcpus_total < n) or r.vcpus_total < 0]
        case "pcpus":
            return lambda rooms: [r for r in rooms if r.pcpus_free >= n and not 0 <= r.pcpus_total < n]
        case "memory_mib":
            return lambda rooms: [r for r in rooms if r.memory_mib_free >= n and not 0 <= r.memory_mib_total < n]
        case _:
            return lambda rooms: [r for r in rooms if r.disk_mib_free >= n and not 0 <= r.disk_mib_total < n]


def most_of(limits: Limits | None, resource: str) -> int:
    """The most that may be in use after the claim, as the request itself limits it."""
    limit: int | None = None if limits is None else getattr(limits, resource)
    return UNLIMITED if limit is None else limit
