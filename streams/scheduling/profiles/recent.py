"""What was worked out last, kept for when it is asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def recall(kept: list[T], most: int, is_it: Callable[[T], bool], made: Callable[[], T]) -> None:
    """Bring the one of `kept` that is it to the front, or what is `made` now; of more than `most` the one least lately asked for goes."""
    at = next((at for at, each in enumerate(kept) if is_it(each)), None)
    kept.insert(0, made() if at is None else kept.pop(at))
    del kept[most:]
