"""`claimlog copy`: the same ledger on another log, when one machine is no longer enough, or to have a cluster's on a laptop."""

from __future__ import annotations

import errno
import glob
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from schemas.topics import CLAIMS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.interrupts import ends_tidily
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import named_log, open_log, opened
from streams.log.alone import alone
from streams.log.base import Log, LogCutShort, LogError, LogFull, Partition, Record, TopicSpec, file_of
from streams.log.jsonl import write_jsonl
from streams.log.kafka_settings import without_secrets
from streams.log.wake import wake_file
from streams.mirror import COPIED, Target, check_begins, mirror, one_moment, told

if TYPE_CHECKING:
    from streams.log.kafka import KafkaLog

TARGETS = "sqlite:PATH, kafka://HOST:PORT[/PREFIX] or a new FILE.jsonl"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a disk says that is no fault of the command line."""
LEFT_SECONDS = 600.0
"""A copy writes all the time: a part that nobody has touched for so long was left."""


COLUMNS = [
    Column(name="topic"),
    Column(name="partition", right=True),
    Column(name="copied", shown=units.count, right=True),
    Column(name="end", title="log ends at", shown=units.count, right=True),
]


def copy_verb(
    target: Annotated[
        str, Parameter(help="sqlite:PATH or kafka://HOST:PORT[/PREFIX], empty or a copy that was interrupted; or a new FILE.jsonl.")
    ],
    /,
    *,
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Copy a ledger to another log: each record with its offset, its time and its bytes, and how far the stream processor has come.

    Answers, digests and cuts are the same there. What is derived is not copied: a stream processor makes it anew. Stop all writers first,
    or copy again once they are stopped; every record is read back and compared. What was archived has to be at hand (CLAIMLOG_ARCHIVE).

    A file of JSON lines is a history to keep or to test with: every verb reads it as --log FILE.jsonl, to the same digests, and a log is
    made of it again with copy. Its first line says how far each partition goes: a file that was cut short is refused (exit 6); without
    that line its records are read as they are, and not copied.
    """
    if not target:
        raise UsageProblem(f"TARGET '': expected {TARGETS}")
    show.check(Report(columns=COLUMNS, items=()))
    if named_log(log) == "-":
        raise UsageProblem("--log -: lines that are piped may be cut short anywhere; write them to a FILE.jsonl, and copy that")
    if target.endswith(".jsonl") and not target.startswith(("sqlite:", "kafka:")):
        return _exported(Path(target), log, show)
    if not target.startswith(("sqlite:", "kafka:")):
        raise UsageProblem(f"TARGET {without_secrets(target) if ':' in target else target}: expected {TARGETS}")
    if _is_itself(target, named_log(log)):
        raise UsageProblem(f"{target}: this is the log itself; name another one, empty or a copy of it")
    with ExitStack() as stack:
        source, lacks = stack.enter_context(_source(log))
        if target.startswith("sqlite:") and not Path(target.removeprefix("sqlite:")).exists():
            check_begins(source)  # Before a file is made, which would be no ledger.
        destination = stack.enter_context(open_log(target, os.environ, sys.stdin.buffer, create=True, partly_copied=True))
        with _alone(destination, target), Progress("copy", None) as progress:
            copied = mirror(source, cast("Target", destination), progress.add)
        items = [
            {"topic": place.topic, "partition": place.number, "copied": count, "end": destination.end(*place)}
            for place, count in copied.items()
        ]
    show.write(Report(columns=COLUMNS, items=items))
    return Exit.INCOMPLETE if lacks else Exit.DONE


def _alone(copy: Log, name: str) -> AbstractContextManager[None]:
    """Keep a second copy from an embedded log: both would append what is missing. Raises LogError.

    A cluster has no such lock; `mirror` finds there what two have written, and nobody reads it as a ledger.
    """
    path = file_of(copy)
    if path is None:
        return nullcontext()
    return alone(wake_file(path), LogError(f"{name}: another process copies to it; wait until it has ended, then copy again"))


@contextmanager
def _source(log: str | None) -> Iterator[tuple[Log, bool]]:
    """The log to copy, and whether it lacks something: the copy of an interrupted copy is what is left of a ledger that was lost."""
    try:
        source, lacks = opened(log), False
    except LogCutShort as problem:
        source, lacks = opened(log, partly_copied=True), True
        say(f"what is there is copied, but {problem}")
    with source:
        _refuse_part(source, log)
        yield source, lacks


def _refuse_part(source: Log, log: str | None) -> None:
    """Raises UsageProblem for lines that may be a part of a ledger: nobody would see of the copy that it is one."""
    if not source.ledger_id:
        raise UsageProblem(
            f"{named_log(log)}: expected a first line, as `claimlog copy FILE.jsonl` writes it, with how many partitions there are and how "
            "far they go; without it this may be a part of a ledger"
        )


def _exported(path: Path, log: str | None, show: Show) -> int:
    """Write a whole ledger as lines; the file is there once it is complete. Raises UsageProblem if something is there already.

    Until then its lines are in a file of this process, so that two copies of one name do not write into each other's.
    """
    _refuse_to_replace(path)
    partial, copied = path.with_name(f"{path.name}.{os.getpid()}.partial"), Counter[Partition]()
    with ends_tidily(), opened(log) as source, Progress("copy", None) as progress:
        _refuse_part(source, log)
        ends = one_moment(source)
        records = told(source, ends, progress.add)
        topics = [TopicSpec(name, count) for name, count in source.topics().items() if name in COPIED]
        try:
            with partial.open("wb") as lines:
                write_jsonl(_counted(records, copied), lines, topics, source.ledger_id, ends)
                lines.flush()
                os.fsync(lines.fileno())
            _refuse_to_replace(path)
            partial.rename(path)
            _tidy(path)
        except OSError as problem:
            if problem.errno in NO_ROOM:
                raise LogFull(f"{path} cannot be written: {problem.strerror}; make room, then copy again") from None
            raise UsageProblem(f"{path} cannot be written: {problem.strerror or problem}") from None
        finally:
            with suppress(OSError):  # its folder may be what is wrong; that was said
                partial.unlink()
    places = [Partition(spec.name, number) for spec in topics for number in range(spec.partitions)]
    items = [{"topic": each.topic, "partition": each.number, "copied": copied[each], "end": copied[each]} for each in places]
    show.write(Report(columns=COLUMNS, items=items))
    return Exit.DONE


def _tidy(path: Path) -> None:
    """Take away what copies to this name left that were killed: nobody writes there, and no process of this machine is of that number."""
    for left in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        number = left.name.removeprefix(f"{path.name}.").removesuffix(".partial")
        with suppress(OSError):
            if number.isdecimal() and not Path(f"/proc/{number}").exists() and time.time() - left.stat().st_mtime > LEFT_SECONDS:
                left.unlink()


def _refuse_to_replace(path: Path) -> None:
    if path.exists():
        raise UsageProblem(f"{path} exists; a copy never replaces a file, so delete it or choose another name")


def _counted(records: Iterator[Record], copied: Counter[Partition]) -> Iterator[Record]:
    for record in records:
        copied[Partition(record.topic, record.partition)] += 1
        yield record


def _is_itself(target: str, spec: str) -> bool:
    """Whether both name one log. A copy of a log onto itself would find all there, and say so as of a copy that is complete."""
    target_path, path = (Path(text.removeprefix("sqlite:")) for text in (target, spec))
    if target.startswith("sqlite:") and spec.startswith("sqlite:") and target_path.exists() and path.exists():
        return target_path.samefile(path)
    if not (target.startswith("kafka:") and spec.startswith("kafka:")):
        return False
    if target.partition("?")[0] == spec.partition("?")[0]:
        return True
    # A cluster has many addresses, and several clusters may share an id: only the topics' own ids tell.
    with _on_cluster(spec) as log, _on_cluster(target) as copy:
        return log.topic_id(CLAIMS) == copy.topic_id(CLAIMS) != ""


def _on_cluster(spec: str) -> KafkaLog:
    return cast("KafkaLog", open_log(spec, os.environ, sys.stdin.buffer, partly_copied=True))
