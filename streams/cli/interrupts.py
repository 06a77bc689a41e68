"""Ctrl-C while modules are imported: it waits until they are, since not everything that runs then can be interrupted.

An interrupt within the class body of a msgspec Struct ends the process with SIGSEGV, and one within importlib's own clearing up is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LOOK_AGAIN_SECONDS = 0.01
"""How late an interrupt may come after an import; all imports of a verb together take a tenth of a second or so."""


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


def _interrupt(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            signal.setitimer(signal.ITIMER_REAL, LOOK_AGAIN_SECONDS)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _again(_number: int, _frame: FrameType | None) -> None:
    """Once more, for whoever takes interrupts by now."""
    signal.raise_signal(signal.SIGINT)
