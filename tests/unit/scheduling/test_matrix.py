"""What stands against a node: each reason once, also those that the ledger alone has."""

from __future__ import annotations

import pytest

from schemas.resources import Shortfall
from streams.scheduling.filters import LAST
from streams.scheduling.matrix import Line, Matrix, Rejected

MEMORY = Shortfall(resource="memory_mib", needed=4096, free=2048)
DISK = Shortfall(resource="disk_mib", needed=10, free=5)
RESIZE = Shortfall(resource="resize", detail="another request's claim of this instance is not confirmed yet")


def rejected(name: str, *lacks: Shortfall) -> Rejected:
    return Rejected(name, "; ".join(map(str, lacks)), lacks)


def test_the_ledgers_own_test_counts_for_what_no_filter_says_and_only_for_that() -> None:
    trait, room = Rejected("TraitsFilter", "lacks CUSTOM_GOLD"), rejected("RamFilter", MEMORY)

    assert Line("c1", (trait, room, rejected(LAST.name, RESIZE, MEMORY))).against == (trait, room, rejected(LAST.name, RESIZE))
    assert Line("c1", (trait, room, rejected(LAST.name, MEMORY))).against == (trait, room)
    assert Line("c1", (trait, rejected(LAST.name, Shortfall(resource="pci", needed=1)))).against == (trait,), "PciPassthroughFilter's"
    assert Line("c1", (rejected(LAST.name, MEMORY, DISK),)).against == (rejected(LAST.name, MEMORY, DISK),)
    assert Line("c1", (room, rejected(LAST.name, MEMORY, DISK))).against == (room, rejected(LAST.name, DISK)), "a policy without DiskFilter"


def test_a_node_that_the_ledger_alone_would_still_refuse_is_not_the_closest() -> None:
    """Without the trait, c1 would be refused for the resize that is not confirmed; c2 would be taken."""
    trait = Rejected("TraitsFilter", "lacks CUSTOM_GOLD")
    resizing = Line("c1", (trait, rejected(LAST.name, RESIZE)))
    lines = (resizing, Line("c2", (trait,)))

    closest = Matrix(("TraitsFilter", LAST.name), lines).closest()

    assert closest is not None
    assert closest.node_id == "c2"


def test_no_node_is_close_where_the_request_itself_rules_out_every_one() -> None:
    """Forced to a node that nobody knows: the first by name would be as good as any other."""
    forced, trait = Rejected("forced-nodes", "forced to nowhere"), Rejected("TraitsFilter", "lacks CUSTOM_GOLD")
    names = ("forced-nodes", "TraitsFilter")

    nowhere = Matrix(names, (Line("c1", (forced,)), Line("c2", (forced, trait)))).closest()
    there = Matrix(names, (Line("c1", (forced,)), Line("c2", (trait,)))).closest()

    assert nowhere is None
    assert there is not None
    assert there.node_id == "c2", "of one filter each, the node that came furthest"


def test_nor_where_two_of_its_words_together_leave_none() -> None:
    ignored, elsewhere = Rejected("ignored-nodes", "the request ignores it"), Rejected("forced-nodes", "forced to c1")

    assert Matrix(("ignored-nodes", "forced-nodes"), (Line("c1", (ignored,)), Line("c2", (elsewhere,)))).closest() is None


def test_a_node_that_the_request_rules_out_is_not_the_closest_however_much_stands_against_the_others() -> None:
    """No other node can be resized on: what is to be mended is on the one where the instance is."""
    elsewhere, cpus = (
        Rejected("source-node", "the instance to resize is not there"),
        rejected("CoreFilter", Shortfall(resource="vcpus", needed=2, free=0)),
    )
    source = Line("c2", (cpus, rejected(LAST.name, RESIZE)))

    closest = Matrix(("source-node", "CoreFilter", LAST.name), (Line("c1", (elsewhere,)), source)).closest()

    assert closest == source


def test_of_nodes_that_the_same_filter_rejects_the_one_that_lacks_least_is_the_closest() -> None:
    def line(name: str, free: int) -> Line:
        lack = Shortfall(resource="gpu", needed=4, free=free)
        return Line(name, (Rejected("PciPassthroughFilter", str(lack)), rejected(LAST.name, lack)))

    closest = Matrix(("PciPassthroughFilter", LAST.name), (line("c1", 0), line("c2", 3), line("c3", 1))).closest()

    assert closest is not None
    assert closest.node_id == "c2"


def test_a_node_in_another_zone_or_away_from_the_group_is_not_the_closest_as_long_as_another_is_only_disabled() -> None:
    names = ("ComputeFilter", "AvailabilityZoneFilter", "ServerGroupAffinityFilter", "RamFilter", LAST.name)
    off, zone, group = Rejected(names[0], "disabled (fan)"), Rejected(names[1], "it is in west"), Rejected(names[2], "group g is on c3")
    full = Line("c3", (off, rejected("RamFilter", MEMORY), rejected(LAST.name, MEMORY)))

    closest = Matrix(names, (Line("c1", (zone,)), Line("c2", (group,)), full)).closest()
    nowhere_else = Matrix(names, (Line("c1", (zone, group)), Line("c2", (group,)))).closest()

    assert closest == full
    assert nowhere_else is not None
    assert nowhere_else.node_id == "c2"


@pytest.mark.parametrize("name", ["SameHostFilter", "DifferentHostFilter"])
def test_nor_one_away_from_the_instances_that_it_is_to_be_with_or_beside_those_that_it_is_not_to_be_with(name: str) -> None:
    full = Line("c2", (Rejected("ComputeFilter", "disabled (fan)"), rejected("RamFilter", MEMORY)))

    closest = Matrix(("ComputeFilter", "RamFilter", name), (Line("c1", (Rejected(name, "i1 is elsewhere"),)), full)).closest()

    assert closest == full
