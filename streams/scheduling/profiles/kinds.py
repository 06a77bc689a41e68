"""What each filter and weigher reads of a node, so that the profile engine knows how to answer it without a look at every node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from projections.room import Room
from schemas.requests import PlacementRequested
from streams.scheduling import raws
from streams.scheduling.ask import Ask
from streams.scheduling.custom import is_custom
from streams.scheduling.facts import host_of
from streams.scheduling.filters import LAST, RESTRICTIONS
from streams.scheduling.filters.capabilities import SCOPE
from streams.scheduling.options import settings
from streams.scheduling.policy import Policy
from streams.scheduling.raws import Raw
from streams.scheduling.weighers import WEIGHERS, Weigher, read_by

STATIC = frozenset(
    {
        "ComputeFilter",
        "AvailabilityZoneFilter",
        "TraitsFilter",
        "ComputeCapabilitiesFilter",
        "ImagePropertiesFilter",
        "IsolatedHostsFilter",
        "AggregateImagePropertiesIsolation",
        "AggregateInstanceExtraSpecsFilter",
        "AggregateMultiTenancyIsolation",
        "AggregateTypeAffinityFilter",
        "MetricsFilter",
        "isolate_aggregates",
        "require_tenant_aggregate",
        "require_image_type_support",
        "transform_image_metadata",
    }
)
"""Of a node they read what its static class says."""
TOPOLOGY = frozenset({"NUMATopologyFilter", "PciPassthroughFilter"})
"""Of a node they read its cells and devices."""
AMOUNTS: Mapping[str, tuple[str, ...]] = {"CoreFilter": ("vcpus", "pcpus"), "RamFilter": ("memory_mib",), "DiskFilter": ("disk_mib",)}
"""Of a node they read what is free of these resources: columns."""
PROFILED = frozenset(
    {
        "IoOpsFilter",
        "AggregateIoOpsFilter",
        "NumInstancesFilter",
        "AggregateNumInstancesFilter",
        "AggregateCoreFilter",
        "AggregateRamFilter",
        "AggregateDiskFilter",
        "ExactCoreFilter",
        "ExactRamFilter",
        "ExactDiskFilter",
    }
)
"""Of a node they read what its profile says: one look at each profile."""
ANYWHERE = frozenset({"request", "AllHostsFilter"})
"""Of a node they read nothing."""
NAMES = frozenset(
    {
        "RetryFilter",
        "DifferentHostFilter",
        "SameHostFilter",
        "ServerGroupAffinityFilter",
        "ServerGroupAntiAffinityFilter",
        *(filter_.name for filter_ in RESTRICTIONS if filter_.name not in ANYWHERE),
    }
)
"""They tell a few nodes, which the ask names, apart from all others."""
BY_REQUEST = frozenset({"JsonFilter", "SimpleCIDRAffinityFilter"})
"""They read any fact of a node, for the requests that use them (see `refusal`); of others they test nothing."""
SLOW = frozenset({"TypeAffinityFilter"})
"""They read every instance of a node."""
KNOWN = STATIC | TOPOLOGY | AMOUNTS.keys() | PROFILED | ANYWHERE | NAMES | BY_REQUEST | {LAST.name}

GROUP_WEIGHERS = frozenset(weigher.name for weigher in WEIGHERS.values() if weigher.of_groups)
CROSS_CELL = "CrossCellWeigher"
ABSOLUTE = frozenset({"PackWeigher", "SpreadWeigher", "BestFitWeigher", "BinPackWeigher"})
_IN_KEY = frozenset({"RAMWeigher", "CPUWeigher", "HypervisorVersionWeigher"})
"""Their figures follow from static class and use."""
_OWN_FACTS = frozenset(
    {
        "host", "nodename", "hypervisor_hostname", "uuid", "host_ip", "free_ram_mb", "free_disk_mb", "disk_mb_used", "vcpus_used",
        "num_instances", "num_io_ops", "failed_builds", "metrics",
    }
)  # fmt: skip
"""Facts that differ between nodes of one static class."""


class Unprofiled(ValueError):
    """The policy needs a look at every node; the message says what for."""


def columns(policy: Policy) -> list[tuple[Weigher, float, Raw | None]]:
    """The policy's weighers, multipliers with their sign, and the figure that stands in a column; None if it depends on the ask.

    Raises Unprofiled.
    """
    found: list[tuple[Weigher, float, Raw | None]] = []
    for name, multiplier in policy.pairs:
        if is_custom(name):
            raise Unprofiled(f"{name} is code of its own")
        weigher = WEIGHERS[name]
        if weigher.costly and multiplier:
            raise Unprofiled(f"{name} reads the image of every instance")
        asked = name in GROUP_WEIGHERS or name in ABSOLUTE or name == CROSS_CELL
        raw = None if asked else weigher.raw if weigher.costly else read_by(weigher, multiplier, None, policy.options)
        if raw is not None and name == "MetricsWeigher":
            raw = quiet(raw)
        found.append((weigher, -multiplier if weigher.negated else multiplier, raw))
    options = policy.options
    if options.host_subset_size > 1 or not options.shuffle_best_same_weighed_hosts:
        raise Unprofiled("Nova's order of equal nodes needs all of them")
    if any(name in SLOW for name in policy.filters):
        raise Unprofiled(f"{', '.join(name for name in policy.filters if name in SLOW)} reads the flavor of every instance")
    if own := [name for name in policy.filters if name not in KNOWN]:
        raise Unprofiled(f"{', '.join(own)} is code of its own")
    return found


def extras(policy: Policy, weighers: Iterable[tuple[Weigher, float, Raw | None]]) -> list[Raw]:
    """What a profile's key holds beside static class, topology and use, for the policy's weighers (`columns`) and filters."""
    found: dict[str, Raw] = {}
    for weigher, _, raw in weighers:
        if raw is not None and raw is not raws.nothing and weigher.name not in _IN_KEY and not weigher.costly:
            found[weigher.name] = raw
    names = frozenset(policy.filters)
    if names & {"IoOpsFilter", "AggregateIoOpsFilter"}:
        found["IoOps"] = raws.io_ops
    if names & {"NumInstancesFilter", "AggregateNumInstancesFilter"}:
        found.setdefault("NumInstancesWeigher", raws.num_instances)
    return list(found.values())


def quiet(raw: Raw) -> Raw:
    """The figure, or none where a metric is missing that MetricsFilter requires: such a node never passes it (see `tags`)."""
    if raw is raws.nothing:
        return raw

    def read(room: Room) -> float:
        try:
            return raw(room)
        except raws.MetricMissing:
            return 0.0

    return read


def tags(policy: Policy) -> list[Callable[[Room], Any]]:
    """What a static class says of a node besides: whether it is isolated, and which of the metrics that count it reports."""
    found: list[Callable[[Room], Any]] = []
    if "IsolatedHostsFilter" in policy.filters:
        hosts = frozenset(policy.options.isolated_hosts)
        found.append(lambda room: host_of(room) in hosts)
    wanted = frozenset(name for name, _ in settings(policy.options.weight_setting))
    if wanted and "MetricsFilter" in policy.filters:
        host = attrgetter("node.hypervisor")
        found.append(lambda room: sorted(wanted.intersection(metric.name for metric in (host(room).metrics if host(room) else ()))))
    return found


def refusal(policy: Policy, ask: Ask) -> str:
    """Why this ask needs a look at every node; empty if it does not."""
    request, item = ask.request, ask.item
    hints, limits = request.hints, item.limits
    if hints.query and "JsonFilter" in policy.filters:
        return "a query reads any fact"
    if hints.build_near_host_ip and "SimpleCIDRAffinityFilter" in policy.filters:
        return "a network tells nodes apart by address"
    if limits is not None and (limits.instances_max is not None or limits.io_ops_max is not None):
        return "limits of instances and I/O read each node's"
    if ask.company:
        return "several instances go to one node together"
    if item.group is not None and item.group.max_per_node < 1:
        return "a group without room on any node"
    if item.forced and any(name == "MetricsWeigher" for name, _ in policy.pairs):
        return "metrics are not required of forced nodes"
    if request.flavor.extra_specs and _reads_own_facts(request):
        return "an extra spec reads a fact of each node's own"
    options = policy.options
    if options.required and settings(options.weight_setting) and "MetricsFilter" not in policy.filters:
        return "a metric may be missing" if any(name == "MetricsWeigher" for name, _ in policy.pairs) else ""
    return ""


def signature(request: PlacementRequested) -> tuple[object, ...]:
    """What decides how a request stands to a profile: requests with the same one share the profiles' verdicts."""
    return (
        request.flavor,
        request.image,
        request.availability_zone,
        request.project_id,
        request.traits_required,
        request.traits_forbidden,
        request.limits,
        request.boot_from_volume,
        request.numa,
        request.pci,
        request.forced,
    )


def _reads_own_facts(request: PlacementRequested) -> bool:
    for key in request.flavor.extra_specs:
        scope = key.split(":")
        name = scope[0] if len(scope) == 1 else scope[1] if scope[0] == SCOPE else ""
        if name in _OWN_FACTS:
            return True
    return False
