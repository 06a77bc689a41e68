"""One line of words for one record of `claims`: what findings name as causes and what timelines show, said alike in both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from projections.node import amounts_of, observed_amounts
from schemas import claims as say
from schemas.aliases import ALIAS_KEY
from schemas.audits import AuditFailed, HypervisorAudited
from schemas.codec import event_type
from schemas.few import few
from schemas.findings import Finding
from schemas.inventory import OperatorFields
from schemas.lifecycle import LifecycleEvent
from schemas.requests import PlacementCancelled, PlacementRequested
from schemas.results import ClaimOutcome, Granted, InstancesPlaced, NodeResources, PlacementFailed
from schemas.units import mib_text

_UNITS = (" vCPUs", " pCPUs", "", " disk")


def seconds_text(length_ms: int) -> str:
    """A length of time, exactly: `600 s`, `0.5 s`."""
    seconds, rest_ms = divmod(length_ms, 1000)
    return f"{seconds}" + (f".{rest_ms:03}".rstrip("0") if rest_ms else "") + " s"


def amounts_text(amounts: Iterable[int | None]) -> str:
    """`4 vCPUs, 4 GiB, 40 GiB disk` for a vector in the order of `RESOURCES`; what is 0 or not reported is left out."""
    return ", ".join(_each_text(amounts)) or "nothing"


def size_text(request: PlacementRequested) -> str:
    """What one instance of a request takes: `2 vCPUs, 4 GiB, 40 GiB volume, 1 gpu`; devices by their aliases, whatever a policy knows."""
    parts = _each_text(amounts_of(request.resources))
    if request.boot_from_volume:
        parts.append(f"{mib_text(request.flavor.root_gib * 1024)} volume" if request.flavor.root_gib else "a volume")
    devices = [f"{want.count} {want.alias or 'PCI device'}" for want in request.pci]
    devices += [_alias_text(each.strip()) for each in request.flavor.extra_specs.get(ALIAS_KEY, "").split(",") if each.strip()]
    return ", ".join(parts + ([few(devices)] if devices else [])) or "nothing"


def _alias_text(asked: str) -> str:
    """`2 gpu` for `gpu:2`; as it is written where that is no count of anything, which no node is chosen for."""
    alias, _, count = (part.strip() for part in asked.partition(":"))
    return f"{count} {alias}" if alias and count.isdecimal() else asked


def deltas_text(amounts: Iterable[int | None]) -> str:
    """As `amounts_text`, each with its sign: `+4 vCPUs, -2 GiB`."""
    return ", ".join(text if text.startswith("-") else f"+{text}" for text in _each_text(amounts)) or "no difference"


def _each_text(amounts: Iterable[int | None]) -> list[str]:
    told = zip(amounts, _UNITS, strict=True)
    return [f"{f'{amount:,}' if unit.endswith('CPUs') else mib_text(amount)}{unit}" for amount, unit in told if amount]


def outcome_text(outcome: ClaimOutcome) -> str:
    """What became of one claim: `granted on n1`, `refused: memory_mib: 4096 needed of 2048`."""
    if outcome.outcome == "refused":
        tried = zip((*outcome.tried, *[""] * len(outcome.shortfalls)), outcome.shortfalls, strict=False)
        reasons = [f"{node}: {lacks[0]}" if node else str(lacks[0]) for node, lacks in tried if lacks]
        return "refused" + (f": {'; '.join(reasons[:3])}" + (f"; +{len(reasons) - 3} more" if len(reasons) > 3 else "") if reasons else "")
    if outcome.overrun:
        return f"{outcome.outcome} on {outcome.node_id}, forced over {'; '.join(map(str, outcome.overrun))}"
    if outcome.outcome == "granted":
        return f"granted on {outcome.node_id}" + (granted_text(outcome.granted) if outcome.granted is not None else "")
    return outcome.outcome.replace("-", " ")


def granted_text(granted: Granted) -> str:
    """`, cell 0 with CPUs 2 3 and pages of 2048 KiB, device 0000:81:00.1`: what a claim got besides amounts."""
    words = ""
    for cell in granted.cells:
        cpus = f" with CPUs {' '.join(map(str, cell.held_cpus))}" if cell.held_cpus else ""
        pages = f"{' and' if cpus else ' with'} pages of {cell.page_size_kib} KiB" if cell.page_size_kib else ""
        words += f", cell {cell.cell_id}{cpus}{pages}"
    return words + "".join(f", device {address}" for address in granted.pci_addresses)


def event_text(event: Any, instance_id: str = "") -> str:
    """What one record of `claims` says; of many instances only `instance_id` where one is given."""
    match event:
        case say.ClaimRequested():
            items = [item for item in event.items if instance_id in {"", item.instance_id}] or list(event.items)
            kind = "resize to " if items[0].resize else "keep of " if items[0].keep else ""
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            return f"request {event.request_id} claims {kind}{amounts_text(amounts_of(items[0].resources))}{more}"
        case say.InstanceObserved():
            size = observed_amounts(event.instance.resources)
            sized = f" with {amounts_text(size)}" if event.change not in {"departed", "deleted"} and any(size) else ""
            return f"instance {event.change}{sized}" + (" (found by a resync)" if event.resync else "")
        case say.NodeObserved():
            return f"the audit failed: {event.failed}" if event.failed else _audit_text(event, instance_id)
        case say.NodeSilent():
            return "no audit told anything for too long"
        case say.NodeConfigured():
            status = "" if event.status is UNSET else f" to {event.status}" + (f" ({event.reason})" if event.reason else "")
            if not status and event.fields == OperatorFields():
                return "said again of the node: its settings are as they were"
            return f"the operator set the node{status}" if status else "the operator changed the node's settings"
        case say.ClaimRenewed():
            return f"claim renewed for {seconds_text(event.ttl_ms)}"
        case say.ClaimReleased():
            return f"claim given back ({event.reason}{': ' + event.note if event.note else ''})"
        case say.GroupHomeProposed():
            return f"proposed as home of group {event.group_id}, epoch {event.epoch}"
        case say.FindingIgnored():
            return f"finding {event.finding_id} is known: {event.reason}" if event.reason else f"finding {event.finding_id} alarms again"
        case say.GroupHomeClosed():
            return f"no longer home of group {event.group_id}, epoch {event.epoch}"
        case _:
            return ""


def _audit_text(event: say.NodeObserved | HypervisorAudited, instance_id: str) -> str:
    kind = "audit" if event.complete else "incomplete audit"
    if event.instances is None:
        return f"{kind}: unchanged"
    if not instance_id:
        return f"{kind} lists {len(event.instances)} instance{'' if len(event.instances) == 1 else 's'}"
    for report in event.instances:
        if report.instance_id == instance_id:
            return f"{kind} lists it with {amounts_text(observed_amounts(report.resources))}"
    return f"{kind} does not list it"


def record_text(event: Any, instance_id: str = "") -> str:
    """What a record of any topic says, in one line."""
    match event:
        case HypervisorAudited():
            return _audit_text(event, instance_id)
        case AuditFailed():
            return f"the audit failed: {event.reason}"
        case LifecycleEvent():
            return _life_text(event)
        case PlacementRequested():
            return f"{event.count} x {size_text(event)} wanted" + (f" in zone {event.availability_zone}" if event.availability_zone else "")
        case PlacementCancelled():
            return f"no longer wanted{': ' + event.reason if event.reason else ''}"
        case InstancesPlaced(placements=()):
            chosen = few(sorted({decision.chosen for decision in event.decisions}))
            return f"a dry run: it would be placed{' on ' if chosen else ''}{chosen}; nothing is claimed"
        case InstancesPlaced():
            placements = [placement for placement in event.placements if instance_id in {"", placement.instance_id}]
            return f"placed on {few([placement.node_id for placement in placements])}"
        case PlacementFailed():
            return f"not placed: {event.reason}{': ' + event.message if event.message else ''}"
        case Finding():
            return f"{event.kind} {event.instance_id or event.node_id}: {event.note or event.missing}"
        case ClaimOutcome():
            return f"{event.claim_id} {outcome_text(event)}"
        case NodeResources():
            free = [row.free for row in (event.vcpus, event.pcpus, event.memory_mib, event.disk_mib)]
            return f"free: {amounts_text(free)}; {event.instances} instances, {event.claims} claims"
        case _:
            return event_text(event, instance_id)


def _life_text(event: LifecycleEvent) -> str:
    change, size = event_type(event).removeprefix("instance-"), observed_amounts(event.instance.resources)
    sized = f" with {amounts_text(size)}" if change not in {"departed", "deleted"} and any(size) else ""
    return f"instance {change}{sized}" + (" (found by a resync)" if event.resync else "")
