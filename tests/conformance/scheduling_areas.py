"""What the scheduler's vectors say (filters, weighers, extra specs, aggregates, choice of hosts), in the product's terms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from projections.room import Room
from schemas.resources import Limits
from streams.scheduling import aggregates, extra_specs
from streams.scheduling.crowd import Figures
from streams.scheduling.filters import FILTERS, Filter, reason
from streams.scheduling.filters.capabilities import lacking
from streams.scheduling.filters.json_query import QueryError, holds, parsed
from streams.scheduling.options import MULTIPLIERS
from streams.scheduling.weighers import Weigher, normalised
from tests.conformance.choosing_areas import chosen, selected, weighed
from tests.conformance.terms import GIB, HOST_NAMES, REQUEST_NAMES, aggregates_of, ask_for, counted_alone, options_of, renamed, room_of

Vector = dict[str, Any]
NOTHING_REPORTED: Mapping[str, Any] = {
    **dict.fromkeys(("total_usable_ram_mb", "free_ram_mb", "total_usable_disk_gb", "free_disk_mb", "disk_mb_used"), 0),
    **dict.fromkeys(("vcpus_total", "vcpus_used", "num_instances", "num_io_ops", "failed_builds"), 0),
    **dict.fromkeys(("host_ip", "hypervisor_type", "hypervisor_version", "hypervisor_hostname", "cpu_info", "supported_instances")),
    **dict.fromkeys(("uuid", "cell_uuid", "metrics", "cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")),
    **dict.fromkeys(("numa_topology", "pci_stats", "updated")),
    "aggregates": [],
    "instances": {},
    "limits": {},
}
"""Nova's HostState before anything is reported: what a vector's host leaves out."""
LIMIT_FIRST = ("CoreFilter", "AggregateCoreFilter")
"""Nova's filters that record the limit for a later claim before they look; the others do once the host has passed."""


def _filter(vector: Vector) -> Mapping[str, Any]:
    """A host and a request through one filter. Two of them read facts by Nova's own names, which a vector gives as they are."""
    name, given = vector["subject"], vector["given"]
    host, asked = renamed(given.get("host"), HOST_NAMES), renamed(given.get("request"), REQUEST_NAMES)
    facts = (
        {"host": "host1", "nodename": "node1", **NOTHING_REPORTED, **(given.get("host") or {})}
        if given.get("host", host) is not None
        else {}
    )
    if name == "ComputeCapabilitiesFilter":
        wanted = {key: str(text) for key, text in ((asked.get("flavor") or {}).get("extra_specs") or {}).items()}
        return {"pass": lacking(facts, wanted) is None, "limits": {}}
    filter_ = msgspec.structs.replace(FILTERS[name], options=options_of(given.get("config")))
    group = asked.get("group") or {}
    ask = ask_for(asked, host.get("node", "node1"))
    if name == "JsonFilter" and ask.request.hints.query:
        try:
            return {"pass": holds(parsed(ask.request.hints.query), facts), "limits": {}}
        except QueryError as error:
            return {"error": error.in_nova}
    room = room_of(counted_alone({**NOTHING_REPORTED, **host}, name), group.get("members") or (), group.get("policy") or "anti-affinity")
    passes = reason(filter_, ask, room) is None
    return {"pass": passes, "limits": _limits(filter_, ask, room, name) if passes or name in LIMIT_FIRST else {}}


def _limits(filter_: Filter, ask: Any, room: Room, name: str) -> dict[str, Any]:
    check = filter_.prepare(ask)
    if check is None:
        return {}
    limits = check.limits(room) if check.limits is not None else Limits()
    ratios = {"cpu_allocation_ratio": room.node.vcpus.ratio_milli, "ram_allocation_ratio": room.node.memory_mib.ratio_milli}
    if name == "NUMATopologyFilter":  # The ledger holds the node's own ratios, so the claim carries none.
        return {"numa_topology": {key: None if ratio is None else ratio / 1000 for key, ratio in ratios.items()}}
    units = {"vcpu": (limits.vcpus, 1), "memory_mb": (limits.memory_mib, 1), "disk_gb": (limits.disk_mib, GIB)}
    return {key: amount / unit for key, (amount, unit) in units.items() if amount is not None}


def _extra_specs(vector: Vector) -> Mapping[str, Any]:
    given = vector["given"]
    return {"match": extra_specs.match(given["value"], given["req"])}


def _normalize(vector: Vector) -> Mapping[str, Any]:
    """The figures of a weigher with these bounds, which are not moved to them: what weighs does that before. None are weighed of none."""
    values, bounds = [float(value) for value in vector["given"]["values"]], (vector["given"].get(name) for name in ("minval", "maxval"))
    column = normalised(Weigher("figures", lambda _: 0.0, *bounds), 1.0, values, Figures(values)) if values else None
    return {"weights": [column.weight(at).normalised for at in range(len(values))] if column is not None else []}


def _multiplier(vector: Vector) -> Mapping[str, Any]:
    given = vector["given"]
    option = given["option"].rpartition(".")[2]
    listed = aggregates_of(given.get("aggregates") or [{option: value} for value in given.get("aggregate_values") or ()])
    return {"multiplier": aggregates.override(listed, option, float(given["config_value"]), float)}


def _aggregates(vector: Vector) -> Mapping[str, Any]:
    given, subject = vector["given"], vector["subject"]
    if subject == "validate_num_values":
        choose: Callable[..., Any] = max if given.get("based_on") == "max" else min
        read: Callable[[str], Any] = float if given.get("cast", given.get("cast_to")) == "float" else int
        texts = [str(int(value) if read is int and isinstance(value, float) else value) for value in given["values"]]
        try:
            return {"value": aggregates.number(texts, given.get("default"), read, choose)}
        except ValueError:
            return {"error": "ValueError"}
    listed = aggregates_of(given["aggregates"])
    if subject == "values_from_key":
        return {"values": sorted(aggregates.values(listed, given["key"]))}
    if subject == "metadata_by_host":
        found = {key: sorted(texts) for key, texts in aggregates.metadata(listed, given.get("key")).items()}
        named = (vector.get("expect") or {}).get("metadata")
        # Nova answers with every key of the aggregates that have the one asked for; its test looks at that one alone.
        return {"metadata": {key: texts for key, texts in found.items() if key in named} if given.get("key") and named else found}
    raise ValueError(f"subject {subject!r} is not known")


AREAS: dict[str, Callable[[Vector], object]] = {
    "weigh": weighed,
    "choose": chosen,
    "host_select": selected,
    "filter": _filter,
    "extra_specs_op": _extra_specs,
    "normalize": _normalize,
    "multiplier": _multiplier,
    "aggregates": _aggregates,
}
SUBJECTS: dict[str, Collection[str]] = {
    "weigh": MULTIPLIERS.keys(),
    "choose": ("_get_sorted_hosts", "_schedule"),
    "host_select": ("get_filtered_hosts",),
    "filter": FILTERS.keys(),
    "extra_specs_op": ("match",),
    "normalize": ("normalize",),
    "multiplier": ("get_weight_multiplier",),
    "aggregates": ("values_from_key", "metadata_by_host", "validate_num_values"),
}
