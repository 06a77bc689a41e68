"""`claimlog nodes`: every node's limit, the three views, the gap between them and what is free."""

from __future__ import annotations

from typing import Any

from projections.node import Node
from schemas.results import NodeResources
from streams.cli.flags import LIVE, Live, LogFlag, MomentFlag
from streams.cli.given.node_names import NodeNames, matching
from streams.cli.printed import units
from streams.cli.printed.amounts import TITLES, amount_text
from streams.cli.printed.output import Column, Item, Report, item_of, plain
from streams.cli.reading.open_log import opened
from streams.cli.reading.state_at import moment_of, state_at
from streams.cli.watching import watchable
from streams.scheduling.filters.labels import zones_named

_LIKE = NodeResources(node_id="", partition=0, offset=0)
VIEWS = ("limit", "reported", "tracked", "claimed", "gap", "free")


@watchable
def nodes(*names: NodeNames, log: LogFlag = None, at: MomentFlag = "now", show: Live = LIVE) -> int:
    """Every node: limit, reported, tracked, claimed, gap, free, and how old the last audit is.

    reported is what the last complete audit lists, tracked what life-cycle events add up to, claimed what held claims keep.
    gap = tracked - reported. free = limit - used, where an instance counts with the larger of what is observed and what is claimed
    but not yet confirmed. limit = (total - reserved) x ratio. A view that nothing reports is shown as -, which is not 0.
    Behind the age of an audit stands why it is not all that is known since: silent (none came since), unknown (the host has been asked in
    vain), incomplete (not all guests answered).
    zone is every zone that a node is in, by the operator's setting and by availability_zone of its aggregates.
    """
    with opened(log) as source:
        state = state_at(source, moment_of(at))
    chosen = matching(state.node_ids(), names)
    items = [node_item(row, state.as_of_ms, state.node(node_id)) for node_id, row in state.rows(chosen).items()]
    show.write(Report(columns=columns(), items=items, cut=state.cut, like=node_item(_LIKE, 0, None)))
    return 0


def node_item(row: NodeResources, as_of_ms: int, node: Node | None) -> dict[str, Any]:
    """The row as an item: the fields of `node-resources`, all of them, its zone every zone it is in, and the age of the last audit.

    `audits_fail` says whether the newest audit failed.
    """
    item = item_of(row)
    item["audits_fail"] = node is not None and node.audits_fail
    item["zone"] = ",".join(sorted(zones_named(row)))
    item["audit_age_ms"] = None if row.audit_taken_at_ms is None else as_of_ms - row.audit_taken_at_ms
    return item


def columns() -> list[Column]:
    """The columns of a table of nodes; vCPUs shortened and the other resources in `wide` only."""
    ordered = ("memory_mib", "vcpus", "disk_mib", "pcpus")
    return [
        Column(name="node_id", title="node"),
        Column(name="status", alarm=lambda status: status != "enabled"),
        Column(name="zone", shown=lambda zone: zone or "-"),
        *(_amount(resource, view) for resource in ordered for view in VIEWS),
        Column(name="audit_age_ms", title="audit", told=_audit, right=True, alarm=lambda item: bool(_doubt(item))),
        Column(name="instances", right=True, wide=True),
        Column(name="claims", right=True),
        Column(name="leaks", right=True, alarm=bool),
        Column(name="aggregates", shown=lambda aggregates: plain([each["name"] for each in aggregates]) or "-", wide=True),
    ]


def _amount(resource: str, view: str) -> Column:
    title = f"{TITLES[resource]} {view}" if view == "limit" or resource != "memory_mib" else view
    is_short = resource == "memory_mib" or (resource == "vcpus" and view in {"limit", "gap", "free"})
    return Column(
        name=f"{resource}.{view}",
        title=title,
        shown=lambda amount: amount_text(resource, amount, signed=view == "gap"),
        right=True,
        wide=not is_short,
        alarm=bool if view == "gap" else (lambda amount: view == "free" and amount is not None and amount < 0),
    )


def _audit(item: Item) -> str:
    age_ms = item["audit_age_ms"]
    said = "never" if age_ms is None else units.span(age_ms)
    return f"{said} {doubt}" if (doubt := _doubt(item)) else said


def _doubt(item: Item) -> str:
    """Why the last audit is not what is known of a node now; empty if it is."""
    if item["silent_since_ms"] is not None:
        return "silent"
    if item["audits_fail"]:
        return "unknown"
    return "" if item["audit_complete"] or item["audit_taken_at_ms"] is None else "incomplete"
