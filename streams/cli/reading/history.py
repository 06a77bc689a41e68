"""The history that left a log, read with the log as one: `--archive DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from streams.cli.problems import UsageProblem
from streams.log.archive import ArchivedLog
from streams.log.base import Log

ArchiveFlag = Annotated[Path | None, Parameter(name="--archive", show_default=False, help="Folder with the history that left the log.")]


def with_archive(log: Log, directory: Path | None) -> Log:
    """The log, with the history in `directory` before it. Raises UsageProblem if there is no such folder or the log cannot have one."""
    if directory is None:
        return log
    if not directory.is_dir():
        raise UsageProblem(f"--archive {directory}: there is no such folder; pass the one that `claimlog archive` wrote to")
    return archived(log, directory)


def archived(log: Log, directory: Path) -> ArchivedLog:
    """The log, with what history there is in `directory` before it. Raises UsageProblem if it does not say which ledger it carries."""
    if not log.ledger_id:
        raise UsageProblem("this kind of log does not say which ledger it carries, so no archive can belong to it")
    return ArchivedLog(log, directory)
