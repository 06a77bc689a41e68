"""What became of a request's claims: every outcome of them, in the order of the log, from the first record that names the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.replay import fold
from projections.snapshots import load_newest_with
from schemas.results import ClaimOutcome
from streams.cli.printed.progress import Progress
from streams.cli.reading.naming import firsts_naming
from streams.log.base import Log


def fates_of(log: Log, request_id: str, ends: Mapping[int, int], tell: Callable[[str], None]) -> list[ClaimOutcome]:
    """The outcomes of the request's claims below these `ends` of `claims`, partition by partition.

    Raises AnswerIncomplete for history that is not at hand, and what the fold raises.
    """
    ledgers: list[Ledger] = []
    for number, first in firsts_naming(log, ends, request_id).items():
        if first < ends[number]:
            found = load_newest_with(log, number, at_most=first, tell=tell)
            ledgers.append(Ledger(number, len(ends)) if found is None else found[0])
    outcomes: list[ClaimOutcome] = []

    def collect(_ledger: Ledger, step: Step) -> None:
        outcomes.extend(outcome for outcome in step.outcomes if outcome.request_id == request_id)

    with Progress("fold", sum(ends[each.partition] - each.next_offset for each in ledgers)) as progress:
        for ledger in ledgers:
            ledger.hash_no_more()
            fold(log, ledger, ends[ledger.partition], collect, progress.add)
    return outcomes
