"""The part of one partition that a fetcher holds in memory: what was read ahead, and a little of what was handed out already.

Two readers of one process, such as folder and scheduler, are a few records apart; the second is served from here, and the consumer need
not go back. Pure: records go in, slices come out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import Final

from streams.log.base import LogError, Record

# Of one partition, ahead of its readers and behind them; 16 MiB are 18,000 records of 300 bytes with what Python adds to each.
AHEAD_BYTES: Final = 16 << 20
BEHIND_BYTES: Final = 2 << 20
# What a record takes beside key and value: the struct, the objects of its headers.
RECORD_BYTES: Final = 600
# Records that come one by one are put together, so that there are never many chunks to look through.
CHUNK_RECORDS: Final = 500

_offset = attrgetter("offset")


class _Chunk:
    __slots__ = ("records", "size")

    def __init__(self, records: list[Record], size: int) -> None:
        self.records, self.size = records, size


class Window:
    """Records of one partition from `low` up to `next`, where the fetcher reads on, who began at `first`. `fault` is why it cannot.

    A window that is `parked` has so much unread that its partition is not fetched for now.
    """

    def __init__(self, offset: int, asked_seconds: float = 0.0) -> None:
        self.first = self.low = self.next = self.cursor = offset
        self.parked = False
        self.asked_seconds = asked_seconds
        self.fault: LogError | None = None
        self._chunks: deque[_Chunk] = deque()
        self._read, self._read_bytes = 0, 0
        """How many of the chunks, from the first on, all have read, and their size."""

    def covers(self, offset: int) -> bool:
        """Whether a read from `offset` can be answered from here, now or when more has come."""
        return self.low <= offset <= self.next

    def is_read(self) -> bool:
        """Whether all that is here was handed out."""
        return self.next <= self.cursor

    def put(self, records: list[Record]) -> None:
        """Take in what was fetched next. What is below `next` was here before and is left out."""
        if records[0].offset < self.next:
            records = records[bisect_left(records, self.next, key=_offset) :]
            if not records:
                return
        size = sum([len(record.key) + len(record.value) for record in records]) + RECORD_BYTES * len(records)
        last = self._chunks[-1] if self._chunks else None
        if last is not None and len(last.records) < CHUNK_RECORDS:
            if self._read == len(self._chunks):  # There is something to read in it now.
                self._read, self._read_bytes = self._read - 1, self._read_bytes - last.size
            last.records.extend(records)
            last.size += size
        else:
            self._chunks.append(_Chunk(records, size))
        self.next = records[-1].offset + 1
        self._trim()

    def take(self, offset: int, records_max: int, bytes_max: int) -> list[Record]:
        """Records from `offset` on, at least one if there is one here."""
        found: list[Record] = []
        left = bytes_max
        for chunk in self._from(offset):
            records = chunk.records
            first = bisect_left(records, offset, key=_offset) if records[0].offset < offset else 0
            part = records[first : first + records_max - len(found)]
            whole = chunk.size <= left
            if not whole:
                part = _fitting(part, left, at_least=0 if found else 1)
            found += part
            left -= chunk.size
            if not whole or len(found) >= records_max:
                break
        if found:
            self.cursor = max(self.cursor, found[-1].offset + 1)
            self._trim()
        return found

    @property
    def newest_ms(self) -> int:
        """The time of the last record here; 0 if there is none."""
        return self._chunks[-1].records[-1].time_ms if self._chunks else 0

    def ahead_bytes(self) -> int:
        """How much is here that nobody has read."""
        size = 0
        for chunk in self._from(self.cursor):
            unread = len(chunk.records) - bisect_left(chunk.records, self.cursor, key=_offset)
            size += chunk.size * unread // len(chunk.records)
        return size

    def _from(self, offset: int) -> list[_Chunk]:
        """The chunks with records at or above `offset`, looked for from the end: most readers are near it."""
        found: list[_Chunk] = []
        for chunk in reversed(self._chunks):
            if chunk.records[-1].offset < offset:
                break
            found.append(chunk)
        found.reverse()
        return found

    def _trim(self) -> None:
        """Forget what all have read but the last of it."""
        chunks = self._chunks
        while self._read < len(chunks) and chunks[self._read].records[-1].offset < self.cursor:
            self._read_bytes += chunks[self._read].size
            self._read += 1
        while self._read_bytes > BEHIND_BYTES:
            dropped = chunks.popleft()
            self._read, self._read_bytes = self._read - 1, self._read_bytes - dropped.size
            self.low = dropped.records[-1].offset + 1


def _fitting(records: list[Record], bytes_max: int, at_least: int) -> list[Record]:
    """The records from the first on whose keys and values fit."""
    left = bytes_max
    for count, record in enumerate(records):
        left -= len(record.key) + len(record.value)
        if left < 0:
            return records[: max(count, at_least)]
    return records
