"""How a cluster is: its brokers, the partitions that lack a leader or copies, and who is in the groups of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined] # public, though not in its __all__
from msgspec import Struct

from streams.log.base import Partition
from streams.log.kafka_client import Clients

OFFSETS: Final = "__consumer_offsets"
"""Kafka's own topic for groups."""
GROUP_SECONDS: Final = 10.0
"""How long a coordinator may take to say who is in a group."""


class Members(Struct, frozen=True):
    """A consumer group: the state that its coordinator gives it, and the clients in it by name; none for a group that nobody has joined.

    `assigned` are the ledger's partitions that one of them has.
    """

    group: str
    state: str
    clients: tuple[str, ...]
    assigned: frozenset[Partition] = frozenset()


class Cluster(Struct, frozen=True):
    """A cluster, and the partitions of a ledger that are in trouble there.

    `leaderless` ones can be neither read nor written; `thin` ones have fewer copies in step than they were made with, `refusing` ones so
    few that nothing can be written. `offsets_copies` is how many brokers know who is in groups and how far those are: the fewest of any
    partition of Kafka's own topic for that, None where it cannot be seen.
    """

    brokers: int
    partitions: int
    leaderless: tuple[Partition, ...]
    thin: tuple[Partition, ...]
    refusing: tuple[Partition, ...] = ()
    offsets_copies: int | None = None


def cluster(clients: Clients, in_sync_min: Callable[[Iterable[str]], Mapping[str, int]]) -> Cluster:
    """What the cluster says of itself. `in_sync_min` tells of topics how many copies in step writing takes. Raises LogError."""
    metadata = clients.metadata()
    own = {name: topic for full, topic in metadata.topics.items() if (name := clients.settings.own(full))}
    leaderless, thin = troubled(own.items())
    least = in_sync_min({place.topic for place in thin})
    offsets = metadata.topics.get(OFFSETS)
    return Cluster(
        brokers=len(metadata.brokers),
        partitions=sum(len(topic.partitions) for topic in own.values()),
        leaderless=leaderless,
        thin=thin,
        refusing=tuple(place for place in thin if len(own[place.topic].partitions[place.number].isrs) < least[place.topic]),
        offsets_copies=None if offsets is None else min((len(each.replicas) for each in offsets.partitions.values()), default=None),
    )


def troubled(topics: Iterable[tuple[str, TopicMetadata]]) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
    """The partitions without a leader, and those with fewer copies in step than replicas."""
    leaderless, thin = [], []
    for name, topic in sorted(topics):
        for number, partition in sorted(topic.partitions.items()):
            if partition.leader < 0:
                leaderless.append(Partition(name, number))
            elif len(partition.isrs) < len(partition.replicas):
                thin.append(Partition(name, number))
    return tuple(leaderless), tuple(thin)


def members(clients: Clients, groups: Sequence[str]) -> tuple[Members, ...]:
    """Who is in these groups, by their names on the cluster. Raises LogError."""

    def ask(admin: AdminClient, timeout: float) -> list[Members]:
        futures = admin.describe_consumer_groups(list(groups), request_timeout=min(timeout, GROUP_SECONDS))
        return [_described(group, futures[group], clients.settings.own) for group in groups]

    return tuple(clients.administer(ask, "asking who is in its groups"))


def _described(group: str, future: Future[Any], own: Callable[[str], str | None]) -> Members:
    """Raises KafkaException, but for a group that does not exist: nobody has ever joined it."""
    try:
        found = future.result()
    except KafkaException as problem:
        if problem.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise
        return Members(group, "missing", ())
    places = [place for member in found.members if member.assignment is not None for place in member.assignment.topic_partitions]
    assigned = frozenset([Partition(name, place.partition) for place in places if (name := own(place.topic))])
    return Members(group, found.state.name.lower(), tuple(sorted(member.client_id for member in found.members)), assigned)
