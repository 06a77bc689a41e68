"""A list in a sentence: the first few of it in full, and how many there are more."""

from __future__ import annotations

from collections.abc import Sequence

NAMED_MAX = 3
"""Enough to know what is meant; the rest would push what to do out of sight."""


def few(names: Sequence[object], most: int = NAMED_MAX, separator: str = ", ") -> str:
    """`a, b, c and 4 more`: at most so many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(map(str, names[:most])) + more
