"""Records that were lost in the middle of topics where everybody passes over an offset without one, for `claimlog doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from schemas.topics import AUDITS, LIFECYCLE, REQUESTS
from streams.cli.doctor.checks import Check
from streams.log.base import Log, Record
from streams.log.holes import CAUSE, holes_in, told
from streams.log.reading import partition_records, places

LOOKED_THROUGH = (AUDITS, LIFECYCLE, REQUESTS)
"""In `claims` and `placement-results` a single offset without a record ends whoever reads it; all else is derived."""
FIX = (
    "look at the brokers' disks and at cleanup.policy (`claimlog topics check`). What hosts report next says what is there; a request "
    "without an answer is asked again"
)


def holes(log: Log, progress: Callable[[int], None]) -> Iterator[Check]:
    """Reads every record of these topics; `progress` hears how many more are done."""
    found = [hole for place in places(log, *LOOKED_THROUGH) for hole in holes_in(_counted(partition_records(log, *place), progress))]
    if found:
        yield Check("warn", "holes", f"{told(found)}: {CAUSE}", FIX)
    else:
        yield Check("ok", "holes", "observations and requests have no offsets without a record but what marks of transactions take")


def _counted(records: Iterable[Record], progress: Callable[[int], None]) -> Iterator[Record]:
    for record in records:
        yield record
        progress(1)
