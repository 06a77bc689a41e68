"""Holes: what is longer than the mark of a transaction is told once, whole, however it is read."""

from __future__ import annotations

import pytest

from schemas.topics import AUDITS
from streams.log.base import NO_RECORD, Record
from streams.log.holes import MARK_OFFSETS, Hole, Holes, holes_in, told

MARKS = "-" * MARK_OFFSETS


def partition(shape: str) -> list[Record]:
    """A partition of records (`r`) and offsets without one (`-`, and `M` for as many as marks may take)."""
    return [
        Record(AUDITS, 0, offset, 1000, b"k", b"{}") if what == "r" else Record(AUDITS, 0, offset, 1000, b"", b"", NO_RECORD)
        for offset, what in enumerate(shape.replace("M", MARKS))
    ]


@pytest.mark.parametrize(
    ("shape", "holes"),
    [
        ("rrr", []),
        ("r-r-r", []),
        ("rrMrMr", []),
        ("rrM--r-r", [(2, MARK_OFFSETS + 2)]),
        ("M-rrM-r", [(0, MARK_OFFSETS + 1), (MARK_OFFSETS + 3, MARK_OFFSETS + 1)]),
        ("rrM-", [(2, MARK_OFFSETS + 1)]),
        ("rrM", []),
    ],
)
def test_only_what_a_mark_does_not_take_is_a_hole(shape: str, holes: list[tuple[int, int]]) -> None:
    assert [(hole.first, hole.offsets) for hole in holes_in(partition(shape))] == holes


@pytest.mark.parametrize("length", [1, 2, 3, 4, 20])
def test_a_hole_is_found_once_and_whole_in_pieces_of_any_length(length: int) -> None:
    records, looked = partition("r-rM--rM-"), Holes()

    found = [hole for at in range(0, len(records), length) for hole in looked.ended(records[at : at + length])]

    assert found == [Hole(AUDITS, 0, 3, MARK_OFFSETS + 2)]
    assert list(looked.open()) == [Hole(AUDITS, 0, MARK_OFFSETS + 6, MARK_OFFSETS + 1)]


def test_of_many_holes_the_first_is_told_with_how_much_the_others_lack() -> None:
    holes = [Hole(AUDITS, 0, 3, 5), Hole(AUDITS, 1, 7, 2)]

    first = "hypervisor-audits/0: the offsets from 3 to 7 have no record"
    assert told(holes[:1]) == first
    assert told(holes) == f"{first}, nor have 2 others, the last of them in hypervisor-audits/1"
