"""How far a long fold has come: one line on a terminal's stderr, gone when it is over; nothing anywhere else, nor where no line can go."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from streams.cli.printed import units
from streams.cli.printed.stdout import is_terminal

# Often enough to look alive, seldom enough to cost nothing.
_SHOW_EVERY_SECONDS = 0.2
# The rate of the last few seconds: a cold start does not spoil the estimate for minutes.
_RATE_OVER_SECONDS = 5.0
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Counts records, or what else it is told to be `of`, and shows count, rate and time left; use it as a context manager.

    `total` None means that nobody knows, so no time left is shown. It stands on stderr, unless another `stream` is given; `clock` is
    monotonic, in seconds.
    """

    def __init__(
        self, what: str, total: int | None, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, of: str = "records"
    ) -> None:
        self._of = of
        self._what, self._total, self._stream, self._clock = what, total, sys.stderr if stream is None else stream, clock
        self._shown = is_terminal(self._stream)
        self._records, self._stands = 0, False
        self._next_seconds = clock() + _SHOW_EVERY_SECONDS
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def add(self, records: int = 1) -> None:
        """So many more are done; cheap enough for every batch."""
        self._records += records
        if self._shown and (now := self._clock()) >= self._next_seconds:
            self._next_seconds = now + _SHOW_EVERY_SECONDS
            self._seen.append((now, self._records))
            while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_OVER_SECONDS:
                self._seen.popleft()
            self._stream.write(_CLEAR_LINE + self.line())
            self._stream.flush()
            self._stands = True

    def hide(self) -> None:
        """Clear the line for what is printed next; the next records bring it back."""
        if self._stands:
            self._stands = False
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()

    def line(self) -> str:
        """What stands on the terminal: `replay: 120,000 of 480,000 records, 60,000/s, 6s left`."""
        (then, before), (now, done) = self._seen[0], self._seen[-1]
        rate = (done - before) / (now - then) if now > then else 0.0
        of = "" if self._total is None else f" of {units.count(self._total)}"
        text = f"{self._what}: {units.count(self._records)}{of} {self._of}, {units.count(round(rate))}/s"
        if self._total is not None and rate > 0:
            text += f", {units.span(round(max(0, self._total - self._records) / rate) * 1000)} left"
        return text

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
