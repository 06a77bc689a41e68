"""The choice among the best: a random one of the first few, to keep schedulers apart (Nova's host_subset_size)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def draw_first(ranked: Sequence[T], subset_size: int, draw: Callable[[Sequence[T]], T]) -> list[T]:
    """`ranked`, best first, with the one that `draw` takes of the first `subset_size` (at least one) before all others."""
    if not ranked:
        return []
    first = draw(ranked[: max(subset_size, 1)])
    return [first, *(each for each in ranked if each != first)]


def shuffled(ranked: Sequence[T], scores: Sequence[float], shuffle: Callable[[list[T]], Sequence[T]]) -> list[T]:
    """`ranked` with those that have the best score in the order that `shuffle` gives (Nova's shuffle_best_same_weighed_hosts)."""
    best = [each for each, score in zip(ranked, scores, strict=True) if score == scores[0]]
    return [*shuffle(best), *ranked[len(best) :]] if best else []


def drawn_by(seed: int) -> Callable[[Sequence[T]], T]:
    """The draw that a decision's seed makes: the same again for the same seed."""
    return lambda few: few[seed % len(few)]
