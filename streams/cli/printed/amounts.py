"""Amounts of resources as people read them: `4 vCPUs, 4 GiB`, and what each resource is called."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.resources import RESOURCES
from streams.cli.printed import units

MEMORY = ("memory_mib", "disk_mib")
TITLES = {"memory_mib": "memory", "disk_mib": "disk", "vcpus": "vcpus", "pcpus": "pcpus"}


def amount_text(resource: str, amount: int | None, *, signed: bool = False) -> str:
    """An amount of a resource as people read it; `-` for unknown."""
    if amount is None:
        return "-"
    text = units.mib(amount) if resource in MEMORY else units.count(amount)
    if resource in MEMORY and amount == 0:
        text = "0"
    return units.signed(text) if signed else text


def sized(amounts: Iterable[int | None]) -> str:
    """`4 vCPUs, 4 GiB, 40 GiB disk` for a vector in the order of RESOURCES; what is 0 or unknown is left out."""
    said = []
    for resource, amount in zip(RESOURCES, amounts, strict=True):
        if amount:
            said.append(amount_text(resource, amount) + {"vcpus": " vCPUs", "pcpus": " pCPUs", "disk_mib": " disk"}.get(resource, ""))
    return ", ".join(said) or "nothing"
