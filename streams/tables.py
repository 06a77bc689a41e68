"""The stream processor's tables on disk: opened, waited for, and made anew where one cannot be used in time.

A table holds nothing that the log does not, so none is worth waiting for without end. One that is damaged is discarded at once. One that
another process holds is waited for until the deadline, then left to it: the next one is `claims-0+1` beside `claims-0`, the highest
number counts. One whose loading outlasted the deadline has been marked by the watchdog, which ended that process, and is discarded now.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from projections.rocks import RocksTable
from projections.table import TableDamaged, TableError, TableInUse
from schemas.topics import CLAIMS

RECOVERY_SECONDS: Final = 300.0
"""A table of a million claims loads within a minute on a busy machine, and whoever has a table gives it up within a second."""
_LOADING, _OVERDUE = ".loading", ".overdue"


class Tables:
    """The tables of one process in `directory`, one a partition. `tell` hears what people should; `seconds` only runs."""

    def __init__(
        self,
        directory: Path,
        tell: Callable[[str], None],
        *,
        deadline_seconds: float = RECOVERY_SECONDS,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._tell, self.deadline_seconds, self.seconds = directory, tell, deadline_seconds, seconds
        self._waiting: dict[int, float] = {}
        self.discarded = 0
        """How many were given up for new ones."""

    def opened(self, partition: int) -> RocksTable | None:
        """The partition's table, marked as being loaded until `loaded`; None while another process has it. Raises TableError."""
        overdue = self._marker(partition, _OVERDUE)
        if overdue.exists():
            self.discard(partition, f"loading it took longer than {self.deadline_seconds:.0f} s the last time")
            overdue.unlink(missing_ok=True)
        folder = self._folders(partition)[-1]
        try:
            table = RocksTable.open(folder)
        except TableDamaged as problem:
            self.discard(partition, str(problem))
            table = RocksTable.open(folder)
        except TableInUse as problem:
            if not self._given_up(partition, folder):
                return None
            self.discarded += 1
            table = RocksTable.open(self._beside(partition, problem))
        self._waiting.pop(partition, None)
        self._clear_away(self._folders(partition)[:-1])
        self._marker(partition, _LOADING).touch()
        return table

    def loaded(self, partition: int) -> None:
        """Its rows were read in time."""
        self._marker(partition, _LOADING).unlink(missing_ok=True)

    def discard(self, partition: int, reason: str) -> None:
        """Delete the table, which nobody has open, and say why. Raises TableError if that cannot be done."""
        folder = self._folders(partition)[-1]
        self._tell(f"{folder}: discarded, and made anew from the newest snapshot or the log: {reason}")
        self.discarded += 1
        try:
            shutil.rmtree(folder, ignore_errors=not folder.exists())
        except OSError as problem:
            raise TableError(f"{folder}: cannot be deleted: {problem.strerror or problem}; delete it, the log has all of it") from problem

    def _given_up(self, partition: int, folder: Path) -> bool:
        """Whether the wait for a table that another process has is over; said once when it begins."""
        now = self.seconds()
        if partition not in self._waiting:
            self._waiting[partition] = now
            self._tell(f"{folder}: waiting until the process that had this table gives it up; if it hangs, stop it")
        return now - self._waiting[partition] > self.deadline_seconds

    def _beside(self, partition: int, problem: TableInUse) -> Path:
        """A new folder; the old one is its holder's."""
        current = self._folders(partition)[-1]
        beside = self._directory / f"{CLAIMS}-{partition}+{_number(current) + 1}"
        waited = f"waited {self.deadline_seconds:.0f} s for this table; begun anew in {beside.name} from the newest snapshot or the log"
        self._tell(f"{current}: {waited}: {problem}")
        return beside

    def _clear_away(self, left: list[Path]) -> None:
        """Delete the tables of lower numbers, but for those that their holder still has."""
        for folder in left:
            try:
                RocksTable.open(folder).close()
            except TableInUse:
                continue
            except TableError:
                pass  # Whatever is wrong with it, nobody has it.
            shutil.rmtree(folder, ignore_errors=True)

    def _folders(self, partition: int) -> list[Path]:
        """The partition's folders, the one that counts last."""
        first = self._directory / f"{CLAIMS}-{partition}"
        others = [folder for folder in self._directory.glob(f"{first.name}+*") if folder.name.rpartition("+")[2].isdigit()]
        return [*([first] if first.exists() or not others else []), *sorted(others, key=_number)]

    def _marker(self, partition: int, suffix: str) -> Path:
        return self._directory / f"{CLAIMS}-{partition}{suffix}"


def _number(folder: Path) -> int:
    number = folder.name.rpartition("+")[2]
    return int(number) if "+" in folder.name else 0


def mark_overdue(directory: Path) -> list[str]:
    """Mark the tables that are being loaded now, so that the next start discards them; returns their names. For another thread."""
    marked = []
    for loading in sorted(directory.glob(f"{CLAIMS}-*{_LOADING}")):
        loading.replace(loading.with_suffix(_OVERDUE))
        marked.append(loading.stem)
    return marked
