"""How many more fit: in closed form where amounts and limits say it, by trial where cells and devices do."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from schemas.audits import InstanceReport
from schemas.ids import instance_id
from schemas.inventory import Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.requests import Flavor, NumaWant, PciWant, PlacementRequested, ServerGroup
from schemas.resources import Limits, ObservedResources
from streams.scheduling.capacity import TRIALS_MAX, NodeCapacity, capacity
from streams.scheduling.fleet import Fleet
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, Policy
from tests.ledger_history import History

CELLS = tuple(
    NumaCell(cell_id=n, cpus=tuple(range(8 * n, 8 * n + 8)), dedicated_cpus=tuple(range(8 * n, 8 * n + 4)), memory_mib=4096) for n in (0, 1)
)
DEVICES = tuple(PciDevice(address=f"gpu{n}", vendor_id="10de", numa_cell=n) for n in range(2))
HOST = Hypervisor(vcpus=8, pcpus=8, memory_mib=8192, disk_mib=102_400, numa_cells=CELLS, pci_devices=DEVICES)


def fleet(hypervisor: Hypervisor = HOST, **listed: InstanceReport) -> Fleet:
    history = History()
    history.audit(listed, at_s=0, hypervisor=hypervisor)
    return Fleet([history.ledger])


def guest(name: str, memory_mib: int) -> InstanceReport:
    return InstanceReport(instance_id=name, resources=ObservedResources(vcpus=1, memory_mib=memory_mib))


def wanted(vcpus: int = 1, memory_mib: int = 1024, **rest: Any) -> PlacementRequested:
    flavor = Flavor(vcpus=vcpus, memory_mib=memory_mib, pcpus=rest.pop("pcpus", 0))
    return PlacementRequested(request_id="r", flavor=flavor, **rest)


def one(found: tuple[NodeCapacity, ...]) -> tuple[int | None, str]:
    (node,) = found
    return node.fits, node.bound


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (wanted(vcpus=1, memory_mib=3000), (2, "memory_mib")),
        (wanted(vcpus=3, memory_mib=1), (2, "vcpus")),
        (wanted(vcpus=1, group=ServerGroup(group_id="g", policy="anti-affinity", max_per_node=2)), (2, "group")),
        (wanted(vcpus=1, limits=Limits(instances_max=3)), (2, "instances")),
        (wanted(vcpus=1, limits=Limits(memory_mib=4096)), (3, "memory_mib")),
    ],
)
def test_the_least_of_what_amounts_limits_and_groups_leave_is_how_many_fit(request_: PlacementRequested, expected: tuple[int, str]) -> None:
    found = capacity(fleet(vm=guest("vm", 1000)), request_, DEFAULT)

    assert one(found.nodes) == expected
    assert (found.fits, found.tried, found.nodes_known) == (expected[0], False, 1)


def test_where_a_request_wants_to_go_leaves_the_closed_form() -> None:
    host = structs.replace(HOST, vcpus=2 * TRIALS_MAX, service_host="compute-1")
    asked = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1))

    found = [capacity(fleet(host), structs.replace(asked, **where), DEFAULT) for where in ({}, {"requested_hosts": ("compute-1",)})]

    assert [(each.fits, each.tried, each.at_least) for each in found] == [(2 * TRIALS_MAX, False, False)] * 2


@pytest.mark.parametrize(("tried", "bound"), [(False, "vcpus"), (True, "CoreFilter")])
def test_an_instance_of_a_request_of_any_name_is_another_one_than_those_that_are_counted(bound: str, *, tried: bool) -> None:
    """Each would be there already, and its room its own."""
    names = [instance_id(request_id, 0) for request_id in ("capacity", *(f"capacity-{number}" for number in range(5)), "r")]
    there = {name: InstanceReport(instance_id=name, resources=ObservedResources(vcpus=1)) for name in names}
    gpu = (PciWant(alias="gpu", specs=({"vendor_id": "10de"},)),) if tried else ()

    found = capacity(fleet(HOST, **there), wanted(memory_mib=0, pci=gpu), DEFAULT)

    assert one(found.nodes) == (1, bound)
    assert found.tried == tried


@pytest.mark.parametrize(("name", "fits"), [("small", 8), ("", 1)])
def test_a_node_for_one_flavor_takes_as_many_of_it_as_fit_and_one_without_a_name(name: str, fits: int) -> None:
    request = PlacementRequested(request_id="r", flavor=Flavor(name=name, memory_mib=1024))

    found = capacity(fleet(), request, Policy(filters=("RamFilter", "TypeAffinityFilter")))

    assert (found.fits, found.tried) == (fits, True)


def test_what_a_policy_limits_counts_as_well() -> None:
    policy = Policy(filters=("NumInstancesFilter", "IoOpsFilter"), options=Options(max_instances_per_host=7, max_io_ops_per_host=4))

    found = capacity(fleet(vm=guest("vm", 1000)), wanted(vcpus=0, memory_mib=1), policy)

    assert one(found.nodes) == (4, "io_ops")


def test_dedicated_cpus_of_cells_are_counted_by_trial() -> None:
    pinned = NumaWant(pinned_cpus=(0, 1, 2), memory_mib=512, cpu_policy="dedicated")

    found = capacity(fleet(), wanted(vcpus=0, pcpus=3, memory_mib=512, numa=(pinned,)), DEFAULT)

    # By amounts alone it would be two of eight CPUs, too, but 3 + 3 + 2 do not make a third; of 5 CPUs a cell of 4 takes none.
    assert (found.fits, found.tried) == (2, True)
    five = NumaWant(pinned_cpus=(0, 1, 2, 3, 4), memory_mib=512, cpu_policy="dedicated")
    assert capacity(fleet(), wanted(vcpus=0, pcpus=5, memory_mib=512, numa=(five,)), DEFAULT).fits == 0


def test_devices_are_counted_by_trial_and_the_fleet_is_left_as_it_was() -> None:
    here = fleet()

    found = capacity(here, wanted(pci=(PciWant(alias="gpu", specs=({"vendor_id": "10de"},)),)), DEFAULT)

    assert (found.fits, found.tried, here.overlay) == (2, True, ())


def test_a_trial_that_ends_before_any_bound_says_that_more_may_fit() -> None:
    specs = {"capabilities:vcpus_total": ">= 1"}
    many, exact = (
        PlacementRequested(request_id="r", flavor=Flavor(memory_mib=1, extra_specs=specs), limits=Limits(instances_max=most))
        for most in (10_000, TRIALS_MAX)
    )

    found = capacity(fleet(), many, DEFAULT)
    bounded = capacity(fleet(), exact, DEFAULT)

    assert found.nodes == (NodeCapacity("n1", ("nova",), TRIALS_MAX, "", at_least=True),)
    assert (found.fits, found.at_least) == (TRIALS_MAX, True)
    assert (one(bounded.nodes), bounded.at_least) == ((TRIALS_MAX, "instances"), False)


def test_a_flavor_that_no_node_will_ever_do_for_says_why() -> None:
    flavor = Flavor(vcpus=1, memory_mib=64, extra_specs={"pci_passthrough:alias": "gpu:1"})

    found = capacity(fleet(), PlacementRequested(request_id="r", flavor=flavor), DEFAULT)

    assert (found.fits, found.rejected) == (0, {"request": 1})
    assert "alias 'gpu' is not known" in found.unusable


def test_capabilities_that_the_next_instance_changes_are_tried() -> None:
    flavor = Flavor(vcpus=1, memory_mib=64, extra_specs={"capabilities:num_instances": "<= 2"})

    found = capacity(fleet(vm=guest("vm", 64)), PlacementRequested(request_id="r", flavor=flavor), DEFAULT)

    assert (one(found.nodes), found.tried) == ((2, "ComputeCapabilitiesFilter"), True)


def test_nodes_that_take_none_are_counted_for_the_filter_that_rejects_them() -> None:
    found = capacity(fleet(), wanted(memory_mib=9000), DEFAULT)

    assert (found.fits, found.nodes, found.rejected) == (0, (), {"RamFilter": 1})


def test_without_a_ratio_nothing_limits_the_number() -> None:
    here = fleet()
    for node in here.ledgers[0].nodes.values():
        node.memory_mib = ResourceRule(ratio_milli=None)
        node.refresh()

    found = capacity(Fleet(here.ledgers), wanted(vcpus=0, memory_mib=1024), DEFAULT)

    assert (found.fits, one(found.nodes)) == (None, (None, ""))


def test_one_node_without_a_limit_comes_first_and_makes_the_sum_unlimited() -> None:
    history = History()
    for name, vcpus in (("n1", 2), ("n2", 2), ("n3", 4)):
        history.audit(node=name, producer=f"audits of {name}", at_s=0, hypervisor=Hypervisor(vcpus=vcpus, memory_mib=8192))
    history.ledger.nodes["n2"].vcpus = ResourceRule(ratio_milli=None)
    history.ledger.nodes["n2"].refresh()

    found = capacity(Fleet([history.ledger]), wanted(vcpus=1, memory_mib=0), DEFAULT)

    assert [(node.node_id, node.fits) for node in found.nodes] == [("n2", None), ("n3", 4), ("n1", 2)]
    assert found.fits is None


@pytest.mark.parametrize("memory_mib", [1, 1 << 30])
def test_every_node_is_told_of_once_whether_it_takes_any_or_not(memory_mib: int) -> None:
    told: list[int] = []

    found = capacity(fleet(vm=guest("vm", 1000)), wanted(memory_mib=memory_mib), DEFAULT, looked_at=told.append)

    assert sum(told) == found.nodes_known == 1
    assert bool(found.nodes) == (memory_mib == 1)
