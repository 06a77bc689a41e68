"""Clean histories raise no alarm: whatever is late, sent twice or said again after a crash, nothing is ever confirmed as a leak.

How a history is acted out, and what makes it clean, is in `leaking_fleet`. `make soak` takes a thousand of them of each sort.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from projections.doubles import DoubleClaims
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.observed import Observed
from schemas.codec import encode, key_of
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.partitioner import partition_of
from streams.cli.leaks.claimed_beyond import claimed_beyond
from tests.properties.leaking_fleet import Fleet

PARTITIONS = 2
HISTORIES = 1000 if os.environ.get("CLAIMLOG_SOAK") else 100
"""Of each sort, in ten groups."""
Between = Callable[[Leaks, Observed], tuple[Leaks, Observed]]


def findings(fleet: Fleet, minutes: int, between: Between | None = None) -> tuple[list[FindingRecord], int]:
    """Everything the audit said of a history, and how many claims were confirmed in it; `between` acts on its state after each record."""
    ledgers = {number: Ledger(number, PARTITIONS) for number in range(PARTITIONS)}
    observed, leaks = [Observed(number) for number in range(PARTITIONS)], [Leaks(number) for number in range(PARTITIONS)]
    doubles, said, confirmed = DoubleClaims(ledgers), list[FindingRecord](), 0
    for time_ms, record in fleet.records(minutes):
        number, step = applied(ledgers, time_ms, record)
        observed[number].apply(ledgers[number], step)
        said += leaks[number].apply(ledgers[number], observed[number], step)
        said += doubles.apply(number, step)
        if between is not None:
            leaks[number], observed[number] = between(leaks[number], observed[number])
        confirmed += sum(outcome.outcome == "confirmed" for outcome in step.outcomes)
    return said, confirmed


def applied(ledgers: dict[int, Ledger], time_ms: int, record: Any) -> tuple[int, Step]:
    """Fold one record into the ledger of its partition; returns which that is, and what it did."""
    key = key_of(record)
    assert key is not None
    number = partition_of(key, PARTITIONS)
    step = ledgers[number].apply(ledgers[number].next_offset, time_ms, key, encode(record))
    assert step is not None
    assert step.dead is None, step.dead
    return number, step


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("group", range(10))
def test_clean_histories_confirm_no_finding_and_end_without_one(group: int, seed: int, *, followed: bool) -> None:
    happened = Counter[str]()
    for number in range(HISTORIES // 10):
        history = seed * 1000 + group * (HISTORIES // 10) + number
        said, confirmed = findings(Fleet(history, followed=followed), minutes=8)

        assert [record for record in said if isinstance(record, LeakConfirmed)] == [], f"history {history}"
        open_ = {record.finding_id for record in said if isinstance(record, LeakSuspected)}
        assert open_ - {record.finding_id for record in said if isinstance(record, LeakResolved)} == set(), f"history {history}"
        happened.update(record.kind for record in said if isinstance(record, LeakSuspected))
        happened["confirmations"] += confirmed
    assert happened["confirmations"] > 50 or followed, "guests hardly ever started: the histories are too tame to show anything"
    felt = {"stale-instance", "ghost-instance"} if followed else {"missing-claim", "expired-claim", "double-claim"}
    assert felt <= set(happened), "lateness was never felt: the histories are too tame to show anything"


@pytest.mark.parametrize("followed", [False, True])
def test_clean_histories_never_have_more_claimed_than_is_shown(seed: int, *, followed: bool) -> None:
    for number in range(HISTORIES // 10):
        ledgers = {there: Ledger(there, PARTITIONS) for there in range(PARTITIONS)}
        for time_ms, record in Fleet(seed * 1000 + number, followed=followed).records(minutes=8):
            there, step = applied(ledgers, time_ms, record)
            assert not any(claimed_beyond(ledgers[there].nodes[node_id]) for node_id in step.node_ids), f"history {number}"


def test_the_same_histories_with_one_guest_gone_without_a_word_confirm_that_and_nothing_else(seed: int) -> None:
    for number in range(10):
        said, _ = findings(Fleet(seed * 1000 + number, leak=True), minutes=8)

        confirmed = [record for record in said if isinstance(record, LeakConfirmed)]
        assert {record.kind for record in confirmed} == {"orphan-claim"}
        assert len({record.instance_id for record in confirmed}) == 1


def test_the_same_histories_with_one_guest_made_again_smaller_confirm_the_claim_that_outlived_it_and_nothing_else(seed: int) -> None:
    for number in range(10):
        said, _ = findings(Fleet(seed * 1000 + number, remade=True), minutes=8)

        confirmed = {record.finding_id: record for record in said if isinstance(record, LeakConfirmed)}
        assert {record.kind for record in confirmed.values()} <= {"size-drift", "device-drift"}
        assert len({record.instance_id for record in confirmed.values()}) == 1
        assert all(record.fix.startswith("claimlog claims release ") for record in confirmed.values())


def written_down(leaks: Leaks, observed: Observed) -> tuple[Leaks, Observed]:
    """As after a restart."""
    return (
        msgspec.msgpack.decode(msgspec.msgpack.encode(leaks), type=Leaks),
        msgspec.msgpack.decode(msgspec.msgpack.encode(observed), type=Observed),
    )


def never_quiet(leaks: Leaks, observed: Observed) -> tuple[Leaks, Observed]:
    """As if every audit were looked at in full."""
    for mark in leaks.marks.values():
        mark.quiet = False
    return leaks, observed


@pytest.mark.parametrize("between", [written_down, never_quiet])
def test_a_restart_after_every_record_and_a_full_look_at_every_audit_say_the_same(between: Between, seed: int) -> None:
    confirmed = 0
    for number in range(5):
        plain, _ = findings(Fleet(seed * 1000 + number, lost=0.4), minutes=8)
        other, _ = findings(Fleet(seed * 1000 + number, lost=0.4), minutes=8, between=between)

        assert other == plain
        confirmed += sum(isinstance(record, LeakConfirmed) for record in plain)
    assert confirmed > 0
