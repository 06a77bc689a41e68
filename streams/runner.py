"""The embedded host: runs engines in one process on one log, in turns, until it is told to stop.

Engines do not know each other; they meet on the log. A turn of each is a batch; when none has anything to do the host sleeps in the
log's `wait` and is woken by the next append of any process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from streams.log.base import Lease, Log, LogFull, Partition
from streams.metrics import Health

WAIT_SECONDS = 0.5
"""Longest sleep: how late a lease is renewed, a timer is looked at and a request to stop is heard, when nothing happens on the log."""
FULL_SECONDS = 1.0
"""Pause before a full disk is tried again: somebody has to make room, which takes longer than this."""

# The fold keeps millions of long-lived objects; with Python's defaults the collector walks all of them every few thousand records.
GC_THRESHOLDS = (100_000, 50, 1000)


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
        """None."""
        return frozenset()

    def release(self) -> None:
        """There is nothing to give up."""


class Host:
    """One process: its engines, its share of the partitions, its health."""

    def __init__(self, log: Log, engines: Sequence[Engine], lease: Lease, health: Health, err: TextIO) -> None:
        self._log, self._engines, self._lease, self._health, self._err = log, list(engines), lease, health, err
        self._full = False

    def run(self, stopped: Callable[[], bool], *, until_idle: bool = False) -> None:
        """Turn until `stopped` says so, or with `until_idle` until nothing is left to do. Engines and lease are given up at the end.

        A full disk is reported and tried again; whatever else goes wrong is raised, so that the process ends and says why.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        try:
            while not stopped():
                if not self._turn():
                    self._health.ready = True
                    if until_idle:
                        return
                    self._sleep()
        finally:
            for engine in self._engines:
                engine.close()
            self._lease.release()

    def _turn(self) -> int:
        """One turn of every engine; returns how much there was to do."""
        owned = self._lease.partitions()
        try:
            done = sum(engine.turn(owned) for engine in self._engines)
        except LogFull as full:
            if not self._full:
                print(f"waiting for room: {full}", file=self._err)
            self._full = True
            self._log.wait({}, FULL_SECONDS)
            return 1
        if self._full:
            print("there is room again", file=self._err)
            self._full = False
        self._health.turned()
        return done

    def _sleep(self) -> None:
        owned = self._lease.partitions()
        offsets: dict[Partition, int] = {}
        for engine in self._engines:
            for partition, offset in engine.waits(owned).items():
                offsets[partition] = min(offset, offsets.get(partition, offset))
        self._log.wait(offsets, WAIT_SECONDS)
