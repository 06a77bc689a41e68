"""Doubles within one partition; those across partitions are in `tests/unit/streams/test_leak_audit.py`."""

from __future__ import annotations

from typing import Any

import pytest

from projections.doubles import DoubleClaims
from projections.ledger import Ledger
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, FindingIgnored, NodeObserved
from schemas.codec import encode
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.inventory import Hypervisor
from schemas.partitioner import partition_of
from schemas.resources import ObservedResources, Resources
from tests.ledger_history import START_MS, History

HERE = InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=4))
MIGRATING = InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=4), task_state="migrating")


def held_twice(*instances: str, ttl_s: int = 600) -> History:
    """Each was claimed and seen on `a`, then claimed and seen on `b`, and nobody said that it had left `a`."""
    history = History()
    for at_s, node in ((0, "a"), (100, "b")):
        history.audit({}, at_s=at_s, node=node, memory_mib=64)
        for instance in instances:
            history.claim(f"{instance} on {node}", instance, 4, at_s=at_s + 1, nodes=(node,), ttl_s=ttl_s)
            history.event("started", instance, at_s=at_s + 2, size=4, node=node)
    return history


def looked(history: History) -> tuple[DoubleClaims, list[FindingRecord]]:
    """What is left of doubles, and what was said of them."""
    ledger = Ledger(0, 1)
    doubles, said = DoubleClaims({0: ledger}), list[FindingRecord]()
    for written in history.records:
        step = ledger.apply(*written)
        assert step is not None
        said += doubles.apply(0, step)
    return doubles, said


def kinds(said: list[FindingRecord]) -> list[type[FindingRecord]]:
    return [type(record) for record in said]


def audited(history: History, at_s: int, on_a: Any = None, on_b: Any = 4) -> None:
    """Both nodes are audited; `i` is listed where it has a report."""
    for node, report in (("a", on_a), ("b", on_b)):
        history.audit({} if report is None else {"i": report}, at_s=at_s, node=node, memory_mib=64)


def test_a_double_on_a_withdrawn_node_waits_for_no_audit_of_it() -> None:
    history = held_twice("i")
    history.configure("a", status="withdrawn", reason="scrapped", at_s=110)
    for at_s in (130, 190):
        history.audit({"i": 4}, at_s=at_s, node="b", memory_mib=64)
    waits = held_twice("i")
    for at_s in (130, 190):
        waits.audit({"i": 4}, at_s=at_s, node="b", memory_mib=64)

    # The guest is shown on both, so it has the claims' TTL.
    for each in (history, waits):
        each.audit({"i": 4}, at_s=703, node="b", memory_mib=64)

    assert kinds(looked(history)[1]) == [LeakSuspected, LeakConfirmed]
    assert kinds(looked(waits)[1]) == [LeakSuspected]


@pytest.mark.parametrize(("on_a", "on_b"), [(MIGRATING, 4), (4, MIGRATING)])
def test_a_guest_that_either_host_calls_migrating_is_not_confirmed_until_it_no_longer_does(on_a: Any, on_b: Any) -> None:
    history = held_twice("i", ttl_s=60)
    for at_s in (130, 190, 250):
        audited(history, at_s, on_a, on_b)
    meanwhile = looked(history)[1]

    audited(history, 310, 4, 4)

    assert kinds(meanwhile) == [LeakSuspected]
    assert kinds(looked(history)[1]) == [LeakSuspected, LeakConfirmed]


def test_a_place_that_is_kept_for_a_guest_that_moves_is_not_confirmed() -> None:
    history, other = held_twice("i", ttl_s=600), held_twice("i", ttl_s=600)
    history.claim("kept", "i", 4, at_s=110, nodes=("a",), keep=True, ttl_s=600)
    for each in (history, other):
        for at_s in (120, 180):
            audited(each, at_s)

    assert [claim.confirmed_ms is None for claim in history.node("a").claims["i"]] == [False, True]
    assert kinds(looked(history)[1]) == [LeakSuspected]
    assert kinds(looked(other)[1]) == [LeakSuspected, LeakConfirmed]


def test_a_double_that_is_gone_is_watched_no_more_and_says_after_which_record() -> None:
    history = held_twice("i", "j")
    history.release("i on a", at_s=140, reason="migrated", node="a")
    history.event("departed", "i", at_s=141, node="a")
    doubles, said = looked(history)

    assert [(record.instance_id, type(record)) for record in said] == [("i", LeakSuspected), ("j", LeakSuspected), ("i", LeakResolved)]
    assert (said[-1].partition, said[-1].offset, said[-1].time_ms) == (0, len(history.records) - 2, START_MS + 140_000)
    assert (doubles.watched, doubles.shared()) == ({"a": {"j"}, "b": {"j"}}, {"j": frozenset({"a", "b"})})

    history.release("j on b", at_s=150, reason="migrated", node="b")
    doubles, _ = looked(history)
    assert (doubles.watched, doubles.shared(), doubles.open) == ({}, {}, {})


def test_a_look_at_all_finds_what_no_later_record_was_looked_at_for_and_lets_go_of_what_is_over() -> None:
    ledger = Ledger(0, 1)
    history = held_twice("i")
    for written in history.records:
        ledger.apply(*written)
    doubles = DoubleClaims({0: ledger})
    before = doubles.open_findings()

    doubles.look_at_all()

    assert before == []
    assert [(type(found), found.instance_id) for found in doubles.open_findings()] == [(LeakSuspected, "i")]
    history.release("i on a", reason="migrated", at_s=200, node="a")
    step = ledger.apply(*history.records[-1])
    assert step is not None
    later = DoubleClaims({0: ledger}, doubles.open)
    later.look_at_all()
    assert later.open_findings() == []


def test_doubles_are_told_by_instance_whichever_came_first() -> None:
    doubles, said = looked(held_twice("j", "i"))

    assert [record.instance_id for record in said] == ["j", "i"]
    assert [record.instance_id for record in doubles.open_findings()] == ["i", "j"]


def test_a_double_that_is_ignored_is_said_again_once_for_each_other_reason() -> None:
    history = held_twice("i")
    for number, (finding_id, reason) in enumerate((("double-claim/i", "ours"), ("double-claim/i", "ours"), ("double-claim/j", "theirs"))):
        history.say(FindingIgnored(node_id="a", record_id=f"word {number}", finding_id=finding_id, reason=reason), 110 + number)

    doubles, said = looked(history)

    assert [(record.offset, record.time_ms, record.ignored) for record in said] == [
        (5, START_MS + 102_000, ""), (6, START_MS + 110_000, "ours"),
    ]  # fmt: skip
    assert doubles.open_findings() == said[1:]


ON_BOTH = "also held on b; the guest is on all of them: stop one before its claim is released"
NOT_KNOWN = "also held on b; no audit tells now whether the guest is on a: stop nothing until one does; release the claim once it is off"


def told(history: History) -> tuple[str, str, str]:
    """Where the open double says that the instance is held too often, its mending, and what it advises."""
    (found,) = looked(history)[0].open_findings()
    return found.node_id, found.fix, found.note


def test_what_a_double_advises_follows_from_what_the_hosts_show_now() -> None:
    history = held_twice("i")
    notes = [told(history)[2]]
    history.silent(at_s=110, node="a", epoch=1, counter=1)
    notes.append(told(history)[2])
    for at_s in (120, 140):
        history.audit({}, at_s=at_s, node="a", memory_mib=64)
        history.audit({"i": 4}, at_s=at_s, node="b", memory_mib=64)
        notes.append(told(history)[2])
    history.audit(at_s=150, node="a", failed="unreachable")
    notes.append(told(history)[2])
    history.configure("a", status="withdrawn", reason="scrapped", at_s=160)
    notes.append(told(history)[2])

    assert notes == [
        ON_BOTH,
        NOT_KNOWN,
        "also held on b; audits of a have only begun to omit the guest: wait for the next",
        "also held on b; the guest is not on a: the claim there can be released",
        NOT_KNOWN,
        "also held on b; a is withdrawn: the claim there can be released",
    ]


def test_a_confirmed_double_names_the_side_that_has_come_to_show_nothing() -> None:
    history = held_twice("i", ttl_s=60)
    audited(history, 190, 4, 4)
    before, said = told(history), kinds(looked(history)[1])

    audited(history, 250, 4, None)
    once = told(history)
    audited(history, 270, 4, None)
    history.say(FindingIgnored(node_id="a", record_id="word", finding_id="double-claim/i", reason="of before"), 271)

    assert before == ("a", "claimlog claims release 'i on a' --reason migrated", ON_BOTH)
    assert once == (*before[:2], "also held on b; audits of b have only begun to omit the guest: wait for the next")
    assert told(history) == (
        "b", "claimlog claims release 'i on b' --reason migrated", "also held on a; the guest is not on b: the claim there can be released",
    )  # fmt: skip
    assert said == [LeakSuspected, LeakConfirmed]
    assert kinds(looked(history)[1]) == [*said, LeakConfirmed], "said again for the operator's word only"
    assert looked(history)[0].open_findings()[0].ignored == "of before"

    history.release("i on b", at_s=320, reason="migrated", node="b")
    ended = looked(history)[1][-1]
    assert (type(ended), ended.node_id, ended.claim_id) == (LeakResolved, "a", "i on a"), "under the node that it was said of"


class Spread:
    """An instance held twice, once in each of the first two partitions; a worker sees the ledgers of its share."""

    def __init__(self, partitions: int = 2) -> None:
        self.ledgers = {number: Ledger(number, partitions) for number in range(partitions)}
        names = [f"n{number}" for number in range(99)]
        self.nodes = [next(n for n in names if partition_of(n.encode(), partitions) == number) for number in range(partitions)]
        self.counter = 0
        both = DoubleClaims(self.ledgers)
        for number in range(2):
            self.observe(number, both, ())
            self.claim(number, both, "first")
        for number in (0, 1, 0):
            self.observe(number, both, (HERE,))
        self.open = both.open
        assert list(self.open) == ["i"]

    def share(self, *numbers: int) -> DoubleClaims:
        """What a worker knows that has these partitions from now on."""
        return DoubleClaims({number: self.ledgers[number] for number in numbers}, self.open)

    def say(self, number: int, doubles: DoubleClaims, record: Any) -> list[FindingRecord]:
        ledger = self.ledgers[number]
        self.counter += 1
        step = ledger.apply(ledger.next_offset, START_MS + 1000 * self.counter, self.nodes[number].encode(), encode(record))
        assert step is not None
        assert step.dead is None, step.dead
        return doubles.apply(number, step)

    def observe(self, number: int, doubles: DoubleClaims, reports: tuple[InstanceReport, ...]) -> list[FindingRecord]:
        now_ms = START_MS + 1000 * (self.counter + 1)
        audit = NodeObserved(
            node_id=self.nodes[number], producer="p", epoch=1, counter=self.counter + 1, taken_at_ms=now_ms, mono_ms=now_ms,
            hypervisor=Hypervisor(vcpus=8, memory_mib=64, disk_mib=64), instances=reports,
        )  # fmt: skip
        return self.say(number, doubles, audit)

    def claim(self, number: int, doubles: DoubleClaims, name: str) -> list[FindingRecord]:
        item = ClaimItem(claim_id=f"{name} {number}", instance_id="i", nodes=(self.nodes[number],), resources=Resources(memory_mib=4))
        return self.say(number, doubles, ClaimRequested(request_id="r", owner="s", basis=0, ttl_ms=600_000, items=(item,)))

    def release(self, number: int, doubles: DoubleClaims) -> list[FindingRecord]:
        released = ClaimReleased(node_id=self.nodes[number], record_id="x", claim_id=f"first {number}", reason="operator")
        return self.say(number, doubles, released)


def test_a_double_that_ended_while_a_side_was_elsewhere_ends_here_once_both_are_back() -> None:
    spread = Spread()
    spread.release(0, DoubleClaims({0: spread.ledgers[0]}))
    back = spread.share(0, 1)
    before = list(back.open)

    said = spread.observe(0, back, ())

    assert (before, [type(record) for record in said], back.open, back.watched) == (["i"], [LeakResolved], {}, {})


def test_a_fold_that_is_behind_the_double_says_nothing_of_its_end() -> None:
    spread = Spread()
    behind = DoubleClaims({0: Ledger(0, 2), 1: spread.ledgers[1]}, spread.open)

    assert spread.observe(1, behind, (HERE,)) == []
    assert list(behind.open) == ["i"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_double_with_a_side_elsewhere_ends_where_the_last_side_here_closes(number: int) -> None:
    spread = Spread()
    alone = spread.share(number)

    said = spread.release(number, alone)

    assert [(type(record), record.partition) for record in said] == [(LeakResolved, number)]
    assert alone.open == {}


def test_a_double_with_a_side_elsewhere_is_none_the_less_one_when_the_side_here_is_confirmed_anew() -> None:
    spread = Spread()
    alone = spread.share(0)

    said = spread.claim(0, alone, "second")
    said += spread.observe(0, alone, (HERE,))

    assert said == []
    assert (list(alone.open), alone.open_findings()) == (["i"], []), "kept for whoever sees both sides again, and counted by nobody"
    assert [record.instance_id for record in spread.share(0, 1).open_findings()] == ["i"]


def test_two_sides_here_are_told_also_where_a_third_is_elsewhere() -> None:
    spread = Spread(partitions=3)
    mine = spread.share(1, 2)

    spread.observe(2, mine, ())
    spread.claim(2, mine, "third")
    said = [record for number in (2, 1, 2) for record in spread.observe(number, mine, (HERE,))]
    spread.counter += 3600
    said += [record for _ in range(2) for number in (1, 2) for record in spread.observe(number, mine, (HERE,))]

    assert kinds(said) == [LeakSuspected, LeakConfirmed]
    assert {cause.partition for cause in said[-1].causes} == {1, 2}
    assert [type(record) for record in mine.open_findings()] == [LeakConfirmed]
