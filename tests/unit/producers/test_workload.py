"""The generated workload has the statistics of the trace it stands for, and is the same for the same seed."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.workload import BIN_MS, FLAVORS, Arrival, Departure, workload
from schemas.codec import decode, encode
from schemas.topics import REQUESTS

INSTANCES = 80_000
"""Some 300 bins: enough for the heavy tail of the batches, made in two seconds."""


@pytest.fixture(scope="module")
def events() -> list[Arrival | Departure]:
    return list(workload(7, instances=INSTANCES))


def arrivals(events: list[Arrival | Departure]) -> list[Arrival]:
    return [event for event in events if isinstance(event, Arrival)]


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[int(share * (len(values) - 1))]


def test_batches_are_mostly_single_and_most_vms_come_in_large_ones(events: list[Arrival | Departure]) -> None:
    """The trace: p50 1, p99 68, mean 4.92 VMs a batch, and 65 % of the VMs in batches of 10 or more."""
    sizes = list(Counter(event.request.project_id for event in arrivals(events)).values())

    assert quantile(sizes, 0.5) == 1
    assert 45 <= quantile(sizes, 0.99) <= 100
    assert 4.2 <= sum(sizes) / len(sizes) <= 5.7
    assert 0.60 <= sum(size for size in sizes if size >= 10) / sum(sizes) <= 0.70
    assert max(sizes) <= 1_404


def test_two_thirds_of_the_vms_live_65_minutes_at_most(events: list[Arrival | Departure]) -> None:
    """The trace: 65 % (65.8 with those whose end nobody saw)."""
    started = {event.request.request_id: event.time_ms for event in arrivals(events)}
    lives = [event.time_ms - started[event.request_id] for event in events if isinstance(event, Departure)]

    assert 0.61 <= sum(life <= 65 * 60_000 for life in lives) / len(lives) <= 0.70
    assert max(lives) < 6 * 24 * 3_600_000
    assert 20 * 60_000 <= quantile(lives, 0.5) <= 45 * 60_000


def test_arrivals_in_five_minutes_are_as_many_and_as_uneven_as_in_the_trace(events: list[Arrival | Departure]) -> None:
    """The trace: p50 201, p99 747, most 1,806, mean 254."""
    bins = Counter(event.time_ms // BIN_MS for event in arrivals(events))
    counts = [bins[number] for number in range(max(bins))]

    assert 160 <= quantile(counts, 0.5) <= 250
    assert 500 <= quantile(counts, 0.99) <= 1_100
    assert 215 <= sum(counts) / len(counts) <= 295


def test_flavors_have_the_shares_of_the_trace(events: list[Arrival | Departure]) -> None:
    shares = Counter((event.request.flavor.vcpus, event.request.flavor.memory_mib) for event in arrivals(events))
    total = sum(count for _, _, count in FLAVORS)

    for vcpus, memory_mib, count in FLAVORS:
        assert shares[vcpus, memory_mib] / INSTANCES == pytest.approx(count / total, abs=0.04)


def test_events_come_in_time_order_and_every_instance_leaves_once(events: list[Arrival | Departure]) -> None:
    times = [event.time_ms for event in events]
    left = [event.instance_id for event in events if isinstance(event, Departure)]

    assert times == sorted(times)
    assert len(left) == len(set(left)) == INSTANCES
    assert {event.request.instance(0) for event in arrivals(events)} == set(left)


@settings(max_examples=15)
@given(st.integers(0, 1 << 32), st.integers(1, 400), st.integers(1, 60), st.integers(0, 1 << 41))
def test_the_same_seed_gives_the_same_readable_stream(seed: int, instances: int, count_max: int, start_ms: int) -> None:
    first, again = (list(workload(seed, instances=instances, count_max=count_max, start_ms=start_ms)) for _ in range(2))

    assert first == again
    assert sum(event.request.count for event in arrivals(first)) == instances
    assert all(decode(REQUESTS, encode(event.request)) == event.request for event in arrivals(first))
    assert max(event.request.count for event in arrivals(first)) <= count_max
    assert first[0].time_ms >= start_ms


def test_another_seed_gives_another_stream() -> None:
    one, two = (list(islice(workload(seed, instances=50), 50)) for seed in (1, 2))

    assert [event.time_ms for event in one] != [event.time_ms for event in two]
