"""What a node is and has: totals, what the operator reserves and allows, and the facts that filters read."""

from msgspec import UNSET, Struct, UnsetType

from schemas.units import Amount, Count, Difference, Name, RatioMilli, Text


class ResourceRule(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The operator's rule for one resource of one node (Placement's inventory fields).

    Limit: `used × 1000 ≤ (total − reserved) × ratio_milli`; `ratio_milli` None is no limit.
    """

    reserved: Amount = 0
    ratio_milli: RatioMilli | None = 1000
    min_unit: Count = 1
    max_unit: Count | None = None
    step_size: Count = 1


class HugePages(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Huge pages of one size in one NUMA cell."""

    size_kib: Count
    total: Count
    reserved: Count = 0
    free: Count | None = None


class NumaCell(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One NUMA cell of a host: its CPUs, which of them are hardware threads of one core (`siblings`), memory and pages."""

    cell_id: Count
    cpus: tuple[Count, ...] = ()
    dedicated_cpus: tuple[Count, ...] = ()
    siblings: tuple[tuple[Count, ...], ...] = ()
    memory_mib: Amount = 0
    socket: Count | None = None
    pages: tuple[HugePages, ...] = ()


class PciDevice(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One PCI device; its pool is everything but the address."""

    address: Name
    vendor_id: Text = ""
    product_id: Text = ""
    device_type: Text = "type-PCI"
    numa_cell: Count | None = None
    physical_function: Text = ""
    tags: dict[Name, Text] = {}


class PciPool(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Devices that differ in nothing but their addresses."""

    vendor_id: Text = ""
    product_id: Text = ""
    device_type: Text = "type-PCI"
    numa_cell: Count | None = None
    tags: dict[Name, Text] = {}
    count: Count = 0


class SupportedGuest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One kind of guest the hypervisor runs, as in libvirt's capabilities: `x86_64`, `kvm`, `hvm`."""

    architecture: Text
    hypervisor_type: Text
    vm_mode: Text


class CpuInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The host's CPU; `features` sorted, so that equal hosts say equal things."""

    architecture: Text = ""
    model: Text = ""
    vendor: Text = ""
    cells: Count = 0
    sockets: Count = 0
    cores: Count = 0
    threads: Count = 0
    maxphysaddr_bits: Count | None = None
    features: tuple[Text, ...] = ()


class Metric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One measured figure of a host (Nova's compute monitors), in thousandths."""

    name: Name
    value_milli: Difference


class CellMemory(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What one NUMA cell of a host has free at this moment."""

    cell_id: Count
    memory_mib_free: Amount


class Physical(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The host's own figures (meminfo, storage pools, its guests at this moment): shown beside the views, never part of a gap.

    None is "not reported". `memory_mib_free` includes buffers and cache, as in Nova; `vcpus_used` and `instances_running` count active
    guests only; `workload` is how many guests are being migrated, saved, dumped, snapshotted or started (Nova's `current_workload`).
    `disk_mib_available_least` is what would be left if every image grew to its full size; it may be negative.
    """

    memory_mib_total: Amount | None = None
    memory_mib_free: Amount | None = None
    disk_mib_free: Difference | None = None
    disk_mib_available_least: Difference | None = None
    vcpus_used: Amount | None = None
    memory_mib_used: Amount | None = None
    disk_mib_used: Amount | None = None
    instances_running: Count | None = None
    workload: Count | None = None
    cells: tuple[CellMemory, ...] = ()


class Hypervisor(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What an audit finds of the host itself. A total of None is "not reported": nothing that asks for that resource fits.

    `service_host` is the host of Nova's compute service where it is not the node itself (one service may have several nodes), `cell` its
    cell, `stats` what else a driver reports for extra specs and queries to read.
    """

    vcpus: Amount | None = None
    pcpus: Amount | None = None
    memory_mib: Amount | None = None
    disk_mib: Amount | None = None
    host_uuid: Text = ""
    host_ip: Text = ""
    hypervisor_type: Text = ""
    hypervisor_version: Count = 0
    cpu_info: CpuInfo = CpuInfo()
    supported_guests: tuple[SupportedGuest, ...] = ()
    numa_cells: tuple[NumaCell, ...] = ()
    pci_devices: tuple[PciDevice, ...] = ()
    pci_pools: tuple[PciPool, ...] = ()
    traits: tuple[Name, ...] = ()
    metrics: tuple[Metric, ...] = ()
    io_workload: Count = 0
    failed_builds: Count = 0
    physical: Physical = Physical()
    service_host: Text = ""
    cell: Text = ""
    stats: dict[Name, Text] = {}


class Aggregate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A named set of nodes with metadata that filters and weighers read (Nova's host aggregates)."""

    name: Name
    metadata: dict[Name, Text] = {}


class OperatorFields(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The operator's fields of a node; a field left out (UNSET) stays as it is."""

    vcpus: ResourceRule | UnsetType = UNSET
    pcpus: ResourceRule | UnsetType = UNSET
    memory_mib: ResourceRule | UnsetType = UNSET
    disk_mib: ResourceRule | UnsetType = UNSET
    zone: Text | UnsetType = UNSET
    aggregates: tuple[Aggregate, ...] | UnsetType = UNSET
    traits: tuple[Name, ...] | UnsetType = UNSET
    pages_reserved: tuple[HugePages, ...] | UnsetType = UNSET
