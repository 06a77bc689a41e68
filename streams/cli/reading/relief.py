"""Which leaks stand in the way of a request: what they hold on each node, and whether it would fit there without them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from projections.node import Amounts, Node, amounts_of
from projections.room import Room, room
from projections.wording import amounts_text
from schemas.claims import ClaimItem
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from streams.cli.printed import units
from streams.cli.reading.held import held_by
from streams.cli.reading.state import State
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.keeping import any_refused_move
from streams.scheduling.policy import Policy
from streams.scheduling.reference import prepare, rooms_for

# What these name is no hold that could be given back: a guest that runs, a node as a whole.
_HOLD_NOTHING = frozenset({"missing-claim", "negative-free", "silent-node", "stranded-member"})
NODES_MAX = 3


class Relief(Struct, frozen=True):
    """The leaks of one node: how many, what they hold together, and whether the request would fit there without them.

    Of a request for several instances that need not go to one node, `one_of_many`, that is one more of them.
    """

    node_id: str
    leaks: int
    held: Amounts
    fits: bool
    one_of_many: bool = False
    with_ignored: bool = False
    """Whether some of them are ignored by the operator, and shown on demand only."""

    @property
    def told(self) -> str:
        """`1 leak on c01 holds 4 GiB; without it the request would fit there -> claimlog leaks --node c01 --explain`."""
        one = self.leaks == 1
        what = f"{self.leaks} {'leak' if one else 'leaks'} on {self.node_id} {'holds' if one else 'hold'} {amounts_text(self.held)}"
        who = "one more of its instances" if self.one_of_many else "the request"
        without = f"; without {'it' if one else 'them'} {who} would fit there" if self.fits else ""
        ignored = " --ignored" if self.with_ignored else ""
        return f"{what}{without} -> claimlog leaks --node {quote(self.node_id)} --explain{ignored}"


def reliefs(state: State, request: PlacementRequested, policy: Policy, nearest: str = "") -> list[Relief]:
    """The leaks of the node that nearly did, and of every node where the request would fit without them; those that make room first.

    `policy` is the one it was decided by. What the request is about, or has to be near, is none: without it nothing would be asked for.
    """
    by_node: dict[str, list[LeakSuspected | LeakConfirmed]] = {}
    needed = {*(request.instance(index) for index in range(request.count)), *request.hints.same_host}
    for finding in state.findings():
        if finding.kind not in _HOLD_NOTHING and finding.instance_id not in needed:
            by_node.setdefault(finding.node_id, []).append(finding)
    found: list[Relief] = []
    fleet: Fleet | None = None
    others: list[ClaimItem] = []
    for node_id, findings in by_node.items():
        node = state.node(node_id)
        sums = held_by(findings)
        held: Amounts = (sums[0], sums[1], sums[2], sums[3])
        enough = one_of_many = False
        if node is not None and any(held):
            fleet = fleet or Fleet(list(state.ledgers.values()))
            ask = fleet.ask_seeded(request, 0, seed=0, options=policy.options).unless(any_refused_move(fleet, request))
            others = others or [replace(ask.item, instance_id=request.instance(index)) for index in range(1, request.count)]
            enough = _makes_room(fleet.room_of(node_id), _freed(node, findings, held), ask, policy, others)
            one_of_many = len(ask.company) + 1 < request.count
        if enough or node_id == nearest:
            with_ignored = any(finding.ignored for finding in findings)
            found.append(Relief(node_id, len(findings), held, enough, one_of_many, with_ignored))
    return sorted(found, key=lambda relief: (not relief.fits, relief.node_id != nearest, relief.node_id))


def relief_lines(state: State, request: PlacementRequested, policy: Policy, nearest: str = "") -> list[str]:
    """A line for each of the first few."""
    found = reliefs(state, request, policy, nearest)
    more = [f"and leaks on {units.counted(len(found) - NODES_MAX, 'more node')}"] if len(found) > NODES_MAX else []
    return [relief.told for relief in found[:NODES_MAX]] + more


def _makes_room(base: Room, freed: Node, ask: Ask, policy: Policy, others: Sequence[ClaimItem]) -> bool:
    """Whether what leaks hold on a node is all that is in the way there: it is `freed` of their amounts, and of instances that are leaks.

    Cells and devices that leaks hold are not counted as freed, nor their places in groups: so much is never promised. Of several instances
    that need not stay together it is the first that does not fit there any more.
    """
    before = ask.company or _as_it_is(base, ask, policy, others)
    last = replace(ask, company=tuple(before))
    without = room(freed, base.partition, base.mark, base.overlay)
    return not _takes(base, last, policy) and _takes(without, last, policy)


def _takes(there: Room, ask: Ask, policy: Policy) -> bool:
    (own,) = rooms_for([there], ask)
    return not any(check.rejects(own) for _, check in prepare(ask, policy))


def _as_it_is(base: Room, ask: Ask, policy: Policy, others: Sequence[ClaimItem]) -> Sequence[ClaimItem]:
    """Those of the request's other instances that the node takes as it is, short of the last one."""

    def is_full(number: int) -> bool:
        return not _takes(base, replace(ask, company=tuple(others[:number])), policy)

    asked = zip(RESOURCES, amounts_of(ask.item.resources), strict=True)
    most = min([len(others), *(max(getattr(base, f"{resource}_free"), 0) // amount for resource, amount in asked if amount)])
    return others[: bisect_left(range(most), True, key=is_full)]


def _freed(node: Node, findings: Sequence[LeakSuspected | LeakConfirmed], held: Amounts) -> Node:
    """The node as it would be without the leaks' amounts, and without the instances of which they are all that counts."""
    leaks = {finding.instance_id for finding in findings if amounts_of(finding.held) == node.uses.get(finding.instance_id)}
    uses = {instance_id: use for instance_id, use in node.uses.items() if instance_id not in leaks}
    used = [max(used - freed, 0) for used, freed in zip(node.used, held, strict=True)]
    return replace(node, uses=uses, used=used)
