"""Is what a verb reads there at all? An answer from a log without its topics would be "nothing", whatever was in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from schemas.topics import ANSWERED, CLAIMS, FOLDED, MADE_AGAIN, NODE_RESOURCES, VERDICTS
from streams.cli.problems import AnswerIncomplete
from streams.ledger_topics import LATER_TOPICS
from streams.log.base import HIDES, Log, LogReadOnly, TopicMismatch, full_name_of
from streams.reconciler import SOURCES


def folded_partitions(there: Mapping[str, int]) -> list[int]:
    """How many partitions those of the folded topics have that are there. Raises TopicMismatch for none: such a log has no ledger."""
    known = [there[topic] for topic in FOLDED if topic in there]
    if not known:
        raise TopicMismatch(
            f"this log has no ledger: topics {CLAIMS}, {' and '.join(SOURCES)} are missing; `claimlog run` or `claimlog produce` makes "
            f"them. {HIDES}"
        )
    return known


def is_lines(log: Log) -> bool:
    """Whether it is lines of JSON, from a file or stdin: what can only be read, and has the topics that whoever wrote it chose."""
    try:
        log.append([])
    except LogReadOnly:
        return True
    return False


def missing(log: Log, topics: Sequence[str]) -> list[str]:
    """Those of `topics` that a ledger has and this log has not; none of a file of lines.

    Raises TopicMismatch for a log that carries no ledger.
    """
    if is_lines(log):
        return []
    there = log.topics()
    folded_partitions(there)
    return [name for name in topics if name not in there and name not in LATER_TOPICS]


def not_made(log: Log, topics: Sequence[str]) -> list[str]:
    """What to say where nobody has made some of `topics` that follow from the ledger: no copy has them, no log before `claimlog run`."""
    if is_lines(log):
        names = [name for name in topics if name in MADE_AGAIN and name not in log.topics()]
        return [f"this file has nothing of {', '.join(names)}: what follows from the ledger is in no copy"] if names else []
    # Schedulers file answers; and the first record of each partition of `claims` opens it, of which nothing follows.
    names = [name for name in topics if name in MADE_AGAIN and name != ANSWERED and not _has_records(log, (name,))]
    if not names or not _has_records(log, (CLAIMS,), beyond=1) or _has_records(log, (VERDICTS, NODE_RESOURCES)):
        return []
    return [f"nothing in {', '.join(names)} yet: no stream processor has read this log; `claimlog run` makes what follows from the ledger"]


def _has_records(log: Log, topics: Collection[str], beyond: int = 0) -> bool:
    there = log.topics()
    return any(log.end(name, number) > beyond for name in topics for number in range(there.get(name, 0)))


def missing_text(names: Sequence[str]) -> str:
    """What to say of missing topics."""
    are = "topic {} is" if len(names) == 1 else "topics {} are"
    return f"{are.format(', '.join(names))} missing, so what stood there is not known; see `claimlog topics check`"


def check_there(log: Log, *topics: str) -> None:
    """Raises TopicMismatch for a log without a ledger, AnswerIncomplete where one of the topics that the answer reads is missing."""
    if names := missing(log, topics):
        raise AnswerIncomplete(missing_text(names))


def check_seen(log: Log, *topics: str) -> None:
    """Raises AnswerIncomplete where one of these topics is missing on Kafka, or, elsewhere, some that follow from the ledger are there.

    It was deleted then, or is hidden from this user: whoever makes a ledger's topics makes them all. Raises TopicMismatch where none is
    there: on Kafka that is another prefix.
    """
    there = log.topics()
    names, has_more = [name for name in topics if name not in there], any(name in there for name in MADE_AGAIN)
    if names and (full_name_of(log) is not None or has_more) and not is_lines(log):
        if not has_more:
            folded_partitions(there)
        raise AnswerIncomplete(f"{missing_text(names)}. {HIDES}")
