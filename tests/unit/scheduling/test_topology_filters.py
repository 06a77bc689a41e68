"""The filters of cells and devices say what the ledger would, each of its own matter."""

from __future__ import annotations

from projections.node import Node, Shown
from projections.room import mark_of, room
from schemas.audits import InstanceReport
from schemas.inventory import Hypervisor, NumaCell, PciDevice
from schemas.requests import Flavor, NumaWant, PciWant, PlacementRequested
from schemas.resources import ObservedResources
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.filters import FILTERS, reason

CELLS = tuple(
    NumaCell(cell_id=number, cpus=cpus, dedicated_cpus=cpus, memory_mib=4096) for number, cpus in enumerate(((0, 1, 2, 3), (4, 5, 6, 7)))
)
NIC = PciDevice(address="0000:01:00.0", vendor_id="8086", product_id="10fb", numa_cell=0)
ROOM = room(
    Node("n1", hypervisor=Hypervisor(vcpus=0, pcpus=8, memory_mib=8192, disk_mib=0, numa_cells=CELLS, pci_devices=(NIC,))),
    0,
    mark_of("n1"),
)


def ask(*numa: NumaWant, pci: tuple[PciWant, ...] = ()) -> Ask:
    return ask_of(PlacementRequested(request_id="r", flavor=Flavor(), numa=numa, pci=pci), 0, seed=1)


def dedicated(cell_id: int, cpus: int, memory_mib: int = 1024) -> NumaWant:
    return NumaWant(cell_id=cell_id, cpus=tuple(range(cpus)), memory_mib=memory_mib, cpu_policy="dedicated")


def test_cells_that_fit_pass_and_those_that_do_not_are_told_with_numbers() -> None:
    topology = FILTERS["NUMATopologyFilter"]

    told = reason(topology, ask(dedicated(0, 5)), ROOM)

    assert reason(topology, ask(dedicated(0, 4), dedicated(1, 4)), ROOM) is None
    assert told == "numa_pcpus: guest cell 0 in host cell 0: 5 needed of 4"


def test_a_device_far_from_the_guests_cells_is_a_matter_of_topology_and_not_of_devices() -> None:
    near = PciWant(alias="nic", specs=({"vendor_id": "8086"},), numa_policy="required")
    wanted = ask(dedicated(0, 4), dedicated(1, 4), pci=(near, near))

    assert reason(FILTERS["PciPassthroughFilter"], ask(dedicated(0, 2), pci=(near,)), ROOM) is None
    assert reason(FILTERS["NUMATopologyFilter"], ask(dedicated(0, 2), pci=(near,)), ROOM) is None
    assert "nic: 1 needed of 0" in (reason(FILTERS["PciPassthroughFilter"], wanted, ROOM) or "")


def test_devices_that_would_do_as_the_guests_cells_choose_them_are_there_whatever_is_chosen_without_cells() -> None:
    """Of two physical functions one has a virtual one in use; the first virtual one by address is a part of the other."""
    devices = []
    for bus, cell in (("01", 1), ("02", 0)):
        devices.append(PciDevice(address=f"0000:{bus}:00.0", vendor_id="8086", product_id="1572", device_type="type-PF", numa_cell=cell))
        devices += [
            PciDevice(
                address=f"0000:{bus}:10.{number}",
                vendor_id="8086",
                product_id="154c",
                device_type="type-VF",
                numa_cell=cell,
                physical_function=f"0000:{bus}:00.0",
            )
            for number in range(2)
        ]
    node = Node("n1", hypervisor=Hypervisor(vcpus=0, pcpus=8, memory_mib=8192, disk_mib=0, numa_cells=CELLS, pci_devices=tuple(devices)))
    report = InstanceReport(instance_id="g", resources=ObservedResources(memory_mib=256), pci_addresses=("0000:02:10.0",))
    node.shown["g"] = Shown(report, (None, None, 256, None), 0)
    there = room(node, 0, mark_of("n1"))
    virtual = PciWant(alias="vf", specs=({"product_id": "154c", "dev_type": "type-VF"},), numa_policy="required")
    physical = PciWant(alias="pf", specs=({"product_id": "1572", "dev_type": "type-PF"},), numa_policy="preferred")
    wanted = ask(dedicated(0, 1), pci=(virtual, physical))

    assert reason(FILTERS["NUMATopologyFilter"], wanted, there) is None
    assert reason(FILTERS["PciPassthroughFilter"], wanted, there) is None
    assert reason(FILTERS["PciPassthroughFilter"], ask(pci=(virtual, physical)), there) == "pci: pf: 1 needed of 0"


def test_who_wants_neither_cells_nor_devices_is_not_tested() -> None:
    assert [FILTERS[name].prepare(ask()) for name in ("NUMATopologyFilter", "PciPassthroughFilter")] == [None, None]
