"""What mends a finding: the events that make up for the one that is missing, or why no event can.

Only the ledger is mended here; nothing is done to a hypervisor. The newest report of the host has the last word: what it shows is in use,
and what it has not looked at lately is not known to be gone. Pure; whoever writes the events folds them and says what came of it.
"""

from __future__ import annotations

from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from projections.description import resources_of
from projections.differences import newest_claim, outlived
from projections.node import Node
from projections.observed import NodeView
from projections.pci import want_of
from projections.wording import amounts_text
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, FindingIgnored, InstanceObserved, ReleaseReason
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.requests import TTL_MS_DEFAULT
from schemas.resources import Resources
from streams.log.base import Message
from streams.operator import Stamp, written
from streams.scheduling.moving import NO_WORDS_LEFT, in_words_of_its_own

OpenRecord = LeakSuspected | LeakConfirmed

REASONS: dict[str, ReleaseReason] = {
    "orphan-claim": "deleted",
    "vanished-claim": "deleted",
    "expired-claim": "failed",
    "double-claim": "migrated",
    "stranded-claim": "operator",
}
"""Kinds that giving a claim back mends, and as what."""
OWNER = "operator"
ADOPTABLE = frozenset({"ghost-instance", "missing-claim"})
"""The kinds that are about an instance which is there without a claim."""


class Remedy(Struct, frozen=True):
    """What would be written for one finding, in words too; without messages `says` is why nothing can be."""

    finding: OpenRecord
    says: str
    messages: tuple[Message, ...] = ()


class Place(Struct, frozen=True):
    """Where a finding is: its node and views, and the offset of the ledger's last record there, on which a claim is based."""

    node: Node
    basis: int
    view: NodeView


def mends(command: str) -> bool:
    """Whether a finding's command mends it. Where only somebody on its host can, or with a file, it shows or spares the node till then."""
    return not command.startswith(("claimlog timeline ", "claimlog fleet show ", "claimlog node disable ", "claimlog node drain "))


def remedy(finding: OpenRecord, place: Place, stamp: Stamp, *, report_age_ms: int) -> Remedy:
    """How to mend a finding. `stamp` is the id and time of what is written.

    `report_age_ms` is how old the last complete audit may be then: an older one may not know what is there by now.
    """
    node = place.node
    refusal = _unknown(finding, node, stamp.time_ms, report_age_ms)
    if refusal:
        return Remedy(finding, refusal)
    if finding.kind in REASONS:
        return _released(finding, node, stamp, REASONS[finding.kind])
    shown = node.shown.get(finding.instance_id)
    if finding.kind == "stale-instance":
        return _departed(finding, place, stamp)
    claims = node.claims.get(finding.instance_id, ())
    if finding.kind in {"size-drift", "device-drift"} and _has_outlived(finding, node):
        return _given_back(finding, stamp, "operator")
    if finding.kind == "size-drift" and shown is not None and claims:
        newest = newest_claim(claims)
        amounts = [claimed if seen is None else seen for seen, claimed in zip(shown.amounts, newest.amounts, strict=True)]
        # The rest of the claim stays as it is: a resize stands for the whole, its devices, cells and group included.
        sized = replace(
            _item(finding, stamp, resources_of(amounts), resize=True),
            numa=newest.numa,
            pci=newest.pci,
            group=newest.group,
            project_id=newest.project_id,
            flavor=newest.flavor,
        )
        item = in_words_of_its_own(sized, [node])
        if item is None:
            return Remedy(finding, NO_WORDS_LEFT)
        says = f"claim {amounts_text(amounts)} for {finding.instance_id}, as its host shows it"
        return Remedy(finding, says, (_claim(item, place, stamp),))
    if finding.kind == "ghost-instance" and claims:
        return Remedy(finding, "its owner says that it left and its host shows it: delete the guest there, which gives its claim back")
    if finding.kind in ADOPTABLE:
        return Remedy(finding, f"its host shows it: delete the guest there, or `{adopting(finding)}` claims what it uses")
    if finding.kind == "stranded-member":
        then = f" first, and then: {finding.fix}" if mends(finding.fix) else f" on {finding.node_id}; see also: {finding.fix}"
        return Remedy(finding, f"evacuate or delete {finding.instance_id}{then}")
    return Remedy(finding, f"no event mends it; {finding.fix or 'see its note'}")


def adopting(finding: OpenRecord) -> str:
    """The command that claims what an instance uses that is there without a claim."""
    return f"claimlog leaks adopt {quote(finding.finding_id)} --reason WORDS"


def may_be_adopted(finding: OpenRecord, node: Node | None) -> bool:
    """Whether it is about an instance that is on this node, and without a claim there."""
    is_there = node is not None and finding.instance_id in node.shown and finding.instance_id not in node.claims
    return is_there and finding.kind in ADOPTABLE


def adopted(finding: OpenRecord, place: Place, stamp: Stamp) -> Remedy:
    """A claim for what an instance uses that is there without one; forced, as it is in use whatever the limits say.

    With the devices that it has of those its host lists, by their addresses. No claim can name the cells and CPUs that it is bound to.
    """
    node = place.node
    shown = node.shown.get(finding.instance_id)
    if finding.kind not in ADOPTABLE:
        return Remedy(finding, f"no {finding.kind} can be adopted: only an instance that is there without a claim can")
    if finding.instance_id in node.claims:
        return Remedy(finding, f"{finding.instance_id} has a claim on {node.node_id}: only an instance without one can be adopted")
    if shown is None:
        return Remedy(finding, f"no observation shows {finding.instance_id} on {node.node_id} now, so there is nothing to claim")
    item = _item(finding, stamp, resources_of([amount or 0 for amount in shown.amounts]), resize=False)
    report, listed = shown.report, node.hypervisor.pci_devices if node.hypervisor is not None else ()
    devices = [device for device in listed if device.address in report.pci_addresses]
    item = replace(item, flavor=report.flavor, project_id=report.project_id, pci=tuple(map(want_of, devices)))
    what = ", ".join([amounts_text(shown.amounts), *(f"device {device.address}" for device in devices)])
    bound = ", but not the cells and CPUs that it is bound to" if report.numa_cells or report.pinned_cpus else ""
    return Remedy(finding, f"claim {what} for {finding.instance_id} on {node.node_id}{bound}", (_claim(item, place, stamp),))


def ignored(finding: OpenRecord, stamp: Stamp, reason: str) -> Message:
    """The operator's word that a finding may stand; an empty reason takes it back."""
    event = FindingIgnored(node_id=finding.node_id, record_id=stamp.record_id, finding_id=finding.finding_id, reason=reason)
    return written(event, stamp, subject=finding.finding_id)


def _unknown(finding: OpenRecord, node: Node, now_ms: int, report_age_ms: int) -> str:
    """Why nothing is known well enough; empty if it is."""
    if finding.kind == "stranded-claim":
        return ""  # The operator's word that the node is withdrawn is all that there will ever be.
    if not isinstance(finding, LeakConfirmed):
        return "only suspected: a later audit confirms it, once no event that would explain it can be on its way any more"
    if node.audits_fail or node.silent_since_ms is not None:
        return f"what is on {node.node_id} is not known now: its audits fail or do not come"
    if node.unknown_since_ms is not None:
        return f"what is on {node.node_id} is not known in full: no audit was complete since one failed"
    if node.full is None or now_ms - node.complete_ms > report_age_ms:
        age = f"{(now_ms - node.complete_ms) // 1000} s old" if node.full is not None else "missing"
        return f"the last complete audit of {node.node_id} is {age}; audit the host first, or allow more with --report-age"
    return ""


def _released(finding: OpenRecord, node: Node, stamp: Stamp, reason: ReleaseReason) -> Remedy:
    is_held = any(claim.claim_id == finding.claim_id for claim in node.claims.get(finding.instance_id, ()))
    if node.status == "withdrawn" and is_held and finding.kind != "stranded-claim":
        return Remedy(finding, f"{node.node_id} is withdrawn: the claim goes back as the stranded one that it is there")
    if finding.instance_id in node.shown and finding.kind not in {"expired-claim", "stranded-claim"}:
        return Remedy(finding, f"{finding.instance_id} is shown on {node.node_id}: delete the guest there first")
    if finding.kind == "double-claim" and not finding.fix:
        return Remedy(finding, f"not yet: {finding.note}")
    return _given_back(finding, stamp, reason)


def _has_outlived(finding: OpenRecord, node: Node) -> bool:
    """Whether the finding's claim is of a guest that was made again or resized back, and another one for the guest that is there."""
    larger = outlived(node, finding.instance_id, devices=finding.kind == "device-drift")
    return any(claim.claim_id == finding.claim_id for claim in larger)


def _given_back(finding: OpenRecord, stamp: Stamp, reason: ReleaseReason) -> Remedy:
    event = ClaimReleased(
        node_id=finding.node_id,
        record_id=stamp.record_id,
        claim_id=finding.claim_id,
        reason=reason,
        note=f"heals {finding.kind}",
    )
    says = f"give back claim {finding.claim_id} of {finding.instance_id} on {finding.node_id} ({reason})"
    return Remedy(finding, says, (written(event, stamp, subject=finding.claim_id),))


def _departed(finding: OpenRecord, place: Place, stamp: Stamp) -> Remedy:
    """The departure that nobody reported. An owner's word is not put into its mouth: its tracker would go on counting."""
    owner, instance_id = place.view.vouched(finding.instance_id), finding.instance_id
    if owner is not None:
        return Remedy(finding, f"{owner.producer} counts it: delete it there, or end its move; what is said here would not change that")
    if instance_id in place.node.shown:
        return Remedy(finding, f"{instance_id} is shown on {finding.node_id} by now")
    event = InstanceObserved(
        node_id=finding.node_id,
        producer=OWNER,
        epoch=max(stamp.time_ms, place.node.sources.get(f"lifecycle|{OWNER}", (0, 0))[0]),  # The last one's clock may have been ahead.
        counter=place.basis + 1,  # Two of one millisecond are in order as well: each is based on the other.
        change="departed",
        event_time_ms=stamp.time_ms,
        instance=InstanceReport(instance_id=instance_id),
    )
    return Remedy(finding, f"say that {instance_id} has left {finding.node_id}", (written(event, stamp, subject=instance_id),))


def _item(finding: OpenRecord, stamp: Stamp, resources: Resources, *, resize: bool) -> ClaimItem:
    return ClaimItem(
        claim_id=f"{OWNER}-{stamp.record_id}/0/{OWNER}-{stamp.time_ms}.1",
        instance_id=finding.instance_id,
        nodes=(finding.node_id,),
        resources=resources,
        resize=resize,
        forced=True,
    )


def _claim(item: ClaimItem, place: Place, stamp: Stamp) -> Message:
    request_id = f"{OWNER}-{stamp.record_id}"
    event = ClaimRequested(request_id=request_id, owner=OWNER, basis=place.basis, ttl_ms=TTL_MS_DEFAULT, items=(item,))
    return written(event, stamp, subject=item.claim_id)
