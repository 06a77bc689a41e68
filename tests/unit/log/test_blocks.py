"""Blocks of records: every byte of one counts, and what stands in it besides what belongs there is not served."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.log.base import Record
from streams.log.blocks import (
    BYTES_MAX,
    Block,
    BlockDamaged,
    blocks_of,
    encode_record,
    in_bites,
    is_whole,
    opened,
    salvaged,
    sealed,
    seed_of,
)

SEED = seed_of("claims", 0)


def records(*offsets: int, size: int = 20) -> list[Record]:
    return [Record("claims", 0, offset, 1_000, b"k", b"v" * size, (("h", b"%d" % offset),)) for offset in offsets]


def block(first: int, end: int, *offsets: int) -> Block:
    return sealed(first, end, [encode_record(record) for record in records(*offsets)], SEED)


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@dataclass(frozen=True)
class Case:
    name: str
    blocks: Sequence[Block]


@pytest.mark.parametrize(
    "case",
    [
        Case("a block is missing between two", [block(0, 2, 0, 1), block(3, 5, 3, 4)]),
        Case("a block is missing between two with gaps", [block(0, 4, 1, 3), block(6, 9, 7, 8)]),
        Case("two in the wrong order", [block(2, 4, 2, 3), block(0, 2, 0, 1)]),
        Case("records before its place", [block(2, 6, 1, 5)]),
        Case("records behind its place", [block(2, 6, 3, 6)]),
        Case("other offsets than its place", [block(2, 4, 3, 4)]),
        Case("no record at all", [block(0, 2, 0), block(2, 4), block(4, 7, 5)]),
        Case("fewer records than it says", [block(0, 3, 0, 1)._replace(held=3)]),
        Case("another span than it was sealed with", [block(0, 3, 0, 1)._replace(span=4)]),
        Case("no records", [sealed(0, 2, [b"no record", b"no record"], SEED)]),
        Case("nothing", []),
    ],
    ids=lambda case: case.name,
)
def test_blocks_that_do_not_hold_together_are_damaged(case: Case) -> None:
    with pytest.raises(BlockDamaged):
        opened(case.blocks, SEED)


@given(bodies=st.lists(st.binary(max_size=600), min_size=1, max_size=40), first=st.integers(0, 1 << 39))
def test_checksums_are_zlibs_crc_32_as_logs_and_archives_have_it_since_their_first_version(bodies: list[bytes], first: int) -> None:
    made, seed = sealed(first, first + len(bodies), bodies, SEED), zlib.crc32(b"claims/0")

    assert made.check == zlib.crc32(b"".join(bodies), (seed + len(bodies)) & 0xFFFFFFFF)
    assert memoryview(made.marks).cast("I").tolist() == [*map(len, bodies), *[zlib.crc32(body, seed) for body in bodies]]


def test_blocks_with_gaps_anywhere_hold_together() -> None:
    blocks = [block(0, 4, 0, 3), block(4, 9, 6), block(9, 12, 9, 10)]

    assert opened(blocks, SEED) == records(0, 3, 6, 9, 10)


def test_a_block_of_another_partition_is_damaged() -> None:
    with pytest.raises(BlockDamaged, match="checksum"):
        opened([block(0, 2, 0, 1)], seed_of("claims", 1))


def test_each_byte_of_a_block_counts_when_it_is_looked_at_as_a_whole() -> None:
    sound = block(4, 9, 4, 6, 8)

    assert is_whole(sound, SEED)
    assert not any(is_whole(sound._replace(records=changed(sound.records, at)), SEED) for at in range(len(sound.records)))
    assert not any(is_whole(sound._replace(marks=changed(sound.marks, at)), SEED) for at in range(len(sound.marks)))
    assert not is_whole(sound._replace(marks=sound.marks[:-8]), SEED)
    assert not is_whole(sound._replace(span=6), SEED)
    assert not is_whole(sound, SEED + 1)


def test_of_a_damaged_block_the_records_before_the_first_bad_one_are_left() -> None:
    sound, there = block(4, 9, 4, 6, 8), records(4, 6, 8)
    length = len(sound.records) // 3

    for at in range(len(sound.records)):
        assert salvaged(sound._replace(records=changed(sound.records, at)), SEED) == there[: at // length]
    assert salvaged(sound._replace(records=sound.records[:-1]), SEED) == there[:2]


def test_of_a_block_whose_own_figures_are_damaged_nothing_is_left() -> None:
    sound = block(4, 9, 4, 6, 8)

    assert salvaged(sound._replace(check=sound.check ^ 1), SEED) == []
    assert salvaged(sound._replace(marks=sound.marks[:-4]), SEED) == []
    assert salvaged(sound._replace(held=2), SEED) == []
    assert salvaged(sound._replace(first=5), SEED) == []
    assert salvaged(sealed(0, 1, [b"no record"], SEED), SEED) == []


@given(st.lists(st.integers(0, 3).map(lambda size: (10, 3_000, BYTES_MAX // 2 + 1, BYTES_MAX)[size]), max_size=12))
def test_bites_are_all_blocks_in_order_and_none_is_much_longer_than_a_block(sizes: list[int]) -> None:
    blocks = [Block(at, 1, 1, 0, bytes(size)) for at, size in enumerate(sizes)]

    bites = list(in_bites(blocks))

    assert [each for bite in bites for each in bite] == blocks
    assert all(bites)
    assert all(sum(len(each.records) for each in bite[:-1]) <= BYTES_MAX // 2 for bite in bites)


@example([10] * 12)
@given(st.lists(st.integers(0, 3).map(lambda size: (10, 3_000, BYTES_MAX - 100, 2 * BYTES_MAX)[size]), min_size=1, max_size=12))
def test_blocks_hold_what_they_were_made_of_and_none_of_several_records_is_too_long(sizes: list[int]) -> None:
    there = [record for at, size in enumerate(sizes) for record in records(3 * at + 1, size=size)]
    end = 3 * len(sizes) + 2

    made = list(blocks_of([record.offset for record in there], [encode_record(record) for record in there], 0, end, SEED, records_max=5))

    assert opened(made, SEED) == there
    assert (made[0].first, made[-1].end) == (0, end)
    assert all(each.held <= 5 and (each.held == 1 or len(each.records) <= BYTES_MAX) for each in made)
