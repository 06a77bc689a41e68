"""The scheduler's shell: reads requests, results and claims from a log, lets the placer act, and appends what it says.

It decides on its own fold of `claims`, so it is fresh to the millisecond and needs no stream processor. Any number of schedulers may run on
one log; a lease shares the partitions of requests among them, and one that goes on without its lease does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache

from msgspec import Struct

from projections.ledger import Ledger
from projections.misfit import misfit
from projections.placements import Answered, Asked, Cancel, Placements
from projections.reading import Recorded, bare_reading
from projections.rules import DIGEST_EVERY
from schemas.codec import Unreadable
from schemas.topics import ANSWERED, CLAIMS, REQUESTS, RESULTS
from streams.clock import ClockMs, boot_clock_ms, wall_clock_ms
from streams.engines import RENEWED_SECONDS, not_told, rewound
from streams.log.base import Log, Partition, Record
from streams.log.leases import Signs
from streams.outbox import Outbox
from streams.placement.filing import FILED_PER_TURN, file_away, may_say, said
from streams.placement.history import begun, epoch_of
from streams.placement.placer import Placer
from streams.scheduling.filters import rests_on_labels
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, Policy, digest, text
from streams.scheduling.select import Practice, before_each, engine

GROUP = "schedulers"
"""The group whose lease and committed offsets share `placement-requests`."""
RECORDS_PER_READ = 2000
# Records of `claims` folded, and results read to take partitions over, in one turn: a second or so, as the lease is renewed between them.
FOLDED_PER_TURN = RESULTS_PER_TURN = 20_000
# Requests kept unanswered in memory; the rest waits in the log.
OPEN_MAX = 4000
# Committing is a write of its own and only saves a new owner some reading.
COMMIT_EVERY_MS = 1000
# Where one request is refused, or finds few nodes, the next ones may be, too: for so long the ends of `claims` are read with them, so that
# none is decided twice. So it begins: it does not know yet how full the fleet is.
EAGER_MS = 1000
# A batch of decisions shares one append: the larger, the less each costs, above all the broker. It is doubled while requests wait and
# deciding takes less than the first, halved if it takes longer than the second, so that the lease is renewed and others' claims are seen.
ACT_MS_MIN, ACT_MS_MAX = 50, 100
# How long a turn waits at most for what it said to come back from the log; whatever else comes ends the wait as well.
READ_BACK_SECONDS = 0.05
# How long leaving waits for what was said last. What is lost then is found undone by the next owner.
FINISH_SECONDS = 2.0
DECISIONS_MIN, DECISIONS_MAX = 16, 256


class Clocks(Struct, frozen=True):
    """The clocks a scheduler reads: the wall clock for records, the boot-time clock for giving up, and one in seconds that only runs."""

    wall_ms: ClockMs = wall_clock_ms
    boot_ms: ClockMs = boot_clock_ms
    seconds: Callable[[], float] = time.monotonic


class Scheduler:
    """One scheduler process on `log`. Call `turn` again and again, then `close`.

    `ledgers` are folds of `claims` to go on from (a snapshot), one for each partition or none; without them it folds from the start.
    `passed_over` hears of what it had and does not use (a state of another log, an offset of requests that were rewound), `tell` of all
    else that somebody should know; without the one the other hears of both.
    Raises what the log raises, and UnknownRules or WrongLedger where the log of claims cannot be folded.
    """

    def __init__(
        self,
        log: Log,
        process_id: str,
        policy: Policy = DEFAULT,
        engine_name: str = "auto",
        *,
        clocks: Clocks | None = None,
        ledgers: Sequence[Ledger] | None = None,
        lease_timeout_seconds: float = 10.0,
        version: str = "",
        tell: Callable[[str], None] = not_told,
        passed_over: Callable[[str], None] | None = None,
    ) -> None:
        topics = log.topics()
        self._log, self._tell, self._passed_over = log, tell, passed_over or tell
        self._read_log: Callable[[str, int, int, int], Sequence[Recorded]] = getattr(log, "read_early", bare_reading(log))
        """All that follows from what it reads it says in the log itself, so it need not be on disk already."""
        self._read_whole: Callable[[str, int, int, int], Sequence[Record]] = getattr(log, "read_early_whole", log.read)
        """The same with headers."""
        self._look: Callable[[Mapping[Partition, int]], Collection[Partition]] | None = getattr(log, "news", None)
        """On a log that tells in one look where there is something to read, the other partitions are not read."""
        self._news: Collection[Partition] | None = None
        self._clocks, self._says_answered = clocks or Clocks(), may_say(log, tell)
        begun_with = ledgers or [Ledger(number, topics[CLAIMS]) for number in range(topics[CLAIMS])]
        self._ledgers = [_begun_with(log, number, ledger, self._passed_over) for number, ledger in enumerate(begun_with)]
        self._request_partitions = topics[REQUESTS]
        self._places = {topic: [Partition(topic, number) for number in range(topics[topic])] for topic in (CLAIMS, REQUESTS, RESULTS)}
        self.lease = log.lease(GROUP, REQUESTS, process_id, lease_timeout_seconds)
        self._placements: dict[int, Placements] = {}
        self._committed: dict[int, int] = {}
        self._commit_soon: Callable[[str, str, Mapping[int, int]], None] | None = getattr(log, "commit_soon", None)
        """On a log that is far away nobody waits for it: it only saves a new owner some reading."""
        self._commit_due_ms = self._renew_due_ms = 0
        self._eager_until_ms = self._clocks.boot_ms() + EAGER_MS
        self._is_behind = True
        """Whether there is more to fold than it has: nobody knows yet."""
        self.epoch = epoch_of(log, process_id, self._request_partitions, self._clocks.wall_ms())
        fleet, select = Fleet(self._ledgers), engine(engine_name)
        self._signs = Signs(self.lease)
        self.placer = Placer(process_id, self.epoch, fleet, policy, before_each(select, self._signs.give), self._request_partitions)
        self._practice = Practice(select, fleet, policy, digest(policy))
        self.outbox = Outbox(log, may_go={ANSWERED})
        """What it says; others of this process may add to it."""
        self.outbox.add([self.placer.sender.started(self.epoch, digest(policy), text(policy), version, self._clocks.wall_ms())])
        self.each_digest: Callable[[Ledger], None] | None = None
        """Called with a fold that stands at an offset where digests are published (rule 12)."""
        self._is_sound = True
        self.requests_read = 0
        """Requests and cancellations that were read as new ones, in all."""
        self.waited_seconds = 0.0
        """How long its turns have waited for something to do, in all."""
        self._new: list[tuple[int, Asked | Cancel]] = []
        """Requests that were read and not told to the placer yet, because the ends of `claims` may be asked for afterwards."""
        self._beginning: set[int] = set()
        """Partitions that are its own now, whose results are not all read yet."""
        self._taken_over: set[int] = set()
        """Partitions whose losers nobody has looked for yet."""

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Its folds of `claims`, for metrics and health."""
        return tuple(self._ledgers)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of requests it owns."""
        return frozenset(self.placer.desks)

    @property
    def is_open(self) -> bool:
        """Whether something that was read is not done with: a request without a result, a cancellation, a release."""
        return not self.placer.is_idle()

    def turn(self, timeout_seconds: float = 0.0) -> int:
        """One turn of the loop; then it waits at most `timeout_seconds` for more to do. Returns how many records it read and appended.

        On a log that takes records without being waited for it also waits for what it said to come back, and counts that as one to read.
        After an exception of the log what could not be appended is kept and appended first in the next turn, byte for byte.
        """
        self._is_sound, self._news = False, None
        moved = self.outbox.send()
        moved += self._share()
        self._news = self._look(self.positions()) if self._look is not None else None
        moved += self._read_results()
        moved += self._read_requests()
        moved += self._fold()
        self._act()
        said = self.outbox.send()
        moved += said
        is_there = said > 0 and not self.outbox.is_far
        has_more = is_there or self._is_behind or bool(self._beginning) or self.placer.may_act() or self.placer.wants_ends
        if self.placer.wants_ends:
            self.placer.ends_are(self._claims_ends())
            self._eager_until_ms = self._clocks.boot_ms() + EAGER_MS
            moved += 1
        self._commit(force=False)
        self._is_sound = True
        if has_more:
            return moved
        self._practice.if_due()
        positions = self.positions()
        is_awaited = self.outbox.is_open and self.outbox.awaits(positions)
        seconds = READ_BACK_SECONDS if is_awaited else timeout_seconds
        if seconds > 0:
            began = self._clocks.seconds()
            self._log.wait(positions, seconds)
            self.waited_seconds += self._clocks.seconds() - began
        return moved or int(is_awaited)

    def close(self) -> None:
        """Commit how far it got and leave the others its partitions.

        After a turn that failed nothing is committed: the log may still be away, and a commit only saves the next owner some reading.
        """
        try:
            if self._is_sound:
                self.outbox.finish(FINISH_SECONDS)
                self._commit(force=True)
        finally:
            self.lease.release()

    def _act(self) -> None:
        """Let the placer act, with a batch for the next turn by how long this one took."""
        placer, began_ms = self.placer, self._clocks.boot_ms()
        self.outbox.add(placer.act(self._clocks.wall_ms(), began_ms))
        self._signs.check()
        took_ms = self._clocks.boot_ms() - began_ms
        if took_ms > ACT_MS_MAX:
            placer.decisions_per_turn = max(placer.decisions_per_turn // 2, DECISIONS_MIN)
        elif took_ms < ACT_MS_MIN and placer.may_act():
            placer.decisions_per_turn = min(placer.decisions_per_turn * 2, DECISIONS_MAX)

    def _share(self) -> int:
        """Follow the lease: let go of what others own now, take over what is new."""
        mine = self.lease.partitions()
        for partition in self.partitions - mine:
            self._read_back(partition)
            self.placer.disown(partition)
            self._new = [each for each in self._new if each[0] != partition]
        fresh = sorted(mine - self.partitions)
        self._beginning.intersection_update(fresh)
        if not fresh and not self._taken_over:
            return 0
        read = 0
        committed = self._log.committed(GROUP, REQUESTS)
        for partition in fresh:
            stored = committed.get(partition)
            if stored is not None and stored > (end := self._log.end(REQUESTS, partition)):
                # All results are read in any case, so requests read again are known to be answered.
                if partition not in self._beginning:
                    what = f"{rewound(GROUP, stored, end)}; the stored offset is discarded, it is read again from its start"
                    self._passed_over(f"{REQUESTS}/{partition}: {what}")
                stored = None
            self._beginning.add(partition)
            placements = begun(self._log, partition, stored, self._placements.get(partition), self._tell)
            self._placements[partition] = placements
            # Every result up to the end is known before anything is done.
            while read < RESULTS_PER_TURN and (records := self._read(RESULTS, partition, placements.results_next, RECORDS_PER_READ)):
                for record in records:
                    self._result(placements, record)
                read += len(records)
            if read >= RESULTS_PER_TURN:
                break
            self._beginning.discard(partition)
            self.placer.own(partition, placements, self._claims_ends(), stored or 0)
            self._taken_over.add(partition)
        self.placer.look_for_losers(self._taken_over)
        self._taken_over.clear()
        return read

    def _read_results(self) -> int:
        read = 0
        for partition, desk in self.placer.desks.items():
            records = self._records(RESULTS, partition, desk.placements.results_next)
            self._take_results(partition, records)
            read += len(records)
        return read

    def _read_back(self, partition: int) -> None:
        """What it said in a partition that others own now, as it stood still: it is counted here or by nobody."""
        desk = self.placer.desks[partition]
        while any(work.result_sent for work in desk.works.values()):
            records = self._read(RESULTS, partition, desk.placements.results_next, RECORDS_PER_READ)
            if not records:
                break
            self._take_results(partition, records)

    def _take_results(self, partition: int, records: Iterable[Recorded]) -> None:
        for record in records:
            answered = self._result(self.placer.desks[partition].placements, record)
            if answered is not None:
                self.placer.answered(partition, answered)

    def _result(self, placements: Placements, record: Recorded) -> Answered | None:
        answered = placements.apply_result(record.offset, record.time_ms, record.key, record.value)
        if isinstance(answered, Answered) and answered.counts:
            self.placer.sender.traces.pop(record.key.decode(), None)
        return answered if isinstance(answered, Answered) else None

    def _read_requests(self) -> int:
        """New requests and cancellations: decided on the fold at hand or, where that will not do, on one up to the ends read after them.

        It will not where it is behind, and where one asks for what the ledger does not look at again (decision 0021).
        """
        read = 0
        for partition, desk in self.placer.desks.items():
            placements = desk.placements
            if len(placements.open) >= OPEN_MAX or not self._has_news(REQUESTS, partition):
                continue
            for record in self._read_whole(REQUESTS, partition, placements.requests_next, RECORDS_PER_READ):
                read += 1
                asked = placements.apply_request(record.offset, record.time_ms, record.key, record.value)
                if asked is not None and not isinstance(asked, Unreadable):
                    self._new.append((partition, asked))
                if isinstance(asked, Asked) and record.headers:
                    self.placer.sender.heard(asked.request.request_id, record.headers)
        if self._new:
            is_eager = self._is_behind or self._clocks.boot_ms() < self._eager_until_ms
            claims_ends = self._claims_ends() if is_eager or any(map(self._rests_on_labels, self._new)) else None
            for partition, asked in self._new:
                self.placer.asked(partition, asked, claims_ends)
            self._new.clear()
        self.requests_read += read
        return read

    def _rests_on_labels(self, new: tuple[int, Asked | Cancel]) -> bool:
        found = new[1]
        # Which policy a group has nobody else looks at, either.
        return isinstance(found, Asked) and (found.request.group is not None or rests_on_labels(self.placer.policy, found.request))

    def _claims_ends(self) -> tuple[int, ...]:
        """The ends of `claims` now. On Kafka that is a question to the broker, so it is not asked for each request."""
        ends = self._log.ends(CLAIMS)
        return tuple([ends[p] for p in sorted(ends)])

    def _fold(self) -> int:
        """Fold what there is. Where it ends is not asked for: on Kafka that is a round trip, and the next turn reads on anyway."""
        folded = 0
        self._is_behind = False
        for ledger in self._ledgers:
            found = RECORDS_PER_READ
            while found >= RECORDS_PER_READ:
                if folded >= FOLDED_PER_TURN:
                    self._is_behind = True
                    return folded
                records = self._read(CLAIMS, ledger.partition, ledger.next_offset, RECORDS_PER_READ)
                found = len(records)
                folded += found
                self._apply(ledger, records)
        return folded

    def _apply(self, ledger: Ledger, records: Sequence[Recorded]) -> None:
        partition, folded = ledger.partition, self.placer.folded
        for record in records:
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            if step is not None:
                folded(partition, step)
                if record.offset % DIGEST_EVERY == 0 and self.each_digest is not None:
                    self.each_digest(ledger)

    def _read(self, topic: str, partition: int, offset: int, records_max: int) -> Sequence[Recorded]:
        return self._read_log(topic, partition, offset, records_max) if self._has_news(topic, partition) else ()

    def _has_news(self, topic: str, partition: int) -> bool:
        return self._news is None or self._places[topic][partition] in self._news

    def _records(self, topic: str, partition: int, offset: int) -> list[Recorded]:
        """Records from `offset` to the end, or up to where a log gives fewer at once: then a next call gives more."""
        records: list[Recorded] = []
        while found := self._read(topic, partition, offset, RECORDS_PER_READ):
            records += found
            offset = found[-1].offset + 1
            if len(found) < RECORDS_PER_READ:
                break
        return records

    def _commit(self, *, force: bool) -> None:
        boot_ms = self._clocks.boot_ms()
        if boot_ms < self._commit_due_ms and not force:
            return
        self._commit_due_ms = boot_ms + COMMIT_EVERY_MS
        if not force:
            self._file_away()
        if boot_ms >= self._renew_due_ms:
            self._renew_due_ms, self._committed = boot_ms + int(RENEWED_SECONDS * 1000), {}
        stands, soon = self.placer.commit_offsets(), self._commit_soon
        changed = {p: offset for p, offset in stands.items() if self._committed.get(p) != offset}
        if soon is not None and not force:
            soon(GROUP, REQUESTS, changed)
        elif soon is not None or changed:
            # What was to be stored soon may not be yet.
            self._log.commit(GROUP, REQUESTS, stands)
        self._committed |= changed

    def _file_away(self) -> None:
        """Keep of old answers only that there was one, and say so where the log has a topic for it."""
        desks, claims_ends = self.placer.desks.values(), cache(self._claims_ends)
        for desk in desks:
            file_away(desk, self._ledgers, claims_ends, max(FILED_PER_TURN // len(desks), 1))
            if self._says_answered:
                self.outbox.add(said(desk, self.placer.sender, self._clocks.wall_ms()))
            else:
                desk.placements.filed.due.clear()

    def positions(self, *, whole: bool = False) -> dict[Partition, int]:
        """Where something new for it would stand, with `whole` also of requests that it takes no more of for now."""
        places = self._places
        positions = {places[CLAIMS][ledger.partition]: ledger.next_offset for ledger in self._ledgers}
        for partition, desk in self.placer.desks.items():
            positions[places[RESULTS][partition]] = desk.placements.results_next
            if whole or len(desk.placements.open) < OPEN_MAX:
                positions[places[REQUESTS][partition]] = desk.placements.requests_next
        return positions


def _begun_with(log: Log, number: int, ledger: Ledger, tell: Callable[[str], None]) -> Ledger:
    """The ledger if it is a fold of this log's partition; else a new one, folded from the start (rule 13)."""
    reason = misfit(ledger, log, number)
    if reason is None:
        return ledger
    tell(f"{CLAIMS}/{number}: the state to start with is discarded: {reason}; it is folded anew")
    return Ledger(number, log.topics()[CLAIMS])
