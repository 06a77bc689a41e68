"""A node by the names that Nova's HostState has: what extra specs, JSON queries and Nova-style plug-ins read."""

from __future__ import annotations

from typing import Any

from projections.fit import laid_over
from projections.node import Node
from projections.room import Room
from schemas.inventory import CpuInfo, Hypervisor
from schemas.resources import RESOURCES


def host_of(room: Room) -> str:
    """The compute service's host, which several nodes may share; the node's own name where none is reported."""
    hypervisor = room.node.hypervisor
    return (hypervisor.service_host if hypervisor is not None else "") or room.node_id


def facts_of(room: Room) -> dict[str, Any]:
    """The facts. Memory and disk in MiB (`…_mb`) or GiB (`…_gb`); None where nothing is reported.

    As in Nova's host state, what is reserved counts as used, and of disk no more is free than the host says it has left.
    """
    node, host = room.node, room.node.hypervisor or Hypervisor()
    return {
        "host": host_of(room),
        "nodename": room.node_id,
        "hypervisor_hostname": room.node_id,
        "uuid": host.host_uuid,
        "cell_uuid": host.cell,
        "host_ip": host.host_ip,
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "supported_instances": [[each.architecture, each.hypervisor_type, each.vm_mode] for each in host.supported_guests],
        "cpu_info": _cpu_info(host.cpu_info),
        "total_usable_ram_mb": host.memory_mib,
        "free_ram_mb": None if host.memory_mib is None else int(room.memory_mib_left),
        "total_usable_disk_gb": None if host.disk_mib is None else _gib(host.disk_mib),
        "free_disk_mb": None if host.disk_mib is None else int(room.disk_mib_left),
        "disk_mb_used": _used(room, "disk_mib"),
        "vcpus_total": host.vcpus,
        "vcpus_used": _used(room, "vcpus"),
        "cpu_allocation_ratio": _ratio(node, "vcpus"),
        "ram_allocation_ratio": _ratio(node, "memory_mib"),
        "disk_allocation_ratio": _ratio(node, "disk_mib"),
        "num_instances": len(room.instances),
        "num_io_ops": room.io_ops,
        "failed_builds": host.failed_builds,
        "metrics": {each.name: each.value_milli / 1000 for each in host.metrics},
        "service": {"disabled": node.status != "enabled"},
        "stats": dict(host.stats),
    }


def _cpu_info(cpu: CpuInfo) -> dict[str, Any] | None:
    if cpu == CpuInfo():
        return None
    topology = {"cells": cpu.cells, "sockets": cpu.sockets, "cores": cpu.cores, "threads": cpu.threads}
    names = {"arch": cpu.architecture, "model": cpu.model, "vendor": cpu.vendor}
    found: dict[str, Any] = {name: text for name, text in names.items() if text}
    found |= {"features": list(cpu.features), "topology": {name: count for name, count in topology.items() if count}}
    if cpu.maxphysaddr_bits is not None:
        found["maxphysaddr"] = {"bits": cpu.maxphysaddr_bits}
    return found


def _used(room: Room, resource: str) -> int:
    """What counts as used, claims in flight with it; of an instance that is there already what it has."""
    node, at = room.node, RESOURCES.index(resource)
    used: int = getattr(room, f"{resource}_used") if room.counted is None else node.used[at] + laid_over(node, room.overlay, "")[at]
    return node.rule(resource).reserved + used


def _gib(amount_mib: int) -> int | float:
    """GiB, a whole number where it is one: extra specs compare it as a text."""
    whole, rest = divmod(amount_mib, 1024)
    return amount_mib / 1024 if rest else whole


def _ratio(node: Node, resource: str) -> float | None:
    ratio_milli = node.rule(resource).ratio_milli
    return None if ratio_milli is None else ratio_milli / 1000
