"""Ctrl-C while modules are imported: it waits until they are, since not everything that runs then can be interrupted. And other ends.

An interrupt within the class body of a msgspec Struct ends the process with SIGSEGV, and one within importlib's own clearing up is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

LOOK_AGAIN_SECONDS = 0.01
"""How late an interrupt may come after an import; all imports of a verb together take a tenth of a second or so."""
SIGNALLED = 128
"""What shells add to the number of the signal that ended a process."""
_raised: list[int] = []


@contextmanager
def imports_spared() -> Iterator[None]:
    """Within, an interrupt that comes within an import comes after it. What ignores interrupts (`nohup`, `cmd &`) goes on to do so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, _again)
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # too late: what was to be interrupted is over


def ends_tidily() -> AbstractContextManager[None]:
    """Within, SIGTERM and SIGHUP (its terminal was closed) let the process clean up first, as Ctrl-C does.

    The exit code is what shells say of them. The second one ends it at once; what ignores them goes on to do so.
    """
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    return _ended_by(taken, lambda number: SIGNALLED + number, signal.SIG_DFL)


def ended_by_sigterm() -> AbstractContextManager[None]:
    """Within, SIGTERM is an orderly end with exit code 0 also while a log is waited for; what is cut short the next audit makes good."""
    return _ended_by([signal.SIGTERM], lambda _number: 0, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[None]:
    """Within, the first signal that would raise something waits: a process that is just being started would be nobody's to end."""
    told: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for first in told[:1]:
        signal.raise_signal(first)


@contextmanager
def _ended_by(numbers: Sequence[int], code_of: Callable[[int], int], afterwards: signal.Handlers) -> Iterator[None]:
    """Within, the first of these signals ends the process with its code; `afterwards` is what becomes of the next."""
    told: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        for each in numbers:
            signal.signal(each, afterwards)
        raise SystemExit(code_of(number))

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        if told:  # Kafka's client loses what is raised within an acknowledgement; all that is known then is that it was interrupted.
            raise SystemExit(code_of(told[0])) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def was_interrupted() -> bool:
    """Whether an interrupt was raised in this process: a client written in C may lose it, and fail with something else in its place."""
    return bool(_raised)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            signal.setitimer(signal.ITIMER_REAL, LOOK_AGAIN_SECONDS)
            return
        frame = frame.f_back
    _raised.append(number)
    raise KeyboardInterrupt


def _again(_number: int, _frame: FrameType | None) -> None:
    """Once more, for whoever takes interrupts by now."""
    signal.raise_signal(signal.SIGINT)
