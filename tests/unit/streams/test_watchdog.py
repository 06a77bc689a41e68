"""The watchdog: engines that stand still while there is work end the process; engines with nothing to do may rest for ever."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Never

import pytest

from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from schemas.topics import CLAIMS, STREAM_PARTITIONS
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import LogError, LogOutdated, LogUnreachable, Message, Partition, TopicSpec
from streams.log.memory import MemoryLog
from streams.measured import Measured
from streams.metrics import Health, Metrics
from streams.tables import Loading, mark_overdue
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
    assert recovery({CLAIMS_0: 30}, {CLAIMS_0: 100, CLAIMS_1: 5}, {1, 0}) == "claims/0 has 30 of 100, 70 remain; claims/1 opens its table"
    assert recovery({CLAIMS_0: 100}, {CLAIMS_0: 100}, {0}) == "claims/0 has all of 100"
    assert recovery({CLAIMS_0: 100}, {CLAIMS_0: 26}, {0}) == "claims/0 has 100, and the log ends at 26", "brokers have lost records"


class Seconds:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Ended(Exception):
    """What ended the process."""


def ended(reason: str) -> Never:
    raise Ended(reason)


FOUR = frozenset(range(4))
DEADLINE_SECONDS = 300.0


class Worker:
    """A folder of four partitions, whose tables take the given seconds to load while the watchdog looks every ten."""

    def __init__(self, log: MemoryLog, folder: Path) -> None:
        self.log, self.path, self.clock, self.said = log, folder, Seconds(), list[str]()
        self.discarded = 0.0

    def start(self, takes: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> None:
        """A start and its first turn. Raises Ended if the watchdog ends it."""
        share, metrics, waits, load = Share(FOUR), Metrics("test"), list(takes), LedgerTable.load
        folder = Folder(self.log, self.path, "p1", metrics, self.said.append, recovery_seconds=DEADLINE_SECONDS, seconds=self.clock)
        share.engines = [Measured(folder, self.log, metrics)]
        dog = Watchdog(
            lambda: share, lambda: None, lambda: self.log, Health(self.clock), self.said.append, ended,
            stall_seconds=60.0, recovery_seconds=DEADLINE_SECONDS, overdue=partial(mark_overdue, self.path), seconds=self.clock,
        )  # fmt: skip

        def slowly(table: LedgerTable, tell: Callable[[str], None]) -> Ledger | None:
            until = self.clock.now + waits.pop(0)
            while self.clock.now < until:
                dog._look(self.log)
                self.clock.now += 10
            return load(table, tell)

        with monkeypatch.context() as patch:
            patch.setattr(LedgerTable, "load", slowly)
            try:
                folder.turn(share.partitions())
                share.partitions()
                dog._look(self.log)
            finally:
                self.discarded = metrics.registry.get_sample_value("claimlog_states_discarded_total") or 0.0
                folder.close()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """One whose tables have all of the log."""
    log = MemoryLog()
    open_ledger(log, ledger_partitions=4, request_partitions=1)
    worker = Worker(log, tmp_path / "state")
    worker.start([0, 0, 0, 0], monkeypatch)
    return worker


def markers(worker: Worker) -> list[str]:
    return sorted(path.name for path in worker.path.iterdir() if path.is_file())


def test_tables_that_each_load_in_time_are_kept_however_long_all_of_them_take(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.start([290, 290, 290, 290], monkeypatch)
    worker.start([0, 0, 0, 0], monkeypatch)

    assert (worker.discarded, markers(worker)) == (0, [])
    assert not any("discarded" in said for said in worker.said)


def test_only_the_table_that_takes_too_long_itself_ends_the_process_and_is_made_anew(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = worker.path / "claims-3.loading"
    killed.write_text("1")
    os.utime(killed, (0, 0))

    with pytest.raises(Ended) as raised:
        worker.start([290, 290, 5_000], monkeypatch)

    made_anew = "claims-2 will be made anew from the newest snapshot or the log"
    assert str(raised.value) == f"claims-2 is not loaded after 310 s; start this worker again; {made_anew}"
    assert markers(worker) == ["claims-2.overdue", "claims-3.loading"]
    worker.start([0, 0, 0, 0], monkeypatch)
    assert [said.partition(": ")[0].rpartition("/")[2] for said in worker.said if "discarded" in said] == ["claims-2"]
    assert (worker.discarded, markers(worker)) == (1, [])


class Loads(Standing):
    """The same with tables, of which one is being loaded or none."""

    loading: Loading | None = None


@pytest.mark.parametrize(("deadline_seconds", "limit_seconds"), [(1.0, 60.0), (DEADLINE_SECONDS, DEADLINE_SECONDS)])
def test_a_first_turn_lasts_as_long_as_it_gets_on_and_ends_the_process_when_it_does_not(
    deadline_seconds: float, limit_seconds: float
) -> None:
    log, clock, given_up, health = MemoryLog(), Seconds(), list[str](), Health(lambda: 0.0)
    log.create([TopicSpec(CLAIMS, 1)])
    log.append([Message(CLAIMS, b"n1", b"{}")] * 20)
    share, engine = Share(frozenset({0})), Loads({CLAIMS_0: 0})
    share.engines = [engine]
    dog = Watchdog(
        lambda: share, lambda: None, lambda: log, health, print, given_up.append,
        stall_seconds=60.0, recovery_seconds=deadline_seconds, seconds=clock,
    )  # fmt: skip

    for folded in range(1, 20):
        clock.now += limit_seconds - 1
        engine.positions = {CLAIMS_0: folded}
        dog._look(log)
    getting_on, doing = list(given_up), health.doing
    clock.now += limit_seconds + 1
    dog._look(log)

    assert (getting_on, doing) == ([], "claims/0 has 19 of 20, 1 remain")
    assert given_up == [f"the engines have not got on in their first turn for {limit_seconds + 1:.0f} s; start this worker again"]


def test_engines_that_wait_for_a_table_in_a_later_turn_do_not_stand_still_and_have_their_time_afterwards() -> None:
    log, clock, given_up = MemoryLog(), Seconds(), list[str]()
    log.create([TopicSpec(CLAIMS, 2)])
    log.append([Message(CLAIMS, b"n1", b"{}", partition=0)])
    share, engine = Share(frozenset({0, 1})), Loads({})
    share.engines, share.positions = [engine], {CLAIMS_0: 0}
    dog = Watchdog(
        lambda: share, lambda: None, lambda: log, Health(clock), print, given_up.append,
        stall_seconds=60.0, recovery_seconds=DEADLINE_SECONDS, seconds=clock,
    )  # fmt: skip

    dog._look(log)
    engine.loading = Loading(1, clock.now)
    for _ in range(29):
        clock.now += 10
        dog._look(log)
    engine.loading = None
    clock.now += 59
    dog._look(log)
    before = list(given_up)
    clock.now += 2
    dog._look(log)

    assert before == []
    assert [said.partition(" for")[0] for said in given_up] == ["an engine stands still: claims/0 has stood at 0"]


def test_engines_of_a_process_that_was_stopped_have_not_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP and SIGCONT, or a machine that was paused: a clock that went on without it says nothing of its engines."""
    log, clock, given_up, told = MemoryLog(), Seconds(), list[str](), list[str]()
    log.create([TopicSpec(CLAIMS, 1)])
    log.append([Message(CLAIMS, b"n1", b"{}")])
    share = Share(frozenset({0}))
    share.positions = {CLAIMS_0: 0}
    waits = [1.0, 69.0, *[1.0] * 60, 2.0]

    class Stopping:
        def wait(self, _seconds: float) -> bool:
            clock.now += waits.pop(0)
            return not waits

    dog = Watchdog(lambda: share, lambda: None, lambda: log, Health(clock), told.append, given_up.append, stall_seconds=60.0, seconds=clock)
    monkeypatch.setattr(dog, "_stopped", Stopping())

    dog._run()

    assert [said for said in told if "stopped" in said] == [
        "this process was stopped for 69 s, or its machine was; others may have its partitions by now"
    ]
    assert given_up == [], "from then on they have all their time"


def test_engines_have_all_their_time_once_a_log_that_was_out_of_reach_is_back() -> None:
    log, health, given_up = MemoryLog(), Health(time.monotonic), list[str]()
    log.create([TopicSpec(CLAIMS, 1)])
    log.append([Message(CLAIMS, b"n1", b"{}")])
    share = Share(frozenset({0}))
    share.positions = {CLAIMS_0: 0}
    watchdog = Watchdog(lambda: share, lambda: None, lambda: log, health, print, given_up.append, stall_seconds=0.0)

    for _ in range(2):
        health.met_trouble()
        watchdog._look(log)
    waiting = list(given_up)
    watchdog._look(log)

    assert waiting == []
    assert [said.partition(" has")[0] for said in given_up] == ["an engine stands still: claims/0"]


def test_an_engine_that_hangs_after_a_trouble_is_ended_as_any_other_though_nobody_says_that_the_trouble_is_over() -> None:
    log, health, given_up = MemoryLog(), Health(time.monotonic), list[str]()
    log.create([TopicSpec(CLAIMS, 1)])
    log.append([Message(CLAIMS, b"n1", b"{}")])
    share, clock = Share(frozenset({0})), iter(range(0, 1_000, 20))
    share.positions = {CLAIMS_0: 0}
    watchdog = Watchdog(
        lambda: share, lambda: None, lambda: log, health, print, given_up.append, stall_seconds=60.0, seconds=lambda: next(clock)
    )

    watchdog._look(log)
    health.met_trouble()
    for _ in range(8):
        watchdog._look(log)

    assert health.waits
    assert [said.partition(" for")[0] for said in given_up[:1]] == ["an engine stands still: claims/0 has stood at 0"]


def test_a_worker_in_reserve_rests_until_what_is_shared_out_is_gone() -> None:
    log, given_up = MemoryLog(), list[str]()
    watchdog = Watchdog(lambda: None, lambda: None, lambda: log, Health(time.monotonic), print, given_up.append, stall_seconds=60.0)
    log.create([TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)])
    watchdog._look(log)
    resting = list(given_up)

    watchdog._look(MemoryLog())

    assert resting == []
    assert [said.partition(",")[0] for said in given_up] == ["topic stream-partitions is missing"]


@pytest.mark.parametrize("joining_since", [0.0, None], ids=["while it joins", "once it has joined"])
@pytest.mark.parametrize("share", [None, Share(frozenset({0}))], ids=["in reserve", "at work"])
def test_who_may_not_be_in_the_group_is_given_up_at_once(share: Share | None, joining_since: float | None) -> None:
    log, given_up, refused = MemoryLog([TopicSpec(STREAM_PARTITIONS, 1), TopicSpec(CLAIMS, 1)]), list[str](), [""]
    watchdog = Watchdog(
        lambda: share, lambda: joining_since, lambda: log, Health(time.monotonic), print, given_up.append, stall_seconds=60.0,
        refused=lambda: refused[0], seconds=lambda: 1.0,
    )  # fmt: skip
    watchdog._look(log)
    before = list(given_up)

    refused[0] = "may not join"
    watchdog._look(log)

    assert (before, given_up) == ([], ["may not join"])


def test_a_watchdog_that_is_told_to_stop_closes_its_log_before_anybody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.watchdog.LOOK_SECONDS", 0.01)
    log, looks = Away([TopicSpec(STREAM_PARTITIONS, 1)]), threading.Event()

    def in_touch() -> bool:
        looks.set()
        return True

    watchdog = Watchdog(
        lambda: None, lambda: None, lambda: log, Health(time.monotonic), print, pytest.fail, stall_seconds=60.0,
        in_touch=in_touch,
    )  # fmt: skip
    watchdog.start()
    assert looks.wait(60.0)

    watchdog.stop()
    watchdog.join()

    assert log.closed
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_a_watchdog_that_never_had_a_log_ends_with_the_worker_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.watchdog.LOOK_SECONDS", 0.01)
    told, given_up = list[str](), list[str]()

    def away() -> MemoryLog:
        raise LogUnreachable("nobody answers")

    watchdog = Watchdog(
        lambda: None, lambda: None, away, Health(time.monotonic), told.append, given_up.append, stall_seconds=60.0
    )  # fmt: skip
    watchdog.start()
    while not told:
        time.sleep(0.01)

    watchdog.stop()
    watchdog.join()

    assert given_up == []
    assert set(told) == {"watchdog: nobody answers"}


class Away(MemoryLog):
    """A log that is out of reach when it is told so, or whose groups nobody keeps."""

    away = unkept = closed = False

    def close(self) -> None:
        self.closed = True
        super().close()

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


@pytest.mark.parametrize("share", [None, Share(frozenset({0}))], ids=["in reserve", "at work"])
def test_a_worker_whose_secret_was_replaced_ends_at_once(share: Share | None) -> None:
    given_up = list[tuple[str, int]]()
    watchdog = Watchdog(
        lambda: share,
        lambda: None,
        MemoryLog,
        Health(time.monotonic),
        print,
        lambda reason: given_up.append((reason, 1)),
        stall_seconds=60.0,
        out_of_reach=lambda reason: given_up.append((reason, 5)),
    )

    watchdog._bear(LogOutdated("start it again"))

    assert given_up == [("start it again", 5)]


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


def test_what_the_log_says_each_second_is_said_once_until_it_says_something_else() -> None:
    told = list[str]()
    watchdog = Watchdog(
        lambda: None, lambda: None, MemoryLog, Health(time.monotonic), told.append, lambda reason: told.append(f"gives up: {reason}"),
        stall_seconds=60.0,
    )  # fmt: skip

    for problem in ("added", "added", "away", "added"):
        watchdog._bear(LogError(problem))

    assert told == ["watchdog: added", "watchdog: away", "watchdog: added"]
