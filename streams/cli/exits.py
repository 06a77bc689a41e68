"""How a command ends: one meaning for each exit code, and the way from an exception to it.

A wrong number never leaves with 0: an answer that lacks records exits 6, and what cannot be reached exits 5.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import TextIO

from projections.reading import HistoryMissing, OffsetGap, ProjectionError, WrongCut
from streams.cli.interrupts import was_interrupted
from streams.cli.printed.printable import printable_lines
from streams.cli.printed.stdout import NAME, hush_stdout
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.log.base import LogCutShort, LogError, LogOutdated, LogUnreachable, OffsetOutOfRange
from streams.log.kafka_settings import SettingsProblem
from streams.scheduling.custom_error import CustomError


class Exit(IntEnum):
    """The exit codes of `claimlog`."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FINDINGS = 3
    UNPLACEABLE = 4
    UNREACHABLE = 5
    INCOMPLETE = 6
    INTERRUPTED = 130


DOES_NOT_FIT = frozenset({"no-valid-node", "refused"})
"""Reasons that say so. The others (gave up, cancelled, invalid) say nothing about the fleet."""


def exit_of_failed(reason: str) -> Exit:
    """The exit code for a request that was not placed."""
    return Exit.UNPLACEABLE if reason in DOES_NOT_FIT else Exit.ERROR


def exit_of(problem: BaseException) -> Exit:
    """The exit code of an exception."""
    match problem:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case BrokenPipeError():
            return Exit.DONE
        case UsageProblem() | WrongCut() | SettingsProblem():
            return Exit.USAGE
        case LogUnreachable() | LogOutdated():
            return Exit.UNREACHABLE
        case LogCutShort() | OffsetOutOfRange() | HistoryMissing() | OffsetGap() | AnswerIncomplete():
            return Exit.INCOMPLETE
        case _:
            return Exit.ERROR


def guarded(run: Callable[[], int | None], stderr: TextIO) -> int:
    """Run a command and return its exit code; what it raises is said on `stderr`.

    What somebody can do something about is one line. Anything else is our fault and is shown with its traceback.
    """
    try:
        code = run() or Exit.DONE
        _flush_stdout()
    except BrokenPipeError as problem:
        hush_stdout()
        return exit_of(problem)
    except KeyboardInterrupt as problem:
        return exit_of(problem)
    except (UsageProblem, AnswerIncomplete, LogError, ProjectionError, CustomError, SettingsProblem) as problem:
        stderr.write(f"claimlog: {printable_lines(str(problem))}\n")
        return exit_of(problem)
    except OSError as problem:
        # The disk behind stdout is full, a port is taken, a folder cannot be made: nothing of ours.
        if problem.filename == NAME:
            hush_stdout()
        said = f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem.strerror or problem)
        stderr.write(f"claimlog: {printable_lines(said)}\n")
        return exit_of(problem)
    except MemoryError as problem:
        stderr.write("claimlog: out of memory; allow this process more (`ulimit -v`, its container's limit), or ask for less at once\n")
        return exit_of(problem)
    except Exception as problem:
        if isinstance(problem, (SystemError, RuntimeError)) and was_interrupted():
            return Exit.INTERRUPTED
        traceback.print_exception(problem, file=stderr)
        stderr.write("claimlog: this is a mistake in claimlog; please report it with the lines above\n")
        return exit_of(problem)
    return int(code)


def _flush_stdout() -> None:
    """Write out the rest. Who read enough has gone, but what the answer means (`place … | head -1` exits 4) stands."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        hush_stdout()
