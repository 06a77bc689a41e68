"""`claimlog cancel`: take requests back."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from schemas.results import InstancesPlaced
from schemas.topics import REQUESTS, RESULTS
from streams.cli.flags import LogFlag
from streams.cli.printed.printable import printable, say
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.answers import RecordedResult, RequestHistory, astray, awaited, not_at_hand, request_history
from streams.cli.reading.open_log import opened
from streams.cli.writing import appended, check_writable, new_stamp
from streams.ledger_topics import check_topics
from streams.log.base import Log
from streams.operator import cancel as cancel_message

ANSWER_MS = 1_000
"""How long to look for what became of them all: a scheduler answers within milliseconds, and without one it is said that nobody has."""


def cancel(
    *requests: Annotated[str, Parameter(help="The request's id, or several.", required=True)],
    reason: Annotated[str, Parameter(help="Why, for those who read it later.", show_default=False)] = "",
    log: LogFlag = None,
) -> int:
    """Take a request back: an open one is answered with a failure, a placed one gives back the claims that nobody uses yet.

    It acts when a scheduler reads it; what came of it is awaited for a second at most, of several requests together. Nothing is written if
    one of them is not known. An instance that runs must be deleted: its claim is in use and stays.
    """
    with opened(log, for_work=True) as source:
        check_writable(source)
        check_topics(source)
        ends = source.ends(RESULTS)
        known = [_known(source, request) for request in dict.fromkeys(requests)]
        gone = not_at_hand(source, RESULTS)
        for found in known:
            say(f"{appended(source, cancel_message(found.request_id, new_stamp(), reason=reason))}")
        until_seconds = time.monotonic() + ANSWER_MS / 1000
        for found in known:
            counting = found.counting
            if counting is None and not gone:
                number, left_seconds = source.partition(RESULTS, found.request_id.encode()), until_seconds - time.monotonic()
                counting = awaited(source, found.request_id, number, ends[number], max(round(left_seconds * 1000), 0))
            print(f"{printable(found.request_id)}: {_became(found.counting, counting, gone)}")
    return 0


def _known(log: Log, request: str) -> RequestHistory:
    """A request that the log has something of. Raises UsageProblem, AnswerIncomplete."""
    found = request_history(log, request)
    if not found.is_known:
        gone, said = not_at_hand(log, REQUESTS, RESULTS), f"request {request!r} is not known on this log"
        if gone:
            raise AnswerIncomplete(f"{said}{gone}. `claimlog claims release` gives a claim back that is still held for it")
        raise UsageProblem(said + (astray(log, request) or "; `claimlog events --type placement-requested` lists them"))
    return found


def _became(before: RecordedResult | None, counting: RecordedResult | None, gone: str) -> str:
    """What a cancel finds or does, by the result that counted before it and the one that counts now."""
    if counting is None and gone:
        return f"has no answer at hand, so it is given up if it has none, and claims that nobody uses yet are given back{gone}"
    if counting is None:
        return "has no answer yet; the scheduler that reads this cancels it, or gives back what was placed meanwhile"
    if isinstance(counting.result, InstancesPlaced) and not counting.result.placements:
        return f"was a dry run, answered at {counting.position}; nothing to take back"
    if isinstance(counting.result, InstancesPlaced):
        given_back = "the scheduler that reads this gives back the claims that nobody uses yet"
        return f"placed at {counting.position}; {given_back}, and what runs keeps its own"
    if before is None and counting.result.reason == "cancelled":
        return "cancelled before it was answered"
    return f"had failed at {counting.position} ({counting.result.reason}); nothing to take back"
