"""Which result of a request counts, and that every recorded decision comes out the same when it is made again, for ever.

The log is `placements_v1.jsonl`; the story behind it is in `placement_story`. Choices, counts and nearest misses are held; the wording of
reasons may get better, and weights are evidence only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import msgspec
import pytest

from projections.ledger import Ledger
from projections.placements import Placements
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import decode
from schemas.requests import PlacementRequested
from schemas.results import Decision, FailureReason, InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.log.base import Record
from streams.scheduling.explain import spelled_out
from streams.scheduling.loading import from_text
from streams.scheduling.policy import Policy, digest
from tests.golden.placement_story import FILE, TOPICS, lines_of, told, written
from tests.scheduling_world import rerun

# Counting results as they were: request, owner and how it ended. Of `raced` the first is late; the loser of `plain-0` came second.
NOT_COUNTING = {("raced", "slow"), ("plain-0", "slow")}
HELD = ("instance_id", "cut", "seed", "engine", "nodes_known", "passed", "chosen", "alternates", "attempt")


@cache
def golden() -> tuple[Record, ...]:
    if os.environ.get("CLAIMLOG_GOLDEN") == "write":
        FILE.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines_of(told())) + b"\n")
    return tuple(written(msgspec.json.decode(line)) for line in FILE.read_bytes().splitlines())


def events(topic: str) -> Iterator[tuple[Record, Any]]:
    return ((record, decode(topic, record.value)) for record in golden() if record.topic == topic)


def ledgers_at(cut: tuple[int, ...]) -> list[Ledger]:
    ledgers = [Ledger(number, len(cut)) for number in range(len(cut))]
    for record in golden():
        if record.topic == CLAIMS and record.offset < cut[record.partition]:
            ledgers[record.partition].apply(record.offset, record.time_ms, record.key, record.value)
    return ledgers


def decisions() -> list[tuple[PlacementRequested, int, Decision]]:
    """Every recorded decision, its overlay spelled out, with its request and the number of its instance."""
    requests = {event.request_id: event for _, event in events(REQUESTS) if isinstance(event, PlacementRequested)}
    results = [event for _, event in events(RESULTS) if isinstance(event, InstancesPlaced | PlacementFailed) and event.owner != "slow"]
    return [
        (requests[result.request_id], index, decision)
        for result in results
        for index, decision in enumerate(spelled_out(requests[result.request_id], result.decisions))
    ]


def test_the_results_that_count_are_those_that_counted() -> None:
    counting, losing = set(), set()
    for number in range(TOPICS[1].partitions):
        placements = Placements(number, TOPICS[1].partitions)
        for record in golden():
            if record.partition == number and record.topic == REQUESTS:
                placements.apply_request(record.offset, record.time_ms, record.key, record.value)
            elif record.partition == number and record.topic == RESULTS:
                placements.apply_result(record.offset, record.time_ms, record.key, record.value)
        counting |= {(answer.request_id, answer.owner) for answer in placements.answers.values()}
        losing |= {(answer.request_id, answer.owner) for answers in placements.losing.values() for answer in answers}
        assert placements.open == {}

    assert losing == NOT_COUNTING
    assert not counting & losing
    assert len(counting) == len({event.request_id for _, event in events(REQUESTS)})


@pytest.mark.parametrize("engine", ["as recorded", "profiles"])
def test_every_decision_is_the_same_when_it_is_made_again(engine: str) -> None:
    policies = {event.policy_digest: from_text(event.policy) for _, event in events(RESULTS) if isinstance(event, SchedulerStarted)}
    items: dict[str, ClaimItem] = {
        item.claim_id: item for _, event in events(CLAIMS) if isinstance(event, ClaimRequested) for item in event.items
    }
    for request, index, recorded in decisions():
        policy: Policy = policies[recorded.policy_digest]
        # A policy has more options today than its text had then, and so another digest.
        known = msgspec.structs.replace(recorded, policy_digest=digest(policy))
        if engine != "as recorded":
            known = msgspec.structs.replace(known, engine=engine)

        again = rerun(ledgers_at(recorded.cut), request, index, known, items, policy).again

        names = [name for name in HELD if name != "engine"]
        assert {name: getattr(again, name) for name in names} == {name: getattr(recorded, name) for name in names}, request.request_id
        assert _counts(again) == _counts(recorded), request.request_id
        assert _miss(again) == _miss(recorded), request.request_id


def test_the_golden_placements_meet_every_way_to_end_and_the_ways_to_ask() -> None:
    asked = [event for _, event in events(REQUESTS) if isinstance(event, PlacementRequested)]
    failed = {event.reason for _, event in events(RESULTS) if isinstance(event, PlacementFailed)}
    placed = [event for _, event in events(RESULTS) if isinstance(event, InstancesPlaced)]

    assert failed >= set(get_args(FailureReason)) - {"gave-up", "refused"}
    assert {request.action for request in asked} == {"create", "resize", "migrate", "evacuate"}
    assert {request.group.policy for request in asked if request.group} >= {"affinity", "anti-affinity", "soft-affinity"}
    assert any(event.kept for event in placed)
    assert any(request.numa for request in asked)
    assert any(request.pci for request in asked)
    assert any(decision.overlay for _, _, decision in decisions())
    assert any(decision.nearest_miss for _, _, decision in decisions())


def _counts(decision: Decision) -> list[tuple[str, int, int, str]]:
    """What each filter rejected; one that rejected nobody may be new or gone."""
    return [(each.filter, each.entered, each.rejected, each.node_id) for each in decision.rejections if each.rejected]


def _miss(decision: Decision) -> tuple[str, str, tuple[str, ...]] | None:
    miss = decision.nearest_miss
    return None if miss is None else (miss.node_id, miss.filter, tuple(map(str, miss.shortfalls)))
