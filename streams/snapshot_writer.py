"""Writes snapshots to `ledger-snapshots`, also where what stands there is damaged: then it goes, since all it says is in `claims`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from projections.ledger import Ledger
from projections.snapshots import chunks_of
from schemas.codec import encode, key_of
from schemas.topics import SNAPSHOTS
from streams.log.base import Log, LogDamaged, Message


def messages_of(ledger: Ledger, extras: Iterable[tuple[bytes, bytes]]) -> list[Message]:
    """A snapshot of a partition, with the rows kept beside its ledger, as messages without headers."""
    chunks = chunks_of(ledger, extras=extras)
    return [Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk), partition=ledger.partition) for chunk in chunks]


def write_snapshot(log: Log, partition: int, chunks: Sequence[Message]) -> int:
    """Append one snapshot of a partition, all its chunks as messages, and return the offset of the first.

    A log takes nothing more into a partition that is damaged, so there everything older is dropped first. Raises as `append` does:
    LogDamaged only if that did not help, as where it is the structure of SQLite's file that is damaged.
    """
    try:
        return log.append(chunks)[0]
    except LogDamaged:
        try:
            log.truncate(SNAPSHOTS, partition, log.end(SNAPSHOTS, partition))
            return log.append(chunks)[0]
        except LogDamaged as problem:
            mends = f"{SNAPSHOTS}/{partition} takes no new snapshot; `claimlog copy` makes a sound log of all that people and machines said"
            raise LogDamaged(f"{problem}. {mends}") from problem
