"""What all sources share: order, digests, and audits that are short when nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from producers.source import FULL_EVERY, AuditSource, EventSource, audit_digest, epoch_after, said, send
from schemas.audits import AuditFailed, HypervisorAudited, InstanceReport
from schemas.codec import decode_keyed, encode
from schemas.envelope import from_headers
from schemas.inventory import Hypervisor, Metric, PciDevice, Physical
from schemas.lifecycle import InstanceArrived, InstanceDeleted
from schemas.resources import ObservedResources
from schemas.topics import AUDITS, LIFECYCLE

HOST = Hypervisor(vcpus=16, memory_mib=3_072)
ONE = InstanceReport(instance_id="i-1", resources=ObservedResources(vcpus=2))
TWO = InstanceReport(instance_id="i-2", resources=ObservedResources(vcpus=4))


def source(**options: Any) -> AuditSource:
    return AuditSource("compute-017.example.org", "libvirt", 1_763_700_000_000, **options)


def look(audits: AuditSource, *instances: InstanceReport, at_ms: int = 1_763_700_100_000, **options: Any) -> HypervisorAudited:
    return audits.audited(HOST, instances, taken_at_ms=at_ms, mono_ms=86_400_000, **options)


def test_the_first_audit_is_full_and_the_next_of_the_same_state_is_short() -> None:
    audits = source()

    first, second = look(audits, ONE), look(audits, ONE)

    assert (first.hypervisor, first.instances) == (HOST, (ONE,))
    assert (second.hypervisor, second.instances, second.digest) == (None, None, first.digest)
    assert len(encode(second)) < 200
    assert (first.counter, second.counter) == (1, 2)


def test_every_change_is_said_in_full() -> None:
    audits = source()
    look(audits, ONE)

    changed = look(audits, TWO, ONE)

    assert changed.instances == (ONE, TWO)
    assert look(audits, ONE, TWO).instances is None


def test_what_fits_no_record_is_no_audit_and_nothing_is_known_since_the_last_that_did() -> None:
    audits = source()
    look(audits, ONE, at_ms=1_000)

    why = r"with 2500 guests and 0 PCI devices, fits no record: expected at most 262144 bytes, got \d+; the guests take \d+ of them"
    with pytest.raises(ValueError, match=why):
        look(audits, *(InstanceReport(instance_id=f"i-{number}", name="n" * 100) for number in range(2_500)), at_ms=2_000)

    assert audits.failed("too large", taken_at_ms=2_000, mono_ms=1).unknown_since_ms == 1_000
    assert look(audits, ONE).instances is None


def test_what_fits_no_record_for_its_devices_is_not_laid_to_the_guests() -> None:
    devices = tuple(PciDevice(address=f"0000:81:{number:04x}", vendor_id="15b3", product_id="101e" * 25) for number in range(2_200))

    why = r"with 1 guests and 2200 PCI devices, fits no record: .*; the devices take \d+ of them, and a host .* sriov_numvfs"
    with pytest.raises(ValueError, match=why):
        source().audited(structs.replace(HOST, pci_devices=devices), (ONE,), taken_at_ms=1, mono_ms=1)


def test_every_kth_audit_is_full() -> None:
    audits = source(full_every=4)

    assert [look(audits, ONE).instances is not None for _ in range(9)] == [True, False, False, False, True, False, False, False, True]


def test_one_in_twenty_is_full_unless_another_number_is_asked_for() -> None:
    audits = source()

    assert sum(look(audits, ONE).instances is not None for _ in range(10 * FULL_EVERY)) == 10


def test_an_audit_that_misses_something_is_full_and_not_complete_and_so_is_the_next() -> None:
    audits = source()
    look(audits, ONE)

    partial = look(audits, ONE, unknown_instances=("i-9",))

    assert (partial.complete, partial.unknown_instances, partial.instances) == (False, ("i-9",), (ONE,))
    assert look(audits, ONE, unknown_instances=("i-9",)).instances == (ONE,)
    whole = look(audits, ONE)
    assert (whole.complete, whole.instances) == (True, (ONE,))


def test_after_a_record_that_was_not_acknowledged_the_next_is_full() -> None:
    audits = source()
    look(audits, ONE)

    audits.forget()

    assert look(audits, ONE).instances == (ONE,)


def test_a_failure_says_since_when_nothing_is_known() -> None:
    audits = source()
    assert audits.failed("", taken_at_ms=50, mono_ms=1) == AuditFailed(
        node_id="compute-017.example.org",
        producer="libvirt",
        epoch=1_763_700_000_000,
        counter=1,
        taken_at_ms=50,
        mono_ms=1,
        reason="no reason given",
        unknown_since_ms=50,
    )
    look(audits, ONE, at_ms=60)

    later = audits.failed("x" * 5_000, taken_at_ms=70, mono_ms=2)

    assert (later.unknown_since_ms, later.counter, len(later.reason)) == (60, 3, 4_096)


def test_an_unchanged_audit_after_a_failure_still_stands_for_the_last_full_one() -> None:
    audits = source()
    full = look(audits, ONE)
    audits.failed("no answer", taken_at_ms=1, mono_ms=1)

    assert look(audits, ONE).digest == full.digest


@given(st.permutations([ONE, TWO, InstanceReport(instance_id="i-0")]))
def test_the_digest_does_not_depend_on_the_order_of_instances(instances: list[InstanceReport]) -> None:
    assert audit_digest(HOST, instances) == audit_digest(HOST, sorted(instances, key=lambda each: each.instance_id))


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_the_hosts_own_figures_do_not_make_an_audit_changed(free_mib: int, value_milli: int) -> None:
    busy = Hypervisor(
        vcpus=16, memory_mib=3_072, physical=Physical(memory_mib_free=free_mib), metrics=(Metric(name="cpu", value_milli=value_milli),)
    )

    assert audit_digest(busy, ()) == audit_digest(HOST, ())
    assert audit_digest(Hypervisor(vcpus=17, memory_mib=3_072), ()) != audit_digest(HOST, ())


@given(st.none() | st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_an_epoch_is_above_the_last_one_even_if_the_clock_went_back(last: int | None, start_ms: int) -> None:
    epoch = epoch_after(last, start_ms)

    assert epoch >= start_ms
    assert last is None or epoch > last


def test_events_are_numbered_and_carry_what_they_know() -> None:
    events = EventSource("n1", "libvirt", 7)

    first = events.event(InstanceArrived, ONE, 100, resync=True)
    second = events.event(InstanceDeleted, ONE, 200, claim_id="c-1")

    assert (first.counter, first.resync, first.claim_id) == (1, True, None)
    assert (second.counter, second.epoch, second.event_time_ms, second.claim_id) == (2, 7, 200, "c-1")


def test_what_is_sent_reads_back_under_its_key_and_says_who_spoke() -> None:
    sent: list[tuple[str, bytes, bytes, Any]] = []
    audit = look(source(), ONE)
    event = EventSource("n1", "libvirt", 7).event(InstanceArrived, ONE, 100)

    send(lambda *message: sent.append(message), AUDITS, audit)
    send(lambda *message: sent.append(message), LIFECYCLE, event)

    assert [decode_keyed(topic, key, value) for topic, key, value, _ in sent] == [audit, event]
    envelope = from_headers(sent[1][3])
    assert (envelope.event_id, envelope.source, envelope.subject) == ("instance-lifecycle/libvirt/n1/7.1", "claimlog/libvirt", "n1")
    assert said(LIFECYCLE, event).headers == sent[1][3]


def test_what_publishing_raises_goes_through() -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        send(full, AUDITS, look(source(), ONE))
