"""A log that is out of reach or full for a while: every engine ends up where it would have without that."""

from __future__ import annotations

import random
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from producers.load import SimulatedFleet
from producers.source import said
from projections.table import TableError
from schemas import topics
from schemas.codec import encode, key_of
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Resources
from streams import runner
from streams.cli.produce.publishing import message
from streams.clock import SystemClock
from streams.engines import Carrier, Watcher
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import LogDamaged, LogError, LogFull, LogUnreachable, Message
from streams.log.kafka_errors import LogFatal
from streams.log.memory import MemoryLog
from streams.metrics import Health, Metrics
from streams.republisher import Republisher
from streams.runner import Engine, Host, NoShare
from streams.scheduling.policy import DEFAULT
from streams.scheduling_engine import SchedulerEngine
from tests.faults.checkers import Acknowledged, everything_wrong, hash_of, records

ALL = frozenset({0, 1})
ASKED = ("append", "read", "ends", "end", "commit", "committed", "start", "wait")
CLOCK = SystemClock()
REQUESTS = 30
TROUBLED_TURNS = 300
TURNS_MAX = 3000


class Failing:
    """A log that fails one call in so many; an append before or after it is done."""

    def __init__(self, log: MemoryLog, seed: int) -> None:
        self._log, self._random, self.share, self.failed = log, random.Random(seed), 0.0, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._log, name)
        return self._around(real, name) if name in ASKED else real

    def _around(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            sleeps = name == "wait" and not arguments[0]
            if sleeps or self._random.random() >= self.share:
                return real(*arguments, **options)
            self.failed += 1
            if name == "append" and self._random.random() < 0.5:
                real(*arguments, **options)
                raise LogUnreachable("the acknowledgement was lost")
            if name == "append" and self._random.random() < 0.5:
                raise LogFull("no room left")
            raise LogUnreachable(f"{name}: nobody answers")

        return called


class Everything:
    """The lease of the only process."""

    def partitions(self) -> frozenset[int]:
        return ALL

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        """Nothing is held."""


class Seconds(Struct):
    """A clock that goes on by itself at each look."""

    now: float = 0.0
    step: float = 0.0

    def read(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(runner, "WAIT_SECONDS", 0.0)


def world() -> tuple[MemoryLog, list[Acknowledged]]:
    """A ledger with observations, requests and rubbish that nobody has looked at, and what was written there."""
    log, kept = MemoryLog(clock=CLOCK.wall_ms), list[Acknowledged]()
    open_ledger(log, ledger_partitions=len(ALL), request_partitions=2)

    def say(messages: list[Message]) -> None:
        for each, offset in zip(messages, log.append(messages), strict=True):
            number = log.partition(each.topic, each.key) if each.partition is None else each.partition
            kept.append(Acknowledged(each.topic, number, offset, hash_of(each.value)))

    now_ms, fleet = CLOCK.wall_ms(), SimulatedFleet(6, seed=1, epoch=1)
    for round_ in range(5):
        say([message(said(topics.AUDITS, fleet.audit(node, now_ms + round_, round_))) for node in fleet.nodes])
    guests = [fleet.start_guest(node, f"i-{node}", Resources(vcpus=1, memory_mib=64), now_ms) for node in fleet.nodes]
    say([message(said(topics.LIFECYCLE, event)) for events in guests for event in events])
    for number in range(REQUESTS):
        request = PlacementRequested(request_id=f"r{number}", flavor=Flavor(vcpus=1, memory_mib=128), ttl_ms=600_000)
        say([Message(topics.REQUESTS, key_of(request) or b"", encode(request))])
    say([Message(topic, b"x", b"rubbish", partition=0) for topic in (topics.AUDITS, topics.REQUESTS, topics.CLAIMS)])
    return log, kept


def rubbish(log: MemoryLog) -> dict[tuple[str, int, int], str]:
    """Where it stands, and what the dead letters should say of it."""
    places = [record for topic in (topics.AUDITS, topics.REQUESTS, topics.CLAIMS) for record in records(log, topic)]
    return {(record.topic, record.partition, record.offset): "unreadable" for record in places if record.value == b"rubbish"}


def engines(log: Any, state: Path) -> list[Engine]:
    """A stream processor and a scheduler."""
    metrics = Metrics("test")
    folder = Folder(log, state, "p", metrics, lambda _: None, clock=CLOCK.wall_ms)
    scheduler = SchedulerEngine(log, "s", DEFAULT, "reference", CLOCK, metrics, lambda _: None, lease_timeout_seconds=10.0, version="")
    return [Carrier(log), folder, Republisher(log, folder), Watcher(log), scheduler]


class CalmAtTheEnd:
    """Has nothing to do but to end the trouble before the others are closed: what fails then is another test's."""

    name = "calm"

    def __init__(self, log: Any) -> None:
        self._log = log

    def turn(self, partitions: frozenset[int]) -> int:
        return 0

    def waits(self, partitions: frozenset[int]) -> dict[Any, int]:
        return {}

    def close(self) -> None:
        self._log.share = 0.0


def settle(log: Any, made: list[Engine]) -> str:
    """Run a host on the log, which is calm after a while, until nothing is left to do; returns what it said."""
    err = StringIO()
    turns = iter(range(TURNS_MAX))

    def stopped() -> bool:
        turn = next(turns, None)
        assert turn is not None, "it goes on for ever"
        if turn > TROUBLED_TURNS:
            log.share = 0.0
        return False

    Host(log, [CalmAtTheEnd(log), *made], Everything(), Health(lambda: 0.0), err).run(stopped, until_idle=True)
    return err.getvalue()


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_a_log_that_fails_now_and_then_loses_nothing_and_doubles_nothing(tmp_path: Path, seed: int, share: float) -> None:
    log, kept = world()
    troubled = Failing(log, seed)
    made = engines(troubled, tmp_path)
    troubled.share = share

    err = settle(troubled, made)

    _, wrong = everything_wrong(log, tmp_path, kept, rubbish(log))
    assert wrong == []
    assert troubled.failed > 0, "there was hardly any trouble"
    assert err.count("the log answers again") + err.count("there is room again") > 0


class Broken:
    """An engine on a log that raises what it is told, and otherwise has nothing to do."""

    name = "broken"

    def __init__(self, *troubles: LogError, at_end: LogError | TableError | None = None) -> None:
        self.troubles, self.at_end, self.turns, self.closed = list(troubles), at_end, 0, False

    def turn(self, partitions: frozenset[int]) -> int:
        self.turns += 1
        if self.troubles:
            raise self.troubles.pop(0)
        return 0

    def waits(self, partitions: frozenset[int]) -> dict[Any, int]:
        return {}

    def close(self) -> None:
        self.closed = True
        if self.at_end is not None:
            raise self.at_end


def host(*made: Broken, clock: Seconds | None = None, err: StringIO | None = None) -> Host:
    return Host(MemoryLog(), made, NoShare(), Health(lambda: 0.0), err or StringIO(), (clock or Seconds()).read)


def test_a_log_out_of_reach_is_said_once_and_tried_again() -> None:
    engine, err = Broken(*[LogUnreachable("no broker answers")] * 3), StringIO()

    host(engine, err=err).run(lambda: False, until_idle=True)

    assert engine.turns == 4
    assert err.getvalue() == "trying again for 300 s: no broker answers\nthe log answers again\n"


def test_a_log_out_of_reach_for_too_long_ends_the_process_with_its_reason() -> None:
    engine = Broken(*[LogUnreachable("no broker answers")] * 1000)

    with pytest.raises(LogUnreachable, match="no broker answers"):
        host(engine, clock=Seconds(step=1.0)).run(lambda: False)

    assert 300 < engine.turns < 310
    assert engine.closed


def test_a_full_log_is_waited_for_without_end() -> None:
    engine = Broken(*[LogFull("no room left")] * 1000)

    host(engine, clock=Seconds(step=1.0)).run(lambda: False, until_idle=True)

    assert engine.turns == 1001


@pytest.mark.parametrize("failure", [LogFatal("fenced"), LogDamaged("claims/0@7"), LogError("refused")])
def test_what_no_other_try_mends_ends_the_process_at_once(failure: LogError) -> None:
    engine = Broken(failure)

    with pytest.raises(type(failure)):
        host(engine).run(lambda: False)

    assert engine.turns == 1
    assert engine.closed


@pytest.mark.parametrize("failure", [LogUnreachable("gone"), TableError("gone")])
def test_at_the_end_everything_is_given_up_whatever_fails_on_the_way(failure: LogError | TableError) -> None:
    first, second, err = Broken(at_end=failure), Broken(), StringIO()

    with pytest.raises(type(failure), match="gone"):
        host(first, second, err=err).run(lambda: True)

    assert second.closed
    assert err.getvalue() == "at the end: gone\n"


def test_who_is_stopped_while_the_log_is_away_ends_without_an_error() -> None:
    engine = Broken(*[LogUnreachable("away")] * 9, at_end=LogUnreachable("still away"))

    host(engine).run(lambda: engine.turns > 2)

    assert engine.closed


def test_what_did_not_come_in_the_time_that_an_end_may_take_is_not_called_a_log_that_is_away() -> None:
    engine, err = Broken(LogUnreachable("has not come so far; check the partition's leader")), StringIO()

    host(engine, err=err).run(lambda: engine.turns > 0)

    assert (engine.closed, err.getvalue()) == (True, "")
