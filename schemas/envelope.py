"""The headers around a record: CloudEvents' Kafka binding in binary mode, correlation, causation and trace context.

A message without any of these (somebody used kcat) is read by the `type` in its value: headers help people and routers,
they decide nothing.
"""

from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote

from msgspec import Struct

Headers = tuple[tuple[str, bytes], ...]

TRACEPARENT = "traceparent"
"""The header of W3C's trace context."""
MEANT = "ce_meant"
CARRIED_CHARACTERS_MAX = 255
"""So much of what others wrote in a header goes on into ours: ids are far shorter, and headers count against the broker's limit."""
SPEC_VERSION = b"1.0"
CONTENT_TYPE = b"application/json"
TYPE_PREFIX = "claimlog."
# What stands in a path of a URI as it is. A colon is such in ours, since each begins with a segment without one.
SOURCE_SAFE = "/:@!$&'()*+,;=~"

_SPEC_VERSION = ("ce_specversion", SPEC_VERSION)
_CONTENT_TYPE = ("content-type", CONTENT_TYPE)

TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, the last that RFC 3339 can write; records may carry larger numbers, headers leave those out."""


class Envelope(Struct, frozen=True, kw_only=True):
    """What the headers of one message say. `time_ms` is when its writer wrote it; the log's append time is another thing.

    `meant`: what a record that repeats more than it is about says itself (`streams.cli.fleet.meant`).
    """

    event_id: str
    event_type: str
    source: str
    time_ms: int | None = None
    subject: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    meant: str = ""


def to_headers(envelope: Envelope) -> Headers:
    """CloudEvents headers (`ce_…`), then `content-type`, then ours; empty ones are left out."""
    # A scheduler writes two of these a placement, so what is the same in all messages of a batch is not made again.
    headers = [
        _SPEC_VERSION,
        ("ce_id", envelope.event_id.encode()),
        _shared("ce_source", envelope.source),
        _shared("ce_type", TYPE_PREFIX + envelope.event_type),
        _CONTENT_TYPE,
    ]
    time_ms = envelope.time_ms
    if time_ms is not None and 0 <= time_ms <= TIME_MS_MAX:
        headers.append(_time(time_ms))
    if envelope.subject:
        headers.append(("ce_subject", envelope.subject.encode()))
    if envelope.correlation_id:
        headers.append(("ce_correlationid", envelope.correlation_id.encode()))
    if envelope.causation_id:
        headers.append(("ce_causationid", envelope.causation_id.encode()))
    if envelope.meant:
        headers.append((MEANT, envelope.meant.encode()))
    if envelope.traceparent:
        headers.append((TRACEPARENT, envelope.traceparent.encode()))
    return tuple(headers)


def from_headers(headers: Headers) -> Envelope:
    """The envelope in `headers`; what is missing or not UTF-8 is empty."""
    texts = {name: value.decode(errors="replace") for name, value in headers}
    return Envelope(
        event_id=texts.get("ce_id", ""),
        event_type=texts.get("ce_type", "").removeprefix(TYPE_PREFIX),
        source=unquote(texts.get("ce_source", "")),
        time_ms=_from_rfc3339(texts.get("ce_time", "")),
        subject=texts.get("ce_subject", ""),
        correlation_id=texts.get("ce_correlationid", ""),
        causation_id=texts.get("ce_causationid", ""),
        traceparent=texts.get(TRACEPARENT, ""),
        meant=texts.get(MEANT, ""),
    )


@lru_cache(maxsize=1024)  # A process has few sources and types; a host's name may be one.
def _shared(name: str, text: str) -> tuple[str, bytes]:
    # A source is a URI reference, which the name of a process or a host need not be.
    return name, (quote(text, safe=SOURCE_SAFE) if name == "ce_source" else text).encode()


@lru_cache(maxsize=64)  # The messages of a batch are of one moment or a few.
def _time(time_ms: int) -> tuple[str, bytes]:
    seconds, milliseconds = divmod(time_ms, 1000)
    return "ce_time", f"{_of_second(seconds)}.{milliseconds:03d}Z".encode()


@lru_cache(maxsize=64)  # The messages of a batch are of one second or a few.
def _of_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def _from_rfc3339(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else round(moment.timestamp() * 1000)
