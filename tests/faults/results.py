"""Results as a client outside claimlog reads them."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.codec import decode_keyed
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.topics import RESULTS
from tests.faults.history import Client


def in_time(log: Client, offsets: dict[int, int]) -> Iterator[InstancesPlaced | PlacementFailed]:
    """What has come from these offsets on, which move along, but for placements that came too late to count.

    Of a request's results the first one counts: whoever reads knows which requests have one.
    """
    for number in sorted(offsets):
        while found := log.read(RESULTS, number, offsets[number]):
            offsets[number] = found[-1].offset + 1
            for record in found:
                result = decode_keyed(RESULTS, record.key, record.value)
                late = isinstance(result, InstancesPlaced) and record.time_ms > result.commit_by_ms
                if isinstance(result, InstancesPlaced | PlacementFailed) and not late:
                    yield result
