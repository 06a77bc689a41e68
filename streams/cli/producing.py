"""What the verbs of `produce` share: a log to publish into, and which epoch a producer used last."""

from __future__ import annotations

from collections.abc import Callable

from producers.source import Said
from schemas.codec import Unreadable, decode_keyed
from schemas.envelope import Headers
from streams.log.base import Log, Message

TAIL_RECORDS = 5_000
"""How far back the last epoch is looked for. Farther back it matters only if this machine's clock went back beyond its record there."""


def publisher(log: Log) -> Callable[[str, bytes, bytes, Headers], None]:
    """A `publish` for sources: each record durable before it returns."""

    def publish(topic: str, key: bytes, value: bytes, headers: Headers) -> None:
        log.append([Message(topic, key, value, headers)])

    return publish


def message(said: Said) -> Message:
    """An observation as a message for a batch."""
    return Message(said.topic, said.key, said.value, said.headers)


def last_epoch(log: Log, producer: str) -> Callable[[str, str], int | None]:
    """Looks up the highest epoch of `producer` for a node among the newest records of the node's partition."""

    def look(topic: str, node_id: str) -> int | None:
        key = node_id.encode()
        partition = log.partition(topic, key)
        end = log.end(topic, partition)
        offset = max(log.start(topic, partition), end - TAIL_RECORDS)
        epochs: list[int] = []
        while offset < end and (records := log.read(topic, partition, offset)):
            offset = records[-1].offset + 1
            for record in records:
                if record.key == key:
                    event = decode_keyed(topic, key, record.value)
                    if not isinstance(event, Unreadable) and event.producer == producer:
                        epochs.append(event.epoch)
        return max(epochs, default=None)

    return look
