"""A tail of the embedded log that vanished with its WAL, and a WAL that is of another log."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from streams.log.base import LogDamaged, Message, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_ends import Ends, ends_file, has_been_told
from streams.log.sqlite_lost import LOOK_SECONDS, refuse_emptied

ROOT = Path(__file__).parents[3]
KILLED = """
import os, sys
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
log = SqliteLog.open(sys.argv[1])
for at in range(int(sys.argv[3])):
    getattr(log, sys.argv[2])([Message("claims", b"k", b"%d" % at + bytes(5000))])
os._exit(0)
"""


def appended_and_killed(path: Path, count: int, how: str = "append") -> Path:
    """By another process, which is killed: what it appended stands in the WAL, whose path is returned."""
    subprocess.run([sys.executable, "-c", KILLED, str(path), how, str(count)], cwd=ROOT, check=True)
    return path.with_name(path.name + "-wal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1), TopicSpec("results", 2)])
        log.append([Message("claims", b"k", b"first")])
    return path


def flip(wal: Path) -> None:
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 8
    wal.write_bytes(content)


def halve(wal: Path) -> None:
    os.truncate(wal, wal.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip, halve, Path.unlink])
def test_a_log_whose_wal_lost_what_was_acknowledged_is_refused_with_the_offsets(path: Path, damage: Callable[[Path], None]) -> None:
    wal = appended_and_killed(path, 8)
    damage(wal)
    left = wal.read_bytes() if wal.exists() else b""

    for create in (False, True):
        with pytest.raises(LogDamaged, match=r"acknowledged records are missing: offsets \d to 8 of claims/0\. .*delete log\.db-ends"):
            SqliteLog.open(path, create=create)
    assert (wal.read_bytes() if wal.exists() else b"") == left, "what stands behind the damage may be worth something"
    ends_file(path).unlink()
    with SqliteLog.open(path) as log:
        assert 1 <= log.end("claims", 0) < 9
        log.append([Message("claims", b"k", b"on")])
    with SqliteLog.open(path) as log:
        assert log.verify() == log.end("claims", 0)


@pytest.mark.parametrize("damage", [flip, halve, Path.unlink])
def test_a_log_that_has_only_a_wal_is_not_taken_for_an_empty_one_when_that_is_gone(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "log.db"
    script = KILLED.replace("(sys.argv[1])", "(sys.argv[1], create=True)").replace("for at", "log.create([TopicSpec('claims', 1)])\nfor at")
    script = script.replace("import Message", "import Message, TopicSpec")
    subprocess.run([sys.executable, "-c", script, str(path), "append", "3"], cwd=ROOT, check=True)
    damage(path.with_name("log.db-wal"))

    with pytest.raises(LogDamaged, match="acknowledged records are missing"):
        SqliteLog.open(path, create=True)


@pytest.mark.parametrize("linked", [False, True])
def test_no_log_is_begun_where_one_was_whose_newest_records_still_stand_there(path: Path, linked: bool) -> None:
    appended_and_killed(path, 3)
    wal, away, name = path.with_name("log.db-wal"), path.with_name("away.db"), path
    kept = wal.read_bytes()
    path.rename(away)
    if linked:
        name = path.with_name("link.db")
        name.symlink_to(path)

    with pytest.raises(LogDamaged, match=r"log\.db-wal, in which a log's newest records stand, is there.* Put the file back"):
        SqliteLog.open(name, create=True)

    assert (wal.read_bytes(), path.exists()) == (kept, False)
    away.rename(path)
    with SqliteLog.open(path) as log:
        assert log.verify() == log.end("claims", 0) > 0
    for each in path.parent.glob("log.db*"):
        each.unlink()
    with SqliteLog.open(name, create=True) as log:
        assert dict(log.topics()) == {}


@pytest.mark.parametrize("beside", ["-wal", "-shm", "nothing"])
def test_a_log_that_was_emptied_is_not_begun_anew(path: Path, beside: str) -> None:
    appended_and_killed(path, 3)
    path.with_name(path.name + beside).unlink(missing_ok=True)
    os.truncate(path, 0)

    for create in (False, True):
        with pytest.raises(LogDamaged, match=r"is empty, and log\.db-ends beside it says that it had acknowledged records.* delete"):
            SqliteLog.open(path, create=create)
    assert path.stat().st_size == 0
    ends_file(path).unlink()
    with SqliteLog.open(path, create=True) as log:
        assert dict(log.topics()) == {}


def test_an_empty_file_is_made_a_log_where_none_was_or_the_former_one_was_deleted(path: Path) -> None:
    path.unlink()
    with SqliteLog.open(path, create=True) as log:
        assert dict(log.topics()) == {}
    fresh = path.with_name("fresh.db")
    fresh.touch()
    with SqliteLog.open(fresh, create=True) as log:
        log.create([TopicSpec("claims", 1)])


def test_what_nobody_was_told_may_vanish(path: Path) -> None:
    appended_and_killed(path, 8, "append_early").unlink()

    with SqliteLog.open(path) as log:
        assert log.end("claims", 0) == 1


def test_what_was_read_was_told(path: Path) -> None:
    appended_and_killed(path, 8, "append_early")

    with SqliteLog.open(path) as log:
        before = Ends(ends_file(path), path, log.ledger_id).all()
        log.read("claims", 0, 0)
        after = Ends(ends_file(path), path, log.ledger_id).all()

    assert (before, after) == ({1: 1}, {1: 9})


@pytest.mark.parametrize("damage", [b"", b"\0" * 64, b"\xff" * 500, b"nonsense"])
def test_a_damaged_file_of_ends_says_nothing(path: Path, damage: bytes) -> None:
    ends_file(path).write_bytes(damage)

    with SqliteLog.open(path) as log:
        assert log.append([Message("claims", b"k", b"second")]) == [1]
    with SqliteLog.open(path) as log:
        assert log.end("claims", 0) == 2


def test_an_end_is_never_taken_back(path: Path) -> None:
    ends, other = (Ends(path.with_name("ends"), path, "a") for _ in range(2))
    ends.told(3, 7)
    other.told(3, 5)

    assert (other.end(3), other.all(), Ends(path.with_name("ends"), path, "a").all()) == (7, {3: 7}, {3: 7})
    assert Ends(path.with_name("ends"), path, "b").all() == {}


def test_what_another_log_had_in_this_place_is_nothing_to_this_one(path: Path) -> None:
    """Its `-ends` was left, and this one came with its own `-wal`."""
    other = path.with_name("other.db")
    with SqliteLog.open(other, create=True) as log:
        log.create([TopicSpec("claims", 1)])
    wal = appended_and_killed(other, 3)
    left = ends_file(path).read_bytes()
    for beside in path.parent.glob(f"{path.name}*"):
        beside.unlink()
    other.replace(path)
    wal.replace(path.with_name(f"{path.name}-wal"))
    ends_file(path).write_bytes(left)

    for _ in range(2):
        with SqliteLog.open(path) as log:
            assert log.end("claims", 0) == 3


@pytest.mark.parametrize("made", [Path.mkdir, lambda beside: beside.symlink_to(beside), lambda beside: beside.symlink_to("nowhere/at-all")])
def test_a_log_goes_on_without_a_file_of_ends(path: Path, made: Callable[[Path], object]) -> None:
    ends_file(path).unlink()
    made(ends_file(path))

    with SqliteLog.open(path) as log:
        assert log.append([Message("claims", b"k", b"second")]) == [1]
        assert len(log.read("claims", 0, 0)) == 2


def test_who_reads_on_behind_an_end_that_came_back_hears_of_what_is_missing(path: Path) -> None:
    """As of a `-shm` that was damaged while processes had the log open: SQLite finds an older page then."""
    with SqliteLog.open(path) as log:
        older = log._file.rows("SELECT * FROM partitions")
        log.append([Message("claims", b"k", b"second")])
        log._file.run_many("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?, ?)", older)

        with pytest.raises(LogDamaged, match=r"missing: offset 1 of claims/0\. .*log\.db-shm was.*First end all processes"):
            log.read("claims", 0, 2)


def test_a_file_that_stays_without_a_byte_only_for_a_moment_is_being_made(path: Path) -> None:
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        log.append([Message("claims", b"k", b"v")])
    whole = path.read_bytes()
    path.write_bytes(b"")
    maker = Timer(2 * LOOK_SECONDS, path.write_bytes, (whole,))
    maker.start()

    refuse_emptied(path)

    maker.join()
    path.write_bytes(b"")
    with pytest.raises(LogDamaged, match="the file is empty"):
        refuse_emptied(path)


def test_a_log_that_another_process_makes_between_two_looks_is_not_taken_for_an_emptied_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()

    def made_meanwhile(ends: Path) -> bool:
        with monkeypatch.context() as others:
            others.setattr("streams.log.sqlite_lost.has_been_told", has_been_told)
            with SqliteLog.open(path, create=True) as log:
                log.create([TopicSpec("claims", 1)])
                log.append([Message("claims", b"k", b"v")])
        return has_been_told(ends)

    monkeypatch.setattr("streams.log.sqlite_lost.has_been_told", made_meanwhile)

    refuse_emptied(path)

    assert has_been_told(ends_file(path))
