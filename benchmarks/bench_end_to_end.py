"""How many requests become results in a second on the embedded log, and how long does one take at a steady rate?

Subjects are the plain scan (`reference`), what schedulers use on such a fleet (`profiles`), and `first-fit`, which weighs nothing and so
shows what the log and the bookkeeping can do. Every result carries its evidence. What a client appends is on disk when it goes on, and what
it reads is on disk when it is read (docs/decisions/0015). Throughput: requests wait in the log, one scheduler process answers them; the
processor time of each request is shown beside, since others may share the cores. Latency: this process is the client, it appends at a
steady rate and sees the results come; the scheduler is a process of its own. Each percentile is the median of that of several runs, each on
a log of its own, as a run may fall into a moment in which the machine is slow.

Run `python -m benchmarks.bench_end_to_end [--json] [--nodes N] [--requests N] [--rates N,N] [--seconds N] [--runs N] [--engines NAME,…]`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.report import Report, arguments, duration_seconds, medians, percentiles, positive, positives
from schemas.claims import NodeObserved
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams import collector
from streams.log.base import Message, Partition, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.scheduler import Scheduler

ENGINES = "reference,profiles,first-fit"
CLAIMS_PARTITIONS, REQUEST_PARTITIONS = 8, 4
BATCH = 500


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("end_to_end", as_json=asked.json) as report, tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        engines = asked.engines.split(",")
        for engine in engines:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                throughput(report, Path(own) / "log.db", engine, asked.nodes, asked.requests)
        for rate in asked.rates:
            for engine in engines:
                latency(report, Path(folder), engine, asked.nodes, rate, asked.seconds, asked.runs)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, default=500)
    parser.add_argument("--requests", type=positive, default=6_000)
    parser.add_argument("--rates", type=positives, default="200,1000")
    parser.add_argument("--seconds", type=duration_seconds, default=10.0)
    parser.add_argument("--runs", type=positive, default=3)
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--folder", default=None)


def fleet(path: Path, nodes: int) -> SqliteLog:
    """A new log with `nodes` hypervisors of a few sizes on it."""
    log = SqliteLog.open(path, create=True)
    log.create([TopicSpec(CLAIMS, CLAIMS_PARTITIONS), TopicSpec(REQUESTS, REQUEST_PARTITIONS), TopicSpec(RESULTS, REQUEST_PARTITIONS)])
    log.append([message(CLAIMS, observed(number)) for number in range(nodes)])
    return log


def observed(number: int) -> NodeObserved:
    has = Hypervisor(vcpus=64 + 32 * (number % 3), memory_mib=(256 + 128 * (number % 4)) * 1024, disk_mib=8_000_000)
    return NodeObserved(
        node_id=f"hv-{number:05}", producer=f"audits {number}", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, hypervisor=has, instances=()
    )


def request(name: str, number: int) -> PlacementRequested:
    size = 1 + number % 4
    return PlacementRequested(request_id=name, flavor=Flavor(vcpus=size, memory_mib=2048 * size, root_gib=20))


def message(topic: str, record: NodeObserved | PlacementRequested) -> Message:
    return Message(topic, key_of(record) or b"", encode(record))


def throughput(report: Report, path: Path, engine: str, nodes: int, requests: int) -> None:
    """The time from the first turn to the last result read back."""
    with fleet(path, nodes) as log:
        for first in range(0, requests, BATCH):
            log.append([message(REQUESTS, request(f"r{number}", number)) for number in range(first, min(first + BATCH, requests))])
        scheduler = Scheduler(log, "bench", engine_name=engine)
        counters, started, used = scheduler.placer.counters, time.perf_counter(), time.process_time()
        while counters.placed + sum(counters.failed.values()) < requests:
            scheduler.turn()
        taken_seconds, used_seconds = time.perf_counter() - started, time.process_time() - used
        scheduler.close()
    assert counters.placed == requests, f"expected all {requests} placed, failed: {counters.failed}"
    report.add(engine, requests / taken_seconds, "requests/s", nodes=nodes, requests=requests, instances=1)
    report.add(f"{engine}, processor time", used_seconds / requests * 1e6, "us/request", nodes=nodes, requests=requests, instances=1)


def latency(report: Report, folder: Path, engine: str, nodes: int, rate: int, seconds: float, runs: int) -> None:
    """What a client sees from before its append to the moment it has read the result."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir=folder) as own:  # Gone afterwards: the disk is not to write it back under the next run.
            samples = answered(Path(own) / "log.db", engine, nodes, rate, seconds)
        found.append(percentiles(samples, {"p50": 0.5, "p99": 0.99}))
    for name, value in medians(found).items():
        report.add(f"{engine} {name}", value, "ms", nodes=nodes, rate=rate, runs=runs)


def answered(path: Path, engine: str, nodes: int, rate: int, seconds: float) -> list[float]:
    """The ms that each request took, on a new log with a new scheduler."""
    with fleet(path, nodes) as log:
        context = multiprocessing.get_context("spawn")
        ready, stop = context.Event(), context.Event()
        server = context.Process(target=serve, args=(path, engine, ready, stop))
        server.start()
        try:
            assert ready.wait(60), "the scheduler process did not come up within a minute"
            collector.settle()  # What this process measured before is nothing to walk while it waits for an answer.
            return list(paced(log, rate, int(rate * seconds)))
        finally:
            stop.set()
            server.join()


def paced(log: SqliteLog, rate: int, requests: int) -> Iterator[float]:
    """Append at the rate whatever happens, and read results between; yields ms for each request answered."""
    sent: dict[bytes, float] = {}
    positions = {Partition(RESULTS, number): end for number, end in log.ends(RESULTS).items()}
    started, answered, number = time.perf_counter(), 0, 0
    while answered < requests:
        due = started + number / rate
        if number < requests and time.perf_counter() >= due:
            asked = request(f"paced-{number}", number)
            sent[asked.request_id.encode()] = time.perf_counter()
            log.append([message(REQUESTS, asked)])
            number += 1
        else:
            log.wait(positions, max(due - time.perf_counter(), 0.0) if number < requests else 1.0)
        for place in log.news(positions):
            for record in log.read(place.topic, place.number, positions[place]):
                positions[place] = record.offset + 1
                if record.key in sent:
                    answered += 1
                    yield (time.perf_counter() - sent.pop(record.key)) * 1000


def serve(path: Path, engine: str, ready: Event, stop: Event) -> None:
    """The scheduler's process."""
    with SqliteLog.open(path) as log:
        scheduler = Scheduler(log, "bench", engine_name=engine)
        while scheduler.turn():
            pass
        collector.settle()  # As `claimlog run` does.
        ready.set()
        while not stop.is_set():
            scheduler.turn(0.1)
        scheduler.close()


if __name__ == "__main__":
    main()
