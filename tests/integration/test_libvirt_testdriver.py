"""Audits and life-cycle events from a driver inside the real libvirt: test:///default, and a node file of our own."""

# ruff: noqa: E402 - what is imported below the check needs libvirt, which may not be installed

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

libvirt = pytest.importorskip(
    "libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)

from producers.libvirt_audit import Auditor, in_turn
from producers.libvirt_connect import Connection, HypervisorUnreachable, Worker, connect
from producers.libvirt_disks import Disks
from producers.libvirt_host import LibvirtHost
from producers.libvirt_lifecycle import DomainWatch, Overrun
from producers.libvirt_system import Options, is_offered, look_at_host
from producers.source import AuditSource, EventSource
from schemas.audits import AuditFailed, HypervisorAudited, InstanceReport
from schemas.codec import decode, decode_keyed, encode
from schemas.inventory import CpuInfo, PciDevice, SupportedGuest
from schemas.lifecycle import InstanceArrived, InstanceDeparted, InstancePaused, InstanceResized, InstanceStarted, InstanceStopped
from schemas.resources import ObservedResources
from schemas.topics import AUDITS, LIFECYCLE
from tests.libvirt_reporting import Reporting

pytestmark = pytest.mark.usefixtures("libvirt_events")
TEST_UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
NEW_UUID = "0c7f4f0e-5d4b-4a39-9d41-0b7d5a0c1e11"
DOMAIN = f"""<domain type='test'><name>web-1</name><uuid>{NEW_UUID}</uuid><memory unit='MiB'>512</memory><vcpu>2</vcpu>
<os><type arch='i686'>hvm</type></os></domain>"""
NODE = """<node>
  <cpu><mhz>2600</mhz><model>x86_64</model><active>64</active><nodes>2</nodes><sockets>1</sockets><cores>16</cores><threads>2</threads></cpu>
  <memory>268435456</memory>
  <domain type='test'><name>one</name><uuid>11111111-0000-4000-8000-000000000001</uuid><memory unit='KiB'>2097153</memory>
    <vcpu current='1'>4</vcpu><os><type arch='x86_64'>hvm</type></os>
    <devices><disk type='file' device='disk'><source file='/pool/one.qcow2'/><target dev='vda'/></disk>
      <hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='0x81' slot='0' function='0x1'/></source></hostdev>
    </devices></domain>
  <domain type='test' xmlns:test='http://libvirt.org/schemas/domain/test/1.0'>
    <name>off</name><uuid>11111111-0000-4000-8000-000000000002</uuid><memory unit='GiB'>1</memory><vcpu>2</vcpu>
    <os><type arch='x86_64'>hvm</type></os><test:runstate>5</test:runstate></domain>
  <pool type='dir'><name>instances</name><uuid>22222222-0000-4000-8000-000000000001</uuid><target><path>/pool</path></target>
    <volume type='file'><name>one.qcow2</name><capacity unit='GiB'>20</capacity><allocation>0</allocation>
      <target><path>/pool/one.qcow2</path></target></volume></pool>
  <device><name>computer</name><capability type='system'><hardware><uuid>33333333-0000-4000-8000-000000000001</uuid></hardware>
    <firmware/></capability></device>
  <device><name>pci_0000_81_00_1</name><parent>computer</parent><capability type='pci'><class>0x020000</class>
    <domain>0</domain><bus>129</bus><slot>0</slot><function>1</function><product id='0x154d'>NIC</product><vendor id='0x8086'>Intel</vendor>
    <capability type='phys_function'><address domain='0x0000' bus='0x81' slot='0x00' function='0x0'/></capability>
    <numa node='1'/></capability></device>
</node>"""


@pytest.fixture
def host() -> Iterator[Connection]:
    """test:///default with its one domain as it was; all connections of a process share it."""
    connection = connect("test:///default", read_only=False)
    yield connection
    for domain in connection.handle.listAllDomains(0):
        if domain.UUIDString() == NEW_UUID:
            if domain.isActive():
                domain.destroy()
            if domain.isPersistent():
                domain.undefine()
        elif domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
            domain.resume()
    connection.close()


def audit(connection: Connection, source: AuditSource | None = None, **options: Any) -> Any:
    """What one look finds, as the record it becomes."""
    source = source or AuditSource("vm", "libvirt", 1)
    auditor = Auditor(Options(**options), lambda: 1_000, lambda: 10)
    auditor.look(connection, taken_at_ms=1_000, timeout_seconds=20)
    found = auditor.result()
    return source.audited(found.hypervisor, found.instances, taken_at_ms=1_000, mono_ms=10, unknown_instances=found.unknown_instances)


def watch(connection: Connection, **options: Any) -> tuple[DomainWatch, list[Any]]:
    """A started watch, and what its resync said."""
    ticks = iter(range(100, 100_000))
    events = connect("test:///default")
    domain_watch = DomainWatch(events, connection, options=Options(), disks=Disks(), clock_ms=lambda: next(ticks), **options)
    domain_watch.register()
    return domain_watch, domain_watch.resync(EventSource("vm", "libvirt", 5), audit(connection).instances, 100)


def drained(domain_watch: DomainWatch, count: int) -> list[Any]:
    """The next `count` events at least; libvirt's thread delivers within milliseconds."""
    deadline = time.monotonic() + 5
    found: list[Any] = []
    while len(found) < count and time.monotonic() < deadline:
        found += domain_watch.drain(wait_seconds=0.2)
    return found + list(domain_watch.drain(wait_seconds=0.05))


def test_an_audit_of_the_default_host_says_what_libvirt_reports(host: Connection) -> None:
    found = audit(host)

    assert isinstance(found, HypervisorAudited)
    assert found.hypervisor is not None
    assert (found.hypervisor.vcpus, found.hypervisor.memory_mib, found.hypervisor.disk_mib) == (16, 3_072, 102_400)
    assert (found.hypervisor.hypervisor_type, found.hypervisor.hypervisor_version) == ("TEST", 2)
    assert found.hypervisor.host_uuid == "11111111-2222-3333-4444-555555555555"
    assert [(cell.cell_id, cell.memory_mib, len(cell.cpus), cell.socket) for cell in found.hypervisor.numa_cells] == [
        (0, 2_048, 8, 0),
        (1, 4_096, 8, 1),
    ]
    assert [[(page.size_kib, page.total) for page in cell.pages] for cell in found.hypervisor.numa_cells] == [
        [(2_048, 0), (1_048_576, 0)]
    ] * 2
    assert found.hypervisor.supported_guests == tuple(
        SupportedGuest(architecture="i686", hypervisor_type="test", vm_mode=mode) for mode in ("hvm", "xen")
    )
    assert found.hypervisor.cpu_info == CpuInfo(architecture="i686", cells=2, sockets=2, cores=2, threads=2)
    assert found.instances == (
        InstanceReport(
            instance_id=TEST_UUID, name="test", resources=ObservedResources(vcpus=2, pcpus=0, memory_mib=8_192), power_state="running"
        ),
    )
    assert found.complete
    assert decode(AUDITS, encode(found)) == found


def test_a_node_file_is_audited_with_stopped_domains_disks_and_devices(tmp_path: Path) -> None:
    (tmp_path / "node.xml").write_text(NODE)
    connection = connect(f"test://{tmp_path}/node.xml")

    found = audit(connection, host_ip="192.0.2.1", dedicated_cpus=frozenset({2, 3}))
    connection.close()

    assert isinstance(found, HypervisorAudited)
    assert found.hypervisor is not None
    assert found.instances is not None
    assert (found.hypervisor.vcpus, found.hypervisor.pcpus, found.hypervisor.memory_mib) == (62, 2, 262_144)
    assert (found.hypervisor.host_uuid, found.hypervisor.host_ip) == ("33333333-0000-4000-8000-000000000001", "192.0.2.1")
    assert found.hypervisor.pci_devices == (
        PciDevice(
            address="0000:81:00.1",
            vendor_id="8086",
            product_id="154d",
            device_type="type-VF",
            numa_cell=1,
            physical_function="0000:81:00.0",
        ),
    )
    one, off = found.instances
    assert one.resources == ObservedResources(vcpus=4, pcpus=0, memory_mib=2_049, disk_mib=20_480)
    assert (one.power_state, one.pci_addresses) == ("running", ("0000:81:00.1",))
    assert (off.resources, off.power_state) == (ObservedResources(vcpus=2, pcpus=0, memory_mib=1_024, disk_mib=0), "stopped")


def test_a_disk_on_the_network_hides_no_other_disk_of_its_guest(tmp_path: Path) -> None:
    network = "<disk type='network' device='disk'><source protocol='nbd' name='n'><host name='h'/></source><target dev='vdb'/></disk>"
    (tmp_path / "node.xml").write_text(NODE.replace("<hostdev", f"{network}<hostdev"))
    connection = connect(f"test://{tmp_path}/node.xml")

    found = audit(connection)
    connection.close()

    assert found.instances[0].resources.disk_mib == 20_480


def test_the_second_audit_of_an_idle_host_is_short_and_a_new_domain_makes_it_full(host: Connection) -> None:
    source = AuditSource("vm", "libvirt", 1)
    full, short = audit(host, source), audit(host, source)

    host.handle.defineXML(DOMAIN)

    changed = audit(host, source)
    assert (short.instances, short.digest) == (None, full.digest)
    assert [report.instance_id for report in changed.instances] == [NEW_UUID, TEST_UUID]
    assert changed.instances[0].power_state == "stopped"


def test_a_cpu_whose_clock_moves_is_no_reason_to_ask_for_all_of_a_host_anew(host: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    _, facts = look_at_host(host.handle, Options())
    get_info = libvirt.virConnect.getInfo

    def got(handle: Any, *, at: int) -> list[Any]:
        info = get_info(handle)
        return [*info[:at], info[at] + 1, *info[at + 1 :]]

    kept = []
    for at in (3, 1):  # its MHz, and its memory
        monkeypatch.setattr(libvirt.virConnect, "getInfo", partialmethod(got, at=at))
        kept.append(look_at_host(host.handle, Options(), facts)[1] is facts)

    assert kept == [True, False]


def test_a_pool_that_is_not_there_fails_the_audit_with_its_name(host: Connection) -> None:
    with pytest.raises(ValueError, match="storage pools nvme: not active on this host"):
        audit(host, pools=("default-pool", "nvme"))


def test_dedicated_cpus_that_the_host_does_not_have_fail_the_audit_instead_of_being_counted(host: Connection) -> None:
    with pytest.raises(ValueError, match=r"dedicated CPUs 16, 17 are not this host's, which has 16 CPUs up to 15"):
        audit(host, dedicated_cpus=frozenset({14, 15, 16, 17}))


@pytest.mark.parametrize(
    ("named", "offered"),
    [
        (None, True),
        ((), False),
        (("0000:3b:00.1",), True),
        (("0000:3b:*",), True),
        (("8086:1520",), True),
        (("8086:*", "10de:*"), True),
        (("0000:3b:00.?",), True),
        (("0000:3c:*", "8086:1521"), False),
    ],
)
def test_guests_may_have_the_devices_that_are_named_by_address_or_kind(named: tuple[str, ...] | None, *, offered: bool) -> None:
    assert is_offered(PciDevice(address="0000:3b:00.1", vendor_id="8086", product_id="1520"), named) == offered


def test_a_disk_in_a_pool_that_is_stopped_has_no_size_and_its_guest_is_known_all_the_same(host: Connection) -> None:
    pool = host.handle.storagePoolDefineXML("<pool type='dir'><name>stopped</name><target><path>/stopped</path></target></pool>")
    disk = "<disk type='volume' device='disk'><source pool='stopped' volume='v'/><target dev='vda'/></disk>"
    host.handle.defineXML(DOMAIN.replace("</domain>", f"<devices>{disk}</devices></domain>"))

    found = audit(host)
    pool.undefine()

    assert found.complete
    assert found.instances[0].resources == ObservedResources(vcpus=2, pcpus=0, memory_mib=512)


def test_a_stopped_domain_that_was_changed_without_an_event_has_its_new_size_in_the_next_audit(host: Connection) -> None:
    domain = host.handle.defineXML(DOMAIN)
    reporting = Reporting("test:///default", "vm")
    reporting.audit()

    domain.setVcpusFlags(6, libvirt.VIR_DOMAIN_AFFECT_CONFIG | libvirt.VIR_DOMAIN_VCPU_MAXIMUM)
    found = reporting.audit()

    reporting.host.close()
    assert [(each.name, each.resources.vcpus) for each in found.instances if each.power_state == "stopped"] == [("web-1", 6)]
    assert [(type(event), event.instance.resources.vcpus) for event in reporting.events[2:]] == [(InstanceResized, 6)]


def test_many_stopped_domains_are_read_in_turn() -> None:
    rounds = [["a", "b"], ["c", "d"], ["e", "a"]]

    assert [in_turn("edcba", last, 2) for last in ("", "b", "d")] == rounds
    assert [in_turn(names, "b", 2) for names in ("", "b", "acd")] == [[], ["b"], ["c", "d"]]


def test_a_closed_connection_fails_the_audit(host: Connection) -> None:
    connection = connect("test:///default")
    connection.close()

    with pytest.raises(HypervisorUnreachable, match="test:///default: closed by us"):
        audit(connection)


def test_a_watch_starts_with_what_is_there(host: Connection) -> None:
    domain_watch, resync = watch(host)
    domain_watch._events.close()

    assert [(type(event), event.instance.instance_id, event.resync, event.epoch, event.counter) for event in resync] == [
        (InstanceArrived, TEST_UUID, True, 5, 1)
    ]


def test_the_life_of_a_domain_is_told_event_by_event(host: Connection) -> None:
    domain_watch, _ = watch(host)

    domain = host.handle.defineXML(DOMAIN)
    domain.create()
    told = drained(domain_watch, 2)
    domain.suspend()
    told += drained(domain_watch, 1)
    domain.resume()
    told += drained(domain_watch, 1)
    domain.destroy()
    told += drained(domain_watch, 1)
    domain.undefine()
    told += drained(domain_watch, 1)

    domain_watch._events.close()
    assert [type(event) for event in told] == [
        InstanceArrived,
        InstanceStarted,
        InstancePaused,
        InstanceStarted,
        InstanceStopped,
        InstanceDeparted,
    ]
    assert {event.instance.instance_id for event in told} == {NEW_UUID}
    assert {event.instance.resources.memory_mib for event in told} == {512}
    assert [event.instance.power_state for event in told[1:5]] == ["running", "paused", "running", "stopped"]
    assert [event.counter for event in told] == [2, 3, 4, 5, 6, 7]
    assert [event.event_time_ms for event in told] == sorted(event.event_time_ms for event in told)
    assert not any(event.resync for event in told)


def test_a_transient_domain_that_stops_has_departed(host: Connection) -> None:
    domain_watch, _ = watch(host)

    domain = host.handle.createXML(DOMAIN, 0)
    told = drained(domain_watch, 2)
    domain.destroy()
    told += drained(domain_watch, 1)

    domain_watch._events.close()
    assert [type(event) for event in told] == [InstanceArrived, InstanceStarted, InstanceDeparted]


def test_a_domain_defined_anew_with_another_size_is_resized(host: Connection) -> None:
    domain_watch, _ = watch(host)

    host.handle.defineXML(DOMAIN)
    told = drained(domain_watch, 1)
    host.handle.defineXML(DOMAIN.replace("<vcpu>2</vcpu>", "<vcpu>4</vcpu>"))
    told += drained(domain_watch, 1)

    domain_watch._events.close()
    assert [(type(event), event.instance.resources.vcpus) for event in told] == [(InstanceArrived, 2), (InstanceResized, 4)]


def test_a_domain_that_came_and_went_unseen_still_arrived_and_departed(host: Connection) -> None:
    """Both events wait when the watch looks: the domain is gone, so its size is not reported, which is not zero."""
    domain_watch, _ = watch(host)

    domain = host.handle.defineXML(DOMAIN)
    domain.undefine()
    time.sleep(0.3)

    told = drained(domain_watch, 2)
    domain_watch._events.close()
    assert [(type(event), event.instance.resources) for event in told] == [
        (InstanceArrived, ObservedResources()),
        (InstanceDeparted, ObservedResources()),
    ]


def test_undefining_a_running_domain_is_no_departure_until_it_stops(host: Connection) -> None:
    domain_watch, _ = watch(host)
    domain = host.handle.defineXML(DOMAIN)
    domain.create()
    drained(domain_watch, 2)

    domain.undefine()
    told = drained(domain_watch, 0)
    domain.destroy()
    told += drained(domain_watch, 1)

    domain_watch._events.close()
    assert [type(event) for event in told] == [InstanceDeparted]


def test_a_host_that_is_not_there_is_named_with_libvirts_words() -> None:
    with pytest.raises(HypervisorUnreachable, match=r"test:///no/such/node.xml: .*\(libvirt error \d+\)"):
        connect("test:///no/such/node.xml")


def test_a_call_that_hangs_is_given_up_and_the_next_is_refused_until_it_returns() -> None:
    worker, gate = Worker("stuck"), threading.Event()

    with pytest.raises(HypervisorUnreachable, match=r"stuck: no answer in 0.05 s"):
        worker.start(gate.wait).answer(0.05)
    with pytest.raises(HypervisorUnreachable, match="an earlier call is still waiting"):
        worker.start(lambda: 1).answer(5)
    gate.set()

    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            assert worker.start(lambda: 7).answer(5) == 7
            break
        except HypervisorUnreachable:
            time.sleep(0.01)
    else:
        pytest.fail("the worker did not come back")
    worker.close()


def test_what_a_call_raises_is_raised() -> None:
    worker = Worker("w")

    with pytest.raises(ZeroDivisionError):
        worker.start(lambda: 1 // 0).answer(5)
    worker.close()


class Published:
    """What a host published, decoded; a host that was on the log before had epoch 7 there."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any]] = []
        self.full = False

    def __call__(self, topic: str, key: bytes, value: bytes, headers: Any) -> None:
        if self.full:
            raise OSError("no space left")
        self.records.append((topic, decode_keyed(topic, key, value)))

    def of(self, topic: str) -> list[Any]:
        return [record for name, record in self.records if name == topic]


def reporting(uri: str, published: Published, **options: Any) -> LibvirtHost:
    ticks = iter(range(1_000, 100_000))
    return LibvirtHost(
        uri, published, options=Options(), last_epoch=lambda *_: 7_000, wall_ms=lambda: next(ticks), mono_ms=lambda: 5, **options
    )


def test_a_host_that_was_lost_is_connected_again_with_a_new_epoch_and_a_resync(host: Connection) -> None:
    published = Published()
    source = reporting("test:///default", published)
    source.audit()
    connection = source._calls
    assert connection is not None

    connection.closed = "keepalive: the daemon is silent"
    source.pump(0.01)
    assert not source.connected
    host.handle.defineXML(DOMAIN)
    source.audit()

    source.close()
    events = published.of(LIFECYCLE)
    assert [(event.instance.instance_id, event.epoch, event.counter, event.resync) for event in events] == [
        (TEST_UUID, 7_001, 1, True),
        (NEW_UUID, 7_002, 1, True),
        (TEST_UUID, 7_002, 2, True),
    ]
    audits = published.of(AUDITS)
    assert [(audit.epoch, audit.counter, len(audit.instances)) for audit in audits] == [(7_001, 1, 1), (7_001, 2, 2)]


def test_a_host_that_is_connected_anew_overtakes_no_process_that_began_to_report_it_later(host: Connection) -> None:
    now_ms = [1_000_000]
    reports = {name: Reporting("test:///default", wall_ms=lambda: now_ms[0]) for name in ("older", "newer")}
    for report in reports.values():
        now_ms[0] += 1_000
        report.audit()

    for name in ("newer", "older"):
        now_ms[0] += 60_000
        reports[name].host._leave("libvirtd was started anew")
        reports[name].audit()

    epochs = {name: [event.epoch for event in report.events] for name, report in reports.items()}
    for report in reports.values():
        report.host.close()
    assert epochs == {"older": [1_001_000, 1_001_001], "newer": [1_002_000, 1_002_001]}


def test_a_watch_that_overran_says_so_and_its_host_starts_anew_with_a_resync(host: Connection) -> None:
    domain_watch, _ = watch(host, seen_max=2)
    published = Published()
    source = reporting("test:///default", published)
    source.audit()
    assert source._watch is not None
    source._watch._seen_max = 2

    domain = host.handle.defineXML(DOMAIN)
    domain.create()
    domain.suspend()
    deadline = time.monotonic() + 5
    while not (domain_watch._has_overrun and source._watch._has_overrun) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(Overrun, match="more than 2 events waited"):
        list(domain_watch.drain())
    source.pump(0.0)
    lost = not source.connected
    source.audit()

    domain_watch._events.close()
    source.close()
    events = published.of(LIFECYCLE)
    assert lost
    assert [(event.instance.name, event.epoch, event.resync) for event in events] == [
        ("test", 7_001, True), ("web-1", 7_001, False), ("web-1", 7_001, False), ("web-1", 7_002, True), ("test", 7_002, True),
    ]  # fmt: skip
    assert events[3].instance.power_state == "paused"


def test_a_host_that_does_not_answer_is_tried_again_after_pauses_that_double_up_to_a_minute() -> None:
    published, now_ms = Published(), [0]
    source = LibvirtHost(
        "test:///no/such/node.xml",
        published,
        options=Options(),
        last_epoch=lambda *_: None,
        wall_ms=lambda: 1_000,
        mono_ms=lambda: now_ms[0],
        node_id="c09",
        chance=lambda: 1.0,
    )

    pauses, too_early = [], []
    for _ in range(9):
        source.audit()
        pauses.append(source.retry_in_ms)
        too_early.append(source.audit())
        now_ms[0] += pauses[-1]

    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    last = too_early[-1]
    assert isinstance(last, AuditFailed)
    assert last.reason.endswith("; trying again in 60 s")
    assert "test:///no/such/node.xml" in last.reason
    assert [record.counter for record in published.of(AUDITS)] == list(range(1, 19))


def test_a_host_publishes_its_events_as_they_come(host: Connection) -> None:
    published = Published()
    source = reporting("test:///default", published, node_id="c01")
    source.audit()

    host.handle.defineXML(DOMAIN)
    deadline = time.monotonic() + 5
    while source.events_published < 2 and time.monotonic() < deadline:
        source.pump(0.1)

    source.close()
    assert [(event.node_id, event.instance.name, event.resync) for event in published.of(LIFECYCLE)] == [
        ("c01", "test", True),
        ("c01", "web-1", False),
    ]


def test_a_host_that_never_answered_is_unknown_if_its_name_is_known() -> None:
    published = Published()

    with pytest.raises(HypervisorUnreachable):
        reporting("test:///no/such/node.xml", published).audit()
    record = reporting("test:///no/such/node.xml", published, node_id="c09").audit()

    assert isinstance(record, AuditFailed)
    assert (record.node_id, record.epoch, published.of(AUDITS)) == ("c09", 7_001, [record])


def test_an_audit_that_was_not_acknowledged_is_in_full_the_next_time(host: Connection) -> None:
    published = Published()
    source = reporting("test:///default", published)
    source.audit()
    published.full = True
    with pytest.raises(OSError, match="no space left"):
        source.audit()
    published.full = False

    again = source.audit()

    source.close()
    assert isinstance(again, HypervisorAudited)
    assert (again.counter, again.instances is not None) == (3, True)
