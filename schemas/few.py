"""Lists in a sentence: the first few of one in full, and how many there are more; offsets that follow each other."""

from __future__ import annotations

from collections.abc import Sequence

NAMED_MAX = 3
"""Enough to know what is meant; the rest would push what to do out of sight."""


def few(names: Sequence[object], most: int = NAMED_MAX, separator: str = ", ") -> str:
    """`a, b, c and 4 more`: at most so many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(map(str, names[:most])) + more


def offsets(first: int, end: int) -> str:
    """Those from `first` up to `end`, that one not included: `offset 4`, `offsets 4 to 9`."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
