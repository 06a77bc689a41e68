"""The names of the embedded log's files: whether a log may be opened by one, and whether its files still stand under theirs.

SQLite finds what stands beside a log by the log's name, and processes that find different files there write over each other's records
without a word.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams.log.base import LogUnreachable

# Less than a process takes to start, and open what is left of a log.
LOOK_SECONDS: Final = 0.01
PATH_BYTES_MAX: Final = 504
"""SQLite takes 512, and has to put `-journal` behind it."""
_MOUNTS: Final = Path("/proc/self/mountinfo")

Identity = tuple[int, int]

RESTORE: Final = (
    "restore the file from a copy: put that under a new name and point --log to it, or move the log's `-wal`, `-shm` and `-ends` away "
    "first: SQLite would lay those over it"
)
"""What to do about damage, for whoever copies a file over another."""


def for_sqlite(path: Path) -> str:
    """The name of a file as SQLite is told it, which is UTF-8 in every locale.

    Raises LogUnreachable for bytes that are not, be they those of a folder above or of where a link leads: SQLite's own names have those;
    and for a name that is too long for it.
    """
    name = os.fsencode(path.resolve())
    if len(name) > PATH_BYTES_MAX:
        raise LogUnreachable(f"the whole path has {len(name)} bytes, and SQLite takes {PATH_BYTES_MAX} at most; use a shorter one")
    try:
        name.decode()
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise LogUnreachable(f"{ascii(name)[1:]} is no UTF-8, and SQLite needs names that are; rename it, or use another") from None


def from_sqlite(name: str) -> Path:
    """The file of a name that SQLite tells."""
    return Path(os.fsdecode(name.encode()))


def find(path: Path, *, create: bool) -> None:
    """Raises LogUnreachable in plain words for what SQLite would only call 'unable to open database file', or take without a word."""
    mine = os.access in os.supports_effective_ids
    # Asked first, as Python says from 3.14 on that nothing is there of what this user may not look at.
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()
    if path.is_dir():
        raise LogUnreachable(f"this is a folder; a log is a file, such as {path}/claimlog.db")
    if path.exists() and not path.is_file():
        raise LogUnreachable("this is no regular file but a device, a pipe or a socket; a log is a file on a local disk")
    if not path.parent.is_dir():
        raise LogUnreachable(f"there is no folder {path.parent}; make it first")
    if not path.exists():
        if not create:
            raise LogUnreachable("there is no log; check the path, or make one with `claimlog run` or `claimlog topics apply`")
        if not os.access(path.parent, os.W_OK, effective_ids=mine):
            raise LogUnreachable(f"the folder {path.parent} cannot be written by this user")
    elif not os.access(path, os.R_OK | os.W_OK, effective_ids=mine):
        raise LogUnreachable("it cannot be read and written by this user; open a copy of it (with its -wal file) instead")
    else:
        _refuse_other_names(path)


def _refuse_other_names(path: Path) -> None:
    why = "What was written last stands in a file beside the log, and who comes by another name has another one: each would lose records"
    names = path.stat().st_nlink
    if names > 1:
        raise LogUnreachable(
            f"this file has {names} names (hard links). {why}. Keep one name (`find FOLDER -samefile {path}` shows the others); "
            "a symbolic link does no harm, and for a backup there is `claimlog copy`"
        )
    if _is_mounted(path):
        raise LogUnreachable(f"this file is mounted by itself. {why}. Mount its folder instead")


def _is_mounted(path: Path) -> bool:
    """Whether the file itself is a mount, as a container has it that was given a file instead of a folder."""
    try:
        mounts = _MOUNTS.read_bytes()
    except OSError:  # not Linux
        return False
    # The kernel's way to write what would part fields or lines.
    name = os.fsencode(path.resolve()).replace(b"\\", rb"\134").replace(b" ", rb"\040").replace(b"\t", rb"\011").replace(b"\n", rb"\012")
    return any(fields[4] == name for line in mounts.splitlines() if len(fields := line.split(b" ")) > 4)


class Files:
    """The files of a log that is open: `path`, and by their full names `wal` and `shm`, which every process must find there as well."""

    def __init__(self, path: Path, wal: Path, shm: Path) -> None:
        self._path, self._wal, self._shm = path, wal, shm
        self._identity = _identity(path)
        self._beside = {beside: _identity(beside) for beside in (wal, shm)}
        self._looked_at = time.monotonic()

    def check(self) -> None:
        """Raises LogUnreachable if a name stands for another file by now, or for none: what is written to a file without a name is lost.

        What stands beside the log is looked at once in a while, as two looks take a sixth of a commit's time.
        """
        if _identity(self._path) != self._identity:
            raise LogUnreachable(
                f"{self._path}: the file was moved, deleted or replaced since this process opened it, and nobody else would see what it "
                "writes. Put the file back; where another stands there on purpose, start this process again"
            )
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        for name, identity in self._beside.items():
            if _identity(name) != identity:
                raise LogUnreachable(
                    f"{name}: the file was moved, deleted or replaced, and it is a part of the log: others would not see what this process "
                    "writes, or write over it. End all processes that have the log open, so that the last one puts into it what it has "
                    "(kill -9 takes that away), then start them again"
                )
        self._looked_at = now

    def are_anothers(self) -> bool:
        """Whether somebody may have written beside the log what this process does not see, and would put what it has over it."""
        standing = _identity(self._wal)
        if standing == self._beside[self._wal]:
            return _identity(self._shm) not in {self._beside[self._shm], None}
        return standing is not None and self._wal.stat().st_size > 0


def _identity(path: Path) -> Identity | None:
    """Which file a path names; None for none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
