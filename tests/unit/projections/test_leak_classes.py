"""Each known way of leaking as a history that has it, found with its events and sums, and the same history mended.

The classes are those of Nova's bug reports; where one comes from a cloud it is told by Nova's notifications and the hosts' audits, else
by our own claims. The kinds of findings by themselves are in `test_leaks.py`.
"""

from __future__ import annotations

import pytest

from projections.companions import Doubles, all_rows, taken
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, GroupHomeClosed, GroupMember, NodeConfigured
from schemas.codec import decode
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.inventory import OperatorFields
from schemas.resources import Resources
from schemas.topics import CLAIMS
from tests.leak_world import AUDIT_MS, World, amounts
from tests.nova_cloud import LARGE, SMALL, node_of
from tests.nova_following import first

H1, H2, H3 = (node_of(f"h{number}") for number in (1, 2, 3))
NOTHING = [0, 0, 0, 0]


@pytest.fixture
def world() -> World:
    """`a` runs on h1 and `b` on h2, as Nova and their hosts say; nothing is wrong."""
    world = World()
    world.audited(1)
    world.notified(world.nova.create("a", "h1"), world.nova.create("b", "h2"))
    world.defined("h1", "a")
    world.defined("h2", "b")
    world.audited()
    assert [record for record in world.records if isinstance(record, LeakConfirmed)] == []
    assert (world.found(), world.suspected()) == ({}, {})
    assert (world.gap("h1"), world.gap("h2")) == (NOTHING, NOTHING)
    return world


def changes(world: World, finding: LeakSuspected | LeakConfirmed) -> list[str]:
    """What the events among a finding's causes were: the life-cycle change, or the type of any other record."""
    records = [decode(CLAIMS, world.values[cause.offset]) for cause in finding.causes]
    return [getattr(record, "change", "") or cause.event for record, cause in zip(records, finding.causes, strict=True)]


def mended(world: World) -> None:
    """Nothing is left, neither a finding nor a gap."""
    assert (world.found(), world.suspected()) == ({}, {})
    assert [gap for host in ("h1", "h2", "h3") for gap in world.gap(host) if gap] == []


def claimed(world: World, claim_id: str, instance: str, node: str, *, forced: bool = False, group: GroupMember | None = None) -> None:
    size = Resources(vcpus=SMALL.vcpus, memory_mib=SMALL.memory_mb, disk_mib=SMALL.root_gb * 1024)
    item = ClaimItem(claim_id=claim_id, instance_id=instance, nodes=(node,), resources=size, forced=forced, group=group)
    basis = world.ledger.next_offset - 1
    world.said(ClaimRequested(request_id=f"of {claim_id}", owner="s", basis=basis, ttl_ms=600_000, items=(item,)))


def released(world: World, claim_id: str, node: str) -> None:
    world.said(ClaimReleased(node_id=node, record_id=f"release {claim_id}", claim_id=claim_id, reason="migrated"))


def test_an_evacuated_guest_that_runs_on_after_its_host_came_back(world: World) -> None:
    world.away.add(H1)
    world.notified(world.nova.evacuate("a", "h2"))
    world.defined("h2", "a")
    world.audited()
    world.away.clear()
    world.audited()

    assert world.found() == {("ghost-instance", H1, "a"): amounts(SMALL)}
    ghost = world.finding("ghost-instance")
    assert changes(world, ghost) == ["departed", "node-observed", "node-observed"]
    assert ghost.note.startswith("nova says that it departed, its host still has it")

    world.undefined("h1", "a")
    world.audited()

    mended(world)


def test_an_instance_deleted_while_its_compute_service_was_down(world: World) -> None:
    world.away.add(H1)
    world.notified(world.nova.delete("a", locally=True))
    world.audited()
    world.away.clear()
    world.audited()

    assert world.found() == {("ghost-instance", H1, "a"): amounts(SMALL)}
    assert changes(world, world.finding("ghost-instance"))[0] == "deleted"

    world.undefined("h1", "a")
    world.audited()

    mended(world)


def test_a_deletion_that_nobody_was_told_of(world: World) -> None:
    world.notified(world.nova.delete("a"), lost=["instance.delete.end", "instance.delete.start"])
    world.undefined("h1", "a")
    world.audited(15)

    assert world.found() == {("stale-instance", H1, "a"): amounts(SMALL)}
    stale = world.finding("stale-instance")
    assert stale.held == Resources()
    assert changes(world, stale) == ["started", "node-observed", "node-observed"]
    assert stale.missing == f"InstanceDeparted or InstanceDeleted of a on {H1}"
    assert [stale.counted.vcpus, stale.counted.pcpus, stale.counted.memory_mib, stale.counted.disk_mib] == world.gap("h1")

    world.notified(world.nova.delete("a", locally=True))

    mended(world)


def test_a_resize_whose_confirmation_was_never_said_is_counted_on_both_hosts(world: World) -> None:
    world.notified(world.nova.resize("a", "h2", LARGE))
    world.defined("h2", "a", LARGE)
    world.audited()
    mended(world)

    world.notified(world.nova.confirm("a"), lost=["instance.resize_confirm.start", "instance.resize_confirm.end"])
    world.undefined("h1", "a")
    world.audited(70)

    assert world.found() == {("stale-instance", H1, "a"): amounts(SMALL)}

    world.notified(world.nova.exists("a"))

    mended(world)


def test_an_instance_deleted_in_the_middle_of_its_migration(world: World) -> None:
    world.notified(first(world.nova.resize("a", "h2", LARGE), 6))
    world.defined("h2", "a", LARGE)
    world.undefined("h1", "a")
    world.notified(world.nova.delete("a"))
    world.audited()

    assert world.found() == {("ghost-instance", H2, "a"): amounts(LARGE)}
    assert changes(world, world.finding("ghost-instance"))[0] == "deleted"

    world.undefined("h2", "a")
    world.audited()

    mended(world)


def test_a_resize_that_fails_when_it_is_to_be_finished(world: World) -> None:
    world.notified(first(world.nova.resize("a", "h2", LARGE), 7))
    failed = world.nova.instances["a"]
    failed.state, failed.task = "error", None
    world.notified([world.nova.say("update", failed, "compute:h2")])
    world.audited(70)

    found = world.found()
    assert set(found) == {("ghost-instance", H1, "a"), ("stale-instance", H2, "a")}
    assert found["ghost-instance", H1, "a"] == amounts(SMALL)
    assert found["stale-instance", H2, "a"]["memory_mib"] == world.gap("h2")[2]

    world.notified(world.nova.delete("a"))
    world.undefined("h1", "a")
    world.audited()

    mended(world)


def test_a_guest_that_its_host_runs_in_another_size_than_nova_counts(world: World) -> None:
    world.notified(world.nova.resize("a", "h1", LARGE), world.nova.confirm("a"))
    world.audited()

    assert world.found() == {("size-drift", H1, "a"): {}}
    drift = world.finding("size-drift")
    assert drift.note.startswith("-3 vCPUs, -3.5 GiB against what nova counts")
    assert changes(world, drift)[1:] == ["node-observed", "node-observed"]

    world.defined("h1", "a", LARGE)
    world.audited()

    mended(world)


def test_a_shelved_instance_whose_guest_stays_on_its_host(world: World) -> None:
    world.notified(world.nova.shelve("a"))
    world.audited()

    assert world.found() == {("ghost-instance", H1, "a"): amounts(SMALL)}
    assert changes(world, world.finding("ghost-instance"))[0] == "departed"

    world.undefined("h1", "a")
    world.audited()

    mended(world)


def test_a_guest_in_no_record_but_the_hypervisors(world: World) -> None:
    world.defined("h3", "stranger", LARGE)
    world.audited()

    assert world.found() == {("ghost-instance", H3, "stranger"): amounts(LARGE)}
    assert world.finding("ghost-instance").missing == f"ClaimRequested for stranger on {H3}"

    world.undefined("h3", "stranger")
    world.audited()

    mended(world)


def test_a_finding_says_what_it_holds_by_now_and_once_for_each_change(world: World) -> None:
    world.defined("h3", "stranger", SMALL)
    world.audited()
    before = len(world.records)

    world.defined("h3", "stranger", LARGE)
    world.audited()

    assert world.found() == {("ghost-instance", H3, "stranger"): amounts(LARGE)}
    (said,) = world.records[before:]
    assert isinstance(said, LeakConfirmed)
    assert [cause.event for cause in said.causes] == ["node-observed"] * 3, "seen, seen again, and grown"
    assert said.causes[-1].offset == said.offset


def test_a_node_that_came_back_under_another_name(world: World) -> None:
    claimed(world, "c", "a", H1)
    world.audited()
    world.domains["h1.renamed"] = world.domains[H1]
    world.away.add(H1)
    world.audited(4)
    world.ticked()
    world.audited(4)
    world.ticked()

    assert world.found() == {("ghost-instance", "h1.renamed", "a"): amounts(SMALL), ("silent-node", H1, ""): {}}

    world.said(NodeConfigured(node_id=H1, record_id="w", status="withdrawn", reason="renamed"))
    world.audited()
    world.ticked()

    assert world.found() == {("ghost-instance", "h1.renamed", "a"): amounts(SMALL), ("stranded-claim", H1, "c"): amounts(SMALL)}
    assert world.finding("stranded-claim").note.startswith(f"{H1} is withdrawn (renamed)")

    released(world, "c", H1)
    claimed(world, "d", "a", "h1.renamed", forced=True)
    world.audited()

    assert (world.found(), world.suspected()) == ({}, {})


def test_an_evacuated_instance_whose_old_claim_holds_on_while_its_host_is_dead(world: World) -> None:
    claimed(world, "old", "a", H1)
    world.audited()
    world.away.add(H1)
    claimed(world, "new", "a", H2)
    world.defined("h2", "a")
    world.audited(13)
    world.ticked()
    world.audited()

    assert world.found() == {("double-claim", H1, "old"): amounts(SMALL)}
    assert world.suspected() == {("silent-node", H1, ""): {}}
    double = world.finding("double-claim")
    assert double.held == Resources(vcpus=SMALL.vcpus, memory_mib=SMALL.memory_mb, disk_mib=SMALL.root_gb * 1024)
    assert [cause.event for cause in double.causes] == ["claim-requested", "node-observed", "claim-requested", "node-observed"]
    assert double.missing == f"InstanceDeparted of a on {H1}"

    released(world, "old", H1)
    world.notified(world.nova.evacuate("a", "h2"))
    world.undefined("h1", "a")
    world.away.clear()
    world.audited()

    mended(world)


def test_an_instance_resized_to_another_host_whose_old_claim_nobody_gave_back(world: World) -> None:
    claimed(world, "old", "a", H1)
    world.audited()
    claimed(world, "new", "a", H2)
    world.defined("h2", "a")
    world.audited(12)

    assert world.found() == {("double-claim", H1, "old"): amounts(SMALL)}

    world.undefined("h1", "a")
    released(world, "old", H1)
    world.notified(world.nova.resize("a", "h2", SMALL), world.nova.confirm("a"))
    world.audited()

    mended(world)


def test_a_reservation_that_nobody_ever_used(world: World) -> None:
    world.away.add(H3)
    world.said(NodeConfigured(node_id=H3, record_id="z", fields=OperatorFields(zone="z")))
    claimed(world, "r", "never", H3)
    world.audited(12)
    world.ticked()
    world.away.clear()
    world.audited(1)

    assert ("expired-claim", H3, "r") in world.suspected()
    assert world.suspected()["expired-claim", H3, "r"] == amounts(SMALL)

    world.audited(12)

    mended(world)


def test_a_reservation_on_a_host_that_died_meanwhile(world: World) -> None:
    claimed(world, "r", "never", H3)
    world.away.add(H3)
    for _ in range(35):
        world.audited(1)
        world.ticked()

    assert world.found() == {("expired-claim", H3, "r"): amounts(SMALL), ("silent-node", H3, ""): {}}
    assert changes(world, world.finding("expired-claim")) == ["claim-requested", "node-silent", "node-silent"]

    released(world, "r", H3)
    world.away.clear()
    world.audited(1)

    mended(world)


def test_a_stranded_claim_is_confirmed_by_one_word_of_the_timer(world: World) -> None:
    claimed(world, "c", "a", H1)
    world.audited()
    world.away.add(H1)
    world.said(NodeConfigured(node_id=H1, record_id="w", status="withdrawn", reason="scrapped"))
    world.audited(5)
    said = len(world.values)
    for _ in range(3):
        world.ticked()

    assert world.found() == {("stranded-claim", H1, "c"): amounts(SMALL)}
    assert len(world.values) == said + 1


def together(epoch: int) -> GroupMember:
    return GroupMember(group_id="db", policy="affinity", epoch=epoch)


def test_a_member_left_on_a_dead_node_whose_group_was_told_to_live_elsewhere(world: World) -> None:
    claimed(world, "c", "a", H1, group=together(1))
    world.audited()
    world.away.add(H1)
    world.audited(4)
    world.ticked()
    world.audited(4)
    world.ticked()
    assert world.found() == {("silent-node", H1, ""): {}}

    world.said(GroupHomeClosed(node_id=H1, record_id="h", group_id="db", epoch=1, unconditional=True))
    assert world.suspected() == {("stranded-member", H1, "c"): {}}
    world.audited(1)
    said = len(world.values)
    for _ in range(3):
        world.ticked()

    assert world.found() == {("silent-node", H1, ""): {}, ("stranded-member", H1, "c"): {}}
    assert len(world.values) == said + 1
    stranded = world.finding("stranded-member")
    assert [cause.event for cause in stranded.causes] == ["claim-requested", "node-observed", "group-home-closed", "node-silent"]
    assert (stranded.missing, stranded.fix) == (
        f"InstanceDeparted or InstanceDeleted of a on {H1}",
        "claimlog claims release c --reason migrated",
    )

    world.away.clear()
    world.notified(world.nova.evacuate("a", "h2"))
    world.undefined("h1", "a")
    world.defined("h2", "a")
    released(world, "c", H1)
    world.audited()

    mended(world)
    assert world.leaks.homes == {}


def test_a_group_that_comes_back_to_its_old_home_has_left_nobody_there(world: World) -> None:
    claimed(world, "c", "a", H1, group=together(1))
    world.audited()
    world.said(GroupHomeClosed(node_id=H1, record_id="h", group_id="db", epoch=1, unconditional=True))
    world.audited()
    assert world.found() == {("stranded-member", H1, "c"): {}}

    claimed(world, "d", "new", H1, group=together(2))
    assert (world.found(), world.suspected()) == ({}, {})
    released(world, "d", H1)
    world.audited(1)

    stranded = world.finding("stranded-member")
    assert [cause.event for cause in stranded.causes][2:4] == ["group-home-closed", "claim-released"]
    assert taken(0, all_rows(world.observed, world.leaks, Doubles()))[1] == world.leaks


def test_a_cloud_whose_hosts_nobody_audits_has_no_finding() -> None:
    world = World()
    world.notified(world.nova.create("a", "h1"), world.nova.create("b", "h2"), world.nova.resize("a", "h2", LARGE))
    world.notified(world.nova.confirm("a"), world.nova.delete("b"))

    assert (world.found(), world.suspected(), world.records) == ({}, {}, [])
    assert world.observed.view(H2).tracked_amounts()[2] == LARGE.memory_mb


def test_a_node_that_uses_more_than_it_has_and_one_that_is_dead(world: World) -> None:
    for number in range(20):
        world.notified(world.nova.create(f"big-{number}", "h3", LARGE))
        world.defined("h3", f"big-{number}", LARGE)
    world.said(NodeConfigured(node_id=H3, record_id="v", fields=OperatorFields()))
    world.audited()

    assert world.found() == {("negative-free", H3, ""): {"vcpus": 20 * LARGE.vcpus - 64, "memory_mib": 20 * LARGE.memory_mb - 65_536}}

    world.away.add(H3)
    world.audited(7)
    world.ticked()
    world.nova.now_us += AUDIT_MS * 1000
    world.ticked()

    assert ("silent-node", H3, "") in world.found()

    for number in range(8):
        world.notified(world.nova.delete(f"big-{number}"))
        world.undefined("h3", f"big-{number}")
    world.away.clear()
    world.audited()

    mended(world)
