"""Clocks: the system's, and one that runs faster, the same in every process that is given its text."""

from __future__ import annotations

import time

import pytest

from streams.clock import ScaledClock, SystemClock, parse


def test_an_empty_text_is_the_systems_clock() -> None:
    clock = parse("")

    assert isinstance(clock, SystemClock)
    assert abs(clock.wall_ms() - time.time() * 1000) < 1000
    assert clock.seconds(1500) == 1.5


def test_a_scaled_clock_is_read_back_from_its_own_text() -> None:
    clock = ScaledClock(factor=60, real_ms=1_700_000_000_000, shown_ms=1_600_000_000_000)

    assert parse(str(clock)) == clock


def test_a_scaled_clock_runs_as_many_times_as_fast() -> None:
    clock = ScaledClock(factor=100, real_ms=time.time_ns() // 1_000_000, shown_ms=0)
    wall_ms, boot_ms = clock.wall_ms(), clock.boot_ms()

    time.sleep(0.02)

    assert clock.wall_ms() - wall_ms >= 1900
    assert clock.boot_ms() - boot_ms >= 1900
    assert clock.seconds(60_000) == 0.6


@pytest.mark.parametrize("text", ["60", "x60", "x60@1", "x@1:2", "x0@1:2", "xa@b:c"])
def test_a_text_that_names_no_clock_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="clock"):
        parse(text)
