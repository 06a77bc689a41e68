"""Cells, CPUs, pages and devices in the fold: who holds what, and what a claim gets of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from projections.ledger_state import Step
from projections.numa_node import standing
from projections.snapshots import encoded, restored
from schemas.audits import InstanceReport
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.requests import NumaWant, PciWant
from schemas.resources import ObservedResources
from schemas.results import Granted
from tests.ledger_history import UNREPORTED, History, digest_of, fates, item, shortfalls

CELLS = tuple(
    NumaCell(cell_id=n, cpus=tuple(range(10 * n, 10 * n + 6)), dedicated_cpus=tuple(range(10 * n, 10 * n + 4)), memory_mib=1024, socket=n)
    for n in (0, 1)
)
DEVICES = tuple(PciDevice(address=f"gpu{n}", vendor_id="10de", numa_cell=n) for n in (0, 1))
HOST = Hypervisor(vcpus=4, pcpus=8, memory_mib=2048, disk_mib=10, numa_cells=CELLS, pci_devices=DEVICES)
GPU = (PciWant(alias="gpu", specs=({"vendor_id": "10de"},)),)


def pins(number: int, memory_mib: int = 64) -> tuple[NumaWant, ...]:
    return (NumaWant(pinned_cpus=tuple(range(number)), memory_mib=memory_mib, cpu_policy="dedicated"),)


def floats(number: int, memory_mib: int = 64, **rest: Any) -> tuple[NumaWant, ...]:
    return (NumaWant(cpus=tuple(range(number)), memory_mib=memory_mib, **rest),)


def host(hypervisor: Hypervisor = HOST, **listed: InstanceReport) -> History:
    history = History()
    history.audit(listed, at_s=0, hypervisor=hypervisor)
    return history


def guest(instance_id: str, **fields: Any) -> InstanceReport:
    return InstanceReport(instance_id=instance_id, resources=ObservedResources(vcpus=2, memory_mib=64), **fields)


def ask(history: History, claim_id: str, instance: str = "", at_s: int = 1, **wants: Any) -> Step:
    return history.claims(item(claim_id, instance or f"vm of {claim_id}", 64, **wants), at_s=at_s)


def got(step: Step) -> Granted:
    assert [outcome.outcome for outcome in step.outcomes] == ["granted"], shortfalls(step)
    granted = step.outcomes[0].granted
    assert granted is not None
    return granted


def cpus(step: Step) -> tuple[int, ...]:
    return tuple(cpu for cell in got(step).cells for cpu in cell.held_cpus)


def test_a_grant_names_its_cell_cpus_and_device_and_the_claim_keeps_them() -> None:
    history = host()

    granted = got(ask(history, "c", numa=pins(2), pci=GPU))

    claim = history.ledger.claims["c"]
    assert [(cell.cell_id, cell.guest_cpus, cell.pinned_cpus) for cell in granted.cells] == [(0, (0, 1), (0, 1))]
    assert (granted.pci_addresses, claim.pci_addresses, claim.pinned_cpus) == (("gpu0",), ("gpu0",), (0, 1))


def test_cpus_come_by_number_whatever_the_order_in_which_a_set_has_them() -> None:
    cell = NumaCell(cell_id=0, dedicated_cpus=(16, 8, 1), memory_mib=1024)
    history = host(Hypervisor(vcpus=4, pcpus=3, memory_mib=1024, numa_cells=(cell,)), shown=guest("shown", pinned_cpus=(8, 1)))

    kept = ask(history, "kept", "shown", keep=True)
    history.release("kept")
    history.audit(at_s=30, hypervisor=Hypervisor(vcpus=4, pcpus=3, memory_mib=1024, numa_cells=(cell,)))
    asked = ask(history, "asked", numa=pins(2), at_s=31)

    assert (cpus(kept), cpus(asked)) == ((1, 8), (1, 8))
    assert history.ledger.claims["asked"].pinned_cpus == (1, 8)


def test_a_plain_claim_gets_no_devices_and_its_outcome_says_nothing_of_them() -> None:
    history = host()

    step = ask(history, "c")

    assert step.outcomes[0].granted is None


def test_cpus_and_devices_that_somebody_has_are_not_given_again() -> None:
    history = host()
    ask(history, "a", numa=pins(3), pci=GPU)

    second = ask(history, "b", numa=pins(3), pci=GPU)
    third = ask(history, "c", numa=pins(2), pci=GPU)

    assert cpus(second) == (10, 11, 12)
    assert shortfalls(third) == ["numa_pcpus: guest cell 0 in host cell 0: 2 needed of 1", "pci: gpu: 1 needed of 0"]


def test_a_guest_without_a_claim_holds_what_it_is_seen_with() -> None:
    history = host(stranger=guest("stranger", pinned_cpus=(0, 10), pci_addresses=("gpu0",)))

    granted = got(ask(history, "c", numa=pins(3), pci=GPU))

    assert [cell.held_cpus for cell in granted.cells] == [(11, 12, 13)]
    assert granted.pci_addresses == ("gpu1",)


def test_a_forced_claim_skips_the_ratios_of_cells_and_names_that_but_never_takes_held_cpus_or_devices() -> None:
    history = host()
    ask(history, "first", numa=floats(2))
    ask(history, "second", numa=floats(2))

    over = ask(history, "over", numa=floats(2), forced=True)
    pinned = ask(history, "pinned", numa=pins(5), forced=True)
    ask(history, "all devices", pci=(PciWant(count=2, specs=({"vendor_id": "10de"},)),))
    device = ask(history, "device", pci=GPU, forced=True)

    assert [str(lack) for lack in over.outcomes[0].overrun] == ["numa_vcpus: guest cell 0 in host cell 0: 2 needed of 0"]
    assert shortfalls(pinned) == ["numa_pcpus: guest cell 0 in host cell 0: 5 needed of 4"]
    assert shortfalls(device) == ["pci: gpu: 1 needed of 0"]


def test_the_ratios_of_cells_are_those_of_the_node() -> None:
    history = host()
    history.configure(vcpus=ResourceRule(ratio_milli=2000))

    granted = [fates(ask(history, f"c{n}", numa=floats(2))) for n in range(5)]

    assert [fate[0][0] for fate in granted] == ["granted"] * 4 + ["refused"]


def test_claims_of_one_instance_share_what_the_first_got() -> None:
    history = host()
    first = ask(history, "first", "vm", numa=pins(4), pci=GPU)

    again = ask(history, "of another scheduler", "vm", numa=pins(4), pci=GPU)
    history.release("first", at_s=2)

    assert got(again) == got(first)
    assert cpus(ask(history, "other", numa=pins(4), at_s=3)) == (10, 11, 12, 13)


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[1:]])
def test_a_second_claim_does_not_share_a_device_that_another_guest_has_or_the_host_has_no_more(devices: tuple[PciDevice, ...]) -> None:
    history = host()
    first = ask(history, "first", "vm", pci=GPU)
    seen = {"other": guest("other", pci_addresses=("gpu0",))} if len(devices) > 1 else {}
    history.audit(seen, at_s=10, hypervisor=replace(HOST, pci_devices=devices))

    again = ask(history, "again", "vm", pci=GPU, at_s=11)

    assert (got(first).pci_addresses, got(again).pci_addresses) == (("gpu0",), ("gpu1",))


def test_a_claim_behind_a_newcomers_in_one_record_still_shares_what_its_own_instance_has() -> None:
    history = host()
    ask(history, "first", "vm", numa=pins(2))

    step = history.claims(
        item("new", "vm of new", 1, numa=pins(1)), item("again", "vm", 1, numa=pins(2)), item("last", "vm of last", 1, numa=pins(3)), at_s=2
    )

    held = [outcome.granted.cells[0].held_cpus for outcome in step.outcomes if outcome.granted is not None]
    assert held == [(10,), (0, 1), (11, 12, 13)]


def test_items_of_one_record_get_different_cpus_all_or_none() -> None:
    history = host()

    both = history.claims(item("a", "vm a", 1, numa=pins(4)), item("b", "vm b", 1, numa=pins(4)), at_s=1)
    more = history.claims(item("c", "vm c", 1), item("d", "vm d", 1, numa=pins(1)), at_s=2)

    held = [outcome.granted.cells[0].held_cpus for outcome in both.outcomes if outcome.granted is not None]
    assert held == [(0, 1, 2, 3), (10, 11, 12, 13)]
    assert [outcome.outcome for outcome in more.outcomes] == ["refused", "refused"]


def test_what_is_released_is_free_unless_the_guest_is_still_seen_with_it() -> None:
    history = host()
    ask(history, "gone", numa=pins(4), pci=GPU)
    ask(history, "running", "vm", numa=pins(4), pci=GPU)
    history.audit({"vm": guest("vm", pinned_cpus=(10, 11, 12, 13), pci_addresses=("gpu1",))}, at_s=10, hypervisor=HOST)
    history.release("gone", at_s=11)
    history.release("running", at_s=11)

    granted = got(ask(history, "c", numa=pins(4), pci=GPU, at_s=12))

    assert (granted.cells[0].cell_id, granted.pci_addresses) == (0, ("gpu0",))
    assert shortfalls(ask(history, "d", numa=pins(1), at_s=12)) == ["numa_pcpus: guest cell 0 in host cell 0: 1 needed of 0"]


def test_an_event_that_names_no_cpus_frees_none() -> None:
    history = host(vm=guest("vm", pinned_cpus=(0, 1, 2, 3), pci_addresses=("gpu0",)))
    history.event("stopped", "vm", at_s=10, size=UNREPORTED)

    assert cpus(ask(history, "c", numa=pins(1), at_s=11)) == (10,)


def test_an_audit_that_shows_another_pinning_frees_the_old_cpus() -> None:
    history = host(vm=guest("vm", pinned_cpus=(0, 1, 2, 3)))
    history.audit({"vm": guest("vm", pinned_cpus=(10, 11, 12, 13))}, at_s=30, hypervisor=HOST)

    assert cpus(ask(history, "c", numa=pins(4), at_s=31)) == (0, 1, 2, 3)


def test_cells_that_an_event_protects_join_those_of_an_audit_until_the_next_one_says_the_same() -> None:
    history, listed = host(), {"vm": guest("vm", numa_cells=(1,))}
    history.event("started", "vm", at_s=10, size=guest("vm", numa_cells=(8,)))
    history.audit(listed, at_s=10, hypervisor=HOST)
    during = history.node().shown["vm"].report.numa_cells

    history.audit(at_s=60, unchanged=digest_of(listed))

    assert (during, history.node().shown["vm"].report.numa_cells) == ((1, 8), (1,))


@pytest.mark.parametrize("told", [(), ("gpu1", "gpu0")])
def test_devices_stay_in_the_order_in_which_they_were_told_where_no_other_list_joins_them(told: tuple[str, ...]) -> None:
    history, shown = host(), guest("vm", pci_addresses=("gpu1", "gpu0"))
    history.event("started", "vm", at_s=10, size=guest("vm", pci_addresses=told))
    history.audit({"vm": shown}, at_s=10, hypervisor=HOST)

    kept = ask(history, "kept", "vm", keep=True, at_s=11)

    assert got(kept).pci_addresses == ("gpu1", "gpu0")


def test_a_confirmed_resize_gives_back_what_the_older_claim_had() -> None:
    history = host()
    ask(history, "small", "vm", numa=pins(2))
    history.event("started", "vm", at_s=2, size=64)
    history.claims(item("large", "vm", 128, resize=True, numa=pins(4)), at_s=10)
    during = ask(history, "during", numa=pins(3), at_s=11)
    history.event("resized", "vm", at_s=20, size=128)

    assert history.ledger.claims["small"].pinned_cpus == history.ledger.claims["large"].pinned_cpus == (0, 1, 2, 3)
    assert cpus(during) == (10, 11, 12)


def test_pages_are_taken_by_claims_and_by_guests_that_only_the_host_knows() -> None:
    pages = HugePages(size_kib=2048, total=256, reserved=16, free=200)
    cell = NumaCell(cell_id=0, cpus=tuple(range(8)), memory_mib=1024, pages=(pages,))
    history = host(Hypervisor(vcpus=8, memory_mib=2048, numa_cells=(cell,)))
    history.configure(vcpus=ResourceRule(ratio_milli=None), memory_mib=ResourceRule(ratio_milli=None))

    first = ask(history, "a", numa=floats(1, 256, page_size="large"))
    second = ask(history, "b", numa=floats(1, 128, page_size_kib=2048))
    history.configure(pages_reserved=(HugePages(size_kib=2048, total=64),))
    third = ask(history, "c", numa=floats(1, 2, page_size_kib=2048))

    assert got(first).cells[0].page_size_kib == 2048
    assert shortfalls(second) == ["pages_2048_kib: guest cell 0 in host cell 0: 64 needed of 56"]
    assert got(third).cells[0].memory_mib == 2


def test_a_node_without_numa_data_fails_a_numa_request_and_no_other() -> None:
    history = History()
    history.audit(at_s=0, memory_mib=256)

    assert shortfalls(ask(history, "c", numa=floats(1))) == ["numa_cells: 1 needed, the node reports none"]
    assert fates(ask(history, "d")) == [("granted", "d")]


def test_a_hundred_guest_cells_more_than_a_host_has_are_refused_at_once() -> None:
    history = host()

    assert shortfalls(ask(history, "c", numa=floats(1) * 150)) == ["numa_cells: 150 needed of 2"]


def test_a_fold_that_starts_from_a_snapshot_gives_the_same_cpus() -> None:
    history = host(stranger=guest("stranger", pinned_cpus=(0,), numa_cells=(0,)))
    ask(history, "a", numa=pins(2), pci=GPU)
    other = restored(encoded(history.ledger))

    step = ask(history, "b", numa=pins(3), pci=GPU)

    again = other.apply(*history.records[-1])
    assert again is not None
    assert again.outcomes == step.outcomes
    assert other.digest == history.ledger.digest


def test_the_digest_tells_other_cpus_apart() -> None:
    digests = set()
    for held in ((), (0,), (1,)):
        history = host()
        node = history.node()
        before = history.ledger.digest
        assert before == host().ledger.digest
        if held:
            node.shown["vm"] = host(vm=guest("vm", pinned_cpus=held)).node().shown["vm"]
        ask(history, "c", numa=pins(1))
        digests.add(history.ledger.digest)

    assert len(digests) == 2


def test_pages_of_no_size_hold_nothing_and_end_no_reader() -> None:
    cell = NumaCell(cell_id=0, cpus=(0, 1, 2, 3), memory_mib=1024, pages=(HugePages(size_kib=0, total=9, free=3),))
    history = host(Hypervisor(vcpus=4, memory_mib=1024, disk_mib=10, numa_cells=(cell,)))

    granted = got(ask(history, "c", numa=floats(2)))

    assert [(each.cell_id, each.page_size_kib) for each in granted.cells] == [(0, 0)]
    assert shortfalls(ask(history, "large", numa=floats(2, page_size="large"))) != []


def test_a_core_without_cpus_ends_no_reader() -> None:
    cell = NumaCell(cell_id=0, dedicated_cpus=(0, 1, 2), siblings=((), (0, 1)), memory_mib=1024)
    history = host(Hypervisor(vcpus=3, pcpus=3, memory_mib=1024, numa_cells=(cell,)))

    assert cpus(ask(history, "c", numa=pins(2))) == (0, 1)


def test_hosts_that_differ_only_in_which_cpus_of_their_cores_are_held_stand_alike() -> None:
    cell = NumaCell(cell_id=0, dedicated_cpus=(0, 1, 2, 3), siblings=((0, 1), (2, 3)), memory_mib=1024)
    cores = Hypervisor(vcpus=4, pcpus=4, memory_mib=1024, numa_cells=(cell,))

    texts = [standing(host(cores, vm=guest("vm", pinned_cpus=held)).node()).text for held in ((0,), (3,), (0, 1), (2, 3), (0, 2))]

    assert texts[0] == texts[1] != texts[2] == texts[3] != texts[4]
