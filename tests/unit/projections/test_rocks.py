"""What RocksDB's table alone must keep: killed, torn, damaged and opened twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from projections.rocks import _SUM_KEY, RocksTable, meta_kept
from projections.table import TableDamaged, TableError, TableInUse

ROOT = Path(__file__).parents[3]
ROWS = 40

# Every row says which batch wrote it, and so does next_offset: in a whole table they are equal.
WRITER = f"""
import sys
from projections.rocks import RocksTable
table = RocksTable.open(sys.argv[1])
batch = table.next_offset
while True:
    batch += 1
    table.write({{b"%d" % row: b"%d" % batch for row in range({ROWS})}}, next_offset=batch, meta={{"batch": b"%d" % batch}})
    print(batch, flush=True)
"""


def filled(folder: Path, rows: int = 5_000) -> list[tuple[bytes, bytes]]:
    """A closed table whose rows are in a file of sorted rows, not only in the write-ahead log."""
    expected = {b"%06d" % row: os.urandom(100) for row in range(rows)}
    with RocksTable.open(folder) as table:
        table.write(expected, next_offset=rows)
        table._open_db().flush()
    return sorted(expected.items())


def damage(file: Path, at: float) -> None:
    """Turn over 40 bytes at a share of the file's length."""
    data = bytearray(file.read_bytes())
    start = int(len(data) * at)
    for place in range(start, min(start + 40, len(data))):
        data[place] ^= 0xFF
    file.write_bytes(data)


def read_into(served: list[tuple[bytes, bytes]], folder: Path) -> None:
    with RocksTable.open(folder) as table:
        for row in table.items():
            served.append(row)  # noqa: PERF402 - what was served before the damage counts


def test_rows_and_offset_are_equal_after_kill_9(tmp_path: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged = 0
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged % 1_000 == 517:
                break
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split("\n")[:-1])])
        writer.wait()
        writer.stdout.close()

        with RocksTable.open(tmp_path) as table:
            batches = {int(row) for _, row in table.items()}
            assert batches == {table.next_offset} == {int(table.meta("batch") or b"0")}
            assert len(list(table.items())) == ROWS
            assert table.next_offset >= acknowledged


def test_a_torn_end_of_the_write_ahead_log_goes_back_to_a_whole_batch(tmp_path: Path) -> None:
    with RocksTable.open(tmp_path / "table") as table:
        for batch in range(1, 51):
            table.write({b"%d" % row: b"%d" % batch for row in range(ROWS)}, next_offset=batch)
        shutil.copytree(tmp_path / "table", tmp_path / "torn")
    newest = max((tmp_path / "torn").glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-333])

    with RocksTable.open(tmp_path / "torn") as table:
        assert 0 < table.next_offset < 50
        assert {int(row) for _, row in table.items()} == {table.next_offset}


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_damaged_rows_are_never_served_and_the_message_says_to_rebuild(tmp_path: Path, at: float) -> None:
    expected = filled(tmp_path)
    damage(next(iter(tmp_path.glob("*.sst"))), at)

    served: list[tuple[bytes, bytes]] = []
    with pytest.raises(TableDamaged, match=f"{tmp_path}.*delete this folder.*rebuilt from the log"):
        read_into(served, tmp_path)

    assert served == expected[: len(served)]


def batches(folder: Path) -> tuple[Path, Path]:
    """Copies of a table at two moments of its work: after one batch, and after three of which each changed another row."""
    with RocksTable.open(folder / "table") as table:
        table.write({b"a": b"1", b"b": b"1"}, next_offset=1)
        table._open_db().flush()
        shutil.copytree(folder / "table", folder / "older")
        table.write({b"a": b"2"}, next_offset=2)
        table._open_db().flush()
        table.write({b"b": b"3"}, next_offset=3)
        shutil.copytree(folder / "table", folder / "newer")
    return folder / "older", folder / "newer"


def test_a_copy_taken_while_somebody_wrote_is_a_table_of_that_moment(tmp_path: Path) -> None:
    older, newer = batches(tmp_path)

    with RocksTable.open(older) as one, RocksTable.open(newer) as other:
        assert (one.next_offset, list(one.items())) == (1, [(b"a", b"1"), (b"b", b"1")])
        assert (other.next_offset, list(other.items())) == (3, [(b"a", b"2"), (b"b", b"3")])


def test_an_older_copy_put_over_a_newer_table_is_damage_and_no_mixture_of_both(tmp_path: Path) -> None:
    older, newer = batches(tmp_path)
    shutil.copytree(older, newer, dirs_exist_ok=True)

    with pytest.raises(TableDamaged, match=r"delete this folder.*\(its files do not belong together"):
        RocksTable.open(newer)


def test_a_list_of_files_that_lost_its_end_is_damage_and_no_table_without_them(tmp_path: Path) -> None:
    _, newer = batches(tmp_path)
    files = next(iter(newer.glob("MANIFEST-*")))
    whole = files.read_bytes()

    served: set[tuple[int, tuple[tuple[bytes, bytes], ...]]] = set()
    for left_bytes in range(len(whole)):
        files.write_bytes(whole[:left_bytes])
        shutil.copytree(newer, tmp_path / "cut")
        with suppress(TableDamaged), RocksTable.open(tmp_path / "cut") as table:
            served.add((table.next_offset, tuple(table.items())))
        shutil.rmtree(tmp_path / "cut")

    # What it held before the first of them is no harm: the log has the rest.
    assert served <= {(0, ()), (3, ((b"a", b"2"), (b"b", b"3")))}


def test_a_table_of_an_earlier_version_is_read_and_has_its_sum_from_the_next_batch_on(tmp_path: Path) -> None:
    with RocksTable.open(tmp_path) as table:
        table.write({b"a": b"1", b"b": b"1"}, next_offset=1)
        table._open_db().delete(_SUM_KEY)

    with RocksTable.open(tmp_path) as again:
        before = (again.next_offset, list(again.items()))
        again.write({b"a": b"2"}, [b"b"], next_offset=2)
    with RocksTable.open(tmp_path) as table:
        after = (table.next_offset, list(table.items()))

    assert (before, after) == ((1, [(b"a", b"1"), (b"b", b"1")]), (2, [(b"a", b"2")]))


def test_a_missing_file_is_found_when_the_table_is_opened(tmp_path: Path) -> None:
    filled(tmp_path)
    next(iter(tmp_path.glob("*.sst"))).unlink()

    with pytest.raises(TableDamaged, match="delete this folder"):
        RocksTable.open(tmp_path)


def test_a_second_process_is_told_that_the_table_is_in_use(tmp_path: Path) -> None:
    opening = "import sys; from projections.rocks import RocksTable; RocksTable.open(sys.argv[1])"

    with RocksTable.open(tmp_path):
        with pytest.raises(TableInUse, match="another process"):
            RocksTable.open(tmp_path)
        other = subprocess.run([sys.executable, "-c", opening, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)

    assert other.returncode != 0
    assert "projections.table.TableInUse" in other.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(TableError, match=f"{tmp_path}/file/table"):
        RocksTable.open(tmp_path / "file" / "table")


def test_a_closed_table_says_so(tmp_path: Path) -> None:
    table = RocksTable.open(tmp_path)

    table.close()

    with pytest.raises(TableError, match="was closed"):
        table.get(b"k")


def test_a_table_without_room_to_be_closed_says_so_and_has_all_its_rows(tmp_path: Path) -> None:
    closer = f"""
import resource, sys
from projections.rocks import RocksTable
from projections.table import TableError
table = RocksTable.open(sys.argv[1])
table.write({{b"%d" % row: b"x" * 100 for row in range({ROWS})}}, next_offset=7)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
try:
    table.close()
except TableError as problem:
    print(problem)
"""

    ran = subprocess.run([sys.executable, "-c", closer, str(tmp_path / "t")], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert f"{tmp_path / 't'}: RocksDB cannot go on: IO error" in ran.stdout
    assert "see to room" in ran.stdout
    with RocksTable.open(tmp_path / "t") as table:
        assert (len(list(table.items())), table.next_offset) == (ROWS, 7)


FEW_FILES = """
import resource, sys
from projections.rocks import RocksTable
from projections.table import TableError
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
try:
    RocksTable.open(sys.argv[1])
except TableError as problem:
    print(problem)
"""


def test_a_process_that_may_not_open_enough_files_is_told_which_limit_it_is(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FEW_FILES, str(tmp_path / "table")], cwd=ROOT, check=True, capture_output=True, text=True)

    assert "Too many open files; a process needs about ten files" in ran.stdout
    assert "`ulimit -n 1024`" in ran.stdout


def test_what_a_closed_table_was_given_last_is_told_without_changing_it(tmp_path: Path) -> None:
    with RocksTable.open(tmp_path / "table") as table:
        table.write({b"a": b"1"}, next_offset=7, meta={"ledger": b"figures"})
    before = {path.name: path.read_bytes() for path in (tmp_path / "table").iterdir()}

    assert (meta_kept(tmp_path / "table", "ledger"), meta_kept(tmp_path / "table", "other")) == (b"figures", None)
    assert {path.name: path.read_bytes() for path in (tmp_path / "table").iterdir()} == before
    with pytest.raises(TableError):
        meta_kept(tmp_path / "missing", "ledger")
