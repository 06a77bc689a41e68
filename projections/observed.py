"""What observations alone say of each node: *reported* by the hypervisor's audits, and *tracked* through its instances' life cycle.

Both are kept beside the ledger, from the same records, and decide nothing: their difference is what an operator calls the gap.
Which record counts, and in which order, is the ledger's decision (`Step.ignored`), taken over and not taken again, but for an owner's word.

The producer of a node's complete audits speaks for the hypervisor, in its life-cycle events too. Any other producer of life-cycle events is
an *owner* (Nova's notifications, say): it vouches for the instances that it counts. What an owner says of an instance goes before what the
hypervisor's own events say, and an audit that omits the instance does not refute it: that difference is what is looked for
(docs/decisions/0009-owners-vouch.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import TYPE_CHECKING

from msgspec import Struct, field

from projections.node import ObservedAmounts, observed_amounts
from projections.rules import GRACE_MS, SKEW_MS
from schemas.claims import ClaimReleased, InstanceObserved, NodeObserved

if TYPE_CHECKING:
    from projections.ledger import Ledger
    from projections.ledger_state import Step
    from projections.node import Node

UNKNOWN: ObservedAmounts = (None, None, None, None)

# On a node without audits nothing else ends the wait; events later than the grace are a broken producer's.
DEPARTED_MAX = 1000

OBSERVES = frozenset({NodeObserved, InstanceObserved, ClaimReleased})
"""The records that say anything to the views."""

_GONE = frozenset({"departed", "deleted"})
# In the name of every task of Nova's that moves a guest.
_MOVING = "migrat"
_EACH = range(4)


class Tracked(Struct, gc=False):
    """One instance that its life cycle says is on the node: its size, and the last event of it (what, when, where in `claims`, by whom).

    `moving`: the event says that it is on its way from one node to another (Nova's task states `migrating`, `resize_migrating` …).
    """

    amounts: ObservedAmounts
    change: str
    event_ms: int
    offset: int
    producer: str = ""
    moving: bool = False


class NodeView(Struct):
    """The two views of one node.

    `reported` is the sum of what the last complete audit lists (None before there is one), `reported_offset` that audit's place.
    `tracked` is None until a life-cycle event of the node was seen, then the instances by id. `departed` has the time of departures that
    no complete audit has followed yet: an event of another producer that is older than one must not bring the instance back. `left` has the
    owners' departures in full, for as long as observations show the instance. `auditor` is the producer of the last complete audit, and
    `audit_epoch` its epoch; `unwatched_ms` is when the first audit of that epoch was taken, while it cannot be told of some whether it
    went before; else 0.
    `lost` has, for closed claims of tracked instances that nobody declared gone, the instance: the owner's word may still come.
    """

    reported: ObservedAmounts | None = None
    reported_offset: int = -1
    tracked: dict[str, Tracked] | None = None
    departed: dict[str, int] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    left: dict[str, Tracked] = field(default_factory=dict)
    auditor: str = ""
    audit_epoch: int = -1
    unwatched_ms: int = 0
    sums: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """Sum of what tracked instances report, by resource; derived."""
    silent: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """How many tracked instances do not report a resource: while there is one, the sum is unknown; derived."""

    def tracked_amounts(self) -> ObservedAmounts:
        """The tracked view: None, which is "unknown" and not 0, without a source or where an instance's size is not reported."""
        if self.tracked is None:
            return UNKNOWN
        sums, silent = self.sums, self.silent
        return (
            None if silent[0] else sums[0],
            None if silent[1] else sums[1],
            None if silent[2] else sums[2],
            None if silent[3] else sums[3],
        )

    def is_owner(self, producer: str) -> bool:
        """Whether a producer of life-cycle events speaks for the owner of instances here, not for the hypervisor."""
        return bool(producer) and producer != self.auditor

    def vouched(self, instance_id: str) -> Tracked | None:
        """The owner's word that the instance is here; None without one."""
        known = None if self.tracked is None else self.tracked.get(instance_id)
        return known if known is not None and self.is_owner(known.producer) else None

    def gone_ms(self, instance_id: str) -> int:
        """When the instance left, as far as that is remembered; -1 if it is not."""
        word = self.left.get(instance_id)
        return max(self.departed.get(instance_id, -1), -1 if word is None else word.event_ms)

    def track(self, instance_id: str, tracked: Tracked) -> None:
        """Add the instance, or give it its new size."""
        if self.tracked is None:
            self.tracked = {}
        before = self.tracked.get(instance_id)
        if before is not None:
            self._count(before.amounts, -1)
        self.tracked[instance_id] = tracked
        self._count(tracked.amounts, 1)

    def untrack(self, instance_id: str) -> None:
        """Take the instance out, if it is there."""
        gone = None if self.tracked is None else self.tracked.pop(instance_id, None)
        if gone is not None:
            self._count(gone.amounts, -1)
            if self.lost:
                self.lost = {claim_id: other for claim_id, other in self.lost.items() if other != instance_id}

    def _count(self, amounts: ObservedAmounts, sign: int) -> None:
        sums, silent = self.sums, self.silent
        for r in _EACH:
            amount = amounts[r]
            if amount is None:
                silent[r] += sign
            elif amount:
                sums[r] += sign * amount


class Observed(Struct):
    """The views of all nodes of one partition; serialisable, and the same after any replay of the same records."""

    partition: int
    nodes: dict[str, NodeView] = field(default_factory=dict)

    def view(self, node_id: str) -> NodeView:
        """A node's views; those of a node never heard of are unknown."""
        return self.nodes.get(node_id) or NodeView()

    def apply(self, ledger: Ledger, step: Step) -> None:
        """Fold what the ledger just did with one record; called after `ledger.apply`, for every step."""
        event = step.event
        if event is None or (step.ignored and not self.heeds(step)):
            return
        kind = type(event)
        if kind is NodeObserved:
            if event.complete and not event.failed:
                self._audited(ledger, event, step.time_ms)
            if step.closed:
                self._closed(step)
        elif kind is InstanceObserved:
            self._lived(event, step)
        elif kind is ClaimReleased:
            self._released(ledger, event, step)

    def heeds(self, step: Step) -> bool:
        """Whether a step that the ledger ignored counts here: an owner's event, in its order, of an instance that a newer audit omits."""
        event = step.event
        if type(event) is not InstanceObserved or not step.node_ids:
            return False
        view = self.nodes.get(event.node_id)
        return view is not None and view.is_owner(event.producer)

    def _node(self, node_id: str) -> NodeView:
        view = self.nodes.get(node_id)
        if view is None:
            view = self.nodes[node_id] = NodeView()
        return view

    def _audited(self, ledger: Ledger, event: NodeObserved, time_ms: int) -> None:
        """A complete audit: its sum if it is a new full one, and the end of waiting for what departed before it."""
        node = ledger.nodes[event.node_id]
        view = self._node(event.node_id)
        if view.auditor != event.producer:
            _audited_by(view, event.producer)
        followed_ms = event.taken_at_ms - SKEW_MS
        if view.audit_epoch != event.epoch:
            view.audit_epoch, view.unwatched_ms = event.epoch, min(event.taken_at_ms, time_ms)
        if view.unwatched_ms:
            _restarted(view, node, followed_ms)
        full = node.full
        if full is not None and full.offset != view.reported_offset:
            view.reported_offset = full.offset
            view.reported = total([observed_amounts(report.resources) for report in full.instances])
        if view.departed:
            view.departed = {i: gone_ms for i, gone_ms in view.departed.items() if gone_ms > followed_ms}
        if view.left:
            view.left = {i: word for i, word in view.left.items() if word.event_ms > followed_ms or i in node.shown}

    def _lived(self, event: InstanceObserved, step: Step) -> None:
        """One life-cycle event: what is older than the last one known of its instance changes nothing."""
        view = self.nodes.get(event.node_id) or self._node(event.node_id)
        if view.tracked is None:
            view.tracked = {}
        instance_id, event_ms = event.instance.instance_id, min(event.event_time_ms, step.time_ms)
        if view.is_owner(event.producer):
            _owner_says(view, instance_id, _word(event, event_ms, step))
        elif instance_id not in view.left and view.vouched(instance_id) is None:
            known = view.tracked.get(instance_id)
            if event.change in _GONE:
                _hypervisor_misses(view, instance_id, known, event_ms)
            elif (known is None or event_ms >= known.event_ms) and event_ms >= view.departed.get(instance_id, -1):
                view.departed.pop(instance_id, None)
                view.track(instance_id, _word(event, event_ms, step))

    def _closed(self, step: Step) -> None:
        """Remember whose claims went on evidence alone, while their instances are still tracked."""
        for claim in step.closed:
            view = self._node(claim.node_id)
            if view.tracked is not None and claim.instance_id in view.tracked:
                view.lost[claim.claim_id] = claim.instance_id

    def _released(self, ledger: Ledger, event: ClaimReleased, step: Step) -> None:
        """The owner gives back the claim of an instance that no observation shows there: its word that the instance is gone.

        Without this an orphan's release would leave its gap behind, and only a forged life-cycle event could mend it.
        """
        claim = step.closed[0] if step.closed else None
        node_id = event.node_id if claim is None else claim.node_id
        view = self.nodes.get(node_id)
        if view is None or not view.tracked:
            return
        instance_id = view.lost.get(event.claim_id, "") if claim is None else claim.instance_id
        if instance_id in view.tracked:
            node = ledger.nodes[node_id]
            if instance_id not in node.shown and instance_id not in node.claims:
                view.untrack(instance_id)


def _word(event: InstanceObserved, event_ms: int, step: Step) -> Tracked:
    """What an event says of its instance."""
    instance = event.instance
    amounts, moving = observed_amounts(instance.resources), _MOVING in instance.task_state
    return Tracked(amounts, event.change, event_ms, step.offset, intern(event.producer), moving)


def _audited_by(view: NodeView, producer: str) -> None:
    """Another producer audits the node: what it said of departures is the hypervisor's word from now on."""
    view.auditor = intern(producer)
    own = {i: word for i, word in view.left.items() if word.producer == producer}
    for instance_id, word in own.items():
        view.departed[instance_id] = max(word.event_ms, view.departed.get(instance_id, -1))
        del view.left[instance_id]


def _restarted(view: NodeView, node: Node, followed_ms: int) -> None:
    """The hypervisor's producer began anew: what went while it was away it could not tell, and its own first audit tells it.

    What is claimed stays tracked until its claim is explained, and what an owner counts until the owner says otherwise. Where an instance's
    last event is nearer to that audit than clocks may differ, a later one tells it.
    """
    unwatched_ms, view.unwatched_ms = view.unwatched_ms, 0
    for instance_id, known in list((view.tracked or {}).items()):
        if known.event_ms > unwatched_ms or view.is_owner(known.producer):
            continue
        if known.event_ms <= followed_ms and instance_id not in node.shown and instance_id not in node.claims:
            view.untrack(instance_id)
        elif known.event_ms >= followed_ms:
            view.unwatched_ms = unwatched_ms


def _owner_says(view: NodeView, instance_id: str, word: Tracked) -> None:
    """An owner's event, which only an owner's newer one outweighs."""
    last = view.vouched(instance_id) or view.left.get(instance_id)
    if last is not None and word.event_ms < last.event_ms:
        return
    if word.change not in _GONE:
        view.left.pop(instance_id, None)
        view.track(instance_id, word)
        return
    view.untrack(instance_id)
    view.left[instance_id] = word
    if len(view.left) > DEPARTED_MAX:
        view.left = {i: gone for i, gone in view.left.items() if gone.event_ms > word.event_ms - GRACE_MS}


def _hypervisor_misses(view: NodeView, instance_id: str, known: Tracked | None, time_ms: int) -> None:
    """A departure in the hypervisor's own words, of an instance of which no owner speaks."""
    if known is not None and known.event_ms <= time_ms:
        view.untrack(instance_id)
    view.departed[instance_id] = max(time_ms, view.departed.get(instance_id, -1))
    if len(view.departed) > DEPARTED_MAX:
        view.departed = {i: gone_ms for i, gone_ms in view.departed.items() if gone_ms > time_ms - GRACE_MS}


def total(vectors: Iterable[ObservedAmounts]) -> ObservedAmounts:
    """The sum by resource; unknown where one of them is."""
    kept = list(vectors)
    vcpus, pcpus = _sum([each[0] for each in kept]), _sum([each[1] for each in kept])
    return (vcpus, pcpus, _sum([each[2] for each in kept]), _sum([each[3] for each in kept]))


def _sum(amounts: list[int | None]) -> int | None:
    return None if None in amounts else sum(filter(None, amounts))
