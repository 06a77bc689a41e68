"""What `claimlog doctor` checks of a log on Kafka beside the ledger: brokers and copies, settings of topics, who is in the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from schemas.few import few
from schemas.topics import REQUESTS, STREAM_PARTITIONS
from streams.cli.doctor.checks import Check
from streams.cli.printed.units import counted
from streams.cli.topics import TIMES_OF_BROKERS, TIMES_OF_WRITERS, Missing, differences, of_mirrors
from streams.engines import WATCHERS
from streams.log.base import Log, Partition, present_of
from streams.log.kafka_settings import REPLICAS
from streams.log.reading import places
from streams.reconciler import CARRIERS
from streams.scheduler import GROUP as SCHEDULERS

if TYPE_CHECKING:
    from streams.log.kafka_health import Cluster, Members
    from streams.log.kafka_topics import TopicDifference

WORKERS = "stream-processor"
"""The group in which Faust shares the partitions out."""
PLACES_KEPT = (CARRIERS, WATCHERS, SCHEDULERS)
"""The groups without members, which keep how far their readers have come."""


@runtime_checkable
class Clustered(Protocol):
    """A log on brokers: Kafka."""

    def cluster(self) -> Cluster:
        """The brokers as they are now."""
        ...

    def members(self, groups: Sequence[str]) -> Sequence[Members]:
        """Who is in these groups."""
        ...


def of_brokers(log: Log) -> Iterator[Check]:
    """What is to be known before anything is read: with brokers away reading may take all patience. Nothing for a log without brokers."""
    log = present_of(log)
    if isinstance(log, Clustered):
        found = log.cluster()
        yield brokers(found)
        yield from offsets(found)


def of_cluster(log: Log) -> Iterator[Check]:
    """Settings, workers and schedulers; nothing for a log that has none of these."""
    log = present_of(log)
    if not isinstance(log, Clustered):
        return
    compared = differences(log)
    yield settings(compared)
    yield from times(compared)
    workers, schedulers, *places_kept = log.members([WORKERS, f"{SCHEDULERS}.{REQUESTS}.lease", *PLACES_KEPT])
    yield members("workers", workers, "start some: `claimlog run --only processor`; until then nothing is carried or published")
    yield members("schedulers on", schedulers, "start some: `claimlog run --only scheduler`; until then no request is answered")
    for group, topic in ((workers, STREAM_PARTITIONS), (schedulers, REQUESTS)):
        yield from nobodys(group, places(log, topic))
    yield from namesakes(schedulers)
    yield from strangers(places_kept)


def brokers(found: Cluster) -> Check:
    """Every partition has a leader and all its copies."""
    said = f"{counted(found.brokers, 'broker')}, {found.partitions} partitions"
    if found.leaderless:
        fix = (
            "start the brokers that are down, and look at the disks of those that run: a full or broken one takes its partitions with it "
            "until its broker is started again; a partition whose only copy is lost is made anew by hand"
        )
        return Check("fail", "brokers", f"{said}; without a leader: {few(found.leaderless)}", fix)
    if found.refusing:
        fix = "start the brokers that are down; what is there can be read"
        return Check("fail", "brokers", f"{said}; too few copies for any writing: {few(found.refusing)}", fix)
    if found.thin:
        fix = "start the brokers that are down; until then another loss stops writing"
        return Check("warn", "brokers", f"{said}; copies are missing of {few(found.thin)}", fix)
    return Check("ok", "brokers", f"{said}, each with all its copies")


def offsets(found: Cluster) -> Iterator[Check]:
    """Kafka's own topic for groups outlives a broker; nothing where that is so, cannot be seen, or nobody could help it."""
    copies = found.offsets_copies
    if copies is not None and copies < min(REPLICAS, found.brokers):
        said = f"__consumer_offsets has {copies} cop{'y' if copies == 1 else 'ies'}: workers and schedulers may stop with one broker"
        fix = "kafka-reassign-partitions.sh gives it more; offsets.topic.replication.factor is for clusters without any group yet"
        yield Check("warn", "groups kept", said, fix)


def settings(compared: Sequence[TopicDifference | Missing]) -> Check:
    """The topics are as a ledger needs them."""
    wrong = [str(difference) for difference in compared if not difference.is_of_mirrors]
    if wrong:
        return Check("fail", "settings", few(wrong, separator="; "), "`claimlog topics check` says what sets them right")
    return Check("ok", "settings", "topics are as a ledger needs them")


def times(compared: Sequence[TopicDifference | Missing]) -> Iterator[Check]:
    """Nothing where the brokers' clocks are the records' times."""
    mirrored = of_mirrors(compared)
    if mirrored:
        yield Check("warn", "times", f"{few(mirrored)}: {TIMES_OF_WRITERS}", TIMES_OF_BROKERS)


def namesakes(schedulers: Members) -> Iterator[Check]:
    """Nothing where each scheduler has a name of its own. Kafka tells two of one name apart; what they say cannot be."""
    shared = [name for name, count in sorted(Counter(schedulers.clients).items()) if count > 1]
    if shared:
        said = f"several are called {', '.join(shared)}; records and digests tell them apart by their names alone"
        yield Check("warn", "scheduler names", said, "claimlog run --only scheduler --name ANOTHER, for each but one")


def members(name: str, group: Members, fix: str) -> Check:
    """Somebody is in the group, and it is not sharing out just now."""
    if not group.clients:
        return Check("warn", name, f"nobody is in group {group.group}", fix)
    said = f"{len(group.clients)} in group {group.group}"
    if group.state != "stable":
        return Check("warn", name, f"{said}, which is {group.state.replace('_', ' ')}", "look again in a moment; workers come and go")
    return Check("ok", name, said)


def nobodys(group: Members, places: Sequence[Partition]) -> Iterator[Check]:
    """Nothing where each partition that the group shares out is somebody's, nobody is there, or it shares out just now."""
    lacking = [place for place in places if place not in group.assigned]
    if lacking and group.clients and group.state == "stable":
        said = f"{few(lacking)}: nobody's, though there are {len(group.clients)} in group {group.group}"
        yield Check("warn", "shares", said, "look again in a minute: it is shared out anew; else start all of them again")


def strangers(groups: Sequence[Members]) -> Iterator[Check]:
    """Who has joined a group that is there only to keep how far claimlog has read; nothing where nobody has."""
    fix = "stop that program and give it a group of its own: claimlog cannot store there how far it is, and what it stores may be wrong"
    for group in groups:
        if group.clients:
            said = f"{', '.join(group.clients)} has joined group {group.group}, where claimlog keeps how far it has read"
            yield Check("fail", "groups", said, fix)
