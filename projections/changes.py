"""What each record between two moments changed of the nodes' figures; added up they are the difference, for every figure.

A figure that nothing reports is unknown, which is not 0; here it counts as 0, so that what a first report brings is a change like others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from projections.observed import Observed
from projections.rows import node_resources
from projections.wording import event_text, outcome_text
from schemas.codec import event_type
from schemas.resources import RESOURCES
from schemas.results import NodeResources

if TYPE_CHECKING:
    from projections.ledger import Ledger
    from projections.ledger_state import Step

VIEWS = ("limit", "reported", "tracked", "claimed", "used", "free", "gap")
"""The figures of one resource, as `ResourceRow` names them."""
Figures = dict[str, dict[str, int]]
"""By resource and view: amounts, or differences of amounts; what is 0 is left out."""
INSTANCES_NAMED = 3


class Change(Struct, frozen=True, kw_only=True):
    """One record of `claims` and what it changed of one node's figures; `offset` -1: not one record (see `Changes.settle`)."""

    time_ms: int
    partition: int
    offset: int
    event: str
    node_id: str
    deltas: Figures
    summary: str


class Changes:
    """Looks at every step from the first moment on; `before` has the rows of all nodes as of it.

    Where some nodes are `asked` about nothing is found of others: to measure a node takes as long as to fold a record.
    """

    def __init__(self, before: Mapping[str, NodeResources], asked: Collection[str] = ()) -> None:
        self._asked = frozenset(asked)
        self._last = {node_id: figures(row) for node_id, row in before.items()}
        self.found: list[Change] = []

    def apply(self, ledger: Ledger, observed: Observed, step: Step) -> None:
        """Look at one step, right after ledger and views were folded."""
        if step.event is None:
            return
        for node_id in sorted(step.node_ids):
            if node_id not in ledger.nodes or (self._asked and node_id not in self._asked):
                continue
            new = figures(node_resources(ledger, node_id, observed))
            deltas = difference(self._last.get(node_id, {}), new)
            if deltas:
                self._last[node_id] = new
                self.found.append(
                    Change(
                        time_ms=step.time_ms,
                        partition=ledger.partition,
                        offset=step.offset,
                        event=event_type(step.event),
                        node_id=node_id,
                        deltas=deltas,
                        summary=_said(step, node_id),
                    )
                )

    def settle(self, at: Mapping[str, NodeResources], why: str, time_ms: int) -> None:
        """Take off what an answer about the first moment, `at`, had already although the ledger got it later: one change a node.

        `why` says so. Call it before the first step.
        """
        for node_id in sorted({*at, *self._last}):
            deltas = difference(figures(at[node_id]) if node_id in at else {}, self._last.get(node_id, {}))
            if deltas:
                self.found.append(Change(time_ms=time_ms, partition=-1, offset=-1, event="", node_id=node_id, deltas=deltas, summary=why))


def figures(row: NodeResources) -> Figures:
    """A node's figures that are known and not 0."""
    found = {}
    for resource in RESOURCES:
        amounts = getattr(row, resource)
        known = {view: amount for view in VIEWS if (amount := getattr(amounts, view))}
        if known:
            found[resource] = known
    return found


def difference(before: Figures, after: Figures) -> Figures:
    """What was added, by resource and view; what is equal is left out."""
    found = {}
    for resource in RESOURCES:
        old, new = before.get(resource, {}), after.get(resource, {})
        if old != new:
            found[resource] = {view: delta for view in VIEWS if (delta := new.get(view, 0) - old.get(view, 0))}
    return found


def total(changes: Iterable[Change]) -> Figures:
    """All changes added up; what adds up to 0 is left out."""
    found: Figures = {}
    for change in changes:
        for resource, views in change.deltas.items():
            sums = found.setdefault(resource, {})
            for view, delta in views.items():
                sums[view] = sums.get(view, 0) + delta
    return {
        resource: kept
        for resource in RESOURCES
        if (kept := {view: amount for view in VIEWS if (amount := found.get(resource, {}).get(view, 0))})
    }


def _said(step: Step, node_id: str) -> str:
    outcomes = [outcome for outcome in step.outcomes if outcome.node_id in {"", node_id}]
    said = [event_text(step.event), *(f"{outcome.claim_id} {outcome_text(outcome)}" for outcome in outcomes[:INSTANCES_NAMED])]
    more = f"; and {len(outcomes) - INSTANCES_NAMED} more" if len(outcomes) > INSTANCES_NAMED else ""
    return said[0] + (f": {'; '.join(said[1:])}{more}" if said[1:] else "")
