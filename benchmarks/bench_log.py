"""How fast is the embedded log beside bare SQLite in the same run? Batches, single synced commits, reads, waking, idling.

Bare SQLite here: apsw, one table, the same durability (WAL, synchronous=FULL), rows of the same key and value, tuples instead of
checked records. Run `python -m benchmarks.bench_log [--json] [--records N] [--folder DIR]`; the folder decides which disk is measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import apsw

from benchmarks.report import Report, arguments, duration_seconds, percentiles, positive, seconds
from streams.log.base import Message, Partition, TopicSpec
from streams.log.sqlite import SqliteLog

BATCH = 1000
TURNS = 101
VALUE = b'{"type":"claim-requested","claim_id":"7f3a/0/17.42","node_id":"hv-0042","instance_id":"%s"}' % (b"x" * 110)
HEADERS = (("ce_id", b"7f3a/0/17.42"), ("ce_type", b"claim-requested"), ("ce_source", b"scheduler/1"))


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("log", as_json=asked.json) as report, tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        bare(report, Path(folder) / "bare.db", asked.records, asked.singles)
        ours(report, Path(folder) / "log.db", asked.records, asked.singles)
        turn_by_turn(report, Path(folder))
        writers_at_once(report, Path(folder) / "log.db", asked.singles)
        waking(report, Path(folder) / "log.db")
        idling(report, Path(folder) / "log.db", asked.idle_seconds)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=300_000)
    parser.add_argument("--singles", type=positive, default=3_000)
    parser.add_argument("--idle-seconds", type=duration_seconds, default=5.0)
    parser.add_argument("--folder", default=None)


def bare(report: Report, path: Path, records: int, singles: int) -> None:
    db = apsw.Connection(str(path))
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4096"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, time_ms INTEGER, key BLOB, value BLOB)")

    def put(first: int, count: int) -> None:
        rows = [(first + at, 1_700_000_000_000, b"hv-0042", VALUE) for at in range(count)]
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
        db.execute("COMMIT")

    def get() -> None:
        for first in range(0, records, BATCH):
            assert len(db.execute("SELECT * FROM records WHERE id >= ? ORDER BY id LIMIT ?", (first, BATCH)).fetchall()) == BATCH

    took = seconds(lambda: each(range(0, records, BATCH), lambda first: put(first, BATCH)))
    report.add("bare SQLite, append", records / took, "records/s", batch=BATCH)
    report.add("bare SQLite, read tuples", records / seconds(get), "records/s", batch=BATCH)
    took = seconds(lambda: each(range(singles), lambda at: put(records + at, 1)))
    report.add("bare SQLite, append", singles / took, "records/s", batch=1)
    db.close()


def ours(report: Report, path: Path, records: int, singles: int) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1), TopicSpec("one", 1), TopicSpec("headers", 1), TopicSpec("four", 4)])
        for topic, name in (("claims", "one partition"), ("headers", "3 headers"), ("four", "4 partitions by key")):
            headers = HEADERS if topic == "headers" else ()
            batch = [Message(topic, b"hv-%d" % (at % 500), VALUE, headers) for at in range(BATCH)]
            took = seconds(partial(append_all, log, batch, records))
            report.add("log, append", records / took, "records/s", batch=BATCH, what=name)
        for topic, name in (("claims", "written in batches"), ("headers", "3 headers")):
            took = seconds(partial(read_all, log, topic, records))
            report.add("log, read and check", records / took, "records/s", batch=BATCH, what=name)
        one = [Message("one", b"hv-0042", VALUE)]
        report.add("log, append", singles / seconds(lambda: [log.append(one) for _ in range(singles)]), "records/s", batch=1)
        took = seconds(lambda: each(range(20), lambda _: read_all(log, "one", singles)))
        report.add("log, read and check", 20 * singles / took, "records/s", batch=BATCH, what="written one by one")
        took = seconds(lambda: [log.read("one", 0, singles) for _ in range(10_000)])
        report.add("log, read at the end", took / 10_000 * 1e6, "us")
        middle = log.read("claims", 0, records // 2, records_max=1)[0].time_ms
        report.add("log, offset at a time", seconds(lambda: log.at_time("claims", 0, middle)) * 1e6, "us", records=records)


def turn_by_turn(report: Report, folder: Path) -> None:
    """Batches of bare SQLite and of the log by turns, so that whatever else the machine does meets both: the median of each as a share.

    With headers bare SQLite stores their bytes in one more column.
    """
    db = apsw.Connection(str(folder / "turns-bare.db"))
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4096"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, time_ms INTEGER, key BLOB, value BLOB, headers BLOB)")

    def put(headers: bytes) -> None:
        rows = [(None, 1_700_000_000_000, b"hv-0042", VALUE, headers) for _ in range(BATCH)]
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")

    with SqliteLog.open(folder / "turns-log.db", create=True) as log:
        log.create([TopicSpec("claims", 1)])
        for what, headers in (("one partition", ()), ("3 headers", HEADERS)):
            batch = [Message("claims", b"hv-0042", VALUE, headers) for _ in range(BATCH)]
            raw = b"".join(name.encode() + value for name, value in headers)
            times = [(seconds(partial(put, raw)), seconds(partial(log.append, batch))) for _ in range(TURNS)]
            bare_seconds, our_seconds = (median(column) for column in zip(*times, strict=True))
            report.add("log, append, share of bare SQLite", 100 * bare_seconds / our_seconds, "%", batch=BATCH, what=what, turns=TURNS)
    db.close()


def each(numbers: range, work: Callable[[int], object]) -> None:
    for number in numbers:
        work(number)


def append_all(log: SqliteLog, batch: list[Message], records: int) -> None:
    for _ in range(records // len(batch)):
        log.append(batch)


def read_all(log: SqliteLog, topic: str, records: int) -> None:
    at = 0
    while at < records:
        at = log.read(topic, 0, at, BATCH)[-1].offset + 1


def child(program: str, path: Path, *more: str) -> subprocess.Popen[str]:
    head = "import sys, time\nfrom streams.log.base import Message, Partition\nfrom streams.log.sqlite import SqliteLog\n"
    command = [sys.executable, "-c", head + program, str(path), *more]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def writers_at_once(report: Report, path: Path, singles: int) -> None:
    program = """
with SqliteLog.open(sys.argv[1]) as log:
    print("ready", flush=True); sys.stdin.readline()
    for at in range(int(sys.argv[2])):
        log.append([Message("one", b"k", bytes(200))])
"""
    running = [child(program, path, str(singles // 3)) for _ in range(3)]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    started = time.perf_counter()
    for process in running:
        process.communicate("go\n")
    took = time.perf_counter() - started
    report.add("log, append from 3 processes", singles / took, "records/s", batch=1)


def waking(report: Report, path: Path) -> None:
    """From before another process's append to after our wait."""
    program = """
with SqliteLog.open(sys.argv[1]) as log:
    print("ready", flush=True)
    for line in sys.stdin:
        time.sleep(0.01)
        log.append([Message("one", b"k", b"%d" % time.monotonic_ns())])
"""
    process = child(program, path)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    took_ms: list[float] = []
    with SqliteLog.open(path) as log:
        for _ in range(200):
            at = log.end("one", 0)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert log.wait({Partition("one", 0): at}, 10)
            (record,) = log.read("one", 0, at)
            took_ms.append((time.monotonic_ns() - int(record.value)) / 1e6)
    process.communicate()
    for name, value in percentiles(took_ms, {"p50": 0.5, "p99": 0.99, "max": 1.0}).items():
        report.add("process to process, append and wake", value, "ms", at=name)


def idling(report: Report, path: Path, idle_seconds: float) -> None:
    with SqliteLog.open(path) as log:
        waited = {Partition("four", number): log.end("four", number) for number in range(4)}
        before = time.process_time()
        assert not log.wait(waited, idle_seconds)
        used = time.process_time() - before
    report.add("idle waiter", used / idle_seconds * 100, "% of a core", partitions=4)


if __name__ == "__main__":
    main()
