"""What is asked for that is more than amounts, drawn by a seed: groups, cells, pinned CPUs, pages, devices, traits, moves."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from msgspec import structs

from schemas.requests import Flavor, Hints, PlacementRequested, ServerGroup

TTL_MS = 400_000
GIVES_UP_MS = 20_000
"""Of requests whose schedulers have hardly time to answer: a quarter of this is a blink of a clock that runs sixty times as fast."""
POLICY = """
filters = ["RetryFilter", "ComputeFilter", "AvailabilityZoneFilter", "TraitsFilter", "ComputeCapabilitiesFilter",
  "ImagePropertiesFilter", "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter", "DifferentHostFilter", "SameHostFilter",
  "AggregateInstanceExtraSpecsFilter", "AggregateRamFilter", "NumInstancesFilter", "CoreFilter", "RamFilter", "DiskFilter",
  "NUMATopologyFilter", "PciPassthroughFilter"]
[options]
max_instances_per_host = 12
pci_alias = ['{"name": "nic", "vendor_id": "8086", "product_id": "10ed", "device_type": "type-VF"}',
  '{"name": "gpu", "vendor_id": "10de", "product_id": "20b0", "numa_policy": "preferred"}',
  '{"name": "port", "vendor_id": "8086", "product_id": "10fb", "device_type": "type-PF"}']
"""
DEDICATED = {"hw:cpu_policy": "dedicated"}
SPECS: tuple[dict[str, str], ...] = (
    DEDICATED,
    DEDICATED | {"hw:numa_nodes": "2"},
    DEDICATED | {"hw:cpu_thread_policy": "isolate"},
    DEDICATED | {"hw:cpu_thread_policy": "require", "hw:mem_page_size": "2MB"},
    DEDICATED | {"hw:emulator_threads_policy": "isolate"},
    {"hw:mem_page_size": "large"},
    {"hw:mem_page_size": "1GB"},
    {"hw:numa_nodes": "1"},
    {"pci_passthrough:alias": "nic:1"},
    {"pci_passthrough:alias": "nic:2"},
    {"pci_passthrough:alias": "port:1"},
    {"pci_passthrough:alias": "gpu:1"},
    DEDICATED | {"pci_passthrough:alias": "gpu:1", "hw:mem_page_size": "2MB"},
    {"trait:CUSTOM_SSD": "required"},
    {"trait:CUSTOM_SSD": "forbidden"},
    {"aggregate_instance_extra_specs:tier": "gold"},
)
GROUP_POLICIES: tuple[Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"], ...] = (
    "affinity",
    "anti-affinity",
    "anti-affinity",
    "soft-affinity",
    "soft-anti-affinity",
)


def request(draw: Random, request_id: str, number: int, hosts: Sequence[str], guests: Sequence[str]) -> PlacementRequested:
    """A request for new instances, the `number`th; `guests` are instances that live."""
    flavor = Flavor(vcpus=draw.choice([1, 2, 2, 4]), memory_mib=draw.choice([1024, 2048, 4096]), root_gib=draw.choice([0, 10]))
    if draw.random() < 0.5:
        flavor = structs.replace(flavor, extra_specs=draw.choice(SPECS))
    ttl_ms = draw.choice([GIVES_UP_MS, TTL_MS, TTL_MS, TTL_MS])
    wishes = {"count": draw.choice([1, 1, 1, 2, 3, 5])} | _wish(draw, number, hosts, guests)
    return PlacementRequested(request_id=request_id, flavor=flavor, ttl_ms=ttl_ms, **wishes)


def _wish(draw: Random, number: int, hosts: Sequence[str], guests: Sequence[str]) -> dict[str, Any]:
    """What else one of them may say; the last asks for an instance again that lives somewhere."""
    if draw.random() < 0.4:
        return {}
    if draw.random() < 0.4:
        return {"group": _group(draw, number)}
    wishes: list[dict[str, Any]] = [
        {draw.choice(["traits_required", "traits_forbidden"]): ("CUSTOM_SSD",)},
        {"forced_nodes": (draw.choice(hosts),)},
        {"dry_run": True},
        {"boot_from_volume": True},
        {draw.choice(["retry_nodes", "ignored_nodes"]): tuple(draw.sample(hosts, 5))},
        {"availability_zone": "north"},
    ]
    if guests:
        guest = draw.choice(guests)
        wishes.append({"hints": Hints(same_host=(guest,)) if draw.random() < 0.5 else Hints(different_host=(guest,))})
        wishes.append({"count": 1, "instance_ids": (guest,)})
    return draw.choice(wishes)


def _group(draw: Random, number: int) -> ServerGroup:
    """A few groups at a time, and new ones as time goes on."""
    number = draw.randint(max(0, number // 40 - 1), number // 40)
    policy = draw.choice(GROUP_POLICIES)
    if policy == "anti-affinity" and draw.random() < 0.5:
        return ServerGroup(group_id=f"pairs-{number}", policy=policy, max_per_node=2)
    return ServerGroup(group_id=f"{policy}-{number}", policy=policy)


def move(draw: Random, request_id: str, instance_id: str, node_id: str, was: PlacementRequested, *, is_up: bool) -> PlacementRequested:
    """Resize or migrate (either way) an instance that came with the request `was`; evacuate it if its host is down."""
    flavor = was.flavor
    more: dict[str, Any] = {"action": "evacuate", "source_node": node_id}
    if is_up:
        more = draw.choice(
            [
                {"action": "resize"},
                {"action": "migrate", "source_node": node_id},
                {"action": "migrate", "source_node": node_id},
                {"action": "migrate", "source_node": node_id, "live": True},
            ]
        )
        if "live" not in more and draw.random() < 0.6:
            flavor = structs.replace(flavor, vcpus=draw.choice([1, 2, 4]), memory_mib=draw.choice([1024, 2048, 4096]))
    return PlacementRequested(
        request_id=request_id,
        flavor=flavor,
        instance_ids=(instance_id,),
        group=was.group,
        ttl_ms=TTL_MS,
        boot_from_volume=was.boot_from_volume,
        **more,
    )
