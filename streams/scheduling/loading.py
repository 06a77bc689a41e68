"""A policy from outside (TOML, a dictionary, the text in the log), with errors that say what is known."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any

import msgspec

from schemas.claims import NODES_MAX
from streams.scheduling.filters import FILTERS
from streams.scheduling.policy import Policy
from streams.scheduling.weighers import WEIGHERS


class PolicyError(ValueError):
    """The policy cannot be used: the message names the place, what was expected and what is known."""


def from_toml(text: str, *, source: str) -> Policy:
    """The policy in a TOML text; keys left out have their defaults. `source` is its name in messages. Raises PolicyError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{source}: not TOML: {error}") from None
    return from_dict(values, source=source)


def from_dict(values: Mapping[str, Any], *, source: str) -> Policy:
    """The policy in a dictionary. Raises PolicyError."""
    _known(values, Policy.__struct_fields__, "key", source)
    try:
        policy = msgspec.convert(dict(values), Policy)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{source}: {error}") from None
    return checked(policy, source=source)


def from_text(text: str) -> Policy:
    """The policy that a `SchedulerStarted` carries. Raises PolicyError."""
    try:
        return checked(msgspec.json.decode(text, type=Policy), source="the policy in the log")
    except msgspec.DecodeError as error:
        raise PolicyError(f"the policy in the log: {error}; it was written by another version of claimlog") from None


def checked(policy: Policy, *, source: str) -> Policy:
    """`policy` itself, if every name in it is known and every number usable. Raises PolicyError."""
    _known(policy.filters, FILTERS, "filter", source)
    _known([each.weigher for each in policy.weighers], WEIGHERS, "weigher", source)
    for kind, names in (("filter", policy.filters), ("weigher", [each.weigher for each in policy.weighers])):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise PolicyError(f"{source}: {kind} {twice[0]!r} is named twice; once is enough")
    for each in policy.weighers:
        if not isfinite(each.multiplier):
            raise PolicyError(f"{source}: weigher {each.weigher!r}: expected a finite multiplier, got {each.multiplier}")
    if not 0 <= policy.alternates_max < NODES_MAX:
        raise PolicyError(f"{source}: alternates_max: expected 0 to {NODES_MAX - 1}, got {policy.alternates_max}")
    return policy


def _known(names: Iterable[str], known: Iterable[str], kind: str, source: str) -> None:
    for name in names:
        if name not in known:
            close = get_close_matches(name, list(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise PolicyError(f"{source}: {kind} {name!r} is not known; known: {', '.join(known)}{hint}")
