"""How far each partition of an embedded log was on disk when somebody was told so, in a small file beside it: `-ends`.

SQLite takes a frame of the WAL that does not hold for the torn end of what was never acknowledged, and a WAL that is gone for none. What
vanished with it is noticed here: each end is written down after the sync that put it on disk, so that whatever of this file survives, and
however old it is, the log has at least so much, or has lost it. It is never synced, and a log without it is as good as one with it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from streams.log.wake import made_beside

_SLOT: Final = Struct("<8sI4x")  # 16 bytes, so that none crosses a sector and is torn
_NONE: Final = -1
_MARK: Final = 0
"""The first slot says which log this is of; the others are those of partitions, by their numbers in the file, which begin at 1."""


def ends_file(log: Path) -> Path:
    """Beside the log itself, as all that belongs to it."""
    log = log.resolve()
    return log.with_name(log.name + "-ends")


def has_been_told(path: Path) -> bool:
    """Whether the file at `path` says, of whichever log it is, that some record was on disk."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    if len(content) < _SLOT.size:
        return False
    mark, crc = _SLOT.unpack(content[: _SLOT.size])
    return crc == crc32(mark) and bool(_ends(mark, content))


class Ends:
    """The file at `path`, made for all who may write `log` if it is missing; where it cannot be opened nothing is written or known."""

    def __init__(self, path: Path, log: Path, ledger_id: str) -> None:
        self._mark = _mark_of(ledger_id)
        self._told: dict[int, int] = {}
        self._fd = _opened(path, log)
        head = _SLOT.pack(self._mark, crc32(self._mark))
        if self._slot(_MARK) != head:  # what another log's partitions had does not hold under this mark
            self._write(_MARK, head)

    def told(self, partition_id: int, end: int) -> None:
        """Write down that all below `end` is on disk. Nobody waits for that, and where it cannot be written nothing else is wrong.

        Of two processes that do so at once the lower end may stay: less is noticed then, and never what is not so.
        """
        if end > self._told.get(partition_id, 0):
            self._told[partition_id] = end
            if end > self.end(partition_id):
                value = end.to_bytes(8, "little")
                self._write(partition_id, _SLOT.pack(value, _crc(self._mark, partition_id, value)))

    def end(self, partition_id: int) -> int:
        """What was written down last; 0 for nothing."""
        return _end(self._mark, partition_id, self._slot(partition_id))

    def all(self) -> dict[int, int]:
        """Of each partition what was written down last."""
        content = b""
        with suppress(OSError):
            content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        return _ends(self._mark, content)

    def close(self) -> None:
        """Release the file."""
        if self._fd != _NONE:
            os.close(self._fd)

    def _slot(self, number: int) -> bytes:
        with suppress(OSError):
            return os.pread(self._fd, _SLOT.size, number * _SLOT.size)
        return b""

    def _write(self, number: int, slot: bytes) -> None:
        with suppress(OSError):
            os.pwrite(self._fd, slot, number * _SLOT.size)


def _ends(mark: bytes, content: bytes) -> dict[int, int]:
    """Of each partition what a whole file says under this mark."""
    slots = {at // _SLOT.size: content[at : at + _SLOT.size] for at in range(_SLOT.size, len(content), _SLOT.size)}
    return {number: end for number, slot in slots.items() if (end := _end(mark, number, slot))}


def _end(mark: bytes, partition_id: int, slot: bytes) -> int:
    """What a slot of the file with this mark says; one that is damaged, or of another log, says nothing."""
    if len(slot) < _SLOT.size:
        return 0
    value, crc = _SLOT.unpack(slot)
    return int.from_bytes(value, "little") if crc == _crc(mark, partition_id, value) else 0


def _crc(mark: bytes, partition_id: int, value: bytes) -> int:
    return crc32(mark + partition_id.to_bytes(8, "little") + value)


def _opened(path: Path, log: Path) -> int:
    """To write, else to read, as a file that another user made may allow; else no file: a log goes on as well without."""
    with suppress(OSError):
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return made_beside(path, log.stat())
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return _NONE


def _mark_of(ledger_id: str) -> bytes:
    return blake2b(ledger_id.encode(), digest_size=8).digest()
