"""`claimlog replay`: the ledger folded again, to its end, a time or a cut; with `--verify` the proof that it is what was published."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

from cyclopts import Parameter
from msgspec import to_builtins

from projections.cut import Cut
from projections.replay import Checks, Replayed, Until, cut_of, replay, verified
from schemas.topics import CLAIMS
from streams.cli import units
from streams.cli.exits import Exit, UsageProblem
from streams.cli.flags import SHOW, LogFlag, MomentFlag, Show, opened
from streams.cli.output import Answer, Column, write
from streams.cli.printable import printable
from streams.cli.progress import Progress
from streams.cli.state import moment_of
from streams.cli.timegrammar import Instant
from streams.log.archive import ArchivedLog, IdentifiedLog
from streams.log.base import Log

DIFFERENCES_SAID = 20
"""More than so many are counted and not said one by one; the JSON document has them all."""

ArchiveFlag = Annotated[Path | None, Parameter(name="--archive", show_default=False, help="Folder with the history that left the log.")]


def replay_verb(
    *,
    log: LogFlag = None,
    until: MomentFlag = "now",
    verify: Annotated[bool, Parameter(negative=(), help="Fold from the first record and compare with all that was published.")] = False,
    from_snapshots: Annotated[bool, Parameter(help="Begin at the newest snapshot that fits.")] = True,
    archive: ArchiveFlag = None,
    show: Show = SHOW,
) -> int:
    """The ledger as it was at a moment: each partition's offset, digest, nodes, held claims, and what was granted and refused.

    The same records give the same digest, on every machine. What is counted is counted from the offset in the column `from` on. --verify
    folds twice, from the first record and from a snapshot, and compares with every published digest, node row and snapshot; it exits 3
    if one differs.
    """
    at = moment_of(until)
    moment: Until = at.time_ms if isinstance(at, Instant) else at
    with with_archive(opened(log), archive) as source, Progress("replay", None, sys.stderr, time.monotonic) as progress:
        checks = None
        if verify:
            found, checks = verified(source, until=moment, progress=progress.add, tell=_tell)
        else:
            found = replay(source, until=moment, from_snapshots=from_snapshots, progress=progress.add, tell=_tell)
        cut = cut_of(source, found)
    if isinstance(at, Cut) and (left_out := sorted({place.topic for place in at.places} - {CLAIMS})):
        _tell(f"a replay folds {CLAIMS} alone: what the cut includes of {', '.join(left_out)} is no part of it")
    items = [_item(number, partition) for number, partition in found.items()]
    summary = None if checks is None else _summary(checks)
    write(Answer(columns=_columns(), items=items, cut=cut, summary=summary), show.style(sys.stdout), sys.stdout, sys.stderr)
    if checks is None:
        return Exit.DONE
    _say(checks, sys.stderr)
    return Exit.FINDINGS if checks.differences else Exit.DONE


def with_archive(log: Log, directory: Path | None) -> Log:
    """The log, with the history in `directory` before it. Raises UsageProblem if there is no such folder or the log cannot have one."""
    if directory is None:
        return log
    if not directory.is_dir():
        raise UsageProblem(f"--archive {directory}: there is no such folder; pass the one that `claimlog archive` wrote to")
    return ArchivedLog(identified(log), directory)


def identified(log: Log) -> IdentifiedLog:
    """The log as one that knows which ledger it carries. Raises UsageProblem if it does not."""
    if not getattr(log, "ledger_id", ""):
        raise UsageProblem("this kind of log does not say which ledger it carries, so no archive can belong to it")
    return cast("IdentifiedLog", log)


def _tell(reason: str) -> None:
    sys.stderr.write(f"{printable(reason)}\n")


def _item(number: int, partition: Replayed) -> dict[str, Any]:
    ledger = partition.ledger
    return {
        "partition": number,
        "next_offset": ledger.next_offset,
        "digest": ledger.digest.hex(),
        "nodes": len(ledger.nodes),
        "claims": len(ledger.claims),
        "from": partition.begun,
        "granted": partition.outcomes["granted"],
        "refused": partition.outcomes["refused"],
        "dead": partition.dead,
        "outcomes": dict(sorted(partition.outcomes.items())),
        "rules_version": ledger.rules_version,
        "ledger_id": ledger.ledger_id,
    }


def _columns() -> list[Column]:
    return [
        Column(name="partition", right=True),
        Column(name="next_offset", title="records", shown=units.count, right=True),
        Column(name="digest"),
        Column(name="nodes", shown=units.count, right=True),
        Column(name="claims", shown=units.count, right=True),
        Column(name="from", shown=units.count, right=True),
        Column(name="granted", shown=units.count, right=True),
        Column(name="refused", shown=units.count, right=True),
        Column(name="dead", shown=units.count, right=True, alarm=bool),
        Column(name="rules_version", title="rules", right=True, wide=True),
        Column(name="ledger_id", title="ledger", wide=True),
    ]


def _summary(checks: Checks) -> Mapping[str, Any]:
    return {
        "verified": not checks.differences,
        "digests_compared": checks.digests,
        "rows_compared": checks.rows,
        "snapshots_compared": checks.snapshots,
        "differences": to_builtins(checks.differences),
    }


def _say(checks: Checks, stderr: TextIO) -> None:
    """What was compared, and each difference."""
    compared = f"{units.count(checks.digests)} digests, {units.count(checks.rows)} node rows and {units.count(checks.snapshots)} snapshots"
    if not checks.differences:
        stderr.write(f"verified: two folds are equal, and so are {compared} that were published\n")
        return
    for difference in checks.differences[:DIFFERENCES_SAID]:
        place = f"claims/{difference.partition}@{difference.offset}"
        said = f"{place}: {difference.what} differs: the log gives {difference.expected}, found {difference.found}"
        stderr.write(f"{printable(said)}\n")
    stderr.write(f"{units.count(len(checks.differences))} differences, with {compared} compared\n")
