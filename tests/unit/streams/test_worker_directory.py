"""A worker's directory: one identity, in one process's hands."""

from __future__ import annotations

from pathlib import Path

import pytest

from projections.table import TableInUse
from streams.worker_directory import worker_directory


def test_a_directory_keeps_the_id_it_was_given_first(tmp_path: Path) -> None:
    with worker_directory(tmp_path / "deep" / "a") as first:
        pass

    with worker_directory(tmp_path / "deep" / "a") as again, worker_directory(tmp_path / "b") as other:
        ids = (again, other)

    assert ids[0] == first
    assert ids[1] != first


def test_a_directory_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with worker_directory(tmp_path), pytest.raises(TableInUse, match="pass another with --state"), worker_directory(tmp_path):
        raise AssertionError("two have the directory")


def test_an_id_that_a_power_cut_left_empty_is_given_anew(tmp_path: Path) -> None:
    (tmp_path / "worker-id").write_text("\n")

    with worker_directory(tmp_path) as worker_id:
        assert worker_id
