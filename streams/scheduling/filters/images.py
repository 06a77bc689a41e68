"""What an image's properties ask of a hypervisor (Nova's ImagePropertiesFilter and its pre-filters for images)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from projections.room import Room
from schemas.inventory import Hypervisor
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.filters.labels import traits_of
from streams.scheduling.image_properties import read, spelled, words
from streams.scheduling.options import Options

KINDS = ("hw_architecture", "img_hv_type", "hw_vm_mode")
"""What of an image a hypervisor's kinds of guests are compared with."""
_BUSES = words("FDC IDE LXC SATA SCSI UML USB VIRTIO XEN")
TRAITS: Mapping[str, tuple[str, frozenset[str]]] = {
    "hw_cdrom_bus": ("COMPUTE_STORAGE_BUS", _BUSES),
    "hw_disk_bus": ("COMPUTE_STORAGE_BUS", _BUSES),
    "hw_video_model": ("COMPUTE_GRAPHICS_MODEL", words("BOCHS CIRRUS GOP NONE QXL VGA VIRTIO VMVGA XEN")),
    "hw_vif_model": (
        "COMPUTE_NET_VIF_MODEL",
        words("E1000 E1000E IGB LAN9118 NE2K_PCI NETFRONT PCNET RTL8139 SPAPR_VLAN SRIOV VIRTIO VMXNET VMXNET3"),
    ),
    "hw_architecture": (
        "HW_ARCH",
        words(
            "AARCH64 ALPHA ARMV6 ARMV7 ARMV7B CRIS I686 IA64 LM32 M68K MICROBLAZE MICROBLAZEEL MIPS MIPS64 MIPS64EL MIPSEL OPENRISC "
            "PARISC PARISC64 PPC PPC64 PPC64LE PPCEMB PPCLE S390 S390X SH4 SH4EB SPARC SPARC64 UNICORE32 X86_64 XTENSA XTENSAEB"
        ),
    ),
    "hw_emulation_architecture": ("COMPUTE_ARCH", words("AARCH64 MIPSEL PPC64LE RISCV64 S390X X86_64")),
    "hw_viommu_model": ("COMPUTE_VIOMMU", frozenset()),
}
"""Properties that stand for a trait: the prefix and the value make its name, which must be one of the standard's (os-traits 3.9).

None of the standard's names is made of an IOMMU's model: those have MODEL in them, and Nova does not put it there.
"""
IMAGE_TYPES = words("AKI AMI ARI ISO PLOOP QCOW2 RAW VDI VHD VHDX VMDK")
"""Disk formats that the standard has a trait for."""
_VERSION = re.compile(r"\s*(<=|>=|<|>|!=|==)\s*([0-9]+(?:\.[0-9]+)*)\s*")
_COMPARISONS: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
}
_VERSION_PARTS = 8


def image_properties(ask: Ask, options: Options) -> Check | None:
    """Hypervisors that run this kind of guest, in a version and with physical addresses as the image needs them."""
    if not ask.request.image.properties and not options.image_properties_default_architecture:
        return None
    properties = read(ask.request.image.properties)
    default = spelled("hw_architecture", options.image_properties_default_architecture)
    kind = tuple(wanted for name in KINDS if (wanted := properties.get(name, default if name == "hw_architecture" else "")))
    if not kind:
        return None
    version, bits = properties.get("img_hv_requested_version", ""), properties.get("hw_maxphysaddr_bits", "")

    def why(room: Room) -> str | None:
        host = room.node.hypervisor or Hypervisor()
        guests = [(guest.architecture, guest.hypervisor_type, guest.vm_mode) for guest in host.supported_guests]
        if not any(all(part in guest for part in kind) for guest in guests):
            runs = ", ".join("/".join(guest) for guest in guests[:3])
            return f"image needs {'/'.join(kind)}, it runs {runs or 'nothing that it reports'}"
        if version and host.hypervisor_version and not version_fits(host.hypervisor_version, version):
            return f"image needs hypervisor version {version}, it has {version_text(host.hypervisor_version)}"
        has = host.cpu_info.maxphysaddr_bits
        if bits and has and not (bits.isdecimal() and has >= int(bits)):
            return f"image needs {bits} bits of physical address, it has {has}"
        return None

    return per_node(why)


def require_image_type_support(ask: Ask, _: Options) -> Check | None:
    """Nodes whose traits name the image's disk format, if there is a trait for it; for a root on a volume it does not matter."""
    disk_format = ask.request.image.properties.get("disk_format", "").upper()
    if disk_format not in IMAGE_TYPES or ask.request.boot_from_volume:
        return None
    return _with_traits(frozenset({f"COMPUTE_IMAGE_TYPE_{disk_format}"}))


def transform_image_metadata(ask: Ask, _: Options) -> Check | None:
    """Nodes with the traits that the image's properties stand for: buses, video, network and IOMMU models, architectures.

    Nothing is asked of an image that has a value without a trait among them: the other traits neither (Nova's rule).
    """
    properties = read(ask.request.image.properties)
    needed: set[str] = set()
    for name, (prefix, known) in TRAITS.items():
        if name not in properties:
            continue
        value = properties[name].replace("-", "_").upper()
        if value not in known:
            return None
        needed.add(f"{prefix}_{value}")
    return _with_traits(frozenset(needed)) if needed else None


def version_text(version: int) -> str:
    """6002000 as 6.2.0: three digits a part, as libvirt and Nova number versions."""
    parts: list[str] = []
    while version:
        version, part = divmod(version, 1000)
        parts.append(str(part))
    return ".".join(reversed(parts))


def version_fits(version: int, wanted: str) -> bool:
    """Whether a version is one of `wanted`, such as `>=6.0,<6.2`. What cannot be read is met by none."""
    has = _parts(version_text(version))
    for each in wanted.split(","):
        found = _VERSION.fullmatch(each)
        if found is None or not _COMPARISONS[found[1]](has, _parts(found[2])):
            return False
    return True


def _parts(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (_VERSION_PARTS - len(numbers)))


def _with_traits(needed: frozenset[str]) -> Check:
    def why(room: Room) -> str | None:
        lacks = sorted(needed - traits_of(room.node))
        return f"the image needs {', '.join(lacks)}" if lacks else None

    return per_node(why)
