"""The WAL of the embedded log: when what stands in it is on disk, and how it is folded back into the file beside the writers.

A commit is visible to every process at once, and durable when the WAL was synced after it. The two are apart because a sync takes longer
than the commit, and syncs, unlike commits, need no lock: writers do not wait for each other's, and one sync covers all commits before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

from streams.log.base import LogDamaged

# Folded back at 16 MiB, beside all who read and write; at 64 MiB a writer waits for a moment without any reader, a second at most.
PAGES_FOLDED: Final = 4_096
PAGES_MAX: Final = 16_384
# Who appends so much at a time folds it back himself: it is quicker in all, and a thread would not keep up. Others are spared the 20 ms.
BULK_BYTES: Final = 65_536

_to_disk: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Wal:
    """The WAL at `path`. `fold` folds it back, and where it may wait for readers, has it started anew; `fold_aside` does so in a thread.

    To be made as soon as SQLite has it open, raises OSError: who opens it after a write failed, and another was told, is not told any more.
    """

    def __init__(self, path: Path, fold: Callable[[bool], None], fold_aside: Callable[[], None]) -> None:
        self._path, self._fold, self._fold_aside = path, fold, fold_aside
        # SQLite locks the file and its shared memory, never the WAL, so that this descriptor can be closed without harm.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._failure = ""
        self._pages, self._fold_at_pages = 0, PAGES_FOLDED
        self._folding: Thread | None = None

    def sync(self) -> None:
        """All that was committed before this call, by whomever, is on disk when it returns.

        Raises LogDamaged if the disk did not take it, from then on for good: the kernel reports a write that failed once, then forgets it.
        """
        self.check()
        try:
            _to_disk(self._fd)
        except OSError as problem:
            self.failed(problem.strerror or str(problem))
            raise LogDamaged(self._failure) from problem

    def check(self) -> None:
        """Raises LogDamaged once something was not taken: nothing is written behind what may be gone."""
        if self._failure:
            raise LogDamaged(self._failure)

    def failed(self, reason: str) -> None:
        """The disk did not take something: nothing is said to be on it from now on."""
        self._failure = (
            f"{self._path}: the disk did not take what was written ({reason}). What was appended last may be gone, though nothing that was "
            "acknowledged; look after the disk, then start the machine again: its memory may hold what the disk lacks"
        )

    def grew(self, pages: int) -> None:
        """How long it is after a commit."""
        if pages < self._pages:  # it was started anew
            self._fold_at_pages = PAGES_FOLDED
        self._pages = pages

    def bound(self, appended_bytes: int = BULK_BYTES) -> None:
        """Have it folded back if it is long, for who appended so much the last time.

        To be called before an append: what goes wrong here must not look like a failed append.
        """
        if self._pages < self._fold_at_pages:
            return
        self._fold_at_pages = self._pages + PAGES_FOLDED
        is_full = self._pages >= PAGES_MAX
        if is_full or appended_bytes >= BULK_BYTES:
            self._rest()
            self._fold(is_full)
        elif self._folding is None or not self._folding.is_alive():
            self._folding = Thread(target=self._fold_aside, name="fold the WAL back")
            try:
                self._folding.start()
            except RuntimeError:  # as many threads as may be, or the interpreter is about to end
                self._folding = None
                self._fold(is_full)

    def close(self) -> None:
        """Wait for the thread and release the descriptor."""
        self._rest()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rest(self) -> None:
        if self._folding is not None:
            self._folding.join()
            self._folding = None
