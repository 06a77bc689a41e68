"""A request and a node by the names of Nova's RequestSpec and HostState: what classes in Nova's style are given (`scheduling.custom`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from projections.room import Room
from schemas.requests import Hints, PlacementRequested
from streams.scheduling.ask import Ask
from streams.scheduling.facts import facts_of, host_of
from streams.scheduling.image_properties import read


class _Named(SimpleNamespace):
    """Values by Nova's names, of which can be asked whether they are there, as of any object of Nova."""

    def obj_attr_is_set(self, name: str) -> bool:
        """Whether there is such a name, though it may be None; `in` asks the same."""
        return hasattr(self, name)

    __contains__ = obj_attr_is_set


class _Over(_Named):
    """One of our structs by Nova's names; whatever has no such name is the struct's own (`ours`)."""

    ours: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "ours":  # Asked by copy and the like of what is not made yet.
            raise AttributeError(name)
        return getattr(self.ours, name)


class _Properties(dict[str, str]):
    """The properties of an image: as it has them, by today's names where it has old ones, and as attributes too."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__({**read(properties), **properties})

    def __getattr__(self, name: str) -> str:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the image has no property {name!r}; .get({name!r}) gives None then") from None

    def to_dict(self) -> dict[str, str]:
        """A copy of them."""
        return dict(self)


class Spec(_Over):
    """A request by the names of Nova's RequestSpec, as a node sees it."""

    scheduler_hints: Mapping[str, list[str]]

    def get_scheduler_hint(self, hint_name: str, default: Any = None) -> Any:
        """The hint, the one value itself where it has no more; `default` if it was not given."""
        values: Any = self.scheduler_hints.get(hint_name, default)
        return values[0] if isinstance(values, list) and len(values) == 1 else values


def spec_on(ask: Ask) -> Callable[[Room], Spec]:
    """The spec of an ask as each node sees it: of its group and of the nodes it may go to, a node's room shows what concerns that node."""
    request, flavor, limits = ask.request, ask.request.flavor, ask.request.limits
    sizes = {
        "memory_mb": flavor.memory_mib,
        "vcpus": flavor.vcpus,
        "root_gb": flavor.root_gib,
        "ephemeral_gb": flavor.ephemeral_gib,
        "swap": flavor.swap_mib,
    }
    disk_gb = None if limits is None or limits.disk_mib is None else limits.disk_mib // 1024
    wants = [_Over(ours=want, alias_name=want.alias, spec=[dict(each) for each in want.specs]) for want in ask.item.pci]
    tried = [(node, node) for node in request.retry_nodes] + [(host, None) for host in request.retry_hosts]
    said = {
        **sizes,
        "ours": request,
        "flavor": _Over(ours=flavor, **sizes, flavorid=flavor.name),
        "image": _Over(ours=request.image, id=request.image.image_id, properties=_Properties(request.image.properties)),
        "scheduler_hints": _hints(request.hints),
        "num_instances": request.count,
        "instance_uuid": ask.instance_id,
        "ignore_hosts": [*request.ignored_hosts],
        "force_hosts": [*request.forced_hosts],
        "force_nodes": [*request.forced_nodes],
        "retry": _Named(num_attempts=len(tried), hosts=[_host(*each) for each in tried]) if tried else None,
        "limits": limits and _Over(ours=limits, vcpu=limits.vcpus, memory_mb=limits.memory_mib, disk_gb=disk_gb, numa_topology=None),
        "numa_topology": None,
        "pci_requests": _Named(requests=wants) if wants else None,
        "requested_resources": [],
        "is_bfv": request.boot_from_volume,
    }
    return lambda room: Spec(**said, instance_group=_group(ask, room), requested_destination=_destination(request, room))


def _hints(hints: Hints) -> dict[str, list[str]]:
    several = {"same_host": [*hints.same_host], "different_host": [*hints.different_host]}
    single = {"build_near_host_ip": hints.build_near_host_ip, "cidr": hints.cidr, "query": hints.query, **hints.other}
    return {name: values for name, values in several.items() if values} | {name: [text] for name, text in single.items() if text}


def _host(host: str | None, node: str | None) -> _Named:
    return _Named(host=host, hypervisor_hostname=node, nodename=node)


def _group(ask: Ask, room: Room) -> _Named | None:
    """The server group: of its members those on this node, of its hosts this one if any are there, and those an affinity is bound to."""
    group = ask.request.group
    if group is None:
        return None
    members = sorted(room.members(group.group_id))
    here = [host_of(room)] if members or room.node_id in ask.group_nodes else []
    rules = {"max_server_per_host": group.max_per_node} if group.policy == "anti-affinity" else {}
    return _Named(
        uuid=group.group_id,
        name=group.group_id,
        policy=group.policy,
        policies=[group.policy],
        rules=rules,
        max_server_per_host=group.max_per_node,
        members=members,
        hosts=here + sorted(ask.group_nodes - {room.node_id}),
    )


def _destination(request: PlacementRequested, room: Room) -> _Named | None:
    """Where the request wants to go: this node if it is one of those named, else the first of them; None if it names none."""
    nodes, hosts, cell = request.requested_nodes, request.requested_hosts, request.preferred_cell
    if not (nodes or hosts or cell):
        return None
    host = host_of(room)
    is_named = (not nodes or room.node_id in nodes) and (not hosts or host in hosts)
    return _Named(
        host=(host if is_named else next(iter(hosts), None)) if nodes or hosts else None,
        node=(room.node_id if is_named else nodes[0]) if nodes else None,
        cell=_Named(uuid=cell) if cell else None,
        allow_cross_cell_move=request.cross_cell_move,
    )


class HostState(SimpleNamespace):
    """A node by the names of Nova's HostState. `limits` is there to be written to, and nobody reads what was: claims carry their own."""

    _room: Room

    @cached_property
    def instances(self) -> dict[str, _Named]:
        """The instances on the node and those on their way to it, in order of their ids, as sets have none; None wherever nobody says."""
        return {instance_id: _instance(self._room, instance_id) for instance_id in sorted(self._room.instances)}


def host_state(room: Room) -> HostState:
    """The node as a host state."""
    return HostState(**facts_of(room), aggregates=list(room.node.aggregates), limits={}, _room=room)


def _instance(room: Room, instance_id: str) -> _Named:
    """What claims in flight, else those held, else the host itself say of it."""
    laid = [item for item in room.overlay if item.instance_id == instance_id]
    held, shown = room.node.claims.get(instance_id, []), room.node.shown.get(instance_id)
    reports = [shown.report] if shown is not None else []
    said: list[Any] = [*reversed(laid), *reversed(held), *reports]
    properties = _Properties(reports[0].image_properties if reports else {})
    return _Named(
        uuid=instance_id,
        project_id=next((each.project_id for each in said if each.project_id), None),
        flavor=_Named(name=next((each.flavor for each in said if each.flavor), None)),
        image_meta=_Named(properties=properties),
        image_properties=properties,
    )
