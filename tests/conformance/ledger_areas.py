"""What the ledger's vectors say (claims, tracker, stats, placement, NUMA, PCI, host state), in the product's terms.

Names and units are translated, and Nova's doings into the records that mean them; what comes of it the product says. In particular: an
amount that is used already is a guest that observations show; a claim that is aborted is released; an incoming migration is a claim of
its own, and a resize on the same host as well, because Nova lets the migration hold what the instance does not need any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from producers import nova_stats
from producers.openstack_places import RESIZED, is_moving
from projections import numa, pci
from projections.fit import fits
from projections.ledger_state import Step
from projections.node import Node
from projections.room import mark_of, room
from schemas.claims import ClaimItem
from schemas.inventory import Hypervisor, PciDevice, Physical, ResourceRule
from schemas.requests import Flavor, NumaWant, PciWant, PlacementRequested
from schemas.resources import Limits, ObservedResources, Resources, Shortfall
from tests.ledger_history import History as AnyHistory
from tests.ledger_history import item

Given = dict[str, Any]
NODE = "n1"
NO_LIMIT = ResourceRule(ratio_milli=None)
PAGE_SIZES = ("pagesize", "page_size", "page_size_kb", "page_size_kib")
"""What vectors call a cell's page size."""
PAGE_NAMES = {-1: "small", -2: "large", -3: "any"}
"""Nova's numbers for page sizes by name."""
REASONS = {"memory_mib": "Free memory", "disk_mib": "Free disk", "vcpus": "Free vcpu"}
"""How Nova's refusals name a resource, in their order there."""
NO_CELLS = "Requested instance NUMA topology cannot fit the given host NUMA topology"
NO_CELLS_WITH_DEVICES = "Requested instance NUMA topology together with requested PCI devices cannot fit the given host NUMA topology"
NO_DEVICES, OTHER_PAGES = "Claim pci failed", "Requested page size is different from current page size"
ENDED = {"confirmed", "reverted", "failed", "completed", "cancelled", "done"}
"""States of a migration that holds nothing any more."""


class History(AnyHistory):
    """A ledger that has to take what a vector is translated into. Raises ValueError for a record that it does not."""

    def append(self, key: bytes, value: bytes, at_s: int | None = None) -> Step:
        step = super().append(key, value, at_s)
        if step.dead is not None:
            raise ValueError(f"no record of the ledger's: {step.dead.reason}")
        return step


def in_whole(said: Any) -> Any:
    """What a vector says, whole numbers as such where they are written with a fraction of zero."""
    if isinstance(said, float) and said.is_integer():
        return int(said)
    if isinstance(said, Mapping):
        return {key: in_whole(each) for key, each in said.items()}
    return [in_whole(each) for each in said] if isinstance(said, list) else said


def milli(ratio: float) -> int:
    return round(ratio * 1000)


# NUMA


def _cell(given: Given) -> numa.Cell:
    """Nova's cpuset, pcpuset and mempages."""
    siblings = [tuple(sorted(core)) for core in given.get("siblings") or [] if core]
    known = {cpu for core in siblings for cpu in core}
    shared, dedicated = _cpus(given, "cpuset"), _cpus(given, "pcpuset")
    alone = [(cpu,) for cpu in sorted({*shared, *dedicated} - known)]
    return numa.Cell(
        cell_id=given["id"],
        shared=shared,
        dedicated=dedicated,
        cores=tuple(siblings + alone),
        memory_mib=given["memory"],
        pages=tuple(numa.Pages(*row) for row in given.get("mempages") or []),
        socket=given.get("socket"),
        vcpus_used=given.get("cpu_usage") or 0,
        memory_mib_used=given.get("memory_usage") or 0,
        held=frozenset(given.get("pinned_cpus") or ()),
    )


def _cpus(cell: Given, name: str) -> tuple[int, ...]:
    """Sets in Nova."""
    return tuple(dict.fromkeys(cell.get(name) or ()))


def want_of(given: Given, emulator_threads: str | None = None) -> NumaWant:
    """An instance cell; a page size below 0 is one of Nova's names. Of a dedicated cell Nova looks only at the `pcpuset`."""
    size, policy = page_size_of(given), given.get("cpu_policy") or "shared"
    translated: dict[str, Any] = {
        "cell_id": given.get("id", 0),
        "cpus": () if policy == "dedicated" else _cpus(given, "cpuset"),
        "pinned_cpus": _cpus(given, "pcpuset"),
        "memory_mib": given["memory"],
        "page_size_kib": size if size and size > 0 else None,
        "page_size": PAGE_NAMES.get(size, "") if size else "",
        "cpu_policy": policy,
        "thread_policy": given.get("cpu_thread_policy") or "",
        "emulator_threads": emulator_threads or "",
    }
    return NumaWant(**translated)


def page_size_of(cell: Given) -> Any:
    return next((cell[name] for name in PAGE_SIZES if name in cell), None)


def _ratios(limits: Given | None) -> numa.Ratios | None:
    return numa.Ratios(milli(limits["cpu_allocation_ratio"]), milli(limits["ram_allocation_ratio"])) if limits else None


def _numa_cell_fit(vector: Given) -> Given:
    given = vector["given"]
    found = numa.fit_cell(
        _cell(given["host_cell"]), want_of(given["instance_cell"]), _ratios(given.get("limits")), given.get("cpus_reserved") or 0
    )
    if isinstance(found, Shortfall):
        error = "MemoryPageSizeNotSupported" if found.detail.endswith("has none of this size") else None
        return {"fits": False, "cpuset_reserved": None, "error": error}
    pinning = {str(guest): host for guest, host in zip(found.guest_cpus, found.pinned_cpus, strict=True)}
    reserved = sorted(found.emulator_cpus) or None  # A set in Nova.
    return {
        "fits": True,
        "cell_id": found.cell_id,
        "cpu_pinning": pinning or None,
        "cpuset_reserved": reserved,
        "pagesize": found.page_size_kib or None,
    }


def _numa_host_fit(vector: Given) -> Given:
    """Guests one after the other, each meeting what those before it took."""
    given = vector["given"]
    cells, chosen = tuple(map(_cell, _listed(given["host_cells"]))), []
    for step in given.get("steps") or [given]:
        said = step["instance"]
        policy = {"emulator_threads_policy": said.get("emulator_threads_policy")} if isinstance(said, Mapping) else {}
        found = _fit_host(cells, _listed(said), {**given, **step, **policy})
        grants = [grant for grant in found if not isinstance(grant, Shortfall)]
        cells = numa.with_grants(cells, grants)
        chosen.append([grant.cell_id for grant in grants] or None)
    return {"cells": chosen, "fits": [each is not None for each in chosen]}


def _listed(said: Any) -> list[Given]:
    """The cells of a topology, which may stand under a name; of none, none."""
    return list((said.get("cells") if isinstance(said, Mapping) else said) or ())


def _fit_host(cells: Sequence[numa.Cell], instance: list[Given], given: Given) -> tuple[Any, ...]:
    policy = given.get("emulator_threads_policy")
    wants = [want_of(each, policy) for each in instance]
    devices, pci_wants = devices_in(given), pci_wants_of(given.get("pci_requests") or [])
    free = pci.free_by_cell(devices, ())
    sockets = {cell.cell_id: cell.socket for cell in cells}
    return numa.fit_cells(
        cells,
        wants,
        _ratios(given.get("limits")),
        devices_in=lambda cell_id: free.get(cell_id, 0),
        wants_devices=bool(pci_wants),
        supports=lambda ids: not isinstance(pci.choose(devices, pci_wants, cells=ids, sockets=sockets), Shortfall),
        pack=options_in(given).get("packing_host_numa_cells_allocation_strategy", False),
    )


def flat(config: Mapping[str, Any] | None) -> Given:
    """What a vector configures, by the options' own names: groups stand before a point, or around their options."""
    found: Given = {}
    for name, value in (config or {}).items():
        found |= flat(value) if isinstance(value, Mapping) else {name.rpartition(".")[2]: value}
    return found


def options_in(given: Given) -> Given:
    """What a vector says, its configuration by the options' own names besides."""
    return {**given, **flat(given.get("config"))}


# PCI

_DEVICE = {
    "vendor": "vendor_id",
    "product": "product_id",
    "dev_type": "device_type",
    "type": "device_type",
    "numa": "numa_cell",
    "numa_node": "numa_cell",
    "parent_addr": "physical_function",
    "parent": "physical_function",
}
_REQUEST = {"count", "numa_policy", "alias", "specs", "spec"}


def devices_of(given: Iterable[Given]) -> list[PciDevice]:
    """Vendor, product, NUMA node and type by Nova's names; whatever else is given is a tag.

    An address is made up where none is told, or one that another device has (Nova's pools do not look at them).
    """
    found: dict[str, PciDevice] = {}
    for number, device in enumerate(given):
        named = {_DEVICE.get(key, key): value for key, value in device.items() if value is not None or key in {"numa", "numa_node"}}
        own = {key: named.pop(key) for key in tuple(named) if key in PciDevice.__struct_fields__}
        if own.get("address", "") in {"", *found}:
            own["address"] = f"0000:ff:{number:02x}.0"
        found[own["address"]] = PciDevice(**own | {"tags": {**own.get("tags", {}), **{key: str(value) for key, value in named.items()}}})
    return list(found.values())


def devices_in(given: Given) -> list[PciDevice]:
    """Devices as they are, and as many of each pool as it counts."""
    pools = given.get("pci_pools") or given.get("pci_stats") or ()
    alike = [{key: value for key, value in pool.items() if key != "count"} for pool in pools for _ in range(pool.get("count", 1))]
    return devices_of([*(given.get("pci_devices") or ()), *alike])


def pci_wants_of(given: Iterable[Given]) -> tuple[PciWant, ...]:
    found = []
    for request in given:
        spec = {_DEVICE.get(key, key): str(value) for key, value in request.items() if key not in _REQUEST}
        told = request.get("specs") or request.get("spec") or spec
        specs = (told,) if isinstance(told, Mapping) else tuple(told)
        found.append(PciWant(count=request.get("count", 1), specs=specs, numa_policy=request.get("numa_policy") or "legacy"))
    return tuple(found)


def _pci(vector: Given) -> Given:
    given = vector["given"]
    devices = devices_of(given["devices"])
    sockets = {cell["id"]: cell.get("socket") for cell in _listed(given.get("host_cells"))}
    found = pci.choose(devices, pci_wants_of(given.get("requests") or ()), cells=_ids(given.get("instance_cells") or ()), sockets=sockets)
    if isinstance(found, Shortfall):
        return {"supported": False, "products": None}
    by_address = {device.address: device for device in devices}
    return {
        "supported": True,
        "products": [by_address[address].product_id for address in found],
        "vendors": [by_address[address].vendor_id for address in found],
        "addresses": list(found),
    }


def _ids(cells: Iterable[Any]) -> tuple[int, ...]:
    """Cells by their ids, or as what has ids."""
    return tuple(cell["id"] if isinstance(cell, Mapping) else cell for cell in cells)


# Claims


def _amounts(given: Given, overhead: Given | None = None) -> Resources:
    """A flavor, with what the hypervisor takes besides it."""
    more = overhead or {}
    flavor = Flavor(
        vcpus=(given.get("vcpus") or 0) + (more.get("vcpus") or 0),
        memory_mib=(given.get("memory_mb") or 0) + (more.get("memory_mb") or 0),
        root_gib=given.get("root_gb") or 0,
        ephemeral_gib=(given.get("ephemeral_gb") or 0) + (more.get("disk_gb") or 0),
        swap_mib=given.get("swap") or 0,
    )
    return PlacementRequested(request_id="r", flavor=flavor, boot_from_volume=given.get("volume_backed", False)).resources


def _limits(given: Given) -> Limits:
    disk_gb, vcpus = given.get("disk_gb"), given.get("vcpu", given.get("vcpus"))
    return Limits(
        memory_mib=None if given.get("memory_mb") is None else int(given["memory_mb"]),
        disk_mib=None if disk_gb is None else int(disk_gb * 1024),
        vcpus=None if vcpus is None else int(vcpus),
    )


def _claim(vector: Given) -> Given:
    given = vector["given"]
    match vector["subject"]:
        case "Claim":
            return _tested(given)
        case "MoveClaim":
            return _moved(given)
        case "abort":
            said = given["then"].lower()
            ended_well = said.startswith(("no ", "without")) or not any(word in said for word in ("exception", "abort", "raise", "error"))
            return {"aborted": _aborted(is_failure=not ended_well)}
        case other:
            raise KeyError(f"subject {other!r} is not known")


def _tested(given: Given) -> Given:
    """Nova's claim asks nothing of the disk for swap, which its tracker counts afterwards."""
    host, limits = given.get("node") or ROOMY, given.get("limits") or {}
    used = _amounts({"memory_mb": host.get("memory_mb_used"), "root_gb": host.get("local_gb_used"), "vcpus": host.get("vcpus_used")})
    node = _node(host, used)
    asked = ClaimItem(
        claim_id="c",
        instance_id="vm",
        nodes=(NODE,),
        resources=_amounts({**(given.get("flavor") or {}), "swap": 0}, given.get("overhead")),
        limits=_limits(limits),
    )
    lacking = {lack.resource for lack in fits(node, asked, "r")}
    lacks = [word for resource, word in REASONS.items() if resource in lacking] + sorted(lacking - REASONS.keys())
    cells, instance = tuple(map(_cell, _listed(given.get("node_numa_cells")))), _listed(given.get("instance_numa_cells"))
    devices, wants = devices_in(given), pci_wants_of(given.get("pci_requests") or [])
    if instance:
        found = _fit_host(cells, instance, {**given, "limits": limits.get("numa_topology")})
        sentence = NO_CELLS_WITH_DEVICES if wants else NO_CELLS
        lacks += [sentence] if any(isinstance(lack, Shortfall) for lack in found) else []
    if isinstance(pci.choose(devices, wants), Shortfall):
        lacks.append(NO_DEVICES)
    return {**_outcome(lacks), "disk_gb": asked.resources.disk_mib / 1024, "memory_mb": asked.resources.memory_mib}


LIVE = "live-migration"
GUESTS, HOSTS = ("instance", "old", "source", "current", "page"), ("claimed", "new", "dest", "requested", "fit", "host_")
"""How keys begin under which a vector says what a guest that moves has, and what it was given where it goes."""
PAGE_LEAST_KIB = 4
ROOMY = {"memory_mb": 4096, "local_gb": 40, "vcpus": 8}


def _moved(given: Given) -> Given:
    """A move onto a host that has what its NUMA fit gave (`claimed…`, `new…`): the guest's own page size must be there if it moves live.

    One that names its host, or the host's cells, is tested like any other claim besides.
    """
    guest, there = (_cells_said(given, *names) for names in (GUESTS, HOSTS))
    pages = _pages_met(guest, there) if guest and there and given.get("migration_type", LIVE) == LIVE else []
    if "node" in given or given.get("node_numa_cells"):
        # Whom its new cells are told of, the NUMA fit has seated already.
        tested = _tested({**given, "instance_numa_cells": [] if there else guest})
        return {**tested, **_outcome([*tested["reason_mentions_in_order"], *pages])}
    if guest and there:
        return _outcome(pages)
    claim = ClaimItem(
        claim_id="c", instance_id="vm", nodes=(NODE,), resources=Resources(vcpus=1, memory_mib=512), numa=tuple(map(want_of, guest))
    )
    return _outcome([NO_CELLS] if fits(_node(ROOMY), claim, "r") else [])


def _pages_met(guest: list[Given], there: list[Given]) -> list[str]:
    """Whether a guest's pages are where it goes, which has as many as it needs of the size that it was given, and of no other.

    A guest or a cell of which no size is told has the smallest pages.
    """
    sizes = [page_size_of(cell) or PAGE_LEAST_KIB for cell in there]
    wants = [{**cell, "pagesize": page_size_of(cell) or PAGE_LEAST_KIB} for cell in guest]
    # Whole pages of each size: what is compared is the size, which vectors tell without memory.
    largest_mib = max(*sizes, *(want["pagesize"] for want in wants), 1024) // 1024
    needed = [{**want, "memory": -(-want["memory"] // largest_mib) * largest_mib} for want in wants]
    most_mib = max(each["memory"] for each in (*needed, *there))
    pages = [[(size, most_mib * 1024 // size, 0)] for size in sizes]
    cells = [_cell({**cell, "memory": most_mib, "mempages": met}) for cell, met in zip(there, pages, strict=True)]
    lacks = [lack for lack in numa.fit_cells(cells, list(map(want_of, needed))) if isinstance(lack, Shortfall)]
    return [OTHER_PAGES if lack.resource.startswith("pages_") else NO_CELLS for lack in lacks]


def _cells_said(given: Given, *prefixes: str) -> list[Given]:
    """The cells told under a key that begins so, or made up for a page size alone."""
    said: Any = next((value for key, value in given.items() if key.startswith(prefixes) and value), [])
    told = [{"pagesize": said}] if isinstance(said, int) else said if isinstance(said, list) else said.get("cells", [said])
    return [{"id": n, "memory": 512, "cpuset": [n], **cell} for n, cell in enumerate(told)]


def _outcome(lacks: list[str]) -> Given:
    return {"claimed": not lacks, "reason_mentions_in_order": lacks, "error": "ComputeResourcesUnavailable" if lacks else None}


def _aborted(*, is_failure: bool) -> bool:
    history = _tracker({"memory_mb": 2048})
    history.claim("c", "vm", 512, at_s=1)
    if is_failure:
        history.release("c", at_s=2, reason="failed")
    return not history.held() and history.used() == 0


def _node(host: Given, used: Resources | None = None) -> Node:
    """A host whose amounts nothing limits but what the claim itself carries."""
    history = History()
    history.configure(NODE, at_s=0, vcpus=NO_LIMIT, memory_mib=NO_LIMIT, disk_mib=NO_LIMIT)
    listed = {} if used is None else {"others": _observed(used)}
    history.audit(listed, at_s=0, hypervisor=_host({"vcpus": 0, "memory_mb": 0, "local_gb": 0, **host}))
    return history.node()


def _host(totals: Given) -> Hypervisor:
    disk_gb = totals.get("local_gb")
    disk_mib = None if disk_gb is None else disk_gb * 1024
    return Hypervisor(vcpus=totals.get("vcpus"), memory_mib=totals.get("memory_mb"), disk_mib=disk_mib)


def _observed(amounts: Resources) -> ObservedResources:
    return ObservedResources(vcpus=amounts.vcpus, memory_mib=amounts.memory_mib, disk_mib=amounts.disk_mib)


# The resource tracker


def _tracker(totals: Given, reserved: Given | None = None, listed: Mapping[str, ObservedResources] | None = None) -> History:
    more = reserved or {}
    history = History()
    history.configure(
        NODE,
        at_s=0,
        vcpus=ResourceRule(reserved=more.get("vcpus") or 0),
        memory_mib=ResourceRule(reserved=more.get("memory_mb") or 0),
        disk_mib=ResourceRule(reserved=more.get("disk_mb") or 0),
    )
    history.audit(listed, at_s=0, hypervisor=_host(totals))
    return history


def _take(history: History, claim_id: str, instance_id: str, flavor: Given, at_s: int) -> None:
    """A claim as the tracker makes it: whether it fits was decided elsewhere."""
    history.claims(item(claim_id, instance_id, 0, resources=_amounts(flavor), forced=True), at_s=at_s)


def _usage(history: History) -> Given:
    """The tracker's figures: what is reserved counts as used, and a migration is no instance."""
    node = history.node()
    running = sum(not instance_id.startswith("migration") for instance_id in node.uses)
    used = {name: node.used[r] + node.rule(name).reserved for r, name in enumerate(("vcpus", "pcpus", "memory_mib", "disk_mib"))}
    memory_mib, disk_mib = node.free("memory_mib"), node.free("disk_mib")
    return {
        "vcpus_used": used["vcpus"],
        "memory_mb_used": used["memory_mib"],
        "local_gb_used": used["disk_mib"] / 1024,
        "free_ram_mb": memory_mib,
        "free_disk_gb": None if disk_mib is None else disk_mib / 1024,
        "tracked_migrations": sum(claim.instance_id.startswith("migration") for claim in node.held()),
        "running_vms": running,
        "stats": {"io_workload": node.io_ops(), "num_instances": running},
    }


def _state(given: Given, instance_id: str) -> nova_stats.InstanceState:
    return nova_stats.InstanceState(
        instance_id=instance_id,
        vm_state=given.get("vm_state", "active"),
        task_state=given.get("task_state"),
        os_type=given.get("os_type"),
        project_id=given.get("project_id"),
    )


def _track(vector: Given) -> Given:
    return _SUBJECTS[vector["subject"]](vector["given"])


ONE_WAY = ("source", "dest")
BUILDS = {
    **dict.fromkeys(("ok", "success", "succeeded", "build_succeeded"), True),
    **dict.fromkeys(("failed", "fail", "failure", "build_failed", "error"), False),
}
"""Whether a build succeeded, in the words that vectors have for it."""


def _audited(given: Given) -> Given:
    """What the host lists are the instances that count; a migration that has not ended claims its flavor while its instance moves."""
    guests = {guest.get("id", guest.get("uuid", f"vm{n}")): guest for n, guest in enumerate(given.get("instances") or [])}
    states = nova_stats.latest(_state(guest, instance_id) for instance_id, guest in guests.items())
    sizes = {instance_id: {**guest["flavor"], "volume_backed": guest.get("volume_backed", False)} for instance_id, guest in guests.items()}
    listed = {instance_id: _observed(_amounts(sizes[instance_id])) for instance_id in states}
    history = _tracker(given["totals"], given.get("reserved"), listed)
    under_way: dict[str, tuple[Given, Given]] = {}
    for n, move in enumerate(given.get("migrations") or []):
        instance_id, said = _instance_of(move, n)
        moved = {**guests.get(instance_id, {} if "instance" in move else {"vm_state": RESIZED}), **said}
        # One that is listed here holds its flavor already; a move within the host holds the other one besides.
        is_counted = instance_id in states and move.get("direction", "dest") in ONE_WAY
        if not is_counted and move.get("status") not in ENDED and is_moving(moved.get("vm_state"), moved.get("task_state")):
            under_way[instance_id] = move, moved  # The last of an instance's migrations is the one that goes on.
    for n, (move, moved) in enumerate(under_way.values()):
        _take(history, f"c{n}", f"migration {n}", _held_by(move, moved), at_s=1)
    usage, counted = _usage(history), list(states.values())
    usage["stats"]["io_workload"] = nova_stats.io_workload(counted)
    return {**usage, "current_workload": nova_stats.workload(counted)}


def _instance_of(move: Given, number: int) -> tuple[str, Given]:
    """The id of the instance that moves, and what the move itself says of it."""
    said = move.get("instance")
    told: Given = said if isinstance(said, dict) else {}
    instance_id = (
        move.get("instance_id") or move.get("instance_uuid") or (said if isinstance(said, str) else told.get("id", told.get("uuid")))
    )
    return instance_id or f"of migration {number}", told


def _held_by(move: Given, moved: Given) -> Given:
    """The flavor that a migration holds besides its guest: the new one where it only comes in, and where the guest is still the old one.

    Whatever moves without another flavor holds its own; of a guest on a volume, no root disk.
    """
    comes_in = move.get("direction", "dest") == "dest"
    is_old = move.get("direction", "dest") not in ONE_WAY and moved.get("flavor", {}) == move.get("old_flavor")
    flavor: Given = move.get("flavor") or move.get("new_flavor" if comes_in or is_old else "old_flavor") or moved["flavor"]
    return {**flavor, "volume_backed": moved.get("volume_backed", False)}


def _two_incoming(given: Given) -> Given:
    history = _tracker(given["totals"])
    for n, flavor in enumerate(given["incoming_resizes"]):
        _take(history, f"c{n}", f"migration {n}", flavor, at_s=1)
    return _usage(history)


def _resized_and_aborted(given: Given) -> Given:
    states = nova_stats.latest(_state(guest, guest["id"]) for guest in given["instances"])
    listed = {guest["id"]: _observed(_amounts(guest["flavor"])) for guest in given["instances"] if guest["id"] in states}
    history = _tracker(given["totals"], listed=listed)
    _take(history, "c", "migration", given["resize"]["to"], at_s=1)
    during = _usage(history)
    history.release("c", at_s=2, reason="failed")
    return {"during": _only(during), "after_abort": _only(_usage(history))}


def _built_and_resized(given: Given) -> Given:
    """Confirmed: the guest has the new size, and the migration's claim goes. Reverted: the claim goes."""
    history = _tracker(given["totals"])
    _take(history, "build", "vm", given["build"], at_s=1)
    history.event("started", "vm", at_s=1, size=_observed(_amounts(given["build"])))
    after_build = _usage(history)
    _take(history, "resize", "migration", given["resize_to"], at_s=20)
    during = _usage(history)
    if {"confirm": True, "revert": False}[given["end"]]:
        history.event("resized", "vm", at_s=30, size=_observed(_amounts(given["resize_to"])))
    history.release("resize", at_s=31, reason="migrated")
    sizes = ("vcpus_used", "memory_mb_used", "local_gb_used")
    return {
        "after_build": _only(after_build, sizes),
        "during_resize": _only(during, sizes),
        "after": _only(_usage(history), sizes),
    }


def _only(usage: Given, keys: Sequence[str] = ("vcpus_used", "memory_mb_used", "local_gb_used", "tracked_migrations")) -> Given:
    return {key: usage[key] for key in keys}


def _claimed(given: Given, *, is_aborted: bool = False) -> Given:
    """The tracker's claim covers the start as well: the instance runs on the node from then on, unless the claim is aborted."""
    history = _tracker(given["totals"], given.get("reserved"))
    _take(history, "c", "vm", given["claim"], at_s=1)
    if is_aborted:
        history.release("c", at_s=2, reason="failed")
    else:
        history.event("started", "vm", at_s=2)
    ended = {"vm_state": given.get("then_vm_state"), "task_state": given.get("then_task_state")}
    if ended["vm_state"] and not _state(ended, "vm").counts:
        history.event("deleted", "vm", at_s=30, claim_id="c")
    return {**_usage(history), "instance_host": NODE if "vm" in history.node().uses else None}


def _claimed_on(given: Given) -> Given:
    history = _tracker({"memory_mb": 512}) if given["node_known"] else History()
    step = history.claim("c", "vm", 128, at_s=1)
    unavailable = any(lack.resource == "node" for outcome in step.outcomes for lacks in outcome.shortfalls for lack in lacks)
    return {"error": "ComputeResourcesUnavailable" if unavailable else None, "instance_modified": bool(history.held())}


def _volume_backed(given: Given) -> Given:
    flavor = {**given["flavor"], "ephemeral_gb": 0, "swap": 0, "volume_backed": given["volume_backed"]}
    return {"root_gb_counted": _amounts(flavor).disk_mib / 1024}


_SUBJECTS: dict[str, Callable[[Given], Given]] = {
    "update_available_resource": _audited,
    "negative_free": _audited,
    "resize_two_incoming": _two_incoming,
    "same_host_resize_then_abort": _resized_and_aborted,
    "build_resize_confirm": _built_and_resized,
    "build_resize_revert": _built_and_resized,
    "claim": _claimed,
    "claim_abort": partial(_claimed, is_aborted=True),
    "update_usage_shelved_offloaded": _claimed,
    "claim_unknown_node": _claimed_on,
    "volume_backed": _volume_backed,
}


# Statistics, Placement's inventories, the scheduler's view of a host


def _stats(vector: Given) -> Given:
    given = vector["given"]
    if vector["subject"] == "failed_builds":
        rows = [0]
        for event in given["events"]:
            rows.append(nova_stats.failed_builds(rows[-1], succeeded=BUILDS[event]))
        return {"after_each": rows[1:]}
    updates = [_state(update, update.get("id") or update["uuid"]) for update in given["updates"]]
    states = list(nova_stats.latest(updates).values())
    answer: Given = {
        "num_instances": len(states),
        "io_workload": nova_stats.io_workload(states),
        "workload": nova_stats.workload(states),
        "current_workload": nova_stats.workload(states),
        "calculate_workload": nova_stats.workload(states),
    }
    fields = {"num_vm": "vm_state", "num_task": "task_state", "num_os_type": "os_type", "num_proj": "project_id"}
    for prefix, field in fields.items():
        for value in {getattr(update, field) for update in updates}:
            answer[f"{prefix}_{value}"] = sum(getattr(state, field) == value for state in states)
    # Nova's counts of what no update mentions are 0.
    unmentioned = [name for name in vector.get("expect") or () if name.startswith(tuple(f"{prefix}_" for prefix in fields))]
    return dict.fromkeys(unmentioned, 0) | answer


def _placement_capacity(vector: Given) -> Given:
    given = vector["given"]
    inventory = given.get("inventory", given)
    rule = ResourceRule(
        reserved=inventory.get("reserved") or 0,
        ratio_milli=milli(1.0 if inventory.get("allocation_ratio") is None else inventory["allocation_ratio"]),
        min_unit=inventory.get("min_unit") or 1,
        max_unit=inventory.get("max_unit"),
        step_size=inventory.get("step_size") or 1,
    )
    history = History()
    history.configure(NODE, at_s=0, vcpus=rule)
    others = given.get("used_by_others", 0)
    history.audit({"others": ObservedResources(vcpus=others)} if others else {}, at_s=0, hypervisor=Hypervisor(vcpus=inventory["total"]))
    if vector["subject"] == "capacity":
        return {"capacity": history.node().limit("vcpus")}
    if given["amount"] < 1:  # Placement's schema knows no such allocation, before any inventory is asked.
        return {"accepted": False, "http": 400}
    accepted = not fits(history.node(), item("c", "vm", 0, resources=Resources(vcpus=given["amount"])), "r")
    return {"accepted": accepted, "http": 204 if accepted else 409}


def _host_state(vector: Given) -> Given:
    given = vector["given"]
    match vector["subject"]:
        case "free_disk_mb":
            least = given.get("disk_available_least")
            physical = Physical(disk_mib_available_least=None if least is None else least * 1024)
            node = _with_free({"free_disk_mb": (given["free_disk_gb"] or 0) * 1024}, physical=physical)
            return {"free_disk_mb": _seen(node)["free_disk_mb"]}
        case "counters":
            history = History()
            said = given.get("stats") or {}
            count, io_workload, failed = (int(said.get(key, 0)) for key in ("num_instances", "io_workload", "failed_builds"))
            guests = {f"vm{n}": ObservedResources() for n in range(count)}
            history.audit(guests, at_s=0, hypervisor=Hypervisor(io_workload=io_workload, failed_builds=failed))
            return _seen(history.node())
        case "not_ready":
            if given.get("free_disk_gb") is not None:
                return _seen(_with_free({**given, "free_disk_mb": given["free_disk_gb"] * 1024}))
            history = History()
            history.configure(NODE, at_s=0)  # The compute node has a row, but never reported.
            return _seen(history.node())
        case "consume":
            return _consumed(given)
        case other:
            raise KeyError(f"subject {other!r} is not known")


def _consumed(given: Given) -> Given:
    """What is used before is other guests'; each request is one of the scheduler's own claims laid over the node.

    Nova's scheduler leaves swap out of what a request takes of its view of a host, so it is no part of these claims.
    """
    start = {"num_instances": 0, "num_io_ops": 0, "free_ram_mb": 0, "free_disk_mb": 0, "vcpus_used": 0, **(given.get("start") or {})}
    node = _with_free(start, count=start["num_instances"], io_workload=start["num_io_ops"])
    node.used[0] = start["vcpus_used"]
    own = [item(f"c{n}", f"new{n}", 0, resources=_amounts({**request, "swap": 0})) for n, request in enumerate(given["requests"])]
    return _seen(node, own)


def _with_free(free: Given, count: int = 0, **host: Any) -> Node:
    """A host with so much free and so many guests, which take nothing; of less than nothing that is free, so much is used too much."""
    memory_mib, disk_mib = free.get("free_ram_mb", 0), free.get("free_disk_mb", 0)
    history = History()
    history.audit(
        {f"vm{n}": ObservedResources() for n in range(count)},
        at_s=0,
        hypervisor=Hypervisor(vcpus=64, memory_mib=max(memory_mib, 0), disk_mib=max(disk_mib, 0), **host),
    )
    node = history.node()
    node.used[2:] = [max(-memory_mib, 0), max(-disk_mib, 0)]
    return node


def _seen(node: Node, own: Sequence[ClaimItem] = ()) -> Given:
    seen = room(node, 0, mark_of(node.node_id), own)
    return {
        "num_instances": len(seen.instances),
        "num_io_ops": seen.io_ops,
        "free_ram_mb": seen.memory_mib_left,
        "free_disk_mb": seen.disk_mib_left,
        "vcpus_used": seen.vcpus_used,
        "failed_builds": node.hypervisor.failed_builds if node.hypervisor is not None else 0,
    }


def _read_in_whole(area: Callable[[Given], object]) -> Callable[[Given], object]:
    return lambda vector: area({**vector, "given": in_whole(vector["given"])})


AREAS: dict[str, Callable[[Given], object]] = {
    name: _read_in_whole(area)
    for name, area in {
        "claim": _claim,
        "tracker": _track,
        "stats": _stats,
        "placement_capacity": _placement_capacity,
        "numa_cell_fit": _numa_cell_fit,
        "numa_host_fit": _numa_host_fit,
        "pci": _pci,
        "host_state": _host_state,
    }.items()
}
SUBJECTS: dict[str, Collection[str]] = {
    "claim": ("Claim", "MoveClaim", "abort"),
    "tracker": _SUBJECTS.keys(),
    "stats": ("Stats", "failed_builds"),
    "placement_capacity": ("capacity", "allocate"),
    "numa_cell_fit": ("_numa_fit_instance_cell",),
    "numa_host_fit": ("numa_fit_instance_to_host",),
    "pci": ("support/consume",),
    "host_state": ("free_disk_mb", "counters", "not_ready", "consume"),
}
