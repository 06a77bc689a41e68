"""The double claims of the whole log, as the stream processor finds them: in the worker that has partition 0 of the ledger.

The sides of a double mostly lie in two partitions, and those may belong to two workers. So whoever has partition 0 folds along what the
others have, in memory and without tables, as every scheduler does. The others see to no doubles; of what they fold they keep the
operator's words on some, since these stand in one partition only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from projections import companions
from projections.companions import Doubles
from projections.doubles import KIND, DoubleClaims, newer_word
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.open_finding import OpenFinding
from projections.reading import OffsetGap, bare_reading, between, where_archived
from projections.rules import GRACE_MS, SKEW_MS
from projections.snapshots import load_newest_with
from projections.state import StateError
from schemas.codec import decode_keyed
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.partitioner import partition_of
from schemas.topics import CLAIMS, FINDINGS
from streams.leak_audit import finding_messages
from streams.log.base import Log, Message, OffsetOutOfRange, Partition, Record, partition_count

SEEN_BY = 0
"""The partition whose owner sees to doubles."""
BATCH_RECORDS = 10_000
"""Records of a partition folded at once: an eighth of a second's work."""
LOOK_EVERY_MS = 1000
"""So much later has to be read everywhere until all that is held twice is looked at again."""


class DoubleWatch:
    """See the module. `tell` hears of snapshots that are passed over, and of partitions that cannot be followed."""

    def __init__(self, log: Log, tell: Callable[[str], None]) -> None:
        self._log, self._tell = log, tell
        self._read = bare_reading(log)
        self._partitions = self._findings = 0
        """How many `claims` and `leak-findings` have, once it has something to do."""
        self._ours: dict[int, Ledger] = {}
        self._owned: frozenset[int] = frozenset()
        self._followed: dict[int, Ledger] = {}
        """What others have."""
        self._last = -1
        """The followed partition that was read last."""
        self._known = Doubles()
        self._doubles: DoubleClaims | None = None
        """None where it is another's work, and until every ledger is there."""
        self._is_unsaid = self._is_taken_over = False
        self._known_ms = 0
        """Up to when all that was said of doubles is in what is known."""
        self._read_to_ms = 0
        self._told: set[int] = set()
        """Partitions of which it was said that they cannot be followed yet."""
        self._messages: list[Message] = []
        """What was found and not appended yet."""

    def heard_of(self, kept: Doubles | None, ledger: Ledger, *, is_unsaid: bool) -> None:
        """What the table or snapshot of a partition knows of doubles; with `is_unsaid` its open findings may never have been said."""
        if kept is not None:
            self._known, self._doubles = self._newest(kept, ledger), None
        if ledger.partition == SEEN_BY:
            self._is_unsaid, self._is_taken_over = self._is_unsaid or is_unsaid, True

    def _newest(self, kept: Doubles, ledger: Ledger) -> Doubles:
        """What is known with what was kept beside a ledger: all that was said up to its time is in the newer one."""
        known = self.known()
        if kept.changes > known.changes:
            self._known_ms = ledger.time_ms
        elif kept.changes == known.changes:
            # Two workers may have come to the same number.
            self._known_ms = min(self._known_ms, ledger.time_ms) if kept.changes else 0
        return companions.newest([known, kept])

    def known(self) -> Doubles:
        """What is to be kept with every table."""
        doubles = self._doubles
        return self._known if doubles is None else Doubles(self._known.changes, doubles.open, doubles.words)

    def open_findings(self) -> list[LeakSuspected | LeakConfirmed]:
        """Every unresolved double of the log, where it is this worker's to say; else none."""
        return [] if self._doubles is None else self._doubles.open_findings()

    def take(self, ours: Mapping[int, Ledger], owned: frozenset[int]) -> None:
        """These partitions are the worker's, and of these the ledgers are loaded; the rest is followed from the newest snapshots on."""
        sees = SEEN_BY in owned
        is_missing = self._doubles is None and sees and ours.keys() == owned
        if self._owned == owned and self._ours == ours and not is_missing:
            return
        self._partitions, self._findings = (partition_count(self._log, topic) for topic in (CLAIMS, FINDINGS))
        known, self._doubles = self.known(), None
        self._ours, self._owned = dict(ours), owned
        others = frozenset(range(self._partitions)) - owned if sees else frozenset()
        self._followed = {number: ledger for number, ledger in self._followed.items() if number in others}
        self._known = known if sees else Doubles(words=known.words)
        if not sees:
            # Whoever sees to them now finds the same, and may have said by now what became of it.
            self._messages, self._known_ms = [], 0
        if not sees or ours.keys() != owned:
            return
        for number in sorted(others - self._followed.keys()):
            self._begin(number)
        if self._followed.keys() != others:
            return
        if self._is_taken_over:
            # What others said meanwhile is open here as well: it may have ended in what was folded without them.
            self._known.open = said_since(self._log, max(0, self._known_ms - SKEW_MS), self._known.open)
            self._known.changes += 1  # So that it is kept with each table, and the next start reads no more than what was said since.
            self._is_taken_over = False
        ledgers = dict(sorted((self._ours | self._followed).items()))
        self._doubles = DoubleClaims(ledgers, self._known.open, self._known.words)
        self._read_to_ms = 0
        self._messages += self._said(self._doubles.said() if self._is_unsaid else self._doubles.reworded)
        self._is_unsaid = False

    def apply(self, partition: int, step: Step) -> None:
        """Look at a step of a partition that the process folds itself."""
        doubles = self._doubles
        if doubles is None:
            newer_word(self._known.words, step)
        elif records := doubles.apply(partition, step):
            self._messages += self._said(records)

    def latest_ms(self) -> int:
        """The time of the newest record that is folded."""
        return max((ledger.time_ms for ledger in (*self._ours.values(), *self._followed.values())), default=0)

    def follow(self, has_time: Callable[[], bool], read_ms: int = 0) -> int:
        """Fold what others have, a batch of each partition, or of as many as there is time for; returns what was done and what is left.

        With `read_ms` the process has read its own partitions to their ends since a record of that time was somewhere.
        """
        doubles = self._doubles
        if doubles is None:
            return 0
        done, is_behind = 0, False
        left = sorted(self._followed, key=lambda number: (number <= self._last, number))
        while left and (has_time() or not done):
            self._last = left.pop(0)
            read, is_at_end = self._batch(doubles, self._last)
            done, is_behind = done + read, is_behind or not is_at_end
            if self._doubles is not doubles:
                return done + len(left)
        if not (left or is_behind) and read_ms >= self._read_to_ms + LOOK_EVERY_MS:
            self._read_to_ms = read_ms
            self._messages += self._said(doubles.read_to_the_ends(read_ms))
        return done + len(left)

    def say(self) -> bool:
        """Append what was found; whether there was something. Before any table is written: what those know of doubles has been said."""
        if not self._messages:
            return False
        self._log.append(self._messages)
        self._messages = []
        return True

    def waits(self) -> dict[Partition, int]:
        """The offsets at which others' partitions would have something new, as long as they are followed."""
        if self._doubles is None:
            return {}
        return {Partition(CLAIMS, number): ledger.next_offset for number, ledger in self._followed.copy().items()}

    def _begin(self, number: int) -> None:
        """Follow a partition from its newest snapshot on; not yet where none includes what left the log, until its worker writes one."""
        found = load_newest_with(self._log, number, tell=self._tell)
        ledger, rows = found or (Ledger(number, self._partitions), ())
        if (start := self._log.start(CLAIMS, number)) > ledger.next_offset:
            if number not in self._told:
                self._told.add(number)
                left = f"records {ledger.next_offset} to {start - 1} have left the log, and no snapshot includes them"
                self._tell(f"{CLAIMS}/{number}: {left}: no double claims are said until one does; {where_archived(self._log)}")
            return
        self._told.discard(number)
        with suppress(StateError):  # Whoever has the partition says so; of these rows only what is known of doubles is asked for.
            if (doubles := companions.taken(number, rows)[2]) is not None:
                self._known = self._newest(doubles, ledger)
        ledger.hash_no_more()
        self._followed[number] = ledger

    def _batch(self, doubles: DoubleClaims, number: int) -> tuple[int, bool]:
        """Fold a batch of somebody else's partition; how many records that were, and whether it ended there."""
        ledger = self._followed[number]
        try:
            records = self._read(CLAIMS, number, ledger.next_offset, BATCH_RECORDS)
            end = self._log.end(CLAIMS, number) if records else ledger.next_offset
            for record in records:
                step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
                if step is not None:
                    self._messages += self._said(doubles.apply(number, step))
        except (OffsetGap, OffsetOutOfRange):
            if self._log.start(CLAIMS, number) <= ledger.next_offset:
                raise
            # What comes next has left for an archive, so there is a snapshot that includes it: it is begun there in the next turn.
            del self._followed[number]
            self._known, self._doubles = self.known(), None
            return 1, False
        return len(records), ledger.next_offset >= end

    def _said(self, records: Iterable[FindingRecord]) -> list[Message]:
        """All that is said of one double stands in one partition, in the order in which it was said."""
        messages: list[Message] = []
        for record in records:
            self._known.changes += 1
            at = partition_of(record.finding_id.encode(), self._findings)
            messages += finding_messages(at, (record,))
        return messages


def said_since(log: Log, since_ms: int, known: Mapping[str, OpenFinding]) -> dict[str, OpenFinding]:
    """The doubles that are open by what `leak-findings` has from that time on, by instance; what was `known` before is unless it ended."""
    found: list[Record] = []
    for number, end in log.ends(FINDINGS).items():
        records = between(log, FINDINGS, number, log.at_time(FINDINGS, number, since_ms), end, BATCH_RECORDS)
        found += [record for record in records if KIND.encode() in record.value]
    open_ = dict(known)
    for record in sorted(found, key=lambda record: (record.time_ms, record.partition, record.offset)):
        event = decode_keyed(FINDINGS, record.key, record.value)
        # No worker says what is still to come: nobody would ever find it over. Whatever else somebody else made up is over at once.
        if not isinstance(event, FindingRecord) or event.kind != KIND or event.since_ms > record.time_ms + SKEW_MS:
            continue
        if isinstance(event, LeakResolved):
            open_.pop(event.instance_id, None)
        elif isinstance(event, LeakSuspected | LeakConfirmed):
            open_[event.instance_id] = OpenFinding(event, event.since_ms + GRACE_MS)
    return open_
