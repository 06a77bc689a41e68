"""What a cloud asked its scheduler for, and what came of it: `select_destinations` in our words, for a scheduler of ours to answer too.

Versioned payloads are Nova's RequestSpecPayload 1.1; legacy ones are read for the size, the zone and the owner. What kind of move is asked
for they do not say; Nova names the host that is left among those to ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from producers.openstack_messages import Key, Notification
from producers.openstack_payloads import FlavorSaid
from schemas.aliases import ALIAS_KEY
from schemas.codec import Unreadable
from schemas.guests import Image, PciWant
from schemas.requests import INSTANCES_MAX, Hints, PlacementRequested, ServerGroup
from schemas.units import Count, Name, Text

SELECT = "scheduler.select_destinations"
FAILED = frozenset({"compute_task.build_instances", "compute_task.migrate_server", "compute_task.rebuild_server"})
"""What the conductor says of a build, a move or an evacuation for which there was no host (nova 34: conductor/manager.py)."""
CHECK_HINT = "_nova_check_type"
"""A rebuild in place asks whether its host still suits: nothing is chosen."""
HINTS_OF_ONE = ("build_near_host_ip", "cidr", "query")
HINTS_OF_SEVERAL = ("same_host", "different_host")
GROUP_POLICIES = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")
LISTED_BY_CELL = ("hw_numa_cpus", "hw_numa_mem")
"""Image properties of which an image has one for each of its cells (`hw_numa_mem.0`, …)."""
PCI_POLICIES = ("required", "legacy", "preferred", "socket")


class Asked(Struct, frozen=True, kw_only=True, gc=False):
    """The scheduler was asked. `members` are the group's other instances, None if it does not name them.

    `wanted_host` is the one host that will do, if there is one.
    """

    key: Key
    request: PlacementRequested
    instance_id: str
    members: tuple[str, ...] | None = None
    wanted_host: str = ""


class Answered(Struct, frozen=True, kw_only=True, gc=False):
    """The scheduler named hosts (which, it does not say), or there was none: `reason`."""

    key: Key
    instance_id: str
    reason: str = ""


class _Image(Struct):
    id: Text | None = None
    properties: dict[str, Any] | None = None


class _Group(Struct):
    uuid: Name
    policies: list[Text] | None = None
    policy: Text | None = None
    rules: dict[str, str] | None = None
    members: list[Name] | None = None


class _Destination(Struct):
    host: Text | None = None
    node: Text | None = None


class _Retry(Struct):
    hosts: list[Name] | None = None


class _PciRequest(Struct):
    count: Count = 1
    spec: list[dict[str, str | None]] | None = None
    alias_name: Text | None = None
    numa_policy: Text | None = None


class _PciRequests(Struct):
    requests: list[_PciRequest] | None = None


class _Spec(Struct):
    instance_uuid: Name
    flavor: FlavorSaid
    num_instances: Count = 1
    image: _Image | None = None
    availability_zone: Text | None = None
    project_id: Text | None = None
    user_id: Text | None = None
    ignore_hosts: list[Name] | None = None
    force_hosts: str | list[str] | None = None
    force_nodes: str | list[str] | None = None
    instance_group: _Group | None = None
    requested_destination: _Destination | None = None
    retry: _Retry | None = None
    scheduler_hints: dict[str, list[str] | str] | None = None
    pci_requests: _PciRequests | None = None


class _Reason(Struct):
    exception: str | None = None
    exception_message: str | None = None


class _Failed(Struct):
    instance_uuid: Name
    reason: _Reason | None = None


def read_request(said: Notification) -> Asked | Answered | Unreadable | None:
    """What a notification says of a request; None if it says nothing, `Unreadable` if it should have."""
    try:
        if said.action == SELECT:
            spec = _spec(said)
            if spec is None:
                return None
            return _asked(said, spec) if said.phase == "start" else _answered(said, spec)
        if said.action in FAILED:
            return _failed(said)
    except ValueError as error:
        return Unreadable("invalid", f"{said.event}: {error}")
    return None


def _spec(said: Notification) -> _Spec | None:
    if said.is_versioned:
        return msgspec.convert(said.payload, _Spec)
    spec = said.payload.get("request_spec")
    if not isinstance(spec, Mapping):
        raise ValueError("Expected `object` - at `$.request_spec`")
    instance = spec.get("instance_properties")
    if not isinstance(instance, Mapping) or "uuid" not in instance:
        return None  # A legacy one that names no instance cannot be told from others.
    image = spec.get("image")
    return msgspec.convert(
        {
            "instance_uuid": instance["uuid"],
            "flavor": spec.get("instance_type"),
            "num_instances": spec.get("num_instances", 1),
            "image": image if isinstance(image, Mapping) and image else None,
            "availability_zone": instance.get("availability_zone"),
            "project_id": instance.get("project_id"),
            "user_id": instance.get("user_id"),
        },
        _Spec,
    )


def _asked(said: Notification, spec: _Spec) -> Asked | None:
    hints = spec.scheduler_hints or {}
    if CHECK_HINT in hints:
        return None
    group, wanted = spec.instance_group, spec.requested_destination
    flavor = spec.flavor.flavor
    image = spec.image or _Image()
    key = said.key
    count = min(max(spec.num_instances, 1), INSTANCES_MAX)
    request = PlacementRequested(
        request_id=f"nova/{spec.instance_uuid}/{key.time_us}",
        # Devices stand in the request itself; what the alias means is known to the cloud's configuration alone.
        flavor=msgspec.structs.replace(flavor, extra_specs={k: v for k, v in flavor.extra_specs.items() if k != ALIAS_KEY}),
        count=count,
        instance_ids=tuple(spec.instance_uuid if number == 0 else f"{spec.instance_uuid}/{number}" for number in range(count)),
        image=Image(image_id=image.id or "", properties=_properties(image.properties or {})),
        hints=_hints(hints),
        group=None if group is None else _group(group),
        availability_zone=spec.availability_zone or "",
        project_id=spec.project_id or "",
        user_id=spec.user_id or "",
        forced_hosts=_names(spec.force_hosts),
        forced_nodes=_names(spec.force_nodes),
        ignored_hosts=tuple(spec.ignore_hosts or ()),
        requested_nodes=(wanted.node,) if wanted is not None and wanted.node else (),
        retry_nodes=tuple(spec.retry.hosts or ()) if spec.retry is not None else (),
        pci=tuple(_pci(each) for each in (spec.pci_requests.requests or () if spec.pci_requests is not None else ())),
        boot_from_volume=not image.id,
    )
    return Asked(
        key=key,
        request=request,
        instance_id=spec.instance_uuid,
        members=None if group is None or group.members is None else tuple([each for each in group.members if each != spec.instance_uuid]),
        wanted_host="" if wanted is None or wanted.node else wanted.host or "",
    )


def _answered(said: Notification, spec: _Spec) -> Answered | None:
    return Answered(key=said.key, instance_id=spec.instance_uuid) if said.phase == "end" else None


def _failed(said: Notification) -> Answered | None:
    if not said.is_versioned:
        instance_id, text = said.payload.get("instance_id"), str(said.payload.get("reason") or "failed")
        return Answered(key=said.key, instance_id=instance_id, reason=text[:200]) if isinstance(instance_id, str) else None
    failed = msgspec.convert(said.payload, _Failed)
    reason = failed.reason or _Reason()
    return Answered(key=said.key, instance_id=failed.instance_uuid, reason=(reason.exception or reason.exception_message or "failed")[:200])


def _names(said: str | list[str] | None) -> tuple[str, ...]:
    """Nova writes the one that is forced as a text."""
    return tuple(filter(None, [said] if isinstance(said, str) else said or ()))


def _properties(values: Mapping[str, Any]) -> dict[str, str]:
    """Image properties as texts, as the image itself has them: of lists, versioned messages have one property where an image has several.

    One that is not set says nothing.
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(value, list):
            found |= {} if value is None else {name: str(value)}
        elif name == "traits_required":
            found |= {f"trait:{trait}": "required" for trait in value}
        elif name in LISTED_BY_CELL:
            found |= {f"{name}.{cell}": _listed(each) for cell, each in enumerate(value)}
        else:
            found[name] = _listed(value)
    return found


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _hints(said: Mapping[str, list[str] | str]) -> Hints:
    lists = {name: value if isinstance(value, list) else [value] for name, value in said.items()}
    one = {name: lists[name][0] for name in HINTS_OF_ONE if lists.get(name)}
    several = {name: tuple(lists.get(name, ())) for name in HINTS_OF_SEVERAL}
    known = {*HINTS_OF_ONE, *HINTS_OF_SEVERAL}
    other = {name: value[0] for name, value in lists.items() if name not in known and value}
    return msgspec.convert({**one, **several, "other": other}, Hints)


def _group(said: _Group) -> ServerGroup | None:
    policy = said.policy or next(iter(said.policies or ()), "")
    if policy not in GROUP_POLICIES:
        return None
    most = (said.rules or {}).get("max_server_per_host", "1")
    named = cast("Literal['affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity']", policy)
    return ServerGroup(group_id=said.uuid, policy=named, max_per_node=int(most) if most.isdecimal() else 1)


def _pci(said: _PciRequest) -> PciWant:
    policy = said.numa_policy if said.numa_policy in PCI_POLICIES else "legacy"
    return PciWant(
        alias=said.alias_name or "",
        count=said.count,
        specs=tuple({name: value for name, value in each.items() if value is not None} for each in said.spec or ()),
        numa_policy=cast("Literal['required', 'legacy', 'preferred', 'socket']", policy),
    )
