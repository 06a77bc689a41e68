"""The watchdog: engines that stand still while there is work end the process; engines with nothing to do may rest for ever."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest

from schemas.topics import CLAIMS, STREAM_PARTITIONS
from streams.log.base import LogError, LogUnreachable, Message, Partition, TopicSpec
from streams.log.memory import MemoryLog
from streams.metrics import Health
from streams.watchdog import Share, Standstill, Watchdog, recovery

CLAIMS_0, CLAIMS_1 = Partition("claims", 0), Partition("claims", 1)


class Standing:
    """An engine that stands where it is told."""

    name = "standing"

    def __init__(self, positions: dict[Partition, int]) -> None:
        self.positions = positions

    def turn(self, partitions: frozenset[int]) -> int:
        return 0

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        return self.positions

    def close(self) -> None:
        self.positions = {}


def test_an_engine_that_stands_still_while_the_log_is_ahead_is_named_with_its_place() -> None:
    standstill = Standstill(60)

    judged = [standstill.judge(now, {CLAIMS_0: 5, CLAIMS_1: int(now)}, {CLAIMS_0: 9, CLAIMS_1: 1000}) for now in (0.0, 30.0, 59.0, 61.0)]

    assert judged == [None, None, None, "claims/0 has stood at 5 for 61 s, though the log goes to 9"]


def test_an_engine_at_the_end_of_the_log_may_rest_and_has_its_time_when_something_comes() -> None:
    standstill = Standstill(60)

    judged = [standstill.judge(now, {CLAIMS_0: 9}, {CLAIMS_0: end}) for now, end in ((0.0, 9), (500.0, 9), (501.0, 10), (559.0, 10))]

    assert judged == [None] * 4
    assert standstill.judge(562.0, {CLAIMS_0: 9}, {CLAIMS_0: 10}) == "claims/0 has stood at 9 for 62 s, though the log goes to 10"


def test_a_partition_that_is_given_up_is_forgotten() -> None:
    standstill = Standstill(60)
    standstill.judge(0.0, {CLAIMS_0: 5}, {CLAIMS_0: 9})
    standstill.judge(50.0, {}, {})

    judged = standstill.judge(100.0, {CLAIMS_0: 5}, {CLAIMS_0: 9})

    assert judged is None


def test_a_share_knows_where_its_engines_stand_once_the_first_turn_is_over() -> None:
    share = Share(frozenset({0, 1}))
    share.engines = [Standing({CLAIMS_0: 7, CLAIMS_1: 2}), Standing({CLAIMS_0: 3})]
    before = (share.partitions(), share.positions)

    after = (share.partitions(), share.positions)

    assert before == (frozenset({0, 1}), {})
    assert after == (frozenset({0, 1}), {CLAIMS_0: 3, CLAIMS_1: 2})


def test_a_recovery_says_of_each_partition_what_it_has_what_it_needs_and_what_remains() -> None:
    said = recovery({CLAIMS_0: 30}, {CLAIMS_0: 100, CLAIMS_1: 5}, {1, 0})

    assert said == "claims/0 has 30 of 100, 70 remain; claims/1 opens its table"


def test_engines_have_all_their_time_once_a_log_that_was_out_of_reach_is_back() -> None:
    log, health, given_up = MemoryLog(), Health(time.monotonic), list[str]()
    log.create([TopicSpec(CLAIMS, 1)])
    log.append([Message(CLAIMS, b"n1", b"{}")])
    share = Share(frozenset({0}))
    share.positions = {CLAIMS_0: 0}
    watchdog = Watchdog(lambda: share, lambda: None, lambda: log, health, print, given_up.append, stall_seconds=0.0)

    health.waits = True
    watchdog._look(log)
    watchdog._look(log)
    waiting = list(given_up)
    health.waits = False
    watchdog._look(log)

    assert waiting == []
    assert [said.partition(" has")[0] for said in given_up] == ["an engine stands still: claims/0"]


def test_a_worker_in_reserve_rests_until_what_is_shared_out_is_gone() -> None:
    log, given_up = MemoryLog(), list[str]()
    watchdog = Watchdog(lambda: None, lambda: None, lambda: log, Health(time.monotonic), print, given_up.append, stall_seconds=60.0)
    log.create([TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)])
    watchdog._look(log)
    resting = list(given_up)

    watchdog._look(MemoryLog())

    assert resting == []
    assert [said.partition(",")[0] for said in given_up] == ["topic stream-partitions is missing"]


class Away(MemoryLog):
    """A log that is out of reach when it is told so, or whose groups nobody keeps."""

    away = unkept = False

    def ends(self, topic: str) -> dict[int, int]:
        if self.away:
            raise LogUnreachable("nobody answers")
        return super().ends(topic)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        if self.unkept:
            raise LogUnreachable("nobody keeps the group")
        return super().committed(group, topic)


@pytest.mark.parametrize("share", [None, Share(frozenset({0}))], ids=["in reserve", "at work"])
def test_a_worker_whose_group_stays_out_of_reach_while_the_log_answers_ends(share: Share | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.watchdog.JOIN_SECONDS", -1.0)
    log, health, given_up, in_touch = Away(), Health(time.monotonic), list[str](), [True]
    log.create([TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)])
    watchdog = Watchdog(
        lambda: share, lambda: None, lambda: log, health, print, given_up.append, stall_seconds=60.0, in_touch=lambda: in_touch[0]
    )

    watchdog._look(log)
    in_touch[0], log.away = False, True
    with pytest.raises(LogUnreachable):
        watchdog._look(log)
    before = list(given_up)
    log.away, log.unkept = False, True
    with pytest.raises(LogUnreachable, match="nobody keeps the group"):
        watchdog._look(log)
    before += given_up
    log.unkept = False
    watchdog._look(log)

    assert before == []
    assert [said.partition(" for")[0] for said in given_up] == ["the group was out of reach"]


def joining() -> float | None:
    return time.monotonic()


@pytest.mark.parametrize(
    ("share", "joining_since"),
    [(None, None), (None, joining), (Share(frozenset({0})), None)],
    ids=["in reserve", "while the group is asked", "while tables are loaded"],
)
def test_a_worker_without_a_loop_is_alive_while_it_is_watched_and_brokers_are_away(share: Share | None, joining_since: Any) -> None:
    now = [0.0]
    log, health = Away(), Health(lambda: now[0], stalled_seconds=60.0)
    log.create([TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)])
    watchdog = Watchdog(lambda: share, joining_since or (lambda: None), lambda: log, health, print, print, stall_seconds=60.0)
    log.away, now[0] = True, 61.0
    before = health.alive()[0]

    with suppress(LogUnreachable):
        watchdog._look(log)

    assert (before, health.alive()[0]) == (False, True)


def test_a_worker_in_reserve_is_ready_when_it_could_take_partitions_over() -> None:
    log, health = Away(), Health(time.monotonic)
    log.create([TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)])
    watchdog = Watchdog(lambda: None, lambda: None, lambda: log, health, print, print, stall_seconds=60.0)
    health.ready = True

    watchdog._bear(LogUnreachable("nobody answers"))
    away = health.lacks()
    watchdog._look(log)

    assert away == "waiting for a log that is full or out of reach"
    assert health.lacks() == ""


def test_a_loop_that_has_turned_is_judged_by_its_turns() -> None:
    now = [0.0]
    log, health, share = Away(), Health(lambda: now[0], stalled_seconds=60.0), Share(frozenset({0}))
    log.create([TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)])
    watchdog = Watchdog(lambda: share, lambda: None, lambda: log, health, print, print, stall_seconds=60.0)
    share.positions, now[0] = {CLAIMS_0: 0}, 61.0

    watchdog._look(log)

    assert not health.alive()[0]


@pytest.mark.parametrize(
    ("problem", "share", "told"),
    [
        (LogUnreachable("nobody answers"), None, ["out of reach: nobody answers (for 0 s now, and this worker has no partitions)"]),
        (LogError("refused"), None, ["gives up: refused (for 0 s now, and this worker has no partitions)"]),
        (LogUnreachable("nobody answers"), Share(frozenset({0})), []),
    ],
    ids=["in reserve", "in reserve, for another reason", "at work"],
)
def test_a_worker_in_reserve_ends_when_brokers_were_away_as_long_as_one_at_work_would(
    problem: LogError, share: Share | None, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, given_up = MemoryLog(), list[str]()
    watchdog = Watchdog(
        lambda: share,
        lambda: None,
        lambda: log,
        Health(time.monotonic),
        print,
        lambda reason: given_up.append(f"gives up: {reason}"),
        stall_seconds=60.0,
        out_of_reach=lambda reason: given_up.append(f"out of reach: {reason}"),
    )

    watchdog._bear(problem)
    before = list(given_up)
    monkeypatch.setattr("streams.watchdog.UNREACHABLE_SECONDS_MAX", -1.0)
    watchdog._bear(problem)

    assert before == []
    assert given_up == told
