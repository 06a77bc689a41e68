"""What the fleet has of a resource: who has it free, who is full, who is too small, and of whom nobody knows."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec import structs

from schemas.audits import InstanceReport
from schemas.inventory import Hypervisor, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import ObservedResources
from streams.scheduling.fleet import Fleet
from streams.scheduling.supply import Supply, supplies, supplies_on
from tests.ledger_history import History


def fleet(**nodes: tuple[int | None, int, int | None]) -> Fleet:
    """Nodes by name: vCPUs, those of them that a guest has, and the ratio in thousandths (None: no limit)."""
    history = History()
    for name, (vcpus, used, ratio_milli) in nodes.items():
        listed = {f"on-{name}": InstanceReport(instance_id=f"on-{name}", resources=ObservedResources(vcpus=used))} if used else {}
        host = Hypervisor(vcpus=vcpus, memory_mib=8192)
        history.audit(listed, node=name, producer=f"audits of {name}", at_s=0, hypervisor=host)
        history.ledger.nodes[name].vcpus = ResourceRule(ratio_milli=ratio_milli)
        history.ledger.nodes[name].refresh()
    return Fleet([history.ledger])


def vcpus(here: Fleet, size: int, company: int = 0) -> Supply:
    """The supply of vCPUs for an instance of this size, and others of its kind that go with it."""
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=size))
    ask = here.ask_seeded(request, 0, seed=0)
    (found,) = supplies(here, structs.replace(ask, company=(ask.item,) * company))
    return found


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param((4, 2, 1000), "has", id="just enough is free"),
        pytest.param((4, 3, 1000), "full", id="one too few is free"),
        pytest.param((2, 2, 1000), "full", id="it would just hold one were it empty"),
        pytest.param((1, 0, 4000), "small", id="smaller than one, whatever the ratio"),
        pytest.param((4, 0, 250), "small", id="its limit is less than one"),
        pytest.param((2, 9, None), "has", id="as large as one, without a limit"),
        pytest.param((1, 0, None), "small", id="smaller than one, without a limit"),
        pytest.param((None, 0, 1000), "unknown", id="does not say what it has"),
    ],
)
def test_a_node_has_room_or_is_full_or_small_or_unknown(node: tuple[int | None, int, int | None], expected: str) -> None:
    found = vcpus(fleet(n=node), 2)

    counts = {"has": found.has, "full": found.full, "small": found.small, "unknown": found.unknown}
    assert counts == {name: int(name == expected) for name in counts}
    assert (found.nodes, found.unlimited) == (1, int(node[2] is None))


def test_what_one_node_lacks_is_no_less_on_another_and_nodes_without_a_limit_are_not_in_the_sums() -> None:
    here = fleet(over=(4, 6, 1000), busy=(8, 5, 1000), most=(4, 0, 1000), endless=(64, 3, None))

    found = vcpus(here, 2)

    assert (found.limit, found.used, found.free) == (16, 11, 7)
    assert (found.free_most, found.free_most_node, found.limit_most) == (4, "most", 8)
    assert (found.has, found.full, found.unlimited) == (3, 1, 1)


def test_a_node_that_keeps_more_back_than_it_has_takes_nothing_from_what_others_have_in_all() -> None:
    here = fleet(odd=(4, 0, 1000), sound=(8, 0, 1000))
    node = here.ledgers[0].nodes["odd"]
    node.vcpus = ResourceRule(reserved=8)
    node.refresh()

    found = vcpus(Fleet(here.ledgers), 9)

    assert (found.limit, found.used, found.free) == (8, 0, 8)


def test_nodes_that_drain_or_are_silent_take_no_part() -> None:
    here = fleet(n1=(4, 0, 1000), n2=(4, 0, 1000), n3=(4, 0, 1000))
    nodes = here.ledgers[0].nodes
    nodes["n1"].status, nodes["n2"].silent_since_ms = "draining", 1

    found = vcpus(Fleet(here.ledgers), 1)

    assert (found.nodes, found.has, found.limit) == (1, 1, 4)


def test_nothing_free_is_free_on_no_node() -> None:
    found = vcpus(fleet(n1=(4, 4, 1000)), 1)

    assert (found.free, found.free_most, found.free_most_node) == (0, 0, "")


def test_instances_that_go_to_one_node_together_need_room_for_all_of_them_there() -> None:
    here = fleet(roomy=(6, 0, 1000), used=(6, 1, 1000), narrow=(4, 0, 1000))

    found = vcpus(here, 2, company=2)

    assert (found.needed, found.has, found.full, found.small) == (6, 1, 1, 1)


def moving(here: Fleet, action: Literal["migrate", "resize"], size: int) -> tuple[Supply, ...]:
    """The supply of vCPUs for a guest on n1 that is to be moved, or resized, to this size."""
    request = PlacementRequested(request_id="r", action=action, source_node="n1", instance_ids=("on-n1",), flavor=Flavor(vcpus=size))
    return supplies(here, here.ask_seeded(request, 0, seed=0))


def test_the_node_that_an_instance_leaves_takes_no_part() -> None:
    (found,) = moving(fleet(n1=(8, 2, 1000), n2=(4, 3, 1000)), "migrate", 2)

    assert (found.nodes, found.full, found.free, found.limit) == (1, 1, 1, 4)


@pytest.mark.parametrize(("size", "has"), [(5, 1), (6, 0)])
def test_a_resize_is_about_its_own_node_where_what_the_instance_uses_is_free_for_it(size: int, has: int) -> None:
    here = fleet(n1=(8, 2, 625), n2=(64, 0, 1000))

    (found,) = moving(here, "resize", size)

    assert (found.nodes, found.needed, found.has) == (1, size, has)


def test_of_one_node_it_is_told_whether_it_takes_part_or_not() -> None:
    here = fleet(n1=(4, 1, 1000), n2=(4, 0, 1000))
    here.ledgers[0].nodes["n1"].status = "draining"
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=2), ignored_nodes=("n1",))

    (found,) = supplies_on(Fleet(here.ledgers), here.ask_seeded(request, 0, seed=0), "n1")

    assert (found.nodes, found.free, found.limit) == (1, 3, 4)


def test_what_the_request_itself_rules_out_takes_no_part() -> None:
    here = fleet(n1=(4, 0, 1000), n2=(4, 0, 1000), n3=(4, 0, 1000))
    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=2), requested_nodes=("n1", "n2"), ignored_nodes=("n2",))

    (found,) = supplies(here, here.ask_seeded(request, 0, seed=0))

    assert (found.nodes, found.limit) == (1, 4)
