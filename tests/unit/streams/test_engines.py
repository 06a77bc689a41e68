"""Where a group of the stream processor stands: stored seldom, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from schemas.codec import encode
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import DEAD_LETTERS, LIFECYCLE, REQUESTS
from streams.engines import COMMIT_EVERY_SECONDS, RENEWED_SECONDS, Carrier, Reader, Watcher
from streams.ledger_topics import open_ledger
from streams.log.base import NO_RECORD, LogUnreachable, Message, TopicMismatch
from streams.log.memory import MemoryLog
from streams.reconciler import CARRIERS

GROUP = "readers"


class Moment:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.seconds = 5.0

    def __call__(self) -> float:
        return self.seconds


def ledger() -> MemoryLog:
    log = MemoryLog()
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    return log


def said(log: MemoryLog, topic: str, count: int) -> None:
    log.append([Message(topic, b"k", b"not json") for _ in range(count)])


def go_on(reader: Reader) -> None:
    reader.advance(reader.read(0))
    reader.commit()


def test_a_group_stores_where_it_stands_once_a_second_at_most() -> None:
    log, clock = ledger(), Moment()
    reader = Reader(log, GROUP, REQUESTS, clock)
    stored = []

    for step_seconds in (0.0, 0.4, 0.5, COMMIT_EVERY_SECONDS, 0.1):
        clock.seconds += step_seconds
        said(log, REQUESTS, 1)
        go_on(reader)
        stored.append(log.committed(GROUP, REQUESTS))

    assert stored == [{0: 1}, {0: 1}, {0: 1}, {0: 4}, {0: 4}]


def test_what_was_not_stored_yet_is_stored_later_though_nothing_more_comes() -> None:
    log, clock = ledger(), Moment()
    reader = Reader(log, GROUP, REQUESTS, clock)
    for _ in range(2):
        said(log, REQUESTS, 1)
        go_on(reader)
    before = log.committed(GROUP, REQUESTS)

    clock.seconds += COMMIT_EVERY_SECONDS
    reader.commit()

    assert (before, log.committed(GROUP, REQUESTS)) == ({0: 1}, {0: 2})


def test_what_a_broker_may_forget_is_stored_again_each_day_though_nothing_comes() -> None:
    log, clock = ledger(), Moment()
    reader = Reader(log, GROUP, REQUESTS, clock)
    said(log, REQUESTS, 1)
    go_on(reader)
    log.commit(GROUP, REQUESTS, {0: 0})
    stored = []

    for step_seconds in (RENEWED_SECONDS, COMMIT_EVERY_SECONDS):
        clock.seconds += step_seconds
        reader.commit()
        stored.append(log.committed(GROUP, REQUESTS))

    assert stored == [{0: 0}, {0: 1}]


@pytest.mark.parametrize(("engine", "topic", "group"), [(Carrier, LIFECYCLE, "reconciler"), (Watcher, REQUESTS, "watcher")])
def test_an_engine_that_ends_stores_how_far_it_got(engine: type[Carrier | Watcher], topic: str, group: str) -> None:
    log = ledger()
    runs = engine(log)
    for _ in range(2):
        said(log, topic, 3)
        assert runs.turn(frozenset({0})) == 3

    runs.close()

    assert log.committed(group, topic) == {0: 6}


class Away(MemoryLog):
    """A log that can be out of reach."""

    is_away = False

    def append(self, messages: Sequence[Message]) -> list[int]:
        if self.is_away:
            raise LogUnreachable("away")
        return super().append(messages)


@pytest.mark.parametrize(("engine", "topic"), [(Carrier, LIFECYCLE), (Watcher, REQUESTS)])
def test_what_stands_where_no_record_is_becomes_no_dead_letter(engine: type[Carrier | Watcher], topic: str) -> None:
    log = ledger()
    log.append([Message(topic, b"", b"", NO_RECORD)])

    read = engine(log).turn(frozenset({0}))

    assert (read, log.end(DEAD_LETTERS, 0)) == (1, 0)


def test_an_engine_that_failed_stores_nothing_that_was_not_carried() -> None:
    log = Away()
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    carrier = Carrier(log)
    said(log, LIFECYCLE, 2)
    carrier.turn(frozenset({0}))
    said(log, LIFECYCLE, 2)
    log.is_away = True
    with pytest.raises(LogUnreachable):
        carrier.turn(frozenset({0}))

    carrier.close()

    assert log.committed("reconciler", LIFECYCLE) == {0: 2}


@pytest.mark.parametrize(("engine", "topic"), [(Carrier, LIFECYCLE), (Watcher, REQUESTS)])
def test_a_letter_is_counted_once_it_is_appended(engine: type[Carrier | Watcher], topic: str) -> None:
    """A full log is tried again and again, with the same records."""
    log, counted = Away(), list[tuple[str, str]]()
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    works = engine(log, count_dead=lambda of, kind: counted.append((of, kind)))
    said(log, topic, 2)

    log.is_away = True
    for _ in range(3):
        with pytest.raises(LogUnreachable):
            works.turn(frozenset({0}))
    before = (list(counted), works.dead)
    log.is_away = False
    works.turn(frozenset({0}))

    assert before == ([], 0)
    assert counted == [(topic, "unreadable")] * 2
    assert (works.dead, log.end(DEAD_LETTERS, 0)) == (2, 2)


@pytest.mark.parametrize("left", [False, True])
def test_only_an_offset_that_is_not_used_is_a_state_that_is_passed_over(*, left: bool) -> None:
    log, told, passed_over = ledger(), list[str](), list[str]()
    said(log, LIFECYCLE, 4)
    log.commit(CARRIERS, LIFECYCLE, {0: 2 if left else 9})
    if left:
        log.truncate(LIFECYCLE, 0, 3)

    Carrier(log, tell=told.append, passed_over=passed_over.append).turn(frozenset({0}))

    assert [sentence for sentence in told if "have left the log" in sentence] == (told if left else [])
    assert [sentence for sentence in passed_over if "the stored offset is discarded" in sentence] == ([] if left else passed_over)
    assert len(told) + len(passed_over) == 1


def test_a_group_that_stands_beyond_the_end_reads_again_from_the_start_and_says_so() -> None:
    log, clock, told = ledger(), Moment(), list[str]()
    said(log, REQUESTS, 3)
    log.commit(GROUP, REQUESTS, {0: 7})
    reader = Reader(log, GROUP, REQUESTS, clock, told.append)

    found = reader.read(0)
    reader.advance(found)
    reader.commit()

    assert [record.offset for record in found] == [0, 1, 2]
    assert log.committed(GROUP, REQUESTS) == {0: 3}
    (sentence,) = told
    assert sentence.startswith("placement-requests/0: readers has read up to 7, but the log ends at 3: it was made anew")
    assert sentence.endswith("the stored offset is discarded, it is read again from 0")


def test_observations_that_left_before_they_were_carried_are_told_also_while_it_runs() -> None:
    log, told = ledger(), list[str]()
    said(log, LIFECYCLE, 2)
    first = Carrier(log, tell=told.append)
    first.turn(frozenset({0}))
    first.close()
    said(log, LIFECYCLE, 3)
    log.truncate(LIFECYCLE, 0, 4)

    second = Carrier(log, tell=told.append)
    second.turn(frozenset({0}))
    said(log, LIFECYCLE, 3)
    log.truncate(LIFECYCLE, 0, 7)
    second.turn(frozenset({0}))

    lost = [f"{LIFECYCLE}/0: the records from {lost} have left the log before {CARRIERS} read them" for lost in ("2 to 3", "5 to 6")]
    assert [sentence.partition(";")[0] for sentence in told] == lost
    assert log.end(DEAD_LETTERS, 0) == 4


def test_offsets_without_a_record_are_told_once_a_run_where_a_mark_of_a_transaction_takes_fewer() -> None:
    log, told = ledger(), list[str]()
    carrier = Carrier(log, tell=told.append)
    for records, lacking in ((1, 1), (1, 6), (0, 30), (1, 0), (2, 0)):
        said(log, LIFECYCLE, records)
        log.append([Message(LIFECYCLE, b"", b"", NO_RECORD)] * lacking)
        carrier.turn(frozenset({0}))

    (sentence,) = told

    assert sentence.startswith(f"{LIFECYCLE}/0: the offsets from 3 to 38 have no record: a compaction or a disk lost them, unless ")
    assert log.end(DEAD_LETTERS, 0) == 5


def test_a_group_at_the_end_has_nothing_to_say() -> None:
    log, told = ledger(), list[str]()
    said(log, REQUESTS, 3)
    log.commit(GROUP, REQUESTS, {0: 3})

    assert Reader(log, GROUP, REQUESTS, tell=told.append).read(0) == []
    assert told == []


@pytest.mark.parametrize("engine", [Carrier, Watcher])
def test_a_topic_that_is_gone_is_named_by_engines_that_read_it(engine: type[Carrier | Watcher]) -> None:
    without = MemoryLog()

    with pytest.raises(TopicMismatch, match="is missing"):
        engine(without).turn(frozenset({0}))
    with pytest.raises(TopicMismatch, match="is missing"):
        Watcher(without).waits(frozenset({0}))


class CountingLog(MemoryLog):
    """Counts how often it is asked for its topics."""

    asked = 0

    def topics(self) -> Mapping[str, int]:
        self.asked += 1
        return super().topics()


def test_the_watcher_asks_for_the_partitions_of_a_topic_and_not_for_those_of_each_record() -> None:
    asked = []
    for count in (1, 100):
        log = CountingLog()
        open_ledger(log, ledger_partitions=1, request_partitions=1)
        request = encode(PlacementRequested(request_id="r", flavor=Flavor(memory_mib=512)))
        log.append([Message(REQUESTS, b"r", request) for _ in range(count)])
        watcher = Watcher(log)
        log.asked = 0
        assert watcher.turn(frozenset({0})) == count
        assert log.end(DEAD_LETTERS, 0) == 0
        asked.append(log.asked)

    assert asked[0] == asked[1]
