"""Every kind of finding: a history that has it, and the same history mended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from projections import companions
from projections.causes import when_ms
from projections.differences import BUILDING_MS, Closed, apart
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Claim, ObservedAmounts
from projections.observed import Observed
from schemas.audits import InstanceReport
from schemas.claims import Change, FindingIgnored, NodeObserved
from schemas.codec import decode, encode, event_type
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.inventory import Hypervisor, PciDevice, ResourceRule
from schemas.requests import PciWant
from schemas.resources import ObservedResources, Resources
from schemas.topics import FINDINGS
from schemas.units import TEXT_CHARACTERS_MAX
from streams.healing import mends
from tests.ledger_history import START_MS, History, digest_of, item

KINDS = {LeakSuspected: "suspected", LeakConfirmed: "confirmed", LeakResolved: "resolved"}


class Audited:
    """A history with the leak audit beside it: `said` is every finding so far as (state, kind, about)."""

    def __init__(self) -> None:
        self.history = History()
        self.observed, self.leaks = Observed(0), Leaks(0)
        self.records: list[FindingRecord] = []
        self._seen = 0

    def look(self) -> list[tuple[str, str, str]]:
        """What the steps since the last look made of findings. Folds the records again, step by step, as a host does."""
        ledger = Ledger(0, 1)
        self.observed, self.leaks = Observed(0), Leaks(0)
        records = [record for written in self.history.records for record in self._step(ledger, ledger.apply(*written))]
        self.records, fresh = records, records[self._seen :]
        self._seen = len(records)
        return [(KINDS[type(record)], record.kind, record.claim_id or record.instance_id or record.node_id) for record in fresh]

    def _step(self, ledger: Ledger, step: Step | None) -> list[FindingRecord]:
        assert step is not None
        self.observed.apply(ledger, step)
        return self.leaks.apply(ledger, self.observed, step)

    def open(self) -> list[tuple[str, str]]:
        return [(record.kind, record.instance_id) for record in self.leaks.open_findings()]


@pytest.fixture
def n1() -> Audited:
    """Node n1 with 16 MiB; instance `i` claimed (4 MiB), started and listed, and nothing wrong."""
    audited = Audited()
    history = audited.history
    history.audit({}, at_s=0, memory_mib=16)
    history.claim("c", "i", 4, at_s=1)
    history.event("started", "i", at_s=3, size=4)
    history.audit({"i": 4}, at_s=60, memory_mib=16)
    assert audited.look() == []
    return audited


def offsets(record: FindingRecord) -> list[tuple[int, str]]:
    return [(cause.offset, cause.event) for cause in record.causes]


def test_an_instance_that_leaves_without_a_word_is_an_orphan_claim_with_every_event_that_made_it(n1: Audited) -> None:
    n1.history.audit({}, at_s=120, memory_mib=16)

    assert n1.look() == [("suspected", "orphan-claim", "c")]
    orphan = n1.records[-1]
    assert offsets(orphan) == [(1, "claim-requested"), (2, "instance-observed"), (3, "node-observed"), (4, "node-observed")]
    assert [cause.summary for cause in orphan.causes] == [
        "claim c granted 4 MiB on n1",
        "i seen there: claim confirmed",
        "the last complete audit that lists i",
        "the first complete audit that no longer lists i",
    ]
    assert [cause.time_ms - START_MS for cause in orphan.causes] == [1_000, 3_000, 60_000, 120_000]
    assert orphan.held == Resources(memory_mib=4)
    assert orphan.since_ms == START_MS + 120_000
    assert orphan.missing == "InstanceDeparted or InstanceDeleted of i on n1"
    assert orphan.fix == "claimlog claims release c --reason deleted"


def test_a_second_complete_audit_past_the_grace_confirms_it_and_no_other_record_does(n1: Audited) -> None:
    n1.history.audit({}, at_s=120, memory_mib=16)
    n1.history.audit({}, at_s=130, memory_mib=16)
    n1.history.audit({}, at_s=140, memory_mib=16, complete=False)
    n1.history.audit(at_s=150, failed="unreachable")
    n1.history.audit({}, at_s=152, taken_s=131, memory_mib=16)

    assert n1.look() == [("suspected", "orphan-claim", "c"), ("suspected", "silent-node", "n1"), ("resolved", "silent-node", "n1")]

    n1.history.audit({}, at_s=160, memory_mib=16)

    assert n1.look() == [("confirmed", "orphan-claim", "c")]
    assert offsets(n1.records[-1])[-1] == (9, "node-observed")


def test_the_departure_that_was_on_its_way_resolves_the_orphan(n1: Audited) -> None:
    n1.history.audit({}, at_s=120, memory_mib=16)
    n1.history.event("departed", "i", at_s=125, event_s=100)

    assert n1.look() == [("suspected", "orphan-claim", "c"), ("resolved", "orphan-claim", "c")]
    assert n1.records[-1].causes[-1].summary == "instance departed"
    assert n1.open() == []


def test_an_orphan_that_its_owner_releases_leaves_neither_claim_nor_gap(n1: Audited) -> None:
    n1.history.audit({}, at_s=120, memory_mib=16)
    n1.history.release("c", reason="deleted", at_s=130)

    assert n1.look() == [("suspected", "orphan-claim", "c"), ("resolved", "orphan-claim", "c")]
    assert n1.observed.view("n1").tracked_amounts()[2] == 0
    n1.history.audit({}, at_s=180, memory_mib=16)
    assert n1.look() == []


def test_an_orphan_whose_ttl_runs_out_has_vanished_until_somebody_says_where_it_went(n1: Audited) -> None:
    for at_s in (120, 180, 240):
        n1.history.audit({}, at_s=at_s, memory_mib=16)

    assert n1.look() == [
        ("suspected", "orphan-claim", "c"),
        ("resolved", "orphan-claim", "c"),
        ("suspected", "vanished-claim", "c"),
        ("confirmed", "vanished-claim", "c"),
    ]
    vanished = n1.records[-1]
    assert vanished.held == Resources()
    assert "4 MiB were freed" in vanished.note
    assert (5, "node-observed") in offsets(vanished)

    n1.history.event("deleted", "i", at_s=300)

    assert n1.look() == [("resolved", "vanished-claim", "c")]


def test_a_vanished_claim_is_acknowledged_by_its_late_release(n1: Audited) -> None:
    for at_s in (120, 180):
        n1.history.audit({}, at_s=at_s, memory_mib=16)
    n1.history.release("c", reason="deleted", at_s=200)

    assert n1.look()[-1] == ("resolved", "vanished-claim", "c")
    assert n1.observed.view("n1").tracked_amounts()[2] == 0
    assert n1.open() == []


def test_an_instance_that_no_claim_ever_knew_is_a_ghost_until_it_leaves(n1: Audited) -> None:
    for at_s in (120, 180):
        n1.history.audit({"i": 4, "ghost": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "ghost-instance", "ghost"), ("confirmed", "ghost-instance", "ghost")]
    assert n1.records[-1].held == Resources(memory_mib=2)
    assert n1.records[-1].missing == "ClaimRequested for ghost on n1"
    assert offsets(n1.records[0]) == [(4, "node-observed")]

    n1.history.audit({"i": 4}, at_s=240, memory_mib=16)

    assert n1.look() == [("resolved", "ghost-instance", "ghost")]


def test_a_finding_stays_open_while_audits_tell_of_other_guests_only(n1: Audited) -> None:
    for at_s in (120, 180):
        n1.history.audit({"i": 4, "ghost": 2}, at_s=at_s, memory_mib=16)
    n1.look()

    n1.history.audit({"i": 4, "ghost": 2, "other": 1}, at_s=240, memory_mib=16)

    assert n1.look() == [("suspected", "ghost-instance", "other")]
    assert n1.open() == [("ghost-instance", "ghost"), ("ghost-instance", "other")]


def test_the_last_audit_that_lists_an_instance_is_named_though_something_else_was_found_by_it(n1: Audited) -> None:
    n1.history.audit({"i": 4, "ghost": 2}, at_s=90, memory_mib=16)
    n1.history.audit({"ghost": 2}, at_s=120, memory_mib=16)

    assert ("suspected", "orphan-claim", "c") in n1.look()
    orphan = next(record for record in n1.records if record.kind == "orphan-claim")
    assert offsets(orphan)[2:] == [(4, "node-observed"), (5, "node-observed")]
    assert orphan.causes[2].summary == "the last complete audit that lists i"


@pytest.mark.parametrize("nothing_said_by", [{"complete": False}, {"unchanged": "of a list that nobody has"}])
def test_no_audit_that_is_incomplete_or_failed_is_taken_for_the_last_complete_one(n1: Audited, nothing_said_by: dict[str, Any]) -> None:
    n1.history.audit({}, at_s=90, memory_mib=16, **nothing_said_by)
    n1.history.audit({}, at_s=120, memory_mib=16)

    n1.look()
    orphan = next(record for record in n1.records if record.kind == "orphan-claim")
    assert [offset for offset, _ in offsets(orphan)] == [1, 2, 3, 5]


def test_a_finding_that_is_ignored_is_said_again_once_for_each_other_reason(n1: Audited) -> None:
    n1.history.audit({"i": 4, "ghost": 2}, at_s=120, memory_mib=16)
    for number, reason in enumerate(("ours", "ours", "theirs")):
        word = FindingIgnored(node_id="n1", record_id=f"word {number}", finding_id="ghost-instance/n1/ghost", reason=reason)
        n1.history.say(word, 121 + number)

    assert n1.look() == [("suspected", "ghost-instance", "ghost")] * 3
    assert [(record.offset, record.ignored) for record in n1.records] == [(4, ""), (5, "ours"), (7, "theirs")]
    assert n1.leaks.count("n1") == 0


def test_a_ghost_that_is_claimed_is_one_no_more(n1: Audited) -> None:
    n1.history.event("started", "ghost", at_s=70, size=2, producer="audits")
    n1.history.claim("late", "ghost", 2, at_s=80)

    assert n1.look() == [("suspected", "ghost-instance", "ghost"), ("resolved", "ghost-instance", "ghost")]


def test_a_guest_whose_claim_was_released_misses_it(n1: Audited) -> None:
    n1.history.release("c", reason="operator", at_s=70)
    n1.history.audit({"i": 4}, at_s=120, memory_mib=16)

    assert n1.look() == [("suspected", "missing-claim", "i"), ("confirmed", "missing-claim", "i")]
    missing = n1.records[-1]
    assert missing.held == Resources(memory_mib=4)
    assert offsets(missing)[:3] == [(1, "claim-requested"), (2, "instance-observed"), (4, "claim-released")]
    assert missing.causes[2].summary == "claim c closed: released"

    n1.history.event("deleted", "i", at_s=130)

    assert n1.look() == [("resolved", "missing-claim", "i")]


@pytest.mark.parametrize("words", [[], ["stopped"], ["stopped", "started"]], ids=["nothing", "stopped", "stopped and started"])
def test_each_cause_of_a_missing_claim_has_the_time_and_the_type_of_the_record_that_it_names(n1: Audited, words: list[Change]) -> None:
    """The guest has had its size since it was started, and was listed and spoken of since."""
    for number, word in enumerate(words):
        n1.history.event(word, "i", at_s=65 + number, size=4)
    for at_s in (120, 180):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)
    n1.history.release("c", reason="operator", at_s=190)
    for at_s in (240, 300):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)
    n1.look()

    steps = n1.history.steps
    for finding in n1.records:
        wrong = [cause for cause in finding.causes if (cause.time_ms, cause.event) != told(steps[cause.offset])]
        assert wrong == []
        assert [cause.offset for cause in finding.causes] == sorted({cause.offset for cause in finding.causes})
    assert n1.records[-1].kind == "missing-claim"
    assert [cause for cause in n1.records[-1].causes if "i seen with 4 MiB" in cause.summary] != []


def told(step: Step) -> tuple[int, str]:
    """When a record was, and of what type."""
    return when_ms(step), event_type(step.event)


def test_a_guest_started_after_its_claim_expired_misses_it() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, memory_mib=16)
    audited.history.claim("c", "i", 4, at_s=1, ttl_s=60)
    for at_s in (10, 70, 130):
        audited.history.audit({}, at_s=at_s, memory_mib=16)
    audited.history.event("started", "i", at_s=140, size=4)

    assert audited.look()[-1] == ("suspected", "missing-claim", "i")
    assert "claim c closed: expired" in [cause.summary for cause in audited.records[-1].causes]


def test_a_guest_that_only_the_life_cycle_still_counts_is_stale_and_keeps_nothing_from_anybody(n1: Audited) -> None:
    n1.history.event("started", "ghost", at_s=70, size=2, producer="audits")
    n1.history.audit({"i": 4, "ghost": 2}, at_s=80, memory_mib=16)
    assert n1.look() == [("suspected", "ghost-instance", "ghost")]
    for at_s in (120, 180):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)

    assert n1.look() == [
        ("resolved", "ghost-instance", "ghost"),
        ("suspected", "stale-instance", "ghost"),
        ("confirmed", "stale-instance", "ghost"),
    ]
    stale = n1.records[-1]
    assert (stale.held, stale.counted) == (Resources(), Resources(memory_mib=2))
    assert stale.missing == "InstanceDeparted or InstanceDeleted of ghost on n1"
    assert offsets(stale) == [(4, "instance-observed"), (6, "node-observed"), (7, "node-observed")]
    assert stale.causes[0].summary == "the last life-cycle event of ghost: started with 2 MiB"
    assert n1.observed.view("n1").tracked_amounts()[2] == 6

    n1.history.event("departed", "ghost", at_s=190, producer="audits")

    assert n1.look() == [("resolved", "stale-instance", "ghost")]


def test_a_guest_that_its_owner_counts_is_adopted_usage_and_no_finding(n1: Audited) -> None:
    n1.history.audit({"i": 4, "vm": 2}, at_s=120, memory_mib=16)
    n1.history.event("started", "vm", at_s=125, event_s=110, size=2, producer="nova")
    for at_s in (180, 240):
        n1.history.audit({"i": 4, "vm": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "ghost-instance", "vm"), ("resolved", "ghost-instance", "vm")]
    assert n1.history.used() == 6


def test_a_guest_whose_owner_says_that_it_left_is_a_ghost_though_its_claim_is_held(n1: Audited) -> None:
    """An evacuated guest that still runs on its old host: where there is a claim, nothing else would say so."""
    n1.history.event("departed", "i", at_s=100, producer="nova")
    for at_s in (120, 180):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "ghost-instance", "i"), ("confirmed", "ghost-instance", "i")]
    ghost = n1.records[-1]
    assert ghost.note.startswith("nova says that it departed, its host still has it, and its claim is held: delete the guest there")
    assert [cause.event for cause in ghost.causes] == [
        "claim-requested",
        "instance-observed",
        "instance-observed",
        "node-observed",
        "node-observed",
    ]

    n1.history.audit({}, at_s=240, memory_mib=16)

    assert ("resolved", "ghost-instance", "i") in n1.look()


def test_a_guest_whose_owner_says_that_it_left_is_a_ghost_with_that_event_as_a_cause(n1: Audited) -> None:
    n1.history.event("started", "vm", at_s=70, size=2, producer="nova")
    n1.history.audit({"i": 4, "vm": 2}, at_s=80, memory_mib=16)
    n1.history.event("departed", "vm", at_s=100, producer="nova")
    for at_s in (120, 180):
        n1.history.audit({"i": 4, "vm": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "ghost-instance", "vm"), ("confirmed", "ghost-instance", "vm")]
    assert offsets(n1.records[-1])[0] == (6, "instance-observed")
    assert n1.records[-1].note.startswith("nova says that it departed, its host still has it")

    n1.history.audit({"i": 4}, at_s=240, memory_mib=16)

    assert n1.look() == [("resolved", "ghost-instance", "vm")]
    assert n1.observed.view("n1").left == {}


def test_an_owners_old_word_about_a_guest_that_no_audit_has_counts_for_the_tracker_and_for_no_verdict(n1: Audited) -> None:
    n1.history.audit({"i": 4}, at_s=1000, memory_mib=16)
    n1.history.event("started", "lost", at_s=1010, event_s=30, size=9, producer="nova")

    assert n1.look() == [("suspected", "stale-instance", "lost")]
    assert [cause.summary for cause in n1.records[-1].causes] == ["lost is not shown on n1"]
    assert n1.history.used() == 4
    assert n1.observed.view("n1").tracked_amounts()[2] == 13

    n1.history.audit({"i": 4}, at_s=1060, memory_mib=16)

    assert n1.look() == [("confirmed", "stale-instance", "lost")]


def test_a_guest_that_is_being_built_or_moved_may_be_on_no_audit_for_as_long_as_that_takes(n1: Audited) -> None:
    moving = InstanceReport(instance_id="moving", resources=ObservedResources(memory_mib=1), task_state="resize_migrating")
    n1.history.event("arrived", "built", at_s=70, size=2, producer="nova")
    n1.history.event("arrived", "moving", at_s=71, size=moving, producer="nova")
    for at_s in (120, 180, 669, 671, 3670, 3672):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)

    said = n1.look()

    assert said[:2] == [("suspected", "stale-instance", "built"), ("suspected", "stale-instance", "moving")]
    confirmed = [record for record in n1.records if isinstance(record, LeakConfirmed)]
    assert [(record.instance_id, record.time_ms - START_MS) for record in confirmed] == [("built", 671_000), ("moving", 3_672_000)]


def test_who_vouched_is_looked_at_anew_when_another_producer_audits_the_node(n1: Audited) -> None:
    n1.history.event("started", "vm", at_s=70, size=2, producer="agent")
    n1.history.audit({"i": 4, "vm": 2}, at_s=80, memory_mib=16)
    assert n1.look() == []

    for at_s in (120, 180):
        n1.history.audit({"i": 4, "vm": 2}, at_s=at_s, memory_mib=16, producer="agent")

    assert n1.look() == [("suspected", "ghost-instance", "vm"), ("confirmed", "ghost-instance", "vm")]


def test_a_claim_on_a_withdrawn_node_is_stranded_until_it_is_given_back(n1: Audited) -> None:
    n1.history.configure(status="withdrawn", reason="renamed", at_s=100)
    n1.history.silent(at_s=300, epoch=1, counter=2)

    assert n1.look() == [("suspected", "stranded-claim", "c"), ("confirmed", "stranded-claim", "c")]
    stranded = n1.records[-1]
    assert stranded.held == Resources(memory_mib=4)
    assert stranded.note.startswith("n1 is withdrawn (renamed)")
    assert offsets(stranded)[:3] == [(1, "claim-requested"), (2, "instance-observed"), (3, "node-observed")]

    n1.history.release("c", reason="operator", at_s=310)

    assert n1.look() == [("resolved", "stranded-claim", "c")]


def test_what_a_withdrawn_node_still_reports_is_no_less_wrong(n1: Audited) -> None:
    for at_s in (100, 160):
        n1.history.audit({"i": 4, "stranger": 2}, at_s=at_s, memory_mib=16)
    n1.history.configure(status="withdrawn", at_s=170)
    n1.history.release("c", reason="operator", at_s=180)
    assert [(state, kind) for state, kind, _ in n1.look()][:2] == [("suspected", "ghost-instance"), ("confirmed", "ghost-instance")]
    assert n1.open() == [("ghost-instance", "stranger")], "what it showed before may have gone with it"

    for at_s in (220, 280):
        n1.history.audit({"i": 4, "stranger": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "missing-claim", "i"), ("confirmed", "missing-claim", "i")]
    assert n1.open() == [("ghost-instance", "stranger"), ("missing-claim", "i")]
    n1.history.audit({}, at_s=340, memory_mib=16)
    assert {kind for state, kind, _ in n1.look() if state == "resolved"} == {"ghost-instance", "missing-claim"}


def test_what_a_withdrawn_node_shows_unclaimed_is_a_finding_again_once_it_is_taken_back(n1: Audited) -> None:
    n1.history.configure(status="withdrawn", at_s=170)
    n1.history.release("c", reason="operator", at_s=180)
    n1.look()
    assert n1.open() == []

    n1.history.configure(status="enabled", at_s=190)

    assert n1.look()[-1] == ("suspected", "missing-claim", "i")
    n1.history.audit({}, at_s=240, memory_mib=16)
    assert ("resolved", "missing-claim", "i") in n1.look()


HOST = Hypervisor(vcpus=64, pcpus=0, memory_mib=16, disk_mib=1000, pci_devices=(PciDevice(address="a"), PciDevice(address="b")))


def with_devices(*addresses: str) -> InstanceReport:
    return InstanceReport(instance_id="i", resources=ObservedResources(memory_mib=4), pci_addresses=addresses)


def test_a_device_that_a_claim_holds_and_its_guest_does_not_have_is_held_by_nobody() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, hypervisor=HOST)
    audited.history.claim("c", "i", 4, at_s=1, pci=(PciWant(count=1, specs=({},)),))
    audited.history.audit({"i": with_devices("a")}, at_s=60, hypervisor=HOST)
    assert audited.look() == []
    assert audited.history.node().claims["i"][0].pci_addresses == ("a",)

    for at_s in (120, 180):
        audited.history.audit({"i": with_devices("b")}, at_s=at_s, hypervisor=HOST)

    assert audited.look() == [("suspected", "device-drift", "c"), ("confirmed", "device-drift", "c")]
    drift = audited.records[-1]
    assert (drift.devices, drift.held) == (("a",), Resources())
    assert drift.note.startswith("a is held for it and it does not have it; it has b, which is not in its claim")
    assert offsets(drift) == [(1, "claim-requested"), (2, "node-observed"), (3, "node-observed"), (4, "node-observed")]

    audited.history.audit({"i": with_devices("a")}, at_s=240, hypervisor=HOST)

    assert audited.look() == [("resolved", "device-drift", "c")]


def test_a_claimed_device_that_the_host_has_no_more_is_found_while_the_guest_is_as_it_was() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, hypervisor=HOST)
    audited.history.claim("c", "i", 4, at_s=1, pci=(PciWant(count=1, specs=({},)),))
    audited.history.audit({"i": with_devices("a")}, at_s=60, hypervisor=HOST)
    without = replace(HOST, pci_devices=(PciDevice(address="b"),))

    for at_s in (120, 180):
        audited.history.audit({"i": with_devices()}, at_s=at_s, hypervisor=without)

    assert audited.look() == [("suspected", "device-drift", "c"), ("confirmed", "device-drift", "c")]
    assert audited.records[-1].note.startswith("a is held for it and the host has it no more")


def test_a_claimed_device_is_missed_as_soon_as_the_host_reports_devices_again() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, hypervisor=HOST)
    audited.history.claim("c", "i", 4, at_s=1, pci=(PciWant(count=1, specs=({},)),))
    for at_s in (60, 120):
        audited.history.audit({"i": with_devices()}, at_s=at_s, hypervisor=replace(HOST, pci_devices=()))
    assert audited.look() == []

    audited.history.audit({"i": with_devices()}, at_s=180, hypervisor=HOST)

    assert audited.look() == [("suspected", "device-drift", "c")]


def test_a_claim_whose_guest_is_gone_names_the_devices_that_it_keeps() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, hypervisor=HOST)
    audited.history.claim("c", "i", 4, at_s=1, pci=(PciWant(count=2, specs=({},)),))
    audited.history.audit({"i": with_devices("a", "b")}, at_s=60, hypervisor=HOST)

    audited.history.audit({}, at_s=120, hypervisor=HOST)

    assert audited.look() == [("suspected", "orphan-claim", "c")]
    assert audited.records[-1].devices == ("a", "b")


def test_a_size_that_is_not_the_claimed_one_drifts_until_it_is_claimed(n1: Audited) -> None:
    for at_s in (120, 180):
        n1.history.audit({"i": 6}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "size-drift", "c"), ("confirmed", "size-drift", "c")]
    drift = n1.records[-1]
    assert drift.held == Resources(memory_mib=2)
    assert drift.note.startswith("+2 MiB against its claim c")
    assert offsets(drift)[:3] == [(1, "claim-requested"), (2, "instance-observed"), (4, "node-observed")]

    n1.history.claim("new", "i", 6, resize=True, at_s=190)

    assert n1.look() == [("resolved", "size-drift", "c")]
    n1.history.audit({"i": 6}, at_s=240, memory_mib=16)
    assert n1.look() == []


@pytest.mark.parametrize(
    ("shown", "counted", "cpus", "memory_mib"),
    [
        ((2, 0, 512, 0), (0, 2, 512, 0), 0, 0),  # Dedicated for the owner, and any for the host.
        ((2, None, 512, 0), (2, 0, 512, 0), 0, 0),
        ((4, 1, 512, 0), (2, 0, 256, 0), 3, 256),
        ((None, 2, 512, 0), (2, 0, None, 0), 0, 0),
    ],
)
def test_cpus_of_both_kinds_count_together_where_a_host_and_an_owner_differ(
    shown: ObservedAmounts, counted: ObservedAmounts, cpus: int, memory_mib: int
) -> None:
    assert apart(shown, counted) == (cpus, memory_mib)


@pytest.mark.parametrize(("then_mib", "drifts"), [(6, False), (5, True)])
def test_a_guest_with_claims_of_before_and_after_a_resize_drifts_if_it_is_as_neither_says(
    n1: Audited, then_mib: int, *, drifts: bool
) -> None:
    n1.history.claim("new", "i", 6, resize=True, at_s=70)
    n1.history.audit({"i": 6}, at_s=120, memory_mib=16)
    for at_s in (180, 240):
        n1.history.audit({"i": then_mib}, at_s=at_s, memory_mib=16)

    assert n1.look() == ([("suspected", "size-drift", "new"), ("confirmed", "size-drift", "new")] if drifts else [])


@pytest.mark.parametrize("mended", ["release", "resize"])
def test_a_resize_that_is_undone_without_a_request_is_found_until_its_claim_is_given_back_or_the_old_size_claimed(
    n1: Audited, mended: str
) -> None:
    history = n1.history
    history.claim("new", "i", 6, resize=True, at_s=70)
    history.event("resized", "i", at_s=80, size=6)
    history.audit({"i": 6}, at_s=120, memory_mib=16)
    history.event("resized", "i", at_s=130, size=4)
    assert n1.look() == [("suspected", "size-drift", "new")]
    for at_s in (180, 240):
        history.audit({"i": 4}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("confirmed", "size-drift", "new")]
    drift = n1.records[-1]
    assert (drift.held, drift.fix) == (Resources(), "claimlog claims release new --reason operator")
    assert drift.note.startswith("+2 MiB against the guest that is there, which claim c is for; its resize was undone")

    if mended == "release":
        history.release("new", reason="operator", at_s=250)
    else:
        history.claim("back", "i", 4, resize=True, at_s=250)

    assert n1.look() == [("resolved", "size-drift", "new")]
    for at_s in (300, 360):
        history.audit({"i": 4}, at_s=at_s, memory_mib=16)
    assert n1.look() == []


def test_a_resize_down_that_is_undone_is_another_size_than_any_claim(n1: Audited) -> None:
    n1.history.claim("new", "i", 2, resize=True, at_s=70)
    n1.history.audit({"i": 2}, at_s=120, memory_mib=16)
    for at_s in (180, 240):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "size-drift", "new"), ("confirmed", "size-drift", "new")]
    assert n1.records[-1].missing == "ClaimRequested with resize for i on n1: 4 MiB"
    assert n1.records[-1].note.startswith("+2 MiB against its claim new")


def test_a_resize_that_the_guest_has_not_come_to_yet_is_not_undone(n1: Audited) -> None:
    n1.history.claim("new", "i", 6, resize=True, at_s=70, ttl_s=600)
    for at_s in (120, 180, 240):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)

    assert n1.look() == []


def test_a_report_of_before_a_resize_that_comes_late_is_not_confirmed_as_its_end(n1: Audited) -> None:
    n1.history.claim("new", "i", 6, resize=True, at_s=70)
    n1.history.audit({"i": 6}, at_s=120, memory_mib=16)
    n1.history.event("resized", "i", at_s=121, event_s=119, size=4)
    for at_s in (180, 240):
        n1.history.audit({"i": 6}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "size-drift", "new"), ("resolved", "size-drift", "new")]


def made_again(audited: Audited, first: int, then: int, **options: Any) -> None:
    """Instance `j` claimed, started and shown, deleted at once, and claimed and started anew: nothing of it closes the first claim."""
    history = audited.history
    history.claim("old", "j", first, at_s=120)
    history.event("arrived", "j", at_s=121, size=first)
    history.event("deleted", "j", at_s=122)
    history.claim("new", "j", then, at_s=123, **options)
    history.event("arrived", "j", at_s=124, size=then)


def test_a_claim_that_outlived_its_guest_beside_that_of_a_smaller_one_is_found_until_it_is_given_back(n1: Audited) -> None:
    made_again(n1, 10, 2)
    assert sorted(n1.history.held()) == ["c", "new", "old"]
    assert n1.look() == [("suspected", "size-drift", "old")]
    for at_s in (180, 240):
        n1.history.audit({"i": 4, "j": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("confirmed", "size-drift", "old")]
    drift = n1.records[-1]
    assert drift.held == Resources(), "what the host reports of the guest counts, as long as it is there"
    assert drift.fix == "claimlog claims release old --reason operator"
    assert drift.note.startswith("+8 MiB against the guest that is there, which claim new is for")
    assert offsets(drift)[:4] == [(4, "claim-requested"), (5, "instance-observed"), (7, "claim-requested"), (8, "instance-observed")]

    n1.history.release("old", reason="operator", at_s=250)

    assert n1.look() == [("resolved", "size-drift", "old")]
    n1.history.audit({"i": 4, "j": 2}, at_s=300, memory_mib=16)
    assert n1.look() == []


def test_claims_that_outlived_their_guests_hold_what_their_release_frees(n1: Audited) -> None:
    """Nobody reports disks here, so the largest claim of one counts."""

    def again(claim_id: str, memory_mib: int, disk_mib: int, at_s: int) -> None:
        size = Resources(memory_mib=memory_mib, disk_mib=disk_mib)
        n1.history.claims(item(claim_id, "j", 0, resources=size), at_s=at_s)
        n1.history.event("arrived", "j", at_s=at_s + 1, size=ObservedResources(memory_mib=memory_mib))
        n1.history.event("deleted", "j", at_s=at_s + 2)

    again("old", 6, 60, 120)
    again("new", 3, 30, 123)
    again("third", 5, 80, 126)
    size = Resources(memory_mib=2, disk_mib=20)
    n1.history.claims(item("last", "j", 0, resources=size), at_s=129)
    n1.history.event("arrived", "j", at_s=130, size=ObservedResources(memory_mib=2))
    n1.look()
    found = sorted(n1.leaks.open_findings(), key=lambda record: ["old", "new", "third"].index(record.claim_id))
    used = []
    for record in found:
        used.append(n1.history.node().used[3])
        n1.history.release(record.claim_id, reason="operator", at_s=140)

    assert [record.held for record in found] == [Resources(), Resources(), Resources(disk_mib=60)]
    assert [*used, n1.history.node().used[3]] == [80, 80, 80, 20]


def test_a_larger_claim_whose_guest_was_never_gone_has_not_outlived_it(n1: Audited) -> None:
    """A second request claims the same guest for less, or the guest gives memory back for a while."""
    n1.history.claim("small", "i", 2, request_id="another", at_s=70)
    for at_s, size in ((120, 4), (180, 2), (240, 2), (300, 4)):
        n1.history.audit({"i": size}, at_s=at_s, memory_mib=16)

    assert n1.look() == []


@pytest.mark.parametrize(("first", "then", "options"), [(4, 4, {}), (4, 8, {}), (8, 4, {"request_id": "of old"})])
def test_claims_side_by_side_that_stand_for_no_more_or_are_of_one_request_are_no_finding(
    n1: Audited, first: int, then: int, options: dict[str, Any]
) -> None:
    made_again(n1, first, then, **options)
    for at_s in (180, 240):
        n1.history.audit({"i": 4, "j": then}, at_s=at_s, memory_mib=16)

    assert n1.look() == []


def test_a_larger_claim_is_no_finding_while_a_resize_or_a_move_beside_it_is_under_way_or_after_it(n1: Audited) -> None:
    history = n1.history
    history.claim("smaller", "i", 2, resize=True, at_s=70)
    history.audit({"i": 4}, at_s=120, memory_mib=16)
    history.event("resized", "i", at_s=130, size=2)
    history.claim("kept", "i", 2, keep=True, at_s=140)
    for at_s in (180, 240, 300):
        history.audit({"i": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == []


def test_a_place_kept_for_a_move_that_never_ran_does_not_end_the_drift_of_its_guest(n1: Audited) -> None:
    history = n1.history
    for at_s in (120, 180):
        history.audit({"i": 2}, at_s=at_s, memory_mib=16)
    assert n1.look() == [("suspected", "size-drift", "c"), ("confirmed", "size-drift", "c")]
    history.claim("kept", "i", 2, keep=True, request_id="move", ttl_s=60, at_s=190)
    assert n1.look() == [("resolved", "size-drift", "c")], "the move may be a resize as well"

    for at_s in (240, 300, 360):
        history.audit({"i": 2}, at_s=at_s, memory_mib=16)

    assert n1.look() == [("suspected", "size-drift", "c"), ("confirmed", "size-drift", "c")]
    assert n1.records[-1].missing == "ClaimRequested with resize for i on n1: 2 MiB"
    history.claim("healed", "i", 2, resize=True, at_s=370)
    history.audit({"i": 2}, at_s=420, memory_mib=16)
    assert n1.look() == [("resolved", "size-drift", "c")]
    assert {claim.amounts[2] for claim in history.node().claims["i"]} == {2}


def test_a_guest_that_came_back_to_the_place_that_was_kept_is_as_its_claim_says(n1: Audited) -> None:
    history = n1.history
    history.claim("kept", "i", 4, keep=True, request_id="move", ttl_s=200, at_s=70)
    history.event("departed", "i", at_s=80)
    for at_s in (120, 180):
        history.audit({}, at_s=at_s, memory_mib=16)
    assert sorted(history.held()) == ["kept"]
    history.audit({"i": 4}, at_s=300, memory_mib=16)
    history.claim("grown", "i", 6, resize=True, at_s=310)
    history.audit({"i": 6}, at_s=360, memory_mib=16)
    assert n1.look() == []

    history.audit({"i": 4}, at_s=420, memory_mib=16)

    assert n1.look() == [("suspected", "size-drift", "grown")]
    assert n1.records[-1].fix == "claimlog claims release grown --reason operator"


def test_a_device_held_by_a_claim_that_outlived_its_guest_is_found_until_it_is_given_back() -> None:
    audited = Audited()
    history = audited.history
    history.audit({}, at_s=0, hypervisor=HOST)
    history.claim("old", "i", 4, at_s=1, pci=(PciWant(count=1, specs=({},)),))
    history.event("arrived", "i", at_s=2, size=with_devices("a"))
    history.event("deleted", "i", at_s=3)
    history.claim("new", "i", 4, at_s=4)
    history.event("arrived", "i", at_s=5, size=with_devices())
    for at_s in (60, 120):
        history.audit({"i": with_devices()}, at_s=at_s, hypervisor=HOST)

    assert audited.look() == [("suspected", "device-drift", "old"), ("confirmed", "device-drift", "old")]
    drift = audited.records[-1]
    assert (drift.devices, drift.held, drift.fix) == (("a",), Resources(), "claimlog claims release old --reason operator")

    history.release("old", reason="operator", at_s=130)

    assert audited.look() == [("resolved", "device-drift", "old")]


def test_a_place_kept_with_the_devices_of_its_claim_leaves_their_drift_with_that_claim() -> None:
    audited = Audited()
    history = audited.history
    history.audit({}, at_s=0, hypervisor=HOST)
    history.claim("c", "i", 4, at_s=1, pci=(PciWant(count=1, specs=({},)),))
    for at_s in (60, 120):
        history.audit({"i": with_devices()}, at_s=at_s, hypervisor=HOST)
    history.claim("kept", "i", 4, keep=True, request_id="move", ttl_s=60, at_s=130)
    audited.look()

    for at_s in (180, 240, 300):
        history.audit({"i": with_devices()}, at_s=at_s, hypervisor=HOST)

    assert audited.look() == [("suspected", "device-drift", "c"), ("confirmed", "device-drift", "c")]


def test_a_claim_past_its_deadline_that_nothing_closes_is_found_and_resolved_by_its_release() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, memory_mib=16)
    audited.history.claim("c", "i", 4, at_s=1, ttl_s=60)
    audited.history.audit({}, at_s=70, memory_mib=16, complete=False)

    assert audited.look() == [("suspected", "expired-claim", "c")]
    assert audited.records[-1].since_ms == START_MS + 61_000
    assert audited.records[-1].held == Resources(memory_mib=4)
    assert audited.records[-1].note.startswith("unconfirmed after 60 s;")

    audited.history.audit({}, at_s=190, memory_mib=16, complete=False)
    assert audited.look() == []
    audited.history.audit({}, at_s=200, memory_mib=16, complete=False)
    assert audited.look() == [("confirmed", "expired-claim", "c")]

    audited.history.release("c", reason="failed", at_s=210)

    assert audited.look() == [("resolved", "expired-claim", "c")]


def test_a_silent_node_is_suspected_by_the_first_word_of_the_timer_and_confirmed_by_the_second(n1: Audited) -> None:
    n1.history.silent(at_s=300, epoch=1, counter=2)
    n1.history.silent(at_s=400, epoch=1, counter=2)

    assert n1.look() == [("suspected", "silent-node", "n1"), ("confirmed", "silent-node", "n1")]
    assert n1.records[-1].missing == "HypervisorAudited of n1"

    n1.history.audit({"i": 4}, at_s=420, memory_mib=16)

    assert n1.look() == [("resolved", "silent-node", "n1")]


def test_a_node_whose_audits_fail_is_as_silent_and_one_that_the_operator_withdrew_is_not(n1: Audited) -> None:
    n1.history.audit(at_s=120, failed="unreachable")
    n1.history.audit(at_s=180, failed="unreachable")

    assert n1.look() == [("suspected", "silent-node", "n1"), ("confirmed", "silent-node", "n1")]
    assert n1.records[-1].note == "its audits fail: unreachable"

    n1.history.release("c", at_s=185, reason="migrated")
    n1.history.configure(status="withdrawn", at_s=190)

    assert n1.look()[-1] == ("resolved", "silent-node", "n1")


def test_a_node_that_falls_silent_long_after_a_failed_audit_is_so_since_then_and_not_since_that(n1: Audited) -> None:
    """Audits told something in between, though they were not complete."""
    n1.history.audit(at_s=120, failed="unreachable")
    n1.history.audit({"i": 4}, at_s=180, memory_mib=16, complete=False)
    n1.look()

    (epoch, counter), *_ = n1.history.ledger.nodes["n1"].last_audits().values()
    n1.history.silent(at_s=3600, epoch=epoch, counter=counter)

    assert n1.look()[-1] == ("suspected", "silent-node", "n1")
    node = n1.history.ledger.nodes["n1"]
    assert (n1.records[-1].note, n1.records[-1].since_ms) == ("its audits stopped coming", node.silent_since_ms)
    assert node.unknown_since_ms is not None
    assert node.unknown_since_ms < n1.records[-1].since_ms


def test_a_node_whose_audits_have_failed_from_the_first_on_is_as_silent() -> None:
    audited = Audited()
    for at_s in (0, 60):
        audited.history.audit(at_s=at_s, failed="unreachable")

    assert audited.look() == [("suspected", "silent-node", "n1"), ("confirmed", "silent-node", "n1")]


def test_a_node_that_uses_more_than_its_limit_is_found_with_what_is_over(n1: Audited) -> None:
    for at_s in (120, 180):
        n1.history.audit({"i": 20}, at_s=at_s, memory_mib=16)

    assert ("confirmed", "negative-free", "n1") in n1.look()
    negative = next(record for record in n1.records if record.kind == "negative-free")
    assert negative.held == Resources(memory_mib=4)
    assert negative.note.startswith("memory_mib: 20 used of 16")
    assert negative.missing == "InstanceDeparted or ClaimReleased on n1 of 4 MiB"

    n1.history.configure(memory_mib=ResourceRule(ratio_milli=2000), at_s=190)

    assert ("resolved", "negative-free", "n1") in n1.look()


def test_a_node_over_its_limit_names_the_guests_that_brought_it_there_and_those_that_came_since(n1: Audited) -> None:
    n1.history.audit({"i": 4, "g1": 10}, at_s=120, memory_mib=16)
    n1.history.audit({"i": 4, "g1": 10, "g2": 6, "g3": 1}, at_s=180, memory_mib=16)
    n1.history.audit({"i": 4, "g1": 10, "g2": 6, "g3": 1}, at_s=240, memory_mib=16)
    n1.history.audit({"i": 4, "g1": 10, "g2": 6, "g3": 1, "g4": 8}, at_s=300, memory_mib=16)

    n1.look()
    last = [record for record in n1.records if record.kind == "negative-free"][-1]

    assert last.held == Resources(memory_mib=13)
    assert [cause.summary.partition("; ")[2] or cause.summary for cause in last.causes] == [
        "g2 seen with 6 MiB, g3 seen with 1 MiB",
        "a later look shows the same",
        "g4 seen with 8 MiB",
    ]


def test_of_very_many_causes_the_first_and_the_last_stay(n1: Audited) -> None:
    for number in range(100):
        n1.history.audit({"i": 20 + number}, at_s=120 + 60 * number, memory_mib=16)

    n1.look()
    last = [record for record in n1.records if record.kind == "negative-free"][-1]

    assert (last.held.memory_mib, len(last.causes)) == (103, 60)
    assert [last.causes[0].offset, last.causes[1].summary.partition("; ")[2]] == [4, "i seen with 21 MiB"]
    assert last.causes[-1].summary.endswith("i seen with 119 MiB")


def test_a_suspected_finding_is_measured_by_each_record_that_changes_it_where_no_audit_is_ever_complete() -> None:
    audited = Audited()
    audited.history.audit({}, at_s=0, memory_mib=16, complete=False)
    for number in range(4):
        audited.history.event("arrived", f"g{number}", at_s=10 + number, size=10)
    audited.history.audit({}, at_s=600, memory_mib=16, complete=False)

    audited.look()
    said = [record for record in audited.records if record.kind == "negative-free"]
    (last,) = [record for record in audited.leaks.open_findings() if record.kind == "negative-free"]

    assert [(type(record), record.held.memory_mib, record.offset) for record in said] == [(LeakSuspected, 4, 2)], "it is said once"
    assert (type(last), last.held.memory_mib, last.offset) == (LeakSuspected, 24, 4)
    assert [cause.summary for cause in last.causes] == [f"g{n} seen with 10 MiB" for n in (1, 2, 3)]
    assert last.note.startswith("memory_mib: 40 used of 16")
    assert last.missing == "InstanceDeparted or ClaimReleased on n1 of 24 MiB"
    assert last.suspected_ms == START_MS + 11_000


def test_a_suspected_finding_that_changed_is_still_confirmed_by_the_first_look_after_the_grace(n1: Audited) -> None:
    for at_s, size in ((120, 2), (125, 6), (135, 8), (140, 9)):
        n1.history.audit({"i": 4, "ghost": size}, at_s=at_s, memory_mib=16)

    assert n1.look() == [
        ("suspected", "ghost-instance", "ghost"),
        ("confirmed", "ghost-instance", "ghost"),
        ("confirmed", "ghost-instance", "ghost"),
    ]
    assert [record.held.memory_mib for record in n1.records] == [2, 8, 9]
    assert [cause.summary for cause in n1.records[-1].causes] == [f"ghost seen with {size} MiB" for size in (2, 6, 8, 9)]


def test_a_host_that_begins_again_at_any_record_says_the_same_of_findings_that_change(n1: Audited) -> None:
    for at_s, size in ((120, 20), (125, 22), (140, 22), (150, 24)):
        n1.history.audit({"i": 4, "ghost": size}, at_s=at_s, memory_mib=16)
    n1.look()
    ledger, observed, leaks, records = Ledger(0, 1), Observed(0), Leaks(0), []

    for written in n1.history.records:
        step = ledger.apply(*written)
        assert step is not None
        observed.apply(ledger, step)
        records += leaks.apply(ledger, observed, step)
        observed, leaks, _ = companions.taken(0, companions.all_rows(observed, leaks, companions.Doubles()))

    assert records == n1.records
    assert (leaks, observed) == (n1.leaks, n1.observed)


def test_how_a_finding_is_mended_goes_with_what_is_missing_now(n1: Audited) -> None:
    for at_s in (120, 180):
        n1.history.audit({"i": 20}, at_s=at_s, memory_mib=16)
    n1.history.configure(memory_mib=ResourceRule(reserved=20), at_s=190)

    n1.look()
    before, after = [record for record in n1.records if record.kind == "negative-free" and isinstance(record, LeakConfirmed)]

    assert before.fix.startswith("claimlog node drain n1 ")
    assert after.missing == "NodeConfigured of n1 that reserves less than it has of memory_mib"
    assert after.fix == "claimlog fleet show n1"


def test_a_host_whose_audits_fail_each_in_another_way_is_said_to_be_silent_twice(n1: Audited) -> None:
    for number in range(20):
        n1.history.audit(at_s=120 + 60 * number, failed=f"error {number}")

    assert n1.look() == [("suspected", "silent-node", "n1"), ("confirmed", "silent-node", "n1")]


def test_the_cause_of_what_an_orphan_holds_by_now_is_the_record_that_changed_it(n1: Audited) -> None:
    n1.history.claim("d", "i", 6, at_s=61, ttl_s=600)
    n1.history.audit({"i": 4}, at_s=62, memory_mib=16)
    n1.history.audit({}, at_s=120, memory_mib=16)
    n1.history.release("c", at_s=125, reason="deleted")

    n1.look()
    (orphan,) = [record for record in n1.leaks.open_findings() if record.kind == "orphan-claim" and record.claim_id == "d"]

    assert (orphan.held.memory_mib, orphan.causes[-1].event) == (6, "claim-released")
    assert "first complete audit" not in orphan.causes[-1].summary


def test_a_node_of_which_more_is_reserved_than_it_has_is_told_so_and_not_that_a_guest_should_go(n1: Audited) -> None:
    n1.history.configure(memory_mib=ResourceRule(reserved=20), at_s=70)

    assert n1.look() == [("suspected", "negative-free", "n1")]
    negative = n1.records[-1]
    assert negative.missing == "NodeConfigured of n1 that reserves less than it has of memory_mib"
    assert "memory_mib: 20 reserved of 16" in negative.note
    assert not mends(negative.fix)


def test_a_forced_claim_is_named_among_the_causes_of_a_node_over_its_limit(n1: Audited) -> None:
    n1.history.claim("f", "j", 14, forced=True, at_s=70)

    assert n1.look() == [("suspected", "negative-free", "n1")]
    assert (4, "claim-requested") in offsets(n1.records[-1])


def test_a_settled_node_is_not_looked_at_again_and_still_told_when_it_changes(n1: Audited) -> None:
    for at_s in (120, 180, 240):
        n1.history.audit(at_s=at_s, unchanged=digest_of({"i": 4}))
    assert n1.look() == []
    assert n1.leaks.marks["n1"].quiet

    n1.history.audit({}, at_s=300, memory_mib=16)

    assert n1.look() == [("suspected", "orphan-claim", "c")]
    assert (6, "node-observed") in offsets(n1.records[-1])


def test_the_state_is_the_same_after_it_was_written_down_and_findings_are_readable_records(n1: Audited) -> None:
    n1.history.audit({"ghost": 2}, at_s=120, memory_mib=16)
    n1.history.release("c", at_s=130, reason="deleted")
    n1.look()

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(n1.leaks), type=Leaks) == n1.leaks
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(n1.observed), type=Observed) == n1.observed
    assert [decode(FINDINGS, encode(record)) for record in n1.records] == n1.records


@pytest.mark.parametrize(("closed_offset", "kind"), [(-99_999, "missing-claim"), (-100_000, "ghost-instance")])
def test_a_claim_that_closed_too_long_ago_counts_no_more_even_where_a_host_still_has_it_stored(closed_offset: int, kind: str) -> None:
    history, leaks, observed, ledger = History(), Leaks(0), Observed(0), Ledger(0, 1)
    old = Claim("c", "r", "i", "n1", "s", closed_offset, (0, 0, 4, 0), 0, 0, 0)
    leaks.closed["n1"] = {"i": Closed(old, "released", closed_offset, START_MS, "claim-released")}
    for at_s in (0, 60):
        history.audit({"i": 4}, at_s=at_s)

    kinds = []
    for written in history.records:
        step = ledger.apply(*written)
        assert step is not None
        observed.apply(ledger, step)
        kinds += [(KINDS[type(record)], record.kind) for record in leaks.apply(ledger, observed, step)]

    assert kinds == [("suspected", kind), ("confirmed", kind)]


@pytest.mark.parametrize("stored", [False, True])
def test_closed_claims_are_forgotten_but_those_that_an_open_finding_rests_on(n1: Audited, *, stored: bool) -> None:
    for claim_id, instance in (("d", "j"), ("e", "k")):
        n1.history.claim(claim_id, instance, 2, at_s=70)
        n1.history.release(claim_id, at_s=71, reason="loser")
    n1.history.claim("of another size", "k", 2, at_s=72)
    for at_s in (120, 720, 780):
        n1.history.audit({"k": 3}, at_s=at_s, memory_mib=16)
    n1.look()
    leaks = msgspec.msgpack.decode(msgspec.msgpack.encode(n1.leaks), type=Leaks) if stored else n1.leaks
    assert n1.open() == [("size-drift", "k"), ("vanished-claim", "i")]

    found = [sorted(leaks.closed["n1"])]
    leaks.apply(Ledger(0, 1), n1.observed, Step(110_000, 0))
    found.append(sorted(leaks.closed["n1"]))
    leaks.open.clear()
    leaks.apply(Ledger(0, 1), n1.observed, Step(120_000, 0))

    assert found == [["i", "j", "k"], ["i"]]
    assert leaks.closed == {}


def test_devices_that_an_audit_was_too_old_to_judge_are_judged_by_the_next_one_that_says_the_same() -> None:
    audited, listed = Audited(), {"i": with_devices("b")}
    audited.history.audit({}, at_s=0, hypervisor=HOST)
    audited.history.claim("c", "i", 4, at_s=1, pci=(PciWant(count=1, specs=({},)),))
    audited.history.event("started", "i", at_s=10, size=with_devices("b"))
    audited.history.audit(listed, at_s=12, taken_s=10, hypervisor=HOST)
    audited.history.event("departed", "another", at_s=20)
    assert audited.look() == []

    for at_s in (70, 130):
        audited.history.audit(at_s=at_s, unchanged=digest_of(listed))

    assert audited.look() == [("suspected", "device-drift", "c"), ("confirmed", "device-drift", "c")]
    assert audited.leaks.marks["n1"].quiet


def test_a_size_that_an_audit_was_too_old_to_judge_is_judged_by_the_next_one_that_says_the_same(n1: Audited) -> None:
    n1.history.event("started", "vm", at_s=70, size=2, producer="nova")
    n1.history.audit({"i": 4, "vm": 3}, at_s=72, taken_s=70, memory_mib=16)
    assert n1.look() == []

    for at_s in (120, 180):
        n1.history.audit(at_s=at_s, unchanged=digest_of({"i": 4, "vm": 3}))

    assert n1.look() == [("suspected", "size-drift", "vm"), ("confirmed", "size-drift", "vm")]


def test_a_guest_that_an_audit_from_before_it_left_still_lists_is_a_ghost_if_the_next_one_does(n1: Audited) -> None:
    n1.history.event("started", "vm", at_s=70, size=2, producer="nova")
    n1.history.audit({"i": 4, "vm": 2}, at_s=80, memory_mib=16)
    n1.history.event("departed", "vm", at_s=122, producer="nova")
    n1.history.audit({"i": 4, "vm": 2}, at_s=123, taken_s=122, memory_mib=16)
    assert n1.look() == []

    for at_s in (180, 240):
        n1.history.audit(at_s=at_s, unchanged=digest_of({"i": 4, "vm": 2}))

    assert n1.look() == [("suspected", "ghost-instance", "vm"), ("confirmed", "ghost-instance", "vm")]


def test_a_late_audit_from_before_a_guest_left_makes_it_no_ghost_that_its_return_would_confirm(n1: Audited) -> None:
    n1.history.event("started", "vm", at_s=70, size=2, producer="nova")
    n1.history.audit({"i": 4, "vm": 2}, at_s=120, memory_mib=16)
    n1.history.event("departed", "vm", at_s=122, producer="nova")
    n1.history.audit({"i": 4, "vm": 2}, at_s=130, taken_s=121, memory_mib=16)
    n1.history.event("arrived", "vm", at_s=178, size=2, producer="audits")
    n1.history.audit({"i": 4, "vm": 2}, at_s=180, memory_mib=16)
    n1.history.event("arrived", "vm", at_s=191, event_s=177, size=2, producer="nova")

    assert n1.look() == [("suspected", "ghost-instance", "vm"), ("resolved", "ghost-instance", "vm")]


def test_a_finding_about_the_longest_reason_that_an_audit_may_fail_for_can_be_read_by_others_and_in_a_snapshot() -> None:
    ledger, observed, leaks = Ledger(0, 1), Observed(0), Leaks(0)
    first = NodeObserved(
        node_id="n1", producer="p", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=Hypervisor(vcpus=8), instances=()
    )
    failed = replace(first, hypervisor=None, instances=None, complete=False, failed="x" * TEXT_CHARACTERS_MAX, unknown_since_ms=START_MS)
    found = []
    for minute in range(9):
        time_ms = START_MS + minute * 60_000
        audit = replace(failed if minute else first, counter=minute + 1, taken_at_ms=time_ms)
        step = ledger.apply(minute, time_ms, b"n1", encode(audit))
        assert step is not None
        observed.apply(ledger, step)
        found += leaks.apply(ledger, observed, step)

    _, read_back, _ = companions.taken(0, [companions.node_row(observed, leaks, "n1")])

    assert [type(finding) for finding in found] == [LeakSuspected, LeakConfirmed]
    assert [decode(FINDINGS, encode(finding)) for finding in found] == found
    assert found[-1].note.endswith("xxx…")
    assert read_back.open_findings() == leaks.open_findings()


@pytest.mark.parametrize("unchanged", [False, True])
def test_a_guest_that_only_the_life_cycle_counts_is_stale_again_once_its_node_is_taken_back(n1: Audited, *, unchanged: bool) -> None:
    n1.history.event("started", "gone", at_s=70, size=2, producer="nova")
    listed: dict[str, Any] = {"unchanged": digest_of({"i": 4})} if unchanged else {"listed": {"i": 4}, "memory_mib": 16}
    long_after_s = 70 + BUILDING_MS // 1000
    for at_s in (80, 140, long_after_s, long_after_s + 60):
        n1.history.audit(at_s=at_s, **listed)
    assert n1.look()[-1] == ("confirmed", "stale-instance", "gone")
    n1.history.configure(status="withdrawn", at_s=long_after_s + 70)
    for after_s in (120, 180):
        n1.history.audit(at_s=long_after_s + after_s, **listed)
    assert ("resolved", "stale-instance", "gone") in n1.look()

    n1.history.configure(status="enabled", at_s=long_after_s + 190)
    for after_s in (240, 300):
        n1.history.audit(at_s=long_after_s + after_s, **listed)

    assert n1.look()[-1] == ("confirmed", "stale-instance", "gone")


def test_a_claim_that_vanished_is_told_again_once_its_node_is_taken_back(n1: Audited) -> None:
    for at_s in (120, 180, 240):
        n1.history.audit({}, at_s=at_s, memory_mib=16)
    n1.history.configure(status="withdrawn", at_s=250)
    n1.history.audit({}, at_s=300, memory_mib=16)
    n1.look()
    assert n1.open() == []

    n1.history.configure(status="enabled", at_s=310)
    for at_s in (360, 420):
        n1.history.audit({}, at_s=at_s, memory_mib=16)

    assert n1.look()[-1] == ("confirmed", "vanished-claim", "c")


def test_a_guest_that_its_producer_forgot_with_its_restart_is_stale_no_longer(n1: Audited) -> None:
    n1.history.event("started", "gone", at_s=70, size=2, producer="audits")
    for at_s in (120, 180, 240):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)
    assert n1.look()[-1] == ("confirmed", "stale-instance", "gone")

    n1.history.audit({"i": 4}, at_s=300, memory_mib=16, epoch=2, counter=1)
    n1.history.audit(at_s=360, unchanged=digest_of({"i": 4}), epoch=2, counter=2)

    assert n1.look() == [("resolved", "stale-instance", "gone")]
    assert n1.observed.view("n1").tracked_amounts()[2] == 4


def test_a_guest_that_its_producer_forgets_only_a_while_after_its_restart_is_stale_until_then(n1: Audited) -> None:
    n1.history.event("started", "gone", at_s=70, size=2, producer="audits")
    n1.history.audit({"i": 4}, at_s=71, memory_mib=16)
    n1.look()
    n1.history.audit({"i": 4}, at_s=72, memory_mib=16, epoch=2, counter=1)
    for number, at_s in enumerate((130, 190, 250), 2):
        n1.history.audit(at_s=at_s, unchanged=digest_of({"i": 4}), epoch=2, counter=number)

    n1.look()

    assert n1.observed.view("n1").tracked_amounts()[2] == 4
    assert n1.open() == []


def test_what_keeps_its_place_on_a_withdrawn_node_is_stranded_from_its_claim_on(n1: Audited) -> None:
    n1.history.configure(status="withdrawn", at_s=100)
    n1.history.release("c", reason="operator", at_s=110)
    n1.look()
    assert n1.open() == []

    n1.history.claim("k", "i", 4, at_s=120, keep=True)

    assert n1.look() == [("suspected", "stranded-claim", "k")]


@pytest.mark.parametrize("unchanged", [False, True])
def test_what_a_withdrawn_node_was_found_to_show_stands_until_it_shows_it_no_more(n1: Audited, *, unchanged: bool) -> None:
    n1.history.configure(status="withdrawn", at_s=100)
    n1.history.release("c", reason="operator", at_s=110)
    for at_s in (160, 220):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)
    assert n1.look()[-1] == ("confirmed", "missing-claim", "i")

    n1.history.release("c", reason="deleted", at_s=230)  # It is held no more: its owner says so late.
    n1.history.event("stopped", "i", at_s=231, size=4)
    listed: dict[str, Any] = {"unchanged": digest_of({"i": 4})} if unchanged else {"listed": {"i": 4}, "memory_mib": 16}
    n1.history.audit(at_s=280, **listed)

    assert (n1.look(), n1.open()) == ([], [("missing-claim", "i")])
    n1.history.event("deleted", "i", at_s=290)
    assert n1.look() == [("resolved", "missing-claim", "i")]


def test_what_a_vanished_claims_guest_counts_goes_with_its_producers_restart(n1: Audited) -> None:
    n1.history.claim("d", "j", 2, at_s=61)
    n1.history.event("started", "j", at_s=62, size=2, producer="audits")
    n1.history.audit({"i": 4, "j": 2}, at_s=63, memory_mib=16)
    for at_s in (120, 180, 240, 300):
        n1.history.audit({"i": 4}, at_s=at_s, memory_mib=16)
    n1.look()
    counted = [record.counted.memory_mib for record in n1.leaks.open_findings() if record.kind == "vanished-claim"]

    n1.history.audit({"i": 4}, at_s=360, memory_mib=16, epoch=2, counter=1)
    n1.history.audit(at_s=420, unchanged=digest_of({"i": 4}), epoch=2, counter=2)

    n1.look()
    assert counted == [2]
    assert [(record.kind, record.counted.memory_mib) for record in n1.leaks.open_findings()] == [("vanished-claim", 0)]
