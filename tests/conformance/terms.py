"""Nova's terms for hosts and requests as the product's: names and units are translated, nothing is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from projections.node import NOTHING, Claim, Node, Shown
from projections.room import Room, mark_of, room
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, GroupMember
from schemas.inventory import (
    Aggregate,
    CpuInfo,
    HugePages,
    Hypervisor,
    Metric,
    NumaCell,
    PciPool,
    ResourceRule,
    SupportedGuest,
)
from schemas.requests import Flavor, Hints, Image, PlacementRequested, ServerGroup
from schemas.resources import Resources
from schemas.results import CellGrant
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.options import Options
from tests.conformance.ledger_areas import devices_in, flat, in_whole, pci_wants_of, want_of

GIB = 1024
COUNTED_KIB = 1
"""A size of pages that no cell has: of a use whose pages are told apart."""
GROUP = "group"
POLICIES: Mapping[str, Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]] = {
    "affinity": "affinity",
    "anti-affinity": "anti-affinity",
    "soft-affinity": "soft-affinity",
    "soft-anti-affinity": "soft-anti-affinity",
}
HOST_NAMES = {"nodename": "node", "numa_topology": "numa_cells", "cell_uuid": "cell"}
REQUEST_NAMES = {
    "scheduler_hints": "hints",
    "instance_group": "group",
    "instance_uuid": "instance_id",
    "numa_topology": "numa_cells",
    "requested_destination": "destination",
}
"""Names of Nova's objects for what vectors mostly call otherwise."""
RATIOS = {"vcpus": "cpu_allocation_ratio", "memory_mib": "ram_allocation_ratio", "disk_mib": "disk_allocation_ratio"}


def options_of(config: Mapping[str, Any] | None) -> Options:
    """The options among what a vector configures; multipliers are the weighers' own."""
    named = flat(config).items()
    said = {name: value for name, value in named if value is not None and name in Options.__struct_fields__}
    return msgspec.convert(in_whole(said), Options)


def renamed(said: Mapping[str, Any] | None, names: Mapping[str, str]) -> dict[str, Any]:
    """What is told, by the names that vectors mostly use; of Nova's objects that hold a list (cells, requests), the list."""
    found = {names.get(key, key): value for key, value in (said or {}).items()}
    for key, inner in (("numa_cells", "cells"), ("pci_requests", "requests")):
        if isinstance(found.get(key), Mapping):
            found[key] = found[key].get(inner)
    group = found.get("group")
    if group and "policy" not in group:
        found["group"] = {**group, "policy": next(iter(group.get("policies") or ()), None)}
    return found


def node_name(host: Mapping[str, Any]) -> str:
    """A node by host and node, as the product's one name."""
    return f"{host.get('host', 'host1')}/{host.get('node', 'node1')}"


def room_of(host: Mapping[str, Any], members: Sequence[str] = (), policy: str = "anti-affinity") -> Room:
    """The room of one of Nova's host states; `members` are the group's instances wherever they are."""
    node = Node(node_name(host), hypervisor=_hypervisor(host), aggregates=aggregates_of(host.get("aggregates")))
    service = host.get("service") or {}
    node.status = "disabled" if service.get("disabled") else "enabled"
    node.silent_since_ms = None if service.get("up", True) else 0
    for resource, ratio in RATIOS.items():
        if host.get(ratio) is not None:
            setattr(node, resource, ResourceRule(ratio_milli=round(host[ratio] * 1000)))
    node.refresh()
    node.claims = _claims(host, node.node_id)
    node.shown = _shown(host)
    memory_mib, disk_mib = _used(host, "free_ram_mb", _memory_mib(host)), _used(host, "free_disk_mb", _disk_mib(host))
    node.used = [host.get("vcpus_used") or 0, 0, memory_mib, disk_mib]
    instances = _instances(host, node.node_id, members, policy)
    # They stand for what is there, where claims in flight would be I/O operations: of those the host's own figure has told.
    node.io_claims = -len(instances)
    return room(node, 0, mark_of(node.node_id), instances)


def counted_alone(host: dict[str, Any], subject: str) -> dict[str, Any]:
    """A host as Nova's rules about the number of instances see it: by the count that it reports, whichever it names."""
    return host if "NumInstances" not in subject else {key: value for key, value in host.items() if key != "instances"}


def aggregates_of(listed: Sequence[Mapping[str, str]] | None) -> tuple[Aggregate, ...]:
    """Aggregates that have these metadata."""
    return tuple(Aggregate(name=f"a{number}", metadata=dict(metadata)) for number, metadata in enumerate(listed or ()))


def ask_for(asked: Mapping[str, Any], node: str = "node1", **more: Any) -> Ask:
    """What Nova's request specification asks for, as one of the product's asks. A group's hosts are ours with this node."""
    group, hints, image = asked.get("group"), asked.get("hints") or {}, asked.get("image") or {}
    destination, flavor = asked.get("destination") or {}, asked.get("flavor") or {}
    request = PlacementRequested(
        request_id="request",
        instance_ids=(asked.get("instance_id") or "instance",),
        flavor=Flavor(
            name=flavor.get("name", ""),
            vcpus=flavor.get("vcpus", 0),
            memory_mib=flavor.get("memory_mb", 0),
            root_gib=flavor.get("root_gb", 0),
            ephemeral_gib=flavor.get("ephemeral_gb", 0),
            swap_mib=flavor.get("swap", 0),
            extra_specs=_texts(flavor.get("extra_specs")),
        ),
        image=Image(image_id=image.get("id") or "", properties=_texts(image.get("properties"))),
        hints=Hints(
            same_host=listed(hints.get("same_host")),
            different_host=listed(hints.get("different_host")),
            build_near_host_ip=_first(hints.get("build_near_host_ip")),
            cidr=_first(hints.get("cidr")),
            query=_first(hints.get("query")),
        ),
        group=_group(group),
        availability_zone=asked.get("availability_zone") or "",
        project_id=asked.get("project_id") or "",
        retry_nodes=tuple(map(_tried, (asked.get("retry") or {}).get("hosts") or ())),
        preferred_cell=destination.get("cell") or "",
        cross_cell_move=bool(destination.get("allow_cross_cell_move")),
        numa=tuple(want_of(cell, asked.get("emulator_threads_policy")) for cell in asked.get("numa_cells") or ()),
        pci=pci_wants_of(asked.get("pci_requests") or ()),
        **more,
    )
    group_hosts = frozenset(f"{host}/{node}" for host in (group or {}).get("hosts") or ())
    return ask_of(request, 0, seed=0, group_nodes=group_hosts)


def _tried(said: Any) -> str:
    """A host that was tried: a pair, or an object of host and node."""
    host, node = (said["host"], said.get("node", said.get("nodename"))) if isinstance(said, Mapping) else said
    return f"{host}/{node}"


def cpu_info_of(said: Any) -> CpuInfo:
    """Nova's cpu_info, an object or its text; a text that is no JSON reports nothing."""
    if isinstance(said, str):
        try:
            said = msgspec.json.decode(said)
        except msgspec.DecodeError:
            said = None
    said = said if isinstance(said, Mapping) else {}
    topology = said.get("topology") or {}
    return CpuInfo(
        architecture=said.get("arch", ""),
        model=said.get("model", ""),
        vendor=said.get("vendor", ""),
        sockets=topology.get("sockets", 0),
        cores=topology.get("cores", 0),
        threads=topology.get("threads", 0),
        maxphysaddr_bits=(said.get("maxphysaddr") or {}).get("bits"),
        features=tuple(said.get("features", ())),
    )


def _hypervisor(host: Mapping[str, Any]) -> Hypervisor:
    version = host.get("hypervisor_version") or 0
    if isinstance(version, str):
        version = sum(int(part) * 1000**place for place, part in enumerate(reversed(version.split("."))))
    kinds = host.get("supported_instances") or ()
    supported = [dict(zip(("architecture", "hypervisor_type", "vm_mode"), kind, strict=True)) for kind in kinds]
    return Hypervisor(
        vcpus=host.get("vcpus_total") or None,
        memory_mib=_memory_mib(host),
        disk_mib=_disk_mib(host),
        host_ip=host.get("host_ip") or "",
        hypervisor_version=version,
        supported_guests=msgspec.convert(supported, tuple[SupportedGuest, ...]),
        cpu_info=cpu_info_of(host.get("cpu_info")),
        metrics=tuple(Metric(name=name, value_milli=_milli(value)) for name, value in _metrics(host.get("metrics") or {})),
        pci_pools=tuple(PciPool(count=count) for count in host.get("pci_pool_counts") or ()),
        io_workload=host.get("num_io_ops") or 0,
        failed_builds=host.get("failed_builds") or 0,
        service_host=host.get("host", "host1"),
        cell=host.get("cell") or "",
        numa_cells=tuple(map(_numa_cell, host.get("numa_cells") or ())),
        pci_devices=tuple(devices_in(dict(host))),
    )


def _metrics(said: Any) -> list[tuple[str, Any]]:
    """Figures by name, or Nova's list of objects that each have a name and a value."""
    return list(said.items()) if isinstance(said, Mapping) else [(each["name"], each["value"]) for each in said]


def _numa_cell(given: Mapping[str, Any]) -> NumaCell:
    """Nova's cpuset and pcpuset; what it counts as used pages is not free."""
    return NumaCell(
        cell_id=given["id"],
        cpus=tuple(sorted({*(given.get("cpuset") or ()), *(given.get("pcpuset") or ())})),
        dedicated_cpus=tuple(given.get("pcpuset") or ()),
        siblings=tuple(tuple(sorted(core)) for core in given.get("siblings") or ()),
        memory_mib=given["memory"],
        socket=given.get("socket"),
        pages=tuple(HugePages(size_kib=size, total=total, free=total - used) for size, total, used in given.get("mempages") or ()),
    )


def _memory_mib(host: Mapping[str, Any]) -> int | None:
    """A host of which only what is free is known has that in all."""
    total: int | None = host.get("total_usable_ram_mb", max(host.get("free_ram_mb") or 0, 0) if "free_ram_mb" in host else None)
    return total


def _disk_mib(host: Mapping[str, Any]) -> int | None:
    if host.get("total_usable_disk_gb") is not None:
        return int(host["total_usable_disk_gb"] * GIB)
    return max(host["free_disk_mb"], 0) if host.get("free_disk_mb") is not None else None


def _used(host: Mapping[str, Any], free: str, total: int | None) -> int:
    return (total or 0) - (host.get(free) or 0)


def _instances(host: Mapping[str, Any], node_id: str, members: Sequence[str], policy: str) -> list[ClaimItem]:
    """The host's instances as claims that take nothing: by name, and as many more as are counted."""
    names = [each if isinstance(each, str) else _id(each) for each in host.get("instances") or ()]
    names += [f"instance-{number}" for number in range(len(names), int(host.get("num_instances") or 0))]
    group = GroupMember(group_id=GROUP, policy=POLICIES.get(policy, "anti-affinity"))
    return [
        ClaimItem(claim_id=name, instance_id=name, nodes=(node_id,), resources=Resources(), group=group if name in members else None)
        for name in names
    ]


def _group(group: Mapping[str, Any] | None) -> ServerGroup | None:
    if not group or group.get("policy") not in POLICIES:  # Nova's filters pass any other by, such as its old `legacy`.
        return None
    most = int((group.get("rules") or {}).get("max_server_per_host", 1))
    return ServerGroup(group_id=GROUP, policy=group["policy"], max_per_node=most)


def _id(instance: Mapping[str, Any]) -> str:
    name: str = instance.get("uuid") or instance["id"]
    return name


def _shown(host: Mapping[str, Any]) -> dict[str, Shown]:
    """The host's instances of which it is told what their images say, or what their flavors are called."""
    listed = host.get("instances") or ()
    told = listed.items() if isinstance(listed, Mapping) else [(_id(each), each) for each in listed if not isinstance(each, str)]
    found = {}
    for name, said in told:
        if isinstance(said, Mapping):
            properties = said.get("image_properties", said.get("properties", said.get("image") or {}))
            flavor = said.get("flavor") or ""
            report = InstanceReport(
                instance_id=name,
                flavor=flavor.get("name", "") if isinstance(flavor, Mapping) else flavor,
                image_properties=_texts(properties.get("properties", properties)),
            )
            found[name] = Shown(report, (0, 0, 0, 0), 0)
    return found


def _claims(host: Mapping[str, Any], node_id: str) -> dict[str, list[Claim]]:
    """What is used in the host's cells is a claim's of somebody else. Pages that it has are among those that the cell counts as used."""
    used = [
        CellGrant(
            cell_id=cell["id"],
            vcpus=cell.get("cpu_usage") or 0,
            memory_mib=cell.get("memory_usage") or 0,
            page_size_kib=COUNTED_KIB if cell.get("mempages") else 0,
            held_cpus=tuple(sorted(cell.get("pinned_cpus") or ())),
        )
        for cell in host.get("numa_cells") or ()
    ]
    cells = tuple(grant for grant in used if grant.vcpus or grant.memory_mib or grant.held_cpus)
    if not cells:
        return {}
    claim = Claim("other", "other", "other", node_id, "other", 0, NOTHING, 0, 0, 0, cells=cells)
    return {"other": [claim]}


def _milli(value: Any) -> int:
    """A figure in thousandths; one that is measured for each NUMA cell, as their sum."""
    return round(1000 * (sum(value.values()) if isinstance(value, Mapping) else value))


def _texts(said: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (said or {}).items() if value is not None}


def listed(hint: Any) -> tuple[str, ...]:
    return (hint,) if hint and isinstance(hint, str) else tuple(hint or ())


def _first(hint: Any) -> str:
    return next(iter(listed(hint)), "")
