"""Python's garbage collector where a ledger is in memory.

A fold makes millions of objects that stay; with Python's defaults the collector walks all of them every few thousand records. Here it looks
at what is new in small pieces, since whoever waits for an answer waits for that as well: 100,000 objects at once took 20 to 80 ms, and were
half of the p99 of a placement through Kafka. What stays is looked at once more with others of its age, and then left alone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (2_000, 250, 10_000)


def calm() -> None:
    """Have this process collect seldom, from here on."""
    gc.set_threshold(*_THRESHOLDS)


def settle() -> None:
    """Leave alone for good what this process has made until now, and have it collect seldom: for those that stay."""
    gc.collect()
    gc.freeze()
    calm()


@contextmanager
def calmed() -> Iterator[None]:
    """Have it collect seldom for as long as a fold takes."""
    before = gc.get_threshold()
    calm()
    try:
        yield
    finally:
        gc.set_threshold(*before)
