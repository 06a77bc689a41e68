"""A played fleet: requests come in their time, guests start where counting results say, lifetimes end, hosts report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from producers.load import SimulatedFleet
from producers.workload import Arrival, Departure
from schemas.audits import HypervisorAudited
from schemas.codec import decode_keyed, encode
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceStarted
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Resources
from schemas.results import InstancesPlaced, Placement, PlacementFailed
from schemas.topics import AUDITS, LIFECYCLE, REQUESTS, RESULTS
from streams.cli.produce.driving import START_WITHIN_MS, Driver
from streams.cli.produce.publishing import Persistent, last_epoch, last_epochs, publisher, wait_until_carried
from streams.engines import Carrier
from streams.ledger_topics import open_ledger
from streams.log.base import LogError, LogFull, LogUnreachable, Message
from streams.log.memory import MemoryLog
from tests.hand_clock import HandClock

SIZE = Resources(vcpus=1, memory_mib=1_792)


class World:
    """A log in memory, a fleet of two nodes and a driver, all on one clock."""

    def __init__(self, events: list[Arrival | Departure], speed: float = 1.0) -> None:
        self.clock = HandClock()
        self.log = MemoryLog(clock=self.clock.wall_ms)
        open_ledger(self.log, ledger_partitions=2, request_partitions=2)
        self.fleet = SimulatedFleet(2, seed=1, epoch=5, name="n{}")
        self.driver = Driver(self.log, self.fleet, iter(events), self.clock, speed=speed, audit_every_ms=10_000)

    def records(self, topic: str) -> list[Any]:
        found = [record for number in range(2) for record in self.log.read(topic, number, 0)]
        return [decode_keyed(topic, record.key, record.value) for record in sorted(found, key=lambda each: (each.time_ms, each.offset))]

    def at(self, ms_after_start: int) -> None:
        self.clock.now_ms = 1_000_000 + ms_after_start
        self.driver.step()

    def placed(self, request_id: str, node_id: str = "n0", *, commit_by_ms: int = 1 << 40) -> None:
        """A scheduler's result."""
        instance_id = arrival(0, request_id).request.instance(0)
        placement = Placement(instance_id=instance_id, claim_id=f"{request_id}/0/s-1.1", partition=0, node_id=node_id, resources=SIZE)
        result = InstancesPlaced(request_id=request_id, owner="s", taken_up_ms=1, commit_by_ms=commit_by_ms, placements=(placement,))
        self.log.append([Message(RESULTS, request_id.encode(), encode(result))])


def test_what_the_log_did_not_acknowledge_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([arrival(0, "r1"), arrival(0, "r2")])

    def full(messages: Sequence[Message]) -> list[int]:
        raise LogFull(f"no room for {len(messages)}")

    with monkeypatch.context() as patched:
        patched.setattr(world.log, "append", full)
        with pytest.raises(LogFull):
            world.at(0)
        unsent = world.driver.unsent
    world.at(1)

    assert unsent == len(world.records(REQUESTS)) + len(world.records(AUDITS)) == 4
    assert world.driver.unsent == 0


def arrival(time_ms: int, request_id: str) -> Arrival:
    return Arrival(time_ms, PlacementRequested(request_id=request_id, flavor=Flavor(vcpus=1, memory_mib=1_792)))


def departure(time_ms: int, request_id: str) -> Departure:
    return Departure(time_ms, request_id, arrival(0, request_id).request.instance(0))


def kinds(records: list[Any]) -> list[type]:
    return [type(record) for record in records]


def test_requests_come_when_they_are_due() -> None:
    world = World([arrival(1_000, "a"), arrival(2_000, "b")])

    world.at(1_500)

    assert [request.request_id for request in world.records(REQUESTS)] == ["a"]
    assert (world.driver.waiting, world.driver.exhausted) == (1, False)
    world.at(2_000)
    assert [request.request_id for request in world.records(REQUESTS)] == ["a", "b"]
    assert world.driver.exhausted


def test_a_faster_workload_comes_sooner() -> None:
    world = World([arrival(60_000, "a")], speed=60)

    world.at(1_000)

    assert [request.request_id for request in world.records(REQUESTS)] == ["a"]


def test_a_guest_starts_where_its_result_says_and_ends_with_its_lifetime() -> None:
    world = World([arrival(0, "a"), departure(5_000, "a")])
    world.at(0)
    world.placed("a", "n1")

    world.at(100)

    started = world.records(LIFECYCLE)
    assert kinds(started) == [InstanceArrived, InstanceStarted]
    assert {(event.node_id, event.claim_id, event.event_time_ms) for event in started} == {("n1", "a/0/s-1.1", 1_000_100)}
    world.at(5_000)
    assert kinds(world.records(LIFECYCLE)) == [InstanceArrived, InstanceStarted, InstanceDeparted, InstanceDeleted]
    assert world.fleet.guests == {}


def test_only_the_counting_result_starts_a_guest() -> None:
    world = World([arrival(0, "a")])
    world.at(0)
    world.placed("a", "n0", commit_by_ms=1)
    world.placed("a", "n1")
    world.placed("a", "n0")

    world.at(100)

    assert [guest.node_id for guest in world.fleet.guests.values()] == ["n1"]
    assert (world.driver.tally.placed, world.driver.tally.started, world.driver.waiting) == (1, 1, 0)


def test_a_guest_placed_after_its_lifetime_ended_ends_at_once() -> None:
    world = World([arrival(0, "a"), departure(50, "a")])
    world.at(60)
    world.placed("a")

    world.at(100)

    assert kinds(world.records(LIFECYCLE)) == [InstanceArrived, InstanceStarted, InstanceDeparted, InstanceDeleted]


def test_requests_that_an_earlier_run_asked_are_not_waited_for() -> None:
    world = World([arrival(0, "a")])
    world.at(0)
    world.placed("a")
    again = Driver(world.log, world.fleet, iter([arrival(0, "a"), arrival(0, "b")]), world.clock, speed=1.0, audit_every_ms=10_000)

    again.step()
    world.placed("b")
    world.placed("of somebody else")
    again.step()

    assert (again.waiting, again.exhausted) == (0, True)
    assert (again.tally.requested, again.tally.placed, again.tally.answered_before, again.tally.others) == (2, 1, 1, 1)
    assert "1 answered by an earlier run; another --seed asks anew" in str(again.tally)


def test_guests_that_an_earlier_run_left_are_found_and_end_when_their_time_comes() -> None:
    world = World([arrival(0, "a"), arrival(0, "b"), departure(50, "b")])
    world.at(0)
    world.placed("a", "n1")
    world.placed("b", "n0")
    world.at(100)
    there = dict(world.fleet.guests)
    fleet = SimulatedFleet(2, seed=1, epoch=6, name="n{}")

    again = Driver(world.log, fleet, iter([arrival(0, "a"), departure(500, "a")]), world.clock, speed=1.0, audit_every_ms=10_000)
    again.report()

    assert fleet.guests == there
    assert [guest.claim_id for guest in fleet.guests.values()] == ["a/0/s-1.1"]
    assert [(event.node_id, event.epoch, event.resync) for event in world.records(LIFECYCLE) if event.epoch == 6] == [("n1", 6, True)]
    listed = {record.node_id: len(record.instances or ()) for record in world.records(AUDITS) if record.epoch == 6}
    assert listed == {"n0": 0, "n1": 1}
    world.clock.now_ms += 600
    again.step()
    assert fleet.guests == {}
    assert kinds(world.records(LIFECYCLE))[-2:] == [InstanceDeparted, InstanceDeleted]
    assert "1 of earlier runs found" in str(again.tally)


def test_a_failure_starts_nothing_and_a_late_result_is_left_out() -> None:
    world = World([arrival(0, "a"), arrival(0, "b")])
    world.at(0)
    failed = PlacementFailed(request_id="a", owner="s", taken_up_ms=1, reason="no-valid-node")
    world.log.append([Message(RESULTS, b"a", encode(failed))])
    world.placed("b")

    world.at(START_WITHIN_MS + 1)

    assert world.fleet.guests == {}
    assert (world.driver.tally.failed, world.driver.tally.too_late) == (1, 1)


def test_a_guest_on_a_node_that_is_not_of_this_fleet_is_somebody_elses() -> None:
    world = World([])
    world.placed("z", "real-host")

    world.at(100)

    assert world.records(LIFECYCLE) == []


def test_every_host_reports_at_once_and_then_in_its_interval() -> None:
    world = World([])
    for second in range(31):
        world.at(second * 1_000)

    audits: list[HypervisorAudited] = world.records(AUDITS)
    assert [audit.node_id for audit in audits[:2]] == ["n0", "n1"]
    times = {node_id: [audit.taken_at_ms for audit in audits if audit.node_id == node_id] for node_id in ("n0", "n1")}
    assert times["n0"] == [1_000_000, 1_010_000, 1_020_000, 1_030_000]
    assert times["n1"] == [1_000_000, 1_015_000, 1_025_000]
    assert [audit.mono_ms for audit in audits if audit.node_id == "n1"] == [10_000, 25_000, 35_000]


def test_hosts_report_and_requests_come_in_time_while_the_clock_is_set_back() -> None:
    world = World([arrival(5_000, "r1")])
    world.at(0)
    world.clock.back_ms = 900_000

    for second in range(1, 31):
        world.at(second * 1_000)

    assert [audit.counter for audit in world.records(AUDITS) if audit.node_id == "n0"] == [1, 2, 3, 4]
    assert [request.request_id for request in world.records(REQUESTS)] == ["r1"]


def test_the_last_epoch_of_a_producer_is_found_on_the_log() -> None:
    world = World([])
    world.at(0)
    look = last_epoch(world.log, "load")

    assert (look(AUDITS, "n0"), look(AUDITS, "n7"), look(LIFECYCLE, "n0")) == (5, None, None)
    assert last_epoch(world.log, "libvirt")(AUDITS, "n0") is None


def test_an_epoch_that_is_too_far_back_to_be_found_is_none_of_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([])
    for second in range(0, 100, 10):
        world.at(second * 1_000)
    number = world.log.partition(AUDITS, b"n0")
    monkeypatch.setattr("streams.cli.produce.publishing.TAIL_RECORDS", 2)

    stands_for_it = last_epoch(world.log, "libvirt")(AUDITS, "n0")

    oldest = world.log.read(AUDITS, number, world.log.end(AUDITS, number) - 2)[0]
    assert stands_for_it == oldest.time_ms > 0
    assert last_epoch(world.log, "load")(AUDITS, "n0") == 5


def test_the_last_epochs_of_many_nodes_are_those_of_each() -> None:
    world = World([])
    world.at(0)

    assert last_epochs(world.log, "load", AUDITS, ["n0", "n7", "n1"]) == {"n0": 5, "n1": 5, "n7": None}
    assert last_epochs(world.log, "libvirt", AUDITS, ["n0"]) == {"n0": None}


def test_what_is_published_stands_on_the_log() -> None:
    world = World([])

    publisher(world.log)(AUDITS, b"n9", b"{}", (("ce_id", b"1"),))

    found = [record for number in range(2) for record in world.log.read(AUDITS, number, 0)]
    assert [(record.key, record.value, record.headers) for record in found] == [(b"n9", b"{}", (("ce_id", b"1"),))]


def test_an_endless_workload_is_read_only_as_far_as_it_is_due() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Arrival]:
        number = 0
        while True:
            taken.append(number)
            yield arrival(number * 1_000, f"r{number}")
            number += 1

    clock = HandClock()
    log = MemoryLog(clock=clock.wall_ms)
    open_ledger(log, ledger_partitions=2, request_partitions=2)
    driver = Driver(log, SimulatedFleet(0), endless(), clock, speed=1, audit_every_ms=10_000)
    clock.now_ms += 3_500

    driver.step()

    assert taken == [0, 1, 2, 3, 4]
    assert driver.tally.requested == 4


def test_what_was_not_acknowledged_is_said_again_byte_for_byte_and_nothing_twice_that_was() -> None:
    world = World([arrival(0, "r1"), arrival(5, "r2")])
    real, failures = world.log.append, [True, False, True]
    appended: list[list[bytes]] = []

    def append(messages: Sequence[Message]) -> list[int]:
        appended.append([message.value for message in messages])
        if failures and failures.pop():
            raise LogUnreachable("no broker answers")
        return real(messages)

    world.log.append = append  # type: ignore[method-assign]
    with pytest.raises(LogUnreachable):
        world.at(0)
    world.at(0)
    with pytest.raises(LogUnreachable):
        world.at(10)
    world.at(10)

    assert appended[0] == appended[1]
    assert appended[2] == appended[3]
    assert len(world.records(REQUESTS)) == 2


class Failing:
    """What fails by each of `failures`, the last first, before it is done; and who persists in it, on a clock of its own."""

    def __init__(self, failures: list[LogError]) -> None:
        self.failures, self.now_s, self.told = failures, 0.0, list[str]()
        self._persistent = Persistent(self.told.append, lambda: self.now_s, self._sleep)

    def persist(self) -> str:
        return self._persistent(self._act)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _act(self) -> str:
        if self.failures:
            raise self.failures.pop()
        return "done"


def test_who_persists_goes_on_for_a_time_and_then_says_why_it_cannot() -> None:
    failing = Failing([LogUnreachable("away")] * 3)

    answer = failing.persist()
    failing.failures.extend([LogUnreachable("gone for good")] * 10_000)
    with pytest.raises(LogUnreachable, match="gone for good"):
        failing.persist()

    assert (answer, failing.told) == (
        "done",
        ["trying again for 300 s: away", "the log answers again", "trying again for 300 s: gone for good"],
    )
    assert 300 < failing.now_s < 310


def test_who_persists_waits_for_room_without_end_and_for_a_log_that_is_away_from_when_it_went() -> None:
    failing = Failing([LogUnreachable("away")] * 500 + [LogFull("no room left")] * 10_000)

    first = failing.persist()
    failing.failures.append(LogFull("no room left"))
    second = failing.persist()

    assert (first, second, failing.now_s > 10_500 * 0.5) == ("done", "done", True)
    assert failing.told == [
        "waiting for room: no room left", "trying again for 300 s: away", "the log answers again",
        "waiting for room: no room left", "there is room again",
    ]  # fmt: skip


def test_requests_begin_once_the_hosts_reports_are_in_the_ledger() -> None:
    world = World([arrival(0, "r1")])
    carrier, told = Carrier(world.log), list[str]()
    persistent = Persistent(told.append, time.monotonic, time.sleep)

    world.driver.report()
    alone = wait_until_carried(world.log, persistent, told.append, time.monotonic, seconds_max=0.2)
    requests_before = world.records(REQUESTS)
    carrier.turn(frozenset({0, 1}))
    together = wait_until_carried(world.log, persistent, told.append, time.monotonic)
    world.clock.now_ms += 60_000
    world.driver.begin()
    world.driver.step()

    assert (alone, together, requests_before) == (False, True, [])
    assert told == ["nobody has carried the hosts' reports into the ledger in 0 s: requests begin all the same"]
    assert [request.request_id for request in world.records(REQUESTS)] == ["r1"]
    assert world.driver.tally.audits == 4


def test_the_workloads_time_runs_from_its_beginning() -> None:
    world = World([arrival(0, "r1"), arrival(5_000, "r2")])
    world.driver.report()
    world.clock.now_ms += 60_000

    world.driver.begin()
    world.driver.step()

    assert world.driver.tally.requested == 1
