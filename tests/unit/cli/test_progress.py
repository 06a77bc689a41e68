"""How far a long fold has come."""

from __future__ import annotations

import io

import pytest

from streams.cli.flags import SHOW
from streams.cli.printed.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def terminal_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_sees_records_rate_and_time_left_and_is_left_clean() -> None:
    clock, terminal = Clock(), Terminal()

    with Progress("replay", 480_000, terminal, clock) as progress:
        for _ in range(2):
            clock.seconds += 1
            progress.add(60_000)
        line = progress.line()

    assert line == "replay: 120,000 of 480,000 records, 60,000/s, 6s left"
    assert terminal.getvalue() == f"\r\x1b[Kreplay: 60,000 of 480,000 records, 60,000/s, 7s left\r\x1b[K{line}\r\x1b[K"


def test_what_is_counted_may_be_something_else_than_records() -> None:
    clock = Clock()
    progress = Progress("capacity", 400, Terminal(), clock, of="nodes")

    clock.seconds += 1
    progress.add(100)

    assert progress.line() == "capacity: 100 of 400 nodes, 100/s, 3s left"


def test_a_dumb_terminal_sees_nothing_that_it_would_show_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    clock, terminal = Clock(), Terminal()

    with Progress("replay", 480_000, terminal, clock) as progress:
        clock.seconds += 1
        progress.add(60_000)

    assert terminal.getvalue() == ""
    assert not SHOW.style(terminal).colour


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    progress = Progress("replay", None, Terminal(), clock)

    for second in range(30):
        clock.seconds += 1
        progress.add(10 if second < 20 else 1_000)

    assert progress.line() == "replay: 10,200 records, 1,000/s"


def test_fast_batches_do_not_flood_the_terminal() -> None:
    clock, terminal = Clock(), Terminal()
    progress = Progress("replay", None, terminal, clock)

    for _ in range(1_000):
        clock.seconds += 0.001
        progress.add()

    assert terminal.getvalue().count("\r") <= 5


def test_nothing_is_written_where_no_terminal_is() -> None:
    clock, stream = Clock(), io.StringIO()

    with Progress("replay", 10, stream, clock) as progress:
        clock.seconds += 10
        progress.add(10)

    assert stream.getvalue() == ""


def test_the_line_makes_room_for_what_is_printed_and_comes_back() -> None:
    clock, terminal = Clock(), Terminal()
    progress = Progress("events", None, terminal, clock)
    progress.hide()
    assert terminal.getvalue() == "", "nothing stands there yet"

    for _ in range(2):
        clock.seconds += 1
        progress.add()
        progress.hide()
    progress.hide()

    assert terminal.getvalue() == "\r\x1b[Kevents: 1 records, 1/s\r\x1b[K\r\x1b[Kevents: 2 records, 1/s\r\x1b[K"
