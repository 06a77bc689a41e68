"""Why a guest is not as it is claimed or counted: another size, other devices, or a claim that outlived the guest or size it was for."""

from __future__ import annotations

from itertools import takewhile
from shlex import quote

from projections.causes import Causes, when_ms
from projections.description import Description, claim_of, release_command, resources_of
from projections.differences import FindingDifference, Look, counted_apart, devices_apart, fitting_claim, is_undone, outlived
from projections.node import Amounts, Claim, Node, largest, minus
from projections.wording import amounts_text, deltas_text
from schemas.resources import Resources


def size_drift(look: Look, difference: FindingDifference) -> Description:
    """A guest of another size than its claim or its owner has it, or a larger claim of a guest or a resize that is gone."""
    if difference.claim is None:
        return _counted_otherwise(look, difference.instance_id)
    claim, node_id = difference.claim, look.node.node_id
    if claim in outlived(look.node, claim.instance_id):
        return _outlived(look, claim)
    shown = look.node.shown[claim.instance_id]
    deltas = [0 if seen is None else seen - claimed for seen, claimed in zip(shown.amounts, claim.amounts, strict=True)]
    causes = Causes(look)
    causes.claimed(claim)
    causes.showing(shown)
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(deltas),
        causes=causes.all(),
        missing=f"ClaimRequested with resize for {claim.instance_id} on {node_id}: {amounts_text(shown.amounts)}",
        fix=f"claimlog timeline {quote(claim.instance_id)}",
        note=f"{deltas_text(deltas)} against its claim {claim.claim_id}; claim the new size, or resize the guest back",
    )


def _counted_otherwise(look: Look, instance_id: str) -> Description:
    """A guest of another size than its owner counts."""
    node, shown, owner = look.node, look.node.shown[instance_id], look.view.vouched(instance_id)
    if owner is None:
        raise TypeError(f"nobody counts {instance_id} on {node.node_id}")
    deltas = [amount or 0 for amount in counted_apart(node, shown, owner) or ()]
    causes = Causes(look)
    causes.life(instance_id)
    causes.now(summary=f"{instance_id} seen with {amounts_text(shown.amounts)}")
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(deltas or (0, 0, 0, 0)),
        causes=causes.all(),
        missing=f"InstanceResized of {instance_id} on {node.node_id}: {amounts_text(shown.amounts)}",
        fix=f"claimlog timeline {quote(instance_id)}",
        note=f"{deltas_text(deltas)} against what {owner.producer} counts; finish or undo the resize there",
    )


def device_drift(look: Look, difference: FindingDifference) -> Description:
    """Devices that are not where they are claimed, or that a claim of a guest that is gone keeps."""
    claim, node_id = claim_of(difference), look.node.node_id
    if claim in outlived(look.node, claim.instance_id, devices=True):
        return _outlived(look, claim, devices=True)
    shown = look.node.shown[claim.instance_id]
    idle, extra = devices_apart(look.node, claim)
    causes = Causes(look)
    causes.claimed(claim)
    attached = ", ".join(shown.report.pci_addresses) or "no device"
    causes.now(summary=f"{claim.instance_id} seen with {attached}")
    known = {device.address for device in look.node.hypervisor.pci_devices} if look.node.hypervisor is not None else set()
    parts = [f"{address} is held for it and {'it does not have it' if address in known else 'the host has it no more'}" for address in idle]
    parts += [f"it has {address}, which is not in its claim" for address in extra]
    return Description(
        since_ms=when_ms(look.step),
        held=Resources(),
        causes=causes.all(),
        missing=f"ClaimRequested with resize for {claim.instance_id} on {node_id}: {attached}",
        fix=f"claimlog timeline {quote(claim.instance_id)}",
        note="; ".join(parts) + "; claim the devices that it has, or attach those that are claimed",
        devices=idle,
    )


def _outlived(look: Look, claim: Claim, *, devices: bool = False) -> Description:
    """A claim for the guest or the size that was there before under this id; another one is for the guest that is there."""
    instance_id = claim.instance_id
    shown, fitting = look.node.shown[instance_id], fitting_claim(look.node, instance_id, devices=devices)
    if fitting is None:
        raise TypeError(f"no claim of {instance_id} is as it is")
    beyond = _beyond(claim, fitting)
    idle, _ = devices_apart(look.node, claim)
    why = "its resize was undone" if is_undone(claim, fitting) else "it outlived its own guest"
    causes = Causes(look)
    for each in (claim, fitting):
        causes.claimed(each)
    causes.showing(shown)
    parts = [deltas_text(beyond)] if any(beyond) else []
    parts += [f"{address} is held for it and it does not have it" for address in idle]
    return Description(
        since_ms=when_ms(look.step),
        held=resources_of(_kept(look.node, claim)),
        causes=causes.all(),
        missing=f"ClaimReleased of {claim.claim_id} on {look.node.node_id}",
        fix=release_command(claim, "operator"),
        note=f"{'; '.join(parts)} against the guest that is there, which claim {fitting.claim_id} is for; {why}, and it "
        "counts whenever this one is away",
        devices=idle,
    )


def _beyond(claim: Claim, fitting: Claim) -> Amounts:
    """What an outlived claim stands for beyond the one that the guest is as."""
    return minus(largest(claim.amounts, fitting.amounts), fitting.amounts)


def _kept(node: Node, claim: Claim) -> Amounts:
    """What its release leaves to others, after that of the outlived ones before it: of what the host reports nothing, as that counts."""
    before = [other.claim_id for other in takewhile(lambda other: other is not claim, outlived(node, claim.instance_id))]
    return minus(*(node.use_of(claim.instance_id, without=without) for without in (before, [*before, claim.claim_id])))
