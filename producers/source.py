"""What all sources share: who is speaking and in what order (producer, epoch, counter), and saying an audit in full only when it changed.

A source gets a `publish` callable and knows nothing of logs. Each node has one producer of audits and one of life-cycle events, of one
name where the host itself reports both (decision 0009); the fold takes what is newest by (epoch, counter) of each and ignores the rest
(rule 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from msgspec import Struct, structs

from schemas.audits import AuditFailed, AuditRecord, HypervisorAudited, InstanceReport
from schemas.codec import Unreadable, decode, encode, encode_lines, event_type, key_of
from schemas.envelope import Envelope, Headers, to_headers
from schemas.inventory import Hypervisor, Physical
from schemas.lifecycle import LifecycleEvent
from schemas.topics import AUDITS
from schemas.units import TEXT_CHARACTERS_MAX

Publish = Callable[[str, bytes, bytes, Headers], None]
"""`publish(topic, key, value, headers)`: returns once the record is durable, or raises."""

FULL_EVERY = 20
"""Every 20th audit is in full although nothing changed: at one a minute a reader that missed one is whole again after 20 minutes."""

DIGEST_BYTES = 8
"""64 bits, 16 characters: enough to tell one node's states apart, which are compared with the last one only, in less than 200 bytes."""

Event = TypeVar("Event", bound=LifecycleEvent)


def epoch_after(last: int | None, start_ms: int) -> int:
    """The epoch of a producer that starts at `start_ms` (wall clock): ordered, and never one that was used, even if the clock went back."""
    return start_ms if last is None else max(start_ms, last + 1)


def audit_digest(hypervisor: Hypervisor, instances: Iterable[InstanceReport]) -> str:
    """The digest of a full audit, the same for the same state of a node wherever it is computed; instances in any order.

    The host's own figures (`physical`, `metrics`) move at every look and decide nothing, so they are left out: no audit would be unchanged.
    """
    host = structs.replace(hypervisor, physical=Physical(), metrics=())
    lines = encode_lines((host, *sorted(instances, key=lambda each: each.instance_id)))
    return blake2b(lines[:-1], digest_size=DIGEST_BYTES).hexdigest()


def _fits_none(hypervisor: Hypervisor, reports: Sequence[InstanceReport], reason: str) -> str:
    """Why what was found is no record, with what takes most of it."""
    devices = hypervisor.pci_devices
    guests_bytes, devices_bytes = len(encode_lines(reports)), len(encode_lines(devices))
    most = f"the guests take {guests_bytes} of them"
    if devices_bytes > guests_bytes:
        most = f"the devices take {devices_bytes} of them, and a host has fewer virtual functions with a smaller sriov_numvfs"
    return f"what was found, with {len(reports)} guests and {len(devices)} PCI devices, fits no record: {reason}; {most}"


class AuditSource:
    """One node's producer of audits in one epoch: numbers them, and keeps the digest of the last full one."""

    def __init__(self, node_id: str, producer: str, epoch: int, full_every: int = FULL_EVERY) -> None:
        """`full_every` 1 sends every audit in full."""
        self.node_id = node_id
        self.producer = producer
        self.epoch = epoch
        self._full_every = full_every
        self._counter = 0
        self._digest = ""
        self._unchanged = 0
        self._partial = False
        self._answered_ms: int | None = None

    def audited(
        self,
        hypervisor: Hypervisor,
        instances: Iterable[InstanceReport],
        *,
        taken_at_ms: int,
        mono_ms: int,
        unknown_instances: Iterable[str] = (),
    ) -> HypervisorAudited:
        """The record of one look: in full if something changed or it is time, else unchanged.

        `taken_at_ms` (wall clock) and `mono_ms` (monotonic) were read before the first call. An audit that misses something
        (`unknown_instances`) is not complete, and always in full. Raises ValueError for one that no reader would take.
        """
        reports = tuple(sorted(instances, key=lambda each: each.instance_id))
        unknown = tuple(sorted(unknown_instances))
        digest = audit_digest(hypervisor, reports) if not unknown else audit_digest(hypervisor, reports) + "-part"
        if digest == self._digest and not unknown and (short := self.unchanged(taken_at_ms=taken_at_ms, mono_ms=mono_ms)):
            return short
        record = HypervisorAudited(
            node_id=self.node_id,
            producer=self.producer,
            epoch=self.epoch,
            counter=self._next(),
            taken_at_ms=taken_at_ms,
            mono_ms=mono_ms,
            digest=digest,
            complete=not unknown,
            hypervisor=hypervisor,
            instances=reports,
            unknown_instances=unknown,
        )
        read = decode(AUDITS, encode(record))
        if isinstance(read, Unreadable):
            raise ValueError(_fits_none(hypervisor, reports, read.reason))
        self._answered_ms, self._digest, self._unchanged, self._partial = taken_at_ms, digest, 0, bool(unknown)
        return record

    def unchanged(self, *, taken_at_ms: int, mono_ms: int) -> HypervisorAudited | None:
        """The short record of a look by a source that knows that nothing changed; None if a full one is due or none was sent."""
        if not self._digest or self._partial or self._unchanged + 1 >= self._full_every:
            return None
        self._answered_ms = taken_at_ms
        self._unchanged += 1
        return HypervisorAudited(
            node_id=self.node_id,
            producer=self.producer,
            epoch=self.epoch,
            counter=self._next(),
            taken_at_ms=taken_at_ms,
            mono_ms=mono_ms,
            digest=self._digest,
        )

    def failed(self, reason: str, *, taken_at_ms: int, mono_ms: int) -> AuditFailed:
        """The record of a look that got no answer; unknown since the last one that did, or since this one if none did."""
        return AuditFailed(
            node_id=self.node_id,
            producer=self.producer,
            epoch=self.epoch,
            counter=self._next(),
            taken_at_ms=taken_at_ms,
            mono_ms=mono_ms,
            reason=(reason or "no reason given")[:TEXT_CHARACTERS_MAX],
            unknown_since_ms=taken_at_ms if self._answered_ms is None else self._answered_ms,
        )

    def forget(self) -> None:
        """A record was not acknowledged: whatever the log holds, the next audit is in full."""
        self._digest = ""

    def _next(self) -> int:
        self._counter += 1
        return self._counter


class EventSource:
    """One node's producer of life-cycle events in one epoch: stamps and numbers them."""

    def __init__(self, node_id: str, producer: str, epoch: int) -> None:
        self.node_id = node_id
        self.producer = producer
        self.epoch = epoch
        self._counter = 0

    def event(
        self, kind: type[Event], instance: InstanceReport, event_time_ms: int, *, claim_id: str | None = None, resync: bool = False
    ) -> Event:
        """The next event: `kind` happened to `instance` at `event_time_ms` (wall clock); `resync` if it was found, not seen happening."""
        self._counter += 1
        return kind(
            node_id=self.node_id,
            producer=self.producer,
            epoch=self.epoch,
            counter=self._counter,
            event_time_ms=event_time_ms,
            instance=instance,
            claim_id=claim_id,
            resync=resync,
        )


class Said(Struct, frozen=True, gc=False):
    """One observation, ready to publish."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers


def said(topic: str, record: AuditRecord | LifecycleEvent) -> Said:
    """The observation as key, bytes and CloudEvents headers; its id is the same for a copy of it.

    Raises ValueError for what has no key of its own.
    """
    key = key_of(record)
    if key is None:
        raise ValueError(f"{event_type(record)} has no key of its own; observations are keyed by node")
    time_ms = record.taken_at_ms if isinstance(record, HypervisorAudited | AuditFailed) else record.event_time_ms
    envelope = Envelope(
        event_id=f"{topic}/{record.producer}/{record.node_id}/{record.epoch}.{record.counter}",
        event_type=event_type(record),
        source=f"claimlog/{record.producer}",
        time_ms=time_ms,
        subject=record.node_id,
    )
    return Said(topic, key, encode(record), to_headers(envelope))


def send(publish: Publish, topic: str, record: AuditRecord | LifecycleEvent) -> None:
    """Publish one observation. What `publish` raises goes through."""
    message = said(topic, record)
    publish(message.topic, message.key, message.value, message.headers)
