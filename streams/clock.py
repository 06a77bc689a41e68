"""Time as an argument: the wall clock that stamps, and the boot clock that measures.

Limits such as "give up after a quarter of the TTL" are measured with CLOCK_BOOTTIME, which goes on while a machine sleeps and never steps.
A scaled clock lets a demonstration or a test live through an hour in a minute, the same hour in every process that is given the same text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

ClockMs = Callable[[], int]

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_ms() -> int:
    """Milliseconds since 1970, UTC: the clock of every log unless another is given."""
    return time.time_ns() // 1_000_000


def boot_clock_ms() -> int:
    """Milliseconds since boot, the machine's sleep included. Where there is no boot clock (not Linux) the monotonic one stands in."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class Clock(Protocol):
    """What a shell asks for the time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC: for stamps. May step."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since some fixed moment before this machine's start: for measuring. Never steps."""
        ...

    def seconds(self, duration_ms: int) -> float:
        """How long to really sleep for so much time of this clock."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        """See `Clock`."""
        return wall_clock_ms()

    def boot_ms(self) -> int:
        """See `Clock`."""
        return boot_clock_ms()

    def seconds(self, duration_ms: int) -> float:
        """See `Clock`."""
        return duration_ms / 1000


class ScaledClock(Struct, frozen=True):
    """A clock that ran `factor` times as fast as the machine's since the moment `real_ms`, when it showed `shown_ms`."""

    factor: int
    real_ms: int
    shown_ms: int

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self.shown_ms + (time.time_ns() - self.real_ms * 1_000_000) * self.factor // 1_000_000

    def boot_ms(self) -> int:
        """See `Clock`."""
        return time.clock_gettime_ns(_BOOT_CLOCK) * self.factor // 1_000_000

    def seconds(self, duration_ms: int) -> float:
        """See `Clock`."""
        return duration_ms / 1000 / self.factor

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"x{self.factor}@{self.real_ms}:{self.shown_ms}"


def parse(text: str) -> Clock:
    """The clock that a text names: empty for the system's, else `xFACTOR@REAL_MS:SHOWN_MS`. Raises ValueError."""
    if not text:
        return SystemClock()
    try:
        factor, moments = text.removeprefix("x").split("@")
        real, shown = moments.split(":")
        clock = ScaledClock(int(factor), int(real), int(shown))
    except ValueError:
        raise ValueError(f"clock {text!r}: expected xFACTOR@REAL_MS:SHOWN_MS, such as x60@1763716147000:1763716147000") from None
    if clock.factor < 1:
        raise ValueError(f"clock {text!r}: expected a factor of at least 1, got {clock.factor}")
    return clock


class LogTime:
    """What the time is on a log that has a clock of its own: the newest append time seen there, and what has passed since.

    `seconds` is a clock that only runs. It is never later than this machine's clock `wall_ms`: where either is ahead, by a day or
    by years, nothing has been waited for so long.
    """

    def __init__(self, wall_ms: Callable[[], int], seconds: Callable[[], float]) -> None:
        self._wall_ms, self._seconds = wall_ms, seconds
        self._began_ms: float | None = None
        """What the log's clock showed when `seconds` was 0, or later: a record is read a while after it was appended."""

    def seen(self, time_ms: int) -> None:
        """A record of this append time has just been read."""
        began_ms = time_ms - self._seconds() * 1000
        if self._began_ms is None or began_ms > self._began_ms:
            self._began_ms = began_ms

    def now_ms(self) -> int:
        """The time; this machine's as long as no record was seen."""
        wall_ms = self._wall_ms()
        return wall_ms if self._began_ms is None else min(wall_ms, round(self._began_ms + self._seconds() * 1000))
