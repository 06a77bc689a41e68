"""Rooms: the quick answer is the exact one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from projections.fit import fits
from projections.node import Claim, Node, Shown, amounts_of, observed_amounts
from projections.room import keep_fitting, mark_of, quick_amounts, quick_fit, room, room_for, rooms_with
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, GroupMember
from schemas.inventory import Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.requests import NumaWant, PciWant
from schemas.resources import RESOURCES, Limits, ObservedResources, Resources

INSTANCES = ("i1", "i2", "i3", "i4")
small = st.integers(0, 6)
few = st.sampled_from([0, 0, 0, 1, 2, 4, 6])
"""Of most resources nothing: what lacks one thing only says whether that is looked at."""
amounts_only = st.builds(ResourceRule, reserved=st.integers(0, 2), ratio_milli=st.sampled_from([None, 1000, 1500, 333]))
in_units = st.builds(
    ResourceRule, min_unit=st.sampled_from([1, 1, 2]), max_unit=st.sampled_from([None, None, 4]), step_size=st.sampled_from([1, 1, 2])
)
rules = st.sampled_from([True] * 8 + [False]).flatmap(lambda plain: amounts_only if plain else in_units)
resources = st.builds(Resources, vcpus=few, pcpus=few, memory_mib=few, disk_mib=few)
NUMA = (NumaWant(cpus=(0,), memory_mib=2), NumaWant(pinned_cpus=(0, 1), memory_mib=1, cpu_policy="dedicated"))
CELL = NumaCell(cell_id=0, cpus=(0, 1, 2), dedicated_cpus=(0, 1), memory_mib=6)
DEVICES = tuple(PciDevice(address=f"d{n}", vendor_id="v") for n in (1, 2))
observed = st.builds(ObservedResources, vcpus=st.none() | small, memory_mib=small)
policies = st.sampled_from(["anti-affinity", "affinity"])
groups = st.none() | st.builds(
    GroupMember, group_id=st.sampled_from(["g", "g", "h"]), policy=policies, max_per_node=st.integers(1, 2), epoch=st.just(1)
)
LIMITED = ("vcpus", "pcpus", "memory_mib", "disk_mib", "instances_max", "io_ops_max")
limits = st.none() | st.dictionaries(st.sampled_from(LIMITED), st.integers(0, 9), max_size=2).map(lambda most: Limits(**most))


@st.composite
def items(draw: st.DrawFn, number: int = 0) -> ClaimItem:
    return ClaimItem(
        claim_id=f"c{number}",
        instance_id=draw(st.sampled_from(INSTANCES if number else ("i1", "i1", *INSTANCES))),
        nodes=("n",),
        resources=draw(resources),
        resize=draw(st.booleans()),
        forced=draw(st.sampled_from([False, False, True])),
        limits=draw(limits),
        group=draw(groups),
        numa=draw(st.sampled_from([(), (), (), NUMA[:1], NUMA[1:]])),
        pci=draw(st.sampled_from([(), (), (), (PciWant(specs=({"vendor_id": "v"},)),)])),
    )


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    totals = st.sampled_from([None, 1, 3, 6, 9, 12, 40, 40, 40, 40])
    node = Node("n", vcpus=draw(rules), pcpus=draw(rules), memory_mib=draw(rules), disk_mib=draw(rules))
    node.status = draw(st.sampled_from(["enabled"] * 9 + ["disabled"]))
    if draw(st.integers(0, 9)):
        vcpus, pcpus, memory_mib, disk_mib = draw(st.tuples(totals, totals, totals, totals))
        busy = draw(st.integers(0, 2))
        node.hypervisor = Hypervisor(
            vcpus=vcpus,
            pcpus=pcpus,
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            io_workload=busy,
            numa_cells=draw(st.sampled_from([(), (CELL,)])),
            pci_devices=draw(st.sampled_from([(), DEVICES[:1], DEVICES])),
        )
        node.refresh()
    for instance_id in draw(st.lists(st.sampled_from(INSTANCES[1:]), unique=True)):
        if draw(st.booleans()):
            amounts, group_id = observed_amounts(draw(observed)), draw(st.sampled_from(["", "g", "h"]))
            node.shown[instance_id] = Shown(InstanceReport(instance_id=instance_id), amounts, 1, group_id=group_id)
        else:
            claimed, group = amounts_of(draw(resources)), draw(groups)
            claim = Claim("held", draw(st.sampled_from(["r", "q"])), instance_id, "n", "o", 1, claimed, 1, 2, 1, group=group)
            node.claims[instance_id] = [claim]
            node.io_claims += 1
        node.recount(instance_id)
    return node


@settings(max_examples=300)
@given(nodes(), items(), st.lists(items(1), max_size=3))
def test_a_room_says_of_every_claim_what_fits_says(node: Node, item: ClaimItem, overlay: list[ClaimItem]) -> None:
    base = room(node, 0, mark_of("n"), overlay)
    there = item.forced or item.instance_id in base.instances

    asked = room_for(base, item, "r") if there else base

    shortfalls = fits(node, item, "r", overlay)
    assert quick_fit(item)(asked) == (shortfalls == ())
    assert keep_fitting(item)([asked]) == ([asked] if shortfalls == () else [])
    if node.hypervisor is not None:
        lacking = [s for s in shortfalls if s.resource in ("vcpus", "pcpus", "memory_mib", "disk_mib")]
        assert quick_amounts(item)(asked) == (lacking == [])


def newcomers() -> list[ClaimItem]:
    """Claims of which each asks for, or is limited by, one thing."""
    sizes = [Resources(**{resource: amount}) for resource in RESOURCES for amount in range(1, 8)]
    bounds = [Limits(**{name: most}) for name in LIMITED for most in range(6)]
    members = [GroupMember(group_id=group, policy="anti-affinity", max_per_node=most) for group in ("g", "h") for most in (1, 2, 3)]
    devices = [PciWant(specs=({"vendor_id": "v"},), count=count) for count in (1, 2)]
    asked = [ClaimItem(claim_id="c", instance_id="i1", nodes=("n",), resources=size) for size in sizes]
    plain = ClaimItem(claim_id="c", instance_id="i1", nodes=("n",), resources=Resources(vcpus=2, pcpus=2, memory_mib=2, disk_mib=2))
    return [
        *asked,
        *[replace(plain, limits=bound) for bound in bounds],
        *[replace(plain, group=member) for member in members],
        *[replace(plain, numa=(want,)) for want in NUMA],
        *[replace(plain, pci=(want,)) for want in devices],
    ]


@pytest.mark.parametrize("overlaid", [0, 1, 2])
@pytest.mark.parametrize("rule", [ResourceRule(), ResourceRule(min_unit=3), ResourceRule(max_unit=4), ResourceRule(step_size=3)])
def test_one_thing_that_stands_against_a_newcomer_is_enough(rule: ResourceRule, overlaid: int) -> None:
    node = Node("n", vcpus=rule, memory_mib=rule)
    node.hypervisor = Hypervisor(vcpus=6, pcpus=6, memory_mib=6, disk_mib=6, numa_cells=(CELL,), pci_devices=DEVICES)
    node.refresh()
    node.shown["i2"] = Shown(InstanceReport(instance_id="i2", pci_addresses=("d1",)), (1, 1, 1, 1), 1, group_id="g")
    node.recount("i2")
    group = GroupMember(group_id="h", policy="anti-affinity", max_per_node=9)
    flying = [ClaimItem(claim_id=f"o{n}", instance_id=f"o{n}", nodes=("n",), resources=Resources(), group=group) for n in range(overlaid)]
    base = room(node, 0, mark_of("n"), flying)

    taken = {number for number, item in enumerate(newcomers()) if keep_fitting(item)([base])}

    assert taken == {number for number, item in enumerate(newcomers()) if not fits(node, item, "r", flying)}
    assert taken == {number for number, item in enumerate(newcomers()) if quick_fit(item)(base)}


def test_rooms_with_a_claim_of_an_instance_that_is_there_already_are_the_rooms_made_anew() -> None:
    node = Node("n", hypervisor=Hypervisor(vcpus=6, pcpus=6, memory_mib=6, disk_mib=6))
    node.shown["i2"] = Shown(InstanceReport(instance_id="i2"), (1, 1, 3, 1), 1)
    node.recount("i2")
    base = room(node, 0, mark_of("n"))
    there, new = (ClaimItem(claim_id=i, instance_id=i, nodes=("n",), resources=Resources(memory_mib=4)) for i in ("i2", "i1"))

    overlaid = [rooms_with([base], [other])[0] for other in (there, new)]

    assert overlaid == [room(node, 0, mark_of("n"), (other,)) for other in (there, new)]
    assert [each.memory_mib_free for each in overlaid] == [2, -1]
