"""From `--log` to a log: `sqlite:PATH`, `kafka://HOST:PORT`, `FILE.jsonl`, or `-` for JSON lines on stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from streams.cli.printed.printable import teller
from streams.cli.problems import UsageProblem
from streams.clock import ClockMs, wall_clock_ms
from streams.log.base import Log, LogError, LogUnreachable

if TYPE_CHECKING:
    from streams.log.kafka import KafkaLog

ENVIRONMENT = "CLAIMLOG_LOG"
ARCHIVE = "CLAIMLOG_ARCHIVE"
FORMS = "sqlite:PATH, kafka://HOST:PORT[/PREFIX], FILE.jsonl, or - for JSON lines on stdin"
# The `key=value` of `-X`, which every verb takes and none needs to know of.
_given: ContextVar[tuple[str, ...]] = ContextVar("_given", default=())


@contextmanager
def with_settings(given: Iterable[str]) -> Iterator[None]:
    """Logs opened within are given these settings of `-X` as well, each `key=value`."""
    token = _given.set((*_given.get(), *given))
    try:
        yield
    finally:
        _given.reset(token)


def named_log(spec: str | None) -> str:
    """What `--log` names, else the environment; empty if neither does."""
    return spec or os.environ.get(ENVIRONMENT, "")


def check_on_kafka(flag: str, log: str | None) -> None:
    """Raises UsageProblem for a flag that is about Kafka where `--log`, or the environment, names a log elsewhere."""
    spec = named_log(log)
    if not spec.startswith("kafka:") and (spec == "-" or spec.startswith("sqlite:") or spec.endswith(".jsonl")):
        raise UsageProblem(f"{flag} is about Kafka, and the log is {spec}; leave out {flag}")


def given_settings() -> tuple[str, ...]:
    """The settings of `-X` that logs opened here are given: for a process that opens the same log."""
    return _given.get()


def open_log(
    spec: str | None,
    environ: Mapping[str, str],
    stdin: BinaryIO,
    *,
    create: bool = False,
    clock: ClockMs = wall_clock_ms,
    partly_copied: bool = False,
    narrowed: bool = False,
    met: Callable[[KafkaLog], None] | None = None,
) -> Log:
    """Open the log that `--log` names, or CLAIMLOG_LOG in `environ`.

    With `create` an SQLite log is made if it is missing; `clock` stamps what is appended to it. A Kafka log has the brokers' clocks, and
    takes settings from the address, the environment (CLAIMLOG_KAFKA_…) and `-X`; `narrowed` it has the partitions that the ledger was
    opened with, whatever somebody has added; `met` has it as soon as a broker has answered, before more is asked.
    Raises UsageProblem if nothing or no log is named, LogUnreachable if it cannot be opened, LogDamaged; LogCutShort for a file that lacks
    lines, of stdin it is only said, and for a copy that was interrupted unless it may be `partly_copied`.
    """
    if spec == "":
        raise UsageProblem(f"--log '' is no log: pass {FORMS}, or leave it out for {ENVIRONMENT}")
    spec = spec or environ.get(ENVIRONMENT)
    if not spec:
        raise UsageProblem(f"which log? Pass --log ({FORMS}) or set {ENVIRONMENT}; `claimlog demo` makes one to try")
    scheme, separator, rest = spec.partition(":")
    if scheme == "sqlite" and rest:
        _check_path(rest)
        return _sqlite(rest, create=create, clock=clock, partly_copied=partly_copied)
    if scheme == "kafka" and separator:
        return _kafka(spec, environ, partly_copied=partly_copied, narrowed=narrowed, met=met)
    if spec == "-":
        return _jsonl(stdin, "stdin", tell=teller(sys.stderr))
    if spec.endswith(".jsonl"):
        try:
            with Path(spec).open("rb") as lines:
                return _jsonl(lines, spec, tell=None)
        except OSError as problem:
            raise LogUnreachable(f"{spec} cannot be read: {problem.strerror or problem}; pass another file or --log") from None
    from streams.log.kafka_settings import without_secrets

    # Without a colon there is no password: name@host.sqlite is a file's name.
    shown = without_secrets(spec) if separator or "?" in spec else spec
    hint = "" if separator else f"; for an SQLite log write sqlite:{shown}"
    raise UsageProblem(f"--log {shown} is no log: pass {FORMS}{hint}")


def opened(
    spec: str | None, *, create: bool = False, partly_copied: bool = False, makes: Path | None = None, for_work: bool = False
) -> Log:
    """The log of `--log`, or of the environment, as `open_log`; with CLAIMLOG_ARCHIVE the history in that folder stands before it.

    The folder that the caller `makes` need not be there yet. A log that is made, or opened `for_work` that others do, has all its
    partitions, so that it shows where those do not go together; who only reads, reads the ledger in those that it was opened with.
    Raises as `open_log` does, and UsageProblem for a folder that is not there or a log that cannot have history elsewhere.
    """
    narrowed = not (create or for_work)
    log = open_log(spec, os.environ, sys.stdin.buffer, create=create, partly_copied=partly_copied, narrowed=narrowed)
    directory = os.environ.get(ARCHIVE)
    if not directory or (makes is not None and not makes.exists() and makes.absolute() == Path(directory).absolute()):
        return log
    return _with_history(log, Path(directory))


def _with_history(log: Log, directory: Path) -> Log:
    from streams.log.archive import ArchivedLog

    if not directory.is_dir() or not log.ledger_id:
        raise UsageProblem(f"{ARCHIVE}={directory}: expected the folder that `claimlog archive` wrote to, and a log on SQLite or Kafka")
    return ArchivedLog(log, directory)


def _check_path(path: str) -> None:
    """Refuse what others than claimlog would take for another path: it would be looked for, or made, where nobody does. UsageProblem."""
    if path == ":memory:":
        raise UsageProblem("sqlite::memory: is no file, and nobody else would see what is in it; write sqlite:PATH")
    if path.startswith("//") and not path.startswith("///"):
        raise UsageProblem(f"sqlite:{path}: what follows sqlite: is a path as it stands; write sqlite:{path[2:]}, or sqlite:{path[1:]}")
    if path == "~" or path.startswith("~/"):
        raise UsageProblem(f"sqlite:{path}: no shell writes out ~ in the middle of a word; write sqlite:$HOME{path[1:]}")


def _sqlite(path: str, *, create: bool, clock: ClockMs, partly_copied: bool) -> Log:
    from streams.log.sqlite import SqliteLog

    log = SqliteLog.open(path, create=create, clock=clock)
    if not partly_copied:
        _refuse_part(log, path)
    return log


def _kafka(spec: str, environ: Mapping[str, str], *, partly_copied: bool, narrowed: bool, met: Callable[[KafkaLog], None] | None) -> Log:
    from streams.log.kafka import KafkaLog
    from streams.log.kafka_settings import SettingsProblem, parse_settings

    try:
        log = KafkaLog.open(parse_settings(spec, environ, _given.get()))
    except SettingsProblem as problem:
        raise UsageProblem(str(problem)) from None
    if met is not None:
        met(log)
    if not partly_copied:
        _refuse_part(log, log.settings.place, log.has_times_of_writers, is_to_have_records=narrowed)
    if narrowed:
        _narrow(log)
    return log


def _narrow(log: KafkaLog) -> None:
    """Where partitions were added to topics of a ledger, leave these out and say so. Closes a log that cannot be read."""
    from projections.whole import opened_partitions
    from streams.ledger_topics import first_partitions

    try:
        there = log.topics()
        added = first_partitions(there, opened_partitions(log))
        log.narrow(added)
        if added:
            names = ", ".join(f"{log.settings.topic(name)} ({there[name]}, made with {count})" for name, count in sorted(added.items()))
            teller(sys.stderr)(f"partitions were added to {names}: what stands in them is not read; `claimlog topics check` has more")
    except LogError:
        log.close()
        raise


def _refuse_part(log: Log, name: str, may_be_copy: Callable[[], bool] = lambda: True, *, is_to_have_records: bool = False) -> None:
    """Close a log that is the copy of a ledger and lacks some of it. Raises LogCutShort, and what the log raises."""
    from streams.log.copy_mark import check_begun, check_whole

    try:
        if may_be_copy():
            check_whole(log, name)
            if is_to_have_records:
                check_begun(log, name)
    except LogError:
        log.close()
        raise


def _jsonl(lines: BinaryIO, name: str, tell: Callable[[str], None] | None) -> Log:
    from streams.log.jsonl import read_jsonl

    return read_jsonl(lines, name, tell)
