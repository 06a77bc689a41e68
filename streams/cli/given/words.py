"""The words of a command line behind `--`: names, whatever they begin with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_behind: ContextVar[frozenset[str]] = ContextVar("_behind", default=frozenset())


def behind_dashes(arguments: Sequence[str]) -> list[str]:
    """The arguments behind the first `--`."""
    return list(arguments[list(arguments).index("--") + 1 :]) if "--" in arguments else []


@contextmanager
def as_names(words: Iterable[str]) -> Iterator[None]:
    """What is parsed within takes these words for names."""
    token = _behind.set(frozenset(words))
    try:
        yield
    finally:
        _behind.reset(token)


def is_name(word: str) -> bool:
    """Whether a word that begins with a hyphen is a name, and no mistyped flag."""
    return word in _behind.get()
