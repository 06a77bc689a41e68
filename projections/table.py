"""A table: rows of bytes under keys of bytes, and with them how far the log was folded into them.

Whatever a batch changes and the next offset to read are stored together or not at all, so a fold that was killed goes on exactly where
its rows stand. Two tables keep this contract: this one in memory, and RocksDB's in `projections.rocks`.
"""

# ruff: noqa: N818 - an error is named by what is wrong ("the table is in use"), as its message is

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

from projections.reading import ProjectionError


class TableError(ProjectionError):
    """A table cannot be used. It holds nothing that the log does not: deleting its folder is always safe and costs one fold."""


class TableDamaged(TableError):
    """Bytes of the table are not what was written. The message names its folder, which is to be deleted."""


class TableInUse(TableError):
    """Another process has the table open."""


class Table(Protocol):
    """See the module's docstring. One instance belongs to one thread."""

    @property
    def next_offset(self) -> int:
        """The first offset that is not in the rows; 0 in a new table."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The row under `key`. Raises TableDamaged."""
        ...

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys begin with `prefix`, in order of their keys, as they stood when the first was taken. Raises TableDamaged."""
        ...

    def meta(self, name: str) -> bytes | None:
        """What the last batch that said anything under `name` stored there. Raises TableDamaged."""
        ...

    def write(
        self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = (), *, next_offset: int, meta: Mapping[str, bytes] | None = None
    ) -> None:
        """Store all of it, or nothing if the process is killed or this raises TableError. A key both put and deleted is put.

        It survives the process at once. Power lost may cost the last batches, each whole: the log still has what was in them.
        """
        ...

    def clear(self) -> None:
        """Delete all rows and meta; `next_offset` is 0 again."""
        ...

    def close(self) -> None:
        """Release files and locks. Closing twice does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None: ...


class MemoryTable:
    """See `Table`. Its rows last as long as the object, also after `close`."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._meta: dict[str, bytes] = {}
        self._next_offset = 0

    @property
    def next_offset(self) -> int:
        """See the contract."""
        return self._next_offset

    def get(self, key: bytes) -> bytes | None:
        """See the contract."""
        return self._rows.get(key)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See the contract."""
        yield from sorted((key, row) for key, row in self._rows.items() if key.startswith(prefix))

    def meta(self, name: str) -> bytes | None:
        """See the contract."""
        return self._meta.get(name)

    def write(
        self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = (), *, next_offset: int, meta: Mapping[str, bytes] | None = None
    ) -> None:
        """See the contract."""
        for key in deletes:
            self._rows.pop(key, None)
        self._rows.update(puts)
        self._meta.update(meta or {})
        self._next_offset = next_offset

    def clear(self) -> None:
        """See the contract."""
        self._rows, self._meta, self._next_offset = {}, {}, 0

    def close(self) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
