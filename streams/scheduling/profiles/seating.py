"""Whether the cells and devices of nodes take the instances of one class of requests, remembered by how cells and devices stand.

A fleet's nodes stand in very many ways, each of their cells and all their devices in few: a guest of one cell fits a node if it fits one of
its cells, and what it says of that cell and of the devices near it holds for all that stand alike.
"""

from __future__ import annotations

from projections import numa, pci
from projections.numa_node import NumaStanding, is_lacking
from projections.room import Room
from schemas.claims import ClaimItem
from schemas.resources import Shortfall

KNOWN_MAX = 1 << 16
"""So many answers are remembered."""


class Seating:
    """Answers for newcomers like `item`, which is not forced or has no cells; where `other` does, they do."""

    def __init__(self, item: ClaimItem, other: Seating | None = None) -> None:
        self.item, self._other = item, other
        self._is_single = len(item.numa) == 1 and not item.forced
        self._cells: dict[tuple[object, ...], bool] = {}
        self._devices: dict[tuple[object, ...], bool] = {}

    def rejects(self, room: Room) -> bool:
        """Whether the node lacks anything of what is wanted, in either seating: the same answer as `numa_node.lacking`."""
        return self._rejects(room) and (self._other is None or self._other.rejects(room))

    def _rejects(self, room: Room) -> bool:
        stand = room.standing()
        if not self._is_single and self.item.numa:
            return is_lacking(stand, room.node, self.item)
        if not self.item.numa:
            return not self._near(room, stand, None)
        return not any(
            self._fits(room, cell, state) and (not self.item.pci or self._near(room, stand, cell.cell_id))
            for cell, state in zip(stand.free.cells, stand.cells, strict=True)
        )

    def _fits(self, room: Room, cell: numa.Cell, state: tuple[object, ...]) -> bool:
        """Whether the guest's only cell fits this one."""
        known = self._cells.get(state)
        if known is None:
            (want,), node = self.item.numa, room.node
            ratios = numa.Ratios(node.vcpus.ratio_milli, node.memory_mib.ratio_milli)
            found = numa.fit_cell(cell, want, ratios, int(want.emulator_threads == "isolate"))
            known = _remember(self._cells, state, not isinstance(found, Shortfall))
        return known

    def _near(self, room: Room, stand: NumaStanding, cell_id: int | None) -> bool:
        """Whether the devices that are wanted are free, near this cell as the wants ask; None: near or far."""
        state = (stand.devices, cell_id, *stand.sockets.items())
        known = self._devices.get(state)
        if known is None:
            host = room.node.hypervisor
            devices = () if host is None else host.pci_devices
            cells = () if cell_id is None else (cell_id,)
            found = pci.choose(devices, self.item.pci, stand.free.addresses, cells=cells, sockets=stand.sockets)
            known = _remember(self._devices, state, not isinstance(found, Shortfall))
        return known


def _remember(known: dict[tuple[object, ...], bool], state: tuple[object, ...], answer: bool) -> bool:
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[state] = answer
    return answer
