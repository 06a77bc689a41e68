"""The flags that mean the same in every verb, and what they turn into.

A verb takes those it needs:

    def nodes(*, log: LogFlag = None, at: MomentFlag = "now", show: Show = SHOW) -> int:
        with opened(log) as ledger:
            ...
            write(Answer(...), show.style(sys.stdout), sys.stdout, sys.stderr)

and they are parsed, described and refused alike everywhere.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

from cyclopts import Parameter

from streams.cli.exits import AnswerIncomplete, UsageProblem
from streams.cli.given.timegrammar import GRAMMAR, Instant, Moment, MomentError, parse
from streams.cli.printed import units
from streams.cli.printed.output import Format, Style
from streams.cli.printed.stdout import is_terminal
from streams.cli.reading.open_log import open_log
from streams.log.base import Log

LogFlag = Annotated[
    str | None,
    Parameter(
        name="--log",
        allow_leading_hyphen=True,  # `-` is stdin
        help="sqlite:PATH, kafka://HOST:PORT[/PREFIX], FILE.jsonl, or - for stdin; default: CLAIMLOG_LOG.",
    ),
]
MomentFlag = Annotated[str, Parameter(allow_leading_hyphen=True, help=f"One of: {GRAMMAR}.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Show:
    """How the answer is printed."""

    output: Annotated[Format, Parameter(name=["--output", "-o"], help="How the answer is printed.")] = "table"
    column: Annotated[
        tuple[str, ...], Parameter(name=["--column", "-c"], negative=(), show_default=False, help="Only this column; repeatable.")
    ] = ()
    sort: Annotated[str, Parameter(allow_leading_hyphen=True, show_default=False, help="By this column; -COLUMN descends.")] = ""
    headers: Annotated[bool, Parameter(negative="--no-headers", help="The line above a table.")] = True

    @property
    def in_words(self) -> bool:
        """Whether people read it: verbs that tell more than a table holds do so here, unless columns are asked for."""
        return self.output in {"table", "wide"} and not self.column and not self.sort

    def style(self, out: TextIO) -> Style:
        """What `output.write` needs to know, colour included: a terminal that knows any, unless NO_COLOR is set."""
        colour = is_terminal(out) and not os.environ.get("NO_COLOR")
        return Style(format=self.output, columns=self.column, sort=self.sort, headers=self.headers, colour=colour)


SHOW = Show()


ARCHIVE = "CLAIMLOG_ARCHIVE"
AHEAD_MS_MAX = 60_000
"""A broker's clock, whose times people copy from answers, may be so much ahead of ours."""


def opened(spec: str | None, *, create: bool = False, partly_copied: bool = False, makes: Path | None = None) -> Log:
    """The log of `--log`, or of the environment, as `open_log`; with CLAIMLOG_ARCHIVE the history in that folder stands before it.

    The folder that the caller `makes` need not be there yet.
    Raises as `open_log` does, and UsageProblem for a folder that is not there or a log that cannot have history elsewhere.
    """
    log = open_log(spec, os.environ, sys.stdin.buffer, create=create, partly_copied=partly_copied)
    directory = os.environ.get(ARCHIVE)
    if not directory or (makes is not None and not makes.exists() and makes.absolute() == Path(directory).absolute()):
        return log
    return _with_history(log, Path(directory))


def _with_history(log: Log, directory: Path) -> Log:
    from streams.log.archive import ArchivedLog

    if not directory.is_dir() or not getattr(log, "ledger_id", ""):
        raise UsageProblem(f"{ARCHIVE}={directory}: expected the folder that `claimlog archive` wrote to, and a log on SQLite or Kafka")
    return ArchivedLog(cast("Any", log), directory)


def moment(text: str, now_ms: int) -> Moment:
    """The moment of `--at`, `--since` or `--until`. Raises UsageProblem."""
    try:
        return parse(text, now_ms)
    except MomentError as problem:
        raise UsageProblem(str(problem)) from None


def past_moment(text: str, now_ms: int) -> Moment:
    """As `moment`. Raises AnswerIncomplete for a time that has not come: of it no record can say anything yet."""
    found = moment(text, now_ms)
    if isinstance(found, Instant) and found.time_ms > now_ms + AHEAD_MS_MAX:
        raise AnswerIncomplete(f"{text} is {units.moment(found.time_ms)}, which has not come yet; for the end of the log write now")
    return found
