"""Bounded numbers and texts: the only scalar types that records are made of.

Everything is an integer: MiB, GiB, milliseconds, thousandths. A number outside its bounds makes its record unreadable (rule 11),
the same for every reader.
"""

from hashlib import blake2b
from typing import Annotated

from msgspec import Meta

AMOUNT_MAX = 1 << 50
"""Largest amount of anything: sums of thousands of them stay far inside 64 bits, and inside what JavaScript reads exactly (2^53)."""
TEXT_CHARACTERS_MAX, NAME_CHARACTERS_MAX = 4096, 255
GIB = 1024
"""A GiB in MiB, the unit of memory and disk."""
MIB = 1 << 20
"""A MiB in bytes."""
_LARGER_MIB = ((1 << 20, "TiB"), (1 << 10, "GiB"))

Amount = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
Difference = Annotated[int, Meta(ge=-AMOUNT_MAX, le=AMOUNT_MAX)]
Count = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
DurationMs = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
Offset = Annotated[int, Meta(ge=-1, le=AMOUNT_MAX)]
RatioMilli = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]


def nearest_amount(number: int) -> int:
    """The amount next to a number: a bound below nothing is nothing, one above all amounts is the largest, which nothing reaches."""
    return max(0, min(number, AMOUNT_MAX))


def bounded_name(name: str) -> str:
    """`name`, or if it is longer than a record may carry, its start and a hash of the whole."""
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[: NAME_CHARACTERS_MAX - 33]}~{blake2b(name.encode(), digest_size=16).hexdigest()}"


def bounded_text(text: str) -> str:
    """`text`, or its start if it is longer than a record may carry: what others said of up to that length is told in words around it."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"


def mib_text(amount_mib: int) -> str:
    """MiB in the largest unit that shows it exactly in quarters, so that a column still adds up: `1.5 GiB`, `1,204 MiB`, `-46,683 MiB`."""
    for one_mib, name in _LARGER_MIB:
        if abs(amount_mib) >= one_mib and amount_mib % (one_mib // 4) == 0:
            return f"{amount_mib / one_mib:,.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{amount_mib:,} MiB"
