"""The index of groups follows the fleet, and keeps nothing of what has gone."""

from __future__ import annotations

from copy import deepcopy

from schemas.claims import GroupHomeClosed, GroupHomeProposed
from schemas.requests import ServerGroup
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
