"""What happened to a guest is told although the hypervisor is lost while it is being told, once and for all."""

# ruff: noqa: E402 - what is imported below the check needs libvirt, which may not be installed

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

libvirt = pytest.importorskip(
    "libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)

from producers.libvirt_connect import HypervisorUnreachable
from producers.libvirt_lifecycle import DomainWatch, Found
from schemas.audits import AuditFailed
from schemas.lifecycle import InstanceDeparted
from tests.libvirt_daemon import guest_xml, running, until, uuid_of
from tests.libvirt_reporting import Reporting

pytestmark = pytest.mark.usefixtures("libvirt_events")
NAMES = ("first", "second", "third")
DOMAIN = """<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>512</memory><vcpu>1</vcpu>
<os><type arch='i686'>hvm</type></os></domain>"""


@pytest.fixture
def guests() -> Iterator[dict[str, Any]]:
    """Stopped domains of test:///default, which all connections of a process share."""
    handle = libvirt.open("test:///default")
    yield {name: handle.defineXML(DOMAIN.format(name=name, uuid=uuid_of(name))) for name in NAMES}
    for domain in handle.listAllDomains(0):
        if domain.name() in NAMES:
            domain.undefine()
    handle.close()


@pytest.fixture
def reporting(guests: dict[str, Any]) -> Iterator[Reporting]:
    """The host with its guests told of."""
    reporting = Reporting("test:///default")
    reporting.audit()
    yield reporting
    reporting.host.close()


def watch_of(reporting: Reporting) -> DomainWatch:
    assert reporting.host._watch is not None
    return reporting.host._watch


def departed(events: list[Any]) -> list[tuple[str, bool]]:
    """Who left, and whether it was found instead of seen."""
    return [(event.instance.name, event.resync) for event in events if isinstance(event, InstanceDeparted)]


def test_what_departed_is_told_once_though_the_host_is_lost_at_the_next_event(
    guests: dict[str, Any], reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, find = watch_of(reporting), DomainWatch._find

    def lost_at_the_second(watch: DomainWatch, seen: Any, power_state: Any) -> Found:
        if seen.name == "second":
            raise HypervisorUnreachable("keepalive: the daemon is silent")
        return find(watch, seen, power_state)

    monkeypatch.setattr(DomainWatch, "_find", lost_at_the_second)
    for name in ("first", "second"):
        guests[name].undefine()
    until(lambda: watch._seen.qsize() == 2)
    told = reporting.host.pump(0.2)
    lost = not reporting.host.connected
    reporting.audit()

    assert (told, lost) == (1, True)
    assert departed(reporting.events) == [("first", False), ("second", True)]


def test_what_departed_before_a_watch_overran_is_told_and_what_departed_unheard_too(guests: dict[str, Any], reporting: Reporting) -> None:
    watch = watch_of(reporting)
    watch._seen_max = 1

    for name in NAMES:
        guests[name].undefine()
    until(lambda: watch._has_overrun)
    time.sleep(0.1)  # the third comes after the second, which has overrun it
    reporting.host.pump(0.2)
    reporting.audit()

    assert sorted(departed(reporting.events)) == [("first", False), ("second", True), ("third", True)]


def test_what_departed_is_told_though_the_look_at_disks_after_it_loses_the_host(
    guests: dict[str, Any], reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise HypervisorUnreachable("keepalive: the daemon is silent")

    guests["first"].undefine()
    until(lambda: watch_of(reporting)._seen.qsize() == 1)
    monkeypatch.setattr(reporting.host, "_tend_disks", lost)
    told = reporting.host.pump(0.2)

    assert (told, departed(reporting.events)) == (1, [("first", False)])
    assert not reporting.host.connected


def test_a_departure_whose_lookup_timed_out_is_told_by_the_second_audit_without_it(
    guests: dict[str, Any], reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests["first"].undefine()
    until(lambda: watch_of(reporting)._seen.qsize() == 1)
    with monkeypatch.context() as patch:
        patch.setattr(DomainWatch, "_find", lambda *_: Found())
        reporting.host.pump(0.2)

    told = []
    for _ in range(3):
        reporting.audit()
        told.append(departed(reporting.events))

    assert told == [[], [("first", True)], [("first", True)]]


def test_a_departure_that_waits_to_be_told_is_left_to_its_event(guests: dict[str, Any], reporting: Reporting) -> None:
    guests["first"].undefine()
    until(lambda: watch_of(reporting)._seen.qsize() == 1)
    reporting.audit()
    reporting.host.pump(0.2)
    reporting.audit()

    assert departed(reporting.events) == [("first", False)]


def test_guests_undefined_while_libvirtd_is_killed_have_departed(libvirt_events: None, monkeypatch: pytest.MonkeyPatch) -> None:
    find = DomainWatch._find
    with running() as daemon:
        admin = libvirt.open(daemon.uri)
        domains = [admin.defineXML(guest_xml(name)) for name in NAMES]
        reporting = Reporting(daemon.uri)
        reporting.audit()

        def killed_at_the_second(watch: DomainWatch, seen: Any, power_state: Any) -> Found:
            if seen.name == "second" and daemon.process is not None and daemon.process.poll() is None:
                daemon.kill()
                until(lambda: watch.calls.closed)
            return find(watch, seen, power_state)

        monkeypatch.setattr(DomainWatch, "_find", killed_at_the_second)
        for domain in domains[:2]:
            domain.undefine()
        until(lambda: watch_of(reporting)._seen.qsize() == 2)
        reporting.host.pump(0.2)
        monkeypatch.undo()
        daemon.start()
        until(lambda: not isinstance(reporting.audit(), AuditFailed))
        reporting.host.close()

    assert departed(reporting.events) == [("first", False), ("second", True)]
