"""A filter for what a library logs: the same words once a minute at most. Clients of Kafka repeat theirs ten times a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

SELDOM_SECONDS: Final = 60.0
KNOWN_MAX: Final = 1000
"""So many different words are remembered; more of them are no repetition, and begin anew."""


class Seldom(logging.Filter):
    """Lets a record through unless one with the same words went through less than a minute ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        words, now = record.getMessage(), self._clock()
        if now - self._said.get(words, -SELDOM_SECONDS) < SELDOM_SECONDS:
            return False
        if len(self._said) >= KNOWN_MAX:
            self._said.clear()
        self._said[words] = now
        return True
