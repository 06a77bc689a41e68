"""Nodes where what the life cycle counts and what audits list differ and no finding is open: which instances make the gap, in words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from shlex import quote

from projections.differences import apart
from projections.observed import NodeView, Tracked
from projections.rules import SKEW_MS
from projections.wording import amounts_text
from streams.cli.printed import units
from streams.cli.printed.printable import printable
from streams.cli.reading.state import State


def apart_on(state: State, names: Iterable[str], found_on: Container[str]) -> dict[str, bool]:
    """The nodes where tracked and reported differ in CPUs or memory and no finding is open; True where an audit has yet to judge it.

    `found_on` are the nodes with findings. Yet to be judged is a guest that was last told of no earlier than the last complete audit less
    the skew, or is on its way. Disk is left out and CPUs count together, as in a finding: what an owner asked for need not be what a host
    has. So are withdrawn nodes: nobody audits them.
    """
    found: dict[str, bool] = {}
    for node_id in names:
        ledger = state.ledger_of(node_id)
        if ledger is None or ledger.nodes[node_id].status == "withdrawn" or node_id in found_on:
            continue
        node, view = ledger.nodes[node_id], state.observed[ledger.partition].view(node_id)
        if view.reported is None or not any(apart(view.reported, view.tracked_amounts())):
            continue
        words = [*(view.tracked or {}).values(), *view.left.values()]
        last_ms = max([*(word.event_ms for word in words), *view.departed.values()], default=-1)
        found[node_id] = last_ms > node.complete_ms - SKEW_MS or any(word.moving for word in words)
    return found


def apart_text(nodes: Mapping[str, bool], *, found: int, hidden: int) -> str:
    """What is said of nodes whose views differ: in place of "all agree" where nothing is found, beside what is; empty where none do."""
    if not nodes:
        return ""
    on, unjudged = f"tracked and reported differ on {units.counted(len(nodes), 'node')}", sum(nodes.values())
    if found:
        return f"without a finding, {on}: {_next_audits(len(nodes)) if unjudged == len(nodes) else 'see `claimlog nodes`'}"
    nothing = "nothing else found" if hidden else "nothing found"
    if unjudged:
        return f"{nothing} yet; tracked and reported differ on {units.counted(unjudged, 'node')}: {_next_audits(unjudged)}"
    return f"{nothing}, though {on}: see `claimlog nodes`"


def _next_audits(nodes: int) -> str:
    return f"{'its' if nodes == 1 else 'their'} next audits will tell"


def apart_lines(state: State, node_id: str, *, unjudged: bool) -> str:
    """A paragraph on one of these nodes: each instance that makes the difference, with what is said of it on both sides."""
    ledger = state.ledger_of(node_id)
    if ledger is None:
        return ""
    node, view = ledger.nodes[node_id], state.observed[ledger.partition].view(node_id)
    lines = [f"tracked and reported differ on {node_id}{', whose next audit will tell' if unjudged else ', without a finding'}"]
    for instance_id in sorted({*node.shown, *(view.tracked or {})}):
        shown, tracked = node.shown.get(instance_id), (view.tracked or {}).get(instance_id)
        if shown is None or tracked is None or any(apart(shown.amounts, tracked.amounts)):
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
