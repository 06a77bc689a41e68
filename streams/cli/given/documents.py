"""Documents that users write: files, policies, TOML and JSON as values; where they cannot be read, a wrong command line that says where."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from streams.cli.printed.printable import say
from streams.cli.printed.stdout import own_code
from streams.cli.problems import UsageProblem

if TYPE_CHECKING:
    from streams.scheduling.policy import Policy

TOO_DEEP = "nested too deep to be read; look for brackets that are never closed"

_Kind = TypeVar("_Kind")


def file_bytes(file: str | Path, says: str, *, or_stdin: bool = False) -> bytes:
    """What is in a file, `-` being stdin if it may be. Raises UsageProblem that begins with `says`."""
    try:
        return sys.stdin.buffer.read() if or_stdin and file == "-" else Path(file).read_bytes()
    except OSError as problem:
        raise UsageProblem(f"{says}: {problem.strerror or problem}") from None


def file_text(file: str | Path, says: str, *, or_stdin: bool = False) -> str:
    """As `file_bytes`, in UTF-8; the mark that some editors put before it says nothing, and neither TOML nor JSON knows it."""
    try:
        return file_bytes(file, says, or_stdin=or_stdin).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise UsageProblem(f"{says}: {problem}") from None


def policy_named(name: str, flag: str) -> Policy:
    """The policy of that name, or in the TOML file of that name; what in it has no effect is said. Raises UsageProblem, with `flag`."""
    from streams.scheduling.loading import without_effect

    policy = _policy(name, flag)
    if idle := without_effect(policy):
        say(f"{flag} {name}: {'; '.join(idle)}")
    return policy


def code_vouched_for(name: str, flag: str) -> frozenset[str]:
    """The names of code in the policy of that name, for which it vouches; none without one. Raises UsageProblem, which names `flag`."""
    from streams.scheduling.loading import code_named

    return code_named(_policy(name, flag)) if name else frozenset()


def _policy(name: str, flag: str) -> Policy:
    from streams.scheduling.loading import PolicyError, named

    try:
        with own_code():
            return named(name, lambda path: Path(path).read_text(encoding="utf-8"))
    except PolicyError as problem:
        raise UsageProblem(f"{flag}: {problem}") from None


def read_toml(text: str, name: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The document that messages call `name`. Raises UsageProblem."""
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except tomllib.TOMLDecodeError as problem:
        raise UsageProblem(f"{name}: {problem}") from None
    except RecursionError:
        raise UsageProblem(f"{name}: {TOO_DEEP}") from None
    except (ValueError, ArithmeticError):  # thousands of digits, or an exponent of twenty: tomllib lets what reads numbers speak
        raise UsageProblem(f"{name}: a number in it is too large to be read") from None


def read_json(text: str, name: str, kind: type[_Kind]) -> _Kind:
    """The document that messages call `name`, which must be a `kind`. Raises UsageProblem."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as problem:
        raise UsageProblem(f"{name}: {problem}") from None
    except RecursionError:
        raise UsageProblem(f"{name}: {TOO_DEEP}") from None
