"""What weighers read of a node, their multipliers by aggregate, and the absolute ones."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import pytest

from projections.node import Node, Shown
from projections.room import Room, mark_of, room
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, GroupMember
from schemas.inventory import Aggregate, Hypervisor, Metric, PciDevice, PciPool, ResourceRule
from schemas.requests import Flavor, Image, PciWant, PlacementRequested, ServerGroup
from schemas.resources import Resources
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.options import MULTIPLIERS, Options
from streams.scheduling.policy import NOVA, POLICIES
from streams.scheduling.raws import MetricMissing, image_properties, pci
from streams.scheduling.weighers import WEIGHERS, weigh


def host(name: str, instances: tuple[str, ...] = (), used: tuple[int, int, int, int] = (0, 0, 0, 0), **fields: Any) -> Room:
    operator = {key: fields.pop(key) for key in ("aggregates", "vcpus_rule") if key in fields}
    node = Node(
        name,
        hypervisor=Hypervisor(**({"vcpus": 8, "memory_mib": 8192, "disk_mib": 8192} | fields)),
        aggregates=operator.get("aggregates", ()),
        vcpus=operator.get("vcpus_rule", ResourceRule()),
    )
    node.used = list(used)
    member = GroupMember(group_id="g", policy="soft-affinity")
    items = [ClaimItem(claim_id=each, instance_id=each, nodes=(name,), resources=Resources(), group=member) for each in instances]
    return room(node, 0, mark_of(name), items)


def ask(**request: Any) -> Ask:
    options: dict[str, Any] = {"request_id": "r", "flavor": Flavor(vcpus=2, memory_mib=2048), "instance_ids": ("i",)} | request
    return ask_of(PlacementRequested(**options), 0, seed=1)


def scores(rooms: list[Room], weigher: str, multiplier: float | None = None, asked: Ask | None = None, **options: Any) -> list[float]:
    factor = MULTIPLIERS.get(weigher, ("", 1.0))[1] if multiplier is None else multiplier
    return weigh(rooms, [(weigher, factor)], ask=asked or ask(), options=Options(**options))[0]


def test_reserved_cpus_count_as_used_by_the_cpu_weigher_and_are_not_multiplied() -> None:
    plain = host("a", vcpus=8, used=(4, 0, 0, 0))
    overcommitted = host("b", vcpus=4, vcpus_rule=ResourceRule(ratio_milli=4000, reserved=2), used=(6, 0, 0, 0))

    assert scores([plain, overcommitted], "CPUWeigher") == [4 / 8, 8 / 8]


def test_few_io_operations_failures_and_pci_devices_are_better_and_a_newer_hypervisor_is() -> None:
    quiet, busy = host("a", io_workload=1), host("b", io_workload=4, failed_builds=2, hypervisor_version=7)

    assert scores([quiet, busy], "IoOpsWeigher") == [-0.25, -1.0]
    assert scores([quiet, busy], "IoOpsWeigher", io_ops_step=8) == [0.0, 0.0]
    assert scores([quiet, busy], "BuildFailureWeigher") == [0.0, -1_000_000.0]
    assert scores([quiet, busy], "HypervisorVersionWeigher") == [0.0, 1.0]
    device = PciDevice(address="0000:01:00.0")
    with_devices = [host("a", pci_devices=(device,)), host("b"), host("c", pci_pools=(PciPool(count=3),))]
    assert scores(with_devices, "PCIWeigher") == [2 / 3, 1.0, 0.0]


def test_devices_that_own_claims_in_flight_would_be_granted_are_not_free_for_the_pci_weigher() -> None:
    gpus = tuple(PciDevice(address=f"gpu{number}", vendor_id="10de", product_id="1db4") for number in range(3))
    node = Node("a", hypervisor=Hypervisor(vcpus=8, memory_mib=8192, disk_mib=8192, pci_devices=gpus, pci_pools=(PciPool(count=2),)))
    node.shown["there"] = Shown(InstanceReport(instance_id="there", pci_addresses=("gpu0",)), (0, 0, 0, 0), seen_ms=0)
    wants = (PciWant(specs=({"vendor_id": "10de"},)),)
    laid = [ClaimItem(claim_id=each, instance_id=each, nodes=("a",), resources=Resources(), pci=wants) for each in ("x", "y", "too many")]

    raw = [pci(room(node, 0, mark_of("a"), laid[:number])) for number in range(4)]

    assert raw == [96.0, 97.0, 98.0, 98.0]


def test_numbers_of_instances_count_only_if_somebody_asks_for_it() -> None:
    rooms = [host("a", ("x",)), host("b", ("x", "y", "z"))]

    assert scores(rooms, "NumInstancesWeigher") == [0.0, 0.0]
    assert scores(rooms, "NumInstancesWeigher", -2.0) == [0.0, -2.0]


def test_soft_groups_draw_together_and_apart() -> None:
    rooms = [host("a", ("x",)), host("b", ("x", "y", "z"))]

    assert scores(rooms, "ServerGroupSoftAffinityWeigher", asked=ask(group=ServerGroup(group_id="g", policy="soft-affinity"))) == [0.0, 1.0]
    apart = ask(group=ServerGroup(group_id="g", policy="soft-anti-affinity"))
    assert scores(rooms, "ServerGroupSoftAntiAffinityWeigher", asked=apart) == [1.0, 0.0]
    assert scores(rooms, "ServerGroupSoftAffinityWeigher", asked=apart) == [0.0, 0.0]


def test_a_move_between_cells_prefers_one_of_them() -> None:
    rooms = [host("a", cell="c1"), host("b", cell="c2")]

    assert scores(rooms, "CrossCellWeigher", asked=ask(preferred_cell="c2", cross_cell_move=True)) == [0.0, 1_000_000.0]
    assert scores(rooms, "CrossCellWeigher", asked=ask(preferred_cell="c2")) == [0.0, 0.0]
    assert scores([*rooms, host("n")], "CrossCellWeigher", asked=ask(cross_cell_move=True)) == [0.0, 0.0, 0.0]


def test_metrics_are_summed_by_their_ratios_in_steps_and_a_missing_one_is_said() -> None:
    def measured(name: str, **milli: int) -> Room:
        return host(name, metrics=tuple(Metric(name=key, value_milli=value) for key, value in milli.items()))

    rooms = [measured("a", idle=1000, user=10_000), measured("b", idle=3000, user=0), measured("c", idle=2000)]

    assert scores(rooms, "MetricsWeigher", weight_setting=("idle=1",)) == [0.0, 1.0, 0.5]
    assert scores(rooms, "MetricsWeigher", weight_setting=("idle=1",), metrics_step_milli=2500) == [0.0, 1.0, 0.0]
    assert scores(rooms, "MetricsWeigher", weight_setting=("idle=1", "user=1"), required=False)[2] == 0.0
    with pytest.raises(MetricMissing, match="c does not report user"):
        scores(rooms, "MetricsWeigher", weight_setting=("idle=1", "user=1"))
    assert scores(rooms, "MetricsWeigher", weight_setting=("idle=0.0001",)) == pytest.approx([0.0, 1.0, 0.5])
    forced = ask(forced_nodes=("a", "b", "c"))
    assert scores(rooms, "MetricsWeigher", asked=forced, weight_setting=("idle=1", "user=1"))[2] == 0.0


def test_a_metric_may_be_missing_where_it_is_multiplied_by_nothing() -> None:
    def measured(name: str, multiplier: str, **milli: int) -> Room:
        aggregates = (Aggregate(name="a", metadata={"metrics_weight_multiplier": multiplier} if multiplier else {}),)
        return host(name, metrics=tuple(Metric(name=key, value_milli=value) for key, value in milli.items()), aggregates=aggregates)

    def raw(rooms: list[Room], multiplier: float, *setting: str) -> list[float]:
        options = Options(weight_setting=setting, required=False)
        _, (column,) = weigh(rooms, [("MetricsWeigher", multiplier)], ask=ask(), options=options)
        return column.raw

    rooms = [measured("a", "", idle=1000), measured("b", "", user=3000), measured("c", "0", user=3000), measured("d", "2", user=3000)]

    assert raw(rooms, 1.0, "idle=1", "user=0.5") == [-10_000.0, -10_000.0, 1.5, -10_000.0]
    assert raw(rooms, 0.0, "idle=1", "user=0.5") == [1.0, 1.5, 1.5, -10_000.0]
    assert raw(rooms, 1.0, "idle=0", "user=1") == [-10_000.0, 3.0, 3.0, 3.0]


def test_instances_of_like_images_draw_together_if_somebody_asks_for_it() -> None:
    def shown(name: str, *systems: str) -> Room:
        there = host(name)
        for number, system in enumerate(systems):
            report = InstanceReport(instance_id=f"i{number}", image_properties={"os_distro": system, "hw_machine_type": "x"})
            there.node.shown[f"i{number}"] = Shown(report, (None, None, None, None), 0)
        return there

    rooms, asked = (
        [shown("a", "win", "bsd"), shown("b", "win", "win")],
        ask(image=Image(properties={"os_distro": "win", "hw_machine_type": "y"})),
    )

    assert scores(rooms, "ImagePropertiesWeigher", asked=asked) == [0.0, 0.0]
    assert scores(rooms, "ImagePropertiesWeigher", 1.0, asked=asked) == [0.0, 1.0]
    assert scores(rooms, "ImagePropertiesWeigher", 1.0, asked=asked, image_props_weight_setting=("hw_machine_type=1",)) == [0.0, 0.0]
    # Ten tenths, added one by one on every version of Python.
    tenths = image_properties(asked, Options(image_props_weight_setting=("os_distro=0.1",)))
    assert tenths(shown("c", *["win"] * 10)) == reduce(add, [0.1] * 10)


def test_aggregates_multiply_in_their_own_way_and_the_least_of_several_counts() -> None:
    def within(name: str, memory_mib: int, *texts: str) -> Room:
        aggregates = tuple(Aggregate(name=f"a{n}", metadata={"ram_weight_multiplier": text}) for n, text in enumerate(texts))
        return host(name, memory_mib=memory_mib, aggregates=aggregates)

    rooms = [within("a", 4096, "2.0", "1.5"), within("b", 4096, "XXX"), within("c", 8192, "-1"), within("d", 4096)]

    found, (column,) = weigh(rooms, [("RAMWeigher", 3.0)])

    assert found == [0.75, 1.5, -1.0, 1.5]
    assert [column.weight(at).multiplied for at in range(4)] == found
    assert weigh(rooms[:2], [("BuildFailureWeigher", 1.0)])[0] == [0.0, 0.0]
    racked = (Aggregate(name="a", metadata={"ram_weight_multiplier": "2.0", "rack": "7"}),)
    larger = [host("a", memory_mib=4096, aggregates=racked), host("b", memory_mib=8192, aggregates=racked)]
    assert weigh(larger, [("RAMWeigher", 3.0)])[0] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PackWeigher", [(0.25 + 0.25) / 2, (0.75 + 0.5) / 2, (0.5 + 0.75) / 2]),
        ("SpreadWeigher", [1 - (0.25 + 0.25) / 2, 1 - (0.75 + 0.5) / 2, 1 - (0.5 + 0.75) / 2]),
        ("BestFitWeigher", [0.25, 0.75, 0.75]),
    ],
)
def test_absolute_weighers_read_how_full_a_node_would_be(name: str, expected: list[float]) -> None:
    rooms = [host("a"), host("b", used=(4, 0, 2048, 0)), host("c", used=(2, 0, 4096, 0))]

    assert scores(rooms, name) == pytest.approx(expected)


def test_bin_packing_prefers_balanced_fullness() -> None:
    rooms = [host("empty"), host("lopsided", used=(6, 0, 0, 0)), host("balanced", used=(3, 0, 3072, 0)), host("full", used=(6, 0, 6144, 0))]

    empty, lopsided, balanced, full = scores(rooms, "BinPackWeigher", asked=ask(flavor=Flavor(vcpus=1, memory_mib=1024)))

    assert 0.0 < empty < lopsided < balanced < full < 1.0


def test_what_an_absolute_weigher_says_of_a_node_no_other_node_moves() -> None:
    for name in ("PackWeigher", "SpreadWeigher", "BestFitWeigher", "BinPackWeigher"):
        near, far = host("a", used=(4, 0, 2048, 0)), host("b", vcpus=512, used=(100, 0, 8000, 0))
        assert scores([near, far], name)[0] == scores([near, host("c")], name)[0]


def test_a_node_without_limits_or_totals_is_weighed_all_the_same() -> None:
    rooms = [host("a", vcpus=None, memory_mib=None), host("b", vcpus_rule=ResourceRule(ratio_milli=None)), host("c", vcpus=0)]

    for name in WEIGHERS:
        assert len(scores(rooms, name)) == 3
    assert scores(rooms, "BestFitWeigher", asked=ask(flavor=Flavor(vcpus=2))) == [0.0, 0.25, 1.0]


def test_policies_have_names_and_one_is_all_of_nova() -> None:
    assert [name for name, _ in NOVA.pairs] == list(MULTIPLIERS)
    assert len(NOVA.weighers) == 13
    assert set(POLICIES) == {"spread", "pack", "nova", "absolute-spread", "absolute-pack", "best-fit", "bin-pack"}
    for name in ("absolute-spread", "absolute-pack", "best-fit", "bin-pack"):
        (pair,) = POLICIES[name].pairs
        assert None not in (WEIGHERS[pair[0]].lowest, WEIGHERS[pair[0]].highest)
