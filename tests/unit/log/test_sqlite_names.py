"""The embedded log's files and their names: each process has the same ones, or says that it has not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from streams.log import sqlite_names
from streams.log.base import LogDamaged, LogUnreachable, Message, Partition, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_ends import ends_file

ROOT = Path(__file__).parents[3]
OTHER = """
import os, sys
from streams.log.base import Message
from streams.log.sqlite import SqliteLog
log = SqliteLog.open(sys.argv[1])
log.append([Message("claims", b"k", b"the other's")])
os._exit(0)
"""


def other_appends(path: Path) -> None:
    """In a process of its own, which is killed."""
    subprocess.run([sys.executable, "-c", OTHER, str(path)], cwd=ROOT, check=True)


def said(value: bytes) -> list[Message]:
    return [Message("claims", b"k", value)]


def values(log: SqliteLog) -> list[bytes]:
    return [record.value for record in log.read("claims", 0, 0)]


@pytest.fixture(autouse=True)
def looking_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_names, "LOOK_SECONDS", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with one record in the file itself."""
    path = tmp_path / "log.db"
    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        log.append(said(b"first"))
    return path


def test_a_log_with_two_names_is_not_opened_by_either(path: Path) -> None:
    """Each name would have a `-wal` of its own, and what two processes append would take the same offsets."""
    link = path.with_name("link.db")
    with SqliteLog.open(path) as log:
        log.append(said(b"second"))
        link.hardlink_to(path)
        for name in (link, path):
            with pytest.raises(LogUnreachable, match=rf"{name.name}: this file has 2 names \(hard links\).*-samefile.*symbolic link"):
                SqliteLog.open(name)
        log.append(said(b"third"))
    link.unlink()

    with SqliteLog.open(path) as log:
        assert values(log) == [b"first", b"second", b"third"]
    assert not list(path.parent.glob("link.db*")), "nothing is made beside a log that is not opened"


@pytest.fixture
def mounted(path: Path) -> Iterator[Path]:
    """The log's file mounted by itself in another folder, as a container has it that is given a file."""
    place = path.parent / "in a container" / "log.db"
    place.parent.mkdir()
    place.touch()
    if subprocess.run(["mount", "--bind", str(path), str(place)], capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_log_that_is_mounted_without_its_folder_is_not_opened(mounted: Path) -> None:
    with pytest.raises(LogUnreachable, match=r"this file is mounted by itself.*Mount its folder instead"):
        SqliteLog.open(mounted)


def test_where_nothing_tells_of_mounts_a_log_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_names, "_MOUNTS", path.with_name("not Linux"))

    with SqliteLog.open(path) as log:
        assert values(log) == [b"first"]


@pytest.mark.parametrize("gone", ["-wal", "-shm"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_log_with_a_part_taken_away_takes_nothing_more_and_what_it_has_goes_into_the_log(path: Path, gone: str, is_moved: bool) -> None:
    with SqliteLog.open(path) as log:
        log.append(said(b"second"))
        part = path.with_name(path.name + gone)
        if is_moved:
            part.rename(part.with_suffix(".old"))
        else:
            part.unlink()

        with pytest.raises(LogUnreachable, match=f"log.db{gone}: the file was moved, deleted or replaced.*End all processes"):
            log.append(said(b"lost"))
        with pytest.raises(LogUnreachable, match="moved, deleted or replaced"):
            log.wait({Partition("claims", 0): 2}, 60)

    with SqliteLog.open(path) as log:
        assert values(log) == [b"first", b"second"]


@pytest.mark.parametrize(
    ("gone", "is_known", "kept"),
    [
        (["-shm"], True, [b"first", b"second", b"the other's"]),
        (["-wal", "-shm"], True, [b"first", b"second"]),
        (["-wal", "-shm"], False, [b"first", b"the other's"]),
    ],
)
def test_what_another_process_appended_after_parts_of_a_log_were_deleted_is_not_written_over(
    path: Path, gone: list[str], is_known: bool, kept: list[bytes]
) -> None:
    """What only the deleted file had is lost where another process writes before the last one that has it ends; it is told, and may not."""
    with SqliteLog.open(path) as log:
        log.append(said(b"second"))
        for each in gone:
            path.with_name(path.name + each).unlink()
        if not is_known:
            ends_file(path).unlink()
        if b"the other's" in kept:
            other_appends(path)
        else:
            with pytest.raises(subprocess.CalledProcessError):
                other_appends(path)
        with pytest.raises(LogUnreachable):
            log.append(said(b"lost"))

    with SqliteLog.open(path) as log:
        assert values(log) == kept
        assert log.verify() == len(kept)


def test_an_unsuccessful_opening_after_the_wal_was_deleted_costs_nothing(path: Path) -> None:
    with SqliteLog.open(path) as log:
        log.append(said(b"second"))
        wal = path.with_name(path.name + "-wal")
        wal.unlink()
        with pytest.raises(subprocess.CalledProcessError):
            other_appends(path)
        assert wal.stat().st_size == 0

    with SqliteLog.open(path) as log:
        assert values(log) == [b"first", b"second"]


@pytest.mark.parametrize(
    "damage",
    ["UPDATE members SET at_ms = 'late'", "UPDATE holds SET member = x'00'", "UPDATE partitions SET end = 'many'"],
)
def test_a_row_with_another_type_of_field_is_damage(path: Path, damage: str) -> None:
    with SqliteLog.open(path) as log:
        log.lease("group", "claims", "one").partitions()
        log._leases.clear()
    db = apsw.Connection(os.fspath(path))
    db.execute(damage)
    db.close()

    with SqliteLog.open(path) as log:
        with pytest.raises(LogDamaged, match=r"log\.db: .*restore the file from a copy"):
            if "partitions" in damage:
                log.wait({Partition("claims", 0): 0}, 1)
            else:
                log.lease("group", "claims", "two").partitions()
        log._leases.clear()


def test_a_log_is_found_in_every_locale_where_the_files_beside_it_stand(tmp_path: Path) -> None:
    folder = tmp_path / "B\N{LATIN SMALL LETTER A WITH DIAERESIS}ume"
    folder.mkdir()
    opens = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from streams.log.base import Message, TopicSpec\nfrom streams.log.sqlite import SqliteLog\n"
        "log = SqliteLog.open('log.db', create=True)\nlog.create([TopicSpec('claims', 1)])\nlog.append([Message('claims', b'k', b'v')])"
    )
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    ran = subprocess.run([sys.executable, "-c", opens, str(ROOT)], cwd=folder, env=ascii_only, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")
    with SqliteLog.open(folder / "log.db") as log:
        assert log.end("claims", 0) == 1


def test_a_name_that_sqlite_cannot_have_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"B\xe4ume")
    folder.mkdir()
    (tmp_path / "link.db").symlink_to(folder / "log.db")

    for path in (folder / "log.db", tmp_path / "link.db"):
        with pytest.raises(LogUnreachable, match=r"B\\xe4ume/log.db' is no UTF-8, and SQLite needs names that are"):
            SqliteLog.open(path, create=True)


def test_a_path_that_is_too_long_for_sqlite_is_told_with_its_length(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200) / ("d" * 200) / ("d" * 200)
    folder.mkdir(parents=True)
    path = folder / "log.db"

    with pytest.raises(LogUnreachable, match=f"the whole path has {len(str(path))} bytes, and SQLite takes 504 at most"):
        SqliteLog.open(path, create=True)
    with pytest.raises(LogUnreachable, match="too long: a log's path may have 504 bytes"):
        SqliteLog.open(tmp_path / ("d" * 300), create=True)


def test_the_longest_path_that_sqlite_takes_is_taken(tmp_path: Path) -> None:
    left = sqlite_names.PATH_BYTES_MAX - len(str(tmp_path)) - len("/log.db")
    folder = tmp_path / ("d" * (left // 2 - 1)) / ("d" * (left - left // 2 - 1))
    folder.mkdir(parents=True)
    path = folder / "log.db"
    assert len(str(path)) == sqlite_names.PATH_BYTES_MAX

    with SqliteLog.open(path, create=True) as log:
        log.create([TopicSpec("claims", 1)])
        log.append(said(b"first"))
    with SqliteLog.open(path) as log:
        assert values(log) == [b"first"]
