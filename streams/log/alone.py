"""One process at a time: a lock on something that stands on disk, which the kernel lets go of when its holder ends, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path, busy: Exception) -> Iterator[None]:
    """Hold the lock of a file or folder that is there. Raises `busy` at once if another process has it, OSError if it cannot be opened."""
    fd = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
    finally:
        os.close(fd)
