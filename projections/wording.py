"""One line of words for one record of `claims`: what findings name as causes and what timelines show, said alike in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from projections.node import amounts_of, observed_amounts
from schemas import claims as say
from schemas.results import ClaimOutcome

_UNITS = ("vCPUs", "pCPUs", "MiB", "MiB disk")


def amounts_text(amounts: Sequence[int | None]) -> str:
    """`4 vCPUs, 4096 MiB, 40960 MiB disk` for a vector in the order of `RESOURCES`; what is 0 or not reported is left out."""
    said = [f"{amount} {unit}" for amount, unit in zip(amounts, _UNITS, strict=True) if amount]
    return ", ".join(said) or "nothing"


def deltas_text(amounts: Sequence[int | None]) -> str:
    """As `amounts_text`, each with its sign: `+4 vCPUs, -2048 MiB`."""
    return ", ".join(f"{amount:+d} {unit}" for amount, unit in zip(amounts, _UNITS, strict=True) if amount) or "no difference"


def outcome_text(outcome: ClaimOutcome) -> str:
    """What became of one claim: `granted on n1`, `refused: memory_mib: 4096 needed of 2048`."""
    if outcome.outcome == "refused":
        tried = zip((*outcome.tried, *[""] * len(outcome.shortfalls)), outcome.shortfalls, strict=False)
        reasons = [f"{node}: {lacks[0]}" if node else str(lacks[0]) for node, lacks in tried if lacks]
        return "refused" + (f": {'; '.join(reasons[:3])}" + (f"; +{len(reasons) - 3} more" if len(reasons) > 3 else "") if reasons else "")
    if outcome.overrun:
        return f"{outcome.outcome} on {outcome.node_id}, forced over {'; '.join(map(str, outcome.overrun))}"
    return f"{outcome.outcome} on {outcome.node_id}" if outcome.outcome == "granted" else outcome.outcome.replace("-", " ")


def event_text(event: Any, instance_id: str = "") -> str:
    """What one record of `claims` says; of many instances only `instance_id` where one is given."""
    match event:
        case say.ClaimRequested():
            items = [item for item in event.items if instance_id in {"", item.instance_id}] or list(event.items)
            kind = "resize to " if items[0].resize else ""
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            return f"request {event.request_id} claims {kind}{amounts_text(amounts_of(items[0].resources))}{more}"
        case say.InstanceObserved():
            size = observed_amounts(event.instance.resources)
            sized = f" with {amounts_text(size)}" if event.change not in {"departed", "deleted"} and any(size) else ""
            return f"instance {event.change}{sized}" + (" (found by a resync)" if event.resync else "")
        case say.NodeObserved():
            return _audit_text(event, instance_id)
        case say.NodeSilent():
            return "no audit came for too long"
        case say.NodeConfigured():
            status = "" if event.status is UNSET else f" to {event.status}" + (f" ({event.reason})" if event.reason else "")
            return f"the operator set the node{status}" if status else "the operator changed the node's settings"
        case say.ClaimRenewed():
            return f"claim renewed for {event.ttl_ms / 1000:g} s"
        case say.ClaimReleased():
            return f"claim given back ({event.reason}{': ' + event.note if event.note else ''})"
        case say.GroupHomeProposed():
            return f"proposed as home of group {event.group_id}, epoch {event.epoch}"
        case say.GroupHomeClosed():
            return f"no longer home of group {event.group_id}, epoch {event.epoch}"
        case _:
            return ""


def _audit_text(event: say.NodeObserved, instance_id: str) -> str:
    if event.failed:
        return f"the audit failed: {event.failed}"
    kind = "audit" if event.complete else "incomplete audit"
    if event.instances is None:
        return f"{kind}: unchanged"
    if not instance_id:
        return f"{kind} lists {len(event.instances)} instances"
    for report in event.instances:
        if report.instance_id == instance_id:
            return f"{kind} lists it with {amounts_text(observed_amounts(report.resources))}"
    return f"{kind} does not list it"
