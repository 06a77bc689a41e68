"""Findings do not depend on the short cuts: neither on looking only at what an audit looked at, nor on settled instances."""

from __future__ import annotations

from collections.abc import Sequence

from projections import evidence
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from schemas.findings import FindingRecord
from tests.ledger_history import Written
from tests.unit.test_snapshots import eventful


def findings(records: Sequence[Written], *, every_look_in_full: bool, settled: bool) -> list[list[FindingRecord]]:
    """What each record made known."""
    ledger, observed, leaks = Ledger(0, 1), Observed(0), Leaks(0)
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
