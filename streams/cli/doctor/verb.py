"""`claimlog doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Annotated

from cyclopts import Parameter
from msgspec import to_builtins

from projections.cut import Cut
from projections.ledger_id import ledger_id_of
from projections.reading import ProjectionError, where_archived
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.cli.doctor import checks
from streams.cli.doctor.checks import Check
from streams.cli.doctor.cluster import of_brokers, of_cluster
from streams.cli.doctor.holes import LOOKED_THROUGH, holes
from streams.cli.doctor.host_clocks import host_clocks
from streams.cli.doctor.producers import intervals, machines, producers
from streams.cli.doctor.skipped import skipped
from streams.cli.exits import Exit
from streams.cli.flags import LIVE, Live, LogFlag
from streams.cli.given.units_in import folder
from streams.cli.printed.output import Column, Report
from streams.cli.printed.progress import Progress
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state_at import state_at
from streams.cli.reading.state_folder import STATE_HELP, state_folder
from streams.cli.reading.there import is_lines
from streams.cli.watching import watchable
from streams.clock import wall_clock_ms
from streams.log.base import Log, LogDamaged, LogError, LogUnreachable, OffsetOutOfRange, TopicMismatch, file_of, full_name_of
from streams.log.reading import places

RIGHT = "ask as a user that may, or give this one the right"
COLUMNS = [
    Column(name="status", alarm=lambda status: status != "ok"),
    Column(name="check"),
    Column(name="says"),
    Column(name="fix", shown=lambda fix: fix or "-"),
]


@watchable
def doctor(
    *,
    quick: Annotated[
        bool, Parameter(negative=(), help="Leave out what reads whole topics: checksums, requests, findings, digests.")
    ] = False,
    state: Annotated[Path | None, Parameter(converter=folder, help=STATE_HELP)] = None,
    log: LogFlag = None,
    show: Live = LIVE,
) -> int:
    """Each line is ok, warn or fail, with what to do about it. Exits 3 if anything fails, 5 if the log is out of reach or not there.

    Checked: the log opens, every checksum fits, and there is room to append; topics and their partitions; the ledger is opened; clocks; who
    is behind; requests that nobody will answer; dead letters; nodes that are silent between their audits; machines that are several nodes;
    open findings; published digests against a fold of the same records; that the log has all that tables of an ended process were folded
    from; what is installed. On Kafka also brokers and copies, the settings of topics, who is in the groups of workers and schedulers, and
    whether records were lost in the middle of topics. Of a file of JSON lines: all that does not need somebody at work on it.
    """
    from streams.log.sqlite_file import sqlite_version

    if state is not None and not state.is_dir():
        raise UsageProblem(f"--state {state}: there is no such folder; expected the one that `claimlog run --state` was given")
    found = list(checks.installed(sqlite_version()))
    cut: Cut | None = None
    code = Exit.DONE
    try:
        with opened(log, for_work=True) as source:
            found.append(Check("ok", "log", "opens"))
            found.extend(_of_log(source, quick=quick))
            why_not = "a file of lines has none" if is_lines(source) else "a check failed" if any(map(_has_failed, found)) else ""
            if not why_not and (home := state or state_folder(log)).is_dir():
                found.extend(_tables(source, home))
            elif why_not and state is not None:
                found.append(Check("warn", "tables", f"those in {state} were not looked at: {why_not}", "ask again when that is mended"))
            # Where a check failed the ledger's first record may be what is damaged.
            sound = all(check.status != "fail" for check in found)
            ends = {(topic, number): end for topic in source.topics() for number, end in source.ends(topic).items()}
            cut = Cut.of(ends, ledger_id_of(source) if sound else "")
    except (LogUnreachable, LogDamaged) as problem:
        passes = isinstance(problem, LogUnreachable) and any(check.check == "log" for check in found)
        fix = "ask again when that is mended: the rest was not looked at" if passes else "pass another --log, or restore it"
        found.append(Check("fail", "log", str(problem), fix))
        code = Exit.UNREACHABLE if isinstance(problem, LogUnreachable) else Exit.FINDINGS
    items = [to_builtins(check) for check in found]
    show.write(Report(columns=COLUMNS, items=items, cut=cut))
    if code is Exit.DONE and any(check.status == "fail" for check in found):
        return Exit.FINDINGS
    return code


def _of_log(log: Log, *, quick: bool) -> Iterator[Check]:
    yield from _allowed("brokers", lambda: of_brokers(log))
    if (path := file_of(log)) is not None:
        yield checks.room(path, disk_usage(path.parent).free, checks.left_of_limit(path))
    if hasattr(log, "verify_history"):
        yield (history := checks.history(log))
        if _has_failed(history):
            return
    if not quick:
        with Progress("check", _records(log, log.topics().keys() - {SNAPSHOTS})) as progress:
            (sound,) = _allowed("integrity", lambda: [checks.integrity(log, progress.add)])
        yield sound
        if _has_failed(sound):
            return
    is_file = is_lines(log)
    (topics,) = _allowed("topics", lambda: [checks.file_topics(log) if is_file else checks.topic_set(log)])
    yield topics
    if _has_failed(topics):
        return
    yield from _allowed("cluster", lambda: of_cluster(log))
    yield from _allowed("ledger", lambda: [checks.ledger_opened(log)])
    folded = () if quick else tuple(_allowed("fold", lambda: _folded(log)))
    # What the fold says of clocks is more than what the newest record says.
    ahead = [check for check in folded if check.check == "clock"]
    yield from ahead or _allowed("clock", lambda: [checks.clock(log, wall_clock_ms())])
    if is_file:
        yield checks.file_lags()
    else:
        yield from _allowed("behind", lambda: checks.lags(log, wall_clock_ms()))
        yield from () if quick else _allowed("requests", lambda: skipped(log))
        yield from _allowed("snapshots", lambda: [checks.snapshots(log, quick=quick)])
    if not quick and full_name_of(log) is not None:
        yield from _allowed("holes", lambda: _holes(log))
    yield from _allowed("dead letters", lambda: [checks.dead_letters(log)])
    yield from _allowed("producers", lambda: producers(log))
    yield from _allowed("intervals", lambda: intervals(log))
    yield from (check for check in folded if check not in ahead)


def _tables(log: Log, home: Path) -> list[Check]:
    from streams.cli.doctor.tables import tables

    return list(_allowed("tables", lambda: tables(log, home)))


def _allowed(name: str, looked: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Checks of one kind; where this user lacks a right to what they look at, that is what they say, and the others go on."""
    try:
        yield from looked()
    except LogError as problem:
        if type(problem) is not LogError:  # Each of the others has a meaning, and an exit code, of its own.
            raise
        yield Check("fail", name, str(problem), RIGHT)


def _has_failed(check: Check) -> bool:
    """Whether something is wrong, so that others would say so again; where it could not be looked at, they go on."""
    return check.status == "fail" and check.fix != RIGHT


def _folded(log: Log) -> Iterator[Check]:
    """What takes a fold of the whole ledger, or of what came after its snapshots where history has been archived, as it should be."""
    watch = checks.DigestWatch(log)
    late = ", ".join(f"{place}@{start}" for place in places(log, CLAIMS) if (start := log.start(*place)) > 0)
    try:
        state = state_at(log, each=None if late else watch)
    except (ProjectionError, OffsetOutOfRange, AnswerIncomplete, TopicMismatch) as problem:
        yield Check("fail", "fold", str(problem), "claimlog replay --verify says more")
        return
    now_ms = wall_clock_ms()
    yield from checks.times_ahead(state, now_ms)
    yield from host_clocks(log, state, now_ms)
    yield from machines(state)
    yield checks.findings(state)
    yield Check("warn", "digests", f"not compared: the log begins at {late}", where_archived(log)) if late else watch.check()


def _holes(log: Log) -> list[Check]:
    with Progress("holes", _records(log, LOOKED_THROUGH)) as progress:
        return [*holes(log, progress.add)]


def _records(log: Log, topics: Iterable[str]) -> int:
    """How many records these topics have."""
    return sum(end - log.start(topic, number) for topic in log.topics().keys() & set(topics) for number, end in log.ends(topic).items())
