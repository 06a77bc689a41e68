"""What became of a request's claims: every outcome of them, in the order of the log.

The record of a claim names its request, so what stands before the first record that may do so is of no concern. To find that one its bytes
are looked at, which takes a tenth of what folding them does; where a partition has none, it is not folded at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TextIO

from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.projection import for_a_fold
from projections.replay import fold
from projections.snapshots import load_newest_with
from schemas.results import ClaimOutcome
from schemas.topics import CLAIMS
from streams.cli.printed.progress import Progress
from streams.cli.reading.records import READ_RECORDS, check_claims_at_hand
from streams.log.base import Log


def fates_of(log: Log, request_id: str, ends: Mapping[int, int], stderr: TextIO, tell: Callable[[str], None]) -> list[ClaimOutcome]:
    """The outcomes of the request's claims below these `ends` of `claims`, partition by partition. Progress is said on `stderr`.

    Raises AnswerIncomplete for history that is not at hand, and what the fold raises.
    """
    with Progress("search", sum(ends.values()), stderr, time.monotonic) as progress:
        firsts = {number: _first_naming(log, number, end, request_id, progress.add) for number, end in ends.items()}
    ledgers: list[Ledger] = []
    for number, first in firsts.items():
        if first < ends[number]:
            found = load_newest_with(log, number, at_most=first, tell=tell)
            ledgers.append(Ledger(number, len(ends)) if found is None else found[0])
    outcomes: list[ClaimOutcome] = []

    def collect(_ledger: Ledger, step: Step) -> None:
        outcomes.extend(outcome for outcome in step.outcomes if outcome.request_id == request_id)

    with Progress("fold", sum(ends[each.partition] - each.next_offset for each in ledgers), stderr, time.monotonic) as progress:
        for ledger in ledgers:
            ledger.hash_no_more()
            fold(log, ledger, ends[ledger.partition], collect, progress.add)
    return outcomes


def _first_naming(log: Log, number: int, end: int, request_id: str, added: Callable[[int], None]) -> int:
    """The offset of the first record that may name the request; `end` if none below it does."""
    if end:
        check_claims_at_hand(log, number, 0)
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
