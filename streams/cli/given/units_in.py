"""Amounts and lengths of time as people write them: `4GiB`, `512`, `10m`. Whatever would have to be rounded is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Context, Decimal
from math import isfinite, nan
from pathlib import Path

from cyclopts import Parameter, Token

from schemas.units import AMOUNT_MAX
from streams.cli.problems import UsageProblem

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?(MiB|GiB|TiB|M|G|T)?", re.ASCII)
_MIB = {"MiB": 1, "M": 1, "GiB": 1 << 10, "G": 1 << 10, "TiB": 1 << 20, "T": 1 << 20}
_EXACTLY = Context(prec=10_000)
"""Of as many digits as an argument may have nothing is rounded away."""
_DURATION = re.compile(r"(?:\d{1,12}(?:d|h|ms|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+)(d|h|ms|m|s)", re.ASCII)
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def amount_mib(text: str, flag: str) -> int:
    """MiB of `4GiB`, `1.5TiB`, `512MiB` or `512`. Raises UsageProblem, which names `flag`."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise UsageProblem(f"{flag} {text!r}: write an amount such as 4GiB, 512MiB or 512 (MiB)")
    amount = _EXACTLY.multiply(Decimal(found[1]), Decimal(_MIB[found[2] or "MiB"]))
    if amount != int(amount):
        raise UsageProblem(f"{flag} {text!r}: that is {amount} MiB; only whole MiB are counted")
    if amount > AMOUNT_MAX:
        raise UsageProblem(f"{flag} {text!r}: at most {AMOUNT_MAX} MiB")
    return int(amount)


def amount_gib(text: str, flag: str) -> int:
    """Whole GiB of `40GiB`, `1TiB` or `40` (GiB). Raises UsageProblem, which names `flag`."""
    bare = text.strip()
    size_mib = amount_mib(f"{bare}GiB" if bare.replace(".", "", 1).isdigit() else bare, flag)
    if size_mib % 1024:
        raise UsageProblem(f"{flag} {text!r}: root and ephemeral disks are whole GiB, as in Nova's flavors")
    return size_mib // 1024


def whole(_type: type[int], tokens: Sequence[Token]) -> int:
    """A flag's whole number; without this, cyclopts takes `1.5` and rounds it. Raises ValueError, which cyclopts reports."""
    text = tokens[0].value
    if not re.fullmatch(r"-?\d+", text, re.ASCII):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def wholes(_type: type[tuple[int, ...]], tokens: Sequence[Token]) -> tuple[int, ...]:
    """The same of a flag that is repeated."""
    return tuple(whole(int, [token]) for token in tokens)


def not_empty(_type: object, tokens: Sequence[Token]) -> str:
    """A flag's text. One left empty (`--zone "$UNSET"`) is a mistake, and not as if the flag were left out. Raises ValueError."""
    if not tokens[0].value:
        raise ValueError("expected a value, and it is empty; leave the flag out for none")
    return tokens[0].value


def folder(_type: type[Path], tokens: Sequence[Token]) -> Path:
    """A flag's folder; an empty text, which would be the current one, is refused. Raises ValueError, which cyclopts reports."""
    return Path(not_empty(Path, tokens))


def in_seconds(_type: type[float], tokens: Sequence[Token]) -> float:
    """A flag's length of time in seconds: of a number as it is, or of `10m`, `1h30m`. Raises ValueError, which cyclopts reports."""
    text = tokens[0].value.strip()
    if _DURATION.fullmatch(text):
        return duration_ms(text) / 1000
    try:
        found = float(text)
    except ValueError:
        found = nan
    if not isfinite(found):
        raise ValueError(f"{text!r} is no length of time; write seconds, or one such as 45s, 10m or 1h30m")
    return found


def of_seconds(says: str, *, show_default: bool = True) -> Parameter:
    """A flag for a length of time in seconds, or as `10m`; a negative one is refused as such, and not taken for another flag."""
    return Parameter(converter=in_seconds, allow_leading_hyphen=True, help=says, show_default=show_default)


def duration_ms(text: str) -> int:
    """Milliseconds of `10m`, `1h30m`, `45s`. Raises UsageProblem."""
    text = text.strip()
    if not _DURATION.fullmatch(text):
        raise UsageProblem(f"{text!r} is no length of time; write one such as 45s, 10m or 1h30m")
    if (found_ms := length_ms(text)) > AMOUNT_MAX:
        raise UsageProblem(f"{text!r} is too long: at most {AMOUNT_MAX // _UNIT_MS['d']}d")
    return found_ms


def length_ms(text: str) -> int:
    """Milliseconds of numbers with their units, such as `1h30m`."""
    return sum(int(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
