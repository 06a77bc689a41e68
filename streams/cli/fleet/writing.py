"""Settings of many nodes written at once, beside others who write some too: nobody's word is taken back unsaid.

A record has a resource's rule as a whole, as it was when its writer read the ledger. What somebody else set of it in between is taken back
by that. So whoever writes reads on, tells what was meant from what was only repeated, and puts back what was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from projections.node import Node
from projections.reading import between
from schemas.claims import NodeConfigured
from schemas.envelope import from_headers
from schemas.inventory import OperatorFields
from schemas.partitioner import partition_of
from schemas.topics import CLAIMS
from streams.cli.fleet.file import Change, changes
from streams.cli.fleet.meant import Meant, RuleField, header, said_at
from streams.cli.printed.printable import say
from streams.cli.printed.units import counted
from streams.cli.problems import UsageProblem
from streams.cli.reading.state import State
from streams.cli.writing import check_readable, new_stamp
from streams.log.base import Log, LogError
from streams.log.reading import READ_RECORDS
from streams.operator import configure

TRIES_MAX = 20
"""Two who write at once are done after one or two; so many are somebody who writes all the time."""


class Wants(Struct, frozen=True):
    """What is wanted `of` a node as it is, in full where anything is said of a field, and which fields of its rules are `named`."""

    of: Callable[[Node], OperatorFields]
    named: Callable[[str], AbstractSet[RuleField]]


def would_change(nodes: Mapping[str, Node], wants: Wants) -> dict[str, list[Change]]:
    """What `write_settings` would change, if nobody else wrote. Raises UsageProblem."""
    found = {node_id: changes(node, wants.of(node)) for node_id, node in nodes.items()}
    for node_id, (fields, _) in found.items():
        check_readable(configure(node_id, new_stamp(), fields=fields))
    return {node_id: said for node_id, (_, said) in found.items() if said}


def write_settings(log: Log, state: State, nodes: Mapping[str, Node], wants: Wants) -> dict[str, list[Change]]:
    """Write what is wanted of these nodes, as they are in `state`, and fold the state up to it; what that changed, by node.

    Raises UsageProblem for what nobody could read, what `append` raises, and LogError if others write all the time. Where it fails with
    something written, that is said.
    """
    different = {node_id: changes(node, wants.of(node))[0] for node_id, node in nodes.items()}
    due = {
        node_id: (fields, header({each for each in wants.named(node_id) if getattr(fields, each[0]) is not UNSET}, {}))
        for node_id, fields in different.items()
        if fields != OperatorFields()
    }
    meant = {node_id: Meant(nodes[node_id]) for node_id in due}
    changed: dict[str, list[Change]] = {}
    own = _append(log, due)
    try:
        for _ in range(TRIES_MAX):
            for number in {partition_of(node_id.encode(), state.partitions) for node_id in meant}:
                until = log.end(CLAIMS, number)
                headers = _meant_by(log, number, state.ledgers[number].next_offset, until)
                for step in state.follow(log, number, until):
                    event = step.event
                    if isinstance(event, NodeConfigured) and event.node_id in meant:
                        its = meant[event.node_id]
                        if event.record_id not in own:
                            its.hear(event.fields, said_at(headers[step.offset], step.offset))
                            continue
                        own.discard(event.record_id)
                        if said := _say(its, event.fields, wants, step.offset):
                            changed[event.node_id] = said
            if own:
                raise LogError(f"{counted(len(own), 'record')} cannot be read back yet; run `claimlog doctor`")
            lacking = {node_id: its.lacking(node) for node_id, its in meant.items() if (node := state.node(node_id)) is not None}
            due = {node_id: (fields, header((), repeated)) for node_id, (fields, repeated) in lacking.items() if repeated}
            if not due:
                return changed
            _append(log, due)
        raise LogError(f"others write settings of {', '.join(sorted(due)[:3])} all the time; look at `claimlog fleet show` and apply again")
    except BaseException:
        say(f"the settings of {counted(len(meant), 'node')} are written; whether they took back what others set meanwhile was not seen")
        raise


def _meant_by(log: Log, number: int, begin: int, until: int) -> dict[int, str]:
    """What the headers of each record from `begin` to `until`, exclusive, say to be meant."""
    return {record.offset: from_headers(record.headers).meant for record in between(log, CLAIMS, number, begin, until, READ_RECORDS)}


def _say(its: Meant, wrote: OperatorFields, wants: Wants, offset: int) -> list[Change]:
    """What one's own record changed, as things stood in front of it. What does not go with what others set is meant as it was written."""
    before = replace(its.node)
    try:
        wanted = wants.of(before)
    except UsageProblem:
        wanted = wrote
    # A field that it does not have was as it is wanted when the node was read: whoever set it since has the last word.
    own = {name: getattr(wanted, name) for name, value in asdict(wrote).items() if value is not UNSET}
    heard = its.hear(OperatorFields(**own), dict.fromkeys(wants.named(before.node_id), offset))
    return changes(before, heard)[1]


def _append(log: Log, due: Mapping[str, tuple[OperatorFields, str]]) -> set[str]:
    """Write this of each node at once, with what is meant of it; returns the ids of the records."""
    stamps = {node_id: new_stamp() for node_id in due}
    messages = [configure(node_id, stamps[node_id], fields=fields, meant=meant) for node_id, (fields, meant) in due.items()]
    for message in messages:
        check_readable(message)
    log.append(messages)
    return {stamp.record_id for stamp in stamps.values()}
