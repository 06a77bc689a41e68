"""Topics on the cluster: made with the settings a ledger needs, and compared with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import (  # type: ignore[attr-defined] # public, though not in its __all__
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)
from msgspec import Struct

from schemas.few import few
from schemas.topics import CLAIMS, STREAM_PARTITIONS, TOPICS
from streams.log.base import HIDES, LogError, LogUnreachable, TopicMismatch, TopicSpec
from streams.log.kafka_client import Clients
from streams.log.kafka_errors import error_of, is_not_allowed, log_error
from streams.log.kafka_settings import REPLICAS, SINGLE_BROKER
from streams.log.partitioner import anew, is_made_again, other_count

# Kafka's own default. A batch of one record of the largest kind has to fit.
MESSAGE_BYTES_MAX: Final = 1_048_588
BATCH_OVERHEAD_BYTES: Final = 100_000
TIMESTAMPS: Final = "message.timestamp.type"
OF_WRITERS: Final = "CreateTime"
AHEAD_MAX: Final = "message.timestamp.after.max.ms"
"""How far ahead of its own clock a broker lets writers' times be: an hour, unless told. Brokers before 3.6 have no such setting."""
ANY_TIME: Final = str(2**63 - 1)
IN_SYNC_MIN: Final = "min.insync.replicas"
READY_SECONDS: Final = 30.0
"""How long a new topic may take to get leaders."""
VANISHED_SECONDS: Final = 5.0
"""How long a topic that was there must be unknown until it is believed to be gone: some brokers learn of their topics later than others."""

NO_ID: Final = str(Uuid(0, 0))
"""What a broker says that does not know topics' ids."""
MISSING = "missing"
"""The setting of a topic that is not there."""
PARTITIONS, REPLICATION = "partitions", "replication"
"""Settings of a topic that no `--add-config` changes."""
OR_MORE = " or more"


class TopicDifference(Struct, frozen=True):
    """A setting of a topic that is not as a ledger needs it."""

    topic: str
    setting: str
    expected: str
    found: str
    is_of_mirrors: bool = False
    """Whether a mirror, or a restored archive, has to have it so: people are told, nothing is refused."""

    @property
    def is_missing(self) -> bool:
        """Whether the topic is not there; `expected` says what to do."""
        return self.setting == MISSING

    def __str__(self) -> str:
        if self.is_of_mirrors:
            return f"topic {self.topic!r}: {self.setting} is {self.found}, which is for mirrors"
        if self.is_missing:
            return f"topic {self.topic!r}: missing; {self.expected}"
        return f"topic {self.topic!r}: {self.setting} is {self.found}, not {self.expected}"


def wanted(spec: TopicSpec, *, single_broker: bool) -> dict[str, str]:
    """The settings a topic is made with. Nothing goes by age or size: what is dropped is dropped by `truncate`, below a snapshot."""
    known = TOPICS.get(spec.name)
    value_bytes_max = known.value_bytes_max if known else 0
    config = {
        "cleanup.policy": "compact" if spec.compacted else "delete",
        TIMESTAMPS: "LogAppendTime",
        IN_SYNC_MIN: "1" if single_broker else "2",
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(max(MESSAGE_BYTES_MAX, value_bytes_max + BATCH_OVERHEAD_BYTES)),
    }
    return config if spec.compacted else config | {"retention.ms": "-1", "retention.bytes": "-1"}


def config_differences(spec: TopicSpec, found: Mapping[str, str], *, single_broker: bool) -> list[TopicDifference]:
    """Where the settings of a topic would lose records, make them unreadable or give them the times of writers' clocks.

    Stricter ones and a larger room are fine.
    """
    differences = []
    for setting, expected in wanted(spec, single_broker=single_broker).items():
        value = found.get(setting, "")
        at_least = setting in {IN_SYNC_MIN, "max.message.bytes"}
        fine = int(value or 0) >= int(expected) if at_least else value == expected
        if not fine:
            # A mirror or a restored archive keeps the original times (CreateTime), and nothing of its own says that it is one.
            of_mirrors = setting == TIMESTAMPS
            differences.append(
                TopicDifference(spec.name, setting, expected + (OR_MORE if at_least else ""), value or "not set", of_mirrors)
            )
    return differences


def told(differences: Sequence[TopicDifference]) -> str:
    """All in one sentence, what several topics have in common once."""
    by_words: dict[str, list[TopicDifference]] = {}
    for difference in differences:
        by_words.setdefault(str(difference).partition(": ")[2], []).append(difference)
    alike = [(words, [each.topic for each in found]) for words, found in by_words.items()]
    return "; ".join(f"{'topic' if len(names) == 1 else 'topics'} {few(list(map(repr, names)))}: {words}" for words, names in alike)


def commands(differences: Sequence[TopicDifference], full_name: Callable[[str], str]) -> list[str]:
    """What sets these right, in Kafka's own tools.

    Nothing sets a number of partitions right but to make anew what can be made again; what is missing or of mirrors is told.
    """
    added: dict[str, list[str]] = {}
    for each in differences:
        if each.setting not in {MISSING, PARTITIONS, REPLICATION} and not each.is_of_mirrors:
            added.setdefault(each.topic, []).append(f"{each.setting}={each.expected.removesuffix(OR_MORE)}")
    told = [
        f"kafka-configs.sh --alter --entity-type topics --entity-name {full_name(topic)} --add-config {','.join(settings)}"
        for topic, settings in added.items()
    ]
    thin = [each for each in differences if each.setting == REPLICATION]
    if thin:
        names = ", ".join(full_name(each.topic) for each in thin)
        told.append(f"kafka-reassign-partitions.sh --execute gives partitions {thin[0].expected} replicas, for {names}")
    others = [each.topic for each in differences if each.setting == PARTITIONS]
    if is_made_again(others):
        told.append(anew(others, full_name))
    return told


class Catalog:
    """The topics of one ledger."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._settings = clients, clients.settings
        self._compacted: dict[str, bool] = {}
        self._seen: frozenset[str] = frozenset()

    def found(self) -> dict[str, TopicMetadata]:
        """The ledger's topics by their own names. One that was there is missing only if it stays so: see `VANISHED_SECONDS`."""
        until = time.monotonic() + VANISHED_SECONDS
        while not self._seen <= (there := self._told()).keys() and time.monotonic() < until:
            time.sleep(0.1)
        self._seen = frozenset(there)
        return there

    def _told(self) -> dict[str, TopicMetadata]:
        """What the broker that is asked knows of."""
        topics = self._clients.metadata().topics.items()
        return {own: topic for name, topic in topics if topic.error is None and (own := self._settings.own(name))}

    def create(self, specs: Sequence[TopicSpec], times_of_writers: Collection[str] = ()) -> None:
        """Make those that are missing and wait until they have leaders. Raises TopicMismatch if one differs in what matters.

        Records of those among `times_of_writers` have the times that their writers say.
        """
        there = self.found()
        for spec in specs:
            if spec.name in there and len(there[spec.name].partitions) != spec.partitions:
                raise TopicMismatch(other_count(spec, len(there[spec.name].partitions), self._settings.topic))
        self._refuse_differences([spec for spec in specs if spec.name in there])
        missing = [spec for spec in specs if spec.name not in there]
        if missing:
            of_others = self._make(missing, times_of_writers)
            self._await(missing)
            self._refuse_differences([spec for spec in missing if self._settings.topic(spec.name) in of_others])

    def _make(self, specs: Sequence[TopicSpec], times_of_writers: Collection[str]) -> set[str]:
        """Returns the names on the cluster of those that another process has made since we looked."""
        metadata = self._clients.metadata()
        same = self._settings.same_groups() if any(spec.name == CLAIMS for spec in specs) else None
        if same is not None and same.topic(STREAM_PARTITIONS) in metadata.topics:
            raise TopicMismatch(
                f"{same.place} has a ledger whose consumer groups are called alike, {same.group('…')}: their processes would take each "
                "other's partitions. Take another prefix"
            )
        brokers = len(metadata.brokers)
        single = self._settings.single_broker
        if brokers < REPLICAS and not single:
            raise LogError(
                f"{self._settings.place} has {brokers} broker{'s' * (brokers != 1)}, and {REPLICAS} are needed to keep what was "
                "acknowledged when one is lost. Start those that are down, or, if so few are meant, say so: "
                f"{self._settings.place}?{SINGLE_BROKER}"
            )
        made = [
            NewTopic(
                self._settings.topic(spec.name),
                spec.partitions,
                1 if single else REPLICAS,
                config=wanted(spec, single_broker=single) | ({TIMESTAMPS: OF_WRITERS} if spec.name in times_of_writers else {}),
            )
            for spec in specs
        ]
        futures = self._clients.admin.create_topics(made)
        of_others = set()
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as problem:
                error = error_of(problem)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._not_made(error, name) from None
                of_others.add(name)
        return of_others

    def _not_made(self, error: KafkaError, name: str) -> LogError:
        problem = log_error(error, self._settings.place, f"making topic {name}", self._clients.last_seen)
        # Whoever may not see a topic is told that there is none, and tries to make it.
        return LogError(f"{problem}. If it is there, this user may not describe it: {HIDES}") if is_not_allowed(error) else problem

    def _await(self, specs: Sequence[TopicSpec]) -> None:
        until = time.monotonic() + READY_SECONDS
        while True:
            there = self.found()
            for spec in specs:
                if spec.name in there and len(there[spec.name].partitions) not in {0, spec.partitions}:
                    raise TopicMismatch(other_count(spec, len(there[spec.name].partitions), self._settings.topic))
            if all(spec.name in there and _is_led(there[spec.name]) for spec in specs):
                return
            if time.monotonic() > until:
                raise LogUnreachable(f"{self._settings.place}: the topics made have no leaders after {READY_SECONDS:.0f} s")
            time.sleep(0.02)

    def _refuse_differences(self, specs: Sequence[TopicSpec]) -> None:
        differences = [difference for difference in self.differences(specs) if not difference.is_of_mirrors]
        if differences:
            hint = f" (a single broker is meant? add ?{SINGLE_BROKER} to the address)" if not self._settings.single_broker else ""
            raise TopicMismatch(f"{self._settings.place}: {told(differences)}{hint}; `claimlog topics check` says what sets it right")

    def differences(self, specs: Sequence[TopicSpec]) -> list[TopicDifference]:
        """What is not as it must be, missing topics included."""
        there = self.found()
        found: list[TopicDifference] = []
        configs = self.configs([spec.name for spec in specs if spec.name in there])
        least = 1 if self._settings.single_broker else REPLICAS
        for spec in specs:
            topic = there.get(spec.name)
            if topic is None:
                found.append(TopicDifference(spec.name, MISSING, "`claimlog topics apply` makes it", MISSING))
                continue
            if len(topic.partitions) != spec.partitions:
                found.append(TopicDifference(spec.name, PARTITIONS, str(spec.partitions), str(len(topic.partitions))))
            replicas = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
            if replicas < least:
                found.append(TopicDifference(spec.name, REPLICATION, f"{least}{OR_MORE}", str(replicas)))
            found += config_differences(spec, configs[spec.name], single_broker=self._settings.single_broker)
        return found

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of topics as the cluster has them."""
        resources = {topic: ConfigResource(ResourceType.TOPIC, self._settings.topic(topic)) for topic in topics}
        if not resources:
            return {}

        refused: dict[str, KafkaError] = {}

        def ask(admin: AdminClient, timeout: float) -> dict[str, Any]:
            futures, found = admin.describe_configs(list(resources.values()), request_timeout=timeout), {}
            for topic, resource in resources.items():
                try:
                    found[topic] = futures[resource].result()
                except KafkaException as problem:
                    if not is_not_allowed(error := error_of(problem)):
                        raise
                    refused[self._settings.topic(topic)] = error
            return found

        # One broker has said that they are there; the one that is asked now may learn of it a moment later.
        results = self._clients.administer(ask, "asking for the settings of topics", was_there=True)
        if refused:
            topic, error = next(iter(refused.items()))
            raise log_error(error, self._settings.place, f"asking for the settings of topic {topic} (DescribeConfigs)")
        return {topic: {name: str(entry.value) for name, entry in result.items()} for topic, result in results.items()}

    def in_sync_min(self, topics: Iterable[str]) -> dict[str, int]:
        """How many copies in step an append to these topics takes."""
        return {topic: int(config[IN_SYNC_MIN]) for topic, config in self.configs(topics).items()}

    def take_times(self, topics: Sequence[str], *, of_writers: bool) -> None:
        """Let records of these topics have the times that their writers say, or the broker's append times again. Raises LogError."""
        kind = OF_WRITERS if of_writers else "LogAppendTime"
        entries = [ConfigEntry(TIMESTAMPS, kind, incremental_operation=AlterConfigOpType.SET)]
        if all(AHEAD_MAX in config for config in self.configs(topics).values()):
            # A ledger on which a clock was ahead once is to be copied as well.
            bound = AlterConfigOpType.SET if of_writers else AlterConfigOpType.DELETE
            entries.append(ConfigEntry(AHEAD_MAX, ANY_TIME, incremental_operation=bound))
        resources = [ConfigResource(ResourceType.TOPIC, self._settings.topic(topic), incremental_configs=entries) for topic in topics]

        def ask(admin: AdminClient, timeout: float) -> None:
            for future in admin.incremental_alter_configs(resources, request_timeout=timeout).values():
                future.result()

        self._clients.administer(ask, f"setting {TIMESTAMPS}", was_there=True)
        until = time.monotonic() + READY_SECONDS
        while any(config.get(TIMESTAMPS) != kind for config in self.configs(topics).values()):
            if time.monotonic() > until:
                raise LogUnreachable(f"{self._settings.place}: {TIMESTAMPS} is not {kind} after {READY_SECONDS:.0f} s; try again")
            time.sleep(0.02)

    def has_times_of_writers(self, topic: str) -> bool:
        """Whether records of this topic have the times that their writers say."""
        return self.configs([topic])[topic].get(TIMESTAMPS) == OF_WRITERS

    def topic_id(self, topic: str) -> str:
        """What no other topic of any cluster has; empty for a topic that is not there, and where brokers before 2.8 know of none."""
        name = self._settings.topic(topic)

        def ask(admin: AdminClient, timeout: float) -> Any:
            return admin.describe_topics(TopicCollection([name]), request_timeout=timeout)[name].result()

        found = ""
        if topic in self.found():
            found = str(self._clients.administer(ask, f"asking for topic {name}", was_there=True).topic_id)
        return "" if found == NO_ID else found

    def may_write(self, topic: str) -> bool:
        """Whether this user may append to a topic that is there; True where the brokers do not say."""
        name = self._settings.topic(topic)

        def ask(admin: AdminClient, timeout: float) -> Any:
            asked = TopicCollection([name])
            return admin.describe_topics(asked, include_authorized_operations=True, request_timeout=timeout)[name].result()

        allowed = self._clients.administer(ask, f"asking for rights on topic {name}", was_there=True).authorized_operations
        return not allowed or not {AclOperation.WRITE, AclOperation.ALL}.isdisjoint(allowed)

    def is_compacted(self, topic: str) -> bool:
        """Whether the cluster keeps only the newest record of each key."""
        if topic not in self._compacted:
            self._compacted[topic] = "compact" in self.configs([topic])[topic].get("cleanup.policy", "")
        return self._compacted[topic]


def _is_led(topic: TopicMetadata) -> bool:
    return bool(topic.partitions) and all(partition.leader >= 0 for partition in topic.partitions.values())
