"""Storage pools of a hypervisor, as libvirt last looked at them, with what this machine knows of the file systems that they are on."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

import libvirt

from producers.file_systems import MOUNTS, Mounts, file_system_of, read_mounts
from producers.libvirt_connect import said, supported
from producers.libvirt_storage import Storage, StoragePool, counted_once
from producers.libvirt_xml import PoolSource, read_pool

ON_A_FILE_SYSTEM = {"dir", "fs", "netfs"}
"""Kinds of pools whose target is a folder in which the images are files."""

OWN_STORAGE = {"disk", "iscsi", "iscsi-direct", "logical", "mpath", "scsi"}
"""Kinds of which libvirt lets no two pools have the same source: each is storage of its own."""

STOPPED_BY_OTHERS = {libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_STORAGE_POOL}
"""What libvirt says when it is to look at a pool that is not active, or is no more."""


class Stopped(NamedTuple):
    """A pool that is stopped since libvirt could not look at it, and what went wrong; that is empty while it may just be happening."""

    name: str
    why: str


class PoolRefresh:
    """Has libvirt look at pools' storage again, those of `names` or all: what others wrote there moves its figures only then.

    libvirt stops a pool at which it cannot look. The next looks start it again; one that somebody else stopped stays so.
    """

    def __init__(self, names: tuple[str, ...] | None) -> None:
        self.stopped: dict[str, Stopped] = {}
        """By uuid."""
        self._names = names

    def run(self, handle: Any) -> str:
        """Look at each, and start again what an earlier look stopped. What went wrong with pools that are not `stopped`.

        May hang on a dead NFS server. Raises libvirtError.
        """
        active = active_pools(handle, self._names)
        for pool in active:
            self.stopped.pop(pool.UUIDString(), None)
        earlier = dict(self.stopped)
        troubles = [self._refresh(handle, pool) for pool in active]
        for uuid, stopped in earlier.items():
            self._start(handle, uuid, stopped.name)
        return "; ".join(filter(None, troubles))

    def _refresh(self, handle: Any, pool: Any) -> str:
        uuid, name = pool.UUIDString(), pool.name()
        self.stopped[uuid] = Stopped(name, "")
        try:
            pool.refresh(0)
        except libvirt.libvirtError as error:
            if error.get_error_code() not in STOPPED_BY_OTHERS:
                if self._is_inactive(handle, uuid):
                    self._note(uuid, name, error)
                    return ""
                self.stopped.pop(uuid, None)
                return f"{name}: {said(error)}"
        self.stopped.pop(uuid, None)
        return ""

    def _is_inactive(self, handle: Any, uuid: str) -> bool:
        """Raises libvirtError, and then the pool is not known to be stopped: a later look shall start none that an operator stopped."""
        try:
            return uuid in {each.UUIDString() for each in handle.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_INACTIVE)}
        except libvirt.libvirtError:
            self.stopped.pop(uuid, None)
            raise

    def _start(self, handle: Any, uuid: str, name: str) -> None:
        try:
            pool = handle.storagePoolLookupByUUIDString(uuid)
            if not pool.isActive():
                pool.create(0)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
                self._note(uuid, name, error)
                return
        self.stopped.pop(uuid, None)

    def _note(self, uuid: str, name: str, error: Any) -> None:
        self.stopped[uuid] = Stopped(name, f"{name}: {said(error)}, and it is stopped until that is over")


def look_at_pools(handle: Any, names: tuple[str, ...] | None, stopped: dict[str, Stopped]) -> Storage | None:
    """The active pools together, None without any. Raises libvirtError, ValueError for a missing pool.

    `stopped` are those that a refresh stopped: as long as there are some, nothing is known. One that is active by now is struck out.
    """
    before = set(stopped)
    pools = active_pools(handle, names)
    active = {pool.UUIDString() for pool in pools}
    for uuid in before & active:
        stopped.pop(uuid, None)
    waiting = {pool.name for uuid, pool in list(stopped.items()) if uuid not in active}
    if missing := set(names or ()) - {pool.name() for pool in pools} - waiting:
        raise ValueError(f"storage pools {', '.join(sorted(missing))}: not active on this host; start them or name others")
    if waiting:
        return None
    mounts = _mounts() if len(pools) > 1 and is_here(handle.getURI()) else Mounts()
    found = [_pool(pool, mounts, is_alone=len(pools) == 1) for pool in pools]
    return counted_once([pool for pool in found if pool is not None])


def active_pools(handle: Any, names: tuple[str, ...] | None) -> list[Any]:
    """libvirt's active pools, those of `names` or all. Raises libvirtError."""
    pools = supported(lambda: handle.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE))
    return [pool for pool in pools or () if names is None or pool.name() in names]


def is_here(uri: str) -> bool:
    """Whether libvirt's daemon of this URI runs on this machine, as far as the URI says."""
    return not urlsplit(uri).netloc


def _pool(pool: Any, mounts: Mounts, *, is_alone: bool) -> StoragePool | None:
    """The pool as it is; None if it is gone since it was listed."""
    try:
        _, capacity, allocation, available = pool.info()
        source = PoolSource() if is_alone else read_pool(pool.XMLDesc(0))
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
            raise
        return None
    return StoragePool(
        name=pool.name(),
        capacity_bytes=capacity,
        allocation_bytes=allocation,
        available_bytes=available,
        file_system=file_system_of(source.path, mounts) if source.kind in ON_A_FILE_SYSTEM and source.path else None,
        is_own=source.kind in OWN_STORAGE,
    )


def _mounts() -> Mounts:
    """This machine's mounts; none where it does not tell them."""
    try:
        return read_mounts(MOUNTS.read_text(errors="surrogateescape"))
    except OSError:
        return Mounts()
