"""The full scan: counts that add up, the best of equals spread by the seed, the nearest miss, and evidence that says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from projections.fit import fits
from projections.ledger import Ledger
from schemas.requests import Flavor, PlacementRequested, ServerGroup
from schemas.resources import Limits
from schemas.results import Decision
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, PACK, Policy, digest
from streams.scheduling.select import ENGINES, engine
from tests.scheduling_world import World, world


def fleet_of(here: World) -> Fleet:
    return Fleet(here.ledgers())


def hosts(count: int, **totals: int) -> World:
    here = world()
    for number in range(count):
        here.host(f"n{number:02}", **totals)
    return here


def request(vcpus: int = 1, memory_mib: int = 1024, **options: Any) -> PlacementRequested:
    named: dict[str, Any] = {"request_id": "r", "flavor": Flavor(vcpus=vcpus, memory_mib=memory_mib)} | options
    return PlacementRequested(**named)


def lay(fleet: Fleet, asked: PlacementRequested, node_id: str, claim_id: str) -> None:
    item = structs.replace(fleet.ask(asked, 0, owner="s").item, claim_id=claim_id)
    fleet.lay(item, node_id, fleet.partition_of_node(node_id))


def decide(fleet: Fleet, asked: PlacementRequested, policy: Policy = DEFAULT, *, owner: str = "s", name: str = "reference") -> Decision:
    return engine(name)(fleet, fleet.ask(asked, 0, owner=owner), policy, digest(policy))


def adds_up(decision: Decision) -> bool:
    left = decision.nodes_known
    for each in decision.rejections:
        if each.entered != left or (each.rejected > 0) != bool(each.reason and each.node_id):
            return False
        left -= each.rejected
    return left == decision.passed


def test_every_node_counts_for_the_first_filter_that_rejects_it() -> None:
    here = hosts(4)
    here.host("small", memory_mib=512)
    here.host("slim", vcpus=1)

    decision = decide(fleet_of(here), request(vcpus=2, ignored_nodes=("n00",)))

    rejected = [(each.filter, each.entered, each.rejected, each.node_id, each.reason) for each in decision.rejections if each.rejected]
    assert rejected == [
        ("ignored-nodes", 6, 1, "n00", "the request ignores it"),
        ("CoreFilter", 5, 1, "slim", "vcpus: 2 needed of 1"),
        ("RamFilter", 4, 1, "small", "memory_mib: 1024 needed of 512"),
    ]
    assert (decision.nodes_known, decision.passed, adds_up(decision)) == (6, 3, True)


def test_the_roomiest_node_is_chosen_and_packing_chooses_the_fullest() -> None:
    here = hosts(2, memory_mib=4096)
    here.host("large", memory_mib=65_536)
    here.host("tight", memory_mib=1024)

    spread, pack = decide(fleet_of(here), request()), decide(fleet_of(here), request(), PACK)

    assert (spread.chosen, pack.chosen) == ("large", "tight")
    assert spread.best[0].node_id == "large"
    assert [weight.weigher for weight in spread.best[0].weights] == ["RAMWeigher", "CPUWeigher", "DiskWeigher"]
    assert spread.best[0].score == sum(weight.multiplied for weight in spread.best[0].weights)


def test_alternates_are_the_next_best_of_the_same_partition() -> None:
    here = hosts(12)
    fleet = fleet_of(here)

    decision = decide(fleet, request())

    partitions = {fleet.partition_of_node(node_id) for node_id in (decision.chosen, *decision.alternates)}
    assert len(decision.alternates) == 2
    assert len(partitions) == 1
    assert decision.chosen not in decision.alternates


def test_equal_nodes_are_spread_over_schedulers_and_the_same_one_chooses_the_same_again() -> None:
    fleet = fleet_of(hosts(20))

    chosen = {owner: decide(fleet, request(), owner=owner).chosen for owner in ("a", "b", "c", "d", "e", "f")}

    assert len(set(chosen.values())) > 2
    assert {owner: decide(fleet, request(), owner=owner).chosen for owner in chosen} == chosen


def test_own_claims_in_flight_count_until_they_are_lifted() -> None:
    here = world()
    here.host("only", vcpus=2)
    fleet = fleet_of(here)

    lay(fleet, request(vcpus=2, request_id="other"), "only", "flying")
    laid = decide(fleet, request())
    fleet.lift("flying")
    lifted = decide(fleet, request())

    assert (laid.chosen, laid.overlay, laid.rejections[1].reason) == ("", ("flying@only",), "vcpus: 1 needed of 0")
    assert (lifted.chosen, lifted.overlay) == ("only", ())


@pytest.mark.parametrize("name", ["reference", "profiles"])
def test_the_nearest_miss_lacks_what_the_lower_of_the_node_and_the_request_leaves(name: str) -> None:
    fleet = fleet_of(hosts(1, memory_mib=8192))
    lay(fleet, request(memory_mib=6000, request_id="other"), "n00", "other/0/s-1.1")

    decision = decide(fleet, request(memory_mib=4096, limits=Limits(memory_mib=5000)), name=name)

    assert decision.nearest_miss is not None
    assert [str(lack) for lack in decision.nearest_miss.shortfalls] == ["memory_mib: 4096 needed of -1000"]


@pytest.mark.parametrize("name", ["reference", "profiles"])
def test_an_instance_does_not_stand_against_itself_where_its_own_node_is_the_nearest_miss(name: str) -> None:
    here = hosts(1)
    fleet = fleet_of(here)
    lay(fleet, request(instance_ids=("i",)), "n00", "other/0/s-1.1")

    grown = request(memory_mib=17_000, instance_ids=("i",), action="resize", limits=Limits(instances_max=1))
    decision = decide(fleet, grown, name=name)

    assert decision.nearest_miss is not None
    assert decision.nearest_miss.node_id == "n00"


def test_the_nearest_miss_lacks_the_smallest_part_and_nothing_but_amounts() -> None:
    here = world()
    here.host("far", memory_mib=100)
    here.host("near", memory_mib=900)
    here.host("nearer-but-named", memory_mib=1000)
    here.host("slim", memory_mib=1000, vcpus=1)

    decision = decide(fleet_of(here), request(vcpus=2, ignored_nodes=("nearer-but-named",)))

    assert decision.chosen == ""
    miss = decision.nearest_miss
    assert miss is not None
    assert (miss.node_id, [str(lack) for lack in miss.shortfalls]) == ("near", ["memory_mib: 1024 needed of 900"])


@pytest.mark.parametrize("name", ["reference", "profiles"])
@pytest.mark.parametrize("laid_first", [True, False])
def test_the_nearest_miss_is_a_node_that_more_room_would_help_as_long_as_there_is_one(name: str, laid_first: bool) -> None:
    here = world()
    here.host("full", vcpus=16, memory_mib=65_536)
    here.host("small", vcpus=4, memory_mib=65_536)
    here.host("smaller", vcpus=3, memory_mib=65_536)
    fleet = fleet_of(here)
    if not laid_first:
        decide(fleet, request(vcpus=6), name=name)  # The class follows what changes then.

    lay(fleet, request(vcpus=13, request_id="other"), "full", "other/0/s-1.1")
    missed = decide(fleet, request(vcpus=6), name=name).nearest_miss
    hopeless = decide(fleet, request(vcpus=17), name=name).nearest_miss

    assert missed is not None
    assert (missed.node_id, [str(lack) for lack in missed.shortfalls]) == ("full", ["vcpus: 6 needed of 3"])
    assert hopeless is not None
    assert hopeless.node_id == "small"


def test_a_forced_request_goes_over_the_limits_but_nowhere_else() -> None:
    here = hosts(3, vcpus=1)

    decision = decide(fleet_of(here), request(vcpus=4, forced_nodes=("n01",)))

    assert (decision.chosen, decision.alternates, decision.passed) == ("n01", (), 1)


def test_more_than_a_record_can_claim_is_placed_nowhere_not_even_by_force() -> None:
    decision = decide(fleet_of(hosts(2)), request(flavor=Flavor(root_gib=1 << 41), forced_nodes=("n01",)))

    assert (decision.chosen, decision.rejections[0].filter) == ("", "request")
    assert decision.rejections[0].reason == "disk_mib: expected at most 1125899906842624, got 2251799813685248"


def test_no_fleet_no_node() -> None:
    decision = decide(fleet_of(world()), request())

    assert (decision.chosen, decision.nodes_known, decision.passed, adds_up(decision)) == ("", 0, 0, True)


def test_first_fit_looks_at_few_nodes_and_at_all_before_it_gives_up() -> None:
    here = hosts(40, vcpus=1)
    here.host("large", vcpus=8)

    few, all_but_one = decide(fleet_of(here), request(), name="first-fit"), decide(fleet_of(here), request(vcpus=8), name="first-fit")

    assert (few.nodes_known, few.passed, adds_up(few)) == (16, 16, True)
    assert all_but_one.chosen == "large"
    assert adds_up(all_but_one)
    nowhere = decide(fleet_of(here), request(vcpus=9), name="first-fit")
    assert (nowhere.chosen, nowhere.nodes_known, nowhere.passed) == ("", 41, 0)


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="engine 'fast' is not known; known: auto, reference, profiles, first-fit"):
        engine("fast")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=4),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()),
    st.sampled_from(sorted(ENGINES)),
)
def test_who_is_chosen_fits_and_whoever_fits_passes(
    totals: list[tuple[int, int]], flying: list[tuple[int, int, bool]], asked: tuple[int, int, bool], name: str
) -> None:
    here = world()
    for number, (vcpus, memory_mib) in enumerate(totals):
        here.host(f"n{number}", vcpus=vcpus, memory_mib=memory_mib)
    fleet = fleet_of(here)
    group = ServerGroup(group_id="g", policy="anti-affinity")
    for number, (vcpus, memory_mib, grouped) in enumerate(flying):
        other = request(vcpus, memory_mib, request_id=f"o{number}", group=group if grouped else None)
        decision = decide(fleet, other, name=name)
        if decision.chosen:
            lay(fleet, other, decision.chosen, f"c{number}")
    wanted = request(asked[0], asked[1], group=group if asked[2] else None)

    decision = decide(fleet, wanted, name=name)

    item = fleet.ask(wanted, 0, owner="s").item
    fitting = {room.node_id for room in fleet.rooms() if not fits(room.node, item, "r", room.overlay)}
    assert decision.passed == len(fitting)
    assert {decision.chosen, *decision.alternates} - {""} <= fitting
    assert bool(decision.chosen) == bool(fitting)
    assert adds_up(decision)


def test_a_fleet_follows_its_ledgers() -> None:
    here = hosts(1)
    ledgers = here.ledgers()
    fleet = Fleet(ledgers)
    assert [room.node_id for room in fleet.rooms()] == ["n00"]

    here.host("n01")
    _fold_on(here, ledgers, fleet)

    assert [room.node_id for room in fleet.rooms()] == ["n00", "n01"]
    assert fleet.cut == tuple(ledger.next_offset for ledger in ledgers)


def _fold_on(here: World, ledgers: list[Ledger], fleet: Fleet) -> None:
    for ledger in ledgers:
        for record in here.log.read("claims", ledger.partition, ledger.next_offset):
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            assert step is not None
            fleet.touch(ledger.partition, step.node_ids)
