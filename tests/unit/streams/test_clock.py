"""Clocks: the system's, and one that runs faster, the same in every process that is given its text."""

from __future__ import annotations

import time

import pytest

from streams.clock import LogTime, ScaledClock, SystemClock, parse


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


def test_the_logs_time_goes_on_from_the_newest_record_and_is_never_later_than_our_own() -> None:
    wall, passed = [5_000_000], [10.0]
    log_time = LogTime(lambda: wall[0], lambda: passed[0])
    before = log_time.now_ms()

    log_time.seen(1_000_000)
    passed[0] += 2
    log_time.seen(1_000_500)
    seen = log_time.now_ms()
    wall[0] = 1_001_000

    assert (before, seen, log_time.now_ms()) == (5_000_000, 1_002_000, 1_001_000)
