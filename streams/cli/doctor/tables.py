"""What the tables that a stream processor left know of the log: whether it still has what they were folded from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from projections.ledger_id import ledger_id_of
from projections.ledger_table import begun
from projections.misfit import misfit
from projections.rocks import is_held, meta_kept
from projections.state import StateError
from projections.table import TableError
from schemas.few import few
from schemas.topics import CLAIMS
from streams.cli.doctor.checks import Check
from streams.log.base import Log

RESTORE = "restore a copy of the log that has them under a new name; `claimlog run` goes on without them, and folds anew"
ANEW = "`claimlog run` makes them anew from the newest snapshot or the log"


def tables(log: Log, home: Path) -> Iterator[Check]:
    """The tables in the folder `home`, but for those that a process has: it looks itself when it starts."""
    found = [folder for folder in sorted(home.glob(f"{CLAIMS}-*")) if folder.is_dir() and _number(folder).isdecimal()]
    looked = [(folder, int(_number(folder))) for folder in found if not is_held(folder)]
    if not looked:
        return
    ahead, others = list[str](), list[str]()
    for folder, number in looked:
        try:
            ledger = begun(partial(meta_kept, folder))
        except (TableError, StateError) as problem:
            others.append(str(problem))
            continue
        if ledger is not None and number < log.topics().get(CLAIMS, 0) and (reason := misfit(ledger, log, number)):
            is_ahead = ledger.ledger_id == ledger_id_of(log) and log.end(CLAIMS, number) < ledger.next_offset
            (ahead if is_ahead else others).append(f"{CLAIMS}/{number}: {reason}")
    if ahead:
        yield Check("fail", "tables", few(ahead, separator="; "), RESTORE)
    if others:
        yield Check("warn", "tables", few(others, separator="; "), ANEW)
    if not ahead and not others:
        yield Check("ok", "tables", f"{home.name}: the log has all that they were folded from")


def _number(folder: Path) -> str:
    """Of a folder of a table the partition, which `+` and another number may follow where it was begun beside another."""
    return folder.name.removeprefix(f"{CLAIMS}-").partition("+")[0]
