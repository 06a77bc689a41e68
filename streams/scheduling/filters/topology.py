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
    """Where the devices are there, near the guest's cells or not: how near they must be is NUMATopologyFilter's matter, as in Nova.

    Which ones are chosen follows from the cells. Where they would do as they are chosen by those, they are there as well: the first
    virtual function of all may be a part of the only physical one, and the first that is near enough not.
    """
    if not ask.item.pci:
        return None
    return _held_to(replace(ask.item, numa=()), *([ask.item] if ask.item.numa else []))


def _held_to(item: ClaimItem, *others: ClaimItem) -> Check:
    """The node lacks nothing of one of these; the reason is what it lacks of the first."""

    def lacks(room: Room) -> tuple[Shortfall, ...]:
        found = lacking(room.node, item, room.overlay)
        return () if found and any(not lacking(room.node, other, room.overlay) for other in others) else found

    why: Callable[[Room], str] = lambda room: "; ".join(map(str, lacks(room)))  # noqa: E731 - a reason, like those beside it
    return Check(lambda rooms: [room for room in rooms if not lacks(room)], why)
