"""`claimlog snapshot`: which snapshots of the ledger there are, and one more, written only when it is what the whole log gives.

A start, and every answer about the present, begins at the newest one that fits the log, so one written before a planned restart, or by
hand where no stream processor runs, is time saved; nothing depends on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Annotated, Any

from cyclopts import App, Parameter

from projections.companions import Doubles, all_rows, taken
from projections.ledger import Ledger
from projections.reading import ProjectionError
from projections.replay import cut_at, ends_of, fold
from projections.snapshots import Listed, damaged_at, encoded, listed, load_newest, load_newest_with, state_hash
from schemas.topics import CLAIMS, SNAPSHOTS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.given.units_in import wholes
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import teller
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.apart import Apart, JobsFlag, Source, jobs_of
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.reading.there import check_seen
from streams.cli.writing import check_writable
from streams.log.base import Log, TopicSpec
from streams.snapshot_writer import messages_of, write_snapshot

app = App(name="snapshot", help="Snapshots of the ledger: which there are and whether a start can begin at them; write one.")

USABLE, VERIFIED, WRONG = "usable", "verified", "not what the log gives"
PARTITIONS_FLAG = Annotated[
    tuple[int, ...],
    Parameter(name="--partition", converter=wholes, negative=(), show_default=False, help="Only of this partition; repeatable."),
]
_LIKE = Listed(partition=0, offset=0, at=0, time_ms=0, chunks=0, found=0, size_bytes=0, digest="", rules_version=0, state_version=0)
COLUMNS = [
    Column(name="partition", right=True),
    Column(name="offset", shown=units.count, right=True),
    Column(name="behind", shown=units.count, right=True),
    Column(name="time_ms", title="written", shown=units.moment),
    Column(name="chunks", right=True),
    Column(name="size_bytes", title="bytes", shown=units.count, right=True),
    Column(name="digest"),
    Column(name="says", alarm=lambda says: says not in {USABLE, VERIFIED}),
    Column(name="position", wide=True),
    Column(name="has_views", title="views", wide=True),
    Column(name="rules_version", title="rules", right=True, wide=True),
    Column(name="state_version", title="state", right=True, wide=True),
]


@app.command(name="list")
def list_(
    *,
    partition: PARTITIONS_FLAG = (),
    verify: Annotated[bool, Parameter(negative=(), help="Fold the log from its first record and compare each with it.")] = False,
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Every snapshot on `ledger-snapshots`, how many records came after it, and whether a start can begin at it; if not, why.

    Usable means: whole, readable, of this log, and its last record is the log's. Exits 3 if one is not usable or damaged, or with
    --verify not what the log gives. One that is not complete is being written, or leaves the log, and is no finding; nor is one behind
    which records were archived.
    """
    with opened(log) as source:
        check_seen(source, SNAPSHOTS)
        ends = _chosen(source, partition)
        tell = teller(sys.stderr)
        with Progress("load", None) as progress:
            found = []
            for entry in (entry for number in ends for entry in listed(source, number, tell, hashed=verify)):
                found.append(entry)
                progress.add(entry.offset + 1)
        said = [entry.trouble or USABLE for entry in found]
        if verify:
            said = _verified(source, found)
        cut = cut_at(source, ends)
        damaged = [number for number in ends if damaged_at(source, number)]
        starts = {number: source.start(CLAIMS, number) for number in ends}
    items = [_item(entry, ends[entry.partition], says) for entry, says in zip(found, said, strict=True)]
    show.write(Report(columns=COLUMNS, items=items, cut=cut, like=_item(_LIKE, 0, "")))
    concern = [entry.is_complete and entry.offset + 1 >= starts[entry.partition] for entry in found]
    bad = any(says not in {USABLE, VERIFIED} for says, counts in zip(said, concern, strict=True) if counts)
    return Exit.FINDINGS if bad or damaged else Exit.DONE


@app.command(name="write")
def write_(*, partition: PARTITIONS_FLAG = (), log: LogFlag = None, jobs: JobsFlag = None) -> int:
    """Write a snapshot of each partition as it is now, folded from the first record and read back; views and findings are in it.

    Where the newest includes every record already it is verified instead; where one is damaged, a new one replaces all. History that was
    archived is read with CLAIMLOG_ARCHIVE; without it nothing is written and the exit code is 6.
    """
    apart = Apart(Source(log), jobs_of(jobs))
    with opened(log) as source:
        check_writable(source)
        ends = _chosen(source, partition)
        state = cache(partial(state_at, source, from_the_first=True, pending=False, apart=apart))
        with Progress("fold", None) as progress:
            for number, end in ends.items():
                if not end:
                    print(f"{CLAIMS}/{number}: empty, so there is nothing to keep", flush=True)
                    continue
                before = _end(source, number)
                after = ensure_snapshot(source, number, end, progress.add, state)
                done = "is written and read back" if _end(source, number) > before else "was there already, and is what the log gives"
                print(f"{CLAIMS}/{number}: the snapshot of offset {after - 1} {done}", flush=True)
    return Exit.DONE


def ensure_snapshot(log: Log, number: int, below: int, progress: Callable[[int], None], whole: Callable[[], State]) -> int:
    """Make sure that `ledger-snapshots` has a snapshot that includes all below the offset `below` and is what the log says.

    It must carry views and findings too: answers about the present begin there, and after an archive must. `whole` is the state of all
    partitions folded from the first record, asked for only if a snapshot is made, as it is where one is damaged: the new one replaces all.
    Returns the offset after it. Raises ProjectionError if the one there is something else.
    """
    partitions, place = log.topics()[CLAIMS], f"{SNAPSHOTS}/{number}"
    found = load_newest_with(log, number, tell=teller(sys.stderr))
    damaged = damaged_at(log, number)
    if not damaged and found is not None and found[0].next_offset >= below:
        newest = found[0]
        ledger = fold(log, Ledger(number, partitions), newest.next_offset, None, progress).ledger
        if encoded(newest) != encoded(ledger):
            said = "`claimlog replay --verify` says what differs"
            offset = newest.next_offset - 1
            raise ProjectionError(f"{place}: the snapshot of offset {offset} is not what the log gives; nothing was done. {said}")
        if found[1]:
            return newest.next_offset
    state = whole()
    ledger, known = state.ledgers[number], taken(number, found[1])[2] if found is not None else None
    doubles = Doubles(known.changes + 1 if known is not None else 1, state.doubles.open, state.doubles.words)
    extras = all_rows(state.observed[number], state.leaks[number], doubles)
    log.create([TopicSpec(SNAPSHOTS, partitions)])
    first = write_snapshot(log, number, messages_of(ledger, extras))
    if damaged:
        log.truncate(SNAPSHOTS, number, first)
    written = load_newest(log, number)
    if written is None or encoded(written) != encoded(ledger):
        raise ProjectionError(f"{place}: the snapshot just written reads back differently; nothing else was done. Run `claimlog doctor`")
    return ledger.next_offset


def _chosen(log: Log, partitions: Sequence[int]) -> dict[int, int]:
    """The ends of the partitions asked for; none asked for: of all."""
    ends = ends_of(log, None)
    unknown = sorted(set(partitions) - set(ends))
    if unknown:
        raise UsageProblem(f"--partition {unknown[0]}: {CLAIMS} has the partitions 0 to {len(ends) - 1}")
    return {number: end for number, end in sorted(ends.items()) if not partitions or number in partitions}


def _end(log: Log, number: int) -> int:
    """Where the next chunk of a partition will stand."""
    return log.end(SNAPSHOTS, number) if number < log.topics().get(SNAPSHOTS, 0) else 0


def _verified(log: Log, found: Sequence[Listed]) -> list[str]:
    """What is said of each once the log was folded to it."""
    by_partition = [list(mine) for _, mine in groupby(found, key=lambda entry: entry.partition)]
    total = sum(max((entry.offset + 1 for entry in mine if entry.state_hash), default=0) for mine in by_partition)
    with Progress("verify", total) as progress:
        return [says for mine in by_partition for says in _held_against(log, mine, progress.add)]


def _held_against(log: Log, found: Sequence[Listed], progress: Callable[[int], None]) -> Iterator[str]:
    """One partition's, in order of their offsets: the same fold goes from one to the next."""
    ledger = Ledger(found[0].partition, log.topics()[CLAIMS])
    for entry in found:
        if not entry.state_hash:
            yield entry.trouble
            continue
        fold(log, ledger, entry.offset + 1, None, progress)
        yield VERIFIED if state_hash(ledger) == entry.state_hash else WRONG


def _item(entry: Listed, end: int, says: str) -> dict[str, Any]:
    return {
        "partition": entry.partition,
        "offset": entry.offset,
        "behind": max(0, end - entry.offset - 1),
        "time_ms": entry.time_ms,
        "chunks": entry.chunks,
        "chunks_found": entry.found,
        "size_bytes": entry.size_bytes,
        "digest": entry.digest,
        "says": says,
        "position": f"{SNAPSHOTS}/{entry.partition}@{entry.at}",
        "has_views": entry.has_views,
        "rules_version": entry.rules_version,
        "state_version": entry.state_version,
    }
