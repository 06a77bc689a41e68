"""`-w`: a verb's answer anew every other second until it is interrupted; on a terminal in the place of the last one, else after it.

    @watchable
    def nodes(*, log: LogFlag = None, at: MomentFlag = "now", show: Live = LIVE) -> int:

An answer is shown when it is whole. Its exit code ends nothing: findings are what somebody watches for.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial, wraps
from io import StringIO
from typing import Never, ParamSpec, Protocol, TextIO

from streams.cli.flags import INTERVAL_SECONDS, LIVE, Live
from streams.cli.given.moments import moment
from streams.cli.printed import units
from streams.cli.printed.output import text_width
from streams.cli.printed.printable import printable_lines
from streams.cli.printed.stdout import check_heard, is_terminal
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import named_log
from streams.clock import wall_clock_ms
from streams.log.base import LogUnreachable

INTERVAL_SECONDS_MAX = 86_400
HEARD_EVERY_SECONDS = 0.5
"""How late it is noticed between two answers that nobody reads any more (`claimlog nodes -w | head -1`)."""
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_P = ParamSpec("_P")
_Fit = Callable[[Sequence[str], int, int], list[str]]
"""Those of some lines that are shown in a window of so many columns and rows."""


def watchable(verb: Callable[_P, int]) -> Callable[_P, int]:
    """The verb, asked again and again where its `Live` says so. Raises UsageProblem where that would always answer the same."""
    return _watched(verb, grows_down=False)


def watchable_at_its_end(verb: Callable[_P, int]) -> Callable[_P, int]:
    """As `watchable`, for an answer that grows downwards: what a window has no room for is left out at its beginning."""
    return _watched(verb, grows_down=True)


def _watched(verb: Callable[_P, int], *, grows_down: bool) -> Callable[_P, int]:
    @wraps(verb)
    def asked(*args: _P.args, **kwargs: _P.kwargs) -> int:
        live = next((given for given in kwargs.values() if isinstance(given, Live)), LIVE)
        if not live.watch:
            if live.interval is not None:
                raise UsageProblem("--interval goes with --watch")
            return verb(*args, **kwargs)
        _check(args, kwargs)
        seconds = INTERVAL_SECONDS if live.interval is None else live.interval
        if not 0 < seconds <= INTERVAL_SECONDS_MAX:
            raise UsageProblem(f"--interval {seconds:g}: expected more than 0 and at most {INTERVAL_SECONDS_MAX} seconds")
        # Sorted otherwise, what comes may stand anywhere.
        _watch(lambda: verb(*args, **kwargs), seconds, live, grows_down=grows_down and live.sort is None)

    return asked


def check_grows(log: str | None) -> None:
    """Raises UsageProblem for a log, of `--log` or of the environment, to which nothing is added while somebody watches."""
    spec = named_log(log)
    if spec == "-":
        raise UsageProblem("--watch: stdin is read to its end before anything is answered, so nothing comes after it; leave out --watch")
    if spec.endswith(".jsonl") and not spec.startswith(("sqlite:", "kafka:")):
        raise UsageProblem(f"--watch: nothing is added to {spec}, a copy of a log; leave out --watch, or name the log that is written to")


def _check(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raises UsageProblem for what does not change, or can be read once only."""
    log, now_ms = kwargs.get("log"), wall_clock_ms()
    check_grows(log if isinstance(log, str) else None)
    if "-" in args:
        raise UsageProblem("--watch: - is stdin, which can be read once only, and a watch asks again: name a file")
    for name in ("at", "until"):
        text = kwargs.get(name)
        # One that moves on with the clock (now, -2h) is another a moment later.
        if isinstance(text, str) and moment(text, now_ms) == moment(text, now_ms + 1):
            raise UsageProblem(f"--{name} and --watch do not go together: of a moment that stands the answer stays the same")


class _Caught(StringIO):
    """What a verb prints, until it is whole; a terminal if the stream is one that it stands for."""

    def __init__(self, stands_for: TextIO) -> None:
        super().__init__()
        self._stream = stands_for

    def isatty(self) -> bool:
        """As that stream."""
        return self._stream.isatty()


class _Remarks(_Caught):
    """What a verb says. How far a fold has come is passed on at once, of the first answer: the others are expected to be short."""

    def __init__(self, stands_for: TextIO, *, is_first: bool) -> None:
        super().__init__(stands_for)
        self._is_first = is_first

    def isatty(self) -> bool:
        """Whether progress is shown."""
        return self._is_first and super().isatty()

    def write(self, text: str, /) -> int:
        """Keep it. What begins with a carriage return, as only progress does, is passed on."""
        return self._stream.write(text) if text.startswith("\r") else super().write(text)


class _Page(Protocol):
    """Where answers are shown."""

    def show(self, text: str, remarks: list[str]) -> None:
        """The newest answer, and what was said of it."""
        ...

    def say(self, sentence: str) -> None:
        """There is no newer answer, and why."""
        ...


class _Roll:
    """Answers one after the other, `apart` with an empty line between them; a remark that the last one had as well is not said again."""

    def __init__(self, out: TextIO, err: TextIO, *, apart: bool) -> None:
        self._out, self._err, self._apart = out, err, apart
        self._follows = False
        self._said: set[str] = set()

    def show(self, text: str, remarks: list[str]) -> None:
        if text and self._apart and self._follows:
            self._out.write("\n")
        self._follows |= bool(text)
        self._out.write(text)
        self._out.flush()
        self._tell(remarks)

    def say(self, sentence: str) -> None:
        self._tell([sentence])

    def _tell(self, remarks: list[str]) -> None:
        self._err.writelines(f"{remark}\n" for remark in remarks if remark not in self._said)
        self._err.flush()
        self._said = set(remarks)


class _Screen:
    """A terminal, of which each answer takes the place of the last one, as far as the window has room.

    Lines are written over and the rest of each cleared, so nothing flickers; what stood there before has been scrolled up.
    """

    def __init__(self, out: TextIO, err: TextIO, seconds: float, fit: _Fit) -> None:
        self._out, self._seconds, self._fit = out, seconds, fit
        self._text, self._remarks, self._time_ms, self._is_first = "", list[str](), 0, True
        self._other = None if is_terminal(err) else _Roll(StringIO(), err, apart=False)

    def show(self, text: str, remarks: list[str]) -> None:
        self._text, self._remarks, self._time_ms = text, remarks, wall_clock_ms()
        self._draw(remarks)

    def say(self, sentence: str) -> None:
        self._draw([*self._remarks, sentence])

    def _draw(self, remarks: list[str]) -> None:
        if self._other is not None:
            self._other.show("", remarks)
            remarks = []
        size = os.get_terminal_size(self._out.fileno())
        columns, rows = size.columns or 80, (size.lines or 24) - 1  # the last one is the cursor's
        head = f"{units.moment(self._time_ms)}, again every {self._seconds:g} s until interrupted"
        below = _fitted(remarks, columns, rows // 2)
        left = rows - sum(_rows(line, columns) for line in (head, *below))
        shown = [head, *self._fit(self._text.split("\n")[:-1], columns, left), *below]
        scrolled = "\n" * rows if self._is_first else ""
        self._is_first = False
        # A cursor behind a full line stands on its last character still.
        lines = [line + ("" if text_width(plain := _COLOUR.sub("", line)) % columns == 0 and plain else _CLEAR_LINE) for line in shown]
        self._out.write(scrolled + _HOME + "\n".join([*lines, _CLEAR_BELOW]))
        self._out.flush()


def _rows(line: str, columns: int) -> int:
    """How many rows of a terminal a line takes."""
    return max(1, -(-text_width(_COLOUR.sub("", line)) // columns))


def _fitted(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """As many of the lines as so many rows have room for, and how many there are more."""
    if sum(_rows(line, columns) for line in lines) <= rows:
        return list(lines)
    fitted: list[str] = []
    left = rows - 1
    for line in lines:
        left -= _rows(line, columns)
        if left < 0:
            break
        fitted.append(line)
    return [*fitted, f"... {units.counted(len(lines) - len(fitted), 'line')} more"]


def _fitted_at_its_end(lines: Sequence[str], columns: int, rows: int, *, headings: int) -> list[str]:
    """As `_fitted`, but the last of the lines, below how many there are before them; the heading stays where it leaves room for one."""
    if sum(_rows(line, columns) for line in lines) <= rows:
        return list(lines)
    heading, rest = list(lines[:headings]), lines[headings:]
    left = rows - 1 - sum(_rows(line, columns) for line in heading)
    if left < 1:
        heading, left = [], rows - 1
    first = len(rest)
    while first and (left := left - _rows(rest[first - 1], columns)) >= 0:
        first -= 1
    return [*heading, f"... {units.counted(first, 'line')} before", *rest[first:]]


def _watch(ask: Callable[[], int], seconds: float, live: Live, *, grows_down: bool) -> Never:
    """Ask, show, wait; a log that is out of reach after the first answer is waited for. Raises what else asking raises.

    Ends by an interrupt, or with BrokenPipeError once nobody reads any more.
    """
    out, err = sys.stdout, sys.stderr
    fit = partial(_fitted_at_its_end, headings=int(live.headers)) if grows_down else _fitted
    page: _Page = _Screen(out, err, seconds, fit) if live.for_people and is_terminal(out) else _Roll(out, err, apart=live.for_people)
    is_first, is_away = True, False
    while True:
        answer, remarks = _Caught(out), _Remarks(err, is_first=is_first)
        try:
            with redirect_stdout(answer), redirect_stderr(remarks):
                ask()
        except LogUnreachable as problem:
            if is_first:
                err.write(remarks.getvalue())
                raise
            if not is_away:  # Its words may differ from time to time.
                page.say(f"claimlog: {printable_lines(str(problem))}; asked again every {seconds:g} s")
            is_away = True
        except Exception:
            err.write(remarks.getvalue())
            raise
        else:
            page.show(answer.getvalue(), remarks.getvalue().split("\n")[:-1])
            is_first, is_away = False, False
        _pause(out, seconds)


def _pause(out: TextIO, seconds: float) -> None:
    """Raises BrokenPipeError once nobody reads `out` any more."""
    until = time.monotonic() + seconds
    check_heard(out)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, HEARD_EVERY_SECONDS))
        check_heard(out)
