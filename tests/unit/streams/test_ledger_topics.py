"""Opening a ledger: every topic, and record 0 of every partition of claims, once, whoever comes first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas import topics
from schemas.claims import PartitionOpened
from schemas.codec import decode_keyed
from schemas.partitioner import partition_of
from schemas.topics import MADE_AGAIN, TOPICS
from streams.engines import Watcher
from streams.ledger_topics import LATER_TOPICS, check_share, check_topics, first_partitions, open_ledger, own_key, topic_specs
from streams.log.base import LogError, LogFull, Message, TopicMismatch, TopicSpec
from streams.log.kafka_settings import KafkaSettings
from streams.log.leases import RosterLease
from streams.log.memory import MemoryLog
from streams.log.partitioner import check_same, other_count


def test_an_opened_ledger_has_every_topic_and_record_0_of_every_partition() -> None:
    log = MemoryLog()

    open_ledger(log, ledger_partitions=3, request_partitions=2)

    assert dict(log.topics()) == {t.name: {"ledger": 3, "requests": 2, "one": 1}[t.partitions] for t in TOPICS.values()}
    opened = [decode_keyed(r.topic, r.key, r.value) for p in range(3) for r in log.read(topics.CLAIMS, p, 0)]
    assert [(event.partition, event.partitions) for event in opened if isinstance(event, PartitionOpened)] == [(0, 3), (1, 3), (2, 3)]
    assert len({event.ledger_id for event in opened}) == 1


def counts(**others: int) -> dict[str, int]:
    """Topics of a ledger of three partitions and two of requests, but for those of `others`."""
    return {spec.name: others.get(spec.name.replace("-", "_"), spec.partitions) for spec in topic_specs(3, 2)}


@pytest.mark.parametrize(
    ("there", "opened", "first"),
    [
        (counts(), 3, {}),
        (counts(hypervisor_audits=4), 3, {topics.AUDITS: 3}),
        (counts(claims=6, placement_requests=9, dead_letters=2), 3, {topics.CLAIMS: 3, topics.REQUESTS: 2, topics.DEAD_LETTERS: 1}),
        (counts(hypervisor_audits=4), 0, {topics.AUDITS: 3}),
        (
            {name: 6 if TOPICS[name].partitions == "ledger" else count for name, count in counts().items()},
            3,
            {topic.name: 3 for topic in TOPICS.values() if topic.partitions == "ledger"},
        ),
        # One has fewer, or no number is that of most: that is for people to look at.
        (counts(node_resources=1, placement_results=1), 3, {}),
        ({topics.REQUESTS: 3, topics.RESULTS: 2}, 0, {}),
        ({}, 0, {}),
    ],
)
def test_partitions_that_were_added_are_told_from_those_that_a_ledger_was_made_with(
    there: dict[str, int], opened: int, first: dict[str, int]
) -> None:
    assert first_partitions(there, opened) == first


def test_opening_twice_changes_nothing_and_keeps_the_numbers_of_partitions() -> None:
    log = MemoryLog()
    open_ledger(log, ledger_partitions=3, request_partitions=2)

    open_ledger(log, ledger_partitions=8, request_partitions=8)

    assert log.ends(topics.CLAIMS) == {0: 1, 1: 1, 2: 1}


def test_a_topic_that_was_deleted_is_made_with_the_partitions_of_its_kind() -> None:
    log = MemoryLog([spec for spec in topic_specs(2, 3) if spec.name != topics.REQUESTS])
    open_ledger(log)
    assert log.topics()[topics.REQUESTS] == 3

    log = MemoryLog([spec for spec in topic_specs(2, 3) if spec.name not in {topics.REQUESTS, topics.CLAIMS}])
    log.create([TopicSpec(topics.CLAIMS, 2)])
    open_ledger(log)
    assert log.topics()[topics.REQUESTS] == 3


def test_a_ledger_whose_claims_were_deleted_is_not_made_anew_empty() -> None:
    log = MemoryLog([spec for spec in topic_specs(2, 1) if spec.name != topics.CLAIMS])
    open_again = MemoryLog([spec for spec in topic_specs(2, 1) if spec.name != topics.CLAIMS])
    log.append([Message(topics.NODE_RESOURCES, b"n1", b"{}")])

    with pytest.raises(TopicMismatch, match="though node-resources has what follows from its records: somebody deleted it"):
        open_ledger(log)
    open_ledger(open_again)

    assert topics.CLAIMS not in log.topics()
    assert open_again.ends(topics.CLAIMS) == {0: 1, 1: 1}


class _LongLease(MemoryLog):
    """A log whose lease comes when others have opened the ledger by it, as Kafka's does."""

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> RosterLease:
        lease = super().lease(group, topic, member, timeout_seconds)
        held = lease.partitions

        def late() -> frozenset[int]:
            self.append([Message(topics.CLAIMS, own_key(number, 2), b"opened", (), number) for number in range(2)])
            return held()

        lease.partitions = late  # type: ignore[method-assign]
        return lease


def test_processes_that_open_a_ledger_at_once_open_each_partition_once() -> None:
    log = _LongLease(topic_specs(2, 1))

    open_ledger(log)

    assert log.ends(topics.CLAIMS) == {0: 1, 1: 1}


def test_an_opening_that_was_interrupted_is_finished() -> None:
    log = MemoryLog(topic_specs(2, 1))

    open_ledger(log)

    assert log.ends(topics.CLAIMS) == {0: 1, 1: 1}


def test_topics_that_belong_together_must_have_equally_many_partitions() -> None:
    log = MemoryLog([spec for spec in topic_specs(2, 1) if spec.name != topics.LIFECYCLE] + [TopicSpec(topics.LIFECYCLE, 3)])

    with pytest.raises(TopicMismatch, match="instance-lifecycle has 3 partitions"):
        check_topics(log)


class _OnKafka(MemoryLog):
    """A log whose topics have a prefix for Kafka's own tools."""

    settings = KafkaSettings(bootstrap="127.0.0.1:9092", prefix="pre")


def with_added(*names: str, kind: type[MemoryLog] = _OnKafka) -> MemoryLog:
    """The topics of a ledger, to some of which somebody added a partition."""
    return kind([TopicSpec(spec.name, spec.partitions + (spec.name in names), spec.compacted) for spec in topic_specs(2, 2)])


@pytest.mark.parametrize("name", sorted(MADE_AGAIN))
def test_a_topic_that_is_made_again_is_to_be_deleted_where_somebody_added_partitions(name: str) -> None:
    log, before = with_added(name), MemoryLog(topic_specs(2, 2)).topics()

    with pytest.raises(TopicMismatch) as checked:
        check_topics(log)
    with pytest.raises(TopicMismatch) as ended:
        check_same(before, log.topics(), _OnKafka.settings.topic)
    opened = other_count(TopicSpec(name, 2), 3, _OnKafka.settings.topic)

    for said in (str(checked.value), str(ended.value), opened):
        assert f"delete pre.{name} (`kafka-topics.sh --delete`), and `claimlog topics apply`: what stood there is made again" in said
        assert "claimlog copy" not in said


@pytest.mark.parametrize("name", [topics.AUDITS, topics.NODE_RESOURCES])
def test_a_log_that_is_not_on_kafka_has_no_use_for_kafka_s_tools(name: str) -> None:
    log = with_added(name, kind=MemoryLog)

    with pytest.raises(TopicMismatch, match=f"{name} has 3") as checked:
        check_topics(log)
    with pytest.raises(TopicMismatch, match=r"3 partitions here, not 2; that never changes\. Use 3, or a new log$") as opened:
        log.create([TopicSpec(name, 2)])

    assert not any("kafka-topics" in str(each.value) for each in (checked, opened))


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ((topics.STREAM_PARTITIONS,), "delete pre.stream-partitions"),
        ((), "topic 'pre.stream-partitions' has 3 partitions now and had 2: .*delete pre.stream-partitions"),
        ((topics.AUDITS, topics.STREAM_PARTITIONS), "claimlog copy"),
    ],
    ids=["added", "not known here yet", "added to others, too"],
)
def test_a_worker_that_is_given_a_partition_that_was_added_is_told_what_to_do(added: tuple[str, ...], says: str) -> None:
    log = with_added(*added)

    with pytest.raises(TopicMismatch, match=says):
        check_share(log, frozenset({0, 2}), 2)
    check_share(log, frozenset({0, 1}), 2)


@pytest.mark.parametrize("names", [(topics.AUDITS,), (topics.NODE_RESOURCES, topics.RESULTS), (topics.REQUESTS,)])
def test_a_ledger_is_to_be_copied_where_partitions_were_added_to_what_nothing_makes_again(names: tuple[str, ...]) -> None:
    log, before = with_added(*names), MemoryLog(topic_specs(2, 2)).topics()

    with pytest.raises(TopicMismatch, match="claimlog copy"):
        check_topics(log)
    with pytest.raises(TopicMismatch, match=f"topic 'pre.{min(set(names) - MADE_AGAIN)}' has .*claimlog copy"):
        check_same(before, log.topics(), _OnKafka.settings.topic)


@pytest.mark.parametrize("name", [topics.REQUESTS, topics.AUDITS])
def test_a_start_on_added_partitions_says_to_copy_the_ledger_and_not_to_use_what_nothing_can_use(name: str) -> None:
    said = other_count(TopicSpec(name, 8), 10, _OnKafka.settings.topic)

    assert said.startswith(f"topic 'pre.{name}' has 10 partitions here, not 8: somebody added some")
    assert "`claimlog copy` the ledger to a new log" in said
    assert "Use 10" not in said


def test_of_several_topics_that_were_deleted_all_are_named_with_what_to_do_about_each() -> None:
    gone = (topics.RESULTS, topics.NODE_RESOURCES, topics.DIGESTS)
    log = MemoryLog([spec for spec in topic_specs(1, 1) if spec.name not in gone])
    log.append([Message(topics.CLAIMS, b"k", b"opened"), Message(topics.CLAIMS, b"k", b"more")])

    with pytest.raises(TopicMismatch) as found:
        check_topics(log)

    assert str(found.value).startswith(f"topics {', '.join(gone)} are missing: this is no claimlog ledger")
    assert f"of {topics.RESULTS}: restore " in str(found.value)
    assert f"of {topics.NODE_RESOURCES}, {topics.DIGESTS}: `claimlog topics apply` makes them, and nothing" in str(found.value)


def test_a_key_made_for_a_partition_belongs_there() -> None:
    assert [partition_of(own_key(p, 7), 7) for p in range(7)] == list(range(7))


def test_a_ledger_that_was_made_before_a_topic_was_thought_of_is_whole_and_looked_through() -> None:
    log = MemoryLog([spec for spec in topic_specs(2, 2) if spec.name not in LATER_TOPICS])
    open_before = set(log.topics())

    check_topics(log)
    Watcher(log).turn(frozenset({0, 1}))

    assert TOPICS.keys() - open_before == LATER_TOPICS


class _MakesNone(MemoryLog):
    """A log that makes no topic now, for this reason."""

    why: LogError | None = None

    def create(self, topics: Sequence[TopicSpec]) -> None:
        if self.why is not None and not {spec.name for spec in topics} <= self.topics().keys():
            raise self.why
        super().create(topics)


@pytest.mark.parametrize("why", [LogError("no right"), LogFull("no room"), LogError("2 brokers, and 3 are needed")])
def test_a_ledger_of_an_earlier_version_is_opened_where_no_topic_can_be_made_now_and_only_apply_says_why(why: LogError) -> None:
    log = _MakesNone([spec for spec in topic_specs(2, 2) if spec.name not in LATER_TOPICS])
    log.why = why

    open_ledger(log)

    assert not LATER_TOPICS & log.topics().keys()
    with pytest.raises(type(why), match=str(why)):
        open_ledger(log, whole=True)


def test_a_new_ledger_is_not_opened_where_no_topic_can_be_made() -> None:
    log = _MakesNone()
    log.why = LogError("2 brokers, and 3 are needed")

    with pytest.raises(LogError, match="3 are needed"):
        open_ledger(log)
