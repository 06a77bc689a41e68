"""A disk that is played, so that the power can fail: it has what was synced, and of what was written since, any sectors or none.

SQLite's files go through a VFS, so that what SQLite syncs of its own, and when, is tried as well as what the log does. Files that Python
writes are looked at when they are synced: under a name is on disk what was when their folder was synced.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import apsw
import pytest
from typing_extensions import Buffer

from streams.log import sqlite_wal
from streams.log.sqlite_ends import ends_file

SECTOR = 512


class Killed(BaseException):
    """The process ends here, as by kill -9."""


class Disk:
    """The log at `path` as a power failure would leave it. What has no name any more is gone, as SQLite deletes what it needs no more."""

    def __init__(self, path: Path) -> None:
        self.path, self.wal = path, path.with_name(path.name + "-wal")
        self._synced: dict[str, bytearray] = {}
        self._since: dict[str, list[tuple[int, bytes | None]]] = {}
        """What was written where since the last sync of a file, in order; None cuts it off."""

    def wrote(self, name: str, at: int, data: bytes | None) -> None:
        self._since.setdefault(name, []).append((at, data))

    def sync(self, name: str) -> None:
        content = self._synced.setdefault(name, bytearray())
        for at, data in self._since.pop(name, []):
            _write(content, at, data)

    def sync_wal(self, fd: int) -> None:
        """What the log does itself, of the WAL that is in use."""
        assert os.path.samestat(os.fstat(fd), self.wal.stat())
        self.sync(str(self.wal))

    def deleted(self, name: str) -> None:
        self._synced.pop(name, None)
        self._since.pop(name, None)

    def fail(self, folder: Path, chance: Random) -> Path:
        """Write what is left to `folder`: of each sector that was written since its file was synced the old content or the new."""
        share = chance.choice((0.0, chance.random(), 1.0))
        for name in sorted(self._synced.keys() | self._since.keys()):
            content = self._synced.get(name, bytearray())[:]
            for at, data in self._since.get(name, []):
                for part in [(at, None)] if data is None else _sectors(at, data):
                    if chance.random() < share:
                        _write(content, *part)
            (folder / Path(name).name).write_bytes(content)
        # Nobody syncs it, and the worst is that all of it is there: it may say nothing that the log does not have.
        shutil.copy(ends_file(self.path), folder)
        return folder / self.path.name


def _sectors(at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    cuts = [at, *range(at - at % SECTOR + SECTOR, at + len(data), SECTOR), at + len(data)]
    yield from ((start, data[start - at : end - at]) for start, end in pairwise(cuts))


def _write(content: bytearray, at: int, data: bytes | None) -> None:
    content.extend(bytes(max(at - len(content), 0)))
    if data is None:
        del content[at:]
    else:
        content[at : at + len(data)] = data


class PlayedFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk, self._name = disk, name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("unix", name, flags)

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802 - SQLite's names
        super().xWrite(data, offset)
        self._disk.wrote(self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._disk.wrote(self._name, newsize, None)

    def xSync(self, _flags: int) -> None:  # noqa: N802
        self._disk.sync(self._name)


class PlayedFiles(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__("played", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> PlayedFile:  # noqa: N802
        return PlayedFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._disk.deleted(filename)


@contextmanager
def syncing(act: Callable[[int], None]) -> Iterator[None]:
    """`act` instead of the log's own sync of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_wal, "_to_disk", act)
        yield


class Folders:
    """The files under `root` as a power failure would leave them. A folder is on disk with the names that it had when it was synced.

    `kill_in` is how many syncs and renames there are before the process is killed, None for never.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kill_in: int | None = None
        self._files: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._fsync, self._rename = os.fsync, Path.rename
        root.mkdir()
        self._sync(root)

    @contextmanager
    def played(self) -> Iterator[None]:
        """Python's syncs and renames go through here."""

        def rename(path: Path, target: Path) -> Path:
            self.step()
            return self._rename(path, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._fsync_played)
            patch.setattr(Path, "rename", rename)
            yield

    def step(self) -> None:
        """Something that the disk sees is about to be done."""
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise Killed

    def _fsync_played(self, fd: int) -> None:
        self.step()
        self._sync(Path(f"/proc/self/fd/{fd}"))

    def _sync(self, path: Path) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = _names(path)
        else:
            self._files[found.st_ino] = path.read_bytes()

    def fail(self, folder: Path, chance: Random) -> Path:
        """Write what is left to `folder`: of each name that changed since its folder was synced the old file or the new."""
        share = chance.choice((0.0, chance.random(), 1.0))
        there = {path.stat().st_ino: path for path in (self.root, *self.root.rglob("*"))}
        self._leave(self.root.stat().st_ino, there, folder / self.root.name, lambda: chance.random() < share)
        return folder / self.root.name

    def _leave(self, number: int, there: dict[int, Path], target: Path, has_new: Callable[[], bool]) -> None:
        path = there.get(number)
        if number not in self._names and (path is None or path.is_file()):
            old, new = self._files.get(number, b""), b"" if path is None else path.read_bytes()
            target.write_bytes(new if has_new() else old)
            return
        target.mkdir()
        before, now = self._names.get(number, {}), {} if path is None else _names(path)
        for name in sorted(before | now):
            left = before.get(name) if before.get(name) == now.get(name) or not has_new() else now.get(name)
            if left is not None:
                self._leave(left, there, target / name, has_new)


def _names(folder: Path) -> dict[str, int]:
    names: dict[str, int] = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # Folders above are others' too, whose files come and go.
            names[path.name] = path.stat().st_ino
    return names
