"""Hosts that have more than amounts, and the guests on them as they really are, whatever anybody knows of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from producers.source import AuditSource, EventSource
from schemas.audits import InstanceReport
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice
from schemas.requests import PlacementRequested
from schemas.resources import ObservedResources
from schemas.results import Granted, Placement

GIB = 1024


class Guest(Struct):
    """One guest that really runs. `held` is what its host gave it of CPUs and devices; `claim_id` the claim that it was started under."""

    instance_id: str
    node_id: str
    request: PlacementRequested
    placement: Placement
    held: Granted
    ends_ms: int
    claim_id: str
    busy: bool = False

    @property
    def cpus(self) -> set[int]:
        return {cpu for cell in self.held.cells for cpu in cell.held_cpus}

    @property
    def report(self) -> InstanceReport:
        """As its hypervisor shows it."""
        size = self.placement.resources
        return InstanceReport(
            instance_id=self.instance_id,
            resources=ObservedResources(
                vcpus=size.vcpus, pcpus=size.pcpus or None, memory_mib=size.memory_mib, disk_mib=size.disk_mib or None
            ),
            numa_cells=tuple(sorted({cell.cell_id for cell in self.held.cells})),
            pinned_cpus=tuple(sorted(self.cpus)),
            pci_addresses=tuple(sorted(self.held.pci_addresses)),
        )


class Host(Struct):
    """One hypervisor as it really is."""

    node_id: str
    host: Hypervisor
    audits: AuditSource
    events: EventSource
    due_ms: int
    guests: dict[str, Guest] = field(default_factory=dict)
    is_up: bool = True
    back_ms: int = 0


def hypervisor(number: int) -> Hypervisor:
    """Small hosts, so that they are soon full: with cells, pages and devices, or without; some say that they have SSDs."""
    cells: tuple[NumaCell, ...] = ()
    devices: tuple[PciDevice, ...] = ()
    if number % 4:
        cells = tuple(
            NumaCell(
                cell_id=cell,
                cpus=tuple(range(cell * 10, cell * 10 + 10)),
                dedicated_cpus=tuple(range(cell * 10 + 2, cell * 10 + 10)),
                siblings=tuple((cpu, cpu + 1) for cpu in range(cell * 10, cell * 10 + 10, 2)),
                memory_mib=16 * GIB,
                socket=cell,
                pages=(HugePages(size_kib=2048, total=2048), HugePages(size_kib=1024 * 1024, total=4, reserved=1)),
            )
            for cell in (0, 1)
        )
    if number % 3:
        port = f"0000:0{number % 8}:00"
        devices = (
            PciDevice(address=f"{port}.0", vendor_id="8086", product_id="10fb", device_type="type-PF", numa_cell=0),
            *(
                PciDevice(
                    address=f"{port}.{at}", vendor_id="8086", product_id="10ed", device_type="type-VF", numa_cell=0,
                    physical_function=f"{port}.0",
                )
                for at in (1, 2, 3)
            ),
            PciDevice(address="0000:5e:00.0", vendor_id="10de", product_id="20b0", numa_cell=1),
        )  # fmt: skip
    return Hypervisor(
        vcpus=4 if cells else 16,
        pcpus=16 if cells else 0,
        memory_mib=32 * GIB,
        disk_mib=400 * GIB,
        numa_cells=cells,
        pci_devices=devices,
        traits=("CUSTOM_SSD",) if number % 5 < 2 else (),
    )


def hypervisors(number: int) -> dict[str, Hypervisor]:
    """So many of them, by name."""
    return {f"h{at:02}": hypervisor(at) for at in range(number)}


def truly_wrong(guest: Guest, there: Iterable[Guest], everywhere: Iterable[Guest]) -> Iterator[str]:
    """Two guests of a host have no CPU and no device in common, and groups are as their policies say. `guest` is the newest."""
    for other in there:
        if other is guest:
            continue
        if cpus := other.cpus & guest.cpus:
            yield f"{guest.instance_id} runs on {guest.node_id} with the CPUs {sorted(cpus)} of {other.instance_id}"
        if devices := set(other.held.pci_addresses) & set(guest.held.pci_addresses):
            yield f"{guest.instance_id} runs on {guest.node_id} with {sorted(devices)} of {other.instance_id}"
    group = guest.request.group
    if group is None:
        return
    groups = ((each.node_id, each.request.group) for each in everywhere)
    nodes = Counter(node_id for node_id, other_group in groups if other_group is not None and other_group.group_id == group.group_id)
    if group.policy == "affinity" and len(nodes) > 1:
        yield f"{guest.instance_id}: {group.group_id} is on {sorted(nodes)}"
    if group.policy == "anti-affinity" and nodes[guest.node_id] > group.max_per_node:
        yield f"{guest.instance_id}: {nodes[guest.node_id]} of {group.group_id} on {guest.node_id}"
