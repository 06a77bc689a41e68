"""A node's row for people and dashboards: limit, the three views, what counts as used, what is free, and how old the knowledge is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.node import NOTHING, Amounts, Node
from projections.observed import Observed, ObservedAmounts
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
    rows = [_row(node, r, reported[r] if reported is not None else None, tracked, claimed) for r in range(len(RESOURCES))]
    hypervisor, audit = node.hypervisor, node.audit
    return NodeResources(
        node_id=node_id,
        partition=ledger.partition,
        offset=ledger.next_offset - 1,
        status=node.status,
        status_reason=node.status_reason,
        zone=node.zone,
        aggregates=node.aggregates,
        traits=tuple(sorted({*node.traits, *(hypervisor.traits if hypervisor is not None else ())})),
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
    sums = [0, 0, 0, 0]
    for claims in node.claims.values():
        for r in range(4):
            sums[r] += claims[0].amounts[r] if len(claims) == 1 else max((claim.amounts[r] for claim in claims), default=0)
    return (sums[0], sums[1], sums[2], sums[3]) if node.claims else NOTHING


def _row(node: Node, r: int, reported: int | None, tracked: ObservedAmounts, claimed: Amounts) -> ResourceRow:
    resource = RESOURCES[r]
    rule, limit, total, lived = node.rule(resource), node.limit(resource), node.total(resource), tracked[r]
    return ResourceRow(
        total=total,
        reserved=rule.reserved,
        ratio_milli=rule.ratio_milli,
        limit=_bounded(limit),
        reported=_bounded(reported),
        tracked=_bounded(lived),
        claimed=min(claimed[r], AMOUNT_MAX),
        used=min(node.used[r], AMOUNT_MAX),
        free=_bounded(None if limit is None else limit - node.used[r]),
        gap=_bounded(lived - reported if lived is not None and reported is not None else None),
    )


def _bounded(amount: int | None) -> int | None:
    """Figures at the end of the range are shown at its end: nonsense in a message (a ratio of 2^50) must not make its row unreadable."""
    return None if amount is None else max(-AMOUNT_MAX, min(AMOUNT_MAX, amount))
