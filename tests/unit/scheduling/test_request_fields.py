"""Every field of a request acts, or is refused with the reason: one line for each, through a scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from schemas.claims import NodeConfigured, NodeObserved
from schemas.codec import decode
from schemas.inventory import Aggregate, Hypervisor, NumaCell, OperatorFields, PciDevice
from schemas.requests import Flavor, Hints, Image, NumaWant, PciWant, PlacementRequested, ServerGroup
from schemas.resources import Limits
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.scheduler import Scheduler
from streams.scheduling.ask import Ask
from streams.scheduling.policy import DEFAULT, Multiplied, Policy
from tests.scheduling_world import START_MS, World, world

GUEST, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
SMALL = Flavor(vcpus=1, memory_mib=1024)
APART = ServerGroup(group_id="g", policy="anti-affinity")
CELLS = (NumaCell(cell_id=0, cpus=(0, 1, 2, 3), dedicated_cpus=(0, 1), memory_mib=8192),)
DEVICES = (PciDevice(address="0000:81:00.1", vendor_id="8086", device_type="type-PCI"),)
OF_USER = "tests.unit.scheduling.test_request_fields:of_user"

HOSTS: dict[str, dict[str, Any]] = {
    "a": {"service_host": "Host-A", "cell": "cell1", "supported_guests": (), "host_ip": "192.0.2.7"},
    "b": {"service_host": "host-b", "cell": "cell2", "numa_cells": CELLS, "pcpus": 2, "vcpus": 4, "memory_mib": 8192},
    "c": {"service_host": "host-c", "cell": "cell2", "pci_devices": DEVICES, "disk_mib": 10 * 1024},
}
OPERATOR: dict[str, OperatorFields] = {
    "a": OperatorFields(zone="az-a", traits=("CUSTOM_A",)),
    "b": OperatorFields(zone="az-b", aggregates=(Aggregate(name="for-p2", metadata={"filter_tenant_id": "p2"}),)),
    "c": OperatorFields(zone="az-c", aggregates=(Aggregate(name="fast", metadata={"ssd": "true"}),), traits=("CUSTOM_C",)),
}


def of_user(ask: Ask, room: Any) -> str | None:
    """A filter of one's own: the nodes of user u1 are those that begin with b."""
    return None if ask.request.user_id != "u1" or room.node_id.startswith("b") else "not a node of this user"


def here() -> World:
    """Three hosts that differ in everything; GUEST runs on b and OTHER on c."""
    made = world(claims=2, requests=1)
    for node_id, has in HOSTS.items():
        amounts: dict[str, Any] = {"vcpus": 8, "pcpus": 0, "memory_mib": 16_384, "disk_mib": 102_400} | has
        audit = NodeObserved(
            node_id=node_id, producer=f"audits of {node_id}", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1,
            hypervisor=Hypervisor(**amounts), instances=(),
        )  # fmt: skip
        made.say(CLAIMS, audit)
        made.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"fields of {node_id}", fields=OPERATOR[node_id]))
    for name, instance_id, node_id in (("guest", GUEST, "b"), ("other", OTHER, "c")):
        ask(made, name, instance_ids=(instance_id,), requested_nodes=(node_id,), group=APART)
    return made


def ask(made: World, request_id: str, policy: Policy = DEFAULT, **options: Any) -> InstancesPlaced | PlacementFailed:
    """Ask, and the result."""
    given: dict[str, Any] = {"request_id": request_id, "flavor": SMALL, "ttl_ms": 600_000} | options
    request = PlacementRequested(**given)
    made.say(REQUESTS, request)
    scheduler: Scheduler = made.scheduler(policy=policy)
    for _ in range(20):
        if not scheduler.turn():
            break
    results = [decode(RESULTS, record.value) for record in made.records(RESULTS, 0)]
    return next(each for each in results if isinstance(each, InstancesPlaced | PlacementFailed) and each.request_id == request_id)


def where(result: InstancesPlaced | PlacementFailed) -> str:
    """The nodes of a result in order of its instances, or why it failed."""
    if isinstance(result, PlacementFailed):
        return f"{result.reason}: {result.message}"
    return " ".join(placement.node_id for placement in result.placements)


def with_filters(*names: str) -> Policy:
    return structs.replace(DEFAULT, filters=(*DEFAULT.filters, *names))


ACTS: dict[str, tuple[dict[str, Any], Policy, str]] = {
    "flavor": ({"flavor": structs.replace(SMALL, extra_specs={"aggregate_instance_extra_specs:ssd": "true"})},
               with_filters("AggregateInstanceExtraSpecsFilter"), "c"),
    "count": ({"count": 2, "requested_nodes": ("a",)}, DEFAULT, "a a"),
    "instance_ids": ({"instance_ids": (GUEST,), "group": APART, "requested_nodes": ("b",)}, DEFAULT, "b"),
    "action": ({"instance_ids": (GUEST,), "source_node": "b", "action": "evacuate", "group": APART}, DEFAULT, "a"),
    "source_node": ({"instance_ids": (OTHER,), "source_node": "c", "action": "migrate", "group": APART}, DEFAULT, "a"),
    "live": ({"live": True}, DEFAULT, "invalid: live goes with action migrate only, this is create; leave it out"),
    "image": ({"image": Image(properties={"trait:CUSTOM_C": "required"})}, DEFAULT, "c"),
    "hints": ({"hints": Hints(same_host=(OTHER,))}, DEFAULT, "c"),
    "group": ({"group": APART}, DEFAULT, "a"),
    "availability_zone": ({"availability_zone": "az-b"}, DEFAULT, "b"),
    "project_id": ({"project_id": "p1", "ignored_nodes": ("a", "c")}, with_filters("AggregateMultiTenancyIsolation"), "no-valid-node: "),
    "user_id": ({"user_id": "u1"}, with_filters(OF_USER), "b"),
    "forced_nodes": ({"forced_nodes": ("b",), "flavor": Flavor(vcpus=1000, memory_mib=1)}, DEFAULT, "b"),
    "ignored_nodes": ({"ignored_nodes": ("a", "b")}, DEFAULT, "c"),
    "requested_nodes": ({"requested_nodes": ("b",)}, DEFAULT, "b"),
    "retry_nodes": ({"retry_nodes": ("a", "b")}, DEFAULT, "c"),
    "forced_hosts": ({"forced_hosts": ("HOST-B",)}, DEFAULT, "b"),
    "ignored_hosts": ({"ignored_hosts": ("host-a", "HOST-b")}, DEFAULT, "c"),
    "requested_hosts": ({"requested_hosts": ("Host-A", "host-c"), "ignored_nodes": ("a",)}, DEFAULT, "c"),
    "retry_hosts": ({"retry_hosts": ("Host-A", "host-b"), "retry_nodes": ("d",)}, DEFAULT, "c"),
    "preferred_cell": ({"preferred_cell": "cell1", "cross_cell_move": True},
                       structs.replace(DEFAULT, weighers=(Multiplied(weigher="CrossCellWeigher"),)), "a"),
    "numa": ({"numa": (NumaWant(cpus=(0,), memory_mib=1024),)}, DEFAULT, "b"),
    "pci": ({"pci": (PciWant(alias="any", specs=({"vendor_id": "8086"},)),)}, DEFAULT, "c"),
    "traits_required": ({"traits_required": ("CUSTOM_C",)}, DEFAULT, "c"),
    "traits_forbidden": ({"traits_forbidden": ("CUSTOM_A", "CUSTOM_C")}, DEFAULT, "b"),
    "limits": ({"limits": Limits(instances_max=1)}, DEFAULT, "a"),
    "boot_from_volume": ({"flavor": Flavor(vcpus=1, memory_mib=1024, root_gib=50), "requested_nodes": ("c",), "boot_from_volume": True},
                         DEFAULT, "c"),
    "dry_run": ({"dry_run": True}, DEFAULT, ""),
}  # fmt: skip
ELSEWHERE = {
    "request_id": "its length: test_placement; one answer a request: test_placements",
    "cross_cell_move": "with preferred_cell, here",
    "ttl_ms": "in the claim and in commit_by_ms: test_a_claim_carries_its_requests_ttl, here",
}


@pytest.mark.parametrize("field", ACTS)
def test_the_field_acts(field: str) -> None:
    options, policy, expected = ACTS[field]

    result = where(ask(here(), "r", policy, **options))

    assert result == expected or (expected.endswith(": ") and result.startswith(expected))


def test_no_field_is_left_out_here() -> None:
    assert {*ACTS, *ELSEWHERE} == set(PlacementRequested.__struct_fields__)


def test_a_claim_carries_its_requests_ttl() -> None:
    made = here()

    result = ask(made, "r", ttl_ms=80_000)

    assert isinstance(result, InstancesPlaced)
    claim = made.ledgers()[result.placements[0].partition].claims[result.placements[0].claim_id]
    assert (claim.ttl_ms, claim.deadline_ms) == (80_000, START_MS + 80_000)
    assert result.commit_by_ms == START_MS + 80_000 // 4 + 5_000


def test_a_claim_says_its_flavor_so_that_a_node_for_one_flavor_is_known_to_all_who_read_the_log() -> None:
    made, one = world(claims=1, requests=1), with_filters("TypeAffinityFilter")
    made.host("n1")
    made.host("n2")
    web, db = structs.replace(SMALL, name="web"), structs.replace(SMALL, name="db")

    first = where(ask(made, "r1", one, flavor=web))
    others = [where(ask(made, f"r{number}", one, flavor=flavor)) for number, flavor in enumerate((db, web, db), 2)]
    third = ask(made, "r5", one, flavor=structs.replace(SMALL, name="cache"))

    (ledger,) = made.ledgers()
    assert {claim.flavor for claim in ledger.claims.values() if claim.node_id == first} == {"web"}
    assert others[1] == first
    assert others[0] == others[2] != first
    assert isinstance(third, PlacementFailed)
    assert third.decisions[0].engine == "reference"
    (rejected,) = [each for each in third.decisions[0].rejections if each.rejected]
    assert (rejected.filter, rejected.rejected) == ("TypeAffinityFilter", 2)


def test_a_forced_claims_overrun_is_named_in_its_outcome_and_devices_are_never_forced() -> None:
    made = here()
    outcomes: list[Any] = []

    ask(made, "over", forced_nodes=("b",), flavor=Flavor(vcpus=1000, memory_mib=1))
    pinned = ask(made, "pinned", forced_nodes=("b",), numa=(NumaWant(pinned_cpus=(0, 1, 2), memory_mib=1, cpu_policy="dedicated"),))
    made.ledgers(lambda _, step: outcomes.extend(step.outcomes))

    (over,) = [outcome for outcome in outcomes if outcome.request_id == "over"]
    assert [str(lack).split(":")[0] for lack in over.overrun] == ["vcpus"]
    assert where(pinned).startswith("no-valid-node")
