"""The table in RocksDB: the only place that knows rocksdict.

Each batch is one write batch of RocksDB with its write-ahead log on, so rows, meta and next offset survive `kill -9` together; after a
power cut the table opens at an earlier batch. RocksDB checks every block it reads; what it finds wrong is `TableDamaged` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict, WriteBatch

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


class RocksTable:
    """See `projections.table.Table`. `path` is a folder of its own; one process at a time may have it open."""

    def __init__(self, path: Path, db: Rdict) -> None:
        self.path = path
        self._db: Rdict | None = db
        stored = self.meta(_NEXT_OFFSET)
        self._next_offset = 0 if stored is None else int.from_bytes(stored, "big")

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The table in the folder `path`, made if it is missing. Raises TableInUse, TableDamaged, TableError."""
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise TableError(f"{folder}: this folder of tables cannot be made: {problem.strerror or problem}; choose another") from problem
        try:
            db = Rdict(str(folder), _options())
        except Exception as problem:  # rocksdict raises nothing narrower
            raise _translated(problem, folder) from problem
        try:
            return cls(folder, db)
        except BaseException:
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
        start = _ROW + prefix
        try:
            # Not rocksdict's own loop over items: it ends at damage just as at the end, without a word.
            walk = self._open_db().iter()
            walk.seek(start)
            while walk.valid():
                key: bytes = walk.key()
                if not key.startswith(start):
                    return
                yield key[1:], walk.value()
                walk.next()
            walk.status()
        except Exception as problem:
            raise _translated(problem, self.path) from problem

    def write(
        self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = (), *, next_offset: int, meta: Mapping[str, bytes] | None = None
    ) -> None:
        """See the contract."""
        batch = WriteBatch(raw_mode=True)
        for key in deletes:
            batch.delete(_ROW + key)
        for key, row in puts.items():
            batch.put(_ROW + key, row)
        for name, value in (meta or {}).items():
            batch.put(_META + name.encode(), value)
        batch.put(_META + _NEXT_OFFSET.encode(), next_offset.to_bytes(8, "big"))
        self._write(batch)
        self._next_offset = next_offset

    def clear(self) -> None:
        """See the contract."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_META, _AFTER_ROWS)
        self._write(batch)
        self._next_offset = 0

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


def _translated(problem: Exception, folder: Path) -> TableError:
    """What rocksdict's one exception means, and what to do about it; an error of ours stays what it is."""
    if isinstance(problem, TableError):
        return problem
    text = str(problem)
    if "lock hold by" in text or "While lock file" in text:
        return TableInUse(f"{folder}: another process has this table open; stop it, or give this one a folder of its own ({text})")
    if "Corruption" in text or "No such file" in text or "not exist" in text:
        return TableDamaged(f"{folder}: the table is damaged; delete this folder and start again, it is rebuilt from the log ({text})")
    return TableError(f"{folder}: RocksDB cannot go on: {text}; see to room and permissions, or choose another folder")
