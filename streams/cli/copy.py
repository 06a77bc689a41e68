"""`claimlog copy`: the same ledger on another log, when one machine is no longer enough, or to have a cluster's on a laptop."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, cast

from cyclopts import Parameter

from streams.cli import units
from streams.cli.exits import Exit, UsageProblem
from streams.cli.flags import SHOW, LogFlag, Show, opened
from streams.cli.open_log import open_log
from streams.cli.output import Answer, Column, write
from streams.cli.progress import Progress
from streams.mirror import Target, mirror


def copy_verb(
    target: Annotated[str, Parameter(help="sqlite:PATH or kafka://HOST:PORT[/PREFIX]: empty, or a copy that was interrupted.")],
    /,
    *,
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Copy a ledger to another log: each record with its offset, its time and its bytes, and how far the stream processor has come.

    Answers, digests and cuts are the same there. What is derived is not copied: a stream processor makes it anew. Stop all writers first,
    or copy again once they are stopped; every record is read back and compared. What was archived has to be at hand (CLAIMLOG_ARCHIVE).
    """
    with opened(log) as source, open_log(target, os.environ, sys.stdin.buffer, create=True) as destination:
        if not hasattr(destination, "append_at"):
            raise UsageProblem(f"{target}: expected sqlite:PATH or kafka://HOST:PORT[/PREFIX], a log that can be written")
        with Progress("copy", None, sys.stderr, time.monotonic) as progress:
            copied = mirror(source, cast("Target", destination), progress.add)
        items = [
            {"topic": place.topic, "partition": place.number, "copied": count, "end": destination.end(*place)}
            for place, count in copied.items()
        ]
    columns = [
        Column(name="topic"),
        Column(name="partition", right=True),
        Column(name="copied", shown=units.count, right=True),
        Column(name="end", title="log ends at", shown=units.count, right=True),
    ]
    write(Answer(columns=columns, items=items), show.style(sys.stdout), sys.stdout, sys.stderr)
    return Exit.DONE
