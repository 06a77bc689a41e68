"""Three brokers within this process: those that librdkafka brings for its own tests. They lose and lead what a test tells them to.

They start in milliseconds and keep records in memory; for what only real brokers do there is `tests.kafka_broker`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

PRODUCER = 0
"""The type of the client that a cluster hangs on."""
WHY_BYTES = 512
REFUSALS = 5000


class Cluster:
    """Brokers 1 to 3. Made by `cluster`."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library, self._handle = library, ctypes.c_void_p(handle)

    @property
    def address(self) -> str:
        """Where its brokers are, as clients have it."""
        bootstraps = self._library.rd_kafka_mock_cluster_bootstraps
        bootstraps.restype = ctypes.c_char_p
        return str(bootstraps(self._handle).decode())

    def topic(self, name: str, partitions: int) -> None:
        """Make a topic with a copy on each broker."""
        assert self._library.rd_kafka_mock_topic_create(self._handle, name.encode(), partitions, 3) == 0

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Let a broker lead a partition."""
        assert self._library.rd_kafka_mock_partition_set_leader(self._handle, topic.encode(), partition, broker) == 0

    def lose(self, broker: int) -> None:
        """A broker is gone; what it led it still leads."""
        assert self._library.rd_kafka_mock_broker_set_down(self._handle, broker) == 0

    def find(self, broker: int) -> None:
        """A broker is back."""
        assert self._library.rd_kafka_mock_broker_set_up(self._handle, broker) == 0

    def refuse(self, request: int, error: int) -> None:
        """Answer the next requests of a kind, by its number in Kafka's protocol, with an error: more of them than any test makes."""
        errors = (ctypes.c_int * REFUSALS)(*[error] * REFUSALS)
        push = self._library.rd_kafka_mock_push_request_errors_array
        push(self._handle, ctypes.c_int16(request), ctypes.c_size_t(REFUSALS), errors)

    def answer(self, request: int) -> None:
        """Requests of a kind are answered again as they should be."""
        self._library.rd_kafka_mock_clear_request_errors(self._handle, ctypes.c_int16(request))


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Three brokers, gone when this ends."""
    found = next(Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*"))
    library = ctypes.CDLL(str(found))
    for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    why, conf = ctypes.create_string_buffer(WHY_BYTES), ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"log_level", b"0", why, WHY_BYTES)
    client = library.rd_kafka_new(PRODUCER, conf, why, WHY_BYTES)
    assert client, why.value
    handle = library.rd_kafka_mock_cluster_new(ctypes.c_void_p(client), 3)
    try:
        yield Cluster(library, handle)
    finally:
        library.rd_kafka_mock_cluster_destroy(ctypes.c_void_p(handle))
        library.rd_kafka_destroy(ctypes.c_void_p(client))
