"""Keys go where Kafka's own clients put them."""

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, Message, Producer

from schemas.partitioner import murmur2, partition_of

# From the tests of Kafka's Java client (as signed numbers there) and of librdkafka.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 0x106E08D9,
    b"kafka": 0xD067CF64,
    b"1234": 0x9FC97B14,
    b"234": 0xE7C009CA,
}


@pytest.mark.parametrize(("key", "known"), KNOWN.items())
def test_the_hash_is_that_of_kafkas_java_client(key: bytes, known: int) -> None:
    assert murmur2(key) == known % (1 << 32)


def test_the_sign_is_dropped_and_not_negated() -> None:
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_one_partition_takes_every_key() -> None:
    assert {partition_of(b"%d" % number, 1) for number in range(50)} == {0}


def test_librdkafka_agrees_on_its_own_broker() -> None:
    settings = {"bootstrap.servers": "", "test.mock.num.brokers": 1, "partitioner": "murmur2", "log_level": 0}
    producer = Producer({name: value for name, value in settings.items() if value != ""})
    partitions = len(_partitions(producer, "keys"))
    keys = [b"node-%d" % number for number in range(60)] + [b"\xff" * size for size in range(1, 9)]
    where: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert error is None
        assert isinstance(key, bytes)
        assert partition is not None
        where[key] = partition

    for key in keys:
        producer.produce("keys", key=key, value=b"v", on_delivery=delivered)
    assert producer.flush(20) == 0

    assert partitions > 1
    assert where == {key: partition_of(key, partitions) for key in keys}


def _partitions(producer: Producer, topic: str) -> "list[int]":
    """The partitions of a topic, which the broker makes when it is first produced to."""
    made: Future[None] = Future()
    producer.produce(topic, key=b"first", value=b"v", on_delivery=lambda *_: made.set_result(None))
    assert producer.flush(20) == 0
    made.result(20)
    return list(producer.list_topics(topic, timeout=20).topics[topic].partitions)
