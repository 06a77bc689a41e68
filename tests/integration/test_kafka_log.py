"""What Kafka does its own way, and what goes wrong with brokers: on a real one. The rest is in tests/contract."""

from __future__ import annotations

import gc
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread, Timer, current_thread, main_thread
from types import FrameType
from typing import Any, cast
from uuid import uuid4

import pytest
from confluent_kafka import Message as Delivered
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined] # public, though not in its __all__
from msgspec.structs import replace

from schemas.topics import CLAIMS, REQUESTS, STREAM_PARTITIONS
from streams.cli.exits import Exit, exit_of
from streams.cli.main import run
from streams.cli.reading.open_log import open_log
from streams.ledger_topics import open_ledger
from streams.log import kafka, kafka_fetch, kafka_send
from streams.log.base import (
    Lease,
    LogCutShort,
    LogError,
    LogUnreachable,
    Message,
    OffsetOutOfRange,
    Partition,
    TopicMismatch,
    TopicSpec,
    is_stand_in,
)
from streams.log.copy_mark import mark
from streams.log.kafka import TRUST_SECONDS, KafkaLog
from streams.log.kafka_client import Clients
from streams.log.kafka_fetch import UNREADABLE_HEADERS
from streams.log.kafka_send import Batch
from streams.log.kafka_settings import KafkaSettings
from tests.kafka_broker import Broker, NoBroker, bootstrap

ROOT = Path(__file__).parents[2]
TOPICS = (TopicSpec("claims", 4), TopicSpec("one", 1), TopicSpec("rows", 1, compacted=True))


@pytest.fixture
def settings() -> KafkaSettings:
    return KafkaSettings(bootstrap=bootstrap(), prefix=f"log-{uuid4().hex[:12]}", single_broker=True)


@pytest.fixture
def log(settings: KafkaSettings) -> Iterator[KafkaLog]:
    with KafkaLog.open(settings) as log:
        log.create(TOPICS)
        yield log


@pytest.fixture
def no_collections() -> Iterator[None]:
    """No collection of garbage, and so no callback of one (Hypothesis has one): an interrupt within such a callback reaches nobody."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that a test may stop and kill, if it brings it back."""
    bootstrap()
    own = Broker(tmp_path_factory.mktemp("broker"))
    try:
        own.start()
    except NoBroker as reason:
        pytest.skip(f"no Kafka broker to kill: {reason}")
    yield own
    own.stop()


def numbered(first: int, count: int, topic: str = "one", partition: int = 0) -> list[Message]:
    return [Message(topic, b"k", b"%d" % number, partition=partition) for number in range(first, first + count)]


def everything(log: KafkaLog, topic: str = "one", partition: int = 0, start: int = 0) -> list[bytes]:
    values: list[bytes] = []
    while found := log.read(topic, partition, start):
        values += [record.value for record in found]
        start = found[-1].offset + 1
    return values


WRITER = """
import sys
from streams.log.base import Message
from streams.log.kafka import TRUST_SECONDS, KafkaLog
from streams.log.kafka_send import Batch
from streams.log.kafka_settings import KafkaSettings
address, prefix, writer = sys.argv[1:]
with KafkaLog.open(KafkaSettings(bootstrap=address, prefix=prefix, single_broker=True)) as log:
    for number in range(20):
        log.append([Message("one", b"k", b"%d %d %d" % (int(writer), number, place)) for place in range(7)])
"""


def test_records_of_writers_at_once_are_all_there_each_writer_s_in_order(log: KafkaLog, settings: KafkaSettings) -> None:
    command = [sys.executable, "-c", WRITER, settings.bootstrap, settings.prefix]
    running = [subprocess.Popen([*command, str(writer)], cwd=ROOT) for writer in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]

    seen = [tuple(map(int, value.split())) for value in everything(log)]

    assert len(seen) == 3 * 20 * 7
    for writer in range(3):
        assert [entry for entry in seen if entry[0] == writer] == [(writer, number, place) for number in range(20) for place in range(7)]


@pytest.mark.parametrize("rest_seconds", [kafka_fetch.REST_SECONDS, 0.0], ids=["read on", "let go between the reads"])
def test_reading_anywhere_gives_what_reading_through_gives(
    log: KafkaLog, seed: int, monkeypatch: pytest.MonkeyPatch, rest_seconds: float
) -> None:
    monkeypatch.setattr(kafka_fetch, "REST_SECONDS", rest_seconds)
    monkeypatch.setattr(kafka_fetch, "REST_UNREAD_SECONDS", rest_seconds)
    chance = random.Random(seed)
    log.append([Message("claims", b"k", b"%d %d" % (number % 4, number) + b"x" * 400, partition=number % 4) for number in range(24_000)])
    whole = {partition: everything(log, "claims", partition) for partition in range(4)}

    with KafkaLog.open(log.settings) as other:
        for _ in range(60):
            partition, offset = chance.randrange(4), chance.randrange(6000)
            found = other.read("claims", partition, offset, chance.choice((1, 50, 3000)))
            assert other.end("claims", partition) == 6000
            assert [record.offset for record in found] == list(range(offset, offset + len(found)))
            assert [record.value for record in found] == whole[partition][offset : offset + len(found)]

    assert [len(values) for values in whole.values()] == [6000] * 4


def test_two_readers_of_one_log_do_not_disturb_each_other(log: KafkaLog) -> None:
    log.append(numbered(0, 9000))
    behind, ahead = 0, 8990
    for number in range(9000, 9030):
        log.append(numbered(number, 1))
        near = log.read("one", 0, ahead)
        far = log.read("one", 0, behind, 300)
        assert [record.offset for record in far] == list(range(behind, behind + len(far)))
        ahead, behind = near[-1].offset + 1, behind + len(far)
        assert near[-1].value == b"%d" % number


def test_waiting_readers_are_woken_in_milliseconds(log: KafkaLog, settings: KafkaSettings) -> None:
    log.append(numbered(0, 1))
    took: list[float] = []
    with KafkaLog.open(settings) as other:
        other.append(numbered(1, 1))
        for number in range(2, 12):
            sent: list[float] = []
            timer = Timer(0.06, lambda at=number, sent=sent: (other.append(numbered(at, 1)), sent.append(time.monotonic())))
            timer.start()
            assert log.wait({Partition("one", 0): number, Partition("claims", 1): 0}, 10)
            woken = time.monotonic()
            timer.join()
            took.append(woken - sent[0])

    # Measured: 1 to 2 ms; a machine that does other things as well takes its time.
    assert sorted(took)[len(took) // 2] < 0.05


def test_one_look_leaves_out_only_partitions_of_which_a_read_would_find_nothing(log: KafkaLog, settings: KafkaSettings) -> None:
    one, claims = Partition("one", 0), Partition("claims", 1)

    def news(at: dict[Partition, int], expected: set[Partition]) -> None:
        """The look, right after the broker was asked; a machine that stood still meanwhile tries again."""
        found: set[Partition] | None = None
        for _ in range(20):
            if found != expected:
                log.ends("one")
                found = set(log.news(at))
        assert found == expected

    at = {one: 0, claims: 0}
    assert set(log.news(at)) == {one, claims}  # nobody has asked for them yet
    log.wait(at, 0.0)
    news(at, set())
    news({one: 1, claims: 0}, {one})  # who stands beyond the end has to hear of it, which a read says

    log.append(numbered(0, 1))
    news(at, {one})
    assert [record.value for record in log.read(*one, 0)] == [b"0"]
    with KafkaLog.open(settings) as other:
        other.append(numbered(1, 1, "claims", 1))
    assert log.wait({one: 1, claims: 0}, 10)
    news({one: 1, claims: 0}, {claims})

    time.sleep(TRUST_SECONDS)
    assert set(log.news({one: 1, claims: 1})) == {one, claims}  # the broker is to be asked again
    assert log.read(*one, 1) == []
    news({one: 1, claims: 1}, set())


def test_offsets_without_a_record_are_no_end(log: KafkaLog) -> None:
    """A transaction's marker takes an offset and is no record; so does what compaction dropped."""
    producer = Producer({"bootstrap.servers": log.settings.bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    for value in (b"a", b"b"):
        producer.begin_transaction()
        producer.produce(log.settings.topic("one"), value, b"k", 0)
        producer.commit_transaction(30)

    until = time.monotonic() + 10
    while log.end("one", 0) < 4:
        assert time.monotonic() < until, "the broker writes a marker a moment after it has acknowledged the commit"

    assert [(record.offset, record.value) for record in log.read("one", 0, 1)] == [(2, b"b")]
    assert log.read("one", 0, 3) == []
    assert log.append(numbered(0, 1)) == [4]
    assert [record.offset for record in log.read("one", 0, 3)] == [4]


def test_a_transactions_mark_is_passed_over_among_requests_and_ends_who_reads_claims(log: KafkaLog) -> None:
    log.create([TopicSpec(REQUESTS, 1)])
    producer = Producer({"bootstrap.servers": log.settings.bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in (REQUESTS, CLAIMS):
        producer.produce(log.settings.topic(topic), b"{}", b"k", 0)
    producer.commit_transaction(30)
    until = time.monotonic() + 10
    while log.end(REQUESTS, 0) < 2 or log.end(CLAIMS, 0) < 2:
        assert time.monotonic() < until, "the broker writes a mark a moment after it has acknowledged the commit"

    last_request = log.read(REQUESTS, 0, 1)
    log.append([Message(CLAIMS, b"k", b"{}", partition=0)])

    assert [(record.offset, is_stand_in(record)) for record in last_request] == [(1, True)]
    assert log.wait({Partition(REQUESTS, 0): 2}, 0.01) is False
    assert [record.offset for record in log.read(CLAIMS, 0, 0)] == [0]
    with pytest.raises(LogCutShort, match="claims/0@1: no record has this offset") as failure:
        log.read(CLAIMS, 0, 1)
    assert exit_of(failure.value) == Exit.INCOMPLETE


def test_a_foreign_message_without_key_value_or_header_values_reads_as_empty_ones(log: KafkaLog) -> None:
    producer = Producer({"bootstrap.servers": log.settings.bootstrap})
    producer.produce(log.settings.topic("one"), None, None, 0, headers=[("a", None), ("b", b"1")])
    producer.flush(30)

    (record,) = log.read("one", 0, 0)

    assert (record.key, record.value, record.headers) == (b"", b"", (("a", b""), ("b", b"1")))


HEADER_WITHOUT_TEXT = """
import asyncio, sys
from aiokafka import AIOKafkaProducer
class Name(str):
    def encode(self, *_: object) -> bytes:
        return bytes([255])
async def main() -> None:
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        for number in range(3):
            name = Name("x") if number < 2 else "y"
            await producer.send_and_wait(sys.argv[2], b"%d" % number, partition=0, headers=[(name, b"1")])
asyncio.run(main())
"""


def test_a_header_whose_name_is_no_text_hides_no_record(log: KafkaLog) -> None:
    arguments = [log.settings.bootstrap, log.settings.topic("one")]
    # Only aiokafka's own Python lets such a name through.
    environ = {**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"}
    subprocess.run([sys.executable, "-c", HEADER_WITHOUT_TEXT, *arguments], check=True, env=environ)

    found = log.read("one", 0, 0)

    assert [record.value for record in found] == [b"0", b"1", b"2"]
    assert [record.headers for record in found] == [UNREADABLE_HEADERS, UNREADABLE_HEADERS, (("y", b"1"),)]


def test_times_are_the_broker_s_and_find_their_offsets(log: KafkaLog) -> None:
    for number in range(3):
        log.append(numbered(number, 1))
        time.sleep(0.005)
    times = [record.time_ms for record in log.read("one", 0, 0)]

    assert times == sorted(times)
    assert abs(times[-1] / 1000 - time.time()) < 60
    assert [log.at_time("one", 0, at) for at in (0, times[1], times[1] + 1, times[2] + 1)] == [0, 1, 2, 3]


def test_a_copy_that_was_interrupted_is_opened_by_nobody_but_who_goes_on_with_it(log: KafkaLog, settings: KafkaSettings) -> None:
    spec = f"{settings.place}?single-broker=true"
    mark(log, {"claims": {0: 1}})
    log.take_times(["claims"], of_writers=True)

    with pytest.raises(LogCutShort, match="this copy of a ledger is not complete: claims/0 ends at 0, expected 1"):
        open_log(spec, {}, io.BytesIO())

    open_log(spec, {}, io.BytesIO(), partly_copied=True).close()
    years_ahead_ms = 10 * 365 * 86_400_000 + time.time_ns() // 1_000_000
    log.append_at([Message("claims", b"k", b"1", partition=0)], [years_ahead_ms])
    open_log(spec, {}, io.BytesIO()).close()
    assert [record.time_ms for record in log.read("claims", 0, 0)] == [years_ahead_ms]
    log.take_times(["claims"], of_writers=False)
    log.append([Message("claims", b"k", b"2", partition=0)])
    assert log.read("claims", 0, 1)[0].time_ms < years_ahead_ms


def test_what_another_process_truncated_is_out_of_range(log: KafkaLog, settings: KafkaSettings) -> None:
    log.append(numbered(0, 10))
    with KafkaLog.open(settings) as other:
        other.truncate("one", 0, 6)

    with pytest.raises(OffsetOutOfRange, match="one/0@2: at hand are offsets 6 to 9; the others were archived, or deleted") as raised:
        log.read("one", 0, 2)

    assert exit_of(raised.value) == Exit.INCOMPLETE
    assert everything(log, start=6) == [b"6", b"7", b"8", b"9"]


def test_a_topic_made_anew_under_a_reader_is_noticed(log: KafkaLog) -> None:
    log.append(numbered(0, 10))
    assert len(everything(log)) == 10
    admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
    name = log.settings.topic("one")
    admin.delete_topics([name])[name].result()
    time.sleep(0.5)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    time.sleep(0.5)

    with pytest.raises(OffsetOutOfRange, match="one/0@10"):
        log.read("one", 0, 10)


def test_a_ledger_rewound_under_a_reader_is_noticed_though_it_has_more_records_by_then(log: KafkaLog, settings: KafkaSettings) -> None:
    """A leader without the newest records does that, too. Offsets do not show it, and a consumer that begins anew does not see it."""
    log.append(numbered(0, 10, "claims"))
    assert len(everything(log, "claims")) == 10
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    name = settings.topic("claims")
    admin.delete_topics([name])[name].result()
    time.sleep(0.5)
    admin.create_topics([NewTopic(name, 4, 1)])[name].result()
    time.sleep(0.5)
    assert log.end("claims", 0) == 0
    with KafkaLog.open(settings) as other:
        other.append(numbered(100, 15, "claims"))
        assert len(everything(other, "claims")) == 15, "who has read nothing before reads what is there"

    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match=r"claims/0: the log .* records were lost") as raised:
            log.read("claims", 0, 10)
        assert exit_of(raised.value) == Exit.INCOMPLETE


def test_topics_that_were_made_are_there_though_the_next_broker_that_is_asked_learns_of_them_later(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, seen, unknown_to = log._catalog._told, [0], range(2, 5)

    def told_by_another() -> Any:
        """As one broker says first that the topic is there, and then another three times that it is not."""
        there = told()
        seen[0] += "later" in there
        return {name: topic for name, topic in there.items() if name != "later" or seen[0] not in unknown_to}

    monkeypatch.setattr(log._catalog, "_told", told_by_another)

    log.create([*TOPICS, TopicSpec("later", 3)])
    assert log.topics()["later"] == 3
    assert seen[0] > 4

    unknown_to = range(seen[0] + 1, seen[0] + 4)

    assert log.differences([*TOPICS, TopicSpec("later", 3)]) == []
    assert seen[0] >= unknown_to.stop


def test_who_only_reads_goes_by_the_partitions_of_before_and_sees_that_a_topic_is_gone(
    log: KafkaLog, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.log.kafka.TOPICS_SECONDS", 0.0)
    monkeypatch.setattr("streams.log.kafka_topics.VANISHED_SECONDS", 0.1)
    admin, more, gone = AdminClient({"bootstrap.servers": settings.bootstrap}), settings.topic("claims"), settings.topic("one")
    log.narrow({})

    admin.create_partitions([NewPartitions(more, 6)])[more].result()
    admin.delete_topics([gone])[gone].result()
    until = time.monotonic() + 30
    while "one" in log.topics() and time.monotonic() < until:
        time.sleep(0.1)

    assert (log.topics()["claims"], "one" in log.topics()) == (4, False)


def members(log: KafkaLog, count: int) -> list[Lease]:
    return [log.lease("schedulers", "claims", f"member-{number}", timeout_seconds=2) for number in range(count)]


def settle(leases: list[Lease], shares: list[int]) -> list[frozenset[int]]:
    """Ask until the shares have these sizes."""
    until = time.monotonic() + 30
    while True:
        found = [lease.partitions() for lease in leases]
        if sorted(map(len, found)) == shares:
            return found
        assert time.monotonic() < until, f"shares of sizes {shares} were expected, last seen: {found}"
        time.sleep(0.02)


def test_a_member_says_that_it_waits_for_its_share_until_it_has_the_brokers_word(log: KafkaLog) -> None:
    lease = log.lease("schedulers", "claims", "alone", timeout_seconds=10)
    before = lease.waits_for()

    lease.partitions()

    assert before.startswith("waiting for brokers to share out partitions")
    assert lease.waits_for() == ""


def test_members_divide_partitions_and_take_over_what_is_released(log: KafkaLog) -> None:
    (first,) = members(log, 1)
    alone = first.partitions()
    (second,) = members(log, 1)
    shares = settle([first, second], [2, 2])
    second.release()
    after = settle([first], [4])

    assert alone == frozenset(range(4))
    assert shares[0] | shares[1] == alone
    assert after == [alone]
    assert second.partitions() == frozenset()


@pytest.mark.parametrize("after_seconds", [0.0, 0.2, 0.6])
def test_a_member_that_leaves_soon_after_its_first_answer_keeps_nothing_from_the_others(
    after_seconds: float, log: KafkaLog, settings: KafkaSettings
) -> None:
    with KafkaLog.open(settings) as other:
        (first,) = members(log, 1)
        settle([first], [4])
        stopped = Event()
        looking = Thread(target=lambda: [first.partitions() for _ in iter(lambda: stopped.wait(0.002), True)])
        looking.start()
        try:
            second = other.lease("schedulers", "claims", "second", timeout_seconds=10)
            second.partitions()
            until = time.monotonic() + after_seconds
            while time.monotonic() < until:
                second.partitions()
                time.sleep(0.002)
            began = time.monotonic()
            second.release()
            released = time.monotonic() - began
            while others(other, "member-0") and time.monotonic() - began < 20:
                time.sleep(0.05)
            gone = time.monotonic() - began
        finally:
            stopped.set()
            looking.join()

    assert (released < 3, gone < 6) == (True, True), f"released after {released:.1f} s, gone after {gone:.1f} s"


def others(log: KafkaLog, name: str) -> list[str]:
    """Who shares `claims` beside this one."""
    (found,) = log.members(["schedulers.claims.lease"])
    return [client for client in found.clients if client != name]


def test_a_member_that_is_not_heard_from_loses_its_share(log: KafkaLog, settings: KafkaSettings) -> None:
    (live,) = members(log, 1)
    with KafkaLog.open(settings) as other:
        silent = other.lease("schedulers", "claims", "silent", timeout_seconds=2)
        settle([live, silent], [2, 2])

        assert settle([live], [4]) == [frozenset(range(4))]


def test_a_broker_s_absence_ends_in_an_error_and_appending_again_leaves_no_gap(broker: Broker) -> None:
    settings = KafkaSettings(bootstrap=broker.address, prefix="away", single_broker=True, patience_ms=1500)
    with KafkaLog.open(settings) as log:
        log.create(TOPICS)
        log.append(numbered(0, 10))
        broker.signal(signal.SIGSTOP)
        with pytest.raises(LogUnreachable, match="not acknowledged for 1500 ms") as raised:
            log.append(numbered(10, 2000))
        with pytest.raises(LogUnreachable):
            log.ends("one")
        broker.signal(signal.SIGCONT)
        offsets = _patiently(log, numbered(10, 2000))
        values = [int(value) for value in everything(log)]

    assert exit_of(raised.value) == Exit.UNREACHABLE
    # What was on its way may have landed before; the first copy of each number stands in order and the last append is whole.
    assert list(dict.fromkeys(values)) == list(range(2010))
    assert [values[offset] for offset in offsets] == list(range(10, 2010))


def landed(batch: Batch, seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not batch.landed() and time.monotonic() < until:
        time.sleep(0.005)
    return batch.landed()


def test_what_is_begun_lands_in_its_order_without_being_waited_for(log: KafkaLog) -> None:
    batches = [log.begin(numbered(first, 10)) for first in range(0, 100, 10)]
    log.append(numbered(100, 1))

    assert all(map(landed, batches))
    assert [batch.ends for batch in batches] == [{Partition("one", 0): end} for end in range(10, 101, 10)]
    assert batches[3].offsets() == list(range(30, 40))
    assert everything(log) == [b"%d" % number for number in range(101)]


def test_of_what_is_under_way_when_the_broker_is_away_all_is_given_up_and_leaves_no_gap_when_appended_again(broker: Broker) -> None:
    settings = KafkaSettings(bootstrap=broker.address, prefix="under-way", single_broker=True, patience_ms=1500)
    with KafkaLog.open(settings) as log:
        log.create(TOPICS)
        log.append(numbered(0, 10))
        broker.signal(signal.SIGSTOP)
        try:
            first, second = log.begin(numbered(10, 500)), log.begin(numbered(510, 500))
            with pytest.raises(LogUnreachable, match="not acknowledged for 1500 ms"):
                landed(first)
            with pytest.raises(LogUnreachable, match="given up with what was sent beside it"):
                second.landed()
        finally:
            broker.signal(signal.SIGCONT)
        offsets = _patiently(log, numbered(10, 1000))
        values = [int(value) for value in everything(log)]

    assert list(dict.fromkeys(values)) == list(range(1010))
    assert [values[offset] for offset in offsets] == list(range(10, 1010))


def test_a_broker_killed_and_started_again_within_the_patience_is_only_a_pause(broker: Broker) -> None:
    with KafkaLog.open(KafkaSettings(bootstrap=broker.address, prefix="again", single_broker=True)) as log:
        log.create(TOPICS)
        log.append(numbered(0, 100))
        at_end = log.read("one", 0, 100)
        log.commit("g", "one", {0: 100})
        broker.kill()
        log.commit_soon("soon", "one", {0: 100})
        again = Timer(0.5, broker.again)
        again.start()
        offsets = log.append(numbered(100, 100))
        again.join()
        # The admin client would wait for ever here, and might abort the process.
        log.commit("g", "one", {0: 200})
        stored = log.committed("g", "one")

        assert (at_end, stored) == ([], {0: 200})
        assert _stored(log, "soon", {0: 100}) == {0: 100}
        assert offsets == list(range(100, 200))
        assert everything(log) == [b"%d" % number for number in range(200)]


def test_what_is_committed_soon_is_stored_without_being_waited_for(log: KafkaLog) -> None:
    log.append(numbered(0, 30))
    log.commit_soon("g", "one", {0: 10})
    log.commit_soon("g", "claims", {1: 0})
    stored = _stored(log, "g", {0: 10})
    log.commit("g", "one", {0: 30})
    log.commit_soon("g", "one", {})

    assert stored == {0: 10}
    assert (log.committed("g", "one"), log.committed("g", "claims")) == ({0: 30}, {1: 0})


def _stored(log: KafkaLog, group: str, wanted: dict[int, int]) -> dict[int, int]:
    """What is stored of topic `one` once that is what is wanted; seen to now and then, as a scheduler does."""
    until = time.monotonic() + 30
    while (found := log.committed(group, "one")) != wanted and time.monotonic() < until:
        log.commit_soon(group, "one", {})
        time.sleep(0.05)
    return found


def _patiently(log: KafkaLog, messages: list[Message]) -> list[int]:
    for _ in range(10):
        try:
            return log.append(messages)
        except LogUnreachable:
            time.sleep(0.2)
    return log.append(messages)


def test_a_queue_that_is_full_slows_the_writer_and_loses_nothing(settings: KafkaSettings) -> None:
    with KafkaLog.open(replace(settings, options={"queue.buffering.max.messages": "50"})) as log:
        log.create(TOPICS)

        offsets = log.append(numbered(0, 1000))

        assert offsets == list(range(1000))
        assert everything(log) == [b"%d" % number for number in range(1000)]


def test_a_record_that_is_too_large_is_refused_before_its_batch_is_sent(log: KafkaLog) -> None:
    with pytest.raises(LogError, match=r"larger than the 1000000 of message\.max\.bytes") as raised:
        log.append([*numbered(0, 1), Message("one", b"k", b"x" * 1_000_000)])

    assert exit_of(raised.value) == Exit.ERROR
    assert log.end("one", 0) == 0
    assert log.append([Message("one", b"k", b"x" * 990_000)]) == [0]


def test_a_single_broker_has_to_be_meant(settings: KafkaSettings) -> None:
    with KafkaLog.open(replace(settings, single_broker=False)) as log:
        with pytest.raises(LogError, match=r"has 1 broker, and 3 are needed .*\?single-broker"):
            log.create(TOPICS)
        assert dict(log.topics()) == {}


def test_topics_that_would_lose_records_are_refused(log: KafkaLog, capsys: pytest.CaptureFixture[str]) -> None:
    admin = AdminClient({"bootstrap.servers": log.settings.bootstrap})
    name = log.settings.topic("placement-requests")
    config = {"cleanup.policy": "compact", "retention.ms": "3600000"}
    admin.create_topics([NewTopic(name, 2, 1, config=config)])[name].result()
    spec = TopicSpec("placement-requests", 2)

    with pytest.raises(
        TopicMismatch, match=r"cleanup\.policy is compact, not delete; .*retention\.ms is 3600000, not -1; `claimlog topics check`"
    ):
        log.create([spec])
    assert run(["topics", "check", "--log", f"{log.settings.place}?single-broker"]) == Exit.FINDINGS
    command = f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config cleanup.policy=delete,retention.ms=-1\n"
    assert command in capsys.readouterr().err

    assert log.differences([TopicSpec("claims", 4)]) == []
    assert "partitions" in {difference.setting for difference in log.differences([replace(spec, partitions=3)])}


def test_ledgers_with_different_prefixes_do_not_meet(log: KafkaLog, settings: KafkaSettings) -> None:
    log.append(numbered(0, 3))
    with KafkaLog.open(replace(settings, prefix=f"{settings.prefix}-b")) as other:
        other.create([TopicSpec("one", 1)])

        assert dict(other.topics()) == {"one": 1}
        assert other.end("one", 0) == 0
        assert other.ledger_id != log.ledger_id


def test_two_ledgers_whose_groups_would_be_called_alike_are_not_made_on_one_cluster(broker: Broker) -> None:
    ledger = [TopicSpec(CLAIMS, 1), TopicSpec(STREAM_PARTITIONS, 1)]
    settings = KafkaSettings(bootstrap=broker.address, single_broker=True)

    with KafkaLog.open(settings) as one, KafkaLog.open(replace(settings, prefix="claimlog")) as other:
        one.create(ledger)
        with pytest.raises(TopicMismatch, match=r"consumer groups are called alike, claimlog\.…: .*Take another prefix"):
            other.create(ledger)
        one.create([*ledger, TopicSpec("one", 1)])

        assert other.topics() == {}
    assert replace(settings, prefix="claimlog").same_groups() == settings
    assert replace(settings, prefix="fleet").same_groups() is None


def test_where_brokers_ask_nobody_who_he_is_everybody_may_write(log: KafkaLog) -> None:
    assert log.may_write("one")


def test_an_address_where_nobody_answers_is_unreachable() -> None:
    started = time.monotonic()

    with pytest.raises(LogUnreachable, match=r"kafka://127\.0\.0\.1:9/x") as raised:
        KafkaLog.open(KafkaSettings(bootstrap="127.0.0.1:9", prefix="x", patience_ms=500))

    assert exit_of(raised.value) == Exit.UNREACHABLE
    assert time.monotonic() - started < 5


class Deaf:
    """A consumer to which nothing comes any more; all else it does."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def consume(self, _: int, timeout_seconds: float) -> list[Any]:
        time.sleep(timeout_seconds)
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_a_consumer_that_waits_for_a_partition_for_good_is_replaced(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaLog.open(replace(settings, patience_ms=5000)) as log, KafkaLog.open(settings) as other:
        log.create(TOPICS)
        assert everything(log) == []
        monkeypatch.setattr(kafka, "RENEWED_SECONDS", 4.0)
        tail = log._tail
        assert tail is not None
        # What it looks like after some bad networks: the partition is ours, and nothing of it comes.
        tail._consumer = cast(Any, Deaf(tail._consumer))
        other.append(numbered(0, 3))

        while not log.read("one", 0, 0):
            pass  # The end as it was a moment ago is trusted for that long.

        assert everything(log) == [b"0", b"1", b"2"]
        assert log._tail is not tail

        # Where nothing comes of another one either, that is said, and the next read tries once more.
        made = log._clients.consumer
        monkeypatch.setattr(log._clients, "consumer", lambda **config: Deaf(made(**config)))
        log._tail, log._history = None, None
        with pytest.raises(LogUnreachable, match=r"one/0@0 has not come so far, though the end is 3\. Check the partition's leader"):
            log.read("one", 0, 0)
        monkeypatch.undo()
        assert everything(log) == [b"0", b"1", b"2"]


def test_who_is_to_end_waits_no_longer_for_a_record_than_that_may_take(settings: KafkaSettings) -> None:
    with KafkaLog.open(settings) as log, KafkaLog.open(settings) as other:
        log.create(TOPICS)
        assert everything(log) == []
        tail = log._tail
        assert tail is not None
        tail._consumer = cast(Any, Deaf(tail._consumer))
        other.append(numbered(0, 3))
        began = time.monotonic()
        Timer(0.5, log.hurry, (1.0,)).start()

        with pytest.raises(LogUnreachable, match="has not come so far"):
            while not log.read("one", 0, 0):
                pass

        assert time.monotonic() - began < 4.0, "and not until another consumer has found its topics"


def test_a_ledger_is_not_copied_onto_itself_by_another_address(
    log: KafkaLog, settings: KafkaSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    spec, twice = (f"kafka://{','.join([settings.bootstrap] * times)}/{settings.prefix}?single-broker=true" for times in (1, 2))

    code = run(["copy", twice, "--log", spec])

    assert code == Exit.USAGE
    assert "this is the log itself" in capsys.readouterr().err
    assert not log.has_times_of_writers()
    assert log.topic_id("no-such-topic") == ""


@pytest.mark.usefixtures("no_collections")
def test_who_is_interrupted_while_it_sends_is_interrupted(log: KafkaLog) -> None:
    messages = [replace(each, headers=(("ce_id", b"1"),) * 8) for each in numbered(0, 2000)]
    before = signal.signal(signal.SIGALRM, interrupt_an_append)
    try:
        for _ in range(6):
            # Again after a second, as people do: the client may lose one altogether, within an acknowledgement.
            signal.setitimer(signal.ITIMER_REAL, 0.01, 1.0)
            with pytest.raises(KeyboardInterrupt):
                while True:
                    log.append(messages)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert log.append(numbered(0, 1))


@pytest.mark.usefixtures("no_collections")
def test_who_is_interrupted_while_it_waits_for_records_is_interrupted_soon(log: KafkaLog) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    log.append(numbered(0, 1))
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            log.wait({Partition("one", 0): 1}, 30.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert time.monotonic() - began < 5


def test_a_client_is_made_where_no_interrupt_can_be_taken_for_a_wrong_setting(settings: KafkaSettings) -> None:
    made: list[Thread] = []

    def make(_config: dict[str, Any]) -> None:
        made.append(current_thread())

    Clients(settings)._made(make)

    assert made != [main_thread()]


def interrupt_an_append(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt within an append only: its client may take a second to end, when the interrupt was heard already."""
    while frame is not None:
        if frame.f_code is KafkaLog.append.__code__:
            signal.default_int_handler(number, frame)
        frame = frame.f_back


class Unsaid:
    """An acknowledgement that does not say where the record stands, as one is that the next batch's acknowledgement stands for."""

    def __init__(self, message: Delivered) -> None:
        self._message = message

    def offset(self) -> None:
        """The client has none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def test_where_a_record_stands_is_told_though_its_acknowledgement_does_not_say_it(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, note = [0], kafka_send._Landing.note

    def note_without_offset(landing: Any, error: Any, message: Any) -> None:
        heard[0] += 1
        note(landing, error, Unsaid(message) if heard[0] <= 3 else message)  # type: ignore[arg-type]

    log.append(numbered(0, 9))
    monkeypatch.setattr(kafka_send._Landing, "note", note_without_offset)

    assert log.append(numbered(9, 5)) == [9, 10, 11, 12, 13]


@pytest.mark.parametrize("verb", [("claims", "list"), ("leaks",), ("nodes",), ("events",)], ids=" ".join)
def test_a_prefix_that_nobody_has_a_ledger_under_is_said_to_have_none(
    settings: KafkaSettings, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*verb, "--log", f"kafka://{settings.bootstrap}/nosuch?single-broker=true"])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert "this log has no ledger" in said.err
