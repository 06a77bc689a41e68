"""NUMA cells and PCI devices (Nova's NUMATopologyFilter and PciPassthroughFilter): what the ledger would say of them, and why not.

The ratios of what floats are the node's own, so no limits need to travel with the claim.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from projections.numa_node import lacking
from projections.room import Room
from schemas.claims import ClaimItem
from schemas.resources import Shortfall
from streams.scheduling.ask import Ask, Check
from streams.scheduling.options import Options


def numa_topology(ask: Ask, _: Options) -> Check | None:
    """Where each guest cell fits a host cell of its own, with its CPUs, memory and pages, and with the devices it wants near them."""
    return _held_to(ask.item) if ask.item.numa else None


def pci_passthrough(ask: Ask, _: Options) -> Check | None:
    """Where the devices are there, near the guest's cells or not: how near they must be is NUMATopologyFilter's matter, as in Nova."""
    return _held_to(replace(ask.item, numa=())) if ask.item.pci else None


def _held_to(item: ClaimItem) -> Check:
    def lacks(room: Room) -> tuple[Shortfall, ...]:
        return lacking(room.node, item, room.overlay)

    why: Callable[[Room], str] = lambda room: "; ".join(map(str, lacks(room)))  # noqa: E731 - a reason, like those beside it
    return Check(lambda rooms: [room for room in rooms if not lacks(room)], why)
