"""A real libvirtd with real QEMU guests, reported as it runs: followed, killed, stopped, frozen, and asked a thousand times."""

# ruff: noqa: E402 - what is imported below the check needs libvirt, which may not be installed

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

libvirt = pytest.importorskip(
    "libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)

from producers import libvirt_connect
from producers.libvirt_connect import HypervisorUnreachable, Opener
from producers.libvirt_host import LibvirtHost
from producers.libvirt_system import Options
from schemas.audits import AuditFailed, HypervisorAudited
from schemas.inventory import PciDevice
from schemas.lifecycle import InstanceArrived, InstanceDeparted, InstancePaused, InstanceResized, InstanceStarted, InstanceStopped
from streams.cli.produce.publishing import last_epoch, publisher
from tests.cli_log import FleetLog
from tests.libvirt_daemon import DISK, Daemon, guest_xml, until, uuid_of
from tests.libvirt_reporting import Reporting

PLUGGABLE = """<domain type='qemu'><name>plugged</name><uuid>{uuid}</uuid><maxMemory slots='2' unit='MiB'>256</maxMemory>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features>
<cpu mode='custom'><model>qemu64</model><numa><cell id='0' cpus='0' memory='64' unit='MiB'/></numa></cpu></domain>"""
DIMM = "<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target></memory>"
PAUSED = libvirt.VIR_DOMAIN_START_PAUSED
POOL = "<pool type='dir'><name>images</name><target><path>{path}</path></target></pool>"


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[Any]:
    """Somebody who acts behind claimlog's back."""
    handle = libvirt.open(daemon.uri)
    yield handle
    handle = handle if handle.isAlive() else libvirt.open(daemon.uri)
    daemon.clear(handle)
    handle.close()


@pytest.fixture
def reporting(daemon: Daemon) -> Iterator[Reporting]:
    reporting = Reporting(daemon.uri)
    yield reporting
    reporting.host.close()


def names(events: list[Any]) -> list[str]:
    return [type(event).__name__.removeprefix("Instance") for event in events]


def test_a_guest_is_followed_from_its_definition_to_its_end(admin: Any, reporting: Reporting) -> None:
    reporting.audit()

    domain = admin.defineXML(guest_xml("life", vcpus=2))
    told = reporting.until_told(1)
    domain.createWithFlags(PAUSED)
    told += reporting.until_told(2)
    shown = reporting.audit()
    domain.resume()
    told += reporting.until_told(1)
    domain.suspend()
    told += reporting.until_told(1)
    domain.destroy()
    told += reporting.until_told(1)
    domain.undefine()
    told += reporting.until_told(1)

    assert [type(event) for event in told] == [
        InstanceArrived, InstanceStarted, InstancePaused, InstanceStarted, InstancePaused, InstanceStopped, InstanceDeparted,
    ]  # fmt: skip
    assert {event.instance.instance_id for event in told} == {uuid_of("life")}
    assert {(event.instance.resources.vcpus, event.instance.resources.memory_mib) for event in told} == {(2, 64)}
    assert [event.counter for event in told] == list(range(1, 8))
    assert [report.power_state for report in shown.instances] == ["paused"]
    assert (shown.hypervisor.physical.vcpus_used, shown.hypervisor.physical.instances_running) == (2, 1)


def test_an_audit_of_real_qemu_has_what_nova_reports_of_it(daemon: Daemon, admin: Any) -> None:
    audits = []
    for uri in (daemon.uri, daemon.tcp_uri, daemon.tls_uri):
        remote = Reporting(uri)
        audits.append(remote.audit())
        remote.host.close()
    host = audits[0].hypervisor

    assert len({audit.digest for audit in audits}) == 1
    _, memory_mib, cpus, *_ = admin.getInfo()
    assert (host.vcpus, host.memory_mib, host.hypervisor_type) == (cpus, memory_mib, "QEMU")
    assert host.hypervisor_version == admin.getVersion()
    assert host.cpu_info.architecture == "x86_64"
    assert host.cpu_info.features == tuple(sorted(host.cpu_info.features))
    assert host.cpu_info.cores * host.cpu_info.sockets * host.cpu_info.threads == cpus
    assert ("x86_64", "qemu", "hvm") in {(each.architecture, each.hypervisor_type, each.vm_mode) for each in host.supported_guests}
    assert [cell.cpus for cell in host.numa_cells] == [tuple(range(cpus))]
    assert host.physical.memory_mib_used + host.physical.memory_mib_free == host.physical.memory_mib_total
    assert 0 < host.physical.cells[0].memory_mib_free <= host.physical.memory_mib_total
    assert host.disk_mib is None  # there is no pool, which is not a disk of size zero
    assert host.stats == {"hypervisor_hostname": admin.getHostname()}
    assert all(device.vendor_id for device in host.pci_devices)


def test_memory_and_disks_plugged_into_a_running_guest_are_told_as_a_new_size_by_the_next_audit(
    daemon: Daemon, admin: Any, reporting: Reporting
) -> None:
    domain = admin.defineXML(PLUGGABLE.format(uuid=uuid_of("plugged")))
    domain.create()
    reporting.audit()
    image = daemon.image("plugged.qcow2", "qcow2", "20M")

    def sizes_told() -> list[tuple[int, int]]:
        before = len(reporting.events)
        reporting.host.pump(0.2)
        reporting.audit()
        assert {type(event) for event in reporting.events[before:]} <= {InstanceResized}
        return [(event.instance.resources.memory_mib, event.instance.resources.disk_mib) for event in reporting.events[before:]]

    reporting.host.pump(0.2)
    assert sizes_told() == []
    domain.attachDeviceFlags(DIMM, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    assert sizes_told() == [(192, 0)]
    domain.attachDeviceFlags(DISK.format(kind="qcow2", path=image, target="vdb"), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    until(lambda: sizes_told() == [(192, 20)])  # which may take a round that is under way to end
    domain.blockResize("vdb", 50 << 20, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)
    until(lambda: sizes_told() == [(192, 50)])
    assert sizes_told() == []


def test_disks_have_their_full_size_and_what_images_may_still_grow_is_not_available(daemon: Daemon, admin: Any) -> None:
    qcow2, raw = daemon.image("a.qcow2", "qcow2", "64M"), daemon.image("b.raw", "raw", "16M")
    devices = "".join(
        DISK.format(kind=kind, path=path, target=target) for kind, path, target in (("qcow2", qcow2, "vda"), ("raw", raw, "vdb"))
    )
    admin.createXML(guest_xml("disks", devices=devices), PAUSED)
    without_pool = Reporting(daemon.uri)
    pool = admin.storagePoolCreateXML(POOL.format(path=daemon.folder / "images"))
    with_pool = Reporting(daemon.uri, options=Options(refresh_pools=True))

    seen = [reporting.audit() for reporting in (with_pool, without_pool)]
    with_pool.host.close()
    without_pool.host.close()
    capacity, allocation, available = pool.info()[1:]
    pool.destroy()
    poolless = Reporting(daemon.uri)
    seen.append(poolless.audit())
    poolless.host.close()

    assert [audit.instances[0].resources.disk_mib for audit in seen] == [80, 80, 80]
    physical = seen[0].hypervisor.physical
    assert seen[0].hypervisor.disk_mib == capacity >> 20
    assert physical.disk_mib_used == pytest.approx(allocation >> 20, abs=256)  # others write to the same disk meanwhile
    taken_mib = -(-sum(Path(path).stat().st_blocks * 512 for path in (qcow2, raw)) >> 20)
    assert physical.disk_mib_available_least == pytest.approx((available >> 20) - (80 - taken_mib), abs=256)
    assert (seen[2].hypervisor.disk_mib, seen[2].hypervisor.physical.disk_mib_available_least) == (None, None)


def test_pools_of_one_file_system_count_once_and_those_of_others_are_added(daemon: Daemon, admin: Any) -> None:
    with TemporaryDirectory(dir="/dev/shm") as memory:
        Path(memory).chmod(0o755)  # the daemon is another user
        folders = {"one": daemon.folder / "one", "other": daemon.folder / "other", "memory": Path(memory)}
        pools = []
        for name, path in folders.items():
            path.mkdir(exist_ok=True)
            pools.append(admin.storagePoolCreateXML(f"<pool type='dir'><name>{name}</name><target><path>{path}</path></target></pool>"))
        reporting = Reporting(daemon.uri)
        host = reporting.audit().hypervisor
        reporting.host.close()
        sizes = [pool.info()[1] for pool in pools]
        for pool in pools:
            pool.destroy()

    assert host.disk_mib == (sizes[0] + sizes[2]) >> 20
    assert "storage_pools" not in host.stats


def test_pools_of_one_size_that_are_nobody_knows_where_count_once_and_are_said(daemon: Daemon) -> None:
    uri = daemon.test_uri()  # its folders are none of this machine's
    handle = libvirt.open(uri)
    second = handle.storagePoolCreateXML("<pool type='dir'><name>second</name><target><path>/second</path></target></pool>")
    reporting = Reporting(uri)
    host = reporting.audit().hypervisor
    reporting.host.close()
    capacity = second.info()[1]
    second.destroy()
    handle.close()

    assert host.disk_mib == capacity >> 20
    said = "counted once, as far as is known they are one: default-pool and second"
    assert host.stats["storage_pools"] == said


def test_the_audit_that_first_lists_a_guest_has_the_size_of_its_disks(daemon: Daemon, admin: Any) -> None:
    reporting = Reporting(daemon.uri, disks_every_ms=3_600_000)
    reporting.audit()
    disk = DISK.format(kind="raw", path=daemon.image("late.raw", "raw", "16M"), target="vda")
    admin.createXML(guest_xml("late", devices=disk), PAUSED)

    seen = reporting.audit()
    reporting.host.close()

    assert seen.instances[0].resources.disk_mib == 16
    assert not seen.unknown_instances


def test_a_host_offers_the_devices_that_it_is_told_to_and_all_if_it_is_told_none(daemon: Daemon) -> None:
    def devices(named: tuple[str, ...] | None) -> tuple[PciDevice, ...]:
        reporting = Reporting(daemon.uri, options=Options(pci_devices=named))
        found = reporting.audit().hypervisor
        reporting.host.close()
        return tuple(found.pci_devices)

    there = devices(None)

    assert devices(()) == ()
    assert devices(tuple(each.address for each in there[:1])) == there[:1]


@pytest.mark.parametrize("has_pool", [False, True])
def test_an_image_made_anew_where_another_guest_had_one_has_its_own_size(daemon: Daemon, admin: Any, *, has_pool: bool) -> None:
    pool = admin.storagePoolCreateXML(POOL.format(path=daemon.folder / "images")) if has_pool else None
    reporting = Reporting(daemon.uri, disks_every_ms=3_600_000)
    disk = DISK.format(kind="qcow2", path=daemon.image("again.qcow2", "qcow2", "40M"), target="vda")
    first = admin.createXML(guest_xml("first", devices=disk), PAUSED)

    def sizes() -> list[int | None]:
        if pool is not None:
            pool.refresh()
        reporting.host.pump(0.2)
        return [instance.resources.disk_mib for instance in reporting.audit().instances]

    seen = [sizes()]
    first.destroy()
    daemon.image("again.qcow2", "qcow2", "2M")
    second = admin.defineXML(guest_xml("second", devices=disk))
    stopped = sizes()
    second.createWithFlags(PAUSED)
    seen.append(sizes())
    second.destroy()
    daemon.image("again.qcow2", "qcow2", "100M")
    second.createWithFlags(PAUSED)
    seen.append(sizes())
    second.destroy()
    second.undefine()
    daemon.image("again.qcow2", "qcow2", "7M")
    gone = sizes()
    admin.createXML(guest_xml("second", devices=disk), PAUSED)
    seen.append(sizes())
    reporting.host.close()
    if pool is not None:
        pool.destroy()

    assert (seen, stopped, gone) == ([[40], [2], [100], [7]], [2] if has_pool else [None], [])


@pytest.mark.parametrize("how", ["snapshot", "copy"])
def test_a_disk_that_moved_to_another_file_is_of_the_size_that_it_has_there(daemon: Daemon, admin: Any, how: str) -> None:
    """libvirt has no event for a snapshot; a full pass of the audits would find it, many audits later."""
    reporting = Reporting(daemon.uri, disks_every_ms=100 if how == "snapshot" else 3_600_000)
    disk = DISK.format(kind="qcow2", path=daemon.image(f"{how}.qcow2", "qcow2", "12M"), target="vda")
    domain = admin.createXML(guest_xml("moves", devices=disk), PAUSED)
    source = f"<driver type='qcow2'/><source file='{daemon.folder}/images/{how}-2.qcow2'/>"
    other = f"<disk name='vda' type='file' snapshot='external'>{source}</disk>"

    def size() -> int | None:
        reporting.host.pump(0.3)
        reporting.audit()
        full = [audit.instances for audit in reporting.audits if audit.instances is not None]
        (instance,) = full[-1]
        told: int | None = instance.resources.disk_mib
        return told

    before = size()
    if how == "snapshot":
        flags = libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA
        domain.snapshotCreateXML(f"<domainsnapshot><disks>{other}</disks></domainsnapshot>", flags)
    else:
        domain.blockCopy("vda", other, None, libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB)
        until(lambda: (job := domain.blockJobInfo("vda")) and job["end"] and job["cur"] == job["end"])
        domain.blockJobAbort("vda", libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT)
    domain.blockResize("vda", 60 << 20, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)

    sizes = [size() for _ in range(4)]
    reporting.host.close()

    assert (before, sizes[-1]) == (12, 60), sizes


def test_a_guest_started_and_one_destroyed_behind_claimlogs_back_are_found_by_the_second_audit(
    daemon: Daemon, admin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)

    def reported() -> LibvirtHost:
        return LibvirtHost(
            daemon.uri,
            publisher(fleet.log),
            options=Options(),
            last_epoch=last_epoch(fleet.log, "libvirt"),
            wall_ms=lambda: fleet.now_ms,
            mono_ms=lambda: fleet.now_ms,
            node_id="c01",
        )

    host = reported()
    host.audit()
    fleet.carry()
    fleet.claim("r1/0/s-1.1", uuid_of("claimed"), "c01", memory_mib=64, vcpus=1)
    claimed = admin.createXML(guest_xml("claimed"), PAUSED)
    until(lambda: host.pump(0.1))
    fleet.now_ms += 60_000
    host.audit()
    fleet.carry()
    clean = fleet.run(capsys, "leaks", "-o", "json").json["items"]
    host.close()

    claimed.destroy()
    admin.createXML(guest_xml("stranger"), PAUSED)
    host = reported()
    found = []
    for _ in range(2):
        fleet.now_ms += 60_000
        host.audit()
        fleet.carry()
        found.append({item["instance_id"]: item for item in fleet.run(capsys, "leaks", "-o", "json").json["items"]})
    host.close()

    assert clean == []
    assert set(found[1]) == {uuid_of("claimed"), uuid_of("stranger")}
    stale, stranger = found[1][uuid_of("claimed")], found[1][uuid_of("stranger")]
    assert (stale["claim_id"], stale["kind"]) == ("r1/0/s-1.1", "orphan-claim")
    assert (stranger["kind"], stranger["state"]) == ("ghost-instance", "confirmed")
    assert (stale["state"], stale["missing"]) == ("confirmed", f"InstanceDeparted or InstanceDeleted of {uuid_of('claimed')} on c01")
    assert {"claim-requested", "instance-observed"} <= {cause["event"] for cause in stale["causes"]}
    assert "node-observed" in {cause["event"] for cause in stranger["causes"]}
    for cause in (*stale["causes"], *stranger["causes"]):
        (record,) = fleet.log.read(cause["topic"], cause["partition"], cause["offset"], 1)
        assert f'"type":"{cause["event"]}"'.encode() in record.value


def test_one_frozen_guest_holds_up_no_audit_and_is_unknown_since_it_last_answered(daemon: Daemon, admin: Any, reporting: Reporting) -> None:
    for name in ("frozen", "well"):
        admin.createXML(guest_xml(name), PAUSED)
    first = reporting.audit()

    with daemon.frozen("frozen"):
        reporting.pump_until(lambda: reporting.host._auditor.rounds.stuck)
        began = time.monotonic()
        during = reporting.audit()
        took_seconds = time.monotonic() - began
        daemon.kill()
        reporting.pump_until(lambda: not reporting.host.connected)
        daemon.start()
        anew = until(lambda: not isinstance(found := reporting.audit(), AuditFailed) and found)
    reporting.pump_until(lambda: not reporting.host._auditor.rounds.stuck)
    after = reporting.audit()

    assert (first.complete, after.complete) == (True, True)
    assert took_seconds < 5  # it takes milliseconds; the machine may be busy
    for audit in (during, anew):  # a new daemon knows nothing of it, and has not heard of the guest either
        assert (audit.complete, audit.unknown_instances) == (False, (uuid_of("frozen"),))
        by_name = {report.name: report for report in audit.instances}
        assert (by_name["well"].power_state, by_name["well"].unknown_since_ms) == ("paused", None)
        assert by_name["frozen"].power_state == "unknown"
        assert by_name["frozen"].resources == by_name["well"].resources  # what it was promised is known all the same
        assert first.taken_at_ms <= by_name["frozen"].unknown_since_ms <= during.taken_at_ms
    assert len({report.unknown_since_ms for audit in (during, anew) for report in audit.instances}) == 2  # since then, and None
    assert [report.unknown_since_ms for report in after.instances] == [None, None]


def test_while_libvirtd_is_stopped_audits_keep_their_deadline_and_say_since_when_nothing_is_known(
    daemon: Daemon, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long enough for keepalive to give the connections up: libvirt crashes then, if two calls wait on one of them."""
    monkeypatch.setattr(libvirt_connect, "KEEPALIVE_SECONDS", 1)
    admin.createXML(guest_xml("waits"), PAUSED)
    reporting = Reporting(daemon.uri, audit_timeout_seconds=1.5)
    known = until(lambda: not isinstance(found := reporting.audit(), AuditFailed) and found)

    took_seconds = []
    with daemon.stopped():
        for _ in range(2):
            began = time.monotonic()
            reporting.audit()
            took_seconds.append(time.monotonic() - began)
        opener = Opener(daemon.uri)
        for _ in range(3):
            with pytest.raises(HypervisorUnreachable, match=r"no answer in 0\.1 s"):
                opener.open(timeout_seconds=0.1)
        with pytest.raises(HypervisorUnreachable, match="3 earlier attempts to open it are still waiting"):
            opener.open(timeout_seconds=0.1)
        until(lambda: (reporting.audit(), not reporting.host.connected)[1])
        time.sleep(2)
    failed = [record for record in reporting.audits if record.taken_at_ms > known.taken_at_ms]
    after = until(lambda: not isinstance(found := reporting.audit(), AuditFailed) and found)
    reporting.host.close()

    assert {type(record) for record in failed} == {AuditFailed}
    assert max(took_seconds) < 10
    assert {record.unknown_since_ms for record in failed} == {known.taken_at_ms}
    left_of_the_deadline = re.search(r"no answer in ([\d.]+) s", failed[0].reason)
    assert left_of_the_deadline is not None, failed[0].reason
    assert 0 < float(left_of_the_deadline[1]) <= 1.5
    assert isinstance(after, HypervisorAudited)
    assert after.digest == known.digest
    assert [record.counter for record in reporting.audits] == list(range(1, len(reporting.audits) + 1))


def test_after_a_kill_of_libvirtd_its_guests_are_found_again_and_what_died_meanwhile_is_gone(
    daemon: Daemon, admin: Any, reporting: Reporting
) -> None:
    admin.createXML(guest_xml("stays"), PAUSED)
    dies = admin.createXML(guest_xml("dies"), PAUSED)
    known = reporting.audit()
    dies_pid = daemon.pid_of("dies")
    assert dies.isActive()

    daemon.kill()
    reporting.pump_until(lambda: not reporting.host.connected)
    failed = reporting.audit()
    os.kill(dies_pid, 9)
    daemon.start()
    # A snapshot in the first moment of a new daemon may still list who died while it was away; libvirt tells a moment later.
    until(lambda: (reporting.host.pump(0.05), _listed(reporting.audit()) == [uuid_of("stays")])[1])

    assert isinstance(failed, AuditFailed)
    assert failed.unknown_since_ms == known.taken_at_ms
    assert (known.epoch, {audit.epoch for audit in reporting.audits}) == (known.epoch, {known.epoch})
    epochs = [event.epoch for event in reporting.events]
    assert len(set(epochs)) == 2
    assert epochs == sorted(epochs)
    anew = [event for event in reporting.events if event.epoch == epochs[-1]]
    assert (anew[0].counter, anew[0].resync) == (1, True)
    # Who was lost with the connection has departed, told by the resync, or, if the new daemon listed it for a moment, by libvirt.
    assert uuid_of("dies") in {event.instance.instance_id for event in anew if isinstance(event, InstanceDeparted)}
    assert uuid_of("stays") in {event.instance.instance_id for event in anew if event.resync}


def _listed(audit: Any) -> list[str]:
    return [] if isinstance(audit, AuditFailed) or audit.instances is None else [report.instance_id for report in audit.instances]


def test_a_thousand_audits_take_no_memory_and_leave_no_file_and_no_thread_behind(daemon: Daemon, admin: Any) -> None:
    admin.createXML(guest_xml("steady"), PAUSED)
    resident_kib: list[int] = []
    files, threads = _open_files(), threading.active_count()
    reporting = Reporting(daemon.uri, disks_every_ms=1_000)

    for number in range(1_000):
        if number % 100 == 50:
            reporting.host.close()  # and so ten connections
        reporting.audit()
        reporting.host.pump(0.0)
        reporting.audits.clear()
        if number == 199:
            resident_kib.append(_resident_kib())
    resident_kib.append(_resident_kib())
    reporting.host.close()

    until(lambda: threading.active_count() <= threads and _open_files() <= files)
    assert resident_kib[1] - resident_kib[0] < 5 * 1024
    assert sum(size < 200 for size in reporting.sizes) > 900
    assert len(reporting.sizes) == 1_000


def _open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def _resident_kib() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
