"""What the demonstration asks of its own fold: who is audited, what leaks best, how wide the gap was."""

from __future__ import annotations

from projections.ledger import Ledger
from projections.node import Claim
from projections.observed import Observed
from projections.replay import fold
from schemas.findings import LeakResolved
from schemas.inventory import OperatorFields, ResourceRule
from schemas.results import InstancesPlaced
from schemas.topics import CLAIMS
from streams.cli.demo.stage import Stage
from streams.log.base import Message
from streams.operator import Stamp, configure

MEMORY = 2
"""Memory's place in a vector of amounts."""


def zones(stage: Stage) -> list[Message]:
    """The operator's word: two thirds of the nodes are in the east, and vCPUs may be shared by four."""
    names = stage.fleet.nodes
    vcpus, memory_mib = ResourceRule(ratio_milli=4000), ResourceRule(reserved=512)
    messages = []
    for number, name in enumerate(names):
        fields = OperatorFields(zone="east" if number < len(names) * 2 // 3 else "west", vcpus=vcpus, memory_mib=memory_mib)
        messages.append(configure(name, Stamp(f"demo-fleet/{name}", stage.clock.wall_ms()), fields=fields))
    return messages


def audited(stage: Stage) -> int:
    """How many nodes have reported."""
    return sum(node.hypervisor is not None for ledger in stage.ledgers for node in ledger.nodes.values())


def total(stage: Stage, resource: str) -> int:
    """The fleet's total of a resource."""
    return sum(node.total(resource) or 0 for ledger in stage.ledgers for node in ledger.nodes.values())


def unconfirmed(stage: Stage) -> list[Claim]:
    """Claims that no observation has confirmed yet."""
    return [claim for ledger in stage.ledgers for claim in ledger.claims.values() if claim.confirmed_ms is None]


def unnamed(stage: Stage) -> list[Claim]:
    """Held claims of answered requests that the counting result does not name: at rest there is none."""
    found = []
    for ledger in stage.ledgers:
        for claim in ledger.claims.values():
            result = stage.results.get(claim.request_id)
            named = {placement.claim_id for placement in result.placements} if isinstance(result, InstancesPlaced) else set()
            if result is not None and claim.claim_id not in named:
                found.append(claim)
    return found


def empty(stage: Stage) -> list[str]:
    """Nodes without a claim."""
    return [node_id for ledger in stage.ledgers for node_id, node in ledger.nodes.items() if not node.claims]


def free_mib(stage: Stage, node_id: str) -> int:
    """A node's free memory."""
    return next(ledger.nodes[node_id].free("memory_mib") or 0 for ledger in stage.ledgers if node_id in ledger.nodes)


def best_leak(stage: Stage) -> Claim:
    """The largest running claim of the node with the most free memory: given back, it makes room that no other node has."""
    running = [c for ledger in stage.ledgers for c in ledger.claims.values() if c.instance_id in stage.fleet.guests]
    return min(running, key=lambda claim: (-free_mib(stage, claim.node_id), claim.node_id, -claim.amounts[MEMORY], claim.claim_id))


def gaps(stage: Stage) -> int:
    """Number of nodes whose views do not agree. A node that never had a guest is not tracked, which is no disagreement."""
    pairs = zip(stage.ledgers, stage.observed, strict=True)
    return sum(_gap(observed, node_id) not in {0, None} for ledger, observed in pairs for node_id in ledger.nodes)


def resolved(stage: Stage, leaking: Claim) -> bool:
    """Whether the leak audit says that the finding is gone."""
    return any(isinstance(finding, LeakResolved) and finding.instance_id == leaking.instance_id for _, finding in stage.findings)


def gap_at(stage: Stage, leaking: Claim, time_ms: int) -> int | None:
    """The leaking node's gap of memory just before the first record at or after `time_ms`, folded from the first record."""
    number = stage.log.partition(CLAIMS, leaking.node_id.encode())
    ledger, observed = Ledger(number, stage.log.topics()[CLAIMS]), Observed(number)
    fold(stage.log, ledger, stage.log.at_time(CLAIMS, number, time_ms), observed.apply)
    return _gap(observed, leaking.node_id)


def _gap(observed: Observed, node_id: str) -> int | None:
    view = observed.view(node_id)
    tracked = view.tracked_amounts()[MEMORY]
    reported = view.reported[MEMORY] if view.reported is not None else None
    return None if tracked is None or reported is None else tracked - reported


def counted(number: int, noun: str) -> str:
    """`1 claim`, `2 claims`, `no claim`."""
    return f"no {noun}" if number == 0 else f"{number} {noun}{'s' if number > 1 else ''}"
