"""`claimlog node`: one node in full, with the arithmetic behind what is free; and the operator's word on its status."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import App, Parameter
from msgspec import to_builtins
from msgspec.structs import asdict

from projections.node import Claim, Node
from projections.wording import amounts_text
from schemas.claims import NodeStatus
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.partitioner import partition_of
from schemas.resources import RESOURCES
from schemas.results import NodeResources, ResourceRow
from streams.cli.exits import Exit
from streams.cli.flags import LIVE, Live, LogFlag, MomentFlag
from streams.cli.given.node_names import unknown_node
from streams.cli.node.devices import cell_items, device_items, device_lines
from streams.cli.nodes import node_item
from streams.cli.printed import units
from streams.cli.printed.amounts import MEMORY, TITLES, amount_text
from streams.cli.printed.output import Column, Report, plain
from streams.cli.printed.printable import printable, printable_lines, say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import ledger_partitions, moment_of, state_at
from streams.cli.watching import watchable
from streams.cli.writing import appended, check_writable, new_stamp
from streams.operator import configure
from streams.scheduling.filters.labels import zones_named

app = App(name="node", help="One node in full, and the operator's word on it.")

NodeName = Annotated[str, Parameter(help="The node, by its hostname.")]
ReasonFlag = Annotated[str, Parameter(name="--reason", help="Why; people will read it beside every refusal.")]
NewFlag = Annotated[bool, Parameter(name="--new", negative=(), help="The node has not been reported yet: write it all the same.")]


@app.command
@watchable
def show(name: NodeName, /, *, log: LogFlag = None, at: MomentFlag = "now", output: Live = LIVE) -> int:
    """One node: its settings, the arithmetic of what is free, the claims held there and what is wrong with it.

    zone is every zone that it is in, by the operator's setting and by availability_zone of its aggregates.
    """
    with opened(log) as source:
        state = state_at(source, moment_of(at))
    node = state.node(name)
    if node is None:
        raise UsageProblem(unknown_node(name, state.node_ids()))
    row = state.row(name)
    findings = [finding for finding in state.findings() if finding.node_id == name]
    if output.in_words:
        sys.stdout.write(printable_lines(described(row, node, findings, state.as_of_ms)))
        say(str(state.cut))
        return 0
    claims = [claim_item(claim, state) for claim in sorted(node.held(), key=lambda claim: claim.claim_id)]
    item = node_item(row, state.as_of_ms, node) | {
        "claims_held": claims,
        "instances_shown": [to_builtins(node.shown[instance_id].report) for instance_id in sorted(node.shown)],
        "findings": [to_builtins(finding) for finding in findings],
        "numa_cells": cell_items(node),
        "pci_devices": device_items(node),
        "stats": {} if node.hypervisor is None else dict(node.hypervisor.stats),
    }
    report = Report(columns=[Column(name=name) for name in item], items=[item], cut=state.cut)
    output.write(report)
    return 0


@app.command
def enable(name: NodeName, /, *, reason: ReasonFlag = "", new: NewFlag = False, log: LogFlag = None) -> int:
    """Let claims be granted on a node again."""
    return _set(name, "enabled", reason, new, log)


@app.command
def disable(name: NodeName, /, *, reason: ReasonFlag, new: NewFlag = False, log: LogFlag = None) -> int:
    """Grant nothing on a node until it is enabled; what is held there stays."""
    return _set(name, "disabled", reason, new, log)


@app.command
def drain(name: NodeName, /, *, reason: ReasonFlag, new: NewFlag = False, log: LogFlag = None) -> int:
    """As disable, and say that its instances are to leave; whoever moves them reads this."""
    return _set(name, "draining", reason, new, log)


@app.command
def withdraw(name: NodeName, /, *, reason: ReasonFlag, new: NewFlag = False, log: LogFlag = None) -> int:
    """Take a node out for good: nothing is granted there, and its silence is no finding."""
    return _set(name, "withdrawn", reason, new, log)


app.command("streams.cli.node.retire:retire", name="retire")
app.command("streams.cli.node.close_home:close_home", name="close-home")


def _set(name: str, status: NodeStatus, reason: str, new: bool, spec: str | None) -> int:
    """Write the operator's word, and say where it stands and what it changed. Only `enabled` needs no reason."""
    if status != "enabled" and not reason.strip():
        raise UsageProblem("--reason '': say why, for those who wonder later why nothing is granted there")
    with opened(spec) as log:
        check_writable(log)
        state = state_at(log, views=False, pending=False, only=(partition_of(name.encode(), ledger_partitions(log)),))
        before = state.node(name)
        # A node may have been reported and not carried yet.
        if before is None and not new and name not in (known := state_at(log, views=False).node_ids()):
            raise UsageProblem(f"{unknown_node(name, known)}; --new writes it before its first report")
        was = now = "new" if before is None else before.status
        position = appended(log, configure(name, new_stamp(), status=status, reason=reason))
        for _ in state.follow(log, position.partition, position.offset + 1):  # Others may have said something in between.
            after = state.node(name)
            was, now = now, "new" if after is None else after.status
        after = state.node(name)
    if after is None or after.status != status:
        say(f"{position}: written, but the node is {'not known' if after is None else after.status} after it")
        return Exit.ERROR
    print(printable(f"{name}: {was} -> {status}" + (f" ({reason})" if reason else "")))
    say(str(position))
    return 0


def claim_item(claim: Claim, state: State) -> dict[str, Any]:
    """A held claim as an item. `state` is `unconfirmed`, `confirmed`, or `overdue`: not confirmed by its deadline."""
    said = "confirmed" if claim.confirmed_ms is not None else "overdue" if state.as_of_ms > claim.deadline_ms else "unconfirmed"
    ledger = state.ledger_of(claim.node_id)
    return {
        "claim_id": claim.claim_id,
        "state": said,
        "node_id": claim.node_id,
        "instance_id": claim.instance_id,
        "request_id": claim.request_id,
        "owner": claim.owner,
        **dict(zip(RESOURCES, claim.amounts, strict=True)),
        "age_ms": None if claim.granted_ms < 0 else max(0, state.as_of_ms - claim.granted_ms),
        "granted_ms": None if claim.granted_ms < 0 else claim.granted_ms,
        "confirmed_ms": claim.confirmed_ms,
        "deadline_ms": claim.deadline_ms,
        "resize": claim.resize,
        "forced": claim.forced,
        "keep": claim.keep,
        "group_id": "" if claim.group is None else claim.group.group_id,
        "cells": [asdict(cell) for cell in claim.cells],
        "pinned_cpus": claim.pinned_cpus,
        "pci_addresses": claim.pci_addresses,
        "position": f"claims/{0 if ledger is None else ledger.partition}@{claim.offset}",
    }


def described(row: NodeResources, node: Node, findings: list[LeakSuspected | LeakConfirmed], as_of_ms: int) -> str:
    """The block that `node show` prints."""
    kind = f"{row.hypervisor_type or '-'} {row.hypervisor_version or ''}".rstrip()
    lines = [
        f"node        {row.node_id}",
        f"status      {row.status}" + (f" ({row.status_reason})" if row.status_reason else ""),
        f"zone        {plain(sorted(zones_named(row))) or '-'}",
        f"aggregates  {plain([_aggregate(each.name, each.metadata) for each in row.aggregates]) or '-'}",
        f"traits      {plain(row.traits) or '-'}",
        f"host        {kind}" + (f", uuid {row.host_uuid}" if row.host_uuid else ""),
        f"audit       {_audit(row, node, as_of_ms)}",
    ]
    for resource in ("memory_mib", "vcpus", "disk_mib", "pcpus"):
        lines += _arithmetic(resource, getattr(row, resource), node)
    if node.hypervisor is not None and (pools := node.hypervisor.stats.get("storage_pools")):
        lines.append(f"{'':<11} storage pools: {pools}")
    lines += device_lines(node)
    claimed = f"{units.counted(row.claims, 'claim')}, {row.claims_unconfirmed} unconfirmed"
    lines.append(f"instances   {row.instances} shown or claimed, {len(node.shown)} shown; {claimed}")
    for claim in sorted(node.held(), key=lambda claim: (claim.offset, claim.claim_id)):
        confirmed = "confirmed" if claim.confirmed_ms is not None else "unconfirmed"
        lines.append(f"  {claim.claim_id}  {claim.instance_id}  {amounts_text(claim.amounts)}  {confirmed}")
    unclaimed = sorted(set(node.shown) - set(node.claims))
    lines += [f"  (no claim)  {instance_id}  {amounts_text(node.shown[instance_id].amounts)}" for instance_id in unclaimed]
    ignored = sum(bool(finding.ignored) for finding in findings)
    lines.append(f"findings    {len(findings) - ignored or 'none'}" + (f", {ignored} more, ignored" if ignored else ""))
    for finding in findings:
        state = "confirmed" if isinstance(finding, LeakConfirmed) else "suspected"
        subject = f"  {finding.kind} {finding.instance_id or finding.node_id} {state}"
        if finding.ignored:
            lines.append(f"{subject}, ignored: {finding.ignored}")
            continue
        lines.append(f"{subject}, missing: {finding.missing or '-'}")
        lines += [f"    {finding.fix}"] if finding.fix else []
    return "".join(line + "\n" for line in lines)


def _aggregate(name: str, metadata: dict[str, str]) -> str:
    return name + (f" ({plain(metadata)})" if metadata else "")


def _audit(row: NodeResources, node: Node, as_of_ms: int) -> str:
    said = "never"
    if row.audit_taken_at_ms is not None:
        said = f"{units.ago(row.audit_taken_at_ms, as_of_ms)}, {'complete' if row.audit_complete else 'incomplete'}"
    since_ms = [shown.report.unknown_since_ms for shown in node.shown.values() if shown.report.unknown_since_ms is not None]
    if since_ms and not row.audit_complete:
        guests = "1 guest does" if len(since_ms) == 1 else f"{len(since_ms)} guests do"
        said += f" ({guests} not answer, since {units.moment(min(since_ms))})"
    if row.unknown_since_ms is not None:
        since = units.moment(row.unknown_since_ms)
        said += f"; unknown since {since}: {node.unknown_reason}" if node.audits_fail else f"; none complete since one failed at {since}"
    if row.silent_since_ms is not None:
        said += f"; silent since {units.moment(row.silent_since_ms)}"
    return said


def _arithmetic(resource: str, row: ResourceRow, node: Node) -> list[str]:
    """What is free and why: the same numbers that the ledger decides with."""
    title = TITLES[resource]
    if row.total is None and not row.claimed and not row.used:
        return [f"{title:<11} not reported"]
    text = {name: amount_text(resource, getattr(row, name)) for name in ("total", "reserved", "limit", "used", "free")}
    rounded = ""
    if row.limit is not None and row.total is not None and row.ratio_milli is not None:
        rounded = ", rounded down" if (row.total - row.reserved) * row.ratio_milli % 1000 else ""
    views = "  ".join(f"{view} {amount_text(resource, getattr(row, view))}" for view in ("reported", "tracked", "claimed"))
    if row.limit is None:
        why = "no total is reported" if row.total is None else "no ratio, so no limit"
        free = f"no bound known: {why}; used {text['used']} of {text['total']}"
        limit = ""
    else:
        free = f"free {text['free']} = limit {text['limit']} - used {text['used']}"
        usable = f"(total {text['total']} - reserved {text['reserved']})"
        limit = f"{'':<11} limit {text['limit']} = {usable} x {units.ratio(row.ratio_milli)}{rounded}"
    gap = f"gap {amount_text(resource, row.gap, signed=True)}" + (" (a view is missing)" if row.gap is None else " = tracked - reported")
    rule = node.rule(resource)
    bounds = [f"min_unit {rule.min_unit}"] if rule.min_unit > 1 else []
    bounds += [f"max_unit {rule.max_unit}"] if rule.max_unit is not None else []
    bounds += [f"step_size {rule.step_size}"] if rule.step_size > 1 else []
    physical = _physical(resource, node)
    return [
        f"{title:<11} {free}",
        *([limit] if limit else []),
        f"{'':<11} {views}  {gap}",
        *([f"{'':<11} asked for in: {', '.join(bounds)}"] if bounds else []),
        *([f"{'':<11} physical: {physical} (the host's own figure; part of no gap)"] if physical else []),
    ]


def _physical(resource: str, node: Node) -> str:
    """The host's own figures."""
    if node.hypervisor is None or resource not in MEMORY:
        return ""
    physical = node.hypervisor.physical
    if resource == "memory_mib":
        amounts = {"used": physical.memory_mib_used, "free": physical.memory_mib_free}
    else:
        amounts = {
            "used": physical.disk_mib_used,
            "free": physical.disk_mib_free,
            "left if all images grow": physical.disk_mib_available_least,
        }
    return ", ".join(f"{amount_text(resource, amount)} {name}" for name, amount in amounts.items() if amount is not None)
