"""A cluster of real Kafka brokers for tests that harm it: each is a process with a data directory and ports of its own.

Every broker is a controller as well, so that of three any one may be lost. Times are short: a broker is missed after three seconds, a
replica that lags leaves the copies in step after three, and leaders move back to where they belong as soon as they can.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined] # public, though not in its __all__

from tests.kafka_broker import CLOSED_SECONDS, Broker, free_ports

JAVA: Final = ("java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SESSION_SECONDS: Final = 3.0
"""How long a broker may be silent until the others go on without it, and how long a replica may lag."""
HEALED_SECONDS: Final = 90.0
SETTINGS: Final = """\
node.id={node}
controller.quorum.voters={voters}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
default.replication.factor=3
min.insync.replicas=2
replica.lag.time.max.ms=3000
replica.fetch.backoff.ms=200
leader.imbalance.check.interval.seconds=5
"""


class Member(Broker):
    """One broker of a cluster. It can lose its disk, and knows who leads the controllers."""

    def __init__(self, folder: Path, node: int, ports: tuple[int, int], voters: str) -> None:
        super().__init__(folder, SETTINGS.format(node=node, voters=voters), JAVA)
        self.node, (self.port, self.controller_port) = node, ports

    @property
    def data(self) -> Path:
        """Its disk."""
        return self.folder / "data"

    def make(self) -> None:
        """Give it an empty disk with the cluster's id on it and its own, as whoever replaces a broken one does."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.prepare(self.controller_port)
        properties = self.data / "meta.properties"
        own = {"node.id": str(self.node), "directory.id": secrets.token_urlsafe(16)}
        lines = [line.partition("=") for line in properties.read_text().splitlines() if not line.startswith("#")]
        properties.write_text("".join(f"{key}={own.get(key, value)}\n" for key, _, value in lines))

    def leads_controllers(self) -> int | None:
        """The node that leads the controllers as far as this one knows; None if nobody does."""
        with suppress(OSError, ValueError):
            said = json.loads((self.data / "__cluster_metadata-0" / "quorum-state").read_text())
            return None if said["leaderId"] < 0 else int(said["leaderId"])
        return None


class Brokers:
    """Several brokers with their data in `folder`, by node id from 1 on."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        ports = free_ports(2 * count)
        voters = ",".join(f"{node}@127.0.0.1:{ports[count + node - 1]}" for node in range(1, count + 1))
        own = {node: (ports[node - 1], ports[count + node - 1]) for node in range(1, count + 1)}
        self.members = {node: Member(folder / f"broker-{node}", node, pair, voters) for node, pair in own.items()}
        self._admin: AdminClient | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of each, for clients."""
        return ",".join(member.address for member in self.members.values())

    def start(self) -> None:
        """Make them, and wait until they are a cluster. Raises NoBroker."""
        for member in self.members.values():
            member.make()
        self.again(*self.members)
        self.heals()

    def replaced(self, node: int) -> None:
        """Start one that was killed with an empty disk. Raises NoBroker.

        Not before another leads the controllers: one that does not know that it leads them, and is told so, ends itself.
        """
        self.controller()
        self.members[node].make()
        self.again(node)

    def again(self, *nodes: int) -> None:
        """Start these on the data that they have; returns once they answer. Raises NoBroker."""
        for node in nodes:
            self.members[node].launch()
        for node in nodes:
            self.members[node].answers()

    def closes(self, node: int) -> None:
        """SIGTERM: it hands over what it leads, and ends."""
        self.members[node].closes(CLOSED_SECONDS)

    def stop(self) -> None:
        """End them. Their data is not needed any more."""
        for member in self.members.values():
            member.stop()

    def heals(self) -> None:
        """Wait until all are there and every partition has all its copies in step. Raises AssertionError."""
        end = time.monotonic() + HEALED_SECONDS
        while (wrong := self.wrong()) is not None:
            assert time.monotonic() < end, f"not healed within {HEALED_SECONDS} s: {wrong}"
            time.sleep(0.1)

    def wrong(self) -> str | None:
        """What a healthy cluster would not have: brokers that are missing, partitions without a leader or with copies behind."""
        try:
            found = self.admin.list_topics(timeout=2.0)
        except KafkaException as problem:
            return str(problem)
        if len(found.brokers) < len(self.members):
            return f"{len(found.brokers)} of {len(self.members)} brokers are there"
        thin = [f"{name}/{number}" for name, number in _thin(found.topics.items())]
        return f"copies are missing of {', '.join(thin[:5])}" if thin else None

    @property
    def admin(self) -> AdminClient:
        """A client of all of them."""
        self._admin = self._admin or AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        return self._admin

    def leader(self, topic: str, partition: int) -> int:
        """Which node leads a partition; -1 if none does."""
        return int(self.admin.list_topics(topic, timeout=5.0).topics[topic].partitions[partition].leader)

    def coordinator(self, group: str) -> int:
        """Which node keeps a group. Raises AssertionError while none does."""
        end = time.monotonic() + HEALED_SECONDS
        while True:
            with suppress(KafkaException):
                return int(self.admin.describe_consumer_groups([group], request_timeout=5.0)[group].result().coordinator.id)
            assert time.monotonic() < end, f"nobody keeps group {group}"
            time.sleep(0.1)

    def controller(self) -> int:
        """Which node leads the controllers: the one that most of those that run name. Raises AssertionError if nobody does for long."""
        end = time.monotonic() + HEALED_SECONDS
        while True:
            said = [member.leads_controllers() for member in self.members.values() if member.is_running()]
            known = [node for node in said if node is not None and self.members[node].is_running()]
            if known:
                return max(set(known), key=known.count)
            assert time.monotonic() < end, "nobody leads the controllers"
            time.sleep(0.05)


def _thin(topics: Iterable[tuple[str, TopicMetadata]]) -> list[tuple[str, int]]:
    return [
        (name, number)
        for name, topic in sorted(topics)
        for number, partition in sorted(topic.partitions.items())
        if partition.leader < 0 or len(partition.isrs) < len(partition.replicas)
    ]
