"""Counts add up for any fleet and request; capacity is what placing really gets; what-if without a change is what was decided."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from projections.ledger import Ledger
from schemas.claims import ClaimRequested, NodeConfigured
from schemas.codec import encode
from schemas.inventory import OperatorFields, ResourceRule
from schemas.requests import PlacementRequested, ServerGroup
from schemas.results import Decision
from schemas.topics import CLAIMS
from streams.scheduling.ask import seed_of
from streams.scheduling.capacity import capacity
from streams.scheduling.fleet import Fleet
from streams.scheduling.limits import claimed
from streams.scheduling.matrix import matrix
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, FILTERS_DEFAULT, NOVA, POLICIES, Multiplied, Policy, digest
from streams.scheduling.select import PROFILES_FROM, engine
from streams.scheduling.what_if import Basis, Changes, NodesLike, Outcome, change, decide
from tests.cli_log import FleetLog
from tests.properties.test_engine_is_reference import POLICIES as SMALL
from tests.properties.test_engine_is_reference import Cloud
from tests.scheduling_world import World, settle, world

FEW = Options(max_instances_per_host=5, max_io_ops_per_host=4)
COUNTING = (
    Policy(filters=("ComputeFilter", "NumInstancesFilter", "CoreFilter", "RamFilter"), options=FEW),
    Policy(filters=("AggregateNumInstancesFilter", "IoOpsFilter"), options=FEW),
    Policy(filters=("ComputeFilter", "ExactRamFilter")),
    Policy(filters=("ComputeFilter", "JsonFilter", "RamFilter"), weighers=(Multiplied(weigher="RAMWeigher"),)),
)
PLACED_MAX = 250
"""Fleets with room for more are left out: each placement of the check decides over all nodes."""
TOGETHER_MAX = 12
"""The same of groups that stay together, whose members are each asked about in the company of all others."""


def cloud_of(rng: Random, nodes: int, steps: int = 40) -> Cloud:
    cloud = Cloud(rng, nodes)
    for _ in range(rng.randrange(steps)):
        cloud.step()
    return cloud


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_the_counts_add_up_to_all_nodes_for_any_fleet_and_request(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = cloud_of(rng, nodes)
    policy, request = rng.choice((*SMALL, *COUNTING, NOVA)), cloud.request()

    ask = cloud.fleet.ask(request, 0, owner="s")
    decision = engine("reference")(cloud.fleet, ask, policy, digest(policy))
    made = matrix(cloud.fleet, ask, policy)

    assert decision.nodes_known == len(cloud.fleet.rooms()) == len(made.lines)
    assert decision.nodes_known == sum(each.rejected for each in decision.rejections) + decision.passed
    assert [each.rejected for each in decision.rejections] == [len(made.counted_for(each.filter)) for each in decision.rejections]
    assert decision.passed == len(made.counted_for(""))


def settled_cloud(rng: Random, nodes: int) -> Cloud:
    """One without claims in flight."""
    cloud = cloud_of(rng, nodes)
    while cloud.laid:
        cloud.lift()
    return cloud


def place_until_full(cloud: Cloud, request: PlacementRequested, policy: Policy) -> list[str]:
    """Decide and claim one instance after the other; the nodes that the ledger granted."""
    nodes: list[str] = []
    while len(nodes) <= PLACED_MAX:
        one = structs.replace(request, request_id=f"p{len(nodes)}")
        ask = cloud.fleet.ask(one, 0, owner="s", options=policy.options)
        decision = engine("reference")(cloud.fleet, ask, policy, digest(policy))
        if not decision.chosen:
            return nodes
        ledger = cloud.ledgers[cloud.fleet.partition_of_node(decision.chosen)]
        item = structs.replace(claimed(cloud.fleet, ask, policy, decision), claim_id=f"{one.request_id}/0/s-1.1")
        record = ClaimRequested(
            request_id=one.request_id,
            owner="s",
            basis=ledger.next_offset - 1,
            ttl_ms=600_000,
            items=(structs.replace(item, nodes=item.nodes[:1]),),
        )
        step = ledger.apply(ledger.next_offset, 1_800_000_000_000, decision.chosen.encode(), encode(record))
        assert step is not None
        assert [(outcome.outcome, outcome.node_id) for outcome in step.outcomes] == [("granted", decision.chosen)]
        cloud.fleet.touch(ledger.partition, step.node_ids)
        nodes.append(decision.chosen)
    return nodes


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_capacity_is_what_placing_one_after_the_other_gets(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = settled_cloud(rng, nodes)
    policy = rng.choice((*SMALL, *COUNTING))
    request = structs.replace(cloud.request(), instance_ids=(), action="create", source_node="")

    found = capacity(cloud.fleet, request, policy)
    assume(found.fits is not None and found.fits <= PLACED_MAX)
    granted = place_until_full(cloud, request, policy)

    by_node = {node.node_id: node.fits for node in found.nodes if node.fits}
    if found.fits == sum(by_node.values()):
        assert {node_id: granted.count(node_id) for node_id in granted} == by_node
    else:  # A group with affinity that was nowhere: the first choice decides, and what counts is the most that one node takes.
        assert request.group is not None
        assert request.group.policy == "affinity"
        assert len(set(granted)) <= 1
        assert len(granted) == by_node.get(granted[0] if granted else "", 0) <= (found.fits or 0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_group_that_stays_together_gets_at_once_what_capacity_says_and_not_one_more(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = settled_cloud(rng, nodes)
    policy = structs.replace(rng.choice(SMALL), filters=FILTERS_DEFAULT)
    group = ServerGroup(group_id="new", policy="affinity")
    request = structs.replace(cloud.request(), instance_ids=(), action="create", source_node="", group=group)

    fits = capacity(cloud.fleet, request, policy).fits
    assume(fits is not None and fits <= TOGETHER_MAX)

    def placed(count: int) -> int:
        fleet = Fleet(cloud.ledgers)
        return decide(structs.replace(request, count=count), lambda index, _before: Basis(fleet, index), policy).placed

    assert not fits or placed(fits) == fits
    assert placed((fits or 0) + 1) == 0


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_asking_leaves_the_fleet_as_it_was(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = cloud_of(rng, nodes)
    policy, request = rng.choice((*SMALL, *COUNTING)), cloud.request()
    before = (cloud.fleet.overlay, [(room.node_id, room.memory_mib_free, len(room.instances)) for room in cloud.fleet.rooms()])

    capacity(cloud.fleet, request, policy)

    assert before == (cloud.fleet.overlay, [(room.node_id, room.memory_mib_free, len(room.instances)) for room in cloud.fleet.rooms()])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_changes_that_change_nothing_decide_the_same(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = cloud_of(rng, nodes)
    policy, request = rng.choice(SMALL), structs.replace(cloud.request(), instance_ids=(), count=rng.choice((1, 3)))

    def decided(ledgers: list[Ledger]) -> list[Decision]:
        fleet = Fleet(ledgers)
        return decide(request, lambda index, _before: Basis(fleet, index), policy).decisions

    before = decided(cloud.ledgers)
    change(cloud.ledgers, Changes())

    assert decided(cloud.ledgers) == before


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(PROFILES_FROM - 1, PROFILES_FROM + 8))
def test_what_if_decides_as_the_plain_scan_does_by_the_engine_that_auto_chooses(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = settled_cloud(rng, nodes)
    policy, request = rng.choice((*SMALL, *COUNTING)), structs.replace(cloud.request(), instance_ids=(), count=rng.choice((1, 3, 8)))

    def outcome(engine_name: str) -> Outcome:
        fleet = Fleet(cloud.ledgers)
        return decide(request, lambda index, _before: Basis(fleet, index, engine=engine_name), policy)

    fleet = Fleet(cloud.ledgers)
    by_default = decide(request, lambda index, _before: Basis(fleet, index), policy)
    plain = outcome("reference")

    assert by_default == outcome("auto")
    assert by_default.matrix == plain.matrix
    assert by_default.supplies == plain.supplies
    assert [structs.replace(decision, engine="reference") for decision in by_default.decisions] == plain.decisions


def answer_all(here: World) -> None:
    scheduler = here.scheduler()
    settle(scheduler)
    scheduler.close()


def asked_of(rng: Random) -> dict[str, Any]:
    apart, together = ServerGroup(group_id="g", policy="anti-affinity"), ServerGroup(group_id="t", policy="affinity")
    group = rng.choice((None, apart, together, together, together, together, together))
    return {"vcpus": rng.randint(1, 4), "memory_mib": rng.choice((512, 3000)), "count": rng.choice((1, 1, 2, 4)), "group": group}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_what_if_something_were_otherwise_is_what_a_scheduler_does_once_it_is(seed: int, nodes: int) -> None:
    rng, here = Random(seed), world()
    names = [f"n{number}" for number in range(nodes)]
    totals = {name: {"vcpus": rng.choice((2, 4, 8)), "memory_mib": rng.choice((4096, 16_384))} for name in names}
    for name in names:
        here.host(name, **totals[name])
    for number in range(rng.randrange(5)):
        here.request(f"r{number}", **asked_of(rng))
        answer_all(here)
        if rng.random() < 0.75:  # Homes of groups are left empty, too.
            here.cancel(f"r{number}")
            answer_all(here)
    drained, like, ratio_milli = rng.sample(names, rng.randrange(nodes)), rng.choice(names), rng.choice((500, 1000, 1337, None))
    added = rng.randrange(2)
    folded = here.ledgers()

    change(folded, Changes(drained=tuple(drained), added=(NodesLike(like, added),) * added, ratios_milli={"memory_mib": ratio_milli}))
    for name in drained:
        here.set_status(name, "draining")
    for _ in range(added):
        here.host(f"{like}+1", **totals[like])
    for name in (*names, *[f"{like}+1"] * added):
        fields = OperatorFields(memory_mib=ResourceRule(ratio_milli=ratio_milli))
        here.say(CLAIMS, NodeConfigured(node_id=name, record_id=f"ratio {name}", fields=fields))
    request, fleet = here.request("asked", **asked_of(rng)), Fleet(folded)
    outcome = decide(request, lambda index, _before: Basis(fleet, seed_of("s", "asked", index, 1)), DEFAULT)
    answer_all(here)

    nodes_by_claim = {named.claim_id.split("/")[1]: named.node_id for named in here.answer("asked").named}
    expected = [decision.chosen for decision in outcome.decisions] if outcome.placed == request.count else []
    assert [nodes_by_claim[str(index)] for index in range(len(nodes_by_claim))] == expected


def recorded(fleet: FleetLog, capsys: pytest.CaptureFixture[str], rng: Random) -> list[str]:
    """A fleet of a few nodes and requests of several instances, more than fit, decided by schedulers in turn."""
    for number in range(4):
        fleet.audit(f"c{number}", {}, memory_mib=rng.choice((4096, 8192, 16_384)))
    names = [f"r{number}" for number in range(5)]
    for name in names:
        flags = rng.choice(([], ["--group", "g"], ["--group", "t", "--policy", "affinity"], ["--avoid", "c1"]))
        sizes = ["--memory", f"{rng.randint(1, 5)}GiB", "--count", str(rng.choice((1, 1, 2, 4)))]
        assert fleet.run(capsys, "place", *sizes, *flags, "--request", name, "--wait", "0s").code == 0
        if rng.random() < 0.5:
            fleet.schedule(policy=rng.choice(list(POLICIES.values())), engine_name=rng.choice(("reference", "profiles")), owner=f"s{name}")
    fleet.schedule(owner="last")
    return names


def ends(fleet: FleetLog) -> dict[Any, Any]:
    return {topic: (fleet.log.ends(topic), fleet.log.committed("reconciler", topic)) for topic in fleet.log.topics()}


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_what_if_without_a_change_is_the_recorded_decision_and_nothing_is_written(capsys: pytest.CaptureFixture[str], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fleet = FleetLog(Path(folder))
        names = recorded(fleet, capsys, Random(seed))
        before = ends(fleet)

        pairs = [(fleet.run(capsys, "explain", name, "-o", "json"), fleet.run(capsys, "what-if", name, "-o", "json")) for name in names]
        counted = fleet.run(capsys, "capacity", "-o", "json")

        after = ends(fleet)
        fleet.log.close()
    assert after == before
    assert counted.code == 0
    for explained, played in pairs:
        assert played.code == explained.code
        fields = (
            "instance_id",
            "cut",
            "seed",
            "policy_digest",
            "engine",
            "chosen",
            "alternates",
            "rejections",
            "passed",
            "best",
            "nearest_miss",
        )
        assert [[item[name] for name in fields] for item in played.json["items"]] == [
            [item[name] for name in fields] for item in explained.json["items"]
        ]
        assert [item["unchanged"] for item in played.json["items"]] == [item["chosen"] for item in played.json["items"]]
