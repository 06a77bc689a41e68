"""Limits that filters find travel with the claim, and hold for schedulers that decided on the same fold."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from projections.ledger import Ledger
from schemas.claims import NodeConfigured
from schemas.inventory import Aggregate, OperatorFields, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Limits
from schemas.topics import CLAIMS
from streams.scheduling.fleet import Fleet
from streams.scheduling.limits import claimed, least
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, Policy, digest
from streams.scheduling.reference import reference_select
from tests.scheduling_world import World, settle, world

BY_AGGREGATE = Policy(filters=("ComputeFilter", "AggregateRamFilter", "NumInstancesFilter"), options=Options(max_instances_per_host=9))


def within(here: World, node_id: str, ratio: str) -> None:
    """An aggregate rules the node's memory: its own ratio is none."""
    fields = OperatorFields(
        memory_mib=ResourceRule(ratio_milli=None), aggregates=(Aggregate(name="a", metadata={"ram_allocation_ratio": ratio}),)
    )
    here.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"c-{node_id}", fields=fields))


def asked(**options: Any) -> PlacementRequested:
    return PlacementRequested(request_id="r", flavor=Flavor(memory_mib=1024), **options)


def test_a_claim_has_the_limits_of_its_first_node_and_alternates_that_share_them() -> None:
    here = world(claims=1)
    for node_id, ratio in (("n1", "2.0"), ("n2", "2.0"), ("n3", "1.5")):
        here.host(node_id)
        within(here, node_id, ratio)
    fleet = Fleet(here.ledgers())
    ask = fleet.ask(asked(limits=Limits(memory_mib=90_000, vcpus=3)), 0, owner="s")
    decision = structs.replace(reference_select(fleet, ask, BY_AGGREGATE, digest(BY_AGGREGATE)), chosen="n1", alternates=("n3", "n2"))

    item = claimed(fleet, ask, BY_AGGREGATE, decision)

    assert item.nodes == ("n1", "n2")
    assert item.limits == Limits(memory_mib=32_768, vcpus=3, instances_max=9)


def test_a_policy_whose_limits_the_ledger_knows_adds_none() -> None:
    here = world(claims=1)
    here.host("n1")
    fleet = Fleet(here.ledgers())
    ask = fleet.ask(asked(), 0, owner="s")
    decision = reference_select(fleet, ask, DEFAULT, digest(DEFAULT))

    item = claimed(fleet, ask, DEFAULT, decision)

    assert (item.nodes, item.limits) == (("n1",), None)


def test_two_schedulers_never_take_more_than_an_aggregate_allows() -> None:
    here = world(claims=1, requests=2)
    here.host("n1", memory_mib=4096)
    within(here, "n1", "0.75")
    for number in range(8):
        here.request(f"r{number}", vcpus=0, memory_mib=1024)

    settle(*(here.scheduler(name, policy=BY_AGGREGATE) for name in ("a", "b")))

    (ledger,) = here.ledgers()
    assert isinstance(ledger, Ledger)
    assert ledger.nodes["n1"].used[2] == 3072


def test_of_each_limit_the_least_counts() -> None:
    assert least(Limits(vcpus=3), Limits(vcpus=2, disk_mib=7), Limits()) == Limits(vcpus=2, disk_mib=7)
