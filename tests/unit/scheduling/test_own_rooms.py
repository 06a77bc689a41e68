"""Nodes on which an instance's amounts are not tested, because it is forced there or does not grow: figures are real all the same."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from projections.room import UNLIMITED, Room
from schemas.claims import ClaimItem, ClaimRequested, NodeConfigured
from schemas.inventory import OperatorFields, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Limits
from schemas.results import Decision
from schemas.topics import CLAIMS
from streams.scheduling.ask import Ask
from streams.scheduling.custom_copies import Copies
from streams.scheduling.facts import facts_of
from streams.scheduling.fleet import Fleet
from streams.scheduling.limits import claimed
from streams.scheduling.matrix import matrix
from streams.scheduling.policy import POLICIES, Policy, digest
from streams.scheduling.reference import reference_select, rooms_for
from streams.scheduling.select import profile_select
from tests.scheduling_world import World, settle, world

ABSOLUTE = ("absolute-spread", "absolute-pack", "best-fit", "bin-pack")


def small_and_large() -> World:
    """A node of 8 GiB with nothing on it, and one of 16 GiB of which 2 are taken."""
    here = world(claims=1, requests=1)
    here.host("small", vcpus=64, memory_mib=8192)
    here.host("large", vcpus=64)
    here.request("x", vcpus=0, memory_mib=2048, requested_nodes=("large",))
    settle(here.scheduler())
    return here


def decided(fleet: Fleet, policy: Policy, asked: PlacementRequested) -> tuple[Ask, Decision]:
    """What both engines decide, which is the same."""
    ask, name = fleet.ask(asked, 0, owner="s", options=policy.options), digest(policy)
    decision, by_profiles = (select(fleet, ask, policy, name) for select in (reference_select, profile_select))
    assert replace(by_profiles, engine=decision.engine) == decision
    return ask, decision


@pytest.mark.parametrize("name", ABSOLUTE)
def test_an_absolute_policy_weighs_a_forced_instance_as_any_other(name: str) -> None:
    fleet = Fleet(small_and_large().ledgers())
    plain = PlacementRequested(request_id="c", flavor=Flavor(memory_mib=8192))

    decisions = [decided(fleet, POLICIES[name], each)[1] for each in (plain, replace(plain, forced_nodes=("small", "large")))]

    assert decisions[0].chosen == decisions[1].chosen == ("large" if name == "absolute-spread" else "small")
    assert decisions[0].best == decisions[1].best


@pytest.mark.parametrize("seed", range(5))
def test_forced_instances_of_one_request_see_each_other_in_flight(seed: int) -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    here.host("n2")
    request = here.request(f"r{seed}", count=2, forced_nodes=("n1", "n2"))

    settle(here.scheduler(policy=POLICIES["absolute-spread"]))

    assert {named.node_id for named in here.answer(request.request_id).named} == {"n1", "n2"}


def forced_room(fleet: Fleet, request: dict[str, Any]) -> Room:
    asked = PlacementRequested(request_id="c", flavor=Flavor(memory_mib=512), **request)
    ask = fleet.ask(asked, 0, owner="s")
    return next(each for each in rooms_for(fleet.rooms(), ask) if each.node_id == "large")


def test_code_from_outside_reads_the_same_of_a_node_whether_the_instance_is_forced_there_or_not() -> None:
    fleet = Fleet(small_and_large().ledgers())
    plain, forced = (forced_room(fleet, request) for request in ({}, {"forced_nodes": ("large",)}))

    seen = [Copies().of(each) for each in (plain, forced)]

    assert (forced.memory_mib_used, forced.memory_mib_free) == (-UNLIMITED, UNLIMITED)
    assert [(each.memory_mib_used, each.memory_mib_free) for each in seen] == [(2048, 14336)] * 2
    assert facts_of(plain) == facts_of(forced)


def test_of_an_instance_that_stays_as_it_is_exactly_what_is_free_with_it_gone_is_told() -> None:
    fleet = Fleet(small_and_large().ledgers())
    (claim,) = fleet.ledgers[0].claims.values()
    asked = PlacementRequested(
        request_id="c", flavor=Flavor(memory_mib=2048), instance_ids=(claim.instance_id,), action="resize", source_node="large"
    )

    _, decision = decided(fleet, Policy(filters=("ExactRamFilter",)), asked)

    reasons = [each.reason for each in decision.rejections if each.filter == "ExactRamFilter"]
    assert reasons == ["memory_mib: 2048 asked, exactly 16384 are free"]


def test_who_fills_a_node_exactly_carries_a_limit_without_what_is_kept_for_the_host() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    here.say(CLAIMS, NodeConfigured(node_id="n1", record_id="c", fields=OperatorFields(memory_mib=ResourceRule(reserved=1024))))
    fleet, policy = Fleet(here.ledgers()), Policy(filters=("ExactRamFilter",))

    ask, decision = decided(fleet, policy, PlacementRequested(request_id="c", flavor=Flavor(memory_mib=15360)))

    assert decision.chosen == "n1"
    assert claimed(fleet, ask, policy, decision).limits == Limits(memory_mib=15360)


def test_what_a_request_began_itself_weighs_the_same_by_every_engine() -> None:
    """Its first instance is held where a former owner put it, and claimed there anew; all other nodes have as much at work."""
    here = world(claims=1, requests=1)
    for number in range(40):
        here.host(f"n{number}", memory_mib=20_000 if number == 5 else 16_384)
    request = here.request("r", count=2)

    def claim(request_id: str, instance_id: str, node_id: str) -> ClaimItem:
        item = ClaimItem(claim_id=f"{request_id}/0/old-1.1", instance_id=instance_id, nodes=(node_id,), resources=request.resources)
        here.say(CLAIMS, ClaimRequested(request_id=request_id, owner="old", basis=0, ttl_ms=600_000, items=(item,)))
        return item

    own = claim("r", request.instance(0), "n5")
    for number in set(range(40)) - {5}:
        claim(f"x{number}", f"x{number}", f"n{number}")
    fleet, policy = Fleet(here.ledgers()), POLICIES["nova"]
    fleet.lay(replace(own, claim_id="r/0/new-2.1"), "n5", 0)
    ask = fleet.ask(request, 1, owner="new", options=policy.options).begun_on(frozenset({"n5"}))

    plain, by_profiles = (select(fleet, ask, policy, digest(policy)) for select in (reference_select, profile_select))

    assert (plain.chosen, [weight.raw for weight in plain.best[0].weights if weight.weigher == "IoOpsWeigher"]) == ("n5", [1.0])
    assert replace(by_profiles, engine=plain.engine) == plain


def test_a_forced_claim_has_no_false_word_on_nodes_that_it_is_not_forced_to() -> None:
    """The ledger would let it in there, too: it was said not to fit, and not why."""
    here = world(claims=1, requests=1)
    here.host("n1", memory_mib=4096)
    here.host("n2", memory_mib=4096)
    fleet, policy = Fleet(here.ledgers()), POLICIES["nova"]
    asked = PlacementRequested(request_id="r", flavor=Flavor(memory_mib=8192), forced_nodes=("n1",))

    found = matrix(fleet, fleet.ask(asked, 0, owner="s", options=policy.options), policy)

    assert {line.node_id: [each.filter for each in line.rejected] for line in found.lines} == {"n1": [], "n2": ["forced-nodes"]}
