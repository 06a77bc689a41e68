"""Text that may have come from a message, made safe to print: an id must not move the cursor, ring the bell or begin a line of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO


def printable(text: str) -> str:
    """One line: whatever is no visible character or space, a line break too, is written as its escape."""
    return text if text.isprintable() else "".join(part if part.isprintable() else part.encode("unicode_escape").decode() for part in text)


def say(sentence: str) -> None:
    """A sentence for people, on a line of its own on stderr, at once."""
    print(printable(sentence), file=sys.stderr, flush=True)


def teller(stderr: TextIO) -> Callable[[str], None]:
    """Says a sentence on a line of its own on `stderr`, the same one only once: several partitions and processes may come to it."""
    told: set[str] = set()

    def tell(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            stderr.write(f"{printable(sentence)}\n")

    return tell


def printable_lines(text: str) -> str:
    """Several lines, each as `printable` has it: for our own texts, which may have line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))
