"""Homes of affinity groups, one history each (rule 10)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, GroupHomeClosed, GroupHomeProposed, GroupMember, NodeConfigured
from schemas.codec import decode, encode
from schemas.inventory import NumaCell, OperatorFields, PciDevice, ResourceRule
from schemas.partitioner import partition_of
from schemas.requests import NumaWant, PciWant, ServerGroup
from schemas.resources import Limits, Resources
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, RESULTS
from streams.log.base import Message
from streams.placement.placer import ATTEMPTS_MAX
from streams.scheduler import Scheduler
from streams.scheduling.explain import spelled_out
from streams.scheduling.policy import DEFAULT, PACK
from tests.scheduling_world import At, World, groups_wrong, hosts, rerun, said, settle, world, wrongs

TOGETHER = ServerGroup(group_id="g", policy="affinity")
ENGINES = pytest.mark.parametrize("engine_name", ["reference", "profiles"])


def places(here: World) -> dict[str, set[str]]:
    """The nodes of each placed request."""
    return {result.request_id: {each.node_id for each in result.placements} for result in said(here, RESULTS, InstancesPlaced)}


def failures(here: World) -> dict[str, str]:
    return {result.request_id: result.message for result in said(here, RESULTS, PlacementFailed)}


def home(here: World, group_id: str = "g") -> tuple[int, str]:
    return next((home.epoch, home.node_id) for ledger in here.ledgers() if (home := ledger.homes(group_id)) is not None)


@ENGINES
def test_the_first_member_waits_for_its_home_and_names_its_epoch(engine_name: str) -> None:
    here = hosts("n1", "n2", "n3", claims=3)
    here.request("r", group=TOGETHER)

    settle(here.scheduler(engine_name=engine_name))

    (proposed,) = said(here, CLAIMS, GroupHomeProposed)
    (claimed,) = said(here, CLAIMS, ClaimRequested)
    assert places(here) == {"r": {proposed.node_id}}
    assert [(item.nodes, item.group.epoch) for item in claimed.items] == [((proposed.node_id,), 1)]
    assert groups_wrong(here) == wrongs(here) == []


@ENGINES
def test_how_a_home_was_chosen_is_evidence_of_who_proposed_it_and_comes_out_again(engine_name: str) -> None:
    here = hosts("n1", "n2", "n3", claims=3)
    scheduler = here.scheduler(engine_name=engine_name)
    request = here.request("r", group=TOGETHER, count=2)
    settle(scheduler)
    here.request("later", group=TOGETHER)
    settle(scheduler)

    first, later = said(here, RESULTS, InstancesPlaced)
    choice, *members = spelled_out(request, first.decisions)
    again = rerun(here.ledgers_at(choice.cut), request, 0, choice, {}, DEFAULT)

    assert (choice.attempt, choice.chosen, choice.passed) == (0, home(here)[1], 3), "all three would have done"
    assert again.same, again.differences
    assert [(each.attempt, each.instance_id, each.passed) for each in members] == [(1, request.instance(n), 1) for n in range(2)]
    assert [each.attempt for each in later.decisions] == [1]


@ENGINES
def test_later_members_go_home_though_the_policy_spreads(engine_name: str) -> None:
    here = hosts(*[f"n{number}" for number in range(6)], claims=3)
    scheduler = here.scheduler(engine_name=engine_name)
    for number in range(5):
        here.request(f"r{number}", group=TOGETHER)
    here.request("r5", group=TOGETHER, count=2)

    settle(scheduler)

    assert len(set.union(*places(here).values())) == 1
    assert len(places(here)) == 6
    assert len(said(here, CLAIMS, GroupHomeProposed)) == 1


@ENGINES
def test_several_members_at_once_get_a_home_that_takes_them_all(engine_name: str) -> None:
    here = hosts("n1", "n2", "n3", vcpus=2, memory_mib=100_000, claims=3)
    here.host("roomy", vcpus=6, memory_mib=8192)
    here.request("r", group=TOGETHER, count=5)
    here.request("too many", group=structs.replace(TOGETHER, group_id="h"), count=7)

    settle(here.scheduler(engine_name=engine_name))

    assert places(here) == {"r": {"roomy"}}
    assert "(affinity: one node has to take all 7)" in failures(here)["too many"]
    assert len(said(here, CLAIMS, GroupHomeProposed)) == 1


@ENGINES
def test_an_evacuation_that_the_groups_home_forbids_says_what_lets_it_go(engine_name: str) -> None:
    here = hosts("n1", "n2", vcpus=2, memory_mib=8192)
    here.request("r", group=TOGETHER, instance_ids=("m1",), requested_nodes=("n1",))
    settle(here.scheduler(engine_name=engine_name))

    here.request("out", group=TOGETHER, instance_ids=("m1",), action="evacuate", source_node="n1")
    settle(here.scheduler(engine_name=engine_name))

    assert places(here) == {"r": {"n1"}}
    assert f"`claimlog node close-home n1 --group {TOGETHER.group_id}` lets the group live elsewhere" in failures(here)["out"]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (ResourceRule(ratio_milli=2000), {"memory_mib": 8000}),
        (ResourceRule(max_unit=4096), {"memory_mib": 4096}),
        (ResourceRule(), {"limits": Limits(io_ops_max=3)}),
        (ResourceRule(), {"numa": (NumaWant(cpus=(0,), memory_mib=64, cpu_policy="dedicated"),)}),
        (ResourceRule(), {"numa": (NumaWant(cpus=(0,), memory_mib=64),), "pci": (PciWant(specs=({},), numa_policy="required"),)}),
    ],
    ids=["more than the total", "max_unit", "I/O operations", "dedicated CPUs", "devices near each"],
)
def test_members_at_once_have_a_home_where_one_after_the_other_fits(dry_run: bool, rule: ResourceRule, options: dict[str, Any]) -> None:
    here = world(claims=1, requests=1)
    cells = tuple(NumaCell(cell_id=n, cpus=(2 * n, 2 * n + 1), dedicated_cpus=(2 * n + 1,), memory_mib=4096) for n in range(3))
    nics = tuple(PciDevice(address=f"0000:0{n}:00.0", numa_cell=n) for n in range(3))
    here.host("poor", memory_mib=10_000, io_workload=1, numa_cells=cells[:1], pci_devices=nics[:1])
    here.host("roomy", memory_mib=12_288, numa_cells=cells, pci_devices=nics)
    here.say(CLAIMS, NodeConfigured(node_id="roomy", record_id="set", fields=OperatorFields(memory_mib=rule)))
    here.request("r", group=TOGETHER, count=3, dry_run=dry_run, **options)

    settle(here.scheduler(policy=PACK))

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert [decision.chosen for decision in result.decisions if decision.attempt] == ["roomy"] * 3


def test_why_no_node_takes_all_members_can_be_asked_again_later() -> None:
    here = hosts("n1", "n2", vcpus=2, claims=3)
    request = here.request("r", group=TOGETHER, count=3)
    settle(here.scheduler())
    (failed,) = said(here, RESULTS, PlacementFailed)

    (decision,) = failed.decisions
    again = rerun(here.ledgers(), request, 0, decision, {}, DEFAULT)

    assert again.same, again.differences
    assert [str(lack) for lack in decision.nearest_miss.shortfalls] == ["vcpus: 3 needed of 2"]


@ENGINES
def test_a_home_with_members_that_is_full_is_an_answer_and_stays_the_home(engine_name: str) -> None:
    here = hosts("n1", "n2", vcpus=2, claims=3)
    here.request("r1", vcpus=2, group=TOGETHER)
    here.request("r2", vcpus=1, group=TOGETHER)

    settle(here.scheduler(engine_name=engine_name))

    assert list(places(here)) == ["r1"]
    assert "rejected by ServerGroupAffinityFilter 1, CoreFilter 1" in failures(here)["r2"]
    assert home(here)[0] == 1
    assert said(here, CLAIMS, GroupHomeClosed) == []


@ENGINES
def test_a_home_without_members_that_cannot_take_them_moves(engine_name: str) -> None:
    here = hosts("n1", "n2", claims=3)
    scheduler = here.scheduler(engine_name=engine_name)
    here.request("r1", group=TOGETHER)
    settle(scheduler)
    ((_, first),) = [home(here)]
    here.cancel("r1")
    settle(scheduler)
    here.set_status(first, "withdrawn")
    for name in ("r2", "r3"):
        here.request(name, group=TOGETHER)

    settle(scheduler)

    other = {"n1": "n2", "n2": "n1"}[first]
    assert home(here) == (2, other)
    assert (places(here)["r2"], places(here)["r3"]) == ({other}, {other})
    assert [closed.node_id for closed in said(here, CLAIMS, GroupHomeClosed)] == [first]
    assert groups_wrong(here) == []


def test_a_home_that_died_with_members_is_left_when_the_operator_closes_it() -> None:
    here = hosts("n1", "n2", claims=3)
    scheduler = here.scheduler()
    here.request("r1", group=TOGETHER)
    settle(scheduler)
    _, dead = home(here)
    here.set_status(dead, "disabled")
    here.request("r2", group=TOGETHER)
    settle(scheduler)

    here.say(CLAIMS, GroupHomeClosed(node_id=dead, record_id="operator", group_id="g", epoch=1, unconditional=True))
    here.request("r3", group=TOGETHER)
    settle(scheduler)

    assert "r2" in failures(here)
    assert home(here) == (2, {"n1": "n2", "n2": "n1"}[dead])
    assert places(here)["r3"] == {home(here)[1]}


def test_where_nothing_fits_the_empty_home_moves_once_at_most_and_the_request_fails() -> None:
    here = hosts("n1", "n2", vcpus=2, claims=3)
    scheduler = here.scheduler()
    here.request("r1", group=TOGETHER)
    settle(scheduler)
    here.cancel("r1")
    settle(scheduler)
    here.request("r2", vcpus=3, group=TOGETHER)

    settle(scheduler)

    assert list(failures(here)) == ["r2"]
    assert len(said(here, CLAIMS, GroupHomeClosed)) == 1


def test_two_schedulers_that_propose_at_the_same_moment_meet_in_one_home() -> None:
    here = hosts(*[f"n{number}" for number in range(8)], claims=3)
    met: list[bool] = []

    def meet(when: str, messages: Sequence[Message]) -> None:
        proposals = [message for message in messages if isinstance(decode(message.topic, message.value), GroupHomeProposed)]
        if when == "before" and proposals and not met:
            met.append(True)
            other.turn()

    one = here.scheduler("one", log=At(here.log, meet, owns_all=True))
    other = here.scheduler("other", log=At(here.log, lambda *_: None, owns_all=True))
    for number in range(4):
        here.request(f"r{number}", group=TOGETHER)

    settle(one, other)

    assert len(said(here, CLAIMS, GroupHomeProposed)) == 2
    assert len(set.union(*places(here).values())) == 1
    assert groups_wrong(here) == wrongs(here) == []


@pytest.mark.parametrize("first", ["who moves in", "who leaves"])
def test_one_moves_into_a_home_at_the_moment_when_another_leaves_it(first: str) -> None:
    """The home is empty and half full of others: a small newcomer fits there, a large one has it closed."""
    here = world(claims=3, requests=2)
    here.host("n1")
    here.host("n2")
    crew: dict[str, Scheduler] = {}
    at_once: list[str] = []

    def meet(name: str, when: str, messages: Sequence[Message]) -> None:
        said_now = [decode(message.topic, message.value) for message in messages]
        races = any(isinstance(event, GroupHomeClosed if name == "large" else ClaimRequested) for event in said_now)
        goes_first = (name == "small") == (first == "who leaves")  # The one that is held back lets the other come to rest before it.
        if at_once and when == "before" and races and goes_first:
            at_once.clear()
            settle(crew["large" if name == "small" else "small"])

    for name in ("small", "large"):
        crew[name] = here.scheduler(name, log=At(here.log, partial(meet, name)))
    settle(*crew.values())
    while not all(len(scheduler.partitions) == 1 for scheduler in crew.values()):
        here.clock.now_ms += 1000
        settle(*crew.values())
    names = {name: _of_partition(name, *scheduler.partitions) for name, scheduler in crew.items()}
    here.request("before", group=TOGETHER)
    settle(*crew.values())
    _, there = home(here)
    here.cancel("before")
    settle(*crew.values())
    here.request("filler", vcpus=4, requested_nodes=(there,))
    settle(*crew.values())

    here.request(names["small"], vcpus=1, group=TOGETHER)
    here.request(names["large"], vcpus=6, group=TOGETHER)
    at_once.append("now")
    held_back = "large" if first == "who moves in" else "small"
    settle(crew[held_back])
    settle(*crew.values())

    assert at_once == [], "they met"
    assert groups_wrong(here) == wrongs(here) == []
    assert home(here)[0] == (1 if first == "who moves in" else 2)
    assert (names["large"] in places(here)) == (first == "who leaves")


def _of_partition(name: str, partition: int) -> str:
    """A request's id that belongs to this one of two partitions."""
    return next(each for number in range(50) if partition_of((each := f"{name}-{number}").encode(), 2) == partition)


def test_a_claim_under_an_epoch_that_was_closed_meanwhile_is_refused_and_goes_to_the_next_home() -> None:
    here = hosts("n1", "n2", "n3", claims=3)
    closed: list[str] = []

    def close(when: str, messages: Sequence[Message]) -> None:
        claims = [event for message in messages if isinstance(event := decode(message.topic, message.value), ClaimRequested)]
        if when == "before" and claims and not closed:
            closed.append(claims[0].items[0].nodes[0])
            here.say(CLAIMS, GroupHomeClosed(node_id=closed[0], record_id="x", group_id="g", epoch=1))

    scheduler = here.scheduler(log=At(here.log, close))
    here.request("r", group=TOGETHER)

    settle(scheduler)

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert scheduler.placer.counters.conflicts == 1
    assert "epoch 1 of the group's home is closed here" in str(result.decisions[0].refused[0])
    assert home(here) == (2, result.placements[0].node_id)
    assert groups_wrong(here) == wrongs(here) == []


def test_a_group_that_never_keeps_a_home_is_refused_in_the_end() -> None:
    here = hosts("n1", "n2", "n3", claims=3)

    def close(when: str, messages: Sequence[Message]) -> None:
        for message in messages if when == "after" else ():
            event = decode(message.topic, message.value)
            if isinstance(event, GroupHomeProposed):
                end = sum(here.log.ends(CLAIMS).values())
                here.say(CLAIMS, GroupHomeClosed(node_id=event.node_id, record_id=f"x{end}", group_id="g", epoch=event.epoch))

    here.request("r", group=TOGETHER)

    settle(here.scheduler(log=At(here.log, close)))

    assert failures(here) == {"r": f"its group had no home for long enough: {ATTEMPTS_MAX} homes were closed again"}


def test_force_does_not_split_a_group() -> None:
    here = hosts("n1", "n2", "n3", claims=3)
    scheduler = here.scheduler()
    here.request("first", group=TOGETHER, forced_nodes=("n2",))
    settle(scheduler)
    here.request("there", group=TOGETHER, forced_nodes=("n1", "n2"))
    here.request("elsewhere", group=TOGETHER, forced_nodes=("n1", "n3"))

    settle(scheduler)

    assert (places(here)["first"], places(here)["there"]) == ({"n2"}, {"n2"})
    assert "group-home 2" in failures(here)["elsewhere"]


def test_a_policy_that_cannot_keep_a_group_together_says_so() -> None:
    here = hosts("n1", claims=3)
    policy = structs.replace(DEFAULT, filters=("ComputeFilter",))
    here.request("r", group=TOGETHER)
    here.request("soft", group=structs.replace(TOGETHER, policy="soft-affinity"))

    settle(here.scheduler(policy=policy))

    assert failures(here)["r"].startswith("an affinity group needs ServerGroupAffinityFilter")
    assert "soft" in places(here)
    assert said(here, CLAIMS, GroupHomeProposed) == []


def test_a_dry_run_of_a_group_shows_one_node_and_leaves_no_home() -> None:
    here = hosts("n1", "n2", "n3", claims=3)
    here.request("r", group=TOGETHER, count=3, dry_run=True)

    settle(here.scheduler())

    (result,) = said(here, RESULTS, InstancesPlaced)
    assert len({decision.chosen for decision in result.decisions}) == 1
    assert said(here, CLAIMS, GroupHomeProposed, ClaimRequested, ClaimReleased) == []


@ENGINES
@pytest.mark.parametrize("most", [1, 2])
def test_members_that_stay_apart_are_at_most_as_many_on_a_node_as_the_group_says(engine_name: str, most: int) -> None:
    here = hosts("n1", "n2", "n3", claims=3)
    here.request("r", group=ServerGroup(group_id="g", policy="anti-affinity", max_per_node=most), count=3 * most)
    here.request("one more", group=ServerGroup(group_id="g", policy="anti-affinity", max_per_node=most))

    settle(here.scheduler(engine_name=engine_name))

    (result,) = said(here, RESULTS, InstancesPlaced)
    nodes = [placement.node_id for placement in result.placements]
    assert {node: nodes.count(node) for node in nodes} == dict.fromkeys(("n1", "n2", "n3"), most)
    assert "ServerGroupAntiAffinityFilter 3" in failures(here)["one more"]


@pytest.mark.parametrize("policy", ["soft-affinity", "soft-anti-affinity"])
def test_a_soft_policy_refuses_nobody(policy: Any) -> None:
    here = hosts("n1", "n2", vcpus=2, claims=3)
    here.request("r", group=ServerGroup(group_id="g", policy=policy), count=4)

    settle(here.scheduler())

    assert places(here) == {"r": {"n1", "n2"}}
    assert said(here, CLAIMS, GroupHomeProposed) == []


def moves_in(here: World, request_id: str, claim_id: str) -> None:
    """Somebody else's claim of a member, under the epoch of the home at which this request's member was claimed."""
    (event,) = [each for each in said(here, CLAIMS, ClaimRequested) if each.request_id == request_id]
    item = structs.replace(event.items[0], claim_id=claim_id, instance_id="another")
    record = structs.replace(event, request_id="another", owner="x", items=(item,))
    here.log.append([Message(CLAIMS, item.nodes[0].encode(), encode(record))])


def left_empty(here: World, scheduler: Scheduler) -> str:
    """The home of a group whose only member went again, half full of another guest."""
    here.request("before", group=TOGETHER)
    settle(scheduler)
    _, there = home(here)
    here.cancel("before")
    here.request("filler", vcpus=4, requested_nodes=(there,))
    settle(scheduler)
    return there


def test_a_home_that_could_not_be_closed_is_closed_for_a_later_request() -> None:
    """A member moves in before the close lands, and leaves later on."""
    here = hosts("n1", "n2", claims=3)
    moved: list[bool] = []

    def move_in(when: str, messages: Sequence[Message]) -> None:
        closes = any(isinstance(decode(message.topic, message.value), GroupHomeClosed) for message in messages)
        if when == "before" and closes and not moved:
            moved.append(True)
            moves_in(here, "before", "another/0/x-1.1")

    scheduler = here.scheduler(log=At(here.log, move_in))
    there = left_empty(here, scheduler)
    here.request("first", vcpus=6, group=TOGETHER)
    settle(scheduler)
    while_it_has_a_member = home(here)
    here.say(CLAIMS, ClaimReleased(node_id=there, record_id="operator", claim_id="another/0/x-1.1", reason="operator"))
    here.request("second", vcpus=6, group=TOGETHER)

    settle(scheduler)

    elsewhere = {"n1": "n2", "n2": "n1"}[there]
    assert (while_it_has_a_member, home(here)) == ((1, there), (2, elsewhere))
    assert (list(failures(here)), places(here)["second"]) == (["first"], {elsewhere})
    assert groups_wrong(here) == wrongs(here) == []


def test_a_dry_run_that_finds_no_room_at_an_empty_home_does_not_move_it() -> None:
    here = hosts("n1", "n2", claims=3)
    scheduler = here.scheduler()
    there = left_empty(here, scheduler)
    here.request("dry", vcpus=6, group=TOGETHER, dry_run=True)

    settle(scheduler)

    assert home(here) == (1, there)
    assert list(failures(here)) == ["dry"]


def disables(here: World, *, at_most: int) -> Any:
    """A log's meddling: whoever is proposed as a home is disabled before that is read back, so many times."""
    proposed: list[str] = []

    def disable(when: str, messages: Sequence[Message]) -> None:
        for message in messages if when == "before" else ():
            event = decode(message.topic, message.value)
            if isinstance(event, GroupHomeProposed) and len(proposed) < at_most:
                proposed.append(event.node_id)
                here.set_status(event.node_id, "disabled")

    return disable


@ENGINES
def test_a_request_whose_own_home_takes_no_more_moves_it(engine_name: str) -> None:
    here = hosts("n1", "n2", claims=3)
    here.request("r", group=TOGETHER)

    settle(here.scheduler(log=At(here.log, disables(here, at_most=1)), engine_name=engine_name))

    first, second = [proposed.node_id for proposed in said(here, CLAIMS, GroupHomeProposed)]
    assert [closed.node_id for closed in said(here, CLAIMS, GroupHomeClosed)] == [first]
    assert (home(here), places(here)) == ((2, second), {"r": {second}})
    (result,) = said(here, RESULTS, InstancesPlaced)
    assert [(decision.attempt, decision.chosen) for decision in result.decisions] == [(0, second), (1, second)]


def test_where_no_home_is_left_the_failure_tells_of_all_nodes_and_the_group_is_nowhere() -> None:
    here = hosts("n1", "n2", claims=3)
    here.request("r", group=TOGETHER)

    settle(here.scheduler(log=At(here.log, disables(here, at_most=2))))

    (failed,) = said(here, RESULTS, PlacementFailed)
    rejections = [(each.filter, each.rejected) for each in failed.decisions[-1].rejections if each.rejected]
    assert (failed.reason, rejections) == ("no-valid-node", [("ComputeFilter", 2)])
    assert (len(said(here, CLAIMS, GroupHomeProposed)), len(said(here, CLAIMS, GroupHomeClosed))) == (2, 2)


@ENGINES
@pytest.mark.parametrize("policy", [PACK, DEFAULT], ids=["pack", "default"])
@pytest.mark.parametrize("schedulers", [1, 2])
def test_groups_and_others_that_come_at_once_all_find_room_where_there_is_room(engine_name: str, policy: Any, schedulers: int) -> None:
    """Half of the fleet is asked for: ten groups of 4 instances of 2 vCPUs and 40 others, on 20 nodes of 16."""
    here = world(claims=4, requests=2)
    for number in range(20):
        here.host(f"n{number}", vcpus=16, memory_mib=1 << 16)
    for number in range(50):
        group = ServerGroup(group_id=f"g{number}", policy="affinity") if number % 5 == 0 else None
        here.request(f"r{number}", vcpus=2, count=4 if group else 1, group=group)

    settle(*[here.scheduler(f"s{number}", policy=policy, engine_name=engine_name) for number in range(schedulers)])

    assert failures(here) == {}
    assert {len(nodes) for nodes in places(here).values()} == {1}
    assert groups_wrong(here) == wrongs(here) == []


@pytest.mark.parametrize("policy", [PACK, DEFAULT], ids=["pack", "default"])
def test_the_room_of_a_home_is_kept_from_what_came_later_until_its_members_are_claimed(policy: Any) -> None:
    here = hosts("n1", "n2", vcpus=4, claims=3)
    asked = [here.request("group", count=4, vcpus=1, group=TOGETHER), here.request("later", vcpus=1)]

    settle(here.scheduler(policy=policy))

    assert (len(said(here, CLAIMS, GroupHomeProposed)), said(here, CLAIMS, GroupHomeClosed)) == (1, [])
    assert places(here)["group"] | places(here)["later"] == {"n1", "n2"}
    results = {result.request_id: result for result in said(here, RESULTS, InstancesPlaced)}
    items = {item.claim_id: item for claimed in said(here, CLAIMS, ClaimRequested) for item in claimed.items}
    for request in asked:
        for decision in spelled_out(request, results[request.request_id].decisions):
            number = [request.instance(number) for number in range(request.count)].index(decision.instance_id)
            again = rerun(here.ledgers_at(decision.cut), request, number, decision, items, policy)
            assert again.same, again.differences


def test_a_home_that_is_chosen_beside_rooms_that_are_kept_is_no_evidence() -> None:
    """Two groups under a policy that packs: the second is proposed another home than its decision on the log alone would have."""
    here = world(claims=3)
    here.host("n1", vcpus=4)
    here.host("n2", vcpus=40)
    for number in range(2):
        here.request(f"r{number}", count=4, vcpus=1, group=ServerGroup(group_id=f"g{number}", policy="affinity"))

    settle(here.scheduler(policy=PACK))

    assert len({node for nodes in places(here).values() for node in nodes}) == 2
    assert (len(said(here, CLAIMS, GroupHomeProposed)), said(here, CLAIMS, GroupHomeClosed)) == (2, [])
    evident = {result.request_id: [each.attempt for each in result.decisions] for result in said(here, RESULTS, InstancesPlaced)}
    assert sorted(attempts[0] for attempts in evident.values()) == [0, 1]


def test_who_is_cancelled_while_it_waits_beside_a_room_that_is_kept_tells_what_the_log_alone_says() -> None:
    here = hosts("n1", vcpus=4, claims=3)
    asked = [here.request(f"r{n}", count=4, vcpus=1, group=ServerGroup(group_id=f"g{n}", policy="affinity")) for n in range(2)]
    scheduler = here.scheduler(policy=PACK)
    scheduler.turn()
    here.cancel("r1")
    settle(scheduler)

    (failed,) = said(here, RESULTS, PlacementFailed)
    assert (failed.request_id, failed.reason) == ("r1", "cancelled")
    decisions = spelled_out(asked[1], failed.decisions)
    assert [decision.chosen for decision in decisions] == ["n1"]
    assert all(rerun(here.ledgers_at(decision.cut), asked[1], 0, decision, {}, PACK).same for decision in decisions)


def test_a_dry_run_waits_for_nobodys_home() -> None:
    here = hosts("n1", vcpus=4, claims=3)
    here.request("group", count=4, vcpus=1, group=TOGETHER)
    here.request("dry", vcpus=1, dry_run=True)
    scheduler = here.scheduler()

    scheduler.turn()

    assert [result.request_id for result in said(here, RESULTS, InstancesPlaced)] == ["dry"]
    settle(scheduler)
    assert sorted(places(here)) == ["dry", "group"]


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"])
@ENGINES
def test_a_group_has_one_policy(engine_name: str, policy: Any) -> None:
    """Also for an own claim that was not read back yet, and for a member that moves; once nobody is left it may have another."""
    here = hosts("n1", "n2", "n3", claims=3)
    scheduler = here.scheduler(engine_name=engine_name)
    here.request("first", group=ServerGroup(group_id="g", policy=policy))
    settle(scheduler)
    other: Any = "anti-affinity" if policy != "anti-affinity" else "affinity"
    here.request("other", group=ServerGroup(group_id="g", policy=other))
    here.request("same", group=ServerGroup(group_id="g", policy=policy))
    here.request("elsewhere", group=ServerGroup(group_id="h", policy=other))
    settle(scheduler)

    assert sorted(places(here)) == ["elsewhere", "first", "same"]
    (node_id,) = places(here)["first"]
    lowest = min(places(here)["first"] | places(here)["same"])
    said_why = f"server group g has policy {policy}, as its members on {lowest} say, and not {other}; name that or another"
    assert failures(here) == {"other": said_why}

    for number, result in enumerate(said(here, RESULTS, InstancesPlaced)):
        for each in result.placements:
            gone = ClaimReleased(node_id=each.node_id, record_id=f"gone {number}", claim_id=each.claim_id, reason="deleted")
            here.say(CLAIMS, gone)
    if policy == "affinity":
        here.say(CLAIMS, GroupHomeClosed(node_id=node_id, record_id="close", group_id="g", epoch=1))
    settle(scheduler)
    here.request("anew", group=ServerGroup(group_id="g", policy=other))
    settle(scheduler)
    assert "anew" in places(here)


@ENGINES
def test_members_of_a_group_that_came_to_have_two_policies_are_moved_under_their_own(engine_name: str) -> None:
    """Two that come at once, before either is claimed, are both taken."""
    here = hosts("n1", "n2", "n3", "n4", claims=3)
    scheduler = here.scheduler(engine_name=engine_name)
    apart = ServerGroup(group_id="g", policy="anti-affinity")
    here.request("one", group=apart)
    settle(scheduler)
    (node_id,) = places(here)["one"]
    item = ClaimItem(
        claim_id="other/0/x-1.1", instance_id="other", nodes=("n4" if node_id != "n4" else "n3",), resources=Resources(vcpus=1),
        group=GroupMember(group_id="g", policy="affinity", epoch=1),
    )  # fmt: skip
    home = item.nodes[0]
    here.say(CLAIMS, GroupHomeProposed(group_id="g", node_id=home, epoch=1, record_id="home"))
    here.say(CLAIMS, ClaimRequested(request_id="other", owner="x", basis=0, ttl_ms=600_000, items=(item,)))
    settle(scheduler)

    moved = here.requests[0].instance(0)
    here.request("away", group=apart, action="evacuate", source_node=node_id, instance_ids=(moved,))
    settle(scheduler)

    assert "away" in places(here), failures(here)
