"""Which partition a key belongs to: murmur2 exactly as Kafka's Java client has it, so that every client puts a key in the same place.

An empty key is a key like any other. (A *missing* key, which other clients scatter at random, does not exist here: `Message.key` is bytes.)
librdkafka's own default is CRC32: its producers need `partitioner=murmur2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import unpack_from

from streams.log.base import Message, TopicMismatch, TopicSpec

# The three constants of Kafka's DefaultPartitioner (Utils.murmur2); changing one moves every key.
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK_32 = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 of `key`, as an unsigned number."""
    length = len(key)
    words, rest = divmod(length, 4)
    state = _SEED ^ length
    for word in unpack_from(f"<{words}I", key):
        mixed = (word * _MULTIPLIER) & _MASK_32
        mixed = ((mixed ^ (mixed >> _SHIFT)) * _MULTIPLIER) & _MASK_32
        state = ((state * _MULTIPLIER) & _MASK_32) ^ mixed
    if rest:
        state = ((state ^ int.from_bytes(key[-rest:], "little")) * _MULTIPLIER) & _MASK_32
    state = ((state ^ (state >> 13)) * _MULTIPLIER) & _MASK_32
    return state ^ (state >> 15)


# Node names repeat in every audit and claim; 65,536 of them take about 10 MB.
@lru_cache(maxsize=1 << 16)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions`: the sign bit is dropped, not negated, as Kafka's `toPositive` does."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions if partitions > 1 else 0


def route(messages: Sequence[Message], topics: Mapping[str, int]) -> list[int]:
    """The partition of each message. Raises TopicMismatch for a topic or an explicit partition that does not exist."""
    numbers: list[int] = []
    for message in messages:
        count = topics.get(message.topic)
        if count is None:
            raise TopicMismatch(unknown_topic(message.topic, topics))
        number = message.partition
        if number is None:
            number = partition_of(message.key, count)
        elif not 0 <= number < count:
            raise TopicMismatch(no_partition(message.topic, number, count))
        numbers.append(number)
    return numbers


def unknown_topic(topic: str, topics: Mapping[str, int]) -> str:
    """The sentence for a topic that is not there."""
    known = ", ".join(sorted(topics)) or "none"
    return f"topic {topic!r} is not in this log; topics here: {known}. Create it first"


def no_partition(topic: str, number: int, count: int) -> str:
    """The sentence for a partition that is not there."""
    return f"topic {topic!r} has {count} partitions, numbered from 0; there is no partition {number}"


def other_count(spec: TopicSpec, count: int) -> str:
    """The sentence for a topic that exists with another number of partitions."""
    return f"topic {spec.name!r} has {count} partitions here, not {spec.partitions}; that never changes. Use {count}, or a new log"
