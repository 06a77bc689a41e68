"""One notification of OpenStack as its publisher wrote it: out of its envelopes, with one name for each event and one order for all.

Nova writes versioned notifications (boxed objects, `instance.create.end`) or legacy ones (flat, `compute.instance.create.end`).
oslo.messaging wraps either as JSON in JSON (`oslo.message`), and on Kafka spreads them over partitions without a key. So neither offsets
nor partitions say what came first: `Key` does, from the message alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from sys import intern
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from schemas.codec import Unreadable

VALUE_BYTES_MAX = 8 << 20
"""Far above anything Nova writes; more is no notification."""
ENVELOPES_MAX = 4
"""oslo.messaging in a kcat line in whatever carried that: deeper is no notification."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DATA = "nova_object.data"
PAYLOAD_TIMES = ("updated_at", "launched_at", "terminated_at", "deleted_at", "created_at", "last_seen_up", "timestamp")
"""What a payload says of time, where the envelope does not: the latest of them, to the second."""

LEGACY_PREFIX = "compute.instance."
LEGACY_ACTIONS = {
    "resize.prep": "resize_prep",
    "resize.confirm": "resize_confirm",
    "resize.revert": "resize_revert",
    "finish_resize": "resize_finish",
    "live_migration.pre": "live_migration_pre",
    "live_migration._post": "live_migration_post",
    "live_migration.post.dest": "live_migration_post_dest",
    "live_migration._rollback": "live_migration_rollback",
    "live_migration.rollback.dest": "live_migration_rollback_dest",
    "live.migration.abort": "live_migration_abort",
    "live.migration.force.complete": "live_migration_force_complete",
}
"""Legacy actions that versioned notifications call otherwise."""
LEGACY_EVENTS = {f"compute_task.{task}": f"compute_task.{task}.error" for task in ("build_instances", "migrate_server", "rebuild_server")}
"""Legacy events outside of instances that versioned notifications call otherwise."""
PHASES = ("start", "end", "error")
RANKS = {"start": 0, "": 1, "end": 2, "error": 2}
"""Among messages of one microsecond, or of one second where that is all they say, an action starts before it ends."""


class Key(NamedTuple):
    """Where a notification stands among all others: by its publisher's clock, then by what can only be in that order, then by its id."""

    time_us: int
    rank: int
    publisher: str
    message_id: str


class Notification(Struct, frozen=True, kw_only=True, gc=False):
    """One notification. `action` and `phase` are of the versioned name, `instance.create` and `end`; `payload` has its boxes opened.

    `binary` and `host` are the publisher's (`nova-compute`, `compute1`); `time_us` is None if the message says nothing of time.
    """

    action: str
    phase: str
    is_versioned: bool
    binary: str
    host: str
    time_us: int | None
    message_id: str
    payload: Mapping[str, Any]

    @property
    def event(self) -> str:
        """The whole name: `instance.create.end`."""
        return f"{self.action}.{self.phase}" if self.phase else self.action

    @property
    def compute_host(self) -> str:
        """The publisher's host if it is a compute service, else nothing."""
        return self.host if self.binary == "compute" else ""

    @property
    def key(self) -> Key:
        """Its place in the order. Raises ValueError for a message without any time."""
        if self.time_us is None:
            raise ValueError("expected a timestamp in the envelope, or a time in the payload; without one it cannot be put in order")
        return Key(self.time_us, RANKS[self.phase], intern(f"{self.binary}:{self.host}"), self.message_id)


class _Said(Struct):
    event_type: str
    payload: dict[str, Any]
    publisher_id: str = ""
    timestamp: str | None = None
    message_id: str | None = None


def read_notification(value: bytes) -> Notification | Unreadable:
    """The notification in `value`, or why it is none: what was expected and what came."""
    if len(value) > VALUE_BYTES_MAX:
        return Unreadable("too-large", f"expected at most {VALUE_BYTES_MAX} bytes, got {len(value)}")
    try:
        return of_message(_opened(msgspec.json.decode(value)))
    except UnicodeDecodeError as error:
        return Unreadable("unreadable", f"expected UTF-8: {error.reason} at byte {error.start}")
    except msgspec.ValidationError as error:
        return Unreadable("invalid", f"expected a notification: {error}")
    except msgspec.DecodeError as error:
        return Unreadable("unreadable", f"expected JSON: {error}")
    except RecursionError:
        return Unreadable("unreadable", "nested too deep to be a notification")
    except ValueError as error:
        return Unreadable("invalid", str(error))


def of_message(message: object) -> Notification:
    """The notification in a decoded message. Raises ValueError (of which msgspec's are) for what is none."""
    said = msgspec.convert(message, _Said)
    payload = opened_boxes(said.payload)
    if not isinstance(payload, dict):
        raise ValueError(f"Expected `object`, got `{type(payload).__name__}` - at `$.payload.{DATA}`")
    action, phase = _name(said.event_type)
    binary, host = _publisher(said.publisher_id)
    time_us = time_us_of(said.timestamp, "timestamp") if said.timestamp is not None else _payload_time_us(payload)
    return Notification(
        action=action,
        phase=phase,
        is_versioned=DATA in said.payload,
        binary=binary,
        host=host,
        time_us=time_us,
        message_id=said.message_id or "",
        payload=payload,
    )


def time_us_of(text: str, name: str) -> int:
    """Microseconds since 1970 of an ISO time; without a zone it is UTC, as everywhere in Nova. Raises ValueError that names it `name`."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        passed = moment - EPOCH
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: expected a time such as 2026-11-21 10:42:07.123456, got {text[:80]!r}") from None
    time_us = (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
    if time_us < 0:
        raise ValueError(f"{name}: expected a time after 1970, got {text[:80]!r}")
    return time_us


def opened_boxes(value: Any) -> Any:
    """`value` with each of Nova's objects replaced by its data. Raises ValueError for a box without any."""
    if isinstance(value, dict):
        if DATA in value:
            return opened_boxes(value[DATA])
        if "nova_object.name" in value:
            raise ValueError(f"expected {DATA} in {str(value['nova_object.name'])[:80]}; resolve references before")
        return {name: opened_boxes(each) if isinstance(each, dict | list) else each for name, each in value.items()}
    if isinstance(value, list):
        return [opened_boxes(each) if isinstance(each, dict | list) else each for each in value]
    return value


def _opened(message: object) -> object:
    """The message in its envelopes: oslo.messaging's, and that of a line of `kcat -J`."""
    for _ in range(ENVELOPES_MAX):
        if not isinstance(message, dict) or "event_type" in message:
            return message
        inner = message.get("oslo.message", message.get("payload") if "topic" in message else None)
        if inner is None:
            break
        message = msgspec.json.decode(inner) if isinstance(inner, str) else inner
    if isinstance(message, dict) and "event_type" not in message:
        raise msgspec.ValidationError(f"Object missing required field `event_type`; it has {', '.join(sorted(message))[:200] or 'nothing'}")
    return message


def _name(event_type: str) -> tuple[str, str]:
    event_type = LEGACY_EVENTS.get(event_type, event_type)
    action, _, phase = event_type.rpartition(".")
    if phase not in PHASES:
        action, phase = event_type, ""
    if action.startswith(LEGACY_PREFIX):
        name = action.removeprefix(LEGACY_PREFIX)
        action = f"instance.{LEGACY_ACTIONS.get(name, name)}"
    return action, phase


def _publisher(publisher_id: str) -> tuple[str, str]:
    """`nova-compute:host1` and the legacy `compute.host1.example.org` are both the compute service of a host."""
    binary, _, host = publisher_id.partition(":" if ":" in publisher_id else ".")
    return binary.removeprefix("nova-"), host


def _payload_time_us(payload: Mapping[str, Any]) -> int | None:
    texts = [(name, payload[name]) for name in PAYLOAD_TIMES if isinstance(payload.get(name), str) and payload[name]]
    return max((time_us_of(text, name) for name, text in texts), default=None)
