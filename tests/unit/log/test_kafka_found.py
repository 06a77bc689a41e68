"""Records that were acknowledged without an offset are found where they stand, whatever others wrote between and behind them."""

from __future__ import annotations

import pytest

from streams.log.base import LogUnreachable, Message, TopicSpec
from streams.log.kafka_found import BATCH_RECORDS, found
from streams.log.kafka_send import UNKNOWN
from streams.log.memory import MemoryLog


def said(*texts: str) -> list[Message]:
    return [Message("one", b"k", text.encode(), partition=0) for text in texts]


def log_with(*texts: str) -> MemoryLog:
    log = MemoryLog()
    log.create([TopicSpec("one", 1)])
    log.append(said(*texts))
    return log


def test_what_the_brokers_said_is_kept_and_the_rest_is_looked_for_before_it() -> None:
    log = log_with("before", "mine", "of others", "mine too", "of others", "known")

    offsets = found(log, said("mine", "mine too", "known"), [0, 0, 0], [UNKNOWN, UNKNOWN, 5])

    assert offsets == [1, 3, 5]


def test_what_was_appended_twice_stands_twice_in_its_order() -> None:
    log = log_with("a", "b", "a", "b", "of others")

    offsets = found(log, said("a", "b", "a", "b"), [0] * 4, [UNKNOWN] * 4)

    assert offsets == [0, 1, 2, 3]


def test_it_is_found_though_others_wrote_much_behind_it() -> None:
    log = log_with("before", "mine", *(f"of others {number}" for number in range(3 * BATCH_RECORDS)))

    assert found(log, said("mine"), [0], [UNKNOWN]) == [1]


def test_where_history_was_archived_it_is_looked_for_in_what_is_left() -> None:
    log = log_with(*(f"archived {number}" for number in range(20)), "mine", "of others")
    log.truncate("one", 0, 20)

    assert found(log, said("mine"), [0], [UNKNOWN]) == [20]
    with pytest.raises(LogUnreachable, match="append the same bytes again"):
        found(log, said("archived 19"), [0], [UNKNOWN])


def test_what_is_not_found_is_to_be_appended_again() -> None:
    log = log_with("of others")

    with pytest.raises(LogUnreachable, match="append the same bytes again"):
        found(log, said("mine"), [0], [UNKNOWN])
