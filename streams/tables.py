"""The stream processor's tables on disk: opened, waited for, and made anew where one cannot be used in time.

A table holds nothing that the log does not, so none is worth waiting for without end. One that is damaged is discarded at once. One that
another process holds is waited for until the deadline, then left to it: the next one is `claims-0+1` beside `claims-0`, the highest
number counts. They are loaded one after the other, and each has the whole deadline: one whose loading outlasted it has been marked by the
watchdog, which ended that process, and is discarded now.
While RocksDB opens a table no other thread of Python runs, the watchdog's neither, and damage may have it turn for ever or crash (a list
of files with something behind its end): then a timer of the system's ends the process, and a table that none of the last two starts got
loaded is discarded.
"""

from __future__ import annotations

import faulthandler
import shutil
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from projections.rocks import RocksTable, is_held, make_folder, what_helps
from projections.table import TableDamaged, TableError, TableInUse
from schemas.topics import CLAIMS

RECOVERY_SECONDS: Final = 300.0
"""A table of a million claims loads within a minute on a busy machine, and whoever has a table gives it up within a second."""
_STDERR: Final = 2
"""By its number: who runs this inside of another program may have put something without one into `sys.stderr`."""
_LOADING, _OVERDUE = ".loading", ".overdue"
HANDOVER_SECONDS: Final = 2.0
"""So long after others took over a process may take to give a table up, without anything being wrong."""
STARTS_MAX: Final = 2
"""So many that ended while they loaded a table are enough: the first may have been killed by somebody."""


class Loading(Struct, frozen=True):
    """A table that is being loaded, and since when by the clock of its `Tables`."""

    partition: int
    since_seconds: float

    @property
    def name(self) -> str:
        """As people know it."""
        return f"{CLAIMS}-{self.partition}"


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
        self._said: set[int] = set()
        self.loading: Loading | None = None
        """Replaced, never changed: another thread reads it."""
        self.discarded = 0
        """How many were given up for new ones."""

    def opened(self, partition: int) -> RocksTable | None:
        """The partition's table, marked as being loaded until `loaded`; None while another process has it. Raises TableError."""
        self.loading, table = Loading(partition, self.seconds()), None
        try:
            table = self._opened(partition)
        finally:
            if table is None:
                self.loading = None
        return table

    def _opened(self, partition: int) -> RocksTable | None:
        overdue, loading = self._marker(partition, _OVERDUE), self._marker(partition, _LOADING)
        starts = _count(loading)
        folder, marks = self._folders(partition)[-1], partition not in self._waiting
        if overdue.exists() and not is_held(folder):
            self.discard(partition, f"loading it took longer than {self.deadline_seconds:.0f} s the last time")
            overdue.unlink(missing_ok=True)
        elif starts >= STARTS_MAX and not is_held(folder):
            self.discard(partition, f"the last {starts} starts ended while they loaded it")
            starts = 0
        try:
            if marks:
                # Who waits tries too often to write each time.
                _set_count(loading, starts + 1)
            table = self._new_or_kept(partition, folder)
        except TableInUse as problem:
            if marks:
                _set_count(loading, starts)
            if not self._given_up(partition, folder):
                return None
            self.discarded += 1
            table = self._open(self._beside(partition, problem))
        except BaseException:
            self.left(partition)
            raise
        self._waiting.pop(partition, None)
        self._said.discard(partition)
        self._clear_away(self._folders(partition)[:-1])
        _set_count(loading, starts + 1)
        return table

    def _new_or_kept(self, partition: int, folder: Path) -> RocksTable:
        """The table in `folder`; a new one if it is damaged."""
        try:
            return self._open(folder)
        except TableDamaged as problem:
            damage = str(problem)
        # Only here, where nothing of the failure is left that would keep the damaged one open.
        self.discard(partition, damage)
        return self._open(folder)

    def _open(self, folder: Path) -> RocksTable:
        """As `RocksTable.open`. Where it takes longer than the deadline the process ends with exit code 1, and says where it stood."""
        faulthandler.dump_traceback_later(self.deadline_seconds, file=_STDERR, exit=True)
        try:
            return RocksTable.open(folder)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def loaded(self, partition: int) -> None:
        """Its rows were read in time."""
        self.loading = None
        self._marker(partition, _LOADING).unlink(missing_ok=True)

    def left(self, partition: int) -> None:
        """It was not loaded, and whoever tried lives and says why: no sign that loading it cannot be survived."""
        with suppress(OSError):  # The reason may well be that nothing can be written.
            self.loaded(partition)

    def discard(self, partition: int, reason: str) -> None:
        """Delete the table, which nobody has open, and say why. Raises TableError if that cannot be done."""
        folder = self._folders(partition)[-1]
        self._tell(f"{folder}: discarded, and made anew from the newest snapshot or the log: {reason}")
        self.discarded += 1
        try:
            shutil.rmtree(folder, ignore_errors=not folder.exists())
        except OSError as problem:
            raise TableError(f"{folder}: cannot be deleted: {problem.strerror or problem}; delete it, the log has all of it") from problem

    def leave_all_but(self, partitions: AbstractSet[int]) -> None:
        """Wait for no other tables any more: who comes back to one begins to wait anew."""
        for partition in self._waiting.keys() - partitions:
            del self._waiting[partition]
            self._said.discard(partition)

    def _given_up(self, partition: int, folder: Path) -> bool:
        """Whether the wait for a table that another process has is over; said once where it lasts, since a handover takes a moment."""
        waited = self.seconds() - self._waiting.setdefault(partition, self.seconds())
        if waited > HANDOVER_SECONDS and partition not in self._said:
            self._said.add(partition)
            self._tell(f"{folder}: waiting until the process that had this table gives it up; if it hangs, stop it")
        return waited > self.deadline_seconds

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
        others = [folder for folder in self._directory.glob(f"{first.name}+*") if folder.name.rpartition("+")[2].isdecimal()]
        return [*([first] if first.exists() or not others else []), *sorted(others, key=_number)]

    def _marker(self, partition: int, suffix: str) -> Path:
        return self._directory / f"{CLAIMS}-{partition}{suffix}"


def _count(loading: Path) -> int:
    """How many starts in a row have left this marker behind; one by an earlier version says nothing but that it was one."""
    try:
        text = loading.read_text()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 1


def _set_count(loading: Path, starts: int) -> None:
    """Leave the marker, or take it away. Raises TableError."""
    make_folder(loading.parent)
    try:
        if starts:
            loading.write_text(str(starts))
        else:
            loading.unlink(missing_ok=True)
    except OSError as problem:
        said = str(problem.strerror or problem)
        raise TableError(f"{loading}: cannot be written: {said}; {what_helps(said)}") from problem


def _number(folder: Path) -> int:
    number = folder.name.rpartition("+")[2]
    return int(number) if "+" in folder.name else 0


def mark_overdue(directory: Path, partition: int) -> list[str]:
    """Mark a table that is being loaded, so that the next start discards it; returns its name, or none if it is loaded after all.

    For another thread.
    """
    loading = directory / f"{CLAIMS}-{partition}{_LOADING}"
    try:
        loading.replace(loading.with_suffix(_OVERDUE))
    except FileNotFoundError:
        return []
    return [loading.stem]
