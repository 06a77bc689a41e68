"""The table in RocksDB: the only place that knows rocksdict.

Each batch is one write batch of RocksDB with its write-ahead log on, so rows, meta and next offset survive `kill -9` together; after a
power cut the table opens at an earlier batch. RocksDB checks every block it reads; what it finds wrong is `TableDamaged` here.

It does not notice files that are sound and do not belong together: a cut list of files, an older copy laid over a newer one, a copy made
while somebody wrote. What it reads then are rows of different batches. So each batch stores a sum over all rows, which `open` adds up anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict, WriteBatch

from projections.table import TableDamaged, TableError, TableInUse

# The fold keeps its rows in memory itself and reads the table only when it starts, so a larger cache would hold the same bytes twice.
BLOCK_CACHE_BYTES = 8 << 20
# Two of these at most per table; with many partitions in one process RocksDB's default of 64 MiB each would be most of its memory.
WRITE_BUFFER_BYTES = 16 << 20
# RocksDB keeps a text log of its own; without a bound it grows for as long as the process lives.
INFO_LOG_BYTES = 1 << 20

# In order of keys: meta first, then rows, then nothing.
_META, _ROW, _AFTER_ROWS = b"m", b"r", b"s"
_NEXT_OFFSET = "\x00next-offset"
_SUM_KEY = _META + b"\x00sum"
SUM_BYTES = 8
"""Of the sum over all rows, as of the mark of each: one mixture of files in 2^64 would pass for sound."""


def make_folder(folder: Path) -> None:
    """Make a folder of tables, if it is missing. Raises TableError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        why = problem.strerror or problem
        if isinstance(problem, FileExistsError):
            why = "it is a link to what is not there" if folder.is_symlink() and not folder.exists() else "it is no folder"
        raise TableError(f"{folder}: this folder of tables cannot be made: {why}; choose another") from problem


class RocksTable:
    """See `projections.table.Table`. `path` is a folder of its own; one process at a time may have it open."""

    def __init__(self, path: Path, db: Rdict) -> None:
        self.path = path
        self._db: Rdict | None = db
        self._marks: dict[bytes, int] = {}
        """Of each key what its row adds to the sum: taken off again when the row is replaced."""
        self._sum = self._added_up()
        stored = self.meta(_NEXT_OFFSET)
        self._next_offset = 0 if stored is None else int.from_bytes(stored, "big")

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The table in the folder `path`, made if it is missing. Raises TableInUse, TableDamaged, TableError."""
        folder = Path(path)
        make_folder(folder)
        try:
            db = Rdict(str(folder), _options())
        except Exception as problem:  # rocksdict raises nothing narrower
            raise _translated(problem, folder) from problem
        try:
            return cls(folder, db)
        except BaseException:
            # What is damaged may not be closed without a complaint either.
            with suppress(Exception):
                db.close()
            raise

    @property
    def next_offset(self) -> int:
        """See the contract."""
        return self._next_offset

    def get(self, key: bytes) -> bytes | None:
        """See the contract."""
        return self._get(_ROW + key)

    def meta(self, name: str) -> bytes | None:
        """See the contract."""
        return self._get(_META + name.encode())

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See the contract."""
        for key, row in self._walk(_ROW + prefix):
            yield key[1:], row

    def _walk(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What stands under the keys that begin with `start`, which are given whole."""
        try:
            # Not rocksdict's own loop over items: it ends at damage just as at the end, without a word.
            walk = self._open_db().iter()
            walk.seek(start)
            while walk.valid():
                key: bytes = walk.key()
                if not key.startswith(start):
                    return
                yield key, walk.value()
                walk.next()
            walk.status()
        except Exception as problem:
            raise _translated(problem, self.path) from problem

    def write(
        self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = (), *, next_offset: int, meta: Mapping[str, bytes] | None = None
    ) -> None:
        """See the contract."""
        rows = {_ROW + key: row for key, row in puts.items()}
        rows |= {_META + name.encode(): value for name, value in (meta or {}).items()}
        rows[_META + _NEXT_OFFSET.encode()] = next_offset.to_bytes(8, "big")
        gone = {_ROW + key for key in deletes} - rows.keys()
        marks = {key: _mark(key, row) for key, row in rows.items()}
        known = self._marks
        total = self._sum + sum(mark - known.get(key, 0) for key, mark in marks.items()) - sum(known.get(key, 0) for key in gone)
        total %= 1 << 8 * SUM_BYTES
        batch = WriteBatch(raw_mode=True)
        for key in gone:
            batch.delete(key)
        for key, row in rows.items():
            batch.put(key, row)
        batch.put(_SUM_KEY, total.to_bytes(SUM_BYTES, "big"))
        self._write(batch)
        known.update(marks)
        for key in gone:
            known.pop(key, None)
        self._next_offset, self._sum = next_offset, total

    def clear(self) -> None:
        """See the contract."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_META, _AFTER_ROWS)
        self._write(batch)
        self._marks.clear()
        self._next_offset = self._sum = 0

    def close(self) -> None:
        """See the contract. Raises TableError if not all could be written out; it is in the write-ahead log, and read from there."""
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception as problem:
                raise _translated(problem, self.path) from problem

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _added_up(self) -> int:
        """The sum over all that is there. Raises TableDamaged if the last batch stored another."""
        stored: int | None = None
        for prefix in (_META, _ROW):
            for key, row in self._walk(prefix):
                if key == _SUM_KEY:
                    stored = int.from_bytes(row, "big")
                else:
                    self._marks[key] = _mark(key, row)
        total = sum(self._marks.values()) % (1 << 8 * SUM_BYTES)
        # Tables of earlier versions have none.
        if stored is not None and stored != total:
            raise _damaged(self.path, "its files do not belong together, or an older claimlog wrote to it: its rows add up to another sum")
        return total

    def _open_db(self) -> Rdict:
        if self._db is None:
            raise TableError(f"{self.path}: the table was closed; open it again")
        return self._db

    def _get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._open_db().get(key)
        except Exception as problem:
            raise _translated(problem, self.path) from problem
        return found

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._open_db().write(batch)
        except Exception as problem:
            raise _translated(problem, self.path) from problem


def _mark(key: bytes, row: bytes) -> int:
    """What a row adds to the sum."""
    hashed = blake2b(key, digest_size=SUM_BYTES)
    hashed.update(row)
    return int.from_bytes(hashed.digest(), "big")


def is_held(folder: Path) -> bool:
    """Whether another process has the table in `folder` open, without opening it. RocksDB locks its file LOCK as `lockf` does."""
    try:
        with (folder / "LOCK").open("r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        # Locked, or not to be had at all: then it is not to be deleted either.
        return True
    return False


def meta_kept(folder: Path, name: str) -> bytes | None:
    """What the table in `folder`, which no process has, was given under `name` last, or None; nothing is changed. Raises TableError."""
    try:
        db = Rdict(str(folder), _options(), access_type=AccessType.read_only())
        try:
            found: bytes | None = db.get(_META + name.encode())
        finally:
            db.close()
    except Exception as problem:  # rocksdict raises nothing narrower
        raise _translated(problem, folder) from problem
    return found


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_keep_log_file_num(1)
    options.set_compression_type(DBCompressionType.lz4())
    # A torn end of the write-ahead log is what a power cut leaves: go back to the last whole batch.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    return options


def _damaged(folder: Path, text: str) -> TableDamaged:
    return TableDamaged(f"{folder}: the table is damaged; delete this folder and start again, it is rebuilt from the log ({text})")


def _translated(problem: Exception, folder: Path) -> TableError:
    """What rocksdict's one exception means, and what to do about it; an error of ours stays what it is."""
    if isinstance(problem, TableError):
        return problem
    text = str(problem)
    if "lock hold by" in text or "While lock file" in text:
        return TableInUse(f"{folder}: another process has this table open; stop it, or give this one a folder of its own ({text})")
    if "Corruption" in text or "No such file" in text or "not exist" in text:
        return _damaged(folder, text)
    return TableError(f"{folder}: RocksDB cannot go on: {text}; {what_helps(text)}")


def what_helps(text: str) -> str:
    """What to do about what the system says of the files of a table."""
    if os.strerror(errno.EMFILE) in text or os.strerror(errno.ENFILE) in text:
        return "a process needs about ten files for each partition of claims that it folds: let it have more (`ulimit -n 1024`)"
    return "see to room and permissions, or choose another folder"
