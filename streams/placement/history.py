"""Where a scheduler begins in a partition of requests, also where requests or results have left the log: nobody is placed twice for that.

Every result up to the end says which requests are answered. Of those that are filed away the log says it in short, and their results are
not read. claimlog drops no results; a retention that somebody set does, or whoever deletes records. Where older ones are missing that were
not filed away, the stored offset says it: all below it is done with. Without both, what was asked before the results at hand begin may have
been answered, and is not answered again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from projections.placements import Placements
from projections.reading import between
from projections.rules import SKEW_MS
from schemas.codec import decode
from schemas.partitioner import partition_of
from schemas.results import SchedulerStarted
from schemas.topics import REQUESTS, RESULTS
from streams.log.base import Log
from streams.placement.filing import known

DOUBTFUL_MS: Final = 3_600_000
"""Two results of a request are no further apart: whoever answers gives up after a quarter of its claims' TTL, ten minutes unless told."""
STARTS_LOOKED_THROUGH: Final = 5000
"""How far back the start looks for the epoch of the last start of the same process."""


def begun(log: Log, partition: int, stored: int | None, kept: Placements | None, tell: Callable[[str], None]) -> Placements:
    """The fold of a partition to go on from: what was `kept` of it, unless the records after that have left, else one that begins anew.

    `stored` is the offset below which all is done with, None if nobody stored one. `tell` hears of what nobody answers.
    """
    first, results_first = log.start(REQUESTS, partition), log.start(RESULTS, partition)
    if kept is not None and kept.requests_next >= first and kept.results_next >= results_first:
        return kept
    place, begin = f"{REQUESTS}/{partition}", max(stored or 0, first)
    filed = known(log, partition)
    if results_first > filed.next_offset:
        filed.lost_ms = _lost_ms(log, partition, results_first)
    if stored is None and filed.lost_ms:
        # Requests and results may be stamped by two brokers, whose clocks differ.
        begin = max(begin, log.at_time(REQUESTS, partition, filed.lost_ms + SKEW_MS + 1))
        tell(
            f"{place}: what was asked before offset {begin} is not answered: no offset is stored and results before "
            f"{RESULTS}/{partition}@{results_first} have left the log, so it may have been; ask again under another id where it was not"
        )
    elif stored is not None and stored < first:
        tell(
            f"{place}: the records from {stored} to {first - 1} have left the log, and not all of them may have been answered; ask again "
            "under another id where one was not"
        )
    results_next = max(results_first, filed.next_offset)
    placements = Placements(partition, log.topics()[REQUESTS], requests_next=begin, results_next=results_next)
    placements.filed, placements.results_time_ms = filed, filed.time_ms
    if filed.lost_ms:
        placements.doubtful_ms = filed.lost_ms + DOUBTFUL_MS
    return placements


def _lost_ms(log: Log, partition: int, results_first: int) -> int:
    """No result that has left is later than the first at hand. Without one: what they answered is no later than the newest request."""
    newest = log.end(REQUESTS, partition) - 1
    oldest = log.read(RESULTS, partition, results_first, 1)
    if not oldest and newest >= log.start(REQUESTS, partition):
        oldest = log.read(REQUESTS, partition, newest, 1)
    return oldest[0].time_ms if oldest else 0


def epoch_of(log: Log, process_id: str, request_partitions: int, now_ms: int) -> int:
    """The start's number: the time in ms, but above that of any earlier start of the process, whatever the clock says."""
    partition = partition_of(process_id.encode(), request_partitions)
    end = log.end(RESULTS, partition)
    epoch, first = now_ms, max(log.start(RESULTS, partition), end - STARTS_LOOKED_THROUGH)
    for record in between(log, RESULTS, partition, first, end, STARTS_LOOKED_THROUGH):
        epoch = max(epoch, record.time_ms)
        if record.key == process_id.encode():
            started = decode(RESULTS, record.value)
            if isinstance(started, SchedulerStarted):
                epoch = max(epoch, started.started_ms + 1)
    return epoch
