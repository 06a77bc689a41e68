"""What a scheduler met on the log is in the metrics of its process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from schemas.claims import ClaimRequested
from schemas.codec import decode
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, RESULTS
from streams.clock import SystemClock
from streams.log.base import Message
from streams.metrics import Metrics
from streams.scheduling.policy import DEFAULT
from streams.scheduling_engine import SchedulerEngine
from tests.scheduling_world import TTL_MS, At, Clock, World, rival, world

TURNS_MAX = 50
SERIES = (
    "claimlog_claim_conflicts_total",
    "claimlog_claim_alternates_used_total",
    "claimlog_placement_lost_races_total",
    "claimlog_placement_late_results_total",
)


class Told(SystemClock):
    """The clock of the world."""

    def __init__(self, clock: Clock) -> None:
        self.wall_ms, self.boot_ms = clock.wall, clock.boot  # type: ignore[method-assign]


def take_the_room(here: World, claim: ClaimRequested) -> None:
    """Another's claim of the chosen room comes first."""
    here.say(CLAIMS, rival(claim))


def answer_first(here: World, claim: ClaimRequested) -> None:
    """Another scheduler's answer comes first."""
    here.say(RESULTS, PlacementFailed(request_id=claim.request_id, owner="x", taken_up_ms=here.clock.now_ms, reason="no-valid-node"))


def counted(nodes: int, once: Callable[[World, ClaimRequested], None] | None, *, freeze: bool = False) -> tuple[int, ...]:
    """The series after one request for one vCPU on nodes of one, where `once` happens just before its first claim is appended."""
    here, metrics = world(claims=1, requests=1), Metrics("1")
    for number in range(nodes):
        here.host(f"n{number}", vcpus=1)
    here.request("r")
    left = [once] if once is not None else []

    def act(when: str, messages: Sequence[Message]) -> None:
        events = [decode(message.topic, message.value) for message in messages]
        claims = [event for event in events if isinstance(event, ClaimRequested)]
        if when == "before" and claims and left:
            left.pop()(here, claims[0])
        if when == "before" and freeze and any(isinstance(event, InstancesPlaced) for event in events):
            here.clock.now_ms += TTL_MS

    engine = SchedulerEngine(
        At(here.log, act), "s", DEFAULT, "reference", Told(here.clock), metrics, lambda _: None, lease_timeout_seconds=1e6, version=""
    )
    for _ in range(TURNS_MAX):
        if not engine.turn(frozenset()):
            break
    else:
        raise AssertionError("the scheduler does not come to rest")
    engine.close()
    return tuple(int(metrics.registry.get_sample_value(series) or 0) for series in SERIES)


def test_nothing_that_goes_well_is_counted_as_trouble() -> None:
    assert counted(2, None) == (0, 0, 0, 0)


@pytest.mark.parametrize(("nodes", "expected"), [(1, (1, 0, 0, 0)), (2, (0, 1, 0, 0))])
def test_room_that_another_took_is_a_conflict_or_leads_to_an_alternate(nodes: int, expected: tuple[int, ...]) -> None:
    assert counted(nodes, take_the_room) == expected


def test_a_request_that_another_answered_first_is_a_lost_race() -> None:
    assert counted(1, answer_first) == (0, 0, 1, 0)


def test_results_that_come_too_late_are_counted() -> None:
    conflicts, alternates, races, late = counted(1, None, freeze=True)

    assert (conflicts, alternates, races) == (0, 0, 0)
    assert late > 0
