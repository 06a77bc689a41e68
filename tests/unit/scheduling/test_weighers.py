"""Scores as Nova makes them: facts of its own tests, and the parts that add up."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.node import Node
from projections.room import Room, mark_of, room
from schemas.inventory import Hypervisor, ResourceRule
from streams.scheduling.crowd import Figures
from streams.scheduling.weighers import WEIGHERS, Weigher, column_of, weigh


def host(name: str, used: tuple[int, int, int] = (0, 0, 0), cpu_ratio: int = 1000, **totals: int) -> Room:
    """A node whose `used` are vCPUs, memory and disk."""
    amounts: dict[str, Any] = {"vcpus": 8, "memory_mib": 8192, "disk_mib": 8192} | totals
    node = Node(name, vcpus=ResourceRule(ratio_milli=cpu_ratio), hypervisor=Hypervisor(**amounts))
    node.used = [used[0], 0, used[1], used[2]]
    return room(node, 0, mark_of(name))


def ranked(rooms: list[Room], name: str, multiplier: float = 1.0) -> list[tuple[str, float]]:
    scores, _ = weigh(rooms, [(name, multiplier)])
    return sorted(((room.node_id, score) for room, score in zip(rooms, scores, strict=True)), key=lambda pair: -pair[1])


@pytest.mark.parametrize(
    ("values", "lowest", "highest", "expected"),
    [([0, 0], None, None, [0, 0]), ([20, 50], None, 100, [0, 0.375]), ([5, 10], 0, None, [0.5, 1.0])],
)
def test_values_are_normalised_as_in_nova(values: list[float], lowest: float | None, highest: float | None, expected: list[float]) -> None:
    column = column_of(Weigher("figures", lambda _: 0.0, lowest, highest), 1.0, Figures(values))

    assert [column.weight(at).normalised for at in range(len(values))] == expected


def test_the_ram_weigher_prefers_free_memory() -> None:
    rooms = [host("h1", memory_mib=512), host("h2", memory_mib=1024), host("h3", memory_mib=3072), host("h4", memory_mib=8192)]

    assert ranked(rooms, "RAMWeigher")[0] == ("h4", 1.0)
    assert ranked(rooms, "RAMWeigher", 0.0)[0][1] == 0.0
    assert ranked(rooms, "RAMWeigher", -1.0)[0] == ("h1", -0.0625)


def test_the_disk_weigher_counts_a_node_below_zero_as_zero() -> None:
    rooms = [host("h1", disk_mib=5120), host("h4", disk_mib=81920), host("negative", disk_mib=1024, used=(0, 0, 6144))]

    order = ranked(rooms, "DiskWeigher")

    assert (order[0], order[-1]) == (("h4", 1.0), ("negative", 0.0))


def test_the_cpu_weigher_counts_what_the_ratio_makes_of_the_cpus() -> None:
    rooms = [
        host("h1", vcpus=8, used=(8, 0, 0)),
        host("h2", vcpus=4, used=(2, 0, 0)),
        host("h3", vcpus=6),
        host("h4", vcpus=8, cpu_ratio=2000),
    ]

    assert ranked(rooms, "CPUWeigher", 2.0)[0] == ("h4", 2.0)
    assert WEIGHERS["CPUWeigher"].raw(rooms[3]) == 16.0


def test_a_single_candidate_is_not_weighed() -> None:
    assert weigh([host("h1")], [("RAMWeigher", 1.0)]) == ([0.0], [])


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8),
    st.lists(st.sampled_from(["RAMWeigher", "CPUWeigher", "DiskWeigher"]), unique=True),
    st.lists(st.sampled_from([-1.5, 0.0, 1.0, 3.0]), min_size=3, max_size=3),
)
def test_the_parts_of_a_score_add_up_to_it(totals: list[tuple[int, int, int]], names: list[str], multipliers: list[float]) -> None:
    rooms = [host(f"h{at}", vcpus=v, memory_mib=m, disk_mib=d) for at, (v, m, d) in enumerate(totals)]

    scores, columns = weigh(rooms, list(zip(names, multipliers, strict=False)))

    # Added one by one: sum() rounds otherwise from Python 3.12 on.
    parts = [[column.weight(at).multiplied for column in columns] for at in range(len(rooms))]
    assert [reduce(add, each, 0.0) for each in parts] == scores
