"""One partition of `claims` as the folder holds it: ledger, views, findings, and the table that keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping

import msgspec
from msgspec import Struct, field

from projections import companions
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.misfit import misfit
from projections.observed import Observed
from projections.reading import between
from projections.snapshots import load_newest_with, newest_offset
from projections.state import StateError
from projections.table import Table
from schemas import topics
from schemas.codec import Unreadable, decode
from schemas.findings import LeakResolved
from schemas.results import ClaimOutcome
from streams.dead_letters import dead_letter, hash_of
from streams.leak_audit import LeakAudit, ended_below, finding_messages
from streams.log.base import Log, LogDamaged, Message, Record, partition_count, topic_id_of
from streams.log.reading import READ_RECORDS, partition_records

Letters = Mapping[int, Mapping[int, str]]
"""Of each partition the offsets that have a dead letter, each with the hash of its record."""
AHEAD_RECORDS = 200_000
"""A snapshot so much further than the table is loaded instead: folding as much takes ten times as long."""

PUBLISHED = (topics.FINDINGS, topics.NODE_RESOURCES, topics.SNAPSHOTS, topics.VERDICTS)
"""Where readers look for what follows from a state: it is published again where one of them was made anew."""
TOPIC_IDS, SNAPSHOT_STARTS, REFOLDS_TO = "topic-ids", "snapshot-starts", "refolds-to"
"""The notes of the table: their ids; where the snapshots begin that were written with it; and, where what follows is made again from the
first record on, up to where: until then no snapshot is begun at.
"""

SETTLES_SECONDS = 2.0
"""So long after it was taken over a partition that always has more is first looked through for silent nodes."""
NEVER = -(1 << 62)
"""Of a snapshot's offset: one is due with the next batch, however long the fold has to catch up."""


class Batch(Struct):
    """Records that are folded: what follows from them, until it is published, and with `keeps` all since the last such batch is kept.

    `dead` are those that count for nothing, until it is known whether they have letters. `letters` are written before verdicts: by the
    newest of those a later start sees which letters there are (`_faults_below`). With `compacts` rows that were replaced are dropped.
    """

    records: int
    lag: int
    keeps: bool
    compacts: bool = False
    letters: list[Message] = field(default_factory=list)
    derived: list[Message] = field(default_factory=list)
    dead: list[tuple[Record, Unreadable]] = field(default_factory=list)
    snapshot: list[Message] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


class Fold:
    """One partition's state: ledger, views, findings, and the table that keeps them."""

    def __init__(
        self,
        log: Log,
        partition: int,
        table: Table,
        tell: Callable[[str], None],
        began_seconds: float,
        batch_records: int,
        topic_ids: bytes,
    ) -> None:
        """`topic_ids` as `published_in` has them."""
        self.partition = partition
        self.began_seconds: float | None = began_seconds
        """When it was taken over; None once it has caught up, or is known to take its time."""
        self.table = LedgerTable(table)
        self._close = table.close
        self.doubles_kept, self.discarded = (0, dict[str, tuple[str, int]]()), 0
        self.doubles: companions.Doubles | None = None
        self._topic_ids = topic_ids
        made_anew = _made_anew(self.table.noted(TOPIC_IDS), topic_ids)
        self.ledger, self.observed, leaks, at_snapshot = self._begin(log, made_anew, tell)
        self.is_unstored = at_snapshot
        """Whether the table has nothing of it yet, but that of before: not until all that follows is published."""
        self.audit = LeakAudit(partition, leaks)
        self.is_unsaid = at_snapshot or topics.FINDINGS in made_anew or not log.end(topics.FINDINGS, partition)
        self.unsaid = finding_messages(partition, self.audit.open_findings()) if self.is_unsaid else []
        """Findings that may not be published: open ones, as a snapshot's writer need not have come so far, and the end of what was open.

        Readers know a copy for one.
        """
        if at_snapshot:
            self.unsaid += finding_messages(partition, _ended_below(log, self.ledger, self.audit, tell))
        self.unlettered = _faults_below(log, self.ledger, tell) if at_snapshot else []
        """Records below a snapshot that count for nothing, and may have no letter: `claimlog snapshot write` writes none."""
        self.is_at_end = False
        """Whether nothing stood behind what was read last."""
        self.silences_ms = 0
        self.taken_seconds, self.taken_end = began_seconds, log.end(topics.CLAIMS, partition)
        """When it was taken over, and where the partition ended then."""
        self.has_looked = False
        """Whether silent nodes have been looked for since."""
        self.snapshot_offset = newest_offset(log, partition)
        if log.start(topics.CLAIMS, partition) > self.snapshot_offset:
            # The records below have left and no snapshot includes them: nobody else can begin here until this fold writes one.
            self.snapshot_offset = NEVER
        self.snapshot_starts = [] if at_snapshot or topics.SNAPSHOTS in made_anew else self._snapshots_before(log)
        self._starts_noted: list[int] | None = None
        """With the topics' ids; None until this fold has noted anything."""
        self.unfinished: Batch | None = None
        self.batch_records = batch_records
        self.touched: set[str] = set()
        """Nodes whose rows are to be published and kept."""

    def _begin(self, log: Log, made_anew: Container[str], tell: Callable[[str], None]) -> tuple[Ledger, Observed, Leaks, bool]:
        """The state in the table if it belongs to this log, else that of the newest snapshot, else an empty one: the log has it all.

        `made_anew` are topics that are not those which the table's state was published in.

        And whether it is that of a snapshot.
        """

        def passed_over(reason: str) -> None:
            self.discarded += 1
            tell(reason)

        place = f"{topics.CLAIMS}/{self.partition}"
        kept = self._in_table(log, passed_over)
        if kept is not None and (unmade := _unmade(kept[0], log, made_anew)):
            passed_over(f"{place}: the state in the table is discarded: {unmade}; all is folded anew, which makes it again")
            return self._made_again(log)
        is_empty = not self.table.next_offset  # Else a state that is not this log's, whose notes are of no use.
        if (kept is None) == is_empty and self._is_made_again(log, self.table.next_offset):
            return self._made_again(log) if kept is None else (*kept, False)
        behind = newest_offset(log, self.partition) - (0 if kept is None else kept[0].next_offset)
        if kept is not None and behind < AHEAD_RECORDS:
            return *kept, False
        found = load_newest_with(log, self.partition, tell=passed_over)
        if found is None or not found[1]:
            return self._begun_anew(log) if kept is None else (*kept, False)
        if kept is not None:
            passed_over(f"{place}: the table is {behind} records behind the newest snapshot; it is discarded and begun there")
        ledger, extras = found
        if unmade := _unmade(ledger, log):
            passed_over(f"{place}: the snapshot is passed over: {unmade}; all is folded anew, which makes it again")
            return self._made_again(log)
        return ledger, *self._taken(extras), True

    def _in_table(self, log: Log, tell: Callable[[str], None]) -> tuple[Ledger, Observed, Leaks] | None:
        """The state in the table; None without one, or where it is not this log's or cannot be read, which is told."""
        ledger = self.table.load(tell)
        if ledger is None:
            return None
        reason = misfit(ledger, log, self.partition)
        if reason is None:
            try:
                return ledger, *self._taken(self.table.extras())
            except StateError as problem:
                reason = str(problem)
        tell(f"{topics.CLAIMS}/{self.partition}: the state in the table is discarded: {reason}; it is folded anew")
        return None

    def _begun_anew(self, log: Log) -> tuple[Ledger, Observed, Leaks, bool]:
        """From the first record."""
        self.table.clear()
        self.doubles, self.doubles_kept = None, (0, {})
        return Ledger(self.partition, partition_count(log, topics.CLAIMS)), Observed(self.partition), Leaks(self.partition), False

    def _made_again(self, log: Log) -> tuple[Ledger, Observed, Leaks, bool]:
        """The same, and whoever goes on with this table does so until all that there is now has been published once more."""
        begun = self._begun_anew(log)
        self.table.note(TOPIC_IDS, self._topic_ids)
        self.table.note(REFOLDS_TO, msgspec.json.encode(log.end(topics.CLAIMS, self.partition)))
        return begun

    def _is_made_again(self, log: Log, offset: int) -> bool:
        """Whether that is still to be done by a fold which stands at this offset, and can be."""
        noted = self.table.noted(REFOLDS_TO)
        return noted is not None and log.start(topics.CLAIMS, self.partition) <= offset < msgspec.json.decode(noted, type=int)

    def is_made_again(self, log: Log) -> bool:
        """Whether the table is not to be left for a snapshot, however far ahead that is."""
        return self._is_made_again(log, self.ledger.next_offset)

    def _snapshots_before(self, log: Log) -> list[int]:
        """Where those begin that were written with this table, if it is this log's, and are still there."""
        noted, end = self.table.noted(SNAPSHOT_STARTS), log.end(topics.SNAPSHOTS, self.partition)
        return [] if noted is None else [start for start in msgspec.json.decode(noted, type=list[int]) if start < end]

    def _taken(self, rows: companions.Rows) -> tuple[Observed, Leaks]:
        observed, leaks, self.doubles = companions.taken(self.partition, rows)
        if self.doubles is not None:
            self.doubles_kept = self.doubles.changes, dict(self.doubles.words)
        return observed, leaks

    @property
    def unkept(self) -> int:
        """How many records are folded and not kept."""
        return self.ledger.next_offset - (0 if self.is_unstored else self.table.next_offset)

    def has_settled(self, now_seconds: float) -> bool:
        """Whether all that there was is folded, and what producers said while nobody carried it has been carried by now."""
        return self.ledger.next_offset >= self.taken_end and now_seconds - self.taken_seconds > SETTLES_SECONDS

    def write_letters(self, batch: Batch, letters: Callable[[], Letters], count: Callable[[str, str], None]) -> None:
        """Add the letters of a batch and count them; what had one when the partition was taken over is no news, and gets no other.

        `letters` asks the log, which may not answer: then nothing has changed.
        """
        if not batch.dead:
            return
        # What came later has none.
        there = letters().get(self.partition, {}) if batch.dead[0][0].offset < self.taken_end else {}
        for record, fault in batch.dead:
            if there.get(record.offset) != hash_of(record.value):
                count(record.topic, fault.kind)
                batch.letters.append(dead_letter(record, fault))
        batch.dead = []

    def keep(self, doubles: companions.Doubles) -> None:
        """Write what changed since the last time, with views and findings of the nodes touched, and the doubles if they changed."""
        if self.is_unstored:
            self.table.store(self.ledger, dict(companions.all_rows(self.observed, self.audit.leaks, doubles)))
            self.doubles_kept, self.is_unstored = (doubles.changes, dict(doubles.words)), False
            self._keep_notes()
            return
        extra = dict(companions.node_row(self.observed, self.audit.leaks, node_id) for node_id in self.touched)
        if (known := (doubles.changes, dict(doubles.words))) != self.doubles_kept:
            extra.update((companions.doubles_row(doubles),))
            self.doubles_kept = known
        self.table.write(self.ledger, extra=extra)
        self._keep_notes()

    def _keep_notes(self) -> None:
        """All that follows is published now; the notes are written where they are not the last ones."""
        self.touched.clear()
        if self._starts_noted != self.snapshot_starts:
            self.table.note(TOPIC_IDS, self._topic_ids)
            self.table.note(SNAPSHOT_STARTS, msgspec.json.encode(self.snapshot_starts))
            self._starts_noted = list(self.snapshot_starts)

    def close(self) -> None:
        """Close the table."""
        self._close()


def _ended_below(log: Log, ledger: Ledger, audit: LeakAudit, tell: Callable[[str], None]) -> list[LeakResolved]:
    """Findings that were said to be open and are gone by the snapshot that the state was begun from: nothing else would say so, ever."""
    partition, open_ids = ledger.partition, {finding.finding_id for finding in audit.open_findings()}
    try:
        return ended_below(partition_records(log, topics.FINDINGS, partition) if topics.FINDINGS in log.topics() else (), ledger, open_ids)
    except LogDamaged as problem:  # The fold has no need of it.
        tell(f"{topics.FINDINGS}/{partition}: findings that ended below the snapshot may be open there for ever: {problem}")
        return []


def _faults_below(log: Log, ledger: Ledger, tell: Callable[[str], None]) -> list[tuple[Record, Unreadable]]:
    """What counts for nothing behind the newest verdict, as far as is at hand: a processor that came further has written its letters.

    Not further back than a table is caught up: a fleet in which nothing happens is audited, and has no verdicts.
    """
    partition, found = ledger.partition, list[tuple[Record, Unreadable]]()
    first = max(log.start(topics.CLAIMS, partition), ledger.next_offset - AHEAD_RECORDS)
    for record in partition_records(log, topics.VERDICTS, partition, 1) if topics.VERDICTS in log.topics() else ():
        verdict = decode(topics.VERDICTS, record.value)
        first = max(first, verdict.offset + 1) if isinstance(verdict, ClaimOutcome) else first
    try:
        for record in between(log, topics.CLAIMS, partition, first, ledger.next_offset, READ_RECORDS):
            fault = ledger.fault(record.offset, record.key, record.value)
            found += [(record, fault)] if fault is not None else []
    except LogDamaged as problem:  # The fold has no need of it.
        tell(f"{topics.CLAIMS}/{partition}: what counts for nothing below the snapshot may lack dead letters: {problem}")
    return found


def published_in(log: Log) -> bytes:
    """The topics that a fold publishes in now: which they are, beyond their names."""
    return msgspec.json.encode({topic: found for topic in PUBLISHED if (found := topic_id_of(log, topic))})


def _made_anew(noted: bytes | None, ids: bytes) -> frozenset[str]:
    """The topics that were deleted and made anew since they were noted: what others wrote there since tells nothing of what was said."""
    before, now = (msgspec.json.decode(each or b"{}", type=dict[str, str]) for each in (noted, ids))
    return frozenset(topic for topic, found in now.items() if before.get(topic, found) != found)


def _unmade(ledger: Ledger, log: Log, made_anew: Container[str] = ()) -> str:
    """What was published when this state was kept, and is not there: the log is a copy, or a derived topic was deleted.

    Nothing where all of it is there, where the records that it would be made of are no longer, or where it was begun at a snapshot that
    somebody wrote of a log which no processor has folded (`claimlog snapshot write`).
    """
    partition, held = ledger.partition, any(node.claims for node in ledger.nodes.values())
    published = [topic for topic, has in ((topics.NODE_RESOURCES, bool(ledger.nodes)), (topics.VERDICTS, held)) if has]
    missing = [f"{topic}/{partition} is empty" for topic in published if not log.end(topic, partition)]
    missing += [f"{topic}/{partition} was made anew" for topic in published if topic in made_anew]
    if not missing or log.start(topics.CLAIMS, partition):
        return ""
    return missing[0] if log.end(topics.DIGESTS, partition) or not newest_offset(log, partition) else ""
