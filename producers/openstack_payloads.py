"""What Nova's notifications say, in the few words that claimlog needs of them: instances, services, aggregates, hosts' nodes.

Versioned and legacy payloads come to the same facts. Amounts follow Nova's resource tracker (release 34, `_get_usage_dict`): root,
ephemeral and swap disk count, a root on a volume does not. Dedicated CPUs are counted apart, as in Placement and as our own claims do.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from producers.openstack_messages import Key, Notification
from schemas.audits import PowerState
from schemas.codec import Unreadable
from schemas.guests import Flavor
from schemas.requests import PlacementRequested
from schemas.resources import Resources
from schemas.units import AMOUNT_MAX, NAME_CHARACTERS_MAX, Name, Text

# Three disks add up, and a resize on one host counts twice: what comes of these must stay an amount.
SWAP_MIB_MAX = AMOUNT_MAX >> 3
Mib = Annotated[int, Meta(ge=0, le=SWAP_MIB_MAX)]
Gib = Annotated[int, Meta(ge=0, le=AMOUNT_MAX >> 13)]
Cpus = Annotated[int, Meta(ge=0, le=AMOUNT_MAX >> 3)]
PlaceName = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
"""A host's or node's name, which is a key of ours; empty while there is none."""

POWER_STATES: dict[str, PowerState] = {
    "pending": "unknown",
    "running": "running",
    "paused": "paused",
    "shutdown": "stopped",
    "crashed": "crashed",
    "suspended": "suspended",
}
"""Nova's power states; a `pending` one is what the driver has not told yet."""
STATES: dict[str, PowerState] = {"paused": "paused", "suspended": "suspended", "stopped": "stopped", "shelved": "stopped"}
"""States of an instance that say by themselves how its guest is."""


class FlavorSaid(Struct, frozen=True, gc=False):
    """A flavor as notifications write it, with Nova's units: MiB of memory and swap, GiB of disk."""

    vcpus: Cpus
    memory_mb: Mib
    root_gb: Gib
    ephemeral_gb: Gib = 0
    swap: Mib | None = 0
    name: Text | None = None
    flavorid: Text | None = None
    extra_specs: dict[str, str] | None = None

    @property
    def flavor(self) -> Flavor:
        """The same in our words."""
        return Flavor(
            name=self.name or "",
            vcpus=self.vcpus,
            memory_mib=self.memory_mb,
            root_gib=self.root_gb,
            ephemeral_gib=self.ephemeral_gb,
            swap_mib=self.swap or 0,
            extra_specs=self.extra_specs or {},
        )

    def resources(self, *, root_on_volume: bool) -> Resources:
        """What an instance of it takes: as a request for it would (`PlacementRequested.resources`)."""
        return PlacementRequested(request_id="-", flavor=self.flavor, boot_from_volume=root_on_volume).resources


class _Device(Struct):
    boot_index: int | None = None
    volume_id: Text | None = None


class _Instance(Struct):
    """The payload of a versioned notification; `block_devices` is empty unless Nova's `bdms_in_notifications` is set."""

    uuid: Name
    flavor: FlavorSaid
    host: PlaceName | None = None
    node: PlaceName | None = None
    state: Text | None = None
    task_state: Text | None = None
    power_state: Text | None = None
    display_name: Text | None = None
    tenant_id: Text | None = None
    image_uuid: Text | None = None
    block_devices: list[_Device] | None = None
    new_flavor: FlavorSaid | None = None
    deleted_at: Any = None
    terminated_at: Any = None
    fault: Any = None

    def root_on_volume(self) -> bool:
        """Nova starts an instance without an image from a volume; `boot_index` 0 is its root."""
        return not self.image_uuid or any(each.boot_index == 0 and each.volume_id for each in self.block_devices or ())


class _LegacyInstance(Struct):
    """The payload of a legacy notification: flat, without swap and extra specs; `state_description` is the task."""

    instance_id: Name
    memory_mb: Mib
    vcpus: Cpus
    root_gb: Gib
    ephemeral_gb: Gib = 0
    host: PlaceName | None = None
    node: PlaceName | None = None
    state: Text | None = None
    state_description: Text | None = None
    display_name: Text | None = None
    tenant_id: Text | None = None
    instance_type: Text | None = None
    instance_flavor_id: Text | None = None
    image_ref_url: Text | None = None
    image_meta: dict[str, Any] | None = None
    deleted_at: Any = None
    terminated_at: Any = None
    exception: Any = None

    def root_on_volume(self) -> bool:
        """As for versioned ones: an image's address without an image's id at its end."""
        if self.image_meta and "base_image_ref" in self.image_meta:
            return not self.image_meta["base_image_ref"]
        return self.image_ref_url is not None and self.image_ref_url.rpartition("/")[2] in {"", "None"}


class InstanceFact(Struct, frozen=True, kw_only=True, gc=False):
    """What one notification says of one instance: where its record stands and how large it is.

    `compute` is the host of the compute service that said it ("" for others): of a move it is often the other side than `host`.
    `is_deleted`: its record is; Nova says `instance.delete.end` of a deletion that failed, too. `fault` is the exception of an error.
    `size` is by the instance's own flavor, `new_size` by the one that a resize is preparing; `flavor` and `new_flavor` are their names.
    `flavor_id` with `is_exact` False: swap and dedicated CPUs are not said (legacy).
    """

    key: Key
    action: str
    phase: str
    instance_id: str
    size: Resources
    compute: str = ""
    host: str = ""
    node: str = ""
    state: str = ""
    task: str = ""
    is_deleted: bool = False
    fault: str = ""
    new_size: Resources | None = None
    flavor_id: str = ""
    new_flavor_id: str = ""
    flavor: str = ""
    new_flavor: str = ""
    is_exact: bool = True
    name: str = ""
    project_id: str = ""
    power_state: PowerState = "running"


class ServiceFact(Struct, frozen=True, kw_only=True, gc=False):
    """A compute service as its record stands: whether the operator or a fence has put it out of use, and why."""

    key: Key
    host: str
    is_deleted: bool
    is_disabled: bool
    reason: str
    zone: str


class AggregateFact(Struct, frozen=True, kw_only=True, gc=False):
    """A host aggregate as its record stands."""

    key: Key
    aggregate_id: str
    is_deleted: bool
    name: str
    hosts: tuple[str, ...]
    metadata: dict[str, str]


class HostFact(Struct, frozen=True, kw_only=True, gc=False):
    """Which node a compute service's host has, as said then."""

    host: str
    node: str
    time_us: int


Fact = InstanceFact | ServiceFact | AggregateFact | HostFact


class _Service(Struct):
    host: Name
    binary: Text
    disabled: bool = False
    forced_down: bool = False
    disabled_reason: Text | None = None
    availability_zone: Text | None = None


class _Aggregate(Struct):
    uuid: Name
    name: Name
    hosts: list[Name] | None = None
    metadata: dict[Name, Text] | None = None


class _Metrics(Struct):
    host: Name
    nodename: Name


def read_fact(said: Notification, swap_mib: Mapping[str, int]) -> Fact | Unreadable | None:
    """What a notification says; None if it is none of ours, `Unreadable` if it should have been.

    `swap_mib` is the swap of flavors by name, for legacy messages, which do not say it.
    """
    read = _READERS.get(said.action) or (_instance if said.action.startswith("instance.") else None)
    if read is None or said.action in NOT_OF_INSTANCES:
        return None
    try:
        return read(said, swap_mib)
    except ValueError as error:
        return Unreadable("invalid", f"{said.event}: {error}")


NOT_OF_INSTANCES = frozenset({"instance.libvirt_error"})
"""Named like an instance's action, and none."""

ELSEWHERE = frozenset({"instance_ids", "instance_uuids", "$ref"})
"""In a payload without an instance: about several, by their ids, or a sample of Nova's documentation that stands in a file of its own."""

NO_SIZE = {"vcpus": 0, "memory_mb": 0, "root_gb": 0}
"""For a deletion that does not say the size: what is freed is known from the messages before it."""


def _instance(said: Notification, swap_mib: Mapping[str, int]) -> InstanceFact | None:
    if "flavor" in said.payload:
        return _versioned(said)
    if said.is_versioned or "uuid" in said.payload:
        raise ValueError("Object missing required field `flavor`")
    if "instance_id" not in said.payload and not ELSEWHERE.isdisjoint(said.payload):
        return None
    return _legacy(said, swap_mib)


def _versioned(said: Notification) -> InstanceFact:
    payload = msgspec.convert(said.payload, _Instance)
    on_volume = payload.root_on_volume()
    new = payload.new_flavor
    return InstanceFact(
        key=said.key,
        action=intern(said.action),
        phase=intern(said.phase),
        instance_id=payload.uuid,
        size=payload.flavor.resources(root_on_volume=on_volume),
        compute=intern(said.compute_host),
        host=intern(payload.host or ""),
        node=intern(payload.node or ""),
        state=intern(payload.state or ""),
        task=intern(payload.task_state or ""),
        is_deleted=_is_deleted(said, payload),
        fault=str(payload.fault.get("exception") or "") if isinstance(payload.fault, dict) else "",
        new_size=None if new is None else new.resources(root_on_volume=on_volume),
        flavor_id=intern(payload.flavor.flavorid or ""),
        new_flavor_id="" if new is None else new.flavorid or "",
        flavor=intern(payload.flavor.name or ""),
        new_flavor="" if new is None else intern(new.name or ""),
        name=payload.display_name or "",
        project_id=intern(payload.tenant_id or ""),
        power_state=_power_state(payload.state or "", payload.power_state or ""),
    )


def _legacy(said: Notification, swap_mib: Mapping[str, int]) -> InstanceFact:
    has_size = "memory_mb" in said.payload
    payload = msgspec.convert(said.payload if has_size else {**NO_SIZE, **said.payload}, _LegacyInstance)
    is_deleted = _is_deleted(said, payload)
    if not (has_size or is_deleted):
        raise ValueError("Object missing required field `memory_mb`")
    swap = swap_mib.get(payload.instance_type or "", 0)
    flavor = FlavorSaid(payload.vcpus, payload.memory_mb, payload.root_gb, payload.ephemeral_gb, swap)
    return InstanceFact(
        key=said.key,
        action=intern(said.action),
        phase=intern(said.phase),
        instance_id=payload.instance_id,
        size=flavor.resources(root_on_volume=payload.root_on_volume()),
        compute=intern(said.compute_host),
        host=intern(payload.host or ""),
        node=intern(payload.node or ""),
        state=intern(payload.state or ""),
        task=intern(payload.state_description or ""),
        is_deleted=is_deleted,
        fault=_exception_of(payload.exception),
        flavor_id=intern(payload.instance_flavor_id or ""),
        flavor=intern(payload.instance_type or ""),
        is_exact=False,
        name=payload.display_name or "",
        project_id=intern(payload.tenant_id or ""),
        power_state=_power_state(payload.state or "", "running"),
    )


def _is_deleted(said: Notification, payload: _Instance | _LegacyInstance) -> bool:
    """Whether the record is. The end of a deletion is said of one that failed as well (nova 34: compute/utils.py, in a `finally`)."""
    is_end = (said.action, said.phase) == ("instance.delete", "end")
    # One that was deleted softly has been stamped as deleted since then.
    stamps = payload.terminated_at or (payload.deleted_at if payload.state != "soft-delete" else None)
    return payload.state == "deleted" or (is_end and bool(stamps))


def _exception_of(said: object) -> str:
    """The exception's class in a legacy message: `GroupAffinityViolation(...)`, or an object that names it."""
    if isinstance(said, dict):
        said = said.get("kwargs", said).get("class") or said.get("message") or ""
    return str(said or "").partition("(")[0]


def _power_state(state: str, power_state: str) -> PowerState:
    return STATES.get(state) or POWER_STATES.get(power_state, "unknown")


def _service(said: Notification, _: Mapping[str, int]) -> ServiceFact | None:
    payload = msgspec.convert(said.payload, _Service)
    if payload.binary != "nova-compute":
        return None
    reason = payload.disabled_reason or ("forced down" if payload.forced_down else "")
    return ServiceFact(
        key=said.key,
        host=payload.host,
        is_deleted=said.action == "service.delete",
        is_disabled=payload.disabled or payload.forced_down,
        reason=reason,
        zone=payload.availability_zone or "",
    )


def _aggregate(said: Notification, _: Mapping[str, int]) -> AggregateFact | None:
    if not said.is_versioned or said.phase != "end":
        return None  # A start tells the record as it was; a legacy one tells a change without the whole.
    payload = msgspec.convert(said.payload, _Aggregate)
    return AggregateFact(
        key=said.key,
        aggregate_id=payload.uuid,
        is_deleted=said.action == "aggregate.delete",
        name=payload.name,
        hosts=tuple(sorted(payload.hosts or ())),
        metadata=payload.metadata or {},
    )


def _metrics(said: Notification, _: Mapping[str, int]) -> HostFact | None:
    if not said.is_versioned:
        return None
    payload = msgspec.convert(said.payload, _Metrics)
    return HostFact(host=payload.host, node=payload.nodename, time_us=said.time_us or 0)


_READERS = {
    **dict.fromkeys(("service.create", "service.update", "service.delete"), _service),
    **dict.fromkeys(
        (
            "aggregate.create",
            "aggregate.delete",
            "aggregate.add_host",
            "aggregate.remove_host",
            "aggregate.update_prop",
            "aggregate.update_metadata",
        ),
        _aggregate,
    ),
    "metrics.update": _metrics,
}
