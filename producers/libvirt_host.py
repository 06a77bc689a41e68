"""One hypervisor as a source: connects, watches, audits, and connects again when it is lost. The caller decides when.

Audits keep one epoch for the whole process; each connection's events have one of their own, because between two connections events are
lost. A host that does not answer is reported as unknown, never as empty.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from msgspec import structs

from producers.libvirt_audit import AUDIT_TIMEOUT_SECONDS, Auditor, Look
from producers.libvirt_connect import OPEN_TIMEOUT_SECONDS, Connection, HypervisorUnreachable, Opener
from producers.libvirt_disks import Guest
from producers.libvirt_lifecycle import DomainWatch, Overrun
from producers.libvirt_rounds import ANSWER_MS
from producers.libvirt_system import Options
from producers.source import AuditSource, EventSource, Publish, epoch_after, send
from schemas.audits import AuditRecord, InstanceReport
from schemas.lifecycle import LifecycleEvent
from schemas.topics import AUDITS, LIFECYCLE

LastEpoch = Callable[[str, str], int | None]
"""`last_epoch(topic, node_id)`: the highest epoch that this producer used there, None if it never did."""

BACK_OFF_MS_MIN = 1_000
BACK_OFF_MS_MAX = 60_000
"""The pause after a failed connection doubles from one second to a minute; a part of it is chance, so that hosts do not come in step."""

FAILED_LOOKS_MAX = 3
"""A connection that lets as many audits in a row fail without being lost is given up for a new one."""

DISKS_EVERY_MS = 300_000
"""Images grow slowly, and a round asks every guest's QEMU: once in five minutes."""

BESIDE_OPEN_SECONDS = 2.0
"""A connection for a round of disks, or for a part of a long audit, is opened when the host has just answered: at once, or not now."""

DRIFT_MIB = 1024
"""How far what images may still grow to has to move for an unchanged audit to be sent in full: the scheduler's weighers read it."""


class _Waiting(HypervisorUnreachable):
    """It was not tried again yet."""


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
        disks_every_ms: int = DISKS_EVERY_MS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`node_id` empty: the hostname as libvirt gives it, known after the first connection. An EventLoop must run.

        `mono_ms` only runs; `chance` gives numbers from 0 to 1.
        """
        self.uri = uri
        self.node_id = node_id
        self.events_published = 0
        self._publish = publish
        self._options = options
        self._last_epoch = last_epoch
        self._wall_ms, self._mono_ms, self._chance = wall_ms, mono_ms, chance
        self._producer = producer
        self._audit_timeout_seconds = audit_timeout_seconds
        self._open_timeout_seconds = open_timeout_seconds
        self._disks_every_ms = disks_every_ms
        self._opener = Opener(uri)
        self._rest = threading.Event()
        self._auditor = Auditor(options, wall_ms, mono_ms)
        self._named = bool(node_id)
        self._hostname = ""
        self._calls: Connection | None = None
        self._second: Connection | None = None
        self._events: Connection | None = None
        self._watch: DomainWatch | None = None
        self._audits: AuditSource | None = None
        self._event_epoch: int | None = None
        self._present: dict[str, InstanceReport] = {}
        self._failures = 0
        self._failed_looks = 0
        self._retry_at_ms = 0
        self._trouble = f"{uri}: never reached"
        self._disks_due_ms = 0
        self._least_mib: int | None = None

    @property
    def connected(self) -> bool:
        """Whether the host is watched, over a connection that was not found lost."""
        is_lost = self._events is None or self._events.closed or (self._calls is not None and self._calls.closed)
        return self._watch is not None and not is_lost

    @property
    def retry_in_ms(self) -> int:
        """How long until it makes sense to try a lost host again; 0 is now."""
        return max(0, self._retry_at_ms - self._mono_ms())

    def audit(self) -> AuditRecord:
        """Connect if need be, publish one audit (or its failure) within the audit's time-out, and return it.

        A new connection is told of first: everything there, as a resync. Sizes and departures that no event has told follow the audit.
        Raises HypervisorUnreachable only while not even the node's name is known.
        """
        taken_at_ms, mono_ms = self._wall_ms(), self._mono_ms()
        due_ms = mono_ms + int(self._audit_timeout_seconds * 1000)
        reports: tuple[InstanceReport, ...] | None = None
        try:
            found = self._look(taken_at_ms, due_ms)
            source = self._audit_source()
            self._say_in_full_if_drifted(source, found)
            record: AuditRecord = source.audited(
                found.hypervisor, found.instances, taken_at_ms=taken_at_ms, mono_ms=mono_ms, unknown_instances=found.unknown_instances
            )
        except (HypervisorUnreachable, ValueError) as error:
            self._note_failure(error)
            if not self.node_id:
                raise HypervisorUnreachable(str(error)) from error
            record = self._audit_source().failed(str(error), taken_at_ms=taken_at_ms, mono_ms=mono_ms)
        else:
            self._failed_looks, reports = 0, found.instances
        try:
            send(self._publish, AUDITS, record)
        except BaseException:
            self._audit_source().forget()
            raise
        if self._watch is not None and reports is not None:
            self._tell(self._watch.departed(reports, taken_at_ms))
            self._tell(self._watch.resized(reports, taken_at_ms))
        return record

    def pump(self, wait_seconds: float) -> int:
        """Publish the events of up to `wait_seconds`, from the first on without waiting for more; returns how many.

        Goes on with looking at disks on the side. A connection found lost is left; a later audit makes a new one.
        """
        if self._watch is None:
            return 0
        if (self._calls is None or self._calls.busy) and not self._asks_again():
            self._rest.wait(wait_seconds)
            return 0
        before = self.events_published
        try:
            self._tell(self._watch.drain(wait_seconds))
            self._tend_disks()
        except (HypervisorUnreachable, Overrun) as problem:
            self._leave(str(problem))
        else:
            if not self.connected:
                self._leave(self._why_lost())
        return self.events_published - before

    def close(self) -> None:
        """Leave the hypervisor."""
        self._leave("closed by us")

    def _tell(self, events: Iterable[LifecycleEvent]) -> None:
        for event in events:
            send(self._publish, LIFECYCLE, event)
            self.events_published += 1

    def _look(self, taken_at_ms: int, due_ms: int) -> Look:
        """Look, through a new connection if there is none. Raises HypervisorUnreachable, ValueError."""
        if self.connected and self._watch is not None:
            calls = self._watch.calls = self._idle_calls(due_ms)
            if self._watch.devices_changed:
                self._watch.devices_changed = False
                self._auditor.devices_changed()
            changed = self._watch.changed()
            self._audit(calls, taken_at_ms, due_ms, changed)
            self._tend_disks()
            if not self._auditor.rounds.running and (guests := self._auditor.guests_unasked()):
                self._ask_disks(guests, due_ms)
            if not self._auditor.rounds.running and (guests := self._auditor.guests_unanswered()):
                self._begin_round(guests)  # The next audit has what it finds: those that hang keep none waiting.
            return self._named_as_before(self._auditor.result())
        if self._events is not None:
            self._leave(self._why_lost())
        if (wait_ms := self.retry_in_ms) > 0:
            raise _Waiting(f"{self._trouble}; trying again in {-(-wait_ms // 1000)} s")
        calls = self._calls = self._open(due_ms)
        events = self._events = self._open(due_ms)
        watch = DomainWatch(events, calls, options=self._options, disks=self._auditor.disks, clock_ms=self._wall_ms)
        watch.register(self._left_seconds(due_ms))
        self._auditor.connected()
        seen_at_ms = self._wall_ms()
        self._audit(calls, taken_at_ms, due_ms, frozenset())
        self._disks_due_ms = self._mono_ms() + self._disks_every_ms
        self._ask_disks(self._auditor.guests(), due_ms)
        found = self._named_as_before(self._auditor.result())
        self.node_id = self.node_id or found.hostname
        self._resync(watch, found, seen_at_ms)
        self._watch, self._failures, self._trouble = watch, 0, ""
        return found

    def _audit(self, calls: Connection, taken_at_ms: int, due_ms: int, changed: AbstractSet[str]) -> None:
        self._auditor.look(
            calls,
            taken_at_ms=taken_at_ms,
            timeout_seconds=self._left_seconds(due_ms),
            changed=changed,
            second_connection=lambda: self._second_connection(due_ms),
        )

    def _second_connection(self, due_ms: int) -> Connection:
        """Another for questions, opened when it is first wanted, or when something hangs on it. Raises HypervisorUnreachable."""
        self._second = _unless_stuck(self._second)
        if self._second is None:
            self._second = self._opener.open(timeout_seconds=min(BESIDE_OPEN_SECONDS, self._left_seconds(due_ms)))
        return self._second

    def _idle_calls(self, due_ms: int) -> Connection:
        """The connection for questions, or another if something hangs on it; events go on meanwhile. Raises HypervisorUnreachable."""
        self._calls = _unless_stuck(self._calls)
        if self._calls is None:
            self._calls = self._open(due_ms)
        return self._calls

    def _asks_again(self) -> bool:
        """Whether what events are about can be asked over another connection. While audits fail, the next audit tries."""
        if self._failed_looks or self._watch is None:
            return False
        try:
            self._watch.calls = self._idle_calls(self._mono_ms() + int(BESIDE_OPEN_SECONDS * 1000))
        except HypervisorUnreachable:
            self._failed_looks += 1
            return False
        return True

    def _open(self, due_ms: int) -> Connection:
        return self._opener.open(timeout_seconds=min(self._open_timeout_seconds, self._left_seconds(due_ms)))

    def _open_for_disks(self) -> Connection:
        return self._opener.open(timeout_seconds=BESIDE_OPEN_SECONDS, read_only=not self._options.refresh_pools)

    def _left_seconds(self, due_ms: int) -> float:
        return max(0.1, (due_ms - self._mono_ms()) / 1000)

    def _event_source(self) -> EventSource:
        """The source of a new connection's events, whose epoch is above those before it.

        Only the first is of the clock: a process that connects anew overtakes none that began later.
        """
        if self._event_epoch is None:
            self._event_epoch = epoch_after(self._last_epoch(LIFECYCLE, self.node_id), self._wall_ms())
        else:
            self._event_epoch += 1
        return EventSource(self.node_id, self._producer, self._event_epoch)

    def _resync(self, watch: DomainWatch, found: Look, seen_at_ms: int) -> None:
        """Say everything that is there; what came meanwhile waits behind it."""
        self._tell(watch.resync(self._event_source(), found.instances, seen_at_ms, self._present))
        self._present = watch.present

    def _named_as_before(self, found: Look) -> Look:
        """The look, if it is of the node that it was. Raises ValueError for a host that calls itself otherwise now."""
        if not self._named and self._hostname and found.hostname != self._hostname:
            raise ValueError(
                f"{self.uri} calls itself {found.hostname} now, and was {self._hostname}: that is another node. "
                "Start the producer anew to report it under its new name, or give it its old one with --node"
            )
        self._hostname = found.hostname
        if self._named and found.hostname != self.node_id:
            stats = {**found.hypervisor.stats, "hypervisor_hostname": found.hostname}
            return structs.replace(found, hypervisor=structs.replace(found.hypervisor, stats=stats))
        return found

    def _ask_disks(self, guests: list[Guest], due_ms: int) -> None:
        """The first audit of a connection, or of a guest, waits for the sizes of disks, as long as all answer and there is time."""
        until_ms = min(due_ms, self._mono_ms() + ANSWER_MS)
        self._begin_round(guests)
        while self._auditor.rounds.running and (left_ms := until_ms - self._mono_ms()) > 0:
            self._auditor.rounds.wait(left_ms / 1000)
            sizes = self._auditor.rounds.tend()
            if sizes is not None:
                self._auditor.keep_disks(sizes)
                return

    def _tend_disks(self) -> None:
        """Go on with a round of looking at disks, or begin one that is due."""
        rounds = self._auditor.rounds
        sizes = rounds.tend()
        if sizes is not None:
            self._auditor.keep_disks(sizes)
        if not rounds.running and self._mono_ms() >= self._disks_due_ms:
            self._disks_due_ms = self._mono_ms() + self._disks_every_ms
            self._begin_round(self._auditor.guests())

    def _begin_round(self, guests: list[Guest]) -> None:
        self._auditor.disks.asked(guest.domain for guest in guests if guest.is_active)
        self._auditor.rounds.start(self._open_for_disks, guests)

    def _say_in_full_if_drifted(self, source: AuditSource, found: Look) -> None:
        """What images may grow to is part of no digest, since it moves all the time; when it has moved far it is worth a full audit."""
        least_mib, before_mib = found.hypervisor.physical.disk_mib_available_least, self._least_mib
        moved = least_mib is None or before_mib is None or abs(least_mib - before_mib) >= DRIFT_MIB
        if moved and least_mib != before_mib:
            self._least_mib = least_mib
            source.forget()

    def _audit_source(self) -> AuditSource:
        if self._audits is None:
            epoch = epoch_after(self._last_epoch(AUDITS, self.node_id), self._wall_ms())
            self._audits = AuditSource(self.node_id, self._producer, epoch)
        return self._audits

    def _note_failure(self, error: Exception) -> None:
        """A look failed. Without a connection the next try waits; one that is there may be given up."""
        if isinstance(error, _Waiting):
            return
        self._failed_looks += isinstance(error, HypervisorUnreachable)
        if self.connected and self._failed_looks < FAILED_LOOKS_MAX:
            return
        pause_ms = min(BACK_OFF_MS_MAX, BACK_OFF_MS_MIN << min(self._failures, 16))
        self._failures += 1
        self._retry_at_ms = self._mono_ms() + int(pause_ms * (0.5 + self._chance() / 2))
        self._leave(str(error))

    def _why_lost(self) -> str:
        lost = [connection.closed for connection in (self._calls, self._events) if connection is not None and connection.closed]
        return f"{self.uri}: {lost[0]}" if lost else self._trouble

    def _leave(self, why: str) -> None:
        self._trouble = why
        connections = (self._calls, self._second, self._events)
        self._calls = self._second = self._events = self._watch = None
        self._failed_looks = 0
        self._auditor.rounds.abandon()
        for connection in connections:
            if connection is not None:
                connection.close()


def _unless_stuck(connection: Connection | None) -> Connection | None:
    """The connection, if it can be asked; one that is lost, or on which something hangs, is given up."""
    if connection is not None and (connection.busy or connection.closed):
        connection.close()
        return None
    return connection
