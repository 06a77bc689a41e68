"""Nova's ComputeCapabilitiesFilter: a flavor's extra specs against what is known of a node.

An extra spec takes part if its key is `capabilities:a:b…`, or a plain name that is known of the node. The way `a:b` leads through the
facts; a text on it is read as JSON (Nova's cpu_info is one), and a name that is no fact is looked up among the driver's stats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.extra_specs import match
from streams.scheduling.facts import facts_of
from streams.scheduling.options import Options

SCOPE = "capabilities"
ADDRESS_BITS = "hw:maxphysaddr_bits"
ADDRESS_BITS_OF = f"{SCOPE}:cpu_info:maxphysaddr:bits"
"""What `hw:maxphysaddr_bits` stands for, with `>=`; a flavor that has both is held to that alone."""


def compute_capabilities(ask: Ask, _: Options) -> Check | None:
    """Nodes that meet every extra spec that takes part."""
    extra_specs = ask.request.flavor.extra_specs
    if not any(":" not in key or key.startswith(f"{SCOPE}:") or key == ADDRESS_BITS for key in extra_specs):
        return None
    return per_node(lambda room: lacking(facts_of(room), extra_specs))


def lacking(facts: Mapping[str, Any], extra_specs: Mapping[str, str]) -> str | None:
    """The first extra spec that the facts do not meet, in words; None if they meet all."""
    stats = facts.get("stats") or {}
    for key, requirement in _wanted(extra_specs):
        scope = key.split(":")
        if len(scope) == 1:
            if key not in facts and key not in stats:
                continue
        elif scope.pop(0) != SCOPE:
            continue
        value = _found(facts, stats, scope)
        if value is None:
            return f"{key}: {requirement} needed, it is not known of the node"
        if not match(str(value), requirement):
            return f"{key}: {requirement} needed, it is {value}"
    return None


def _wanted(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    bits = extra_specs.get(ADDRESS_BITS)
    for key, requirement in extra_specs.items():
        if key == ADDRESS_BITS:
            yield ADDRESS_BITS_OF, f">= {bits}"
        elif key != ADDRESS_BITS_OF or bits is None:
            yield key, requirement


def _found(facts: Mapping[str, Any], stats: Mapping[str, Any], scope: list[str]) -> Any:
    value = facts.get(scope[0])
    if value is None:
        value = stats.get(scope[0])
    for name in scope[1:]:
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                return None
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
