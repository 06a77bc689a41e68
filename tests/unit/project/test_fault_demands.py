"""Each checker of what is more than amounts catches a history that has its fault, and finds nothing in the same history without it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from msgspec import structs

from projections.ledger_state import Step
from schemas.claims import ClaimItem, ClaimRequested, GroupMember
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice
from schemas.requests import NumaWant, PciWant
from schemas.resources import Resources
from schemas.results import CellGrant, ClaimOutcome, Decision, Granted, OutcomeKind, Rejection
from tests.faults.demands import Open, booked, counts_wrong
from tests.ledger_history import History

CELLS = (
    NumaCell(
        cell_id=0,
        cpus=(0, 1, 2, 3, 4, 5),
        dedicated_cpus=(2, 3, 4, 5),
        siblings=((0, 1), (2, 3), (4, 5)),
        memory_mib=4096,
        pages=(HugePages(size_kib=2048, total=512, reserved=256),),
    ),
)
DEVICES = (PciDevice(address="pf", device_type="type-PF"), PciDevice(address="vf", device_type="type-VF", physical_function="pf"))
PINNED = NumaWant(cpus=(0, 1), memory_mib=256, cpu_policy="dedicated")
GOT = CellGrant(memory_mib=256, guest_cpus=(0, 1), pinned_cpus=(2, 3), held_cpus=(2, 3))


class Books:
    """What is open on a node with cells and devices, as a ledger would tell it that grants whatever it is told to."""

    def __init__(self) -> None:
        self._history = History()
        self._history.audit({}, at_s=0, hypervisor=Hypervisor(memory_mib=8, numa_cells=CELLS, pci_devices=DEVICES))
        self._there = defaultdict[str, Open](dict)

    def grants(self, claim_id: str, granted: Granted | None = None, **item: Any) -> list[str]:
        """What is found wrong with one more grant."""
        fields: dict[str, Any] = {"instance_id": claim_id, "nodes": ("n1",), "resources": Resources()} | item
        event = ClaimRequested(request_id="r", owner="s", basis=0, ttl_ms=1, items=(ClaimItem(claim_id=claim_id, **fields),))
        return [wrong.split(": ", 2)[2] for wrong in self._step("granted", claim_id, granted, event)]

    def says(self, outcome: OutcomeKind, claim_id: str) -> None:
        self._step(outcome, claim_id)

    def _step(self, outcome: OutcomeKind, claim_id: str, granted: Granted | None = None, event: Any = None) -> list[str]:
        told = ClaimOutcome(outcome=outcome, claim_id=claim_id, node_id="n1", granted=granted)
        return booked(self._history.ledger, Step(9, 0, event=event, outcomes=[told]), self._there)


def cell(**changes: Any) -> Granted:
    return Granted(cells=(structs.replace(GOT, **changes),))


def test_what_is_granted_as_it_was_asked_for_is_sound() -> None:
    books = Books()

    assert books.grants("a", cell(), numa=(PINNED,)) == []
    assert books.grants("b", cell(pinned_cpus=(4, 5), held_cpus=(4, 5)), numa=(PINNED,)) == []
    assert books.grants("c", Granted(pci_addresses=("vf",)), pci=(PciWant(),)) == []


def test_a_cpu_that_is_given_twice_is_found_unless_it_was_given_back_or_is_the_same_guests() -> None:
    books = Books()
    books.grants("a", cell(), numa=(PINNED,))

    assert books.grants("a too", cell(), numa=(PINNED,), instance_id="a") == []
    assert books.grants("b", cell(), numa=(PINNED,)) == ["the CPUs [2, 3] are others'"]
    for claim_id in ("a", "a too", "b"):
        books.says("released", claim_id)
    assert books.grants("c", cell(), numa=(PINNED,)) == []


def test_what_a_confirmed_resize_left_may_be_given_again() -> None:
    books = Books()
    books.grants("a", cell(), numa=(PINNED,))
    books.says("confirmed", "a")
    books.grants("larger", cell(pinned_cpus=(4, 5), held_cpus=(4, 5)), numa=(PINNED,), instance_id="a", resize=True)
    books.says("confirmed", "larger")

    assert books.grants("b", cell(), numa=(PINNED,)) == []


def test_a_device_that_is_given_twice_or_in_part_is_found() -> None:
    books = Books()
    books.grants("a", Granted(pci_addresses=("vf",)), pci=(PciWant(),))

    assert books.grants("b", Granted(pci_addresses=("vf",)), pci=(PciWant(),)) == ["the device vf is another's, itself or in part"]
    assert books.grants("c", Granted(pci_addresses=("pf",)), pci=(PciWant(),)) == ["the device pf is another's, itself or in part"]


def test_more_pages_than_there_are_beside_the_reserved_are_found() -> None:
    books, want = Books(), NumaWant(memory_mib=256, page_size_kib=2048)
    got = CellGrant(memory_mib=256, page_size_kib=2048)

    assert books.grants("a", Granted(cells=(got,)), numa=(want,)) == []
    assert books.grants("a again", Granted(cells=(got,)), numa=(want,), instance_id="a") == []
    assert books.grants("b", Granted(cells=(got,)), numa=(want,)) == []
    assert books.grants("c", Granted(cells=(got,)), numa=(want,)) == ["786432 KiB of 2048 KiB pages used in cell 0, there are 524288"]


@pytest.mark.parametrize(
    ("granted", "wants", "says"),
    [
        (Granted(), {"numa": (PINNED,)}, "1 cells wanted, got []"),
        (Granted(), {"pci": (PciWant(alias="nic"),)}, "devices wanted [('nic', 1)], got ()"),
        (cell(pinned_cpus=(2,)), {"numa": (PINNED,)}, "guest CPUs [0, 1] are pinned to (2,)"),
        (cell(held_cpus=(0, 2, 3)), {"numa": (PINNED,)}, "(0, 2, 3) are not all dedicated CPUs of cell 0"),
        (cell(held_cpus=(2,)), {"numa": (PINNED,)}, "of (2, 3) and () only (2,) are held"),
        (cell(memory_mib=1), {"numa": (PINNED,)}, "256 MiB wanted in cell 0, got 1"),
        (
            cell(pinned_cpus=(2, 4), held_cpus=(2, 4)),
            {"numa": (structs.replace(PINNED, thread_policy="isolate"),)},
            "threads beside (2, 4) are not held, and it wants them alone",
        ),
    ],
)
def test_a_grant_of_something_else_than_was_asked_for_is_found(granted: Granted, wants: dict[str, Any], says: str) -> None:
    assert Books().grants("a", granted, **wants) == [says]


def test_too_many_members_of_a_group_are_found() -> None:
    books, group = Books(), GroupMember(group_id="g", policy="anti-affinity")

    assert books.grants("a", group=group) == []
    assert books.grants("b", group=group) == ["2 of g, 1 allowed"]


def test_counts_that_do_not_add_up_are_found() -> None:
    rejections = (Rejection(filter="a", entered=3, rejected=1), Rejection(filter="b", entered=2, rejected=1))
    sound = Decision(instance_id="i", cut=(1,), nodes_known=3, rejections=rejections, passed=1, chosen="n1")

    def found(nodes: int = 3, **changes: Any) -> list[str]:
        return list(counts_wrong(structs.replace(sound, **changes), nodes))

    assert found() == []
    assert found(nodes=4) == ["i was decided on 3 nodes, 4 were known"]
    assert found(passed=2) == ["the counts of i do not add up to 3", "the counts of i do not follow from each other"]
    assert found(chosen="") == ["i: 1 nodes passed, chosen is ''"]
