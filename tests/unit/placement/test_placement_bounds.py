"""What a scheduler does at most, says once, waits for, and holds its commit back for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from projections.placements import Answered, Asked, Cancel, Named, Placements
from schemas.claims import ClaimReleased, ClaimRequested, GroupHomeClosed, GroupHomeProposed
from schemas.codec import decode, encode
from schemas.requests import Flavor, PlacementRequested, ServerGroup
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, RESULTS
from streams.log.base import Message
from streams.placement.placer import ATTEMPTS_MAX, Placer
from streams.placement.work import Desk
from streams.scheduler import Clocks, Scheduler
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT
from streams.scheduling.select import engine
from tests.scheduling_world import START_MS, TTL_MS, At, World, hosts, rival, said, settle, wrongs
from tests.unit.placement.test_placement import Deaf, held, nothing

HOUR_MS = 3_600_000


class Alone:
    """A placer without a shell: what it says lands in its fold when a test says so."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.ledger = here.ledgers()[0]
        self.placer = Placer("s", 1, Fleet([self.ledger]), DEFAULT, engine("reference"), 1)
        self.placer.own(0, Placements(0, 1), [self.end])
        self._asked = 0

    @property
    def end(self) -> int:
        return self.here.log.end(CLAIMS, 0)

    def ask(self, request_id: str, vcpus: int, claims_ends: Sequence[int] | None = None) -> None:
        request = PlacementRequested(request_id=request_id, flavor=Flavor(vcpus=vcpus))
        self.placer.desks[0].placements.open[request_id] = asked = Asked(request, self._asked, START_MS)
        self._asked += 1
        self.placer.asked(0, asked, claims_ends)

    def act(self) -> list[Message]:
        return self.placer.act(START_MS, 0)

    def fold(self, *messages: Message) -> None:
        """These land in the log, and all of it is folded."""
        self.here.log.append(messages)
        for record in self.here.log.read(CLAIMS, 0, self.ledger.next_offset):
            step = self.ledger.apply(record.offset, record.time_ms, record.key, record.value)
            assert step is not None
            self.placer.folded(0, step)


def kinds(messages: Sequence[Message]) -> list[tuple[type, str]]:
    events: list[Any] = [decode(message.topic, message.value) for message in messages]
    return [(type(event), event.request_id) for event in events]


def turns(scheduler: Scheduler, here: World, topic: str, kind: type, count: int = 1) -> None:
    """Turns until so many records of a kind are said, none of which is read back."""
    for _ in range(200):
        if len(said(here, topic, kind)) >= count:
            return
        scheduler.turn()
    raise AssertionError(f"no {kind.__name__} is said")


def test_a_failure_that_is_not_read_back_is_not_said_again() -> None:
    alone = Alone(hosts("n1", claims=1))
    alone.ask("too large", 99, [alone.end])

    each = [kinds(alone.act()) for _ in range(3)]

    assert each == [[(PlacementFailed, "too large")], [], []]


def test_with_few_nodes_to_fall_back_on_nothing_is_claimed_before_the_claims_of_others_are_folded() -> None:
    here = hosts("n1", claims=1)
    alone = Alone(here)
    alone.ask("r", 1)
    at_once, wanted = alone.act(), alone.placer.wants_ends
    here.host("n2")
    alone.placer.ends_are([alone.end])
    behind = alone.act()

    alone.fold()

    assert (at_once, wanted, behind) == ([], True, [])
    assert kinds(alone.act()) == [(ClaimRequested, "r")]
    assert alone.placer.fleet.overlay != ()


def test_who_finds_no_room_waits_for_own_claims_in_flight_so_often_and_is_refused_though_there_are_always_some() -> None:
    alone = Alone(hosts("n1", claims=1, vcpus=1000))
    alone.ask("first", 1, [alone.end])
    in_flight = alone.act()
    alone.ask("too large", 9999, [alone.end])
    assert alone.act() == []
    waited = 0

    while waited <= 2 * ATTEMPTS_MAX:
        waited += 1
        alone.ask(f"next {waited}", 1, [alone.ledger.next_offset])
        follows = alone.act()
        alone.fold(*in_flight)
        in_flight = follows
        if (PlacementFailed, "too large") in kinds(follows):
            break

    assert waited == ATTEMPTS_MAX + 1


def test_an_instance_that_is_refused_again_and_again_is_given_up_in_the_end() -> None:
    """Before each of its claims another one takes the room, and gives it back after it."""
    here = hosts("n1", vcpus=1, claims=1)
    here.request("r")
    rivals: list[str] = []

    def be_first(when: str, messages: Sequence[Message]) -> None:
        for message in messages:
            event = decode(message.topic, message.value)
            if isinstance(event, ClaimRequested) and when == "before":
                here.say(CLAIMS, another := rival(event, len(rivals) + 1))
                rivals.append(another.items[0].claim_id)
            elif isinstance(event, ClaimRequested):
                here.say(CLAIMS, ClaimReleased(node_id="n1", record_id=f"end of {rivals[-1]}", claim_id=rivals[-1], reason="operator"))

    scheduler = here.scheduler(log=At(here.log, be_first))
    for _ in range(4 * ATTEMPTS_MAX):
        scheduler.turn()

    (failed,) = said(here, RESULTS, PlacementFailed)
    assert (failed.reason, failed.message) == ("refused", f"instance 0: refused {ATTEMPTS_MAX} times, last: vcpus: 1 needed of 0")
    assert len(rivals) == scheduler.placer.counters.conflicts == ATTEMPTS_MAX
    assert wrongs(here) == []


def test_who_had_enough_homes_of_its_group_closed_leaves_the_next_one_as_it_is() -> None:
    """Each home that it proposes is closed, and followed by one in which it finds no room."""
    here = hosts("n1", claims=1)
    here.host("tiny", vcpus=1)

    def move_in(when: str, messages: Sequence[Message]) -> None:
        for message in messages if when == "after" else ():
            event = decode(message.topic, message.value)
            if isinstance(event, GroupHomeProposed):
                epoch = event.epoch
                here.say(CLAIMS, GroupHomeClosed(node_id=event.node_id, record_id=f"x{epoch}", group_id="g", epoch=epoch))
                here.say(CLAIMS, GroupHomeProposed(group_id="g", record_id=f"y{epoch}", epoch=epoch + 1, node_id="tiny"))

    here.request("r", vcpus=4, group=ServerGroup(group_id="g", policy="affinity"))
    scheduler = here.scheduler(log=At(here.log, move_in))
    for _ in range(8 * ATTEMPTS_MAX):
        scheduler.turn()

    (failed,) = said(here, RESULTS, PlacementFailed)
    (home,) = [ledger.homes("g") for ledger in here.ledgers()]
    assert failed.reason == "no-valid-node"
    assert home is not None
    assert (home.epoch, home.node_id) == (2 * ATTEMPTS_MAX, "tiny")


def late(owner: str) -> InstancesPlaced:
    return InstancesPlaced(
        request_id="r", owner=owner, taken_up_ms=START_MS - HOUR_MS, commit_by_ms=START_MS - 1, placements=(), decisions=()
    )


def test_a_result_of_another_owner_that_is_too_late_changes_nothing() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    scheduler = here.scheduler()
    scheduler.turn()
    here.say(RESULTS, late("other"))

    settle(scheduler)

    (claim,) = said(here, CLAIMS, ClaimRequested)
    assert held(here) == {claim.items[0].claim_id}
    assert scheduler.placer.counters.late_results == 0
    assert wrongs(here) == []


def test_a_result_that_a_clock_set_forward_made_late_is_followed_by_one_in_time() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    moved: list[bool] = []

    def set_forward(when: str, messages: Sequence[Message]) -> None:
        placed = any(isinstance(decode(message.topic, message.value), InstancesPlaced) for message in messages)
        if when == "before" and placed and not moved:
            moved.append(True)
            here.clock.now_ms += HOUR_MS

    scheduler = Scheduler(At(here.log, set_forward), "s", clocks=Clocks(here.clock.wall, lambda: 0))
    settle(scheduler)

    first, second = said(here, RESULTS, InstancesPlaced)
    assert (first.taken_up_ms, second.taken_up_ms) == (START_MS, START_MS + HOUR_MS)
    assert here.answer("r").placed
    assert scheduler.placer.counters.late_results == 1
    assert wrongs(here) == []


def test_an_own_result_of_an_earlier_start_that_lands_before_its_request_is_read_is_an_answer_and_not_counted() -> None:
    alone = Alone(hosts("n1", claims=1))
    placements = alone.placer.desks[0].placements
    earlier = PlacementFailed(request_id="r", owner="s", taken_up_ms=START_MS, reason="no-valid-node")
    answered = placements.apply_result(0, START_MS, b"r", encode(earlier))
    assert isinstance(answered, Answered)

    alone.placer.answered(0, answered)

    request = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1))
    assert placements.apply_request(0, START_MS, b"r", encode(request)) is None
    assert (alone.placer.counters.failed, list(alone.placer.counters.latencies_ms)) == ({}, [])


def test_who_begins_a_request_again_waits_for_the_claims_it_had_in_flight_and_stays_where_they_are_held() -> None:
    here = hosts("n1", "n2", "n3", "n4", claims=1)
    here.request("r")
    deaf = Deaf(here)
    scheduler = here.scheduler(log=At(deaf, nothing))
    scheduler.turn()
    deaf.from_offset = here.log.end(CLAIMS, 0) - 1
    here.clock.now_ms += TTL_MS // 4 + 1
    for _ in range(3):
        scheduler.turn()
    while_in_flight = len(said(here, CLAIMS, ClaimRequested))

    deaf.from_offset = None
    settle(scheduler)

    before, after = said(here, CLAIMS, ClaimRequested)
    assert while_in_flight == 1
    assert after.items[0].nodes[0] == before.items[0].nodes[0]
    assert wrongs(here) == []


def test_the_release_of_a_loser_holds_the_commit_of_its_request_until_it_is_read_back() -> None:
    here = hosts("n1", claims=1)
    here.request("r")
    here.scheduler("old").turn()
    scheduler = here.scheduler("new", log=At(here.log, nothing, owns_all=True))
    turns(scheduler, here, CLAIMS, ClaimReleased)
    when_sent = scheduler.placer.commit_offsets()

    settle(scheduler)

    assert (when_sent, scheduler.placer.commit_offsets()) == ({0: 0}, {0: 1})


def test_a_release_that_belongs_to_no_request_at_hand_holds_no_commit() -> None:
    desk = Desk(Placements(0, 1, requests_next=7), (0,))
    desk.release(Named("r/0/s-1.1", 0, "n1"), "loser", -1)

    assert desk.commit_offset() == 7


@pytest.mark.parametrize("found", ["a request", "a cancellation"])
def test_who_waits_for_the_fold_before_it_takes_something_up_is_not_idle(found: str) -> None:
    alone = Alone(hosts("n1", claims=1))
    later = alone.end + 1
    alone.placer.disown(0)
    alone.placer.own(0, Placements(0, 1), [later])
    before = alone.placer.is_idle()
    if found == "a request":
        alone.ask("r", 1, [later])
    else:
        alone.placer.asked(0, Cancel("r", "r/cancel", 0, START_MS))

    said_now = alone.act()

    assert (before, said_now, alone.placer.is_idle()) == (True, [], False)


def test_nothing_is_remembered_of_a_request_whose_claims_are_all_closed() -> None:
    desk = Desk(Placements(0, 1), (0,))
    for number in range(2):
        desk.granted("r", Named(f"r/{number}/s-1.{number}", 0, "n1"), 5)

    desk.closed("r", "r/0/s-1.0")
    desk.closed("r", "r/0/s-1.0")
    before = list(desk.held["r"])
    desk.closed("r", "r/1/s-1.1")

    assert (before, desk.held) == (["r/1/s-1.1"], {})
