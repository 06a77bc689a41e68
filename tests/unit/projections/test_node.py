"""A node's row: limits from totals and the operator's rules, and use by rule 3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.node import NO_LIMIT, NO_TOTAL, Node, cut_to, largest
from schemas.claims import GroupMember
from schemas.inventory import Hypervisor, ResourceRule
from schemas.resources import RESOURCES, ObservedResources, Resources
from tests.ledger_history import History, full_use, item

AMOUNTS = st.integers(0, 1 << 50)


def test_the_limit_is_what_the_operator_leaves_of_the_total_times_the_ratio() -> None:
    node = Node("n1", vcpus=ResourceRule(reserved=2, ratio_milli=16_000), hypervisor=Hypervisor(vcpus=10))
    node.refresh()

    limit = node.limit("vcpus")

    assert limit == 128
    assert node.limits[0] == 128


def test_without_a_ratio_there_is_no_limit() -> None:
    node = Node("n1", vcpus=ResourceRule(ratio_milli=None), hypervisor=Hypervisor(vcpus=10))
    node.refresh()

    assert node.limit("vcpus") is None
    assert node.free("vcpus") is None
    assert node.limits[0] == NO_LIMIT


def test_what_no_audit_reports_has_no_total_and_nothing_fits_under_it() -> None:
    node = Node("n1", hypervisor=Hypervisor(vcpus=10))
    node.refresh()

    assert node.total("memory_mib") is None
    assert node.limits[2] == NO_TOTAL


def test_a_reserve_above_the_total_makes_a_limit_below_zero() -> None:
    node = Node("n1", memory_mib=ResourceRule(reserved=10), hypervisor=Hypervisor(memory_mib=4))
    node.refresh()

    assert node.limit("memory_mib") == -6
    assert node.free("memory_mib") == -6


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("rule", [ResourceRule(min_unit=2), ResourceRule(max_unit=9), ResourceRule(step_size=2)])
def test_one_rule_about_units_of_one_resource_is_a_closer_look(resource: str, rule: ResourceRule) -> None:
    ruled, plain = Node("n1"), Node("n1")
    setattr(ruled, resource, rule)
    setattr(plain, resource, ResourceRule(reserved=2, ratio_milli=None))

    ruled.refresh()
    plain.refresh()

    assert (ruled.whole_units, plain.whole_units) == (False, True)


def test_vectors_are_compared_resource_by_resource() -> None:
    assert largest((1, 6, 3, 8), (5, 2, 7, 4)) == largest((5, 2, 7, 4), (1, 6, 3, 8)) == (5, 6, 7, 8)
    assert cut_to((1, 6, 3, 8), (5, 2, 7, 4)) == (1, 2, 3, 4)
    assert cut_to((1, 2, 3, 4), (None, None, None, 0)) == (1, 2, 3, 0)


@given(total=AMOUNTS, reserved=AMOUNTS, ratio_milli=st.integers(1, 1 << 20), used=AMOUNTS)
def test_the_rounded_limit_says_the_same_as_the_unrounded_rule(total: int, reserved: int, ratio_milli: int, used: int) -> None:
    node = Node("n1", memory_mib=ResourceRule(reserved=reserved, ratio_milli=ratio_milli), hypervisor=Hypervisor(memory_mib=total))
    node.refresh()

    assert (used <= node.limits[2]) == (used * 1000 <= (total - reserved) * ratio_milli)


def test_the_operators_fields_stay_when_an_audit_comes_and_audits_totals_stay_when_the_operator_speaks() -> None:
    history = History()
    history.configure(memory_mib=ResourceRule(reserved=1, ratio_milli=1500), zone="east")
    history.audit(at_s=0, memory_mib=9)
    history.configure(zone="west", vcpus=ResourceRule(ratio_milli=4000))

    node = history.node()

    assert (node.limit("memory_mib"), node.limit("vcpus"), node.zone, node.total("memory_mib")) == (12, 256, "west", 9)


def test_claims_of_one_instance_on_one_node_overlap_rather_than_add_up() -> None:
    history = History()
    history.audit(at_s=0)
    history.claim("c1", "vm", 3, at_s=1)
    history.claim("c2", "vm", 2, at_s=2)
    history.claim("other", "vm2", 1, at_s=2)

    assert history.used() == 4


def test_the_order_of_claim_start_and_audit_does_not_matter() -> None:
    claim_first, start_first, audit_first = History(), History(), History()
    for history in (claim_first, start_first, audit_first):
        history.audit(at_s=0)
    claim_first.claim("c", "vm", 3, at_s=1)
    claim_first.event("started", "vm", size=3, at_s=2)
    claim_first.audit({"vm": 3}, at_s=3)
    start_first.event("started", "vm", size=3, at_s=2)
    start_first.claim("c", "vm", 3, at_s=2)
    start_first.audit({"vm": 3}, at_s=3)
    audit_first.audit({"vm": 3}, at_s=3)
    audit_first.claim("c", "vm", 3, at_s=3)
    audit_first.event("started", "vm", size=3, event_s=2, at_s=4)

    assert claim_first.used() == start_first.used() == audit_first.used() == 3


def test_a_shown_instance_uses_the_larger_of_its_observed_size_and_its_unconfirmed_claims() -> None:
    history = History()
    history.audit({"vm": 2}, at_s=0)
    history.claim("bigger", "vm", 5, at_s=10)

    assert history.used() == 5


def test_once_confirmed_the_observed_size_counts_and_no_longer_the_claimed_one() -> None:
    history = History()
    history.audit(at_s=0)
    history.claim("c", "vm", 5, at_s=1)
    history.audit({"vm": 4}, at_s=20)

    assert history.used() == 4


def test_a_resource_the_observation_does_not_report_counts_as_claimed_even_if_confirmed() -> None:
    history = History()
    history.audit(at_s=0)
    history.claims(item("c", "vm", 0, resources=Resources(vcpus=2, memory_mib=5)), at_s=1)
    history.audit({"vm": ObservedResources(vcpus=2)}, at_s=20)

    assert history.fates()[-1] == ("confirmed", "c")
    assert history.node().used == [2, 0, 5, 0]


def test_an_instance_no_longer_shown_counts_with_the_largest_of_its_held_claims() -> None:
    history = History()
    history.audit(at_s=0)
    history.claim("c", "vm", 5, at_s=1)
    history.audit({"vm": 3}, at_s=20)
    history.event("departed", "vm", at_s=30)

    assert history.used() == 5


def test_members_of_a_group_are_those_held_or_shown_and_a_guest_stays_one_after_its_claim_closed() -> None:
    history = History()
    group = GroupMember(group_id="g", policy="soft-anti-affinity")
    history.audit(at_s=0)
    history.claim("c1", "vm1", 1, group=group, at_s=1)
    history.claim("c2", "vm2", 1, group=group, at_s=1)
    history.audit({"vm1": 1}, at_s=20)
    history.release("c1", at_s=21)

    assert history.node().members("g") == {"vm1", "vm2"}


def test_io_operations_are_what_the_host_reports_and_the_claims_on_their_way() -> None:
    history = History()
    history.audit(hypervisor=Hypervisor(memory_mib=8, io_workload=3), at_s=0)
    history.claim("c1", "vm1", 1, at_s=1)
    history.claim("c2", "vm2", 1, at_s=1)
    history.event("started", "vm1", size=1, at_s=2)

    assert history.node().io_ops() == 4


@given(st.data())
def test_use_kept_is_use_recounted(data: st.DataObject) -> None:
    history = History()
    history.audit(at_s=0, memory_mib=100)
    for second in range(1, 12):
        instance = data.draw(st.sampled_from(["vm1", "vm2"]))
        size = data.draw(st.integers(0, 9) | st.just(ObservedResources(vcpus=2)))
        match data.draw(st.sampled_from(["claim", "event", "departure", "audit", "release"])):
            case "claim":
                resources = Resources(memory_mib=data.draw(st.integers(0, 9)), vcpus=data.draw(st.integers(0, 3)))
                history.claims(item(f"c{second}", instance, 0, resources=resources), at_s=second)
            case "event":
                history.event("started", instance, size=size, at_s=second)
            case "departure":
                history.event("departed", instance, at_s=second)
            case "audit":
                history.audit({instance: size}, at_s=second, memory_mib=100)
            case _:
                history.release(data.draw(st.sampled_from(history.held() or ["none"])), at_s=second)

        assert tuple(history.node().used) == full_use(history.node())
        assert history.node().io_claims == sum(claim.confirmed_ms is None for claim in history.node().held())
