"""The embedded log: what it says when it cannot be opened, and what a waiter costs."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread, Timer
from typing import Any

import apsw
import pytest

from streams.log import sqlite_file, wake
from streams.log.base import BareRecord, LogDamaged, LogFull, LogUnreachable, Message, OffsetOutOfRange, Partition, Record, TopicSpec
from streams.log.blocks import BYTES_MAX
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_reading import Said

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def made(path: Path) -> SqliteLog:
    log = SqliteLog.open(path, create=True)
    log.create([TopicSpec("claims", 2), TopicSpec("other", 1), TopicSpec("rows", 1, compacted=True)])
    return log


def test_a_log_keeps_its_id_and_two_logs_have_different_ones(tmp_path: Path) -> None:
    with made(tmp_path / "a") as one, made(tmp_path / "b") as other, SqliteLog.open(tmp_path / "a") as again:
        assert one.ledger_id == again.ledger_id
        assert len(one.ledger_id) == 16
        assert one.ledger_id != other.ledger_id


def test_a_log_that_is_not_there_is_not_made_by_looking(path: Path) -> None:
    with pytest.raises(LogUnreachable, match=r"log\.db: there is no log"):
        SqliteLog.open(path)

    assert not path.exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogUnreachable, match=r"there is no folder .*nowhere"):
        SqliteLog.open(tmp_path / "nowhere" / "log.db", create=True)


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogUnreachable, match="is a folder"):
        SqliteLog.open(tmp_path, create=True)


def test_a_text_file_is_no_log_and_stays_as_it_is(path: Path) -> None:
    path.write_text("a shopping list, longer than the header of a database would be, so that it is read as one\n" * 3)
    before = path.read_bytes()

    with pytest.raises(LogDamaged, match=r"file is not a database: it does not begin as one\. Check the path"):
        SqliteLog.open(path, create=True)

    assert path.read_bytes() == before


def test_another_programs_database_is_no_log_and_stays_as_it_is(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()
    before = path.read_bytes()

    with pytest.raises(LogDamaged, match="not a claimlog log"):
        SqliteLog.open(path, create=True)

    assert path.read_bytes() == before


def test_an_empty_file_is_a_log_only_if_one_is_to_be_made(path: Path) -> None:
    path.touch()

    with pytest.raises(LogDamaged, match="not a claimlog log"):
        SqliteLog.open(path)
    with made(path) as log:
        assert log.append([Message("other", b"k", b"v")]) == [0]


def test_another_version_is_refused_by_number(path: Path) -> None:
    made(path).close()
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version=7")
    db.close()

    with pytest.raises(LogDamaged, match="version 7 where this claimlog knows 1 only"):
        SqliteLog.open(path)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def another_user() -> Iterator[None]:
    """Root may do everything, so the tests of what may not be done run as nobody."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_log_that_may_not_be_written_is_named(shared_folder: Path) -> None:
    path = shared_folder / "log.db"
    made(path).close()
    path.chmod(0o444)

    with another_user(), pytest.raises(LogUnreachable, match=r"log\.db: it cannot be read and written by this user"):
        SqliteLog.open(path)


def test_what_is_no_regular_file_is_called_that(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(LogUnreachable, match="this is no regular file"):
            SqliteLog.open(path, create=True)


def test_a_folder_that_may_not_be_written_is_named(shared_folder: Path) -> None:
    closed = shared_folder / "closed"
    closed.mkdir(mode=0o555)

    with another_user(), pytest.raises(LogUnreachable, match="closed cannot be written by this user"):
        SqliteLog.open(closed / "log.db", create=True)


def test_a_folder_that_may_not_be_entered_is_named(shared_folder: Path) -> None:
    closed = shared_folder / "closed"
    closed.mkdir(mode=0o000)

    with another_user(), pytest.raises(LogUnreachable, match="Permission denied"):
        SqliteLog.open(closed / "log.db", create=True)


def test_one_look_tells_which_partitions_to_read(path: Path) -> None:
    here, there = Partition("claims", 0), Partition("claims", 1)
    with SqliteLog.open(path, create=True) as log, SqliteLog.open(path) as other:
        log.create([TopicSpec("claims", 2)])
        nothing = log.news({here: 0, there: 0})
        other.append([Message("claims", b"", b"a", (), 1)])

        assert nothing == frozenset()
        assert log.news({here: 0, there: 0}) == {there}
        assert log.news({there: 1}) == frozenset()
        # Who stands behind the end has to hear of it as well: reading says what is wrong.
        assert log.news({here: 1, there: 1}) == {here}


@pytest.mark.parametrize("other", [None, "another log"])
def test_a_log_whose_file_was_taken_away_takes_nothing_more_and_waits_for_nothing(path: Path, other: str | None) -> None:
    with made(path) as log:
        if other is None:
            path.unlink()
        else:
            made(path.with_name(other)).close()
            path.with_name(other).replace(path)

        with pytest.raises(LogUnreachable, match="moved, deleted or replaced"):
            log.append([Message("other", b"k", b"lost")])
        with pytest.raises(LogUnreachable, match="Put the file back"):
            log.wait({Partition("other", 0): 0}, 60)


def test_a_limit_on_the_size_of_files_is_no_room_and_nothing_acknowledged_is_lost(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with made(path) as log:
        log.append([Message("other", b"k", b"kept")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with pytest.raises(LogFull, match="ulimit -f"):
                log.append([Message("other", b"k", os.urandom(2 << 20))])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

        log.append([Message("other", b"k", b"there is room again")])

        assert [record.value for record in log.read("other", 0, 0)] == [b"kept", b"there is room again"]


def test_a_log_opened_by_a_link_rings_the_bell_of_the_log(path: Path) -> None:
    made(path).close()
    link = path.with_name("link")
    link.symlink_to(path)

    SqliteLog.open(link).close()

    assert [found.name for found in path.parent.glob("*-wake")] == [f"{path.name}-wake"]


def test_what_opening_makes_beside_a_log_may_be_written_by_all_who_may_write_the_log(path: Path) -> None:
    made(path).close()
    bell = path.with_name(f"{path.name}-wake")
    bell.unlink()
    path.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12346)

    SqliteLog.open(path).close()

    log, beside = path.stat(), bell.stat()
    assert (beside.st_mode, beside.st_uid, beside.st_gid) == (log.st_mode, log.st_uid, log.st_gid)


@pytest.mark.parametrize(
    ("change", "act"),
    [
        ("UPDATE ledger SET value = 'another'", lambda _: None),
        ("UPDATE ledger SET mark = mark + 1", lambda _: None),
        ("UPDATE topics SET compacted = 1 WHERE name = 'other'", lambda log: log.end("other", 0)),
        ("UPDATE topics SET name = 'another' WHERE name = 'other'", lambda log: log.topics()),
        ("DELETE FROM topics WHERE name = 'other'", lambda log: log.create([TopicSpec("other", 1)])),
        ("UPDATE partitions SET start = 1", lambda log: log.start("other", 0)),
        ("UPDATE partitions SET end = 1 WHERE end = 2", lambda log: log.append([Message("other", b"k", b"v")])),
        ("UPDATE partitions SET time_ms = 0", lambda log: log.end("other", 0)),
        ("UPDATE blocks SET span = 3", lambda log: log.read("other", 0, 0)),
        ("UPDATE blocks SET count = 'two'", lambda log: log.read("other", 0, 0)),
        ("UPDATE commits SET next = 2", lambda log: log.committed("group", "other")),
    ],
)
def test_a_row_that_is_not_what_was_written_is_damage(path: Path, change: str, act: Callable[[SqliteLog], object]) -> None:
    with made(path) as log:
        log.append([Message("other", b"k", b"v")] * 2)
        log.commit("group", "other", {0: 1})
    db = apsw.Connection(str(path))
    db.execute(change)
    db.close()

    with pytest.raises(LogDamaged), SqliteLog.open(path) as log:
        act(log)


def test_while_another_keeps_the_write_lock_appends_are_refused_in_the_end_and_go_through_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    with made(path) as log:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(LogUnreachable, match=r"another process held the write lock .* Is one stopped\?"):
                log.append([Message("other", b"k", b"v")])
        assert log.end("other", 0) == 0
        other.execute("ROLLBACK")
        other.close()

        assert log.append([Message("other", b"k", b"v")]) == [0]


def test_who_waits_for_others_again_waits_as_long_as_the_first_time() -> None:
    goes_on = sqlite_file._waiting(0.05)

    for _ in range(2):
        waits = 0
        while goes_on(waits):
            waits += 1
        assert waits > 1


def test_two_threads_on_one_log_are_told_so_and_of_no_damage(path: Path) -> None:
    inside, go_on = Event(), Event()

    def pause(*_: object) -> None:
        inside.set()
        go_on.wait(60)

    with made(path) as log:
        log._file._db.create_scalar_function("pause", pause, 0)
        thread = Thread(target=log._file.rows, args=("SELECT pause()",))
        thread.start()
        inside.wait(60)
        try:
            with pytest.raises(LogUnreachable, match="used by two threads at once; open one for each"):
                log.read("other", 0, 0)
        finally:
            go_on.set()
            thread.join()

        assert log.append([Message("other", b"k", b"v")]) == [0]


def test_a_log_without_a_bell_is_not_opened_and_its_place_is_named(path: Path) -> None:
    made(path).close()
    bell = path.with_name(f"{path.name}-wake")
    bell.unlink()
    bell.mkdir()

    with pytest.raises(LogUnreachable, match=r"log\.db-wake: Is a directory\. It must be writable by all who use the log"):
        SqliteLog.open(path)


def test_a_lease_that_cannot_be_given_up_does_not_keep_a_log_open(path: Path) -> None:
    log = made(path)
    log.lease("group", "claims", "member").partitions()
    path.unlink()

    log.close()

    with pytest.raises(LogUnreachable, match="was closed"):
        log.end("claims", 0)


CLAIMS, ROWS = Partition("claims", 0), Partition("rows", 0)


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.append([Message("other", b"k", b"v")]),
        lambda log: log.append_at([Message("other", b"k", b"v")], [1]),
        lambda log: log.read(*CLAIMS, 0),
        lambda log: log.read_early(*CLAIMS, 0),
        lambda log: next(log.read_lazily(*CLAIMS, 0)),
        lambda log: log.start(*CLAIMS),
        lambda log: log.end(*CLAIMS),
        lambda log: log.ends("claims"),
        lambda log: log.at_time(*CLAIMS, 0),
        lambda log: log.news({CLAIMS: 1}),
        lambda log: log.wait({CLAIMS: 1}, 0),
        lambda log: log.committed("group", "claims"),
        lambda log: log.commit("group", "claims", {0: 1}),
        lambda log: log.lease("group", "claims", "member").partitions(),
        lambda log: log.compact(*ROWS),
        lambda log: log.truncate(*CLAIMS, 1),
        lambda log: log.topics(),
        lambda log: log.create([TopicSpec("new", 1)]),
        lambda log: log.verify(),
    ],
)
def test_a_closed_log_says_so_whatever_is_asked_of_it(path: Path, act: Callable[[SqliteLog], object]) -> None:
    log = made(path)
    log.append([Message("claims", b"k", b"v", (), 0), Message("rows", b"k", b"v")])
    log.close()

    with pytest.raises(LogUnreachable, match=r"log\.db: this log was closed; open it again"):
        act(log)


@pytest.mark.parametrize(
    "message",
    [
        Message("other", "text", b"v"),  # type: ignore[arg-type]
        Message("other", b"k", None),  # type: ignore[arg-type]
        Message("other", b"k", b"v", ((b"name", b"value"),)),  # type: ignore[arg-type]
        Message("other", b"k", b"v", (("name", "value"),)),  # type: ignore[arg-type]
        Message("other", b"k", b"v", (("name",),)),  # type: ignore[arg-type]
        Message("other", b"k", b"v", (("name", b"value"), ("name", "value"))),  # type: ignore[arg-type]
        Message("other", b"k", b"v", (("name", b"value"), (b"name", b"value"))),  # type: ignore[arg-type]
        Message("other", b"k", b"v", (("name", b"value", "name"), (b"value", "name", b"value"))),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_read_back_is_not_written(path: Path, message: Message) -> None:
    with made(path) as log:
        with pytest.raises(TypeError, match="key and value"):
            log.append([Message("other", b"k", b"v"), message])

        assert log.end("other", 0) == 0


def test_unusual_types_that_can_be_read_back_are_written(path: Path) -> None:
    headers = [("name", bytearray(b"value"))]
    with made(path) as log:
        log.append([Message("other", b"k", bytearray(b"v"), headers)])  # type: ignore[arg-type]
        found = log.read("other", 0, 0)

    assert [(record.value, record.headers) for record in found] == [(b"v", (("name", b"value"),))]


def test_large_records_and_large_batches_are_kept(path: Path) -> None:
    sizes = [900_000, 1, 70_000, 0, 65_536, *[10] * 1000, 300_000]
    with made(path) as log:
        log.append([Message("other", b"k", bytes([at % 251]) * size) for at, size in enumerate(sizes)])

        found: list[Record] = []
        while len(found) < len(sizes):
            found += log.read("other", 0, len(found), bytes_max=100_000)

    assert [record.value for record in found] == [bytes([at % 251]) * size for at, size in enumerate(sizes)]


def test_a_compaction_beside_which_another_process_drops_all_drops_nothing_and_finds_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteLog.open(path, create=True) as log, SqliteLog.open(path) as other:
        log.create([TopicSpec("rows", 1, compacted=True)])
        log.append([Message("rows", b"%d" % (number % 7), b"v") for number in range(50)])

        def dropped(*_: object) -> None:
            monkeypatch.undo()
            other.truncate("rows", 0, 50)

        monkeypatch.setattr(log._file, "bound_wal", dropped)

        count = log.compact("rows", 0)

        assert (count, log.start("rows", 0), log.end("rows", 0)) == (0, 50, 50)
        assert log.append([Message("rows", b"k", b"v")]) == [50]


def test_many_compactions_between_appends_keep_the_newest(path: Path) -> None:
    newest: dict[bytes, tuple[int, bytes]] = {}
    with made(path) as log:
        for turn in range(12):
            batch = [Message("rows", b"n%d" % (at * 7 % (30 + turn)), b"%d/%d" % (turn, at)) for at in range(turn * 40 % 300 + 1)]
            for message, offset in zip(batch, log.append(batch), strict=True):
                newest[message.key] = (offset, message.value)
            if turn % 3 == 2:
                log.compact("rows", 0)
            if turn == 7:
                log.truncate("rows", 0, 200)
                newest = {key: held for key, held in newest.items() if held[0] >= 200}
        log.compact("rows", 0)
        found = {record.key: (record.offset, record.value) for record in log.read("rows", 0, 200, records_max=10_000)}
        assert log.verify() == len(newest)

    assert found == newest


def test_an_idle_waiter_costs_less_than_a_hundredth_of_a_core(path: Path) -> None:
    with made(path) as log:
        log.wait({Partition("claims", 0): 0}, 0.1)
        before = time.thread_time()

        assert not log.wait({Partition("claims", 0): 0, Partition("claims", 1): 0}, 2)

        assert time.thread_time() - before < 0.02


def test_a_waiter_wakes_by_the_bell_when_another_process_appends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "FALLBACK_SECONDS", 20.0)
    made(path).close()
    program = """
import sys, time
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
with SqliteLog.open(sys.argv[1]) as log:
    for line in sys.stdin:
        time.sleep(0.02)
        log.append([Message("other", b"k", b"%d" % time.monotonic_ns())])
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdin=subprocess.PIPE, text=True)
    with SqliteLog.open(path) as log:
        assert process.stdin is not None
        for at in range(10):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert log.wait({Partition("other", 0): at}, 30)
            (record,) = log.read("other", 0, at)
            assert time.monotonic_ns() - int(record.value) < 10e9
    process.communicate()


def test_each_append_rings_and_who_waits_need_not_look(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "FALLBACK_SECONDS", 20.0)
    with made(path) as log, SqliteLog.open(path) as writer:
        log.wait({Partition("other", 0): 0}, 0)
        for at in range(3):
            began = time.monotonic()
            timer = Timer(0.05, lambda: writer.append([Message("other", b"k", b"v")]))
            timer.start()
            assert log.wait({Partition("other", 0): at}, 60)
            assert time.monotonic() - began < 10
            timer.join()


def test_a_commit_whose_writer_died_before_ringing_is_noticed(path: Path) -> None:
    with made(path) as log, SqliteLog.open(path) as writer:
        writer._bell._can_ring = False
        timer = Timer(0.05, lambda: writer.append([Message("other", b"k", b"v")]))
        timer.start()
        began = time.monotonic()

        assert log.wait({Partition("other", 0): 0}, 30)
        assert time.monotonic() - began < 15, "by the fallback look, long before the time is up"
        timer.join()


def test_the_log_works_where_inotify_does_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "sunos")
    with made(path) as log, SqliteLog.open(path) as writer:
        assert not log.wait({Partition("other", 0): 0}, 0.05)
        writer.append([Message("other", b"k", b"v")])
        assert log.wait({Partition("other", 0): 0}, 5)


def test_a_lease_is_written_only_when_it_is_due(path: Path) -> None:
    now_ms = [1000]
    with made(path) as log, SqliteLog.open(path, clock=lambda: now_ms[0]) as member:
        lease = member.lease("schedulers", "claims", "a", timeout_seconds=10)
        lease.partitions()
        before = log._file.rows("PRAGMA data_version")
        for _ in range(200):
            now_ms[0] += 10
            lease.partitions()
        assert log._file.rows("PRAGMA data_version") == before

        now_ms[0] += 1000
        lease.partitions()
        assert log._file.rows("PRAGMA data_version") != before


def test_a_share_that_could_not_be_written_is_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    with made(path) as log, SqliteLog.open(path) as other:
        first, second = log.lease("schedulers", "claims", "a"), other.lease("schedulers", "claims", "b")
        first.partitions()
        with monkeypatch.context() as patch:
            patch.setattr(other._file, "run_many", no_room)
            with pytest.raises(LogFull):
                second.partitions()
        rows = [log._file.rows(f"SELECT member FROM {table}") for table in ("members", "holds")]

        assert rows == [[("a",)], [("a",), ("a",)]]
        assert len(second.partitions()) == 1


def test_closing_gives_leases_up(path: Path) -> None:
    with made(path) as log:
        with SqliteLog.open(path) as member:
            assert member.lease("schedulers", "claims", "a").partitions() == {0, 1}

        assert log.lease("schedulers", "claims", "b").partitions() == {0, 1}


def test_several_processes_may_make_the_log_at_once(path: Path) -> None:
    program = """
import sys
from streams.log.base import Message, TopicSpec
from streams.log.sqlite import SqliteLog
with SqliteLog.open(sys.argv[1], create=True) as log:
    log.create([TopicSpec("claims", 2), TopicSpec("other", 1)])
    log.append([Message("other", b"k", b"v")])
    print(log.ledger_id)
"""
    running = [subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    ids = {process.communicate(timeout=60)[0] for process in running}

    with SqliteLog.open(path) as log:
        assert ids == {log.ledger_id + "\n"}
        assert log.end("other", 0) == 6
        assert log.topics() == {"claims": 2, "other": 1}


def bare(records: Sequence[Record | BareRecord]) -> list[tuple[int, int, bytes, bytes]]:
    """What a fold reads of them."""
    return [(record.offset, record.time_ms, record.key, record.value) for record in records]


def test_topics_that_another_process_makes_while_one_looks_are_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 61 partitions, but not the topics for them, said who watched a new log: each statement had been answered by another moment.
    looked: list[str] = []
    real_rows = sqlite_file.SqliteFile.rows

    with SqliteLog.open(path, create=True) as watching, SqliteLog.open(path) as making:

        def rows(file: sqlite_file.SqliteFile, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
            found = real_rows(file, sql, bindings)
            if "topics" in sql and not looked:
                looked.append(sql)
                making.create([TopicSpec("claims", 2), TopicSpec("other", 1)])
            return found

        monkeypatch.setattr(sqlite_file.SqliteFile, "rows", rows)
        seen = [watching.topics(), watching.topics()]

    assert looked
    assert seen == [{}, {"claims": 2, "other": 1}]


def test_records_are_the_same_without_their_headers(path: Path) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("rows", 1, compacted=True)])
        for number in range(5):
            log.append([Message("rows", b"k%d" % (at % 7), b"v" * at, (("name", b"%d" % number),)) for at in range(100)])
        whole = [log.read("rows", 0, offset, 150) for offset in (0, 37, 256, 499, 500)]
        without = [log.read_bare("rows", 0, offset, 150) for offset in (0, 37, 256, 499, 500)]
        lazily = [[*log.read_lazily("rows", 0, offset, 150)] for offset in (0, 37, 256, 499, 500)]
        log.compact("rows", 0)

        assert [bare(records) for records in without] == [bare(records) for records in whole]
        assert lazily == without
        assert all(type(record) is BareRecord for records in without for record in records)
        assert bare(log.read_bare("rows", 0, 3)) == bare(log.read("rows", 0, 3))
        assert [*log.read_lazily("rows", 0, 3)] == log.read_bare("rows", 0, 3)
        with pytest.raises(OffsetOutOfRange):
            log.read_bare("rows", 0, 501)
        with pytest.raises(OffsetOutOfRange):
            next(log.read_lazily("rows", 0, 501))


def fetches_nothing(*_: object, **__: object) -> list[BareRecord]:
    raise AssertionError("fetched from the file")


def test_what_a_process_said_last_is_read_from_memory_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(path) as log:
        log.append_early([Message("other", b"k", b"first")])
        log.append_early([Message("other", b"k", b"%d" % at, (("name", b"v"),)) for at in range(5)])
        log.append_early([Message("rows", b"k", b"v" * (BYTES_MAX + 1))])
        with SqliteLog.open(path) as other:
            there = other.read("other", 0, 1)

        with monkeypatch.context() as patch:
            patch.setattr(log._reader, "_records", fetches_nothing)
            own = log.read_early("other", 0, 1)
            for topic, offset in (("other", 1), ("other", 0), ("rows", 0)):  # Read once before, further back, longer than a block.
                with pytest.raises(AssertionError, match="fetched from the file"):
                    log.read_early(topic, 0, offset)

        assert bare(own) == bare(there)
        assert all(type(record) is BareRecord for record in own)
        assert bare(log.read_early("other", 0, 1)) == bare(there)


def test_what_others_said_behind_it_comes_with_it(path: Path) -> None:
    with made(path) as log, SqliteLog.open(path) as other:
        log.append_early([Message("other", b"k", b"own")])
        other.append([Message("other", b"k", b"%d" % at) for at in range(3)])

        assert [record.value for record in log.read_early("other", 0, 0)] == [b"own", b"0", b"1", b"2"]


def test_what_is_read_is_what_was_written_whatever_becomes_of_the_callers_objects(path: Path) -> None:
    said, value = [Message("other", b"k", b"a"), Message("other", b"k", b"b")], bytearray(b"abc")
    odd: Any = Message("rows", b"k", value)  # type: ignore[arg-type] # As a caller without types may.
    with made(path) as log:
        log.append_early(said)
        said.clear()
        log.append_early([odd])
        value[:] = b"xyz"

        assert [record.value for record in log.read_early("other", 0, 0)] == [b"a", b"b"]
        assert [(type(record.value), record.value) for record in log.read_early("rows", 0, 0)] == [(bytes, b"abc")]


def test_long_keys_count_as_long_values_do(path: Path) -> None:
    with made(path) as log:
        log.append_early([Message("other", b"k" * BYTES_MAX, b"") for _ in range(3)])

        assert len(log.read_early("other", 0, 0, bytes_max=BYTES_MAX)) == 1


def test_what_left_the_log_is_not_read_from_memory(path: Path) -> None:
    with made(path) as log, SqliteLog.open(path) as other:
        for at in range(2):
            log.append_early([Message("rows", b"k", b"%d-%d" % (at, number)) for number in range(5)])
            log.compact("rows", 0)
            assert bare(log.read_early("rows", 0, 5 * at)) == bare(log.read("rows", 0, 5 * at))
        for who in (log, other):
            log.append_early([Message("other", b"k", b"v")])
            who.truncate("other", 0, log.end("other", 0))
            with pytest.raises(OffsetOutOfRange):
                log.read_early("other", 0, log.end("other", 0) - 1)


def test_nothing_is_read_from_memory_behind_damage_or_after_closing(path: Path) -> None:
    with made(path) as log:
        log.append_early([Message("other", b"k", b"value-%d" % at) for at in range(3)])
    path.write_bytes(path.read_bytes().replace(b"value-1", b"value-X"))
    with SqliteLog.open(path) as log:
        log.append_early([Message("claims", b"k", b"v", (), 0)])
        log._reader.keep([Said(log._catalog.place("other", 0), 2, 0, [Message("other", b"k", b"v")])])
        with pytest.raises(LogDamaged, match="other/0@1"):
            log.read("other", 0, 1)
        with pytest.raises(LogDamaged, match="other/0@1"):
            log.read_early("other", 0, 2)
    with pytest.raises(LogUnreachable, match="closed"):
        log.read_early("claims", 0, 0)


def test_what_was_not_committed_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(log._shelf, "keep_state", fetches_nothing)
            with pytest.raises(AssertionError):
                log.append_early([Message("other", b"k", b"lost")])
        log.append_early([Message("other", b"k", b"kept")])

        assert [record.value for record in log.read_early("other", 0, 0)] == [b"kept"]


def test_whatever_others_append_between_each_reads_all_in_order(path: Path, seed: int) -> None:
    draw = Random(seed)
    with made(path) as one, SqliteLog.open(path) as two:
        logs, topics = (one, two), (("claims", 0), ("claims", 1), ("other", 0))
        read: dict[tuple[SqliteLog, str, int], list[BareRecord]] = {(log, *place): [] for log in logs for place in topics}
        for turn in range(400):
            log = draw.choice(logs)
            if draw.random() < 0.5:
                said = [draw.choice(topics) for _ in range(draw.choice((1, 1, 2, 5, 200)))]
                append = draw.choice((log.append, log.append_early, log.append_early))
                append([Message(topic, b"k", b"%d-%d" % (turn, at), (), number) for at, (topic, number) in enumerate(said)])
            else:
                topic, number = draw.choice(topics)
                known = read[log, topic, number]
                known += log.read_early(topic, number, len(known), draw.choice((1, 3, 1000)))
        for (log, topic, number), known in read.items():
            while found := log.read_early(topic, number, len(known)):
                known.extend(found)
            assert bare(known) == bare(log.read(topic, number, 0, 100_000))


def test_blocks_of_all_sizes_are_read_lazily_as_at_once(path: Path) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("rows", 1)])
        for size in (1, 300, 60_000, 20, 90_000, 3):
            log.append([Message("rows", b"k", b"v" * size) for _ in range(5)])
        for at in range(200):
            log.append([Message("rows", b"k", b"%d" % at)])

        assert [*log.read_lazily("rows", 0, 2, 220)] == log.read_bare("rows", 0, 2, 220)
        assert [record.offset for record in log.read_lazily("rows", 0, 2, 220)] == list(range(2, 222))


def test_damage_is_named_without_headers_as_with_them(path: Path) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("rows", 1)])
        log.append([Message("rows", b"k", b"value-%d" % at) for at in range(60)])
    damaged = path.read_bytes().replace(b"value-41", b"value-4X")
    path.write_bytes(damaged)

    with SqliteLog.open(path) as log:
        good = log.read_bare("rows", 0, 0)
        with pytest.raises(LogDamaged, match="rows/0@41"):
            log.read_bare("rows", 0, 41)

    assert [record.offset for record in good] == list(range(41))


def test_damage_in_a_later_block_is_met_when_its_turn_comes(path: Path) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("rows", 1)])
        for first in range(0, 100, 20):
            log.append([Message("rows", b"k", b"value-%d " % (first + at) + b"v" * 2000) for at in range(20)])
    damaged = path.read_bytes().replace(b"value-71", b"value-7X")
    path.write_bytes(damaged)

    with SqliteLog.open(path) as log:
        good = [record.offset for record in log.read_lazily("rows", 0, 0)]
        with pytest.raises(LogDamaged, match="rows/0@71"):
            next(log.read_lazily("rows", 0, 71))

    assert good == list(range(71))


def test_a_gap_of_compaction_is_read_over_lazily(path: Path) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("rows", 1, compacted=True)])
        for at in range(2_000):
            log.append_early([Message("rows", b"k%d" % (at if at < 3 else 7), b"v")])
        log.compact("rows", 0)

        found = [[record.offset for record in log.read_lazily("rows", 0, offset, 50)] for offset in (0, 10, 1_000, 1_999, 2_000)]

    assert found == [[0, 1, 2], [1_999], [1_999], [1_999], []]
