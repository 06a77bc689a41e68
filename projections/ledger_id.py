"""Which ledger a log carries, and whether a cut is one of that log: numbers of one log at a place of another would be nobody's."""

from __future__ import annotations

from collections.abc import Collection

from projections.cut import Cut
from projections.reading import HistoryMissing, Readable, WrongCut
from projections.snapshots import newest_chunk
from schemas.claims import PartitionOpened
from schemas.codec import decode
from schemas.topics import CLAIMS, MADE_AGAIN


def ledger_id_of(log: Readable) -> str:
    """What the ledger says of itself in its first record, so that a copy of the log is the same ledger; else what the log says; else empty.

    Where the first record was archived, the newest snapshot says it too. Raises as the log's `read` of `claims` does.
    """
    if log.topics().get(CLAIMS, 0) and log.start(CLAIMS, 0) == 0 < log.end(CLAIMS, 0):
        first = log.read(CLAIMS, 0, 0, 1)
        opened = decode(CLAIMS, first[0].value) if first and first[0].offset == 0 else None
        if isinstance(opened, PartitionOpened):
            return opened.ledger_id
    if (chunk := newest_chunk(log, 0)) is not None:
        return chunk.ledger_id
    return log.ledger_id


def check_cut(log: Readable, cut: Cut, topics: Collection[str] | None = None) -> None:
    """Refuse a cut that was taken on another log, or includes what this one does not have of `topics` (None: of all).

    Raises WrongCut, HistoryMissing.
    """
    ledger_id = ledger_id_of(log)
    if not cut.may_be_of(ledger_id):
        raise WrongCut(f"this cut was taken on another log than this of ledger {ledger_id}; pass the log of its answer, or another cut")
    there = log.topics()
    for topic, number, end in cut.places:
        if topics is not None and topic not in topics:
            continue
        at_hand = log.end(topic, number) if number < there.get(topic, 0) else 0
        if end > at_hand:
            why = "it is the cut of another log"
            if topic in MADE_AGAIN:
                why = "it follows from the ledger, and a copy has none of it until `claimlog run` makes it anew"
            raise HistoryMissing(f"the cut includes {topic}/{number} up to {end}, this log ends at {at_hand}: {why}")
