"""`claimlog demo`: the whole system on one log in a quarter of a minute, with nothing but Python.

Every figure it prints is computed from the log it leaves, most of them by the verbs that are shown; the fleet and the requests come from
a seed. It ends with exit code 0 only if all that it shows held.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from streams.cli.exits import Exit
from streams.cli.given.units_in import whole
from streams.cli.interrupts import ends_tidily
from streams.cli.problems import UsageProblem

Scenario = Literal["story", "tempest-leak"]
NODES = 12
LOG = "ledger.sqlite"
MARK = f"{LOG}-demo"
"""Beside a log that the next demonstration may replace, which it names."""


def demo(
    *,
    directory: Annotated[Path, Parameter(help="Where the log is made; only an earlier demonstration's is replaced.")] = Path("demo-data"),
    seed: Annotated[int, Parameter(converter=whole, help="Of the fleet and the requests.")] = 7,
    nodes: Annotated[
        int | None, Parameter(converter=whole, show_default=False, help=f"Number of simulated hypervisors, 4 to 99; default: {NODES}.")
    ] = None,
    scenario: Annotated[Scenario, Parameter(help="tempest-leak: a published case, down to the instance.")] = "story",
) -> int:
    """Hypervisors, requests and three schedulers on one log; one scheduler is killed, a leak found, explained and healed."""
    began = time.monotonic()
    _refuse_others(directory)
    if scenario == "tempest-leak":
        if nodes is not None:
            raise UsageProblem(f"--nodes {nodes}: it goes with the story alone; the case that was published has one host")
        print("claimlog demo: a host that has room and a tracker that says it has none", flush=True)
        path = _fresh(directory)
        from streams.cli.demo.tempest import RUN_MS, RUNS, play

        return play(path, seed, time.time_ns() // 1_000_000 - (RUNS + 1) * RUN_MS)
    nodes = NODES if nodes is None else nodes
    if not 4 <= nodes <= 99:
        raise UsageProblem(f"--nodes: expected 4 to 99, got {nodes}")
    print(f"claimlog demo: {nodes} simulated hypervisors and three schedulers on one log, {directory}/ledger.sqlite", flush=True)
    path = _fresh(directory)
    from streams.cli.demo.stage import DemoProblem, Stage
    from streams.cli.demo.story import Story
    from streams.cli.printed.printable import say

    with ends_tidily():
        stage = Stage(path, seed, nodes)
        try:
            story = Story(stage, random.Random(seed))
            story.play()
        except DemoProblem as problem:
            say(f"demo: {problem}")
            return Exit.ERROR
        finally:
            stage.close()
    return story.end(began)


def _refuse_others(directory: Path) -> None:
    """Raises UsageProblem where a log lies that no demonstration made: it may be somebody's ledger."""
    path = directory / LOG
    there = [each for each in _files(path) if os.path.lexists(each)]
    if there and not _is_left(path, directory / MARK):
        raise UsageProblem(
            f"--directory {directory}: {there[0]} is not known to be of an earlier demonstration (whose ledger {MARK} names), so it is not "
            "replaced; name another directory, or move it away"
        )


def _is_left(path: Path, mark: Path) -> bool:
    """Whether `mark` says that a demonstration made the log at `path`, of which the file itself may be gone."""
    from streams.log.base import LogError
    from streams.log.sqlite import SqliteLog

    if not mark.is_file():
        return False
    if not path.exists():
        return True
    try:
        with SqliteLog.open(path) as log:
            return log.ledger_id == mark.read_text()
    except LogError:
        return False


def _files(log: Path) -> list[Path]:
    """What an embedded log consists of, but for the tables of its processes."""
    return [log.with_name(log.name + suffix) for suffix in ("", "-wal", "-shm", "-wake", "-ends")]


def _fresh(directory: Path) -> Path:
    """The log's path in `directory`, with what an earlier demonstration left there out of the way."""
    from streams.log.sqlite import SqliteLog

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageProblem(f"--directory {directory}: no folder can be made there: {problem.strerror}; name another") from problem
    path = directory / LOG
    for left in _files(path):
        left.unlink(missing_ok=True)
    shutil.rmtree(path.with_name(path.name + "-state"), ignore_errors=True)
    with SqliteLog.open(path, create=True) as log:
        (directory / MARK).write_text(log.ledger_id)
    return path
