"""Which leaks stand in the way of a request: what they hold on each node, and whether it would fit there without them."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from msgspec import Struct

from projections.fit import fits
from projections.node import Amounts, Node, amounts_of
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from streams.cli.leaks import held_by
from streams.cli.nodes import sized
from streams.cli.state import State
from streams.scheduling.ask import Ask
from streams.scheduling.filters import RESTRICTIONS, filters_of, reason
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy
from streams.scheduling.reference import rooms_for

# What these name is no hold that could be given back: a guest that runs, a node as a whole.
_HOLD_NOTHING = frozenset({"missing-claim", "negative-free", "silent-node", "stranded-member"})
NODES_MAX = 3

Findings = Sequence[LeakSuspected | LeakConfirmed]


class Relief(Struct, frozen=True):
    """The leaks of one node: how many, what they hold together, and whether the request would fit there without them.

    Of a request for several instances that need not go to one node, `one_of_many`, that is one of them.
    """

    node_id: str
    leaks: int
    held: Amounts
    fits: bool
    one_of_many: bool = False

    @property
    def told(self) -> str:
        """`1 leak on c01 holds 4 GiB; without it the request would fit there -> claimlog leaks --node c01 --explain`."""
        one = self.leaks == 1
        what = f"{self.leaks} {'leak' if one else 'leaks'} on {self.node_id} {'holds' if one else 'hold'} {sized(self.held)}"
        who = "one of its instances" if self.one_of_many else "the request"
        without = f"; without {'it' if one else 'them'} {who} would fit there" if self.fits else ""
        return f"{what}{without} -> claimlog leaks --node {quote(self.node_id)} --explain"


def reliefs(state: State, request: PlacementRequested, policy: Policy, nearest: str = "") -> list[Relief]:
    """The leaks of the node that nearly did, and of every node where the request would fit without them; those that make room first.

    `policy` is the one it was decided by.
    """
    by_node: dict[str, list[LeakSuspected | LeakConfirmed]] = {}
    for finding in state.findings():
        if finding.kind not in _HOLD_NOTHING:
            by_node.setdefault(finding.node_id, []).append(finding)
    found: list[Relief] = []
    fleet: Fleet | None = None
    for node_id, findings in by_node.items():
        node = state.node(node_id)
        sums = held_by(findings)
        held: Amounts = (sums[0], sums[1], sums[2], sums[3])
        enough = one_of_many = False
        if node is not None and any(held):
            fleet = fleet or Fleet([ledger for _, ledger in sorted(state.ledgers.items())])
            ask = fleet.ask_seeded(request, 0, seed=0, options=policy.options)
            enough = _enough(node, held, ask) and _may(fleet, node_id, ask, policy)
            one_of_many = len(ask.company) + 1 < request.count
        if enough or node_id == nearest:
            found.append(Relief(node_id, len(findings), held, enough, one_of_many))
    return sorted(found, key=lambda relief: (not relief.fits, relief.node_id != nearest, relief.node_id))


def relief_lines(state: State, request: PlacementRequested, policy: Policy, nearest: str = "") -> list[str]:
    """A line for each of the first few."""
    found = reliefs(state, request, policy, nearest)
    more = [f"and leaks on {len(found) - NODES_MAX} more nodes"] if len(found) > NODES_MAX else []
    return [relief.told for relief in found[:NODES_MAX]] + more


def _enough(node: Node, held: Amounts, ask: Ask) -> bool:
    """Whether what is free and what the leaks hold are enough together."""
    for name, asked, freed in zip(RESOURCES, amounts_of(ask.item.resources), held, strict=True):
        if not asked:
            continue
        total, free = node.total(name), node.free(name)
        if total is None or asked > total or (free is not None and free + freed < asked * (1 + len(ask.company))):
            return False
    return True


def _may(fleet: Fleet, node_id: str, ask: Ask, policy: Policy) -> bool:
    """Whether amounts and nothing but amounts are in the way there: no zone, trait or group, no claim of a resize, not the node's status.

    Cells and devices that leaks hold are not counted as freed: so much is never promised. Of several instances the first may fit as it is.
    """
    room = rooms_for([fleet.room_of(node_id)], ask)[0]
    filters = (*RESTRICTIONS, *(each for each in filters_of(policy) if not each.amounts))
    if any(reason(each, ask, room) is not None for each in filters):
        return False
    lacks = fits(room.node, ask.item, ask.request.request_id, room.overlay)
    return (bool(lacks) or ask.request.count > 1) and all(lack.resource in RESOURCES for lack in lacks)
