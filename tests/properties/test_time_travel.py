"""An answer about a moment is the answer that was given at that moment: nodes and findings, by time and by cut, with snapshots or not."""

from __future__ import annotations

import io
from functools import partial

import pytest

from schemas.claims import PartitionOpened
from schemas.codec import encode, key_of
from schemas.partitioner import partition_of
from schemas.topics import CLAIMS
from streams.cli.given.timegrammar import Instant
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.snapshot import ensure_snapshot
from streams.ledger_topics import own_key
from streams.log.base import Log, Message, TopicSpec
from streams.log.memory import MemoryLog
from tests.properties.leaking_fleet import START_MS, Fleet

PARTITIONS = 2
ASK_EVERY_MS = 45_000


def answer(state: State) -> tuple[object, ...]:
    """Everything that `leaks`, `nodes` and `replay` read of a state, but for the time that ages count to."""
    rows = [state.row(node_id) for node_id in state.node_ids()]
    digests = [(number, ledger.next_offset, ledger.digest) for number, ledger in state.ledgers.items()]
    return state.findings(), rows, digests


def snapshot(log: Log) -> None:
    """As `claimlog snapshot` writes them."""
    whole = partial(state_at, log, from_the_first=True, pending=False, stderr=io.StringIO())
    for number, end in log.ends(CLAIMS).items():
        ensure_snapshot(log, number, end, lambda _: None, whole)


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("followed", [False, True])
def test_an_answer_at_a_moment_is_the_answer_that_was_given_then(seed: int, *, followed: bool, snapshots: bool) -> None:
    now_ms, asked_ms, kept = START_MS, START_MS, 0
    log = MemoryLog([TopicSpec(CLAIMS, PARTITIONS)], clock=lambda: now_ms)
    for number in range(PARTITIONS):
        opened = PartitionOpened(ledger_id="travelled", partition=number, partitions=PARTITIONS)
        log.append([Message(CLAIMS, own_key(number, PARTITIONS), encode(opened), (), number)])
    given: list[tuple[int, State]] = []
    for time_ms, record in Fleet(seed, lost=0.3, followed=followed).records(5):
        if time_ms > asked_ms + ASK_EVERY_MS:
            asked_ms = time_ms
            given.append((time_ms, state_at(log, pending=False, stderr=io.StringIO())))
            if snapshots and len(given) % 4 == 0:
                snapshot(log)
                kept += 1
        now_ms = time_ms
        key = key_of(record) or b""
        log.append([Message(CLAIMS, key, encode(record), (), partition_of(key, PARTITIONS))])

    by_time = [answer(state_at(log, Instant(at_ms), pending=False, stderr=io.StringIO())) for at_ms, _ in given]
    by_cut = [answer(state_at(log, state.cut, pending=False, stderr=io.StringIO())) for _, state in given]

    before = [answer(state) for _, state in given]
    assert by_time == before
    assert by_cut == before
    assert len(given) > 5
    assert any(state.findings() for _, state in given)
    assert kept > 0 or not snapshots
