"""Nodes where what the life cycle counts and what audits list differ and no finding says so: which instances make the gap, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import NamedTuple

from projections.differences import apart
from projections.node import NOTHING, Node
from projections.observed import NodeView, Tracked
from projections.rules import SKEW_MS
from projections.wording import amounts_text
from schemas.findings import Finding
from streams.cli.printed import units
from streams.cli.printed.printable import printable
from streams.cli.reading.state import State


class ViewsApart(NamedTuple):
    """The instances on which the views of one node differ, sorted, whether an audit has yet to judge it, and how old the last one is."""

    instances: list[str]
    unjudged: bool
    audit_age_ms: int


def apart_on(state: State, names: Iterable[str], findings: Iterable[Finding]) -> dict[str, ViewsApart]:
    """The nodes where tracked and reported differ in CPUs or memory and no finding says so.

    `findings` are all that are open: on their nodes the instances count that none of them names, and none do on a silent node. Yet to be
    judged is a guest that was last told of no earlier than the last complete audit less the skew, or is on its way. Disk is left out and
    CPUs count together, as in a finding: what an owner asked for need not be what a host has. So are withdrawn nodes: nobody audits them.
    """
    named: dict[str, set[str]] = {}
    silent: set[str] = set()
    for finding in findings:
        named.setdefault(finding.node_id, set()).add(finding.instance_id)
        if finding.kind == "silent-node":
            silent.add(finding.node_id)
    found: dict[str, ViewsApart] = {}
    for node_id in names:
        ledger = state.ledger_of(node_id)
        if ledger is None or ledger.nodes[node_id].status == "withdrawn" or node_id in silent:
            continue
        node, view = ledger.nodes[node_id], state.observed[ledger.partition].view(node_id)
        if view.reported is None or view.tracked is None:
            continue
        without, tracked = named.get(node_id, set()), view.tracked_amounts()
        gap = apart(view.reported, tracked)
        if view.reported[1] is None or tracked[1] is None:  # Somebody's dedicated CPUs are not known: what is known differs by guest.
            gap = _gap_of(node, view, {*node.shown, *view.tracked})[0], gap[1]
        if not without and not any(gap):
            continue
        instances = [instance_id for instance_id in _differing(node, view) if instance_id not in without]
        if without and not instances and gap == _gap_of(node, view, without):
            continue
        words = [word for instance_id, word in [*(view.tracked or {}).items(), *view.left.items()] if instance_id not in without]
        departed = [event_ms for instance_id, event_ms in view.departed.items() if instance_id not in without]
        last_ms = max([*(word.event_ms for word in words), *departed], default=-1)
        unjudged = last_ms > node.complete_ms - SKEW_MS or any(word.moving for word in words)
        found[node_id] = ViewsApart(instances, unjudged, max(0, state.as_of_ms - node.complete_ms))
    return found


def _gap_of(node: Node, view: NodeView, instances: Iterable[str]) -> tuple[int, int]:
    """By how much more is shown than tracked of these, in CPUs and in MiB."""
    tracked = view.tracked or {}
    gaps = [
        apart(node.shown[each].amounts if each in node.shown else NOTHING, tracked[each].amounts if each in tracked else NOTHING)
        for each in instances
    ]
    return sum(cpus for cpus, _ in gaps), sum(mib for _, mib in gaps)


def _differing(node: Node, view: NodeView) -> list[str]:
    """The instances that the two views of a node do not agree on, sorted."""
    tracked = view.tracked or {}
    return [
        instance_id
        for instance_id in sorted({*node.shown, *tracked})
        if instance_id not in node.shown
        or instance_id not in tracked
        or any(apart(node.shown[instance_id].amounts, tracked[instance_id].amounts))
    ]


def apart_text(nodes: Mapping[str, ViewsApart], *, found: int, hidden: int) -> str:
    """What is said of nodes whose views differ: in place of "all agree" where nothing is found, beside what is; empty where none do."""
    if not nodes:
        return ""
    on, unjudged = f"tracked and reported differ on {units.counted(len(nodes), 'node')}", [each for each in nodes.values() if each.unjudged]
    if found:
        return f"without a finding, {on}: {_next_audits(unjudged) if len(unjudged) == len(nodes) else 'see `claimlog nodes`'}"
    nothing = "nothing else found" if hidden else "nothing found"
    if unjudged:
        return f"{nothing} yet; tracked and reported differ on {units.counted(len(unjudged), 'node')}: {_next_audits(unjudged)}"
    return f"{nothing}, though {on}: see `claimlog nodes`"


def _next_audits(nodes: Sequence[ViewsApart]) -> str:
    """What is known of the audits that these nodes wait for: whether any will come is not, where nothing runs that tells silence."""
    oldest = units.span(max(each.audit_age_ms for each in nodes))
    if len(nodes) == 1:
        return f"its next audit will tell; its last is {oldest} old"
    return f"their next audits will tell; their last ones are up to {oldest} old"


def apart_lines(state: State, node_id: str, differ: ViewsApart) -> str:
    """A paragraph on one of these nodes: each instance that makes the difference, with what is said of it on both sides."""
    ledger = state.ledger_of(node_id)
    if ledger is None:
        return ""
    node, view = ledger.nodes[node_id], state.observed[ledger.partition].view(node_id)
    lines = [f"tracked and reported differ on {node_id}{f': {_next_audits([differ])}' if differ.unjudged else ', without a finding'}"]
    for instance_id in differ.instances:
        shown, tracked = node.shown.get(instance_id), (view.tracked or {}).get(instance_id)
        seen = "shown by no observation" if shown is None else f"shown with {amounts_text(shown.amounts)}"
        lines.append(f"  {instance_id}  {seen}; {_tracked_text(ledger.partition, view, instance_id, tracked)}")
    return "\n".join(printable(line) for line in lines) + "\n\n"


def _tracked_text(partition: int, view: NodeView, instance_id: str, tracked: Tracked | None) -> str:
    if tracked is not None:
        said = f"{tracked.change} at claims/{partition}@{tracked.offset}, {units.moment(tracked.event_ms)}"
        return f"the life cycle counts {amounts_text(tracked.amounts)} ({said})"
    left = view.left.get(instance_id)
    if left is not None:
        return f"{left.producer} said that it {left.change} (claims/{partition}@{left.offset}, {units.moment(left.event_ms)})"
    return f"the life cycle does not count it: `claimlog timeline {quote(instance_id)}`"
