"""The filters by name. One is one function from an ask to its test, one row here, one unit test.

A filter returns None if the ask gives it nothing to test: then it takes no part, and every node passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from projections.room import Room
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters.amounts import disk, memory, vcpus
from streams.scheduling.filters.compute import compute
from streams.scheduling.filters.fit import fit
from streams.scheduling.filters.groups import affinity, anti_affinity
from streams.scheduling.filters.hosts import different_host, same_host
from streams.scheduling.filters.labels import availability_zone, traits
from streams.scheduling.filters.restrict import forced, ignored, moved, requested, tried


class Filter(Struct, frozen=True, gc=False):
    """One filter. `amounts`: what it rejects for may be freed, so its nodes can be the nearest miss."""

    name: str
    prepare: Callable[[Ask], Check | None]
    amounts: bool = False


RESTRICTIONS: tuple[Filter, ...] = (
    Filter("ignored-nodes", ignored),
    Filter("forced-nodes", forced),
    Filter("requested-nodes", requested),
    Filter("retry", tried),
    Filter("source-node", moved),
)
"""What the request itself says about nodes: always first, in this order (Nova: ignore before force), also for a forced request."""

FILTERS: Mapping[str, Filter] = {
    filter_.name: filter_
    for filter_ in (
        Filter("compute", compute),
        Filter("availability-zone", availability_zone),
        Filter("traits", traits),
        Filter("different-host", different_host),
        Filter("same-host", same_host),
        Filter("affinity", affinity),
        Filter("anti-affinity", anti_affinity),
        Filter("vcpus", vcpus, amounts=True),
        Filter("ram", memory, amounts=True),
        Filter("disk", disk, amounts=True),
    )
}
"""Those a policy chooses from."""

LAST = Filter("fit", fit, amounts=True)
"""Always last: what the ledger would refuse is never asked for."""


def reason(filter_: Filter, ask: Ask, room: Room) -> str | None:
    """Why the filter rejects the node, as an operator reads it; None if it passes."""
    test = filter_.prepare(ask)
    return test.reason(room) if test is not None and test.rejects(room) else None
