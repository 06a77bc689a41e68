"""The headers around a record: CloudEvents' Kafka binding in binary mode, correlation, causation and trace context.

A message without any of these (somebody used kcat) is read by the `type` in its value: headers help people and routers,
they decide nothing.
"""

from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Struct

Headers = tuple[tuple[str, bytes], ...]

SPEC_VERSION = b"1.0"
CONTENT_TYPE = b"application/json"
TYPE_PREFIX = "claimlog."

TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, the last that RFC 3339 can write; records may carry larger numbers, headers leave those out."""


class Envelope(Struct, frozen=True, kw_only=True):
    """What the headers of one message say. `time_ms` is when its writer wrote it; the log's append time is another thing."""

    event_id: str
    event_type: str
    source: str
    time_ms: int | None = None
    subject: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""


def to_headers(envelope: Envelope) -> Headers:
    """CloudEvents headers (`ce_…`), then `content-type`, then ours; empty ones are left out."""
    has_time = envelope.time_ms is not None and 0 <= envelope.time_ms <= TIME_MS_MAX
    optional = (
        ("ce_time", _rfc3339(envelope.time_ms or 0) if has_time else ""),
        ("ce_subject", envelope.subject),
        ("ce_correlationid", envelope.correlation_id),
        ("ce_causationid", envelope.causation_id),
        ("traceparent", envelope.traceparent),
    )
    return (
        ("ce_specversion", SPEC_VERSION),
        ("ce_id", envelope.event_id.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_type", (TYPE_PREFIX + envelope.event_type).encode()),
        ("content-type", CONTENT_TYPE),
        *((name, text.encode()) for name, text in optional if text),
    )


def from_headers(headers: Headers) -> Envelope:
    """The envelope in `headers`; what is missing or not UTF-8 is empty."""
    texts = {name: value.decode(errors="replace") for name, value in headers}
    return Envelope(
        event_id=texts.get("ce_id", ""),
        event_type=texts.get("ce_type", "").removeprefix(TYPE_PREFIX),
        source=texts.get("ce_source", ""),
        time_ms=_from_rfc3339(texts.get("ce_time", "")),
        subject=texts.get("ce_subject", ""),
        correlation_id=texts.get("ce_correlationid", ""),
        causation_id=texts.get("ce_causationid", ""),
        traceparent=texts.get("traceparent", ""),
    )


def _rfc3339(time_ms: int) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{_of_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=64)  # The messages of a batch are of one second or a few.
def _of_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def _from_rfc3339(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else round(moment.timestamp() * 1000)
