"""The flags that mean the same in every verb, and what they turn into.

A verb takes those it needs:

    def nodes(*, log: LogFlag = None, at: MomentFlag = "now", show: Show = SHOW) -> int:
        with opened(log) as ledger:
            ...
            show.write(Report(...))

and they are parsed, described and refused alike everywhere.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, TextIO

from cyclopts import Parameter
from msgspec.structs import replace

from streams.cli.given.timegrammar import GRAMMAR
from streams.cli.given.units_in import of_seconds
from streams.cli.printed.output import Format, Report, Style, check_asked, write
from streams.cli.printed.stdout import is_terminal

LogFlag = Annotated[
    str | None,
    Parameter(
        name="--log",
        allow_leading_hyphen=True,  # `-` is stdin
        help="sqlite:PATH, kafka://HOST:PORT[/PREFIX], FILE.jsonl, or - for stdin; default: CLAIMLOG_LOG.",
    ),
]
MomentFlag = Annotated[str, Parameter(allow_leading_hyphen=True, help=f"One of: {GRAMMAR}.")]
BoundFlag = Annotated[str | None, Parameter(allow_leading_hyphen=True, show_default=False, help=f"One of: {GRAMMAR}.")]
"""A moment that may be left out: an empty one (`--since "$UNSET"`) is no moment, rather than none given."""
INTERVAL_SECONDS = 2.0
"""As `watch` has it: long enough to read a table, and what a fleet reports comes by the minute."""
WATCH_HELP = (
    f"Ask again every {INTERVAL_SECONDS:g} s until interrupted: on a terminal a table takes the place of the last one, elsewhere it "
    "follows after an empty line; -o json prints a document a line."
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Show:
    """How the answer is printed."""

    output: Annotated[Format, Parameter(name=["--output", "-o"], help="How the answer is printed.")] = "table"
    column: Annotated[
        tuple[str, ...], Parameter(name=["--column", "-c"], negative=(), show_default=False, help="Only this column; repeatable.")
    ] = ()
    sort: Annotated[str | None, Parameter(allow_leading_hyphen=True, show_default=False, help="By this column; -COLUMN descends.")] = None
    headers: Annotated[bool, Parameter(negative="--no-headers", help="The line above a table.")] = True

    @property
    def for_people(self) -> bool:
        """Whether it is a table, and what is told around it."""
        return self.output in {"table", "wide"}

    @property
    def in_words(self) -> bool:
        """Whether people read it: verbs that tell more than a table holds do so here, unless columns are asked for."""
        return self.for_people and not self.column and self.sort is None

    def style(self, out: TextIO) -> Style:
        """What `output.write` needs to know, colour included: a terminal that knows any, unless NO_COLOR is set."""
        colour = is_terminal(out) and not os.environ.get("NO_COLOR")
        return Style(format=self.output, columns=self.column, sort=self.sort, headers=self.headers, colour=colour)

    def write(self, report: Report) -> None:
        """Print the answer, as `output.write` does. Raises UsageProblem for a column that is not there."""
        write(report, self.style(sys.stdout), sys.stdout, sys.stderr)

    def check(self, report: Report) -> None:
        """Raises UsageProblem for a column that the answer will not have; for who writes before there is one."""
        check_asked(report, self.style(sys.stdout))


SHOW = Show()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Live(Show):
    """As `Show`, of an answer that can be watched: its verb is `streams.cli.watching.watchable`."""

    watch: Annotated[bool, Parameter(name=["--watch", "-w"], negative=(), help=WATCH_HELP)] = False
    interval: Annotated[float | None, of_seconds("With --watch: so many seconds, or 1m, instead.", show_default=False)] = None

    def style(self, out: TextIO) -> Style:
        """As of `Show`; documents that follow each other are one a line."""
        return replace(super().style(out), compact=self.watch)


LIVE = Live()
