"""Why something is wrong on a node: the events that made a difference, the one that is missing, what it keeps, and the way to mend it.

Asked once a finding, when it is new or confirmed; what is wrong at all is told by `differences`.
"""

from __future__ import annotations

from shlex import quote

from msgspec import Struct

from projections.differences import Closed, Difference, Look, by_age
from projections.ledger import Step
from projections.node import NO_TOTAL, Amounts, Claim, Node, Shown
from projections.wording import amounts_text, deltas_text, event_text
from schemas.claims import InstanceObserved, NodeObserved
from schemas.codec import event_type
from schemas.findings import Cause
from schemas.resources import RESOURCES, Resources
from schemas.topics import CLAIMS
from schemas.units import AMOUNT_MAX

# The newest forced claims that a finding names: it must stay far below the size of a record.
_FORCED_MAX = 20


class Description(Struct, frozen=True):
    """What a finding says about a difference beyond what it is."""

    since_ms: int
    held: Resources
    causes: tuple[Cause, ...]
    missing: str
    fix: str
    note: str


def described(look: Look, difference: Difference) -> Description:
    """Why a difference is there: its causes oldest first, the event that is missing, what it keeps from others, and the way to mend it."""
    return _DESCRIBE[difference.kind](look, difference)


def step_cause(partition: int, step: Step, instance_id: str = "", summary: str = "") -> Cause:
    """The step's own record as a cause."""
    return Cause(
        topic=CLAIMS,
        partition=partition,
        offset=step.offset,
        time_ms=when_ms(step),
        event=event_type(step.event),
        summary=summary or event_text(step.event, instance_id),
    )


def when_ms(step: Step) -> int:
    """When it happened: an observation's own time, any other record's append time."""
    event = step.event
    if type(event) is NodeObserved:
        return event.taken_at_ms
    return event.event_time_ms if type(event) is InstanceObserved else step.time_ms


def resources_of(amounts: Amounts | list[int]) -> Resources:
    """The amounts as a record has them, inside its bounds."""
    vcpus, pcpus, memory_mib, disk_mib = (max(0, min(amount, AMOUNT_MAX)) for amount in amounts)
    return Resources(vcpus=vcpus, pcpus=pcpus, memory_mib=memory_mib, disk_mib=disk_mib)


def _share(node: Node, claim: Claim) -> Amounts:
    """What one claim of an instance that is not shown keeps beyond the instance's older ones: shares add up to the instance's use."""
    before = [0, 0, 0, 0]
    for other in sorted(node.claims.get(claim.instance_id, ()), key=by_age):
        if other is claim:
            break
        before = [max(pair) for pair in zip(before, other.amounts, strict=True)]
    return (
        max(0, claim.amounts[0] - before[0]),
        max(0, claim.amounts[1] - before[1]),
        max(0, claim.amounts[2] - before[2]),
        max(0, claim.amounts[3] - before[3]),
    )


class _Causes:
    """Causes by offset: one record is named once, and they come out oldest first."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._by_offset: dict[int, Cause] = {}

    def add(self, offset: int | None, time_ms: int, event: str, summary: str) -> None:
        if offset is None or offset < 0:
            return
        before = self._by_offset.get(offset)
        summary = summary if before is None else f"{before.summary}; {summary}"
        self._by_offset[offset] = Cause(
            topic=CLAIMS, partition=self._look.partition, offset=offset, time_ms=max(0, time_ms), event=event, summary=summary
        )

    def grant(self, claim: Claim) -> None:
        text = f"claim {claim.claim_id} granted {amounts_text(claim.amounts)} on {claim.node_id}"
        self.add(claim.offset, max(claim.granted_ms, 0), "claim-requested", text)

    def confirmation(self, claim: Claim) -> None:
        if claim.confirmed_offset is not None:
            text = f"{claim.instance_id} seen there: claim confirmed"
            self.add(claim.confirmed_offset, claim.confirmed_ms or 0, claim.confirmed_by, text)

    def life(self, instance_id: str) -> None:
        tracked = (self._look.view.tracked or {}).get(instance_id)
        if tracked is not None and tracked.offset not in self._by_offset and tracked.offset != self._look.step.offset:
            sized = f" with {amounts_text(tracked.amounts)}" if any(tracked.amounts) else ""
            text = f"the last life-cycle event of {instance_id}: {tracked.change}{sized}"
            self.add(tracked.offset, tracked.event_ms, "instance-observed", text)

    def listing(self, instance_id: str) -> None:
        self.add(self._look.listed_offset, self._look.listed_ms, "node-observed", f"the last complete audit that lists {instance_id}")

    def closing(self, gone: Closed) -> None:
        self.add(gone.offset, gone.time_ms, gone.event, f"claim {gone.claim.claim_id} closed: {gone.outcome}")

    def now(self, instance_id: str = "", summary: str = "") -> None:
        step = self._look.step
        if step.offset not in self._by_offset:
            self.add(step.offset, when_ms(step), event_type(step.event), summary or event_text(step.event, instance_id))

    def all(self) -> tuple[Cause, ...]:
        return tuple(self._by_offset[offset] for offset in sorted(self._by_offset))


def release_command(claim: Claim, reason: str) -> str:
    """The command that gives a claim back; ids are quoted for a shell."""
    return f"claimlog claims release {quote(claim.claim_id)} --reason {reason}"


def _orphan(look: Look, difference: Difference) -> Description:
    claim = _claim(difference)
    causes = _Causes(look)
    causes.grant(claim)
    causes.confirmation(claim)
    causes.life(claim.instance_id)
    if claim.seen_ms == look.listed_ms:
        causes.listing(claim.instance_id)
    causes.now(summary=f"the first complete audit that no longer lists {claim.instance_id}")
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(_share(look.node, claim)),
        causes=causes.all(),
        missing=f"InstanceDeparted or InstanceDeleted of {claim.instance_id} on {look.node.node_id}",
        fix=release_command(claim, "deleted"),
        note="a confirmed claim whose instance is gone, and nobody said so",
    )


def _expired(look: Look, difference: Difference) -> Description:
    claim = _claim(difference)
    causes = _Causes(look)
    causes.grant(claim)
    causes.now(summary="past the claim's deadline, and nothing ever showed its instance there")
    return Description(
        since_ms=claim.deadline_ms,
        held=resources_of(_share(look.node, claim)),
        causes=causes.all(),
        missing=f"InstanceArrived or InstanceStarted of {claim.instance_id} on {look.node.node_id}, or the claim's release",
        fix=release_command(claim, "failed"),
        note=f"unconfirmed after {claim.ttl_ms // 1000} s; complete audits would close it",
    )


def _drift(look: Look, difference: Difference) -> Description:
    claim, node_id = _claim(difference), look.node.node_id
    shown = look.node.shown[claim.instance_id]
    deltas = [0 if seen is None else seen - claimed for seen, claimed in zip(shown.amounts, claim.amounts, strict=True)]
    causes = _Causes(look)
    causes.grant(claim)
    causes.confirmation(claim)
    causes.add(shown.offset, shown.seen_ms, _seen_by(look, shown), f"{claim.instance_id} seen with {amounts_text(shown.amounts)}")
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(deltas),
        causes=causes.all(),
        missing=f"ClaimRequested with resize for {claim.instance_id} on {node_id}: {amounts_text(shown.amounts)}",
        fix=f"claimlog timeline {quote(claim.instance_id)}",
        note=f"{deltas_text(deltas)} against its claim {claim.claim_id}; claim the new size, or resize the guest back",
    )


def _seen_by(look: Look, shown: Shown) -> str:
    """The kind of record that gave an instance its present size."""
    if shown.offset == look.step.offset:
        return event_type(look.step.event)
    tracked = (look.view.tracked or {}).get(shown.report.instance_id)
    return "instance-observed" if tracked is not None and tracked.offset == shown.offset else "node-observed"


def _shown_unclaimed(look: Look, difference: Difference) -> Description:
    """A ghost, or an instance whose claim is gone: shown by observations, or tracked only while audits do not list it."""
    instance_id, node = difference.instance_id, look.node
    gone, shown = look.gone(instance_id), node.shown.get(instance_id)
    causes = _Causes(look)
    if gone is not None:
        causes.grant(gone.claim)
        causes.closing(gone)
    if shown is not None:
        causes.add(shown.offset, shown.seen_ms, _seen_by(look, shown), f"{instance_id} seen with {amounts_text(shown.amounts)}")
    causes.life(instance_id)
    departure = f"InstanceDeparted or InstanceDeleted of {instance_id} on {node.node_id}"
    if shown is None:
        causes.now(instance_id)
        tracked = (look.view.tracked or {})[instance_id]
        note = f"the life cycle still counts {amounts_text(tracked.amounts)} that no audit lists"
        missing, fix = departure, release_command(gone.claim, "deleted") if gone is not None else f"claimlog timeline {quote(instance_id)}"
    else:
        claimed = f"ClaimRequested for {instance_id} on {node.node_id}"
        missing = claimed if gone is None else f"{departure}, or a new {claimed}"
        fix = f"claimlog timeline {quote(instance_id)}"
        note = "delete the guest on its host, or claim what it uses; until then its use counts"
    held = node.uses.get(instance_id, (0, 0, 0, 0)) if shown is not None else (0, 0, 0, 0)
    return Description(when_ms(look.step), resources_of(held), causes.all(), missing, fix, note)


def _vanished(look: Look, difference: Difference) -> Description:
    claim = _claim(difference)
    causes = _Causes(look)
    causes.grant(claim)
    causes.confirmation(claim)
    causes.life(claim.instance_id)
    gone = look.gone(claim.instance_id)
    if gone is not None:
        causes.closing(gone)
    return Description(
        since_ms=max(0, claim.seen_ms),
        held=Resources(),
        causes=causes.all(),
        missing=f"InstanceDeparted or InstanceDeleted of {claim.instance_id} on {look.node.node_id}",
        fix=release_command(claim, "deleted"),
        note=f"shown once, then gone without a departure: {amounts_text(claim.amounts)} were freed after the claim's TTL",
    )


def _negative(look: Look, difference: Difference) -> Description:
    del difference
    node = look.node
    over = [max(0, used - limit) if limit > NO_TOTAL else 0 for used, limit in zip(node.used, node.limits, strict=True)]
    causes = _Causes(look)
    if node.full is not None:
        causes.add(node.full.offset, node.complete_ms, "node-observed", f"totals: {_totals_text(node)}")
    for claim in sorted((claim for claim in node.held() if claim.forced), key=by_age)[-_FORCED_MAX:]:
        causes.grant(claim)
    causes.now()
    parts = [f"{name}: {node.used[r]} used of {node.limits[r]}" for r, name in enumerate(RESOURCES) if over[r]]
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(over),
        causes=causes.all(),
        missing="",
        fix=f"claimlog node drain {quote(node.node_id)} --reason 'uses more than its limit'",
        note="; ".join(parts) + "; nothing new is granted there until free is above 0",
    )


def _totals_text(node: Node) -> str:
    return amounts_text([node.total(resource) for resource in RESOURCES])


def _silent(look: Look, difference: Difference) -> Description:
    del difference
    node = look.node
    causes = _Causes(look)
    if node.audit is not None:
        causes.add(node.audit.offset, node.audit.taken_at_ms, "node-observed", "the last audit that told something")
    causes.now()
    known = [ms for ms in (node.silent_since_ms, node.unknown_since_ms) if ms is not None]
    return Description(
        since_ms=min(known, default=when_ms(look.step)),
        held=Resources(),
        causes=causes.all(),
        missing=f"HypervisorAudited of {node.node_id}",
        fix=f"claimlog node disable {quote(node.node_id)} --reason 'no audits'",
        note=f"its audits fail: {node.unknown_reason}" if node.unknown_since_ms is not None else "its audits stopped coming",
    )


def _claim(difference: Difference) -> Claim:
    if difference.claim is None:
        raise TypeError(f"a {difference.kind} is about a claim")
    return difference.claim


_DESCRIBE = {
    "orphan-claim": _orphan,
    "expired-claim": _expired,
    "size-drift": _drift,
    "ghost-instance": _shown_unclaimed,
    "missing-claim": _shown_unclaimed,
    "vanished-claim": _vanished,
    "negative-free": _negative,
    "silent-node": _silent,
}
