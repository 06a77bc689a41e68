"""One connection's worth of Kafka: makes the clients with the settings that the contract needs, and asks the broker questions.

Questions have a connection of their own: a broker answers one request of a connection after the other, and behind a fetch that waits for
records a question would wait as well.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ThrottleEvent, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined] # public, though not in its __all__
from msgspec.structs import replace

from schemas.few import few
from streams.log.base import LogError, LogOutdated, LogUnreachable, Partition
from streams.log.kafka_aside import Aside
from streams.log.kafka_errors import error_of, is_passing, is_refused, is_vanished, log_error
from streams.log.kafka_settings import KafkaSettings, SettingsProblem, changed, unreadable

T = TypeVar("T")

# Of ListOffsets: what a time means that is none.
NEWEST: Final = -1
OLDEST: Final = -2
# One try of a question; several of them fit in anybody's patience.
TRY_SECONDS: Final = 5.0
# The first try of a question that goes to leaders: the next one looks whether others lead by now. Each lasts half as long again.
TRY_SECONDS_FIRST: Final = 0.5
RETRY_SECONDS: Final = 0.05
QUOTA: Final = "a quota of the brokers holds this user back"
HELD_BACK_SECONDS: Final = 1.0
"""A quota may hold a client back for moments now and then, and does no harm."""
HURRY_SECONDS: Final = 5.0
"""How long a process that is to end still waits for brokers. Whoever stops it kills it after ten (Docker) or thirty (Kubernetes)."""
READERS_LEAVE_SECONDS: Final = 2.0
"""How long the end waits for consumers that are in no group: they have nothing to say to anybody."""
OPEN_SECONDS: Final = 5.0
"""How long opening a log waits for a broker at most: somebody may sit before it."""

# A broker that comes back is found within a second (librdkafka: 10 s), and a connection into a black hole is given up in time.
_COMMON: Final[Mapping[str, Any]] = {
    "client.id": "claimlog",
    "log_level": 2,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "retry.backoff.max.ms": 500,
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
}
# Reading goes by offsets that we give; no group has a say, and an offset that is not there is an error.
_READING: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": True,
}
# `message.timeout.ms` 0: librdkafka would go on with the message after one that it gave up. We give up all at once instead.
_WRITING: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "max.in.flight.requests.per.connection": 5,
    "message.timeout.ms": 0,
    "request.timeout.ms": 10_000,
    # Sent as it is handed over: each partition's part is a request of its own in any case, and what lingers does so for a millisecond.
    "linger.ms": 0,
    "partitioner": "murmur2",
    "queue.buffering.max.kbytes": 256 << 10,
}


class Clients:
    """Makes clients of one cluster and keeps what their connections last complained about."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.last_seen = ""
        self.times_heard = 0
        self.fatal: LogError | None = None
        self.aside = Aside(settings.place)
        """Where whoever has a consumer of these gives it up."""
        self._latest = math.inf
        self._has_made = False
        self._asker: Consumer | None = None
        self._admin: AdminClient | None = None

    def _config(self, *parts: Mapping[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = dict(_COMMON)
        for part in parts:
            config |= part
        ours = {"bootstrap.servers": ",".join(self.settings.brokers), "error_cb": self._heard, "throttle_cb": self._held_back}
        if any("client.id" in part for part in parts):
            # By it a member of a group is known; a name of the operator's own, for quotas, is that of all other connections.
            ours["client.id"] = config["client.id"]
        return config | dict(self.settings.options) | ours

    def _held_back(self, event: ThrottleEvent) -> None:
        """A quota is used up: that is told with the error that follows, where what is waited for takes longer than anybody waits."""
        if event.throttle_time > HELD_BACK_SECONDS:
            self.last_seen = f"{QUOTA}, for {event.throttle_time:.0f} s each time"
            self.times_heard += 1

    def _heard(self, error: KafkaError) -> None:
        """Connections that break and come back say so here; it is told with the error that follows if they do not come back."""
        # "All brokers are down" follows each reason why one is, and says less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last_seen:  # noqa: SLF001 - librdkafka's own errors begin so
            self.last_seen = error.str()
            self.times_heard += 1
        if error.fatal():
            self.fatal = log_error(error, self.settings.place, "sending")

    def _made(self, make: Callable[[dict[str, Any]], T], *parts: Mapping[str, Any]) -> T:
        """A client. Raises SettingsProblem, and LogError where a file that these settings name has gone since one was made with them."""
        # In a thread, where no signal's handler runs: a client takes what one raises while it reads its settings for a wrong setting.
        with ThreadPoolExecutor(1) as thread:
            try:
                made = thread.submit(make, self._config(*parts)).result()
            except KafkaException as problem:
                said = self.settings.told(error_of(problem).str())
                # What a producer alone refuses shows after a consumer was made, and was wrong from the beginning.
                gone = unreadable(self.settings.options, said)
                raise (LogError if gone and self._has_made else SettingsProblem)(f"{self.settings.place}: {gone or said}") from None
        self._has_made = True
        return made

    def producer(self) -> Producer:
        """A new idempotent producer. What it has to log it says when it is polled, so that one that was given up is silent."""
        return self._made(Producer, _WRITING, {"logger": logging.getLogger(__name__)})

    def consumer(self, **config: Any) -> Consumer:
        """A new consumer that is given its partitions and offsets; keywords are librdkafka's settings with `_` for `.`."""
        own = {name.replace("_", "."): value for name, value in config.items()}
        return self._made(Consumer, _READING, {"group.id": self.settings.group("reader")}, own)

    def member(self, config: Mapping[str, Any]) -> Consumer:
        """A new consumer that joins a group."""
        return self._made(Consumer, _READING, config)

    @property
    def asker(self) -> Consumer:
        """The consumer that reads nothing: it asks."""
        if self._asker is None:
            self._asker = self.consumer()
        return self._asker

    @property
    def admin(self) -> AdminClient:
        """The client for topics, groups and deletion."""
        if self._admin is None:
            self._admin = self._made(AdminClient)
        return self._admin

    def patience(self, seconds: float | None = None) -> Callable[[], float]:
        """What tells how many seconds are left of so many from now on, or of those that the settings give; fewer after `hurry`."""
        until = time.monotonic() + (self.settings.patience_ms / 1000 if seconds is None else seconds)
        return lambda: min(until, self._latest) - time.monotonic()

    def hurry(self, seconds: float) -> None:
        """From now on nothing is waited for longer than these seconds, in all; what waits already as well."""
        self._latest = time.monotonic() + seconds

    @property
    def is_hurried(self) -> bool:
        """Whether this process is to end."""
        return self._latest < math.inf

    def patiently(self, ask: Callable[[float], T], doing: str, patience_seconds: float | None = None, *, was_there: bool = False) -> T:
        """What `ask(timeout_seconds)` returns, asked again while brokers are away, for `patience_seconds`. Raises LogError.

        With `was_there` it is about a topic that was known before; see `log_error`.
        """
        left, heard = self.patience(patience_seconds), self.times_heard
        while True:
            try:
                return ask(max(min(left(), TRY_SECONDS), 0.1))
            except KafkaException as problem:
                error = error_of(problem)
                # Lets the client tell `_heard` what happened to its connections.
                self.asker.poll(0)
                # What connections said before may have been mended since.
                self._check_who_it_says_it_is([error.str(), *([self.last_seen] if self.times_heard > heard else [])], doing)
                passes = is_passing(error) or (was_there and is_vanished(error))
                if not passes or left() <= RETRY_SECONDS:
                    raise log_error(error, self.settings.place, doing, self.last_seen, was_there=was_there) from None
            time.sleep(RETRY_SECONDS)

    def _check_who_it_says_it_is(self, heard: Sequence[str], doing: str) -> None:
        """Raises LogOutdated where brokers refuse what this process says of itself, and it read that from a file that has changed since."""
        said = next(filter(is_refused, heard), "")
        if said and (files := changed(self.settings.files)):
            verb = "has" if len(files) == 1 else "have"
            raise LogOutdated(
                f"{self.settings.place}: {doing}: {said}. {few(files)} {verb} changed since this process began: start it again, "
                "so that it reads what is there now"
            )

    def not_come(self, record: str, end: int, heard: int) -> LogUnreachable:
        """What to say of a record that the brokers have and did not send; `heard` is `times_heard` of when it was first waited for."""
        seen = f"; last heard: {self.last_seen}" if self.times_heard > heard else ""
        check = "See what its quotas allow" if QUOTA in seen else "Check the partition's leader"
        return LogUnreachable(f"{self.settings.place}: {record} has not come so far, though the end is {end}{seen}. {check}")

    def metadata(self, patience_seconds: float | None = None) -> ClusterMetadata:
        """Brokers, topics and partitions as the cluster has them now."""

        def ask(timeout: float) -> ClusterMetadata:
            found: ClusterMetadata = self.asker.list_topics(timeout=timeout)
            return found

        return self.patiently(ask, "asking for its topics", patience_seconds)

    def meet(self, patience_seconds: float) -> str:
        """Ask the cluster for its id and its brokers: clients that are made from now on find it though those of the address are gone."""
        found = self.metadata(patience_seconds)
        places = [(str(each.host), each.port) for each in found.brokers.values()]
        known = tuple(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)
        self.settings = replace(self.settings, known=known)
        return str(found.cluster_id)

    def offsets(self, places: Sequence[Partition], when: int) -> list[int]:
        """For each partition the offset of the first record at or after `when` in ms, or of NEWEST or OLDEST; -1 if there is none.

        One request a broker, answered by the leaders: it includes everything acknowledged before it was asked.
        """
        asked = [TopicPartition(self.settings.topic(topic), number, when) for topic, number in places]

        tries = count()

        def ask(timeout: float) -> list[int]:
            # A broker that died says nothing at all, and librdkafka goes on asking it: it keeps who leads what until somebody asks anew.
            if (failed := next(tries)) > 0:
                for topic in {place.topic for place in asked}:
                    self.asker.list_topics(topic, timeout=timeout)
            seconds = min(timeout, TRY_SECONDS_FIRST * 1.5**failed)
            answers = {(answer.topic, answer.partition): answer for answer in self.asker.offsets_for_times(list(asked), timeout=seconds)}
            found = [answers[place.topic, place.partition] for place in asked]
            for answer in found:
                if answer.error is not None:
                    raise KafkaException(answer.error)
            return [max(int(answer.offset), -1) for answer in found]

        doing = f"asking for offsets of {few(sorted({place.topic for place in places}))}"
        return self.patiently(ask, doing, was_there=True)

    def administer(self, ask: Callable[[AdminClient, float], T], doing: str, *, was_there: bool = False) -> T:
        """As `patiently`, through the client for topics, groups and deletion: `ask(client, timeout_seconds)`. Raises LogError.

        That client, too, keeps asking leaders and controllers that are gone until it is told to look who they are.
        """
        tries = count()

        def look_and_ask(timeout: float) -> T:
            if next(tries) > 0:
                self.admin.list_topics(timeout=timeout)
            return ask(self.admin, timeout)

        return self.patiently(look_and_ask, doing, was_there=was_there)

    def close(self, consumers: Sequence[Consumer] = ()) -> None:
        """Leave the cluster, with these consumers."""
        own = [] if self._asker is None else [self._asker]
        self._asker = self._admin = None
        self.aside.leave([*consumers, *own], READERS_LEAVE_SECONDS)
