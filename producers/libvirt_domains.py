"""Which domains a hypervisor has, each read anew only when something about it changed.

One bulk call lists all with their states; neither it nor the XML needs a guest's monitor. A domain is read again if it was started anew
(its libvirt id changed), if an event spoke of it, in its turn while it is stopped, or in a full pass, which guards against lost events.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any, Literal

import libvirt
from msgspec import Struct

from producers.libvirt_connect import supported
from producers.libvirt_disks import Disks, has_active_pools
from producers.libvirt_xml import Domain, read_domain
from schemas.audits import PowerState
from schemas.units import TEXT_CHARACTERS_MAX

POWER_STATES: dict[int, PowerState] = {
    libvirt.VIR_DOMAIN_NOSTATE: "unknown",
    libvirt.VIR_DOMAIN_RUNNING: "running",
    libvirt.VIR_DOMAIN_BLOCKED: "running",
    libvirt.VIR_DOMAIN_PAUSED: "paused",
    libvirt.VIR_DOMAIN_SHUTDOWN: "running",
    libvirt.VIR_DOMAIN_SHUTOFF: "stopped",
    libvirt.VIR_DOMAIN_CRASHED: "crashed",
    libvirt.VIR_DOMAIN_PMSUSPENDED: "suspended",
}

AT_WORK = {
    libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
    libvirt.VIR_DOMAIN_PAUSED_SAVE,
    libvirt.VIR_DOMAIN_PAUSED_DUMP,
    libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT,
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
    libvirt.VIR_DOMAIN_PAUSED_POSTCOPY,
}
"""Reasons of a pause that say that something is being done to the guest."""

ARRIVING = {libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP}
"""Reasons of a pause in which libvirt keeps the guest's QEMU to itself: it starts it, or receives it from another host."""

ON_THE_WAY = {
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED),
    (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
    (libvirt.VIR_DOMAIN_RUNNING, getattr(libvirt, "VIR_DOMAIN_RUNNING_POSTCOPY_FAILED", -1)),  # since libvirt 8.5
}
"""States with their reasons that say that the guest moves from one host to another."""

MIGRATING = "migrating"
"""Nova's task state of a guest that moves."""

DIGEST_BYTES = 16

SIDE_BY_SIDE_MIN = 100
"""A domain's XML is a round trip of 0.15 ms, most of it waiting; from so many on a second connection saves more than its opening takes."""

Reader = Literal["first", "second"]


class Known(Struct, frozen=True, gc=False):
    """A domain as last read: `xml_digest` of the text it was read from, so that the same text is not parsed again."""

    domain_id: int
    xml_digest: bytes
    domain: Domain


class Listed(Struct, frozen=True, gc=False):
    """A domain as the list has it. `domain_id` is libvirt's number of this start, -1 for one that does not run.

    `is_arriving`: its QEMU answers nobody yet, which is no sign that it is frozen. `task_state` is Nova's, as far as libvirt tells it.
    """

    instance_id: str
    name: str
    domain_id: int
    power_state: PowerState
    is_at_work: bool
    is_arriving: bool
    task_state: str

    @property
    def is_active(self) -> bool:
        """Whether there is a running QEMU (or what else the driver has), paused or not."""
        return self.domain_id >= 0

    @property
    def may_be_asked(self) -> bool:
        """Whether its QEMU answers, unless something is wrong with it."""
        return self.is_active and not self.is_arriving


class Survey:
    """One look at all domains, made in a worker; a second connection may read its share beside it.

    What it found so far may be read while it still runs: `listed` is None until there is a list, of which `is_listed` tells (or the caller,
    where there will be none); `reading` has, by reader that takes part just now, the domain whose XML it is waiting for, "" before the
    first; `unread` are those that are still to be read, or could not be. With `given_up` nobody reads any more.
    """

    def __init__(
        self,
        known: Mapping[str, Known],
        disks: Disks,
        *,
        changed: AbstractSet[str] = frozenset(),
        skipped: AbstractSet[str] = frozenset(),
        everything: bool = True,
    ) -> None:
        """`changed` are read anew, `skipped` are not read whatever changed, `everything` reads all others too."""
        self.listed: tuple[Listed, ...] | None = None
        self.is_listed = threading.Event()
        self.found: dict[str, Known] = {}
        self.reading: dict[Reader, str] = {}
        self.given_up = False
        self.unread: set[str] = set()
        self.gone: set[str] = set()
        self._known, self._disks = known, disks
        self._has_pools = True
        self._left: deque[str] = deque()
        self._changed, self._skipped, self._everything = changed, skipped, everything

    @property
    def is_long(self) -> bool:
        """Whether so much is still to be read that a second connection pays."""
        return len(self._left) >= SIDE_BY_SIDE_MIN

    def run(self, handle: Any) -> None:
        """Look. Raises libvirtError if the list cannot be had, or the connection is lost."""
        due = self._list(handle)
        self.is_listed.set()
        self._read_all(handle, due, "first")

    def run_beside(self, handle: Any) -> None:
        """Read, over a second connection, what `run` has not come to yet. Raises libvirtError if that connection is lost."""
        self._read_all(handle, {domain.UUIDString(): domain for domain in handle.listAllDomains(0)}, "second")

    def _list(self, handle: Any) -> dict[str, Any]:
        """List all domains; those to be read, by instance."""
        domains = list_domains(handle)
        due = {listed.instance_id: domain for domain, listed in domains if self._is_due(listed)}
        self.unread = set(due) - self._skipped | {listed.instance_id for _, listed in domains if listed.instance_id in self._skipped}
        self.listed = tuple(listed for _, listed in domains)
        self._has_pools = bool(due) and has_active_pools(handle)
        self._left.extend(instance_id for instance_id in due if instance_id not in self._skipped)
        return due

    def _read_all(self, handle: Any, domains: Mapping[str, Any], reader: Reader) -> None:
        """Read what is left, each domain by whoever comes to it first."""
        self.reading[reader] = ""
        while not self.given_up:
            try:
                instance_id = self._left.popleft()
            except IndexError:
                break
            self.reading[reader] = instance_id
            self._read(handle, instance_id, domains.get(instance_id))
        self.reading.pop(reader, None)

    def _is_due(self, listed: Listed) -> bool:
        known = self._known.get(listed.instance_id)
        return self._everything or known is None or known.domain_id != listed.domain_id or listed.instance_id in self._changed

    def _read(self, handle: Any, instance_id: str, domain: Any | None) -> None:
        try:
            domain = handle.lookupByUUIDString(instance_id) if domain is None else domain
            text: str = domain.XMLDesc(0)
            digest = blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
            before = self._known.get(instance_id)
            read = before.domain if before is not None and before.xml_digest == digest else read_domain(text)
            domain_id = domain.ID()
            is_started_anew = before is not None and before.domain_id != domain_id
            self._disks.learn(handle, read, has_pools=self._has_pools, anew=is_started_anew)
            self.found[instance_id] = Known(domain_id, digest, read)
            self.unread.discard(instance_id)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:  # gone since the list was made: then it is not there
                self.gone.add(instance_id)
                self.unread.discard(instance_id)
            elif not handle.isAlive():
                raise
        except ValueError:
            pass  # it says of itself nothing that can be read: it stays among the unread, and the audit is not complete


def list_domains(handle: Any) -> list[tuple[Any, Listed]]:
    """Every domain, running or not, with its state. Raises libvirtError."""
    states = supported(lambda: handle.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, 0))
    if states is None:
        return [(domain, _listed(domain, *_state(domain))) for domain in handle.listAllDomains(0)]
    return [(domain, _listed(domain, said.get("state.state"), said.get("state.reason"))) for domain, said in states]


def _state(domain: Any) -> tuple[int | None, int | None]:
    try:
        state, reason = domain.state()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return None, None  # gone since the list was made; reading it tells
    return int(state), int(reason)


def _listed(domain: Any, state: int | None, reason: int | None) -> Listed:
    power_state = POWER_STATES.get(libvirt.VIR_DOMAIN_NOSTATE if state is None else state, "unknown")
    is_paused = state == libvirt.VIR_DOMAIN_PAUSED
    name = domain.name()[:TEXT_CHARACTERS_MAX]  # longer ones no record can say, and they must not cost the host its audit
    return Listed(
        instance_id=domain.UUIDString(),
        name=name,
        domain_id=domain.ID(),
        power_state=power_state,
        is_at_work=is_paused and reason in AT_WORK,
        is_arriving=is_paused and reason in ARRIVING,
        task_state=task_state(state, reason),
    )


def task_state(state: int | None, reason: int | None) -> str:
    """What is being done to a domain in this state for this reason, in Nova's words; nothing for most."""
    return MIGRATING if (state, reason) in ON_THE_WAY else ""
