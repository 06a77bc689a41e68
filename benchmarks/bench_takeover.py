"""How long until a scheduler owns its partitions of requests on a log where many were answered long ago, and what does it keep of them?

`every result`: a log without `answered-requests`, as earlier versions made it; each result is read, with its evidence. `filed away`: the
same after a scheduler has said there which requests are answered. Both are processes of their own on one embedded log, and time is that
of the processor, from opening the log until all partitions are owned; `kept` is what that left resident. The ledger is small, so it is
results that count; `bench_start` has the ledger. Run `python -m benchmarks.bench_takeover [--answered N] [--folder DIR] [--json]`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks.bench_end_to_end import CLAIMS_PARTITIONS, REQUEST_PARTITIONS, message, observed, request
from benchmarks.bench_memory import resident
from benchmarks.report import Report, arguments, positive
from schemas.partitioner import partition_of
from schemas.topics import ANSWERED, CLAIMS, REQUESTS, RESULTS
from streams.clock import boot_clock_ms, wall_clock_ms
from streams.log.base import Message, Record, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.scheduler import COMMIT_EVERY_MS, Clocks, Scheduler

NODES = 500
EXAMPLES = 64
BATCH = 5_000
AGO_MS = 3_600_000
NOW = tuple(f"now-{number}" for number in range(EXAMPLES))
"""Requests of today: enough that each partition has one, since what is old is old beside the newest result of its partition."""


def main() -> None:
    asked = arguments(__doc__ or "", add)
    if asked.measure:
        measure(asked.measure)
        return
    with Report("takeover", as_json=asked.json) as report, tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / "log.db"
        size = write(path, asked.answered)
        said = {"answered": asked.answered, "bytes": round(size)}
        for subject in ("every result", "filed away"):
            if subject == "filed away":
                file_away(path)
            command = [sys.executable, "-m", "benchmarks.bench_takeover", "--measure", str(path)]
            ran = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
            used_seconds, kept_mib, answered = map(float, ran.stdout.split())
            assert answered == asked.answered, f"{answered:.0f} requests are known to be answered"
            report.add(f"{subject}, processor time", used_seconds, "s", **said)
            report.add(f"{subject}, kept", kept_mib, "MiB", **said)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answered", type=positive, default=1_000_000)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)


def write(path: Path, answered: int) -> float:
    """A log of an hour ago with so many placements, alike but for the request; returns the bytes of a result."""
    topics = (TopicSpec(CLAIMS, CLAIMS_PARTITIONS), TopicSpec(REQUESTS, REQUEST_PARTITIONS), TopicSpec(RESULTS, REQUEST_PARTITIONS))
    with SqliteLog.open(path, create=True, clock=lambda: wall_clock_ms() - AGO_MS) as log:
        log.create(topics)
        log.append([message(CLAIMS, observed(number)) for number in range(NODES)])
        log.append([message(REQUESTS, request(f"example-{number:027}", number)) for number in range(EXAMPLES)])
        scheduler = Scheduler(log, "examples")
        while scheduler.placer.counters.placed < EXAMPLES:
            scheduler.turn()
        scheduler.close()
        examples = [record for number in range(REQUEST_PARTITIONS) for record in log.read(RESULTS, number, 0) if b"example-" in record.key]
        made = copies(examples)
        left = answered - EXAMPLES
        while left > 0:
            log.append(list(islice(made, min(BATCH, left))))
            left -= BATCH
        return sum(len(record.value) for record in examples) / len(examples)


def copies(examples: list[Record]) -> Iterator[Message]:
    """Results like these, of other requests."""
    number = 0
    while True:
        for example in examples:
            number += 1
            key = b"request-%027d" % number
            yield Message(RESULTS, key, example.value.replace(example.key, key), example.headers, partition_of(key, REQUEST_PARTITIONS))


def file_away(path: Path) -> None:
    """What a scheduler does as it goes on: one that starts has nothing to do but that."""
    with SqliteLog.open(path) as log:
        log.create([TopicSpec(ANSWERED, REQUEST_PARTITIONS)])
        log.append([message(REQUESTS, request(name, 1)) for name in NOW])
        ahead_ms = 0
        scheduler = Scheduler(log, "files away", clocks=Clocks(boot_ms=lambda: boot_clock_ms() + ahead_ms))
        kept = -1
        while kept != (left := sum(len(desk.placements.answers) for desk in scheduler.placer.desks.values())) or kept > len(NOW):
            kept = left
            for _ in range(4):
                scheduler.turn()
            ahead_ms += COMMIT_EVERY_MS
        scheduler.close()


def measure(path: Path) -> None:
    """In the child: seconds of the processor, MiB, and how many requests are known to be answered."""
    with SqliteLog.open(path) as log:
        before, used = resident("VmRSS"), time.process_time()
        scheduler = Scheduler(log, "takes over")
        while len(scheduler.partitions) < REQUEST_PARTITIONS:
            scheduler.turn()
        used = time.process_time() - used
        known = [desk.placements for desk in scheduler.placer.desks.values()]
        answered = sum(len(each.answers) + len(each.filed) for each in known) - sum(
            each.is_answered(name) for each in known for name in NOW
        )
        print(used, resident("VmRSS") - before, answered)
        scheduler.close()


if __name__ == "__main__":
    main()
