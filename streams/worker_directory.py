"""A worker's own data directory: its identity and its tables, in one process's hands at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from projections.table import TableInUse
from streams.log.alone import alone


@contextmanager
def worker_directory(folder: Path) -> Iterator[str]:
    """Lock a worker's directory, made if it is missing, for as long as this lasts; gives the id that belongs to it.

    The id is what the group knows a worker by: two processes with one id would throw each other out for ever, hence the lock.
    Raises TableInUse if another process has the directory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    lock.touch()
    with alone(lock, TableInUse(f"{folder}: another worker has this directory; each needs one of its own, so pass another with --state")):
        file = folder / "worker-id"
        if not file.exists() or not file.read_text().strip():
            # Written aside and renamed: a kill between the two leaves no half of an id. After a power cut it may be empty all the same.
            draft = file.with_suffix(".new")
            draft.write_text(uuid4().hex)
            draft.replace(file)
        yield file.read_text().strip()
