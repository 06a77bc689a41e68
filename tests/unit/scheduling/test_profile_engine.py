"""The profile engine where it has nothing to look at or must not look, and that it looks at what changed only."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from projections.ledger import Ledger
from schemas.audits import InstanceReport
from schemas.claims import NodeConfigured, NodeObserved
from schemas.codec import encode
from schemas.inventory import Aggregate, Hypervisor, Metric, OperatorFields, PciDevice, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.results import Decision
from schemas.topics import CLAIMS
from streams.scheduling.fleet import Fleet
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, POLICIES, Multiplied, Policy, digest
from streams.scheduling.profiles.profile import Key, Profiles, Reading
from streams.scheduling.raws import MetricMissing
from streams.scheduling.select import engine
from streams.scheduling.what_if import Basis, decide
from tests.scheduling_world import START_MS, world


def decided(fleet: Fleet, policy: Policy = DEFAULT, name: str = "profiles", **asked: Any) -> Decision:
    request = PlacementRequested(request_id="r", flavor=Flavor(**({"vcpus": 1, "memory_mib": 1024} | asked)))
    return engine(name)(fleet, fleet.ask(request, 0, owner="s", options=policy.options), policy, digest(policy))


def test_a_fleet_without_nodes_is_left_to_the_plain_scan() -> None:
    fleet = Fleet(world().ledgers())

    decision = decided(fleet)

    assert (decision.engine, decision.chosen, decision.nodes_known) == ("reference", "", 0)


def test_one_engine_answers_all_asks_by_a_policy_for_as_long_as_the_fleet_is_there() -> None:
    here = world()
    here.host("n1")
    fleet = Fleet(here.ledgers())
    decided(fleet)
    known = fleet.followers[digest(DEFAULT)]

    decided(fleet)
    decided(fleet, POLICIES["absolute-pack"])

    assert fleet.followers[digest(DEFAULT)] is known


def test_a_metric_is_missed_where_a_node_that_passes_lacks_it_and_nowhere_else() -> None:
    here = world()
    for name in ("n1", "n2"):
        here.host(name, metrics=(Metric(name="heat", value_milli=int(name[1])),))
    here.host("small", vcpus=1)
    policy = Policy(weighers=(Multiplied(weigher="MetricsWeigher"),), options=Options(weight_setting=("heat=1",)))

    found, expected = (decided(Fleet(here.ledgers()), policy, name, vcpus=2) for name in ("profiles", "reference"))

    assert structs.replace(found, engine="reference") == expected
    assert found.chosen == "n2"
    for name in ("profiles", "reference"):
        with pytest.raises(MetricMissing):
            decided(Fleet(here.ledgers()), policy, name, vcpus=1)


def test_an_aggregate_that_begins_to_multiply_counts_a_weigher_that_the_policy_multiplies_by_nothing() -> None:
    names = [f"n{number:02}" for number in range(40)]
    ledger, policy = Ledger(0, 1), POLICIES["nova"]
    fleet = Fleet([ledger])

    def say(record: NodeObserved | NodeConfigured) -> None:
        step = ledger.apply(ledger.next_offset, START_MS, record.node_id.encode(), encode(record))
        assert step is not None
        fleet.touch(0, step.node_ids)

    hypervisor = Hypervisor(vcpus=8, pcpus=0, memory_mib=16_384, disk_mib=102_400)
    for number, name in enumerate(names):
        there = tuple(InstanceReport(instance_id=f"{name}-{each}") for each in range(number % 5))
        say(NodeObserved(node_id=name, producer="p", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, hypervisor=hypervisor, instances=there))
    before = decided(fleet, policy)
    averse = OperatorFields(aggregates=(Aggregate(name="all", metadata={"num_instances_weight_multiplier": "-5"}),))
    for name in names:
        say(NodeConfigured(node_id=name, record_id=f"averse {name}", fields=averse))

    for _ in range(3):
        found, expected = (decided(fleet, policy, engine_name) for engine_name in ("profiles", "reference"))

        assert structs.replace(found, engine="reference") == expected
        assert found.best[0].score == pytest.approx(sum(weight.multiplied for weight in found.best[0].weights))
        assert before.best[0].weights != found.best[0].weights


def test_limits_beyond_any_column_are_limits_all_the_same() -> None:
    here = world()
    here.host("n1", memory_mib=1 << 50)
    here.host("n2", memory_mib=1 << 49)
    here.host("n3")
    for name in ("n1", "n2"):
        boundless = OperatorFields(memory_mib=ResourceRule(ratio_milli=1 << 50, max_unit=4096))
        here.say(CLAIMS, NodeConfigured(node_id=name, record_id=name, fields=boundless, status="enabled", reason=""))

    for memory_mib in (1024, 8192, 1 << 45):
        for policy in (DEFAULT, POLICIES["absolute-pack"], POLICIES["best-fit"]):
            found, expected = (decided(Fleet(here.ledgers()), policy, name, memory_mib=memory_mib) for name in ("profiles", "reference"))

            assert structs.replace(found, engine="reference") == expected


def test_a_node_without_anything_left_to_use_is_weighed_for_who_asks_for_nothing_of_it() -> None:
    here = world()
    for name, reserved in (("n1", 16_384), ("n2", 0)):
        here.host(name)
        fields = OperatorFields(memory_mib=ResourceRule(reserved=reserved))
        here.say(CLAIMS, NodeConfigured(node_id=name, record_id=name, fields=fields, status="enabled", reason=""))

    for policy in (POLICIES["bin-pack"], POLICIES["absolute-pack"]):
        found, expected = (decided(Fleet(here.ledgers()), policy, name, memory_mib=0) for name in ("profiles", "reference"))

        assert structs.replace(found, engine="reference") == expected


def test_a_node_counts_for_a_topology_filter_that_stands_before_the_one_that_rejects_all_of_its_kind() -> None:
    here = world()
    here.host("n1")
    here.set_status("n1", "disabled")
    alias = Options(pci_alias=('{"name": "nic", "vendor_id": "8086"}',))
    policy = Policy(filters=("NUMATopologyFilter", "ComputeFilter", "PciPassthroughFilter"), options=alias)
    specs = {"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:1"}

    found, expected = (decided(Fleet(here.ledgers()), policy, name, extra_specs=specs) for name in ("profiles", "reference"))

    assert structs.replace(found, engine="reference") == expected
    assert [each.filter for each in found.rejections if each.rejected] == ["NUMATopologyFilter"]


@pytest.mark.parametrize("name", ["profiles", "reference"])
def test_the_devices_of_own_claims_in_flight_are_counted_and_the_node_that_has_fewest_is_filled_first(name: str) -> None:
    here = world()
    gpus = tuple(PciDevice(address=f"gpu{number}", vendor_id="10de") for number in range(3))
    for number in range(4):
        here.host(f"n{number}", pci_devices=gpus)
    policy = Policy(weighers=(Multiplied(weigher="PCIWeigher"),), options=Options(pci_alias=('{"name": "gpu", "vendor_id": "10de"}',)))
    flavor = Flavor(vcpus=1, memory_mib=1024, extra_specs={"pci_passthrough:alias": "gpu:1"})
    request, fleet = PlacementRequested(request_id="r", flavor=flavor, count=3), Fleet(here.ledgers())

    outcome = decide(request, lambda index, _: Basis(fleet, seed=index, engine=name), policy)

    assert {decision.engine for decision in outcome.decisions} == {name}
    assert [decision.best[0].weights[0].raw for decision in outcome.decisions] == [97.0, 98.0, 99.0]
    assert [decision.best[1].weights[0].raw for decision in outcome.decisions] == [97.0, 97.0, 97.0]
    assert len({decision.chosen for decision in outcome.decisions}) == 1


def test_what_a_profile_says_is_read_once_whenever_it_comes() -> None:
    read: list[Key] = []

    def reading(key: Key, _: int) -> Reading:
        read.append(key)
        return (7,), (0.5,)

    profiles = Profiles(1, 1, reading)
    profiles.fill((ordinal, ordinal, (ordinal // 5,)) for ordinal in range(10))
    for key in (3, 3, 1, 1, 4):
        profiles.move(0, (key,))
        assert profiles.figures[0, : profiles.live].tolist() == [7] * profiles.live

    assert read == [(0,), (1,), (3,), (4,)]
