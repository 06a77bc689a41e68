"""Doubles within one partition; those across partitions are in `tests/unit/streams/test_leak_audit.py`."""

from __future__ import annotations

from typing import Any

import pytest

from projections.doubles import DoubleClaims, newer_word
from projections.holding import Holding
from projections.ledger import Ledger
from projections.rules import SKEW_MS
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, FindingIgnored, NodeObserved, NodeSilent
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


def test_once_all_is_read_what_no_later_record_was_looked_at_for_is_found_and_what_is_over_is_let_go() -> None:
    ledger = Ledger(0, 1)
    history = held_twice("i")
    for written in history.records:
        ledger.apply(*written)
    doubles = DoubleClaims({0: ledger})
    before = doubles.open_findings()

    said = doubles.read_to_the_ends(ledger.time_ms)

    assert (before, kinds(said)) == ([], [LeakSuspected])
    assert [(type(found), found.instance_id) for found in doubles.open_findings()] == [(LeakSuspected, "i")]
    history.release("i on a", reason="migrated", at_s=200, node="a")
    step = ledger.apply(*history.records[-1])
    assert step is not None
    later = DoubleClaims({0: ledger}, doubles.open)
    assert kinds(later.read_to_the_ends(ledger.time_ms)) == [LeakResolved]
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


def test_a_double_stands_where_the_later_of_its_confirmations_does_whatever_its_nodes_are_called() -> None:
    history = History()
    for at_s, node in ((0, "b"), (100, "a")):
        history.audit({}, at_s=at_s, node=node, memory_mib=64)
        history.claim(f"i on {node}", "i", 4, at_s=at_s + 1, nodes=(node,))
        history.event("started", "i", at_s=at_s + 2, size=4, node=node)

    (found,) = looked(history)[0].open_findings()

    assert (found.node_id, found.offset, found.since_ms) == ("b", 5, START_MS + 102_000)


def test_of_an_operators_words_the_newer_one_counts_in_whatever_order_they_are_read() -> None:
    history, words = held_twice("i"), dict[str, tuple[str, int]]()
    for number, reason in enumerate(("first", "second")):
        history.say(FindingIgnored(node_id="a", record_id=f"word {number}", finding_id="double-claim/i", reason=reason), 110 + number)
    ledger = Ledger(0, 1)
    first, second = [step for step in (ledger.apply(*written) for written in history.records) if step is not None][-2:]

    assert [newer_word(words, step) for step in (second, first, second)] == [True, False, True]
    assert words == {"double-claim/i": ("second", START_MS + 111_000)}


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
    assert once == (before[0], "", "also held on b; audits of b have only begun to omit the guest: wait for the next")
    assert told(history) == (
        "b", "claimlog claims release 'i on b' --reason migrated", "also held on a; the guest is not on b: the claim there can be released",
    )  # fmt: skip
    assert said == [LeakSuspected, LeakConfirmed]
    assert kinds(looked(history)[1]) == [*said, LeakConfirmed], "said again for the operator's word only"
    assert looked(history)[0].open_findings()[0].ignored == "of before"

    history.release("i on b", at_s=320, reason="migrated", node="b")
    ended = looked(history)[1][-1]
    assert (type(ended), ended.node_id, ended.claim_id) == (LeakResolved, "a", "i on a"), "under the node that it was said of"


def test_of_a_guest_that_came_back_to_a_host_which_is_no_more_the_claim_there_is_the_one_to_go() -> None:
    history = held_twice("i", ttl_s=60)
    for at_s in (130, 190):
        audited(history, at_s, 4, 4)
    history.silent(at_s=400, node="b", epoch=1, counter=6)
    silent = told(history)
    history.configure("b", status="withdrawn", reason="burnt", at_s=410)
    withdrawn = told(history)

    assert silent == (
        "b", "",
        "also held on a; no audit tells now whether the guest is on b: stop nothing until one does; release the claim once it is off",
    )  # fmt: skip
    assert withdrawn == (
        "b", "claimlog claims release 'i on b' --reason migrated", "also held on a; b is withdrawn: the claim there can be released"
    )  # fmt: skip


def test_a_double_holds_what_its_node_has_more_without_it_and_nothing_of_other_nodes() -> None:
    history = held_twice("i")
    history.audit({}, at_s=110, node="c", memory_mib=64)
    history.claim("i on c", "i", 4, at_s=111, nodes=("c",), ttl_s=600)
    history.event("started", "i", at_s=112, size=4, node="c")
    (three,) = looked(history)[0].open_findings()
    history.audit({"i": 1}, at_s=115, node="a", memory_mib=64)
    (small,) = looked(history)[0].open_findings()
    history.claim("i on a, larger", "i", 6, at_s=120, nodes=("a",), ttl_s=600)
    (covered,) = looked(history)[0].open_findings()

    assert (three.node_id, three.held.memory_mib) == ("a", 4)
    assert (small.node_id, small.held.memory_mib) == ("a", 1), "it is seen smaller than it was claimed"
    assert (covered.node_id, covered.held.memory_mib) == ("a", 0), "another claim of it is on its way there"


def held_on_three_nodes() -> History:
    history = held_twice("i", ttl_s=60)
    history.audit({}, at_s=110, node="c", memory_mib=64)
    history.claim("i on c", "i", 4, at_s=111, nodes=("c",), ttl_s=60)
    history.event("started", "i", at_s=112, size=4, node="c")
    for at_s in (190, 250):
        audited(history, at_s, 4, 4)
        history.audit({"i": 4}, at_s=at_s, node="c", memory_mib=64)
    return history


def test_a_double_of_which_one_side_may_go_is_told_anew_while_another_only_begins_to_omit_it() -> None:
    history = held_on_three_nodes()
    audited(history, 262, 4, None)
    begins = told(history)
    history.configure("c", status="withdrawn", reason="burnt", at_s=263)

    assert begins == ("a", "", "also held on b, c; audits of b have only begun to omit the guest: wait for the next")
    assert told(history) == (
        "c", "claimlog claims release 'i on c' --reason migrated", "also held on b, a; c is withdrawn: the claim there can be released"
    )  # fmt: skip


def test_a_double_of_which_a_side_is_mended_or_withdrawn_is_told_anew_while_another_only_begins_to_omit_it() -> None:
    history = held_on_three_nodes()
    history.release("i on a", at_s=260, reason="migrated", node="a")
    history.event("departed", "i", at_s=261, node="a")
    audited(history, 262, None, None)
    begins = told(history)
    history.configure("c", status="withdrawn", reason="burnt", at_s=263)

    assert begins == ("b", "", "also held on c; audits of b have only begun to omit the guest: wait for the next")
    assert told(history) == (
        "c", "claimlog claims release 'i on c' --reason migrated", "also held on b; c is withdrawn: the claim there can be released"
    )  # fmt: skip


class Spread:
    """An instance held twice, once in each of two partitions."""

    def __init__(self) -> None:
        self.ledgers = {number: Ledger(number, 2) for number in range(2)}
        names = [f"n{number}" for number in range(99)]
        self.nodes = [next(n for n in names if partition_of(n.encode(), 2) == number) for number in range(2)]
        self.counter = 0
        both = DoubleClaims(self.ledgers)
        for number in range(2):
            self.observe(number, both, ())
            self.claim(number, both, "first")
        for number in (0, 1, 0):
            self.observe(number, both, (HERE,))
        self.open = both.open
        assert list(self.open) == ["i"]

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


def test_a_double_that_ended_while_nobody_saw_it_ends_with_the_next_word_of_the_node_that_it_was_said_of() -> None:
    spread = Spread()
    spread.release(0, DoubleClaims(spread.ledgers))
    back = DoubleClaims(spread.ledgers, spread.open)
    before = list(back.open)

    said = spread.observe(0, back, ())

    assert (before, [type(record) for record in said], back.open, back.watched) == (["i"], [LeakResolved], {}, {})


def test_a_fold_that_is_behind_the_double_says_nothing_of_its_end() -> None:
    spread = Spread()
    behind = DoubleClaims({0: Ledger(0, 2), 1: spread.ledgers[1]}, spread.open)

    assert spread.observe(1, behind, (HERE,)) == []
    assert list(behind.open) == ["i"]


def evacuated() -> tuple[DoubleClaims, Spread]:
    """The host of partition 0 was found silent, then the guest was claimed and seen on that of partition 1; nothing more comes from 0."""
    spread = Spread()
    doubles = DoubleClaims(spread.ledgers)
    spread.release(1, doubles)
    spread.observe(1, doubles, ())
    heard = spread.ledgers[0].nodes[spread.nodes[0]].last_audits()["p"]
    since_ms = START_MS + 1000 * spread.counter
    silence = NodeSilent(node_id=spread.nodes[0], record_id="s", producer="p", epoch=heard[0], counter=heard[1], silent_since_ms=since_ms)
    spread.say(0, doubles, silence)
    spread.counter += 600
    spread.claim(1, doubles, "second")
    assert spread.observe(1, doubles, (HERE,)) == []
    return doubles, spread


def test_a_guest_that_was_evacuated_from_a_dead_host_is_held_twice_although_its_partition_has_nothing_new() -> None:
    doubles, spread = evacuated()
    seen_ms = spread.ledgers[1].time_ms

    at_once = doubles.read_to_the_ends(seen_ms + SKEW_MS - 1)
    said = doubles.read_to_the_ends(seen_ms + SKEW_MS)
    spread.counter += 700
    spread.observe(1, doubles, (HERE,))
    later = doubles.read_to_the_ends(spread.ledgers[1].time_ms)

    assert (at_once, kinds(said), kinds(later)) == ([], [LeakSuspected], [LeakConfirmed])
    assert later[0].node_id == spread.nodes[0]
    assert "no audit tells now" in later[0].note
    assert doubles.read_to_the_ends(spread.ledgers[1].time_ms) == []


def test_who_reads_late_says_at_once_of_a_double_whether_it_is_confirmed_by_now() -> None:
    _, spread = evacuated()
    spread.counter += 700
    spread.observe(1, DoubleClaims(spread.ledgers), (HERE,))

    assert kinds(DoubleClaims(spread.ledgers).read_to_the_ends(spread.ledgers[1].time_ms)) == [LeakSuspected, LeakConfirmed]


def test_what_is_known_of_a_double_that_ended_unseen_is_not_taken_for_the_next_one() -> None:
    """Whoever takes a partition over may begin with a ledger in which the instance was given back on one side, and came again."""
    history = held_twice("i")
    for at_s in (130, 190, 250):
        audited(history, at_s)
    before, said = looked(history)
    history.release("i on a", at_s=300, reason="migrated", node="a")
    history.claim("again", "i", 4, at_s=400, nodes=("a",), ttl_s=600)
    history.event("started", "i", at_s=401, size=4, node="a")
    later = DoubleClaims({0: history.ledger}, before.open)

    (anew,) = later.read_to_the_ends(START_MS + 402_000 + SKEW_MS)

    assert kinds(said) == [LeakSuspected, LeakConfirmed]
    assert isinstance(anew, LeakSuspected)
    assert anew.since_ms == START_MS + 401_000


def test_of_two_sides_the_one_of_which_less_speaks_goes_first() -> None:
    """The ledger of each side is made by history; what it says is all that the order looks at."""

    def side(name: str, *, confirmed_ms: int = 1, shown: bool = False, known: bool = True, withdrawn: bool = False) -> Holding:
        history = held_twice("i")
        node = history.ledger.nodes["a"]
        claim = node.claims["i"][0]
        node.node_id, claim.confirmed_ms = name, confirmed_ms
        node.status = "withdrawn" if withdrawn else "enabled"
        node.unknown_since_ms = None if known else START_MS
        if not shown:
            del node.shown["i"]
        return Holding(0, node, claim)

    ordered = [
        side("no more, not shown", withdrawn=True),
        side("no more, shown", withdrawn=True, shown=True),
        side("known and not shown, older", confirmed_ms=1),
        side("known and not shown", confirmed_ms=2),
        side("unknown, not shown", known=False),
        side("unknown, shown", known=False, shown=True),
        side("a known, shown", shown=True, confirmed_ms=3),
        side("b known, shown", shown=True, confirmed_ms=3),
    ]

    found = sorted({each.node.node_id: each for each in ordered[1::2] + ordered[::2]}.values(), key=lambda each: each.order)

    assert [each.node.node_id for each in found] == [each.node.node_id for each in ordered]
