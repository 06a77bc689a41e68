"""Measuring an engine from outside changes nothing of what it does."""

from __future__ import annotations

import pytest

from schemas.codec import encode, key_of
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import REQUESTS
from streams import scheduler
from streams.clock import SystemClock
from streams.ledger_topics import open_ledger
from streams.log.base import Message, Partition, TopicSpec
from streams.log.memory import MemoryLog
from streams.measured import LAG_SECONDS, Measured
from streams.metrics import Metrics
from streams.scheduling.policy import DEFAULT
from streams.scheduling_engine import SchedulerEngine


class Reading:
    """An engine that reads one record a turn and needs half a second for it."""

    name = "reading"

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.at, self.closed = clock, 0, False

    def turn(self, partitions: frozenset[int]) -> int:
        self.clock[0] += 0.5
        self.at += 1
        return 1

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        return {Partition("claims", number): self.at for number in partitions}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create([TopicSpec("claims", 2)])
    log.append([Message("claims", b"k", b"v", partition=1) for _ in range(20)])
    return log


def value(metrics: Metrics, series: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(series, labels)


def test_turns_their_time_and_what_is_left_to_read_are_counted(log: MemoryLog) -> None:
    clock, metrics = [100.0], Metrics("1")
    engine = Measured(Reading(clock), log, metrics, lambda: clock[0])

    done = [engine.turn(frozenset({1})) for _ in range(3)]

    assert done == [1, 1, 1]
    assert value(metrics, "claimlog_engine_turns_total", engine="reading") == 3
    assert value(metrics, "claimlog_engine_busy_seconds_total", engine="reading") == 1.5
    assert value(metrics, "claimlog_reader_lag_records", engine="reading", topic="claims", partition="1") == 19, "as of the first turn"


class Sleeping(Reading):
    """One that sleeps for most of its turn until there is something to read, and says so."""

    slept = 7.0

    def waited_seconds(self) -> float:
        return self.slept

    def turn(self, partitions: frozenset[int]) -> int:
        self.slept += 0.375
        return super().turn(partitions)


def test_what_a_turn_sleeps_is_no_busy_time(log: MemoryLog) -> None:
    clock, metrics = [100.0], Metrics("1")
    engine = Measured(Sleeping(clock), log, metrics, lambda: clock[0])

    for _ in range(2):
        engine.turn(frozenset({1}))

    assert value(metrics, "claimlog_engine_busy_seconds_total", engine="reading") == 0.25


def test_the_log_is_asked_for_its_ends_only_now_and_then(log: MemoryLog) -> None:
    clock, metrics = [100.0], Metrics("1")
    engine = Measured(Reading(clock), log, metrics, lambda: clock[0])
    engine.turn(frozenset({1}))

    clock[0] += LAG_SECONDS
    engine.turn(frozenset({1}))

    assert value(metrics, "claimlog_reader_lag_records", engine="reading", topic="claims", partition="1") == 18


def test_what_is_closed_is_measured_no_more(log: MemoryLog) -> None:
    clock, metrics = [100.0], Metrics("1")
    reading = Reading(clock)
    engine = Measured(reading, log, metrics, lambda: clock[0])
    engine.turn(frozenset({1}))

    engine.close()

    assert reading.closed
    assert value(metrics, "claimlog_reader_lag_records", engine="reading", topic="claims", partition="1") is None


def test_of_a_scheduler_the_requests_are_counted_that_it_read() -> None:
    log, metrics = MemoryLog(), Metrics("1")
    open_ledger(log, ledger_partitions=2, request_partitions=2)
    engine = SchedulerEngine(log, "s", DEFAULT, "reference", SystemClock(), metrics, lambda _: None, lease_timeout_seconds=10.0, version="")
    for number in range(5):
        request = PlacementRequested(request_id=f"r{number}", flavor=Flavor(vcpus=1))
        log.append([Message(REQUESTS, key_of(request) or b"", encode(request))])

    for _ in range(20):
        engine.turn(frozenset())
    engine.close()

    assert value(metrics, "claimlog_placements_total", result="no-valid-node") == 5
    assert value(metrics, "claimlog_records_total", step="scheduler", topic=REQUESTS) == 5


def test_requests_that_a_full_scheduler_takes_no_more_of_for_now_are_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "OPEN_MAX", 3)
    monkeypatch.setattr(scheduler, "RECORDS_PER_READ", 4)
    log, metrics, place = MemoryLog(), Metrics("1"), Partition(REQUESTS, 0)
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    engine = SchedulerEngine(log, "s", DEFAULT, "reference", SystemClock(), metrics, lambda _: None, lease_timeout_seconds=10.0, version="")
    measured = Measured(engine, log, metrics, lambda: 0.0)
    requests = [PlacementRequested(request_id=f"r{number}", flavor=Flavor(vcpus=1)) for number in range(10)]
    log.append([Message(REQUESTS, key_of(request) or b"", encode(request), partition=0) for request in requests])

    measured.turn(frozenset())

    assert place not in measured.waits(frozenset()), "or it would not sleep while it has more than it answers"
    assert value(metrics, "claimlog_reader_lag_records", engine="scheduler", topic=REQUESTS, partition="0") == 6
