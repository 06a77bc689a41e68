"""How far a copy of a ledger is to reach, said in the copy before its first record: an interrupted one is not taken for the ledger.

A copy is made topic by topic, so until it is whole it lacks nodes and claims, and whoever placed by it would grant them once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemas.topics import CLAIMS
from streams.log.base import Log, LogCutShort, Partition

# The ends are kept as what this group has read, beside the real groups: every log stores that durably.
_GROUP = "copies"


def mark(copy: Log, ends: Mapping[str, Mapping[int, int]]) -> None:
    """Say that `copy` is whole once each of its partitions reaches the offset in `ends`, by topic."""
    for topic, offsets in ends.items():
        copy.commit(_GROUP, topic, offsets)


def spoil(copy: Log, places: Iterable[Partition]) -> None:
    """Say that `copy` is not the ledger and never will be: what stands in `places` is not what was copied."""
    for place in places:
        copy.commit(_GROUP, place.topic, {place.number: copy.end(*place) + 1})


def check_begun(log: Log, name: str) -> None:
    """Raises LogCutShort for what is to be a copy and has no record yet, perhaps no mark either."""
    if not any(log.ends(CLAIMS).values()):
        raise LogCutShort(
            f"{name}: there is nothing yet, and the times of {CLAIMS} are their writers' (message.timestamp.type=CreateTime), as while a "
            "ledger is copied. A copy goes on where it stopped: run `claimlog copy` again. If this is to be a new ledger, "
            "`claimlog topics apply` opens it"
        )


def check_whole(log: Log, name: str) -> None:
    """Raises LogCutShort for a copy that was interrupted or is being made, by its `name`; a log that is no copy is whole."""
    for topic in log.topics():
        wanted = log.committed(_GROUP, topic)
        for number, end in sorted(wanted.items()):
            if (reached := log.end(topic, number)) < end:
                raise LogCutShort(
                    f"{name}: this copy of a ledger is not complete: {Partition(topic, number)} ends at {reached}, expected {end}. Wait "
                    "until `claimlog copy` is done, or run it again: it goes on where it stopped. If the original is lost, "
                    "a copy of this copy has what is there"
                )
