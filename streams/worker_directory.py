"""A worker's own data directory: its identity and its tables, in one process's hands at a time, and its own in one place only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from msgspec import Struct

from projections.table import TableError, TableInUse
from streams.log.alone import alone

MACHINE: Final = Path("/etc/machine-id")
"""What tells one machine from another, where there is such a file; containers often have none, or that of their image."""
# What Kafka takes for a member's id; a power cut may leave nothing, or zeros.
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Own(Struct, frozen=True):
    """A directory that this process has: the id that belongs to it, and its lock, by its file's number."""

    worker_id: str
    lock: Path
    number: int

    def check(self) -> None:
        """Raises TableError if the directory was taken away meanwhile: another worker could have what stands there now."""
        try:
            is_here = self.lock.stat().st_ino == self.number
        except OSError:
            is_here = False
        if not is_here:
            raise TableError(f"{self.lock.parent}: this worker's directory was deleted or replaced while it ran; start it again")


@contextmanager
def worker_directory(folder: Path, tell: Callable[[str], None] = _say, machine: Path = MACHINE) -> Iterator[Own]:
    """Lock a worker's directory, made if it is missing, for as long as this lasts; gives the id that belongs to it.

    The id is what the group knows a worker by: two processes with one id would throw each other out for ever, hence the lock. No lock
    helps against a copy of the directory, so a mark beside the id says which directory it was given to: anywhere else there is a new one,
    and `tell` hears of it. Raises TableInUse if another process has the directory, TableError for one that cannot be made or written.
    """
    lock = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as problem:
        said = "it is a file" if isinstance(problem, FileExistsError) else problem.strerror
        raise TableError(f"{folder}: this cannot be a worker's folder: {said}; mend that, or pass another with --state") from None
    with alone(lock, TableInUse(f"{folder}: another worker has this directory; each needs one of its own, so pass another with --state")):
        yield Own(_identity(folder, tell, machine), lock, lock.stat().st_ino)


def _identity(folder: Path, tell: Callable[[str], None], machine: Path) -> str:
    """The id of the directory, if it was given to this one. A new one is always safe: the old one is missed for a session time-out."""
    file, beside = folder / "worker-id", folder / "worker-place"
    known, mark = _content(file), _content(beside)
    if known is not None and not _ID.fullmatch(known):
        tell(f"{file}: this is no id, so the worker gets a new one")
        known = None
    # A directory of before there were marks has an id alone, and keeps it.
    worker_id = known if known is not None and mark in {None, _mark(known, folder, machine)} else uuid4().hex
    if known not in {None, worker_id}:
        tell(
            f"{folder}: {beside.name} is not of this directory, which was copied or moved, or its volume mounted anew: the worker is "
            f"{worker_id[:8]} from now on, since {str(known)[:8]} may be at work elsewhere"
        )
    if worker_id != known:
        _write(file, worker_id)
    # After the id: a kill in between leaves an id that the mark is not of, and the next start makes another.
    if mark != (made := _mark(worker_id, folder, machine)):
        _write(beside, made)
    return worker_id


def _mark(worker_id: str, folder: Path, machine: Path) -> str:
    """What a copy has otherwise: a folder's number is its file system's, and that one's is the machine's."""
    found = folder.stat()
    try:
        where = machine.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        where = ""
    return f"{worker_id} device={found.st_dev} inode={found.st_ino} machine={where}"


def _content(file: Path) -> str | None:
    """None for a file that is not there."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None


def _write(file: Path, text: str) -> None:
    """Written aside and renamed: a kill between the two leaves no half of it. After a power cut it may be empty all the same."""
    draft = file.with_suffix(".new")
    try:
        draft.write_text(text)
        draft.replace(file)
    except OSError as problem:
        problem.filename = problem.filename or str(draft)
        raise
