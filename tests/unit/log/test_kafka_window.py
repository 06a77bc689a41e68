"""What a fetcher holds of a partition."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.log import kafka_window
from streams.log.base import Record
from streams.log.kafka_window import AHEAD_BYTES, BEHIND_BYTES, RECORD_BYTES, Window


def records(*offsets: int, size: int = 10) -> list[Record]:
    return [Record("t", 0, offset, 0, b"k", b"x" * size) for offset in offsets]


def offsets(found: list[Record]) -> list[int]:
    return [record.offset for record in found]


def test_a_second_reader_is_served_what_the_first_has_read() -> None:
    window = Window(5)
    window.put(records(5, 6, 7))

    assert offsets(window.take(5, 2, 1000)) == [5, 6]
    assert offsets(window.take(5, 9, 1000)) == [5, 6, 7]
    assert window.covers(5)
    assert window.covers(8)
    assert not window.covers(9)
    assert not window.covers(4)


def test_records_that_come_again_are_not_taken_twice() -> None:
    window = Window(0)
    window.put(records(0, 1))
    window.put(records(0, 1))
    window.put(records(1, 2))

    assert offsets(window.take(0, 9, 1000)) == [0, 1, 2]


def test_bytes_bound_a_read_but_it_has_one_record_at_least() -> None:
    window = Window(0)
    window.put(records(*range(10), size=99))

    assert offsets(window.take(0, 9, 250)) == [0, 1]
    assert offsets(window.take(4, 9, 1)) == [4]


def test_what_is_far_behind_is_forgotten_and_what_is_ahead_is_counted() -> None:
    window = Window(0)
    for first in range(0, 20_000, 1000):
        window.put(records(*range(first, first + 1000), size=400))

    before = window.ahead_bytes()
    window.take(0, 15_000, AHEAD_BYTES)

    assert before > AHEAD_BYTES
    assert window.ahead_bytes() * 4 == before
    assert 15_000 - BEHIND_BYTES // 1000 - 1000 <= window.low <= 15_000
    assert offsets(window.take(15_000, 2, 10_000)) == [15_000, 15_001]


@given(st.lists(st.integers(1, 1200), min_size=1, max_size=8), st.sets(st.integers(0, 3000)), st.integers(1, 1500), st.integers(0, 3000))
def test_reading_on_gives_every_record_once_whatever_the_chunks_and_gaps(runs: list[int], gaps: set[int], most: int, start: int) -> None:
    window = Window(0)
    present: list[int] = []
    at = 0
    for run in runs:
        part = [offset for offset in range(at, at + run) if offset not in gaps]
        if part:
            window.put(records(*part))
        present += part
        at += run

    seen: list[int] = []
    offset = start
    while found := window.take(offset, most, 1 << 20):
        seen += offsets(found)
        offset = found[-1].offset + 1

    assert seen == [each for each in present if each >= start]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_what_all_have_read_is_kept_up_to_a_bound_and_nothing_else_is_dropped(steps: list[tuple[bool, int]]) -> None:
    size = RECORD_BYTES + 11
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_window, "BEHIND_BYTES", 9 * size)
        patch.setattr(kafka_window, "CHUNK_RECORDS", 4)
        window, written, read = Window(0), 0, 0
        for puts, count in steps:
            if puts:
                window.put(records(*range(written, written + count)))
                written += count
            else:
                read += len(window.take(read, count, 1 << 20))
            # Asked of a copy, as to read is to have read.
            assert offsets(deepcopy(window).take(window.low, written + 1, 1 << 20)) == list(range(window.low, written))
            longest = 4 + 12  # A chunk is whole with what made it so.
            assert min(read, 9) - longest <= read - window.low <= 9 + longest
