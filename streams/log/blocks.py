"""How records stand in a file: blocks of consecutive records of one partition, each block and each record with a checksum.

A batch is written and read a block at a time, which is what makes both fast; the checksums of single records are looked at only in a
block whose own does not hold, to name the first bad offset. Pure: the embedded log and the archive both store what this makes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec
from isal.isal_zlib import crc32

from streams.log.base import BareRecord, Headers, Message, Record

# A block is the least that is read: 128 records decode in 50 us, and more records in a block make batches no faster.
RECORDS_MAX = 128
BYTES_MAX = 64 << 10
_MASK_32 = 0xFFFFFFFF

encode_record = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(list[Record]).decode
_decode_bare = msgspec.msgpack.Decoder(list[BareRecord]).decode
_decode_record = msgspec.msgpack.Decoder(Record).decode

Fields = tuple[str, int, int, int, bytes, bytes, Headers]
_Record = TypeVar("_Record", Record, BareRecord)


class Block(NamedTuple):
    """`held` encoded records in the offsets from `first` to `first + span`; `marks` has length and checksum of each."""

    first: int
    span: int
    held: int
    check: int
    records: bytes
    marks: bytes = b""

    @property
    def end(self) -> int:
        """The first offset after the block."""
        return self.first + self.span


class BlockDamaged(Exception):  # noqa: N818 - see streams.log.base
    """The bytes of a block are not what was written."""


def seed_of(topic: str, partition: int) -> int:
    """What every checksum of a partition starts from, so that a block which strays into another partition does not pass."""
    return crc32(f"{topic}/{partition}".encode())


def sealed(first: int, end: int, encoded: Sequence[bytes], seed: int) -> Block:
    """The block of `encoded` records, in charge of the offsets from `first` to `end`."""
    records, held = b"".join(encoded), len(encoded)
    marks = struct.pack(f"<{2 * held}I", *map(len, encoded), *map(crc32, encoded, repeat(seed)))
    return Block(first, end - first, held, crc32(records, (seed + end - first) & _MASK_32), records, marks)


def blocks_of(
    offsets: Sequence[int],
    encoded: Sequence[bytes],
    first: int,
    end: int,
    seed: int,
    records_max: int = RECORDS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[Block]:
    """Blocks that together are in charge of the offsets from `first` to `end`; at least one record is needed."""
    count = len(encoded)
    if count > records_max or (count > 1 and sum(map(len, encoded)) > bytes_max):
        # Full blocks while records are small; where they are large, halves of halves.
        step = records_max if count > records_max else (count + 1) // 2
        for begin in range(0, count, step):
            after = min(begin + step, count)
            until = end if after == count else offsets[after - 1] + 1
            yield from blocks_of(offsets[begin:after], encoded[begin:after], first, until, seed, records_max, bytes_max)
            first = until
    else:
        yield sealed(first, end, encoded, seed)


def opened(blocks: Sequence[Block], seed: int) -> list[Record]:
    """The records of consecutive blocks. Raises BlockDamaged if a checksum does not hold or a block is missing between two."""
    return _opened(blocks, seed, _decode_records)


def opened_bare(blocks: Sequence[Block], seed: int) -> list[BareRecord]:
    """As `opened`, without the headers of the records, which the checksums cover all the same."""
    return _opened(blocks, seed, _decode_bare)


def in_bites(blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Runs of blocks that together hold about as much as one block may: many small ones are opened at once, large ones one by one."""
    begin = size = 0
    for at, block in enumerate(blocks):
        size += len(block.records)
        if size > BYTES_MAX // 2:
            yield blocks[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(blocks):
        yield blocks[begin:]


def _opened(blocks: Sequence[Block], seed: int, decode: Callable[[bytes], list[_Record]]) -> list[_Record]:
    bodies: Sequence[bytes]
    try:
        firsts, spans, counts, checks, bodies = zip(*[block[:5] for block in blocks], strict=True)
        if list(map(crc32, bodies, [(seed + span) & _MASK_32 for span in spans])) != list(checks):
            raise BlockDamaged("a checksum does not hold")
        total = sum(counts)
        records = decode(b"".join([b"\xdd", total.to_bytes(4, "big"), *bodies]))
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError) as problem:
        raise BlockDamaged(f"cannot be decoded: {problem}") from problem
    if spans == counts:  # no gaps: what compaction never touched
        if list(map(_offset, records)) != list(range(firsts[0], firsts[0] + total)):
            raise BlockDamaged("blocks hold other offsets than their places say, or one is missing")
    else:
        _check_places(records, firsts, spans, counts)
    return records


def _check_places(records: Sequence[BareRecord], firsts: Sequence[int], spans: Sequence[int], counts: Sequence[int]) -> None:
    """Blocks must follow on each other, and each hold offsets that it is in charge of."""
    at = 0
    for first, span, count, after in zip(firsts, spans, counts, [*firsts[1:], firsts[-1] + spans[-1]], strict=True):
        at += count
        if first + span != after:
            raise BlockDamaged(f"offsets {first + span} to {after} are missing")
        if not (count and first <= records[at - count].offset and records[at - 1].offset < after):
            raise BlockDamaged("a block holds other offsets than its place says")


def is_whole(block: Block, seed: int) -> bool:
    """Whether every byte of a block is what was written, the checksums of its records included."""
    # Where it stands, SQLite keeps the type beside it: damage makes a number or a text of it.
    if type(block.marks) is not bytes or len(block.marks) != 8 * block.held:
        return False
    return sealed(block.first, block.end, list(_sound_bodies(block, seed)), seed) == block


def salvaged(block: Block, seed: int) -> list[Record]:
    """The records of a damaged block before its first bad one; none if the damage is in the block's own figures."""
    good: list[Record] = []
    try:
        for body in _sound_bodies(block, seed):
            record = _decode_record(body)
            if record.offset < block.first + len(good):
                return good
            good.append(record)
    except (msgspec.DecodeError, struct.error, TypeError, ValueError):
        return good
    return good if len(good) < block.held else []


def _sound_bodies(block: Block, seed: int) -> Iterator[bytes]:
    """The records of a block as they were encoded, up to the first whose checksum does not hold. Raises struct.error for other marks."""
    marks, place = struct.unpack(f"<{2 * block.held}I", block.marks), 0
    for length, check in zip(marks[: block.held], marks[block.held :], strict=True):
        body = block.records[place : place + length]
        if crc32(body, seed) != check:
            return
        yield body
        place += length


def check_readable(messages: Sequence[Message], encoded: Sequence[bytes]) -> None:
    """Raises TypeError if a field has a wrong type: such a record could be written and never be read.

    The usual types are known for good by their names; only others are read back from what is about to be written, which takes five times
    as long.
    """
    if _have_usual_types(messages):
        return
    try:
        _decode_records(b"\xdd" + len(encoded).to_bytes(4, "big") + b"".join(encoded))
    except msgspec.DecodeError as problem:
        raise TypeError(f"a message needs bytes as key and value, and headers of (text, bytes): {problem}") from problem


def _have_usual_types(messages: Sequence[Message]) -> bool:
    """Comprehensions over what is wrong: passes through `map` would take three times as long, and a loop a third longer."""
    try:
        return not (
            [1 for each in messages if type(each.key) is not bytes or type(each.value) is not bytes or type(each.headers) is not tuple]
            or [1 for each in messages for name, value in each.headers if type(name) is not str or type(value) is not bytes]
        )
    except (TypeError, ValueError):  # A header that is no pair.
        return False


_offset = attrgetter("offset")
