"""The log on Kafka: for when one machine is not enough. What the contract says of one partition, the broker keeps.

Where it differs from the embedded log: a batch is in order per partition, but parts of it may stand in the log when `append` fails;
times are the broker's (LogAppendTime), and a fold takes the largest so far; compaction is the broker's own business; a lease is membership
in a consumer group. The first read of a partition that finds nothing has asked the broker; later ones go by what the broker has sent, which
is a fetch's way behind (a millisecond; `TRUST_SECONDS` if its connection is in trouble), but never behind what this log appended or an
answer of `end`, `ends` or `wait`. `ends` includes everything that was acknowledged before any record handed out so far was appended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import TopicPartition

from schemas.partitioner import partition_of
from schemas.topics import CLAIMS
from streams.log.base import LogUnreachable, Message, OffsetOutOfRange, Partition, Record, TopicMismatch, TopicSpec
from streams.log.kafka_client import HURRY_SECONDS, NEWEST, OLDEST, OPEN_SECONDS, Clients
from streams.log.kafka_fetch import HISTORY, RENEWED, RENEWED_SECONDS, TAIL, Fetcher
from streams.log.kafka_found import found
from streams.log.kafka_health import Cluster, Members, cluster, members
from streams.log.kafka_lease import KafkaLease
from streams.log.kafka_offsets import GroupOffsets
from streams.log.kafka_rewound import Prover, Rewound, not_at_hand
from streams.log.kafka_send import UNKNOWN, Batch, Sender
from streams.log.kafka_settings import KafkaSettings
from streams.log.kafka_topics import Catalog, TopicDifference
from streams.log.partitioner import check_same, no_partition, route, unknown_topic

FRESH_SECONDS: Final = 0.002
"""How old an answer of `ends` may be if nothing was handed out since: one question answers for all that is asked in a turn of a loop."""
TRUST_SECONDS: Final = 0.25
"""How long no news from the broker is taken for no records: it sends them as they come, and is asked so often whether it still does."""
TOPICS_SECONDS: Final = 5.0
"""How long the list of topics is kept; one that is not in it is looked for at once."""


class KafkaLog:
    """See `streams.log.base.Log`. Made by `KafkaLog.open`; one instance belongs to one thread."""

    has_own_clock: Final = True
    """Append times are the brokers', whatever the clocks of readers and writers say."""

    def __init__(self, clients: Clients, cluster_id: str) -> None:
        self.settings = clients.settings
        self.ledger_id = f"{cluster_id}/{self.settings.prefix}" if self.settings.prefix else cluster_id
        self._clients, self._catalog, self._offsets, self._sender = clients, Catalog(clients), GroupOffsets(clients), Sender(clients)
        self._counts, self._narrowed = dict[str, int](), dict[str, int]()
        self._counted, self._closed, self._prover = -TOPICS_SECONDS, False, Prover(clients)
        self._ends: dict[Partition, int] = {}
        self._asked: dict[Partition, float] = {}
        self._certain: set[Partition] = set()
        self._tail: Fetcher | None = None
        self._history: Fetcher | None = None
        self._leases: list[KafkaLease] = []

    @classmethod
    def open(cls, settings: KafkaSettings) -> Self:
        """Connect to the cluster. Raises LogUnreachable if no broker answers, SettingsProblem for a setting librdkafka does not know."""
        clients = Clients(settings)
        patience_seconds = min(settings.patience_ms / 1000, OPEN_SECONDS)
        try:
            log = cls(clients, clients.meet(patience_seconds))
            log._sender.warm_up()
            return log
        except BaseException:
            clients.close()
            raise

    def create(self, topics: Sequence[TopicSpec], copied: Collection[str] = ()) -> None:
        """See the contract; the times of topics made that are `copied` are their writers'. Raises TopicMismatch for unsafe settings."""
        self._catalog.create(topics, copied)
        self._counts = {**self._counts, **{spec.name: spec.partitions for spec in topics}}
        self._look()

    def differences(self, topics: Sequence[TopicSpec]) -> list[TopicDifference]:
        """What of the topics on the cluster is not as a ledger needs it."""
        return self._catalog.differences(topics)

    def cluster(self) -> Cluster:
        """How the cluster is."""
        return cluster(self._clients, self._catalog.in_sync_min)

    def members(self, groups: Sequence[str]) -> Sequence[Members]:
        """Who is in these groups, by the names that `lease` and Faust give them."""
        return members(self._clients, [self.settings.group(group) for group in groups])

    def topics(self) -> Mapping[str, int]:
        """See the contract."""
        if time.monotonic() - self._counted > TOPICS_SECONDS:
            self._look()
        return self._counts

    def narrow(self, counts: Mapping[str, int]) -> None:
        """These topics have so many partitions, and all others those of now, whatever somebody adds: for who only reads."""
        self._counts = self._narrowed = {**self.topics(), **counts}

    def _look(self) -> None:
        self._refuse_if_closed()
        found = sorted(self._catalog.found().items())
        counts = {name: self._narrowed.get(name, len(topic.partitions)) for name, topic in found}
        check_same(self._counts, counts, self.settings.topic)
        self._counts, self._counted = counts, time.monotonic()

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            self._look()
        if topic not in self._counts:
            raise TopicMismatch(unknown_topic(topic, self._counts))
        return self._counts[topic]

    def _there(self, topic: str, partition: int) -> Partition:
        count = self._count(topic)
        if not 0 <= partition < count:
            raise TopicMismatch(no_partition(topic, partition, count))
        return Partition(topic, partition)

    def partition(self, topic: str, key: bytes) -> int:
        """See the contract."""
        return partition_of(key, self._count(topic))

    def append(self, messages: Sequence[Message]) -> list[int]:
        """See the contract. Raises also LogFatal when this process cannot go on, and LogError for a record larger than the broker takes."""
        return self._append(messages, None)

    def append_at(self, messages: Sequence[Message], times_ms: Sequence[int]) -> None:
        """Append copies of another log's records with the times they have there, once `take_times` has opened their topics for that."""
        self._append(messages, times_ms)

    def take_times(self, topics: Sequence[str], *, of_writers: bool) -> None:
        """From now on a record's time in these topics is what its writer says, or the broker's again."""
        self._catalog.take_times(topics, of_writers=of_writers)

    def topic_id(self, topic: str) -> str:
        """As the cluster knows it, and no other cluster; empty for a topic that is not there."""
        return self._catalog.topic_id(topic)

    def may_write(self, topic: str) -> bool:
        """Whether this user may append to a topic that is there. To find out by trying ends the process."""
        return self._catalog.may_write(topic)

    def has_times_of_writers(self) -> bool:
        """Whether the ledger's times are what its writers say: a copy is being made here, or was interrupted, or others mirror to it."""
        return CLAIMS in self.topics() and self._catalog.has_times_of_writers(CLAIMS)

    def _append(self, messages: Sequence[Message], times_ms: Sequence[int] | None) -> list[int]:
        if not messages:
            return []
        self.topics()  # Looked at now and then: keys would go elsewhere where somebody has added partitions.
        numbers = self._route(messages)
        offsets = self._sender.append(messages, numbers, times_ms)
        if UNKNOWN in offsets and times_ms is None:
            offsets = found(self, messages, numbers, offsets)
        for message, number, offset in zip(messages, numbers, offsets, strict=True):
            place = Partition(message.topic, number)
            self._ends[place] = max(offset + 1, self._ends.get(place, 0))
        self._certain.clear()
        return offsets

    def begin(self, messages: Sequence[Message]) -> Batch:
        """Begin to append all, in order, and do not wait: the batch says whether they have landed, or raises what `append` would raise.

        Reads hand out what lands as they hand out what others append. One that is given up takes all along that have not landed.
        """
        return self._sender.begin(messages, self._route(messages))

    def _route(self, messages: Sequence[Message]) -> list[int]:
        self._refuse_if_closed()
        for topic in {message.topic for message in messages}:
            self._count(topic)
        return route(messages, self._counts)

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See the contract; "none at the end" as the module's docstring says it. Raises LogUnreachable for records that do not come."""
        place, now = Partition(topic, partition), time.monotonic()
        # A turn of a loop reads a score of partitions, and most of them have nothing: what was known a moment ago answers for those.
        if self._tail is not None and self._tail.is_dry(place, offset, now) and self._is_trusted(place, offset, now):
            return []
        place = self._there(topic, partition)
        try:
            return self._come(place, offset, max(records_max, 1), bytes_max)
        except Rewound:
            raise
        except OffsetOutOfRange:
            raise not_at_hand(place, offset, self.start(*place), self.end(*place)) from None

    def news(self, offsets: Mapping[Partition, int]) -> list[Partition]:
        """Those of these partitions in which a read may find something, or would ask the broker: one look, instead of a read of each."""
        if self._tail is None:
            return list(offsets)
        self._tail.look(now := time.monotonic())
        is_dry, is_trusted = self._tail.is_dry, self._is_trusted
        return [place for place, offset in offsets.items() if not (is_dry(place, offset, now) and is_trusted(place, offset, now))]

    def _come(self, place: Partition, offset: int, records_max: int, bytes_max: int) -> list[Record]:
        """The records from an offset on, as soon as they are here. Raises OffsetOutOfRange, LogUnreachable."""
        left, heard = self._clients.patience(), self._clients.times_heard
        renews_at = left() * RENEWED if left() > RENEWED_SECONDS else 0.0
        while True:
            fetcher = self._fetcher(place, offset)
            if fetcher is not None:
                found = fetcher.take(place, offset, records_max, bytes_max)
                if found:
                    self._certain.clear()
                    self._prover.prove(place)
                    return found
                # Where compaction or a marker left nothing, the fetcher is beyond what was asked for already.
                offset = max(offset, fetcher.windows[place].next)
            if self._is_at_end(place, offset):
                return []
            fetcher = self._fetcher(place, offset) or self._go_to(place, offset)
            if not fetcher.await_beyond(place, offset, left, renews_at):
                is_last, renews_at = renews_at == 0.0, 0.0
                if is_last or not self._clients.is_hurried:
                    self._abandon(fetcher)
                if is_last:
                    raise self._clients.not_come(f"{place}@{offset}", self._ends[place], heard)

    def _fetcher(self, place: Partition, offset: int) -> Fetcher | None:
        """Who holds, or reads next, this offset."""
        for fetcher in (self._tail, self._history):
            if fetcher is not None and (window := fetcher.windows.get(place)) is not None and window.covers(offset):
                return fetcher
        return None

    def _is_at_end(self, place: Partition, offset: int) -> bool:
        """Whether no record is at or above `offset`; the end is asked for unless it was a moment ago. Raises OffsetOutOfRange."""
        if self._ends.get(place, 0) > offset >= 0:
            return False
        tailed = self._tail is not None and place in self._tail.windows
        if not tailed or not self._is_trusted(place, offset, time.monotonic()):
            self._ask([place])
        end = self._ends[place]
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(f"{place}@{offset}: the end is {end}")
        if offset == end:
            self._follow({place: offset})
        return offset == end

    def _is_trusted(self, place: Partition, offset: int, now: float) -> bool:
        """Whether this is the end as far as it is known, and was asked for a moment ago."""
        return self._ends.get(place) == offset and now - self._asked.get(place, -1.0) <= TRUST_SECONDS

    def _ask(self, places: Sequence[Partition]) -> None:
        """Ask for the ends of these and, since it is one request, of all that are read at their ends."""
        asked = dict.fromkeys([*places, *(self._tail.windows if self._tail is not None else ())])
        ends = self._clients.offsets(list(asked), NEWEST)
        now = time.monotonic()
        for place, end in zip(asked, ends, strict=True):
            if end < self._ends.get(place, 0):
                self._forget(place)
            self._ends[place] = max(end, 0)
            self._asked[place] = now
        self._certain |= asked.keys()
        if self._history is not None:
            self._history.rest(now)

    def _forget(self, place: Partition) -> None:
        """What is held of a partition is not, or no more, what the broker has: it was truncated, or made anew."""
        for fetcher in filter(None, (self._tail, self._history)):
            fetcher.drop([place])

    def _abandon(self, fetcher: Fetcher) -> None:
        """Read with a new consumer from now on: after some troubles of a network one may wait for a partition for good."""
        self._clients.aside.give_up(fetcher.give_up())
        self._tail = None if fetcher is self._tail else self._tail
        self._history = None if fetcher is self._history else self._history

    def _follow(self, offsets: Mapping[Partition, int]) -> None:
        """Let the tail read these from there on, unless it does."""
        self._tail = self._tail or self._reader(TAIL)
        tail = self._tail.windows
        self._tail.follow({place: at for place, at in offsets.items() if place not in tail or not tail[place].covers(at)})
        if self._history is not None:
            self._history.drop(offsets)

    def _go_to(self, place: Partition, offset: int) -> Fetcher:
        self._history = self._history or self._reader(HISTORY)
        self._history.follow({place: offset})
        return self._history

    def _reader(self, config: Mapping[str, Any]) -> Fetcher:
        return Fetcher(self._clients.consumer(**config), self.settings, self._ends, self._prover.memory)

    def start(self, topic: str, partition: int) -> int:
        """See the contract."""
        return max(self._clients.offsets([self._there(topic, partition)], OLDEST)[0], 0)

    def end(self, topic: str, partition: int) -> int:
        """See the contract."""
        return self._certain_ends([self._there(topic, partition)])[0]

    def ends(self, topic: str) -> dict[int, int]:
        """See the contract."""
        return dict(enumerate(self._certain_ends([Partition(topic, number) for number in range(self._count(topic))])))

    def _certain_ends(self, places: Sequence[Partition]) -> list[int]:
        """The ends as asked for after the last record was handed out or appended, and a moment ago at most."""
        oldest = time.monotonic() - FRESH_SECONDS
        if not all(place in self._certain and self._asked[place] >= oldest for place in places):
            self._ask(places)
        return [self._ends[place] for place in places]

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """See the contract."""
        place = self._there(topic, partition)
        found = self._clients.offsets([place], max(time_ms, 0))[0]
        return found if found >= 0 else self.end(topic, partition)

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        """See the contract. Also True when a partition cannot be read on, so that the reader hears why."""
        until = time.monotonic() + timeout_seconds
        if not offsets:
            time.sleep(max(timeout_seconds, 0))
            return False
        tail = self._tail.windows if self._tail is not None else {}
        new = [self._there(*place) for place in offsets if place not in tail]
        if new:
            self._ask(new)
        if self._is_there(offsets):
            return True
        self._follow({place: self._ends[place] for place in new})
        assert self._tail is not None
        while (left := until - time.monotonic()) > 0:
            if self._tail.poll(left) and self._is_there(offsets):
                return True
        return False

    def _is_there(self, places: Mapping[Partition, int]) -> bool:
        ends, tail = self._ends, {} if self._tail is None else self._tail.windows
        return any(ends.get(place, 0) > offset or (place in tail and tail[place].fault is not None) for place, offset in places.items())

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """See the contract."""
        return self._offsets.committed(group, topic, self._count(topic))

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See the contract."""
        if offsets:
            self._offsets.commit(group, topic, {self._there(topic, number).number: offset for number, offset in offsets.items()})

    def commit_soon(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """As `commit`, in the background: raises in a later call what did not get through. To be called now and then, if with nothing."""
        self._offsets.commit_soon(group, topic, {self._there(topic, number).number: offset for number, offset in offsets.items()})

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> KafkaLease:
        """See the contract."""
        lease = KafkaLease(self._clients, group, topic, self._count(topic), member, timeout_seconds)
        self._leases.append(lease)
        return lease

    def compact(self, topic: str, partition: int) -> int:
        """See the contract: the broker does it by itself, so 0."""
        self._there(topic, partition)
        if not self._catalog.is_compacted(topic):
            raise TopicMismatch(f"topic {topic!r} is not compacted: every record of it is kept")
        return 0

    def truncate(self, topic: str, partition: int, before: int) -> int:
        """See the contract. Of a compacted topic Kafka drops nothing: 0."""
        place = self._there(topic, partition)
        start, end = self.start(topic, partition), self.end(topic, partition)
        if before > end:
            raise OffsetOutOfRange(f"{place}: cannot drop records below {before}; the end is {end}")
        if before <= start or self._catalog.is_compacted(topic):
            return 0
        asked = TopicPartition(self.settings.topic(topic), partition, before)
        doing = f"dropping records of {place}"
        self._clients.administer(lambda admin, timeout: admin.delete_records([asked], request_timeout=timeout)[asked].result(), doing)
        self._forget(place)
        return before - start

    def hurry(self, seconds: float = HURRY_SECONDS) -> None:
        """This process is to end: from now on it waits these seconds for brokers, in all. Signal handlers and other threads may say so."""
        self._clients.hurry(seconds)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LogUnreachable(f"{self.settings.place} is closed; open it again")

    def close(self) -> None:
        """See the contract."""
        if self._closed:
            return
        self._closed = True
        for lease in self._leases:
            lease.release()
        self._sender.close()
        fetchers = [fetcher.give_up() for fetcher in (self._tail, self._history) if fetcher is not None]
        self._clients.close([*self._offsets.give_up(), *self._prover.give_up(), *fetchers])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
