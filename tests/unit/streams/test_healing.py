"""What mends a finding is refused where it may not be so any more: one history each."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from projections.observed import NodeView
from schemas.audits import InstanceReport
from schemas.claims import ClaimReleased
from schemas.codec import decode
from schemas.findings import LeakConfirmed
from schemas.inventory import Hypervisor, NumaCell, PciDevice
from schemas.requests import NumaWant, PciWant
from schemas.resources import ObservedResources, Resources
from schemas.topics import CLAIMS
from streams.healing import Place, Remedy, adopted, remedy
from streams.operator import Stamp
from tests.ledger_history import START_MS, History, item

AGE_S = 60


def claimed(*, shown: bool) -> History:
    """A claim, and an audit two minutes later that shows its guest or does not."""
    history = History()
    history.audit({}, at_s=0)
    history.claim("c", "i", 4, at_s=1)
    history.audit({"i": 4} if shown else {}, at_s=120)
    return history


def mended(history: History, kind: Any, *, at_s: int = 130, fix: str = "claimlog claims release c", note: str = "") -> Remedy:
    """What would mend a confirmed finding of this kind about the claim, a while after the audit."""
    finding = LeakConfirmed(
        finding_id=f"{kind}/n1/c", kind=kind, node_id="n1", instance_id="i", claim_id="c",
        partition=0, offset=2, time_ms=0, since_ms=0, suspected_ms=0, fix=fix, note=note,
    )  # fmt: skip
    stamp = Stamp("x", START_MS + at_s * 1000)
    return remedy(finding, Place(history.node(), 3, NodeView()), stamp, report_age_ms=AGE_S * 1000)


@pytest.mark.parametrize("kind", ["orphan-claim", "vanished-claim", "double-claim"])
def test_no_claim_is_given_back_from_under_a_guest_that_is_shown(kind: str) -> None:
    there, gone = mended(claimed(shown=True), kind), mended(claimed(shown=False), kind)

    assert (there.messages, there.says) == ((), "i is shown on n1: delete the guest there first")
    assert [type(decode(CLAIMS, message.value)) for message in gone.messages] == [ClaimReleased]


def test_no_side_of_a_double_is_given_back_while_nothing_says_which() -> None:
    waits = mended(claimed(shown=False), "double-claim", fix="", note="audits of n1 have only begun to omit the guest")

    assert (waits.messages, waits.says) == ((), "not yet: audits of n1 have only begun to omit the guest")


@pytest.mark.parametrize("kind", ["expired-claim", "stranded-claim"])
def test_a_claim_that_stands_for_nothing_is_given_back_whatever_is_shown(kind: str) -> None:
    assert len(mended(claimed(shown=True), kind).messages) == 1


def test_who_is_shown_by_now_is_not_said_to_have_left() -> None:
    there, gone = mended(claimed(shown=True), "stale-instance"), mended(claimed(shown=False), "stale-instance")

    assert (there.messages, there.says) == ((), "i is shown on n1 by now")
    assert len(gone.messages) == 1


@pytest.mark.parametrize("since", ["unknown_since_ms", "silent_since_ms"])
def test_nothing_is_mended_on_a_node_whose_audits_fail_or_do_not_come(since: str) -> None:
    history = claimed(shown=False)
    setattr(history.node(), since, START_MS)

    assert mended(history, "orphan-claim").messages == ()
    assert len(mended(history, "stranded-claim").messages) == 1, "of a withdrawn node nothing else will ever be known"


def test_a_report_may_be_as_old_as_is_allowed_and_no_older() -> None:
    history = claimed(shown=False)

    in_time, late = (mended(history, "orphan-claim", at_s=120 + age_s) for age_s in (AGE_S, AGE_S + 1))
    history.node().full = None
    without = mended(history, "orphan-claim")

    assert len(in_time.messages) == 1
    assert (late.messages, late.says.split(";")[0]) == ((), "the last complete audit of n1 is 61 s old")
    assert (without.messages, without.says.split(";")[0]) == ((), "the last complete audit of n1 is missing")


def test_a_size_is_not_claimed_of_what_is_not_shown_or_not_claimed() -> None:
    unclaimed = History()
    unclaimed.audit({"i": 4}, at_s=120)

    assert [mended(each, "size-drift").messages for each in (claimed(shown=False), unclaimed)] == [(), ()]


def test_an_adopted_guest_is_claimed_with_the_devices_that_it_has_of_those_that_its_host_lists() -> None:
    history = History()
    devices = (
        PciDevice(address="a", device_type="type-PF"),
        PciDevice(address="b", tags={"remote_managed": "true"}),
        PciDevice(address="c"),
    )
    host = Hypervisor(vcpus=8, pcpus=0, memory_mib=64, disk_mib=64, pci_devices=devices)
    there = InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=4), pci_addresses=("a", "b", "unlisted"))
    history.audit({"i": there}, at_s=0, hypervisor=host)

    mends = adopted(ghost(), Place(history.node(), 0, NodeView()), Stamp("x", START_MS + 10_000))

    assert mends.says == "claim 4 MiB, device a, device b for i on n1"
    (message,) = mends.messages
    history.append(message.key or b"", message.value, at_s=10)
    (claim,) = history.node().claims["i"]
    assert (claim.amounts[2], claim.pci_addresses) == (4, ("a", "b"))


def test_nothing_is_claimed_for_a_finding_that_cannot_be_adopted_or_a_guest_that_is_not_there() -> None:
    stamp, gone = Stamp("x", START_MS + 130_000), History()
    gone.audit({}, at_s=0)

    expired = adopted(replace(ghost(), kind="expired-claim"), Place(claimed(shown=False).node(), 0, NodeView()), stamp)
    left = adopted(ghost(), Place(gone.node(), 0, NodeView()), stamp)

    assert (expired.messages, expired.says) == ((), "no expired-claim can be adopted: only an instance that is there without a claim can")
    assert (left.messages, left.says) == ((), "no observation shows i on n1 now, so there is nothing to claim")


def test_an_adoption_says_that_no_cells_and_cpus_are_claimed_where_the_guest_is_bound_to_some() -> None:
    history = History()
    bound = InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=4), pinned_cpus=(1, 2))
    history.audit({"i": bound}, at_s=0)

    mends = adopted(ghost(), Place(history.node(), 0, NodeView()), Stamp("x", START_MS + 10_000))

    assert mends.says == "claim 4 MiB for i on n1, but not the cells and CPUs that it is bound to"


def ghost() -> LeakConfirmed:
    return LeakConfirmed(
        finding_id="ghost-instance/n1/i", kind="ghost-instance", node_id="n1", instance_id="i",
        partition=0, offset=1, time_ms=0, since_ms=0, suspected_ms=0,
    )  # fmt: skip


def test_a_size_is_claimed_in_other_words_where_an_earlier_one_of_the_same_words_was_cut_by_a_resize() -> None:
    """Four CPUs, then two, which were given back; the guest has its four again. A claim in the words of the first is granted two."""
    wants = tuple((NumaWant(cpus=tuple(range(count)), memory_mib=4, cpu_policy="dedicated"),) for count in (4, 2))
    cell = NumaCell(cell_id=0, dedicated_cpus=tuple(range(8)), memory_mib=64)
    fields: dict[str, Any] = {"hypervisor": Hypervisor(vcpus=0, pcpus=8, memory_mib=64, disk_mib=64, numa_cells=(cell,))}
    report = InstanceReport(instance_id="i", resources=ObservedResources(pcpus=4, memory_mib=4), pinned_cpus=(0, 1, 2, 3))
    smaller = replace(report, resources=ObservedResources(pcpus=2, memory_mib=4), pinned_cpus=(0, 1))
    history = History()
    history.audit({}, at_s=0, **fields)
    history.claims(item("c", "i", 4, numa=wants[0], resources=Resources(pcpus=4, memory_mib=4)), at_s=1)
    history.audit({"i": report}, at_s=20, **fields)
    history.claims(item("d", "i", 4, numa=wants[1], resources=Resources(pcpus=2, memory_mib=4), resize=True), at_s=21)
    history.audit({"i": smaller}, at_s=40, **fields)
    history.release("d")
    history.audit({"i": report}, at_s=60, **fields)

    mends = mended(history, "size-drift", at_s=61)

    assert mends.says == "claim 4 pCPUs, 4 MiB for i, as its host shows it"
    (message,) = mends.messages
    history.append(message.key or b"", message.value, at_s=61)
    (mending,) = (claim for claim in history.node().claims["i"] if claim.claim_id != "c")
    assert [len(cell.pinned_cpus) for cell in mending.cells] == [4]


def test_a_size_without_cells_and_devices_is_claimed_again_however_often_they_came_and_went() -> None:
    history = History()
    device = PciDevice(address="a", vendor_id="v")
    fields: dict[str, Any] = {"hypervisor": Hypervisor(vcpus=8, pcpus=0, memory_mib=64, disk_mib=64, pci_devices=(device,))}
    plain = InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=4))
    history.audit({}, at_s=0, **fields)
    want = PciWant(alias="gpu", specs=({"vendor_id": "v"},))
    for number, pci in enumerate(((), (want,), ())):
        history.claims(item(f"c{number}", "i", 4, pci=pci, resize=number > 0), at_s=1 + 20 * number)
        history.audit({"i": replace(plain, pci_addresses=("a",) if pci else ())}, at_s=20 + 20 * number, **fields)
    history.audit({"i": replace(plain, resources=ObservedResources(memory_mib=6))}, at_s=80, **fields)

    assert mended(history, "size-drift", at_s=81).says == "claim 6 MiB for i, as its host shows it"
