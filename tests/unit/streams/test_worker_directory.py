"""A worker's directory: one identity, in one process's hands and in one place."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from projections.table import TableError, TableInUse
from streams.worker_directory import worker_directory


def worker_id(folder: Path, machine: Path = Path("/nowhere")) -> tuple[str, list[str]]:
    """The id that a start in this directory gives, and what is said of it."""
    said: list[str] = []
    with worker_directory(folder, said.append, machine) as found:
        return found.worker_id, said


def test_a_directory_keeps_the_id_it_was_given_first(tmp_path: Path) -> None:
    first, _ = worker_id(tmp_path / "deep" / "a")

    again, said = worker_id(tmp_path / "deep" / "a")
    other, _ = worker_id(tmp_path / "b")

    assert (again, said) == (first, [])
    assert other != first


def test_a_directory_that_cannot_be_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(TableError, match="file: this cannot be a worker's folder: it is a file; mend that, or pass another with --state"):
        worker_id(tmp_path / "file")
    with pytest.raises(TableError, match="Not a directory; mend that"):
        worker_id(tmp_path / "file" / "below")


def test_a_directory_that_is_taken_away_meanwhile_is_noticed(tmp_path: Path) -> None:
    """Another worker could lock what stands there now."""
    with worker_directory(tmp_path / "own") as own:
        own.check()
        shutil.rmtree(tmp_path / "own")
        with pytest.raises(TableError, match="own: this worker's directory was deleted or replaced while it ran; start it again"):
            own.check()
        with worker_directory(tmp_path / "own") as other:
            other.check()
            with pytest.raises(TableError, match="replaced"):
                own.check()


def test_a_directory_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with worker_directory(tmp_path), pytest.raises(TableInUse, match="pass another with --state"), worker_directory(tmp_path):
        raise AssertionError("two have the directory")


def test_a_copy_gets_an_id_of_its_own_and_says_so_once_and_the_original_keeps_its(tmp_path: Path) -> None:
    original, _ = worker_id(tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")

    copy, said = worker_id(tmp_path / "copy")

    assert copy != original
    assert len(said) == 1
    assert said[0].startswith(f"{tmp_path / 'copy'}: worker-place is not of this directory")
    assert copy[:8] in said[0]
    assert original[:8] in said[0]
    assert worker_id(tmp_path / "copy") == (copy, [])
    assert worker_id(tmp_path / "original") == (original, [])


def test_a_directory_that_is_renamed_is_no_copy(tmp_path: Path) -> None:
    first, _ = worker_id(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")

    assert worker_id(tmp_path / "b") == (first, [])


def test_on_another_machine_there_is_another_id(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_text("1111\n")
    there.write_text("2222\n")
    first, _ = worker_id(tmp_path / "state", here)

    again, quiet = worker_id(tmp_path / "state", here)
    moved, said = worker_id(tmp_path / "state", there)

    assert (again, quiet) == (first, [])
    assert moved != first
    assert len(said) == 1


def test_a_directory_of_before_there_were_marks_keeps_its_id_and_its_copies_from_then_on_do_not(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "worker-id").write_text("0123456789abcdef0123456789abcdef")

    kept = worker_id(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    copy, _ = worker_id(tmp_path / "copy")

    assert kept == ("0123456789abcdef0123456789abcdef", [])
    assert worker_id(tmp_path / "old") == kept
    assert copy != kept[0]


@pytest.mark.parametrize("left", ["\n", "\0" * 32, "\u00fc", "two words"])
def test_an_id_that_a_power_cut_left_unreadable_is_given_anew(tmp_path: Path, left: str) -> None:
    before, _ = worker_id(tmp_path)
    (tmp_path / "worker-id").write_bytes(left.encode("latin-1"))

    found, said = worker_id(tmp_path)

    assert found.isalnum()
    assert found != before
    assert said == [f"{tmp_path / 'worker-id'}: this is no id, so the worker gets a new one"]
    assert worker_id(tmp_path) == (found, [])


@pytest.mark.parametrize("left", ["", "\xff\xfe", "0123 device=1 inode=2 machine="])
def test_a_mark_that_says_something_else_costs_the_id_and_no_more(tmp_path: Path, left: str) -> None:
    before, _ = worker_id(tmp_path)
    (tmp_path / "worker-place").write_bytes(left.encode("latin-1"))

    found, said = worker_id(tmp_path)

    assert found != before
    assert len(said) == 1
    assert worker_id(tmp_path) == (found, [])


def test_the_id_of_another_directory_put_over_ones_own_is_not_used(tmp_path: Path) -> None:
    original, _ = worker_id(tmp_path / "a")
    worker_id(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "worker-id", tmp_path / "b" / "worker-id")

    assert worker_id(tmp_path / "b")[0] != original


def test_a_kill_between_any_two_writes_leaves_no_copy_with_the_id_of_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, _ = worker_id(tmp_path / "original")
    rename = Path.replace
    for renames in range(2):
        copy, done = tmp_path / f"copy-{renames}", list[Path]()
        shutil.copytree(tmp_path / "original", copy)

        def killed(draft: Path, target: Path, done: list[Path] = done, renames: int = renames) -> Path:
            if len(done) == renames:
                raise KeyboardInterrupt
            done.append(target)
            return rename(draft, target)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Path, "replace", killed)
            worker_id(copy)

        assert worker_id(copy)[0] != original


def test_what_is_to_be_known_is_said_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        with worker_directory(tmp_path / name):
            pass
    shutil.copy(tmp_path / "a" / "worker-place", tmp_path / "b" / "worker-place")

    with worker_directory(tmp_path / "b"):
        pass

    assert "may be at work elsewhere" in capsys.readouterr().err


def test_a_directory_that_takes_nothing_more_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)

    with pytest.raises(OSError, match="No space left on device") as raised:
        worker_id(tmp_path)

    assert str(raised.value.filename).startswith(str(tmp_path))
