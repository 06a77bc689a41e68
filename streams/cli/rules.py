"""`claimlog rules`: which rules each partition of the ledger follows, which this claimlog knows, and the step to the next.

The rules decide what counts as a record and what follows from it (rule 11), so they move by a record of their own, one version at a time:
every reader moves at the same offset, and one that does not know the new version stops there instead of telling wrong numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import App, Parameter
from msgspec import Struct

from projections.ledger import Ledger
from projections.reading import UnknownRules
from projections.replay import cut_at, fold
from projections.rules import RULES_KNOWN
from projections.snapshots import load_newest
from schemas.claims import PartitionOpened, RulesChanged
from schemas.codec import decode
from schemas.topics import CLAIMS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.given.units_in import whole
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say, teller
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state_at import ledger_partitions
from streams.cli.writing import appended, check_writable, new_stamp
from streams.log.base import Log
from streams.operator import change_rules

app = App(name="rules", help="The rules that the ledger follows: show them, move them to the next version.")

COLUMNS = [
    Column(name="partition"),
    Column(name="rules_version", title="rules", right=True),
    Column(name="says", alarm=lambda says: says != "known here"),
]


class PartitionRules(Struct):
    """One partition, folded as far as its rules are known here. `unknown` is the version that it moves to at its next record."""

    ledger: Ledger
    unknown: int | None = None

    @property
    def rules_version(self) -> int:
        """The version that its last record leaves, as far as it can be read here."""
        return self.ledger.rules_version if self.unknown is None else self.unknown

    @property
    def place(self) -> str:
        """The partition by name."""
        return f"{CLAIMS}/{self.ledger.partition}"


@app.default
def rules(*, log: LogFlag = None, show: Show = SHOW) -> int:
    """Which version each partition follows; exit 3 if one is not known here, or they differ because a step was interrupted."""
    with opened(log) as source:
        found = list(standings(source))
        cut = cut_at(source, {each.ledger.partition: each.ledger.next_offset for each in found})
    items: list[dict[str, Any]] = [
        {"partition": each.place, "rules_version": each.rules_version, "known": each.unknown is None, "says": _says(each)} for each in found
    ]
    show.write(Report(columns=COLUMNS, items=items, cut=cut))
    say(f"this claimlog knows {_versions()}")
    versions = {each.rules_version for each in found}
    if len(versions) > 1:
        say(f"the partitions differ: a step was interrupted; `claimlog rules set {max(versions)}` takes up where it stopped")
    return Exit.FINDINGS if len(versions) > 1 or any(each.unknown is not None for each in found) else Exit.DONE


@app.command(name="set")
def set_(
    version: Annotated[int, Parameter(converter=whole, help="The next version; it must be known here.")],
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=(), help="Say what would be written and write nothing.")] = False,
    log: LogFlag = None,
) -> int:
    """Move every partition to the next version, for good. Whoever does not know it stops there, so upgrade all processes first.

    Partitions that have it already are left alone: after an interruption the same command does the rest.
    """
    if version < min(RULES_KNOWN):
        raise UsageProblem(f"rules set {version}: versions of rules begin with {min(RULES_KNOWN)}; this claimlog knows {_versions()}")
    if version not in RULES_KNOWN:
        raise UsageProblem(f"rules set {version}: this claimlog knows {_versions()}; upgrade it here and wherever else it runs first")
    with opened(log) as source:
        check_writable(source)
        found = list(standings(source))
        for each in found:
            if each.rules_version not in {version - 1, version}:
                raise UsageProblem(
                    f"rules set {version}: {each.place} follows {each.rules_version}; rules go forward by one version at a time, never back"
                )
        return max([_moved(source, each, version, dry_run=dry_run) for each in found], default=Exit.DONE)


def standings(log: Log) -> Iterator[PartitionRules]:
    """Every partition, folded from its newest snapshot. Raises as `replay.fold` does, but for rules that are not known here."""
    partitions = ledger_partitions(log)
    ends = dict(log.ends(CLAIMS)) if CLAIMS in log.topics() else {}
    tell = teller(sys.stderr)
    ledgers = [load_newest(log, number, at_most=end, tell=tell) or Ledger(number, partitions) for number, end in sorted(ends.items())]
    total = sum(end - ledger.next_offset for ledger, end in zip(ledgers, ends.values(), strict=True))
    with Progress("fold", total) as progress:
        for ledger in ledgers:
            unknown = None
            try:
                fold(log, ledger, ends[ledger.partition], None, progress.add)
            except UnknownRules:
                unknown = _moves_to(log, ledger)
            yield PartitionRules(ledger, unknown)


def _moves_to(log: Log, ledger: Ledger) -> int:
    """The version in the record at which the fold stopped."""
    event = decode(CLAIMS, log.read(CLAIMS, ledger.partition, ledger.next_offset, 1)[0].value)
    assert isinstance(event, PartitionOpened | RulesChanged), f"the fold of {CLAIMS}/{ledger.partition} stops only where the rules move"
    return event.rules_version


def _moved(log: Log, found: PartitionRules, version: int, *, dry_run: bool) -> Exit:
    """Write the step into one partition, read it back, and say what it did."""
    ledger, was = found.ledger, found.rules_version
    if was == version:
        print(f"{found.place}: {version} already", flush=True)
        return Exit.DONE
    if dry_run:
        print(f"{found.place}: {was} -> {version} (dry run)", flush=True)
        return Exit.DONE
    position = appended(log, change_rules(version, ledger.partition, ledger.partitions, new_stamp()))
    fold(log, ledger, position.offset + 1)
    if ledger.rules_version != version:
        say(f"{position}: written, but the partition follows rules {ledger.rules_version} after it")
        return Exit.ERROR
    print(f"{found.place}: {was} -> {version}", flush=True)
    say(str(position))
    return Exit.DONE


def _says(found: PartitionRules) -> str:
    if found.unknown is None:
        return "known here"
    return f"not known here: from {found.place}@{found.ledger.next_offset} on nothing can be read; upgrade claimlog on this machine"


def _versions() -> str:
    """Rules 1, or rules 1 and 2."""
    return f"rules {' and '.join(map(str, sorted(RULES_KNOWN)))}"
