"""What a finding says about a difference beyond what it is, and the parts of it that several kinds have in common."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from shlex import quote

from msgspec import Struct

from projections.differences import FindingDifference, by_age
from projections.node import NOTHING, Amounts, Claim, Node
from schemas.findings import Cause
from schemas.resources import Resources
from schemas.units import AMOUNT_MAX


class Description(Struct, frozen=True):
    """What a finding says about a difference beyond what it is."""

    since_ms: int
    held: Resources
    causes: tuple[Cause, ...]
    missing: str
    fix: str
    note: str
    counted: Resources = Resources()
    devices: tuple[str, ...] = ()


def resources_of(amounts: Amounts | list[int]) -> Resources:
    """The amounts as a record has them, inside its bounds."""
    vcpus, pcpus, memory_mib, disk_mib = (max(0, min(amount, AMOUNT_MAX)) for amount in amounts)
    return Resources(vcpus=vcpus, pcpus=pcpus, memory_mib=memory_mib, disk_mib=disk_mib)


def release_command(claim: Claim, reason: str) -> str:
    """The command that gives a claim back; ids are quoted for a shell."""
    return f"claimlog claims release {quote(claim.claim_id)} --reason {reason}"


def claim_of(difference: FindingDifference) -> Claim:
    """The claim that a difference is about."""
    if difference.claim is None:
        raise TypeError(f"a {difference.kind} is about a claim")
    return difference.claim


def share(node: Node, claim: Claim) -> Amounts:
    """What one claim of an instance that is not shown keeps beyond the instance's older ones: shares add up to the instance's use."""
    by_their_age = sorted(node.claims.get(claim.instance_id, ()), key=by_age)
    return beyond(claim.amounts, takewhile(lambda other: other is not claim, by_their_age))


def beyond(amounts: Amounts, claims: Iterable[Claim]) -> Amounts:
    """What of these amounts is above the largest that any of the claims has."""
    r0, r1, r2, r3 = map(max, zip(NOTHING, *(claim.amounts for claim in claims), strict=True))
    return (max(0, amounts[0] - r0), max(0, amounts[1] - r1), max(0, amounts[2] - r2), max(0, amounts[3] - r3))
