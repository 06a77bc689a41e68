"""The profile engine gives what the plain full scan gives, evidence included, for any fleet, ask and history of claims in flight."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from projections.ledger import Ledger
from schemas.claims import ClaimItem, ClaimRequested, GroupMember, NodeConfigured, NodeObserved, NodeSilent, NodeStatus
from schemas.codec import encode
from schemas.inventory import Aggregate, Hypervisor, OperatorFields, ResourceRule
from schemas.partitioner import partition_of
from schemas.requests import Flavor, Hints, PlacementRequested, ServerGroup
from schemas.resources import Limits, Resources
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, PACK, Multiplied, Policy, digest
from streams.scheduling.select import engine

POLICIES = (
    DEFAULT,
    PACK,
    Policy(filters=("RamFilter", "ComputeFilter", "DiskFilter"), weighers=(Multiplied(weigher="RAMWeigher"),)),
    Policy(filters=("TraitsFilter", "CoreFilter", "AvailabilityZoneFilter"), weighers=()),
    Policy(filters=(), alternates_max=0),
    Policy(filters=("CoreFilter", "AggregateTypeAffinityFilter", "AggregateMultiTenancyIsolation", "ImagePropertiesFilter", "IoOpsFilter")),
)
KINDS = ((8, 16_384, 102_400), (16, 32_768, 204_800), (8, 16_384, 0))
SIZES = ((1, 1024, 0), (2, 4096, 10_240), (4, 8192, 20_480), (7, 1000, 3), (16, 40_000, 1))


class Cloud:
    """Two partitions of a ledger under random records."""

    def __init__(self, rng: Random, nodes: int) -> None:
        self.rng = rng
        self.ledgers = [Ledger(number, 2) for number in range(2)]
        self.fleet = Fleet(self.ledgers)
        self.names = [f"n{number:03}" for number in range(nodes)]
        self.counter = 0
        self.laid: list[str] = []
        for name in self.names:
            self.audit(name)

    def say(self, record: Any, name: str) -> None:
        ledger = self.ledgers[partition_of(name.encode(), 2)]
        step = ledger.apply(ledger.next_offset, 1_700_000_000_000 + self.counter, name.encode(), encode(record))
        assert step is not None
        assert step.dead is None, step.dead
        self.fleet.touch(ledger.partition, step.node_ids)

    def audit(self, name: str) -> None:
        self.counter += 1
        vcpus, memory_mib, disk_mib = self.rng.choice(KINDS)
        hypervisor = Hypervisor(
            vcpus=vcpus if vcpus != 16 or self.rng.random() < 0.8 else None,
            memory_mib=memory_mib,
            disk_mib=disk_mib or None,
            traits=self.rng.choice(((), ("T1",))),
        )
        self.say(
            NodeObserved(
                node_id=name, producer="p", epoch=1, counter=self.counter, taken_at_ms=self.counter, mono_ms=0, digest="d",
                hypervisor=hypervisor, instances=(),
            ),
            name,
        )  # fmt: skip

    def configure(self, name: str) -> None:
        self.counter += 1
        rng = self.rng
        rule = ResourceRule(
            reserved=rng.choice((0, 512)), ratio_milli=rng.choice((1000, 1500, 16_000, None)), min_unit=rng.choice((1, 1, 1, 2))
        )
        fields = OperatorFields(
            zone=rng.choice(("", "east")), traits=rng.choice(((), ("T2",))), memory_mib=rule,
            aggregates=rng.choice(((), (Aggregate(name="a", metadata={"availability_zone": "west", "filter_tenant_id": "p"}),))),
        )  # fmt: skip
        status: NodeStatus = rng.choice(("enabled", "enabled", "enabled", "disabled"))
        self.say(NodeConfigured(node_id=name, record_id=f"c{self.counter}", fields=fields, status=status, reason="why"), name)

    def silence(self, name: str) -> None:
        self.counter += 1
        silent = NodeSilent(node_id=name, record_id=f"s{self.counter}", producer="p", epoch=1, counter=10**6, silent_since_ms=7)
        self.say(silent, name)

    def item(self, instance: int) -> ClaimItem:
        vcpus, memory_mib, disk_mib = self.rng.choice(SIZES)
        self.counter += 1
        apart, together = GroupMember(group_id="g", policy="anti-affinity"), GroupMember(group_id="h", policy="affinity", epoch=1)
        group = self.rng.choice((None, apart, together))
        return ClaimItem(
            claim_id=f"r/0/s-1.{self.counter}", instance_id=f"i{instance}", nodes=(), group=group,
            resources=Resources(vcpus=vcpus, memory_mib=memory_mib, disk_mib=disk_mib),
        )  # fmt: skip

    def claim(self, name: str) -> None:
        item = structs.replace(self.item(self.rng.randrange(30)), nodes=(name,))
        self.say(ClaimRequested(request_id="r", owner="s", basis=0, ttl_ms=600_000, items=(item,)), name)

    def lay(self, name: str) -> None:
        item = self.item(self.rng.randrange(30))
        self.laid.append(item.claim_id)
        self.fleet.lay(item, name, self.fleet.partition_of_node(name))

    def lift(self) -> None:
        if self.laid:
            self.fleet.lift(self.laid.pop(self.rng.randrange(len(self.laid))))

    def request(self) -> PlacementRequested:
        rng = self.rng
        vcpus, memory_mib, disk_mib = rng.choice(SIZES)
        some = rng.sample([*self.names, "nowhere"], min(3, len(self.names)))
        options: dict[str, Any] = rng.choice(
            (
                {}, {}, {}, {"availability_zone": rng.choice(("east", "west", "nova"))}, {"traits_required": ("T1",)},
                {"traits_forbidden": ("T1", "T2")}, {"ignored_nodes": tuple(some)}, {"forced_nodes": tuple(some)},
                {"requested_nodes": tuple(some)}, {"retry_nodes": tuple(some)},
                {"group": ServerGroup(group_id="g", policy="anti-affinity")}, {"group": ServerGroup(group_id="h", policy="affinity")},
                {"hints": Hints(different_host=("i1", "i2"))},
                {"hints": Hints(same_host=("i3", "i4"))}, {"limits": Limits(memory_mib=rng.choice((1, 4096, 20_000)))},
                {"limits": Limits(instances_max=2)}, {"action": "migrate", "source_node": some[0]},
            )
        )  # fmt: skip
        flavor = Flavor(vcpus=vcpus, memory_mib=memory_mib, root_gib=disk_mib // 1024)
        return PlacementRequested(request_id=f"q{rng.randrange(10)}", flavor=flavor, instance_ids=(f"i{rng.randrange(40)}",), **options)

    def step(self) -> None:
        name = self.rng.choice(self.names)
        draw = self.rng.random()
        if draw < 0.5:
            self.claim(name)
        elif draw < 0.65:
            self.lay(name)
        elif draw < 0.75:
            self.lift()
        elif draw < 0.85:
            self.configure(name)
        elif draw < 0.95:
            self.audit(name)
        elif draw < 0.97:
            self.silence(name)
        else:
            self.names.append(f"m{len(self.names):03}")
            self.audit(self.names[-1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_engine_and_full_scan_decide_alike(seed: int, nodes: int) -> None:
    rng = Random(seed)
    cloud = Cloud(rng, nodes)

    for _ in range(30):
        for _ in range(rng.randrange(6)):
            cloud.step()
        policy, request = rng.choice(POLICIES), cloud.request()
        ask = cloud.fleet.ask(request, 0, owner="s")
        expected = engine("reference")(cloud.fleet, ask, policy, digest(policy))
        found = engine("profiles")(cloud.fleet, ask, policy, digest(policy))

        assert structs.replace(found, engine="reference") == expected
