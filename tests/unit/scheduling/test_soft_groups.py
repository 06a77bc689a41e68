"""Soft groups under the policies that schedulers have by name: a wish that outweighs amounts, and nothing where nobody is in a group."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from schemas.requests import ServerGroup
from schemas.results import Decision, InstancesPlaced, Weight
from schemas.topics import RESULTS
from streams.scheduling.policy import PACK, POLICIES, SPREAD, Policy
from tests.scheduling_world import World, hosts, rerun, said, settle
from tests.unit.scheduling.test_explain import claimed

ENGINES = pytest.mark.parametrize("engine_name", ["reference", "profiles"])
NAMES = ("n1", "n2", "n3", "n4")


def nodes_of(here: World, prefix: str) -> list[str]:
    found = [each for each in said(here, RESULTS, InstancesPlaced) if each.request_id.startswith(prefix)]
    return [placement.node_id for result in found for placement in result.placements]


def played(policy: Policy, engine_name: str, kind: Any, *, at_once: bool) -> list[str]:
    """The nodes of four members, each a quarter of a node, on nodes that are empty otherwise."""
    here = hosts(*NAMES)
    scheduler = here.scheduler(policy=policy, engine_name=engine_name)
    for number in range(4):
        here.request(f"member-{number}", vcpus=2, memory_mib=4096, group=ServerGroup(group_id="g", policy=kind))
        if not at_once:
            settle(scheduler)
    settle(scheduler)
    return nodes_of(here, "member")


@ENGINES
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy", [SPREAD, PACK])
def test_members_that_want_to_be_near_go_to_one_node_and_those_that_do_not_to_as_many_as_there_are(
    policy: Policy, at_once: bool, engine_name: str
) -> None:
    near = played(policy, engine_name, "soft-affinity", at_once=at_once)
    apart = played(policy, engine_name, "soft-anti-affinity", at_once=at_once)

    assert len(set(near)) == 1, near
    assert sorted(apart) == list(NAMES)


@ENGINES
def test_a_full_node_ends_the_wish_to_be_near_and_no_more(engine_name: str) -> None:
    here = hosts(*NAMES, vcpus=3)
    scheduler = here.scheduler(engine_name=engine_name)
    for number in range(6):
        here.request(f"member-{number}", group=ServerGroup(group_id="g", policy="soft-affinity"))
        settle(scheduler)

    nodes = nodes_of(here, "member")
    assert sorted(nodes.count(node) for node in set(nodes)) == [3, 3]


@ENGINES
@pytest.mark.parametrize("name", ["spread", "pack", "nova"])
def test_of_an_instance_without_such_a_group_the_evidence_says_nothing_of_groups(name: str, engine_name: str) -> None:
    here = hosts(*NAMES)
    scheduler = here.scheduler(policy=POLICIES[name], engine_name=engine_name)
    here.request("alone")
    here.request("strictly", group=ServerGroup(group_id="g", policy="anti-affinity"))
    here.request("near", group=ServerGroup(group_id="s", policy="soft-affinity"))

    settle(scheduler)

    best = {each.request_id: each.decisions[0].best[0] for each in said(here, RESULTS, InstancesPlaced)}
    named = {request_id: {weight.weigher for weight in each.weights} for request_id, each in best.items()}
    wanted = {weigher for weigher, _ in POLICIES[name].pairs if not weigher.startswith("ServerGroup")}
    assert named == {"alone": wanted, "strictly": wanted, "near": wanted | {"ServerGroupSoftAffinityWeigher"}}


@ENGINES
def test_what_an_earlier_version_recorded_of_groups_that_nobody_was_in_makes_no_difference(engine_name: str) -> None:
    here = hosts(*NAMES)
    request = here.request("alone")
    settle(here.scheduler(policy=POLICIES["nova"], engine_name=engine_name))
    ((decision,),) = [each.decisions for each in said(here, RESULTS, InstancesPlaced)]
    said_then = Weight(weigher="ServerGroupSoftAffinityWeigher", raw=0.0, normalised=0.0, multiplied=0.0)
    before = with_weight(decision, said_then)
    other = with_weight(decision, structs.replace(said_then, raw=1.0, multiplied=1.0))

    again = [rerun(here.ledgers_at(each.cut), request, 0, each, claimed(here), POLICIES["nova"]) for each in (before, other)]

    assert [each.differences for each in again] == [(), ("best",)]


def with_weight(decision: Decision, weight: Weight) -> Decision:
    best = tuple(structs.replace(each, weights=(weight, *each.weights)) for each in decision.best)
    return structs.replace(decision, best=best)
