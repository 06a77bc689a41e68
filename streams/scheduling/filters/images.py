"""What an image's properties ask of a hypervisor (Nova's ImagePropertiesFilter and its pre-filters for images)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from projections.room import Room
from schemas.inventory import Hypervisor
from schemas.requests import PlacementRequested
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.filters.labels import traits_of
from streams.scheduling.options import Options

LEGACY_NAMES = {
    "architecture": "hw_architecture",
    "hypervisor_type": "img_hv_type",
    "vm_mode": "hw_vm_mode",
    "hypervisor_version_requires": "img_hv_requested_version",
}
"""Names that old images have for the properties read here."""
ALIASES: Mapping[str, Mapping[str, str]] = {
    "hw_architecture": {"i386": "i686", "i486": "i686", "i586": "i686", "x86_32": "i686", "x86_32p": "i686", "amd64": "x86_64"},
    "img_hv_type": {"xapi": "xen"},
    "hw_vm_mode": {"pv": "xen", "hv": "hvm", "baremetal": "hvm"},
}
"""What old images call an architecture, a hypervisor and a mode (Nova's canonical names)."""
TRAIT_PREFIXES = {
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL",
    "hw_architecture": "HW_ARCH",
    "hw_emulation_architecture": "COMPUTE_ARCH",
    "hw_viommu_model": "COMPUTE_VIOMMU",
}
"""Properties that stand for a trait: the prefix and the value make its name."""
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
    properties = properties_of(ask.request)
    kind = tuple(wanted for name in ALIASES if (wanted := _canonical(name, properties, options)))
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
    """Nodes whose traits name the image's disk format; for a root on a volume it does not matter."""
    disk_format = ask.request.image.properties.get("disk_format", "")
    if not disk_format or ask.request.boot_from_volume:
        return None
    return _with_traits(frozenset({f"COMPUTE_IMAGE_TYPE_{disk_format.upper()}"}))


def transform_image_metadata(ask: Ask, _: Options) -> Check | None:
    """Nodes with the traits that the image's properties stand for: buses, video, network and IOMMU models, architectures."""
    properties = properties_of(ask.request)
    needed = {f"{prefix}_{properties[name].replace('-', '_').upper()}" for name, prefix in TRAIT_PREFIXES.items() if name in properties}
    return _with_traits(frozenset(needed)) if needed else None


def properties_of(request: PlacementRequested) -> dict[str, str]:
    """The image's properties, old names replaced by those of today, which count if an image has both (Nova's ImageMetaProps)."""
    properties = request.image.properties
    renamed = {LEGACY_NAMES[name]: value for name, value in properties.items() if name in LEGACY_NAMES}
    return renamed | {name: value for name, value in properties.items() if name not in LEGACY_NAMES}


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


def _canonical(name: str, properties: Mapping[str, str], options: Options) -> str:
    default = options.image_properties_default_architecture if name == "hw_architecture" else ""
    text = properties.get(name, default).lower()
    return ALIASES[name].get(text, text)


def _with_traits(needed: frozenset[str]) -> Check:
    def why(room: Room) -> str | None:
        lacks = sorted(needed - traits_of(room.node))
        return f"the image needs {', '.join(lacks)}" if lacks else None

    return per_node(why)
