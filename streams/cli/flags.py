"""The flags that mean the same in every verb, and what they turn into.

A verb takes those it needs:

    def nodes(*, log: LogFlag = None, at: MomentFlag = "now", show: Show = SHOW) -> int:
        with opened(log) as ledger:
            ...
            show.write(Answer(...))

and they are parsed, described and refused alike everywhere.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, TextIO

from cyclopts import Parameter

from streams.cli.given.timegrammar import GRAMMAR
from streams.cli.printed.output import Answer, Format, Style, check_asked, write
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

    def write(self, answer: Answer) -> None:
        """Print the answer, as `output.write` does. Raises UsageProblem for a column that is not there."""
        write(answer, self.style(sys.stdout), sys.stdout, sys.stderr)

    def check(self, answer: Answer) -> None:
        """Raises UsageProblem for a column that the answer will not have; for who writes before there is one."""
        check_asked(answer, self.style(sys.stdout))


SHOW = Show()
