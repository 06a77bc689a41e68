"""The embedded host: runs engines in one process on one log, in turns, until it is told to stop.

Engines do not know each other; they meet on the log. A turn of each is a batch; when none has anything to do the host sleeps in the
log's `wait` and is woken by the next append of any process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TextIO

from projections.table import TableError
from streams import collector
from streams.log.base import Lease, Log, LogError, LogFull, LogUnreachable, Partition
from streams.metrics import Health
from streams.patience import PAUSE_SECONDS, Patience

WAIT_SECONDS = 0.5
"""Longest sleep: how late a lease is renewed, a timer is looked at and a request to stop is heard, when nothing happens on the log."""

TOLD_SECONDS = 3.0
"""Whoever works gives a sign sooner; who waits longer for one says so."""


class Engine(Protocol):
    """Something that works through the log in turns."""

    name: str

    def turn(self, partitions: frozenset[int]) -> int:
        """Do one batch for the partitions of the ledger that this process owns; returns how much there was to do."""
        ...

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """Where something new for this engine would stand."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


class NoShare:
    """The lease of a process that owns no part of the ledger, such as one that hosts a scheduler only."""

    def partitions(self) -> frozenset[int]:
        """No partition of the ledger, ever."""
        return frozenset()

    def waits_for(self) -> str:
        """Nothing: it needs none."""
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        """The ledger is others' affair."""
        return True

    def release(self) -> None:
        """There is nothing to give up."""


def stands(engines: Iterable[Engine], owned: frozenset[int]) -> dict[Partition, int]:
    """The first offset that some of the engines has not read, of each place that one reads."""
    offsets: dict[Partition, int] = {}
    for engine in engines:
        for place, offset in engine.waits(owned).items():
            offsets[place] = min(offset, offsets.get(place, offset))
    return offsets


def progress(place: Partition, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> str:
    """How far a place is read: what somebody has, what it needs, what remains. Who has no position of it opens its table."""
    have, need = positions.get(place), ends.get(place, 0)
    if have is None:
        return f"{place} opens its table"
    if have > need:
        return f"{place} has {have}, and the log ends at {need}"
    return f"{place} has {have} of {need}, {need - have} remain" if have < need else f"{place} has all of {need}"


class Host:
    """One process: its engines, its share of the partitions, its health. `clock` gives seconds and only runs.

    `beside` are the leases that engines have of their own. `is_open` tells whether one has taken something up that waits for its moment:
    there may be nothing to do for it in a turn, and it is not done.
    """

    def __init__(
        self,
        log: Log,
        engines: Sequence[Engine],
        lease: Lease,
        health: Health,
        err: TextIO,
        clock: Callable[[], float] = time.monotonic,
        beside: Sequence[Lease] = (),
        is_open: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log, self._engines, self._lease, self._health, self._err = log, list(engines), lease, health, err
        self._owned: frozenset[int] = frozenset()
        self._patience = Patience(self._tell, clock)
        self._leases, self._is_open, self._clock = [lease, *beside], is_open, clock
        self._idle_since: float | None = None
        self._has_told = False
        self._goals: dict[Partition, int] = {}
        """Where the places that engines read ended when their share was taken over; until then the process has not caught up."""
        health.waits = False

    def run(self, stopped: Callable[[], bool], *, until_idle: bool = False) -> None:
        """Turn until `stopped` says so, or with `until_idle` until nothing is left to do that nobody else does.

        Engines and lease are given up at the end. A log that is full or out of reach is waited for (see `Patience`), and engines append
        anew what was not acknowledged, byte for byte. Whatever else goes wrong is raised, so that the process ends and says why.
        """
        collector.settle()
        try:
            self._loop(stopped, until_idle=until_idle)
        except BaseException:
            self._close()
            raise
        failures = self._close()
        # A log that was away already has been said to be; what it would have been told, others find out.
        for failure in failures:
            if self._patience.trouble is None or not isinstance(failure, LogError):
                raise failure

    def _loop(self, stopped: Callable[[], bool], *, until_idle: bool) -> None:
        while not stopped():
            try:
                if self._turn():
                    self._idle_since = None
                    if not self._health.ready:
                        self._look_how_far()
                    continue
                self._health.ready = True
                if until_idle and self._is_over():
                    return
                self._sleep()
            except (LogFull, LogUnreachable) as trouble:
                if isinstance(trouble, LogUnreachable) and stopped():
                    # It was waited for only as long as an end may take, which says nothing of it.
                    self._patience.trouble = self._patience.trouble or trouble
                    return
                self._health.met_trouble()
                self._goals.clear()
                self._idle_since = None
                self._patience.met(trouble)
                self._log.wait({}, PAUSE_SECONDS)

    def _is_over(self) -> bool:
        """Whether nothing is left to do, not even for somebody who shares the work and may have been killed."""
        now = self._clock()
        self._idle_since = now if self._idle_since is None else self._idle_since
        idle = now - self._idle_since
        is_rest_at_work = all(lease.is_rest_at_work(idle) for lease in self._leases)
        if not is_rest_at_work and idle > TOLD_SECONDS and not self._has_told:
            self._has_told = True
            self._tell("waiting for a sign of others that share this work: who was killed has its part until --lease-timeout is over")
        return is_rest_at_work and not self._is_open()

    def _turn(self) -> int:
        """One turn of every engine; returns how much there was to do."""
        owned = self._lease.partitions()
        if not owned <= self._owned:
            # Who was in reserve was ready: what it takes over now has to be loaded and folded first.
            self._health.ready, self._health.loads = False, True
            self._goals.clear()
        self._owned = owned
        done = sum(engine.turn(owned) for engine in self._engines)
        self._patience.over()
        self._health.waits = False
        self._health.turned()
        return done

    def _look_how_far(self) -> None:
        """Who has read what there was has caught up, though under load there is always more."""
        positions = stands(self._engines, self._owned)
        self._goals |= {place: self._log.end(*place) for place in positions.keys() - self._goals.keys()}
        left = [place for place, goal in sorted(self._goals.items()) if positions.get(place, goal) < goal]
        self._health.ready = bool(self._goals) and not left
        if left:
            self._health.doing = "; ".join(progress(place, positions, self._goals) for place in left)

    def _close(self) -> list[LogError | TableError]:
        """Give everything up, each whatever becomes of the others; returns the failures, which are told."""
        failures: list[LogError | TableError] = []
        for give_up in (*(engine.close for engine in self._engines), self._lease.release):
            try:
                give_up()
            except (LogError, TableError) as trouble:
                failures.append(trouble)
                self._tell(f"at the end: {trouble}")
        return failures

    def _tell(self, sentence: str) -> None:
        print(sentence, file=self._err, flush=True)

    def _sleep(self) -> None:
        self._log.wait(stands(self._engines, self._lease.partitions()), WAIT_SECONDS)
