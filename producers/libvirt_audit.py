"""Audits of one hypervisor through libvirt: what it has, and every domain with its defined size.

No call in here needs a guest's monitor, so a frozen guest cannot hold it up: sizes come from the XML, power from the state. What the
driver does not support is "not reported"; what fails for one domain makes the audit incomplete; anything else makes it a failed one.
"""

from __future__ import annotations

from typing import Any

import libvirt
from msgspec import Struct

from producers.libvirt_connect import Connection, HypervisorUnreachable
from producers.libvirt_xml import Capabilities, Disk, Domain, read_capabilities, read_domain, read_pci, read_system_uuid
from producers.source import AuditSource
from schemas.audits import AuditRecord, InstanceReport, PowerState
from schemas.inventory import Hypervisor, PciDevice, Physical

AUDIT_TIMEOUT_SECONDS = 30.0
"""An audit of 500 domains takes 0.1 s over a socket; libvirt itself gives up on a held state lock after 30 s."""
MIB = 1 << 20

POWER_STATES: dict[int, PowerState] = {
    libvirt.VIR_DOMAIN_NOSTATE: "unknown",
    libvirt.VIR_DOMAIN_RUNNING: "running",
    libvirt.VIR_DOMAIN_BLOCKED: "running",
    libvirt.VIR_DOMAIN_PAUSED: "paused",
    libvirt.VIR_DOMAIN_SHUTDOWN: "running",
    libvirt.VIR_DOMAIN_SHUTOFF: "stopped",
    libvirt.VIR_DOMAIN_CRASHED: "crashed",
    libvirt.VIR_DOMAIN_PMSUSPENDED: "suspended",
}


class Options(Struct, frozen=True, kw_only=True):
    """What libvirt cannot know. `pools` are the storage pools that hold instances' disks (None: every active one)."""

    pools: tuple[str, ...] | None = None
    dedicated_cpus: frozenset[int] = frozenset()
    host_ip: str = ""


class Look(Struct, frozen=True, kw_only=True):
    """What one look found."""

    hypervisor: Hypervisor
    instances: tuple[InstanceReport, ...]
    unknown_instances: tuple[str, ...]


def take_audit(
    connection: Connection,
    source: AuditSource,
    options: Options,
    *,
    taken_at_ms: int,
    mono_ms: int,
    timeout_seconds: float = AUDIT_TIMEOUT_SECONDS,
) -> AuditRecord:
    """One audit record, a failed one if libvirt does not answer in time. Both clocks were read before this call."""
    try:
        found = connection.ask(lambda handle: look(handle, options), timeout_seconds)
    except (HypervisorUnreachable, ValueError) as error:
        return source.failed(str(error), taken_at_ms=taken_at_ms, mono_ms=mono_ms)
    return source.audited(
        found.hypervisor, found.instances, taken_at_ms=taken_at_ms, mono_ms=mono_ms, unknown_instances=found.unknown_instances
    )


def look(handle: Any, options: Options) -> Look:
    """Everything there is to see through an open libvirt handle. Raises libvirtError, and ValueError for XML that says nothing."""
    instances: list[InstanceReport] = []
    unknown: list[str] = []
    for domain in handle.listAllDomains(0):
        try:
            instances.append(report_of(handle, domain, options))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:  # gone since the list was made: then it is not there
                unknown.append(domain.UUIDString())
        except ValueError:
            unknown.append(domain.UUIDString())
    return Look(hypervisor=look_at_host(handle, options), instances=tuple(instances), unknown_instances=tuple(unknown))


def report_of(handle: Any, domain: Any, options: Options, power_state: PowerState | None = None) -> InstanceReport:
    """One domain; its present power state unless another is given. Raises libvirtError, ValueError."""
    defined = read_domain(domain.XMLDesc(0))
    state = power_state or POWER_STATES.get(domain.state()[0], "unknown")
    return defined.report(state, disk_mib_of(handle, defined), options.dedicated_cpus)


def disk_mib_of(handle: Any, domain: Domain) -> int | None:
    """Capacities of the domain's disks, rounded up; None if one of them is in no pool, so that its size is not known."""
    total = 0
    for disk in domain.disks:
        capacity = _capacity_bytes(handle, disk)
        if capacity is None:
            return None
        total += -(-capacity // MIB)
    return total


def look_at_host(handle: Any, options: Options) -> Hypervisor:
    """The host itself. Raises libvirtError."""
    _, memory_mib, cpus, _, cells, sockets, cores, threads = handle.getInfo()
    capabilities: Capabilities = read_capabilities(handle.getCapabilities(), (cells, sockets, cores, threads), options.dedicated_cpus)
    capacity_mib, available_mib = _pools_mib(handle, options.pools)
    devices, system_uuid = _devices(handle)
    memory_kib = _supported(lambda: handle.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)) or {}
    dedicated = len(options.dedicated_cpus)
    return Hypervisor(
        vcpus=max(0, cpus - dedicated),
        pcpus=dedicated or None,
        memory_mib=memory_mib,
        disk_mib=capacity_mib,
        host_uuid=capabilities.host_uuid or system_uuid,
        host_ip=options.host_ip,
        hypervisor_type=handle.getType(),
        hypervisor_version=handle.getVersion(),
        cpu_info=capabilities.cpu_info,
        supported_guests=capabilities.guests,
        numa_cells=capabilities.cells,
        pci_devices=devices,
        physical=Physical(
            memory_mib_total=memory_kib["total"] // 1024 if "total" in memory_kib else None,
            memory_mib_free=memory_kib["free"] // 1024 if "free" in memory_kib else None,
            disk_mib_free=available_mib,
        ),
    )


def _capacity_bytes(handle: Any, disk: Disk) -> int | None:
    try:
        if disk.volume:
            volume = handle.storagePoolLookupByName(disk.pool).storageVolLookupByName(disk.volume)
        elif disk.path:
            volume = handle.storageVolLookupByPath(disk.path)
        else:
            return None
        return int(volume.info()[1])
    except libvirt.libvirtError as error:
        if error.get_error_code() in {libvirt.VIR_ERR_NO_STORAGE_VOL, libvirt.VIR_ERR_NO_STORAGE_POOL, libvirt.VIR_ERR_NO_SUPPORT}:
            return None
        raise


def _pools_mib(handle: Any, names: tuple[str, ...] | None) -> tuple[int | None, int | None]:
    """Capacity and what is available of the active pools, None without any. Raises libvirtError, ValueError for a missing pool."""
    pools = _supported(lambda: handle.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE))
    chosen = {pool.name(): pool.info() for pool in pools or () if names is None or pool.name() in names}
    if missing := set(names or ()) - set(chosen):
        raise ValueError(f"storage pools {', '.join(sorted(missing))}: not active on this host; start them or name others")
    # Pools of one file system show its capacity to the byte each; counted once, at worst too little is offered, never too much.
    by_capacity = {info[1]: info[3] for info in chosen.values()}
    if not by_capacity:
        return None, None
    return sum(by_capacity) // MIB, sum(by_capacity.values()) // MIB


def _devices(handle: Any) -> tuple[tuple[PciDevice, ...], str]:
    """PCI devices by address, and the machine's uuid, if the driver knows of devices."""
    kinds = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_SYSTEM
    texts = []
    for device in _supported(lambda: handle.listAllDevices(kinds)) or ():
        try:
            texts.append(device.XMLDesc(0))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:  # unplugged since the list was made
                raise
    found = [device for device in map(read_pci, texts) if device is not None]
    return tuple(sorted(found, key=lambda each: each.address)), next(filter(None, map(read_system_uuid, texts)), "")


def _supported(call: Any) -> Any:
    """The call's answer, or None if this driver does not have it. Raises libvirtError for anything else."""
    try:
        return call()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
            return None
        raise
