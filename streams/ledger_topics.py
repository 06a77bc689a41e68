"""The topics of a ledger: made, opened with record 0 of each partition of `claims`, and compared with what belongs together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from uuid import uuid4

from projections.whole import FOLLOWS, opened_partitions
from schemas import topics
from schemas.claims import PartitionOpened
from schemas.few import NAMED_MAX, few
from schemas.partitioner import partition_of
from schemas.topics import TOPICS
from streams.log.base import HIDES, Log, LogError, Message, TopicMismatch, TopicSpec, full_name_of
from streams.log.partitioner import WAY_BACK, anew, check_same, is_made_again
from streams.message import message_of

LEDGER_PARTITIONS_DEFAULT = 4
"""Enough to spread a fold over the cores of one machine, few enough that most alternates share a partition."""
REQUEST_PARTITIONS_DEFAULT = 8
"""Partitions of requests are what schedulers share out: more than the schedulers anybody runs on one machine."""

LATER_TOPICS = frozenset({topics.ANSWERED})
"""Topics without which a ledger is whole: one that an earlier version made goes on as it was until `claimlog topics apply`."""

HOW = "as docs/operations.md says"
"""Where it is told how a topic is restored, and what that costs."""


def topic_specs(ledger_partitions: int, request_partitions: int) -> list[TopicSpec]:
    """Every topic with its number of partitions."""
    counts = {"ledger": ledger_partitions, "requests": request_partitions, "one": 1}
    return [TopicSpec(topic.name, counts[topic.partitions], topic.kept == "compacted") for topic in TOPICS.values()]


def open_ledger(
    log: Log,
    *,
    ledger_partitions: int = LEDGER_PARTITIONS_DEFAULT,
    request_partitions: int = REQUEST_PARTITIONS_DEFAULT,
    whole: bool = False,
) -> list[str]:
    """Make the topics that are missing and write `PartitionOpened` as record 0 of each partition of `claims`. Doing it twice does nothing.

    Several processes may do it at once: whoever holds the lease of a partition opens it. Raises TopicMismatch if the topics there have
    other numbers of partitions than each other, and if `claims` was deleted; with `whole` also what keeps one of `LATER_TOPICS` from being
    made. Returns the topics that were made though the ledger had begun: who knows of them can tell whether they were deleted.
    """
    _check_claims(log)
    there, has_begun = log.topics(), _has_begun(log)
    if topics.CLAIMS in there:
        ledger_partitions = there[topics.CLAIMS]
    else:
        ledger_partitions = made_with(there, "ledger", ledger_partitions)
    request_partitions = made_with(there, "requests", request_partitions)
    specs = topic_specs(ledger_partitions, request_partitions)
    later = [spec for spec in specs if spec.name in LATER_TOPICS - there.keys()]
    log.create([spec for spec in specs if spec not in later])
    try:
        if later:
            log.create(later)
    except TopicMismatch:
        raise
    except LogError:
        # No right to make topics, a broker less than a new one needs, no room: an earlier version, which makes none here, would go on.
        if whole:
            raise
    _check_counts(log)
    made = [name for name in TOPICS if has_begun and name in log.topics() and name not in there]
    if all(log.ends(topics.CLAIMS).values()):
        return made
    member = uuid4().hex
    lease = log.lease("ledger-opening", topics.CLAIMS, member)
    try:
        while not all(log.ends(topics.CLAIMS).values()):
            held = lease.partitions()
            # Looked at anew: on Kafka a lease takes seconds to come, and whoever had it before has opened them meanwhile.
            mine = [number for number, end in sorted(log.ends(topics.CLAIMS).items()) if end == 0 and number in held]
            if mine:
                log.append([_opening(_ledger_id(log, member), number, ledger_partitions) for number in mine])
            else:
                log.wait({}, 0.05)
    finally:
        lease.release()
    return made


def made_anew(names: Sequence[str]) -> str:
    """What to tell of topics that were made though the ledger had begun; nothing of none."""
    if not names:
        return ""
    lost = [name for name in names if _is_source(name)]
    restore = f"; where they were deleted restore {', '.join(lost)} {HOW}: nothing makes those records again" if lost else ""
    return f"made, empty, beside a ledger that has records: {', '.join(names)}{restore}"


def remedy(log: Log, topic: str, it: str = "it") -> str:
    """What to do about a topic that is missing; `it` is what it is called."""
    makes = f"`claimlog topics apply` makes {it}"
    if not _has_begun(log):
        return makes
    if topic == topics.CLAIMS:
        return f"restore {it} from a copy, {HOW}"
    return (
        f"restore {it} {HOW}; `claimlog topics apply` begins {it} empty"
        if _is_source(topic)
        else f"{makes}, and nothing has to be restored"
    )


def _is_source(topic: str) -> bool:
    return topic not in topics.MADE_AGAIN


def _has_begun(log: Log) -> bool:
    """Whether the ledger has more than its opening; without `claims`, whether something follows from what it had."""
    there = log.topics()
    if topics.CLAIMS in there:
        return any(end > 1 for end in log.ends(topics.CLAIMS).values())
    return any(topic in there and any(log.ends(topic).values()) for topic in FOLLOWS)


def _refuse_deleted(log: Log, there: Collection[str]) -> None:
    """Raises TopicMismatch where `claims` is missing and something follows from it: made anew it would be an empty ledger of full nodes."""
    for topic in FOLLOWS:
        if topic in there and any(log.ends(topic).values()):
            raise TopicMismatch(
                f"topic {topics.CLAIMS} is missing, though {topic} has what follows from its records: somebody deleted it. Restore it "
                f"from a copy, {HOW}; to begin another ledger here delete the other topics, too, or take another prefix. {HIDES}"
            )


def _refuse_added(log: Log, there: Mapping[str, int]) -> None:
    """Raises TopicMismatch where `claims` has more partitions than the ledger says: who opened those would make a part of another one."""
    opened = opened_partitions(log)
    if 0 < opened < there.get(topics.CLAIMS, 0):
        raise TopicMismatch(
            f"topic {topics.CLAIMS} has {there[topics.CLAIMS]} partitions, and the ledger was opened with {opened}: somebody added some, "
            f"so keys belong to other partitions than their records: {WAY_BACK}"
        )


def made_with(there: Mapping[str, int], kind: str, otherwise: int) -> int:
    """How many partitions most topics of a kind have (`Topic.partitions`); `otherwise` if there is none."""
    counts = _counts(there, kind)
    return max(counts, key=counts.count, default=otherwise)


def _counts(there: Mapping[str, int], kind: str) -> list[int]:
    return [there[topic.name] for topic in TOPICS.values() if topic.partitions == kind and topic.name in there]


def _of_most(counts: list[int]) -> int:
    """What more than half of them are; 0 if there is no such number."""
    return next((count for count in counts if 2 * counts.count(count) > len(counts)), 0)


def check_topics(log: Log, names: Collection[str] = TOPICS) -> None:
    """Raise TopicMismatch unless these topics are there and those that belong together have equally many partitions.

    Those of `LATER_TOPICS` may be missing.
    """
    if topics.CLAIMS in names:
        _check_claims(log)
    _check_counts(log, names)


def check_share(log: Log, share: Collection[int], partitions: int) -> None:
    """Raise TopicMismatch where a worker is given a partition of work that a ledger of so many `partitions` does not have."""
    full_name = full_name_of(log)
    if (most := max(share, default=-1) + 1) > partitions and full_name is not None:
        check_topics(log)
        # The broker that this log asks may not know yet what the worker was told.
        check_same({topics.STREAM_PARTITIONS: partitions}, {topics.STREAM_PARTITIONS: most}, full_name)


def _check_claims(log: Log) -> None:
    there = log.topics()
    (_refuse_added if topics.CLAIMS in there else _refuse_deleted)(log, there)


def _check_counts(log: Log, names: Collection[str] = TOPICS) -> None:
    there = log.topics()
    names = expected(there, names)
    wanted = [topic for topic in TOPICS.values() if topic.name in names]
    if missing := [topic.name for topic in wanted if topic.name not in there]:
        raise TopicMismatch(_said_missing(log, missing, most=len(missing) if there else NAMED_MAX))
    for topic in wanted:
        first = next(other.name for other in wanted if other.partitions == topic.partitions)
        if there[topic.name] != there[first]:
            raise TopicMismatch(
                f"topic {topic.name} has {there[topic.name]} partitions, {first} has {there[first]}: they must have equally many. "
                f"{_way_back(there, opened_partitions(log), full_name_of(log))}"
            )


def _said_missing(log: Log, names: Sequence[str], most: int) -> str:
    """The sentence for topics that are missing, `most` of which are named, with what to do about each."""
    one = len(names) == 1
    it, is_ = ("it", "is") if one else ("them", "are")
    by_remedy: dict[str, list[str]] = {}
    for name in names:
        by_remedy.setdefault(remedy(log, name), []).append(name)
    ways = [(alike, remedy(log, alike[0], "it" if len(alike) == 1 else "them")) for alike in by_remedy.values()]
    todo = [way if len(ways) == 1 else f"of {', '.join(alike)}: {way}" for alike, way in ways]
    return (
        f"topic{'s' * (not one)} {few(names, most)} {is_} missing: this is no claimlog ledger, its making was interrupted, or somebody "
        f"deleted {it}; {'; '.join(todo)}. {HIDES}"
    )


def _way_back(there: Mapping[str, int], opened: int, full_name: Callable[[str], str] | None) -> str:
    """What to do where topics that belong together have not equally many partitions."""
    first = _first(there, opened)
    others = [topic.name for topic in TOPICS.values() if topic.name in there and there[topic.name] != first[topic.partitions]]
    if full_name and is_made_again(others):
        return f"So {anew(others, full_name)}"
    return f"Where somebody added some, {WAY_BACK}"


def first_partitions(there: Mapping[str, int], opened: int) -> dict[str, int]:
    """The topics to which somebody added partitions, with the number that they were made with; what stands in the others is nobody's.

    `opened` is how many the ledger says that it has, 0 if that is not at hand. Otherwise, and of requests nothing says so, what most of
    the topics that belong together have counts.
    """
    first = _first(there, opened)
    known = {topic.name: first[topic.partitions] for topic in TOPICS.values() if topic.name in there}
    return {name: count for name, count in known.items() if 0 < count < there[name]}


def _first(there: Mapping[str, int], opened: int) -> dict[str, int]:
    return {"ledger": opened or _of_most(_counts(there, "ledger")), "requests": _of_most(_counts(there, "requests")), "one": 1}


def expected(there: Collection[str], names: Collection[str]) -> list[str]:
    """Those of `names` that a ledger has to have, or has: without some it is whole, as it was made before these were thought of."""
    return [name for name in names if name in there or name not in LATER_TOPICS]


def _ledger_id(log: Log, fallback: str) -> str:
    """One id for all partitions: the log's own where it has one."""
    return log.ledger_id or fallback


def _opening(ledger_id: str, partition: int, partitions: int) -> Message:
    """Record 0 of a partition; its key only has to belong there."""
    event = PartitionOpened(ledger_id=ledger_id, partition=partition, partitions=partitions)
    key, event_id = own_key(partition, partitions), f"{ledger_id}/{partition}"
    return message_of(topics.CLAIMS, event, event_id=event_id, source="claimlog/topics", key=key, partition=partition)


def own_key(partition: int, partitions: int) -> bytes:
    """Some key that belongs to a partition, for records that are about the partition itself."""
    candidates = (b"partition-%d" % number for number in count())
    return next(key for key in candidates if partition_of(key, partitions) == partition)
