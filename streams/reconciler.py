"""The reconciler: each observation becomes exactly one `claims` record for the same node, in the same partition, computed from it alone.

It keeps nothing and decides nothing: run it twice and the log holds a copy that every fold ignores (rule 4). The host appends what comes
out in the order of the source, and commits the source only after the log has acknowledged.
"""

from __future__ import annotations

from typing import Any

from schemas.audits import AuditFailed, HypervisorAudited
from schemas.claims import Change, InstanceObserved, NodeObserved
from schemas.codec import Unreadable, decode_keyed, encode, event_type
from schemas.envelope import CARRIED_CHARACTERS_MAX, Envelope, Headers, from_headers, to_headers
from schemas.lifecycle import (
    InstanceArrived,
    InstanceDeleted,
    InstanceDeparted,
    InstancePaused,
    InstanceResized,
    InstanceStarted,
    InstanceStopped,
)
from schemas.partitioner import partition_of
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE, TOPICS
from streams.log.base import Message, Record

SOURCES = (AUDITS, LIFECYCLE)
"""The topics it reads."""
CARRIERS = "reconciler"
"""The group whose committed offsets say how far they are carried."""
CE_SOURCE = "claimlog/reconciler"

CHANGES: dict[type, Change] = {
    InstanceArrived: "arrived",
    InstanceStarted: "started",
    InstanceStopped: "stopped",
    InstancePaused: "paused",
    InstanceResized: "resized",
    InstanceDeparted: "departed",
    InstanceDeleted: "deleted",
}
"""What each life-cycle event is called in `InstanceObserved.change`."""


def reconcile(record: Record, partitions: int) -> Message | Unreadable:
    """The `claims` message of one observation, or why it is none (then it belongs to the dead letters).

    `partitions` is the number that `claims` and both observation topics share. The same record always gives the same bytes.
    Raises ValueError for a record of a topic that is not observed.
    """
    if record.topic not in SOURCES:
        raise ValueError(f"{record.position}: the reconciler reads {' and '.join(SOURCES)} only; check the topology")
    belongs = partition_of(record.key, partitions)
    if belongs != record.partition:
        return Unreadable(
            "wrong-partition",
            f"key {record.key[:80]!r} belongs to partition {belongs} of {partitions}, got {record.partition}; use murmur2 as partitioner",
        )
    observation = decode_keyed(record.topic, record.key, record.value)
    if isinstance(observation, Unreadable):
        return observation
    observed, time_ms = _carried(observation)
    value, bytes_max = encode(observed), TOPICS[CLAIMS].value_bytes_max
    if len(value) > bytes_max:
        # Possible only for an observation within some bytes of the limit: the carried form may be a little longer.
        return Unreadable("too-large", f"expected at most {bytes_max} bytes as {event_type(observed)}, got {len(value)}")
    return Message(
        topic=CLAIMS,
        key=record.key,
        value=value,
        headers=_headers(record, event_type(observed), observed.node_id, time_ms),
        partition=record.partition,
    )


def _carried(observation: Any) -> tuple[NodeObserved | InstanceObserved, int]:
    """The observation in the ledger's words, and when it was made."""
    if isinstance(observation, HypervisorAudited):
        return _of_audit(observation), observation.taken_at_ms
    if isinstance(observation, AuditFailed):
        return _of_failure(observation), observation.taken_at_ms
    return _of_event(observation), observation.event_time_ms


def _of_audit(audit: HypervisorAudited) -> NodeObserved:
    return NodeObserved(
        node_id=audit.node_id,
        producer=audit.producer,
        epoch=audit.epoch,
        counter=audit.counter,
        taken_at_ms=audit.taken_at_ms,
        mono_ms=audit.mono_ms,
        digest=audit.digest,
        complete=audit.complete,
        hypervisor=audit.hypervisor,
        instances=audit.instances,
        unknown_instances=audit.unknown_instances,
    )


def _of_failure(failure: AuditFailed) -> NodeObserved:
    """An empty reason would read as no failure at all, so it gets words."""
    return NodeObserved(
        node_id=failure.node_id,
        producer=failure.producer,
        epoch=failure.epoch,
        counter=failure.counter,
        taken_at_ms=failure.taken_at_ms,
        mono_ms=failure.mono_ms,
        complete=False,
        failed=failure.reason or "no reason given",
        unknown_since_ms=failure.unknown_since_ms,
    )


def _of_event(event: Any) -> InstanceObserved:
    return InstanceObserved(
        node_id=event.node_id,
        producer=event.producer,
        epoch=event.epoch,
        counter=event.counter,
        change=CHANGES[type(event)],
        event_time_ms=event.event_time_ms,
        instance=event.instance,
        claim_id=event.claim_id,
        resync=event.resync,
    )


def _headers(record: Record, kind: str, node_id: str, time_ms: int) -> Headers:
    """The id is the source's position, so a copy has the id of its original; correlation and trace go on as they came."""
    source = from_headers(record.headers)
    position = str(record.position)
    return to_headers(
        Envelope(
            event_id=position,
            event_type=kind,
            source=CE_SOURCE,
            time_ms=time_ms,
            subject=node_id,
            correlation_id=source.correlation_id[:CARRIED_CHARACTERS_MAX],
            causation_id=source.event_id[:CARRIED_CHARACTERS_MAX] or position,
            traceparent=source.traceparent[:CARRIED_CHARACTERS_MAX],
        )
    )
