"""Bytes to records and back. What cannot be read is a value, `Unreadable`, never an exception: every reader skips it alike (rule 11).

A record counts if it is at most its topic's size, UTF-8, of a type and with the fields this version knows, inside every bound, and
under the key it belongs to. JSON nesting needs no limit of its own: no type here is as deep as 32, and anything deeper fits no type.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from schemas import audits, claims, findings, lifecycle, requests, results
from schemas.topics import CLAIMS, TOPICS


class Unreadable(Struct, frozen=True, gc=False):
    """A message that counts for nothing. `kind` is for counting, `reason` for reading: what was expected, what came, where."""

    kind: str
    reason: str


UNREADABLE_KINDS = (
    "cut-short", "damaged", "invalid", "misplaced", "not-a-letter", "not-a-record", "too-large", "unknown-topic", "unknown-type",
    "unreadable", "wrong-key", "wrong-partition",
)  # fmt: skip
"""Every `kind` there is, for who asks by name; a test holds that no other is made."""


class _Typed(Struct):
    type: str


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    topic.name: msgspec.json.Decoder(topic.records) for topic in TOPICS.values() if topic.records is not None
}
_TYPE_OF: msgspec.json.Decoder[_Typed] = msgspec.json.Decoder(_Typed)
_ENCODER = msgspec.json.Encoder()

encode: Callable[[Struct], bytes] = _ENCODER.encode
"""The one way a record becomes bytes: JSON, fields in declared order, defaults left out. The same record always gives the same bytes."""

encode_lines: Callable[[Iterable[Struct]], bytes] = _ENCODER.encode_lines
"""Many records as `encode` has each, every one ended by a newline."""


def decode(topic: str, value: bytes) -> Any:
    """The record in `value`, or `Unreadable`. Raises KeyError for a topic without records of its own."""
    if len(value) > TOPICS[topic].value_bytes_max:
        return Unreadable("too-large", f"expected at most {TOPICS[topic].value_bytes_max} bytes, got {len(value)}")
    try:
        return _DECODERS[topic].decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return _unreadable(topic, value, error)


def decode_keyed(topic: str, key: bytes, value: bytes) -> Any:
    """As `decode`, and a record under a key that is not its own is `Unreadable` too."""
    record = decode(topic, value)
    if type(record) is Unreadable:
        return record
    expected = key_of(record)
    if expected is not None and expected != key:
        return Unreadable("wrong-key", f"expected the key {expected!r} of this {event_type(record)}, got {key[:80]!r}")
    return record


def event_type(record: Struct) -> str:
    """The `type` a record goes by: `claim-requested`."""
    return str(record.__struct_config__.tag)


def key_of(record: Any) -> bytes | None:
    """The key a record belongs under; None where any key will do."""
    name = _KEYS.get(type(record))
    if name is None:
        return None
    return name(record)


def known_types(topic: str) -> tuple[str, ...]:
    """The types of a topic, sorted."""
    return tuple(sorted(event_type(cls) for cls in record_types(topic)))


def record_types(topic: str) -> tuple[Any, ...]:
    """The record classes of a topic."""
    union = TOPICS[topic].records
    if union is None:
        return ()
    return tuple(getattr(union, "__args__", (union,)))


def _unreadable(topic: str, value: bytes, error: Exception) -> Unreadable:
    """Tell an unknown type, which a newer version may know, from bytes that no version can read."""
    if isinstance(error, RecursionError):
        return Unreadable("unreadable", "nested too deep to be a record")
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):  # As msgspec before 0.23 says it, and as it does since.
        try:
            value.decode()
        except UnicodeDecodeError as wrong:
            return Unreadable("unreadable", f"expected UTF-8: {wrong.reason} at byte {wrong.start}")
    try:
        named = _TYPE_OF.decode(value).type
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Unreadable("unreadable", f"expected a JSON object with a type: {error}")
    if named not in known_types(topic):
        return Unreadable("unknown-type", f"type {named[:80]!r} is not known on {topic}; known: {', '.join(known_types(topic))}")
    return Unreadable("invalid", f"{named}: {error}")


def _utf8(text: str) -> bytes:
    return text.encode()


_KEYS: dict[type, Callable[[Any], bytes | None]] = {
    audits.HypervisorAudited: lambda r: _utf8(r.node_id),
    audits.AuditFailed: lambda r: _utf8(r.node_id),
    **{cls: lambda r: _utf8(r.node_id) for cls in lifecycle.LifecycleRecord.__args__},
    claims.NodeObserved: lambda r: _utf8(r.node_id),
    claims.InstanceObserved: lambda r: _utf8(r.node_id),
    claims.NodeSilent: lambda r: _utf8(r.node_id),
    claims.NodeConfigured: lambda r: _utf8(r.node_id),
    claims.ClaimRequested: lambda r: _utf8(r.items[0].nodes[0]),
    claims.ClaimRenewed: lambda r: _utf8(r.node_id),
    claims.ClaimReleased: lambda r: _utf8(r.node_id),
    claims.GroupHomeProposed: lambda r: _utf8(r.group_id),
    claims.GroupHomeClosed: lambda r: _utf8(r.node_id),
    claims.FindingIgnored: lambda r: _utf8(r.node_id),
    requests.PlacementRequested: lambda r: _utf8(r.request_id),
    requests.PlacementCancelled: lambda r: _utf8(r.request_id),
    results.InstancesPlaced: lambda r: _utf8(r.request_id),
    results.PlacementFailed: lambda r: _utf8(r.request_id),
    results.SchedulerStarted: lambda r: _utf8(r.owner),
    results.ClaimOutcome: lambda r: _utf8(r.node_id) if r.node_id else None,
    results.NodeResources: lambda r: _utf8(r.node_id),
    results.RequestsAnswered: lambda r: _utf8(str(r.partition)),
    results.SnapshotChunk: lambda r: _utf8(str(r.partition)),
    results.LedgerDigest: lambda r: _utf8(f"{r.partition}/{r.process}"),
    findings.LeakSuspected: lambda r: _utf8(r.finding_id),
    findings.LeakConfirmed: lambda r: _utf8(r.finding_id),
    findings.LeakResolved: lambda r: _utf8(r.finding_id),
}
"""Where each type takes its key from; `PartitionOpened` and `RulesChanged` are written into every partition under any key."""

CLAIMS_DECODER: msgspec.json.Decoder[Any] = _DECODERS[CLAIMS]
"""The fold's own decoder, without the detour over the topic's name."""
