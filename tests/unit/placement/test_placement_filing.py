"""A scheduler whose log is long: it keeps and reads what is recent, and treats what was answered long ago as answered all the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from projections import filed
from projections.ledger import Ledger
from projections.placements import Named
from schemas.claims import ClaimReleased
from schemas.codec import encode
from schemas.requests import PlacementCancelled
from schemas.results import InstancesPlaced, PlacementFailed, RequestsAnswered
from schemas.topics import ANSWERED, CLAIMS, REQUESTS, RESULTS
from streams import scheduler as scheduling
from streams.log.base import Message, TopicSpec
from streams.log.memory import MemoryLog
from streams.placement.filing import KEPT_MS, file_away, known
from streams.placement.history import begun
from streams.placement.work import Desk
from streams.scheduler import COMMIT_EVERY_MS, GROUP, Scheduler
from tests.scheduling_world import World, said, settle, world, wrongs

LONG_MS = KEPT_MS + COMMIT_EVERY_MS


class Reading:
    """A log that notes which results are read."""

    def __init__(self, here: World) -> None:
        self._log = here.log
        self.results: set[int] = set()

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000) -> list[Any]:
        found = list(self._log.read(topic, partition, offset, records_max))
        if topic == RESULTS and records_max > 1:
            self.results.update(record.offset for record in found)
        return found

    read_bare = read_early = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.fixture(autouse=True)
def two_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed, "SAID_REQUESTS", 2)


def long_ago(here: World, scheduler: Scheduler) -> None:
    """What was answered until now was answered long ago, and somebody asks again."""
    settle(scheduler)
    here.clock.now_ms += LONG_MS
    here.request(f"at/{here.clock.now_ms}")
    settle(scheduler)
    here.clock.now_ms += COMMIT_EVERY_MS
    settle(scheduler)
    settle(scheduler)


def r3_is_placed_long_after(here: World, scheduler: Scheduler) -> None:
    here.clock.now_ms += LONG_MS
    here.request("r3")
    settle(scheduler)


def placed_long_ago(*requests: str) -> tuple[World, Scheduler]:
    here = world(claims=1, requests=1)
    here.host("n1")
    for request_id in requests:
        here.request(request_id)
    scheduler = here.scheduler("first")
    long_ago(here, scheduler)
    return here, scheduler


def again(here: World, request_id: str) -> None:
    """The same request once more, byte for byte."""
    here.say(REQUESTS, next(request for request in here.requests if request.request_id == request_id))


def test_of_what_was_answered_long_ago_only_that_is_kept() -> None:
    _, scheduler = placed_long_ago("r1", "r2", "r3")

    placements = scheduler.placer.desks[0].placements

    assert list(placements.answers) == [f"at/{scheduler._clocks.wall_ms() - COMMIT_EVERY_MS}"]
    assert [placements.is_answered(name) for name in ("r1", "r3", "r4")] == [True, True, False]


def test_who_takes_over_does_not_read_the_results_of_what_was_answered_long_ago() -> None:
    here, first = placed_long_ago("r1", "r2", "r3", "r4")
    first.close()
    log: Any = Reading(here)

    second = here.scheduler("second", log=log)
    log.results.clear()  # It has looked for earlier starts of its own.
    settle(second)

    offsets = {result.request_id: result_offset(here, result) for result in said(here, RESULTS, InstancesPlaced)}
    assert log.results.isdisjoint({offsets[name] for name in ("r1", "r2", "r3", "r4")})
    assert offsets.keys() - {"r1", "r2", "r3", "r4"} == second.placer.desks[0].placements.answers.keys()


def test_who_takes_over_has_the_same_time_of_results_though_it_reads_few_of_them() -> None:
    here, first = placed_long_ago("r1", "r2", "r3", "r4")
    before = first.placer.desks[0].placements.filed.time_ms

    fresh = begun(here.log, 0, 0, None, print)

    assert (fresh.results_time_ms, fresh.results_next) == (before, first.placer.desks[0].placements.filed.next_offset)


def result_offset(here: World, result: InstancesPlaced) -> int:
    return next(record.offset for record in here.records(RESULTS, 0) if record.key == result.request_id.encode())


@pytest.mark.parametrize("takes_over", [False, True])
def test_what_was_answered_long_ago_is_not_answered_again(*, takes_over: bool) -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    if takes_over:
        scheduler.close()
        scheduler = here.scheduler("second")

    again(here, "r1")
    here.request("r3")
    settle(scheduler)

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced) if result.request_id.startswith("r")] == ["r1", "r2", "r3"]
    assert scheduler.placer.commit_offsets() == {0: here.log.end(REQUESTS, 0)}


def test_nor_is_it_where_brokers_have_forgotten_how_far_schedulers_were() -> None:
    here, first = placed_long_ago("r1", "r2")
    first.close()
    here.log.commit(GROUP, REQUESTS, {0: 0})

    settle(here.scheduler("second"))

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)][:2] == ["r1", "r2"]
    assert len(said(here, RESULTS, InstancesPlaced)) == 3


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_cancellation_of_what_was_placed_long_ago_gives_its_claims_back(*, takes_over: bool) -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    (claim,) = [claim for claim in here.ledgers()[0].claims.values() if claim.request_id == "r1"]
    if takes_over:
        scheduler.close()
        scheduler = here.scheduler("second")

    here.cancel("r1")
    settle(scheduler)

    assert [(release.claim_id, release.reason) for release in said(here, CLAIMS, ClaimReleased)] == [(claim.claim_id, "cancelled")]
    assert said(here, RESULTS, PlacementFailed) == []
    assert scheduler.placer.is_idle()


def test_nothing_of_a_cancelled_request_is_kept_either() -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    here.request("r3")
    here.cancel("r3")

    long_ago(here, scheduler)

    placements = scheduler.placer.desks[0].placements
    assert placements.is_answered("r3")
    assert (placements.cancels, placements.losing) == ({}, {})


def test_nor_is_a_cancellation_or_a_second_result_that_came_after_that() -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    here.say(RESULTS, next(result for result in said(here, RESULTS, InstancesPlaced) if result.request_id == "r1"))
    here.cancel("r1")

    settle(scheduler)

    placements = scheduler.placer.desks[0].placements
    assert scheduler.placer.is_idle()
    assert (placements.cancels, placements.losing) == ({}, {})


def test_a_cancellation_of_what_holds_nothing_any_more_says_nothing() -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    here.cancel("r1")
    settle(scheduler)
    ends = here.log.ends(RESULTS), here.log.ends(CLAIMS)

    here.say(REQUESTS, PlacementCancelled(request_id="r1", record_id="another cancellation"))
    settle(scheduler)

    assert (here.log.ends(RESULTS), here.log.ends(CLAIMS)) == ends
    assert scheduler.placer.is_idle()


def test_an_answer_is_not_filed_away_while_something_of_its_request_is_released() -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    desk = scheduler.placer.desks[0]
    (latest,) = desk.placements.answers
    r3_is_placed_long_after(here, scheduler)
    released, before = desk.release(Named(f"{latest}/0/frozen-1.1", 0, "n1"), "loser", -1), len(desk.placements.filed)

    scheduler._file_away()
    during = len(desk.placements.filed)
    del desk.releases[released]
    scheduler._file_away()

    assert (during, len(desk.placements.filed)) == (before, before + 1)


def test_where_something_is_always_released_others_are_filed_away_all_the_same() -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    desk = scheduler.placer.desks[0]
    before = len(desk.placements.filed)
    r3_is_placed_long_after(here, scheduler)
    desk.release(Named("r3/0/frozen-1.1", 0, "n1"), "loser", -1)

    scheduler._file_away()

    assert len(desk.placements.filed) == before + 1


def late_claim(here: World, request_id: str) -> Message:
    """The claim of a scheduler that was frozen since before the request was answered."""
    (record,) = [record for record in here.records(CLAIMS, 0) if f"{request_id}/0/first".encode() in record.value]
    value = record.value.replace(f"{request_id}/0/first".encode(), f"{request_id}/0/frozen".encode())
    return Message(CLAIMS, record.key, value.replace(b'"first"', b'"frozen"'), partition=0)


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_claim_that_comes_long_after_the_answer_is_given_back_at_once(*, takes_over: bool) -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    if takes_over:
        scheduler.close()
        scheduler = here.scheduler("second")
        settle(scheduler)

    here.log.append([late_claim(here, "r1")])
    settle(scheduler)

    assert [(release.claim_id.split("-")[0], release.reason) for release in said(here, CLAIMS, ClaimReleased)] == [("r1/0/frozen", "loser")]
    assert wrongs(here) == []


def test_what_a_former_owner_left_is_given_back_by_who_begins_with_ledgers_that_have_it() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    here.request("r1")
    first = here.scheduler("first")
    settle(first)
    first.close()
    here.log.append([late_claim(here, "r1")])

    second = here.scheduler("second", ledgers=here.ledgers())
    settle(second)

    assert [(release.claim_id.split("-")[0], release.reason) for release in said(here, CLAIMS, ClaimReleased)] == [("r1/0/frozen", "loser")]
    assert wrongs(here) == []


def test_nothing_is_filed_away_before_all_is_folded_that_stood_there_when_its_answers_were_read() -> None:
    here, scheduler = placed_long_ago("r1", "r2")
    desk = scheduler.placer.desks[0]
    before = len(desk.placements.filed)
    r3_is_placed_long_after(here, scheduler)
    here.host("n2")

    scheduler._file_away()
    behind = len(desk.placements.filed)
    scheduler._fold()
    here.host("n3")
    scheduler._file_away()

    assert (behind, len(desk.placements.filed)) == (before, before + 1)


def test_a_long_log_is_filed_away_in_turns_that_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "FILED_PER_TURN", 2)
    here = world(claims=1, requests=1)
    here.host("n1")
    for number in range(5):
        here.request(f"r{number}")
    scheduler = here.scheduler("first")
    settle(scheduler)
    here.clock.now_ms += LONG_MS
    here.request("r5")
    settle(scheduler)
    filed_away = [len(scheduler.placer.desks[0].placements.filed)]

    while filed_away[-1] < 5:
        scheduler._file_away()
        filed_away.append(len(scheduler.placer.desks[0].placements.filed))

    assert max(after - before for before, after in pairwise(filed_away)) <= 2


def test_results_that_were_lost_with_a_broker_are_not_believed_to_be_answered() -> None:
    here, first = placed_long_ago("r1", "r2")
    first.close()
    fresh = world(claims=1, requests=1)
    fresh.log.append([Message(ANSWERED, record.key, record.value, partition=0) for record in here.records(ANSWERED, 0)])
    fresh.host("n1")
    fresh.request("r1")

    settle(fresh.scheduler("second"))

    assert said(here, ANSWERED, RequestsAnswered)
    assert fresh.answer("r1").placed


def test_a_ledger_that_was_made_without_the_topic_goes_on_as_before() -> None:
    here = world(claims=1, requests=1)
    here.log = MemoryLog([TopicSpec(topic, 1) for topic in (CLAIMS, REQUESTS, RESULTS)], here.clock.wall)
    here.host("n1")
    here.request("r1")
    here.request("r2")
    first = here.scheduler("first")
    long_ago(here, first)
    first.close()

    again(here, "r1")
    second = here.scheduler("second")
    settle(second)

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)][:2] == ["r1", "r2"]
    assert second.placer.desks[0].placements.is_answered("r1")
    assert first.placer.desks[0].placements.filed.due == []


def unpublished(here: World, partition: int, *requests: str) -> RequestsAnswered:
    """What would be said of these requests, whose results are the last ones of their partition now."""
    end, kept = here.log.end(RESULTS, partition), filed.Filed()
    for number, request_id in enumerate(requests, end - len(requests)):
        kept.add(partition, request_id, number, here.clock.now_ms)
    (record,) = kept.due
    return record


def failed(here: World, *requests: str) -> None:
    """Results of these requests."""
    for request_id in requests:
        here.say(RESULTS, PlacementFailed(request_id=request_id, owner="s", taken_up_ms=1, reason="no-valid-node"))


def test_what_the_log_says_of_another_partition_or_in_no_known_words_is_not_believed() -> None:
    here = world(claims=1, requests=2)
    ours, theirs = (_names(here, partition) for partition in (0, 1))
    failed(here, *ours, *theirs)
    record = unpublished(here, 1, *theirs)
    for partition in (0, 1):
        here.log.append([Message(ANSWERED, str(partition).encode(), value, partition=partition) for value in (b"{", encode(record))])

    believed = [known(here.log, partition) for partition in (0, 1)]

    assert [len(each) for each in believed] == [0, 2]
    assert believed[0].next_offset == 0


def _names(here: World, partition: int) -> list[str]:
    """Two ids of requests that belong to a partition."""
    return [name for number in range(50) if here.log.partition(RESULTS, (name := f"r{number}").encode()) == partition][:2]


@pytest.mark.parametrize(
    ("results", "later_ms", "left", "believed"),
    [
        (("r1", "r2"), 0, 2, 2),
        (("r1", "r2"), 0, 0, 2),
        (("r1", "r3"), 0, 2, 0),
        (("r1", "r2"), 1, 2, 0),
        (("r1",), 0, 1, 0),
    ],
    ids=["as it was", "gone, by a retention", "another request's", "of a later time", "not there"],
)
def test_what_is_said_to_be_answered_is_believed_where_the_last_of_its_results_is_the_same(
    results: tuple[str, ...], later_ms: int, left: int, believed: int
) -> None:
    before = world(claims=1, requests=1)
    failed(before, "r1", "r2")
    here = world(claims=1, requests=1)
    here.clock.now_ms += later_ms
    failed(here, *results)
    here.log.truncate(RESULTS, 0, len(results) - left)
    here.log.append([Message(ANSWERED, b"0", encode(unpublished(before, 0, "r1", "r2")), partition=0)])

    assert len(known(here.log, 0)) == believed


def test_nothing_is_filed_away_before_each_partition_of_claims_is_folded_and_nobody_asks_for_its_end_before_something_is_old() -> None:
    here = world(claims=2, requests=1)
    here.host(next(name for name in ("n1", "n2", "n3", "n4") if here.log.partition(CLAIMS, name.encode()) == 1))
    failed(here, "r1")
    here.clock.now_ms += LONG_MS
    asked: list[tuple[int, ...]] = []

    def claims_ends() -> tuple[int, ...]:
        asked.append(tuple(end for _, end in sorted(here.log.ends(CLAIMS).items())))
        return asked[-1]

    young = Desk(here.placements()[0], (0, 0))
    file_away(young, here.ledgers(), claims_ends, 10)
    before = len(asked)
    failed(here, "r2")
    desk = Desk(here.placements()[0], (0, 0))
    file_away(desk, [Ledger(0, 2), Ledger(1, 2)], claims_ends, 10)
    behind = len(desk.placements.filed)
    file_away(desk, here.ledgers(), claims_ends, 10)

    assert (before, asked, behind) == (0, [(0, 1)], 0)
    assert (len(desk.placements.filed), list(desk.placements.answers)) == (1, ["r2"])


class Allowing:
    """A log whose brokers know who may write what."""

    def __init__(self, here: World, *, may_say: bool) -> None:
        self._log, self._may_say = here.log, may_say

    def may_write(self, topic: str) -> bool:
        return topic != ANSWERED or self._may_say

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.mark.parametrize("may_say", [False, True])
def test_what_is_filed_away_is_said_by_who_may_and_who_may_not_tells(*, may_say: bool) -> None:
    here, told = world(claims=1, requests=1), list[str]()
    here.host("n1")
    for request_id in ("r1", "r2"):
        here.request(request_id)
    log: Any = Allowing(here, may_say=may_say)

    scheduler = here.scheduler("first", log=log, tell=told.append)
    long_ago(here, scheduler)

    assert (len(said(here, ANSWERED, RequestsAnswered)), len(told)) == ((1, 0) if may_say else (0, 1))
    assert scheduler.placer.desks[0].placements.filed.due == []
