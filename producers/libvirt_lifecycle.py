"""What happens to the domains of one hypervisor, from libvirt's own events.

libvirt's callback only puts down what came and when; `drain`, in the caller's thread, looks the domain up and says it in our words.
What counts as told is what the caller has taken: the host may be lost between two events, and the next resync then makes the rest good.
At the start callbacks are registered first, then everything there is sent as a resync: nothing falls between the two. libvirt does not
number its events and replays none, so each start has an epoch of its own. Events come over one connection and questions go over another:
libvirtd serves a client's requests in turn, and one that hangs must not hold up the news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import libvirt
from msgspec import structs

from producers.libvirt_connect import Connection, HypervisorUnreachable, supported
from producers.libvirt_disks import Disks
from producers.libvirt_domains import POWER_STATES, task_state
from producers.libvirt_system import Options
from producers.libvirt_xml import read_domain
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
from schemas.units import TEXT_CHARACTERS_MAX

LOOKUP_TIMEOUT_SECONDS = 5.0
"""A domain that cannot be read within this is said as last known; the next audit says more."""
REGISTER_TIMEOUT_SECONDS = 10.0

SEEN_MAX = 10_000
"""Events that may wait to be told, while nothing can be published; with more the watch has overrun, and starts anew with a resync."""

ALSO_CHANGES = tuple(
    number
    for name in ("DEVICE_ADDED", "DEVICE_REMOVED", "METADATA_CHANGE", "TUNABLE", "MEMORY_DEVICE_SIZE_CHANGE", "BLOCK_JOB_2")
    if (number := getattr(libvirt, f"VIR_DOMAIN_EVENT_ID_{name}", None)) is not None
)
"""Other events after which a domain's XML differs. What this libvirt has not, a full pass of the audits finds."""

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


class Found(NamedTuple):
    """What a domain was found to be when it was looked up: there (with its report), gone, or, with neither, not to be had now."""

    report: InstanceReport | None = None
    is_gone: bool = False


class Overrun(Exception):
    """More events came than could wait: some are lost. Start anew with a resync."""


class DomainWatch:
    """Life-cycle events of one connection's domains, in one epoch."""

    def __init__(
        self,
        events: Connection,
        calls: Connection,
        *,
        options: Options,
        disks: Disks,
        clock_ms: Callable[[], int],
        seen_max: int = SEEN_MAX,
    ) -> None:
        """`clock_ms` is the wall clock: libvirt's events carry no time, so each gets the time at which it came."""
        self.devices_changed = False
        self.calls = calls
        """Where domains are looked up; another when something hangs on it."""
        self._events = events
        self._source: EventSource | None = None
        self._options, self._disks = options, disks
        self._clock_ms = clock_ms
        self._seen: SimpleQueue[Seen] = SimpleQueue()
        self._seen_max = seen_max
        self._has_overrun = False
        self._changed: dict[str, None] = {}
        self._present: dict[str, InstanceReport] = {}
        self._missing: set[str] = set()

    @property
    def present(self) -> dict[str, InstanceReport]:
        """The domains that are there, by what was told so far."""
        return self._present

    def register(self, timeout_seconds: float = REGISTER_TIMEOUT_SECONDS) -> None:
        """From here on nothing is missed. Raises HypervisorUnreachable."""
        self._events.ask(self._register, timeout_seconds)

    def resync(
        self, source: EventSource, reports: Iterable[InstanceReport], time_ms: int, before: Mapping[str, InstanceReport] | None = None
    ) -> list[LifecycleEvent]:
        """What a look after `register` found there, as arrivals that nobody saw happen; `time_ms` was read before that look.

        Those of `before`, the domains of the connection before this one, that are no longer there have departed. From here on `source`,
        of a new epoch, numbers the events.
        """
        self._source = source
        self._present = {report.instance_id: report for report in reports}
        gone = [report for instance_id, report in (before or {}).items() if instance_id not in self._present]
        arrived = [source.event(InstanceArrived, report, time_ms, resync=True) for report in self._present.values()]
        return arrived + [source.event(InstanceDeparted, report, time_ms, resync=True) for report in gone]

    def resized(self, reports: Iterable[InstanceReport], time_ms: int) -> Iterator[LifecycleEvent]:
        """The guests of a look, begun at `time_ms`, that have another size than was told: libvirt has no event for that.

        Memory or a disk plugged in, a disk that grew, or one whose size could only be learnt after the guest had been told of.
        """
        assert self._source is not None
        for report in reports:
            told = self._present.get(report.instance_id)
            if told is not None and told.resources != report.resources and report.unknown_since_ms is None:
                yield self._source.event(InstanceResized, report, time_ms)
                self._present[report.instance_id] = report

    def departed(self, reports: Iterable[InstanceReport], time_ms: int) -> Iterator[LifecycleEvent]:
        """Those that this look, begun at `time_ms`, and the one before it did not list: the lookup that would have told timed out.

        One look is not enough: the event may still be on its way, and knows when it was.
        """
        assert self._source is not None
        missing = self._present.keys() - {report.instance_id for report in reports}
        for instance_id in sorted(missing & self._missing):
            yield self._source.event(InstanceDeparted, self._present[instance_id], time_ms, resync=True)
            del self._present[instance_id]
        self._missing = missing

    def drain(self, wait_seconds: float = 0.0) -> Iterator[LifecycleEvent]:
        """The events since the last call, in order, after `resync`; waits up to `wait_seconds` for the first. Publish each as it comes.

        Raises HypervisorUnreachable, Overrun, after events that came before.
        """
        seen = self._next_seen(wait_seconds)
        while seen is not None:
            yield from self._said(seen)
            seen = self._next_seen()
        if self._has_overrun:
            raise Overrun(f"{self._events.uri}: more than {self._seen_max} events waited to be told, and some are lost")

    def changed(self) -> set[str]:
        """The domains that something was told of since the last call."""
        found = set()
        while self._changed:  # emptied one by one: libvirt's thread adds meanwhile, and what it adds is not to be lost
            found.add(self._changed.popitem()[0])
        return found

    def _next_seen(self, wait_seconds: float = 0.0) -> Seen | None:
        try:
            return self._seen.get(timeout=wait_seconds) if wait_seconds > 0 else self._seen.get_nowait()
        except Empty:
            return None

    def _register(self, handle: Any) -> None:
        def listen(register: Callable[..., int], deregister: Callable[[int], Any], number: int, heard: Callable[..., None]) -> None:
            callback = supported(lambda: register(None, number, heard, None))
            if callback is not None:
                self._events.at_close(lambda: deregister(callback))

        domains = (handle.domainEventRegisterAny, handle.domainEventDeregisterAny)
        listen(*domains, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._came)
        for number in ALSO_CHANGES:
            listen(*domains, number, self._differs)
        devices = (handle.nodeDeviceEventRegisterAny, handle.nodeDeviceEventDeregisterAny)
        listen(*devices, libvirt.VIR_NODE_DEVICE_EVENT_ID_LIFECYCLE, self._device_came)

    def _came(self, _: Any, domain: Any, event: int, detail: int, __: Any) -> None:
        """In libvirt's thread: no call to libvirt, no waiting."""
        instance_id = domain.UUIDString()
        self._changed[instance_id] = None
        if self._seen.qsize() < self._seen_max:
            self._seen.put(Seen(instance_id, domain.name(), event, detail, self._clock_ms()))
        else:
            self._has_overrun = True

    def _differs(self, _: Any, domain: Any, *__: Any) -> None:
        self._changed[domain.UUIDString()] = None

    def _device_came(self, *_: Any) -> None:
        self.devices_changed = True

    def _find(self, seen: Seen, power_state: PowerState | None) -> Found:
        """The domain as it is now, in the power state that the event tells of (later events tell of later ones)."""

        def find(handle: Any) -> Found:
            try:
                domain = handle.lookupByUUIDString(seen.instance_id)
                defined = read_domain(domain.XMLDesc(0))
                self._disks.learn(handle, defined)
                state, reason = domain.state()
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    return Found(is_gone=True)
                if not handle.isAlive():
                    raise
                return Found()
            except ValueError:
                return Found()
            shown = power_state or POWER_STATES.get(state, "unknown")
            disk_mib = self._disks.capacity_mib(defined)
            return Found(defined.report(shown, disk_mib, self._options.dedicated_cpus, task_state=task_state(state, reason)))

        try:
            return self.calls.ask(find, LOOKUP_TIMEOUT_SECONDS)
        except HypervisorUnreachable:
            if self.calls.closed:
                raise
            return Found()  # it does not answer now; that is no departure

    def _said(self, seen: Seen) -> Iterator[LifecycleEvent]:
        """Our events of one of libvirt's: none, one, or an arrival before it if nobody told of one; what is present follows each."""
        assert self._source is not None
        kind, power_state = STATES.get(seen.event, (None, None))
        found = self._find(seen, power_state)
        known = self._present.get(seen.instance_id)
        if found.is_gone and seen.event in GONE_OR_STOPPED:
            # A transient domain that stopped, or the last of a persistent one. It may be back, so this is no deletion.
            if known is not None:
                yield self._source.event(InstanceDeparted, known, seen.time_ms)
                del self._present[seen.instance_id]
            return
        if kind is None and seen.event != libvirt.VIR_DOMAIN_EVENT_DEFINED:
            # SHUTDOWN is followed by STOPPED; UNDEFINED of a running domain only makes it transient.
            return
        # Gone by now, but an event on its way says so; until then its last known form stands, or its name alone.
        last = known or InstanceReport(instance_id=seen.instance_id, name=seen.name[:TEXT_CHARACTERS_MAX])
        report = found.report or structs.replace(last, power_state=power_state or last.power_state)
        if known is None:
            yield self._source.event(InstanceArrived, report, seen.time_ms)
        elif known.resources != report.resources:
            yield self._source.event(InstanceResized, report, seen.time_ms)
        self._present[seen.instance_id] = report
        if kind is not None:
            yield self._source.event(kind, report, seen.time_ms)
