"""A finding that is open, and the records that tell of it: suspected, confirmed, measured anew, resolved. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from projections.causes import step_cause
from projections.description import Description
from projections.differences import FindingDifference, Look
from projections.explaining import described
from projections.rules import GRACE_MS
from schemas.claims import NodeObserved, NodeSilent
from schemas.findings import Cause, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.units import bounded_text

_CAUSES_MAX = 30
_BY_ANY_LOOK = frozenset({"expired-claim", "silent-node", "stranded-claim", "stranded-member"})


class OpenFinding(Struct):
    """A finding that is not resolved: the last record about it, and when the next look may confirm it."""

    record: LeakSuspected | LeakConfirmed
    not_before_ms: int

    @property
    def confirmed(self) -> bool:
        """Whether a second look has seen it."""
        return isinstance(self.record, LeakConfirmed)


def may_confirm(look: Look, finding: OpenFinding) -> bool:
    """Whether this look counts as the second one."""
    step, event = look.step, look.step.event
    if step.time_ms < finding.not_before_ms:
        return False
    if finding.record.kind in _BY_ANY_LOOK:
        return type(event) in {NodeObserved, NodeSilent}
    return type(event) is NodeObserved and event.complete and not event.failed and event.taken_at_ms >= finding.not_before_ms


def suspected(look: Look, name: str, difference: FindingDifference) -> OpenFinding:
    """The finding at first sight, under its id `name`."""
    said, step = described(look, difference), look.step
    record = LeakSuspected(
        finding_id=name,
        kind=difference.kind,
        node_id=look.node.node_id,
        partition=look.partition,
        offset=step.offset,
        time_ms=step.time_ms,
        since_ms=said.since_ms,
        suspected_ms=step.time_ms,
        instance_id=difference.instance_id,
        claim_id=difference.claim.claim_id if difference.claim is not None else "",
        causes=said.causes[-_CAUSES_MAX:],
        **_measures(said),
    )
    return OpenFinding(record, max(difference.not_before_ms, step.time_ms + GRACE_MS))


def confirmed(look: Look, finding: OpenFinding, difference: FindingDifference) -> LeakConfirmed:
    """The same finding as it is by now; its causes are those of the suspicion, and the look that confirms it."""
    before, said = finding.record, described(look, difference)
    now = _measures(said)
    same = step_cause(look.partition, look.step, before.instance_id, "a later look shows the same")
    newer = _what_changed(look, before, said) if _differs(before, now) else same
    return LeakConfirmed(**_said(before, look.step.offset, look.step.time_ms, _with(before.causes, newer)) | now)


def remeasured(look: Look, finding: OpenFinding, difference: FindingDifference) -> LeakSuspected | LeakConfirmed | None:
    """The finding as it is by now, as suspected or confirmed as it was; None if that is what it says already."""
    before, said = finding.record, described(look, difference)
    now = _measures(said)
    if not _differs(before, now):
        return None
    causes = _with(before.causes, _what_changed(look, before, said))
    return type(before)(**_said(before, look.step.offset, look.step.time_ms, causes) | now)


def _measures(said: Description) -> dict[str, Any]:
    """What of a finding changes while it is open."""
    words = {name: bounded_text(getattr(said, name)) for name in ("note", "missing", "fix")}
    return {"held": said.held, "counted": said.counted, "devices": said.devices, **words}


def _what_changed(look: Look, before: LeakSuspected | LeakConfirmed, said: Description) -> Cause:
    """The step as the cause of what a finding says now and did not before."""
    why = next((cause for cause in said.causes if cause.offset == look.step.offset), None)
    return why or step_cause(look.partition, look.step, before.instance_id)


def _differs(before: LeakSuspected | LeakConfirmed, now: dict[str, Any]) -> bool:
    """Whether it holds something else, or is to be mended otherwise; a note alone (of audits that fail each in another way) is no news."""
    return any(getattr(before, name) != value for name, value in now.items() if name != "note")


def resolved(look: Look, finding: OpenFinding) -> LeakResolved:
    """The end of a finding: its causes and the record after which it is gone."""
    return ended(finding.record, step_cause(look.partition, look.step, finding.record.instance_id), look.step.time_ms)


def ended(record: LeakSuspected | LeakConfirmed, cause: Cause, time_ms: int) -> LeakResolved:
    """The end of a finding at the place of its last cause, known at that time."""
    return LeakResolved(**_said(record, cause.offset, time_ms, _with(record.causes, cause)))


def _with(causes: tuple[Cause, ...], newer: Cause) -> tuple[Cause, ...]:
    """One more cause. Of very many the first and the last ones stay: how it began, and how it came to what it is."""
    if len(causes) > 2 * _CAUSES_MAX:
        causes = (*causes[:_CAUSES_MAX], *causes[-_CAUSES_MAX + 1 :])
    return (*causes, newer)


def _said(record: LeakSuspected | LeakConfirmed, offset: int, time_ms: int, causes: tuple[Any, ...]) -> dict[str, Any]:
    """A finding's fields as of a further step."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return fields | {"offset": offset, "time_ms": time_ms, "causes": causes}
