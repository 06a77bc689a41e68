"""What every table must keep, whichever stores it. A new backend is one more entry in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.rocks import RocksTable
from projections.table import MemoryTable, Table


class Backend:
    """How to open a table of one kind again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> Table:
        """The same table, as the next process would open it; the one before was closed."""
        raise NotImplementedError


class MemoryBackend(Backend):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.table = MemoryTable()

    def open(self) -> Table:
        return self.table


class RocksBackend(Backend):
    def open(self) -> Table:
        return RocksTable.open(self.folder / "table")


BACKENDS: list[Callable[[Path], Backend]] = [MemoryBackend, RocksBackend]


@pytest.fixture(params=BACKENDS, ids=lambda factory: factory.__name__)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    made: Backend = request.param(tmp_path)
    return made


@pytest.fixture
def table(backend: Backend) -> Iterator[Table]:
    with backend.open() as table:
        yield table


def test_a_new_table_has_no_rows_and_begins_at_offset_0(table: Table) -> None:
    assert (table.next_offset, list(table.items()), table.get(b"k"), table.meta("m")) == (0, [], None, None)


def test_rows_meta_and_next_offset_of_a_batch_are_there_after_it(table: Table) -> None:
    table.write({b"a": b"1", b"b": b""}, next_offset=7, meta={"state": b"s"})

    assert (table.next_offset, table.get(b"a"), table.get(b"b"), table.meta("state")) == (7, b"1", b"", b"s")


def test_a_later_batch_replaces_what_it_names_and_leaves_the_rest(table: Table) -> None:
    table.write({b"a": b"1", b"b": b"1", b"c": b"1"}, next_offset=1, meta={"x": b"1", "y": b"1"})

    table.write({b"a": b"2"}, [b"b", b"absent"], next_offset=2, meta={"y": b"2"})

    assert list(table.items()) == [(b"a", b"2"), (b"c", b"1")]
    assert (table.meta("x"), table.meta("y"), table.next_offset) == (b"1", b"2", 2)


def test_a_key_both_put_and_deleted_is_put(table: Table) -> None:
    table.write({b"a": b"1"}, [b"a"], next_offset=1)

    assert table.get(b"a") == b"1"


def test_a_prefix_gives_its_rows_in_order_of_their_keys(table: Table) -> None:
    table.write({key: key for key in (b"n\xff", b"n", b"nb", b"m", b"o", b"na", b"n\x00", b"\xff\xff", b"")}, next_offset=1)

    assert [key for key, _ in table.items(b"n")] == [b"n", b"n\x00", b"na", b"nb", b"n\xff"]
    assert [key for key, _ in table.items(b"\xff")] == [b"\xff\xff"]
    assert [key for key, _ in table.items(b"nz")] == []
    assert len(list(table.items())) == 9


def test_meta_and_rows_do_not_meet(table: Table) -> None:
    table.write({b"x": b"row", b"\x00next-offset": b"row"}, next_offset=3, meta={"x": b"meta"})

    assert (table.get(b"x"), table.meta("x"), table.next_offset) == (b"row", b"meta", 3)
    assert len(list(table.items())) == 2


def test_rows_are_read_as_they_stood_when_the_first_was_taken(table: Table) -> None:
    table.write({b"a": b"1", b"b": b"1"}, next_offset=1)
    rows = table.items()
    first = next(rows)

    table.write({b"a": b"2", b"b": b"2", b"c": b"2"}, next_offset=2)

    assert [first, *rows] == [(b"a", b"1"), (b"b", b"1")]


def test_a_cleared_table_is_a_new_one(table: Table) -> None:
    table.write({b"a": b"1", b"\xff" * 80: b"1"}, next_offset=5, meta={"m": b"1"})

    table.clear()

    assert (table.next_offset, list(table.items()), table.meta("m")) == (0, [], None)
    table.write({b"b": b"1"}, next_offset=1)
    assert list(table.items()) == [(b"b", b"1")]


def test_what_was_written_is_there_for_the_next_process(backend: Backend) -> None:
    with backend.open() as table:
        table.write({b"a": b"1"}, next_offset=4, meta={"m": b"2"})
        table.close()

    with backend.open() as again:
        assert (list(again.items()), again.meta("m"), again.next_offset) == ([(b"a", b"1")], b"2", 4)


def test_clearing_lasts(backend: Backend) -> None:
    with backend.open() as table:
        table.write({b"a": b"1"}, next_offset=4)
        table.clear()

    with backend.open() as again:
        assert (list(again.items()), again.next_offset) == ([], 0)


def test_large_rows_and_large_offsets_come_back(table: Table) -> None:
    row = bytes(range(256)) * 8_192

    table.write({b"large": row}, next_offset=(1 << 63) - 1)

    assert (table.get(b"large"), table.next_offset) == (row, (1 << 63) - 1)


Keys = st.binary(max_size=3)
Batches = st.lists(st.tuples(st.dictionaries(Keys, st.binary(max_size=4), max_size=5), st.lists(Keys, max_size=3)), max_size=8)


@pytest.mark.parametrize("factory", BACKENDS)
@given(batches=Batches, prefix=Keys)
def test_any_batches_leave_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory,
    factory: Callable[[Path], Backend],
    batches: list[tuple[dict[bytes, bytes], list[bytes]]],
    prefix: bytes,
) -> None:
    expected: dict[bytes, bytes] = {}
    backend = factory(tmp_path_factory.mktemp("table"))

    with backend.open() as table:
        for number, (puts, deletes) in enumerate(batches):
            table.write(puts, deletes, next_offset=number + 1)
            for key in deletes:
                with suppress(KeyError):
                    del expected[key]
            expected |= puts

        assert list(table.items()) == sorted(expected.items())
        assert list(table.items(prefix)) == sorted((key, row) for key, row in expected.items() if key.startswith(prefix))
