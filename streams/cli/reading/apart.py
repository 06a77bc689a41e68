"""Partitions folded apart: each in one of a few processes of its own, since one Python process folds on one core.

    run_apart(Apart(source, jobs=2), log, tasks, work, added=progress.add, tell=tell)

gives what `work` makes of each task, in the order of the tasks, and it gives the same in this process and in others: a task is one
partition, `work` is given a log and the task alone, and what it tells is told in the order of the tasks. Processes are begun anew (spawn),
open the log themselves, and end with this one; what one of them raises is raised here, and the others are ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, TypeVar

from cyclopts import Parameter
from msgspec import Struct

from streams import collector
from streams.cli.given.units_in import whole
from streams.cli.problems import UsageProblem
from streams.cli.reading.history import with_archive
from streams.cli.reading.open_log import given_settings, named_log, opened, with_settings
from streams.log.base import Log

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

RECORDS_MIN = 100_000
"""With less than this beside the largest partition, processes cost more than they save: each takes a third of a second to begin."""
JOBS_MAX = 256
END_SECONDS = 5.0
"""How long a process that was told to end may take before it is killed."""

JobsFlag = Annotated[
    int | None,
    Parameter(name="--jobs", converter=whole, show_default=False, help="Fold in so many processes at most; default: one a core."),
]

Added = Callable[[int], None]
"""Hears how many more records are folded."""
Tell = Callable[[str], None]


class Task(Struct, frozen=True):
    """One partition to fold up to the offset `end`, exclusive; `records` is how many that are, if a snapshot is where it seems to be."""

    partition: int
    end: int
    records: int
    options: tuple[Any, ...] = ()
    """What the work needs to know besides."""


class Source(Struct, frozen=True):
    """How another process opens the log of `--log`; the environment and the settings of `-X` go with it. `archive` is as in `replay`."""

    spec: str | None
    archive: Path | None = None

    def open(self) -> Log:
        """As the verb itself opened it. Raises as `opened` and `with_archive` do."""
        return with_archive(opened(self.spec), self.archive)

    @property
    def reopens(self) -> bool:
        """Whether there is anything to open a second time: what came through stdin is gone."""
        return named_log(self.spec) != "-"


Result_co = TypeVar("Result_co", covariant=True)


class Work(Protocol[Result_co]):
    """A function of a module, found by its name in the other process."""

    def __call__(self, log: Log, task: Task, added: Added, tell: Tell, /) -> Result_co:
        """Do one task on `log`."""
        ...


def jobs_of(flag: int | None) -> int:
    """How many processes `--jobs` asks for: one a core that this process may use unless it says otherwise. Raises UsageProblem."""
    if flag is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not 1 <= flag <= JOBS_MAX:
        raise UsageProblem(f"--jobs {flag}: expected 1 to {JOBS_MAX}; one a core is plenty")
    return flag


class Apart(Struct, frozen=True):
    """Leave to fold in up to `jobs` processes, each of which opens `source`."""

    source: Source
    jobs: int

    def pays(self, tasks: Sequence[Task]) -> bool:
        """Whether processes of their own save time."""
        counts = [task.records for task in tasks]
        return self.jobs > 1 and len(tasks) > 1 and self.source.reopens and sum(counts) - max(counts) >= RECORDS_MIN


def run_apart(apart: Apart, log: Log, tasks: Sequence[Task], work: Work[Result_co], *, added: Added, tell: Tell) -> list[Result_co]:
    """What `work` makes of each task, in their order: here, on `log`, or where that pays in processes of their own.

    Raises what the work raises; KeyboardInterrupt ends the processes too.
    """
    if not apart.pays(tasks):
        with collector.calmed():
            return [work(log, task, added, tell) for task in tasks]
    count = min(apart.jobs, sum(task.records > 0 for task in tasks))
    results: dict[int, Result_co] = {}
    told: dict[int, list[str]] = {number: [] for number in range(len(tasks))}
    with _Crew(apart.source, work, count) as crew:
        for number, kind, value in crew.all(tasks):
            if kind == "added":
                added(value)
            elif kind == "told":
                told[number].append(value)
            else:
                results[number] = value
    for number in range(len(tasks)):
        for sentence in told[number]:
            tell(sentence)
    return [results[number] for number in range(len(tasks))]


class _Crew:
    """The processes, each with a pipe of its own; the largest tasks are begun first, the next by whoever is done."""

    def __init__(self, source: Source, work: Work[Any], count: int) -> None:
        self._source, self._work, self._count = source, work, count
        self._processes: dict[Connection, SpawnProcess] = {}

    def __enter__(self) -> Self:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        with _interrupts_are_ours():
            for number in range(self._count):
                ours, theirs = context.Pipe()
                arguments = (theirs, self._source, given_settings(), self._work)
                process = context.Process(target=_serve, args=arguments, name=f"fold-{number}", daemon=True)
                process.start()
                # Closed here, so that the end of that process is the end of the pipe.
                theirs.close()
                self._processes[ours] = process
        return self

    def all(self, tasks: Sequence[Task]) -> Iterator[tuple[int, str, Any]]:
        """What the processes say: the number of a task, `added`, `told` or `done`, and how many, the sentence or the result."""
        from multiprocessing.connection import wait

        waiting = deque(sorted(range(len(tasks)), key=lambda number: -tasks[number].records))
        busy: dict[Connection, int] = {}
        for pipe in self._processes:  # no more than there are tasks
            busy[pipe] = self._give(pipe, tasks, waiting.popleft())
        while busy:
            ready = set(wait(list(busy)))
            for pipe, number in [(pipe, number) for pipe, number in busy.items() if pipe in ready]:
                kind, value = self._heard(pipe, tasks[number])
                if kind == "raised":
                    raise value
                yield number, kind, value
                if kind == "done":
                    del busy[pipe]
                    if waiting:
                        busy[pipe] = self._give(pipe, tasks, waiting.popleft())

    def _give(self, pipe: Connection, tasks: Sequence[Task], number: int) -> int:
        try:
            pipe.send(tasks[number])
        except OSError:
            self._lost(pipe, tasks[number])
        return number

    def _heard(self, pipe: Connection, task: Task) -> tuple[str, Any]:
        try:
            said: tuple[str, Any] = pipe.recv()
        except (EOFError, OSError):
            self._lost(pipe, task)
            raise
        return said

    def _lost(self, pipe: Connection, task: Task) -> None:
        process = self._processes[pipe]
        process.join(END_SECONDS)
        raise ChildProcessError(
            f"the process that folded partition {task.partition} ended with code {process.exitcode}; if memory is short, pass --jobs 1"
        )

    def __exit__(self, *_: object) -> None:
        """End them all, whatever they do: none has anything to lose."""
        for pipe, process in self._processes.items():
            pipe.close()
            process.terminate()
        for process in self._processes.values():
            process.join(END_SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()


@contextmanager
def _interrupts_are_ours() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: those that begin here ignore it from their first moment on, and are ended by us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Connection, source: Source, settings: tuple[str, ...], work: Work[Any]) -> None:
    """In the other process: tasks until the pipe ends. Without a reader there is nothing to fold for, so a broken pipe is the end."""
    collector.calm()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        try:
            with with_settings(settings), source.open() as log:
                while True:
                    task = pipe.recv()
                    result = work(log, task, lambda count: pipe.send(("added", count)), lambda said: pipe.send(("told", said)))
                    pipe.send(("done", result))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as problem:
            pipe.send(("raised", _portable(problem)))
    except OSError:
        return


def _portable(problem: Exception) -> Exception:
    """The exception as the other side of a pipe can have it; one that cannot be packed is told in words, with its traceback."""
    import pickle
    import traceback

    try:
        again = pickle.loads(pickle.dumps(problem))  # noqa: S301  our own bytes
    except Exception:
        again = None
    if type(again) is type(problem) and str(again) == str(problem):
        problem.add_note("".join(traceback.format_exception(problem)))
        return problem
    return RuntimeError("".join(traceback.format_exception(problem)))
