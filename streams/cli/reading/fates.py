"""What became of a request's claims: every outcome of them, in the order of the log.

The record of a claim names its request, so what stands before the first record that may do so is of no concern. To find that one its bytes
are looked at, which takes a tenth of what folding them does; where a partition has none, it is not folded at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from projections.ledger import Ledger
from projections.projection import for_a_fold
from projections.snapshots import load_newest_with
from schemas.results import ClaimOutcome
from schemas.topics import CLAIMS
from streams.cli.printed.progress import Progress
from streams.cli.problems import AnswerIncomplete
from streams.cli.reading.records import ARCHIVED
from streams.cli.reading.state import READ_RECORDS
from streams.log.base import Log


def fates_of(log: Log, request_id: str, ends: Mapping[int, int], stderr: TextIO, tell: Callable[[str], None]) -> Iterator[ClaimOutcome]:
    """The outcomes of the request's claims below these `ends` of `claims`, partition by partition. Progress is said on `stderr`.

    Raises AnswerIncomplete for history that is not at hand, and what the fold raises.
    """
    with Progress("search", sum(ends.values()), stderr, time.monotonic) as progress:
        firsts = {number: _first_naming(log, number, end, request_id, progress.add) for number, end in ends.items()}
    ledgers: dict[int, Ledger] = {}
    for number, first in firsts.items():
        if first < ends[number]:
            found = load_newest_with(log, number, at_most=first, tell=tell)
            ledgers[number] = Ledger(number, len(ends)) if found is None else found[0]
    with Progress("fold", sum(ends[number] - ledger.next_offset for number, ledger in ledgers.items()), stderr, time.monotonic) as progress:
        for number, ledger in ledgers.items():
            yield from _outcomes(log, ledger, ends[number], request_id, progress.add)


def _first_naming(log: Log, number: int, end: int, request_id: str, added: Callable[[int], None]) -> int:
    """The offset of the first record that may name the request; `end` if none below it does."""
    if end and (start := log.start(CLAIMS, number)):
        raise AnswerIncomplete(f"{CLAIMS}/{number}: records from 0 on are needed, at hand are those from {start} on; {ARCHIVED}")
    name, read, at = request_id.encode(), for_a_fold(log), 0
    # Whoever wrote a record may have spelled any character as \u and four digits, and these few with a backslash before them.
    escape = b"\\" if any(char in '"\\/' or char < " " for char in request_id) else b"\\u"
    while at < end:
        before = at
        for record in read(CLAIMS, number, at, min(READ_RECORDS, end - at)):
            if name in record.value or escape in record.value:
                return record.offset
            at = record.offset + 1
        if at == before:
            return at
        added(at - before)
    return end


def _outcomes(log: Log, ledger: Ledger, end: int, request_id: str, added: Callable[[int], None]) -> Iterator[ClaimOutcome]:
    read = for_a_fold(log)
    ledger.hash_no_more()
    while (at := ledger.next_offset) < end:
        for record in read(CLAIMS, ledger.partition, at, min(READ_RECORDS, end - at)):
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            if step is not None:
                yield from (outcome for outcome in step.outcomes if outcome.request_id == request_id)
        added(ledger.next_offset - at)
