"""How a ledger's state is written down: what of it is stored, in which order, and what is derived anew when it is read.

Nodes are written in two parts, because most records only move the times of a node's audits: `TIMES` are a few dozen bytes, the rest is
some kilobytes. The same state always gives the same bytes, whether it was folded from offset 0 or restored on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Struct

from projections.ledger import Ledger
from projections.node import Claim, Home, Node, Shown
from projections.rules import RULES_KNOWN
from schemas.audits import InstanceReport

STATE_VERSION = 8
"""Goes up whenever what is written here changes, the fields of `Node`, `Claim` and what they hold included; other versions are ignored."""

TIMES = ("sources", "audit", "complete_ms", "unknown_since_ms", "unknown_reason", "unknown_instances", "silent_since_ms", "settled_ms")
"""What an audit that finds a settled node unchanged moves."""
DERIVED = ("claims", "uses", "used", "groups_of", "io_claims", "limits", "whole_units", "key")
"""What `restored_node` works out anew (`claims` from the claims written with the node)."""
ORDERED = ("sources", "shown", "homes_closed", "loose")
"""Dictionaries and sets of the fold: written in order of their keys."""
FACTS = tuple(name for name in Node.__struct_fields__ if name not in {*TIMES, *DERIVED, *ORDERED})

_encode = msgspec.msgpack.Encoder().encode
_facts_of, _times_of = attrgetter(*FACTS), attrgetter(*TIMES[1:])


class ShownRow(Struct, gc=False, array_like=True):
    """`Shown` without what the node's last full audit says anyway: `report` None stands for the report there."""

    instance_id: str
    report: InstanceReport | None
    amounts: tuple[int | None, int | None, int | None, int | None]
    seen_ms: int
    event_ms: int
    offset: int
    group_id: str


class Header(Struct, frozen=True, array_like=True):
    """What is stored of a ledger besides its nodes, groups and ids. `last_value` are the bytes of its last record (rule 13)."""

    state_version: int
    ledger_id: str
    partition: int
    partitions: int
    rules_version: int
    next_offset: int
    time_ms: int
    digest: bytes
    last_value: bytes


class Identity(NamedTuple):
    """One entry of `Ledger.expiry`: an id met at `offset`. `known`: 1 as seen, 2 as released before it was requested, 3 both, 0 neither."""

    offset: int
    identity: str
    known: int


class StateError(Exception):
    """Stored bytes are no state that can be used here; the message says why."""


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """A decoder that says what is wrong as a StateError."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except (msgspec.DecodeError, ValueError) as problem:
            raise StateError(f"it cannot be read: {problem}") from problem

    return read


_HINTS: Any = get_type_hints(Node)
_read_version = _decoder(list[Any])
_read_header = _decoder(Header)
_read_home = _decoder(Home)
_read_ids = _decoder(tuple[Identity, ...])
_read_times = _decoder(tuple.__class_getitem__(tuple(_HINTS[name] for name in TIMES)))
_FACT_TYPES = (*(_HINTS[name] for name in FACTS), dict[str, int], set[str], tuple[ShownRow, ...], tuple[Claim, ...])
_read_facts = _decoder(tuple.__class_getitem__(_FACT_TYPES))


def header_of(ledger: Ledger) -> bytes:
    """The header of a ledger's present state."""
    return _encode(
        Header(
            state_version=STATE_VERSION,
            ledger_id=ledger.ledger_id,
            partition=ledger.partition,
            partitions=ledger.partitions,
            rules_version=ledger.rules_version,
            next_offset=ledger.next_offset,
            time_ms=ledger.time_ms,
            digest=ledger.digest,
            last_value=ledger.last_value,
        )
    )


def facts_of(node: Node) -> bytes:
    """A node with what is shown and held there, without `TIMES`."""
    full = node.full
    reported = {report.instance_id: report for report in full.instances} if full is not None else {}
    shown = [_shown_row(instance_id, node.shown[instance_id], reported.get(instance_id)) for instance_id in sorted(node.shown)]
    claims = [claim for instance_id in sorted(node.claims) for claim in node.claims[instance_id]]
    return _encode((*_facts_of(node), _in_order(node.homes_closed), sorted(node.loose), shown, claims))


def times_of(node: Node) -> bytes:
    """The node's `TIMES`."""
    return _encode((_in_order(node.sources), *_times_of(node)))


def home_of(home: Home) -> bytes:
    """A group's home."""
    return _encode(home)


def ids_of(ledger: Ledger, first_offset: int) -> list[Identity]:
    """The ids remembered since the record `first_offset`, oldest first."""
    found: list[Identity] = []
    for offset, identity in reversed(ledger.expiry):
        if offset < first_offset:
            break
        known = (ledger.remembered.get(identity) == offset) + 2 * (ledger.released_early.get(identity) == offset)
        found.append(Identity(offset, identity, known))
    found.reverse()
    return found


def ids_bytes(ids: Iterable[Identity]) -> bytes:
    """Remembered ids as bytes."""
    return _encode(tuple(ids))


def read_ids(data: bytes) -> tuple[Identity, ...]:
    """What `ids_bytes` wrote. Raises StateError."""
    ids: tuple[Identity, ...] = _read_ids(data)
    return ids


def begun(data: bytes) -> Ledger:
    """A ledger with the header's figures and no rows yet. Raises StateError, also for a version of state or rules unknown here."""
    version = next(iter(_read_version(data)), None)
    if version != STATE_VERSION:
        raise StateError(f"it is of state version {version}, this claimlog knows {STATE_VERSION}; it is made anew from the log")
    header: Header = _read_header(data)
    if header.rules_version not in RULES_KNOWN:
        raise StateError(f"it follows rules version {header.rules_version}, this claimlog knows {sorted(RULES_KNOWN)}; upgrade claimlog")
    ledger = Ledger(header.partition, header.partitions)
    ledger.ledger_id, ledger.rules_version = header.ledger_id, header.rules_version
    ledger.next_offset, ledger.time_ms = header.next_offset, header.time_ms
    ledger.digest, ledger.last_value = header.digest, header.last_value
    return ledger


def add_node(ledger: Ledger, facts: bytes, times: bytes) -> None:
    """Put a node with its claims into the ledger, derived figures worked out anew. Raises StateError."""
    *values, homes_closed, loose, shown, claims = _read_facts(facts)
    told = dict(zip(FACTS, values, strict=True)) | dict(zip(TIMES, _read_times(times), strict=True))
    node = Node(**told, homes_closed=homes_closed, loose=loose)
    if node.full is not None and node.full.hypervisor == node.hypervisor:
        node.hypervisor = node.full.hypervisor  # one object for both, as the fold has it
    node.refresh()
    reported = {report.instance_id: report for report in node.full.instances} if node.full is not None else {}
    same: Callable[[Any, Any], Any] = {}.setdefault
    for row in shown:
        report = row.report if row.report is not None else reported.get(row.instance_id)
        if report is None:
            raise StateError(f"node {node.node_id}: instance {row.instance_id} is shown without a report")
        instance_id, amounts, seen_ms, offset = report.instance_id, row.amounts, row.seen_ms, row.offset
        node.shown[same(instance_id, instance_id)] = Shown(
            report, same(amounts, amounts), same(seen_ms, seen_ms), row.event_ms, same(offset, offset), row.group_id
        )
    for claim in claims:
        claim.node_id = node.node_id
        claim.amounts = ledger.shared.setdefault(claim.amounts, claim.amounts)
        _share(claim, same)
        node.claims.setdefault(claim.instance_id, []).append(claim)
        ledger.claims[claim.claim_id] = claim
        node.io_claims += claim.confirmed_ms is None
    for instance_id in node.shown.keys() | node.claims.keys():
        node.recount(instance_id)
    ledger.nodes[node.node_id] = node


def _share(claim: Claim, same: Callable[[Any, Any], Any]) -> None:
    """Make equal texts and numbers of a node one object again, as in the fold that wrote them: a third less memory."""
    claim.instance_id = same(claim.instance_id, claim.instance_id)
    claim.request_id = same(claim.request_id, claim.request_id)
    claim.owner = same(claim.owner, claim.owner)
    claim.project_id = same(claim.project_id, claim.project_id)
    claim.flavor = same(claim.flavor, claim.flavor)
    claim.confirmed_by = same(claim.confirmed_by, claim.confirmed_by)
    claim.offset = same(claim.offset, claim.offset)
    claim.confirmed_offset = same(claim.confirmed_offset, claim.confirmed_offset)
    claim.ttl_ms = same(claim.ttl_ms, claim.ttl_ms)
    claim.since_ms = same(claim.since_ms, claim.since_ms)
    claim.granted_ms = same(claim.granted_ms, claim.granted_ms)
    claim.deadline_ms = same(claim.deadline_ms, claim.deadline_ms)
    claim.confirmed_ms = same(claim.confirmed_ms, claim.confirmed_ms)
    claim.seen_ms = same(claim.seen_ms, claim.seen_ms)


def add_home(ledger: Ledger, group_id: str, data: bytes) -> None:
    """Put a group's home into the ledger. Raises StateError."""
    ledger.groups[group_id] = _read_home(data)


def add_ids(ledger: Ledger, ids: Iterable[Identity]) -> None:
    """Let the ledger remember ids, oldest first."""
    for offset, identity, known in ids:
        ledger.expiry.append((offset, identity))
        if known & 1:
            ledger.remembered[identity] = offset
        if known & 2:
            ledger.released_early[identity] = offset


def nodes_in_order(ledger: Ledger) -> Iterator[Node]:
    """The nodes by id: containers of the fold have no order that counts."""
    for node_id in sorted(ledger.nodes):
        yield ledger.nodes[node_id]


def _shown_row(instance_id: str, shown: Shown, reported: InstanceReport | None) -> ShownRow:
    report = shown.report
    same = report is reported or report == reported
    return ShownRow(instance_id, None if same else report, shown.amounts, shown.seen_ms, shown.event_ms, shown.offset, shown.group_id)


def _in_order(mapping: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(mapping.items())) if len(mapping) > 1 else mapping
