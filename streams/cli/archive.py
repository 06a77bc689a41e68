"""`claimlog archive`: history below a verified snapshot leaves the log for files; archive and log together still give the same digests."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import structs

from projections.cut import Cut
from projections.ledger_id import check_cut
from schemas.topics import CLAIMS, FOLDED
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.given.moments import past_moment
from streams.cli.given.timegrammar import Instant
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.history import archived
from streams.cli.reading.open_log import opened
from streams.cli.reading.state_at import state_at
from streams.cli.reading.there import check_there
from streams.cli.snapshot import ensure_snapshot
from streams.clock import wall_clock_ms
from streams.log.archive import archive
from streams.log.base import Log, Partition, present_of
from streams.reconciler import CARRIERS, SOURCES

COLUMNS = [
    Column(name="topic"),
    Column(name="partition", right=True),
    Column(name="moved", shown=units.count, right=True),
    Column(name="start", title="log begins at", shown=units.count, right=True),
]


def archive_verb(
    directory: Annotated[str, Parameter(help="Where the files go; made if it is missing. Keep using the same one.")],
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
    if not directory:
        raise UsageProblem("DIRECTORY '': expected the folder where the files go; the present one is .")
    report, folder = Report(columns=COLUMNS, items=()), Path(directory)
    show.check(report)
    with opened(log, makes=folder) as whole, archived(source := present_of(whole), folder) as history:
        # What CLAIMLOG_ARCHIVE has of it has left the log, and is not to leave it again, into another folder.
        check_there(source, *FOLDED)
        limits = _limits(source, below)
        wanted = {partition: offset for partition, offset in limits.items() if offset > source.start(*partition)}
        verified = dict(limits)
        state = cache(partial(state_at, history, from_the_first=True, pending=False))
        with Progress("verify", None) as progress:
            for partition, offset in wanted.items():
                if partition.topic == CLAIMS:
                    verified[partition] = ensure_snapshot(history, partition.number, offset, progress.add, state)
        claims = [partition for partition in limits if partition.topic == CLAIMS]
        moved = archive(source, folder, wanted, verified=verified.__getitem__, whole=claims)
        items = [
            {"topic": partition.topic, "partition": partition.number, "moved": moved.get(partition, 0), "start": source.start(*partition)}
            for partition in limits
        ]
    show.write(structs.replace(report, items=items))
    return Exit.DONE


def _limits(log: Log, below: str) -> dict[Partition, int]:
    """The offset below which each partition's records may leave."""
    topics = log.topics()
    at = past_moment(below, wall_clock_ms())
    if isinstance(at, Cut):
        check_cut(log, at, FOLDED)
    limits = {}
    for topic in FOLDED:
        carried = log.committed(CARRIERS, topic) if topic in SOURCES and topic in topics else {}
        for number in range(topics.get(topic, 0)):
            offset = log.at_time(topic, number, at.time_ms) if isinstance(at, Instant) else at.next_offset(topic, number) or 0
            # What the ledger has not taken over yet must stay where the reconciler reads it.
            limits[Partition(topic, number)] = offset if topic == CLAIMS else min(offset, carried.get(number, 0))
    return limits
