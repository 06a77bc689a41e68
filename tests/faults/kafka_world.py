"""Brokers of the test's own, workers and schedulers on them, and the world outside: requesters, guests, hosts with audits.

One broker stands behind a proxy: checks go to it directly, everything that is tested goes through the proxy. A cluster of several is
reached as anybody reaches one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from producers.load import SimulatedFleet
from producers.workload import Arrival, Departure
from schemas import topics
from schemas.codec import decode
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceStarted, InstanceStopped
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import RESOURCES, Resources
from schemas.results import ClaimOutcome, InstancesPlaced
from streams.cli.produce.driving import Driver
from streams.clock import SystemClock
from streams.ledger_topics import open_ledger
from streams.log.base import Log, LogUnreachable, Message, Record
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.faults import checkers
from tests.faults.checkers import Acknowledged, Folded, hash_of
from tests.faults.harness import CLAIMLOG, Process, Site, until, until_known
from tests.faults.harness import site as processes
from tests.faults.history import Recorded, at_rest, history_wrong, read_history
from tests.faults.tcp_proxy import TcpProxy
from tests.kafka_broker import Broker, started

PREFIX = "world"
SESSION_SECONDS = 6.0
"""The least that brokers allow a member to be silent without being told otherwise."""
PATIENCE_SECONDS = 120.0
NODES = 12
LIFETIME_SECONDS_MEAN = 3.0
PROXIED = """\
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller}},PROXIED://127.0.0.1:{{second}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},PROXIED://{proxy}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT
"""
"""Clients go where a broker says it is; those that came through the proxy are told that it is the proxy."""


class World(Struct):
    """One ledger, what runs on it, and who plays. `log` is for checks; `options` are settings of librdkafka.

    `copies_max` says how many records may stand twice because librdkafka sent them again (see `history.sent_again`).
    """

    site: Site
    log: KafkaLog
    address: str
    options: dict[str, str] = field(default_factory=dict)
    single_broker: bool = False
    copies_max: int = 0
    load: Load | None = None

    @property
    def settings(self) -> KafkaSettings:
        """The log as those have it who are tested."""
        own = dict(self.options)
        patience_ms = int(own.pop("message.timeout.ms", "30000"))
        return KafkaSettings(bootstrap=self.address, prefix=PREFIX, single_broker=self.single_broker, patience_ms=patience_ms, options=own)

    @property
    def spec(self) -> str:
        """The same as `--log` names it."""
        single = {"single-broker": "true"} if self.single_broker else {}
        options = "&".join(f"{key}={value}" for key, value in {**single, **self.options}.items())
        return f"{self.settings.place}?{options}" if options else self.settings.place

    def home(self, worker: str) -> Path:
        """A worker's own directory."""
        return self.site.folder / worker

    def worker(self, name: str) -> Process:
        """Start a worker of the stream processor. Nodes are not missed before an hour: the load stops auditing them at the end."""
        command = [*CLAIMLOG, "run", "--only", "processor", "--log", self.spec, "--name", name, "--state", str(self.home(name))]
        return self.site.start(name, [*command, "--audit-interval", "3600"])

    def scheduler(self, name: str) -> Process:
        """Start a scheduler."""
        command = [*CLAIMLOG, "run", "--only", "scheduler", "--log", self.spec, "--name", name]
        return self.site.start(name, [*command, "--lease-timeout", str(SESSION_SECONDS)])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, such as SIGSTOP."""
        process = self.site.processes[name]
        process.must_run()
        assert process.running is not None
        process.running.send_signal(number)

    def begin(self, seed: int, per_second: float = 20.0) -> Load:
        """Let requests come and hosts report; all hosts are known when this returns, if a worker runs."""
        folder = self.site.folder / "history"
        folder.mkdir()
        self.load = Load(self.settings, seed, per_second, folder)
        self.load.start()
        until_known(self.log, NODES)
        return self.load

    def last_words(self) -> str:
        """How far everything is, and what processes said, for whoever reads why a test failed."""
        names = (topics.AUDITS, topics.LIFECYCLE, topics.CLAIMS, topics.REQUESTS, topics.RESULTS, topics.NODE_RESOURCES)
        lines = [f"{name}: {self.log.ends(name)}" for name in names]
        lines += [f"committed by {group}: {self.log.committed(group, topic)}" for group, topic in (("schedulers", topics.REQUESTS),)]
        lines += [f"{name}: {process.said()[-600:]}" for name, process in self.site.processes.items()]
        return "\n".join([*lines, f"load: {self.load.failure!r}, {self.load.troubles[-3:]}" if self.load is not None else ""])

    def answers(self) -> int:
        """How many results stand in the log: more of them means that all parts get on."""
        return sum(self.log.ends(topics.RESULTS).values())

    def goes_on(self, count: int, what: str) -> None:
        """Wait for so many more results."""
        assert self.load is not None
        wanted = self.answers() + count
        until(lambda: self.load is not None and self.load.is_well() and self.answers() >= wanted, PATIENCE_SECONDS, what)

    def comes_to_rest(self) -> None:
        """No more requests come, all are answered, all losers given back, and all that follows is published; then everything is stopped."""
        assert self.load is not None
        self.load.finish()
        looked = checkers.seen(self.log)
        until(lambda: self._is_at_rest(looked), PATIENCE_SECONDS, "all is carried, answered and published")
        self.site.stop_all()

    def _is_at_rest(self, log: Log) -> bool:
        for process in self.site.processes.values():
            if process.running is not None:
                process.must_run()
        for source in (topics.AUDITS, topics.LIFECYCLE):
            carried = log.committed("reconciler", source)
            if any(carried.get(number, 0) < end for number, end in log.ends(source).items()):
                return False
        fold = checkers.folded(log)
        return not (
            checkers.unanswered(log, checkers.requests(log))
            or checkers.unnamed(log, fold)
            or checkers.verdicts_wrong(log, fold)
            or checkers.rows_wrong(log, fold)
        )

    def wrong(self, workers: Iterable[str]) -> list[str]:
        """Everything that the checkers find at rest."""
        assert self.load is not None
        fold, wrong = checkers.everything_wrong(self.log, [self.home(name) for name in workers], self.load.kept)
        return wrong + released_though_it_counts(self.log, fold) + self._history_wrong(fold)

    def _history_wrong(self, fold: Folded) -> list[str]:
        """What the checkers find in what the load wrote down: lost writes, duplicates, phantom reads, over-grants, non-monotonic reads."""
        assert self.load is not None
        history = read_history(self.load.folder)
        assert history.calls, "the load wrote nothing down"
        assert any(use.resources for use in history.uses), "no guest was started"
        rest = at_rest(each for topic in {call.topic for call in history.calls} for each in checkers.records(self.log, topic))
        return history_wrong(history, rest, checkers.limits(fold), [topics.REQUESTS], self.copies_max)


def released_though_it_counts(log: Log, fold: Folded) -> list[str]:
    """Claims that a counting result names and somebody gave back. Nothing here is cancelled, so nobody may."""
    named = {p.claim_id for result in checkers.counting(log)[0].values() if isinstance(result, InstancesPlaced) for p in result.placements}
    outcomes = [msgspec.json.decode(outcome, type=ClaimOutcome) for outcome in fold.outcomes]
    return [f"{each.claim_id} counts and was released" for each in outcomes if each.outcome == "released" and each.claim_id in named]


class Proxied(World, kw_only=True):
    """A world whose one broker stands behind a proxy."""

    broker: Broker
    proxy: TcpProxy


class Witness:
    """A log as a producer has it; it remembers what was acknowledged, and writes the history of its calls and guests into `folder`."""

    def __init__(self, log: Log, folder: Path) -> None:
        self._log, self._recorded = log, Recorded(log, folder, "load")
        self.kept: list[Acknowledged] = []

    def append(self, messages: Sequence[Message]) -> list[int]:
        """See `Log`."""
        for each in messages:
            if each.topic == topics.LIFECYCLE:
                self._lived(decode(each.topic, each.value))
        offsets = self._recorded.append(messages)
        for each, offset in zip(messages, offsets, strict=True):
            self.kept.append(Acknowledged(each.topic, self._log.partition(each.topic, each.key), offset, hash_of(each.value)))
        return offsets

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See `Log`."""
        return self._recorded.read(topic, partition, offset, records_max, bytes_max)

    def _lived(self, event: object) -> None:
        """A guest that starts does so where a result said; one that is about to end gives its room back."""
        match event:
            case InstanceArrived() | InstanceStarted():
                size = Resources(**{name: getattr(event.instance.resources, name) or 0 for name in RESOURCES})
                self._recorded.holds(event.instance.instance_id, event.node_id, size)
            case InstanceDeparted() | InstanceDeleted() | InstanceStopped():
                self._recorded.gives_back(event.instance.instance_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Load(threading.Thread):
    """Plays a fleet on the log as `claimlog produce load` does, and goes on while the log is out of reach."""

    def __init__(self, settings: KafkaSettings, seed: int, per_second: float, folder: Path) -> None:
        super().__init__(name="load", daemon=True)
        self._settings, self._seed, self._per_second, self.folder = settings, seed, per_second, folder
        self._calm = threading.Event()
        self.kept: list[Acknowledged] = []
        self.troubles: list[str] = []
        self.failure: BaseException | None = None
        self.tally = ""

    def run(self) -> None:
        try:
            with KafkaLog.open(self._settings) as log:
                self._play(log)
        except BaseException as failure:
            self.failure = failure

    def _play(self, log: KafkaLog) -> None:
        witness: Any = Witness(log, self.folder)
        self.kept = witness.kept
        fleet = SimulatedFleet(NODES, seed=self._seed, epoch=SystemClock().wall_ms())
        coming = events(Random(self._seed), self._per_second, self._calm.is_set)
        driver = Driver(witness, fleet, coming, SystemClock(), speed=1.0, audit_every_ms=1000)
        while not (self._calm.is_set() and driver.exhausted and not driver.waiting):
            try:
                driver.step()
                driver.wait(0.02)
            except LogUnreachable as trouble:
                self.troubles.append(str(trouble))
                time.sleep(0.05)
        # The last word of every host: what runs there.
        while True:
            try:
                driver.step()
                break
            except LogUnreachable as trouble:
                self.troubles.append(str(trouble))
        self.tally = str(driver.tally)

    def is_well(self) -> bool:
        """Raises what went wrong in it."""
        if self.failure is not None:
            raise self.failure
        return True

    def finish(self) -> None:
        """Ask for no more, and wait until all is answered and all guests have ended."""
        self._calm.set()
        self.join(PATIENCE_SECONDS)
        self.is_well()
        assert not self.is_alive(), "requests are not answered"


def events(draw: Random, per_second: float, ended: Callable[[], bool]) -> Iterator[Arrival | Departure]:
    """Requests of one to three small instances, and the ends of their lives, in order of time, until `ended`."""
    ends: list[tuple[int, str, str]] = []
    time_ms, number = 0.0, 0
    while not ended():
        time_ms += draw.expovariate(per_second) * 1000
        while ends and ends[0][0] <= time_ms:
            end_ms, request_id, instance_id = heappop(ends)
            yield Departure(end_ms, request_id, instance_id)
        number += 1
        flavor = Flavor(vcpus=draw.randint(1, 2), memory_mib=draw.choice([512, 2048]))
        request = PlacementRequested(request_id=f"r-{number}", flavor=flavor, count=draw.choice([1, 1, 1, 2, 3]))
        for index in range(request.count):
            end_ms = int(time_ms + draw.expovariate(1 / LIFETIME_SECONDS_MEAN) * 1000)
            heappush(ends, (end_ms, request.request_id, request.instance(index)))
        yield Arrival(int(time_ms), request)


@contextmanager
def world(folder: Path, seed: int, **options: str) -> Iterator[Proxied]:
    """A world in `folder`; `options` are settings of librdkafka with `_` for `.`. Nothing of it runs on when this ends.

    Skips where no broker can be had, which fails on CI.
    """
    given = {name.replace("_", "."): value for name, value in options.items()}
    with (
        TcpProxy(seed) as proxy,
        started(Broker(folder / "broker", PROXIED.format(proxy=proxy.address))) as broker,
        processes(folder) as site,
    ):
        proxy.target = ("127.0.0.1", broker.second_port)
        with KafkaLog.open(KafkaSettings(bootstrap=broker.address, prefix=PREFIX, single_broker=True)) as log:
            open_ledger(log, ledger_partitions=4, request_partitions=8)
            with played(Proxied(site, log, proxy.address, given, single_broker=True, broker=broker, proxy=proxy)) as here:
                yield here


W = TypeVar("W", bound=World)


@contextmanager
def played(here: W) -> Iterator[W]:
    """A world whose load ends with it; one that a test fails in says how far everything is."""
    try:
        yield here
    except BaseException:
        print(here.last_words())
        raise
    finally:
        if here.load is not None and here.load.is_alive():
            here.load._calm.set()
