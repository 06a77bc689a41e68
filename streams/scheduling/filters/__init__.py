"""The filters by name, Nova's where it has them. One is one function from an ask and the policy's options to its test, one row, one test.

A filter returns None if the ask gives it nothing to test: then it takes no part, and every node passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec
from msgspec import Struct

from projections.room import Room
from schemas.requests import PlacementRequested
from streams.scheduling.ask import Ask, Check, ask_of, per_node
from streams.scheduling.custom import custom_why
from streams.scheduling.filters.amounts import disk, memory, vcpus
from streams.scheduling.filters.capabilities import compute_capabilities
from streams.scheduling.filters.compute import compute
from streams.scheduling.filters.counts import aggregate_io_ops, aggregate_num_instances, io_ops, metrics, num_instances
from streams.scheduling.filters.fit import fit
from streams.scheduling.filters.groups import affinity, anti_affinity, forced_home
from streams.scheduling.filters.hosts import different_host, near_address, same_host
from streams.scheduling.filters.images import image_properties, require_image_type_support, transform_image_metadata
from streams.scheduling.filters.isolation import (
    image_properties_isolation,
    instance_extra_specs,
    isolate_aggregates,
    isolated_hosts,
    one_flavor,
    require_tenant_aggregate,
    tenancy_isolation,
    type_affinity,
)
from streams.scheduling.filters.json_query import json_query
from streams.scheduling.filters.labels import availability_zone, traits
from streams.scheduling.filters.ratios import aggregate_ratio, exact
from streams.scheduling.filters.restrict import (
    HELD_NODES,
    forced,
    forced_hosts,
    held,
    ignored,
    ignored_hosts,
    moved,
    requested,
    requested_hosts,
    tried,
    unusable,
)
from streams.scheduling.filters.topology import numa_topology, pci_passthrough
from streams.scheduling.options import OPTIONS, Options
from streams.scheduling.policy import Policy


class Filter(Struct, frozen=True, gc=False):
    """One filter, with the options of its policy.

    `amounts`: what it rejects for may be freed, so its nodes can be the nearest miss. `carried`: its limits travel with the claim.
    `kept`: the ledger gives its word again for each claim, on all that stands before it, or it reads nothing an operator sets. None is
    marked as Nova's run_filter_once_per_request: what those filters read of a node does not change by the request's own claims, so asked
    again for a later instance they say the same. Code from outside may say so of itself, and is held to it (`custom`).
    """

    name: str
    test: Callable[[Ask, Options], Check | None]
    amounts: bool = False
    carried: bool = False
    kept: bool = False
    options: Options = OPTIONS

    def prepare(self, ask: Ask) -> Check | None:
        """The test for one ask; None if there is nothing to test."""
        return self.test(ask, self.options)


RESTRICTIONS: tuple[Filter, ...] = (
    Filter("request", unusable),
    Filter("ignored-nodes", ignored),
    Filter("ignored-hosts", ignored_hosts),
    Filter("forced-hosts", forced_hosts),
    Filter("forced-nodes", forced),
    Filter("requested-nodes", requested),
    Filter("requested-hosts", requested_hosts),
    Filter(HELD_NODES, held),
    Filter("source-node", moved),
    Filter("group-home", forced_home),
)
"""What the request itself says about nodes: always first, in this order (Nova: ignore before force), also for a forced request."""

FILTERS: Mapping[str, Filter] = {
    filter_.name: filter_
    for filter_ in (
        Filter("AllHostsFilter", lambda _ask, _options: None, kept=True),
        Filter("RetryFilter", tried, kept=True),
        Filter("ComputeFilter", compute, kept=True),
        Filter("AvailabilityZoneFilter", availability_zone),
        Filter("TraitsFilter", traits),
        Filter("ComputeCapabilitiesFilter", compute_capabilities),
        Filter("ImagePropertiesFilter", image_properties),
        Filter("ServerGroupAntiAffinityFilter", anti_affinity, kept=True),
        Filter("ServerGroupAffinityFilter", affinity, kept=True),
        Filter("DifferentHostFilter", different_host),
        Filter("SameHostFilter", same_host),
        Filter("SimpleCIDRAffinityFilter", near_address),
        Filter("IsolatedHostsFilter", isolated_hosts),
        Filter("AggregateImagePropertiesIsolation", image_properties_isolation),
        Filter("AggregateInstanceExtraSpecsFilter", instance_extra_specs),
        Filter("AggregateMultiTenancyIsolation", tenancy_isolation),
        Filter("TypeAffinityFilter", one_flavor),
        Filter("AggregateTypeAffinityFilter", type_affinity),
        Filter("isolate_aggregates", isolate_aggregates),
        Filter("require_tenant_aggregate", require_tenant_aggregate),
        Filter("require_image_type_support", require_image_type_support),
        Filter("transform_image_metadata", transform_image_metadata),
        Filter("JsonFilter", json_query),
        Filter("MetricsFilter", metrics, kept=True),
        Filter("IoOpsFilter", io_ops, carried=True, kept=True),
        Filter("AggregateIoOpsFilter", aggregate_io_ops, carried=True),
        Filter("NumInstancesFilter", num_instances, carried=True, kept=True),
        Filter("AggregateNumInstancesFilter", aggregate_num_instances, carried=True),
        Filter("CoreFilter", vcpus, amounts=True, kept=True),
        Filter("RamFilter", memory, amounts=True, kept=True),
        Filter("DiskFilter", disk, amounts=True, kept=True),
        Filter("NUMATopologyFilter", numa_topology, kept=True),
        Filter("PciPassthroughFilter", pci_passthrough, kept=True),
        Filter("AggregateCoreFilter", aggregate_ratio("vcpus", "cpu_allocation_ratio"), carried=True),
        Filter("AggregateRamFilter", aggregate_ratio("memory_mib", "ram_allocation_ratio"), carried=True),
        Filter("AggregateDiskFilter", aggregate_ratio("disk_mib", "disk_allocation_ratio"), carried=True),
        Filter("ExactCoreFilter", exact("vcpus"), carried=True, kept=True),
        Filter("ExactRamFilter", exact("memory_mib"), carried=True, kept=True),
        Filter("ExactDiskFilter", exact("disk_mib"), carried=True, kept=True),
    )
}
"""Those a policy chooses from. Those with Nova's function names are what it asks of Placement before any filter."""

LAST = Filter("fit", fit, amounts=True)
"""Always last: what the ledger would refuse is never asked for."""


@lru_cache(maxsize=64)
def filters_of(policy: Policy) -> tuple[Filter, ...]:
    """The policy's filters in its order, each with the policy's options, custom ones from where their names lead. Raises CustomError."""
    return tuple(
        msgspec.structs.replace(FILTERS[name], options=policy.options) if name in FILTERS else _custom(name) for name in policy.filters
    )


def rests_on_labels(policy: Policy, request: PlacementRequested) -> bool:
    """Whether a filter tests for this request what the ledger does not: zones, traits, aggregates, where other instances are.

    Nobody corrects a choice that was made on an older state of these.
    """
    tested = [FILTERS.get(name) for name in policy.filters]
    ask = ask_of(request, 0, seed=0, options=policy.options)
    # What code of one's own reads nobody knows.
    return any(each is None or (not each.kept and each.test(ask, policy.options) is not None) for each in tested)


def _custom(name: str) -> Filter:
    why_for = custom_why(name)
    return Filter(name, lambda ask, _: per_node(why_for(ask)))


def reason(filter_: Filter, ask: Ask, room: Room) -> str | None:
    """Why the filter rejects the node, as an operator reads it; None if it passes."""
    test = filter_.prepare(ask)
    return test.reason(room) if test is not None and test.rejects(room) else None
