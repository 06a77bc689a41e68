"""Who is told to end does so with its own exit code, also where what the signal's handler raised was lost on the way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

import pytest

from streams.cli.interrupts import ended_by_sigterm, ends_tidily, held_back

Ending = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("ending", "number", "code"),
    [(ended_by_sigterm, signal.SIGTERM, 0), (ends_tidily, signal.SIGTERM, 143), (ends_tidily, signal.SIGHUP, 129)],
)
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_signal_ends_with_its_own_code(ending: Ending, number: int, code: int, *, is_lost: bool) -> None:
    with pytest.raises(SystemExit) as ended, ending():
        if not is_lost:
            signal.raise_signal(number)
        with suppress(SystemExit):
            signal.raise_signal(number)
        # As `streams.log.kafka_send` has it: within an acknowledgement the client loses what was raised.
        raise KeyboardInterrupt

    assert ended.value.code == code


@pytest.mark.parametrize("ending", [ended_by_sigterm, ends_tidily])
def test_an_interrupt_alone_stays_one(ending: Ending) -> None:
    with pytest.raises(KeyboardInterrupt), ending():
        raise KeyboardInterrupt

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_is_held_back_ends_the_process_once_what_must_be_whole_is() -> None:
    done: list[str] = []

    with pytest.raises(SystemExit) as ended, ends_tidily(), held_back():
        signal.raise_signal(signal.SIGTERM)
        done.append("a process is started and known")

    assert (ended.value.code, done) == (128 + signal.SIGTERM, ["a process is started and known"])
