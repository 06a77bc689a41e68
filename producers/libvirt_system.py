"""The hypervisor itself: its totals, CPU, NUMA cells, huge pages, PCI devices and storage pools, and its own word on what is in use.

What seldom changes (capabilities, devices) is kept from audit to audit and asked for again in a full pass, when the totals move, or when
libvirt tells of a device. What the driver does not support is "not reported", which is None and never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import libvirt
from msgspec import Struct, structs

from producers.libvirt_connect import supported
from producers.libvirt_pools import Stopped, look_at_pools
from producers.libvirt_storage import Storage
from producers.libvirt_xml import Capabilities, read_capabilities, read_pci, read_system_uuid
from schemas.inventory import CellMemory, Hypervisor, NumaCell, PciDevice, Physical
from schemas.units import MIB, TEXT_CHARACTERS_MAX

MHZ_AT = 3
"""Where getInfo has the CPU's clock, which on most machines is another at each look."""


class Options(Struct, frozen=True, kw_only=True):
    """What libvirt cannot know. `pools` are the storage pools that hold instances' disks (None: every active one).

    `pci_devices` are those that guests may have, as in Nova's `device_spec` (None: all that libvirt lists): addresses or `vendor:product`,
    with the wildcards of file names. `service_host` is the host of Nova's compute service where one service has several nodes.
    `refresh_pools`: have libvirt look at the pools' file systems again before each look at disks, which it allows on read-write
    connections only.
    """

    pools: tuple[str, ...] | None = None
    dedicated_cpus: frozenset[int] = frozenset()
    pci_devices: tuple[str, ...] | None = None
    host_ip: str = ""
    service_host: str = ""
    refresh_pools: bool = False


class Facts(Struct, frozen=True, kw_only=True):
    """What is kept of a hypervisor from audit to audit; `totals` tell when to ask again."""

    totals: tuple[Any, ...]
    capabilities: Capabilities
    devices: tuple[PciDevice, ...]
    system_uuid: str
    hypervisor_type: str
    hypervisor_version: int
    hostname: str


def read_facts(handle: Any, node_info: Sequence[Any], options: Options) -> Facts:
    """What seldom changes. Raises libvirtError, and ValueError for XML that says nothing."""
    cells, sockets, cores, threads = node_info[4:8]
    devices, system_uuid = _devices(handle)
    return Facts(
        totals=_totals(node_info),
        capabilities=read_capabilities(handle.getCapabilities(), (cells, sockets, cores, threads), options.dedicated_cpus),
        devices=tuple(device for device in devices if is_offered(device, options.pci_devices)),
        system_uuid=system_uuid,
        hypervisor_type=handle.getType(),
        hypervisor_version=handle.getVersion(),
        hostname=handle.getHostname(),
    )


def look_at_host(
    handle: Any, options: Options, known: Facts | None = None, stopped: dict[str, Stopped] | None = None
) -> tuple[Hypervisor, Facts]:
    """The host as it is now, and what to keep of it; `stopped` as for `look_at_pools`. Raises libvirtError, ValueError."""
    node_info = handle.getInfo()
    facts = known if known is not None and known.totals == _totals(node_info) else read_facts(handle, node_info, options)
    _, memory_mib, cpus = node_info[:3]
    storage = look_at_pools(handle, options.pools, {} if stopped is None else stopped)
    dedicated = len(options.dedicated_cpus)
    capabilities = facts.capabilities
    _check_dedicated(options.dedicated_cpus, capabilities.cells, cpus)
    cells = tuple(_with_free_pages(handle, cell) for cell in capabilities.cells)
    memory = _memory(handle)
    return (
        Hypervisor(
            vcpus=max(0, cpus - dedicated),
            pcpus=dedicated or None,
            memory_mib=memory_mib,
            disk_mib=None if storage is None else storage.capacity_bytes // MIB,
            host_uuid=capabilities.host_uuid or facts.system_uuid,
            host_ip=options.host_ip,
            hypervisor_type=facts.hypervisor_type,
            hypervisor_version=facts.hypervisor_version,
            cpu_info=capabilities.cpu_info,
            supported_guests=capabilities.guests,
            numa_cells=cells,
            pci_devices=facts.devices,
            service_host=options.service_host,
            physical=Physical(
                memory_mib_total=memory.get("total"),
                memory_mib_free=memory.get("free"),
                memory_mib_used=memory["total"] - memory["free"] if {"total", "free"} <= memory.keys() else None,
                disk_mib_free=None if storage is None else storage.available_bytes // MIB,
                disk_mib_used=None if storage is None else -(-storage.allocation_bytes // MIB),
                cells=_cells_free(handle, cells),
            ),
            stats=_stats(storage),
        ),
        facts,
    )


def is_offered(device: PciDevice, named: Sequence[str] | None) -> bool:
    """Whether guests may have the device: `named` as `Options.pci_devices`."""
    kind = f"{device.vendor_id}:{device.product_id}"
    return named is None or any(fnmatchcase(device.address, each) or fnmatchcase(kind, each) for each in named)


def _totals(node_info: Sequence[Any]) -> tuple[Any, ...]:
    """What getInfo says that stays, as long as the machine does."""
    return (*node_info[:MHZ_AT], *node_info[MHZ_AT + 1 :])


def _stats(storage: Storage | None) -> dict[str, str]:
    if storage is None or not storage.taken_for_one:
        return {}
    named = "; ".join(" and ".join(names) for names in storage.taken_for_one)
    return {"storage_pools": f"counted once, as far as is known they are one: {named}"[:TEXT_CHARACTERS_MAX]}


def _check_dedicated(dedicated: frozenset[int], cells: Sequence[NumaCell], cpus: int) -> None:
    """Raises ValueError for dedicated CPUs that the host does not have, as Nova's driver does: they would be totals of nothing."""
    known = {cpu for cell in cells for cpu in cell.cpus} or set(range(cpus))
    if beyond := sorted(dedicated - known):
        named = ", ".join(map(str, beyond[:5])) + (" ..." if len(beyond) > 5 else "")
        raise ValueError(f"dedicated CPUs {named} are not this host's, which has {len(known)} CPUs up to {max(known, default=0)}")


def _memory(handle: Any) -> dict[str, int]:
    """Total and free MiB by the host's meminfo, free with buffers and cache as Nova counts it; nothing where the driver has none."""
    kib = supported(lambda: handle.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)) or {}
    found = {"total": kib["total"] // 1024} if "total" in kib else {}
    if "free" in kib:
        found["free"] = (kib["free"] + kib.get("buffers", 0) + kib.get("cached", 0)) // 1024
    return found


def _cells_free(handle: Any, cells: Sequence[NumaCell]) -> tuple[CellMemory, ...]:
    if not cells:
        return ()
    first, last = cells[0].cell_id, cells[-1].cell_id
    free_bytes = supported(lambda: handle.getCellsFreeMemory(first, last - first + 1)) or ()
    return tuple(
        CellMemory(cell_id=cell_id, memory_mib_free=int(free) // MIB) for cell_id, free in enumerate(free_bytes, first) if free is not None
    )


def _with_free_pages(handle: Any, cell: NumaCell) -> NumaCell:
    """The cell with the free ones of its huge pages, where it has any and the driver can say."""
    sizes = [pages.size_kib for pages in cell.pages if pages.total]
    if not sizes:
        return cell
    said = supported(lambda: handle.getFreePages(sizes, cell.cell_id, 1)) or {}
    free = said.get(cell.cell_id, {})
    return structs.replace(cell, pages=tuple(structs.replace(pages, free=free.get(pages.size_kib)) for pages in cell.pages))


def _devices(handle: Any) -> tuple[tuple[PciDevice, ...], str]:
    """PCI devices by address, and the machine's uuid, if the driver knows of devices."""
    kinds = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_SYSTEM
    texts = []
    for device in supported(lambda: handle.listAllDevices(kinds)) or ():
        try:
            texts.append(device.XMLDesc(0))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:  # unplugged since the list was made
                raise
    found = [device for device in map(read_pci, texts) if device is not None]
    return tuple(sorted(found, key=lambda each: each.address)), next(filter(None, map(read_system_uuid, texts)), "")
