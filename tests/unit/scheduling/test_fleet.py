"""A fleet's rooms are made anew where something changed and nowhere else, and whoever follows is told of each once."""

from __future__ import annotations

from projections.room import Room
from schemas.requests import Flavor, PlacementRequested
from streams.scheduling.fleet import Fleet
from tests.scheduling_world import world


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.anew = 0
        self.ordinals: list[int] = []

    def follow(self, rooms: list[Room]) -> None:
        self.anew += len(rooms)

    def changed(self, ordinal: int) -> None:
        self.ordinals.append(ordinal)


def test_a_follower_is_told_once_of_each_room_that_was_made_anew() -> None:
    here = world()
    for name in ("n1", "n2", "n3"):
        here.host(name)
    fleet, told = Fleet(here.ledgers()), Told()
    fleet.followed("told", told)
    item = fleet.ask(PlacementRequested(request_id="r", flavor=Flavor(vcpus=1)), 0, owner="s").item
    partition = fleet.partition_of_node("n2")

    fleet.lay(item, "n2", partition)
    for _ in range(3):
        fleet.rooms()

    assert (told.anew, told.ordinals) == (3, [1])
    assert fleet.rooms()[1].vcpus_used == 1


def test_an_instance_that_came_since_the_rooms_were_last_read_is_known() -> None:
    here = world()
    here.host("n1")
    fleet = Fleet(here.ledgers())
    item = fleet.ask(PlacementRequested(request_id="r", flavor=Flavor(vcpus=1), instance_ids=("i",)), 0, owner="s").item
    partition = fleet.partition_of_node("n1")

    fleet.lay(item, "n1", partition)

    assert fleet.knows("i")
    assert not fleet.knows("j")
