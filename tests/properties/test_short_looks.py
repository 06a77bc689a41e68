"""Findings do not depend on the short cuts: neither on looking only at what an audit looked at, nor on settled instances."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from projections import evidence
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from schemas.codec import encode, key_of
from schemas.findings import FindingRecord
from tests.ledger_history import History, Size, Written, digest_of
from tests.properties.leaking_fleet import Fleet
from tests.unit.projections.test_snapshots import CHANGES, eventful


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


def without_causes(found: list[list[FindingRecord]]) -> list[list[FindingRecord]]:
    """Of a settled instance the time of the last audit that lists it stands with its node, and a cause names the one before."""
    return [[replace(record, causes=()) for record in records] for records in found]


def test_an_audit_that_looks_at_little_finds_what_a_look_at_everything_finds(seed: int) -> None:
    told = 0
    for number in range(10):
        records = eventful(seed * 1000 + number, 250).records

        short = findings(records, every_look_in_full=False, settled=True)

        assert short == findings(records, every_look_in_full=True, settled=True)
        assert without_causes(short) == without_causes(findings(records, every_look_in_full=True, settled=False))
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


def operated(seed: int, length: int) -> list[Written]:
    """Two hosts that are audited each minute, mostly unchanged; a cloud that counts guests there; operators who take hosts out and back.

    Producers begin anew, words are lost, and claims keep places on hosts that are out.
    """
    random, history = Random(seed), History()
    listed: dict[str, dict[str, Size]] = {"n1": {}, "n2": {}}
    epochs = dict.fromkeys(listed, 1)
    for number in range(length):
        node, instance, at_s = random.choice(("n1", "n2")), f"i{random.randrange(4)}", history.now_s + random.choice((0, 1, 20))
        own: dict[str, Any] = {"node": node, "producer": f"audits of {node}", "epoch": epochs[node]}
        held = history.held()
        match random.randrange(14):
            case 0:
                history.claim(f"c{number}", instance, 1, at_s=at_s, nodes=(node,), keep=random.random() < 0.3, resize=random.random() < 0.3)
            case 1:
                listed[node][instance] = random.choice((1, 2))
            case 2:
                listed[node].pop(instance, None)
            case 3:
                history.event(random.choice(CHANGES), instance, at_s=at_s, size=1, **own)
            case 4:
                history.event(random.choice(CHANGES), instance, at_s=at_s, size=random.choice((1, 2)), node=node, producer="nova")
            case 5:
                history.configure(node, at_s=at_s, status=random.choice(("enabled", "enabled", "disabled", "withdrawn")))
            case 6:
                epochs[node] += random.random() < 0.3
            case 7 if number:  # Of a claim that is held, or of one that no longer is.
                claim_id = random.choice([*held, f"c{random.randrange(number)}"])
                history.release(claim_id, at_s=at_s, node=node, reason="operator")
            case _:
                for each, guests in listed.items():
                    at_s += 30
                    producer: dict[str, Any] = {"node": each, "producer": f"audits of {each}", "epoch": epochs[each]}
                    step = history.audit(at_s=at_s, unchanged=digest_of(guests), **producer)
                    last = history.ledger.nodes[each].audit
                    if last is None or last.offset != step.offset:
                        history.audit(guests, at_s=at_s, **producer)
    return history.records


def test_hosts_that_operators_take_out_and_back_have_the_same_findings_however_short_the_looks(seed: int) -> None:
    told = 0
    for number in range(20):
        records = operated(seed * 1000 + number, 200)

        short = findings(records, every_look_in_full=False, settled=True)

        assert short == findings(records, every_look_in_full=True, settled=True)
        told += sum(map(len, short))
    assert told > 1000, "hardly anything was ever wrong: the histories are too tame to show anything"
