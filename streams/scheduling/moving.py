"""What a guest that runs takes along: live to another node its memory, and so the size of its pages; to another size its earlier ones.

A guest that asked for pages by a name (`large`, `any`) may have 2 MiB pages here and would get 1 GiB pages there. Nova's
live_migration_claim refuses that; here the guest asks for pages of the size it has, so that a node with both is found all the same.

The ledger gives a claim what an earlier one of the same instance has there for the same wants (a copy takes nothing twice). Once a resize
is confirmed earlier claims have what that has, and their own wants still: who asks for such a size again, there or on the way back from
another node, would get cells and devices of the size in between. Wants are said in other words then, which the ledger compares as they
stand (decision 0025).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Final

from msgspec.structs import replace

from projections import pci as pci_of
from projections.node import Claim, Node
from projections.numa import floating, pinned
from projections.numa_node import kept, page_sizes
from schemas.claims import ClaimItem
from schemas.inventory import NumaCell
from schemas.requests import NumaWant, PciWant
from schemas.resources import Shortfall
from schemas.results import CellGrant
from streams.scheduling.ask import Ask

WORDS_MAX: Final = 64
"""So often a device is said again."""
NO_WORDS_LEFT: Final = "the instance has had this size here too often to have it once more; delete it and ask for a new one"


def with_its_pages(ask: Ask, source: Node) -> Ask:
    """The ask of a live migration with the page sizes of its instance's cells on `source`; as it is where nothing is known of that there.

    One that asks for another size by its number cannot be met by any node.
    """
    there = kept(source, ask.instance_id)
    if there is None or not there.cells:
        return ask
    sizes, first = {cell.guest_cell_id: cell.page_size_kib for cell in there.cells}, there.cells[0].page_size_kib
    numa, text = list[NumaWant](), ""
    for want in ask.item.numa:
        has_kib = sizes.get(want.cell_id, first)
        if has_kib and (want.page_size or want.page_size_kib):
            if want.page_size_kib not in {None, 0, has_kib}:
                asks = f"asks for {want.page_size_kib} KiB"
                text = text or f"a live migration keeps its pages: the instance has {has_kib} KiB on {source.node_id} and {asks}"
            numa.append(replace(want, page_size_kib=has_kib, page_size=""))
        else:
            numa.append(want)
    if text:
        return replace(ask, unusable=ask.unusable or text)
    return replace(ask, item=replace(ask.item, numa=tuple(numa)))


def told_apart(ask: Ask, nodes: Iterable[Node]) -> Ask:
    """The ask of an instance that has claims on these nodes, in words of which none was cut or enlarged by a resize."""
    item = in_words_of_its_own(ask.item, nodes)
    return replace(ask, unusable=ask.unusable or NO_WORDS_LEFT) if item is None else replace(ask, item=item)


def in_words_of_its_own(item: ClaimItem, nodes: Iterable[Node]) -> ClaimItem | None:
    """The item in words that no claim of its instance on these nodes has that was cut or enlarged; None when there are none left."""
    if not (item.numa or item.pci):
        return item  # Who wants neither gets neither, whatever it had.
    known = [(claim.numa, claim.pci) for node in nodes for claim in _changed(node, item.instance_id)]
    if (item.numa, item.pci) not in known:
        return item
    free = (words for words in _in_other_words(item.numa, item.pci) if words not in known)
    return next((replace(item, numa=numa, pci=pci) for numa, pci in free), None)


def _changed(node: Node, instance_id: str) -> list[Claim]:
    """The claims of an instance on a node that have not, or may not have, what they want."""
    claims = node.claims.get(instance_id, ())
    return [each for each in claims if not _has_its_wants(node, each) or any(_has_replaced(other, each) for other in claims)]


def _has_its_wants(node: Node, claim: Claim) -> bool:
    """Whether cells and devices of a claim are as many and such as it wants. What the host does not list any more was right once."""
    if len(claim.cells) != len(claim.numa) or len(claim.pci_addresses) != sum(want.count for want in claim.pci):
        return False
    # In the order of the wants.
    listed = {device.address: device for device in (node.hypervisor.pci_devices if node.hypervisor is not None else ())}
    wanted = [replace(want, count=1) for want in claim.pci for _ in range(want.count)]
    host = {cell.cell_id: cell for cell in (node.hypervisor.numa_cells if node.hypervisor is not None else ())}
    sockets, near = {cell_id: cell.socket for cell_id, cell in host.items()}, {cell.cell_id for cell in claim.cells}
    for address, want in zip(claim.pci_addresses, wanted, strict=True):
        device = listed.get(address)
        if device is not None and isinstance(pci_of.choose([device], [want], cells=near, sockets=sockets), Shortfall):
            return False
    granted = {cell.guest_cell_id: cell for cell in claim.cells}
    isolated = any(want.emulator_threads == "isolate" for want in claim.numa)
    return all(
        (cell := granted.get(want.cell_id)) is not None and _is_such(cell, want, host.get(cell.cell_id), int(isolated and not number))
        for number, want in enumerate(claim.numa)
    )


def _is_such(cell: CellGrant, want: NumaWant, host: NumaCell | None, emulator_cpus: int) -> bool:
    """Whether a cell was granted for a want, or for one that cannot be told from it; `emulator_cpus` are to be set aside in it."""
    pins = pinned(want)
    wanted = want.memory_mib, len(floating(want)), pins, emulator_cpus if want.cpu_policy != "shared" else 0
    if (cell.memory_mib, cell.vcpus, cell.guest_cpus, len(cell.emulator_cpus)) != wanted:
        return False
    if want.page_size_kib or not want.page_size:
        has_pages = cell.page_size_kib == (want.page_size_kib or 0)
    else:
        sizes = page_sizes(host) if host is not None else ()
        asked = {"small": sizes[:1], "large": sizes[1:]}.get(want.page_size, sizes)
        has_pages = bool(cell.page_size_kib) and (cell.page_size_kib in asked or cell.page_size_kib not in sizes)
    return has_pages and (want.thread_policy != "require" or host is None or _are_siblings(cell, host))


def _are_siblings(cell: CellGrant, host: NumaCell) -> bool:
    """Whether its CPUs are threads of cores of which it has several; of an odd number the last one need not be."""
    of_each = [len(set(core).intersection(cell.pinned_cpus)) for core in host.siblings]
    return sum(of_each) < len(cell.pinned_cpus) or of_each.count(1) < 2


def _has_replaced(other: Claim, earlier: Claim) -> bool:
    """Whether a resize on the same node, which is held still, has given an earlier claim what it has itself."""
    is_later = other.confirmed_ms is not None and other.resize and other.offset > earlier.offset
    return is_later and (other.numa, other.pci) != (earlier.numa, earlier.pci)


def _in_other_words(numa: tuple[NumaWant, ...], pci: tuple[PciWant, ...]) -> Iterator[tuple[tuple[NumaWant, ...], tuple[PciWant, ...]]]:
    """Wants that mean the same: a device is said once more, or of the first cell what is left out is said."""
    at = next((at for at, want in enumerate(pci) if want.specs), None)
    if at is not None:
        for times in range(1, WORDS_MAX + 1):
            again = replace(pci[at], specs=pci[at].specs + pci[at].specs[:1] * times)
            yield numa, (*pci[:at], again, *pci[at + 1 :])
    if numa:
        cell, *rest = numa
        # By number or, without one, by name; where the number counts the name does not.
        pages: list[dict[str, Any]] = [{"page_size": name} for name in ("", "small", "large", "any")]
        if not cell.page_size_kib:
            pages = [{"page_size_kib": kib} for kib in (None, 0)]
        threads = ("", "prefer") if cell.thread_policy in {"", "prefer"} else (cell.thread_policy,)
        emulators = ("", "share") if cell.emulator_threads in {"", "share"} else (cell.emulator_threads,)
        for page, thread_policy, emulator_threads in product(pages, threads, emulators):
            yield (replace(cell, **page, thread_policy=thread_policy, emulator_threads=emulator_threads), *rest), pci
