"""A node's row for people and dashboards: limit, the three views, what counts as used, what is free, and how old the knowledge is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.node import Amounts, Node, largest
from projections.observed import Observed
from schemas.resources import RESOURCES
from schemas.results import NodeResources, ResourceRow
from schemas.units import AMOUNT_MAX

if TYPE_CHECKING:
    from projections.ledger import Ledger


def node_resources(ledger: Ledger, node_id: str, observed: Observed, leaks: int = 0) -> NodeResources:
    """The row of a node as of the ledger's last record; `leaks` is its number of open findings.

    Raises KeyError for a node that the ledger does not know.
    """
    node = ledger.nodes[node_id]
    view = observed.view(node_id)
    claimed, tracked, reported = claimed_amounts(node), view.tracked_amounts(), view.reported
    rows = [_row(node, r, reported[r] if reported is not None else None, tracked[r], claimed[r]) for r in range(len(RESOURCES))]
    hypervisor, audit = node.hypervisor, node.audit
    return NodeResources(
        node_id=node_id,
        partition=ledger.partition,
        offset=ledger.next_offset - 1,
        status=node.status,
        status_reason=node.status_reason,
        zone=node.zone,
        aggregates=node.aggregates,
        traits=_traits(node),
        host_uuid=hypervisor.host_uuid if hypervisor is not None else "",
        hypervisor_type=hypervisor.hypervisor_type if hypervisor is not None else "",
        hypervisor_version=hypervisor.hypervisor_version if hypervisor is not None else 0,
        vcpus=rows[0],
        pcpus=rows[1],
        memory_mib=rows[2],
        disk_mib=rows[3],
        instances=node.instance_count(),
        claims=sum(len(claims) for claims in node.claims.values()),
        claims_unconfirmed=node.io_claims,
        audit_taken_at_ms=audit.taken_at_ms if audit is not None else None,
        audit_complete=audit is not None and audit.complete,
        unknown_since_ms=node.unknown_since_ms,
        silent_since_ms=node.silent_since_ms,
        leaks=leaks,
    )


def claimed_amounts(node: Node) -> Amounts:
    """The claimed view: held claims, where several of one instance overlap instead of adding up (rule 3)."""
    vcpus = pcpus = memory_mib = disk_mib = 0
    for claims in node.claims.values():
        if len(claims) == 1:
            amounts = claims[0].amounts
        else:
            amounts = (0, 0, 0, 0)
            for claim in claims:
                amounts = largest(amounts, claim.amounts)
        vcpus += amounts[0]
        pcpus += amounts[1]
        memory_mib += amounts[2]
        disk_mib += amounts[3]
    return (vcpus, pcpus, memory_mib, disk_mib)


def _traits(node: Node) -> tuple[str, ...]:
    reported = node.hypervisor.traits if node.hypervisor is not None else ()
    return tuple(sorted({*node.traits, *reported})) if node.traits or reported else ()


def _row(node: Node, r: int, reported: int | None, tracked: int | None, claimed: int) -> ResourceRow:
    resource = RESOURCES[r]
    rule, total, used = node.rule(resource), node.total(resource), node.used[r]
    limit = None if total is None or rule.ratio_milli is None else node.limits[r]
    return ResourceRow(
        total=total,
        reserved=rule.reserved,
        ratio_milli=rule.ratio_milli,
        limit=_bounded(limit),
        reported=_bounded(reported),
        tracked=_bounded(tracked),
        claimed=_bounded(claimed) or 0,
        used=_bounded(used) or 0,
        free=None if limit is None else _bounded(limit - used),
        gap=None if tracked is None or reported is None else _bounded(tracked - reported),
    )


def _bounded(amount: int | None) -> int | None:
    """Figures at the end of the range are shown at its end: nonsense in a message (a ratio of 2^50) must not make its row unreadable."""
    if amount is None or -AMOUNT_MAX <= amount <= AMOUNT_MAX:
        return amount
    return max(-AMOUNT_MAX, min(AMOUNT_MAX, amount))
