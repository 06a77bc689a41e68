"""Python's garbage collector where a ledger is in memory.

A fold makes millions of objects that stay; with Python's defaults the collector walks all of them every few thousand records.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 50, 1000)


def calm() -> None:
    """Have this process collect seldom, from here on."""
    gc.set_threshold(*_THRESHOLDS)


@contextmanager
def calmed() -> Iterator[None]:
    """Have it collect seldom for as long as a fold takes."""
    before = gc.get_threshold()
    calm()
    try:
        yield
    finally:
        gc.set_threshold(*before)
