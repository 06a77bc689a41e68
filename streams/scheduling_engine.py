"""A scheduler as an engine of the host: it starts from the newest snapshots, takes its turns, and tells the metrics what it did."""

from __future__ import annotations

from collections.abc import Callable

from projections.ledger import Ledger
from projections.snapshots import load_newest
from schemas.topics import CLAIMS, REQUESTS
from streams.clock import Clock
from streams.digest_check import digest_message, digest_name
from streams.log.base import Lease, Log, Partition, partition_count
from streams.metrics import Metrics
from streams.scheduler import READ_BACK_SECONDS, Clocks, Scheduler
from streams.scheduling.policy import Policy

BEGINS_MS_MAX = 30_000
"""So long at most it leaves the first turns to the others: a ledger may be folded from its first record, and requests wait."""


class SchedulerEngine:
    """One scheduler. It owns partitions of requests by a lease of its own; the host's share of the ledger is none of its business."""

    name = "scheduler"

    def __init__(
        self,
        log: Log,
        process: str,
        policy: Policy,
        engine: str,
        clock: Clock,
        metrics: Metrics,
        tell: Callable[[str], None],
        *,
        lease_timeout_seconds: float,
        version: str,
        may_begin: Callable[[frozenset[int]], bool] | None = None,
    ) -> None:
        """`may_begin` tells whether what this process says of the ledger's partitions is said; until then nothing is placed."""
        self._metrics, self._may_begin = metrics, may_begin
        self._begins_by = clock.boot_ms() + BEGINS_MS_MAX
        self._clock = clock
        self._requests = metrics.records.labels(self.name, REQUESTS)
        self._placed = metrics.placements.labels("placed")
        self._told = {self._requests: 0}

        def passed_over(reason: str) -> None:
            metrics.discarded.inc()
            tell(reason)

        self._scheduler = Scheduler(
            log,
            process,
            policy,
            engine,
            clocks=Clocks(clock.wall_ms, clock.boot_ms),
            ledgers=materialized(log, passed_over),
            lease_timeout_seconds=lease_timeout_seconds,
            version=version,
            tell=tell,
            passed_over=passed_over,
        )

        # Nobody shares a log that is far away with it, so it waits for more itself and is spared a turn that finds nothing.
        self._turn_seconds = READ_BACK_SECONDS if self._scheduler.outbox.is_far else 0.0

        def note(ledger: Ledger) -> None:
            # Of the opening everybody has the same.
            if ledger.next_offset > 1:
                self._scheduler.outbox.add([digest_message(ledger, digest_name(process), version)])

        self._scheduler.each_digest = note

    def turn(self, partitions: frozenset[int]) -> int:
        """See `Engine`."""
        if self._may_begin is not None:
            if not self._may_begin(partitions) and self._clock.boot_ms() < self._begins_by:
                return 0
            self._may_begin = None
        moved = self._scheduler.turn(self._turn_seconds)
        if moved:
            self._count()
        return moved

    def is_open(self) -> bool:
        """Whether it has not begun yet, or a request that it took up has no result: it may wait for others' claims to go."""
        return self._may_begin is not None or self._scheduler.is_open

    def waited_seconds(self) -> float:
        """How much of the time of its turns it slept, in all."""
        return self._scheduler.waited_seconds

    @property
    def lease(self) -> Lease:
        """Its share of the requests."""
        return self._scheduler.lease

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`."""
        return self._scheduler.positions()

    def reads(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """How far it has read, also where it waits for nothing because it has more requests than it answers."""
        return self._scheduler.positions(whole=True)

    def close(self) -> None:
        """See `Engine`."""
        self._scheduler.close()

    def _count(self) -> None:
        """Bring the counters of the metrics up to those of the scheduler."""
        counters, metrics = self._scheduler.placer.counters, self._metrics
        counted = {self._requests: self._scheduler.requests_read, self._placed: counters.placed}
        counted |= {series: getattr(counters, name) for name, series in metrics.scheduled.items()}
        counted |= {metrics.placements.labels(reason): count for reason, count in counters.failed.items()}
        for series, count in counted.items():
            series.inc(count - self._told.get(series, 0))
        self._told = counted
        while counters.latencies_ms:
            metrics.placing.observe(counters.latencies_ms.popleft() / 1000)


def materialized(log: Log, tell: Callable[[str], None]) -> list[Ledger]:
    """The ledgers of all partitions, each from its newest snapshot where there is one."""
    partitions = partition_count(log, CLAIMS)
    return [load_newest(log, number, tell=tell) or Ledger(number, partitions) for number in range(partitions)]
