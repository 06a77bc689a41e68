"""The filters by name, Nova's where it has them. One is one function from an ask and the policy's options to its test, one row, one test.

A filter returns None if the ask gives it nothing to test: then it takes no part, and every node passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec
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
from streams.scheduling.options import OPTIONS, Options
from streams.scheduling.policy import Policy


class Filter(Struct, frozen=True, gc=False):
    """One filter, with the options of its policy.

    `amounts`: what it rejects for may be freed, so its nodes can be the nearest miss. `once`: what it reads of node and request stays as
    it is while one request is placed (Nova's run_filter_once_per_request).
    """

    name: str
    test: Callable[[Ask, Options], Check | None]
    amounts: bool = False
    once: bool = False
    options: Options = OPTIONS

    def prepare(self, ask: Ask) -> Check | None:
        """The test for one ask; None if there is nothing to test."""
        return self.test(ask, self.options)


RESTRICTIONS: tuple[Filter, ...] = (
    Filter("ignored-nodes", ignored, once=True),
    Filter("forced-nodes", forced, once=True),
    Filter("requested-nodes", requested, once=True),
    Filter("source-node", moved),
)
"""What the request itself says about nodes: always first, in this order (Nova: ignore before force), also for a forced request."""

FILTERS: Mapping[str, Filter] = {
    filter_.name: filter_
    for filter_ in (
        Filter("RetryFilter", tried),
        Filter("ComputeFilter", compute, once=True),
        Filter("AvailabilityZoneFilter", availability_zone, once=True),
        Filter("TraitsFilter", traits, once=True),
        Filter("ServerGroupAntiAffinityFilter", anti_affinity),
        Filter("ServerGroupAffinityFilter", affinity),
        Filter("DifferentHostFilter", different_host, once=True),
        Filter("SameHostFilter", same_host, once=True),
        Filter("CoreFilter", vcpus, amounts=True),
        Filter("RamFilter", memory, amounts=True),
        Filter("DiskFilter", disk, amounts=True),
    )
}
"""Those a policy chooses from."""

LAST = Filter("fit", fit, amounts=True)
"""Always last: what the ledger would refuse is never asked for."""


@lru_cache(maxsize=64)
def filters_of(policy: Policy) -> tuple[Filter, ...]:
    """The policy's filters in its order, each with the policy's options. Raises KeyError for a name that `loading` would refuse."""
    return tuple(msgspec.structs.replace(FILTERS[name], options=policy.options) for name in policy.filters)


def reason(filter_: Filter, ask: Ask, room: Room) -> str | None:
    """Why the filter rejects the node, as an operator reads it; None if it passes."""
    test = filter_.prepare(ask)
    return test.reason(room) if test is not None and test.rejects(room) else None
