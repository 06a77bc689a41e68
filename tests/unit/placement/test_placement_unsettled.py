"""Room that is given back in a moment is not what others are refused for: held twice, or by a request that gets no more than a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Struct, structs

from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested
from schemas.codec import decode, encode
from schemas.requests import ServerGroup
from schemas.resources import Resources
from schemas.results import ClaimOutcome, InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.log.base import Lease, Message, Partition, Record
from streams.placement.unsettled import LOOK_MS, PATIENCE_MS, REMEMBERED, WAITING_MAX, Unsettled
from streams.scheduler import Scheduler
from streams.scheduling.fleet import Fleet
from tests.scheduling_world import START_MS, TTL_MS, At, World, hosts, rival, said, settle, world, wrongs
from tests.unit.placement.test_placement import LIKELY_TURNS, nothing

APART = ServerGroup(group_id="apart", policy="anti-affinity")


def claims_too(here: World, request_id: str, node_id: str, owner: str = "former") -> None:
    """What a former owner of a request had on its way lands now: a claim of its instance on another node."""
    (event,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == request_id]
    item = structs.replace(event.items[0], claim_id=f"{request_id}/0/{owner}-1.1", nodes=(node_id,))
    record = structs.replace(event, owner=owner, items=(item,))
    here.log.append([Message(CLAIMS, node_id.encode(), encode(record))])


def placed(here: World) -> dict[str, str]:
    return {result.request_id: result.placements[0].node_id for result in said(here, RESULTS, InstancesPlaced)}


def two_of_three(here: World) -> str:
    """Members on two of three nodes, claimed and not answered yet; the third."""
    (event,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == "r0"]
    (other,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == "r1"]
    return ({"n0", "n1", "n2"} - {event.items[0].nodes[0], other.items[0].nodes[0]}).pop()


def begun() -> tuple[World, Scheduler, str]:
    here = hosts("n0", "n1", "n2", claims=1)
    for number in range(2):
        here.request(f"r{number}", group=APART)
    scheduler = here.scheduler()
    scheduler.turn()
    return here, scheduler, two_of_three(here)


@pytest.mark.parametrize("owner", ["former", "s"], ids=["of another", "of an earlier start of the same"])
def test_a_request_waits_until_the_claim_that_lost_is_gone(owner: str) -> None:
    here, scheduler, free = begun()
    claims_too(here, "r0", free, owner)
    here.request("r2", group=APART)

    settle(scheduler)

    assert said(here, RESULTS, PlacementFailed) == []
    assert placed(here)["r2"] == free
    assert wrongs(here) == []


class First(At):
    """The log of a scheduler that owns the first partition of requests, and of the other knows nothing."""

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> Lease:
        del group, topic, member, timeout_seconds
        return self

    def partitions(self) -> frozenset[int]:
        return frozenset({0})

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        """It owns it to the end."""


def test_it_waits_for_a_moment_only_if_nobody_comes_who_would_release_the_loser() -> None:
    here = world(claims=1, requests=2)
    for name in ("n0", "n1", "n2"):
        here.host(name)
    theirs, ours = (name_in(here, partition) for partition in (1, 0))
    here.request(theirs, group=APART)
    dead = here.scheduler("dead", log=At(here.log, nothing, owns_all=True))
    dead.turn()
    taken = said(here, CLAIMS, ClaimRequested)[0].items[0].nodes[0]
    free = sorted({"n0", "n1", "n2"} - {taken})
    claims_too(here, theirs, free[0])
    scheduler = here.scheduler(log=First(here.log, nothing))
    here.request(f"{ours}-fits", group=APART, requested_nodes=(free[1],))
    here.request(ours, group=APART)

    for _ in range(LIKELY_TURNS):
        scheduler.turn()
    decided = scheduler.placer.counters.decisions
    for _ in range(LIKELY_TURNS):
        scheduler.turn()
    again = scheduler.placer.counters.decisions - decided
    meanwhile, moved, is_open = said(here, RESULTS, PlacementFailed), scheduler.turn(), scheduler.is_open
    here.clock.now_ms += PATIENCE_MS
    for _ in range(LIKELY_TURNS):
        scheduler.turn()

    (failed,) = said(here, RESULTS, PlacementFailed)
    assert (meanwhile, again) == ([], 0)
    assert (moved, is_open, scheduler.is_open) == (0, True, False), "there is nothing to do for it, and it is not done"
    assert (failed.request_id, failed.reason) == (ours, "no-valid-node")


def ours_too(here: World, name: str, count: int) -> list[str]:
    """So many more names in the partition of requests that this one is in."""
    mine = here.log.partition(REQUESTS, name.encode())
    others = (f"{name}-{number}" for number in range(100 * count))
    return [each for each in others if here.log.partition(REQUESTS, each.encode()) == mine][:count]


def name_in(here: World, partition: int) -> str:
    """A request's name in that partition of requests, and with it that of what follows from it in these tests."""
    for name in (f"q{number}" for number in range(1000)):
        if {here.log.partition(REQUESTS, each.encode()) for each in (name, f"{name}-fits")} == {partition}:
            return name
    raise AssertionError("no such name")


def test_who_finds_room_waits_for_nobody_and_who_is_refused_without_doubles_is_refused_at_once() -> None:
    here, scheduler, free = begun()
    claims_too(here, "r0", free)
    here.request("beside")
    scheduler.turn()
    (beside,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == "beside"]
    settle(scheduler)
    here.request("too large", vcpus=99)

    settle(scheduler)

    assert beside.items[0].nodes
    assert [each.request_id for each in said(here, RESULTS, PlacementFailed)] == ["too large"]


class Sent(Struct):
    """What a scheduler handed to its log, and how much of it is not there yet."""

    left: int
    ends: dict[Partition, int] = {}

    def landed(self, timeout_seconds: float = 0.0) -> bool:
        del timeout_seconds
        return not self.left


class Far(First):
    """The log of a scheduler whose records arrive partition by partition, when they are let; it owns one partition of requests."""

    def __init__(self, log: Any, owned: int) -> None:
        super().__init__(log, nothing)
        self._owned = owned
        self.under_way: list[tuple[Sent, Message, Partition]] = []

    def partitions(self) -> frozenset[int]:
        return frozenset({self._owned})

    def begin(self, messages: Sequence[Message]) -> Sent:
        sent = Sent(len(messages))
        for message in messages:
            number = message.partition if message.partition is not None else self.partition(message.topic, message.key)
            self.under_way.append((sent, message, Partition(message.topic, number)))
        return sent

    def let(self, place: Partition | None = None) -> None:
        arrived = [each for each in self.under_way if place in {None, each[2]}]
        for sent, message, where in arrived:
            (offset,) = self._log.append([message])
            sent.left, sent.ends[where] = sent.left - 1, offset + 1
        self.under_way = [each for each in self.under_way if each not in arrived]


def in_parts(count: int) -> tuple[World, list[str], list[Far], list[Scheduler]]:
    """Two requests of `count` on eight nodes of one vCPU, each of which got what it claimed in one partition, and not in the other."""
    here = world(claims=2, requests=2)
    for number in range(8):
        here.host(f"n{number}", vcpus=1)
    requests = [name_in(here, partition) for partition in range(2)]
    logs = [Far(here.log, partition) for partition in range(2)]
    schedulers = [here.scheduler(f"s{number}", log=log) for number, log in enumerate(logs)]
    for name in requests:
        here.request(name, count=count)
    for scheduler, log in zip(schedulers, logs, strict=True):
        while not [place for _, _, place in log.under_way if place.topic == CLAIMS]:
            scheduler.turn()
            for place in {place for _, _, place in log.under_way if place.topic != CLAIMS}:
                log.let(place)
    for number, log in enumerate(logs):
        log.let(Partition(CLAIMS, number))
    for log in logs:
        log.let()
    return here, requests, logs, schedulers


def test_of_two_requests_that_each_hold_a_part_one_is_placed_and_who_comes_meanwhile_gets_what_the_other_gives_back() -> None:
    here, requests, logs, schedulers = in_parts(6)
    here.request(f"{requests[1]}-fits")

    for _ in range(LIKELY_TURNS):
        for scheduler, log in zip(schedulers, logs, strict=True):
            scheduler.turn()
            log.let()

    failed = [(each.request_id, each.reason) for each in said(here, RESULTS, PlacementFailed)]
    assert failed == [(max(requests), "no-valid-node")]
    assert {*placed(here)} == {min(requests), f"{requests[1]}-fits"}
    assert wrongs(here) == []
    assert sum(len(ledger.claims) for ledger in here.ledgers()) == 7


def test_for_a_request_that_holds_a_part_and_goes_no_further_others_wait_a_moment() -> None:
    here, requests, logs, schedulers = in_parts(6)
    second = requests.index(max(requests))

    def go_on() -> list[str]:
        for _ in range(LIKELY_TURNS):
            schedulers[second].turn()
            logs[second].let()
        return [each.request_id for each in said(here, RESULTS, PlacementFailed)]

    own = go_on()  # It fails at once and lets go; the other one is not heard of again.
    many = ours_too(here, requests[second], WAITING_MAX + 2)
    for name in many[:-1]:
        here.request(name, vcpus=2)
    at_once = go_on()
    here.request(many[-1], vcpus=1)
    placed_meanwhile = (go_on(), {*placed(here)})
    here.clock.now_ms += PATIENCE_MS
    in_the_end = go_on()
    here.request(f"{requests[second]}-fits", vcpus=2)
    afterwards = go_on()

    assert own == [requests[second]]
    assert at_once == [*own, many[WAITING_MAX]], "no more than so many wait"
    assert placed_meanwhile == (at_once, {many[-1]})
    assert {*in_the_end} == {*own, *many[:-1]}
    assert afterwards == [*in_the_end, f"{requests[second]}-fits"], "nobody waits for it any more"


def test_who_waits_is_decided_again_when_room_comes_from_elsewhere() -> None:
    here, requests, logs, schedulers = in_parts(6)
    second = requests.index(max(requests))
    (name,) = ours_too(here, requests[second], 1)
    here.request(name, vcpus=4)
    for _ in range(LIKELY_TURNS):
        schedulers[second].turn()
        logs[second].let()
    here.host("n8", vcpus=4)
    here.clock.now_ms += LOOK_MS
    for _ in range(LIKELY_TURNS):
        schedulers[second].turn()
        logs[second].let()

    assert placed(here) == {name: "n8"}


def test_a_request_that_had_all_and_lost_some_holds_no_part() -> None:
    here, requests, logs, schedulers = in_parts(6)

    def go_on() -> list[str]:
        for _ in range(LIKELY_TURNS):
            for scheduler, log in zip(schedulers, logs, strict=True):
                scheduler.turn()
                log.let()
        return [each.request_id for each in said(here, RESULTS, PlacementFailed)]

    go_on()
    (result,) = said(here, RESULTS, InstancesPlaced)
    lost = result.placements[0]
    here.say(CLAIMS, ClaimReleased(claim_id=lost.claim_id, node_id=lost.node_id, record_id="lost", reason="operator"))
    here.request(f"{requests[1]}-fits", vcpus=2)

    assert f"{requests[1]}-fits" in go_on()


class Late(First):
    """The log of a scheduler that reads nothing of the first partition of claims for a while."""

    def __init__(self, log: Any) -> None:
        super().__init__(log, nothing)
        self.is_late = False

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        found: list[Record] = self._log.read(topic, partition, offset, records_max, bytes_max)
        return [] if self.is_late and (topic, partition) == (CLAIMS, 0) else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("read_") or name == "news":
            raise AttributeError(name)
        return super().__getattr__(name)


def test_who_was_refused_a_claim_folds_what_others_claimed_meanwhile_before_it_is_refused_for_good() -> None:
    here = world(claims=2, requests=1)
    names = {here.log.partition(CLAIMS, name.encode()): name for name in ("n0", "n1", "n2", "n3")}
    for name in names.values():
        here.host(name, vcpus=1)
    log = Late(here.log)
    scheduler = here.scheduler(log=log)
    here.request("first", requested_nodes=(names[0],))
    settle(scheduler)
    here.request("second")
    log._act = lambda when, messages: refused(here, log, when, messages)

    for _ in range(LIKELY_TURNS):
        scheduler.turn()
    meanwhile = said(here, RESULTS, PlacementFailed)
    log.is_late = False
    settle(scheduler)

    assert meanwhile == said(here, RESULTS, PlacementFailed) == []
    assert placed(here) == {"first": names[0], "second": names[0]}


def refused(here: World, log: Late, when: str, messages: Sequence[Message]) -> None:
    """Just before its claim for the other node lands, somebody else takes that, and the first node becomes free; it reads that late."""
    claims = [decode(message.topic, message.value) for message in messages if message.topic == CLAIMS]
    if when == "before" and claims:
        (first,) = [each for each in said(here, RESULTS, InstancesPlaced) if each.request_id == "first"]
        place = first.placements[0]
        log.is_late, log._act = True, nothing
        here.say(CLAIMS, ClaimReleased(claim_id=place.claim_id, node_id=place.node_id, record_id="free", reason="operator"))
        here.log.append([Message(CLAIMS, claims[0].items[0].nodes[0].encode(), encode(rival(claims[0])))])


def test_what_is_remembered_of_claims_is_bounded() -> None:
    here = hosts("n0", claims=1)
    unsettled = Unsettled(Fleet(here.ledgers()))

    for number in range(3 * REMEMBERED):
        item = ClaimItem(claim_id=f"c{number}", instance_id=f"i{number}", nodes=("n0",), resources=Resources(vcpus=1))
        for owner in "st":
            unsettled.claimed(0, ClaimRequested(request_id=f"r{number}", owner=owner, basis=0, ttl_ms=1, items=(item,)))
        unsettled.became([ClaimOutcome(outcome="refused", request_id=f"r{number}", claim_id=f"c{number}")], boot_ms=0)

    assert len(unsettled._young) + len(unsettled._old) <= 2 * REMEMBERED
    assert len(unsettled._shared) <= REMEMBERED
    assert len(unsettled._partly) == WAITING_MAX


def test_who_holds_nothing_is_forgotten_before_who_holds_a_part_and_first_of_all_who_was_refused_long_ago() -> None:
    here = hosts("n0", claims=1)
    ledgers = here.ledgers()
    unsettled = Unsettled(Fleet(ledgers))

    def refused_one(name: str, boot_ms: int) -> None:
        for vcpus in (1, 99):
            item = ClaimItem(claim_id=f"{name}/{vcpus}", instance_id=f"{name}/{vcpus}", nodes=("n0",), resources=Resources(vcpus=vcpus))
            event = ClaimRequested(request_id=name, owner="s", basis=ledgers[0].next_offset - 1, ttl_ms=TTL_MS, items=(item,))
            step = ledgers[0].apply(ledgers[0].next_offset, START_MS, b"n0", encode(event))
            assert step is not None
            unsettled.claimed(0, event)
            unsettled.became(step.outcomes, boot_ms)

    parts = [f"part {number}" for number in range(8)]
    for name in parts:
        refused_one(name, boot_ms=0)  # They take all vCPUs of the node: who comes later holds nothing.
    for number in range(WAITING_MAX):
        refused_one(f"nothing {number}", boot_ms=0)
    kept = [*unsettled._partly]
    for number in range(8):
        refused_one(f"later {number}", boot_ms=PATIENCE_MS)

    assert kept[:8] == parts
    assert len(kept) == WAITING_MAX
    assert [*unsettled._partly] == [f"later {number}" for number in range(8)]
