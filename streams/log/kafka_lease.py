"""A share of a topic's partitions as membership in a consumer group: Kafka divides, we only ask what is ours.

The member reads nothing. Groups that hold leases have names of their own, since the broker takes commits of a group with members from
these alone.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from streams.log.kafka_client import Clients
from streams.log.kafka_errors import log_error

# Brokers refuse shorter sessions unless `group.min.session.timeout.ms` is set lower.
SESSION_MS_MIN: Final = 6_000
HEARTBEAT_MS: Final = 500
"""A member hears by its next heartbeat that others join or leave, twice until a share has changed hands: meanwhile nobody has it."""
JOIN_SECONDS: Final = 10.0
"""How long the first look waits for the group's answer: a broker holds a new group for 3 s in case more members come."""
SHARING_SECONDS: Final = 5.0
"""How long brokers take at most, once a session has ended, until its partitions are others'."""
UNSUBSCRIBE_SECONDS: Final = 3.0
"""How long leaving waits for the answer to a joining that is under way, since the broker takes one after the other."""
POLL_SECONDS: Final = 0.05
# A look that finds nothing new costs a call of the client; once a millisecond is often enough.
LOOK_SECONDS: Final = 0.001
# Another try would not help: what a person has to mend.
_LASTING: Final = frozenset(
    (
        KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_MAX_SIZE_REACHED,
    )
)  # fmt: skip


class KafkaLease:
    """See `streams.log.base.Lease`. A time-out below 6 s counts as 6 s: brokers know no shorter one."""

    def __init__(self, clients: Clients, group: str, topic: str, partitions: int, member: str, timeout_seconds: float) -> None:
        session_ms = max(int(timeout_seconds * 1000), SESSION_MS_MIN)
        self._partitions, self._missed_seconds = partitions, session_ms / 1000 + SHARING_SECONDS
        self._place, self._clients = clients.settings.place, clients
        self._consumer: Consumer | None = clients.member(
            {
                "group.id": clients.settings.group(f"{group}.{topic}.lease"),
                "client.id": member,
                # Whoever joins or leaves, the others keep what is theirs meanwhile.
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                # A process that stands still counts as gone as well, though its threads go on sending heartbeats.
                "max.poll.interval.ms": session_ms,
                "enable.partition.eof": False,
            }
        )
        self._mine: frozenset[int] = frozenset()
        self._answered = self._has_shared = False
        self._looked = 0.0
        self._consumer.subscribe([clients.settings.topic(topic)], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)

    def partitions(self) -> frozenset[int]:
        """See the contract. The first call waits for the group's answer; the share of a member that joins others grows as they let go."""
        consumer = self._consumer
        if consumer is None:
            return frozenset()
        now = time.monotonic()
        if not self._answered:
            self._join(consumer)
        elif now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._poll(consumer, 0)
        return self._mine

    def waits_for(self) -> str:
        """See the contract: brokers share out once they miss whoever is gone."""
        waits = "waiting for brokers to share out partitions: who was killed is missed after --lease-timeout only"
        return "" if self._has_shared else waits

    def is_rest_at_work(self, seconds: float) -> bool:
        """See the contract. Brokers tell nobody of signs, but share out anew once they miss a member."""
        return len(self._mine) == self._partitions or (self._has_shared and seconds > self._missed_seconds)

    def _join(self, consumer: Consumer) -> None:
        left = self._clients.patience(JOIN_SECONDS)
        # Who is to end takes nothing over.
        while left() > 0 and not self._clients.is_hurried:
            self._poll(consumer, POLL_SECONDS)
            if self._answered:
                return
        # Others hold the group up; what becomes ours will show later.
        self._answered = True

    def _poll(self, consumer: Consumer, timeout_seconds: float) -> None:
        message = consumer.poll(timeout_seconds)
        if message is None:
            return
        error = message.error()
        # What passes, such as a broker that is away or a look that came late, shows in the share; the group goes on by itself.
        if error is not None and (error.fatal() or error.code() in _LASTING):
            raise log_error(error, self._place, "sharing partitions")

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._answered = self._has_shared = True
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
        self._mine |= {partition.partition for partition in partitions}

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._mine -= {partition.partition for partition in partitions}
        consumer.incremental_unassign(partitions)

    def release(self) -> None:
        """See the contract: the member leaves the group."""
        consumer, self._consumer = self._consumer, None
        self._mine = frozenset()
        if consumer is not None:
            # Away or not: the session ends by itself.
            self._clients.aside.leave([_Leaving(consumer)])


class _Leaving:
    """A member that leaves before it ends.

    librdkafka's `close` tells the group nothing of a member that is just joining anew, as each does after a first answer without a share:
    for the rest of its session what was to be its own would be nobody's (seen with 2.16.1). To unsubscribe tells it in any case.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def close(self) -> None:
        """See `Closable`."""
        until = time.monotonic() + UNSUBSCRIBE_SECONDS
        self._consumer.unsubscribe()
        # It has its id until it has said that it leaves, which is after what it gives up is taken from it.
        while self._consumer.memberid() and time.monotonic() < until:
            self._consumer.poll(POLL_SECONDS)
        self._consumer.close()
