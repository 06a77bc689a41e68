"""Storage for instances of several pools together, each file system counted once. Pure: pools in, sums out.

libvirt knows pools and their sizes, but not which of them share a file system: `dir` pools are often folders of one. Where the hypervisor
is this machine the file systems themselves tell. Elsewhere pools of one size, to the byte, are taken for one. What was counted once without
its being known for sure is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from producers.file_systems import FileSystem


class StoragePool(Struct, frozen=True, kw_only=True):
    """A pool as libvirt last saw it. `file_system` is what it is on now, where that can be known; `is_own`: it shares storage with none."""

    name: str
    capacity_bytes: int
    allocation_bytes: int
    available_bytes: int
    file_system: FileSystem | None = None
    is_own: bool = False

    @property
    def is_current(self) -> bool:
        """Whether its file system still has the size that libvirt saw."""
        return self.file_system is not None and self.file_system.capacity_bytes == self.capacity_bytes


class Storage(Struct, frozen=True, kw_only=True):
    """All storage for instances together; `taken_for_one` are names of pools that were counted once and may be several."""

    capacity_bytes: int
    allocation_bytes: int
    available_bytes: int
    taken_for_one: tuple[tuple[str, ...], ...] = ()


def counted_once(pools: Sequence[StoragePool]) -> Storage | None:
    """The pools' storage, each file system once, as the pool has it that libvirt looked at last."""
    if not pools:
        return None
    shared: dict[str, list[StoragePool]] = {}
    for pool in pools:
        key = f"pool {pool.name}" if pool.is_own else pool.file_system.key if pool.file_system is not None else ""
        shared.setdefault(key, []).append(pool)
    unknown = shared.pop("", [])
    groups = list(shared.values())
    # A folder of another size than all of its pools may be one that only has the same name here, as in a container.
    taken = [group for group in groups if len(group) > 1 and not any(pool.is_current for pool in group)]
    for pool in unknown:
        alike = next((group for group in groups if any(each.capacity_bytes == pool.capacity_bytes for each in group)), None)
        if alike is None:
            groups.append([pool])
        else:
            alike.append(pool)
            taken.append(alike)
    chosen = [_current(group) for group in groups]
    return Storage(
        capacity_bytes=sum(pool.capacity_bytes for pool in chosen),
        allocation_bytes=sum(pool.allocation_bytes for pool in chosen),
        available_bytes=sum(pool.available_bytes for pool in chosen),
        taken_for_one=tuple(sorted({tuple(sorted(pool.name for pool in group)) for group in taken})),
    )


def _current(group: Sequence[StoragePool]) -> StoragePool:
    """The pool that is current, or may be: of none is more taken than the file system holds now, if any has so little."""
    most = [pool.file_system.capacity_bytes if pool.file_system is not None else pool.capacity_bytes for pool in group]
    held = [pool for pool, bytes_now in zip(group, most, strict=True) if pool.capacity_bytes <= bytes_now]
    if not held:
        return min(group, key=lambda pool: pool.capacity_bytes)
    return max(held, key=lambda pool: (pool.is_current, pool.capacity_bytes, -pool.available_bytes))
