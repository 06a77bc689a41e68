"""Placement through Kafka, from request topic to result topic: how many a second, how long does one take, and in how much memory?

Every process is the product's own: `claimlog run --only scheduler`, and beside it, where the parameters say so, the stream processor,
`claimlog run --only processor`. The broker runs on the same cores, one of our own or the one of KAFKA_BOOTSTRAP. Throughput: the requests
are appended as fast as they go; time runs from the first append until as many results stand in the log. Latency: requests are sent at the
rate whatever happens, and each is timed from the moment it was to be sent until its result has been read. The client is librdkafka itself,
as any program's may be: it takes half the processor time of a `KafkaLog`, on the cores of those that are measured. If it comes late all the
same, the figures have it (`late`: the share sent more than 1 ms after their moment). The processor time that each process took for a
request, the client (this one) included, is shown beside, since others may share the cores. A broker of our own is warmed up first, as one
that stays is, and each rate is kept up for five seconds before it is measured. Each percentile is the median of that of several runs, each
on a ledger of its own, as a run may fall into a moment in which the machine is slow.

Run `python -m benchmarks.bench_placement_kafka [--json] [--nodes N] [--requests N] [--rates N,N] [--seconds N] [--runs N]
[--schedulers N] [--engines NAME,NAME]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.bench_end_to_end import message, observed, request
from benchmarks.on_kafka import PROGRAM, a_broker, processor_seconds, resident_mib
from benchmarks.report import Report, arguments, duration_seconds, medians, percentiles, positive, positives
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams import collector
from streams.ledger_topics import open_ledger
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings, parse_settings
from streams.scheduler import GROUP

ENGINES = "reference,first-fit,profiles"
_CLIENT: dict[str, Any] = {"socket.nagle.disable": True, "log_level": 2}
# As docs/operations.md advises for a fleet of up to some thousand nodes, and more than the schedulers there are.
LEDGER_PARTITIONS, REQUEST_PARTITIONS = 4, 4
BATCH = 500
WARM_UP = 200
# What a broker that has just started is asked before anything is measured, at once and at each rate: its compilers work on each way for
# long. By an engine that keeps up, on a fleet that does not fill: whoever falls behind asks in large batches, which is another way.
# Its compilers are at rest after some 30,000 at once: until then they take more processor time than all else it does.
BROKER_WARM_UP, BROKER_WARM_UP_SECONDS, BROKER_WARM_UP_NODES = 40_000, {200: 10.0, 1_000: 60.0}, 2_000
# A rate is kept up for so long before it is measured: for the first seconds on new topics a broker takes a fifth more processor time.
SETTLING_SECONDS = 5.0
PERCENTILES = {"p50": 0.5, "p99": 0.99}
PATIENCE_SECONDS = 120.0
_numbers = count()
"""Of the stages, each of which has a ledger of its own."""
LATE_SECONDS = 0.001
# How often the ends of the results are looked at while throughput is measured: rarely enough to cost the processes measured nothing.
LOOK_SECONDS = 0.02


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("placement_kafka", as_json=asked.json) as report, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=asked.folder)))
        bootstrap, broker = stack.enter_context(a_broker(folder / "broker"))
        if broker is not None:
            warm_up(bootstrap, folder)
        for engine in asked.engines.split(","):
            latencies(report, bootstrap, folder, engine, broker, asked)
            for schedulers, processor in dict.fromkeys([(1, False), (1, True), (asked.schedulers, False), (asked.schedulers, True)]):
                with Stage(bootstrap, folder, engine, asked.nodes, broker, processor=processor, schedulers=schedulers) as stage:
                    throughput(report, stage, asked.requests, asked.nodes)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, default=500)
    parser.add_argument("--requests", type=positive, default=6_000)
    parser.add_argument("--rates", type=positives, default="1000,200")
    parser.add_argument("--schedulers", type=positive, default=1, help="so many at most share the requests of a throughput")
    parser.add_argument("--seconds", type=duration_seconds, default=10.0)
    parser.add_argument("--runs", type=positive, default=3, help="so many runs of each rate; the figures are the medians of theirs")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--folder", default=None)


class Stage:
    """A new ledger with `nodes` hypervisors, and the processes at work on it."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        engine: str,
        nodes: int,
        broker: int | None,
        *,
        processor: bool = False,
        schedulers: int = 1,
    ) -> None:
        prefix = f"bench-{os.getpid()}-{next(_numbers)}"
        self.settings: KafkaSettings = parse_settings(f"kafka://{bootstrap}/{prefix}?single-broker", {})
        self.engine, self.schedulers, self.beside = engine, schedulers, "processor" if processor else "nothing"
        self.log = KafkaLog.open(self.settings)
        self.asked = 0
        self._folder, self._nodes, self._broker = folder, nodes, broker
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        open_ledger(self.log, ledger_partitions=LEDGER_PARTITIONS, request_partitions=REQUEST_PARTITIONS)
        self.log.append([message(CLAIMS, observed(number)) for number in range(self._nodes)])
        if self.beside == "processor":
            self._start("processor", "processor", "--state", str(self._folder / self.settings.prefix))
        for number in range(1, self.schedulers + 1):
            self._start("scheduler", f"scheduler {number}" if number > 1 else "scheduler", "--engine", self.engine)
        self.answer(self.names(WARM_UP))
        admin, began = AdminClient({"bootstrap.servers": self.settings.bootstrap}), time.perf_counter()
        while self._sharing(admin) < self.schedulers:
            self.all_run()
            assert time.perf_counter() - began < PATIENCE_SECONDS, f"{self.schedulers} schedulers do not share the requests"
            time.sleep(0.1)
        if self.schedulers > 1:  # Each has something to do now.
            self.answer(self.names(WARM_UP))
        return self

    def _sharing(self, admin: AdminClient) -> int:
        """How many schedulers have partitions of requests, once nobody is about to let go of one."""
        group = self.settings.group(f"{GROUP}.{REQUESTS}.lease")
        found = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
        return sum(bool(member.assignment.topic_partitions) for member in found.members) if found.state.name == "STABLE" else 0

    def _start(self, role: str, name: str, *flags: str) -> None:
        address = f"{self.settings.place}?single-broker"
        command = [sys.executable, "-c", PROGRAM, "run", "--only", role, "--log", address, "--name", name, *flags]
        with (self._folder / f"{self.settings.prefix}-{name}.err").open("wb") as said:
            self._processes[name] = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=said, stderr=said)

    def names(self, count: int) -> list[str]:
        """Ids of so many new requests."""
        self.asked += count
        return [f"{self.settings.prefix}-{number}" for number in range(self.asked - count, self.asked)]

    def answer(self, names: list[str]) -> float:
        """Ask for all at once; how many seconds until as many results stand in the log."""
        before = sum(self.log.ends(RESULTS).values())
        started = time.perf_counter()
        for first in range(0, len(names), BATCH):
            self.log.append([message(REQUESTS, request(name, number)) for number, name in enumerate(names[first : first + BATCH])])
        while sum(self.log.ends(RESULTS).values()) < before + len(names):
            self.all_run()
            assert time.perf_counter() - started < PATIENCE_SECONDS, f"not all of {len(names)} requests were answered in time"
            time.sleep(LOOK_SECONDS)
        return time.perf_counter() - started

    def all_run(self) -> None:
        """Raises AssertionError with what it said if a process ended."""
        for role, process in self._processes.items():
            if process.poll() is not None:
                raise AssertionError(f"{role} ended: {(self._folder / f'{self.settings.prefix}-{role}.err').read_text()[-2000:]}")

    def _pids(self) -> dict[str, int]:
        pids = {role: process.pid for role, process in self._processes.items()}
        return pids if self._broker is None else pids | {"broker": self._broker}

    def memory_mib(self) -> dict[str, float]:
        """What each process has resident."""
        return {role: resident_mib(pid) for role, pid in self._pids().items()}

    def used_seconds(self) -> dict[str, float]:
        """The processor time that each process has taken, this one as the client."""
        return {role: processor_seconds(pid) for role, pid in self._pids().items()} | {"client": time.process_time()}

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()
        self.log.close()


def warm_up(bootstrap: str, folder: Path) -> None:
    """Let the broker do for a while what it is asked afterwards."""
    with Stage(bootstrap, folder, "profiles", BROKER_WARM_UP_NODES, None) as stage:
        stage.answer(stage.names(BROKER_WARM_UP))
        for rate, seconds in BROKER_WARM_UP_SECONDS.items():
            answered(stage, rate, seconds)


def throughput(report: Report, stage: Stage, requests: int, nodes: int) -> None:
    before = stage.used_seconds()
    took_seconds = stage.answer(stage.names(requests))
    said = {"nodes": nodes, "schedulers": stage.schedulers, "beside": stage.beside}
    report.add(stage.engine, requests / took_seconds, "requests/s", requests=requests, **said)
    for role, used_us in used(stage, before, requests).items():
        report.add(f"{stage.engine}, {role}", used_us, "us/request", **said)
    for role, resident in stage.memory_mib().items():
        report.add(f"{stage.engine}, resident {role}", resident, "MiB", **said)


def used(stage: Stage, before: Mapping[str, float], requests: int) -> dict[str, float]:
    """The microseconds of processor time that each process has taken for a request since `before`."""
    return {f"processor time {role}": (seconds - before[role]) / requests * 1e6 for role, seconds in stage.used_seconds().items()}


def latencies(report: Report, bootstrap: str, folder: Path, engine: str, broker: int | None, asked: argparse.Namespace) -> None:
    """The medians of the runs of each rate; a run goes through all rates on a ledger of its own."""
    found: dict[int, list[dict[str, float]]] = {rate: [] for rate in asked.rates}
    for _ in range(asked.runs):
        with Stage(bootstrap, folder, engine, asked.nodes, broker) as stage:
            for rate, runs in found.items():
                runs.append(latency(stage, rate, asked.seconds))
    for rate, runs in found.items():
        figures = medians(runs)
        said = {"nodes": asked.nodes, "rate": rate, "runs": asked.runs, "beside": "nothing"}
        late = f"{figures.pop('late'):.1%}"
        for name in PERCENTILES:
            report.add(f"{engine} {name}", figures.pop(name), "ms", late=late, **said)
        for role, used_us in figures.items():
            report.add(f"{engine}, {role}", used_us, "us/request", **said)


def latency(stage: Stage, rate: int, seconds: float) -> dict[str, float]:
    """One run: ms at each percentile, the share of requests that were sent late, and what each process took."""
    answered(stage, rate, SETTLING_SECONDS)
    collector.settle()  # The client is this process: what it measured before is nothing to walk while it waits for an answer.
    before = stage.used_seconds()
    samples, delays = answered(stage, rate, seconds)
    late = sum(delay > LATE_SECONDS for delay in delays) / len(delays)
    return percentiles(samples, PERCENTILES) | {"late": late} | used(stage, before, len(samples))


def answered(stage: Stage, rate: int, seconds: float) -> tuple[list[float], list[float]]:
    """Ask at the rate for so long: ms until each result was read, and by how many seconds each request was sent late."""
    settings = stage.settings
    consumer = Consumer(_CLIENT | {"bootstrap.servers": settings.bootstrap, "group.id": "bench", "enable.auto.commit": False})
    try:
        ends = stage.log.ends(RESULTS).items()
        consumer.assign([TopicPartition(settings.topic(RESULTS), number, end) for number, end in ends])
        consumer.poll(1.0)  # Connects.
        load = Load(settings, stage.names(round(rate * seconds)), rate)
        load.start()
        samples = list(answers(consumer, load, stage))
        load.join()
    finally:
        consumer.close()
    return samples, load.delays


class Load(threading.Thread):
    """Sends requests at a rate, whatever becomes of them. `due` is when each was to be sent, `delays` by how many seconds it came later."""

    def __init__(self, settings: KafkaSettings, names: list[str], rate: int) -> None:
        super().__init__(name="load", daemon=True)
        self.names = names
        self._settings, self._rate = settings, rate
        self.due: dict[bytes, float] = {}
        self.delays: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._send()
        except BaseException as failure:
            self.failure = failure
            raise

    def _send(self) -> None:
        config = _CLIENT | {"partitioner": "murmur2", "enable.idempotence": True, "linger.ms": 0}
        producer, topic = Producer(config | {"bootstrap.servers": self._settings.bootstrap}), self._settings.topic(REQUESTS)
        ready = [message(REQUESTS, request(name, number)) for number, name in enumerate(self.names)]
        # A client that stays has got its producer's id, which takes half a second; nobody counts this one.
        before = message(REQUESTS, request(f"{self.names[0]}-before", 0))
        producer.produce(topic, before.value, before.key)
        producer.flush(PATIENCE_SECONDS)
        started, sent = time.perf_counter(), 0
        self.due |= {each.key: started + number / self._rate for number, each in enumerate(ready)}
        while sent < len(ready):
            now = time.perf_counter()
            until = min(int((now - started) * self._rate) + 1, len(ready))
            if until == sent:
                time.sleep(started + sent / self._rate - now)
                continue
            for each in ready[sent:until]:
                self.delays.append(now - self.due[each.key])
                producer.produce(topic, each.value, each.key, on_delivery=self._delivered)
            producer.poll(0)
            sent = until
        assert producer.flush(PATIENCE_SECONDS) == 0, "the broker does not take the requests in time"

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.failure = AssertionError(f"a request was not taken: {error}")


def answers(consumer: Consumer, load: Load, stage: Stage) -> Iterator[float]:
    """Reads the results as they come: ms from the moment a request was to be sent, for each of the load."""
    seen, heard, wanted = set[bytes](), time.perf_counter(), len(load.names)
    while len(seen) < wanted:
        found = consumer.poll(1.0)
        if found is None:
            stage.all_run()
            assert time.perf_counter() - heard < PATIENCE_SECONDS, f"{wanted - len(seen)} requests have no result"
            continue
        assert load.failure is None, f"the load failed: {load.failure}"
        assert found.error() is None, f"the results cannot be read: {found.error()}"
        heard, key = time.perf_counter(), found.key()
        if isinstance(key, bytes) and key in load.due and key not in seen:
            seen.add(key)
            yield (heard - load.due[key]) * 1000


if __name__ == "__main__":
    main()
