"""The leak audit's memory: which differences were seen when, and what a further look makes of them. Pure, one partition.

A difference is *suspected* at first sight: the event that explains it may still be on its way. A later complete audit that shows it again,
taken at least the grace after, *confirms* it (an expired claim and a silent node, which complete audits would have ended, any later look).
While it is open it is measured again by each record after which it holds something else, or is to be mended otherwise, and said again once
it is confirmed.
It is *resolved* by the record after which it is gone. Findings are results of the fold: the same records give the same findings.

Only what a record touched is looked at again, by an audit too, as long as nothing waits for a second look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from functools import cached_property
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from projections.differences import Closed, HomeClosed, Look, nothing_wrong, of_instances, of_node, too_old_for
from projections.open_finding import OpenFinding, confirmed, may_confirm, remeasured, resolved, suspected
from projections.rules import REMEMBERED_RECORDS
from schemas.claims import (
    ClaimReleased,
    ClaimRenewed,
    ClaimRequested,
    FindingIgnored,
    GroupHomeClosed,
    InstanceObserved,
    NodeConfigured,
    NodeObserved,
    NodeSilent,
)
from schemas.codec import event_type
from schemas.findings import FindingRecord, LeakConfirmed, LeakSuspected
from schemas.resources import Resources

if TYPE_CHECKING:
    from projections.ledger import Ledger
    from projections.ledger_state import Step
    from projections.node import Node
    from projections.observed import Observed

# How often closed claims that may be forgotten are.
_FORGET_EVERY = 10_000
_RESTS_ON_CLOSED = frozenset({"missing-claim", "vanished-claim"})
_OF_NODE = frozenset({"negative-free", "silent-node", "stranded-member"})
"""Kinds that every look at a node sees, whatever instances it is about."""
_TOUCHES_NODE = frozenset({NodeConfigured, NodeSilent})
_GONE = frozenset({"departed", "deleted"})
_NOTHING = Resources()
_BY_OFFSET = attrgetter("offset")

Touched = Iterable[tuple[str, Collection[str]]]
"""Nodes, each with instances there."""


class Mark(Struct):
    """What the audit remembers of a node between records.

    `heard_ms` is the append time of the last audit record, failed ones included; `complete_*` the last complete audit. `quiet`: that
    audit and what came since left nothing to confirm or to judge, so the next one finds nothing new about instances that it need not look
    at.
    `auditor` is that audit's producer: on another one other instances are vouched for (`projections.observed`).
    """

    heard_ms: int = -1
    complete_offset: int = -1
    complete_ms: int = -1
    quiet: bool = False
    auditor: str = ""


class Leaks(Struct, dict=True):
    """The findings of one partition; serialisable, and the same after any replay of the same records."""

    partition: int
    open: dict[str, dict[str, OpenFinding]] = field(default_factory=dict)
    """Unresolved findings by node and finding id."""
    marks: dict[str, Mark] = field(default_factory=dict)
    closed: dict[str, dict[str, Closed]] = field(default_factory=dict)
    """The last closed claim by node and instance, for as long as ids of closed claims are remembered."""
    homes: dict[str, dict[str, HomeClosed]] = field(default_factory=dict)
    """Homes of groups that an operator closed with members there, by node and group, until none of them is left."""

    def apply(self, ledger: Ledger, observed: Observed, step: Step) -> list[FindingRecord]:
        """Look at what one step touched; called after `ledger.apply` and `observed.apply`, for every step, in order."""
        if not step.offset % _FORGET_EVERY:
            self._forget(step.offset)
        event = step.event
        if event is None or (step.ignored and not observed.heeds(step)):
            return []
        kind = type(event)
        if kind is ClaimRequested and len(step.outcomes) == 1 and step.outcomes[0].node_id not in self.open:
            item = event.items[0]
            if not (item.forced or item.keep):
                return []  # As `_claimed` has it, and nearly every claim is of this sort.
        if kind is ClaimRenewed and event.node_id not in self.open:
            instance_id = step.outcomes[0].instance_id
            if not instance_id or len(ledger.nodes[event.node_id].claims[instance_id]) == 1:
                return []  # The one claim of its instance: a renewal can end a difference then, but not begin one.
        if kind is NodeObserved:
            return self._audited(ledger, observed, event, step)
        if kind is FindingIgnored:
            return self._ignored(event, step)
        return self._touch(ledger, observed, event, step)

    def _touch(self, ledger: Ledger, observed: Observed, event: Any, step: Step) -> list[FindingRecord]:
        """Look at the instances that a record touched, where it is not plain that nothing is wrong."""
        found: list[FindingRecord] = []
        for node_id, instances in self._touched(ledger, event, step):
            mark, node = self.marks.get(node_id), ledger.nodes.get(node_id)
            if mark is not None and node is not None and (_sets_status(event) or node.status == "withdrawn"):
                # What is wrong there is seen by the status, of a withdrawn node mostly by an audit alone: the next one looks at everything.
                mark.quiet = False
            if node is None or self._is_plain(node, observed, instances, step):
                continue
            found += self._look(self._at(node, observed, step, mark), instances, every=False)
            if mark is not None and mark.quiet:
                mark.quiet = self._nothing_to_confirm(node_id)
        return found

    def open_findings(self) -> list[LeakSuspected | LeakConfirmed]:
        """Every unresolved finding, by node and id."""
        return [self.open[node_id][name].record for node_id in sorted(self.open) for name in sorted(self.open[node_id])]

    def count(self, node_id: str) -> int:
        """Number of unresolved findings of a node that nobody has said to ignore."""
        return sum(not finding.record.ignored for finding in self.open.get(node_id, {}).values())

    def _ignored(self, event: FindingIgnored, step: Step) -> list[FindingRecord]:
        """The same finding, said again with the operator's word on it."""
        finding = self.open.get(event.node_id, {}).get(event.finding_id)
        if finding is None or finding.record.ignored == event.reason:
            return []
        finding.record = replace(finding.record, ignored=event.reason, offset=step.offset, time_ms=step.time_ms)
        return [finding.record]

    def _audited(self, ledger: Ledger, observed: Observed, event: NodeObserved, step: Step) -> list[FindingRecord]:
        node = ledger.nodes[event.node_id]
        mark = self.marks.get(event.node_id)
        if mark is None:
            mark = self.marks[event.node_id] = Mark()
        mark.heard_ms = step.time_ms
        applied = node.audit is not None and node.audit.offset == step.offset and event.complete
        if applied and (mark.auditor != event.producer or (event.hypervisor is not None and event.hypervisor.pci_devices)):
            mark.auditor, mark.quiet = intern(event.producer), False
        forgotten = self._forgotten(event.node_id, observed)
        if mark.quiet and step.times_only and not forgotten:
            mark.complete_offset, mark.complete_ms = step.offset, event.taken_at_ms
            return []
        if step.closed:
            self._close(step)
        audited = frozenset() if step.times_only else step.audited
        if audited is not None and forgotten:
            audited = audited | forgotten
        if mark.quiet and applied and audited is not None and self._is_plain(node, observed, audited, step):
            mark.complete_offset, mark.complete_ms = step.offset, event.taken_at_ms
            return []
        look = self._at(node, observed, step, mark)
        if mark.quiet and applied and audited is not None:
            instances, every = audited, False
        else:
            instances, every = self._all_of(look), True
        found = self._look(look, instances, every=every)
        if applied:
            mark.complete_offset, mark.complete_ms = step.offset, event.taken_at_ms
        mark.quiet = applied and self._nothing_to_confirm(event.node_id) and not too_old_for(look, instances)
        return found

    def _forgotten(self, node_id: str, observed: Observed) -> set[str]:
        """Instances of findings that life cycles count no more: a restarted producer forgets them by an audit that tells nothing new."""
        open_ = self.open.get(node_id)
        if open_ is None:
            return set()
        tracked = observed.view(node_id).tracked or ()
        found = (finding.record for finding in open_.values() if finding.record.instance_id not in tracked)
        return {record.instance_id for record in found if record.kind == "stale-instance" or record.counted != _NOTHING}

    def _is_plain(self, node: Node, observed: Observed, instances: Collection[str], step: Step) -> bool:
        """Whether it is plain at once that a look would find nothing: no difference, and no finding that it could resolve."""
        node_id, closed = node.node_id, step.closed
        if closed and (len(closed) > 1 or closed[0].instance_id not in instances):
            instances = {*instances, *(claim.instance_id for claim in closed)}
        if node_id in self.open:
            for finding in self.open[node_id].values():
                if finding.record.instance_id in instances or finding.record.kind in _OF_NODE:
                    return False
        if node_id in self.homes:
            return False
        return nothing_wrong(node, instances, step.time_ms, observed.nodes.get(node_id), self.closed.get(node_id))

    def _nothing_to_confirm(self, node_id: str) -> bool:
        open_ = self.open.get(node_id)
        return open_ is None or all(finding.confirmed for finding in open_.values())

    def _touched(self, ledger: Ledger, event: Any, step: Step) -> Touched:
        """The instances to look at by node; a node with none is looked at itself."""
        kind = type(event)
        if kind is ClaimRenewed:
            return ((event.node_id, [outcome.instance_id for outcome in step.outcomes if outcome.instance_id]),)
        if kind is ClaimRequested:
            return self._claimed(event, step)
        if step.closed:
            self._close(step)
        if kind is InstanceObserved:
            instance_id = event.instance.instance_id
            if event.change in _GONE:
                self._explain(event.node_id, instance_id)
            return ((event.node_id, (instance_id,)),)
        if kind is ClaimReleased:
            if step.closed:
                return [(claim.node_id, (claim.instance_id,)) for claim in step.closed]
            return ((event.node_id, self._acknowledged(event)),)
        if kind is GroupHomeClosed:
            self._home_closed(ledger.nodes[event.node_id], event, step)
            return ((event.node_id, ()),)
        if kind in _TOUCHES_NODE:
            node = ledger.nodes.get(event.node_id)
            if node is None or (kind is not NodeSilent and not _sets_status(event)):
                return ((event.node_id, ()),)
            # A node that is taken back has what it shows, too, of which nothing was said while it was withdrawn.
            shown = node.shown if kind is not NodeSilent and node.status != "withdrawn" else ()
            return ((event.node_id, [*dict.fromkeys([*node.claims, *shown])]),)
        return ()

    def _claimed(self, event: ClaimRequested, step: Step) -> Touched:
        """What claims did to nodes with findings, and to any node those that need not fit there: forced ones, and what keeps its place."""
        unfit = any(item.forced or item.keep for item in event.items)
        if not unfit and not self.open:
            return ()
        touched: dict[str, list[str]] = {}
        for outcome in step.outcomes:
            if outcome.node_id in self.open or (unfit and outcome.node_id):
                touched.setdefault(outcome.node_id, []).append(outcome.instance_id)
        return touched.items()

    def _home_closed(self, node: Node, event: GroupHomeClosed, step: Step) -> None:
        if node.members(event.group_id):
            self.homes.setdefault(event.node_id, {})[event.group_id] = HomeClosed(event.epoch, step.offset, step.time_ms)

    def _forget_homes(self, node: Node) -> None:
        """Nobody comes to a closed home, so one that has no member left has none for ever."""
        homes = {group_id: home for group_id, home in self.homes.get(node.node_id, {}).items() if node.members(group_id)}
        if homes:
            self.homes[node.node_id] = homes
        else:
            self.homes.pop(node.node_id, None)

    def _close(self, step: Step) -> None:
        event, claimants, closings = event_type(step.event), self._claimants, self._closings
        for claim in step.closed:
            claim_id, instance_id, node_id = claim.claim_id, claim.instance_id, claim.node_id
            on_node = self.closed.get(node_id)
            if on_node is None:
                on_node = self.closed[node_id] = {}
            elif (before := on_node.get(instance_id)) is not None:
                claimants.pop(before.claim.claim_id, None)
            gone = on_node[instance_id] = Closed(claim, step.outcome_of(claim_id), step.offset, step.time_ms, event)
            claimants[claim_id] = gone
            closings.append(gone)

    def _explain(self, node_id: str, instance_id: str) -> None:
        """A departure came after all: nothing has vanished."""
        closed = self.closed.get(node_id)
        if closed is not None and (gone := closed.get(instance_id)) is not None and gone.outcome == "vanished":
            gone.outcome = "departed"

    def _acknowledged(self, event: ClaimReleased) -> list[str]:
        """The instance whose vanished claim its owner gives back late."""
        gone = self._claimants.get(event.claim_id)
        if gone is None or gone.claim.node_id != event.node_id:
            return []
        instance_id = gone.claim.instance_id
        self._explain(event.node_id, instance_id)
        return [instance_id]

    @cached_property
    def _claimants(self) -> dict[str, Closed]:
        """What is in `closed`, by the claim's id; follows from it."""
        return {gone.claim.claim_id: gone for gone in self._closings}

    @cached_property
    def _closings(self) -> deque[Closed]:
        """What is in `closed`, oldest first, and before it what has been there and was replaced; follows from it."""
        return deque(sorted([gone for closed in self.closed.values() for gone in closed.values()], key=_BY_OFFSET))

    def _at(self, node: Node, observed: Observed, step: Step, mark: Mark | None) -> Look:
        mark = mark or Mark()
        closed = self.closed.get(node.node_id, {})
        return Look(
            self.partition,
            node,
            observed.view(node.node_id),
            closed,
            step,
            mark.complete_offset,
            mark.complete_ms,
            step.offset - step.offset % _FORGET_EVERY - REMEMBERED_RECORDS,
            self._kept(node.node_id) if closed else frozenset(),
            self.homes.get(node.node_id, {}),
            self._unclaimed(node.node_id) if node.status == "withdrawn" else frozenset(),
        )

    def _unclaimed(self, node_id: str) -> frozenset[str]:
        """The instances that open findings of a node are about, and no claim."""
        return frozenset(each.record.instance_id for each in self.open.get(node_id, {}).values() if not each.record.claim_id) - {""}

    def _kept(self, node_id: str) -> frozenset[str]:
        """Instances whose open finding rests on a closed claim, which is not forgotten before the finding is resolved."""
        open_ = self.open.get(node_id)
        if open_ is None:
            return frozenset()
        return frozenset(finding.record.instance_id for finding in open_.values() if finding.record.kind in _RESTS_ON_CLOSED)

    def _all_of(self, look: Look) -> set[str]:
        """Every instance that anything may be wrong with."""
        node = look.node
        suspected = {finding.record.instance_id for finding in self.open.get(node.node_id, {}).values()} - {""}
        vanished = [instance_id for instance_id, gone in look.closed.items() if gone.outcome == "vanished"]
        return {*node.shown, *node.claims, *(look.view.tracked or ()), *vanished, *suspected}

    def _look(self, look: Look, instances: Collection[str], *, every: bool) -> list[FindingRecord]:
        """Compare what is wrong now with what was open: suspect, confirm, resolve; in order of the findings' ids."""
        node_id = look.node.node_id
        if look.step.closed:
            instances = {*instances, *(claim.instance_id for claim in look.step.closed)}
        present = of_node(look) + of_instances(look, instances)
        if look.homes:
            self._forget_homes(look.node)
        open_ = self.open.get(node_id)
        if not present and not open_:
            return []
        now = {difference.finding_id(node_id): difference for difference in present}
        known = open_ if open_ is not None else self.open.setdefault(node_id, {})
        records: list[FindingRecord] = []
        for name in sorted({*now, *known}):
            finding, difference = known.get(name), now.get(name)
            if difference is None:
                if finding is not None and (every or finding.record.instance_id in instances or finding.record.kind in _OF_NODE):
                    del known[name]
                    records.append(resolved(look, finding))
            elif finding is None:
                known[name] = suspected(look, name, difference)
                records.append(known[name].record)
            elif not finding.confirmed and may_confirm(look, finding):
                finding.record = confirmed(look, finding, difference)
                records.append(finding.record)
            elif (changed := remeasured(look, finding, difference)) is not None:
                finding.record = changed
                # What is suspected is said once: the topic keeps every record, and on a busy node each would be another one.
                records += [changed] if finding.confirmed else []
        if not known:
            del self.open[node_id]
        return records

    def _forget(self, offset: int) -> None:
        """Drop claims closed longer ago than ids are remembered, unless an open finding rests on them. `Look.gone` ignores them anyway."""
        closings, kept = self._closings, []
        while closings and closings[0].offset <= offset - REMEMBERED_RECORDS:
            gone = closings.popleft()
            node_id, instance_id = gone.claim.node_id, gone.claim.instance_id
            on_node = self.closed.get(node_id, {})
            if on_node.get(instance_id) is not gone:
                continue  # A later one of the instance has taken its place.
            if instance_id in self._kept(node_id):
                kept.append(gone)
                continue
            del on_node[instance_id]
            if not on_node:
                del self.closed[node_id]
            if self._claimants.get(gone.claim.claim_id) is gone:
                del self._claimants[gone.claim.claim_id]
        closings.extendleft(reversed(kept))


def _sets_status(event: Any) -> bool:
    return type(event) is NodeConfigured and event.status is not UNSET
