"""Real QEMU guests that move, running, from one real libvirtd to another, with their disks, which takes its time."""

# ruff: noqa: E402 - what is imported below the check needs libvirt, which may not be installed

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

libvirt = pytest.importorskip(
    "libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)

from schemas.lifecycle import InstanceArrived, InstanceDeparted, InstanceStarted
from streams.cli.main import run
from tests.faults.harness import CLAIMLOG
from tests.kafka_broker import free_ports
from tests.libvirt_daemon import DISK, Daemon, guest_xml, running, until, uuid_of
from tests.libvirt_reporting import Reporting

pytestmark = pytest.mark.usefixtures("libvirt_events")

AS_NOVA = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PEER2PEER
    | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_NON_SHARED_DISK
)
"""A live migration with the guest's local disks, by the flags that Nova gives."""
DISK_MIB = 4
BANDWIDTH_MIB = 1
"""A second: the move takes some seconds, as it would take minutes with a real disk."""


@pytest.fixture(scope="module")
def daemons(libvirt_events: None) -> Iterator[tuple[Daemon, Daemon]]:
    with running() as left, running() as right:
        yield left, right


@pytest.fixture
def admins(daemons: tuple[Daemon, Daemon]) -> Iterator[list[Any]]:
    """Whoever moves guests, at both hosts."""
    handles = [libvirt.open(daemon.uri) for daemon in daemons]
    yield handles
    for daemon, handle in zip(daemons, handles, strict=True):
        daemon.clear(handle)
        handle.close()


class Move:
    """A move under way; `trouble` is libvirt's word if it failed."""

    def __init__(self, domain: Any, there: Daemon, xml: str) -> None:
        (port,) = free_ports(1)
        wanted = {
            libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://127.0.0.1:{port}",
            libvirt.VIR_MIGRATE_PARAM_BANDWIDTH: BANDWIDTH_MIB,
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: xml,
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: xml,
        }
        self.trouble = ""

        def go() -> None:
            try:
                domain.migrateToURI3(there.tcp_uri, wanted, AS_NOVA)
            except libvirt.libvirtError as error:
                self.trouble = str(error)

        self._thread = threading.Thread(target=go)
        self._thread.start()

    @property
    def under_way(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(60)
        assert not self.under_way


def with_disk(name: str, daemon: Daemon) -> str:
    """XML of a guest with a disk of its own at a host, full of what cannot be left out."""
    path = daemon.image(f"{name}.raw", "raw", f"{DISK_MIB}M")
    Path(path).write_bytes(os.urandom(DISK_MIB << 20))
    return guest_xml(name, devices=DISK.format(kind="raw", path=path, target="vda"))


@contextmanager
def reported(daemons: tuple[Daemon, Daemon]) -> Iterator[list[Reporting]]:
    """Both hosts; nobody asks a guest for its disks a second time."""
    with ExitStack() as stack:
        both = [Reporting(daemon.uri, node_id, disks_every_ms=600_000) for daemon, node_id in zip(daemons, ("alfa", "beta"), strict=True)]
        for reporting in both:
            stack.callback(reporting.host.close)
            reporting.audit()
        yield both


def arriving(audit: Any) -> bool:
    return [report.task_state for report in audit.instances or ()] == ["migrating"]


@contextmanager
def moving(daemons: tuple[Daemon, Daemon], admins: list[Any], name: str) -> Iterator[tuple[Reporting, Reporting, Any, Move]]:
    """Both hosts as they are reported, a guest that the second is just receiving from the first, and its move."""
    domain = admins[0].defineXML(with_disk(name, daemons[0]))
    domain.create()
    with reported(daemons) as (alfa, beta):
        move = Move(domain, daemons[1], with_disk(name, daemons[1]))
        until(lambda: arriving(beta.audit()))
        yield alfa, beta, domain, move


def test_a_guest_on_its_way_is_listed_at_both_hosts_and_whoever_receives_it_is_audited_in_full_all_the_while(
    daemons: tuple[Daemon, Daemon], admins: list[Any]
) -> None:
    with moving(daemons, admins, "mover") as (alfa, beta, _, move):
        for _ in range(20):
            time.sleep(0.05)
            beta.audit()
        here = alfa.audit()
        assert move.under_way
        move.end()
        beta.pump_until(lambda: beta.events)
        alfa.pump_until(lambda: alfa.events and type(alfa.events[-1]) is InstanceDeparted)
        left, there = alfa.audit(), beta.audit()
        beta.host.pump(0.2)

    assert move.trouble == ""
    assert all(audit.complete and not audit.unknown_instances for audit in [*beta.audits, here])
    on_its_way = next(audit for audit in beta.audits if arriving(audit)).instances[0]
    assert (on_its_way.power_state, on_its_way.resources.disk_mib) == ("paused", None)
    assert left.instances == ()
    (report,) = there.instances
    assert (report.power_state, report.task_state, report.resources.disk_mib) == ("running", "", DISK_MIB)
    assert [type(event) for event in beta.events[:1]] == [InstanceArrived]
    assert InstanceStarted in {type(event) for event in beta.events}
    assert (beta.events[-1].instance.task_state, beta.events[-1].instance.resources.disk_mib) == ("", DISK_MIB)


def test_a_move_that_is_broken_off_leaves_the_guest_where_it_was_and_nothing_where_it_was_to_go(
    daemons: tuple[Daemon, Daemon], admins: list[Any]
) -> None:
    with moving(daemons, admins, "stayer") as (alfa, beta, domain, move):
        domain.abortJob()
        move.end()
        beta.pump_until(lambda: beta.events and type(beta.events[-1]) is InstanceDeparted)
        alfa.host.pump(0.2)
        stayed, none = alfa.audit(), beta.audit()

    assert "aborted" in move.trouble
    assert none.instances == ()
    assert stayed.complete
    assert InstanceDeparted not in {type(event) for event in alfa.events}


@contextmanager
def process(*arguments: str, error: Path) -> Iterator[None]:
    """A `claimlog` of its own, which goes on until it is told to end, and then ends well."""
    with error.open("w") as out, subprocess.Popen([*CLAIMLOG, *arguments], stdout=subprocess.DEVNULL, stderr=out) as started:
        try:
            yield
            assert started.poll() is None, error.read_text()
        finally:
            started.terminate()
            ended = started.wait(30)
    assert ended == 0, error.read_text()


def test_a_live_migration_that_was_asked_for_moves_its_claim_and_is_no_leak(
    daemons: tuple[Daemon, Daemon], admins: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ("--log", f"sqlite:{tmp_path / 'l.sqlite'}")
    guest = uuid_of("tenant")

    def answer(*arguments: str) -> Any:
        capsys.readouterr()
        assert run([*arguments, *log, "-o", "json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)["items"]

    def claims() -> list[tuple[str, str]]:
        return sorted((claim["node_id"], claim["state"]) for claim in answer("claims", "list"))

    def soon(holds: Callable[[], bool]) -> None:
        def held() -> bool:
            time.sleep(0.3)
            return holds()

        until(held)

    hosts = [part for node_id, daemon in zip(("alfa", "beta"), daemons, strict=True) for part in ("--uri", f"{node_id}={daemon.uri}")]
    request = {
        "request_id": "move",
        "flavor": {"vcpus": 1, "memory_mib": 64},
        "boot_from_volume": True,
        "instance_ids": [guest],
        "action": "migrate",
        "live": True,
        "source_node": "alfa",
    }
    (tmp_path / "move.json").write_text(json.dumps(request))
    with ExitStack() as stack:
        stack.enter_context(process("produce", "libvirt", *hosts, "--interval", "0.5", *log, error=tmp_path / "producer"))
        soon((tmp_path / "l.sqlite").exists)
        stack.enter_context(process("run", "--state", str(tmp_path / "state"), *log, error=tmp_path / "host"))
        soon(lambda: [node["node_id"] for node in answer("nodes")] == ["alfa", "beta"])
        assert run(["place", "--vcpus", "1", "--memory", "64MiB", "--volume", "--instance", guest, "--on", "alfa", *log]) == 0
        xml = guest_xml("tenant")
        domain = admins[0].defineXML(xml)
        domain.create()
        soon(lambda: claims() == [("alfa", "confirmed")])

        assert run(["place", str(tmp_path / "move.json"), *log]) == 0
        assert claims() == [("alfa", "confirmed"), ("beta", "unconfirmed")]
        move = Move(domain, daemons[1], xml)
        move.end()
        assert move.trouble == ""
        soon(lambda: claims() == [("beta", "confirmed")])

        findings = answer("events", "--topic", "leak-findings")
        assert {finding["type"] for finding in findings} <= {"leak-suspected", "leak-resolved"}
        assert answer("leaks") == []
        amounts = {node["node_id"]: [node["memory_mib"][name] for name in ("reported", "tracked", "used")] for node in answer("nodes")}
        assert amounts == {"alfa": [0, 0, 0], "beta": [64, 64, 64]}
