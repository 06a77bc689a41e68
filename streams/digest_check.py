"""The digest check: every folding process publishes digests, reads those of the others, and finds out who is wrong (rule 12).

Two that differ fold the same records again, each for itself, a slice a turn. The one whose own value then changes was wrong: it discards
what it kept and ends, so that it starts anew from the records. The other goes on, and says who was wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from projections.digests import FoldedAgain, Published, digest_of, read_digests
from projections.ledger import Ledger
from projections.reading import HistoryMissing, ProjectionError, WrongDigest
from schemas.codec import event_type
from schemas.topics import CLAIMS, DIGESTS, SNAPSHOTS
from schemas.units import NAME_CHARACTERS_MAX
from streams.log.base import Log, Message, Partition, partition_count
from streams.message import message_of
from streams.snapshot_writer import messages_of, write_snapshot

if TYPE_CHECKING:
    from streams.folder import Folder
    from streams.metrics import Metrics

LOOK_SECONDS: Final = 1.0
"""A process that is wrong is so from one digest on; a second more does no harm, and a look costs a question to the log."""
SLICE_RECORDS: Final = 2_000
"""Folded again in one turn: some ten milliseconds, so that placements and heartbeats hardly notice."""
OFFSETS_KEPT: Final = 64
"""Digests are compared as they come; a process that is behind by more than so many is compared by `replay --verify`."""


def digest_message(ledger: Ledger, process: str, version: str) -> Message:
    """The digest of a ledger as it stands, to be appended to `ledger-digests`."""
    origin = f"{CLAIMS}/{ledger.partition}@{ledger.next_offset - 1}"
    event = digest_of(ledger, process, version)
    event_id, source = f"{origin}/{event_type(event)}/{process}", f"claimlog/{process}"
    return message_of(DIGESTS, event, event_id=event_id, source=source, causation_id=origin, partition=ledger.partition)


def digest_name(process: str) -> str:
    """Under what name a scheduler publishes digests: the stream processor in the same process has a fold of its own."""
    return f"{process}/scheduler"[-NAME_CHARACTERS_MAX:]


class _Partition:
    """What is known of one partition's digests: where reading is, and what each process said at the last offsets."""

    def __init__(self, own_from: int) -> None:
        self.position: int | None = None
        self.own_from = own_from
        """Digests of our own name below are those of an earlier start of this process."""
        self.said: dict[int, dict[str, Published]] = {}
        self.wrong: set[str] = set()
        """Processes that were found wrong: told once, not judged again."""


class DigestCheck:
    """An engine for one fold: that of a stream processor's `partitions`, or with `everything` that of a scheduler. Hosted before it.

    `process` is the name under which this fold publishes. `discard` is called before this process ends because it was wrong, with the
    partition and what it was folded again with. Raises WrongDigest then, from `turn`.
    """

    name = "digest-check"

    def __init__(
        self,
        log: Log,
        process: str,
        metrics: Metrics,
        tell: Callable[[str], None],
        *,
        everything: bool = False,
        discard: Callable[[int, FoldedAgain], None] | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._process, self._metrics, self._tell, self._seconds = log, process, metrics, tell, seconds
        self._everything, self._discard = everything, discard
        self._partitions: dict[int, _Partition] = {}
        self._due = 0.0
        self._judging: tuple[FoldedAgain, Published, Published] | None = None

    def turn(self, partitions: frozenset[int]) -> int:
        """Look for digests that differ, now and then; fold on again if some do. Returns how many records that were."""
        if self._everything:
            partitions = frozenset(range(partition_count(self._log, CLAIMS)))
        for lost in self._partitions.keys() - partitions:
            del self._partitions[lost]
            if self._judging is not None and self._judging[0].ledger.partition == lost:
                self._judging = None
        if self._judging is not None:
            return self._judge(*self._judging)
        for number in partitions - self._partitions.keys():
            self._partitions[number] = _Partition(self._log.end(DIGESTS, number))
        if self._seconds() >= self._due:
            self._due = self._seconds() + LOOK_SECONDS
            # One question for all partitions: on Kafka each takes a millisecond in which nothing is placed.
            ends = self._log.ends(DIGESTS)
            for number in sorted(partitions):
                if ends.get(number, 0) > (self._partitions[number].position or 0):
                    self._look(number, self._partitions[number])
        return 0

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`. Nobody is woken for a digest."""
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def _look(self, number: int, known: _Partition) -> None:
        for published in read_digests(self._log, number, known.position):
            digest = published.digest
            if digest.process != self._process or published.position >= known.own_from:
                at_offset = known.said.setdefault(digest.offset, {})
                at_offset[digest.process] = published
                own = at_offset.get(self._process)
                if own is not None:
                    others = [other for name, other in at_offset.items() if name != self._process]
                    self._compare(own, others if published is own else [published], known)
            known.position = published.position + 1
        for offset in sorted(known.said)[:-OFFSETS_KEPT]:
            del known.said[offset]

    def _compare(self, own: Published, others: list[Published], known: _Partition) -> None:
        for other in others:
            if other.digest.ledger_id != own.digest.ledger_id:
                continue
            if other.digest.digest == own.digest.digest:
                known.wrong.discard(other.digest.process)
            elif self._differ(own, other):
                if other.digest.process not in known.wrong and self._judging is None:
                    self._begin(own, other, known)
                # Last: where the log does not answer, this digest is looked at again.
                self._metrics.digest_mismatches.inc()

    def _differ(self, own: Published, other: Published) -> bool:
        """Whether both are about the record that stands at their offset now."""
        number, offset = own.digest.partition, own.digest.offset
        if offset >= self._log.start(CLAIMS, number):
            records = self._log.read(CLAIMS, number, offset, 1)
            if not records or not other.is_about(records[0].time_ms):
                return False
        return True

    def _begin(self, own: Published, other: Published, known: _Partition) -> None:
        place = f"{CLAIMS}/{own.digest.partition}@{own.digest.offset}"
        differ = f"{place}: the digest of {other.who()} is {other.digest.digest}, that of this process {own.digest.digest}"
        try:
            again = FoldedAgain(self._log, own.digest.partition, own.digest.offset, self._tell)
        except HistoryMissing as problem:
            known.wrong.add(other.digest.process)
            self._tell(f"{differ}; one of them is wrong, and which is not to be found here: {problem}")
            return
        known.wrong.add(other.digest.process)
        self._tell(f"{differ}; folding again from {again.begun}")
        self._judging = (again, own, other)

    def _judge(self, again: FoldedAgain, own: Published, other: Published) -> int:
        """Fold a slice; at the end, say who was wrong. Raises WrongDigest if it is this process."""
        place = f"{CLAIMS}/{own.digest.partition}@{own.digest.offset}"
        try:
            count = again.fold(SLICE_RECORDS)
        except ProjectionError as problem:
            self._judging = None
            self._tell(f"{place}: cannot be folded again: {problem}")
            return 1
        if again.digest is None:
            return count
        if again.digest == own.digest.digest:
            self._judging = None
            right = "and so is the other's: it was another record's" if other.digest.digest == again.digest else f"{other.who()} is wrong"
            self._tell(f"{place}: folded again, this process is right, {right}")
            return count
        if self._discard is not None:
            self._discard(own.digest.partition, again)
        raise WrongDigest(
            f"{place}: this process, {own.who()}, was wrong: it had the digest {own.digest.digest}, and folded again from {again.begun} "
            f"it is {again.digest}. What it kept is discarded; start it again, it folds anew. Look at this machine's memory and disk"
        )


def discard(log: Log, folder: Folder, number: int, again: FoldedAgain) -> None:
    """Throw away what a stream processor that was wrong has kept of a partition: its table, and the snapshots, which are its words too.

    The next start begins where `again` began: at the first record, or at that snapshot, which is published anew as the last one.
    """
    fold = folder.folds.get(number)
    if fold is not None:  # One that took too long was given up already, with its table.
        fold.table.clear()
    before = None
    if again.base is not None:
        ledger, extras = again.base
        before = write_snapshot(log, number, messages_of(ledger, extras))
    log.truncate(SNAPSHOTS, number, log.end(SNAPSHOTS, number) if before is None else before)
