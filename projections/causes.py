"""The events that made a difference, as causes of a finding: each record of the ledger once, oldest first, in words."""

from __future__ import annotations

from projections.differences import Closed, Look
from projections.ledger_state import Step
from projections.node import Claim, Shown
from projections.wording import amounts_text, event_text
from schemas.claims import InstanceObserved, NodeObserved
from schemas.codec import event_type
from schemas.findings import Cause
from schemas.topics import CLAIMS
from schemas.units import bounded_text


def step_cause(partition: int, step: Step, instance_id: str = "", summary: str = "") -> Cause:
    """The step's own record as a cause."""
    return Cause(
        topic=CLAIMS,
        partition=partition,
        offset=step.offset,
        time_ms=when_ms(step),
        event=event_type(step.event),
        summary=bounded_text(summary or event_text(step.event, instance_id)),
    )


def when_ms(step: Step) -> int:
    """When it happened: an observation's own time, any other record's append time."""
    event = step.event
    if type(event) is NodeObserved:
        return event.taken_at_ms
    return event.event_time_ms if type(event) is InstanceObserved else step.time_ms


class Causes:
    """Causes by offset: one record is named once, and they come out oldest first."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._by_offset: dict[int, Cause] = {}

    def add(self, offset: int | None, time_ms: int, event: str, summary: str) -> None:
        """One more, unless it is at no place in the log."""
        if offset is None or offset < 0:
            return
        before = self._by_offset.get(offset)
        summary = bounded_text(summary if before is None else f"{before.summary}; {summary}")
        self._by_offset[offset] = Cause(
            topic=CLAIMS, partition=self._look.partition, offset=offset, time_ms=max(0, time_ms), event=event, summary=summary
        )

    def grant(self, claim: Claim) -> None:
        """That a claim was granted."""
        text = f"claim {claim.claim_id} granted {amounts_text(claim.amounts)} on {claim.node_id}"
        self.add(claim.offset, max(claim.granted_ms, 0), "claim-requested", text)

    def confirmation(self, claim: Claim) -> None:
        """What confirmed it."""
        if claim.confirmed_offset is not None:
            text = f"{claim.instance_id} seen there: claim confirmed"
            self.add(claim.confirmed_offset, claim.confirmed_ms or 0, claim.confirmed_by, text)

    def claimed(self, claim: Claim) -> None:
        """That a claim was granted, and what confirmed it."""
        self.grant(claim)
        self.confirmation(claim)

    def life(self, instance_id: str) -> None:
        """The last life-cycle event that counts the instance."""
        look = self._look
        tracked = (look.view.tracked or {}).get(instance_id)
        if tracked is not None and tracked.offset not in self._by_offset and tracked.offset != self._look.step.offset:
            sized = f" with {amounts_text(tracked.amounts)}" if any(tracked.amounts) else ""
            by = f", said by {tracked.producer}" if look.view.is_owner(tracked.producer) else ""
            text = f"the last life-cycle event of {instance_id}: {tracked.change}{sized}{by}"
            self.add(tracked.offset, tracked.event_ms, "instance-observed", text)

    def leaving(self, instance_id: str) -> None:
        """The owner's word that the instance has left."""
        word = self._look.view.left.get(instance_id)
        if word is not None:
            self.add(word.offset, word.event_ms, "instance-observed", f"{word.producer} said that {instance_id} {word.change}")

    def listing(self, instance_id: str) -> None:
        """The last complete audit before this step, which lists the instance."""
        self.add(self._look.listed_offset, self._look.listed_ms, "node-observed", f"the last complete audit that lists {instance_id}")

    def showing(self, shown: Shown) -> None:
        """The record that gave an instance its present size; once that one's time is not known any more, the last audit that lists it."""
        look, instance_id, step = self._look, shown.report.instance_id, self._look.step
        tracked = (look.view.tracked or {}).get(instance_id)
        if shown.offset == step.offset:
            offset, time_ms, event = shown.offset, when_ms(step), event_type(step.event)
        elif tracked is not None and tracked.offset == shown.offset:
            offset, time_ms, event = shown.offset, tracked.event_ms, "instance-observed"
        elif shown.seen_ms == look.listed_ms:
            offset, time_ms, event = look.listed_offset, look.listed_ms, "node-observed"
        else:
            offset, time_ms, event = shown.offset, shown.seen_ms, "node-observed"
        self.add(offset, time_ms, event, f"{instance_id} seen with {amounts_text(shown.amounts)}")

    def closing(self, gone: Closed) -> None:
        """What closed a claim."""
        self.add(gone.offset, gone.time_ms, gone.event, f"claim {gone.claim.claim_id} closed: {gone.outcome}")

    def now(self, instance_id: str = "", summary: str = "") -> None:
        """The step that is looked at."""
        step = self._look.step
        if summary or step.offset not in self._by_offset:
            self.add(step.offset, when_ms(step), event_type(step.event), summary or event_text(step.event, instance_id))

    def all(self) -> tuple[Cause, ...]:
        """All of them, oldest first."""
        return tuple(self._by_offset[offset] for offset in sorted(self._by_offset))
