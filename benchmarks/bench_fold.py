"""How many records of `claims` does one core fold a second: decode, rules and digest, from records already in memory?

Beside it decoding alone, and the same fold kept in RocksDB batch by batch. What is measured is checked: the table gives the state back that
the fold has. A tenth of these records are audits in full, of a fleet that is looked at often; `mix=history` is the fold of a history as
`bench_leak_audit` has it, where they are one in 160 (`--history N`, 0: none).

Run `python -m benchmarks.bench_fold [--records N] [--nodes N] [--history N] [--kinds] [--json]`; `--kinds` tells the cost of each kind of
record apart, in a run of its own, because looking at the clock costs too.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench_leak_audit import make
from benchmarks.report import Report, arguments, positive, seconds
from producers.ledger_load import LedgerRecord, ledger_records
from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.reading import between
from projections.rocks import RocksTable
from projections.snapshots import encoded
from schemas.codec import CLAIMS_DECODER
from schemas.topics import CLAIMS
from streams.log.sqlite import SqliteLog

HELD_PER_NODE = 20
BATCH_OF_A_READ = 5_000
BATCHES = (1_000, 10_000)
"""Records of one RocksDB batch: as a host that keeps up has them, and as one that catches up."""


def main() -> None:
    asked = arguments(__doc__ or "", add)
    records = list(ledger_records(1, nodes=asked.nodes, records=asked.records, held_max=HELD_PER_NODE * asked.nodes))
    gc.collect()
    gc.freeze()  # The list is the benchmark's own: the collector shall not walk it in every run.
    said = {"records": len(records), "nodes": asked.nodes}
    with Report("fold", as_json=asked.json) as report:
        report.add("decode only", len(records) / seconds(lambda: decode(records)), "records/s", **said)
        ledger = Ledger(0, 1)
        report.add("memory", len(records) / seconds(lambda: fold(ledger, records)), "records/s", **said, claims=len(ledger.claims))
        for batch in BATCHES:
            kept(report, records, batch, ledger, said)
        if asked.history:
            of_history(report, asked.history, asked.nodes)
        if asked.kinds:
            by_kind(report, records)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=1_000_000)
    parser.add_argument("--nodes", type=positive, default=1_000)
    parser.add_argument("--history", type=int, default=1_000_000, help="records of the log whose records of `claims` are folded as well")
    parser.add_argument("--kinds", action="store_true")


def decode(records: Sequence[LedgerRecord]) -> None:
    for record in records:
        CLAIMS_DECODER.decode(record.value)


def fold(ledger: Ledger, records: Sequence[LedgerRecord]) -> None:
    apply = ledger.apply
    for offset, (_, time_ms, key, value) in enumerate(records):
        apply(offset, time_ms, key, value)


def kept(report: Report, records: Sequence[LedgerRecord], batch: int, expected: Ledger, said: dict[str, Any]) -> None:
    """The fold with its state in RocksDB, then the start from there."""
    with tempfile.TemporaryDirectory() as folder, RocksTable.open(Path(folder) / "table") as table:
        kept_in, ledger = LedgerTable(table), Ledger(0, 1)

        def run() -> None:
            for first in range(0, len(records), batch):
                applied = [ledger.apply(first + at, *record[1:]) for at, record in enumerate(records[first : first + batch])]
                kept_in.write(ledger, [step for step in applied if step is not None])

        report.add("rocksdb", len(records) / seconds(run), "records/s", **said, batch=batch)
        loaded: list[Ledger | None] = []
        report.add("rocksdb, load", seconds(lambda: loaded.append(kept_in.load())), "s", **said, batch=batch)
        assert loaded[0] is not None
        assert encoded(loaded[0]) == encoded(ledger) == encoded(expected), "the table does not give back what was folded"


def of_history(report: Report, records: int, nodes: int) -> None:
    """The fold of all partitions of a history, one after the other."""
    took_seconds, folded = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        make(path, records=records, nodes=nodes)
        with SqliteLog.open(path) as log:
            ends = log.ends(CLAIMS)
            for partition, end in ends.items():
                read = between(log, CLAIMS, partition, 0, end, BATCH_OF_A_READ)
                found = [LedgerRecord(partition, record.time_ms, record.key, record.value) for record in read]
                ledger = Ledger(partition, len(ends))
                took_seconds += seconds(partial(fold, ledger, found))
                assert ledger.next_offset == end, f"partition {partition}: {ledger.next_offset} of {end} records were folded"
                folded += end
    report.add("memory", folded / took_seconds, "records/s", records=folded, nodes=nodes, mix="history")


def by_kind(report: Report, records: Sequence[LedgerRecord]) -> None:
    """Mean microseconds of each kind of record, the dearest in sum first."""
    ledger, clock = Ledger(0, 1), time.perf_counter_ns
    spent: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for offset, (_, time_ms, key, value) in enumerate(records):
        began = clock()
        step = ledger.apply(offset, time_ms, key, value)
        took = clock() - began
        kind = kind_of(step.event) if step is not None and step.event is not None else "dead"
        spent[kind] += took
        seen[kind] += 1
    for kind, took in spent.most_common():
        report.add(f"memory, {kind}", took / seen[kind] / 1_000, "us/record", records=seen[kind], share=round(seen[kind] / len(records), 3))


def kind_of(event: Any) -> str:
    """The type as a benchmark tells it apart: a full audit is other work than an unchanged one."""
    name: str = event.__struct_config__.tag
    if name == "node-observed":
        return "audit in full" if event.instances is not None else "audit unchanged"
    return f"{name} {event.change}" if name == "instance-observed" else name


if __name__ == "__main__":
    main()
