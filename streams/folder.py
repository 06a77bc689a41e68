"""The stream processor's folder: folds the owned partitions of `claims`, keeps the state in tables, and publishes what follows from it.

Order: fold in memory, append everything derived, and only then write rows and next offset to the table in one batch. So the table never
says more than was published, and a crash repeats what the table does not have, which publishes the same bytes again. While there is a
backlog, verdicts are published batch by batch, rows published and kept only once for several batches.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path

from projections import companions
from projections.digests import digest_of
from projections.ledger_state import Step
from projections.reading import OffsetGap
from projections.rows import node_resources
from projections.rules import DIGEST_EVERY
from projections.snapshots import chunks_of, newest_offset
from projections.table import Table, TableDamaged, TableError
from schemas import topics
from schemas.findings import LeakConfirmed
from schemas.results import SnapshotChunk
from streams.clock import ClockMs, LogTime, wall_clock_ms
from streams.derived import derived, verdict
from streams.double_watch import DoubleWatch
from streams.fold import AHEAD_RECORDS, Batch, Fold, published_in
from streams.leak_audit import finding_messages
from streams.log.base import Log, LogDamaged, Message, Partition, Record
from streams.looked_through import letters_of
from streams.metrics import Metrics
from streams.snapshot_writer import write_snapshot
from streams.tables import RECOVERY_SECONDS, Loading, Tables

BATCH_RECORDS = 2000
"""As in `engines`: one transaction of derived records and one table batch for so many."""
BACKLOG_RECORDS = 10_000
"""The same while there is a backlog of so many."""
KEPT_RECORDS = 50_000
"""While there is a backlog, a node's row is published and stored once for so many records, however many of them are about that node. A
crash repeats no more than these: three seconds' work."""
SNAPSHOT_EVERY = 10_000
"""Records of a partition between snapshots: a reader that starts folds at most so many, a twentieth of a second's work."""
CATCHING_UP = 20
"""How much rarer snapshots are while there is more to fold: each costs as much as some thousand records."""
SNAPSHOTS_KEPT = 3
"""One to start from, one before it should its chunks be incomplete, and one for a digest that differs."""
AUDIT_INTERVAL_MS = 60_000
"""Nova audits every 60 s, and so do our producers unless they are told otherwise."""
TURN_SECONDS = 1.0
"""A turn ends after the batch that lasts beyond this. Only between turns is the lease renewed: a backlog of many partitions, or a busy
machine, made turns of ten seconds, so that two processes took the partitions from each other again and again."""
TABLE_SECONDS = 0.05
"""Pause before a table that another process still has is tried again: it gives it up in its next turn, half a second away at most."""
COMPACT_EVERY = 25_000
"""Rows between two compactions, by their offsets: they go on where another process has begun, or this one anew."""


class Folder:
    """See the module.

    `directory` holds one table a partition; `process` names this process in digests; `tell` hears what people should. `audit_interval_ms`
    is how often producers audit a node: three times that without an audit is silence. `recovery_seconds` is how long a table may take
    until it is loaded and caught up, by `seconds`, a clock that only runs; then it is made anew from a snapshot if there is a better one.
    """

    name = "folder"

    def __init__(
        self,
        log: Log,
        directory: Path,
        process: str,
        metrics: Metrics,
        tell: Callable[[str], None],
        *,
        clock: ClockMs = wall_clock_ms,
        audit_interval_ms: int = AUDIT_INTERVAL_MS,
        recovery_seconds: float = RECOVERY_SECONDS,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._process, self.metrics, self._tell = log, process, metrics, tell
        self._tables = Tables(directory, tell, deadline_seconds=recovery_seconds, seconds=seconds)
        self._log_time = LogTime(clock, seconds)
        # Nodes are silent by append times. Where others stamp those, this machine's clock must not say so alone.
        self._clock = self._log_time.now_ms if getattr(log, "has_own_clock", False) else clock
        self._audit_interval_ms = audit_interval_ms
        self.folds: dict[int, Fold] = {}
        self._last = -1
        """The partition that had the last batch: a turn begins with the one after it."""
        self._doubles = DoubleWatch(log, tell)
        self._has_findings = False
        self._letters_there = cache(partial(letters_of, log, topics.CLAIMS))

    def turn(self, partitions: frozenset[int]) -> int:
        """One batch of each owned partition, or of as many as there is time for; the next turn begins with those that were left out.

        Returns how many records were folded, and how many partitions wait: for their tables, or for the next turn.
        """
        self._tables.leave_all_but(partitions)
        if partitions != self.folds.keys():
            self._share(partitions)
        self._doubles.take({number: fold.ledger for number, fold in self.folds.items()}, partitions)
        self._say_doubles()
        waiting = len(partitions - self.folds.keys())
        began, seconds = self._tables.seconds(), self._tables.seconds
        latest_ms = self._doubles.latest_ms()
        # What a log could not take comes first: double claims are kept with every table, and what is kept of them has to be published.
        order = sorted(self.folds.values(), key=lambda fold: (fold.unfinished is None, fold.partition <= self._last, fold.partition))
        left = deque(order)
        done = 0
        while left:
            fold = left.popleft()
            self._last = fold.partition
            done += self._batch(fold)
            if done and seconds() - began >= TURN_SECONDS:
                break
        is_at_ends = not left and all(fold.is_at_end for fold in order)
        done += self._doubles.follow(lambda: seconds() - began < TURN_SECONDS, latest_ms if is_at_ends else 0)
        self._say_doubles()
        if waiting and not done:
            self._log.wait({}, TABLE_SECONDS)
        return done + waiting + len(left)

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`. The watchdog asks too, from its own thread."""
        folds = self.folds.copy()
        ours = {Partition(topics.CLAIMS, number): folds[number].ledger.next_offset for number in partitions if number in folds}
        return self._doubles.waits() | ours

    def has_looked(self, partitions: frozenset[int]) -> bool:
        """Whether all of these are folded and which of their nodes have gone silent has been said, since they were taken over."""
        return all(number in self.folds and self.folds[number].has_looked for number in partitions)

    @property
    def loading(self) -> Loading | None:
        """The table that is being loaded just now."""
        return self._tables.loading

    def close(self) -> None:
        """Close the tables, each whatever becomes of the others. Raises TableError."""
        with ExitStack() as closing:
            for fold in self.folds.values():
                closing.callback(self._give_up, fold)
        self.folds.clear()
        self.metrics.findings = Counter()

    def _share(self, partitions: frozenset[int]) -> None:
        """Take over and give up partitions.

        Another process may have their tables until its next turn, in which it hears that they are no longer its own: those are left out
        and tried again in our next one.
        """
        before = set(self.folds)
        for lost in sorted(self.folds.keys() - partitions):
            self._give_up(self.folds.pop(lost))
        try:
            topic_ids = cache(partial(published_in, self._log))
            for partition in sorted(partitions - self.folds.keys()):
                opened = self._opened(partition, topic_ids)
                if opened is not None:
                    self._doubles.heard_of(opened.doubles, opened.ledger, is_unsaid=opened.is_unsaid)
        finally:
            # Also where the log failed on the way: the next turn goes on with those that are missing.
            if before != self.folds.keys():
                self._letters_there.cache_clear()
                self._has_findings = True

    def _say_doubles(self) -> None:
        """Append what is known of double claims beyond what the folds' own batches say."""
        self._has_findings |= self._doubles.say()
        self._count_findings()

    def _give_up(self, fold: Fold) -> None:
        """Close a fold, and show no more of it: what this process last knew is nobody's truth."""
        fold.close()
        self.metrics.forget(fold.partition)
        for node_id in fold.ledger.nodes:
            self.metrics.rows.pop(node_id, None)

    def _opened(self, partition: int, topic_ids: Callable[[], bytes]) -> Fold | None:
        """Take a partition over; None while another process has its table. A table that cannot be read is made anew, once."""
        tables = self._tables
        table = tables.opened(partition)
        if table is None:
            return None

        def begun(table: Table) -> Fold:
            return Fold(self._log, partition, table, self._tell, tables.seconds(), BATCH_RECORDS, topic_ids())

        try:
            try:
                fold = begun(table)
            except TableDamaged as problem:
                with suppress(TableError):  # That it is damaged is known.
                    table.close()
                tables.discard(partition, str(problem))
                table = tables.opened(partition)
                if table is None:
                    return None
                fold = begun(table)
        except BaseException:
            tables.left(partition)
            if table is not None:
                table.close()
            raise
        tables.loaded(partition)
        self._log_time.seen(fold.ledger.time_ms)
        self.folds[partition] = fold
        self._show(fold)
        return fold

    def _show(self, fold: Fold) -> None:
        """Tell the metrics what a partition that was taken over has."""
        self.metrics.discarded.inc(fold.discarded + self._tables.discarded)
        self._tables.discarded = 0
        self._rows(fold, set(fold.ledger.nodes))
        self.metrics.folded_to(fold.partition, fold.ledger.next_offset, self._log.end(topics.CLAIMS, fold.partition), fold.ledger.time_ms)

    def _batch(self, fold: Fold) -> int:
        """Fold, append what follows, keep. Raises OffsetGap if history below the state was dropped.

        What could not be appended is appended again in the next turn, byte for byte: it is folded already.
        """
        batch = fold.unfinished or self._next_batch(fold)
        fold.is_at_end = batch is None or not batch.lag
        if batch is None:
            return self._silences(fold)
        fold.unfinished = batch
        fold.write_letters(batch, self._letters_there, self.metrics.dead)
        for messages in (batch.letters, batch.derived):
            if messages:
                offsets = self._log.append(messages)
                batch.compacts |= any(
                    message.topic == topics.NODE_RESOURCES and offset % COMPACT_EVERY == COMPACT_EVERY - 1
                    for message, offset in zip(messages, offsets, strict=True)
                )
                # Not a second time where what follows does not go through.
                messages.clear()
        self._has_findings |= self._doubles.say()
        if batch.snapshot:
            # Only now: who begins at it publishes nothing of what was before it.
            self._renew_snapshots(fold, batch.snapshot)
        if batch.keeps:
            fold.keep(self._doubles.known())
        fold.unfinished = None
        if batch.compacts:
            self._log.compact(topics.NODE_RESOURCES, fold.partition)
            self._log.compact(topics.DIGESTS, fold.partition)
        self._count(fold, batch)
        self._hurry(fold, batch.lag)
        if not fold.has_looked and fold.has_settled(self._tables.seconds()):
            self._silences(fold)
        return batch.records

    def _next_batch(self, fold: Fold) -> Batch | None:
        """Fold what comes next; None if there is nothing, and nothing to keep."""
        at = fold.ledger.next_offset
        records = self._log.read(topics.CLAIMS, fold.partition, at, fold.batch_records)
        if not (records or fold.unkept or fold.unsaid or fold.unlettered):
            return None
        if records:
            self._log_time.seen(records[-1].time_ms)
        # Asked before anything is folded: the log may not answer.
        lag = self._log.end(topics.CLAIMS, fold.partition) - (records[-1].offset + 1 if records else at)
        batch = Batch(len(records), lag, keeps=lag < BACKLOG_RECORDS or fold.unkept + len(records) >= KEPT_RECORDS)
        batch.derived.extend(fold.unsaid)
        batch.dead.extend(fold.unlettered)
        fold.unsaid, fold.unlettered = [], []
        self._fold(fold, records, batch)
        if batch.keeps:
            batch.derived.extend(self._rows(fold, fold.touched))
            # One that catches up writes few: nobody starts from a state that is behind by that much.
            due = SNAPSHOT_EVERY if lag < BACKLOG_RECORDS else SNAPSHOT_EVERY * CATCHING_UP
            if fold.ledger.next_offset - fold.snapshot_offset >= due:
                batch.snapshot.extend(derived(topics.SNAPSHOTS, chunk, chunk.index) for chunk in self._snapshot(fold))
                fold.snapshot_offset = fold.ledger.next_offset
        return batch

    def _fold(self, fold: Fold, records: Sequence[Record], batch: Batch) -> None:
        ledger, observed, touched, steps = fold.ledger, fold.observed, fold.touched, list[Step]()
        for record in records:
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            if step is None:
                raise OffsetGap(f"{record.position}: read again although it is folded; this is a fault of the log, see `claimlog doctor`")
            observed.apply(ledger, step)
            steps.append(step)
            touched.update(step.node_ids)
            self._derive(fold, record, step, batch)
        fold.table.touch(steps)

    def _snapshot(self, fold: Fold) -> list[SnapshotChunk]:
        """The whole partition as it is now: ledger, views and findings."""
        return chunks_of(fold.ledger, extras=companions.all_rows(fold.observed, fold.audit.leaks, self._doubles.known()))

    def _derive(self, fold: Fold, record: Record, step: Step, batch: Batch) -> None:
        """Add what one step says to others: outcomes, findings, a dead letter, now and then a digest."""
        messages = batch.derived
        for number, outcome in enumerate(step.outcomes):
            batch.outcomes[outcome.outcome] += 1
            messages.append(verdict(outcome, number))
        self._doubles.apply(fold.partition, step)
        found = fold.audit.step(fold.ledger, fold.observed, step)
        if found:
            self._has_findings = True
            messages.extend(finding_messages(fold.partition, found))
        if step.dead is not None:
            batch.dead.append((record, step.dead))
        if record.offset % DIGEST_EVERY == 0:
            messages.append(derived(topics.DIGESTS, digest_of(fold.ledger, self._process, self.metrics.version)))

    def _silences(self, fold: Fold) -> int:
        """With everything folded, say which nodes have gone silent; now and then, as reading the clock is enough of a cost."""
        now_ms = self._clock()
        # A clock that was set back shows less than at the last look, for as long as it was ahead or is behind.
        if 0 <= now_ms - fold.silences_ms < self._audit_interval_ms // 4:
            return 0
        messages = fold.audit.silences(fold.ledger, now_ms, self._audit_interval_ms, round(self._tables.seconds() * 1000))
        if messages:
            self._log.append(messages)
        fold.silences_ms, fold.has_looked = now_ms, True
        return len(messages)

    def _rows(self, fold: Fold, touched: set[str]) -> list[Message]:
        rows = [
            node_resources(fold.ledger, node_id, fold.observed, fold.audit.leaks.count(node_id))
            for node_id in sorted(touched)
            if node_id in fold.ledger.nodes
        ]
        self.metrics.rows.update((row.node_id, row) for row in rows)
        return [derived(topics.NODE_RESOURCES, row) for row in rows]

    def _renew_snapshots(self, fold: Fold, chunks: list[Message]) -> None:
        """Append a snapshot, once, and drop what is older than the last few. Where none can be written the work goes on without."""
        try:
            fold.snapshot_starts.append(write_snapshot(self._log, fold.partition, chunks))
            chunks.clear()
        except LogDamaged as problem:
            self._tell(f"no snapshot of {topics.CLAIMS}/{fold.partition} is written, so a start folds more records: {problem}")
            return
        if len(fold.snapshot_starts) > SNAPSHOTS_KEPT:
            fold.snapshot_starts = fold.snapshot_starts[-SNAPSHOTS_KEPT:]
            self._log.truncate(topics.SNAPSHOTS, fold.partition, fold.snapshot_starts[0])

    def _hurry(self, fold: Fold, lag: int) -> None:
        """A fold that has not caught up by the deadline begins at a newer snapshot, if another process has written one meanwhile."""
        if fold.began_seconds is None:
            return
        if lag < BACKLOG_RECORDS:
            fold.began_seconds = None
        elif self._tables.seconds() - fold.began_seconds > self._tables.deadline_seconds:
            place, fold.began_seconds = f"{topics.CLAIMS}/{fold.partition}", None
            late = f"{place}: {lag} records are left after {self._tables.deadline_seconds:.0f} s"
            if fold.is_made_again(self._log):
                self._tell(f"{late}, from which what was made anew is made again: folding on")
                return
            if newest_offset(self._log, fold.partition) - fold.ledger.next_offset < AHEAD_RECORDS:
                self._tell(f"{late}, and no snapshot is far ahead: folding on")
                return
            # The next turn opens what is missing; the snapshot is newer than an empty table.
            self._give_up(self.folds.pop(fold.partition))
            self._tables.discard(fold.partition, f"{late}, and a snapshot is far ahead")

    def _count(self, fold: Fold, batch: Batch) -> None:
        metrics = self.metrics
        self._count_findings()
        metrics.records.labels(self.name, topics.CLAIMS).inc(batch.records)
        for kind, count in batch.outcomes.items():
            metrics.outcomes.labels(kind).inc(count)
        fold.batch_records = BACKLOG_RECORDS if batch.lag >= BACKLOG_RECORDS else BATCH_RECORDS
        metrics.folded_to(fold.partition, fold.ledger.next_offset, fold.ledger.next_offset + batch.lag, fold.ledger.time_ms)

    def _count_findings(self) -> None:
        """Count anew what is open, if there is news of it."""
        if not self._has_findings:
            return
        self._has_findings = False
        open_ = [finding for each in self.folds.values() for finding in each.audit.open_findings()] + self._doubles.open_findings()
        alarming = [finding for finding in open_ if not finding.ignored]
        self.metrics.findings = Counter((f.kind, "confirmed" if isinstance(f, LeakConfirmed) else "suspected") for f in alarming)
