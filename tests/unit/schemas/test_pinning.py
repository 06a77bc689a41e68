"""What extra specs and image properties want of CPUs, cells and devices; the expected values are what Nova 34 makes of the same texts."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from schemas.guests import Flavor, Image, NumaWant
from schemas.pinning import Wants, WantsError, wants
from schemas.requests import PlacementRequested
from schemas.resources import Resources
from streams.scheduling.ask import ask_of


def flavor(vcpus: int = 4, memory_mib: int = 2048, **extra_specs: str) -> Flavor:
    return Flavor(vcpus=vcpus, memory_mib=memory_mib, extra_specs={key.replace("__", ":"): text for key, text in extra_specs.items()})


def unusable(asked: Flavor, image: Image | None = None) -> str:
    """Why a scheduler places nothing of it; empty if it does."""
    return ask_of(PlacementRequested(request_id="r", flavor=asked, image=image or Image()), 0, seed=1).unusable


def test_a_plain_flavor_has_no_topology_and_its_own_cpus() -> None:
    assert wants(flavor(other="1"), Image(properties={"hw_architecture": "x86_64"})) == Wants(4, 0)


def test_dedicated_cpus_count_as_such_and_the_emulators_thread_takes_one_more() -> None:
    found = wants(flavor(hw__cpu_policy="dedicated", hw__emulator_threads_policy="isolate", hw__cpu_thread_policy="require"), Image())

    assert (found.vcpus, found.pcpus) == (0, 5)
    assert found.numa == (
        NumaWant(cpus=(0, 1, 2, 3), memory_mib=2048, cpu_policy="dedicated", thread_policy="require", emulator_threads="isolate"),
    )


def test_a_mixed_guest_floats_outside_its_mask_and_the_request_counts_both_kinds() -> None:
    mixed = flavor(hw__cpu_policy="mixed", hw__cpu_dedicated_mask="^0-1", hw__numa_nodes="2")

    assert [(cell.cpus, cell.pinned_cpus, cell.memory_mib) for cell in wants(mixed, Image()).numa] == [
        ((0, 1), (), 1024),
        ((), (2, 3), 1024),
    ]
    request = PlacementRequested(request_id="r", flavor=mixed)
    assert (request.resources.vcpus, request.resources.pcpus) == (2, 2)


def test_cells_are_as_listed_and_pages_as_the_image_chooses_where_the_flavor_lets_it() -> None:
    listed = {"hw:numa_nodes": "2", "hw:numa_cpus.0": "0,1,2", "hw:numa_cpus.1": "3", "hw:numa_mem.0": "512", "hw:numa_mem.1": "1536"}

    found = wants(
        Flavor(vcpus=4, memory_mib=2048, extra_specs=listed | {"hw:mem_page_size": "any"}), Image(properties={"hw_mem_page_size": "2MB"})
    )

    assert [(cell.cpus, cell.memory_mib, cell.page_size_kib) for cell in found.numa] == [((0, 1, 2), 512, 2048), ((3,), 1536, 2048)]


def test_an_image_lists_cells_where_the_flavor_lists_none() -> None:
    listed = {"hw_numa_nodes": "2", "hw_numa_cpus.0": "0", "hw_numa_cpus.1": "1-3", "hw_numa_mem.0": "1536", "hw_numa_mem.1": "512"}

    found = wants(Flavor(vcpus=4, memory_mib=2048), Image(properties=listed))

    assert [(cell.cpus, cell.memory_mib) for cell in found.numa] == [((0,), 1536), ((1, 2, 3), 512)]


@pytest.mark.parametrize(
    ("extra_specs", "properties", "told"),
    [
        ({"hw:cpu_policy": "pinned"}, {}, "hw:cpu_policy: expected shared, dedicated, mixed, got 'pinned'"),
        ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "dedicated"}, "does not allow"),
        ({"hw:cpu_thread_policy": "require"}, {}, "expected with hw:cpu_policy dedicated or mixed"),
        ({"hw:numa_nodes": "3"}, {}, "not divisible into 3 equal cells"),
        ({"hw:numa_nodes": "0"}, {}, "expected a number from 1"),
        ({"hw:mem_page_size": "huge"}, {}, "got 'huge'"),
        ({}, {"hw_mem_page_size": "large"}, "silence does not allow"),
        ({"hw:cpu_policy": "mixed"}, {}, "expected one of hw:cpu_dedicated_mask and hw:cpu_realtime_mask"),
        ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3"}, {}, "expected both for all 1 cells"),
        ({"resources:PCPU": "3"}, {}, "all the flavor's CPUs"),
        ({"resources:PCPU": "2", "resources:VCPU": "2"}, {}, "resources:VCPU, resources:PCPU and hw:cpu_policy: expected one of them"),
        ({"hw:numa_nodes": "2"}, {"hw_numa_nodes": "2"}, "the flavor says how many cells there are"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "3-1"}, {}, "expected CPU numbers such as 0-3,^2, got '3-1'"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "a"}, {}, "expected CPU numbers such as 0-3,^2, got 'a'"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "3-4"}, {}, "expected some of the flavor's CPUs"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "0-3"}, {}, "expected some of the flavor's CPUs"),
    ],
)
def test_what_contradicts_itself_is_told_and_nothing_is_placed_by_it(
    extra_specs: dict[str, str], properties: dict[str, str], told: str
) -> None:
    asked, image = Flavor(vcpus=4, memory_mib=2048, extra_specs=extra_specs), Image(properties=properties)

    with pytest.raises(WantsError, match=re.escape(told)):
        wants(asked, image)
    assert told in unusable(asked, image)


@pytest.mark.parametrize(
    ("extra_specs", "counted", "memory_mib", "pages_kib"),
    [
        ({"resources:PCPU": " +4"}, (0, 4), [2048], [None]),
        ({"resources:VCPU": " 2", "resources1:VCPU": "-1"}, (2, 0), [], []),
        (
            {"hw:numa_nodes": "2"} | {"hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "2,3", "hw:numa_mem.0": " 512", "hw:numa_mem.1": "+1536"},
            (4, 0),
            [512, 1536],
            [None, None],
        ),
        ({"hw:cpu_policy": "mixed", "hw:cpu_realtime": " Yes ", "hw:cpu_realtime_mask": "^0"}, (1, 3), [2048], [None]),
        ({"hw:mem_page_size": "0"}, (4, 0), [], []),
        ({"hw:mem_page_size": "4.5KB"}, (4, 0), [2048], [4]),
        ({"hw:mem_page_size": "1PB"}, (4, 0), [2048], [1 << 40]),
    ],
)
def test_numbers_words_and_sizes_are_read_as_loosely_as_nova_reads_them(
    extra_specs: dict[str, str], counted: tuple[int, int], memory_mib: list[int], pages_kib: list[int | None]
) -> None:
    found = wants(Flavor(vcpus=4, memory_mib=2048, extra_specs=extra_specs), Image())

    assert (found.vcpus, found.pcpus) == counted
    assert [cell.memory_mib for cell in found.numa] == memory_mib
    assert [cell.page_size_kib for cell in found.numa] == pages_kib


def test_a_number_of_cells_is_written_plainly_or_refused() -> None:
    with pytest.raises(WantsError, match="hw:numa_nodes: expected a number from 1 to 4096, got '02'"):
        wants(flavor(hw__numa_nodes="02"), Image())


@pytest.mark.parametrize(
    ("extra_specs", "told"),
    [
        ({"resources:VCPU": "9" * 25}, "resources:VCPU: expected at most"),
        ({"resources1:VCPU": str(1 << 50), "resources2:VCPU": "1"}, "resources:VCPU: expected at most"),
        ({"hw:mem_page_size": "9" * 400 + "TB"}, "hw:mem_page_size: expected 1 to"),
        ({"hw:mem_page_size": "9" * 25}, "hw:mem_page_size: expected 1 to"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-99999999999"}, "hw:cpu_dedicated_mask: expected CPU numbers below 4096"),
        ({"hw:numa_nodes": "100000000"}, "hw:numa_nodes: expected a number from 1 to 4096"),
    ],
)
def test_a_text_cannot_ask_for_numbers_or_lists_that_no_record_and_no_memory_holds(extra_specs: dict[str, str], told: str) -> None:
    assert told in unusable(Flavor(vcpus=0, extra_specs=extra_specs))


@pytest.mark.parametrize("key", ["resources:VGPU", "resources1:CUSTOM_FPGA", "resources_NET:NET_BW_EGR_KILOBIT_PER_SEC"])
def test_what_no_node_counts_cannot_be_asked_for_by_amount(key: str) -> None:
    asked = Flavor(vcpus=1, extra_specs={key: "1"})

    assert unusable(asked) == (
        f"{key}: only VCPU, PCPU, MEMORY_MB, DISK_GB are counted on nodes; leave it out, or name such nodes by a trait"
    )
    assert wants(asked, Image()).vcpus == 1, "whoever counts a guest that is there counts its CPUs"


@pytest.mark.parametrize(
    ("key", "text"),
    [("resources:MEMORY_MB", "512"), ("resources1:VGPU", "0"), ("resources:VCPU", " +1"), ("resources:VGPU", "-0"), ("quota:VGPU", "1")],
)
def test_what_is_counted_or_asks_for_nothing_can_be_used(key: str, text: str) -> None:
    assert unusable(Flavor(vcpus=1, extra_specs={key: text})) == ""


def test_amounts_that_extra_specs_ask_for_count_before_the_flavor_s_own() -> None:
    specs = {"resources:MEMORY_MB": "512", "resources1:MEMORY_MB": "256", "resources:DISK_GB": "0", "resources:VCPU": "1"}
    own = Flavor(vcpus=4, memory_mib=2048, root_gib=20, ephemeral_gib=1, swap_mib=64)

    asked, unsaid = (
        PlacementRequested(request_id="r", instance_ids=("i",), flavor=each).resources
        for each in (replace(own, extra_specs=specs), replace(own, extra_specs={"resources:DISK_GB": "all", "trait:X": "required"}))
    )

    assert asked == Resources(vcpus=1, memory_mib=768, disk_mib=0)
    assert unsaid == Resources(vcpus=4, memory_mib=2048, disk_mib=21 * 1024 + 64)


def test_a_guest_with_cells_has_as_many_cpus_as_a_hypervisor_gives_and_one_without_as_many_as_it_likes() -> None:
    assert wants(flavor(vcpus=1 << 40, trait__CUSTOM_A="required"), Image()) == Wants(1 << 40, 0)
    with pytest.raises(WantsError, match="vcpus: expected at most 4096"):
        wants(flavor(vcpus=1 << 40, hw__cpu_policy="dedicated"), Image())


def test_an_image_can_require_hyperthreading_and_not_forbid_it() -> None:
    pinned = flavor(hw__cpu_policy="dedicated")

    required, forbidden = (wants(pinned, Image(properties={"trait:HW_CPU_HYPERTHREADING": word})) for word in ("required", "forbidden"))

    assert required.numa[0].thread_policy == "require"
    assert forbidden.numa[0].thread_policy == ""
