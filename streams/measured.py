"""Measures an engine from outside: its turns, the time they take, and how many records it has still to read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from streams.log.base import Log, Partition
from streams.metrics import Metrics
from streams.runner import Engine

LAG_SECONDS: Final = 5.0
"""Between two looks at the log's ends: half of what a scrape waits, and a question a topic each time."""


class Measured:
    """An engine that is measured while it does what `engine` does. `clock` gives seconds and only runs."""

    def __init__(self, engine: Engine, log: Log, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine, self.name = engine, engine.name
        self._log, self._metrics, self._clock = log, metrics, clock
        self._turns, self._busy = metrics.turns.labels(self.name), metrics.busy.labels(self.name)
        self._due = 0.0
        self._waited: Callable[[], float] = getattr(engine, "waited_seconds", float)
        """How long its turns have slept in all: that is not busy."""
        self._reads: Callable[[frozenset[int]], dict[Partition, int]] = getattr(engine, "reads", engine.waits)

    def turn(self, partitions: frozenset[int]) -> int:
        """See `Engine`."""
        began, waited = self._clock(), self._waited()
        done = self.engine.turn(partitions)
        now = self._clock()
        self._turns.inc()
        self._busy.inc(max(now - began - (self._waited() - waited), 0.0))
        if now >= self._due:
            self._due = now + LAG_SECONDS
            self._metrics.lags[self.name] = self._lags(partitions)
        return done

    def waits(self, partitions: frozenset[int]) -> dict[Partition, int]:
        """See `Engine`."""
        return self.engine.waits(partitions)

    def close(self) -> None:
        """See `Engine`. Whoever reads on measures it."""
        self._metrics.lags.pop(self.name, None)
        self.engine.close()

    def _lags(self, partitions: frozenset[int]) -> dict[Partition, int]:
        stands = self._reads(partitions)
        ends = {topic: self._log.ends(topic) for topic in {place.topic for place in stands}}
        return {place: max(ends[place.topic][place.number] - offset, 0) for place, offset in stands.items()}
