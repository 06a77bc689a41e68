"""Which leaks stand in the way of a request: what they hold on each node, and whether it would fit there without them."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from projections.fit import fits
from projections.node import NOTHING, Amounts, Node, amounts_of
from projections.wording import amounts_text
from schemas.claims import ClaimItem
from schemas.findings import LeakConfirmed, LeakSuspected
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from streams.cli.printed import units
from streams.cli.reading.held import held_by
from streams.cli.reading.state import State
from streams.scheduling.ask import Ask
from streams.scheduling.filters import RESTRICTIONS, filters_of, reason
from streams.scheduling.fleet import Fleet
from streams.scheduling.keeping import any_refused_move
from streams.scheduling.policy import Policy
from streams.scheduling.reference import rooms_for

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

    @property
    def told(self) -> str:
        """`1 leak on c01 holds 4 GiB; without it the request would fit there -> claimlog leaks --node c01 --explain`."""
        one = self.leaks == 1
        what = f"{self.leaks} {'leak' if one else 'leaks'} on {self.node_id} {'holds' if one else 'hold'} {amounts_text(self.held)}"
        who = "one more of its instances" if self.one_of_many else "the request"
        without = f"; without {'it' if one else 'them'} {who} would fit there" if self.fits else ""
        return f"{what}{without} -> claimlog leaks --node {quote(self.node_id)} --explain"


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
    for node_id, findings in by_node.items():
        node = state.node(node_id)
        sums = held_by(findings)
        held: Amounts = (sums[0], sums[1], sums[2], sums[3])
        enough = one_of_many = False
        if node is not None and any(held):
            fleet = fleet or Fleet(list(state.ledgers.values()))
            ask = fleet.ask_seeded(request, 0, seed=0, options=policy.options).unless(any_refused_move(fleet, request))
            enough = _makes_room(fleet, node, held, ask, policy)
            one_of_many = len(ask.company) + 1 < request.count
        if enough or node_id == nearest:
            found.append(Relief(node_id, len(findings), held, enough, one_of_many))
    return sorted(found, key=lambda relief: (not relief.fits, relief.node_id != nearest, relief.node_id))


def relief_lines(state: State, request: PlacementRequested, policy: Policy, nearest: str = "") -> list[str]:
    """A line for each of the first few."""
    found = reliefs(state, request, policy, nearest)
    more = [f"and leaks on {units.counted(len(found) - NODES_MAX, 'more node')}"] if len(found) > NODES_MAX else []
    return [relief.told for relief in found[:NODES_MAX]] + more


def _makes_room(fleet: Fleet, node: Node, held: Amounts, ask: Ask, policy: Policy) -> bool:
    """Whether amounts and nothing but amounts are in the way there, and what is free and what the leaks hold are enough together.

    No zone, trait or group, no claim of a resize, not the node's status. Cells and devices that leaks hold are not counted as freed: so
    much is never promised. Of several instances that need not stay together it is the first that does not fit there any more.
    """
    before = tuple(ask.company or _as_it_is(node, ask))
    room = rooms_for([fleet.room_of(node.node_id)], replace(ask, company=before))[0]
    filters = (*RESTRICTIONS, *(each for each in filters_of(policy) if not each.amounts))
    if any(reason(each, ask, room) is not None for each in filters):
        return False
    lacks = fits(room.node, ask.item, ask.request.request_id, room.overlay)
    return bool(lacks) and all(lack.resource in RESOURCES for lack in lacks) and _enough(node, held, ask, 1 + len(before))


def _as_it_is(node: Node, ask: Ask) -> Sequence[ClaimItem]:
    """Those of the request's other instances for which amounts leave room there as it is, short of the last one."""
    asked = [(name, amount) for name, amount in zip(RESOURCES, amounts_of(ask.item.resources), strict=True) if amount]
    left = [max(free, 0) // amount for name, amount in asked if (free := _free(node, ask, name)) is not None]
    number = min([ask.request.count - 1, *left])
    return [replace(ask.item, instance_id=ask.request.instance(index)) for index in range(1, number + 1)]


def _enough(node: Node, held: Amounts, ask: Ask, instances: int) -> bool:
    """Whether what is free and what the leaks hold are enough for so many."""
    for name, asked, freed in zip(RESOURCES, amounts_of(ask.item.resources), held, strict=True):
        if not asked:
            continue
        total, free = node.total(name), _free(node, ask, name)
        if total is None or asked > total or (free is not None and free + freed < asked * instances):
            return False
    return True


def _free(node: Node, ask: Ask, resource: str) -> int | None:
    """What the node's limit and the request's own leave, beside what the instance has there already; None where there is neither."""
    limits: list[int | None] = [node.limit(resource), None if ask.item.limits is None else getattr(ask.item.limits, resource)]
    number = RESOURCES.index(resource)
    used = node.used[number] - node.uses.get(ask.instance_id, NOTHING)[number]
    return min([limit - used for limit in limits if limit is not None], default=None)
