"""One file of archived records: a range of offsets of one partition in compressed blocks, each under a checksum.

A magic, a head, then frames of a fixed header and a compressed body, up to the head's `end`. Damage is named by the first offset of the
block it is in: inside of a compressed block nothing smaller can be told.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from zlib import crc32

import msgspec
from msgspec import Struct

from streams.log.base import LogDamaged, LogError, Position, Record
from streams.log.blocks import Block, BlockDamaged, blocks_of, encode_record, opened, seed_of

MAGIC = b"claimlog archive 1\n"
# Larger than in a log that is written: a block is read from an archive to read many, and 1,000 records compress better.
BLOCK_RECORDS_MAX = 1024
BLOCK_BYTES_MAX = 1 << 20
_HEAD = struct.Struct("<II")  # length, checksum
_FRAME = struct.Struct("<QQIIIQQ")  # first, span, held, check, length of the compressed body, first and last time
_CHECK = struct.Struct("<I")


class Head(Struct, frozen=True, array_like=True):
    """What a file holds: the records of a partition in the offsets from `start` to `end`."""

    ledger_id: str
    topic: str
    partition: int
    start: int
    end: int


class Frame(NamedTuple):
    """Where a block stands in the file, and what it covers. `time_ms_last`: the latest time in it, which few logs have before its end."""

    first: int
    span: int
    held: int
    check: int
    length: int
    time_ms_first: int
    time_ms_last: int
    place: int

    @property
    def end(self) -> int:
        """The first offset after the block."""
        return self.first + self.span


def write(path: Path, head: Head, records: Iterable[Sequence[Record]]) -> bytes:
    """Write and sync a file; returns the digest of all its records. The batches of `records` must be as the head says."""
    seed, digest, at = seed_of(head.topic, head.partition), blake2b(digest_size=16), head.start
    body = msgspec.msgpack.encode(head)
    with path.open("wb") as file:
        file.write(MAGIC + _HEAD.pack(len(body), crc32(body)) + body)
        for batch in records:
            encoded = [encode_record(record) for record in batch]
            for chunk in encoded:
                digest.update(chunk)
            end = batch[-1].offset + 1
            offsets = [record.offset for record in batch]
            times = {record.offset: record.time_ms for record in batch}
            for block in blocks_of(offsets, encoded, at, end, seed, BLOCK_RECORDS_MAX, BLOCK_BYTES_MAX):
                inside = [times[offset] for offset in offsets if block.first <= offset < block.end]
                packed = zlib.compress(block.records)
                frame = _FRAME.pack(block.first, block.span, block.held, block.check, len(packed), inside[0], max(inside))
                file.write(frame + _CHECK.pack(crc32(frame)) + packed)
            at = end
        file.flush()
        os.fsync(file.fileno())
    return digest.digest()


class ArchiveFile:
    """An archive file, opened for reading. Raises LogDamaged if its head or a frame does not hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except (FileNotFoundError, IsADirectoryError) as problem:
            raise LogDamaged(f"{path}: {problem.strerror}, where a file of the archive is expected. Restore it from a copy") from problem
        except OSError as problem:
            raise LogError(f"{path}: {problem.strerror}; expected a file of the archive that this user can read") from problem
        self.head = self._read_head()
        self.seed = seed_of(self.head.topic, self.head.partition)
        self._frames: list[Frame] | None = None

    def frames(self) -> list[Frame]:
        """All blocks, in order; read from the file once."""
        if self._frames is None:
            frames = list(self._read_frames())
            self._frames = frames
        return self._frames

    def records(self, frame: Frame) -> list[Record]:
        """The records of a block."""
        self._file.seek(frame.place)
        try:
            body = zlib.decompress(self._file.read(frame.length))
            records = opened([Block(frame.first, frame.span, frame.held, frame.check, body)], self.seed)
        except (zlib.error, BlockDamaged) as problem:
            raise self._damaged(frame.first, str(problem)) from problem
        return records

    def digest(self) -> bytes:
        """The digest of all records, to compare with what `write` returned."""
        digest = blake2b(digest_size=16)
        for frame in self.frames():
            for record in self.records(frame):
                digest.update(encode_record(record))
        return digest.digest()

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _read_head(self) -> Head:
        start = self._file.read(len(MAGIC) + _HEAD.size)
        try:
            if not start.startswith(MAGIC):
                raise BlockDamaged("this is not an archive of claimlog")
            length, check = _HEAD.unpack(start[len(MAGIC) :])
            body = self._file.read(length)
            if crc32(body) != check:
                raise BlockDamaged("the checksum of its head does not hold")
            return msgspec.msgpack.decode(body, type=Head)
        except (BlockDamaged, struct.error, msgspec.DecodeError, OverflowError, MemoryError) as problem:
            self._file.close()
            raise LogDamaged(f"{self.path}: {problem}. Restore the file from a copy") from problem

    def _read_frames(self) -> Iterator[Frame]:
        at = before = self.head.start
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(len(MAGIC))
        length, _ = _HEAD.unpack(self._file.read(_HEAD.size))
        place = self._file.tell() + length
        while at < self.head.end:
            if place > size:
                raise self._damaged(before, "the file is cut short")
            self._file.seek(place)
            raw = self._file.read(_FRAME.size + _CHECK.size)
            if len(raw) < _FRAME.size + _CHECK.size or _CHECK.pack(crc32(raw[: _FRAME.size])) != raw[_FRAME.size :]:
                raise self._damaged(at, "the checksum of a block's header does not hold, or the file is cut short")
            first, span, held, check, length, time_ms_first, time_ms_last = _FRAME.unpack(raw[: _FRAME.size])
            frame = Frame(first, span, held, check, length, time_ms_first, time_ms_last, place + len(raw))
            if frame.first != at:
                raise self._damaged(at, f"a block starts at {frame.first} where {at} is expected")
            yield frame
            before, at, place = at, frame.end, frame.place + frame.length

    def _damaged(self, offset: int, problem: str) -> LogDamaged:
        position = Position(self.head.topic, self.head.partition, offset)
        return LogDamaged(f"{self.path}: {position}: {problem}. Restore the file from a copy", position)
