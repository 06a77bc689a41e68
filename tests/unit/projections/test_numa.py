"""Guest cells on host cells: what fits, where it goes, and what is missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.numa import Cell, Pages, Ratios, fit_cell, fit_cells, preference, with_grants
from schemas.requests import NumaWant
from schemas.resources import Shortfall
from schemas.results import CellGrant


def cell(cell_id: int = 0, *, dedicated: int = 0, shared: int = 0, threads: int = 1, memory_mib: int = 4096, **rest: Any) -> Cell:
    """A host cell: its dedicated CPUs are numbered first, then the shared ones; neighbours are threads of one core."""
    first = cell_id * 100
    cpus = tuple(range(first, first + dedicated + shared))
    cores = tuple(cpus[i : i + threads] for i in range(0, len(cpus), threads))
    return Cell(cell_id, cpus[dedicated:], cpus[:dedicated], cores, memory_mib, **rest)


def pins(number: int, memory_mib: int = 1024, **rest: Any) -> NumaWant:
    return NumaWant(pinned_cpus=tuple(range(number)), memory_mib=memory_mib, cpu_policy="dedicated", **rest)


def floats(number: int, memory_mib: int = 1024, **rest: Any) -> NumaWant:
    return NumaWant(cpus=tuple(range(number)), memory_mib=memory_mib, **rest)


def granted(found: CellGrant | Shortfall) -> CellGrant:
    assert isinstance(found, CellGrant), found
    return found


def placed(cells: list[Cell], *wants: NumaWant, **options: Any) -> list[int]:
    found = fit_cells(cells, wants, **options)
    return [granted(each).cell_id for each in found]


def lacks(found: CellGrant | Shortfall | tuple[Any, ...]) -> list[str]:
    return [str(each) for each in (found if isinstance(found, tuple) else (found,))]


def test_a_shortfall_names_the_cell_and_both_amounts() -> None:
    found = fit_cell(cell(2, dedicated=4, held=frozenset({200})), pins(4))

    assert found == Shortfall(resource="numa_pcpus", needed=4, free=3, detail="guest cell 0 in host cell 2: 4 needed of 3")


def test_a_guest_does_not_overcommit_a_cell_against_itself() -> None:
    ratios = Ratios(4000, 4000)

    assert lacks(fit_cell(cell(shared=2), floats(3), ratios)) == ["numa_vcpus: guest cell 0 in host cell 0: 3 needed of 2"]
    assert lacks(fit_cell(cell(shared=2), floats(2, 8192), ratios)) == ["numa_memory_mib: guest cell 0 in host cell 0: 8192 needed of 4096"]


def test_what_floats_obeys_the_ratios_and_is_without_limit_where_there_is_none() -> None:
    busy = cell(shared=4, vcpus_used=6, memory_mib_used=6000)

    assert lacks(fit_cell(busy, floats(3), Ratios(2000, None))) == ["numa_vcpus: guest cell 0 in host cell 0: 3 needed of 2"]
    assert lacks(fit_cell(busy, floats(2), Ratios(None, 1500))) == ["numa_memory_mib: guest cell 0 in host cell 0: 1024 needed of 144"]
    assert granted(fit_cell(busy, floats(2, 1024), Ratios(2000, 2000))).vcpus == 2
    assert granted(fit_cell(busy, floats(4, 4096))).vcpus == 4


def test_the_ratios_of_what_floats_are_not_rounded() -> None:
    whole, less = Ratios(1500, 1500), Ratios(1499, 1499)
    used = cell(shared=2, vcpus_used=1, memory_mib=2, memory_mib_used=1)

    assert granted(fit_cell(used, floats(2, 2), whole)).vcpus == 2
    assert lacks(fit_cell(used, floats(2, 0), less)) == ["numa_vcpus: guest cell 0 in host cell 0: 2 needed of 1"]
    assert lacks(fit_cell(used, floats(0, 2), less)) == ["numa_memory_mib: guest cell 0 in host cell 0: 2 needed of 1"]


def test_what_a_shared_cell_calls_pinned_is_not_pinned() -> None:
    found = granted(fit_cell(cell(shared=2), NumaWant(cpus=(0,), pinned_cpus=(1,), memory_mib=1)))

    assert (found.vcpus, found.guest_cpus, found.held_cpus) == (1, (), ())


def test_what_is_pinned_takes_free_memory_whatever_the_ratio() -> None:
    found = fit_cell(cell(dedicated=4, memory_mib_used=3500), pins(1), Ratios(9000, 9000))

    assert lacks(found) == ["numa_memory_mib: guest cell 0 in host cell 0: 1024 needed of 596"]


def test_siblings_are_pinned_together_and_emptier_cores_first() -> None:
    host = cell(dedicated=8, threads=2, held=frozenset({0}))

    assert granted(fit_cell(host, pins(4))).pinned_cpus == (2, 3, 4, 5)
    assert granted(fit_cell(host, pins(7))).pinned_cpus == (1, 2, 3, 4, 5, 6, 7)


def test_require_never_takes_a_lone_thread() -> None:
    host = cell(dedicated=6, threads=2, held=frozenset({0, 2}))

    assert granted(fit_cell(host, pins(2, thread_policy="require"))).pinned_cpus == (4, 5)
    assert lacks(fit_cell(host, pins(3, thread_policy="require"))) == [
        "numa_threads: guest cell 0 in host cell 0: 'require' needs 3 free threads with free siblings, there are 2"
    ]
    assert granted(fit_cell(host, pins(3, thread_policy="prefer"))).pinned_cpus == (1, 3, 4)


def test_require_needs_hardware_threads_and_isolate_none() -> None:
    assert isinstance(fit_cell(cell(dedicated=4), pins(2, thread_policy="require")), Shortfall)
    assert isinstance(fit_cell(cell(dedicated=4, shared=2, threads=2), pins(2, thread_policy="isolate")), Shortfall)
    assert granted(fit_cell(cell(dedicated=4), pins(2, thread_policy="isolate"))).held_cpus == (0, 1)


def test_isolate_holds_the_siblings_where_the_whole_cell_is_dedicated_and_shared_alike() -> None:
    host = Cell(0, (0, 1, 2, 3), (0, 1, 2, 3), ((0, 2), (1, 3)), 4096)

    found = granted(fit_cell(host, pins(1, thread_policy="isolate")))

    assert (found.pinned_cpus, found.held_cpus) == ((0,), (0, 2))
    assert lacks(fit_cell(with_grants([host], [found])[0], pins(2, thread_policy="isolate"))) == [
        "numa_threads: guest cell 0 in host cell 0: 'isolate' needs 2 free cores of 1"
    ]


def test_emulator_threads_take_one_cpu_of_the_first_guest_cell() -> None:
    wants = [pins(1, emulator_threads="isolate"), pins(2, emulator_threads="isolate")]

    found = fit_cells([cell(0, dedicated=2), cell(1, dedicated=2)], wants)

    assert [(granted(each).pinned_cpus, granted(each).emulator_cpus) for each in found] == [((0,), (1,)), ((100, 101), ())]


def test_mixed_takes_of_both_kinds() -> None:
    want = NumaWant(cpus=(0, 1), pinned_cpus=(2,), memory_mib=512, cpu_policy="mixed")

    found = granted(fit_cell(cell(dedicated=2, shared=2), want))

    assert (found.vcpus, found.guest_cpus, found.pinned_cpus) == (2, (2,), (0,))
    assert lacks(fit_cell(cell(dedicated=4), want)) == ["numa_vcpus: guest cell 0 in host cell 0: 2 needed of 0"]


PAGED = cell(shared=4, pages=(Pages(4, 524_288), Pages(2048, 1024, 256, 256), Pages(1_048_576, 2, 1)))


@pytest.mark.parametrize(
    ("asked", "memory_mib", "size_kib"),
    [
        ({"page_size": "small"}, 1024, 4),
        ({"page_size": "large"}, 1024, 1_048_576),
        ({"page_size": "large"}, 512, 2048),
        ({"page_size": "any"}, 511, 4),
        ({"page_size": "any"}, 1024, 1_048_576),
        ({"page_size_kib": 2048}, 1024, 2048),
        ({}, 1024, 0),
    ],
)
def test_the_largest_page_size_that_is_asked_for_and_free_is_taken(asked: dict[str, Any], memory_mib: int, size_kib: int) -> None:
    assert granted(fit_cell(PAGED, floats(1, memory_mib, **asked))).page_size_kib == size_kib


def test_pages_are_never_overcommitted_and_named_by_size() -> None:
    assert lacks(fit_cell(PAGED, floats(1, 1026, page_size_kib=2048))) == ["pages_2048_kib: guest cell 0 in host cell 0: 513 needed of 512"]
    assert lacks(fit_cell(PAGED, floats(1, 511, page_size="large"))) == [
        "pages_2048_kib: guest cell 0 in host cell 0: 511 MiB are no whole number of them"
    ]
    assert lacks(fit_cell(PAGED, floats(1, 511, page_size_kib=64))) == [
        "pages_64_kib: guest cell 0 in host cell 0: the host cell has none of this size"
    ]


def test_guests_are_spread_over_cells_or_packed() -> None:
    cells = [cell(0, shared=4, vcpus_used=2), cell(1, shared=4, memory_mib_used=100), cell(2, shared=4)]

    assert [each.cell_id for each in preference(cells, [floats(1)])] == [2, 1, 0]
    assert [each.cell_id for each in preference(cells, [floats(1)], pack=True)] == [0, 1, 2]
    assert placed(cells, floats(1)) == [2]


def test_cells_with_devices_are_kept_for_those_who_want_some() -> None:
    cells = [cell(0, shared=4), cell(1, shared=4)]

    assert placed(cells, floats(1), devices_in=lambda cell_id: int(cell_id == 0)) == [1]
    assert placed(cells, floats(1), devices_in=lambda cell_id: int(cell_id == 1), wants_devices=True) == [1]


def test_asymmetric_cells_find_the_only_way() -> None:
    cells = [cell(0, dedicated=4), cell(1, dedicated=2)]

    assert placed(cells, pins(2), pins(4)) == [1, 0]


def test_guest_cells_that_fit_alone_but_not_together_say_so() -> None:
    cells = [cell(0, dedicated=4), cell(1, dedicated=1), cell(2, dedicated=1)]

    assert lacks(fit_cells(cells, [pins(2), pins(2)])) == ["numa_cells: 2 needed at once, 1 fit together"]
    assert lacks(fit_cells(cells[:1], [pins(1), pins(1)])) == ["numa_cells: 2 needed of 1"]


def test_every_guest_cell_that_fits_nowhere_names_its_smallest_shortfall() -> None:
    cells = [cell(0, dedicated=1), cell(1, dedicated=3)]

    assert lacks(fit_cells(cells, [pins(5), pins(4, cell_id=1)])) == [
        "numa_pcpus: guest cell 0 in host cell 1: 5 needed of 3",
        "numa_pcpus: guest cell 1 in host cell 1: 4 needed of 3",
    ]


def test_devices_choose_among_the_ways_that_fit() -> None:
    cells = [cell(each, shared=2) for each in range(3)]

    assert placed(cells, floats(1), floats(1), supports=lambda ids: ids == {1, 2}) == [1, 2]
    assert lacks(fit_cells(cells, [floats(1)], supports=lambda ids: 7 in ids)) == [
        "pci: no cells that the guest fits on have the devices under their NUMA policy"
    ]


def test_twelve_cells_without_the_devices_are_refused_in_bounded_time() -> None:
    asked: list[frozenset[int]] = []

    def supports(ids: frozenset[int]) -> bool:
        asked.append(ids)
        return False

    found = fit_cells([cell(each, shared=2) for each in range(12)], [floats(1)] * 6, supports=supports)

    assert isinstance(found[0], Shortfall)
    assert len(asked) == len(set(asked))


@st.composite
def hosts(draw: st.DrawFn) -> list[Cell]:
    found = []
    for cell_id in range(draw(st.integers(1, 4))):
        dedicated = draw(st.integers(0, 6))
        held = draw(st.frozensets(st.integers(cell_id * 100, cell_id * 100 + 5), max_size=3))
        pages = draw(st.sampled_from([(), (Pages(4, 262_144), Pages(2048, 512))]))
        threads = draw(st.sampled_from([1, 2]))
        shared = draw(st.integers(0, 4))
        found.append(cell(cell_id, dedicated=dedicated, shared=shared, threads=threads, memory_mib=2048, held=held, pages=pages))
    return found


guests = st.lists(
    st.builds(
        NumaWant,
        cpus=st.integers(0, 3).map(lambda n: tuple(range(n))),
        pinned_cpus=st.integers(1, 3).map(lambda n: tuple(range(3, 3 + n))),
        memory_mib=st.sampled_from([128, 512, 1024]),
        page_size=st.sampled_from(["", "", "small", "large", "any"]),
        cpu_policy=st.sampled_from(["shared", "dedicated", "mixed"]),
        thread_policy=st.sampled_from(["", "prefer", "require", "isolate"]),
        emulator_threads=st.sampled_from(["", "", "isolate"]),
    ),
    min_size=1,
    max_size=3,
)


@given(hosts(), st.lists(guests, min_size=1, max_size=4), st.randoms())
def test_no_cpu_and_no_page_is_given_twice_whatever_comes_and_the_order_of_cells_does_not_matter(
    cells: list[Cell], arrivals: list[list[NumaWant]], chance: Any
) -> None:
    for wants in arrivals:
        shuffled = list(cells)
        chance.shuffle(shuffled)
        found = fit_cells(cells, wants, Ratios(2000, 1000))
        assert fit_cells(shuffled, wants, Ratios(2000, 1000)) == found
        grants = [grant for grant in found if isinstance(grant, CellGrant)]
        assert not grants or len({grant.cell_id for grant in grants}) == len(wants)
        for grant in grants:
            host = next(each for each in cells if each.cell_id == grant.cell_id)
            assert set(grant.held_cpus) <= set(host.dedicated) - host.held
            assert {*grant.pinned_cpus, *grant.emulator_cpus} <= set(grant.held_cpus)
        cells = list(with_grants(cells, grants))
        for host in cells:
            assert all(pages.free >= 0 for pages in host.pages if pages.size_kib != 4)
            assert host.vcpus_used <= 2 * len(host.shared)
