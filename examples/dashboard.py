"""A live table of all nodes, from the topic `node-resources` alone; `python examples/dashboard.py --log LOG`, on SQLite or Kafka."""

from __future__ import annotations

import argparse
import os
import sys
import time

from rich import console, live, table

from schemas.codec import decode
from schemas.results import NodeResources
from schemas.topics import NODE_RESOURCES
from streams.cli.exits import guarded
from streams.cli.reading.open_log import open_log
from streams.log.base import Log, LogUnreachable, Partition, partition_count


def read_rows(log: Log, rows: dict[str, NodeResources], offsets: dict[Partition, int]) -> None:
    """Every new row; of one node the highest offset of the ledger is the truth, whoever wrote it and whenever."""
    for partition in [Partition(NODE_RESOURCES, number) for number in range(partition_count(log, NODE_RESOURCES))]:
        while records := log.read(*partition, max(offsets.setdefault(partition, 0), log.start(*partition))):
            offsets[partition] = records[-1].offset + 1
            for row in (decode(NODE_RESOURCES, record.value) for record in records):
                if isinstance(row, NodeResources) and (row.node_id not in rows or row.offset >= rows[row.node_id].offset):
                    rows[row.node_id] = row


def board(rows: dict[str, NodeResources], now_ms: int) -> table.Table:
    drawn = table.Table("node", "status", "vCPUs", "memory MiB", "guests", "leaks", "audit", title="limit / reported / claimed / free")
    for row in sorted(rows.values(), key=lambda each: each.node_id):
        age = "never" if row.audit_taken_at_ms is None else f"{max(0, now_ms - row.audit_taken_at_ms) // 1000} s"
        style = "red" if row.leaks or min(row.vcpus.free or 0, row.memory_mib.free or 0) < 0 else None
        views = ((each.limit, each.reported, each.claimed, each.free) for each in (row.vcpus, row.memory_mib))
        cells = (" / ".join("-" if value is None else f"{value:,}" for value in view) for view in views)
        drawn.add_row(repr(row.node_id)[1:-1], row.status, *cells, str(row.instances), str(row.leaks), age, style=style)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch all nodes.")
    parser.add_argument("--log", default=None, help="sqlite:PATH or kafka://HOST:PORT[/PREFIX]; default: CLAIMLOG_LOG")
    parser.add_argument("--once", action="store_true", help="print the table and end")
    options, rows, offsets = parser.parse_args(), dict[str, NodeResources](), dict[Partition, int]()
    target = console.Console(width=None if sys.stdout.isatty() else 500, markup=False)  # Into a pipe a row is one line, as long as it is.
    with open_log(options.log, os.environ, sys.stdin.buffer, narrowed=True) as log, live.Live(console=target) as screen:
        show = screen.update if target.is_terminal else target.print
        read_rows(log, rows, offsets)
        while show(board(rows, time.time_ns() // 1_000_000)) is None and not options.once:
            time.sleep(1.0)
            try:
                log.wait(offsets, 0.0 if target.is_terminal else 60.0)  # Into a pipe what is new, or a minute old.
                read_rows(log, rows, offsets)
            except LogUnreachable as problem:  # The table grows older, and says so, until brokers are back.
                print(f"claimlog: {problem}; it is waited for", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.stderr))
