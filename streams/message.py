"""One of our events as a message: its key, its type and its headers are the event's own; only where it comes from has to be said."""

from __future__ import annotations

from msgspec import Struct

from schemas.codec import encode, event_type, key_of
from schemas.envelope import Envelope, to_headers
from streams.log.base import Message


def message_of(
    topic: str,
    event: Struct,
    *,
    event_id: str,
    source: str,
    time_ms: int | None = None,
    subject: str = "",
    correlation_id: str = "",
    causation_id: str = "",
    meant: str = "",
    key: bytes | None = None,
    partition: int | None = None,
) -> Message:
    """The message, ready to append. `key` is for events that have none of their own: raises ValueError if such a one is given none."""
    key = key_of(event) if key is None else key
    if key is None:
        raise ValueError(f"{event_type(event)} has no key of its own, and none was given")
    envelope = Envelope(
        event_id=event_id,
        event_type=event_type(event),
        source=source,
        time_ms=time_ms,
        subject=subject,
        correlation_id=correlation_id,
        causation_id=causation_id,
        meant=meant,
    )
    return Message(topic, key, encode(event), to_headers(envelope), partition)
