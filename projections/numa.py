"""NUMA: whether guest cells fit on a host's cells, and on which, with which CPUs and pages.

The rules and the names of policies are Nova's (its NUMATopologyFilter and claims as of release 34): every guest cell goes to a host cell of
its own; no guest overcommits a cell against itself; what is pinned and what asks for a page size is never overcommitted; what floats obeys
the cell's ratios. All choices are minima over total orders, so that every reader of the log pins alike (rule 1): host cells in the order of
`preference`, cores by their least CPU, CPUs by number. Nova differs in two things: its order of CPUs is that of a Python set, and of a
guest of several cells it remembers what fits under ids that it overwrites on the way, so that of random hosts some 0.4 % get a cell that
the guest does not fit on, or none where it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from schemas.requests import NumaWant
from schemas.resources import Shortfall
from schemas.results import CellGrant

Cpus = tuple[int, ...]
SETS_MAX = 4096
"""Most sets of host cells tried for one guest whose devices are near none of them: all that a host of 12 cells has. Bounds one decision."""

GUEST_CELLS_MAX = 128
"""Most cells of one guest: QEMU builds no more."""
REMEMBERED = 4096
"""Answers about a cell's CPUs that are kept: nodes of one kind with the same CPUs held are many, and members of a group meet the same."""


class Ratios(NamedTuple):
    """What floating CPUs and ordinary memory of a cell may be overcommitted by, in thousandths; None is without limit."""

    cpu_milli: int | None
    memory_milli: int | None


class Pages(NamedTuple):
    """Pages of one size in a host cell; `used` counts guests', `reserved` what the operator keeps back."""

    size_kib: int
    total: int
    used: int = 0
    reserved: int = 0

    @property
    def free(self) -> int:
        """Pages that may still be given; negative when the cell is over."""
        return self.total - self.used - self.reserved


class Cell(Struct, frozen=True, gc=False):
    """One host cell and its use. `cores` are the hardware threads of each core; `held` the dedicated CPUs that somebody has."""

    cell_id: int
    shared: Cpus
    dedicated: Cpus
    cores: tuple[Cpus, ...]
    memory_mib: int
    pages: tuple[Pages, ...] = ()
    socket: int | None = None
    vcpus_used: int = 0
    memory_mib_used: int = 0
    held: frozenset[int] = frozenset()

    @property
    def free_cpus(self) -> Cpus:
        """The dedicated CPUs that nobody holds, by number."""
        return _left(self.dedicated, self.held)


@lru_cache(maxsize=REMEMBERED)
def _left(dedicated: Cpus, held: frozenset[int]) -> Cpus:
    return tuple(sorted(set(dedicated).difference(held)))


def floating(want: NumaWant) -> Cpus:
    """The guest CPUs that float over the cell's shared CPUs."""
    return () if want.cpu_policy == "dedicated" else want.cpus


def pinned(want: NumaWant) -> Cpus:
    """The guest CPUs that get a dedicated CPU each, by number."""
    if want.cpu_policy == "shared":
        return ()
    return tuple(sorted({*want.pinned_cpus, *want.cpus} if want.cpu_policy == "dedicated" else set(want.pinned_cpus)))


def fit_cell(cell: Cell, want: NumaWant, ratios: Ratios | None = None, emulator_cpus: int = 0) -> CellGrant | Shortfall:
    """What `want` gets of one host cell, or the first thing it lacks there.

    `emulator_cpus` dedicated CPUs are set aside besides those of the guest. Without `ratios` nothing is limited that may be overcommitted.
    """
    page_size_kib = _page_size(cell, want)
    if isinstance(page_size_kib, Shortfall):
        return page_size_kib
    floats, pins = floating(want), pinned(want)
    exclusive = len(pins) + emulator_cpus if want.cpu_policy != "shared" else 0
    if len(floats) > len(cell.shared):
        return _lack("numa_vcpus", len(floats), len(cell.shared), want, cell)
    taken = Pinning()
    if exclusive:
        if exclusive > len(cell.free_cpus):
            return _lack("numa_pcpus", exclusive, len(cell.free_cpus), want, cell)
        found = _pin(cell.shared, cell.dedicated, cell.cores, cell.held, pins, want.thread_policy, emulator_cpus)
        if isinstance(found, str):
            return Shortfall(resource="numa_threads", detail=f"{_place(want, cell)}: {found}")
        taken = found
    if ratios is not None and want.cpu_policy != "dedicated":
        lack = _over_ratio(cell, want, ratios)
        if lack is not None:
            return lack
    return CellGrant(
        guest_cell_id=want.cell_id,
        cell_id=cell.cell_id,
        vcpus=len(floats),
        memory_mib=want.memory_mib,
        page_size_kib=page_size_kib,
        guest_cpus=pins,
        pinned_cpus=taken.pins,
        emulator_cpus=taken.emulator_cpus,
        held_cpus=_held(cell, taken, isolated=want.thread_policy == "isolate"),
    )


def fit_cells(
    cells: Sequence[Cell],
    wants: Sequence[NumaWant],
    ratios: Ratios | None = None,
    *,
    devices_in: Callable[[int], int] | None = None,
    wants_devices: bool = False,
    supports: Callable[[frozenset[int]], bool] | None = None,
    pack: bool = False,
) -> tuple[CellGrant, ...] | tuple[Shortfall, ...]:
    """Each guest cell's place, in the order of `wants`, or what is missing: the first of all ways in the order of `preference`.

    `supports` says whether the host cells with these ids have the devices that are wanted as well. Never both kinds; empty for no `wants`.
    """
    if not wants:
        return ()
    if min(len(cells), GUEST_CELLS_MAX) < len(wants):
        return (Shortfall(resource="numa_cells", needed=len(wants), free=min(len(cells), GUEST_CELLS_MAX)),)
    ordered = preference(cells, wants, devices_in=devices_in, wants_devices=wants_devices, pack=pack)
    isolated = any(want.emulator_threads == "isolate" for want in wants)
    tried = [[fit_cell(cell, want, ratios, int(isolated and not i)) for cell in ordered] for i, want in enumerate(wants)]
    lacks = [_least(row) for row in tried if all(isinstance(found, Shortfall) for found in row)]
    if lacks:
        return tuple(lacks)
    fits = [[j for j, found in enumerate(row) if isinstance(found, CellGrant)] for row in tried]
    chosen = _assign(fits, [cell.cell_id for cell in ordered], supports)
    if isinstance(chosen, Shortfall):
        return (chosen,)
    return tuple(grant for row, j in zip(tried, chosen, strict=True) if isinstance(grant := row[j], CellGrant))


def preference(
    cells: Sequence[Cell],
    wants: Sequence[NumaWant],
    *,
    devices_in: Callable[[int], int] | None = None,
    wants_devices: bool = False,
    pack: bool = False,
) -> list[Cell]:
    """The host cells, best first. If all are needed, by id; else guests are spread over the cells (or packed, Nova's option).

    The cells with most free devices come first for a guest that wants some and last for others; then those with most free dedicated CPUs,
    or least floating ones, by the first guest cell's policy; then those with most free memory.
    """
    by_id = sorted(cells, key=lambda cell: cell.cell_id)
    if len(cells) <= len(wants) or not wants:
        return by_id
    sign = 1 if pack else -1
    floats = wants[0].cpu_policy == "shared"

    def rank(cell: Cell) -> tuple[int, int, int]:
        devices = 0 if devices_in is None else devices_in(cell.cell_id) * (-1 if wants_devices else 1)
        cpus = -sign * cell.vcpus_used if floats else sign * len(cell.free_cpus)
        return (devices, cpus, sign * (cell.memory_mib - cell.memory_mib_used))

    return sorted(by_id, key=rank)


def with_grants(cells: Iterable[Cell], grants: Sequence[CellGrant]) -> tuple[Cell, ...]:
    """The cells with the use of `grants` added: what the next guest meets."""
    return tuple(_with(cell, [grant for grant in grants if grant.cell_id == cell.cell_id]) for cell in cells)


def _with(cell: Cell, grants: Sequence[CellGrant]) -> Cell:
    if not grants:
        return cell
    pages = list(cell.pages)
    for grant in grants:
        size_kib = grant.page_size_kib or min((each.size_kib for each in pages), default=0)
        pages = [
            each._replace(used=each.used + -(-grant.memory_mib * 1024 // size_kib)) if each.size_kib == size_kib else each for each in pages
        ]
    return replace(
        cell,
        pages=tuple(pages),
        vcpus_used=cell.vcpus_used + sum(grant.vcpus for grant in grants),
        memory_mib_used=cell.memory_mib_used + sum(grant.memory_mib for grant in grants),
        held=cell.held.union(*(grant.held_cpus for grant in grants)),
    )


def _page_size(cell: Cell, want: NumaWant) -> int | Shortfall:
    """The page size that the cell's memory comes in, the largest of those asked for that has enough; 0 for ordinary memory."""
    sizes = sorted((each.size_kib for each in cell.pages), reverse=True)
    by_size = {each.size_kib: each for each in cell.pages}
    if not want.page_size_kib and not want.page_size:
        return _ordinary(cell, want, by_size[sizes[-1]] if sizes else None)
    asked = {"small": sizes[-1:], "large": sizes[:-1], "any": sizes}.get(want.page_size, [])
    if want.page_size_kib:
        asked = [want.page_size_kib] if want.page_size_kib in by_size else []
    lacking: list[Shortfall] = []
    for size_kib in asked:
        needed = -(-want.memory_mib * 1024 // size_kib)
        if want.memory_mib * 1024 % size_kib:
            detail = f"{_place(want, cell)}: {want.memory_mib} MiB are no whole number of them"
            lacking.append(Shortfall(resource=f"pages_{size_kib}_kib", needed=needed, free=by_size[size_kib].free, detail=detail))
        elif needed > by_size[size_kib].free:
            lacking.append(_lack(f"pages_{size_kib}_kib", needed, by_size[size_kib].free, want, cell))
        else:
            return size_kib
    if lacking:
        return min(lacking, key=lambda lack: (lack.missing, lack.resource))
    name = f"{want.page_size_kib}_kib" if want.page_size_kib else want.page_size
    return Shortfall(resource=f"pages_{name}", detail=f"{_place(want, cell)}: the host cell has none of this size")


def _ordinary(cell: Cell, want: NumaWant, smallest: Pages | None) -> int | Shortfall:
    """0, if memory without a page size is there: for floating guests the cell is large enough, for pinned ones it is free."""
    is_exclusive = want.cpu_policy != "shared"
    if smallest is None:
        free_mib = cell.memory_mib - cell.memory_mib_used if is_exclusive else cell.memory_mib
    else:
        free_mib = (smallest.free if is_exclusive else smallest.total) * smallest.size_kib // 1024
        if want.memory_mib * 1024 % smallest.size_kib:
            return Shortfall(
                resource=f"pages_{smallest.size_kib}_kib", detail=f"{_place(want, cell)}: {want.memory_mib} MiB are no whole number of them"
            )
    return 0 if want.memory_mib <= free_mib else _lack("numa_memory_mib", want.memory_mib, free_mib, want, cell)


def _over_ratio(cell: Cell, want: NumaWant, ratios: Ratios) -> Shortfall | None:
    """What floats stays within the cell's CPUs and memory times their ratios."""
    vcpus = len(floating(want))
    if ratios.cpu_milli is not None and (cell.vcpus_used + vcpus) * 1000 > len(cell.shared) * ratios.cpu_milli:
        return _lack("numa_vcpus", vcpus, len(cell.shared) * ratios.cpu_milli // 1000 - cell.vcpus_used, want, cell)
    memory_mib = want.memory_mib
    if ratios.memory_milli is not None and (cell.memory_mib_used + memory_mib) * 1000 > cell.memory_mib * ratios.memory_milli:
        return _lack("numa_memory_mib", memory_mib, cell.memory_mib * ratios.memory_milli // 1000 - cell.memory_mib_used, want, cell)
    return None


class Pinning(NamedTuple):
    """Host CPUs for the guest's pinned ones, in their order, and for the emulator's threads."""

    pins: Cpus = ()
    emulator_cpus: Cpus = ()


@lru_cache(maxsize=REMEMBERED)
def _pin(
    shared: Cpus, dedicated: Cpus, cores: tuple[Cpus, ...], held: frozenset[int], guest: Cpus, thread_policy: str, emulator_cpus: int
) -> Pinning | str:
    """Dedicated CPUs of a host cell for `guest`, siblings together and as many threads of a core as it takes; else why not.

    `require` never takes a lone thread of a core, `isolate` takes one thread of wholly free cores. On a host with hardware threads
    `isolate` needs the whole cell to be dedicated and shared alike (hosts set up before cpu_dedicated_set): Nova refuses the others.
    """
    threads = max((len(core) for core in cores), default=1)
    free = set(_left(dedicated, held))
    left = [there for core in sorted(cores, key=min) if (there := tuple(sorted(free.intersection(core))))]
    if thread_policy == "isolate":
        if threads > 1 and set(dedicated) != set(shared):
            return "'isolate' needs a host without hardware threads"
        whole = [core for core in left if len(core) >= threads]
        if len(whole) < len(guest):
            return f"'isolate' needs {len(guest)} free cores of {len(whole)}"
        pins = tuple(core[0] for core in whole[: len(guest)])
        rest = tuple(cpu for core in left if not set(core).intersection(pins) for cpu in core)
        return Pinning(pins, rest[:emulator_cpus]) if len(rest) >= emulator_cpus else "no free core is left for emulator threads"
    if thread_policy == "require" and threads < 2:
        return "'require' needs a host with hardware threads"
    usable = _usable(left, len(guest), fewest=2 if thread_policy == "require" else 1)
    if len(usable) < len(guest):
        return f"'require' needs {len(guest)} free threads with free siblings, there are {len(usable)}"
    pins = usable[: len(guest)]
    return Pinning(pins, tuple([cpu for core in left for cpu in core if cpu not in pins][:emulator_cpus]))


def _usable(cores: Sequence[Cpus], needed: int, *, fewest: int) -> Cpus:
    """CPUs in the order in which they are pinned: as many threads of each core at once as there are cores with so many free."""
    for at_once in range(max(map(len, cores), default=0), fewest - 1, -1):
        usable = tuple(cpu for core in cores if len(core) >= at_once for cpu in core[:at_once])
        if len(usable) >= needed:
            return usable
    return tuple(cpu for core in cores if len(core) >= fewest for cpu in core)


def _held(cell: Cell, taken: Pinning, *, isolated: bool) -> Cpus:
    """What nobody else may have: pins and the emulator's CPUs, with the free threads of their cores if the guest is isolated."""
    held = {*taken.pins, *taken.emulator_cpus}
    if isolated:
        free = set(cell.free_cpus)
        held.update(cpu for core in cell.cores if held.intersection(core) for cpu in core if cpu in free)
    return tuple(sorted(held))


def _assign(fits: Sequence[Sequence[int]], ids: Sequence[int], supports: Callable[[frozenset[int]], bool] | None) -> list[int] | Shortfall:
    """For each guest cell one of the host cells that it fits, all different: the first way in lexicographic order.

    A partial way is followed only if the rest can be matched, and a set of host cells whose devices do not do is looked at once.
    """
    hopeless: set[frozenset[int]] = set()
    most = 0

    def place(chosen: list[int]) -> list[int] | None:
        used = frozenset(chosen)
        if used in hopeless or len(hopeless) > SETS_MAX:
            return None
        if len(chosen) == len(fits):
            if supports is None or supports(frozenset(ids[j] for j in chosen)):
                return chosen
        else:
            for j in fits[len(chosen)]:
                if j not in used and _matched(fits[len(chosen) + 1 :], used | {j}):
                    found = place([*chosen, j])
                    if found is not None:
                        return found
        hopeless.add(used)
        return None

    if not _matched(fits, frozenset()):
        while _matched(fits[: most + 1], frozenset()):
            most += 1
        return Shortfall(resource="numa_cells", needed=len(fits), free=most, detail=f"{len(fits)} needed at once, {most} fit together")
    return place([]) or Shortfall(resource="pci", detail="no cells that the guest fits on have the devices under their NUMA policy")


def _matched(fits: Sequence[Sequence[int]], used: frozenset[int]) -> bool:
    """Whether every guest cell of `fits` can have a host cell of its own that is not in `used` (augmenting paths)."""
    owner: dict[int, int] = {}

    def augment(i: int, seen: set[int]) -> bool:
        for j in fits[i]:
            if j not in used and j not in seen:
                seen.add(j)
                if j not in owner or augment(owner[j], seen):
                    owner[j] = i
                    return True
        return False

    return all(augment(i, set()) for i in range(len(fits)))


def _least(row: Sequence[CellGrant | Shortfall]) -> Shortfall:
    """Of what one guest cell lacks in each host cell, the least: numbers before words, the smallest first."""
    lacks = [found for found in row if isinstance(found, Shortfall)]
    return min(lacks, key=lambda lack: (not lack.needed, lack.missing, lack.resource, lack.detail))


def _lack(resource: str, needed: int, free: int, want: NumaWant, cell: Cell) -> Shortfall:
    return Shortfall(resource=resource, needed=needed, free=free, detail=f"{_place(want, cell)}: {needed} needed of {free}")


def _place(want: NumaWant, cell: Cell) -> str:
    return f"guest cell {want.cell_id} in host cell {cell.cell_id}"
