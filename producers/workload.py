"""A seeded stream of placement requests and ends of lifetimes that looks like a public cloud's.

The constants are measured on the Azure extract (AzurePublicDatasetV1 by way of its 2017 slice of 669,435 VMs in 9.2 days; Cortez et al.,
Resource Central, SOSP'17): flavors, sizes of batches, lifetimes, arrivals in 5 minutes. Everybody can have this workload without the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate
from random import Random

from msgspec import Struct

from schemas.requests import Flavor, PlacementRequested

BIN_MS = 300_000
"""The trace counts arrivals in 5 minutes; within a bin they are spread uniformly."""

FLAVORS = (
    (1, 768, 10_696),
    (1, 1_792, 379_994),
    (1, 2_048, 99),
    (16, 114_688, 27),
    (2, 14_336, 147),
    (2, 16_384, 129),
    (2, 3_584, 130_801),
    (2, 4_096, 59),
    (4, 28_672, 131),
    (4, 32_768, 4),
    (4, 7_168, 67_541),
    (4, 8_192, 18),
    (8, 14_336, 63_309),
    (8, 16_384, 34),
    (8, 57_344, 16_445),
    (8, 65_536, 1),
)
"""vCPUs, memory in MiB, and how many VMs of the trace have that flavor."""

DISK_GIB_PER_VCPU = 10
"""The trace has no disks; 10 GiB a vCPU never binds before CPU or memory on the fleet's kinds, yet shows in every table."""

BATCHES = (
    (1, 1, 57_204),
    (2, 2, 17_991),
    (3, 3, 6_364),
    (4, 4, 4_015),
    (5, 5, 2_389),
    (6, 6, 1_426),
    (7, 7, 1_111),
    (8, 8, 909),
    (9, 9, 774),
    (10, 14, 2_761),
    (15, 24, 2_041),
    (25, 49, 1_694),
    (50, 99, 608),
    (100, 199, 363),
    (200, 399, 340),
    (400, 799, 10),
    (800, 1_404, 1),
)
"""Sizes of batches (VMs of one tenant in one bin): smallest, largest, and how many of 100,000 batches; within a row log-uniform."""

BATCHES_PER_BIN = 51.6
BATCHES_GAMMA_SHAPE = 8.9
"""Mean of batches in a bin, and the shape of the gamma-distributed rate that gives its spread (variance 350, p10 30, p90 78)."""

FLAVOR_KEPT = 0.91
"""Share of batches that have one flavor only; in the others each VM draws its own."""

LIFETIME_KEPT = 0.94
"""How often a VM has the lifetime row of its batch. Within batches of the trace the correlation of lifetimes (log) is 0.89 = 0.94²."""

LIFETIMES = (
    (0, 300, 273),
    (300, 600, 987),
    (600, 900, 1_152),
    (900, 1_200, 1_019),
    (1_200, 1_500, 1_049),
    (1_500, 1_800, 741),
    (1_800, 2_100, 392),
    (2_100, 2_400, 263),
    (2_400, 3_000, 415),
    (3_000, 3_900, 287),
    (3_900, 7_500, 820),
    (7_500, 11_100, 332),
    (11_100, 18_300, 386),
    (18_300, 25_500, 290),
    (25_500, 36_300, 328),
    (36_300, 47_100, 280),
    (47_100, 61_500, 315),
    (61_500, 86_700, 210),
    (86_700, 173_100, 238),
    (173_100, 259_500, 68),
    (259_500, 345_900, 76),
    (345_900, 432_300, 58),
    (432_300, 518_700, 22),
)
"""Lifetimes: from and to in seconds, and how many of 10,000 VMs; uniform in a row. For a VM alive at the end the lower bound counts."""


class Arrival(Struct, frozen=True, gc=False):
    """A request comes in at `time_ms`."""

    time_ms: int
    request: PlacementRequested


class Departure(Struct, frozen=True, gc=False):
    """The instance's lifetime ends at `time_ms`."""

    time_ms: int
    request_id: str
    instance_id: str


class Timeline:
    """Puts arrivals, which come in time order, and the departures they lead to into one time order."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, str, str]] = []

    def arrival(self, arrival: Arrival, lifetimes_ms: list[int]) -> Iterator[Arrival | Departure]:
        """The departures that are due before this arrival, then the arrival itself; lifetimes in the order of its instances."""
        yield from self.until(arrival.time_ms)
        request = arrival.request
        for index, lifetime_ms in enumerate(lifetimes_ms):
            heappush(self._ends, (arrival.time_ms + lifetime_ms, request.instance(index), request.request_id))
        yield arrival

    def until(self, time_ms: float = math.inf) -> Iterator[Departure]:
        """The departures before `time_ms`, or all that are left."""
        while self._ends and self._ends[0][0] < time_ms:
            end_ms, instance_id, request_id = heappop(self._ends)
            yield Departure(end_ms, request_id, instance_id)


def workload(seed: int, *, instances: int, start_ms: int = 0, count_max: int = 1, prefix: str = "load") -> Iterator[Arrival | Departure]:
    """Arrivals of `instances` VMs and the ends of their lifetimes, in time order from `start_ms` on; the same seed, the same stream.

    VMs of a batch that share a flavor come in requests of up to `count_max` instances.
    The tenant of a batch is `project_id`. The stream ends with the last departure.
    """
    draw = _Draw(seed)
    timeline = Timeline()
    batch = number = 0
    for bin_ms in _bins(start_ms):
        coming: list[tuple[int, int, PlacementRequested, list[int]]] = []
        for _ in range(draw.batches()):
            batch += 1
            for flavor, lifetimes_ms in draw.batch(count_max, instances - number):
                request = PlacementRequested(
                    request_id=f"{prefix}-{seed}-{number:07d}", flavor=flavor, count=len(lifetimes_ms), project_id=f"tenant-{batch}"
                )
                coming.append((bin_ms + draw.within_bin_ms(), number, request, lifetimes_ms))
                number += len(lifetimes_ms)
        for time_ms, _, request, lifetimes_ms in sorted(coming, key=lambda each: each[:2]):
            yield from timeline.arrival(Arrival(time_ms, request), lifetimes_ms)
        if number >= instances:
            break
    yield from timeline.until()


def flavor_of(vcpus: int, memory_mib: int) -> Flavor:
    """A flavor of the workload: `c2m3584` with its root disk in GiB."""
    return Flavor(name=f"c{vcpus}m{memory_mib}", vcpus=vcpus, memory_mib=memory_mib, root_gib=DISK_GIB_PER_VCPU * vcpus)


def _bins(start_ms: int) -> Iterator[int]:
    while True:
        yield start_ms
        start_ms += BIN_MS


class _Draw:
    """All chance of a workload, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._flavors = [flavor_of(vcpus, memory_mib) for vcpus, memory_mib, _ in FLAVORS]
        self._flavor_weights = list(accumulate(count for _, _, count in FLAVORS))
        self._batch_weights = list(accumulate(count for _, _, count in BATCHES))
        self._life_weights = list(accumulate(count for _, _, count in LIFETIMES))

    def batches(self) -> int:
        """How many batches one bin has: a Poisson number of a gamma-distributed rate."""
        mean = self._random.gammavariate(BATCHES_GAMMA_SHAPE, BATCHES_PER_BIN / BATCHES_GAMMA_SHAPE)
        passed, count = self._random.expovariate(1.0), 0
        while passed < mean:
            passed += self._random.expovariate(1.0)
            count += 1
        return count

    def within_bin_ms(self) -> int:
        return self._random.randrange(BIN_MS)

    def batch(self, count_max: int, room: int) -> Iterator[tuple[Flavor, list[int]]]:
        """The VMs of one batch, at most `room`: flavor and lifetimes of up to `count_max` that share a flavor."""
        size = min(self._batch_size(), room)
        row = self._lifetime_row()
        shared = self._flavor() if self._random.random() < FLAVOR_KEPT else None
        while size > 0:
            count = min(count_max, size) if shared else 1
            yield shared or self._flavor(), [self._lifetime_ms(row) for _ in range(count)]
            size -= count

    def _flavor(self) -> Flavor:
        return self._random.choices(self._flavors, cum_weights=self._flavor_weights)[0]

    def _batch_size(self) -> int:
        smallest, largest, _ = self._random.choices(BATCHES, cum_weights=self._batch_weights)[0]
        return int(smallest * ((largest + 1) / smallest) ** self._random.random())

    def _lifetime_row(self) -> int:
        return self._random.choices(range(len(LIFETIMES)), cum_weights=self._life_weights)[0]

    def _lifetime_ms(self, row: int) -> int:
        kept = row if self._random.random() < LIFETIME_KEPT else self._lifetime_row()
        low_s, high_s, _ = LIFETIMES[kept]
        return self._random.randrange(low_s * 1000, high_s * 1000)
