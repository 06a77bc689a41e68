"""`claimlog archive`: history below a verified snapshot leaves the log for files; archive and log together still give the same digests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from projections.companions import Doubles, all_rows, taken
from projections.cut import Cut
from projections.ledger import Ledger, Step
from projections.ledger_id import check_cut
from projections.observed import Observed
from projections.projection import ProjectionError
from projections.replay import fold
from projections.snapshots import chunks_of, encoded, load_newest, load_newest_with
from schemas.codec import encode, key_of
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE, SNAPSHOTS
from streams.cli import units
from streams.cli.exits import Exit, UsageProblem
from streams.cli.flags import SHOW, LogFlag, Show, moment, opened
from streams.cli.history import identified
from streams.cli.output import Answer, Column, write
from streams.cli.progress import Progress
from streams.cli.state import GROUP, State, state_at
from streams.cli.timegrammar import Instant
from streams.log.archive import ArchivedLog, IdentifiedLog, archive
from streams.log.base import Message, Partition, TopicSpec

SOURCES = (AUDITS, LIFECYCLE)


def archive_verb(
    directory: Annotated[Path, Parameter(help="Where the files go; made if it is missing. Keep using the same one.")],
    /,
    *,
    below: Annotated[str, Parameter(allow_leading_hyphen=True, help="What is older than this leaves: a time, such as -30d, or a cut.")],
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Move history into files: of `claims` what lies below a verified snapshot, of observations what the ledger has taken over.

    The newest snapshot at or above the moment is folded again from the first record and must be equal; if there is none, one is made.
    Answers about the present begin at the snapshot; those that need what left are had with CLAIMLOG_ARCHIVE=DIR in the environment, or
    exit 6. Interrupted, run it again.
    """
    with opened(log) as source, ArchivedLog(identified(source), directory) as history:
        whole = identified(source)
        limits = _limits(whole, below)
        wanted = {partition: offset for partition, offset in limits.items() if offset > whole.start(*partition)}
        verified = dict(limits)
        state = cache(partial(state_at, history, each=_every_step, pending=False))
        with Progress("verify", None, sys.stderr, time.monotonic) as progress:
            for partition, offset in wanted.items():
                if partition.topic == CLAIMS:
                    verified[partition] = ensure_snapshot(history, partition.number, offset, progress.add, state)
        moved = archive(whole, directory, wanted, verified=verified.__getitem__)
        items = [
            {"topic": partition.topic, "partition": partition.number, "moved": moved.get(partition, 0), "start": whole.start(*partition)}
            for partition in limits
        ]
    columns = [
        Column(name="topic"),
        Column(name="partition", right=True),
        Column(name="moved", shown=units.count, right=True),
        Column(name="start", title="log begins at", shown=units.count, right=True),
    ]
    write(Answer(columns=columns, items=items), show.style(sys.stdout), sys.stdout, sys.stderr)
    return Exit.DONE


def _every_step(ledger: Ledger, observed: Observed, step: Step) -> None:
    """Asks for every step, so that the fold begins at the first record."""


def ensure_snapshot(history: ArchivedLog, number: int, below: int, progress: Callable[[int], None], whole: Callable[[], State]) -> int:
    """Make sure that `ledger-snapshots` has a snapshot that includes all below the offset `below` and is what the log says.

    It must carry views and findings too: after the archive every answer about the present begins there. `whole` is the state of all
    partitions folded from the first record, asked for only if a snapshot is made. Returns the offset after it. Raises ProjectionError if
    the one there is something else.
    """
    partitions, place = history.topics()[CLAIMS], f"{SNAPSHOTS}/{number}"
    found = load_newest_with(history, number)
    newest = found[0] if found is not None else None
    if found is not None and newest is not None and newest.next_offset >= below:
        ledger = fold(history, Ledger(number, partitions), newest.next_offset, None, progress).ledger
        if encoded(newest) != encoded(ledger):
            said = "`claimlog replay --verify` says what differs"
            offset = newest.next_offset - 1
            raise ProjectionError(f"{place}: the snapshot of offset {offset} is not what the log gives; nothing was moved. {said}")
        if found[1]:
            return newest.next_offset
    state = whole()
    ledger, known = state.ledgers[number], taken(number, found[1])[2] if found is not None else None
    doubles = Doubles(known.changes + 1 if known is not None else 1, state.doubles.open)
    extras = all_rows(state.observed[number], state.leaks[number], doubles)
    history.create([TopicSpec(SNAPSHOTS, partitions)])
    history.append([Message(SNAPSHOTS, key_of(chunk) or b"", encode(chunk), (), number) for chunk in chunks_of(ledger, extras=extras)])
    written = load_newest(history, number)
    if written is None or encoded(written) != encoded(ledger):
        raise ProjectionError(f"{place}: the snapshot just written reads back differently; nothing was moved. Run `claimlog doctor`")
    return ledger.next_offset


def _limits(log: IdentifiedLog, below: str) -> dict[Partition, int]:
    """The offset below which each partition's records may leave."""
    topics = log.topics()
    if CLAIMS not in topics:
        raise UsageProblem(f"this log has no topic {CLAIMS}, so there is no history to archive")
    at = moment(below, time.time_ns() // 1_000_000)
    if isinstance(at, Cut):
        check_cut(log, at)
    limits = {}
    for topic in (CLAIMS, *SOURCES):
        carried = log.committed(GROUP, topic) if topic in SOURCES and topic in topics else {}
        for number in range(topics.get(topic, 0)):
            offset = log.at_time(topic, number, at.time_ms) if isinstance(at, Instant) else _in_cut(at, topic, number)
            # What the ledger has not taken over yet must stay where the reconciler reads it.
            limits[Partition(topic, number)] = offset if topic == CLAIMS else min(offset, carried.get(number, 0))
    return limits


def _in_cut(cut: Cut, topic: str, number: int) -> int:
    places: Mapping[Any, int] = cut.next_offsets
    return places.get((topic, number), 0)
