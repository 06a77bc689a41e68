"""Storage pools of a hypervisor, as libvirt last looked at them, with what this machine knows of the file systems that they are on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import libvirt

from producers.file_systems import MOUNTS, Mounts, file_system_of, read_mounts
from producers.libvirt_connect import supported
from producers.libvirt_storage import Storage, StoragePool, counted_once
from producers.libvirt_xml import PoolSource, read_pool

ON_A_FILE_SYSTEM = {"dir", "fs", "netfs"}
"""Kinds of pools whose target is a folder in which the images are files."""

OWN_STORAGE = {"disk", "iscsi", "iscsi-direct", "logical", "mpath", "scsi"}
"""Kinds of which libvirt lets no two pools have the same source: each is storage of its own."""


def look_at_pools(handle: Any, names: tuple[str, ...] | None) -> Storage | None:
    """The active pools together, None without any. Raises libvirtError, ValueError for a missing pool."""
    pools = active_pools(handle, names)
    if missing := set(names or ()) - {pool.name() for pool in pools}:
        raise ValueError(f"storage pools {', '.join(sorted(missing))}: not active on this host; start them or name others")
    mounts = _mounts() if len(pools) > 1 and is_here(handle.getURI()) else Mounts()
    found = [_pool(pool, mounts, is_alone=len(pools) == 1) for pool in pools]
    return counted_once([pool for pool in found if pool is not None])


def active_pools(handle: Any, names: tuple[str, ...] | None) -> list[Any]:
    """libvirt's active pools, those of `names` or all. Raises libvirtError."""
    pools = supported(lambda: handle.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE))
    return [pool for pool in pools or () if names is None or pool.name() in names]


def refresh_pools(handle: Any, names: tuple[str, ...] | None) -> None:
    """Have libvirt look at the pools' storage again: what others wrote there moves its figures only then. May hang on a dead NFS server."""
    for pool in active_pools(handle, names):
        pool.refresh(0)


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
