"""How long until a process on Kafka is at work again: a scheduler's first decision, and a worker of the stream processor after `kill -9`?

The ledger has 1,000,000 records that a worker has folded, with the snapshots that it wrote; `behind` is how many records of `claims` stand
after them. Requests wait when the scheduler starts: timed is from its start until the first of them has a result (aim: below 5 s). Then
workers are killed, caught up as they are: one that is started again with its directory, and one whose partitions another takes over.
Timed is from the kill until a record appended right after it has its verdict, in every partition. Run
`python -m benchmarks.bench_start_kafka [--json] [--records N] [--nodes N] [--partitions N] [--engine NAME] [--folder DIR]`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from benchmarks.bench_end_to_end import message, request
from benchmarks.bench_processor_kafka import published
from benchmarks.on_kafka import History, Process, a_broker, history, resident_mib
from benchmarks.report import Report, arguments, positive, seconds
from projections.snapshots import newest_offset
from schemas.claims import ClaimReleased
from schemas.codec import decode, encode
from schemas.results import InstancesPlaced
from schemas.topics import CLAIMS, REQUESTS, RESULTS, VERDICTS
from streams.log.base import Message, Partition
from streams.log.kafka import KafkaLog

REQUESTS_WAITING = 20
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 120.0


def main() -> None:
    asked = arguments(__doc__ or "", add)
    said = {"records": asked.records, "nodes": asked.nodes, "partitions": asked.partitions}
    with Report("start_kafka", as_json=asked.json) as report, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=asked.folder)))
        bootstrap, _ = stack.enter_context(a_broker(folder / "broker"))
        ledger = history(bootstrap, "bench-start", **said)
        with KafkaLog.open(ledger.settings) as log:
            with worker(folder, ledger, "first"):
                wait_until(lambda: published(log), patience_seconds=asked.records / 1000 + PATIENCE_SECONDS)
            first_decision(report, folder, ledger, log, asked.engine, said)
            recovery(report, folder, ledger, log, said)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=1_000_000)
    parser.add_argument("--nodes", type=positive, default=1_000)
    parser.add_argument("--partitions", type=positive, default=4)
    parser.add_argument("--engine", default="profiles")
    parser.add_argument("--folder", default=None)


def worker(folder: Path, ledger: History, name: str) -> Process:
    """A worker with a directory of its own."""
    flags = ("--log", ledger.address, "--only", "processor", "--state", str(folder / name), "--audit-interval", "36000")
    return Process(folder / f"{name}.said", "run", *flags)


def first_decision(report: Report, folder: Path, ledger: History, log: KafkaLog, engine: str, said: dict[str, int]) -> None:
    """A scheduler that starts while requests wait."""
    log.append([message(REQUESTS, request(f"waiting-{number}", number)) for number in range(REQUESTS_WAITING)])
    behind = sum(end - newest_offset(log, number) for number, end in log.ends(CLAIMS).items())
    flags = ("--log", ledger.address, "--only", "scheduler", "--engine", engine)
    with Process(folder / "scheduler.said", "run", *flags) as scheduler:
        wait_until(lambda: any(log.ends(RESULTS).values()), scheduler)
        report.add("scheduler, start to first decision", time.perf_counter() - scheduler.began, "s", **said, behind=behind, engine=engine)
        wait_until(lambda: placed(log) >= REQUESTS_WAITING, scheduler)
        report.add("scheduler, resident", resident_mib(scheduler.pid), "MiB", **said, engine=engine)


def placed(log: KafkaLog) -> int:
    """How many instances are placed."""
    records = [record for number in log.ends(RESULTS) for record in log.read(RESULTS, number, 0)]
    return sum(isinstance(decode(RESULTS, record.value), InstancesPlaced) for record in records)


def recovery(report: Report, folder: Path, ledger: History, log: KafkaLog, said: dict[str, int]) -> None:
    """Workers that are killed."""
    probe = Probe(log, ledger)
    with worker(folder, ledger, "first") as started:
        probe.answered(started)
        report.add("worker, start to first verdicts", time.perf_counter() - started.began, "s", **said)
        report.add("worker, resident", resident_mib(started.pid), "MiB", **said)
        started.kill()
        killed = time.perf_counter()
        with worker(folder, ledger, "first") as again:
            probe.answered(again)
            report.add("worker, kill -9 and start again", time.perf_counter() - killed, "s", **said)
            with worker(folder, ledger, "second") as other:
                other.wait_for_words("partitions ")
                wait_until(lambda: len(again.said.read_text().split("partitions ")) > 3, again)
                probe.answered(other)
                again.kill()
                report.add("worker, kill -9 and take-over by another", seconds(lambda: probe.answered(other)), "s", **said)


class Probe:
    """Appends to each partition a record that has a verdict, and waits for it."""

    def __init__(self, log: KafkaLog, ledger: History) -> None:
        self._log, self._numbers = log, count()
        self._partitions = log.topics()[CLAIMS]

    def answered(self, process: Process) -> None:
        """Ask each partition, and wait until each has answered."""
        ends = {Partition(VERDICTS, number): end for number, end in self._log.ends(VERDICTS).items()}
        asked = {number: f"probe-{next(self._numbers)}" for number in range(self._partitions)}
        self._log.append([self._release(number, name) for number, name in asked.items()])
        until = time.perf_counter() + PATIENCE_SECONDS
        while asked:
            process.runs()
            assert time.perf_counter() < until, f"no verdict in partitions {sorted(asked)}"
            self._log.wait(ends, 0.2)
            for place, offset in list(ends.items()):
                for record in self._log.read(place.topic, place.number, offset):
                    ends[place] = record.offset + 1
                    if asked.get(place.number) == getattr(decode(VERDICTS, record.value), "claim_id", None):
                        del asked[place.number]

    def _release(self, partition: int, name: str) -> Message:
        """A release of a claim that nobody holds: its verdict is `not-held`."""
        node_id = next(name for name in map("node-{:06d}".format, count()) if self._log.partition(CLAIMS, name.encode()) == partition)
        event = ClaimReleased(node_id=node_id, record_id=f"release-{name}", claim_id=name, reason="operator")
        return Message(CLAIMS, node_id.encode(), encode(event), (), partition)


def wait_until(done: Callable[[], bool], process: Process | None = None, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Raises AssertionError if it is not done in time, or if the process that should do it ends."""
    until = time.perf_counter() + patience_seconds
    while not done():
        if process is not None:
            process.runs()
        assert time.perf_counter() < until, "not done in time"
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
