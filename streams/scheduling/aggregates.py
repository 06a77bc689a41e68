"""What the metadata of a node's aggregates says: values, sets of values and numbers that override the policy's options.

Source of the rules: Nova 34, scheduler filters' utilities. A value may be a list with commas; of several numbers the least counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import TypeVar

from schemas.inventory import Aggregate
from streams.scheduling.options import NUMBER_MAX

Number = TypeVar("Number", int, float)


def values(aggregates: Iterable[Aggregate], key: str) -> frozenset[str]:
    """The values of one key, as they stand there."""
    return frozenset(aggregate.metadata[key] for aggregate in aggregates if key in aggregate.metadata)


def metadata(aggregates: Iterable[Aggregate], key: str | None = None) -> dict[str, frozenset[str]]:
    """Every key with its values, taken apart at commas and stripped; with `key`, of those aggregates only that have it."""
    found: dict[str, set[str]] = {}
    for aggregate in aggregates:
        if key is None or key in aggregate.metadata:
            for name, text in aggregate.metadata.items():
                found.setdefault(name, set()).update(part.strip() for part in text.split(","))
    return {name: frozenset(parts) for name, parts in found.items()}


def number(
    texts: Collection[str], default: Number, read: Callable[[str], Number], choose: Callable[[Iterable[Number]], Number] = min
) -> Number:
    """The least (or what `choose` takes) of the numbers in `texts`; `default` if there are none.

    Raises ValueError for a text that is no number, and if what is chosen is beyond `NUMBER_MAX`.
    """
    if not texts:
        return default
    numbers = [read(text) for text in texts]
    chosen = choose(numbers)
    if abs(chosen) > NUMBER_MAX or not all(-inf <= each <= inf for each in numbers):  # What is no number compares with none.
        raise ValueError(f"expected numbers up to {NUMBER_MAX:g}, got {', '.join(sorted(texts))}")
    return chosen


def override(aggregates: Iterable[Aggregate], key: str, default: Number, read: Callable[[str], Number]) -> Number:
    """The least number that the aggregates give for `key`; `default` if they give none, or one that cannot be read."""
    try:
        return number(values(aggregates, key), default, read)
    except ValueError:
        return default
