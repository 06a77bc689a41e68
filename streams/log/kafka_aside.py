"""Ends consumers beside their caller, who does not wait for one that does not come to an end.

After some troubles of a network librdkafka's `close` now and then waits for good for a partition that it cannot let go of (seen with
2.16.1: of some twenty consumers that were given up while a proxy troubled their connections, one). Nothing is lost with it but its memory
and its threads. What closing has to say is not asked: what a consumer read is read, and a share or a group that it could not leave is taken
from it in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from typing import Final, Protocol

from confluent_kafka import KafkaException

from streams.log.kafka_errors import LogFatal

LEFT_MAX: Final = 16
"""So many that never end are more than a process should carry along: threads of each, and what it read ahead."""
LEAVE_SECONDS: Final = 10.0
"""How long leaving waits for consumers: a member that is just being asked to join leaves its group after five."""


class Closable(Protocol):
    """A consumer, as far as it is left aside."""

    def close(self) -> None:
        """End it, which may take for ever."""
        ...


class Aside:
    """The consumers of one log that were given up. `place` is the log's name."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._ending: list[Thread] = []

    def give_up(self, consumer: Closable) -> None:
        """Go on without it. Raises LogFatal when too many that were given up before have not ended."""
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        if len(self._ending) >= LEFT_MAX:
            raise LogFatal(
                f"{self._place}: {len(self._ending)} consumers were given up and do not come to an end. This process cannot go on; start "
                "it again, and look at the network between it and the brokers"
            )
        self._ending.append(_begin_to_end(consumer))

    @staticmethod
    def leave(consumers: Iterable[Closable], timeout_seconds: float = LEAVE_SECONDS) -> bool:
        """End these before the process does, waiting for all of them at most so long; whether all have ended."""
        ending = [_begin_to_end(consumer) for consumer in consumers]
        until = time.monotonic() + timeout_seconds
        for thread in ending:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in ending)


def _begin_to_end(consumer: Closable) -> Thread:
    thread = Thread(target=_end, args=(consumer,), name="ends-a-consumer", daemon=True)
    thread.start()
    return thread


def _end(consumer: Closable) -> None:
    with suppress(KafkaException):
        consumer.close()
