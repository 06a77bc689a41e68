"""The SQLite file under the embedded log: opening, transactions, the WAL's size, and SQLite's errors in the log's words. apsw's one home.

- A commit is visible to all when it returns, and on disk when `sync` was called after it (see `streams.log.sqlite_wal`).
- Writers wait for each other; nobody keeps a transaction open while waiting for records, so that the WAL can always be folded back.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self
from zlib import crc32

import apsw

from streams.log.base import LogDamaged, LogError, LogFull, LogUnreachable
from streams.log.blocks import BlockDamaged
from streams.log.sqlite_names import PATH_BYTES_MAX, RESTORE, Files, find, for_sqlite, from_sqlite
from streams.log.sqlite_wal import PAGES_MAX, Wal

FORMAT_VERSION: Final = 1
APPLICATION_ID: Final = 0x636C6D67  # "clmg": so that another program's database is never taken for a log
BUSY_SECONDS: Final = 60.0  # writers wait for each other; more than this means that one is stopped
# A commit takes so long: whoever waits for one looks again at once, since to sleep for less than this takes twice as long.
COMMIT_SECONDS: Final = 0.0002
# All who write stand while one waits for readers with a full WAL: a reader is done in milliseconds, and for one that is not (`doctor` looks
# at the structure of the whole file, or somebody stopped it) the WAL had better grow.
FULL_SECONDS: Final = 1.0
# How long folding the WAL back aside tries to get between writers, and waits for readers, while it keeps the writers away.
ASIDE_TRIES, ASIDE_SECONDS = 50, 0.0002

Row = tuple[Any, ...]

_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0.0))

_SCHEMA = """
CREATE TABLE ledger (name TEXT PRIMARY KEY, value TEXT NOT NULL, mark INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL, partitions INTEGER NOT NULL, compacted INTEGER NOT NULL,
                     mark INTEGER NOT NULL);
CREATE TABLE partitions (id INTEGER PRIMARY KEY, start INTEGER NOT NULL, end INTEGER NOT NULL, time_ms INTEGER NOT NULL,
                         mark INTEGER NOT NULL);
CREATE TABLE blocks (id INTEGER PRIMARY KEY, span INTEGER NOT NULL, count INTEGER NOT NULL, mark INTEGER NOT NULL,
                     records BLOB NOT NULL, marks BLOB NOT NULL);
CREATE TABLE commits (reader TEXT, topic TEXT, partition INTEGER, next INTEGER NOT NULL, mark INTEGER NOT NULL,
                      PRIMARY KEY (reader, topic, partition)) WITHOUT ROWID;
CREATE TABLE members (team TEXT, topic TEXT, member TEXT, at_ms INTEGER NOT NULL, timeout_ms INTEGER NOT NULL,
                      PRIMARY KEY (team, topic, member)) WITHOUT ROWID;
CREATE TABLE holds (team TEXT, topic TEXT, partition INTEGER, member TEXT NOT NULL, PRIMARY KEY (team, topic, partition)) WITHOUT ROWID;
"""


def sqlite_version() -> str:
    """The SQLite that apsw carries: `3.51.3`."""
    return apsw.sqlite_lib_version()


class SqliteFile:
    """An open file. One instance belongs to one thread."""

    def __init__(self, path: Path, db: apsw.Connection, ledger_id: str) -> None:
        self.path, self.ledger_id = path, ledger_id
        self._db = db
        self._closed = False
        wal = from_sqlite(db.filename_wal)
        self._files = Files(path, wal, from_sqlite(f"{db.filename}-shm"))
        self._wal = Wal(wal, self.fold_wal_back, self._fold_aside)
        db.set_wal_hook(self._after_commit)
        self.sync, self.bound_wal = self._wal.sync, self._wal.bound

    @classmethod
    def open(cls, path: Path, *, create: bool) -> Self:
        """See `SqliteLog.open`."""
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        db: apsw.Connection | None = None
        try:
            find(path, create=create)
            name = for_sqlite(path)
            db = apsw.Connection(name, flags=flags)
            return cls(path, db, _prepare(db, create=create))
        except (*_TROUBLE, LogError) as problem:
            trouble = problem if isinstance(problem, LogError) else _trouble(problem, db)
            if db is not None:
                db.close(force=True)
            short = _cut_short(path) if isinstance(problem, apsw.CorruptError) else ""
            raise type(trouble)(f"{path}: {short}{trouble}") from problem

    def rows(self, sql: str, bindings: Row = ()) -> list[Row]:
        """All rows of a query; none for a statement."""
        return self._db.execute(sql, bindings).fetchall()

    @contextmanager
    def rows_lazily(self, sql: str, bindings: Row) -> Iterator[Callable[[int], list[Row]]]:
        """A function that gives the next so many rows; the query ends with the block."""
        with closing(self._db.execute(sql, bindings)) as cursor:
            yield lambda count: list(islice(cursor, count))

    def run_many(self, sql: str, rows: Iterable[Row]) -> None:
        """Run a statement once a row."""
        self._db.executemany(sql, rows)

    def structure(self) -> str:
        """What SQLite finds wrong in how pages hang together, `ok` if nothing. Reads the whole file."""
        try:
            ((found,),) = self.rows("PRAGMA quick_check(1)")
        except apsw.CorruptError as problem:
            return str(problem)
        return str(found)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A write transaction: all of it is visible to others when the block is left, or nothing; `sync` makes it durable."""
        with self.guarded(what):
            self._wal.check()
            self.check_in_place()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException as problem:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(problem, apsw.FullError):
                    # The WAL could not grow; once folded back it is written from its start again, and the file may have room inside.
                    self._fold(self._db, apsw.SQLITE_CHECKPOINT_PASSIVE)
                raise

    def check_in_place(self) -> None:
        """Raises LogUnreachable if a file of the log is not the one any more that others find. A log that was closed says so itself."""
        if not self._closed:
            self._files.check()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A read transaction: all statements of the block see one moment. Inside of another transaction it is part of that."""
        nested = self._db.in_transaction
        if nested:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Turn SQLite's errors into the log's: raises LogUnreachable, LogFull or LogDamaged, each with the file and `what` was done."""
        try:
            yield
        except _TROUBLE as problem:
            if self._closed:
                raise LogUnreachable(f"{self.path}: this log was closed; open it again") from problem
            trouble = _trouble(problem, self._db)
            raise type(trouble)(f"{self.path}: {what}: {trouble}") from problem
        except BlockDamaged as problem:
            raise LogDamaged(f"{self.path}: {what}: {problem}; {RESTORE}") from problem

    def _after_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal.grew(pages)
        return apsw.SQLITE_OK

    def fold_wal_back(self, is_full: bool) -> None:
        """Fold back what can be without waiting for anybody; if it is full wait until no reader is inside, and have it started anew."""
        with self.guarded("fold the WAL back"):
            self._db.set_busy_handler(_waiting(FULL_SECONDS))
            try:
                self._fold(self._db, apsw.SQLITE_CHECKPOINT_RESTART if is_full else apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                self._db.set_busy_handler(_waiting(BUSY_SECONDS))

    def _fold_aside(self) -> None:
        """In a thread: nearly all of it beside the writers, and if they can be kept away for a moment, the rest."""
        # What is wrong in the file is for those to tell who read and write there.
        with suppress(apsw.Error, OSError, LogDamaged, LogUnreachable):
            self.sync()  # The kernel would not tell the descriptor of a new connection what failed before.
            with closing(apsw.Connection(for_sqlite(self.path), flags=apsw.SQLITE_OPEN_READWRITE)) as aside:
                aside.set_busy_handler(_wait_aside)
                self.check_in_place()
                aside.execute("PRAGMA schema_version").fetchall()  # Until it has read something it knows of no WAL.
                self._fold(aside, apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._fold(aside, apsw.SQLITE_CHECKPOINT_RESTART)

    def _fold(self, db: apsw.Connection, mode: int) -> None:
        try:
            db.wal_checkpoint(mode=mode)
        except apsw.IOError as problem:
            # A write that came to nothing is done again, a sync that did may be of what is gone.
            if getattr(problem, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC:
                self._wal.failed(str(problem))
        except (apsw.BusyError, apsw.FullError):
            pass  # Somebody else is at it, or there is no room: then the append itself says so, or finds room in the WAL.

    def keep_wal(self) -> None:
        """Leave the WAL as it is when the file is closed: somebody may make out what stands behind damage there."""
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def close(self) -> None:
        """Close the file; SQLite folds the WAL back if nobody else has it open."""
        if not self._closed and self._files.are_anothers():
            self.keep_wal()
        self._closed = True
        self._wal.close()
        self._db.close(force=True)


def row_mark(*fields: str | int) -> int:
    """The checksum that a row of ours carries."""
    return crc32(repr(fields).encode())


# What SQLite, or what it gives back, may raise when the file's bytes are not what was written.
BROKEN = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.MismatchError, apsw.TooBigError, UnicodeDecodeError)
_TROUBLE = (apsw.Error, UnicodeDecodeError, OSError)
_UNREACHABLE = (apsw.BusyError, apsw.LockedError, apsw.CantOpenError, apsw.PermissionsError, apsw.ReadOnlyError, apsw.NoMemError, OSError)


def _trouble(problem: BaseException, db: apsw.Connection | None) -> LogError:
    """The log's error for SQLite's, in words that say what to do."""
    number = problem.errno if isinstance(problem, OSError) else db.system_errno if isinstance(problem, apsw.IOError) and db else 0
    if isinstance(problem, apsw.FullError) or number in {errno.ENOSPC, errno.EDQUOT}:
        return LogFull(f"no room left on the disk ({problem}). Nothing acknowledged is lost; make room and go on")
    if number == errno.EFBIG:
        return LogFull(
            f"the file may not grow any more ({problem}): a limit of this process (`ulimit -f`) or of the file system. Nothing "
            "acknowledged is lost; raise the limit and go on"
        )
    if number == errno.ENAMETOOLONG:
        return LogUnreachable(f"the path, or a name in it, is too long: a log's path may have {PATH_BYTES_MAX} bytes; use a shorter one")
    if isinstance(problem, apsw.BusyError):
        return LogUnreachable(f"another process held the write lock for {BUSY_SECONDS:.0f} s ({problem}). Is one stopped?")
    if isinstance(problem, (*_UNREACHABLE, apsw.IOError)):
        return LogUnreachable(f"{problem}. Check that the file and its folder can be read and written by this user")
    if isinstance(problem, (apsw.MisuseError, apsw.ThreadingViolationError, apsw.ConnectionClosedError, apsw.BindingsError)):
        return LogUnreachable(f"{problem}. The log is closed or used by two threads at once; open one for each")
    if isinstance(problem, apsw.NotADBError):
        return LogDamaged(f"{problem}: it does not begin as one. Check the path; if this is a log, its beginning is damaged: {RESTORE}")
    return LogDamaged(f"{problem}. The file is not what was written; {RESTORE}")


def _cut_short(path: Path) -> str:
    """Where the file ends, if that is before the end that its first page names; empty if it is not."""
    with suppress(OSError), path.open("rb") as file:
        head, size = file.read(100), file.seek(0, os.SEEK_END)
        page_size, pages = int.from_bytes(head[16:18]), int.from_bytes(head[28:32])
        whole = (65_536 if page_size == 1 else page_size) * pages
        if len(head) == 100 and size < whole:
            return f"it is cut short: all from byte {size} on is missing, of {whole} that it had; "
    return ""


def _prepare(db: apsw.Connection, *, create: bool) -> str:
    """Set a fresh connection up, make the tables of a new log, and return the ledger id."""
    db.set_busy_handler(_waiting(BUSY_SECONDS))
    db.execute("PRAGMA cell_size_check=ON")
    # One statement, so that it does not see half of a log that another process is making.
    ((found, tables),) = db.execute("SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id")
    if found != APPLICATION_ID and (tables or not create):
        raise LogDamaged("this is not a claimlog log (or its first bytes are damaged); check the path")
    _use_wal(db, time.monotonic() + BUSY_SECONDS)
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"PRAGMA journal_size_limit={PAGES_MAX * 4096}")
    if found != APPLICATION_ID:
        _make(db)
        with suppress(apsw.BusyError, apsw.FullError):  # of another process that makes it, or a disk that has room inside of the WAL
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)  # The file itself says which log it is, whatever becomes of the WAL.
    db.execute("PRAGMA synchronous=NORMAL")  # in order on disk, whatever the moment; `sync` says when
    ((version,),) = db.execute("PRAGMA user_version")
    if version != FORMAT_VERSION:
        raise LogDamaged(f"format version {version} where this claimlog knows {FORMAT_VERSION} only; use the claimlog that wrote it")
    rows = db.execute("SELECT value, mark FROM ledger WHERE name = 'ledger_id'").fetchall()
    if not rows or rows[0][1] != row_mark("ledger_id", str(rows[0][0])):
        raise LogDamaged(f"the row with the ledger's id is damaged; {RESTORE}")
    return str(rows[0][0])


def _waiting(seconds: float) -> Callable[[int], bool]:
    """What SQLite asks whether to go on waiting for others, for so long."""
    waited_since = time.monotonic()

    def wait_for_others(attempts: int) -> bool:
        nonlocal waited_since
        now = time.monotonic()
        waited_since = now if attempts == 0 else waited_since
        waited = now - waited_since
        # SQLite's own waits of up to 100 ms would let one writer starve another.
        if waited < COMMIT_SECONDS:
            _let_others_run()
        else:
            time.sleep(min(waited, 0.001))
        return waited < seconds

    return wait_for_others


def _wait_aside(attempts: int) -> bool:
    time.sleep(ASIDE_SECONDS)
    return attempts < ASIDE_TRIES


def _use_wal(db: apsw.Connection, until: float) -> None:
    while True:
        try:
            ((mode,),) = db.execute("PRAGMA journal_mode=WAL")
        except apsw.BusyError:  # raised at once, without asking the busy handler, while another process makes the file
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise LogUnreachable(f"SQLite's journal is {mode!r} instead of 'wal'; the log needs a local file system with shared memory")
        return


def _make(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        ((tables,),) = db.execute("SELECT count(*) FROM sqlite_schema")
        if not tables:  # else another process made it just now
            db.execute(_SCHEMA)
            ledger_id = secrets.token_hex(8)
            db.execute("INSERT INTO ledger VALUES ('ledger_id', ?, ?)", (ledger_id, row_mark("ledger_id", ledger_id)))
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
