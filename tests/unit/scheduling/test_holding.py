"""A request that changes hands stays where it is held: nobody hears that there is no room because one instance held two nodes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from projections.node import NOTHING, Claim
from schemas.claims import ClaimRequested, NodeObserved
from schemas.inventory import Hypervisor, NumaCell
from schemas.requests import Flavor, NumaWant, PlacementRequested, ServerGroup
from schemas.resources import Limits
from schemas.results import Decision, InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, RESULTS
from streams.log.base import Lease
from streams.scheduler import Scheduler
from streams.scheduling.explain import funnel
from streams.scheduling.filters.restrict import HELD_NODES
from streams.scheduling.holding import nodes_held
from streams.scheduling.policy import DEFAULT
from tests.scheduling_world import At, World, said, settle, world, wrongs
from tests.scheduling_world import rerun as made_again
from tests.unit.placement.test_placement import LIKELY_TURNS, held, nothing
from tests.unit.scheduling.test_explain import claimed
from tests.unit.streams.test_scheduler import Far

APART = ServerGroup(group_id="apart", policy="anti-affinity")
ENGINES = pytest.mark.parametrize("engine_name", ["reference", "profiles"])


def tight(*names: str, vcpus: int = 8, claims: int = 3) -> World:
    here = world(claims=claims, requests=1)
    for name in names:
        here.host(name, vcpus=vcpus)
    return here


def successor(here: World, engine_name: str = "auto") -> Scheduler:
    return here.scheduler("new", log=At(here.log, nothing, owns_all=True), engine_name=engine_name)


def placed_on(here: World) -> dict[str, list[str]]:
    return {result.request_id: [each.node_id for each in result.placements] for result in said(here, RESULTS, InstancesPlaced)}


def claimed_on(here: World) -> dict[str, list[str]]:
    """The nodes of the claims that are held, by request."""
    found: dict[str, list[str]] = {}
    for ledger in here.ledgers():
        for claim in ledger.claims.values():
            found.setdefault(claim.request_id, []).append(claim.node_id)
    return found


def all_of(nodes: dict[str, list[str]]) -> list[str]:
    return sorted(node_id for several in nodes.values() for node_id in several)


def decided(here: World, request_id: str) -> list[Decision]:
    return [decision for result in said(here, RESULTS, InstancesPlaced) if result.request_id == request_id for decision in result.decisions]


@ENGINES
def test_a_group_that_just_fits_is_placed_though_its_requests_change_hands(engine_name: str) -> None:
    here = tight("n0", "n1", "n2", "n3", "n4", "n5")
    for number in range(5):
        here.request(f"r{number}", group=APART)
    here.scheduler("old", engine_name=engine_name).turn()
    before = claimed_on(here)
    here.request("r5", group=APART)  # It comes behind those that were claimed, and finds their nodes taken but one.

    settle(successor(here, engine_name))

    assert len(before) == 5
    assert said(here, RESULTS, PlacementFailed) == []
    assert {name: nodes for name, nodes in placed_on(here).items() if name in before} == before
    assert all_of(placed_on(here)) == ["n0", "n1", "n2", "n3", "n4", "n5"]
    assert wrongs(here) == []


@ENGINES
def test_a_fleet_without_room_for_two_claims_of_anybody_is_filled_to_the_end(engine_name: str) -> None:
    here = tight("n0", "n1", "n2", "n3", vcpus=2)
    here.request("three", vcpus=2, count=3)
    here.scheduler("old", engine_name=engine_name).turn()
    before = claimed_on(here)["three"]
    here.request("one", vcpus=2)

    settle(successor(here, engine_name))

    assert said(here, RESULTS, PlacementFailed) == []
    assert sorted(placed_on(here)["three"]) == sorted(before)
    assert len(held(here)) == 4
    assert wrongs(here) == []


BUSY_AT_MOST_4 = structs.replace(
    DEFAULT, filters=(*DEFAULT.filters, "IoOpsFilter"), options=structs.replace(DEFAULT.options, max_io_ops_per_host=4)
)
TOGETHER = ServerGroup(group_id="together", policy="affinity")


@ENGINES
@pytest.mark.parametrize("group", [None, TOGETHER])
@pytest.mark.parametrize("limits", [None, Limits(io_ops_max=4)])
def test_what_a_request_has_begun_is_no_io_operation_of_others(engine_name: str, group: ServerGroup | None, limits: Limits | None) -> None:
    here = tight("n0", claims=1)
    policy = DEFAULT if limits else BUSY_AT_MOST_4
    here.request("four", count=4, group=group, limits=limits)
    old = here.scheduler("old", engine_name=engine_name, policy=policy)
    while not claimed_on(here):  # Of a group the home comes first.
        old.turn()
    before = claimed_on(here)
    here.request("one", limits=limits)

    settle(here.scheduler("new", log=At(here.log, nothing, owns_all=True), engine_name=engine_name, policy=policy))

    assert before == {"four": ["n0"] * 4}
    assert placed_on(here) == {"four": ["n0"] * 4}
    assert [failed.request_id for failed in said(here, RESULTS, PlacementFailed)] == ["one"]
    for index, decision in enumerate(each for each in decided(here, "four") if each.attempt):
        assert made_again(here.ledgers_at(decision.cut), here.requests[0], index, decision, claimed(here), policy).same
    assert wrongs(here) == []


@ENGINES
@pytest.mark.parametrize("claimed_before", [0, 1, 2, 3])
@pytest.mark.parametrize("limits", [None, Limits(io_ops_max=4)])
def test_nor_where_only_some_of_its_instances_were_begun(engine_name: str, claimed_before: int, limits: Limits | None) -> None:
    policy = DEFAULT if limits else BUSY_AT_MOST_4
    whole, here = tight("n0", claims=1), tight("n0", claims=1)
    for each in (whole, here):
        each.request("four", count=4, limits=limits)
    whole.scheduler("old", policy=policy).turn()
    (claim,) = said(whole, CLAIMS, ClaimRequested)
    if claimed_before:
        here.say(CLAIMS, structs.replace(claim, items=claim.items[:claimed_before]))

    settle(here.scheduler("new", log=At(here.log, nothing, owns_all=True), engine_name=engine_name, policy=policy))

    assert placed_on(here) == {"four": ["n0"] * 4}
    for index, decision in enumerate(each for each in decided(here, "four") if each.attempt):
        assert made_again(here.ledgers_at(decision.cut), here.requests[0], index, decision, claimed(here), policy).same
    assert wrongs(here) == []


def test_pinned_cpus_of_the_former_claim_are_its_own_instances() -> None:
    here = world(claims=1, requests=1)
    cell = NumaCell(cell_id=0, cpus=(0, 1, 2, 3), dedicated_cpus=(0, 1, 2, 3), memory_mib=4096)
    for name in ("n0", "n1"):
        has = Hypervisor(vcpus=4, pcpus=4, memory_mib=4096, disk_mib=1024, numa_cells=(cell,))
        seen = NodeObserved(node_id=name, producer=name, epoch=1, counter=1, taken_at_ms=1, mono_ms=1, hypervisor=has, instances=())
        here.say(CLAIMS, seen)
    for name in ("r0", "r1"):
        here.request(name, vcpus=4, numa=(NumaWant(pinned_cpus=(0, 1, 2, 3), memory_mib=512, cpu_policy="dedicated"),))
    here.scheduler("old").turn()
    before = claimed_on(here)

    settle(successor(here))

    assert all_of(before) == ["n0", "n1"]
    assert placed_on(here) == before
    assert wrongs(here) == []


@ENGINES
def test_the_evidence_says_that_the_node_was_held_and_gives_the_same_choice_again(engine_name: str) -> None:
    here = tight("n0", "n1", "n2", "n3")
    request = here.request("r", count=2)
    here.scheduler("old", engine_name=engine_name).turn()
    before = claimed_on(here)["r"]

    settle(successor(here, engine_name))

    for index, decision in enumerate(decided(here, "r")):
        (line,) = [line for line in funnel(decision) if line.filter == HELD_NODES]
        assert (line.entered, line.left, decision.passed) == (4, 1, 1)
        assert line.example.endswith(f": held already, by an earlier claim of this request, on {decision.chosen}")
        done = made_again(here.ledgers_at(decision.cut), request, index, decision, claimed(here), DEFAULT)
        assert (done.again.chosen in before, done.differences) == (True, ())


@ENGINES
def test_where_a_filter_no_longer_lets_the_held_node_pass_another_one_is_chosen(engine_name: str) -> None:
    here = tight("n0", "n1")
    request = here.request("r")
    here.scheduler("old", engine_name=engine_name).turn()
    ((dead,),) = claimed_on(here).values()
    here.set_status(dead, "disabled")

    settle(successor(here, engine_name))

    (decision,) = decided(here, "r")
    done = made_again(here.ledgers_at(decision.cut), request, 0, decision, claimed(here), DEFAULT)
    assert placed_on(here) == {"r": [({"n0", "n1"} - {dead}).pop()]}
    assert HELD_NODES not in {line.filter for line in funnel(decision)}
    assert done.differences == ()
    assert wrongs(here) == []


def test_what_a_guest_leaves_and_keeps_is_no_place_for_it_to_go() -> None:
    here = tight("n0", "n1", "n2")
    here.request("r")
    settle(here.scheduler("first"))
    ((source,),) = placed_on(here).values()
    guest = here.requests[0].instance(0)
    here.request("move", action="migrate", source_node=source, instance_ids=(guest,))
    here.scheduler("old", log=At(here.log, nothing, owns_all=True)).turn()
    went = [node for node in claimed_on(here)["move"] if node != source]

    settle(successor(here))

    assert placed_on(here)["move"] == went
    assert wrongs(here) == []


class Shared(Far):
    """A log that takes records without being waited for, and of which the scheduler owns the requests as it is told."""

    owned: frozenset[int] = frozenset({0})

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> Lease:
        del group, topic, member, timeout_seconds
        return self

    def partitions(self) -> frozenset[int]:
        return self.owned

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        self.owned = frozenset()


def test_whoever_is_given_a_partition_back_waits_for_its_own_claims_that_are_still_on_their_way() -> None:
    here = tight("n0", "n1", "n2", "n3")
    log = Shared(here)
    scheduler = here.scheduler("s", log=log)
    for _ in range(3):
        scheduler.turn(1.0)
    for number in range(3):
        here.request(f"r{number}", group=APART)
    log.holds = True
    scheduler.turn()
    for owned in (frozenset[int](), frozenset({0})):
        log.owned = owned
        scheduler.turn()
    waiting = scheduler.placer.counters.decisions
    here.request("r3", group=APART)
    log.holds = False

    for _ in range(LIKELY_TURNS):
        scheduler.turn(1.0)

    claims: list[Any] = said(here, CLAIMS, ClaimRequested)
    assert waiting == 3, "nothing is decided again before its claims are read back"
    assert said(here, RESULTS, PlacementFailed) == []
    assert len(claims) == 3 + 3 + 1
    assert all_of(placed_on(here)) == ["n0", "n1", "n2", "n3"]
    assert wrongs(here) == []


def test_only_what_that_very_request_holds_for_that_instance_to_stay_is_held() -> None:
    def claim(node_id: str, request_id: str = "r", instance_id: str = "b", *, keep: bool = False) -> Claim:
        return Claim(f"of {node_id}", request_id, instance_id, node_id, "s", 0, NOTHING, since_ms=0, deadline_ms=1, ttl_ms=1, keep=keep)

    claims = [claim("n1"), claim("n2", request_id="q"), claim("n3", instance_id="a"), claim("n4", keep=True), claim("n5")]

    def held_for(policy: Any) -> frozenset[str]:
        group = None if policy is None else ServerGroup(group_id="g", policy=policy)
        return nodes_held(claims, PlacementRequested(request_id="r", flavor=Flavor(), count=2, instance_ids=("a", "b"), group=group), 1)

    assert held_for(None) == held_for("anti-affinity") == held_for("soft-affinity") == {"n1", "n5"}
    assert held_for("affinity") == frozenset()
