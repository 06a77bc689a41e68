"""A real cloud's VMs played on a log: the Azure extract on a fleet of simulated nodes, and what its requesters were told.

Records are appended in the trace's order as fast as they are answered. A VM whose lifetime ends gives its claim back; one that ends before
its request is answered does so as soon as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct, field

from producers.load import NodeKind
from producers.traces import FLAVORS_FILE, TRACE_FILE
from producers.workload import Arrival, Departure
from schemas.claims import ClaimReleased
from schemas.codec import encode
from schemas.results import InstancesPlaced, Placement, PlacementFailed
from schemas.topics import CLAIMS, RESULTS
from schemas.units import GIB
from streams.cli.produce.driving import request_message
from streams.log.base import LogUnreachable, Message, Partition
from tests.faults.checkers import Acknowledged, hash_of
from tests.faults.harness import ROOT
from tests.faults.history import Recorded
from tests.faults.results import in_time

KINDS = (
    NodeKind(name="dense", vcpus=16, memory_mib=28 * GIB, disk_mib=100 * GIB),
    NodeKind(name="plain", vcpus=12, memory_mib=28 * GIB, disk_mib=100 * GIB),
    NodeKind(name="small", vcpus=8, memory_mib=28 * GIB, disk_mib=100 * GIB),
    NodeKind(name="roomy", vcpus=16, memory_mib=64 * GIB, disk_mib=100 * GIB),
)
"""500 of them are together a little less than 10,000 VMs need at their peak (6,935 vCPUs, 12,922 GiB), so that some are refused."""
OPEN_MAX = 500
"""Requests without answer at once: what keeps all schedulers busy without a queue of seconds."""
BATCH = 100


def data() -> Path:
    """The folder of the extract. Skips without it, which fails on CI."""
    folder = Path(os.environ.get("CLAIMLOG_DATA", ROOT.parent / "shared" / "data"))
    if not all((folder / name).is_file() for name in (TRACE_FILE, FLAVORS_FILE)):
        pytest.skip(f"{folder} does not have {TRACE_FILE} and {FLAVORS_FILE}; name the folder that has them with CLAIMLOG_DATA")
    return folder


class Cloud(Struct):
    """Plays the trace on a log, and keeps what was acknowledged and answered. `meanwhile` is called between any two of its steps.

    A log that is out of reach is tried again with the same bytes, as any producer must.
    """

    log: Recorded
    events: Iterator[Arrival | Departure]
    seconds_max: float = 300.0
    meanwhile: Callable[[], None] = lambda: None
    played: int = 0
    open: set[str] = field(default_factory=set)
    placed: dict[str, Placement] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    accepted: int = 0
    refused: int = 0
    released: int = 0
    out_of_reach: int = 0
    kept: list[Acknowledged] = field(default_factory=list)
    results_next: dict[int, int] = field(default_factory=dict)
    out: list[Message] = field(default_factory=list)

    def play(self) -> None:
        """Everything, until every request is answered and every end is said."""
        self.results_next = dict.fromkeys(range(self.log.topics()[RESULTS]), 0)
        deadline = time.monotonic() + self.seconds_max
        exhausted = False
        while not exhausted or self.open or self.out:
            self.meanwhile()
            assert time.monotonic() < deadline, f"{len(self.open)} requests are not answered after {self.seconds_max} s"
            while not exhausted and len(self.open) < OPEN_MAX and len(self.out) < BATCH:
                event = next(self.events, None)
                if event is None:
                    exhausted = True
                else:
                    self._happens(event)
            try:
                idle = not self.out
                self._append()
                self._answers()
                if not self.out and (idle or len(self.open) >= OPEN_MAX):
                    self.log.wait({Partition(RESULTS, number): offset for number, offset in self.results_next.items()}, 0.5)
            except LogUnreachable:
                self.out_of_reach += 1

    def _happens(self, event: Arrival | Departure) -> None:
        self.played += 1
        if isinstance(event, Arrival):
            self.open.add(event.request.request_id)
            self.out.append(request_message(event.request, event.time_ms))
        elif event.instance_id in self.placed:
            self._release(event.instance_id)
        elif event.request_id in self.open:
            self.ended.add(event.instance_id)

    def _answers(self) -> None:
        for result in in_time(self.log, self.results_next):
            if result.request_id in self.open:
                self._answered(result)

    def _answered(self, result: InstancesPlaced | PlacementFailed) -> None:
        self.open.discard(result.request_id)
        if isinstance(result, PlacementFailed):
            self.refused += 1
            return
        self.accepted += 1
        for placement in result.placements:
            self.placed[placement.instance_id] = placement
            self.log.holds(placement.instance_id, placement.node_id, placement.resources)
            if placement.instance_id in self.ended:
                self._release(placement.instance_id)

    def _release(self, instance_id: str) -> None:
        placement = self.placed.pop(instance_id)
        self.log.gives_back(instance_id)
        self.released += 1
        release = ClaimReleased(
            node_id=placement.node_id, record_id=f"{placement.claim_id}/ended", claim_id=placement.claim_id, reason="deleted"
        )
        self.out.append(Message(CLAIMS, placement.node_id.encode(), encode(release)))

    def _append(self) -> None:
        if not self.out:
            return
        for each, offset in zip(self.out, self.log.append(self.out), strict=True):
            self.kept.append(Acknowledged(each.topic, self.log.partition(each.topic, each.key), offset, hash_of(each.value)))
        self.out.clear()
