"""What would be decided if something were otherwise: other ratios, nodes drained, enabled or added. Nothing is written.

The changes are made in ledgers that belong to the one who asks, and to nobody else. Decisions are then made by the engines themselves, each
choice laid over the fleet for the next, as schedulers do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from projections.ledger import Ledger
from projections.node import Node
from schemas.ids import claim_id, instance_id
from schemas.inventory import Hypervisor, OperatorFields
from schemas.partitioner import partition_of
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from schemas.results import Decision
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.holding import NOWHERE, choose
from streams.scheduling.limits import claimed
from streams.scheduling.matrix import Matrix, matrix
from streams.scheduling.policy import Policy, digest
from streams.scheduling.select import DEFAULT, engine
from streams.scheduling.supply import Supply, supplies

OWNER = "what-if"
"""Who decides: it stands in seeds and in the ids of claims that are laid over the fleet and never appended."""


class CannotChange(ValueError):
    """The changes name what is not there; the message says what."""


class NodesLike(Struct, frozen=True):
    """So many empty nodes more, each like a known one: its totals, cells, devices and settings, and none of its instances."""

    like: str
    count: int


class Changes(Struct, frozen=True, kw_only=True):
    """What would be otherwise.

    `settings` gives the operator's fields of each node, as from a file, which speaks of the nodes in `named`; over them come `ratios_milli`
    by resource on every node (None is no limit).
    """

    settings: Callable[[Node], OperatorFields] | None = None
    named: tuple[str, ...] = ()
    ratios_milli: dict[str, int | None] = {}
    drained: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()
    added: tuple[NodesLike, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything is otherwise."""
        return self != Changes()


class Basis(Struct, frozen=True):
    """What one instance is decided on: the fleet (its claim is laid over it then), seed and attempt of the tie-break, and the engine.

    `held` are the nodes that are chosen from as long as one of them will do, on those that have `begun` the request's own claims count once
    (see `holding`). `unusable` is why no scheduler would place the instance, whatever nodes there are; empty if one would.
    """

    fleet: Fleet
    seed: int
    attempt: int = 1
    engine: str = DEFAULT
    held: frozenset[str] = NOWHERE
    begun: frozenset[str] = NOWHERE
    unusable: str = ""


class Outcome(NamedTuple):
    """The decisions in order; only the last may have found nothing: of that one `matrix` and `supplies` say more."""

    decisions: list[Decision]
    matrix: Matrix | None
    supplies: tuple[Supply, ...]

    @property
    def placed(self) -> int:
        """How many instances found a node."""
        return sum(bool(decision.chosen) for decision in self.decisions)


BasisOf = Callable[[int, Sequence[Decision]], Basis]
"""The basis for an instance by its number and the decisions before."""


def change(ledgers: Sequence[Ledger], changes: Changes) -> tuple[str, ...]:
    """Make the changes in these ledgers, one for each partition; returns the names of the added nodes. Raises CannotChange.

    The ledgers are no fold of the log any more afterwards: nothing may be applied to them.
    """
    nodes = {node_id: node for ledger in ledgers for node_id, node in ledger.nodes.items()}
    for name in (*changes.drained, *changes.enabled, *(each.like for each in changes.added)):
        if name not in nodes:
            raise _unknown(name)
    for name in changes.drained:
        nodes[name].status, nodes[name].status_reason = "draining", OWNER
    for name in changes.enabled:
        nodes[name].status, nodes[name].status_reason = "enabled", ""
    added: list[Node] = []
    for each in changes.added:
        added += [_empty(nodes[each.like], name) for name in _names(each, {*nodes, *(node.node_id for node in added)})]
    for name in changes.named:
        if name not in nodes and all(name != node.node_id for node in added):
            raise _unknown(name)
    for node in added:
        ledgers[partition_of(node.node_id.encode(), len(ledgers))].nodes[node.node_id] = node
    for node in (*nodes.values(), *added):
        _set_rules(node, changes)
    return tuple([node.node_id for node in added])


def _unknown(name: str) -> CannotChange:
    return CannotChange(f"node {name!r} is not known at this cut; `claimlog nodes` lists those that are")


def decide(request: PlacementRequested, basis_of: BasisOf, policy: Policy, *, leaves_home: bool = True, left: int = 0) -> Outcome:
    """The decisions for the instances of `request` in order, up to the first that finds no node: all or none are placed.

    Where the home of an affinity group is empty and does not take them, they are decided without it, as schedulers do: `leaves_home`. A
    recorded failure may have stayed: earlier versions did not leave the home that they had proposed for the request, and no scheduler
    looks for one for ever. Homes up to the epoch `left` are as good as never proposed: the request's own, where something else would have
    chosen another.
    """
    outcome, laid = _decide(request, basis_of, policy, left)
    group_id = _moving_group(request)
    if outcome.matrix is None or not group_id or not leaves_home:
        return outcome
    for fleet, name in laid:
        fleet.lift(name)
        fleet.take_home_back(group_id)
    home = basis_of(0, ()).fleet.empty_home(group_id)
    return outcome if home is None else _decide(request, basis_of, policy, left=home.epoch)[0]


def _decide(request: PlacementRequested, basis_of: BasisOf, policy: Policy, left: int = 0) -> tuple[Outcome, list[tuple[Fleet, str]]]:
    """The same, and what was laid over which fleet; `left` is the last epoch of homes that the group has left."""
    decisions: list[Decision] = []
    laid: list[tuple[Fleet, str]] = []
    name, group_id = digest(policy), _moving_group(request)
    for index in range(request.count):
        basis = basis_of(index, decisions)
        fleet = basis.fleet
        if left:
            fleet.leave_home(group_id, left)
        ask, decision = _chosen(request, index, basis, policy, name)
        if decision.chosen and group_id and not fleet.home_of(group_id).node_id:
            # Schedulers propose it before they claim, and look at it again for the first member, who came with all others before.
            fleet.find_home(group_id, decision.chosen)
            ask, member = _chosen(request, index, basis, policy, name)
            decision = decision if member.chosen else member
        decisions.append(decision)
        if not decision.chosen:
            return Outcome(decisions, matrix(fleet, ask, policy), supplies(fleet, ask)), laid
        item = replace(claimed(fleet, ask, policy, decision), claim_id=claim_id(request.request_id, index, OWNER, 0, 0))
        fleet.lay(item, decision.chosen, fleet.partition_of_node(decision.chosen))
        laid.append((fleet, item.claim_id))
    return Outcome(decisions, None, ()), laid


def _chosen(request: PlacementRequested, index: int, basis: Basis, policy: Policy, name: str) -> tuple[Ask, Decision]:
    """What is asked for one instance on its basis, and where it goes; `name` is the policy's digest."""
    fleet = basis.fleet
    ask = fleet.ask_seeded(request, index, seed=basis.seed, attempt=basis.attempt, options=policy.options).unless(basis.unusable)
    ask = ask.begun_on(basis.begun)
    return choose(engine(basis.engine), fleet, ask, policy, name, basis.held)


def _moving_group(request: PlacementRequested) -> str:
    """The affinity group for which homes are proposed and closed; "" if there is none: dry runs claim nothing and need no home."""
    group = request.group
    return group.group_id if group is not None and group.policy == "affinity" and not request.dry_run else ""


def counted(request: PlacementRequested, count: int) -> PlacementRequested:
    """The request for another number of instances; those it names keep their ids. Raises ValueError for a number that is none."""
    ids = request.instance_ids[:count]
    if request.instance_ids and count > len(ids):
        ids += tuple(instance_id(request.request_id, index) for index in range(len(ids), count))
    return replace(request, count=count, instance_ids=ids)


def _names(wanted: NodesLike, known: set[str]) -> list[str]:
    free = (name for number in range(1, len(known) + wanted.count + 1) if (name := f"{wanted.like}+{number}") not in known)
    return [name for name, _ in zip(free, range(wanted.count), strict=False)]


def _empty(like: Node, name: str) -> Node:
    host = like.hypervisor
    if host is None:
        raise CannotChange(f"node {like.node_id!r} was never audited, so nobody knows what a node like it has")
    fields = {rule: getattr(like, rule) for rule in (*RESOURCES, "zone", "aggregates", "traits", "pages_reserved")}
    return Node(node_id=name, hypervisor=_idle(host), **fields)


def _idle(host: Hypervisor) -> Hypervisor:
    """The host without what it is doing, nor who it is: all its pages are free. What it measures stays, since filters ask that it does."""
    cells = tuple([replace(cell, pages=tuple([replace(pages, free=None) for pages in cell.pages])) for cell in host.numa_cells])
    nobody = {"host_uuid": "", "host_ip": "", "service_host": ""}
    return replace(host, numa_cells=cells, io_workload=0, failed_builds=0, physical=type(host.physical)(), **nobody)


def _set_rules(node: Node, changes: Changes) -> None:
    if changes.settings is not None:
        node.configure(changes.settings(node))
    for resource in RESOURCES:
        rule = node.rule(resource)
        if resource in changes.ratios_milli:
            rule = replace(rule, ratio_milli=changes.ratios_milli[resource])
        setattr(node, resource, rule)
    node.refresh()
