"""What of a node's NUMA cells, dedicated CPUs, pages and PCI devices is held, by whom, and what a claim would get of the rest (rule 3).

They are a union: each CPU and device has the set of its holders, claimed or observed, and is free if that is empty. Only the holder
itself is no obstacle: claims of one instance on one node overlap rather than add up. Nothing is kept beside claims and reports, so
nothing can drift: the cells are built from them whenever a claim asks. Guests without a NUMA topology float and count in no cell, as in
Nova.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from projections import numa, pci
from projections.node import Node, Shown
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem
from schemas.inventory import HugePages, Hypervisor, NumaCell
from schemas.requests import NumaWant, PciWant
from schemas.resources import Shortfall
from schemas.results import CellGrant, Granted

Overlay = Sequence[ClaimItem]
ORDINARY_KIB = 4
"""The page size of ordinary memory where the host reports huge pages only."""
HUGE_KIB_MIN = 1024
"""Pages from this size on are set apart from ordinary memory."""


class Holding(NamedTuple):
    """What one claim, or one report, of an instance holds; wants are empty for a report."""

    cells: tuple[CellGrant, ...] = ()
    addresses: tuple[str, ...] = ()
    numa: tuple[NumaWant, ...] = ()
    pci: tuple[PciWant, ...] = ()


Holdings = dict[str, list[Holding]]
"""By instance."""


class Free(NamedTuple):
    """A node as one instance meets it: the cells with others' use, and the devices that others have."""

    cells: tuple[numa.Cell, ...]
    addresses: frozenset[str]


def granted(node: Node, item: ClaimItem, overlay: Overlay = ()) -> Granted | None:
    """The cells, CPUs, pages and devices that `item` gets on `node`; None if they are not there.

    A forced claim keeps to the ratios of what floats if it can.
    """
    found = _found(node, item, overlay)
    return found if isinstance(found, Granted) else None


def kept(node: Node, instance_id: str) -> Granted | None:
    """What the instance has there now: of its newest claim with cells or devices, else of what observations show; None if that is none."""
    claims = [claim for claim in node.claims.get(instance_id, ()) if claim.cells or claim.pci_addresses]
    if claims:
        newest = max(claims, key=lambda claim: (claim.offset, claim.claim_id))
        return Granted(cells=newest.cells, pci_addresses=newest.pci_addresses)
    shown = node.shown.get(instance_id)
    if shown is None:
        return None
    holding = _observed(node.hypervisor, shown, set())
    return Granted(cells=holding.cells, pci_addresses=holding.addresses) if holding.cells or holding.addresses else None


def lacking(node: Node, item: ClaimItem, overlay: Overlay = ()) -> tuple[Shortfall, ...]:
    """What `item` lacks of cells, CPUs, pages and devices of `node`; a forced claim skips the ratios of what floats, and nothing else."""
    found = _found(node, item, overlay)
    return () if isinstance(found, Granted) else found


def is_lacking(stand: NumaStanding, node: Node, item: ClaimItem) -> bool:
    """Whether `item`, of an instance that is new to the node, lacks anything of it; `stand` is how that stands."""
    found = _grant_if_forced(node, item, {}, stand.free)
    return not isinstance(found, Granted)


def over_ratios(node: Node, item: ClaimItem, overlay: Overlay = ()) -> tuple[Shortfall, ...]:
    """What a forced claim takes beyond the ratios of the cells."""
    found = _grant(node, item, _holdings(node, overlay), forced=False)
    return () if isinstance(found, Granted) else found


class NumaStanding(NamedTuple):
    """All that `lacking` reads of a node for an instance that is new to it: where `text` is equal, so is what it says of the same item.

    Which CPUs are held is no part of it, only how many of each core are free. `free` is what there is; of each of its cells `cells` has
    the part that says whether a guest cell fits, with the node's ratios, and `devices` says which devices are free, `devices_free` how
    many.
    """

    text: bytes
    free: Free
    cells: tuple[tuple[object, ...], ...]
    devices: bytes
    devices_free: int
    sockets: dict[int, int | None]


NOWHERE = NumaStanding(b"", Free((), frozenset()), (), b"", 0, {})
"""Of a node without cells and devices."""


def standing(node: Node, overlay: Overlay = ()) -> NumaStanding:
    """How the node stands with the claims in flight that are laid over it."""
    host = node.hypervisor
    if host is None or not (host.numa_cells or host.pci_devices):
        return NOWHERE
    free = _free(node, _holdings(node, overlay), "")
    ratios = node.vcpus.ratio_milli, node.memory_mib.ratio_milli
    cells = tuple([(each.pages, each.memory_mib, each.memory_mib_used, *_cpus(each), *ratios) for each in free.cells])
    sockets = {each.cell_id: each.socket for each in free.cells}
    available = pci.available(host.pci_devices, free.addresses) if host.pci_devices else []
    devices = _encode([(device, device.address) for device in available]) if host.pci_devices else b""
    return NumaStanding(_encode((list(sockets.items()), cells, ratios)) + devices, free, cells, devices, len(available), sockets)


_encode = msgspec.json.Encoder().encode


def _cpus(cell: numa.Cell) -> tuple[object, ...]:
    dedicated, cores, threads_max, is_whole = _sorted_out(cell.shared, cell.dedicated, cell.cores)
    free = dedicated.difference(cell.held)
    left = tuple(sorted([len(free.intersection(core)) for core in cores]))
    return (len(cell.shared), cell.vcpus_used, len(dedicated), left, threads_max, is_whole)


@lru_cache(maxsize=1024)
def _sorted_out(
    shared: numa.Cpus, dedicated: numa.Cpus, cores: tuple[numa.Cpus, ...]
) -> tuple[frozenset[int], tuple[frozenset[int], ...], int, bool]:
    """What use leaves as it is of a cell's CPUs: the dedicated ones, those of each core, threads of a core, and whether all are shared too.

    A fleet has few sorts of cells.
    """
    return frozenset(dedicated), tuple(map(frozenset, cores)), max(map(len, cores), default=1), set(dedicated) == set(shared)


def reported(old: InstanceReport, new: InstanceReport, *, is_event: bool, protected: bool) -> InstanceReport:
    """The report that is kept of two: what an event does not name of cells, CPUs and devices stays, and what rule 5 protects only grows."""
    if old is new or not (is_event or protected) or not (old.pinned_cpus or old.pci_addresses or old.numa_cells):
        return new
    if protected:
        return replace(
            new,
            numa_cells=tuple(sorted({*old.numa_cells, *new.numa_cells})),
            pinned_cpus=tuple(sorted({*old.pinned_cpus, *new.pinned_cpus})),
            pci_addresses=tuple(sorted({*old.pci_addresses, *new.pci_addresses})),
        )
    return replace(
        new,
        numa_cells=new.numa_cells or old.numa_cells,
        pinned_cpus=new.pinned_cpus or old.pinned_cpus,
        pci_addresses=new.pci_addresses or old.pci_addresses,
    )


def same_devices(left: InstanceReport, right: InstanceReport) -> bool:
    """Whether two reports name the same cells, CPUs and devices."""
    return left is right or (
        left.pinned_cpus == right.pinned_cpus and left.pci_addresses == right.pci_addresses and left.numa_cells == right.numa_cells
    )


def _found(node: Node, item: ClaimItem, overlay: Overlay) -> Granted | tuple[Shortfall, ...]:
    holdings, left = _overlaid(node, overlay)
    return _grant_if_forced(node, item, holdings, left if _is_new(node, item, holdings) else None)


def _grant_if_forced(node: Node, item: ClaimItem, holdings: Holdings, free: Free | None) -> Granted | tuple[Shortfall, ...]:
    """What an item gets; a forced one beyond the ratios only if it does not fit within them."""
    free = free or _free(node, holdings, item.instance_id)
    found = _grant(node, item, holdings, forced=False, free=free)
    return _grant(node, item, holdings, forced=True, free=free) if item.forced and not isinstance(found, Granted) else found


def _grant(node: Node, item: ClaimItem, holdings: Holdings, *, forced: bool, free: Free | None = None) -> Granted | tuple[Shortfall, ...]:
    free = free or _free(node, holdings, item.instance_id)
    again = _again(node, item, holdings, free)
    if again is not None:
        return again
    devices = node.hypervisor.pci_devices if node.hypervisor is not None else ()
    sockets = {cell.cell_id: cell.socket for cell in free.cells}
    if not item.numa:
        chosen = pci.choose(devices, item.pci, free.addresses)
        return (chosen,) if isinstance(chosen, Shortfall) else Granted(pci_addresses=chosen)
    if not free.cells:
        return (Shortfall(resource="numa_cells", needed=len(item.numa), detail=f"{len(item.numa)} needed, the node reports none"),)
    counts = pci.free_by_cell(devices, free.addresses) if devices else {}

    def supports(ids: frozenset[int]) -> bool:
        return not isinstance(pci.choose(devices, item.pci, free.addresses, cells=ids, sockets=sockets), Shortfall)

    places = numa.fit_cells(
        free.cells,
        item.numa,
        None if forced else numa.Ratios(node.vcpus.ratio_milli, node.memory_mib.ratio_milli),
        devices_in=lambda cell_id: counts.get(cell_id, 0),
        wants_devices=bool(item.pci),
        supports=supports if item.pci else None,
    )
    lacks = tuple(place for place in places if isinstance(place, Shortfall))
    chosen = pci.choose(devices, item.pci, free.addresses, cells=[] if lacks else _ids(places), sockets=sockets)
    if isinstance(chosen, Shortfall):
        return (*(lack for lack in lacks if lack.resource != "pci"), chosen)
    return lacks or Granted(cells=tuple(place for place in places if isinstance(place, CellGrant)), pci_addresses=chosen)


def _ids(places: Iterable[CellGrant | Shortfall]) -> list[int]:
    return [place.cell_id for place in places if isinstance(place, CellGrant)]


def _again(node: Node, item: ClaimItem, holdings: Holdings, free: Free) -> Granted | None:
    """What a claim of this instance with the same wants has here: a second claim of it shares that, unless others have it as well."""
    for holding in holdings.get(item.instance_id, ()):
        if (holding.cells or holding.addresses) and (holding.numa, holding.pci) == (item.numa, item.pci):
            others = {cpu for cell in free.cells for cpu in cell.held}
            known = {device.address for device in pci.available(node.hypervisor.pci_devices if node.hypervisor else (), free.addresses)}
            is_apart = not others.intersection(cpu for cell in holding.cells for cpu in cell.held_cpus)
            if is_apart and known.issuperset(holding.addresses):
                return Granted(cells=holding.cells, pci_addresses=holding.addresses)
    return None


def _holdings(node: Node, overlay: Overlay) -> Holdings:
    return _overlaid(node, overlay)[0]


def _overlaid(node: Node, overlay: Overlay) -> tuple[Holdings, Free | None]:
    """Who holds what: claims by id, then the report, then the overlaid claims in their order, each as it would be granted.

    With it what is left for a newcomer, if that came out on the way: made anew for each overlaid claim, many of them would take for ever.
    """
    holdings: Holdings = {}
    for instance_id, claims in node.claims.items():
        held = sorted((claim for claim in claims if claim.cells or claim.pci_addresses), key=lambda claim: claim.claim_id)
        if held:
            holdings[instance_id] = [Holding(claim.cells, claim.pci_addresses, claim.numa, claim.pci) for claim in held]
    for instance_id, shown in node.shown.items():
        report = shown.report
        if report.pinned_cpus or report.pci_addresses or report.numa_cells:
            confirmed = (claim for claim in node.claims.get(instance_id, ()) if claim.confirmed_ms is not None)
            claimed = {cell.cell_id for claim in confirmed for cell in claim.cells}
            holdings.setdefault(instance_id, []).append(_observed(node.hypervisor, shown, claimed))
    left: Free | None = None
    for item in overlay:
        if item.numa or item.pci:
            is_new = _is_new(node, item, holdings)
            free = left if is_new and left is not None else _free(node, holdings, item.instance_id)
            found = _grant_if_forced(node, item, holdings, free)
            left = free if is_new else None
            if isinstance(found, Granted):
                holding = Holding(found.cells, found.pci_addresses, item.numa, item.pci)
                holdings.setdefault(item.instance_id, []).append(holding)
                if is_new:
                    left = Free(numa.with_grants(free.cells, _merged([holding])), free.addresses.union(holding.addresses))
    return holdings, left


def _is_new(node: Node, item: ClaimItem, holdings: Holdings) -> bool:
    """Whether nothing that is held, shown or listed is the item's own instance's, so that it meets the node as any newcomer does."""
    instance_id = item.instance_id
    if instance_id in holdings or instance_id in node.shown:
        return False
    return node.full is None or all(report.instance_id != instance_id for report in node.full.instances)


def _observed(hypervisor: Hypervisor | None, shown: Shown, claimed: set[int]) -> Holding:
    """What a report says: CPUs and devices as named, and memory and floating CPUs in equal parts on the cells it is bound to.

    `claimed` are cells for which a confirmed claim says more exactly what the instance takes there.
    """
    report, known = shown.report, hypervisor.numa_cells if hypervisor is not None else ()
    pins = {cell.cell_id: set(report.pinned_cpus).intersection((*cell.cpus, *cell.dedicated_cpus)) for cell in known}
    bound = report.numa_cells or tuple(cell_id for cell_id, held in pins.items() if held)
    parts = []
    for cell_id, held in pins.items():
        shares = len(bound) if cell_id in bound and cell_id not in claimed else 0
        if held or shares:
            parts.append(
                CellGrant(
                    cell_id=cell_id,
                    vcpus=-(-(shown.amounts[0] or 0) // shares) if shares else 0,
                    memory_mib=-(-(shown.amounts[2] or 0) // shares) if shares else 0,
                    held_cpus=tuple(sorted(held)),
                )
            )
    return Holding(tuple(parts), report.pci_addresses)


def _free(node: Node, holdings: Holdings, instance_id: str) -> Free:
    others = [(i, held) for i, held in holdings.items() if i != instance_id]
    addresses = frozenset(address for _, held in others for holding in held for address in holding.addresses)
    grants = [grant for _, held in others for grant in _merged(held)]
    cells = node.hypervisor.numa_cells if node.hypervisor is not None else ()
    reserved = {pages.size_kib: pages.reserved or pages.total for pages in node.pages_reserved}
    return Free(numa.with_grants([_cell(cell, reserved, _strangers(node, cell, holdings)) for cell in cells], grants), addresses)


def _merged(held: Sequence[Holding]) -> list[CellGrant]:
    """What several claims and the report of one instance take together: of amounts the largest, of CPUs all."""
    grants = [grant for holding in held for grant in holding.cells]
    if len(grants) < 2:
        return grants

    def place(grant: CellGrant) -> tuple[int, int]:
        return grant.cell_id, grant.page_size_kib

    merged = []
    for (cell_id, page_size_kib), same in groupby(sorted(grants, key=place), key=place):
        alike = list(same)
        merged.append(
            CellGrant(
                cell_id=cell_id,
                page_size_kib=page_size_kib,
                vcpus=max(grant.vcpus for grant in alike),
                memory_mib=max(grant.memory_mib for grant in alike),
                held_cpus=tuple(sorted({cpu for grant in alike for cpu in grant.held_cpus})),
            )
        )
    return merged


def _strangers(node: Node, cell: NumaCell, holdings: Holdings) -> dict[int, int]:
    """Pages that the last audit found in use in a cell beyond those claimed for guests that it lists: others have them."""
    counted = [pages for pages in _sized(cell) if pages.free is not None]
    if not counted:
        return {}
    listed = {report.instance_id for report in node.full.instances} if node.full is not None else set()
    found = {}
    for pages in counted:
        claimed_mib = sum(
            grant.memory_mib
            for instance_id, held in holdings.items()
            if instance_id in listed
            for grant in _merged(held)
            if (grant.cell_id, grant.page_size_kib) == (cell.cell_id, pages.size_kib)
        )
        found[pages.size_kib] = max(0, pages.total - (pages.free or 0) - claimed_mib * 1024 // pages.size_kib)
    return found


def _cell(cell: NumaCell, reserved: dict[int, int], strangers: dict[int, int]) -> numa.Cell:
    """A host cell with nobody's use yet. What is not huge pages is ordinary memory."""
    rows = [_pages(pages, reserved.get(pages.size_kib, 0), strangers.get(pages.size_kib, 0)) for pages in _sized(cell)]
    if not any(pages.size_kib < HUGE_KIB_MIN for pages in rows):
        huge_kib = sum(pages.total * pages.size_kib for pages in rows)
        rows.append(numa.Pages(ORDINARY_KIB, max(0, cell.memory_mib * 1024 - huge_kib) // ORDINARY_KIB))
    shared, dedicated, cores = _cpus_of(cell.cpus, cell.dedicated_cpus, cell.siblings)
    return numa.Cell(
        cell_id=cell.cell_id,
        shared=shared,
        dedicated=dedicated,
        cores=cores,
        memory_mib=cell.memory_mib,
        pages=tuple(rows),
        socket=cell.socket,
    )


@lru_cache(maxsize=1024)
def _cpus_of(
    all_cpus: numa.Cpus, dedicated_cpus: numa.Cpus, siblings: tuple[numa.Cpus, ...]
) -> tuple[numa.Cpus, numa.Cpus, tuple[numa.Cpus, ...]]:
    """A cell's shared CPUs, its dedicated ones and its cores; a CPU that no core lists is a core of its own.

    A fleet has few sorts of cells, so most of them are the same again.
    """
    dedicated = set(dedicated_cpus)
    listed = {cpu for core in siblings for cpu in core}
    cpus = sorted({*all_cpus, *dedicated})
    cores = (*(core for core in siblings if core), *((cpu,) for cpu in cpus if cpu not in listed))
    return tuple(cpu for cpu in cpus if cpu not in dedicated), tuple(sorted(dedicated)), cores


def page_sizes(cell: NumaCell) -> list[int]:
    """The sizes of a host cell's pages in KiB, the smallest first: that of ordinary memory."""
    return sorted(pages.size_kib for pages in _cell(cell, {}, {}).pages)


def _sized(cell: NumaCell) -> list[HugePages]:
    """Its pages that have a size: those of none hold nothing."""
    return [pages for pages in cell.pages if pages.size_kib]


def _pages(pages: HugePages, reserved: int, strangers: int) -> numa.Pages:
    return numa.Pages(pages.size_kib, pages.total, strangers, max(pages.reserved, reserved))
