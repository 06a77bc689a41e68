"""A node's row: limit, the three views, use, free and gap."""

from __future__ import annotations

import pytest

from projections.ledger import Ledger
from projections.observed import Observed
from projections.rows import node_resources
from schemas.codec import decode, encode
from schemas.inventory import Aggregate, Hypervisor, ResourceRule
from schemas.resources import ObservedResources, Resources
from schemas.results import NodeResources, ResourceRow
from schemas.topics import NODE_RESOURCES
from schemas.units import AMOUNT_MAX
from tests.ledger_history import START_MS, History, item


def row(history: History, leaks: int = 0) -> NodeResources:
    """The row of n1 after a history; written and read, as `node-resources` has it."""
    ledger, views = Ledger(0, 1), Observed(0)
    for written in history.records:
        step = ledger.apply(*written)
        assert step is not None
        views.apply(ledger, step)
    resources = node_resources(ledger, "n1", views, leaks)
    assert decode(NODE_RESOURCES, encode(resources)) == resources
    return resources


@pytest.fixture
def history() -> History:
    return History()


def test_the_row_of_a_healthy_node_adds_up_with_a_gap_of_nothing(history: History) -> None:
    host = Hypervisor(vcpus=8, pcpus=0, memory_mib=1000, disk_mib=500, host_uuid="u", hypervisor_type="QEMU", traits=("HW_AVX",))
    size = Resources(vcpus=2, memory_mib=300, disk_mib=100)
    listed = {"i": ObservedResources(vcpus=2, pcpus=0, memory_mib=300, disk_mib=100)}
    history.configure(
        memory_mib=ResourceRule(reserved=200, ratio_milli=1500), zone="az1", traits=("CUSTOM_GOLD",), aggregates=(Aggregate(name="ssd"),)
    )
    history.audit({}, at_s=0, hypervisor=host)
    history.claims(item("c", "i", 0, resources=size), at_s=1)
    history.event("started", "i", at_s=2, size=listed["i"])
    history.audit(listed, at_s=60, hypervisor=host)

    found = row(history, leaks=2)

    assert found.memory_mib == ResourceRow(
        total=1000, reserved=200, ratio_milli=1500, limit=1200, reported=300, tracked=300, claimed=300, used=300, free=900, gap=0
    )
    assert (found.vcpus.free, found.disk_mib.free, found.pcpus.gap) == (6, 400, 0)
    assert (found.instances, found.claims, found.claims_unconfirmed, found.leaks) == (1, 1, 0, 2)
    assert (found.zone, found.traits, found.host_uuid) == ("az1", ("CUSTOM_GOLD", "HW_AVX"), "u")
    assert found.aggregates == (Aggregate(name="ssd"),)
    assert (found.audit_taken_at_ms, found.audit_complete, found.offset) == (START_MS + 60_000, True, 4)


def test_claims_of_one_instance_overlap_in_the_claimed_view_as_they_do_in_use(history: History) -> None:
    history.audit({}, at_s=0, memory_mib=32)
    history.claim("first", "i", 4, at_s=1)
    history.claim("second", "i", 6, at_s=2)
    history.claim("other", "j", 1, at_s=3)

    assert (row(history).memory_mib.claimed, row(history).memory_mib.used) == (7, 7)
    assert row(history).claims_unconfirmed == 3


def test_an_unclaimed_guest_is_used_and_reported_but_not_claimed_and_a_gap_has_its_sign(history: History) -> None:
    history.audit({"ghost": 4}, at_s=0, memory_mib=16)
    history.event("started", "late", at_s=1, size=3)

    found = row(history).memory_mib

    assert (found.reported, found.tracked, found.claimed, found.used, found.gap) == (4, 3, 0, 7, -1)


def test_what_nothing_reports_is_unknown_and_a_node_over_its_limit_has_negative_free(history: History) -> None:
    history.configure(memory_mib=ResourceRule(ratio_milli=None))
    assert row(history).memory_mib == ResourceRow(ratio_milli=None)

    history.configure(memory_mib=ResourceRule())
    history.audit({"i": 10}, at_s=0, memory_mib=8)
    assert row(history).memory_mib.free == -2
    assert row(history).memory_mib.gap is None


def test_failed_and_missing_audits_show_since_when_nothing_is_known(history: History) -> None:
    history.audit({}, at_s=0)
    history.audit(at_s=60, failed="unreachable")
    history.silent(at_s=200, epoch=1, counter=2)

    found = row(history)

    assert (found.unknown_since_ms, found.silent_since_ms) == (START_MS + 60_000, START_MS + 200_000)
    assert found.audit_taken_at_ms == START_MS


def test_absurd_settings_give_a_row_that_can_still_be_read(history: History) -> None:
    history.configure(memory_mib=ResourceRule(ratio_milli=AMOUNT_MAX), vcpus=ResourceRule(reserved=AMOUNT_MAX))
    history.audit({f"i{n}": AMOUNT_MAX for n in range(3)}, at_s=0, memory_mib=AMOUNT_MAX)

    found = row(history)

    assert (found.memory_mib.limit, found.memory_mib.used, found.memory_mib.reported) == (AMOUNT_MAX, AMOUNT_MAX, AMOUNT_MAX)
    assert found.vcpus.limit == 64 - AMOUNT_MAX
