"""A ledger that lost a partition of `claims` is noticed by what else is at hand; one where nothing has happened yet is not."""

from __future__ import annotations

import pytest

from projections.reading import HistoryMissing
from projections.replay import ends_of
from projections.whole import check_whole, opened_partitions
from schemas.claims import PartitionOpened
from schemas.codec import encode
from schemas.topics import AUDITS, CLAIMS, NODE_RESOURCES, SNAPSHOTS, VERDICTS
from streams.log.base import Message, TopicSpec
from streams.log.memory import MemoryLog


def a_log(*topics: str, partitions: int = 2) -> MemoryLog:
    return MemoryLog([TopicSpec(topic, partitions) for topic in topics])


def opening(number: int, partitions: int = 2) -> Message:
    return Message(CLAIMS, b"", encode(PartitionOpened(ledger_id="l", partition=number, partitions=partitions)), partition=number)


def test_a_ledger_that_was_just_made_and_a_log_of_observations_alone_are_whole() -> None:
    made, fresh, observed = a_log(CLAIMS, NODE_RESOURCES), a_log(CLAIMS, NODE_RESOURCES), a_log(AUDITS)
    half = a_log(CLAIMS, NODE_RESOURCES)
    made.append([opening(0), opening(1)])
    half.append([opening(1)])
    observed.append([Message(AUDITS, b"n", b"{}")])

    for log in (made, half, fresh, observed):
        check_whole(log)

    assert (opened_partitions(made), opened_partitions(fresh), opened_partitions(observed)) == (2, 0, 0)


@pytest.mark.parametrize("there", [0, 1])
def test_a_partition_that_the_ledger_speaks_of_and_that_has_nothing_is_missed(there: int) -> None:
    log = a_log(CLAIMS)
    log.append([opening(there), Message(CLAIMS, b"n", b"{}", partition=there)])

    with pytest.raises(HistoryMissing, match=rf"^claims/{1 - there}: there is nothing, but the ledger has 2 partitions\. "):
        check_whole(log)


def test_partitions_behind_the_last_that_this_copy_has_are_missed_too() -> None:
    log = a_log(CLAIMS, partitions=1)
    log.append([opening(0, partitions=3), Message(CLAIMS, b"n", b"{}", partition=0)])

    with pytest.raises(HistoryMissing, match=r"^claims/1: there is nothing, but the ledger has 3 partitions"):
        check_whole(log)


@pytest.mark.parametrize("topic", [NODE_RESOURCES, VERDICTS, SNAPSHOTS])
@pytest.mark.parametrize("is_seen", [True, False])
def test_what_follows_from_claims_tells_that_there_were_some(topic: str, is_seen: bool) -> None:
    log = a_log(topic, CLAIMS) if is_seen else a_log(topic)
    log.append([Message(topic, b"k", b"{}", partition=1)])

    with pytest.raises(HistoryMissing, match=rf"^claims/1: there is nothing, but {topic}/1 has what follows from its records") as checked:
        check_whole(log)
    with pytest.raises(HistoryMissing) as folded:
        ends_of(log, None)
    assert str(folded.value) == str(checked.value), "who folds hears nothing else"


def test_observations_that_were_carried_into_nothing_tell_it_as_well() -> None:
    log = a_log(AUDITS, CLAIMS)

    check_whole(log, {AUDITS: {0: 0, 1: 0}})
    with pytest.raises(HistoryMissing, match=r"^claims/1: there is nothing, but hypervisor-audits/1 was carried there up to 7"):
        check_whole(log, {AUDITS: {0: 0, 1: 7}})
