"""A node's NUMA cells and PCI devices for `node show`: what there is of each, who has it, and what is left for the next instance."""

from __future__ import annotations

from typing import Any

from projections import pci
from projections.node import Node
from projections.numa_node import HUGE_KIB_MIN, standing
from streams.cli.printed import units


def cell_items(node: Node) -> list[dict[str, Any]]:
    """The host cells as a newcomer meets them, in order of their ids."""
    return [
        {
            "cell_id": cell.cell_id,
            "shared_cpus": cell.shared,
            "vcpus_used": cell.vcpus_used,
            "dedicated_cpus": cell.dedicated,
            "dedicated_cpus_free": cell.free_cpus,
            "memory_mib": cell.memory_mib,
            "memory_mib_used": cell.memory_mib_used,
            "pages": [pages._asdict() | {"free": pages.free} for pages in cell.pages],
        }
        for cell in sorted(standing(node).free.cells, key=lambda cell: cell.cell_id)
    ]


def device_items(node: Node) -> list[dict[str, Any]]:
    """The devices by address; `instances` have them. One that nobody has is not free while its function, or one of it, is somebody's."""
    if node.hypervisor is None:
        return []
    having: dict[str, set[str]] = {}
    for claim in node.held():
        for address in claim.pci_addresses:
            having.setdefault(address, set()).add(claim.instance_id)
    for instance_id, shown in node.shown.items():
        for address in shown.report.pci_addresses:
            having.setdefault(address, set()).add(instance_id)
    devices = node.hypervisor.pci_devices
    free = {device.address for device in pci.available(devices, standing(node).free.addresses)}
    return [
        {
            "address": device.address,
            "vendor_id": device.vendor_id,
            "product_id": device.product_id,
            "device_type": device.device_type,
            "numa_cell": device.numa_cell,
            "tags": device.tags,
            "free": device.address in free,
            "instances": sorted(having.get(device.address, ())),
        }
        for device in sorted(devices, key=lambda device: device.address)
    ]


def device_lines(node: Node) -> list[str]:
    """What is left of dedicated CPUs and huge pages, a line a cell, and of devices, a line a kind; none where there are none."""
    lines = []
    for cell in cell_items(node):
        huge = (each for each in cell["pages"] if each["total"] and each["size_kib"] >= HUGE_KIB_MIN)
        left = ["{free:,} of {total:,} pages of {size_kib:,} KiB".format(**each) for each in huge]
        if cpus := len(cell["dedicated_cpus"]):
            left = [f"{len(cell['dedicated_cpus_free'])} of {units.counted(cpus, 'dedicated CPU')}", *left]
        lines += [f"cell {cell['cell_id']:<6} free {', '.join(left)}"] if left else []
    kinds: dict[tuple[str, str, str], list[bool]] = {}
    for device in device_items(node):
        kinds.setdefault((device["vendor_id"], device["product_id"], device["device_type"]), []).append(device["free"])
    for (vendor_id, product_id, device_type), free in sorted(kinds.items()):
        lines.append(f"devices     free {sum(free)} of {len(free)} {vendor_id}:{product_id} ({device_type})")
    return lines
