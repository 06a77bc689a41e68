"""The embedded host: when a process is ready, and when nothing is left to do."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import pytest

from projections.table import TableError
from streams import runner
from streams.log.base import LogFull, LogUnreachable, Message, Partition, TopicSpec
from streams.log.memory import MemoryLog
from streams.metrics import Health
from streams.runner import Host

NONE, ALL = frozenset[int](), frozenset({0, 1})


class Lease:
    """Gives one share after another, and the last one for good; notes whether the process was ready when it was asked."""

    def __init__(self, health: Health, shares: Sequence[frozenset[int]]) -> None:
        self._health, self._shares, self.was_ready = health, list(shares), list[bool]()

    def partitions(self) -> frozenset[int]:
        self.was_ready.append(self._health.ready)
        return self._shares.pop(0) if len(self._shares) > 1 else self._shares[0]

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        """Nothing is held."""


class Loading:
    """An engine that loads for three turns what it took over; notes in each turn whether the process is ready."""

    name = "loading"

    def __init__(self, health: Health) -> None:
        self._health, self._left, self._owned = health, 0, NONE
        self.readiness: list[bool] = []

    def turn(self, partitions: frozenset[int]) -> int:
        if partitions - self._owned:
            self._left = 3
        self._owned, self._left = partitions, max(self._left - 1, 0)
        self.readiness.append(self._health.ready)
        return self._left

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        return {}

    def close(self) -> None:
        """Nothing is held."""


def test_a_process_in_reserve_that_takes_over_is_ready_again_only_once_it_has_caught_up() -> None:
    health = Health(lambda: 0.0)
    engine = Loading(health)
    # Each sleep asks for the share as well.
    lease = Lease(health, [NONE, NONE, ALL])
    log = MemoryLog()

    Host(log, [engine], lease, health, StringIO()).run(lambda: len(engine.readiness) == 5)

    assert engine.readiness == [False, False, False, False, True]
    assert lease.was_ready[:3] == [False, True, True]


def test_a_process_is_alive_while_it_loads_a_large_share_and_not_when_a_later_turn_takes_as_long() -> None:
    now = [0.0]
    health = Health(lambda: now[0], loads=True)

    alive = list[bool]()

    class Slow(Loading):
        def turn(self, partitions: frozenset[int]) -> int:
            now[0] += 200.0
            alive.append(health.alive()[0])
            return super().turn(partitions)

    engine = Slow(health)
    lease = Lease(health, [NONE, ALL])

    now[0] = 90.0
    assert health.alive() == (True, "loading the ledger for 90 s (limit 300 s)")
    now[0] = 301.0
    assert health.alive() == (False, "the loop has not turned for 301 s (limit 300 s)")
    health.turned()
    Host(MemoryLog(), [engine], lease, health, StringIO()).run(lambda: len(alive) == 3)

    assert alive == [False, True, False]


class Busy(Loading):
    """An engine that reads two records in a turn, while three more are appended: it is never without work."""

    def __init__(self, health: Health, log: MemoryLog, position: int) -> None:
        super().__init__(health)
        self._log, self._position, self.said = log, position, list[str]()

    def turn(self, partitions: frozenset[int]) -> int:
        self.readiness.append(self._health.ready)
        self.said.append(self._health.lacks())
        self._log.append([Message("t", b"k", b"v")] * 3)
        self._position += 2
        return 2

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        return {Partition("t", 0): self._position}


def test_a_process_that_has_read_what_there_was_is_ready_though_there_is_always_more_to_do() -> None:
    health = Health(lambda: 0.0)
    log = MemoryLog([TopicSpec("t", 1)])
    log.append([Message("t", b"k", b"v")] * 3)
    engine = Busy(health, log, 0)

    Host(log, [engine], Lease(health, [ALL]), health, StringIO()).run(lambda: len(engine.readiness) == 5)

    # Once the first turn is over there are six.
    assert engine.readiness == [False, False, False, True, True]
    assert engine.said[1:4] == ["t/0 has 2 of 6, 4 remain", "t/0 has 4 of 6, 2 remain", ""]


def test_a_log_that_was_away_leaves_more_to_catch_up_with() -> None:
    health = Health(lambda: 0.0)
    log = MemoryLog([TopicSpec("t", 1)])
    engine = Busy(health, log, 0)
    first = engine.turn

    def turn(partitions: frozenset[int]) -> int:
        if len(engine.readiness) == 3:
            engine.readiness.append(health.ready)
            engine.said.append(health.lacks())
            log.append([Message("t", b"k", b"v")] * 9)
            raise LogUnreachable("away")
        return first(partitions)

    engine.turn = turn  # type: ignore[method-assign]
    Host(log, [engine], Lease(health, [ALL]), health, StringIO()).run(lambda: len(engine.readiness) == 6)

    assert engine.readiness == [False, False, True, True, False, False]
    assert engine.said[-1] == "t/0 has 8 of 21, 13 remain"


def test_a_process_that_gives_a_part_up_stays_ready() -> None:
    health = Health(lambda: 0.0)
    engine = Loading(health)
    lease = Lease(health, [ALL, ALL, ALL, ALL, frozenset({0})])
    log = MemoryLog()

    Host(log, [engine], lease, health, StringIO()).run(lambda: len(engine.readiness) == 5)

    assert engine.readiness == [False, False, False, True, True]


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_sleep")
def test_a_process_that_is_to_end_when_idle_waits_for_what_a_killed_one_has() -> None:
    health, now, err, turns = Health(lambda: 0.0), [0.0], StringIO(), list[frozenset[int]]()

    class Noted(Loading):
        def turn(self, partitions: frozenset[int]) -> int:
            now[0] += 1.0
            turns.append(partitions)
            return len(turns) in {4, 12}

    class Missed(Lease):
        """Somebody was killed at second 0 and is missed at second 12."""

        def partitions(self) -> frozenset[int]:
            return ALL if now[0] >= 12 else NONE

        def is_rest_at_work(self, seconds: float) -> bool:
            return now[0] >= 12 or now[0] - seconds <= 0

    Host(MemoryLog(), [Noted(health)], Missed(health, []), health, err, lambda: now[0]).run(lambda: False, until_idle=True)

    assert (turns[-1], len(turns)) == (ALL, 13)
    assert err.getvalue().count("waiting for a sign of others that share this work") == 1


@pytest.mark.usefixtures("no_sleep")
def test_a_table_that_cannot_be_closed_ends_a_process_also_while_the_log_is_full() -> None:
    health, err = Health(lambda: 0.0), StringIO()

    class Full(Loading):
        def turn(self, _partitions: frozenset[int]) -> int:
            self.readiness.append(True)
            raise LogFull("no room")

        def close(self) -> None:
            raise TableError("claims-0: the disk is gone")

    engine = Full(health)
    host = Host(MemoryLog(), [engine], Lease(health, [ALL]), health, err)

    with pytest.raises(TableError, match="the disk is gone"):
        host.run(lambda: len(engine.readiness) == 2)

    assert "at the end: claims-0: the disk is gone" in err.getvalue()


@pytest.mark.usefixtures("no_sleep")
def test_a_log_that_is_away_is_no_quiet_time_of_others() -> None:
    health, now, asked = Health(lambda: 0.0), [0.0], list[float]()

    class Away(Loading):
        def turn(self, _partitions: frozenset[int]) -> int:
            now[0] += 1.0
            if 2 <= now[0] <= 20:
                raise LogUnreachable("away")
            return 0

    class Asked(Lease):
        def is_rest_at_work(self, seconds: float) -> bool:
            asked.append(seconds)
            return seconds >= 3

    Host(MemoryLog(), [Away(health)], Asked(health, [ALL]), health, StringIO(), lambda: now[0]).run(lambda: False, until_idle=True)

    assert asked == [0.0, 0.0, 1.0, 2.0, 3.0]


@pytest.mark.usefixtures("no_sleep")
def test_a_share_that_an_engine_has_of_its_own_is_waited_for_too() -> None:
    health, asked = Health(lambda: 0.0), list[float]()

    class Own(Lease):
        def is_rest_at_work(self, seconds: float) -> bool:
            asked.append(seconds)
            return len(asked) == 3

    lease = Lease(health, [ALL])
    Host(MemoryLog(), [Loading(health)], lease, health, StringIO(), beside=[Own(health, [ALL])]).run(lambda: False, until_idle=True)

    assert len(asked) == 3


@pytest.mark.usefixtures("no_sleep")
def test_who_is_to_end_when_idle_goes_on_while_an_engine_waits_for_the_moment_of_what_it_took_up() -> None:
    health, err, asked = Health(lambda: 0.0), StringIO(), list[bool]()
    engine = Loading(health)

    def is_open() -> bool:
        asked.append(len(asked) < 4)
        return asked[-1]

    Host(MemoryLog(), [engine], Lease(health, [ALL]), health, err, is_open=is_open).run(lambda: False, until_idle=True)

    assert asked == [True, True, True, True, False]
    assert (len(engine.readiness), err.getvalue()) == (7, "")
