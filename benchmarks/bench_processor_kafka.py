"""How many events a second does one worker of the stream processor do on Kafka, beside a plain Faust table of the same records?

The worker is the product's own, `claimlog run --only processor`, a Faust worker with everything on: rules, digests, verdicts, node rows,
leak audit, snapshots, RocksDB. `claims`: a ledger's history is folded from the first record. `audits and claims`: beside it observations
wait in their producers' topics, each of which is carried into `claims` and folded there. Both are timed from the assignment of partitions
until the last row is published; the broker, with both sides' records, runs on the same cores. The plain table keeps less and judges
nothing, see `benchmarks.plain_faust`.

Run `python -m benchmarks.bench_processor_kafka [--json] [--records N] [--observed N] [--plain N] [--nodes N] [--partitions N]`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.on_kafka import History, Process, a_broker, history, resident_mib
from benchmarks.report import Report, arguments, positive
from projections.ledger_table import LedgerTable
from projections.replay import replayed
from projections.rocks import RocksTable
from schemas.codec import decode
from schemas.results import NodeResources
from schemas.topics import CLAIMS, NODE_RESOURCES
from streams.log.kafka import KafkaLog


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("processor_kafka", as_json=asked.json) as report, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=asked.folder)))
        bootstrap, broker = stack.enter_context(a_broker(folder / "broker"))
        common = {"nodes": asked.nodes, "partitions": asked.partitions}
        plain = history(bootstrap, "bench-plain", records=asked.records, **common)
        for store in ("memory", "rocksdb"):
            peer(report, plain, folder, store, min(asked.plain, asked.records), common)
        worker(report, "claims", plain, folder, broker, common)
        both = history(bootstrap, "bench-both", records=asked.records, observed=asked.observed, **common)
        worker(report, "audits and claims", both, folder, broker, common)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=400_000)
    parser.add_argument("--observed", type=int, default=200_000, help="how many of them are not carried yet, where they are observations")
    parser.add_argument("--plain", type=positive, default=20_000, help="how many of them the plain table does")
    parser.add_argument("--nodes", type=positive, default=1_000)
    parser.add_argument("--partitions", type=positive, default=4)
    parser.add_argument("--folder", default=None)


def peer(report: Report, plain: History, folder: Path, store: str, records: int, common: dict[str, int]) -> None:
    """The plain table."""
    topic = plain.settings.topic(CLAIMS)
    arguments = (plain.settings.bootstrap, topic, str(common["partitions"]), str(records), str(folder / f"plain-{store}"), store)
    with Process(folder / f"plain-{store}.said", *arguments, command=("-m", "benchmarks.plain_faust")) as process:
        process.finish()
        took_seconds = float(process.said.read_text().split()[-1])
    report.add(f"plain Faust table, {store}", records / took_seconds, "events/s", records=records, **common)


def worker(report: Report, subject: str, ledger: History, folder: Path, broker: int | None, common: dict[str, int]) -> None:
    """One worker from its start until it has done everything; its tables are held against a replay of the log."""
    home = folder / f"state-{ledger.settings.prefix}"
    said = {"claims": ledger.claims, "observations": ledger.waiting, **common}
    flags = ("--log", ledger.address, "--only", "processor", "--state", str(home), "--audit-interval", "36000")
    with Process(folder / f"{home.name}.said", "run", *flags) as process, KafkaLog.open(ledger.settings) as log:
        report.add(f"worker, {subject}, start to assignment", process.wait_for_words("partitions 0"), "s", **common)
        began_ms = time.time() * 1000
        expected = ledger.claims + ledger.waiting
        while sum(log.ends(CLAIMS).values()) < expected or not published(log):
            process.runs()
            time.sleep(0.25)
        took_seconds = (newest_ms(log) - began_ms) / 1000
        report.add(f"worker, {subject}", (expected + ledger.waiting) / took_seconds, "events/s", **said)
        report.add(f"worker, {subject}, resident", resident_mib(process.pid), "MiB", **common)
        if broker is not None:
            report.add(f"worker, {subject}, resident broker", resident_mib(broker), "MiB", **common)
        process.running.terminate()
        process.finish()
        check(log, home, common["partitions"])


def published(log: KafkaLog) -> bool:
    """Whether the newest row of each partition includes the last record of its partition of `claims`."""
    for number, end in log.ends(CLAIMS).items():
        last = log.end(NODE_RESOURCES, number)
        if not last:
            return False
        row = decode(NODE_RESOURCES, log.read(NODE_RESOURCES, number, last - 1, 1)[0].value)
        assert isinstance(row, NodeResources), row
        if row.offset < end - 1:
            return False
    return True


def newest_ms(log: KafkaLog) -> int:
    """When the last row was published."""
    return max(log.read(NODE_RESOURCES, number, end - 1, 1)[0].time_ms for number, end in log.ends(NODE_RESOURCES).items() if end)


def check(log: KafkaLog, home: Path, partitions: int) -> None:
    """Raises AssertionError unless the worker's tables are what a replay of the log from its first record gives."""
    for number in range(partitions):
        with RocksTable.open(home / f"claims-{number}") as table:
            ledger = LedgerTable(table).load()
            assert ledger is not None
            again = replayed(log, number, log.end(CLAIMS, number), from_snapshots=False).ledger
            assert ledger.digest == again.digest, f"partition {number}: the worker's table is not the fold of the log"


if __name__ == "__main__":
    main()
