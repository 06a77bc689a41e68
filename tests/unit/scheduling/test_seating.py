"""What is remembered of cells and devices is what the ledger would say, however nodes and guests stand."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from projections.numa_node import lacking
from schemas.claims import ClaimItem
from schemas.guests import NumaWant, PciWant
from streams.scheduling.profiles.seating import Seating
from tests.properties.test_engine_is_reference import Cloud

GUESTS: tuple[tuple[NumaWant, ...], ...] = (
    (),
    (NumaWant(cpus=(0,), memory_mib=512),),
    (NumaWant(cpus=(0, 1), memory_mib=1024, cpu_policy="dedicated"),),
    (NumaWant(cpus=(0, 1), memory_mib=1024, cpu_policy="dedicated", thread_policy="isolate", emulator_threads="isolate"),),
    (NumaWant(cpus=(0,), pinned_cpus=(1,), memory_mib=3072, cpu_policy="mixed"),),
    (NumaWant(cpus=(0,), memory_mib=512, page_size="large"),),
    (NumaWant(cpus=(0,), memory_mib=1024), NumaWant(cell_id=1, cpus=(1,), memory_mib=1024, cpu_policy="dedicated")),
)
DEVICES: tuple[tuple[PciWant, ...], ...] = (
    (),
    (PciWant(specs=({"vendor_id": "8086"},)),),
    (PciWant(specs=({"vendor_id": "8086"},), count=2, numa_policy="required"),),
    (PciWant(specs=({"vendor_id": "8086"},), count=2, numa_policy="socket"),),
    (PciWant(specs=({"vendor_id": "10de"},)),),
)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_guest_is_rejected_where_the_ledger_would_refuse_it(seed: int) -> None:
    rng = Random(seed)
    cloud = Cloud(rng, 12)
    plain = structs.replace(cloud.item(0), instance_id="newcomer", group=None)
    items = [structs.replace(plain, numa=numa, pci=pci, forced=rng.random() < 0.2) for numa in GUESTS for pci in DEVICES if numa or pci]
    seatings = [Seating(item) for item in items]

    for _ in range(4):
        for _ in range(25):
            cloud.step()
        rooms = cloud.fleet.rooms()

        for seating in seatings:
            wanted: ClaimItem = seating.item
            assert [seating.rejects(room) for room in rooms] == [bool(lacking(room.node, wanted, room.overlay)) for room in rooms]
