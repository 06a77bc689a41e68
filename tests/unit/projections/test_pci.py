"""PCI devices: who answers a want, how near it is, and which are left."""

from __future__ import annotations

from typing import Any

import pytest

from projections.pci import available, choose
from schemas.inventory import PciDevice
from schemas.requests import PciWant
from schemas.resources import Shortfall


def device(address: str, numa_cell: int | None = 0, **fields: Any) -> PciDevice:
    own = {key: fields.pop(key) for key in tuple(fields) if key in PciDevice.__struct_fields__}
    return PciDevice(address=address, numa_cell=numa_cell, tags=fields, **{"vendor_id": "8086", "product_id": "1520"} | own)


def want(count: int = 1, policy: Any = "legacy", **spec: Any) -> PciWant:
    return PciWant(alias="nic", count=count, specs=(spec or {"vendor_id": "8086"},), numa_policy=policy)


HERE, ELSEWHERE, NOWHERE = device("a", 0), device("b", 1), device("c", None)
HOST = [ELSEWHERE, NOWHERE, HERE]
SOCKETS = {0: 0, 1: 0, 2: 1}


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [
        ("required", 1, ("a",)),
        ("required", 2, None),
        ("legacy", 1, ("a",)),
        ("legacy", 2, ("a", "c")),
        ("legacy", 3, None),
        ("preferred", 1, ("a",)),
        ("preferred", 3, ("a", "c", "b")),
        ("preferred", 4, None),
        ("socket", 1, ("a",)),
        ("socket", 2, ("a", "b")),
        ("socket", 3, None),
    ],
)
def test_a_numa_policy_says_how_far_a_device_may_be_and_the_nearest_goes_first(policy: str, count: int, expected: Any) -> None:
    found = choose(HOST, [want(count, policy)], cells=[0], sockets=SOCKETS)

    assert (None if isinstance(found, Shortfall) else found) == expected


def test_without_numa_topology_nothing_is_far() -> None:
    assert choose(HOST, [want(3, "required")]) == ("a", "b", "c")


def test_socket_needs_the_sockets_of_all_cells() -> None:
    assert isinstance(choose(HOST, [want(2, "socket")], cells=[0], sockets={0: 0, 1: None}), Shortfall)
    assert choose([device("z", 2)], [want(1, "socket")], cells=[0], sockets=SOCKETS) != ("z",)
    assert choose(HOST, [want(1, "socket")], cells=[0], sockets={0: 0, 1: None}) == ("a",)


def test_a_shortfall_names_the_alias_the_amounts_and_what_there_is_elsewhere() -> None:
    found = choose(HOST, [want(2, "required")], cells=[0])

    assert str(found) == "pci: nic: 2 needed of 1 under the NUMA policy 'required', 3 anywhere"
    assert isinstance(found, Shortfall)
    assert (found.needed, found.free) == (2, 1)


def test_a_want_without_alias_is_named_by_its_specs_whatever_the_order_of_their_keys() -> None:
    wanted = PciWant(specs=({"vendor_id": "8086", "product_id": "1520"}, {"vendor_id": "10de"}))

    assert str(choose([], [wanted])) == "pci: product_id 1520, vendor_id 8086 or vendor_id 10de: 1 needed of 0"
    assert str(choose([], [PciWant()])) == "pci: no spec: 1 needed of 0"


@pytest.mark.parametrize("key", ["resource_class", "traits", "rp_uuids"])
def test_what_placement_answers_for_is_asked_of_no_device(key: str) -> None:
    assert choose(HOST, [PciWant(specs=({"vendor_id": "8086", key: "CUSTOM_NIC"},))]) == ("a",)


def test_any_of_the_specs_will_do_and_letters_may_be_large_or_small() -> None:
    devices = [device("a", product_id="AA01"), device("b", product_id="bb02", physical_network="Blue")]

    assert choose(devices, [PciWant(specs=({"product_id": "aa01"}, {"product_id": "BB02"}), count=2)]) == ("a", "b")
    assert choose(devices, [want(physical_network="blue")]) == ("b",)
    assert isinstance(choose(devices, [want(physical_network="red")]), Shortfall)
    assert isinstance(choose(devices, [PciWant(alias="nic")]), Shortfall)


def test_wants_are_served_in_order_and_get_different_devices() -> None:
    assert choose(HOST, [want(1), want(1)], cells=[0]) == ("a", "c")
    assert isinstance(choose(HOST, [want(1), want(3)]), Shortfall)


def test_plain_devices_go_before_tagged_ones() -> None:
    devices = [device("a", trusted="true"), device("b")]

    assert choose(devices, [want(1)]) == ("b",)


PF = device("pf", device_type="type-PF")
VFS = [device(f"vf{n}", device_type="type-VF", physical_function="pf") for n in range(2)]


def test_who_has_a_physical_function_has_its_virtual_ones_and_the_other_way_round() -> None:
    assert [each.address for each in available([PF, *VFS], {"pf"})] == []
    assert [each.address for each in available([PF, *VFS], {"vf0"})] == ["vf1"]
    assert isinstance(choose([PF, *VFS], [want(dev_type="type-VF"), want(dev_type="type-PF")]), Shortfall)
    assert choose([PF, *VFS], [want(2, dev_type="type-VF")]) == ("vf0", "vf1")


@pytest.mark.parametrize(("kind", "tags"), [("type-PF", {}), ("vdpa", {}), ("type-VF", {"remote_managed": "true"})])
def test_what_is_given_on_demand_only_must_be_named(kind: str, tags: dict[str, Any]) -> None:
    special = device("x", device_type=kind, **tags)

    assert isinstance(choose([special], [want(vendor_id="8086")]), Shortfall)
    assert choose([special], [want(dev_type=kind, **tags)]) == ("x",)


def test_one_of_several_specs_names_what_is_given_on_demand_only() -> None:
    remote = device("x", device_type="type-VF", remote_managed="true")
    specs = ({"vendor_id": "8086"}, {"vendor_id": "8086", "remote_managed": "true"})

    assert choose([remote], [PciWant(specs=specs)]) == ("x",)
    assert isinstance(choose([remote], [PciWant(specs=specs[:1])]), Shortfall)


def test_devices_of_sr_iov_are_not_remotely_managed_unless_they_say_so_and_others_say_nothing() -> None:
    assert choose(VFS, [want(remote_managed="false")]) == ("vf0",)
    assert isinstance(choose([device("x")], [want(remote_managed="false")]), Shortfall)
