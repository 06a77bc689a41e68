"""Nodes where claims stand for more than their host reports and no finding says so: of which instances, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from projections.differences import by_age, devices_apart
from projections.node import Claim, Node, cut_to
from projections.wording import amounts_text
from schemas.findings import Finding
from streams.cli.printed import units
from streams.cli.printed.printable import printable
from streams.cli.reading.state import State


def beyond_on(state: State, names: Iterable[str], findings: Iterable[Finding]) -> dict[str, list[str]]:
    """The nodes where claims stand for more than is reported, each with the instances of which no open finding says so."""
    named = {(finding.node_id, finding.instance_id) for finding in findings}
    found: dict[str, list[str]] = {}
    for node_id in names:
        node = state.node(node_id)
        beyond = [] if node is None else [each for each in claimed_beyond(node) if (node_id, each) not in named]
        if beyond:
            found[node_id] = beyond
    return found


def claimed_beyond(node: Node) -> list[str]:
    """Shown instances with several claims of which one stands for more than is shown, sorted.

    Of a single claim a finding says that; of one beside another that the guest is as, only where it is known to be of no use any more.
    """
    several = ((each, claims) for each, claims in node.claims.items() if len(claims) > 1 and each in node.shown)
    return sorted(each for each, claims in several if _is_settled(node, claims) and any(_is_beyond(node, claim) for claim in claims))


def _is_settled(node: Node, claims: Sequence[Claim]) -> bool:
    """Whether a complete audit has come since the last of the claims was confirmed: before, a move or a resize may be under way."""
    return all(claim.confirmed_ms is not None and claim.confirmed_ms < node.complete_ms for claim in claims)


def _is_beyond(node: Node, claim: Claim) -> bool:
    return cut_to(claim.amounts, node.shown[claim.instance_id].amounts) != claim.amounts or bool(devices_apart(node, claim)[0])


def beyond_text(nodes: Mapping[str, Sequence[str]], *, found: int, hidden: int) -> str:
    """What is said of such nodes: in place of "all agree" where nothing is found, beside what is; empty where there are none."""
    if not nodes:
        return ""
    said = f"more is claimed than reported on {units.counted(len(nodes), 'node')}: `claimlog leaks --explain` names the instances"
    if found:
        return f"without a finding, {said}"
    return f"nothing {'else ' if hidden else ''}found, though {said}"


def beyond_lines(state: State, node_id: str, instances: Sequence[str]) -> str:
    """A paragraph on one of these nodes: each of the instances, with its size there and its claims."""
    node = state.node(node_id)
    if node is None:
        return ""
    lines = [f"more is claimed than reported on {node_id}, without a finding"]
    for instance_id in instances:
        held = [f"{claim.claim_id} {amounts_text(claim.amounts)}" for claim in sorted(node.claims[instance_id], key=by_age)]
        lines.append(f"  {instance_id}  shown with {amounts_text(node.shown[instance_id].amounts)}; claimed: {', '.join(held)}")
    return "\n".join(printable(line) for line in lines) + "\n\n"
