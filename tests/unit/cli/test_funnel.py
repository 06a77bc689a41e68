"""Decisions in words: a request's one line has what decides, and a node's resources what there is of them."""

from __future__ import annotations

import pytest

from projections.wording import record_text
from schemas.requests import Flavor, PciWant, PlacementRequested
from streams.cli.printed.funnel import node_supply_lines, request_text
from streams.scheduling.supply import Supply

FLAVOR = Flavor(vcpus=1, memory_mib=512, root_gib=500)


def asking_for(devices: str) -> PlacementRequested:
    return PlacementRequested(request_id="r", flavor=Flavor(vcpus=1, extra_specs={"pci_passthrough:alias": devices}))


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (PlacementRequested(request_id="r", flavor=FLAVOR), "1 x 1 vCPUs, 512 MiB, 500 GiB disk"),
        (PlacementRequested(request_id="r", flavor=FLAVOR, boot_from_volume=True), "1 x 1 vCPUs, 512 MiB, 500 GiB volume"),
        (PlacementRequested(request_id="r", flavor=Flavor(vcpus=1), boot_from_volume=True), "1 x 1 vCPUs, a volume"),
        (asking_for("gpu:1, nic:2"), "1 x 1 vCPUs, 1 gpu, 2 nic"),
        (PlacementRequested(request_id="r", flavor=Flavor(), pci=(PciWant(alias="gpu"), PciWant(count=3))), "1 x 1 gpu, 3 PCI device"),
        (asking_for("gpu:2, ,"), "1 x 1 vCPUs, 2 gpu"),
        (asking_for("gpu"), "1 x 1 vCPUs, gpu"),
        (asking_for("gpu:2:3"), "1 x 1 vCPUs, gpu:2:3"),
        (asking_for(":2"), "1 x 1 vCPUs, :2"),
        (asking_for("a:1,b:2,c:3,d:4,e:5"), "1 x 1 vCPUs, 1 a, 2 b, 3 c and 2 more"),
        (PlacementRequested(request_id="r", flavor=Flavor()), "1 x nothing"),
    ],
)
def test_a_request_is_told_with_its_volume_and_its_devices(request_: PlacementRequested, line: str) -> None:
    assert request_text(request_) == line
    assert record_text(request_) == f"{line} wanted"


@pytest.mark.parametrize(("live", "word"), [(True, "live migrate"), (False, "migrate")])
def test_a_migration_says_whether_it_is_live(*, live: bool, word: str) -> None:
    request = PlacementRequested(request_id="r", action="migrate", live=live, flavor=Flavor(vcpus=1), instance_ids=("i",), source_node="n")

    assert request_text(request) == f"1 x 1 vCPUs  {word}"


@pytest.mark.parametrize(
    ("supply", "line"),
    [
        (Supply(resource="vcpus", needed=4, nodes=1, full=1, limit=8, used=5, free=3), "vcpus: 4 needed; free 3 of 8"),
        (Supply(resource="memory_mib", needed=512, nodes=1, unlimited=1, has=1), "memory: 512 MiB needed; it has no limit"),
        (Supply(resource="disk_mib", needed=1024, nodes=1, unknown=1), "disk: 1 GiB needed; the node reports no total of it"),
    ],
)
def test_a_resource_of_one_node_is_told_with_what_is_free_or_why_nobody_knows(supply: Supply, line: str) -> None:
    assert node_supply_lines((supply,)) == [line]
