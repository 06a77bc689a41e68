"""The index of groups follows the fleet, and keeps nothing of what has gone."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from msgspec import structs

from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, GroupHomeClosed, GroupHomeProposed, GroupMember, NodeObserved
from schemas.inventory import Hypervisor
from schemas.requests import ServerGroup
from schemas.resources import ObservedResources, Resources
from schemas.topics import CLAIMS
from streams.scheduling.fleet import Fleet
from streams.scheduling.gathering import Gathering
from tests.scheduling_world import World, settle, world


def there(here: World) -> Fleet:
    for name in ("n1", "n2"):
        here.host(name)
    return Fleet(here.ledgers())


def test_a_node_with_members_is_in_it_until_the_last_of_them_has_gone() -> None:
    here = world()
    empty, scheduler = there(here), here.scheduler()
    for name in ("r1", "r2"):
        here.request(name, group=ServerGroup(group_id="g", policy="anti-affinity"))
    settle(scheduler)
    full = Fleet(here.ledgers())
    rooms = list(full.rooms())
    index = Gathering()
    index.follow(rooms)

    seen = [deepcopy(index.at)]
    for at, room in enumerate(empty.rooms()):
        rooms[at] = room
        index.changed(at)
        seen.append(deepcopy(index.at))

    assert [room.node_id for room in rooms] == [room.node_id for room in full.rooms()]
    assert seen == [{"g": {0, 1}}, {"g": {1}}, {}]


def test_a_node_that_is_closed_to_a_group_is_in_it_without_any_member() -> None:
    here = world()
    there(here)
    here.say(CLAIMS, GroupHomeProposed(group_id="g", record_id="proposed", epoch=1, node_id="n1"))
    here.say(CLAIMS, GroupHomeClosed(group_id="g", record_id="closed", epoch=1, node_id="n1"))
    fleet = Fleet(here.ledgers())
    index = Gathering()

    index.follow(list(fleet.rooms()))

    assert index.at == {"g": {at for at, room in enumerate(fleet.rooms()) if room.node_id == "n1"}}


def test_a_group_has_the_policy_of_claims_in_flight_too() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    fleet = Fleet(here.ledgers())
    member = GroupMember(group_id="g", policy="soft-affinity", epoch=0)
    laid = ClaimItem(claim_id="r/0/s-1.1", instance_id="i", nodes=("n1",), resources=Resources(vcpus=1), group=member)

    before = fleet.other_policy("g", "affinity")
    fleet.lay(laid, "n1", 0)
    in_flight = [fleet.other_policy("g", policy) for policy in ("affinity", "soft-affinity")]

    assert (before, in_flight) == (None, [("soft-affinity", "n1"), None])


def test_where_members_run_without_a_claim_at_an_open_home_their_group_has_affinity() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    here.request("r", group=ServerGroup(group_id="g", policy="affinity"))
    settle(here.scheduler())
    (placed,) = here.ledgers()[0].claims.values()
    runs = InstanceReport(instance_id=placed.instance_id, resources=ObservedResources(vcpus=1, memory_mib=1024))
    full: Any = {"hypervisor": Hypervisor(vcpus=16, memory_mib=16_384, disk_mib=102_400), "instances": (runs,)}
    look = NodeObserved(node_id="n1", producer="n1", epoch=1, counter=2, taken_at_ms=1, mono_ms=1, **full)
    here.say(CLAIMS, look)
    here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="x", claim_id=placed.claim_id, reason="operator"))
    here.say(CLAIMS, structs.replace(look, counter=3))
    fleet = Fleet(here.ledgers())

    assert not fleet.rooms()[0].node.claims
    assert [fleet.other_policy("g", policy) for policy in ("anti-affinity", "affinity")] == [("affinity", "n1"), None]


def test_an_open_home_where_nobody_is_or_whose_node_is_not_known_gives_its_group_no_policy() -> None:
    here = world(claims=1, requests=1)
    here.host("n1")
    for group_id, node_id in (("empty", "n1"), ("far", "n9")):
        here.say(CLAIMS, GroupHomeProposed(group_id=group_id, record_id=group_id, epoch=1, node_id=node_id))
    fleet = Fleet(here.ledgers())

    assert [fleet.home_of(group_id).node_id for group_id in ("empty", "far")] == ["n1", "n9"]
    assert [fleet.other_policy(group_id, "anti-affinity") for group_id in ("empty", "far")] == [None, None]
