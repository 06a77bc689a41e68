"""Replays of whole logs: every partition as the verbs replay it, one after the other."""

from __future__ import annotations

from typing import Any

from projections.reading import Readable
from projections.replay import Checks, Replayed, Until, ends_of, replayed, verified_partition


def replay(log: Readable, until: Until = None, **options: Any) -> dict[int, Replayed]:
    """All partitions as of `until`; the options are those of `replayed`."""
    return {number: replayed(log, number, end, **options) for number, end in ends_of(log, until).items()}


def verified(log: Readable, until: Until = None) -> tuple[dict[int, Replayed], Checks]:
    """All partitions replayed from the first record, and all that was compared with what was published."""
    found, checks = {}, Checks()
    for number, end in ends_of(log, until).items():
        found[number], compared = verified_partition(log, number, end)
        checks.add(compared)
    return found, checks
