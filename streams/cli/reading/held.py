"""What findings keep together: resources that are held, and resources that are only counted."""

from __future__ import annotations

from collections.abc import Sequence

from projections.node import amounts_of
from schemas.findings import Finding
from schemas.resources import RESOURCES, Resources


def held_by(findings: Sequence[Finding]) -> list[int]:
    """What findings keep together, by resource. A claim that is an orphan and a double as well counts once, and an overrun not at all.

    A node's negative free is the sum of what stands there already, so adding it would count things twice.
    """
    largest: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        if finding.kind != "negative-free":
            about = (finding.node_id, finding.claim_id or finding.instance_id)
            largest[about] = [max(pair) for pair in zip(largest.get(about, [0, 0, 0, 0]), amounts_of(finding.held), strict=True)]
    return [sum(amounts[r] for amounts in largest.values()) for r in range(len(RESOURCES))]


def counted_by(findings: Sequence[Finding]) -> list[int]:
    """What life cycles count for instances that no audit lists, by resource; an instance on a node once, whatever is said of it."""
    counted = {(finding.node_id, finding.instance_id): finding.counted for finding in findings if finding.counted != Resources()}
    return [sum(getattr(each, resource) for each in counted.values()) for resource in RESOURCES]
