"""Whoever goes through a log in one of the common ways meets every record once, in the order that was asked for."""

from __future__ import annotations

import pytest

from streams.log.base import Message, Partition, Record, TopicSpec
from streams.log.memory import MemoryLog
from streams.log.reading import backwards, by_time, partition_records, places, topic_records


@pytest.fixture
def log() -> MemoryLog:
    """A topic `two` of two partitions with seven records in each, and an empty one."""
    log = MemoryLog([TopicSpec("two", 2), TopicSpec("one", 1)])
    log.append([Message("two", b"k", str(number).encode(), partition=partition) for number in range(7) for partition in range(2)])
    return log


def test_places_are_those_of_the_topics_that_are_there_in_the_order_asked_for(log: MemoryLog) -> None:
    assert places(log, "one", "none", "two") == [Partition("one", 0), Partition("two", 0), Partition("two", 1)]


def test_records_come_partition_by_partition_from_what_is_at_hand(log: MemoryLog) -> None:
    log.truncate("two", 1, 3)

    assert [record.offset for record in topic_records(log, "two")] == [*range(7), *range(3, 7)]
    assert [record.offset for record in topic_records(log, "two", last=2)] == [5, 6, 5, 6]
    assert [record.offset for record in partition_records(log, "two", 1, last=5)] == [3, 4, 5, 6]
    assert list(topic_records(log, "none")) == []


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_backwards_is_the_other_way_round_however_much_is_read_at_a_time(log: MemoryLog, batch: int) -> None:
    assert [record.offset for record in backwards(log, Partition("two", 0), 2, 6, batch)] == [5, 4, 3, 2]
    assert list(backwards(log, Partition("two", 0), 6, 6, batch)) == []


def test_partitions_are_merged_by_time_and_each_keeps_its_own_order_though_its_clock_went_back() -> None:
    times = {0: [10, 40, 20, 50], 1: [30, 45]}
    found = by_time([Record("two", number, offset, time_ms, b"", b"") for offset, time_ms in enumerate(of)] for number, of in times.items())

    assert [(record.partition, record.offset) for record in found] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]
