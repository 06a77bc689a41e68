"""Where a scheduler begins in a partition of requests, also where requests or results have left the log: nobody is placed twice for that.

claimlog drops neither; a retention that somebody set does, or whoever deletes records. Every result up to the end says which requests are
answered. Without the older ones, the stored offset does: all below it is done with. Without both, what was asked before the results at hand
begin may have been answered, and is not answered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from projections.placements import Placements
from projections.rules import SKEW_MS
from schemas.topics import REQUESTS, RESULTS
from streams.log.base import Log, Record

DOUBTFUL_MS: Final = 3_600_000
"""Two results of a request are no further apart: whoever answers gives up after a quarter of its claims' TTL, ten minutes unless told."""


def begun(log: Log, partition: int, stored: int | None, kept: Placements | None, tell: Callable[[str], None]) -> Placements:
    """The fold of a partition to go on from: what was `kept` of it, unless the records after that have left, else one that begins anew.

    `stored` is the offset below which all is done with, None if nobody stored one. `tell` hears of what nobody answers.
    """
    first, results_first = log.start(REQUESTS, partition), log.start(RESULTS, partition)
    if kept is not None and kept.requests_next >= first and kept.results_next >= results_first:
        return kept
    place, begin = f"{REQUESTS}/{partition}", max(stored or 0, first)
    oldest = log.read(RESULTS, partition, results_first, 1) if results_first else []
    if stored is None and results_first:
        begin = max(begin, _answered_before(log, partition, oldest))
        tell(
            f"{place}: what was asked before offset {begin} is not answered: no offset is stored and results before "
            f"{RESULTS}/{partition}@{results_first} have left the log, so it may have been; ask again under another id where it was not"
        )
    elif stored is not None and stored < first:
        tell(
            f"{place}: the records from {stored} to {first - 1} have left the log, and not all of them may have been answered; ask again "
            "under another id where one was not"
        )
    placements = Placements(partition, log.topics()[REQUESTS], requests_next=begin, results_next=results_first)
    if oldest:
        placements.doubtful_ms = oldest[0].time_ms + DOUBTFUL_MS
    return placements


def _answered_before(log: Log, partition: int, oldest: Sequence[Record]) -> int:
    """The first request that no result which has left can have answered: none of those is later than the `oldest` at hand, if one is.

    Requests and results may be stamped by two brokers, whose clocks differ.
    """
    if not oldest:
        return log.end(REQUESTS, partition)
    return log.at_time(REQUESTS, partition, oldest[0].time_ms + SKEW_MS + 1)
