"""Every filter's word on every node, not only the first that rejects it; and what the choice would be without one of the weighers.

For explanations: a decision stops asking of a node once it is rejected, and counts it there. The first rejection in a row here is that one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from msgspec import Struct
from msgspec.structs import replace

from projections.room import Room
from schemas.resources import RESOURCES, Shortfall
from schemas.results import Decision, NearestMiss
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters import LAST, RESTRICTIONS, Filter
from streams.scheduling.filters.amounts import lacks_of, shortfalls_told
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy, digest
from streams.scheduling.reference import prepare, rooms_for
from streams.scheduling.select import engine

TESTED = {"CoreFilter": ("vcpus", "pcpus"), "RamFilter": ("memory_mib",), "DiskFilter": ("disk_mib",)}
"""The resources of the filters whose reasons are shortfalls; the last filter's are all of `fits`."""
LEDGER_ONLY = frozenset({"resize", "keep", "min_unit", "max_unit", "step_size"})
"""What the ledger's own test looks at and no filter of a policy does."""
UNUSABLE = RESTRICTIONS[0].name
"""It rejects every node, where the request contradicts itself."""
OWN_WORDS = frozenset(filter_.name for filter_ in RESTRICTIONS)
"""What a request says of nodes itself."""
WHERE = frozenset(
    {"AvailabilityZoneFilter", "ServerGroupAffinityFilter", "ServerGroupAntiAffinityFilter", "SameHostFilter", "DifferentHostFilter"}
)
"""What a request says of where its instances are to be: nothing that is done about a node mends that."""


class Rejected(Struct, frozen=True, gc=False):
    """One filter's no to one node; `shortfalls` are its amounts, where it goes by amounts."""

    filter: str
    reason: str
    shortfalls: tuple[Shortfall, ...] = ()


class Line(Struct, frozen=True, gc=False):
    """One node: the filters that reject it, in their order; none if it passes."""

    node_id: str
    rejected: tuple[Rejected, ...] = ()

    @property
    def first(self) -> str:
        """The filter that a decision counts the node for; empty if it passes."""
        return self.rejected[0].filter if self.rejected else ""

    @property
    def against(self) -> tuple[Rejected, ...]:
        """What stands against the node; of the ledger's own test, the last, only what no other filter says."""
        others = tuple([each for each in self.rejected if each.filter != LAST.name])
        said = {lack.resource for each in others for lack in each.shortfalls}
        own = tuple([lack for each in self.rejected[len(others) :] for lack in each.shortfalls if _is_unsaid(lack, said)])
        return (*others, Rejected(LAST.name, "; ".join(map(str, own)), own)) if own else others or self.rejected

    @property
    def missing(self) -> float:
        """How much of what is asked for the node lacks: the sum over resources of missing / needed."""
        lacks = {lack.resource: lack for each in self.rejected for lack in each.shortfalls if lack.needed}
        return sum((lack.needed - lack.free) / lack.needed for lack in lacks.values())


class Matrix(Struct, frozen=True):
    """The filters that took part, in order, and a line for each known node, by name."""

    filters: tuple[str, ...]
    lines: tuple[Line, ...]

    def counted_for(self, name: str) -> list[Line]:
        """The nodes that a decision counts for this filter."""
        return [line for line in self.lines if line.first == name]

    def of(self, node_id: str) -> Line | None:
        """The line of one node; None if it is not known."""
        return next((line for line in self.lines if line.node_id == node_id), None)

    def closest(self) -> Line | None:
        """The rejected node that fewest filters reject, of those the one that came furthest and lacks least; None if there is none.

        For decisions without a nearest miss: where more than amounts stands against every node. The ledger's own test, the last, says
        again what others said, so only what it alone says counts. A node that the request itself rules out is not close, whatever the
        others lack: not another one than the instance to resize is on, nor any where the request contradicts itself. Nor is one close
        that is in another zone, or where the group is not, as long as there is one that is only disabled, or full.
        """
        rejected = [line for line in self.lines if line.rejected and line.first not in OWN_WORDS]
        return min(rejected, key=self._distance, default=None)

    def _distance(self, line: Line) -> tuple[bool, int, int, float, str]:
        against = line.against
        is_elsewhere = any(each.filter in WHERE for each in against)
        return is_elsewhere, len(against), -self.filters.index(line.first), line.missing, line.node_id

    def short(self, miss: NearestMiss) -> tuple[Shortfall, ...]:
        """What the nearest miss is short of, as the filters of amounts say it there.

        What is recorded of it may be less than they say, and more where the policy lets an instance be larger than the whole node.
        """
        line = self.of(miss.node_id)
        said: dict[str, Shortfall] = {}
        for each in line.rejected if line is not None else ():
            for lack in each.shortfalls:
                said.setdefault(lack.resource, lack)
        return tuple([said[lack.resource] for lack in miss.shortfalls if lack.resource in said]) or miss.shortfalls


class Without(Struct, frozen=True):
    """The choice that would have been made without one weigher."""

    weigher: str
    chosen: str


def matrix(fleet: Fleet, ask: Ask, policy: Policy) -> Matrix:
    """All filters that have something to test for `ask`, on all nodes of `fleet`."""
    rooms = rooms_for(fleet.rooms(), ask, everywhere=True)
    found: list[list[Rejected]] = [[] for _ in rooms]
    prepared = prepare(ask, policy)
    for filter_, check in prepared:
        kept = set(map(id, check.keep(rooms)))
        for at, room in enumerate(rooms):
            if id(room) not in kept:
                found[at].append(_rejected(filter_, check, ask, room))
    lines = tuple([Line(room.node_id, tuple(rejected)) for room, rejected in zip(rooms, found, strict=True)])
    return Matrix(tuple([filter_.name for filter_, _ in prepared]), lines)


def without_each(fleet: Fleet, ask: Ask, policy: Policy, decision: Decision) -> Iterator[Without]:
    """The choice without each weigher in turn that weighed, by the plain scan; nothing for a decision that weighed or found nothing."""
    if not decision.chosen or not decision.best or not decision.best[0].weights:
        return
    weighed = {weight.weigher for weight in decision.best[0].weights}
    for each in [each for each in policy.weighers if each.weigher in weighed]:
        other = replace(policy, weighers=tuple([one for one in policy.weighers if one is not each]))
        yield Without(each.weigher, engine("reference")(fleet, ask, other, digest(other)).chosen)


def _is_unsaid(lack: Shortfall, said: Container[str]) -> bool:
    """Whether no other filter says so of a node: what only the ledger looks at, and amounts that the policy's filters do not test."""
    return lack.resource in LEDGER_ONLY or (lack.resource in RESOURCES and lack.resource not in said)


def _rejected(filter_: Filter, check: Check, ask: Ask, room: Room) -> Rejected:
    if filter_.name in TESTED:
        lacks = shortfalls_told(ask, room, *TESTED[filter_.name])
        return Rejected(filter_.name, "; ".join(map(str, lacks)), lacks)
    return Rejected(filter_.name, check.reason(room), lacks_of(ask, room) if filter_.name == LAST.name else ())
