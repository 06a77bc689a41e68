"""What operators and requesters say, as messages ready to append. Pure: ids and times come in as arguments.

Each record carries an id of its own, so that one appended twice is known for a copy (rule 8); `source` in the headers names who wrote it.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from schemas.claims import ClaimReleased, ClaimRenewed, GroupHomeClosed, NodeConfigured, NodeStatus, ReleaseReason, RulesChanged
from schemas.inventory import OperatorFields
from schemas.requests import PlacementCancelled, PlacementRequested
from schemas.topics import CLAIMS, REQUESTS
from streams.ledger_topics import own_key
from streams.log.base import Message
from streams.message import message_of

SOURCE = "claimlog/operator"


class Stamp(Struct, frozen=True):
    """The id of a record and when it is written (wall clock, ms)."""

    record_id: str
    time_ms: int


def configure(
    node_id: str,
    stamp: Stamp,
    *,
    fields: OperatorFields | None = None,
    status: NodeStatus | UnsetType = UNSET,
    reason: str = "",
    meant: str = "",
) -> Message:
    """The operator's word on a node; fields that are left out stay as they are. `reason` goes with a status.

    `meant` says in a header which amounts of whole rules are meant, and not only repeated (`streams.cli.fleet.meant`).
    """
    event = NodeConfigured(node_id=node_id, record_id=stamp.record_id, fields=fields or OperatorFields(), status=status, reason=reason)
    return _message(CLAIMS, event, stamp, subject=node_id, meant=meant)


def release(claim_id: str, node_id: str, stamp: Stamp, *, reason: ReleaseReason, note: str = "") -> Message:
    """Give a claim back (rule 9)."""
    event = ClaimReleased(node_id=node_id, record_id=stamp.record_id, claim_id=claim_id, reason=reason, note=note)
    return _message(CLAIMS, event, stamp, subject=claim_id)


def renew(claim_id: str, node_id: str, stamp: Stamp, *, ttl_ms: int) -> Message:
    """Hold a claim for `ttl_ms` more, from the append of this record on (rule 9)."""
    event = ClaimRenewed(node_id=node_id, record_id=stamp.record_id, claim_id=claim_id, ttl_ms=ttl_ms)
    return _message(CLAIMS, event, stamp, subject=claim_id)


def change_rules(version: int, partition: int, partitions: int, stamp: Stamp) -> Message:
    """Move one partition of the ledger to the next version of the rules (rule 11)."""
    event = RulesChanged(record_id=stamp.record_id, rules_version=version)
    message = _message(CLAIMS, event, stamp, subject=f"rules {version}", key=own_key(partition, partitions))
    return replace(message, partition=partition)


def close_home(node_id: str, group_id: str, epoch: int, stamp: Stamp) -> Message:
    """Close a node as an affinity group's home, members or not (rule 10)."""
    event = GroupHomeClosed(node_id=node_id, record_id=stamp.record_id, group_id=group_id, epoch=epoch, unconditional=True)
    return _message(CLAIMS, event, stamp, subject=node_id)


def ask(request: PlacementRequested, stamp: Stamp) -> Message:
    """Publish a request; its id is the request's own, so that the same request asked twice has one answer."""
    return _message(REQUESTS, request, Stamp(request.request_id, stamp.time_ms), subject=request.request_id)


def cancel(request_id: str, stamp: Stamp, *, reason: str = "") -> Message:
    """The requester no longer wants it (it acts only by becoming the counting result, or as a release)."""
    event = PlacementCancelled(request_id=request_id, record_id=stamp.record_id, reason=reason)
    return _message(REQUESTS, event, stamp, subject=request_id)


def written(event: Struct, stamp: Stamp, *, subject: str) -> Message:
    """Another record of `claims` that has a key of its own; `subject` is what it is about. Raises ValueError for one that has none."""
    return _message(CLAIMS, event, stamp, subject=subject)


def _message(topic: str, event: Struct, stamp: Stamp, *, subject: str, key: bytes | None = None, meant: str = "") -> Message:
    return message_of(
        topic,
        event,
        event_id=stamp.record_id,
        source=SOURCE,
        time_ms=stamp.time_ms,
        subject=subject,
        correlation_id=subject if topic == REQUESTS else "",
        meant=meant,
        key=key,
    )
