"""What goes wrong with code from outside, in a module that the command line can name without loading the scheduler."""

from __future__ import annotations


class CustomError(ValueError):
    """A name leads to nothing that can be used, or a weigher's code fails: the message says where and what was expected."""


class NowhereError(CustomError):
    """Nothing can be imported by this name, which may be a slip for one that is known."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name!r}: {why}")
        self.name = name
