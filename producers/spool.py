"""Store and forward: what a producer says is durable here before anything else, and goes on to the log in order when the log is there.

So a broker that is away costs nothing but disk. A record leaves the spool only after the log has acknowledged it; one that was
acknowledged in a moment of failure goes on a second time, which every fold ignores. The room is bounded: when it is full the producer
waits, and loses nothing that it took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from producers.source import Said

BATCH_RECORDS = 500
BYTES_MAX = 1 << 30
"""1 GiB: a thousand hosts with an unchanged audit a minute and a full one of 20 kB every 20 minutes for more than half a day."""
OVERHEAD_BYTES = 128
"""What a record takes beside its key, value and headers, roughly."""


class SpoolFull(Exception):
    """There is no room for more. Nothing was taken, nothing is lost: try again when some of it has gone on."""


class Kept(NamedTuple):
    """One record in the spool. Offsets grow by one."""

    offset: int
    said: Said


class SpoolStore(Protocol):
    """Where the records lie: durable, in order, dropped from the front. Raises SpoolFull when the disk is full."""

    def append(self, records: Sequence[Said]) -> None:
        """Keep all, or none; durable on return."""
        ...

    def read(self, offset: int, records_max: int) -> list[Kept]:
        """Records from `offset` on, in order, at least one if there is one."""
        ...

    def drop(self, before: int) -> None:
        """Forget the records below the offset `before`."""
        ...

    def start(self) -> int:
        """The offset of the first record that is kept."""
        ...

    def end(self) -> int:
        """The offset that the next record will have."""
        ...


class Spool:
    """The writing end, for the thread that produces."""

    def __init__(self, store: SpoolStore, bytes_max: int = BYTES_MAX) -> None:
        """Counts what an earlier process left, which goes on first."""
        self._store, self._bytes_max = store, bytes_max
        self._sizes: list[tuple[int, int]] = []  # of each batch put: the offset behind it and its bytes
        self._bytes = 0
        at = store.start()
        while batch := store.read(at, BATCH_RECORDS):
            at = batch[-1].offset + 1
            self._count(at, [kept.said for kept in batch])

    @property
    def waiting(self) -> int:
        """How many records are here."""
        return self._store.end() - self._store.start()

    def put(self, records: Sequence[Said]) -> None:
        """Take the records, in order; durable on return. Raises SpoolFull, and takes none of them then."""
        if not records:
            return
        self._settle()
        # One batch is taken into an empty spool whatever its size: it would never fit otherwise.
        if self._sizes and self._bytes + size_of(records) > self._bytes_max:
            raise SpoolFull(f"{self.waiting} records wait, {self._bytes >> 20} of {self._bytes_max >> 20} MiB")
        self._store.append(records)
        self._count(self._store.end(), records)

    def _count(self, end: int, records: Sequence[Said]) -> None:
        size = size_of(records)
        self._sizes.append((end, size))
        self._bytes += size

    def _settle(self) -> None:
        """What the other end has sent on takes no room any more."""
        start, gone = self._store.start(), 0
        while gone < len(self._sizes) and self._sizes[gone][0] <= start:
            self._bytes -= self._sizes[gone][1]
            gone += 1
        del self._sizes[:gone]


def forward(store: SpoolStore, append: Callable[[Sequence[Said]], object], records_max: int = BATCH_RECORDS) -> int:
    """The reading end: hand the oldest records to `append`, which returns when they are durable, and drop them then; returns how many.

    What `append` raises goes through, and the records stay. Belongs to one thread, with a store of its own.
    """
    batch = store.read(store.start(), records_max)
    if batch:
        append([kept.said for kept in batch])
        store.drop(batch[-1].offset + 1)
    return len(batch)


def size_of(records: Sequence[Said]) -> int:
    """What records take, about."""
    return sum(
        OVERHEAD_BYTES + len(said.key) + len(said.value) + sum(len(name) + len(value) for name, value in said.headers) for said in records
    )
