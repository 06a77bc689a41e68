"""Resizes and migrations, one history each: claims on both sides until the move is confirmed or reverted (rule 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.audits import InstanceReport
from schemas.claims import ClaimReleased, ClaimRenewed, ClaimRequested, InstanceObserved, NodeObserved, NodeSilent
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice
from schemas.requests import Flavor, NumaWant, PciWant, PlacementRequested, ServerGroup
from schemas.resources import ObservedResources
from schemas.results import InstancesPlaced, Placement, PlacementFailed
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.log.base import Message
from streams.scheduling.explain import spelled_out
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, digest
from streams.scheduling.select import engine
from tests.scheduling_world import START_MS, TTL_MS, At, World, rerun, said, settle, world, wrongs
from tests.unit.placement.test_placement_filing import long_ago
from tests.unit.scheduling.test_explain import claimed

GUEST = "11111111-1111-1111-1111-111111111111"


def fleet(*names: str, **totals: int) -> World:
    """Hosts, and a guest of 4 vCPUs and 4 GiB placed and shown on n1."""
    here = world(claims=2, requests=1)
    for name in names or ("n1", "n2"):
        here.host(name, **totals)
    here.request("first", vcpus=4, memory_mib=4096, instance_ids=(GUEST,), requested_nodes=("n1",))
    settle(here.scheduler())
    event(here, "n1", "started", vcpus=4, memory_mib=4096)
    return here


def event(here: World, node_id: str, change: Any, *, vcpus: int = 0, memory_mib: int = 0, after_ms: int = 10_000) -> None:
    """What a host says of the guest, some seconds later."""
    here.clock.now_ms += after_ms
    counter = sum(here.log.ends(CLAIMS).values())
    size = ObservedResources(vcpus=vcpus or None, memory_mib=memory_mib or None, disk_mib=None)
    report = InstanceReport(instance_id=GUEST, resources=size)
    here.say(
        CLAIMS,
        InstanceObserved(
            node_id=node_id,
            producer="libvirt",
            epoch=1,
            counter=counter,
            change=change,
            event_time_ms=here.clock.now_ms,
            instance=report,
        ),
    )


def used(here: World) -> dict[str, int]:
    """vCPUs in use by node."""
    return {node.node_id: node.used[0] for ledger in here.ledgers() for node in ledger.nodes.values()}


def move(here: World, request_id: str = "move", engine_name: str = "auto", **options: Any) -> Any:
    """Ask for a move of the guest, and the result."""
    given: dict[str, Any] = {"vcpus": 4, "memory_mib": 4096, "action": "migrate", "source_node": "n1", "instance_ids": (GUEST,)} | options
    here.request(request_id, **given)
    settle(here.scheduler(engine_name=engine_name))
    (result,) = [each for each in said(here, RESULTS, InstancesPlaced, PlacementFailed) if each.request_id == request_id]
    return result


def move_of(instance_id: str) -> PlacementRequested:
    flavor = Flavor(vcpus=4, memory_mib=4096)
    return PlacementRequested(request_id="move", flavor=flavor, action="migrate", source_node="n1", instance_ids=(instance_id,))


def test_a_migration_holds_both_sides_until_it_is_confirmed() -> None:
    here = fleet()

    result = move(here, vcpus=6)
    nothing_wrong = wrongs(here)
    event(here, "n1", "departed")
    event(here, "n2", "started", vcpus=6, memory_mib=4096)
    while_it_may_be_reverted = used(here)
    (kept,) = result.kept
    here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="confirmed", claim_id=kept.claim_id, reason="migrated"))

    assert [placement.node_id for placement in result.placements] == ["n2"]
    assert (kept.node_id, kept.resources.vcpus, kept.resources.memory_mib) == ("n1", 4, 4096)
    assert nothing_wrong == []
    assert while_it_may_be_reverted == {"n1": 4, "n2": 6}
    (old,) = [claim for ledger in here.ledgers() for claim in ledger.claims.values() if claim.node_id == "n1"]
    assert old.departed_ms is not None, "the claim it was started under goes by the departure, as ever"


def test_nobody_is_granted_the_place_that_a_migrated_guest_may_come_back_to() -> None:
    here = fleet("n1", "n2", vcpus=4)
    move(here)
    event(here, "n1", "departed")
    event(here, "n2", "started", vcpus=4, memory_mib=4096)
    here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="x", claim_id=here.answer("first").named[0].claim_id, reason="operator"))

    here.request("other", vcpus=1)
    settle(here.scheduler())

    assert here.answer("other").reason == "no-valid-node"


def test_a_reverted_migration_leaves_the_guest_and_its_place_as_they_were() -> None:
    here = fleet()
    result = move(here)
    here.cancel("move")
    settle(here.scheduler())

    event(here, "n1", "started", vcpus=4, memory_mib=4096)

    assert used(here) == {"n1": 4, "n2": 0}
    held = {claim_id for ledger in here.ledgers() for claim_id in ledger.claims}
    assert held == {here.answer("first").named[0].claim_id}
    assert result.kept[0].claim_id not in held


def hold(here: World, *placements: Placement) -> None:
    """Their starter is at work."""
    for each in placements:
        here.say(CLAIMS, ClaimRenewed(node_id=each.node_id, record_id=f"hold {each.claim_id}", claim_id=each.claim_id, ttl_ms=TTL_MS))


def cancelled_under_way() -> tuple[World, Any]:
    """A migration whose starter is at work was cancelled; the fleet, and what it was given."""
    here = fleet("n1", "n2", vcpus=4)
    result = move(here)
    hold(here, *result.placements)
    here.cancel("move")
    settle(here.scheduler())
    return here, result


def held(here: World) -> set[str]:
    return {claim_id for ledger in here.ledgers() for claim_id in ledger.claims}


def test_a_migration_under_way_that_is_cancelled_goes_on_and_may_be_reverted() -> None:
    here, result = cancelled_under_way()

    assert {each.claim_id for each in (*result.placements, *result.kept)} <= held(here)
    assert [release.claim_id for release in said(here, CLAIMS, ClaimReleased)] == [result.placements[0].claim_id]


def test_of_a_cancelled_migration_only_who_is_under_way_keeps_its_place() -> None:
    here = world(claims=2, requests=1)
    for name in ("n1", "n2"):
        here.host(name)
    guests = (GUEST, "22222222-2222-2222-2222-222222222222")
    here.request("first", count=2, instance_ids=guests, requested_nodes=("n1",))
    settle(here.scheduler())
    result = move(here, count=2, vcpus=1, memory_mib=1024, instance_ids=guests)
    hold(here, result.placements[1])

    here.cancel("move")
    scheduler = here.scheduler()
    settle(scheduler)

    before = {named.claim_id for named in here.answer("first").named}
    assert held(here) - before == {result.placements[1].claim_id, result.kept[1].claim_id}
    assert scheduler.placer.commit_offsets() == {0: here.log.end(REQUESTS, 0)}


def test_who_takes_over_a_cancelled_migration_leaves_both_sides_of_what_is_under_way() -> None:
    here, result = cancelled_under_way()

    settle(here.scheduler("late", log=At(here.log, lambda _when, _messages: None, owns_all=True)))

    assert len(said(here, CLAIMS, ClaimReleased)) == 2, "it says again what it does not know to be done"
    assert {each.claim_id for each in (*result.placements, *result.kept)} <= held(here)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_migration_that_was_answered_long_ago_is_cancelled_alike(is_held: bool) -> None:
    here = fleet("n1", "n2", vcpus=4)
    result = move(here)
    if is_held:
        hold(here, *result.placements)
    scheduler = here.scheduler("later", log=At(here.log, lambda _when, _messages: None, owns_all=True))
    long_ago(here, scheduler)
    assert "move" in scheduler.placer.desks[0].placements.filed

    here.cancel("move")
    settle(scheduler)

    both = {each.claim_id for each in (*result.placements, *result.kept)}
    assert both & held(here) == (both if is_held else set())


def test_a_live_migration_keeps_nothing_because_it_cannot_be_reverted() -> None:
    here = fleet()

    result = move(here, live=True)

    assert [placement.node_id for placement in result.placements] == ["n2"]
    assert result.kept == ()
    assert used(here) == {"n1": 4, "n2": 4}


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_a_move_waits_for_a_resize_without_whose_word_the_place_would_be_kept_in_part(engine_name: str) -> None:
    """What is kept is the newest claim's place: of a resize that gives CPUs or a device up, that the guest still has."""
    here = world(claims=2, requests=1)
    cell = NumaCell(cell_id=0, cpus=(0, 1), dedicated_cpus=(4, 5), memory_mib=8192)
    gpu = PciDevice(address="0000:01:00.0", vendor_id="10de", product_id="1db4", numa_cell=0)
    has = Hypervisor(vcpus=2, pcpus=2, memory_mib=8192, disk_mib=1024, numa_cells=(cell,), pci_devices=(gpu,))
    for node_id in ("n1", "n2"):
        look: dict[str, Any] = {"taken_at_ms": START_MS, "mono_ms": 1, "hypervisor": has, "instances": ()}
        here.say(CLAIMS, NodeObserved(node_id=node_id, producer="p", epoch=1, counter=1, **look))
    pinned: dict[str, Any] = {
        "numa": (NumaWant(cpus=(0,), memory_mib=512, cpu_policy="dedicated"),),
        "pci": (PciWant(alias="gpu", specs=({},)),),
    }
    shared: dict[str, Any] = {"vcpus": 1, "memory_mib": 512, "numa": (NumaWant(cpus=(0,), memory_mib=512),)}
    here.request("first", vcpus=1, memory_mib=512, instance_ids=(GUEST,), requested_nodes=("n1",), **pinned)
    settle(here.scheduler(engine_name=engine_name))
    event(here, "n1", "started", memory_mib=512)
    alone = move(here, "alone", engine_name, dry_run=True, **shared)
    resized = move(here, "smaller", engine_name, action="resize", source_node="", **shared)

    refused = move(here, "move", engine_name, **shared)

    assert isinstance(alone, InstancesPlaced)
    assert isinstance(resized, InstancesPlaced)
    assert refused.reason == "refused"
    assert f"instance {GUEST} has a resize on n1 that is not confirmed" in refused.message
    assert "kept there without CPU 4, device 0000:01:00.0" in refused.message


PAGES = {"small": 4, "large": 2048, "huge": 1_048_576}


def paged(here: World, node_id: str, *sizes: str) -> None:
    """A host whose one cell has 8 GiB in pages of each of these sizes."""
    pages = tuple(HugePages(size_kib=PAGES[size], total=8 * 1024 * 1024 // PAGES[size]) for size in sizes)
    cell = NumaCell(cell_id=0, cpus=tuple(range(8)), memory_mib=32_768, pages=pages)
    has = Hypervisor(vcpus=8, pcpus=0, memory_mib=32_768, disk_mib=1024, numa_cells=(cell,))
    seen = NodeObserved(node_id=node_id, producer="p", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=has, instances=())
    here.say(CLAIMS, seen)


def with_pages(name: str = "", size_kib: int | None = None) -> dict[str, Any]:
    return {"numa": (NumaWant(cpus=(0, 1, 2, 3), memory_mib=4096, page_size=name, page_size_kib=size_kib),)}  # type: ignore[arg-type]


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
@pytest.mark.parametrize("name", ["large", "any"])
def test_a_live_migration_takes_pages_of_the_size_that_its_guest_has(name: str, engine_name: str) -> None:
    here = world(claims=2, requests=1)
    paged(here, "n1", "small", "large")
    here.request("first", vcpus=4, memory_mib=4096, instance_ids=(GUEST,), **with_pages(name))
    settle(here.scheduler(engine_name=engine_name))
    for node_id, sizes in (("n2", ("small", "huge")), ("n3", ("small", "large", "huge")), ("n4", ("small",))):
        paged(here, node_id, *sizes)

    given: dict[str, Any] = with_pages(name) | {"engine_name": engine_name}
    live, cold = (move(here, f"live {each}", live=each, dry_run=True, **given) for each in (True, False))
    moved = move(here, live=True, **given)

    (claim,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == "move"]
    assert ([each.passed for each in live.decisions], live.decisions[0].chosen) == ([1], "n3")
    assert cold.decisions[0].passed > 1
    assert [placement.node_id for placement in moved.placements] == ["n3"]
    assert [want.page_size_kib for want in claim.items[0].numa] == [2048]


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_a_live_migration_to_pages_of_another_size_is_refused_and_says_why(engine_name: str) -> None:
    here = world(claims=2, requests=1)
    for node_id in ("n1", "n2"):
        paged(here, node_id, "small", "large", "huge")
    here.request("first", vcpus=4, memory_mib=4096, instance_ids=(GUEST,), requested_nodes=("n1",), **with_pages(size_kib=2048))
    settle(here.scheduler(engine_name=engine_name))

    other = move(here, "other", live=True, engine_name=engine_name, **with_pages(size_kib=1_048_576))
    same = move(here, "same", live=True, engine_name=engine_name, **with_pages(size_kib=2048))

    assert other.decisions[0].rejections[0].reason == (
        "a live migration keeps its pages: the instance has 2048 KiB on n1 and asks for 1048576 KiB"
    )
    assert [placement.node_id for placement in same.placements] == ["n2"]


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_each_cell_of_a_live_guest_keeps_pages_of_its_own_size(engine_name: str) -> None:
    here = world(claims=2, requests=1)
    for node_id in ("n1", "n2"):
        pages = tuple(HugePages(size_kib=size, total=8 * 1024 * 1024 // size) for size in PAGES.values())
        cells = tuple(
            NumaCell(cell_id=cell, cpus=tuple(range(4 * cell, 4 * cell + 4)), memory_mib=32_768, pages=pages) for cell in range(2)
        )
        has = Hypervisor(vcpus=8, pcpus=0, memory_mib=65_536, disk_mib=1024, numa_cells=cells)
        seen = NodeObserved(
            node_id=node_id, producer="p", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=has, instances=()
        )
        here.say(CLAIMS, seen)
    wants = (
        NumaWant(cell_id=0, cpus=(0,), memory_mib=2048, page_size="small"),
        NumaWant(cell_id=1, cpus=(1,), memory_mib=2048, page_size="large"),
    )
    here.request("first", vcpus=2, memory_mib=4096, instance_ids=(GUEST,), requested_nodes=("n1",), numa=wants)
    settle(here.scheduler(engine_name=engine_name))

    moved = move(here, live=True, engine_name=engine_name, numa=wants)

    (claim,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == "move"]
    (first,) = [each for ledger in here.ledgers() for each in ledger.claims.values() if each.request_id == "first"]
    assert [placement.node_id for placement in moved.placements] == ["n2"]
    assert [want.page_size_kib for want in claim.items[0].numa] == [cell.page_size_kib for cell in first.cells]
    assert first.cells[0].page_size_kib != first.cells[1].page_size_kib


def test_an_evacuation_leaves_its_node_and_keeps_nothing() -> None:
    here = fleet()
    here.set_status("n1", "disabled")

    result = move(here, action="evacuate")

    assert ([placement.node_id for placement in result.placements], result.kept) == (["n2"], ())


def test_a_node_that_is_drained_keeps_the_place_of_whom_it_loses() -> None:
    here = fleet()
    here.set_status("n1", "draining")

    result = move(here)

    assert [kept.node_id for kept in result.kept] == ["n1"]


def test_a_migration_that_fits_nowhere_keeps_nothing() -> None:
    here = fleet("n1", "n2", vcpus=4)

    result = move(here, vcpus=5)

    assert result.reason == "no-valid-node"
    assert len([claim for ledger in here.ledgers() for claim in ledger.claims]) == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_not_on_the_node_that_it_should_leave_is_refused(dry_run: bool) -> None:
    here = fleet("n1", "n2", "n3")

    result = move(here, source_node="n3", dry_run=dry_run)

    assert (result.reason, result.message) == ("refused", f"instance {GUEST} is neither claimed nor shown on source_node n3")
    assert len(said(here, CLAIMS, ClaimRequested)) == 1


@pytest.mark.parametrize("action", ["migrate", "evacuate"])
@pytest.mark.parametrize("other", [None, ServerGroup(group_id="other", policy="anti-affinity")])
@pytest.mark.parametrize("engine_name", ["profiles", "reference"])
def test_a_move_that_leaves_out_the_group_of_its_instance_is_refused(engine_name: str, other: ServerGroup | None, action: str) -> None:
    here = fleet("n1", "n2")
    group = ServerGroup(group_id="apart", policy="anti-affinity")
    here.request("member", vcpus=1, group=group, instance_ids=("m1",), requested_nodes=("n1",))
    settle(here.scheduler())
    options: dict[str, Any] = {"action": action, "vcpus": 1, "instance_ids": ("m1",), "engine_name": engine_name}

    without = move(here, "without", group=other, **options)
    dry_run = move(here, "dry run", group=other, dry_run=True, **options)
    with_it = move(here, "with", group=group, **options)
    here.request("second member", vcpus=1, group=group, requested_nodes=("n2",))
    settle(here.scheduler())

    said = "has another" if other else "has no"
    why = f"instance m1 is a member of server group apart on n1, and the request {said} `group`: name that one"
    assert (without.reason, without.message, dry_run.message) == ("refused", why, why)
    assert [placement.node_id for placement in with_it.placements] == ["n2"]
    assert here.answer("second member").reason == "no-valid-node", "m1 is a member where it went, too"


@pytest.mark.parametrize("source_node", ["n2", "gone"])
@pytest.mark.parametrize("options", [{"action": "evacuate"}, {"live": True}])
def test_a_wrong_source_node_hides_no_membership(source_node: str, options: dict[str, Any]) -> None:
    here = fleet("n1", "n2", "n3")
    here.request("member", vcpus=1, group=ServerGroup(group_id="g", policy="anti-affinity"), instance_ids=("m1",), requested_nodes=("n1",))
    settle(here.scheduler())

    result = move(here, vcpus=1, instance_ids=("m1",), source_node=source_node, **options)

    why = "instance m1 is a member of server group g on n1, and the request has no `group`: name that one"
    assert (result.reason, result.message) == ("refused", why)


def test_members_of_two_groups_are_not_moved_by_one_request_and_that_is_said() -> None:
    here = fleet("n1", "n2", "n3")
    one, other = (ServerGroup(group_id=name, policy="anti-affinity") for name in ("a", "b"))
    here.request("first of a", vcpus=1, group=one, instance_ids=("m1",), requested_nodes=("n1",))
    here.request("first of b", vcpus=1, group=other, instance_ids=("m2",), requested_nodes=("n1",))
    settle(here.scheduler())

    result = move(here, vcpus=1, count=2, instance_ids=("m1", "m2"), action="evacuate", group=one)

    assert result.reason == "refused"
    assert result.message.endswith("name that one, in a request without those that are members of no or of another group")


@pytest.mark.parametrize("engine_name", ["profiles", "reference"])
def test_a_resize_stays_where_the_instance_is_whatever_node_is_named(engine_name: str) -> None:
    here = fleet("n1", "n2", "n3")

    wrong = move(here, "wrong", engine_name=engine_name, action="resize", source_node="n3")
    right = move(here, "right", engine_name=engine_name, action="resize", source_node="n1")

    assert (wrong.reason, [example.reason for example in wrong.decisions[0].rejections if example.rejected]) == (
        "no-valid-node",
        ["a resize stays on n3"],
    )
    assert [placement.node_id for placement in right.placements] == ["n1"]


@pytest.mark.parametrize("engine_name", ["profiles", "reference"])
def test_the_evidence_of_a_refused_move_is_that_no_node_will_do_and_comes_out_the_same_again(engine_name: str) -> None:
    here = fleet("n1", "n2", "n3", vcpus=6)

    result = move(here, engine_name=engine_name, vcpus=7, count=2, instance_ids=(GUEST, "nobody"), source_node="n1")
    other = move(here, "other", engine_name=engine_name, vcpus=5, count=2, instance_ids=(GUEST, "nobody"), source_node="n1")

    assert (result.reason, [decision.chosen for decision in result.decisions]) == ("no-valid-node", [""])
    assert (other.reason, other.message) == ("refused", "instance nobody is neither claimed nor shown on source_node n1")
    first, second = other.decisions
    assert (first.chosen != "", second.chosen, second.nearest_miss, second.engine) == (True, "", None, engine_name)
    assert [(each.filter, each.rejected, each.reason) for each in second.rejections if each.rejected] == [("request", 3, other.message)]
    request = here.requests[-1]
    for index, decision in enumerate(spelled_out(request, other.decisions)):
        assert rerun(here.ledgers_at(decision.cut), request, index, decision, claimed(here), DEFAULT).same
    assert len(said(here, CLAIMS, ClaimRequested)) == 1


@pytest.mark.parametrize("engine_name", ["profiles", "reference"])
def test_a_refused_move_says_nothing_of_moves_like_it(engine_name: str) -> None:
    here = fleet("n1", "n2", "n3")
    options: dict[str, Any] = {"vcpus": 4, "memory_mib": 4096, "action": "migrate", "source_node": "n1"}
    here.request("before", instance_ids=("nobody",), **options)
    here.request("move", instance_ids=(GUEST,), **options)
    here.request("after", instance_ids=("nobody",), **options)

    settle(here.scheduler(engine_name=engine_name))

    assert [here.answer(each).reason for each in ("before", "move", "after")] == ["refused", None, "refused"]
    assert wrongs(here) == []


def test_a_move_whose_place_went_while_it_was_claimed_is_refused_on_the_evidence_of_that() -> None:
    here = fleet("n1", "n2", "n3")

    def go(when: str, messages: Sequence[Message]) -> None:
        if when == "before" and not gone and messages[0].topic == CLAIMS:
            gone.append(True)
            event(here, "n1", "departed")
            first = here.answer("first").named[0].claim_id
            here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="gone", claim_id=first, reason="operator"))

    gone: list[bool] = []
    here.request("move", vcpus=4, memory_mib=4096, action="migrate", source_node="n1", instance_ids=(GUEST,))
    settle(here.scheduler(log=At(here.log, go)))

    (result,) = [each for each in said(here, RESULTS, PlacementFailed) if each.request_id == "move"]
    assert (result.reason, result.message) == ("refused", f"instance {GUEST} is neither claimed nor shown on source_node n1")
    (decision,) = result.decisions
    assert (decision.chosen, [each.filter for each in decision.rejections if each.rejected]) == ("", ["request"])
    assert [claim_id for ledger in here.ledgers() for claim_id in ledger.claims] == []


def test_a_move_that_an_earlier_version_refused_after_it_had_chosen_comes_out_as_it_was_recorded() -> None:
    here = fleet("n1", "n2", "n3")
    request = move_of("nobody")
    ledgers = here.ledgers()
    fold = Fleet(ledgers)
    recorded = engine("reference")(fold, fold.ask(request, 0, owner="s"), DEFAULT, digest(DEFAULT))

    again = rerun(ledgers, request, 0, recorded, {}, DEFAULT)

    assert (recorded.chosen != "", again.same) == (True, True)


def test_whoever_was_moved_away_stays_a_member_of_its_group_until_it_is_confirmed() -> None:
    here = world(claims=2, requests=1)
    for name in ("n1", "n2"):
        here.host(name)
    group = ServerGroup(group_id="apart", policy="anti-affinity")
    here.request("first", instance_ids=(GUEST,), group=group, requested_nodes=("n1",))
    settle(here.scheduler())
    kept = move(here, vcpus=1, memory_mib=1024, group=group).kept[0]
    here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="a", claim_id=here.answer("first").named[0].claim_id, reason="operator"))

    here.request("second", group=group)
    settle(here.scheduler())
    here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="b", claim_id=kept.claim_id, reason="migrated"))
    here.request("third", group=group)
    settle(here.scheduler())

    assert here.answer("second").reason == "no-valid-node"
    assert here.answer("third").named[0].node_id == "n1"


def test_a_resize_stays_where_the_instance_is_and_takes_only_what_it_grows() -> None:
    here = fleet("n1", "n2", vcpus=6)

    result = move(here, action="resize", vcpus=6, source_node="")

    assert [placement.node_id for placement in result.placements] == ["n1"]
    assert (result.kept, used(here)) == ((), {"n1": 6, "n2": 0})
    assert [item.resize for item in said(here, CLAIMS, ClaimRequested)[-1].items] == [True]


def moved_live(engine_name: str) -> World:
    """The guest came to n2, and n1, which holds its first claim, does not list it any more. Nobody said that it departed."""
    here = fleet("n1", "n2", "n3")
    move(here, engine_name=engine_name, live=True, requested_nodes=("n2",))
    event(here, "n2", "arrived", vcpus=4, memory_mib=4096)
    for counter in (1, 2):
        here.clock.now_ms += 10_000
        here.say(CLAIMS, empty_audit("n1", counter, here.clock.now_ms))
    return here


def empty_audit(node_id: str, counter: int, taken_at_ms: int) -> NodeObserved:
    has = Hypervisor(vcpus=16, memory_mib=65_536, disk_mib=1_048_576)
    return NodeObserved(
        node_id=node_id,
        producer="audits",
        epoch=1,
        counter=counter,
        taken_at_ms=taken_at_ms,
        mono_ms=counter * 10_000,
        hypervisor=has,
        instances=(),
    )


@pytest.mark.parametrize("engine_name", ["profiles", "reference"])
def test_a_resize_is_placed_where_the_instance_is_shown_and_not_where_it_left_a_claim(engine_name: str) -> None:
    here = moved_live(engine_name)

    result = move(here, "resize", engine_name=engine_name, action="resize", vcpus=6, source_node="")
    where_it_was = move(here, "there", engine_name=engine_name, action="resize", vcpus=6, source_node="n1")

    assert used(here)["n1"] == 4, "its first claim is still held"
    assert [placement.node_id for placement in result.placements] == ["n2"]
    (source, *_) = result.decisions[0].rejections
    assert (source.filter, source.rejected) == ("source-node", 2)
    assert (source.node_id, source.reason) == ("n1", "the instance to resize has moved away: another node shows it")
    assert where_it_was.reason == "no-valid-node"


@pytest.mark.parametrize("word", ["failed", "silent"])
def test_it_is_where_it_was_shown_last_also_while_audits_of_that_node_fail(word: str) -> None:
    here = moved_live("profiles")
    at: dict[str, Any] = {"node_id": "n2", "producer": "p", "epoch": 1}
    if word == "failed":
        here.say(CLAIMS, NodeObserved(**at, counter=2, taken_at_ms=here.clock.now_ms, mono_ms=20_000, failed="timeout"))
    else:
        here.say(CLAIMS, NodeSilent(**at, record_id="s", counter=1, silent_since_ms=here.clock.now_ms))

    resize = move(here, "resize", action="resize", vcpus=6, source_node="")
    again = move(here, "again", live=True)

    if word == "failed":
        assert [placement.node_id for placement in resize.placements] == ["n2"]
    else:
        assert resize.reason == "no-valid-node"
    assert (again.reason, again.message) == ("refused", f"instance {GUEST} is on n2, and not on source_node n1")


def test_nor_does_a_node_whose_audits_failed_before_it_left_count_for_where_it_is() -> None:
    here = fleet("n1", "n2", "n3")
    lost: dict[str, Any] = {"node_id": "n1", "producer": "p", "epoch": 1, "counter": 2, "taken_at_ms": here.clock.now_ms}
    here.say(CLAIMS, NodeObserved(**lost, mono_ms=20_000, failed="timeout"))
    move(here, live=True, requested_nodes=("n2",))
    event(here, "n2", "arrived", vcpus=4, memory_mib=4096)
    event(here, "n2", "started", vcpus=4, memory_mib=4096)

    resize = move(here, "resize", action="resize", vcpus=6, source_node="")
    again = move(here, "again", live=True)

    assert [placement.node_id for placement in resize.placements] == ["n2"]
    assert again.message == f"instance {GUEST} is on n2, and not on source_node n1"


@pytest.mark.parametrize("action", ["migrate", "evacuate"])
def test_who_has_moved_already_does_not_leave_its_former_node_once_more(action: str) -> None:
    here = moved_live("reference")

    result = move(here, "again", action=action, live=action == "migrate")

    assert (result.reason, result.message) == ("refused", f"instance {GUEST} is on n2, and not on source_node n1")


@pytest.mark.parametrize("options", [{"action": "evacuate"}, {"live": True}, {}, {"action": "resize", "source_node": ""}])
def test_what_a_dead_node_showed_last_does_not_hinder_a_move_from_where_the_guest_was_evacuated_to(options: dict[str, Any]) -> None:
    """The guest is lost on n2 as well, which no longer lists it; n1 will never say again what is on it."""
    here = fleet("n1", "n2", "n3")
    here.say(CLAIMS, NodeSilent(node_id="n1", record_id="s", producer="p", epoch=1, counter=1, silent_since_ms=here.clock.now_ms))
    move(here, action="evacuate", requested_nodes=("n2",))
    event(here, "n2", "arrived", vcpus=4, memory_mib=4096)
    here.clock.now_ms += 10_000
    here.say(CLAIMS, empty_audit("n2", 1, here.clock.now_ms))

    result = move(here, "on", **({"source_node": "n2"} | options))

    where = "n2" if options.get("action") == "resize" else "n3"
    assert [placement.node_id for placement in result.placements] == [where]


def test_a_node_that_waits_for_a_guest_may_be_left_before_it_says_that_it_came() -> None:
    here = fleet("n1", "n2", "n3")
    move(here, live=True, requested_nodes=("n2",))

    result = move(here, "on", live=True, source_node="n2", requested_nodes=("n3",))

    assert [placement.node_id for placement in result.placements] == ["n3"]


def test_a_second_resize_waits_for_nobody_and_is_refused_while_the_first_is_not_confirmed() -> None:
    here = fleet()
    move(here, "larger", action="resize", vcpus=6)

    result = move(here, "smaller", action="resize", vcpus=2)

    assert result.reason == "no-valid-node"
    assert "resize: another request's claim of this instance is not confirmed yet" in result.decisions[0].rejections[-1].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "migrate", "source_node": "n1"}, "action migrate needs instance_ids"),
        ({"action": "resize"}, "action resize needs instance_ids"),
        ({"action": "migrate", "instance_ids": (GUEST,)}, "action migrate needs source_node"),
        ({"action": "evacuate", "instance_ids": (GUEST,)}, "action evacuate needs source_node"),
        ({"action": "create", "source_node": "n1"}, "source_node goes with actions that move instances, this is create"),
        ({"action": "evacuate", "instance_ids": (GUEST,), "source_node": "n1", "live": True}, "live goes with action migrate only"),
        ({"traits_required": ("A", "X"), "traits_forbidden": ("X", "B")}, "trait X is required and forbidden; leave one out"),
    ],
)
def test_what_cannot_be_meant_is_invalid_and_says_why(options: dict[str, Any], message: str) -> None:
    here = world(requests=1)
    here.host("n1")
    here.request("r", **options)

    settle(here.scheduler())

    (result,) = said(here, RESULTS, PlacementFailed)
    assert result.reason == "invalid"
    assert result.message.startswith(message)


def test_who_is_forced_is_not_asked_for_traits_and_may_contradict_itself_there() -> None:
    here = world(requests=1)
    here.host("n1")
    here.request("r", forced_nodes=("n1",), traits_required=("X",), traits_forbidden=("X",))

    settle(here.scheduler())

    assert [placement.node_id for result in said(here, RESULTS, InstancesPlaced) for placement in result.placements] == ["n1"]


def test_a_root_disk_on_a_volume_takes_none_of_the_node() -> None:
    here = world(requests=1)
    here.host("n1", disk_mib=30 * 1024)
    flavor = Flavor(vcpus=1, memory_mib=1024, root_gib=100, ephemeral_gib=20, swap_mib=512)
    for name, volume in (("local", False), ("volume", True)):
        here.say(REQUESTS, PlacementRequested(request_id=name, flavor=flavor, boot_from_volume=volume, ttl_ms=600_000))

    settle(here.scheduler())

    (placed,) = said(here, RESULTS, InstancesPlaced)
    assert (here.answer("local").reason, placed.request_id) == ("no-valid-node", "volume")
    assert placed.placements[0].resources.disk_mib == 20 * 1024 + 512
