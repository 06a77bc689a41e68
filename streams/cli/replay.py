"""`claimlog replay`: the ledger folded again, to its end, a time or a cut; with `--verify` the proof that it is what was published."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import to_builtins

from projections.cut import Cut
from projections.replay import Checks, Folded, Until, cut_at, ends_of, folded, replayed, verified_partition
from projections.snapshots import newest_offset
from schemas.topics import CLAIMS, DIGESTS, NODE_RESOURCES, SNAPSHOTS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, MomentFlag, Show
from streams.cli.given.timegrammar import Instant
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say, teller
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.apart import Added, Apart, JobsFlag, Source, Task, Tell, jobs_of, run_apart
from streams.cli.reading.history import ArchiveFlag, with_archive
from streams.cli.reading.open_log import opened
from streams.cli.reading.state_at import moment_of, tell_if_before_all
from streams.cli.reading.there import check_seen
from streams.log.base import Log

DIFFERENCES_SAID = 20
"""More than so many are counted and not said one by one; the JSON document has them all."""
COLUMNS = [
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


def replay_verb(
    *,
    log: LogFlag = None,
    until: MomentFlag = "now",
    verify: Annotated[bool, Parameter(negative=(), help="Fold from the first record and compare with all that was published.")] = False,
    from_snapshots: Annotated[bool, Parameter(help="Begin at the newest snapshot that fits.")] = True,
    archive: ArchiveFlag = None,
    jobs: JobsFlag = None,
    show: Show = SHOW,
) -> int:
    """The ledger as it was at a moment: each partition's offset, digest, nodes, held claims, and what was granted and refused.

    The same records give the same digest, on every machine. What is counted is counted from the offset in the column `from` on. --verify
    folds twice, from the first record and from a snapshot, and compares with every published digest, node row and snapshot; it exits 3
    if one differs. A long log is folded by several processes, each some of the partitions; the answer is the same.
    """
    if verify and not from_snapshots:
        raise UsageProblem("--verify folds from the first record, and once more from a snapshot; leave --no-from-snapshots out")
    at, apart = moment_of(until), Apart(Source(log, archive), jobs_of(jobs))
    moment: Until = at.time_ms if isinstance(at, Instant) else at
    with with_archive(opened(log), archive) as source:
        if verify:
            check_seen(source, DIGESTS, NODE_RESOURCES, SNAPSHOTS)
        tell = teller(sys.stderr)
        ends = ends_of(source, moment, tell)
        tell_if_before_all(ends, at, tell)
        tasks = _tasks(source, ends, twice=verify, from_snapshots=from_snapshots)
        total = sum(task.records for task in tasks)
        with Progress("replay", total) as progress:
            done = run_apart(apart, source, tasks, _work, added=progress.add, tell=tell)
        found = [partition for partition, _ in done]
        cut = cut_at(source, {partition.partition: partition.next_offset for partition in found})
    checks = Checks() if verify else None
    for _, compared in done:
        if checks is not None and compared is not None:
            checks.add(compared)
    if isinstance(at, Cut) and (left_out := sorted({place.topic for place in at.places} - {CLAIMS})):
        tell(f"a replay folds {CLAIMS} alone: what the cut includes of {', '.join(left_out)} is no part of it")
    items = [_item(partition) for partition in found]
    summary = None if checks is None else _summary(checks)
    show.write(Report(columns=COLUMNS, items=items, cut=cut, summary=summary))
    if checks is None:
        return Exit.DONE
    _say(checks)
    return Exit.FINDINGS if checks.differences else Exit.DONE


def _tasks(log: Log, ends: Mapping[int, int], *, twice: bool, from_snapshots: bool) -> list[Task]:
    """A task a partition. A verification folds from the first record, and again from a snapshot or from half-way."""
    tasks = []
    for number, end in ends.items():
        begun = newest_offset(log, number) if twice or from_snapshots else 0
        begun = begun if begun <= end else 0
        records = end + (end - (begun or end // 2)) if twice else end - begun
        tasks.append(Task(number, end, records, (twice, from_snapshots)))
    return tasks


def _work(log: Log, task: Task, added: Added, tell: Tell) -> tuple[Folded, Checks | None]:
    """One partition folded, and compared if that is asked for."""
    twice, from_snapshots = task.options
    if twice:
        partition, checks = verified_partition(log, task.partition, task.end, progress=added, tell=tell)
        return folded(partition), checks
    return folded(replayed(log, task.partition, task.end, from_snapshots=from_snapshots, progress=added, tell=tell)), None


def _item(partition: Folded) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "next_offset": partition.next_offset,
        "digest": partition.digest,
        "nodes": partition.nodes,
        "claims": partition.claims,
        "from": partition.begun,
        "granted": partition.outcomes.get("granted", 0),
        "refused": partition.outcomes.get("refused", 0),
        "dead": partition.dead,
        "outcomes": partition.outcomes,
        "rules_version": partition.rules_version,
        "ledger_id": partition.ledger_id,
    }


def _summary(checks: Checks) -> Mapping[str, Any]:
    return {
        "verified": not checks.differences,
        "digests_compared": checks.digests,
        "rows_compared": checks.rows,
        "snapshots_compared": checks.snapshots,
        "differences": to_builtins(checks.differences),
    }


def _say(checks: Checks) -> None:
    """What was compared, and each difference."""
    compared = f"{units.count(checks.digests)} digests, {units.count(checks.rows)} node rows and {units.count(checks.snapshots)} snapshots"
    if not checks.differences:
        say(f"verified: two folds are equal, and so are {compared} that were published")
        return
    for difference in checks.differences[:DIFFERENCES_SAID]:
        place = f"claims/{difference.partition}@{difference.offset}"
        say(f"{place}: {difference.what} differs: the log gives {difference.expected}, found {difference.found}")
    say(f"{units.count(len(checks.differences))} differences, with {compared} compared")
