"""Copies the files of an embedded log while others write to it.

The database and its WAL belong together: between the copy of the one and of the other the WAL must not have been started anew. Its
header says so: SQLite writes a new salt there each time. A copy holds everything acknowledged before it began.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from streams.log.base import LogUnreachable

# The WAL is started anew once in 16 MiB of writes at most, so a second attempt is rare and a tenth means that the copy is too slow.
ATTEMPTS_MAX = 10
_HEADER_BYTES = 32


def copy_log(source: Path, destination: Path) -> None:
    """Copy the log at `source` to `destination`, which must not exist.

    Raises FileExistsError, and LogUnreachable if writers are faster than the copy every time (then stop them, or copy by a snapshot
    of the file system).
    """
    if destination.exists():
        raise FileExistsError(f"{destination} exists; a copy never replaces a log")
    source_wal, destination_wal = _wal(source), _wal(destination)
    for _ in range(ATTEMPTS_MAX):
        before = _header(source_wal)
        shutil.copyfile(source, destination)
        if before:
            shutil.copyfile(source_wal, destination_wal)
        if before == _header(source_wal) and (not before or before == _header(destination_wal)):
            return
        destination.unlink()
        destination_wal.unlink(missing_ok=True)
    raise LogUnreachable(f"{source} changed faster than it could be copied, {ATTEMPTS_MAX} times; stop its writers or copy a disk snapshot")


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _header(wal: Path) -> bytes:
    """The WAL's header, empty if there is none."""
    try:
        with wal.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""
