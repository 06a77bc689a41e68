"""The one feasibility function: every shortfall is named, and the quick way never disagrees with the long one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from projections import fit
from projections.node import Node
from schemas.claims import ClaimItem, GroupMember
from schemas.inventory import Hypervisor, ResourceRule
from schemas.resources import Limits, Resources, Shortfall
from tests.ledger_history import History, Size, fates, item, shortfalls

APART = GroupMember(group_id="g", policy="anti-affinity")


def host(listed: Mapping[str, Size] | None = None, **totals: Any) -> History:
    """A node of 8 MiB, unless told, with what is listed on it."""
    history = History()
    history.audit(listed, hypervisor=Hypervisor(**({"memory_mib": 8, "vcpus": 4} | totals)), at_s=0)
    return history


def lacks(history: History, wanted: ClaimItem, overlay: tuple[ClaimItem, ...] = ()) -> list[str]:
    return [str(lack) for lack in fit.fits(history.node(), wanted, "request", overlay)]


def test_a_claim_that_overruns_the_node_names_every_shortfall() -> None:
    history = host({"there": 5})

    found = lacks(history, item("c", "vm", 0, resources=Resources(vcpus=5, memory_mib=4)))

    assert found == ["vcpus: 5 needed of 4", "memory_mib: 4 needed of 3"]


def test_the_last_mib_is_granted_and_not_one_more() -> None:
    history = host({"there": 5})

    assert lacks(history, item("c", "vm", 3)) == []
    assert lacks(history, item("c", "vm", 4)) == ["memory_mib: 4 needed of 3"]


def test_a_resource_not_asked_for_is_not_tested() -> None:
    history = host({"there": 12})

    assert lacks(history, item("c", "vm", 0, resources=Resources(vcpus=1))) == []


def test_on_a_node_below_zero_nothing_new_fits_but_what_is_claimed_there_and_needs_no_more_does() -> None:
    history = host({})
    history.claim("first", "there", 5, at_s=1)
    history.audit({"there": 12}, at_s=20)

    assert lacks(history, item("c", "vm", 1)) == ["memory_mib: 1 needed of -4"]
    assert lacks(history, item("c", "there", 12)) == []


def test_the_first_claim_of_an_instance_that_is_only_shown_must_find_its_whole_size_below_the_limit() -> None:
    """It may be shown by an audit that arrived after the instance had left and its room was given to others."""
    history = host({"there": 12})

    assert lacks(history, item("c", "there", 12)) == ["memory_mib: 12 needed of 8"]
    assert lacks(history, item("c", "there", 1)) == ["memory_mib: 12 needed of 8"]


def test_a_claim_of_an_instance_already_there_needs_only_its_growth() -> None:
    history = host({})
    history.claim("first", "vm", 5, at_s=1)
    history.audit({"vm": 5}, at_s=20)

    assert lacks(history, item("c", "vm", 8)) == []
    assert lacks(history, item("c", "vm", 9)) == ["memory_mib: 4 needed of 3"]


def test_nothing_fits_a_node_no_audit_is_known_of() -> None:
    history = History()
    history.configure(status="enabled")

    assert lacks(history, item("c", "vm", 1)) == ["node: no audit of it is known"]
    assert [str(lack) for lack in fit.fits(None, item("c", "vm", 1), "request")] == ["node: no audit of it is known"]


def test_what_asks_for_a_resource_the_node_does_not_report_does_not_fit_even_if_forced() -> None:
    history = host()
    wanted = item("c", "vm", 0, resources=Resources(disk_mib=1), forced=True)

    assert lacks(history, wanted) == ["disk_mib: the node reports no total of it"]


def test_a_node_that_is_not_enabled_takes_nothing_and_says_why() -> None:
    history = host()
    history.configure(status="draining", reason="new disks")

    assert lacks(history, item("c", "vm", 1)) == ["status: draining (new disks)"]
    assert lacks(history, item("c", "vm", 1, forced=True)) == ["status: draining (new disks)"]


def test_units_hold_for_what_is_asked_for() -> None:
    history = host()
    history.configure(memory_mib=ResourceRule(min_unit=2, max_unit=6, step_size=2))

    assert lacks(history, item("c", "vm", 1)) == [
        "min_unit: memory_mib: 1 needed, at least 2 must be asked for",
        "step_size: memory_mib: 1 needed, only multiples of 2 are given",
    ]
    assert lacks(history, item("c", "vm", 8)) == ["max_unit: memory_mib: 8 needed, at most 6 may be asked for"]
    assert lacks(history, item("c", "vm", 4)) == []


def test_a_forced_claim_skips_ratio_and_limits_and_its_overrun_is_named() -> None:
    history = host({"there": 5})
    wanted = item("c", "vm", 9, forced=True, limits=Limits(memory_mib=1, instances_max=0))

    over = fit.overrun(history.node(), wanted)

    assert lacks(history, wanted) == []
    assert over == (Shortfall(resource="memory_mib", needed=9, free=3),)


def test_the_overrun_of_a_forced_claim_counts_the_claims_before_it_in_its_record() -> None:
    history = host()

    step = history.claims(item("a", "vm1", 6, forced=True), item("b", "vm2", 6, forced=True), at_s=1)

    assert [outcome.overrun for outcome in step.outcomes] == [(), (Shortfall(resource="memory_mib", needed=6, free=2),)]


def test_a_claim_carries_limits_of_the_nodes_use() -> None:
    history = host({"there": 5})

    assert lacks(history, item("c", "vm", 2, limits=Limits(memory_mib=6))) == ["memory_mib: 2 needed of 1"]
    assert lacks(history, item("c", "vm", 1, limits=Limits(memory_mib=6))) == []


def test_the_limit_of_instances_counts_those_shown_and_claimed_but_not_the_instance_itself() -> None:
    history = host({"there": 1})
    history.claim("c1", "claimed", 1, at_s=1)

    assert lacks(history, item("c", "vm", 1, limits=Limits(instances_max=2))) == ["instances: 1 needed of 0"]
    assert lacks(history, item("c", "vm", 1, limits=Limits(instances_max=3))) == []
    assert lacks(history, item("c", "there", 1, limits=Limits(instances_max=1))) == []


def test_the_limit_of_io_counts_claims_until_they_are_confirmed() -> None:
    history = host()
    history.claim("c1", "vm1", 1, at_s=1)

    assert lacks(history, item("c", "vm", 1, limits=Limits(io_ops_max=1))) == ["io_ops: 1 needed of 0"]

    history.event("started", "vm1", size=1, at_s=2)

    assert lacks(history, item("c", "vm", 1, limits=Limits(io_ops_max=1))) == []


def test_members_of_an_anti_affinity_group_stay_apart() -> None:
    history = host()
    history.claim("c1", "vm1", 1, group=APART, at_s=1)
    two_allowed = GroupMember(group_id="g", policy="anti-affinity", max_per_node=2)

    assert lacks(history, item("c", "vm2", 1, group=APART)) == ["group: 1 needed of 0"]
    assert lacks(history, item("c", "vm2", 1, group=two_allowed)) == []
    assert lacks(history, item("c", "vm1", 1, group=APART)) == []
    assert lacks(history, item("c", "vm2", 1, group=GroupMember(group_id="other", policy="anti-affinity"))) == []


def test_a_soft_group_keeps_nobody_out() -> None:
    history = host()
    history.claim("c1", "vm1", 1, group=APART, at_s=1)

    assert lacks(history, item("c", "vm2", 1, group=GroupMember(group_id="g", policy="soft-anti-affinity"))) == []


def test_overlaid_claims_count_like_claims_already_made() -> None:
    history = host()
    before = (item("a", "vm1", 5, group=APART),)

    assert lacks(history, item("c", "vm2", 4), before) == ["memory_mib: 4 needed of 3"]
    assert lacks(history, item("c", "vm1", 8), before) == []
    assert lacks(history, item("c", "vm2", 1, group=APART), before) == ["group: 1 needed of 0"]
    assert lacks(history, item("c", "vm2", 1, limits=Limits(instances_max=1)), before) == ["instances: 1 needed of 0"]
    assert lacks(history, item("c", "vm2", 1, limits=Limits(io_ops_max=1)), before) == ["io_ops: 1 needed of 0"]


def test_a_resize_waits_until_no_other_requests_claim_of_the_instance_is_on_its_way() -> None:
    history = host({"vm": 2})
    first = history.claim("c1", "vm", 4, resize=True, at_s=10)

    second = history.claim("c2", "vm", 3, resize=True, at_s=11)
    same_request = history.claim("c3", "vm", 3, resize=True, request_id="of c1", at_s=12)

    assert fates(first) == [("granted", "c1")]
    assert shortfalls(second) == ["resize: another request's claim of this instance is not confirmed yet"]
    assert fates(same_request) == [("granted", "c3")]


RULES = st.builds(
    ResourceRule,
    reserved=st.integers(0, 3),
    ratio_milli=st.none() | st.sampled_from([1, 500, 999, 1000, 1001, 1500]),
    min_unit=st.integers(1, 2),
    max_unit=st.none() | st.integers(2, 9),
    step_size=st.integers(1, 2),
)
ITEMS = st.builds(
    ClaimItem,
    claim_id=st.sampled_from(["c1", "c2", "c3"]),
    instance_id=st.sampled_from(["vm1", "vm2", "vm3"]),
    nodes=st.just(("n1",)),
    resources=st.builds(Resources, vcpus=st.integers(0, 4), memory_mib=st.integers(0, 9), disk_mib=st.integers(0, 2)),
    resize=st.booleans(),
    forced=st.booleans(),
    limits=st.none() | st.builds(Limits, memory_mib=st.none() | st.integers(0, 12), instances_max=st.none() | st.integers(0, 3)),
    group=st.none() | st.just(APART),
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Any small node: totals reported or not, rules of every kind, guests, claims confirmed and not."""
    history = History()
    rules = st.just(ResourceRule()) | RULES
    history.configure(vcpus=draw(rules), memory_mib=draw(rules), disk_mib=draw(rules))
    totals = st.integers(6, 30) | st.none() | st.integers(0, 12)
    listed: dict[str, Size] = {i: draw(st.integers(0, 5)) for i in draw(st.sets(st.sampled_from(["vm1", "vm4"])))}
    history.audit(listed, hypervisor=Hypervisor(vcpus=draw(totals), memory_mib=draw(totals), disk_mib=draw(totals)), at_s=0)
    for second, wanted in enumerate(draw(st.lists(ITEMS, max_size=2, unique_by=lambda each: each.claim_id)), start=10):
        history.claims(wanted, at_s=second)
    return history.node()


@given(node=nodes(), wanted=ITEMS)
def test_the_quick_way_never_disagrees_with_the_long_way(node: Node, wanted: ClaimItem) -> None:
    assume(wanted.limits is None)  # They count the claims of an overlay.
    # An overlay that changes nothing, so that only the long way is open.
    nothing = ClaimItem(claim_id="c0", instance_id="nobody", nodes=("n1",), resources=Resources())

    quick = fit.fits(node, wanted, "request")

    assert quick == fit.fits(node, wanted, "request", (nothing,))


@given(node=nodes(), wanted=ITEMS, other=ITEMS)
def test_what_fits_beside_others_fits_alone(node: Node, wanted: ClaimItem, other: ClaimItem) -> None:
    beside = fit.fits(node, wanted, "request", (other,))

    alone = fit.fits(node, wanted, "request")

    # A claim of the same instance beside it may have taken the growth upon itself.
    assert beside or not alone or other.instance_id == wanted.instance_id


@given(node=nodes(), wanted=ITEMS)
def test_a_claim_that_fits_leaves_no_resource_it_asked_for_below_zero(node: Node, wanted: ClaimItem) -> None:
    fitting = not wanted.forced and not fit.fits(node, wanted, "request")

    before, after = fit.growth(node, wanted, ())

    for r, name in enumerate(("vcpus", "pcpus", "memory_mib", "disk_mib")):
        limit = node.limit(name)
        if fitting and limit is not None and getattr(wanted.resources, name) and after[r] > before[r]:
            assert node.used[r] + after[r] - before[r] <= limit
