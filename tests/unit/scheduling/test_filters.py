"""Each filter: whom it rejects and what an operator reads; none of them when there is nothing to test."""

from __future__ import annotations

from typing import Any

import pytest

from projections.fit import fits
from projections.node import Node
from projections.room import Room, mark_of, room
from schemas.claims import ClaimItem, GroupMember
from schemas.inventory import Aggregate, Hypervisor, ResourceRule
from schemas.requests import Flavor, Hints, PlacementRequested, ServerGroup
from schemas.resources import Limits, Resources, Shortfall
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.filters import FILTERS, LAST, RESTRICTIONS, Filter, reason, rests_on_labels
from streams.scheduling.filters.amounts import limit_told, shortfalls_told, told_now
from streams.scheduling.policy import DEFAULT, Policy

ALL = {filter_.name: filter_ for filter_ in (*RESTRICTIONS, *FILTERS.values(), LAST)}


def node(name: str = "n1", *, hypervisor: Hypervisor | None = None, used: tuple[int, int, int, int] = (0, 0, 0, 0), **fields: Any) -> Node:
    host = Node(name, hypervisor=hypervisor or Hypervisor(vcpus=8, pcpus=2, memory_mib=4096, disk_mib=10_240), **fields)
    host.used = list(used)
    return host


def with_instances(host: Node, *instance_ids: str, group: str = "") -> Room:
    """The node with claims in flight for these instances."""
    member = GroupMember(group_id=group, policy="anti-affinity") if group else None
    items = [ClaimItem(claim_id=i, instance_id=i, nodes=(host.node_id,), resources=Resources(), group=member) for i in instance_ids]
    return room(host, 0, mark_of(host.node_id), items)


def ask(group_nodes: frozenset[str] = frozenset(), **request: Any) -> Ask:
    options: dict[str, Any] = {"request_id": "r", "flavor": Flavor(vcpus=1, memory_mib=512), "instance_ids": ("i",)} | request
    return ask_of(PlacementRequested(**options), 0, seed=1, group_nodes=group_nodes)


def why(name: str, asked: Ask, host: Node | Room) -> str | None:
    there = host if isinstance(host, Room) else room(host, 0, mark_of(host.node_id))
    return reason(ALL[name], asked, there)


APART = "ServerGroupAntiAffinityFilter"
OF_NODES = {
    "AggregateMultiTenancyIsolation",
    "AggregateTypeAffinityFilter",
    "TypeAffinityFilter",
    "isolate_aggregates",
    "require_tenant_aggregate",
}
ALWAYS = {"ComputeFilter", "fit"} | OF_NODES
AMOUNTS = ("Core", "Ram", "IoOps", "NumInstances", "Exact")
ON_REQUEST = [each for each in ALL.values() if each.name not in ALWAYS and not any(word in each.name for word in AMOUNTS)]


@pytest.mark.parametrize("filter_", ON_REQUEST, ids=lambda filter_: filter_.name)
def test_a_filter_takes_no_part_where_the_request_gives_it_nothing_to_test(filter_: Filter) -> None:
    assert filter_.prepare(ask()) is None


def test_ignored_forced_requested_and_tried_nodes() -> None:
    assert why("ignored-nodes", ask(ignored_nodes=("n1",)), node()) == "the request ignores it"
    assert why("ignored-nodes", ask(ignored_nodes=("n2",)), node()) is None
    assert why("forced-nodes", ask(forced_nodes=("n2", "n3", "n4", "n5")), node()) == "forced to n2, n3, n4 and 1 more"
    assert why("forced-nodes", ask(forced_nodes=("n1",)), node()) is None
    assert why("requested-nodes", ask(requested_nodes=("n2",)), node()) == "requested on n2"
    assert why("requested-nodes", ask(requested_nodes=("n1",)), node()) is None
    assert why("RetryFilter", ask(retry_nodes=("n1",)), node()) == "it was tried there before"
    assert why("RetryFilter", ask(retry_nodes=("n2",)), node()) is None


def test_a_move_leaves_its_node_and_a_resize_stays() -> None:
    assert why("source-node", ask(action="migrate", source_node="n1"), node()) == "the instance leaves it"
    assert why("source-node", ask(action="evacuate", source_node="n2"), node()) is None
    assert why("source-node", ask(action="resize", source_node="n2"), node()) == "a resize stays on n2"
    assert why("source-node", ask(action="resize", source_node="n1"), with_instances(node(), "i")) is None
    assert why("source-node", ask(action="resize", source_node="n1"), node()) == "the instance to resize is not there"
    assert why("source-node", ask(source_node="n1"), node()) is None
    assert why("source-node", ask(action="resize"), node()) == "the instance to resize is not there"
    assert why("source-node", ask(action="resize"), with_instances(node(), "i")) is None


def test_a_node_takes_part_if_it_is_audited_enabled_and_not_silent() -> None:
    assert why("ComputeFilter", ask(), node()) is None
    assert why("ComputeFilter", ask(), Node("n1")) == "no audit of it is known"
    assert why("ComputeFilter", ask(), node(status="disabled", status_reason="bad disk")) == "disabled (bad disk)"
    assert why("ComputeFilter", ask(), node(status="draining")) == "draining"
    assert why("ComputeFilter", ask(), node(silent_since_ms=1_700_000_000_000)) == "silent since 2023-11-14T22:13:20Z"


def test_the_zone_is_the_operators_field_or_of_an_aggregate_or_the_default() -> None:
    aggregate = Aggregate(name="a", metadata={"availability_zone": "nova,nova2"})

    assert why("AvailabilityZoneFilter", ask(availability_zone="nova2"), node(aggregates=(aggregate,))) is None
    assert why("AvailabilityZoneFilter", ask(availability_zone="nova"), node()) is None
    assert why("AvailabilityZoneFilter", ask(availability_zone="east"), node(zone="east")) is None
    assert why("AvailabilityZoneFilter", ask(availability_zone="east"), node(zone="west")) == "availability zone east needed, it is in west"


def test_traits_are_required_and_forbidden_of_host_and_operator_together() -> None:
    host = node(traits=("GOLD",), hypervisor=Hypervisor(vcpus=8, memory_mib=4096, traits=("SSD",)))

    assert why("TraitsFilter", ask(traits_required=("SSD", "GOLD")), host) is None
    assert why("TraitsFilter", ask(traits_required=("GPU",), traits_forbidden=("SSD",)), host) == "lacks GPU; has SSD, which is forbidden"


def test_beside_and_apart_from_named_instances() -> None:
    there = with_instances(node(), "i1")

    assert why("DifferentHostFilter", ask(hints=Hints(different_host=("i1", "i2"))), there) == "i1 is there, a different node is wanted"
    assert why("DifferentHostFilter", ask(hints=Hints(different_host=("i2",))), there) is None
    assert why("SameHostFilter", ask(hints=Hints(same_host=("i2",))), there) == "none of i2 is there"
    assert why("SameHostFilter", ask(hints=Hints(same_host=("i2", "i1"))), there) is None


def test_an_affinity_group_stays_where_its_members_are() -> None:
    group = ServerGroup(group_id="g", policy="affinity")

    assert why("ServerGroupAffinityFilter", ask(group=group), node()) is None
    assert why("ServerGroupAffinityFilter", ask(frozenset({"n1"}), group=group), node()) is None
    assert why("ServerGroupAffinityFilter", ask(frozenset({"n2"}), group=group), node()) == "group g is on n2"
    assert why("ServerGroupAffinityFilter", ask(group=group), node(homes_closed={"g": 1})) == "closed as a home of group g"


def test_an_anti_affinity_group_has_at_most_so_many_on_one_node_and_the_instance_itself_does_not_count() -> None:
    one, two = ServerGroup(group_id="g", policy="anti-affinity"), ServerGroup(group_id="g", policy="anti-affinity", max_per_node=2)

    assert why(APART, ask(group=one), with_instances(node(), "i1", group="g")) == "1 of at most 1 of group g are there"
    assert why(APART, ask(group=two), with_instances(node(), "i1", group="g")) is None
    assert why(APART, ask(group=one), with_instances(node(), "i", group="g")) is None
    assert why(APART, ask(group=one), with_instances(node(), "i1", group="other")) is None


@pytest.mark.parametrize(
    ("name", "flavor", "used", "ratio_milli", "expected"),
    [
        ("CoreFilter", Flavor(vcpus=8), (0, 0, 0, 0), 1000, None),
        ("CoreFilter", Flavor(vcpus=1), (16, 0, 0, 0), 2000, "vcpus: 1 needed of 0"),
        ("CoreFilter", Flavor(vcpus=9), (0, 0, 0, 0), 2000, "vcpus: 9 needed, the whole node has 8"),
        ("CoreFilter", Flavor(vcpus=9, pcpus=3), (8, 0, 0, 0), 1000, "vcpus: 9 needed of 0; pcpus: 3 needed of 2"),
        ("RamFilter", Flavor(memory_mib=4096), (0, 0, 0, 0), 1000, None),
        ("RamFilter", Flavor(memory_mib=1024), (0, 0, 5120, 0), 2000, None),
        ("RamFilter", Flavor(memory_mib=4096), (0, 0, 4096, 0), 1500, "memory_mib: 4096 needed of 2048"),
        ("RamFilter", Flavor(memory_mib=4097), (0, 0, 0, 0), 2000, "memory_mib: 4097 needed, the whole node has 4096"),
        ("DiskFilter", Flavor(root_gib=11), (0, 0, 0, 0), 2000, "disk_mib: 11264 needed, the whole node has 10240"),
        ("DiskFilter", Flavor(root_gib=1, ephemeral_gib=1, swap_mib=512), (0, 0, 0, 7680), 1000, None),
        ("DiskFilter", Flavor(root_gib=1, ephemeral_gib=1, swap_mib=513), (0, 0, 0, 7680), 1000, "disk_mib: 2561 needed of 2560"),
    ],
)
def test_amounts(name: str, flavor: Flavor, used: tuple[int, int, int, int], ratio_milli: int, expected: str | None) -> None:
    rule = ResourceRule(ratio_milli=ratio_milli)

    assert why(name, ask(flavor=flavor), node(used=used, vcpus=rule, memory_mib=rule, disk_mib=rule)) == expected


def test_a_limit_that_the_request_carries_counts_like_one_of_the_node() -> None:
    asked = ask(limits=Limits(memory_mib=1000), flavor=Flavor(memory_mib=512))

    assert why("RamFilter", asked, node(used=(0, 0, 489, 0))) == "memory_mib: 512 needed of 511"
    assert why("RamFilter", asked, node(used=(0, 0, 488, 0))) is None
    full = ask(limits=Limits(memory_mib=9000), flavor=Flavor(memory_mib=512))
    assert why("RamFilter", full, node(used=(0, 0, 3584, 0))) is None


@pytest.mark.parametrize("used", [0, 3000, 8000])
def test_that_the_whole_node_is_too_small_is_told_however_much_of_it_is_free(used: int) -> None:
    host = node(used=(0, 0, used, 0), vcpus=ResourceRule(ratio_milli=4000), memory_mib=ResourceRule(ratio_milli=2000))

    def told(**options: Any) -> set[str]:
        asked = ask(flavor=Flavor(vcpus=9, memory_mib=6000), **options)
        return {str(lack) for lack in shortfalls_told(asked, room(host, 0, mark_of("n1")), "vcpus", "memory_mib")}

    assert told() == {"memory_mib: 6000 needed, the whole node has 4096", "vcpus: 9 needed, the whole node has 8"}
    assert told(forced_nodes=("n1",)) == set()


@pytest.mark.parametrize("used", [0, 500])
def test_that_the_node_s_limit_is_too_low_is_told_however_much_of_it_is_free(used: int) -> None:
    host = node(used=(0, 0, used, 0), memory_mib=ResourceRule(reserved=3096))

    (told,) = shortfalls_told(ask(flavor=Flavor(memory_mib=1500)), room(host, 0, mark_of("n1")), "memory_mib")

    assert str(told) == "memory_mib: 1500 needed, the node's limit is 1000"


@pytest.mark.parametrize("used", [0, 500])
def test_that_the_request_s_own_limit_is_too_low_is_told_however_much_is_free(used: int) -> None:
    host, asked = node(used=(0, 0, used, 0)), ask(flavor=Flavor(memory_mib=1500), limits=Limits(memory_mib=1000))

    (told,) = shortfalls_told(asked, room(host, 0, mark_of("n1")), "memory_mib")

    recorded = Shortfall(resource="memory_mib", needed=1500, free=1000 - used)
    assert str(told) == str(told_now(host, "i1", recorded, asked.item.limits)) == "memory_mib: 1500 needed, the request's own limit is 1000"


def test_what_the_instance_uses_there_already_is_said_to_be_what_is_needed() -> None:
    host = node(vcpus=ResourceRule(reserved=4))
    host.uses["i1"], host.used[0] = (8, 0, 0, 0), 8

    lack = limit_told(host, "i1", Shortfall(resource="vcpus", needed=8, free=4))

    assert str(lack) == "vcpus: 8 needed, as the instance uses there already, the node's limit is 4"


def test_the_last_filter_says_what_the_ledger_would_say() -> None:
    asked = ask(flavor=Flavor(vcpus=3, memory_mib=512), limits=Limits(instances_max=1))
    host = with_instances(node(vcpus=ResourceRule(step_size=2), memory_mib=ResourceRule(max_unit=256)), "i1")

    text = why("fit", asked, host)

    assert text == "; ".join(str(lack) for lack in fits(host.node, asked.item, "r", host.overlay))
    assert text is not None
    assert [part.split(":")[0] for part in text.split("; ")] == ["step_size", "max_unit", "instances"]


@pytest.mark.parametrize(
    ("request_", "more", "rests"),
    [
        ({}, (), False),
        ({"forced_nodes": ("n1",), "retry_nodes": ("n2",)}, (), False),
        ({"group": ServerGroup(group_id="g", policy="anti-affinity")}, (), False),
        ({"availability_zone": "z"}, (), True),
        ({"traits_forbidden": ("T",)}, (), True),
        ({"flavor": Flavor(extra_specs={"trait:T": "required"})}, (), True),
        ({"hints": Hints(different_host=("i2",))}, (), True),
        ({}, ("AggregateRamFilter",), True),
        ({}, ("AggregateMultiTenancyIsolation",), True),
        ({}, ("ExactRamFilter", "NumInstancesFilter"), False),
        ({}, ("nobody.knows:it",), True),
    ],
)
def test_what_rests_on_more_than_the_ledger_looks_at_again(request_: dict[str, Any], more: tuple[str, ...], rests: bool) -> None:
    policy = Policy(filters=(*DEFAULT.filters, *more))

    assert rests_on_labels(policy, ask(**request_).request) == rests


def test_these_filters_alone_are_known_for_what_the_ledger_looks_at_again() -> None:
    assert [name for name, filter_ in FILTERS.items() if filter_.kept] == [
        "AllHostsFilter", "RetryFilter", "ComputeFilter", "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter", "MetricsFilter",
        "IoOpsFilter", "NumInstancesFilter", "CoreFilter", "RamFilter", "DiskFilter", "NUMATopologyFilter", "PciPassthroughFilter",
        "ExactCoreFilter", "ExactRamFilter", "ExactDiskFilter",
    ]  # fmt: skip
