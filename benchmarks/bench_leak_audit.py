"""How long does `claimlog leaks` take over a log of so many records, as a whole process, from its start to its answer?

A million of them by default, which takes two minutes with the making of the log; `--records 10000000` (`make bench-large`) takes a
quarter of an hour and 6 GB of disk.

The log is made once, by `claimlog produce load --history`, and not timed: of 20 records one is an audit (a tenth of them in full, with 20
domains), three are life-cycle events, and sixteen stand in `claims`. With `--folder` it is kept there and found again. No snapshot is in
it, so every record of `claims` is folded; the observations are carried, so nothing is read of their own topics. Beside the time passed
stands processor time, which others on the same cores disturb less. With `--snapshots` a copy of the log gets one of each partition, as the
stream processor leaves them behind every 10,000 records, and the audit begins there: what an operator waits for on a log that is followed.
The answer is checked each time: it names the leaks of the history and no others.
Run `python -m benchmarks.bench_leak_audit [--json] [--records N] [--nodes N] [--jobs N] [--folder DIR] [--snapshots]`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.on_kafka import PROGRAM, ROOT, resident_mib
from benchmarks.report import Report, arguments, positive
from producers.history_load import leak_id, leaks_about
from schemas.topics import CLAIMS
from streams.log.sqlite import SqliteLog

FINDINGS_CODE = 3
LOOK_SECONDS = 0.05
RECORDS_PER_NODE = 10_000
"""1,000 nodes in a history of 10,000,000: so a shorter one is a part of the same."""


class Ran(NamedTuple):
    """One process and those it began: what it said, and what it took."""

    said: str
    seconds: float
    cpu_seconds: float
    resident_mib: float


def main() -> None:
    asked = arguments(__doc__ or "", add)
    nodes = asked.nodes or max(1, asked.records // RECORDS_PER_NODE)
    with tempfile.TemporaryDirectory() as passing, Report("leak_audit", as_json=asked.json) as report:
        path = Path(asked.folder or passing) / f"history-{asked.records}-{nodes}.db"
        make(path, records=asked.records, nodes=nodes)
        with SqliteLog.open(path) as log:
            folded = sum(log.ends(CLAIMS).values())
        said = {"records": asked.records, "nodes": nodes, "folded": folded, "load_average": round(os.getloadavg()[0], 1)}
        for jobs in asked.jobs or (1, 2):
            ran = run("leaks", "--log", f"sqlite:{path}", "--jobs", str(jobs), "-o", "json")
            check(ran.said, asked.records)
            report.add("leaks", ran.seconds, "s", **said, jobs=jobs)
            report.add("leaks", asked.records / ran.seconds, "records/s", **said, jobs=jobs)
            report.add("leaks, processor time of a million", ran.cpu_seconds / asked.records * 1e6, "s", **said, jobs=jobs, clock="cpu")
            report.add("leaks, most resident in all processes", ran.resident_mib, "MiB", **said, jobs=jobs)
        if asked.snapshots:
            followed = Path(shutil.copy(path, Path(passing) / "followed.db"))
            run("snapshot", "write", "--log", f"sqlite:{followed}", expected=0)
            ran = run("leaks", "--log", f"sqlite:{followed}", "-o", "json")
            check(ran.said, asked.records)
            report.add("leaks, from snapshots at the end of the log", ran.seconds, "s", **said)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=1_000_000)
    parser.add_argument("--nodes", type=positive, default=None, help="default: one for 10,000 records")
    parser.add_argument("--jobs", type=positive, action="append", help="repeatable; default: 1 and 2")
    parser.add_argument("--folder", default=None, help="keep the log there, and take one that is there")
    parser.add_argument("--snapshots", action="store_true", help="also from snapshots, on a copy of the log")


def make(path: Path, *, records: int, nodes: int) -> None:
    """Make the log if it is not there; one that was interrupted is made anew."""
    if path.exists():
        return
    partial = path.with_suffix(".partial")
    for left in partial.parent.glob(f"{partial.name}*"):
        left.unlink()
    flags = ("produce", "load", "--history", str(records), "--nodes", str(nodes), "--seed", "1", "--log", f"sqlite:{partial}")
    subprocess.run([sys.executable, "-c", PROGRAM, *flags], cwd=ROOT, check=True)
    partial.rename(path)


def run(*flags: str, expected: int = FINDINGS_CODE) -> Ran:
    """Run the command line to its end, and look now and then at the memory of all its processes."""
    before, began = os.times(), time.perf_counter()
    with tempfile.TemporaryFile() as out, subprocess.Popen([sys.executable, "-c", PROGRAM, *flags], cwd=ROOT, stdout=out) as process:
        most = 0.0
        while process.poll() is None:
            most = max(most, sum(map(resident_now_mib, [process.pid, *children(process.pid)])))
            time.sleep(LOOK_SECONDS)
        took = time.perf_counter() - began
        assert process.returncode == expected, f"{flags[0]} ended with {process.returncode}, expected {expected}"
        out.seek(0)
        said = out.read().decode()
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Ran(said, took, cpu, most)


def children(pid: int) -> list[int]:
    """The processes that a process began; none once it has ended."""
    try:
        return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def resident_now_mib(pid: int) -> float:
    """What a process has resident; nothing once it has ended."""
    try:
        return resident_mib(pid)
    except (OSError, StopIteration):
        return 0.0


def check(said: str, records: int) -> None:
    """The answer names the leaks that were put there, each once, and nothing else."""
    found = sorted(item["instance_id"] for item in json.loads(said)["items"])
    assert found == [leak_id(number) for number in range(len(found))], f"findings that are no leaks of the history: {found}"
    about = leaks_about(records)
    assert abs(len(found) - about) <= 1 + records // 1_000_000, f"{len(found)} leaks found, about {about} expected"


if __name__ == "__main__":
    main()
