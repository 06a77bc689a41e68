"""Audits of one hypervisor through libvirt: what it has, and every domain with its defined size.

An audit of a host where nothing changed is some ten calls, however many guests it has. None of them needs a guest's monitor, so a frozen
guest cannot hold it up; and if one guest's XML still hangs at the deadline, the audit is made of all the others. A guest that does not
answer is listed as last known, marked since when it is unknown, and the audit is not complete. What the driver does not support is "not
reported"; where there is not even a list, the audit has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

import libvirt
from msgspec import Struct, structs

from producers.libvirt_connect import Connection, HypervisorUnreachable, Pending, said
from producers.libvirt_disks import Disks, DiskSize, Guest, occupied_ms
from producers.libvirt_domains import Known, Listed, Reader, Survey
from producers.libvirt_rounds import Rounds, Stuck
from producers.libvirt_system import Facts, Options, look_at_host
from schemas.audits import InstanceReport
from schemas.inventory import Hypervisor, Physical
from schemas.units import TEXT_CHARACTERS_MAX

AUDIT_TIMEOUT_SECONDS = 30.0
"""An audit of 500 domains takes 0.1 s over a socket; libvirt itself gives up on a held state lock after 30 s."""

XML_FULL_EVERY = 20
"""Every 20th audit reads all domains anew although no event spoke of them: at one a minute a lost event is made good after 20 minutes."""

STOPPED_MAX = 50
"""libvirt has no event for a stopped domain that is changed (`virsh setmaxmem --config`), so so many are read anew in each audit, in turn.
One takes 0.2 ms, most of it waiting: nearly every host has all of its stopped ones read each time, within 10 ms."""

BESIDE_LIST_SECONDS = 0.5
"""A second connection lists in milliseconds. So long it is waited for though all is read, so that the next look does not find it busy."""

NOT_REFRESHED = "not refreshed"
"""How a host's `storage_pools` begin while libvirt cannot look at some of them again."""


class Look(Struct, frozen=True, kw_only=True):
    """What one look found; `unknown_instances` are those of which it could not be asked whether they are still as last known."""

    hypervisor: Hypervisor
    instances: tuple[InstanceReport, ...]
    unknown_instances: tuple[str, ...]
    hostname: str


class Auditor:
    """Looks at one hypervisor through whatever connection it is given, and keeps what need not be asked each time."""

    def __init__(
        self, options: Options, wall_ms: Callable[[], int], mono_ms: Callable[[], int], xml_full_every: int = XML_FULL_EVERY
    ) -> None:
        """`xml_full_every` 1 reads every domain in every audit."""
        self.rounds = Rounds(options, wall_ms, mono_ms)
        self.disks = Disks()
        self._options = options
        self._xml_full_every = xml_full_every
        self._known: dict[str, Known] = {}
        self._listed: tuple[Listed, ...] = ()
        self._facts: Facts | None = None
        self._host: Hypervisor | None = None
        self._reading: dict[str, Stuck] = {}
        self._changed: set[str] = set()
        self._unread_since_ms: dict[str, int] = {}
        self._until_full = 0
        self._stopped_last = ""
        self._last_ms: int | None = None

    def connected(self) -> None:
        """There is a new connection: nobody told what happened before it, so everything is asked for again."""
        self._facts, self._until_full = None, 0
        self._reading.clear()
        self.rounds.abandon()

    def devices_changed(self) -> None:
        """libvirt told of a device that came or went."""
        self._facts = None

    def guests(self) -> list[Guest]:
        """The domains that the last look found, for a round of looking at disks."""
        here = [(listed, self._known.get(listed.instance_id)) for listed in self._listed]
        return [Guest(listed.instance_id, known.domain, listed.may_be_asked) for listed, known in here if known is not None]

    def guests_unasked(self) -> list[Guest]:
        """Those of them that run and have a disk which nobody was asked about yet."""
        return [guest for guest in self.guests() if guest.is_active and self.disks.is_unasked(guest.domain)]

    def guests_unanswered(self) -> list[Guest]:
        """Those of them that run and have not answered, or were passed over, and are not being waited for."""
        unanswered = {instance_id for instance_id, stuck in self.rounds.stuck.items() if not stuck.is_waited_for}
        return [guest for guest in self.guests() if guest.is_active and guest.instance_id in unanswered]

    def keep_disks(self, sizes: dict[str, DiskSize]) -> None:
        """Take in what a round found; guests whose disks it did not find where their XML has them are read anew by the next look."""
        self.disks.keep(sizes, [known.domain for known in self._known.values()])
        moved, self.rounds.moved = self.rounds.moved, set()
        self._changed |= moved & self._known.keys()

    def look(
        self,
        connection: Connection,
        *,
        taken_at_ms: int,
        timeout_seconds: float,
        changed: AbstractSet[str] = frozenset(),
        second_connection: Callable[[], Connection] | None = None,
    ) -> None:
        """Look; `result` then says what was found. Domains in `changed` are read anew.

        Where many are to be read, `second_connection` is asked for one that reads beside the first. Raises HypervisorUnreachable if there
        is no list of domains within the deadline, and ValueError for XML that says nothing.
        """
        due_at = time.monotonic() + timeout_seconds
        self._changed |= changed
        self._reading = {i: stuck for i, stuck in self._reading.items() if stuck.pending is not None and not stuck.pending.done}
        is_full = self._until_full <= 0
        changed = self._changed.union(self._stopped_next())
        survey = Survey(self._known, self.disks, changed=changed, skipped=set(self._reading), everything=is_full)
        answer: dict[str, Any] = {}
        options, facts, stopped = self._options, None if is_full else self._facts, self.rounds.pools.stopped
        occupied = [instance_id for instance_id, stuck in self.rounds.stuck.items() if stuck.is_occupied]

        def job(handle: Any) -> None:
            try:
                answer["host"] = look_at_host(handle, options, facts, stopped)
                answer["free_again"] = [instance_id for instance_id in occupied if not _is_occupied(handle, instance_id)]
                survey.run(handle)
            finally:
                survey.is_listed.set()

        pending = connection.start(job)
        second = None if second_connection is None else _begin_second(survey, second_connection, timeout_seconds)
        since_ms = self._last_ms or taken_at_ms
        try:
            left_seconds = max(0.0, due_at - time.monotonic())
            pending.answer(left_seconds, waited_seconds=timeout_seconds - left_seconds)
            if second is not None:
                # One that has begun with no domain, since its own list does not come, has nothing left to begin with.
                longest_seconds = timeout_seconds if "second" in survey.reading else BESIDE_LIST_SECONDS
                second.wait(max(0.0, min(due_at - time.monotonic(), longest_seconds)))
        except libvirt.libvirtError as error:
            raise HypervisorUnreachable(f"{connection.uri}: {said(error)}") from error
        except HypervisorUnreachable:
            if survey.listed is None:
                raise
            self._pass_by(survey, "first", Stuck(since_ms, pending))
        finally:
            survey.given_up = True
        if second is not None and second.done:
            with suppress(libvirt.libvirtError):  # its connection is lost: what it did not read says so
                second.answer(0)
        elif second is not None:
            self._pass_by(survey, "second", Stuck(since_ms, second))
        self._host, self._facts = answer["host"]
        for instance_id in answer["free_again"]:
            self.rounds.stuck.pop(instance_id, None)
        self._keep(survey, taken_at_ms)
        self._until_full = self._xml_full_every - 1 if is_full else self._until_full - 1

    def result(self) -> Look:
        """What the last look found, with what the rounds know by now. Raises AssertionError before the first look."""
        assert self._host is not None
        assert self._facts is not None
        since_ms = self._unread_since_ms | {instance_id: stuck.since_ms for instance_id, stuck in self.rounds.stuck.items()}
        reports = [self._report(listed, since_ms.get(listed.instance_id)) for listed in self._listed]
        trouble = f"{NOT_REFRESHED}: {self.rounds.pools_trouble}"[:TEXT_CHARACTERS_MAX]
        stats = self._host.stats | ({"storage_pools": trouble} if self.rounds.pools_trouble else {})
        return Look(
            hypervisor=structs.replace(self._host, physical=self._physical(self._host.physical), stats=stats),
            instances=tuple(sorted(reports, key=lambda each: each.instance_id)),
            unknown_instances=tuple(sorted(report.instance_id for report in reports if report.unknown_since_ms is not None)),
            hostname=self._facts.hostname,
        )

    def _stopped_next(self) -> list[str]:
        """The stopped domains of the last look whose turn it is."""
        chosen = in_turn((listed.instance_id for listed in self._listed if not listed.is_active), self._stopped_last, STOPPED_MAX)
        self._stopped_last = chosen[-1] if chosen else ""
        return chosen

    def _pass_by(self, survey: Survey, reader: Reader, stuck: Stuck) -> None:
        """The list is there, and one domain does not let itself be read: it is passed by until its call returns."""
        if hanging := survey.reading.get(reader):
            self._reading[hanging] = stuck

    def _keep(self, survey: Survey, taken_at_ms: int) -> None:
        # A reader that was given up may still end: what it reads after this line is unread, and never neither read nor unread.
        unread = set(survey.unread)
        found, gone = dict(survey.found), set(survey.gone)
        self._listed = tuple(listed for listed in survey.listed or () if listed.instance_id not in gone)
        here = {listed.instance_id for listed in self._listed}
        self.disks.forget(self._known.keys() - here)
        self._known = {i: known for i, known in (self._known | found).items() if i in here}
        # What was to be read and was not is read next time.
        self._changed = unread & here
        self._unread_since_ms = {
            i: self._unread_since_ms.get(i, taken_at_ms if self._last_ms is None else self._last_ms) for i in unread & here
        }
        self.rounds.forget(here, {listed.instance_id for listed in self._listed if listed.is_active})
        self._last_ms = taken_at_ms

    def _report(self, listed: Listed, since_ms: int | None) -> InstanceReport:
        """The domain as listed; its size as last known, or not reported."""
        known = self._known.get(listed.instance_id)
        power_state = "unknown" if listed.instance_id in self.rounds.stuck else listed.power_state
        if known is None:
            return InstanceReport(
                instance_id=listed.instance_id,
                name=listed.name,
                power_state=power_state,
                task_state=listed.task_state,
                unknown_since_ms=since_ms,
            )
        disk_mib = self.disks.capacity_mib(known.domain)
        return known.domain.report(power_state, disk_mib, self._options.dedicated_cpus, since_ms, listed.task_state)

    def _physical(self, host: Physical) -> Physical:
        """The host's own figures with what its guests add up to."""
        active = [self._known.get(listed.instance_id) for listed in self._listed if listed.is_active]
        grows_mib = self.disks.overcommitted_mib(known.domain for known in self._known.values())
        all_known = len(self._known) == len(self._listed)
        least_mib = None if host.disk_mib_free is None or grows_mib is None or not all_known else host.disk_mib_free - grows_mib
        return structs.replace(
            host,
            vcpus_used=None if None in active else sum(known.domain.vcpus for known in active if known is not None),
            instances_running=len(active),
            workload=sum(listed.is_at_work for listed in self._listed),
            disk_mib_available_least=least_mib,
        )


def in_turn(names: Iterable[str], last: str, most: int) -> list[str]:
    """Up to `most` of the names, those after `last` first, so that whoever goes on with the last of them comes to all."""
    return sorted(names, key=lambda name: (name <= last, name))[:most]


def _begin_second(survey: Survey, second_connection: Callable[[], Connection], timeout_seconds: float) -> Pending[None] | None:
    """Have a second connection read beside the first; None where little is to be read, or there is no other to be had.

    A domain that it began with and lost its connection over stays unread, and the audit says so.
    """
    survey.is_listed.wait(timeout_seconds)
    if not survey.is_long:
        return None
    try:
        return second_connection().start(survey.run_beside)
    except HypervisorUnreachable:
        return None  # the first reads all of it, or finds the same and says it


def _is_occupied(handle: Any, instance_id: str) -> bool:
    """Whether the guest is still at a command that it was at before."""
    try:
        return occupied_ms(handle.lookupByUUIDString(instance_id)) > 0
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return False
