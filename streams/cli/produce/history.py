"""`claimlog produce load --history N`: a large log with a past, written at once instead of played.

What hosts, starters and schedulers wrote comes from `producers.history_load`; the observations are carried by the reconciler, as in a log
that grew. Appends are as a log has them that was written by several at once: what came within a second stands together.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from schemas.codec import Unreadable
from schemas.topics import CLAIMS
from streams.cli.exits import Exit
from streams.cli.printed import units
from streams.cli.printed.printable import say
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import open_log
from streams.ledger_topics import LEDGER_PARTITIONS_DEFAULT, open_ledger
from streams.log.base import Message, Record
from streams.log.sqlite import SqliteLog
from streams.reconciler import CARRIERS, SOURCES, reconcile

if TYPE_CHECKING:
    from producers.history_load import HistoryRecord

BATCH_MS = 1_000
"""Records of so many milliseconds are appended together, at the end of that time."""
TRANSACTION_RECORDS = 50_000


def history(log: str | None, *, nodes: int, seed: int, records: int) -> int:
    """Make a new embedded log of `records` records, and say what stands in it.

    Raises UsageProblem for too few nodes or records, for another kind of log, and for one that has a ledger already.
    """
    from producers.history_load import history_records
    from producers.ledger_load import START_MS

    if nodes < 1 or records < 1:
        raise UsageProblem(f"--history {records} --nodes {nodes}: expected 1 or more of both")
    # The ledger is opened before its first record, so the clock stands where the history begins.
    with open_log(log, os.environ, sys.stdin.buffer, create=True, clock=lambda: START_MS) as target:
        if not isinstance(target, SqliteLog):
            raise UsageProblem("--history writes an embedded log: pass --log sqlite:PATH; `claimlog copy` brings it to another one")
        if CLAIMS in target.topics():
            raise UsageProblem(f"{target.path} has a ledger already, and a history is no part of one; name a file that is not there")
        open_ledger(target)
        made = history_records(seed, nodes=nodes, records=records, partitions=LEDGER_PARTITIONS_DEFAULT)
        with Progress("history", records) as progress:
            written = write_history(target, made, progress.add)
    told = ", ".join(f"{units.count(count)} {topic}" for topic, count in sorted(written.items()))
    say(f"{units.count(records)} records: {told}")
    return Exit.DONE


def write_history(log: SqliteLog, records: Iterable[HistoryRecord], added: Callable[[int], None]) -> Counter[str]:
    """Append the records, each observation carried into `claims` at once; how many of each topic. `log` is a ledger just opened."""
    partitions = log.topics()[CLAIMS]
    ends = {topic: log.ends(topic) for topic in SOURCES}
    written: Counter[str] = Counter()
    waiting: list[tuple[int, Message]] = []
    until_ms = 0
    for topic, number, time_ms, key, value, headers in records:
        if time_ms >= until_ms:
            if len(waiting) >= TRANSACTION_RECORDS:
                added(_append(log, waiting))
            until_ms = time_ms - time_ms % BATCH_MS + BATCH_MS
        waiting.append((until_ms, Message(topic, key, value, headers, number)))
        written[topic] += 1
        if topic != CLAIMS:
            offset = ends[topic][number]
            ends[topic][number] = offset + 1
            carried = reconcile(Record(topic, number, offset, until_ms, key, value, headers), partitions)
            if isinstance(carried, Unreadable):
                raise ValueError(f"{topic}/{number}@{offset}: an observation that nobody can carry was made: {carried.reason}")
            waiting.append((until_ms, carried))
            written[CLAIMS] += 1
    added(_append(log, waiting))
    for topic, places in ends.items():
        log.commit(CARRIERS, topic, places)
    return written


def _append(log: SqliteLog, waiting: list[tuple[int, Message]]) -> int:
    """Append what waits, by time and partition, and forget it; how many there were."""
    waiting.sort(key=lambda each: (each[0], each[1].topic, each[1].partition))
    log.append_at([message for _, message in waiting], [time_ms for time_ms, _ in waiting])
    count = len(waiting)
    waiting.clear()
    return count
