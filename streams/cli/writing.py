"""What verbs that write have in common: a stamp for each record, and where it stands once it is in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from schemas.codec import Unreadable, decode_keyed
from streams.cli.problems import UsageProblem
from streams.clock import wall_clock_ms
from streams.log.base import Log, LogError, Message, Position
from streams.operator import Stamp

if TYPE_CHECKING:
    from projections.ledger_state import Step
    from streams.cli.reading.state import State


PARTITIONS_MAX = 1024
"""Each partition costs every reader a table and a place in every cut; the largest fleets need some tens."""


def new_stamp() -> Stamp:
    """An id that nobody else has, and now."""
    return Stamp(uuid4().hex, wall_clock_ms())


def check_writable(log: Log) -> None:
    """Raises LogReadOnly for a log that cannot be written, before anything else is found to be wrong with it."""
    log.append([])


def check_readable(message: Message) -> None:
    """Raises UsageProblem for a record that no reader would take (rule 11): it would become a dead letter, and its writer wait for ever."""
    record = decode_keyed(message.topic, message.key, message.value)
    if isinstance(record, Unreadable):
        raise UsageProblem(f"this cannot be written, since nobody could read it: {record.reason}")


def appended(log: Log, *messages: Message) -> Position:
    """Append messages at once, read them back, and return where the last one stands.

    Raises as `append` does, UsageProblem for what nobody could read, and LogError if the log holds other bytes there.
    """
    for message in messages:
        check_readable(message)
    position = Position("", 0, 0)
    for message, offset in zip(messages, log.append(messages), strict=True):
        number = log.partition(message.topic, message.key) if message.partition is None else message.partition
        position = Position(message.topic, number, offset)
        records = log.read(message.topic, number, offset, 1)
        if not records or records[0].value != message.value:
            raise LogError(f"{position}: appended, but read back with other bytes; run `claimlog doctor`")
    return position


def appended_to(state: State, log: Log, *messages: Message) -> tuple[Position, Step]:
    """As `appended`, and the state is folded up to there: also what the last one did. Nothing may be laid on the state's end."""
    position = appended(log, *messages)
    *_, step = state.follow(log, position.partition, position.offset + 1)
    return position, step


def check_partitions(there: Mapping[str, int], flag: str, asked: int | None, topic: str) -> None:
    """Raises UsageProblem where another number of partitions is asked for than the topic has."""
    if asked is not None and there.get(topic, asked) != asked:
        raise UsageProblem(f"{flag} {asked}: {topic} has {there[topic]} here, and that never changes; leave it out")
