"""PCI: which of a host's devices a guest gets, under its aliases' specs and NUMA policies.

The rules are Nova's (its PciPassthroughFilter and claims as of release 34): a device answers a want if one of the want's specs says
nothing else than it; physical functions, vDPA devices and remotely managed ones go only to wants that name them; who has a physical
function has its virtual ones, and the other way round. Wants are served in their order. Nova counts pools of alike devices; here each
device stands for itself, and the choice is a minimum over (nearness by policy, number of tags, address), so that every reader of the log
chooses alike (rule 1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from schemas.inventory import PciDevice
from schemas.requests import PciWant
from schemas.resources import Shortfall

PHYSICAL, VIRTUAL, VDPA = "type-PF", "type-VF", "vdpa"
REMOTE = "remote_managed"
_NO_PROPERTY = frozenset({"resource_class", "traits", "rp_uuids"})
"""Keys of a spec that Placement answers for, not the device."""
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})


def choose(
    devices: Iterable[PciDevice],
    wants: Sequence[PciWant],
    held: Collection[str] = (),
    *,
    cells: Collection[int] = (),
    sockets: Mapping[int, int | None] | None = None,
) -> tuple[str, ...] | Shortfall:
    """The addresses of the devices for all `wants`, in their order, or the first want that lacks some.

    `held` are addresses that somebody has. `cells` are the host cells of the guest (none: it has no NUMA topology, and nothing is near or
    far), `sockets` the socket of each cell of the host (None: not reported).
    """
    free = available(devices, held)
    taken: list[str] = []
    for want in wants:
        found = [device for device in free if _answers(device, want)]
        near = _near(found, want, frozenset(cells), sockets or {})
        if len(near) < want.count:
            return _lack(want, len(near), len(found))
        chosen = near[: want.count]
        taken += [device.address for device in chosen]
        free = available(free, [device.address for device in chosen])
    return tuple(taken)


def available(devices: Iterable[PciDevice], held: Collection[str]) -> list[PciDevice]:
    """The devices that nobody has, neither themselves nor as a part: no virtual function of theirs and not their physical function."""
    known = list(devices)
    taken = frozenset(held)
    parents = {device.physical_function for device in known if device.address in taken and device.physical_function}
    return [
        device
        for device in known
        if device.address not in taken and device.physical_function not in taken and device.address not in parents
    ]


def free_by_cell(devices: Iterable[PciDevice], held: Collection[str]) -> dict[int | None, int]:
    """How many devices are free in each cell; None stands for those without one."""
    counts: dict[int | None, int] = {}
    for device in available(devices, held):
        counts[device.numa_cell] = counts.get(device.numa_cell, 0) + 1
    return counts


def want_of(device: PciDevice) -> PciWant:
    """A want that this device of its host answers and no other, whatever else it is only given for."""
    spec = {"address": device.address, "dev_type": device.device_type}
    return PciWant(specs=(spec | {key: text for key, text in device.tags.items() if key == REMOTE},))


def _answers(device: PciDevice, want: PciWant) -> bool:
    """Whether one of the specs says nothing else than the device, and what is only given on demand is demanded."""
    specs = want.specs
    if not any(all(_property(device, key) == text.lower() for key, text in spec.items() if key not in _NO_PROPERTY) for spec in specs):
        return False
    if device.device_type in {PHYSICAL, VDPA} and not any(_kind(spec) == device.device_type for spec in specs):
        return False
    return _property(device, REMOTE) not in _TRUE or any(spec.get(REMOTE, "").lower() in _TRUE for spec in specs)


def _property(device: PciDevice, key: str) -> str | None:
    """A device's property by its name in a spec, in lower case; None if it has none."""
    match key:
        case "vendor_id" | "product_id" | "address":
            text: str = getattr(device, key)
            return text.lower()
        case "dev_type" | "device_type":
            return device.device_type.lower()
        case "parent_addr":
            return device.physical_function.lower()
    tag = device.tags.get(key)
    if tag is None and key == REMOTE and device.device_type in {PHYSICAL, VIRTUAL, VDPA}:
        return "false"
    return None if tag is None else tag.lower()


def _kind(spec: Mapping[str, str]) -> str | None:
    return spec.get("dev_type", spec.get("device_type"))


def _near(found: list[PciDevice], want: PciWant, cells: frozenset[int], sockets: Mapping[int, int | None]) -> list[PciDevice]:
    """Those that the want's NUMA policy allows, best first: in the guest's cells, without a cell, elsewhere.

    Whatever the policy, a want that the guest's own cells can serve is served there.
    """

    def distance(device: PciDevice) -> int:
        return 0 if not cells or device.numa_cell in cells else 1 if device.numa_cell is None else 2

    ordered = sorted(found, key=lambda device: (distance(device), len(device.tags), device.address))
    local = [device for device in ordered if distance(device) == 0]
    if not cells or want.numa_policy == "required" or len(local) >= want.count:
        return local
    if want.numa_policy == "socket":
        if None in sockets.values():
            return []
        near = {sockets.get(cell) for cell in cells} - {None}
        return [device for device in ordered if device.numa_cell is not None and sockets.get(device.numa_cell) in near]
    return [device for device in ordered if want.numa_policy == "preferred" or distance(device) < 2]


def _lack(want: PciWant, near: int, anywhere: int) -> Shortfall:
    name = want.alias or " or ".join(", ".join(f"{key} {text}" for key, text in sorted(spec.items())) for spec in want.specs) or "no spec"
    policy = f" under the NUMA policy {want.numa_policy!r}, {anywhere} anywhere" if anywhere > near else ""
    return Shortfall(resource="pci", needed=want.count, free=near, detail=f"{name}: {want.count} needed of {near}{policy}")
