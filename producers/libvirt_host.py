"""One hypervisor as a source: connects, watches, audits, and connects again when it is lost. The caller decides when.

Audits keep one epoch for the whole process; each connection's events have one of their own, because between two connections events are
lost. A host that does not answer is reported as unknown, never as empty.
"""

from __future__ import annotations

from collections.abc import Callable

from producers.libvirt_audit import AUDIT_TIMEOUT_SECONDS, Options, take_audit
from producers.libvirt_connect import OPEN_TIMEOUT_SECONDS, Connection, HypervisorUnreachable, connect
from producers.libvirt_lifecycle import DomainWatch
from producers.source import AuditSource, EventSource, Publish, epoch_after, send
from schemas.audits import AuditRecord
from schemas.topics import AUDITS, LIFECYCLE

LastEpoch = Callable[[str, str], int | None]
"""`last_epoch(topic, node_id)`: the highest epoch that this producer used there, None if it never did."""


class LibvirtHost:
    """Reports one hypervisor to `publish`. What `publish` raises goes through: then the process should end and start anew."""

    def __init__(
        self,
        uri: str,
        publish: Publish,
        *,
        options: Options,
        last_epoch: LastEpoch,
        wall_ms: Callable[[], int],
        mono_ms: Callable[[], int],
        node_id: str = "",
        producer: str = "libvirt",
        audit_timeout_seconds: float = AUDIT_TIMEOUT_SECONDS,
        open_timeout_seconds: float = OPEN_TIMEOUT_SECONDS,
    ) -> None:
        """`node_id` empty: the hostname as libvirt gives it, known after the first connection. An EventLoop must run."""
        self.uri = uri
        self.node_id = node_id
        self.events_published = 0
        self._publish = publish
        self._options = options
        self._last_epoch = last_epoch
        self._wall_ms, self._mono_ms = wall_ms, mono_ms
        self._producer = producer
        self._audit_timeout_seconds = audit_timeout_seconds
        self._open_timeout_seconds = open_timeout_seconds
        self._connection: Connection | None = None
        self._watch: DomainWatch | None = None
        self._audits: AuditSource | None = None
        self._event_epoch: int | None = None

    def audit(self) -> AuditRecord:
        """Connect if need be, publish one audit (or its failure) and return it.

        Raises HypervisorUnreachable only while not even the node's name is known.
        """
        taken_at_ms, mono_ms = self._wall_ms(), self._mono_ms()
        try:
            connection = self._connected()
        except HypervisorUnreachable as error:
            self._leave()
            if not self.node_id:
                raise
            record: AuditRecord = self._audit_source().failed(str(error), taken_at_ms=taken_at_ms, mono_ms=mono_ms)
        else:
            record = take_audit(
                connection,
                self._audit_source(),
                self._options,
                taken_at_ms=taken_at_ms,
                mono_ms=mono_ms,
                timeout_seconds=self._audit_timeout_seconds,
            )
        try:
            send(self._publish, AUDITS, record)
        except BaseException:
            self._audit_source().forget()
            raise
        return record

    def pump(self, wait_seconds: float) -> int:
        """Publish the events of up to `wait_seconds`, from the first on without waiting for more; returns how many.

        A connection found lost is left; the next audit makes a new one.
        """
        if self._watch is None or self._connection is None:
            return 0
        try:
            events = self._watch.drain(wait_seconds)
        except HypervisorUnreachable:
            self._leave()
            return 0
        for event in events:
            send(self._publish, LIFECYCLE, event)
        self.events_published += len(events)
        if self._connection.closed:
            self._leave()
        return len(events)

    @property
    def connected(self) -> bool:
        """Whether there is a connection that was not found lost."""
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        """Leave the hypervisor."""
        self._leave()

    def _connected(self) -> Connection:
        """The connection, or a new one: with its watch started and its resync published. Raises HypervisorUnreachable."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._leave()
        connection = self._connection = connect(self.uri, timeout_seconds=self._open_timeout_seconds)
        hostname: str = connection.ask(lambda handle: handle.getHostname(), self._open_timeout_seconds)
        self.node_id = self.node_id or hostname
        last = self._last_epoch(LIFECYCLE, self.node_id) if self._event_epoch is None else self._event_epoch
        self._event_epoch = epoch_after(last, self._wall_ms())
        source = EventSource(self.node_id, self._producer, self._event_epoch)
        self._watch = DomainWatch(connection, source, self._options, self._wall_ms)
        for event in self._watch.start():
            send(self._publish, LIFECYCLE, event)
            self.events_published += 1
        return connection

    def _audit_source(self) -> AuditSource:
        if self._audits is None:
            epoch = epoch_after(self._last_epoch(AUDITS, self.node_id), self._wall_ms())
            self._audits = AuditSource(self.node_id, self._producer, epoch)
        return self._audits

    def _leave(self) -> None:
        connection, self._connection, self._watch = self._connection, None, None
        if connection is not None:
            connection.close()
