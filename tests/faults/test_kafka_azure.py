"""The Azure run on Kafka: two Faust workers and four schedulers, each of them and the broker killed with `kill -9` under load.

What is killed, at which event of the trace, and for how long it stays away follows from the seed; see README.md here.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec import Struct

from producers.load import SimulatedFleet
from producers.source import said
from producers.traces import trace
from schemas.topics import AUDITS, CLAIMS, NODE_RESOURCES, REQUESTS, RESULTS, VERDICTS
from streams.cli.exits import Exit
from streams.cli.produce.publishing import message
from streams.log.base import Log, LogUnreachable
from tests.faults import checkers
from tests.faults.checkers import everything_wrong, limits, records
from tests.faults.cloud import KINDS, Cloud, data
from tests.faults.harness import SOAKS, until, until_known
from tests.faults.history import Recorded, at_rest, history_wrong, read_history
from tests.faults.kafka_site import KafkaSite, kafka_site
from tests.faults.shared_site import SESSION_SECONDS

VMS = 10_000
"""Each comes and goes: 20,000 events of the trace."""
NODES = 500
KILLS = int(os.environ.get("CLAIMLOG_CLOUD_KILLS", "50")) if SOAKS else 5
WORKERS = ("w0", "w1")
SCHEDULERS = ("s0", "s1", "s2", "s3")
BROKER = "broker"
PATIENCE_SECONDS = 120.0
PLAY_SECONDS = 300.0 + 30.0 * KILLS
FOLLOWING = (CLAIMS, RESULTS, VERDICTS, NODE_RESOURCES)
QUIET_SECONDS = 1.0


class Kill(Struct, frozen=True):
    """Who is killed when the trace is at `event`, and for how long it stays away."""

    event: int
    victim: str
    away_seconds: float


def plan(draw: Random) -> list[Kill]:
    """All kills in order, spread over the trace: each kind early on, then whoever the seed says.

    One in four of the processes stays away for longer than its session, so that others have to take over; the rest are back at once,
    while the others still wait for them.
    """
    victims = [draw.choice(WORKERS), draw.choice(SCHEDULERS), BROKER, draw.choice(WORKERS), draw.choice(SCHEDULERS)]
    draw.shuffle(victims)
    kinds = (WORKERS, SCHEDULERS, SCHEDULERS, (BROKER,))
    victims += [draw.choice(draw.choice(kinds)) for _ in range(KILLS - len(victims))]
    events = 2 * VMS
    found = []
    for number, victim in enumerate(victims[:KILLS]):
        event = int(events * (number + draw.random()) / (KILLS + 1)) + 100
        away = draw.uniform(0.0, 3.0)
        if victim != BROKER and draw.random() < 0.25:
            away += SESSION_SECONDS
        found.append(Kill(event, victim, away))
    return found


class Chaos(threading.Thread):
    """Kills as planned and starts again, as a supervisor would. `played` says where the trace is."""

    def __init__(self, here: KafkaSite, kills: list[Kill], played: Callable[[], int]) -> None:
        super().__init__(name="chaos", daemon=True)
        self._here, self._kills, self._played = here, kills, played
        self._away: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.gave_up: Counter[str] = Counter()
        self.ended = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for kill in self._kills:
                while (self._played() < kill.event or kill.victim in self._away) and not self.ended.is_set():
                    self._bring_back()
                    self._supervise()
                    time.sleep(0.01)
                if self.ended.is_set():
                    break
                self._kill(kill)
            while self._away or not self.ended.is_set():
                self._bring_back()
                self._supervise()
                time.sleep(0.01)
        except BaseException as failure:
            self.failure = failure

    def _kill(self, kill: Kill) -> None:
        self._supervise()
        if kill.victim == BROKER:
            self._here.broker.kill()
        else:
            self._here.processes[kill.victim].kill()
        self.counts[kill.victim] += 1
        self._away[kill.victim] = time.monotonic() + kill.away_seconds

    def _bring_back(self) -> None:
        now = time.monotonic()
        for name in [name for name, due in self._away.items() if due <= now]:
            if name == BROKER:
                self._here.broker.again()
            else:
                self._here.processes[name].start()
            del self._away[name]

    def _supervise(self) -> None:
        """Start again who could not go on without the broker; nobody may end for any other reason.

        SIGABRT is librdkafka's own (2.x): an assertion about requests that were on their way to a broker that went away.
        """
        for name, process in self._here.processes.items():
            code = process.running.poll() if process.running is not None else None
            if code in {Exit.UNREACHABLE, -signal.SIGABRT} and self.counts[BROKER]:
                process.ended()
                process.start()
                self.gave_up[f"{name} with {code}"] += 1
            else:
                assert code is None, f"{name} ended by itself with {code}:\n{process.said()[-3000:]}"

    def keeps_up(self) -> None:
        """Wait until no more than one kill is due whose victim is still away: on a fast machine the trace would end before its kills.

        Raises what went wrong in it.
        """
        while self.failure is None and sum(kill.event <= self._played() for kill in self._kills) > sum(self.counts.values()) + 1:
            time.sleep(0.01)
        if self.failure is not None:
            raise self.failure


class Observer(threading.Thread):
    """A client that only reads: everything as it comes, and now and then something again with a new connection."""

    TOPICS = (REQUESTS, CLAIMS, RESULTS)

    def __init__(self, here: KafkaSite, folder: Path, draw: Random) -> None:
        super().__init__(name="observer", daemon=True)
        self._here, self._folder, self._draw = here, folder, draw
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self.read = 0

    def run(self) -> None:
        try:
            self._follow()
        except BaseException as failure:
            self.failure = failure

    def _follow(self) -> None:
        next_ones: dict[tuple[str, int], int] = {}
        number = 0
        while not self.ended.is_set():
            try:
                with self._here.opened() as opened:
                    number += 1
                    log = Recorded(opened, self._folder, f"observer-{number}")
                    until_s = time.monotonic() + self._draw.uniform(3.0, 10.0)
                    places = [(topic, partition) for topic in self.TOPICS for partition in range(log.topics()[topic])]
                    for place in self._draw.sample(places, 3):
                        log.read(*place, self._draw.randint(0, next_ones.get(place, 0)), 200)
                    while not self.ended.is_set() and time.monotonic() < until_s:
                        self._look(log, places, next_ones)
                        self.ended.wait(0.2)
            except LogUnreachable:
                self.ended.wait(0.5)

    def _look(self, log: Recorded, places: list[tuple[str, int]], next_ones: dict[tuple[str, int], int]) -> None:
        for place in places:
            while found := log.read(*place, next_ones.get(place, 0)):
                next_ones[place] = found[-1].offset + 1
                self.read += len(found)


def at_rest_and_published(log: Log) -> bool:
    """Whether all that follows from the log has been appended: results, releases, verdicts and rows. Looked at when nothing comes."""
    ends = [log.ends(topic) for topic in FOLLOWING]
    time.sleep(QUIET_SECONDS)
    if ends != [log.ends(topic) for topic in FOLLOWING]:
        return False
    fold = checkers.folded(log)
    return not (checkers.unnamed(log, fold) or checkers.verdicts_wrong(log, fold) or checkers.rows_wrong(log, fold))


@pytest.mark.timeout(PLAY_SECONDS + 3 * PATIENCE_SECONDS)
def test_a_real_cloud_on_kafka_with_every_process_and_the_broker_killed_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    folder, draw = data(), Random(seed)
    with kafka_site(tmp_path) as here, here.opened() as log:
        begun = time.monotonic()
        fleet = SimulatedFleet(NODES, seed=seed, epoch=1, kinds=KINDS)
        log.append([message(said(AUDITS, fleet.audit(node_id, 1, 1))) for node_id in fleet.nodes])
        for name in WORKERS:
            here.worker(name)
        for name in SCHEDULERS:
            here.scheduler(name)
        until_known(log, NODES)
        cloud = Cloud(Recorded(log, tmp_path, "cloud"), trace(folder, seed=seed, instances=VMS), PLAY_SECONDS)
        chaos, observer = Chaos(here, plan(draw), lambda: cloud.played), Observer(here, tmp_path, Random(seed + 1))
        cloud.meanwhile = chaos.keeps_up
        started_s = time.monotonic() - begun

        observer.start()
        chaos.start()
        try:
            cloud.play()
        finally:
            observer.ended.set()
            chaos.ended.set()
            chaos.join(PATIENCE_SECONDS)
            observer.join(PATIENCE_SECONDS)
        played_s = time.monotonic() - begun - started_s
        looked = checkers.seen(log)
        until(lambda: at_rest_and_published(looked), PATIENCE_SECONDS, "every losing claim is given back and everything is published")
        here.site.stop_all()
        rested_s = time.monotonic() - begun - started_s - played_s
        fold, wrong = everything_wrong(log, [here.home(name) for name in WORKERS], cloud.kept)
        rest = at_rest(each for topic in (REQUESTS, RESULTS, CLAIMS) for each in records(log, topic))
        history = read_history(tmp_path)
        wrong += history_wrong(history, rest, limits(fold), [REQUESTS])
        checked_s = time.monotonic() - begun - started_s - played_s - rested_s

        print(
            f"\nseed {seed}: {cloud.played} events of {VMS} VMs on {NODES} nodes: {cloud.accepted} accepted, {cloud.refused} refused, "
            f"{cloud.released} ended; killed {dict(sorted(chaos.counts.items()))}, "
            f"gave up without the broker {dict(chaos.gave_up)}; outcomes {dict(sorted(fold.kinds().items()))}; "
            f"{len(cloud.kept)} records acknowledged, {len(history.calls)} calls recorded, {observer.read} records observed; "
            f"{started_s:.0f} s to start, {played_s:.0f} s of load, {rested_s:.0f} s to rest, {checked_s:.0f} s to check"
        )
        assert wrong == []
        assert (chaos.failure, observer.failure) == (None, None)
        assert sum(chaos.counts.values()) == KILLS
        assert cloud.accepted + cloud.refused == VMS
        assert min(cloud.accepted - VMS // 2, cloud.refused) > 0, "the fleet is too small, or so large that nothing is refused"
        assert cloud.released == cloud.accepted
        assert sum(len(ledger.claims) for ledger in fold.ledgers) == 0, "every VM ended, yet something is held"
