"""Findings do not depend on the short cuts: neither on looking only at what an audit looked at, nor on settled instances."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from projections import evidence
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from schemas.codec import encode, key_of
from schemas.findings import FindingRecord
from tests.ledger_history import Written
from tests.properties.leaking_fleet import Fleet
from tests.unit.projections.test_snapshots import eventful


class Thorough(Leaks):
    """Never takes for plain what it could look at."""

    def _is_plain(self, *_: object) -> bool:
        return False


def findings(records: Sequence[Written], *, every_look_in_full: bool, settled: bool) -> list[list[FindingRecord]]:
    """What each record made known."""
    ledger, observed, leaks = Ledger(0, 1), Observed(0), Thorough(0) if every_look_in_full else Leaks(0)
    found: list[list[FindingRecord]] = []
    for record in records:
        step = ledger.apply(*record)
        assert step is not None
        observed.apply(ledger, step)
        found.append(leaks.apply(ledger, observed, step))
        for mark in leaks.marks.values() if every_look_in_full else ():
            mark.quiet = False
        for node in ledger.nodes.values() if not settled else ():
            evidence.unsettle(node)
    return found


def test_an_audit_that_looks_at_little_finds_what_a_look_at_everything_finds(seed: int) -> None:
    told = 0
    for number in range(10):
        records = eventful(seed * 1000 + number, 250).records

        short = findings(records, every_look_in_full=False, settled=True)

        assert short == findings(records, every_look_in_full=True, settled=True)
        assert short == findings(records, every_look_in_full=True, settled=False)
        told += sum(map(len, short))
    assert told > 500, "hardly anything was ever wrong: the histories are too tame to show anything"


def acted_out(fleet: Fleet) -> list[Written]:
    """The records of a fleet in one partition."""
    told = list(fleet.records(8))
    return [Written(offset, time_ms, key_of(record) or b"", encode(record)) for offset, (time_ms, record) in enumerate(told)]


@pytest.mark.parametrize("followed", [False, True])
def test_fleets_that_lose_events_have_the_same_findings_however_short_the_looks(seed: int, *, followed: bool) -> None:
    told = 0
    for number in range(5):
        records = acted_out(Fleet(seed * 1000 + number, lost=0.2, followed=followed))

        short = findings(records, every_look_in_full=False, settled=True)

        assert short == findings(records, every_look_in_full=True, settled=True)
        told += sum(map(len, short))
    assert told > 20, "hardly anything was ever wrong: the histories are too tame to show anything"
