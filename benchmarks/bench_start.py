"""How long until a process that starts knows the whole ledger? From the newest snapshot and the records after it, and from its own table.

The ledger has 1,000,000 records on the embedded log, the snapshot is 10,000 behind (aim: below 5 s). What is loaded is checked against the
fold from the first record. Run `python -m benchmarks.bench_start [--records N] [--behind N] [--nodes N] [--folder DIR] [--json]`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from benchmarks.report import Report, arguments, positive, seconds
from producers.ledger_load import ledger_records
from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.replay import ends_of, fold, replayed
from projections.rocks import RocksTable
from projections.snapshots import chunks_of, encoded
from schemas.codec import encode, key_of
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.log.base import Message, TopicSpec
from streams.log.sqlite import SqliteLog

BATCH = 10_000
HELD_PER_NODE = 20

# A process of its own, so that imports count and nothing is warm but the files.
STARTER = """
import sys
from projections.replay import ends_of, replayed
from streams.log.sqlite import SqliteLog
with SqliteLog.open(sys.argv[1]) as log:
    print(replayed(log, 0, ends_of(log, None)[0]).ledger.digest.hex())
"""


def main() -> None:
    asked = arguments(__doc__ or "", add)
    said = {"records": asked.records, "behind": asked.behind, "nodes": asked.nodes}
    with Report("start", as_json=asked.json) as report, tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / "log.db"
        with SqliteLog.open(path, create=True) as log:
            log.create([TopicSpec(CLAIMS, 1), TopicSpec(SNAPSHOTS, 1)])
            write(log, asked.nodes, asked.records)
            ledger = fold(log, Ledger(0, 1), asked.records - asked.behind).ledger
            report.add("snapshot, make", seconds(lambda: encoded(ledger)), "s", **said)
            chunks = chunks_of(ledger)
            log.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk)) for chunk in chunks])
            size = sum(len(chunk.data) for chunk in chunks) * 3 / 4
            report.add("snapshot, size", size / 1e6, "MB", **said, claims=len(ledger.claims), chunks=len(chunks))
            report.add("replay from the snapshot", seconds(lambda: replayed(log, 0, ends_of(log, None)[0])), "s", **said)
            fold(log, ledger, asked.records)
        started: list[str] = []
        report.add("process start to state", seconds(lambda: started.append(start(path))), "s", **said)
        assert started == [ledger.digest.hex()], f"the process that started has digest {started}, the fold {ledger.digest.hex()}"
        from_table(report, Path(folder) / "table", ledger, said)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=1_000_000)
    parser.add_argument("--behind", type=int, default=10_000)
    parser.add_argument("--nodes", type=positive, default=1_000)
    parser.add_argument("--folder", default=None)


def write(log: SqliteLog, nodes: int, records: int) -> None:
    made = ledger_records(1, nodes=nodes, records=records, held_max=HELD_PER_NODE * nodes)
    messages = (Message(CLAIMS, key, value, (), partition) for partition, _, key, value in made)
    while batch := list(islice(messages, BATCH)):
        log.append(batch)


def start(path: Path) -> str:
    command = [sys.executable, "-c", STARTER, str(path)]
    ran = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.strip()


def from_table(report: Report, folder: Path, ledger: Ledger, said: dict[str, int]) -> None:
    """What the stream processor starts from: its RocksDB table."""
    with RocksTable.open(folder) as table:
        report.add("table, store whole", seconds(lambda: LedgerTable(table).store(ledger)), "s", **said)
    with RocksTable.open(folder) as table:
        loaded: list[Ledger | None] = []
        report.add("table, load", seconds(lambda: loaded.append(LedgerTable(table).load())), "s", **said)
        assert loaded[0] is not None
        assert encoded(loaded[0]) == encoded(ledger)


if __name__ == "__main__":
    main()
