"""Whether `claims` is at hand: a ledger that lost a partition, or whose topic nobody here may see, reads like one with nothing in use."""

from __future__ import annotations

from collections.abc import Mapping

from projections.reading import HistoryMissing, Readable
from schemas.claims import PartitionOpened
from schemas.codec import decode
from schemas.topics import CLAIMS, NODE_RESOURCES, SNAPSHOTS, VERDICTS

FOLLOWS = (NODE_RESOURCES, VERDICTS, SNAPSHOTS)
"""What is made from `claims`, partition by partition, and never before something stands there."""


def opened_partitions(log: Readable) -> int:
    """How many partitions the ledger says it has, in the first record of any that has it still; 0 if none says so."""
    for number in range(log.topics().get(CLAIMS, 0)):
        if log.start(CLAIMS, number) == 0 and log.end(CLAIMS, number) > 0:
            opened = decode(CLAIMS, log.read(CLAIMS, number, 0, 1)[0].value)
            if isinstance(opened, PartitionOpened):
                return opened.partitions
    return 0


def check_whole(log: Readable, carried: Mapping[str, Mapping[int, int]] | None = None) -> int:
    """`opened_partitions`. Raises HistoryMissing where a partition of `claims` has nothing, and something at hand says that it had.

    That is the number of partitions in the ledger's own words, what follows from `claims`, or that observations were `carried` there: up
    to which offset, by topic and partition.
    """
    topics = log.topics()
    ends = log.ends(CLAIMS) if CLAIMS in topics else {}
    opened = opened_partitions(log)
    empty = [number for number in range(max(opened, len(ends))) if not ends.get(number)]
    if empty and opened and max(ends.values()) > 1:  # Else it is being made: each partition has its first record alone.
        raise HistoryMissing(_lacking(empty[0], f"the ledger has {opened} partitions"))
    if ends and not empty:
        return opened  # Also one that was opened anew after its records were lost: that is another ledger, which begins.
    for topic in FOLLOWS:
        said = log.ends(topic) if topic in topics else {}
        for number, end in said.items():
            if end and not ends.get(number):
                raise HistoryMissing(_lacking(number, f"{topic}/{number} has what follows from its records"))
    for topic, offsets in (carried or {}).items():
        for number, offset in offsets.items():
            if offset and not ends.get(number):
                raise HistoryMissing(_lacking(number, f"{topic}/{number} was carried there up to {offset}"))
    return opened


def _lacking(number: int, why: str) -> str:
    return (
        f"{CLAIMS}/{number}: there is nothing, but {why}. Its records are gone, left out of this copy, or hidden from this user; an answer "
        "without them would be wrong"
    )
