"""A scheduler where requests or results have left the log, by a retention that somebody set: nobody is placed twice, or lost, for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from projections import filed
from schemas.audits import InstanceReport
from schemas.claims import ClaimReleased, NodeObserved
from schemas.inventory import Hypervisor
from schemas.resources import ObservedResources
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import ANSWERED, CLAIMS, REQUESTS, RESULTS
from tests.scheduling_world import START_MS, World, said, settle, world

HOUR_MS = 3_600_000


class Forgotten:
    """A log whose broker has forgotten what groups had stored."""

    def __init__(self, here: World) -> None:
        self._log = here.log

    def committed(self, _group: str, _topic: str) -> dict[int, int]:
        return {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def answered(*requests: str) -> World:
    """A log on which these requests were placed, an hour ago, by a scheduler that has left."""
    here = world(claims=1, requests=1)
    here.host("n1")
    for request_id in requests:
        here.request(request_id)
    first = here.scheduler("first")
    settle(first)
    first.close()
    here.clock.now_ms += HOUR_MS
    return here


def lose(here: World, topic: str, left: int = 0) -> int:
    """All but the last so many records of a topic leave the log; returns where it begins now."""
    start = here.log.end(topic, 0) - left
    here.log.truncate(topic, 0, start)
    return start


def test_what_may_have_been_answered_is_not_answered_again_where_neither_offset_nor_results_are_left() -> None:
    here, told = answered("r1", "r2"), list[str]()
    lose(here, RESULTS)

    scheduler = here.scheduler("second", log=Forgotten(here), tell=told.append)
    settle(scheduler)
    here.request("r3")
    settle(scheduler)

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r3"]
    assert len(told) == 1
    assert "what was asked before offset 2 is not answered: no offset is stored and results before placement-results/0@" in told[0]


def test_what_was_asked_after_the_first_result_that_is_left_is_answered() -> None:
    here = answered("r1", "r2")
    lose(here, RESULTS, left=1)
    here.request("r3")

    settle(here.scheduler("second", log=Forgotten(here)))

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r2", "r3"]


def test_with_an_offset_stored_all_that_is_open_is_answered_whatever_results_are_left() -> None:
    here, told = answered("r1"), list[str]()
    here.request("r2")
    lose(here, RESULTS)

    settle(here.scheduler("second", tell=told.append))

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r2"]
    assert told == []


@pytest.mark.parametrize("left", [0, 1])
def test_what_is_filed_away_after_results_were_lost_does_not_hide_that_they_were(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed, "SAID_REQUESTS", 1)
    here, told = answered("r1", "r2"), list[str]()
    lose(here, RESULTS, left)
    scheduler = here.scheduler("second")
    settle(scheduler)
    here.clock.now_ms += HOUR_MS
    for request_id in ("r3", "r4"):
        here.request(request_id)
        settle(scheduler)
        here.clock.now_ms += HOUR_MS
    settle(scheduler)
    settle(scheduler)
    scheduler.close()

    settle(here.scheduler("third", log=Forgotten(here), tell=told.append))

    assert here.log.end(ANSWERED, 0) > 0
    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r2", "r3", "r4"][1 - left :]
    assert "is not answered: no offset is stored and results" in told[0]


def test_requests_that_left_unanswered_are_told() -> None:
    here, told = answered("r1"), list[str]()
    here.request("r2")
    here.request("r3")
    lose(here, REQUESTS, left=1)

    settle(here.scheduler("second", tell=told.append))

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r1", "r3"]
    assert len(told) == 1
    assert told[0].startswith("placement-requests/0: the records from 1 to 1 have left the log, and not all of them may have been answered")


def test_a_partition_that_comes_back_is_begun_anew_where_what_followed_has_left() -> None:
    here = answered("r1")
    scheduler = here.scheduler("second")
    settle(scheduler)
    scheduler.placer.disown(0)
    here.request("r2")
    lose(here, REQUESTS)
    here.request("r3")

    settle(scheduler)

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["r1", "r3"]


def test_the_claim_of_a_first_result_that_has_left_is_no_loser_to_a_second_one() -> None:
    here = answered("r1")
    (claim,) = here.ledgers()[0].claims.values()
    (first,) = said(here, RESULTS, InstancesPlaced)
    (place,) = first.placements
    second = structs.replace(
        first,
        owner="other",
        placements=(structs.replace(place, claim_id="r1/0/other-1.1"),),
        commit_by_ms=here.clock.now_ms + HOUR_MS,
    )
    here.say(RESULTS, second)
    lose(here, RESULTS, left=1)

    settle(here.scheduler("third"))

    assert said(here, CLAIMS, ClaimReleased) == []
    assert list(here.ledgers()[0].claims) == [claim.claim_id]


def test_a_cancellation_of_what_was_placed_gives_no_claim_back_from_under_its_guest_though_the_result_has_left() -> None:
    here = answered("r1")
    (claim,) = here.ledgers()[0].claims.values()
    guest = InstanceReport(instance_id=claim.instance_id, resources=ObservedResources(vcpus=1, memory_mib=1024))
    seen = NodeObserved(
        node_id="n1",
        producer="audits of n1",
        epoch=1,
        counter=2,
        taken_at_ms=START_MS + HOUR_MS,
        mono_ms=HOUR_MS,
        hypervisor=Hypervisor(vcpus=8, memory_mib=16_384, disk_mib=102_400),
        instances=(guest,),
    )
    here.say(CLAIMS, seen)
    lose(here, RESULTS)
    here.cancel("r1")

    scheduler = here.scheduler("second")
    settle(scheduler)

    assert said(here, RESULTS, PlacementFailed) == []
    assert [release.reason for release in said(here, CLAIMS, ClaimReleased)] == ["cancelled"]
    assert list(here.ledgers()[0].claims) == [claim.claim_id]
    assert scheduler.placer.commit_offsets() == {0: 2}
