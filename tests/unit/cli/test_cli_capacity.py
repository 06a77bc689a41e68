"""`claimlog capacity`: how many more of each flavor fit, where, and what runs out first."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from schemas.codec import encode
from schemas.inventory import NumaCell, PciDevice
from schemas.requests import Flavor, Image, PciWant, PlacementRequested
from schemas.topics import REQUESTS
from tests.cli_log import FleetLog

OPENSTACK = """[
  {"ID": "1", "Name": "m1.small", "RAM": 2048, "Disk": 20, "Ephemeral": 0, "VCPUs": 1, "Is Public": true, "Swap": 0, "Properties": {}},
  {"ID": "2", "Name": "m1.large", "RAM": 8192, "Disk": 80, "Ephemeral": 0, "VCPUs": 4, "Is Public": true, "Swap": "", "Properties": {}}
]"""


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=8192, disk_mib=100 * 1024)
    fleet.audit("c02", {"vm": 1024}, memory_mib=4096, disk_mib=1000 * 1024)
    (tmp_path / "fleet.toml").write_text('[nodes.c01]\nzone = "east"\n[nodes.c02]\nzone = "west"\n')
    return fleet


def test_each_flavor_of_an_openstack_list_by_zone_and_by_node(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.run(capsys, "fleet", "apply", str(fleet.path.parent / "fleet.toml"))
    path = fleet.path.parent / "flavors.json"
    path.write_text(OPENSTACK)

    small, large = fleet.run(capsys, "capacity", str(path), "-o", "json").json["items"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OPENSTACK.encode())))
    table = fleet.run(capsys, "capacity", "-", "-o", "wide").out

    assert (small["fits"], small["zones"], small["nodes"]) == (5, {"east": 4, "west": 1}, 2)
    assert [(each["node_id"], each["fits"], each["bound"]) for each in small["where"]] == [
        ("c01", 4, "memory_mib"),
        ("c02", 1, "memory_mib"),
    ]
    assert (large["fits"], large["zones"], large["rejected"]) == (1, {"east": 1, "west": 0}, {"RamFilter": 1})
    assert "c01=4, c02=1" in table
    assert "no limit" not in table


def test_a_node_counts_in_the_column_of_every_zone_that_it_is_in_and_once_in_all(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, policy = fleet.path.parent / "fleet.toml", fleet.path.parent / "policy.toml"
    settings.write_text(
        '[nodes.c01]\nzone = "east"\n[aggregates.edge]\nnodes = ["c01"]\nmetadata = { availability_zone = "far, further" }\n'
    )
    policy.write_text('[options]\ndefault_availability_zone = "home"\n')
    fleet.run(capsys, "fleet", "apply", str(settings))

    (item,) = fleet.run(capsys, "capacity", "--memory", "1GiB", "-o", "json").json["items"]
    table = fleet.run(capsys, "capacity", "--memory", "1GiB")
    (far,) = fleet.run(capsys, "capacity", "--memory", "1GiB", "--zone", "far", "-o", "json").json["items"]
    (home,) = fleet.run(capsys, "capacity", "--memory", "1GiB", "--by", str(policy), "-o", "json").json["items"]

    assert (item["fits"], item["zones"]) == (11, {"east": 8, "far": 8, "further": 8, "nova": 3})
    assert {each["node_id"]: each["zones"] for each in item["where"]} == {"c01": ["east", "far", "further"], "c02": ["nova"]}
    assert table.out.splitlines()[0].split()[2:7] == ["fits", "east", "far", "further", "nova"]
    assert table.out.splitlines()[1].split()[3:8] == ["11", "8", "8", "8", "3"]
    assert "1 node in several zones: counted in the column of each, and once in fits\n" in table.err
    assert (far["fits"], far["zones"]) == (8, {"east": 8, "far": 8, "further": 8, "nova": 0})
    assert home["zones"] == {"east": 8, "far": 8, "further": 8, "home": 3}


def test_without_zones_there_are_no_columns_of_them(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "capacity", "--memory", "1GiB")

    assert said.out.splitlines()[0].split()[2:4] == ["fits", "nodes"]
    assert "zones" not in said.err


def test_flavors_in_toml_and_one_of_them_by_name_if_something_were_otherwise(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    path = fleet.path.parent / "flavors.toml"
    path.write_text('[flavors.tiny]\nvcpus = 1\nmemory = "512MiB"\n[flavors.big]\nmemory = "4GiB"\ndisk = "50GiB"\n')

    (item,) = fleet.run(capsys, "capacity", str(path), "--flavor", "big", "-o", "json").json["items"]
    (more,) = fleet.run(capsys, "capacity", str(path), "--flavor", "big", "--ratio", "memory=2", "--add", "c02", "-o", "json").json["items"]
    drained = fleet.run(capsys, "capacity", str(path), "--flavor", "big", "--drain", "c01", "-o", "json").json

    assert (item["fits"], item["most"]) == (2, {"node_id": "c01", "fits": 2, "at_least": False})
    assert {each["node_id"]: each["fits"] for each in more["where"]} == {"c01": 2, "c02": 1, "c02+1": 2}
    assert more["bounds"] == {"memory_mib": 2, "disk_mib": 1}
    assert (drained["items"][0]["fits"], drained["summary"]["changes"]) == (0, ["c01 drained"])


def test_flavors_that_pin_cpus_are_tried_on_the_cells(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    cells = tuple(
        NumaCell(cell_id=n, cpus=tuple(range(8 * n, 8 * n + 8)), dedicated_cpus=tuple(range(8 * n, 8 * n + 5)), memory_mib=4096)
        for n in (0, 1)
    )
    fleet.audit("c03", {}, pcpus=10, numa_cells=cells)
    path = fleet.path.parent / "flavors.toml"
    path.write_text('[flavors.pinned]\nvcpus = 2\nmemory = "256MiB"\nextra_specs = { "hw:cpu_policy" = "dedicated" }\n')

    (item,) = fleet.run(capsys, "capacity", str(path), "-o", "json").json["items"]

    # Ten dedicated CPUs are five pairs, but each cell of five gives two of them.
    assert (item["fits"], item["tried"], item["pcpus"]) == (4, True, 2)
    assert [each["node_id"] for each in item["where"]] == ["c03"]


def test_without_flavors_those_that_were_asked_for_on_this_log(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--flavor", "m1", "--request", "r1", "--wait", "0s")
    fleet.run(capsys, "place", "--memory", "1GiB", "--vcpus", "2", "--count", "3", "--request", "r2", "--wait", "0s")

    items = fleet.run(capsys, "capacity", "-o", "json").json["items"]

    assert [(item["flavor"], item["fits"]) for item in items] == [("2 vCPUs, 1 GiB", 11), ("m1", 11)]


def test_devices_and_volumes_that_requests_asked_for_beside_their_flavor_count(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c03", {}, pci_devices=tuple(PciDevice(address=f"gpu{n}", vendor_id="10de") for n in range(3)))
    flavor = Flavor(name="m1", memory_mib=1024, root_gib=40)
    gpu = PciWant(alias="gpu", specs=({"vendor_id": "10de"},))
    plain = PlacementRequested(request_id="r0", flavor=flavor, count=3)
    with_gpu, on_volume = structs.replace(plain, request_id="r1", count=2, pci=(gpu,)), structs.replace(plain, request_id="r2", count=1)
    shared = structs.replace(plain, flavor=structs.replace(flavor, extra_specs={"hw:cpu_policy": "shared"}))
    for request in (shared, with_gpu, structs.replace(on_volume, boot_from_volume=True)):
        fleet.append(REQUESTS, request)
    path = fleet.path.parent / "request.json"
    path.write_bytes(encode(PlacementRequested(request_id="r", flavor=flavor, count=2, pci=(gpu,))))

    fleet.append(REQUESTS, PlacementRequested(request_id="r3", flavor=Flavor(name="none")))

    *items, nothing = fleet.run(capsys, "capacity", "-o", "json").json["items"]
    (asked_again,) = fleet.run(capsys, "capacity", str(path), "-o", "json").json["items"]

    assert [(item["flavor"], item["size"], item["fits"]) for item in items] == [
        ("m1", "1 GiB, 40 GiB disk", 2 + 3 + 2),
        ("m1 (2)", "1 GiB, 40 GiB disk, 1 gpu", 2),
        ("m1 (3)", "1 GiB, 40 GiB volume", 8 + 3 + 8),
    ]
    assert [item["extra_specs"] for item in items] == [{"hw:cpu_policy": "shared"}] + 2 * [{}]
    assert nothing["fits"] is None
    assert items[1]["pci"] == [{"alias": "gpu", "specs": [{"vendor_id": "10de"}]}]
    assert (asked_again["fits"], asked_again["rejected"]) == (2, {"PciPassthroughFilter": 2})


def test_an_image_counts_that_says_how_near_devices_are_or_that_no_node_does(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    cells = tuple(NumaCell(cell_id=n, cpus=(n,), memory_mib=1024) for n in (0, 1))
    devices = tuple(PciDevice(address=f"gpu{n}", vendor_id="10de", numa_cell=0) for n in range(4))
    fleet.audit("c03", {}, vcpus=2, numa_cells=cells, pci_devices=devices)
    policy = fleet.path.parent / "policy.toml"
    policy.write_text("""[options]\npci_alias = ['{"name": "gpu", "vendor_id": "10de", "numa_policy": "preferred"}']\n""")
    gpu = Flavor(name="g", vcpus=1, extra_specs={"pci_passthrough:alias": "gpu:1", "hw:numa_nodes": "1"})
    asked = {
        "near": (gpu, {"hw_pci_numa_affinity_policy": "required"}),
        "any": (gpu, {"os_type": "linux"}),
        "none": (Flavor(name="e", vcpus=1), {"hw_mem_encryption": "True"}),
    }
    for request_id, (flavor, properties) in asked.items():
        fleet.append(REQUESTS, PlacementRequested(request_id=request_id, flavor=flavor, image=Image(properties=properties)))

    found = fleet.run(capsys, "capacity", "--by", str(policy), "-o", "json")

    by_image = {tuple(item["image_properties"]): item for item in found.json["items"]}
    assert by_image[()]["pci"][0]["numa_policy"] == "preferred"
    assert by_image["hw_pci_numa_affinity_policy",]["pci"][0]["numa_policy"] == "required"
    assert [by_image[key]["fits"] for key in ((), ("hw_pci_numa_affinity_policy",), ("hw_mem_encryption",))] == [2, 1, 0]
    assert "no node will ever do: hw:mem_encryption" in found.err


def test_devices_that_a_flavor_names_are_counted_by_the_aliases_of_the_policy(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c03", {}, pci_devices=tuple(PciDevice(address=f"gpu{n}", vendor_id="10de") for n in range(5)))
    flavors, policy = fleet.path.parent / "flavors.toml", fleet.path.parent / "policy.toml"
    flavors.write_text('[flavors.gpu]\nmemory = "1GiB"\nextra_specs = { "pci_passthrough:alias" = "gpu:2" }\n')
    policy.write_text("""[options]\npci_alias = ['{"name": "gpu", "vendor_id": "10de"}']\n""")

    (item,) = fleet.run(capsys, "capacity", str(flavors), "--by", str(policy), "-o", "json").json["items"]
    unknown = fleet.run(capsys, "capacity", str(flavors))

    assert (item["fits"], item["size"], item["tried"]) == (2, "1 GiB, 2 gpu", True)
    assert "gpu: no node will ever do: pci_passthrough:alias: alias 'gpu' is not known" in unknown.err


def test_what_trials_do_not_bound_is_told_as_the_least(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c03", {}, numa_cells=(NumaCell(cell_id=0, cpus=tuple(range(8)), memory_mib=8192),))
    path = fleet.path.parent / "flavors.toml"
    path.write_text('[flavors.dust]\nmemory = "1MiB"\nextra_specs = { "capabilities:vcpus_total" = ">= 1" }\n')

    said = fleet.run(capsys, "capacity", str(path), "--on", "c03", "-o", "wide")
    (item,) = fleet.run(capsys, "capacity", str(path), "--on", "c03", "-o", "json").json["items"]

    assert "256 or more (c03)" in said.out
    assert "c03=256 or more" in said.out
    assert "dust: 256 or more on a node" in said.err
    assert (item["fits"], item["at_least"], item["unlimited"]) == (256, True, False)


@pytest.mark.parametrize("action", ["migrate", "resize", "evacuate"])
def test_a_move_brings_no_new_instance_to_be_counted(fleet: FleetLog, capsys: pytest.CaptureFixture[str], action: Any) -> None:
    path = fleet.path.parent / "request.json"
    flavor = Flavor(memory_mib=1024)
    path.write_bytes(encode(PlacementRequested(request_id="r", flavor=flavor, action=action, instance_ids=("vm",), source_node="c02")))

    said = fleet.run(capsys, "capacity", str(path))

    assert said.code == 2
    assert f"a request to {action} brings no new instance; `claimlog what-if` says where it would go" in said.err


def test_what_was_asked_for_is_that_of_the_answer_s_own_moment(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(request_id: str, memory: str) -> None:
        assert fleet.run(capsys, "place", "--memory", memory, "--flavor", "small", "--request", request_id, "--wait", "0s").code == 0

    asked("r1", "1GiB")
    before = fleet.run(capsys, "capacity", "-o", "json").json
    asked("r2", "2GiB")
    asked("r3", "2GiB")

    again = fleet.run(capsys, "capacity", "--at", before["cut"], "-o", "json").json
    now = fleet.run(capsys, "capacity", "-o", "json").json

    assert (again["items"], again["cut"]) == (before["items"], before["cut"])
    assert [item["flavor"] for item in now["items"]] == ["small", "small (2)"]


@pytest.mark.parametrize(
    ("properties", "fits"),
    [({"hw:cpu_policy": "dedicated"}, 0), ("hw:cpu_policy='dedicated', a:b='c, d'", 0), ({}, 2), ("", 2), (None, 2)],
)
def test_extra_specs_are_those_of_any_openstack_client(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], properties: object, fits: int
) -> None:
    path = fleet.path.parent / "flavors.json"
    path.write_text(json.dumps([{"Name": "f", "VCPUs": 1, "RAM": 4096, "Disk": 0, "Properties": properties}]))

    (item,) = fleet.run(capsys, "capacity", str(path), "-o", "json").json["items"]

    assert item["fits"] == fits


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({}, "expected its Properties, or nobody knows its extra specs; `openstack flavor list --long -f json` has them"),
        ({"Properties": "hw:cpu_policy=shared"}, "expected Properties as an object, or as key='value', …; got 'hw:cpu_policy=shared'"),
    ],
)
def test_extra_specs_that_nobody_can_read_are_no_flavor_without_any(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], row: dict[str, Any], says: str
) -> None:
    path = fleet.path.parent / "flavors.json"
    path.write_text(json.dumps([{"Name": "f", "VCPUs": 1, "RAM": 4096, "Disk": 0} | row]))

    said = fleet.run(capsys, "capacity", str(path))

    assert (said.code, said.out) == (2, "")
    assert says in said.err


def test_one_flavor_by_flags_in_a_zone_and_a_group(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "fleet", "apply", str(fleet.path.parent / "fleet.toml"))

    (item,) = fleet.run(capsys, "capacity", "--memory", "1GiB", "--zone", "east", "--group", "g", "-o", "json").json["items"]

    assert (item["fits"], item["bounds"], item["rejected"]) == (1, {"group": 1}, {"AvailabilityZoneFilter": 1})


def test_of_a_group_that_goes_to_one_node_a_zone_takes_what_its_best_node_takes(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.audit("c03", {}, memory_mib=2048)
    flags = ("--disk", "30GiB", "--group", "g", "--policy", "affinity", "-o", "json")
    policy = fleet.path.parent / "policy.toml"
    policy.write_text('filters = ["ComputeFilter"]\n')

    (item,) = fleet.run(capsys, "capacity", *flags).json["items"]
    (other,) = fleet.run(capsys, "capacity", *flags, "--by", str(policy)).json["items"]

    assert (item["fits"], item["zones"]) == (33, {"nova": 33})
    assert (other["fits"], other["unusable"][:24]) == (0, "an affinity group needs ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no flavor is known"),
        (("nowhere.toml",), "nowhere.toml: No such file"),
        (("--memory", "1GiB", "nowhere.toml"), "not both"),
        (("--flavor", "huge"), "flavor 'huge' is not known"),
        (("--memory", "1GiB", "--drain", "c99"), "node 'c99' is not known"),
        (("--memory", "1GiB", "--count", "5"), "there is no flag --count"),
    ],
)
def test_a_wrong_command_line_exits_2(fleet: FleetLog, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    said = fleet.run(capsys, "capacity", *arguments)

    assert (said.code, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[flavors.a]\nvcpus = 1\n[flavors.none]\n", "flavors.none: it asks for nothing; expected some of vcpus"),
        ("[flavors.a]\nram = 3\n", "flavors.a: 'ram' is not known; known: vcpus"),
        ("[flavours.a]\nvcpus = 3\n", "expected tables such as [flavors.small]"),
        ("vcpus = ", "Invalid value"),
        ('[{"RAM": 3}]', "item 0: expected a Name"),
        ("[ flavors.a ]\nram = 3\n", "flavors.a: 'ram' is not known; known: vcpus"),
        ("\n[\t]\n", "it has none"),
        (
            '[{"Name": "a", "VCPUs": 1, "Properties": {}}, {"Name": "a", "VCPUs": 2, "Properties": {}}]',
            "item 1 (a): another item has that name",
        ),
        ("", "it has none"),
        ("[flavors.a]\nvcpus = -1\n", "flavors.a: Expected `int` >= 0"),
    ],
)
def test_a_file_of_flavors_that_says_something_else_exits_2(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = fleet.path.parent / "flavors"
    path.write_text(text)

    said = fleet.run(capsys, "capacity", str(path))

    assert said.code == 2
    assert says in said.err
