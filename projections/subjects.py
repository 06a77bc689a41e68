"""What a question is about: one node, instance or request, and which records say something of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from schemas import claims as say
from schemas.audits import AuditFailed, HypervisorAudited
from schemas.findings import Finding
from schemas.lifecycle import LifecycleEvent
from schemas.requests import Hints, PlacementCancelled, PlacementRequested
from schemas.results import ClaimOutcome, InstancesPlaced, NodeResources, PlacementFailed

Kind = Literal["node", "instance", "request"]
KINDS: tuple[Kind, ...] = ("node", "instance", "request")


class Subject(NamedTuple):
    """One node, instance or request by its id."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def subject_of(text: str) -> Subject:
    """`node/N`, `instance/I`, `request/R`; anything else is an instance's id. Raises ValueError for an empty id."""
    for kind in KINDS:
        if text.startswith(f"{kind}/"):
            text = text.removeprefix(f"{kind}/")
            break
    else:
        kind = "instance"
    if not text:
        raise ValueError("expected node/NODE, instance/INSTANCE, request/REQUEST or the id of an instance, got none")
    return Subject(kind, text)


def concerns(event: Any, subject: Subject) -> bool:
    """Whether a record names the subject. A claim's renewal and release name its request by the claim's id."""
    return subject.name in _named(event, subject.kind)


def mentions(event: Any, subject: Subject) -> bool:
    """Whether a record names the subject at all: as `concerns`, or as an instance that a request wants to be near, or apart from.

    An audit also names the instances that it could not read.
    """
    if concerns(event, subject):
        return True
    if subject.kind != "instance":
        return False
    if isinstance(event, say.NodeObserved | HypervisorAudited):
        return subject.name in event.unknown_instances
    hints = event.hints if isinstance(event, PlacementRequested) else Hints()
    return subject.name in {*hints.same_host, *hints.different_host}


def _named(event: Any, kind: Kind) -> set[str]:
    """Every id of one kind in a record."""
    if kind == "node":
        return _nodes(event)
    return _instances(event) if kind == "instance" else _requests(event)


def _nodes(event: Any) -> set[str]:
    match event:
        case say.ClaimRequested():
            return {node_id for item in event.items for node_id in item.nodes}
        case ClaimOutcome():
            return {event.node_id, *event.tried} - {""}
        case InstancesPlaced():
            return {placement.node_id for placement in (*event.placements, *event.kept)}
        case PlacementRequested():
            return {*event.forced_nodes, *event.requested_nodes, *event.ignored_nodes, *event.retry_nodes, event.source_node} - {""}
        case _:
            node_id = getattr(event, "node_id", "")
            return {node_id} if node_id else set()


def _instances(event: Any) -> set[str]:
    match event:
        case say.ClaimRequested():
            return {item.instance_id for item in event.items}
        case say.InstanceObserved() | LifecycleEvent():
            return {event.instance.instance_id}
        case say.NodeObserved() | HypervisorAudited():
            return {report.instance_id for report in event.instances or ()}
        case PlacementRequested():
            return {event.instance(index) for index in range(event.count)}
        case InstancesPlaced():
            return {placement.instance_id for placement in (*event.placements, *event.kept)}
        case PlacementFailed():
            return {decision.instance_id for decision in event.decisions}
        case Finding() | ClaimOutcome():
            return {event.instance_id} - {""}
        case _:
            return set()


def _requests(event: Any) -> set[str]:
    match event:
        case say.ClaimRequested() | ClaimOutcome() | PlacementRequested() | PlacementCancelled() | InstancesPlaced() | PlacementFailed():
            return {event.request_id} - {""}
        case say.ClaimRenewed() | say.ClaimReleased() | Finding():
            request_id, slash, _ = event.claim_id.rpartition("/")
            return {request_id.rpartition("/")[0]} if slash else set()
        case _:
            return set()


def node_of(event: Any) -> str:
    """The node a record is about, if it is about one; of a claim its first choice."""
    match event:
        case say.ClaimRequested():
            return event.items[0].nodes[0]
        case say.NodeObserved() | say.InstanceObserved() | HypervisorAudited() | AuditFailed() | LifecycleEvent() | NodeResources():
            return event.node_id
        case _:
            return str(getattr(event, "node_id", ""))
