"""A clock in the hands of a test."""

from __future__ import annotations


class HandClock:
    """A clock that stands until it is moved. Its hands, which stamp, may be set back."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.back_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms - self.back_ms

    def boot_ms(self) -> int:
        return self.now_ms - 990_000

    def seconds(self, duration_ms: int) -> float:
        return 0.0
