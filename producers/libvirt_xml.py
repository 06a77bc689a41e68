"""What libvirt's XML says of a host and its domains, in our units. Pure: text in, records out.

Sizes are the defined ones: `<vcpu>` (the most it may use, not how many are plugged in now) and `<memory>` (not the balloon's current
target), because that is what the host has promised. Field by field after Nova's libvirt driver (docs: facts on `get_available_resource`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree as ET

from msgspec import Struct

from schemas.audits import InstanceReport, PowerState
from schemas.inventory import CpuInfo, HugePages, NumaCell, PciDevice, SupportedGuest
from schemas.resources import ObservedResources
from schemas.units import AMOUNT_MAX, TEXT_CHARACTERS_MAX

KIB_OF = {
    "b": 1 / 1024,
    "bytes": 1 / 1024,
    "KB": 1000 / 1024,
    "k": 1,
    "KiB": 1,
    "MB": 1_000_000 / 1024,
    "M": 1024,
    "MiB": 1024,
    "GB": 1_000_000_000 / 1024,
    "G": 1024**2,
    "GiB": 1024**2,
    "TB": 1_000_000_000_000 / 1024,
    "T": 1024**3,
    "TiB": 1024**3,
}
"""libvirt's units of memory in KiB; without a unit it means KiB."""

HUGE_KIB_MIN = 1024
"""Pages from 1 MiB on are huge on every architecture; smaller ones are the base pages (4, 8, 64 KiB), which need no reservation."""

NOVA_NAMESPACE = "{http://openstack.org/xmlns/libvirt/nova/"
DEVICE_TYPES = {"phys_function": "type-VF", "virt_functions": "type-PF"}
"""A device that names its physical function is a virtual one, and the other way round."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """A host as its capabilities describe it."""

    host_uuid: str
    cpu_info: CpuInfo
    cells: tuple[NumaCell, ...]
    guests: tuple[SupportedGuest, ...]


class PoolSource(Struct, frozen=True, gc=False):
    """What a storage pool is made of: libvirt's type of it, and the folder or device that its volumes are in, if it has one."""

    kind: str = ""
    path: str = ""


class Disk(Struct, frozen=True, gc=False, kw_only=True):
    """Where a disk's bytes are: a path, or a volume in a pool; neither on the network or an NVMe device, of which libvirt knows no size."""

    path: str = ""
    pool: str = ""
    volume: str = ""

    @property
    def key(self) -> str:
        """What it is called wherever it is looked up; empty if it is not on this host."""
        return f"{self.pool}/{self.volume}" if self.volume else self.path


class Domain(Struct, frozen=True, gc=False, kw_only=True):
    """A domain as its XML defines it."""

    instance_id: str
    name: str
    vcpus: int
    memory_mib: int
    pinned_cpus: tuple[int, ...]
    emulator_cpus: tuple[int, ...]
    """A CPU that is kept for QEMU's own threads beside those of the guest's (Nova's `hw:emulator_threads_policy=isolate`)."""
    numa_cells: tuple[int, ...]
    pci_addresses: tuple[str, ...]
    disks: tuple[Disk, ...]
    project_id: str = ""
    flavor: str = ""
    flavor_disk_mib: int | None = None
    """What Nova's metadata say the guest was promised of the host's disk: the size of disks that libvirt cannot measure."""

    def report(
        self,
        power_state: PowerState,
        disk_mib: int | None,
        dedicated_cpus: frozenset[int] = frozenset(),
        unknown_since_ms: int | None = None,
        task_state: str = "",
    ) -> InstanceReport:
        """The domain as an audit lists it. CPUs pinned to `dedicated_cpus` count as pcpus; without such a set there are none.

        None is said as 0: left unsaid, what was last said would stand beside the vcpus when a host's dedicated set is given up.
        """
        guests = sum(cpu in dedicated_cpus for cpu in self.pinned_cpus)
        pcpus = guests + sum(cpu in dedicated_cpus for cpu in self.emulator_cpus)
        return InstanceReport(
            instance_id=self.instance_id,
            resources=ObservedResources(vcpus=max(0, self.vcpus - guests), pcpus=pcpus, memory_mib=self.memory_mib, disk_mib=disk_mib),
            name=self.name,
            power_state=power_state,
            task_state=task_state,
            project_id=self.project_id,
            flavor=self.flavor,
            numa_cells=self.numa_cells,
            pinned_cpus=tuple(sorted(self.pinned_cpus + self.emulator_cpus)),
            pci_addresses=self.pci_addresses,
            unknown_since_ms=unknown_since_ms,
        )


def read_capabilities(text: str, node_info: tuple[int, int, int, int], dedicated_cpus: frozenset[int] = frozenset()) -> Capabilities:
    """Capabilities XML; `node_info` is cells, sockets a cell, cores and threads as getInfo has them, for hosts whose XML is silent."""
    root = _parsed(text)
    cpu = root.find("host/cpu")
    cells = tuple(
        sorted((_cell(cell, dedicated_cpus) for cell in root.iterfind("host/topology/cells/cell")), key=lambda each: each.cell_id)
    )
    topology = None if cpu is None else cpu.find("topology")
    count, sockets, cores, threads = node_info
    if topology is not None:
        sockets, cores, threads = (int(topology.get(name, "0")) for name in ("sockets", "cores", "threads"))
    bits = None if cpu is None else cpu.find("maxphysaddr")
    return Capabilities(
        host_uuid=root.findtext("host/uuid", ""),
        cpu_info=CpuInfo(
            architecture=root.findtext("host/cpu/arch", ""),
            model=root.findtext("host/cpu/model", ""),
            vendor=root.findtext("host/cpu/vendor", ""),
            cells=len(cells) or count,
            sockets=sockets,
            cores=cores,
            threads=threads,
            maxphysaddr_bits=int(bits.get("bits", "0")) or None if bits is not None else None,
            features=tuple(sorted({feature.get("name", "") for feature in root.iterfind("host/cpu/feature")} - {""})),
        ),
        cells=cells,
        guests=_guests(root),
    )


def read_domain(text: str) -> Domain:
    """Domain XML. Raises ValueError if it has no uuid, or no size that a record can say."""
    root = _parsed(text)
    memory, vcpu, uuid = root.find("memory"), root.findtext("vcpu"), root.findtext("uuid")
    if memory is None or vcpu is None or not uuid:
        raise ValueError("domain XML: expected <uuid>, <memory> and <vcpu>")
    memory_mib, vcpus = -(-_kib(memory) // 1024), int(vcpu)
    for name, amount in (("memory> in MiB", memory_mib), ("vcpu>", vcpus)):
        if not 0 <= amount <= AMOUNT_MAX:
            raise ValueError(f"domain XML: expected <{name} from 0 to {AMOUNT_MAX}, got {amount}")
    pinned = _pinned(root, vcpus)
    return Domain(
        instance_id=uuid,
        name=root.findtext("name", "")[:TEXT_CHARACTERS_MAX],
        vcpus=vcpus,
        memory_mib=memory_mib,
        pinned_cpus=tuple(sorted(pinned)),
        emulator_cpus=tuple(sorted(_emulator_cpu(root) - pinned)),
        numa_cells=tuple(sorted({cell for place in root.iterfind("numatune/*[@nodeset]") for cell in cpuset(place.get("nodeset", ""))})),
        pci_addresses=tuple(sorted(_hostdevs(root))),
        disks=tuple(map(_disk, _local_disks(root, is_novas=(nova := _nova(root)) is not None))),
        project_id="" if nova is None else _project(nova),
        flavor="" if nova is None else _flavor_name(nova),
        flavor_disk_mib=None if nova is None else _flavor_disk_mib(nova),
    )


def read_pci(text: str) -> PciDevice | None:
    """Node device XML; None if it is no PCI device."""
    capability = _parsed(text).find("capability[@type='pci']")
    if capability is None:
        return None
    domain, bus, slot, function = (int(capability.findtext(name, "0")) for name in ("domain", "bus", "slot", "function"))
    kinds = {inner.get("type", ""): inner for inner in capability.iterfind("capability")}
    parent = kinds["phys_function"].find("address") if "phys_function" in kinds else None
    numa = capability.find("numa")
    return PciDevice(
        address=f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}",
        vendor_id=_hex_id(capability.find("vendor")),
        product_id=_hex_id(capability.find("product")),
        device_type=next((name for kind, name in DEVICE_TYPES.items() if kind in kinds), "type-PCI"),
        numa_cell=None if numa is None else int(numa.get("node", "0")),
        physical_function="" if parent is None else pci_address(parent.attrib),
    )


def read_system_uuid(text: str) -> str:
    """The machine's uuid in the XML of the node device `computer`, or nothing."""
    return _parsed(text).findtext("capability[@type='system']/hardware/uuid", "")


def read_pool(text: str) -> PoolSource:
    """Storage pool XML."""
    root = _parsed(text)
    return PoolSource(root.get("type", ""), root.findtext("target/path", ""))


CPU_MAX = 1 << 16
"""Above any CPU of a host: the kernel itself ends at 8,192."""


def cpuset(text: str) -> set[int]:
    """libvirt's list of CPUs or cells: `0-3,^2,8`. Raises ValueError, also for a range without an end or one that ends first."""
    chosen: set[int] = set()
    excluded: set[int] = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, dash, last = part.removeprefix("^").partition("-")
        span = range(int(first), int(last if dash else first) + 1)
        if not span or span[-1] > CPU_MAX:
            raise ValueError(f"{part!r}: expected a range such as 0-3, of numbers up to {CPU_MAX}")
        (excluded if part.startswith("^") else chosen).update(span)
    return chosen - excluded


def pci_address(attributes: Mapping[str, str]) -> str:
    """`0000:81:00.1` of the attributes of an <address>, whose numbers are hexadecimal with or without 0x."""
    domain, bus, slot, function = (int(attributes.get(name, "0"), 16) for name in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _parsed(text: str) -> ET.Element:
    try:
        return ET.fromstring(text)  # noqa: S314 - libvirt writes this XML itself, without entities, from what it has parsed and checked
    except ET.ParseError as error:
        raise ValueError(f"expected XML from libvirt: {error}: {text[:80]!r}") from error


def _kib(element: ET.Element) -> int:
    return -int(-float(element.text or 0) * _kib_of(element) // 1)


def _kib_of(element: ET.Element) -> float:
    """What the element's unit is in KiB. Raises ValueError for one that libvirt does not have."""
    unit = element.get("unit", "KiB")
    if unit not in KIB_OF:
        raise ValueError(f"<{element.tag} unit={unit!r}>: expected one of {', '.join(KIB_OF)}")
    return KIB_OF[unit]


def _cell(cell: ET.Element, dedicated_cpus: frozenset[int]) -> NumaCell:
    cpus = [cpu for cpu in cell.iterfind("cpus/cpu") if cpu.get("id")]
    ids = sorted(int(cpu.get("id", "")) for cpu in cpus)
    siblings = {tuple(sorted(cpuset(cpu.get("siblings", "")))) for cpu in cpus}
    sockets = {cpu.get("socket_id") for cpu in cpus}
    socket = sockets.pop() if len(sockets) == 1 else None
    memory = cell.find("memory")
    return NumaCell(
        cell_id=int(cell.get("id", "0")),
        cpus=tuple(ids),
        dedicated_cpus=tuple(cpu for cpu in ids if cpu in dedicated_cpus),
        siblings=tuple(sorted(group for group in siblings if len(group) > 1)),
        memory_mib=0 if memory is None else _kib(memory) // 1024,
        socket=None if socket is None else int(socket),
        pages=tuple(_pages(cell)),
    )


def _pages(cell: ET.Element) -> Iterable[HugePages]:
    for pages in sorted(cell.iterfind("pages"), key=lambda each: int(each.get("size", "0"))):
        size_kib = int(int(pages.get("size", "0")) * _kib_of(pages))
        if size_kib >= HUGE_KIB_MIN:
            yield HugePages(size_kib=size_kib, total=int(pages.text or 0))


def _guests(root: ET.Element) -> tuple[SupportedGuest, ...]:
    found = {
        (arch.get("name", ""), domain.get("type", ""), guest.findtext("os_type", ""))
        for guest in root.iterfind("guest")
        for arch in guest.iterfind("arch")
        for domain in arch.iterfind("domain")
    }
    return tuple(SupportedGuest(architecture=arch, hypervisor_type=kind, vm_mode=mode) for arch, kind, mode in sorted(found))


def _pinned(root: ET.Element, vcpus: int) -> set[int]:
    """CPUs that vCPUs are bound to with no other beside them; a pin to several CPUs binds nothing."""
    pins = {pin.get("vcpu"): _only_cpu(pin) for pin in root.iterfind("cputune/vcpupin")}
    return set().union(*pins.values(), _common_cpu(root) if len(pins) < vcpus else ())


def _emulator_cpu(root: ET.Element) -> set[int]:
    pin = root.find("cputune/emulatorpin")
    return _common_cpu(root) if pin is None else _only_cpu(pin)


def _common_cpu(root: ET.Element) -> set[int]:
    """Where all of the guest's threads are that have no pin of their own; numad, if it places them, goes by no `cpuset`."""
    vcpu = root.find("vcpu")
    return set() if vcpu is None or vcpu.get("placement") == "auto" else _only_cpu(vcpu)


def _only_cpu(pin: ET.Element) -> set[int]:
    cpus = cpuset(pin.get("cpuset", ""))
    return cpus if len(cpus) == 1 else set()


def _hostdevs(root: ET.Element) -> set[str]:
    """PCI devices of the host that the guest has: passed through, as a network card, or as an NVMe disk."""
    places = (
        "devices/hostdev[@type='pci']/source/address",
        "devices/interface[@type='hostdev']/source/address[@type='pci']",
        "devices/disk[@type='nvme']/source/address",
    )
    return {pci_address(address.attrib) for place in places for address in root.iterfind(place)}


def _disk(disk: ET.Element) -> Disk:
    source = disk.find("source")
    attributes = {} if source is None else source.attrib
    if disk.get("type") == "volume":
        return Disk(pool=attributes.get("pool", ""), volume=attributes.get("volume", ""))
    return Disk(path=attributes.get("file") or attributes.get("dev") or "")


def _local_disks(root: ET.Element, *, is_novas: bool) -> Iterator[ET.Element]:
    """Disks that may be the host's. Nova gives a volume's id as serial to what is on Cinder's volumes, and to nothing else."""
    for disk in root.iterfind("devices/disk"):
        if disk.get("device", "disk") in {"disk", "lun"} and not (is_novas and disk.findtext("serial")):
            yield disk


def _nova(root: ET.Element) -> ET.Element | None:
    """Nova's metadata, whatever version of its namespace."""
    metadata = root.find("metadata")
    return next((each for each in (() if metadata is None else metadata) if each.tag.startswith(NOVA_NAMESPACE)), None)


def _project(nova: ET.Element) -> str:
    """The project's id."""
    return _sayable(next((element.get("uuid", "") for element in nova.iter() if element.tag.endswith("}project")), ""))


def _flavor(nova: ET.Element) -> ET.Element | None:
    return next((element for element in nova if element.tag.endswith("}flavor")), None)


def _flavor_name(nova: ET.Element) -> str:
    """The flavor's name."""
    flavor = _flavor(nova)
    return "" if flavor is None else _sayable(flavor.get("name", ""))


def _sayable(said: str) -> str:
    """Anybody may write metadata: what no record can say is none of Nova's, and must not cost the host its audit."""
    return said if len(said) <= TEXT_CHARACTERS_MAX else ""


def _flavor_disk_mib(nova: ET.Element) -> int | None:
    """Root, ephemeral and swap of the flavor as Nova's tracker counts them; no root where it is not from an image, but on a volume."""
    flavor = _flavor(nova)
    if flavor is None:
        return None
    found = {element.tag.rpartition("}")[2]: element.text or "" for element in flavor}
    try:
        root_gib, ephemeral_gib, swap_mib = (int(found[name]) for name in ("disk", "ephemeral", "swap"))
    except (KeyError, ValueError):
        return None
    has_root = any(element.tag.endswith("}root") for element in nova)
    disk_mib = ((root_gib if has_root else 0) + ephemeral_gib) * 1024 + swap_mib
    return disk_mib if min(root_gib, ephemeral_gib, swap_mib) >= 0 and disk_mib <= AMOUNT_MAX else None


def _hex_id(element: ET.Element | None) -> str:
    return "" if element is None else element.get("id", "").removeprefix("0x")
