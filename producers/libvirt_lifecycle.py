"""What happens to the domains of one hypervisor, from libvirt's own events.

libvirt's callback only puts down what came and when; `drain`, in the caller's thread, looks the domain up and says it in our words.
At the start callbacks are registered first, then everything there is sent as a resync: nothing falls between the two. libvirt does not
number its events and replays none, so each start has an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import libvirt
from msgspec import structs

from producers.libvirt_audit import Options, report_of
from producers.libvirt_connect import Connection
from producers.source import EventSource
from schemas.audits import InstanceReport, PowerState
from schemas.lifecycle import (
    InstanceArrived,
    InstanceDeparted,
    InstancePaused,
    InstanceResized,
    InstanceStarted,
    InstanceStopped,
    LifecycleEvent,
)

LOOKUP_TIMEOUT_SECONDS = 30.0

STATES: dict[int, tuple[type[LifecycleEvent], PowerState]] = {
    libvirt.VIR_DOMAIN_EVENT_STARTED: (InstanceStarted, "running"),
    libvirt.VIR_DOMAIN_EVENT_RESUMED: (InstanceStarted, "running"),
    libvirt.VIR_DOMAIN_EVENT_SUSPENDED: (InstancePaused, "paused"),
    libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED: (InstancePaused, "suspended"),
    libvirt.VIR_DOMAIN_EVENT_STOPPED: (InstanceStopped, "stopped"),
    libvirt.VIR_DOMAIN_EVENT_CRASHED: (InstanceStopped, "crashed"),
}
"""What an event says of a domain that is still there. Real QEMU sends RESUMED before STARTED: both say that it runs."""

GONE_OR_STOPPED = {libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_UNDEFINED, libvirt.VIR_DOMAIN_EVENT_CRASHED}


class Seen(NamedTuple):
    """One event as libvirt's callback put it down."""

    instance_id: str
    name: str
    event: int
    detail: int
    time_ms: int


class DomainWatch:
    """Life-cycle events of one connection's domains, in one epoch."""

    def __init__(self, connection: Connection, source: EventSource, options: Options, clock_ms: Callable[[], int]) -> None:
        """`clock_ms` is the wall clock: libvirt's events carry no time, so each gets the time at which it came."""
        self._connection = connection
        self._source = source
        self._options = options
        self._clock_ms = clock_ms
        self._seen: SimpleQueue[Seen] = SimpleQueue()
        self._present: dict[str, InstanceReport] = {}
        self._callback: int | None = None

    def start(self) -> list[LifecycleEvent]:
        """Register, then what is there now as a resync. Raises HypervisorUnreachable."""
        self._callback = self._connection.ask(
            lambda handle: handle.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._came, None),
            LOOKUP_TIMEOUT_SECONDS,
        )
        now_ms = self._clock_ms()
        reports = self._connection.ask(self._all, LOOKUP_TIMEOUT_SECONDS)
        self._present = {report.instance_id: report for report in reports}
        return [self._source.event(InstanceArrived, report, now_ms, resync=True) for report in reports]

    def drain(self, wait_seconds: float = 0.0) -> list[LifecycleEvent]:
        """The events since the last call, in order; waits up to `wait_seconds` for the first. Raises HypervisorUnreachable."""
        events: list[LifecycleEvent] = []
        try:
            seen = self._seen.get(timeout=wait_seconds) if wait_seconds > 0 else self._seen.get_nowait()
            while True:
                events.extend(self._said(seen))
                seen = self._seen.get_nowait()
        except Empty:
            return events

    def stop(self) -> None:
        """No more events. Raises HypervisorUnreachable."""
        if self._callback is not None:
            callback, self._callback = self._callback, None
            self._connection.ask(lambda handle: handle.domainEventDeregisterAny(callback), LOOKUP_TIMEOUT_SECONDS)

    def _came(self, _: Any, domain: Any, event: int, detail: int, __: Any) -> None:
        """In libvirt's thread: no call to libvirt, no waiting."""
        self._seen.put(Seen(domain.UUIDString(), domain.name(), event, detail, self._clock_ms()))

    def _all(self, handle: Any) -> list[InstanceReport]:
        reports = [report for domain in handle.listAllDomains(0) if (report := self._read(handle, domain)) is not None]
        return sorted(reports, key=lambda each: each.instance_id)

    def _read(self, handle: Any, domain: Any, power_state: PowerState | None = None) -> InstanceReport | None:
        """The domain; None if it is gone. If only its size cannot be had, it is reported without: that is not zero."""
        try:
            return report_of(handle, domain, self._options, power_state)
        except ValueError:
            pass
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            if not handle.isAlive():
                raise
        return InstanceReport(instance_id=domain.UUIDString(), name=domain.name(), power_state=power_state or "unknown")

    def _find(self, seen: Seen, power_state: PowerState | None) -> InstanceReport | None:
        """The domain as it is now, in the power state that the event tells of (later events tell of later ones); None if it is gone."""

        def find(handle: Any) -> InstanceReport | None:
            try:
                domain = handle.lookupByUUIDString(seen.instance_id)
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    return None
                raise
            return self._read(handle, domain, power_state)

        return self._connection.ask(find, LOOKUP_TIMEOUT_SECONDS)

    def _said(self, seen: Seen) -> Iterator[LifecycleEvent]:
        """Our events of one of libvirt's: none, one, or an arrival before it if nobody told of one."""
        kind, power_state = STATES.get(seen.event, (None, None))
        found = self._find(seen, power_state)
        known = self._present.get(seen.instance_id)
        if found is None and seen.event in GONE_OR_STOPPED:
            # A transient domain that stopped, or the last of a persistent one. It may be back, so this is no deletion.
            if known is not None:
                del self._present[seen.instance_id]
                yield self._source.event(InstanceDeparted, known, seen.time_ms)
            return
        if kind is None and seen.event != libvirt.VIR_DOMAIN_EVENT_DEFINED:
            # SHUTDOWN is followed by STOPPED; UNDEFINED of a running domain only makes it transient.
            return
        # Gone by now, but an event on its way says so; until then its last known form stands, or its name alone.
        last = known or InstanceReport(instance_id=seen.instance_id, name=seen.name)
        report = found or structs.replace(last, power_state=power_state or last.power_state)
        self._present[seen.instance_id] = report
        if known is None:
            yield self._source.event(InstanceArrived, report, seen.time_ms)
        elif known.resources != report.resources:
            yield self._source.event(InstanceResized, report, seen.time_ms)
        if kind is not None:
            yield self._source.event(kind, report, seen.time_ms)
