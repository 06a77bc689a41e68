"""What each resource is called, and one amount of it as people read it."""

from __future__ import annotations

from schemas.units import mib_text
from streams.cli.printed import units

MEMORY = ("memory_mib", "disk_mib")
TITLES = {"memory_mib": "memory", "disk_mib": "disk", "vcpus": "vcpus", "pcpus": "pcpus"}


def amount_text(resource: str, amount: int | None, *, signed: bool = False) -> str:
    """An amount of a resource as people read it; `-` for unknown."""
    if amount is None:
        return "-"
    text = mib_text(amount) if resource in MEMORY else units.count(amount)
    if resource in MEMORY and amount == 0:
        text = "0"
    return units.signed(text) if signed else text
