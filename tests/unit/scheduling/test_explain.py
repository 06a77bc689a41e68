"""A recorded decision run again at its cut gives the same choice, and says so when it does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from projections.ledger import Ledger
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import decode
from schemas.requests import PlacementRequested, ServerGroup
from schemas.resources import Resources
from schemas.results import Decision, InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import CLAIMS, RESULTS
from streams.evidence import shortened
from streams.log.base import Message
from streams.scheduling.explain import CannotRerun, Laid, funnel, named_in_log, rerun_on, spelled_out
from streams.scheduling.loading import from_text
from streams.scheduling.overlay import InFlight, count, with_one, without
from streams.scheduling.policy import DEFAULT, PACK, Policy
from streams.scheduling.select import ENGINES
from tests.scheduling_world import At, World, rerun, settle, world


def claimed(here: World) -> dict[str, ClaimItem]:
    events: list[Any] = [
        decode(CLAIMS, record.value) for number in here.log.ends(CLAIMS) for record in here.log.read(CLAIMS, number, 0, 100_000)
    ]
    return {item.claim_id: item for event in events if isinstance(event, ClaimRequested) for item in event.items}


def results(here: World) -> list[Any]:
    return [decode(RESULTS, record.value) for number in here.log.ends(RESULTS) for record in here.log.read(RESULTS, number, 0, 100_000)]


def busy(policy: Policy, engine: str) -> World:
    """A small fleet, more requests than fit, answered in batches by two schedulers in turn."""
    here, rng = world(), random.Random(7)
    for number in range(5):
        here.host(f"n{number}")
    schedulers = [here.scheduler(name, policy=policy, engine_name=engine) for name in ("s1", "s2")]
    group = ServerGroup(group_id="g", policy="anti-affinity", max_per_node=2)
    together = ServerGroup(group_id="t", policy="affinity")
    for number in range(36):
        here.request(f"r{number}", vcpus=rng.randint(1, 3), count=rng.choice([1, 1, 3]), group=rng.choice([None, None, group, together]))
        if number % 4 == 0:
            rng.choice(schedulers).turn()
    for _ in range(20):
        for scheduler in schedulers:
            scheduler.turn()
    return here


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("policy", [DEFAULT, PACK])
def test_every_recorded_decision_run_again_gives_the_same_choice(policy: Policy, engine: str) -> None:
    here = busy(policy, engine)
    items, found = claimed(here), results(here)
    requests = {request.request_id: request for request in here.requests}
    texts = {record.policy_digest: record.policy for record in found if isinstance(record, SchedulerStarted)}
    reruns = []
    for record in found:
        if isinstance(record, InstancesPlaced | PlacementFailed):
            request = requests[record.request_id]
            numbers = {request.instance(number): number for number in range(request.count)}
            for decision in spelled_out(request, record.decisions):
                index = numbers[decision.instance_id]
                known = from_text(texts[decision.policy_digest])
                reruns.append(rerun(here.ledgers_at(decision.cut), request, index, decision, items, known))

    assert [each.differences for each in reruns if not each.same] == []
    assert len(reruns) > 36
    assert {bool(each.recorded.chosen) for each in reruns} == {True, False}
    assert any(count(each.recorded.overlay) > 3 for each in reruns)


@pytest.mark.parametrize(("node_id", "same"), [("full", True), ("small", True), ("fuller", False)])
def test_earlier_versions_took_a_node_that_is_too_small_when_empty_for_the_nearest(node_id: str, same: bool) -> None:
    here = world()
    for name, vcpus in (("full", 16), ("fuller", 16), ("small", 4)):
        here.host(name, vcpus=vcpus)
    scheduler = here.scheduler("s1")
    here.request("first", vcpus=13, forced_nodes=("full",))
    here.request("second", vcpus=14, forced_nodes=("fuller",))
    scheduler.turn()
    here.request("r", vcpus=6)
    for _ in range(5):
        scheduler.turn()
    (failed,) = [each for each in results(here) if isinstance(each, PlacementFailed)]
    (decision,) = failed.decisions
    assert decision.nearest_miss is not None
    assert decision.nearest_miss.node_id == "full"
    recorded = structs.replace(decision, nearest_miss=structs.replace(decision.nearest_miss, node_id=node_id))
    (request,) = [each for each in here.requests if each.request_id == "r"]

    again = rerun(here.ledgers_at(decision.cut), request, 0, recorded, claimed(here), DEFAULT)

    assert again.differences == (() if same else ("nearest_miss",))


@pytest.mark.parametrize("policy", [DEFAULT, PACK])
def test_decisions_made_again_one_after_the_other_lay_only_what_came_since_and_are_as_each_made_alone(policy: Policy) -> None:
    here = busy(policy, "profiles")
    items, found = claimed(here), results(here)
    requests = {request.request_id: request for request in here.requests}
    kept, differing = 0, []
    for record in found:
        if not isinstance(record, InstancesPlaced | PlacementFailed):
            continue
        request = requests[record.request_id]
        laid, folded, before = Laid(request), dict[tuple[int, ...], list[Ledger]](), None
        numbers = {request.instance(number): number for number in range(request.count)}
        for decision in spelled_out(request, record.decisions):
            index = numbers[decision.instance_id]
            if decision.cut not in folded:
                folded[decision.cut] = here.ledgers_at(decision.cut)
            fleet = laid.under(folded[decision.cut], decision, items, policy)
            rooms = fleet.rooms()
            alone = Laid(request).under(folded[decision.cut], decision, items, policy)
            if fleet.overlay != alone.overlay or rooms != alone.rooms() or not rerun_on(fleet, request, index, decision, policy).same:
                differing.append(decision)
            kept += fleet is before
            before = fleet
            other = structs.replace(items[next(iter(items))], claim_id="what somebody else lays/0/x-1.1")
            fleet.lay(other, "n1", fleet.partition_of_node("n1"))

    assert differing == []
    assert kept > 5


def test_what_was_put_back_is_not_looked_for_in_the_log() -> None:
    here = world()
    here.host("n1", vcpus=100)
    request = here.request("r", count=3)
    scheduler = here.scheduler()
    settle(scheduler)

    (record,) = [record for record in results(here) if isinstance(record, InstancesPlaced)]
    overlays = [each.overlay for each in spelled_out(request, record.decisions)]

    assert [len(each) for each in overlays] == [0, 1, 2]
    assert [named_in_log(request, ("s-1.7@", "other/0/own-0.0@n1", *each)) for each in overlays] == [("s-1.7@", "other/0/own-0.0@n1")] * 3


def test_what_found_nothing_after_a_conflict_is_made_again_though_what_lay_over_it_was_never_claimed() -> None:
    """Others take one of its nodes in one partition and all that were left; of the two instances there only one finds another."""
    here, policy = world(), structs.replace(DEFAULT, alternates_max=0)
    for number in range(7):
        here.host(f"n{number}", vcpus=2)
    request = here.request("r0", vcpus=2, count=5)
    taken: list[str] = []

    def slip_in(when: str, messages: Sequence[Message]) -> None:
        said = [event for each in messages if isinstance(event := decode(each.topic, each.value), ClaimRequested)]
        if when == "before" and said and not taken:
            chosen = {item.nodes[0] for event in said for item in event.items}
            smaller = min(said, key=lambda event: len(event.items))
            taken.extend([smaller.items[0].nodes[0], *sorted({f"n{number}" for number in range(7)} - chosen)])
            for node_id in taken:
                item = ClaimItem(claim_id=node_id, instance_id=node_id, nodes=(node_id,), resources=Resources(vcpus=2))
                basis = here.log.end(CLAIMS, here.log.partition(CLAIMS, node_id.encode())) - 1
                here.say(CLAIMS, ClaimRequested(request_id="other", owner="o", basis=basis, ttl_ms=600_000, items=(item,)))

    scheduler = here.scheduler(log=At(here.log, slip_in), policy=policy)
    settle(scheduler)

    (failed,) = [record for record in results(here) if isinstance(record, PlacementFailed)]
    items, numbers = claimed(here), {request.instance(index): index for index in range(5)}
    attempts = [decision.attempt for decision in failed.decisions]
    reruns = [
        rerun(here.ledgers_at(each.cut), request, numbers[each.instance_id], each, items, policy)
        for each in spelled_out(request, failed.decisions)
    ]
    again = [index for index, attempt in enumerate(attempts) if attempt == 2]
    assert len(again) == 2
    assert again[1] > again[0] + 1, "the two are apart"
    assert [each.differences for each in reruns] == [()] * 5


def test_what_lay_over_a_decision_where_one_found_nothing_is_spelled_out_whatever_was_laid_and_lifted_meanwhile() -> None:
    """As it is worked out for each by itself, in hundreds of orders of two cuts, other requests' claims, and claims that were read back."""
    for seed in range(300):
        rng, flying, laid = random.Random(seed), InFlight("s-1"), list[str]()
        cuts = [rng.choice([1, 2]) for _ in range(rng.randint(2, 30))]
        found: dict[int, tuple[Decision, str]] = {}
        counters = iter(range(1, 1000))
        for number in sorted(range(len(cuts)), key=lambda number: cuts[number] != cuts[-1] if seed % 2 else cuts[number] == cuts[-1]):
            while laid and rng.random() < 0.1:
                flying.lift(laid.pop(rng.randrange(len(laid))))
            for request in rng.choice([["r"], ["r"], ["other", "r"]]):
                claim_id = f"{request}/{number}/s-1.{(counter := next(counters))}"
                if request == "r":
                    found[number] = recorded(f"i{number}", cut=(cuts[number],), overlay=flying.texts(), chosen=f"n{number}"), claim_id
                flying.lay(claim_id, counter)
                laid.append(claim_id)
        decisions, ids = [found[number][0] for number in range(len(cuts))], [found[number][1] for number in range(len(cuts))]
        decisions[-1] = structs.replace(decisions[-1], chosen="")

        short = shortened(decisions, ids, "s-1")

        for k, (decision, said) in enumerate(zip(decisions, short, strict=True)):
            own = [j for j in range(k) if decisions[j].cut == decisions[-1].cut]
            others = without(decision.overlay, "s-1", [ids[j] for j in own])
            spelled = (*others, *(f"{ids[j]}@{decisions[j].chosen}" for j in own))
            assert said.overlay in {(), spelled if decision.cut == decisions[-1].cut else decision.overlay}
            follows = (
                k > 0 and decision.cut == decisions[k - 1].cut and decision.overlay == with_one(decisions[k - 1].overlay, "s-1", ids[k - 1])
            )
            assert follows or said.overlay != () or decision.overlay == ()


def recorded(instance_id: str, *, cut: tuple[int, ...], overlay: tuple[str, ...], chosen: str) -> Decision:
    return Decision(
        instance_id=instance_id,
        cut=cut,
        overlay=overlay,
        seed=1,
        policy_digest="p",
        engine="reference",
        nodes_known=1,
        passed=1,
        chosen=chosen,
    )


def one_decision() -> tuple[World, PlacementRequested, Decision]:
    here = world()
    here.host("n1")
    here.host("n2", vcpus=1)
    request = here.request("r", vcpus=2)
    scheduler = here.scheduler()
    settle(scheduler)
    (record,) = [record for record in results(here) if isinstance(record, InstancesPlaced)]
    return here, request, record.decisions[0]


def test_a_record_that_was_changed_is_found_out() -> None:
    here, request, decision = one_decision()
    other = structs.replace(decision, chosen="n2", passed=2)

    again = rerun(here.ledgers_at(decision.cut), request, 0, other, {}, DEFAULT)

    assert (again.same, again.differences, again.again.chosen) == (False, ("passed", "chosen"), "n1")


def test_what_a_result_had_no_room_for_is_no_difference() -> None:
    here = world()
    for number in range(40):
        here.host(f"n{number:02}", vcpus=100, memory_mib=100_000)
    request = here.request("r", count=1000)
    scheduler = here.scheduler()
    settle(scheduler)

    (record,) = [record for record in results(here) if isinstance(record, InstancesPlaced)]
    decisions = spelled_out(request, record.decisions)
    last = decisions[-1]
    again = rerun(here.ledgers_at(last.cut), request, len(decisions) - 1, last, claimed(here), DEFAULT)

    assert (last.best, again.differences) == ((), ())
    assert again.whole == structs.replace(last, best=again.again.best)


def test_the_decision_that_found_nothing_keeps_its_evidence_however_large_its_request_is() -> None:
    here = world()
    for number in range(40):
        here.host(f"{number:02}-{'n' * 240}", vcpus=24, memory_mib=100_000)
    request = here.request("r", count=1000)
    scheduler = here.scheduler()
    settle(scheduler)

    (record,) = [record for record in results(here) if isinstance(record, PlacementFailed)]
    *before, last = spelled_out(request, record.decisions)
    again = rerun(here.ledgers_at(last.cut), request, 960, last, {}, DEFAULT)

    assert last.instance_id == request.instance(960)
    assert (len(before), before[-1].alternates) == (960, ())
    assert (last.nodes_known, sum(each.rejected for each in last.rejections), last.nearest_miss is None) == (40, 40, False)
    assert again.same
    assert again.whole == last

    shortened = spelled_out(request, (*record.decisions[:10], record.decisions[-1]))[-1]
    with pytest.raises(CannotRerun, match="what was chosen for the instances 10 to 959 of the request was laid over the decision"):
        rerun(here.ledgers_at(last.cut), request, 960, shortened, {}, DEFAULT)


def test_what_is_missing_is_said() -> None:
    here, request, decision = one_decision()

    with pytest.raises(CannotRerun, match=r"decided at the cut .* the ledgers are folded to"):
        rerun(here.ledgers(), request, 0, decision, {}, DEFAULT)
    with pytest.raises(CannotRerun, match="decided by policy"):
        rerun(here.ledgers_at(decision.cut), request, 0, decision, {}, PACK)
    with pytest.raises(CannotRerun, match="was laid over the decision and is not among the claims at hand"):
        rerun(here.ledgers_at(decision.cut), request, 0, structs.replace(decision, overlay=("x/0/s-1.1@n1",)), {}, DEFAULT)
    with pytest.raises(CannotRerun, match=r"s-1\.1 was laid over the decision and is not among the claims at hand"):
        rerun(here.ledgers_at(decision.cut), request, 0, structs.replace(decision, overlay=("s-1.1@",)), {}, DEFAULT)
    with pytest.raises(CannotRerun, match="node n9 is in no ledger"):
        rerun(here.ledgers_at(decision.cut), request, 0, structs.replace(decision, overlay=("r/0/s-1.1@n9",)), {}, DEFAULT)


def test_the_funnel_says_who_came_who_left_and_why_the_first_was_rejected() -> None:
    _, _, decision = one_decision()

    lines = [(line.filter, line.entered, line.rejected, line.left, line.example) for line in funnel(decision)]

    assert lines == [
        ("ComputeFilter", 2, 0, 2, ""),
        ("CoreFilter", 2, 1, 1, "n2: vcpus: 2 needed of 1"),
        ("RamFilter", 1, 0, 1, ""),
        ("fit", 1, 0, 1, ""),
    ]
