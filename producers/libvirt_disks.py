"""Sizes of guests' disks: how large each may grow, and how much of the host's storage it takes now.

A disk in a storage pool is asked of the pool, which needs no guest. Any other is asked of the running guest's QEMU, the only question here
that waits for a guest to answer; so it is asked guest by guest, on a slower timer, in a worker that may be left behind. It is asked of
guests without such disks too: that is how a frozen guest is noticed. After Nova's `_get_disk_over_committed_size_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import libvirt
from msgspec import Struct

from producers.libvirt_connect import supported
from producers.libvirt_xml import Disk, Domain
from schemas.units import MIB

OCCUPIED_MS_MAX = 5_000
"""A guest that has been at one command for this long is not asked a second one, which would only wait behind it."""


class DiskSize(Struct, frozen=True):
    """`capacity_bytes` is what the guest sees, `physical_bytes` what the image takes on the host now."""

    capacity_bytes: int
    physical_bytes: int


class Disks:
    """Sizes of disks as last learnt, by `Disk.key`; None is a disk that nobody could tell the size of."""

    def __init__(self) -> None:
        self._sizes: dict[str, DiskSize | None] = {}
        self._of: dict[str, set[str]] = {}
        """The domains that each was learnt for."""
        self._unasked: set[str] = set()
        """Disks in no pool, of which no running guest was asked yet."""

    def learn(self, handle: Any, domain: Domain, *, has_pools: bool = True, anew: bool = False) -> None:
        """Ask the pools for disks that this domain was not asked for yet, with `anew` for all. Raises libvirtError.

        Under the path that another domain had, or that one has which was started anew, another image may stand by now.
        """
        for disk in domain.disks:
            is_new = domain.instance_id not in self._of.get(disk.key, ())
            if not disk.key or not (is_new or anew):
                continue
            size = of_volume(handle, disk) if has_pools else None
            if size is None:
                self._unasked.add(disk.key)
            if size is not None or is_new:
                self._sizes[disk.key] = size
            self._of.setdefault(disk.key, set()).add(domain.instance_id)

    def forget(self, gone: AbstractSet[str]) -> None:
        """These domains are no more: one that comes with such an id may have other images."""
        for ids in self._of.values() if gone else ():
            ids.difference_update(gone)

    def is_unasked(self, domain: Domain) -> bool:
        """Whether the domain has a disk whose size a running guest might tell, and none was asked for it."""
        return any(disk.key in self._unasked for disk in domain.disks)

    def asked(self, domains: Iterable[Domain]) -> None:
        """The guests of `domains` are asked now; whoever does not answer is asked again by the rounds."""
        self._unasked.difference_update(disk.key for domain in domains for disk in domain.disks)

    def keep(self, sizes: dict[str, DiskSize], domains: Iterable[Domain]) -> None:
        """Take in what a look found, and forget what is no disk of `domains`."""
        wanted: dict[str, set[str]] = {}
        for domain in domains:
            for disk in domain.disks:
                wanted.setdefault(disk.key, set()).add(domain.instance_id)
        self._sizes = {key: sizes.get(key) or self._sizes.get(key) for key in wanted if key in sizes or key in self._sizes}
        self._of = {key: self._of[key] & ids for key, ids in wanted.items() if key in self._of}
        self._unasked &= wanted.keys()

    def capacity_mib(self, domain: Domain) -> int | None:
        """Capacities of the domain's disks, rounded up; where one is not known, what its flavor was promised, else None: not reported.

        Without a flavor one that is not on this host is none of its storage, as in `overcommitted_mib`.
        """
        total = 0
        for disk in domain.disks:
            size = self._sizes.get(disk.key)
            if size is not None:
                total += -(-size.capacity_bytes // MIB)
            elif disk.key or domain.flavor_disk_mib is not None:
                return domain.flavor_disk_mib
        return total

    def overcommitted_mib(self, domains: Iterable[Domain]) -> int | None:
        """How much the images of `domains` may still grow; None if that of one is not known. One image of several counts once.

        Disks that are not on this host (on the network) take nothing of its storage.
        """
        sizes = {disk.key: self._sizes.get(disk.key) for domain in domains for disk in domain.disks if disk.key}
        grown_bytes = 0
        for size in sizes.values():
            if size is None:
                return None
            grown_bytes += max(0, size.capacity_bytes - size.physical_bytes)
        return -(-grown_bytes // MIB)


class Guest(Struct, frozen=True):
    """One domain whose disks are to be looked at; `is_active` if there is a QEMU that may be asked."""

    instance_id: str
    domain: Domain
    is_active: bool


class DiskLook:
    """One look at the disks of several guests, one after the other, in a worker.

    What it found so far may be read while it runs: `at` is the guest it is asking and when it began to (`clock_ms`), so that its caller
    sees which guest does not answer, and may have it ask no more (`given_up`) when that call returns. `occupied` has, by guest that was
    not asked because of it, for how long it has been at one command. `moved` are guests whose QEMU knows nothing of a path that a disk of
    theirs has: it has another by now, of a snapshot say, which no event tells of.
    """

    def __init__(self, guests: Sequence[Guest], clock_ms: Callable[[], int]) -> None:
        self.at: tuple[str, int] | None = None
        self.given_up = False
        self.answered: list[str] = []
        self.occupied: dict[str, int] = {}
        self.moved: list[str] = []
        self.sizes: dict[str, DiskSize] = {}
        self._guests = guests
        self._clock_ms = clock_ms
        self._has_pools = True

    def run(self, handle: Any) -> None:
        """Look; a guest that is gone by now is left out. Raises libvirtError if the connection is lost."""
        self._has_pools = has_active_pools(handle)
        for guest in self._guests:
            if self.given_up:
                return
            self.at = (guest.instance_id, self._clock_ms())
            try:
                self._ask(handle, guest)
            except libvirt.libvirtError:
                # Gone since it was listed, or it died while it was asked: then the next audit says so.
                if not handle.isAlive():
                    raise
        self.at = None

    def left(self) -> list[Guest]:
        """The guests after the one that it is asking: for another look, when this one waits too long."""
        ids = [guest.instance_id for guest in self._guests]
        return list(self._guests[ids.index(self.at[0]) + 1 :]) if self.at is not None else []

    def _ask(self, handle: Any, guest: Guest) -> None:
        for disk in guest.domain.disks:
            if self._has_pools and disk.key and (size := of_volume(handle, disk)) is not None:
                self.sizes[disk.key] = size
        if guest.is_active:
            domain = handle.lookupByUUIDString(guest.instance_id)
            if (busy_ms := occupied_ms(domain)) > OCCUPIED_MS_MAX:
                self.occupied[guest.instance_id] = busy_ms
                return
            hear_of(domain)
            told = of_guest(handle, domain)
            for key, size in told.items():
                self.sizes.setdefault(key, size)
            if told and any(disk.path not in told for disk in guest.domain.disks if disk.path and not disk.volume):
                self.moved.append(guest.instance_id)
        self.answered.append(guest.instance_id)


def occupied_ms(domain: Any) -> int:
    """For how long the guest's QEMU has been at one command; 0 if it is not, or the driver cannot say. Waits for no guest."""
    try:
        state, _, since_ms = domain.controlInfo()
    except libvirt.libvirtError as error:
        if error.get_error_code() in {libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_INVALID}:
            return 0
        raise
    return int(since_ms) if state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED else 0


def hear_of(domain: Any) -> None:
    """Have the guest's QEMU say something. Waits for it. Raises libvirtError, also where another client's question keeps it from answering.

    Statistics of several domains are no such question: of one that does not let itself be asked libvirt leaves out what it cannot say.
    """
    supported(domain.memoryStats)


def has_active_pools(handle: Any) -> bool:
    """Whether there is a pool to ask at all: it saves a call a disk where there is none. Raises libvirtError."""
    return bool(supported(handle.numOfStoragePools))


def of_volume(handle: Any, disk: Disk) -> DiskSize | None:
    """The disk's size as its pool has it; None if it is in none, or its pool cannot tell. Raises libvirtError if the connection is lost."""
    try:
        if disk.volume:
            volume = handle.storagePoolLookupByName(disk.pool).storageVolLookupByName(disk.volume)
        elif disk.path:
            volume = handle.storageVolLookupByPath(disk.path)
        else:
            return None
        _, capacity, allocation = volume.info()
    except libvirt.libvirtError:
        # In no pool, in one that is stopped, or its file is gone: that says nothing of the guest, whose size is read all the same.
        if not handle.isAlive():
            raise
        return None
    return DiskSize(int(capacity), int(allocation))


def of_guest(handle: Any, domain: Any) -> dict[str, DiskSize]:
    """Sizes by path as a running guest's QEMU has them. Waits for the guest. Raises libvirtError."""
    ((_, said),) = supported(lambda: handle.domainListGetStats([domain], libvirt.VIR_DOMAIN_STATS_BLOCK, 0)) or [(None, {})]
    found = {}
    for number in range(said.get("block.count", 0)):
        path, capacity, physical = (said.get(f"block.{number}.{name}") for name in ("path", "capacity", "physical"))
        # A backing image is listed too, under a higher number and its own path, which is no disk of any domain.
        if path and capacity is not None and physical is not None:
            found[str(path)] = DiskSize(int(capacity), int(physical))
    return found
