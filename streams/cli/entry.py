"""The console script. Until the command can end in words, an interrupt ends it without any: Python would show where it was."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""As `streams.cli.exits.Exit`, which takes longer to import than most of this does."""


def main() -> None:
    """What `claimlog` runs. What ignores interrupts (`nohup`, `cmd &`) goes on to do so."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from streams.cli.main import main as command

    signal.signal(signal.SIGINT, before)
    command()


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
