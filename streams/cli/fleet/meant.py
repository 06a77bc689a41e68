"""What those who set a node's amounts at once mean them to be. Pure.

A record has a resource's rule as a whole, so it also repeats what its writer had read of the amounts that it says nothing of. Which ones it
says something of stands in its header `meant`; of each amount counts who said it last, wherever else it was repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from projections.node import Node
from schemas.inventory import OperatorFields, ResourceRule
from schemas.resources import RESOURCES

RuleField = tuple[str, str]
"""A resource and a field of its rule."""
RULE_FIELDS: tuple[RuleField, ...] = tuple((resource, field) for resource in RESOURCES for field in ResourceRule.__struct_fields__)

_OFFSET = re.compile(r"[0-9]{1,19}")


def header(said: Iterable[RuleField], repeated: Mapping[RuleField, int]) -> str:
    """The header of a record that says `said` itself, and says again what records at these offsets did."""
    own = [f"{resource}.{field}" for resource, field in sorted(said)]
    return " ".join(own + [f"{resource}.{field}@{offset}" for (resource, field), offset in sorted(repeated.items())])


def said_at(text: str, offset: int) -> dict[RuleField, int]:
    """Each amount that the record at `offset` says something of, by its header, and where that was said first.

    One without the header is of a program that means all that it wrote; what no version of claimlog writes is passed over.
    """
    if not text:
        return dict.fromkeys(RULE_FIELDS, offset)
    found = {}
    for word in text.split():
        name, again, first = word.partition("@")
        amount = tuple(name.split("."))
        if amount in RULE_FIELDS and (not again or (_OFFSET.fullmatch(first) is not None and int(first) < offset)):
            found[amount] = int(first) if again else offset
    return found


class Meant:
    """A node with the settings that all who write now mean it to have, from the one as it was read on."""

    def __init__(self, node: Node) -> None:
        self.node = replace(node)  # The fold goes on with the node itself.
        self._said: dict[RuleField, int] = {}

    def hear(self, fields: OperatorFields, said: Mapping[RuleField, int]) -> OperatorFields:
        """A record has these fields, and says these amounts, said first at these offsets; of other fields it says each whole.

        Returns what these fields are now meant to be.
        """
        rules = {resource: rule for resource in RESOURCES if (rule := getattr(fields, resource)) is not UNSET}
        heard = replace(fields, **{resource: self._heard(resource, rule, said) for resource, rule in rules.items()})
        self.node.configure(heard)
        return heard

    def _heard(self, resource: str, rule: ResourceRule, said: Mapping[RuleField, int]) -> ResourceRule:
        news = {}
        for field in rule.__struct_fields__:
            first, known = said.get((resource, field), -1), self._said.get((resource, field), 0)
            if first >= known:
                self._said[resource, field] = first
                news[field] = getattr(rule, field)
        meant = replace(self.node.rule(resource), **news)
        if not lets_something_through(meant):  # What does not go with what others said counts as it was written.
            meant = replace(meant, min_unit=rule.min_unit, max_unit=rule.max_unit)
        return meant

    def lacking(self, node: Node) -> tuple[OperatorFields, dict[RuleField, int]]:
        """What is to be said so that the node's amounts are as they are meant, and where each was said first.

        Only what was said since the node was read: what was lost of earlier words is put back by whoever took it back.
        """
        repeated = {
            (resource, field): first
            for (resource, field), first in self._said.items()
            if getattr(self.node.rule(resource), field) != getattr(node.rule(resource), field)
        }
        rules: dict[str, Any] = {}
        for resource, field in repeated:
            rule = rules.get(resource, node.rule(resource))
            rules[resource] = replace(rule, **{field: getattr(self.node.rule(resource), field)})
        return OperatorFields(**rules), repeated


def lets_something_through(rule: ResourceRule) -> bool:
    """Whether there is an amount that may be asked for."""
    return rule.max_unit is None or rule.min_unit <= rule.max_unit
