"""Documents that users write: TOML and JSON texts as values, and where they cannot be read, a wrong command line that says where."""

from __future__ import annotations

import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from streams.cli.problems import UsageProblem

# What some editors put before UTF-8. It says nothing, and neither TOML nor JSON knows it.
MARK = BOM_UTF8.decode()
TOO_DEEP = "nested too deep to be read; look for brackets that are never closed"

_Kind = TypeVar("_Kind")


def read_toml(text: str, name: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The document that messages call `name`. Raises UsageProblem."""
    try:
        return tomllib.loads(text.removeprefix(MARK), parse_float=parse_float)
    except tomllib.TOMLDecodeError as problem:
        raise UsageProblem(f"{name}: {problem}") from None
    except RecursionError:
        raise UsageProblem(f"{name}: {TOO_DEEP}") from None
    except (ValueError, ArithmeticError):  # thousands of digits, or an exponent of twenty: tomllib lets what reads numbers speak
        raise UsageProblem(f"{name}: a number in it is too large to be read") from None


def read_json(text: bytes | str, name: str, kind: type[_Kind]) -> _Kind:
    """The document that messages call `name`, which must be a `kind`. Raises UsageProblem."""
    try:
        return msgspec.json.decode(text.removeprefix(MARK) if isinstance(text, str) else text.removeprefix(BOM_UTF8), type=kind)
    except msgspec.DecodeError as problem:
        raise UsageProblem(f"{name}: {problem}") from None
    except RecursionError:
        raise UsageProblem(f"{name}: {TOO_DEEP}") from None
