"""How much storage several pools are together: each file system once, however stale libvirt's figures are."""

from __future__ import annotations

from producers.file_systems import FileSystem
from producers.libvirt_storage import Storage, StoragePool, counted_once

GIB = 1 << 30
ROOT, DATA = FileSystem("/dev/vda", 100 * GIB), FileSystem("/dev/vdb", 100 * GIB)


def pool(name: str, capacity_gib: int, used_gib: int = 0, *, on: FileSystem | None = None, is_own: bool = False) -> StoragePool:
    return StoragePool(
        name=name,
        capacity_bytes=capacity_gib * GIB,
        allocation_bytes=used_gib * GIB,
        available_bytes=(capacity_gib - used_gib) * GIB,
        file_system=on,
        is_own=is_own,
    )


def storage(*pools: StoragePool) -> tuple[int, int, int]:
    """Capacity, what is taken and what is free, in GiB."""
    found = counted_once(pools)
    assert found is not None
    assert not found.taken_for_one
    return found.capacity_bytes // GIB, found.allocation_bytes // GIB, found.available_bytes // GIB


def test_without_a_pool_there_is_no_storage_which_is_not_storage_of_size_zero() -> None:
    assert counted_once([]) is None
    assert counted_once([pool("empty", 0)]) == Storage(capacity_bytes=0, allocation_bytes=0, available_bytes=0)


def test_pools_of_one_file_system_count_once_with_what_is_free_at_worst() -> None:
    assert storage(pool("a", 100, 10, on=ROOT), pool("b", 100, 30, on=ROOT), pool("c", 100, 20, on=ROOT)) == (100, 30, 70)


def test_two_file_systems_of_one_size_are_two() -> None:
    assert storage(pool("a", 100, 10, on=ROOT), pool("b", 100, 40, on=DATA)) == (200, 50, 150)


def test_a_file_system_that_grew_counts_once_with_its_size_of_now_though_one_pool_was_not_refreshed() -> None:
    stale, fresh = pool("a", 50, 45, on=ROOT), pool("b", 100, 45, on=ROOT)

    assert storage(stale, fresh) == storage(fresh, stale) == (100, 45, 55)


def test_a_file_system_that_shrank_counts_with_its_size_of_now() -> None:
    assert storage(pool("a", 200, 10, on=ROOT), pool("b", 100, 10, on=ROOT)) == (100, 10, 90)


def test_pools_whose_storage_is_their_own_add_up_whatever_their_size() -> None:
    assert storage(pool("vg0", 100, 10, is_own=True), pool("vg1", 100, 20, is_own=True), pool("a", 100, 5, on=ROOT)) == (300, 35, 265)


def test_pools_of_one_size_that_are_on_nobody_knows_what_count_once_and_are_said() -> None:
    found = counted_once([pool("a", 100, 10), pool("c", 80), pool("b", 100, 30), pool("vg", 70, is_own=True)])

    assert found == Storage(capacity_bytes=250 * GIB, allocation_bytes=30 * GIB, available_bytes=220 * GIB, taken_for_one=(("a", "b"),))


def test_a_folder_of_another_size_than_all_its_pools_is_not_believed_but_they_are_one() -> None:
    """As in a container, where the folder of that name is another one; or none was refreshed since it last grew or shrank."""
    smaller, larger = FileSystem("0:40", 7 * GIB), FileSystem("0:40", 80 * GIB)

    inside = counted_once([pool("a", 100, on=smaller), pool("b", 60, on=smaller), pool("c", 60, on=smaller)])
    between = counted_once([pool("a", 100, on=larger), pool("b", 60, on=larger), pool("c", 70, on=larger)])

    assert inside is not None
    assert between is not None
    assert (inside.capacity_bytes, inside.taken_for_one) == (60 * GIB, (("a", "b", "c"),))
    assert (between.capacity_bytes, between.taken_for_one) == (70 * GIB, (("a", "b", "c"),))


def test_the_only_pool_of_a_file_system_counts_as_libvirt_has_it_whatever_its_size_is_now() -> None:
    assert storage(pool("a", 50, 10, on=ROOT), pool("b", 300, 20, on=DATA)) == (350, 30, 320)


def test_what_is_on_nobody_knows_what_is_taken_for_a_known_one_of_its_size() -> None:
    found = counted_once([pool("a", 100, 10, on=ROOT), pool("b", 100, 40)])

    assert found is not None
    assert (found.capacity_bytes, found.available_bytes, found.taken_for_one) == (100 * GIB, 90 * GIB, (("a", "b"),))
