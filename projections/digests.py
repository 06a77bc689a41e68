"""Digests that processes publish: read back, told from those of an earlier log, and judged by folding the same records again (rule 12).

A digest chains over every record and what it did, so two processes that differ at one offset differ at all later ones. Which of them is
wrong nobody can say but by folding again, and only one whose own value then changes was.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from projections.ledger import Ledger
from projections.reading import HistoryMissing, Readable, between
from projections.rules import SKEW_MS
from projections.snapshots import Extras, Tell, load_newest_with
from schemas.codec import decode_keyed
from schemas.results import LedgerDigest
from schemas.topics import CLAIMS, DIGESTS

READ_RECORDS = 5_000


class Published(Struct, frozen=True):
    """A digest of one process, and when it was appended."""

    digest: LedgerDigest
    position: int
    time_ms: int

    def is_about(self, time_ms: int) -> bool:
        """Whether it can be about a record appended at `time_ms`: one published before it is left from a log that stood here earlier."""
        return self.time_ms + SKEW_MS >= time_ms

    def who(self) -> str:
        """The process and its versions, as people read them."""
        return f"{self.digest.process} (claimlog {self.digest.version or 'unknown'}, rules {self.digest.rules_version})"


def digest_of(ledger: Ledger, process: str, version: str) -> LedgerDigest:
    """What a process says of a ledger as it stands, by its last record; `version` is that of claimlog."""
    return LedgerDigest(
        ledger_id=ledger.ledger_id or "?",
        partition=ledger.partition,
        process=process,
        offset=ledger.next_offset - 1,
        digest=ledger.digest.hex(),
        rules_version=ledger.rules_version,
        version=version,
    )


def read_digests(log: Readable, partition: int, at: int | None = None) -> Iterator[Published]:
    """Every digest of a partition of the ledger from the offset `at` of `ledger-digests` on; what else lies there says nothing."""
    if partition >= log.topics().get(DIGESTS, 0):
        return
    start, end = log.start(DIGESTS, partition), log.end(DIGESTS, partition)
    at = start if at is None else max(at, start)
    for record in between(log, DIGESTS, partition, at, end, READ_RECORDS):
        event = decode_keyed(DIGESTS, record.key, record.value)
        if isinstance(event, LedgerDigest) and event.partition == partition:
            yield Published(event, record.offset, record.time_ms)


class FoldedAgain:
    """One partition folded up to and with `offset`, a slice at a time, from as far back as there is something to begin at.

    That is the first record: the records are the truth, and a snapshot only what some process said, perhaps the very one that is wrong.
    Where history left the log it is the oldest snapshot at hand, since what leaves is verified before. `base` is that snapshot with its
    rows. Raises HistoryMissing if there is neither.
    """

    def __init__(self, log: Readable, partition: int, offset: int, tell: Tell | None = None) -> None:
        self._log, self.offset = log, offset
        self.base: tuple[Ledger, Extras] | None = None
        if log.start(CLAIMS, partition) == 0:
            self.ledger = Ledger(partition, log.topics()[CLAIMS])
            self.begun = "the first record"
            return
        found = load_newest_with(log, partition, at_most=offset + 1, tell=tell)
        while found is not None:
            self.base = found
            found = load_newest_with(log, partition, at_most=found[0].next_offset - 1, tell=tell)
        again = None if self.base is None else load_newest_with(log, partition, at_most=self.base[0].next_offset, tell=tell)
        if again is None:
            raise HistoryMissing(
                f"{CLAIMS}/{partition}@{offset}: what is below offset {log.start(CLAIMS, partition)} has left the log and no snapshot "
                "before it is there, so it cannot be folded again here; `claimlog replay --verify --archive DIR` can"
            )
        self.ledger = again[0]
        self.begun = f"the snapshot of offset {self.ledger.next_offset - 1}"

    @property
    def digest(self) -> str | None:
        """The digest at `offset`, once it is folded."""
        return self.ledger.digest.hex() if self.ledger.next_offset > self.offset else None

    def fold(self, records_max: int) -> int:
        """Fold so many records more; returns how many there were. Raises HistoryMissing, and as the fold does."""
        ledger = self.ledger
        at, want = ledger.next_offset, min(records_max, self.offset + 1 - ledger.next_offset)
        if want <= 0:
            return 0
        records = self._log.read(CLAIMS, ledger.partition, at, want)[:want]
        if not records:
            raise HistoryMissing(f"{CLAIMS}/{ledger.partition}@{at}: this record is no longer at hand; fold again from an archive")
        for record in records:
            ledger.apply(record.offset, record.time_ms, record.key, record.value)
        return len(records)
