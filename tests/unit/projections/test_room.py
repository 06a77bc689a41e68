"""Rooms: the quick answer is the exact one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from projections.fit import fits
from projections.node import Claim, Node, Shown, amounts_of, observed_amounts
from projections.room import keep_fitting, mark_of, quick_amounts, quick_fit, room, room_for
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, GroupMember
from schemas.inventory import Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.requests import NumaWant, PciWant
from schemas.resources import Limits, ObservedResources, Resources

INSTANCES = ("i1", "i2", "i3", "i4")
small = st.integers(0, 6)
amounts_only = st.builds(ResourceRule, reserved=st.integers(0, 2), ratio_milli=st.sampled_from([None, 1000, 1500, 333]))
in_units = st.builds(
    ResourceRule, min_unit=st.sampled_from([1, 1, 2]), max_unit=st.sampled_from([None, None, 4]), step_size=st.sampled_from([1, 1, 2])
)
rules = st.sampled_from([True] * 8 + [False]).flatmap(lambda plain: amounts_only if plain else in_units)
resources = st.builds(Resources, vcpus=small, pcpus=st.integers(0, 2), memory_mib=small, disk_mib=small)
NUMA = (NumaWant(cpus=(0,), memory_mib=2), NumaWant(pinned_cpus=(0, 1), memory_mib=1, cpu_policy="dedicated"))
CELL = NumaCell(cell_id=0, cpus=(0, 1, 2), dedicated_cpus=(0, 1), memory_mib=6)
DEVICES = tuple(PciDevice(address=f"d{n}", vendor_id="v") for n in (1, 2))
observed = st.builds(ObservedResources, vcpus=st.none() | small, memory_mib=small)
policies = st.sampled_from(["anti-affinity", "affinity"])
groups = st.none() | st.builds(
    GroupMember, group_id=st.sampled_from(["g", "g", "h"]), policy=policies, max_per_node=st.integers(1, 2), epoch=st.just(1)
)
some = st.none() | st.integers(0, 9)
limits = st.none() | st.builds(Limits, vcpus=some, pcpus=some, memory_mib=some, disk_mib=some, instances_max=some, io_ops_max=some)


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
    totals = st.none() | st.integers(0, 12)
    node = Node("n", vcpus=draw(rules), pcpus=draw(rules), memory_mib=draw(rules), disk_mib=draw(rules))
    node.status = draw(st.sampled_from(["enabled", "enabled", "enabled", "disabled"]))
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
            amounts, group_id = observed_amounts(draw(observed)), draw(st.sampled_from(["", "g"]))
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
