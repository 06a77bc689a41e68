"""How a process learns within a millisecond that another one appended, without looking all the time.

A writer rings after each commit by writing one byte into a small file beside the log; those who wait sleep on inotify for that file.
The bell carries no truth: whoever wakes looks into the log. A writer that dies between commit and bell is noticed by the fallback look.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

# How long a sleeper may miss a commit whose writer could not ring any more; ten looks a second cost about 0.1 % of a core.
FALLBACK_SECONDS = 0.1
# Where inotify is missing or used up (a user has 128 instances by default): a look each 5 ms costs about 0.5 % of a core.
POLL_SECONDS = 0.005
_IN_MODIFY = 0x2
_EVENT_BYTES = 4096


def wake_file(log: Path) -> Path:
    """Beside the log itself: who came by a link and who did not hear the same bell."""
    log = log.resolve()
    return log.with_name(log.name + "-wake")


class Bell:
    """Rings the file at `path`; makes it for all who may write `log`, if it is missing. Raises OSError if that cannot be done."""

    def __init__(self, path: Path, log: Path) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = made_beside(path, log.stat())
        # With its one block there from the start, ringing works on a full disk as well.
        self._can_ring = self._ring_once()

    def ring(self) -> None:
        """Wake all sleepers."""
        if self._can_ring:
            self._can_ring = self._ring_once()

    def _ring_once(self) -> bool:
        try:
            os.pwrite(self._fd, b"!", 0)
        except OSError:  # what was committed is committed: without a bell the sleepers find it at their fallback look
            return False
        return True

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)


def made_beside(path: Path, like: os.stat_result) -> int:
    """A new file, open to read and write, with the rights and the group of another, by root with its owner: as SQLite makes its own."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with suppress(PermissionError):  # of another user who made it at this moment, or a file system without such rights
        os.fchmod(fd, like.st_mode & 0o666)
        # Who is no root may give a file of his own to a group that he is in.
        os.fchown(fd, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)
    return fd


class Ear:
    """Sleeps until the file at `path` is rung."""

    def __init__(self, path: Path) -> None:
        self._fd = _inotify(path)
        self._poll = select.poll()
        if self._fd is not None:
            self._poll.register(self._fd, select.POLLIN)

    def sleep(self, seconds: float) -> None:
        """Return when rung since the last call, or after a while: at most `seconds` and never more than the fallback look."""
        if self._fd is None:
            time.sleep(min(seconds, POLL_SECONDS))
        elif self._poll.poll(min(seconds, FALLBACK_SECONDS) * 1000):
            os.read(self._fd, _EVENT_BYTES)

    def close(self) -> None:
        """Release the watch."""
        if self._fd is not None:
            os.close(self._fd)


def _inotify(path: Path) -> int | None:
    """A watch on `path`, or None where there is no inotify or no instance of it left."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(fd)
        return None
    return fd
