"""Where each message of a batch goes: its own partition if it names one, else where `schemas.partitioner` puts its key.

A *missing* key, which other clients scatter at random, does not exist here: `Message.key` is bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from schemas.partitioner import partition_of
from schemas.topics import MADE_AGAIN, SNAPSHOTS
from streams.log.base import Message, TopicMismatch, TopicSpec

WAY_BACK = "stop all that writes, and `claimlog copy` the ledger to a new log, which gets the partitions that it was opened with"
"""What to do where somebody has added partitions to a topic whose records nothing makes again."""


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


def is_made_again(names: Collection[str]) -> bool:
    """Whether these topics, some at least, can all be deleted and made anew."""
    return bool(names) and MADE_AGAIN.issuperset(names)


def anew(names: Sequence[str], full_name: Callable[[str], str]) -> str:
    """What to do about topics on Kafka that are made again and have another number of partitions; there they have their full names."""
    snapshots = "; where history was archived, `claimlog snapshot write` with CLAIMLOG_ARCHIVE comes next" if SNAPSHOTS in names else ""
    which = ", ".join(map(full_name, sorted(names)))
    return (
        f"stop all that writes, delete {which} (`kafka-topics.sh --delete`), and `claimlog topics apply`: what stood there is made again"
        + snapshots
    )


def other_count(spec: TopicSpec, count: int, full_name: Callable[[str], str] | None = None) -> str:
    """The sentence for a topic that exists with another number of partitions; on Kafka, where somebody may change it, with `full_name`."""
    name = full_name(spec.name) if full_name else spec.name
    said = f"topic {name!r} has {count} partitions here, not {spec.partitions}"
    if full_name and is_made_again([spec.name]):
        return f"{said}: {anew([spec.name], full_name)}"
    if full_name and count > spec.partitions:
        # What it belongs to has fewer and cannot follow, so there is no way to use them.
        return f"{said}: somebody added some (`kafka-topics.sh --alter`), which cannot be taken back or used; {WAY_BACK}"
    return f"{said}; that never changes. Use {count}, or a new log"


def check_same(before: Mapping[str, int], now: Mapping[str, int], full_name: Callable[[str], str]) -> None:
    """Raises TopicMismatch where a topic's number of partitions has changed under a process, on Kafka."""
    changed = sorted(topic for topic in before.keys() & now.keys() if now[topic] != before[topic])
    kept = [topic for topic in changed if not is_made_again([topic])]
    for topic in kept or changed:
        said = (
            f"topic {full_name(topic)!r} has {now[topic]} partitions now and had {before[topic]}: somebody changed that "
            "(`kafka-topics.sh --alter`)"
        )
        if not kept:
            raise TopicMismatch(f"{said}; {anew(changed, full_name)}")
        raise TopicMismatch(f"{said}, so keys belong to other partitions than their records. It cannot be taken back: {WAY_BACK}")
