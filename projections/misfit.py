"""Whether a stored state, of a table or a snapshot, is a fold of the log at hand (rule 13)."""

from __future__ import annotations

from projections.ledger import Ledger
from projections.reading import Readable
from schemas.claims import PartitionOpened
from schemas.codec import decode
from schemas.few import offsets
from schemas.topics import CLAIMS


def misfit(ledger: Ledger, log: Readable, number: int) -> str | None:
    """Why a stored state does not belong to this partition of this log and is to be discarded (rule 13); None if it does."""
    next_offset = ledger.next_offset
    if ledger.partition != number:
        return f"it is of {CLAIMS}/{ledger.partition}"
    partitions = log.topics().get(CLAIMS)
    if partitions != ledger.partitions:
        return f"the log has {partitions} partitions of {CLAIMS}, it is of {ledger.partitions}"
    if not next_offset:
        return None
    start, end = log.start(CLAIMS, number), log.end(CLAIMS, number)
    if end < next_offset:
        is_anothers = end > start == 0 and _ledger_id(log, number) not in {None, ledger.ledger_id}
        return f"the log ends at offset {end}, before it{'' if is_anothers else _lacking(end, next_offset)}"
    if start > next_offset:
        return f"the log begins at offset {start}, the records from {next_offset} on are not at hand"
    if start < next_offset:
        last = log.read(CLAIMS, number, next_offset - 1, 1)[0]
        if (last.offset, last.value) != (next_offset - 1, ledger.last_value):
            return f"the log has another record at offset {next_offset - 1}"
    if start == 0 and (found := _ledger_id(log, number)) not in {None, ledger.ledger_id}:
        return f"it is of ledger {ledger.ledger_id!r}, the log is ledger {found!r}"
    return None


def _ledger_id(log: Readable, number: int) -> str | None:
    """As the first record has it."""
    opened = decode(CLAIMS, log.read(CLAIMS, number, 0, 1)[0].value)
    return opened.ledger_id if isinstance(opened, PartitionOpened) else None


def _lacking(end: int, next_offset: int) -> str:
    folded = "was folded" if next_offset == end + 1 else "were folded"
    return (
        f": acknowledged records are missing, {offsets(end, next_offset)}, which {folded}. If it is a restored copy, guests may be running "
        "by grants that it does not have, until each node was audited; if not, stop, and restore one that has them"
    )
