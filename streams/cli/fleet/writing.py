"""Settings of many nodes written at once, beside others who write some too: nobody's word is taken back unsaid.

A record has a resource's rule as a whole, as it was when its writer read the ledger. What somebody else set of it in between is taken back
by that. So whoever writes reads on, tells what was meant from what was only old, and writes once more where the ledger ends up otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from projections.node import Node
from schemas.claims import NodeConfigured
from schemas.inventory import OperatorFields, ResourceRule
from schemas.partitioner import partition_of
from schemas.resources import RESOURCES
from schemas.topics import CLAIMS
from streams.cli.fleet.file import Change, changes
from streams.cli.printed.printable import say
from streams.cli.printed.units import counted
from streams.cli.problems import UsageProblem
from streams.cli.reading.state import State
from streams.cli.writing import check_readable, new_stamp
from streams.log.base import Log, LogError
from streams.operator import configure

TRIES_MAX = 20
"""Two who write at once are done after one or two; so many are somebody who writes all the time."""

Wants = Callable[[Node], OperatorFields]
"""What a node's settings are to be, given the node as it is: in full where anything is said of a field."""


class Meant:
    """A node with the settings that those who write now mean it to have, from the one as it was read on.

    Of a rule that a record says, an amount that stood there before, since it was read, is old and not meant.
    """

    def __init__(self, node: Node) -> None:
        self.node = replace(node)  # The fold goes on with the node itself.
        self._stood: dict[str, list[ResourceRule]] = {resource: [node.rule(resource)] for resource in RESOURCES}

    def hear(self, fields: OperatorFields) -> None:
        """Somebody else has said this."""
        rules = {resource: rule for resource in RESOURCES if (rule := getattr(fields, resource)) is not UNSET}
        self.take(replace(fields, **{resource: self._news(resource, rule) for resource, rule in rules.items()}))

    def take(self, fields: OperatorFields) -> None:
        """All of this is meant."""
        self.node.configure(fields)
        for resource, stood in self._stood.items():
            if (rule := self.node.rule(resource)) != stood[-1]:
                stood.append(rule)

    def lacking(self, node: Node) -> OperatorFields:
        """What is to be said so that the node's rules are as they are meant."""
        rules: dict[str, Any] = {name: self.node.rule(name) for name in RESOURCES if self.node.rule(name) != node.rule(name)}
        return OperatorFields(**rules)

    def _news(self, resource: str, rule: ResourceRule) -> ResourceRule:
        stood = self._stood[resource]
        new = {name: getattr(rule, name) for name in rule.__struct_fields__}
        old = {name for name, amount in new.items() if any(getattr(each, name) == amount for each in stood)}
        return replace(stood[-1], **{name: amount for name, amount in new.items() if name not in old})


def would_change(nodes: Mapping[str, Node], wants: Wants) -> dict[str, list[Change]]:
    """What `write_settings` would change, if nobody else wrote. Raises UsageProblem."""
    found = {node_id: changes(node, wants(node)) for node_id, node in nodes.items()}
    for node_id, (fields, _) in found.items():
        check_readable(configure(node_id, new_stamp(), fields=fields))
    return {node_id: said for node_id, (_, said) in found.items() if said}


def write_settings(log: Log, state: State, nodes: Mapping[str, Node], wants: Wants) -> dict[str, list[Change]]:
    """Write what is wanted of these nodes, as they are in `state`, and fold the state up to it; what that changed, by node.

    Raises UsageProblem for what nobody could read, what `append` raises, and LogError if others write all the time. Where it fails with
    something written, that is said.
    """
    due = {node_id: fields for node_id, node in nodes.items() if (fields := changes(node, wants(node))[0]) != OperatorFields()}
    meant = {node_id: Meant(nodes[node_id]) for node_id in due}
    changed: dict[str, list[Change]] = {}
    own = _append(log, due)
    try:
        for _ in range(TRIES_MAX):
            for number in {partition_of(node_id.encode(), state.partitions) for node_id in meant}:
                for step in state.follow(log, number, log.end(CLAIMS, number)):
                    event = step.event
                    if isinstance(event, NodeConfigured) and event.node_id in meant:
                        its = meant[event.node_id]
                        if event.record_id not in own:
                            its.hear(event.fields)
                            continue
                        own.discard(event.record_id)
                        if said := _say(its, event.fields, wants):
                            changed[event.node_id] = said
            if own:
                raise LogError(f"{counted(len(own), 'record')} cannot be read back yet; run `claimlog doctor`")
            lacking = {node_id: its.lacking(node) for node_id, its in meant.items() if (node := state.node(node_id)) is not None}
            due = {node_id: fields for node_id, fields in lacking.items() if fields != OperatorFields()}
            if not due:
                return changed
            _append(log, due)
        raise LogError(f"others write settings of {', '.join(sorted(due)[:3])} all the time; look at `claimlog fleet show` and apply again")
    except BaseException:
        say(f"the settings of {counted(len(meant), 'node')} are written; whether they took back what others set meanwhile was not seen")
        raise


def _say(its: Meant, wrote: OperatorFields, wants: Wants) -> list[Change]:
    """What one's own record changed, as things stood in front of it. What does not go with what others set is meant as it was written."""
    try:
        wanted = wants(its.node)
    except UsageProblem:
        wanted = wrote
    said = changes(its.node, wanted)[1]
    its.take(wanted)
    return said


def _append(log: Log, due: Mapping[str, OperatorFields]) -> set[str]:
    """Write this of each node at once; returns the ids of the records."""
    stamps = {node_id: new_stamp() for node_id in due}
    messages = [configure(node_id, stamps[node_id], fields=fields) for node_id, fields in due.items()]
    for message in messages:
        check_readable(message)
    log.append(messages)
    return {stamp.record_id for stamp in stamps.values()}
