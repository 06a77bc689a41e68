"""Changes are made in ledgers of one's own, and say what they cannot do."""

from __future__ import annotations

import pytest
from msgspec import structs

from projections.ledger import Ledger
from schemas.claims import GroupHomeClosed, GroupHomeProposed, NodeStatus
from schemas.inventory import HugePages, Metric, NumaCell, OperatorFields
from schemas.requests import Flavor, PlacementRequested, ServerGroup
from schemas.results import PlacementFailed
from schemas.topics import CLAIMS
from streams.scheduling.capacity import capacity
from streams.scheduling.fleet import Fleet
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, FILTERS_DEFAULT, Policy
from streams.scheduling.what_if import Basis, CannotChange, Changes, NodesLike, Outcome, change, counted, decide
from tests.scheduling_world import World, settle, world
from tests.unit.scheduling.test_explain import results

TOGETHER = ServerGroup(group_id="g", policy="affinity")


def ledgers() -> list[Ledger]:
    here = world()
    here.host("n1", vcpus=4)
    here.host("n2", vcpus=2)
    return here.ledgers()


def played(folded: list[Ledger], vcpus: int, count: int = 1) -> Outcome:
    fleet = Fleet(folded)
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=vcpus), count=count)
    return decide(request, lambda index, _before: Basis(fleet, index), DEFAULT)


def test_a_drained_node_takes_nothing_and_an_enabled_one_does_again() -> None:
    drained = ledgers()
    change(drained, Changes(drained=("n1",)))
    enabled = ledgers()
    change(enabled, Changes(drained=("n1", "n2")))
    change(enabled, Changes(enabled=("n2",)))

    assert played(drained, vcpus=4).placed == 0
    assert played(enabled, vcpus=2).decisions[0].chosen == "n2"


def test_a_ratio_counts_on_every_node_over_what_a_file_sets() -> None:
    there = ledgers()

    change(there, Changes(settings=lambda _node: OperatorFields(zone="east"), ratios_milli={"vcpus": 2000}))

    assert played(there, vcpus=2, count=6).placed == 6
    assert {node.zone for ledger in there for node in ledger.nodes.values()} == {"east"}


def test_added_nodes_are_empty_have_names_of_their_own_and_are_in_the_partition_of_their_name() -> None:
    there = ledgers()

    names = change(there, Changes(added=(NodesLike("n1", 2),)))

    outcome = played(there, vcpus=4, count=3)
    assert names == ("n1+1", "n1+2")
    assert sorted(decision.chosen for decision in outcome.decisions) == ["n1", "n1+1", "n1+2"]
    assert change(there, Changes(added=(NodesLike("n1", 1), NodesLike("n2", 1), NodesLike("n1", 2)))) == ("n1+3", "n2+1", "n1+4", "n1+5")
    assert len([name for ledger in there for name in ledger.nodes]) == 8


def test_an_added_node_has_all_pages_free_and_measures_what_the_one_like_it_does() -> None:
    here = world()
    pages = HugePages(size_kib=2048, total=512, free=0)
    metrics = (Metric(name="heat", value_milli=1),)
    here.host("full", numa_cells=(NumaCell(cell_id=0, cpus=(0, 1), memory_mib=4096, pages=(pages,)),), metrics=metrics)
    there = here.ledgers()
    flavor = Flavor(vcpus=1, memory_mib=1024, extra_specs={"hw:mem_page_size": "large"})
    policy = Policy(filters=("MetricsFilter", *FILTERS_DEFAULT), options=Options(weight_setting=("heat=1",)))

    change(there, Changes(added=(NodesLike("full", 1),)))

    found = capacity(Fleet(there), PlacementRequested(request_id="r", flavor=flavor), policy)
    assert [(node.node_id, node.fits) for node in found.nodes] == [("full+1", 1)]


def test_the_first_instance_without_a_node_ends_it_and_says_why() -> None:
    outcome = played(ledgers(), vcpus=2, count=5)

    assert (outcome.placed, len(outcome.decisions)) == (3, 4)
    assert outcome.matrix is not None
    assert [line.first for line in outcome.matrix.lines] == ["CoreFilter", "CoreFilter"]
    assert [(each.resource, each.free, each.full) for each in outcome.supplies] == [("vcpus", 0, 2)]


def test_what_is_not_there_cannot_be_changed() -> None:
    with pytest.raises(CannotChange, match="node 'n9' is not known at this cut"):
        change(ledgers(), Changes(drained=("n9",)))
    with pytest.raises(CannotChange, match="node 'n9' is not known at this cut"):
        change(ledgers(), Changes(added=(NodesLike("n9", 1),)))


def test_of_a_node_that_was_never_audited_nobody_knows_what_one_like_it_has() -> None:
    here = world()
    here.set_status("n1", "draining")

    with pytest.raises(CannotChange, match="node 'n1' was never audited"):
        change(here.ledgers(), Changes(added=(NodesLike("n1", 1),)))


def test_an_added_node_is_not_busy_with_what_the_one_like_it_does() -> None:
    here = world()
    here.host("n1", io_workload=3, failed_builds=2, host_uuid="u", host_ip="10.0.0.1", service_host="compute-1")
    there = here.ledgers()

    change(there, Changes(added=(NodesLike("n1", 1),)))

    (added,) = [node.hypervisor for ledger in there for node in ledger.nodes.values() if node.node_id == "n1+1"]
    assert added is not None
    assert (added.io_workload, added.failed_builds) == (0, 0)
    assert (added.host_uuid, added.host_ip, added.service_host) == ("", "", ""), "it is another machine"


def test_another_count_keeps_the_ids_that_there_are() -> None:
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1), count=2, instance_ids=("a", "b"))

    assert counted(request, 1).instance_ids == ("a",)
    assert counted(request, 3).instance_ids[:2] == ("a", "b")
    assert len(set(counted(request, 3).instance_ids)) == 3


def with_an_empty_home(status: NodeStatus) -> World:
    """Three nodes, the smallest of which is the home of a group that has no members."""
    here = world()
    for name, vcpus in (("n1", 2), ("n2", 4), ("n3", 6)):
        here.host(name, vcpus=vcpus)
    here.say(CLAIMS, GroupHomeProposed(group_id="g", record_id="proposed", epoch=1, node_id="n1"))
    here.set_status("n1", status)
    return here


@pytest.mark.parametrize("status", ["enabled", "draining"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_group_leaves_an_empty_home_that_does_not_take_it_as_under_a_scheduler(status: NodeStatus, count: int) -> None:
    here = with_an_empty_home(status)
    folded, fleet = here.ledgers(), Fleet(here.ledgers())
    request = here.request("r", count=count, group=TOGETHER)

    outcome = decide(request, lambda index, _before: Basis(fleet, index), DEFAULT)
    fits = capacity(Fleet(folded), request, DEFAULT).fits
    scheduler = here.scheduler()
    settle(scheduler)

    answer = here.answer("r")
    assert answer.placed == (outcome.placed == count) == (count <= (fits or 0))
    assert {named.node_id for named in answer.named} == ({decision.chosen for decision in outcome.decisions} if answer.placed else set())


def test_a_group_stays_at_a_home_where_its_members_are_and_a_dry_run_at_an_empty_one() -> None:
    here = with_an_empty_home("enabled")
    scheduler = here.scheduler()
    empty = here.ledgers()
    here.request("r", group=TOGETHER)
    settle(scheduler)
    request = PlacementRequested(request_id="q", flavor=Flavor(vcpus=1), count=2, group=TOGETHER)

    def placed(folded: list[Ledger], request: PlacementRequested) -> int:
        fleet = Fleet(folded)
        return decide(request, lambda index, _before: Basis(fleet, index), DEFAULT).placed

    assert (placed(here.ledgers(), request), capacity(Fleet(here.ledgers()), request, DEFAULT).fits) == (1, 1)
    assert [placed(empty, structs.replace(request, count=3, dry_run=dry_run)) for dry_run in (True, False)] == [2, 3]


@pytest.mark.parametrize("moved_on", [True, False])
def test_a_group_stays_together_where_a_home_of_it_was_closed_once(*, moved_on: bool) -> None:
    """All five fit on n3 only, which is no home any more; the other home, if there is one, is empty and takes nobody."""
    here = world()
    for name, vcpus in (("n1", 2), ("n2", 4), ("n3", 6)):
        here.host(name, vcpus=vcpus)
    here.say(CLAIMS, GroupHomeProposed(group_id="g", record_id="proposed", epoch=1, node_id="n3"))
    here.say(CLAIMS, GroupHomeClosed(group_id="g", record_id="closed", epoch=1, node_id="n3"))
    if moved_on:
        here.say(CLAIMS, GroupHomeProposed(group_id="g", record_id="proposed again", epoch=2, node_id="n1"))
        here.set_status("n1", "draining")
    fleet = Fleet(here.ledgers())
    request = here.request("r", count=5, group=TOGETHER)

    outcome = decide(request, lambda index, _before: Basis(fleet, index), DEFAULT)
    scheduler = here.scheduler()
    settle(scheduler)

    assert [decision.chosen for decision in outcome.decisions] == ["n3"] * 5
    assert [named.node_id for named in here.answer("r").named] == ["n3"] * 5


def test_counting_for_a_group_leaves_its_home_where_it_was() -> None:
    fleet = Fleet(with_an_empty_home("enabled").ledgers())
    request = PlacementRequested(request_id="q", flavor=Flavor(vcpus=1), group=TOGETHER)

    found = capacity(fleet, request, DEFAULT)

    assert (found.fits, found.together) == (6, True)
    assert fleet.home_of("g").node_id == "n1"


def test_members_who_would_do_together_but_not_each_by_itself_are_refused_as_by_a_scheduler() -> None:
    here = world()
    here.host("n1", vcpus=4)
    policy = Policy(filters=("ComputeFilter", "ServerGroupAffinityFilter", "ExactCoreFilter"))
    asked = here.request("r", vcpus=2, count=2, group=ServerGroup(group_id="g", policy="affinity"))
    fleet = Fleet(here.ledgers())

    outcome = decide(asked, lambda index, _: Basis(fleet, index), policy)
    scheduler = here.scheduler(policy=policy)
    settle(scheduler)

    (said,) = [event for event in results(here) if isinstance(event, PlacementFailed)]
    assert (said.reason, outcome.placed) == ("no-valid-node", 0)
    assert [each.chosen for each in outcome.decisions] == [""]
    assert [each.reason for each in outcome.decisions[0].rejections if each.rejected] == [
        each.reason for each in said.decisions[-1].rejections if each.rejected
    ]
