"""Why something is wrong on a node: the events that made a difference, the one that is missing, what it keeps, and the way to mend it.

Asked at each look at a finding that is open; what is wrong at all is told by `differences`.
"""

from __future__ import annotations

from shlex import quote

from projections.causes import Causes, when_ms
from projections.description import Description, claim_of, release_command, resources_of, share
from projections.differences import FindingDifference, Look, by_age
from projections.drift import device_drift, size_drift
from projections.node import NO_TOTAL, Node, amounts_of
from projections.wording import amounts_text, seconds_text
from schemas.few import few
from schemas.resources import RESOURCES, Resources

# The newest forced claims that a finding names: it must stay far below the size of a record.
_FORCED_MAX = 20
# And of the guests that one look has brought.
_CAME_MAX = 5


def described(look: Look, difference: FindingDifference) -> Description:
    """Why a difference is there: its causes oldest first, the event that is missing, what it keeps from others, and the way to mend it."""
    return _DESCRIBE[difference.kind](look, difference)


def _orphan(look: Look, difference: FindingDifference) -> Description:
    claim = claim_of(difference)
    causes = Causes(look)
    causes.claimed(claim)
    causes.life(claim.instance_id)
    if claim.seen_ms == look.listed_ms:
        causes.listing(claim.instance_id)
    begins = claim.run_since_ms == look.step.time_ms
    causes.now(claim.instance_id, f"the first complete audit that no longer lists {claim.instance_id}" if begins else "")
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(share(look.node, claim)),
        causes=causes.all(),
        missing=f"InstanceDeparted or InstanceDeleted of {claim.instance_id} on {look.node.node_id}",
        fix=release_command(claim, "deleted"),
        note="a confirmed claim whose instance is gone, and nobody said so",
        counted=_counted(look, claim.instance_id),
        devices=claim.pci_addresses,
    )


def _expired(look: Look, difference: FindingDifference) -> Description:
    claim = claim_of(difference)
    causes = Causes(look)
    causes.grant(claim)
    causes.now(summary="past the claim's deadline, and nothing ever showed its instance there")
    # A renewal makes it longer, and never shorter.
    waited_ms = claim.deadline_ms - claim.granted_ms if claim.granted_ms >= 0 else claim.ttl_ms
    return Description(
        since_ms=claim.deadline_ms,
        held=resources_of(share(look.node, claim)),
        causes=causes.all(),
        missing=f"InstanceArrived or InstanceStarted of {claim.instance_id} on {look.node.node_id}, or the claim's release",
        fix=release_command(claim, "failed"),
        note=f"unconfirmed after {seconds_text(waited_ms)}; complete audits would close it",
        devices=claim.pci_addresses,
    )


def _stranded(look: Look, difference: FindingDifference) -> Description:
    claim, node = claim_of(difference), look.node
    causes = Causes(look)
    causes.claimed(claim)
    if node.audit is not None:
        causes.add(node.audit.offset, node.audit.taken_at_ms, "node-observed", f"the last audit of {node.node_id}")
    causes.now()
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(share(node, claim)),
        causes=causes.all(),
        missing=f"InstanceDeleted of {claim.instance_id} on {node.node_id}, or the claim's release",
        fix=release_command(claim, "operator"),
        note=f"{node.node_id} is withdrawn ({node.status_reason or 'no reason given'}) and no audit of it will ever close the claim",
        devices=claim.pci_addresses,
    )


def _left_behind(look: Look, difference: FindingDifference) -> Description:
    """A member of an affinity group whose home here the operator closed."""
    claim, instance_id, node = difference.claim, difference.instance_id, look.node
    shown = node.shown.get(instance_id)
    group_id = claim.group.group_id if claim is not None and claim.group is not None else shown.group_id if shown is not None else ""
    home = look.homes[group_id]
    causes = Causes(look)
    if claim is not None:
        causes.claimed(claim)
    elif shown is not None:
        causes.showing(shown)
    causes.add(home.offset, home.time_ms, "group-home-closed", f"home of {group_id} closed here (epoch {home.epoch}), {instance_id} in it")
    causes.now(instance_id)
    return Description(
        since_ms=home.time_ms,
        held=Resources(),
        causes=causes.all(),
        missing=f"InstanceDeparted or InstanceDeleted of {instance_id} on {node.node_id}",
        fix=release_command(claim, "migrated") if claim is not None else f"claimlog timeline {quote(instance_id)}",
        note=f"{group_id} has left {node.node_id}: evacuate or delete {instance_id} first; what it uses here still counts",
    )


def _counted(look: Look, instance_id: str) -> Resources:
    """What the life cycle counts for an instance that no observation shows here."""
    tracked = (look.view.tracked or {}).get(instance_id)
    if tracked is None or instance_id in look.node.shown:
        return Resources()
    return resources_of([amount or 0 for amount in tracked.amounts])


def _shown_unclaimed(look: Look, difference: FindingDifference) -> Description:
    """A ghost, or an instance whose claim is gone."""
    instance_id, node = difference.instance_id, look.node
    gone, shown = look.gone(instance_id), node.shown[instance_id]
    causes = Causes(look)
    if gone is not None:
        causes.grant(gone.claim)
        causes.closing(gone)
    for claim in sorted(node.claims.get(instance_id, ()), key=by_age):
        causes.claimed(claim)
    causes.leaving(instance_id)
    causes.showing(shown)
    causes.life(instance_id)
    left = look.view.left.get(instance_id)
    departure = f"InstanceDeparted or InstanceDeleted of {instance_id} on {node.node_id}"
    claimed = f"ClaimRequested for {instance_id} on {node.node_id}"
    note = "delete the guest on its host, or claim what it uses; until then its use counts"
    if left is not None:
        has = "its host still has it, and its claim is held" if instance_id in node.claims else "its host still has it"
        note = f"{left.producer} says that it {left.change}, {has}: delete the guest there; until then its use counts"
        missing = f"{departure}, by the hypervisor"
    else:
        missing = claimed if gone is None else f"{departure}, or a new {claimed}"
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(node.uses.get(instance_id, (0, 0, 0, 0))),
        causes=causes.all(),
        missing=missing,
        fix=f"claimlog timeline {quote(instance_id)}",
        note=note,
        devices=shown.report.pci_addresses,
    )


def _stale(look: Look, difference: FindingDifference) -> Description:
    """The life cycle counts an instance here that no audit lists, and no claim holds anything for it."""
    instance_id, node = difference.instance_id, look.node
    gone, owner = look.gone(instance_id), look.view.vouched(instance_id)
    causes = Causes(look)
    if gone is not None:
        causes.grant(gone.claim)
        causes.closing(gone)
    causes.life(instance_id)
    causes.now(summary=f"{instance_id} is not shown on {node.node_id}")
    counted = _counted(look, instance_id)
    amounts = amounts_text(amounts_of(counted))
    who, mend = "the life cycle", "`claimlog leaks --heal --yes` says that it departed"
    fix = f"claimlog leaks --heal --yes --kind stale-instance --node {quote(node.node_id)}"
    if owner is not None:
        who, mend = owner.producer, f"it has to be deleted, or its move ended, where {owner.producer} is told"
        fix = f"claimlog timeline {quote(instance_id)}"
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(node.uses.get(instance_id, (0, 0, 0, 0))),
        causes=causes.all(),
        missing=f"InstanceDeparted or InstanceDeleted of {instance_id} on {node.node_id}",
        fix=fix,
        note=f"{who} still counts {amounts} that no audit lists; {mend}",
        counted=counted,
    )


def _vanished(look: Look, difference: FindingDifference) -> Description:
    claim = claim_of(difference)
    causes = Causes(look)
    causes.claimed(claim)
    causes.life(claim.instance_id)
    gone = look.gone(claim.instance_id)
    if gone is not None:
        causes.closing(gone)
    return Description(
        since_ms=max(0, claim.seen_ms),
        held=Resources(),
        causes=causes.all(),
        missing=f"InstanceDeparted or InstanceDeleted of {claim.instance_id} on {look.node.node_id}",
        fix=f"{release_command(claim, 'deleted')} --node {quote(claim.node_id)}",
        note=f"shown once, then gone without a departure: {amounts_text(claim.amounts)} were freed after the claim's TTL",
        counted=_counted(look, claim.instance_id),
    )


def _negative(look: Look, difference: FindingDifference) -> Description:
    del difference
    node = look.node
    over = [max(0, used - limit) if limit > NO_TOTAL else 0 for used, limit in zip(node.used, node.limits, strict=True)]
    causes = Causes(look)
    if node.full is not None:
        causes.add(node.full.offset, node.complete_ms, "node-observed", f"totals: {_totals_text(node)}")
    for claim in sorted((claim for claim in node.held() if claim.forced), key=by_age)[-_FORCED_MAX:]:
        causes.grant(claim)
    causes.now(summary=_came_text(look))
    parts = [f"{name}: {node.used[r]} used of {node.limits[r]}" for r, name in enumerate(RESOURCES) if over[r]]
    missing = f"InstanceDeparted or ClaimReleased on {node.node_id} of {amounts_text(over)}"
    fix = f"claimlog node drain {quote(node.node_id)} --reason 'uses more than its limit'"
    kept = [name for r, name in enumerate(RESOURCES) if over[r] and node.limits[r] < 0]
    if kept:  # No guest's end gives back what was never there.
        missing = f"NodeConfigured of {node.node_id} that reserves less than it has of {', '.join(kept)}"
        fix = f"claimlog fleet show {quote(node.node_id)}"
        parts += [f"{name}: {node.rule(name).reserved} reserved of {node.total(name)}" for name in kept]
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(over),
        causes=causes.all(),
        missing=missing,
        fix=fix,
        note="; ".join(parts) + "; nothing new is granted there until free is above 0",
    )


def _came_text(look: Look) -> str:
    """The guests whose present size came with this step, the largest first; empty if it brought none."""
    node, offset = look.node, look.step.offset
    came = [(instance_id, shown.amounts) for instance_id, shown in node.shown.items() if shown.offset == offset]
    came.sort(key=lambda each: ([-(amount or 0) for amount in each[1]], each[0]))
    return few([f"{instance_id} seen with {amounts_text(amounts)}" for instance_id, amounts in came], _CAME_MAX)


def _totals_text(node: Node) -> str:
    return amounts_text([node.total(resource) for resource in RESOURCES])


def _silent(look: Look, difference: FindingDifference) -> Description:
    del difference
    node = look.node
    causes = Causes(look)
    if node.audit is not None:
        causes.add(node.audit.offset, node.audit.taken_at_ms, "node-observed", "the last audit that told something")
    causes.now()
    # What a failed audit left unknown may be older than the silence, where others told something since.
    known = [ms for ms in (node.silent_since_ms, node.unknown_since_ms if node.audits_fail else None) if ms is not None]
    return Description(
        since_ms=min(known, default=when_ms(look.step)),
        held=Resources(),
        causes=causes.all(),
        missing=f"HypervisorAudited of {node.node_id}",
        fix=f"claimlog node disable {quote(node.node_id)} --reason 'no audits'",
        note=f"its audits fail: {node.unknown_reason}" if node.audits_fail else "its audits stopped coming",
    )


_DESCRIBE = {
    "orphan-claim": _orphan,
    "expired-claim": _expired,
    "size-drift": size_drift,
    "ghost-instance": _shown_unclaimed,
    "missing-claim": _shown_unclaimed,
    "stale-instance": _stale,
    "device-drift": device_drift,
    "stranded-claim": _stranded,
    "stranded-member": _left_behind,
    "vanished-claim": _vanished,
    "negative-free": _negative,
    "silent-node": _silent,
}
