"""The keys of `given` that the adapters read, by area, and by the name of what stands below: whatever else is told is told in vain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streams.scheduling.options import MULTIPLIERS, Options
from tests.conformance.choosing_areas import CLAIMS, REFUSALS, SHUFFLED, SHUFFLES
from tests.conformance.ledger_areas import GUESTS, HOSTS, PAGE_SIZES

Names = frozenset[str]


def names(*told: str) -> Names:
    return frozenset(word for text in told for word in text.split())


NO_MATTER = names("id uuid name display_name note comment description")
"""What decides nothing in Nova, wherever it stands."""
SIZE = names("memory_mb vcpus root_gb ephemeral_gb swap", "flavorid rxtx_factor vcpu_weight is_public disabled deleted projects")
"""A flavor's, with what decides nothing of it."""
CELLS = names("id cells cpuset pcpuset memory")
HOST_CELL = CELLS | names("cpu_usage memory_usage mempages siblings pinned_cpus socket network_metadata")
GUEST_CELL = CELLS | names(*PAGE_SIZES, "cpu_policy cpu_thread_policy emulator_threads_policy")
RATIOS = names("cpu_allocation_ratio ram_allocation_ratio network_metadata")
DEVICES = names("pci_devices pci_pools pci_stats pci_requests")
STATES = names("id uuid vm_state task_state os_type project_id")
PACKS = "packing_host_numa_cells_allocation_strategy"
CONFIG = frozenset(
    {*Options.__struct_fields__, *SHUFFLES, "weight_multiplier", PACKS}
    | {option for option, _ in MULTIPLIERS.values()}
)
HOST = DEVICES | names(
    "host node nodename aggregates service cpu_allocation_ratio ram_allocation_ratio disk_allocation_ratio total_usable_ram_mb free_ram_mb",
    "total_usable_disk_gb free_disk_mb disk_mb_used vcpus_total vcpus_used num_instances instances num_io_ops failed_builds host_ip limits",
    "hypervisor_type hypervisor_version hypervisor_hostname supported_instances cpu_info metrics pci_pool_counts cell cell_uuid",
    "numa_cells numa_topology updated",
)
REQUEST = names(
    "flavor group instance_group hints scheduler_hints image destination requested_destination availability_zone project_id retry",
    "instance_id instance_uuid numa_cells numa_topology pci_requests pci_count emulator_threads_policy",
)
DESTINATION = names("host node cell allow_cross_cell_move")
SCHEDULING: Mapping[str, Names] = {
    "config": CONFIG,
    "host": HOST,
    "hosts": HOST,
    "service": names("up disabled disabled_reason"),
    "request": REQUEST,
    "flavor": SIZE | names("extra_specs"),
    "image": names("properties"),
    "group": names("policy policies members hosts rules"),
    "instance_group": names("policy policies members hosts rules"),
    "rules": names("max_server_per_host"),
    "hints": names("same_host different_host build_near_host_ip cidr query"),
    "scheduler_hints": names("same_host different_host build_near_host_ip cidr query"),
    "destination": DESTINATION,
    "requested_destination": DESTINATION,
    "retry": names("hosts num_attempts"),
    "numa_cells": HOST_CELL | GUEST_CELL,
    "numa_topology": HOST_CELL | GUEST_CELL,
    "cells": HOST_CELL | GUEST_CELL,
}
NUMA: Mapping[str, Names] = {
    "host_cell": HOST_CELL,
    "host_cells": HOST_CELL,
    "node_numa_cells": HOST_CELL,
    "instance_cell": GUEST_CELL,
    "instance_numa_cells": GUEST_CELL,
    "instance": GUEST_CELL,
    "cells": HOST_CELL | GUEST_CELL,
    "config": CONFIG,
    "limits": RATIOS,
}
SIZED = SIZE | names("volume_backed")
TRACKER: Mapping[str, Names] = {
    **dict.fromkeys(("claim", "build", "resize_to", "from", "to", "incoming_resizes", "flavor", "old_flavor", "new_flavor"), SIZED),
    "totals": names("memory_mb local_gb vcpus"),
    "reserved": names("memory_mb disk_mb vcpus"),
    "instances": STATES | names("flavor volume_backed"),
    "instance": STATES | names("flavor volume_backed"),
    "migrations": names("direction type status flavor old_flavor new_flavor instance instance_id instance_uuid"),
    "resize": names("from to"),
}
INVENTORY = names("total reserved allocation_ratio min_unit max_unit step_size")
BELOW: Mapping[str, Mapping[str, Names]] = {
    "filter": SCHEDULING,
    "weigh": SCHEDULING,
    "choose": {"config": CONFIG},
    "host_select": {"request": names("requested_destination requested_host destination ignore_hosts force_hosts force_nodes")}
    | dict.fromkeys(("requested_destination", "destination"), DESTINATION),
    "claim": {
        **NUMA,
        "node": names("memory_mb memory_mb_used local_gb local_gb_used vcpus vcpus_used"),
        "flavor": SIZED,
        "overhead": names("memory_mb disk_gb vcpus"),
        "limits": names("memory_mb disk_gb vcpu vcpus numa_topology"),
        "numa_topology": RATIOS,
    },
    "numa_cell_fit": NUMA,
    "numa_host_fit": {**NUMA, "steps": DEVICES | names("instance limits host_cells emulator_threads_policy config", PACKS)},
    "pci": {"host_cells": HOST_CELL},
    "placement_capacity": {"inventory": INVENTORY},
    "stats": {"updates": STATES},
    "tracker": TRACKER,
    "host_state": {
        "start": names("num_instances num_io_ops free_ram_mb free_disk_mb vcpus_used"),
        "requests": SIZED,
    },
}
"""By area and name: the keys of what stands there. Below other names is what Nova itself has no list of, such as extra specs."""
AUDIT = names("totals reserved instances migrations")
CLAIMED = names("totals reserved claim then then_vm_state then_task_state")
GIVEN: Mapping[str, Names] = {
    "filter": names("host request config"),
    "weigh": names("hosts request config"),
    "extra_specs_op": names("value req"),
    "normalize": names("values minval maxval"),
    "multiplier": names("option config_value aggregates aggregate_values"),
    "aggregates": names("aggregates key values default cast cast_to based_on"),
    "choose _get_sorted_hosts": names("weighed host_subset_size random_picks config") | frozenset(SHUFFLES + SHUFFLED),
    "choose _schedule": names("hosts_selected num_instances") | frozenset(CLAIMS + REFUSALS),
    "host_select": names("hosts request"),
    "claim Claim": DEVICES | names("node flavor limits overhead node_numa_cells instance_numa_cells"),
    "claim MoveClaim": DEVICES | names("node flavor limits overhead node_numa_cells instance_numa_cells migration_type"),
    "claim abort": names("then"),
    "tracker update_available_resource": AUDIT,
    "tracker negative_free": AUDIT,
    "tracker resize_two_incoming": names("totals incoming_resizes"),
    "tracker same_host_resize_then_abort": names("totals instances resize"),
    "tracker build_resize_confirm": names("totals build resize_to end"),
    "tracker build_resize_revert": names("totals build resize_to end"),
    "tracker claim": CLAIMED,
    "tracker claim_abort": CLAIMED,
    "tracker update_usage_shelved_offloaded": CLAIMED,
    "tracker claim_unknown_node": names("node_known"),
    "tracker volume_backed": names("flavor volume_backed"),
    "stats Stats": names("updates"),
    "stats failed_builds": names("events"),
    "placement_capacity": INVENTORY | names("inventory used_by_others amount"),
    "numa_cell_fit": names("host_cell instance_cell limits cpus_reserved"),
    "numa_host_fit": DEVICES
    | names("host_cells steps instance limits emulator_threads_policy config", PACKS),
    "pci": names("devices requests instance_cells host_cells"),
    "host_state free_disk_mb": names("free_disk_gb disk_available_least"),
    "host_state counters": names("stats"),
    "host_state not_ready": names("free_ram_mb free_disk_gb"),
    "host_state consume": names("start requests"),
}
"""The keys of a vector's `given` itself, by area, or by area and subject where those differ."""
PREFIXES: Mapping[str, tuple[str, ...]] = {"claim MoveClaim": GUESTS + HOSTS}
FACTS = ("ComputeCapabilitiesFilter", "JsonFilter")
"""The filters that read whatever a host has, by its name."""


def unknown(area: str, subject: str, given: Any) -> Iterator[str]:
    """The keys that an adapter would pass over, each with where it stands. A key under which nothing stands says nothing."""
    by = f"{area} {subject}"
    below = {name: keys for name, keys in BELOW.get(area, {}).items() if not (name == "host" and subject in FACTS)}
    if isinstance(given, Mapping):
        yield from _unread(given, GIVEN.get(by) or GIVEN[area], below, "", PREFIXES.get(by, ()))


def _unread(said: Any, known: Names, below: Mapping[str, Names], place: str, prefixes: tuple[str, ...] = ()) -> Iterator[str]:
    for each in said if isinstance(said, list) else [said]:
        for key, value in each.items() if isinstance(each, Mapping) else ():
            if value is None or (isinstance(value, (str, list, Mapping)) and not value):
                continue
            if key.rpartition(".")[2] not in known | NO_MATTER and not (prefixes and key.startswith(prefixes)):
                is_group = place == "config." and isinstance(value, Mapping)
                yield from _unread(value, known, below, f"{place}{key}.") if is_group else [place + key]
            elif key in below:
                yield from _unread(value, below[key], below, f"{place}{key}.")
