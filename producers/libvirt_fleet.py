"""Several hypervisors from one process: a thread each, so that a host that hangs delays nobody but itself.

What they publish comes out in one place, in order: `turn`, in the caller's thread, hands it on and answers the hosts' questions about the
log. While nobody calls it the hosts wait, and nothing is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, Full, Queue
from typing import NamedTuple

from producers.libvirt_audit import NOT_REFRESHED
from producers.libvirt_connect import HypervisorUnreachable, Pending
from producers.libvirt_host import LastEpoch, LibvirtHost
from producers.source import Publish, Said
from schemas.audits import AuditFailed, AuditRecord, HypervisorAudited
from schemas.envelope import Headers

OUTBOX_MAX = 10_000
"""Records between the hosts and the caller; then the hosts wait. Their events wait too, and with too many a host starts anew."""
BATCH_MAX = 1_000
TICK_SECONDS = 0.5
"""Longest rest of a host: how late it hears that it is to end."""
SPREAD_SECONDS_MAX = 5.0
"""The first audits of many hosts are spread over this time, and so are all that follow."""
NO_DISK = "no storage pool is active, so it has no disk to give: no instance with a disk goes there; docs/libvirt.md says how to define one"
NO_DISK_NOW = "it has no disk to give for now, storage pools"


class NodeTwice(Exception):
    """Two URIs are one node: their records would contradict each other. The message says how to tell them apart."""


class ReportedElsewhere(Exception):
    """Another process goes on reporting the node, and one look beside it would silence that. The message says how it may be had."""


class Ended(Exception):
    """The fleet was closed while a host wanted to publish."""


class Turn(NamedTuple):
    """What came since the last turn: records in order, and sentences for people."""

    records: list[Said]
    sentences: list[str]


MakeHost = Callable[[Publish, LastEpoch], LibvirtHost]
"""Makes a host that publishes and asks as it is told."""


class Fleet:
    """Reports several hosts until it is closed. `start`, then `turn` again and again, all in one thread."""

    def __init__(
        self, hosts: Sequence[MakeHost], *, last_epoch: LastEpoch, interval_seconds: float, once: bool = False, outbox_max: int = OUTBOX_MAX
    ) -> None:
        """`last_epoch` is called within `turn`. With `once` each host is audited once, but not where that raises ReportedElsewhere."""
        self.answered = 0
        """Hosts that were audited, with `once`."""
        self.refused: list[str] = []
        """Why others were not, and nothing was published of them."""
        self._last_epoch = last_epoch
        self._interval_seconds = interval_seconds
        self._once = once
        self._outbox: Queue[Said | str | Pending[int | None]] = Queue(outbox_max)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._owners: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._without_disk: set[str] = set()
        self._threads = [
            threading.Thread(target=self._guarded, args=(make, number, len(hosts)), name=f"host {number}", daemon=True)
            for number, make in enumerate(hosts)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether every host has ended, which they do after `once`, and all they said was handed on.

        A failure is not over before `turn` has raised it: it may come while the last turn waits, and nobody would say why the process ends.
        """
        return not any(thread.is_alive() for thread in self._threads) and self._failure is None and self._outbox.empty()

    def turn(self, wait_seconds: float) -> Turn:
        """What the hosts said; waits up to `wait_seconds` for the first. Raises what ended a host, NodeTwice for one.

        What was said meanwhile is not handed on then: the process should end, and the next one says it anew.
        """
        if self._failure is not None:
            raise self._failure
        found = Turn([], [])
        try:
            item = self._outbox.get(timeout=wait_seconds) if wait_seconds > 0 else self._outbox.get_nowait()
            while True:
                if isinstance(item, Said):
                    found.records.append(item)
                elif isinstance(item, str):
                    found.sentences.append(item)
                else:
                    item.run()
                if len(found.records) >= BATCH_MAX:
                    break
                item = self._outbox.get_nowait()
        except Empty:
            pass
        return found

    def close(self) -> None:
        """Leave all hosts; waits some seconds for those that hang, and leaves them to their threads then."""
        self._stop.set()
        until = time.monotonic() + 2 * TICK_SECONDS + 2.0
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _guarded(self, make: MakeHost, number: int, count: int) -> None:
        name = f"host {number}"
        host = make(self._publish, lambda topic, node_id: self._epoch(name, topic, node_id))
        try:
            self._stop.wait(0.0 if self._once else min(self._interval_seconds, SPREAD_SECONDS_MAX) * number / count)
            if host.node_id:
                self._own(name, host.node_id)
            self._report(host)
        except Ended:
            pass  # that is how it is told
        except BaseException as failure:
            self._failure = self._failure or failure
        finally:
            host.close()

    def _report(self, host: LibvirtHost) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            now = time.monotonic()
            left = due - now
            if left <= 0 or (not host.connected and host.retry_in_ms == 0):
                if self._once:
                    self._audit_once(host)
                    return
                self._audit(host)
                due = max(due + self._interval_seconds, time.monotonic()) if left <= 0 else due
            elif host.connected:
                host.pump(min(left, TICK_SECONDS))
            else:
                self._stop.wait(min(left, TICK_SECONDS, host.retry_in_ms / 1000))

    def _audit(self, host: LibvirtHost) -> None:
        """Audit, and say it when a host that answered does so no more, or again."""
        record: AuditRecord | None = None
        try:
            record = host.audit()
            state = "audited"
            if isinstance(record, AuditFailed):
                state = f"not answering: {record.reason}"
            elif not record.complete:
                state = f"audited, but for {len(record.unknown_instances)} guests that do not answer"
        except HypervisorUnreachable as problem:
            state = f"not reached yet: {problem}"
        kind, name = state.partition(":")[0], host.node_id or host.uri
        if self._states.get(name) != kind:
            self._states[name] = kind
            self._put(f"{name}: {state}")
        self._tell_of_disk(record)

    def _audit_once(self, host: LibvirtHost) -> None:
        try:
            record = host.audit()
        except HypervisorUnreachable as problem:
            told = "to publish the failure give it one (--uri NAME=URI, or node in its [[host]])"
            self._put(f"{problem}; nothing was published, since the node's name is not known: {told}")
            return
        except ReportedElsewhere as problem:
            self.refused.append(str(problem))
            return
        host.pump(0.0)
        if isinstance(record, AuditFailed):
            self._put(f"{host.node_id}: the audit failed, which is published: {record.reason}")
            return
        self.answered += 1
        unknown = f" ({len(record.unknown_instances)} of them do not answer)" if record.unknown_instances else ""
        self._put(f"{host.node_id}: audited; domains: {len(record.instances or ())}{unknown}, life-cycle events: {host.events_published}")
        self._tell_of_disk(record)

    def _tell_of_disk(self, record: AuditRecord | None) -> None:
        """Say of a host that it offers no disk, once for as long as that lasts; what an unchanged audit stands for was told already."""
        if not isinstance(record, HypervisorAudited) or record.hypervisor is None:
            return
        if record.hypervisor.disk_mib is not None:
            self._without_disk.discard(record.node_id)
        elif record.node_id not in self._without_disk:
            self._without_disk.add(record.node_id)
            pools = record.hypervisor.stats.get("storage_pools", "")
            self._put(f"{record.node_id}: {f'{NO_DISK_NOW}: {pools}' if pools.startswith(NOT_REFRESHED) else NO_DISK}")

    def _publish(self, topic: str, key: bytes, value: bytes, headers: Headers) -> None:
        self._put(Said(topic, key, value, headers))

    def _put(self, item: Said | str | Pending[int | None]) -> None:
        while True:
            try:
                self._outbox.put(item, timeout=TICK_SECONDS)
                return
            except Full:
                if self._stop.is_set():
                    raise Ended from None

    def _epoch(self, name: str, topic: str, node_id: str) -> int | None:
        """Have the caller look into the log, which belongs to its thread."""
        self._own(name, node_id)
        question: Pending[int | None] = Pending(lambda: self._last_epoch(topic, node_id), "the log")
        self._put(question)
        while not question.done:
            question.wait(TICK_SECONDS)
            if self._stop.is_set():
                raise Ended
        return question.answer(0)

    def _own(self, name: str, node_id: str) -> None:
        if self._owners.setdefault(node_id, name) != name:
            raise NodeTwice(f"two of the hosts are node {node_id}: give each a name of its own (NAME=URI), or report it once")
