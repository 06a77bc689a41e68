"""Records that have to be read again: where a leader's epoch rises, and where a consumer begins anew behind what was read before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Message as Fetched

from schemas.topics import CLAIMS, REQUESTS
from streams.log.base import Partition, Record
from streams.log.kafka_client import Clients
from streams.log.kafka_fetch import CONSUME_RECORDS, Fetcher
from streams.log.kafka_rewound import Memory, Prover, Rewound, not_at_hand
from streams.log.kafka_settings import KafkaSettings

PLACE = Partition(CLAIMS, 0)
SETTINGS = KafkaSettings(bootstrap="nobody:1", prefix="p")


class Message:
    """What the client has of a record: which leader took it."""

    def __init__(self, epoch: int | None) -> None:
        self._epoch = epoch

    def leader_epoch(self) -> int | None:
        return self._epoch


def fetch(memory: Memory, begin: int, *epochs: int | None, begins: bool = False, topic: str = CLAIMS) -> list[int]:
    """Fetch records from an offset on, one of each of these epochs; returns which offsets are doubted then, and forgets them."""
    records = [Record(topic, 0, begin + number, 1, b"k", b"v") for number in range(len(epochs))]
    memory.note(Partition(topic, 0), records, [Message(epoch) for epoch in epochs], begins=begins)
    return [record.offset for record in memory.doubted.pop(Partition(topic, 0), [])]


def test_nothing_is_doubted_while_one_leader_is_read_in_a_row() -> None:
    memory = Memory()

    doubted = [fetch(memory, 0, 3, 3, 3, begins=True), fetch(memory, 3, 3), fetch(memory, 4, 3, 3)]

    assert doubted == [[], [], []]


def test_the_last_record_of_a_leader_is_doubted_when_the_next_leader_is_read() -> None:
    memory = Memory()
    fetch(memory, 0, 3, 3, 3, begins=True)

    doubted = [fetch(memory, 3, 4), fetch(memory, 4, 4, 4, 6, 7, 7), fetch(memory, 9, 7)]

    assert doubted == [[2], [5, 6], []]


def test_what_another_consumer_reads_below_what_was_read_is_not_doubted_and_what_it_reads_above_is() -> None:
    memory = Memory()
    fetch(memory, 0, 3, 3, 3, 3, 3, begins=True)

    doubted = [fetch(memory, 1, 3, begins=True), fetch(memory, 2, 3, 3), fetch(memory, 4, 3, 3), fetch(memory, 6, 3, begins=True)]

    assert doubted == [[], [], [], [5]]


def test_what_was_read_is_doubted_where_a_row_goes_from_below_it_to_another_leader_s_above() -> None:
    memory = Memory()
    fetch(memory, 0, 3, 3, 3, 3, 3, begins=True)

    assert fetch(memory, 1, 3, 4, 4, 4, 4, 4) == [4, 1]


def test_both_are_doubted_where_leaders_changed_more_than_once_since() -> None:
    memory = Memory()
    fetch(memory, 0, 3, 3, 3, begins=True)

    assert fetch(memory, 3, 4, 4, 5, begins=True) == [2, 4]


def test_doubts_stay_until_they_are_dealt_with() -> None:
    memory = Memory()
    fetch(memory, 0, 3, begins=True)
    memory.note(PLACE, [Record(CLAIMS, 0, 1, 1, b"k", b"v")], [Message(4)], begins=False)
    memory.note(PLACE, [Record(CLAIMS, 0, 2, 1, b"k", b"v")], [Message(5)], begins=False)

    assert [record.offset for record in memory.doubted[PLACE]] == [0, 1]


def test_where_no_number_rests_on_it_and_of_brokers_that_name_no_leaders_nothing_is_doubted() -> None:
    memory = Memory()

    requests = [fetch(memory, 0, 3, begins=True, topic=REQUESTS), fetch(memory, 1, 4, topic=REQUESTS)]
    unnamed = [fetch(memory, 0, None, None, begins=True), fetch(memory, 2, None)]

    assert requests + unnamed == [[], [], [], []]


def test_an_offset_that_is_refused_though_it_is_at_hand_was_read_of_another_log() -> None:
    assert type(not_at_hand(PLACE, 25, 0, 30)) is Rewound
    assert str(not_at_hand(PLACE, 2, 6, 10)).startswith("claims/0@2: at hand are offsets 6 to 9; the others were archived, or deleted")


def test_an_offset_behind_the_end_is_told_with_all_that_may_have_been_and_with_what_to_do() -> None:
    said = str(not_at_hand(PLACE, 25, 0, 15))

    assert said.startswith(
        "claims/0@25: at hand are offsets 0 to 14; where there were more, the topic was deleted and made anew, or records "
    )
    assert said.endswith("a process that read on here is to be started again, and begins anew with what is there")


class Reader:
    """A consumer that has what is put into `comes`."""

    def __init__(self, *comes: Fetched) -> None:
        self.comes = list(comes)

    def consume(self, count: int, timeout_seconds: float) -> list[Fetched]:
        del timeout_seconds
        found, self.comes = self.comes[:count], self.comes[count:]
        return found

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: SimpleNamespace(topics=())


def test_what_one_consumer_reads_on_is_not_doubted_though_all_before_was_handed_out_and_forgotten() -> None:
    memory = Memory()
    fetcher = Fetcher(cast(Any, Reader()), SETTINGS, {}, memory)

    def fetch_and_take(begin: int, count: int) -> None:
        found = [Record(CLAIMS, 0, begin + number, 1, b"k", b"v") for number in range(count)]
        fetcher._put(PLACE, found, cast(Any, [Message(0)] * count))
        assert len(fetcher.windows[PLACE].take(begin, count, 1 << 30)) == count

    fetcher.follow({PLACE: 0})
    for begin in (0, CONSUME_RECORDS, 2 * CONSUME_RECORDS):
        fetch_and_take(begin, CONSUME_RECORDS)
    assert fetcher.windows[PLACE].low == 3 * CONSUME_RECORDS, "nothing of it is held any more"
    assert memory.doubted == {}

    fetcher.follow({PLACE: 3 * CONSUME_RECORDS})
    fetch_and_take(3 * CONSUME_RECORDS, 1)

    assert [record.offset for record in memory.doubted[PLACE]] == [3 * CONSUME_RECORDS - 1]


def test_what_is_doubted_is_read_again_and_has_to_be_the_same() -> None:
    def there(offset: int) -> Fetched:
        return Fetched(topic="p.claims", partition=0, offset=offset, key=b"k", value=b"v%d" % offset, timestamp=(2, 1))

    reader = Reader()
    clients = Clients(SETTINGS)
    clients.consumer = lambda **_: cast(Any, reader)  # type: ignore[method-assign]
    prover = Prover(clients)
    for offset in range(3):
        prover.memory.doubted[PLACE] = [Record(CLAIMS, 0, offset, 1, b"k", b"v%d" % offset)]
        reader.comes.append(there(offset))
        prover.prove(PLACE)
    assert prover.memory.doubted == {}

    prover.memory.doubted[PLACE] = [Record(CLAIMS, 0, 3, 1, b"k", b"another")]
    reader.comes.append(there(3))
    with pytest.raises(Rewound, match="claims/0: the log has another record at offset 3"):
        prover.prove(PLACE)
