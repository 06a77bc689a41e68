"""Several hosts from one process, and what becomes of what they say while the log is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`")

import libvirt

from producers.libvirt_audit import Auditor
from producers.libvirt_connect import connect
from producers.libvirt_domains import Survey
from producers.libvirt_fleet import NO_DISK, Fleet, MakeHost, NodeTwice
from producers.libvirt_host import LibvirtHost
from producers.libvirt_system import Options
from producers.source import AuditSource
from schemas.audits import AuditFailed, HypervisorAudited
from schemas.codec import decode_keyed, encode
from schemas.topics import AUDITS, LIFECYCLE
from streams.log.base import LogError
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.log.sqlite import SqliteLog
from tests.faults.tcp_proxy import FINE, TcpProxy, Weather
from tests.kafka_broker import bootstrap
from tests.libvirt_daemon import Daemon, node_xml, until

pytestmark = pytest.mark.usefixtures("libvirt_events")


def maker(uri: str, node_id: str = "", timeout_seconds: float = 20.0) -> MakeHost:
    return lambda publish, epochs: LibvirtHost(
        uri,
        publish,
        options=Options(service_host="compute-1"),
        last_epoch=epochs,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        mono_ms=lambda: time.monotonic_ns() // 1_000_000,
        node_id=node_id,
        audit_timeout_seconds=timeout_seconds,
        open_timeout_seconds=timeout_seconds,
    )


def records_of(fleet: Fleet, enough: Callable[[list[Any]], bool]) -> tuple[list[Any], list[str]]:
    records: list[Any] = []
    sentences: list[str] = []

    def holds() -> bool:
        turn = fleet.turn(0.1)
        records.extend(decode_keyed(said.topic, said.key, said.value) for said in turn.records)
        sentences.extend(turn.sentences)
        return enough(records)

    until(holds)
    return records, sentences


def test_one_service_has_several_nodes_each_with_epochs_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(node_xml([1]))
    epochs = {"a": 7_000_000_000_000, "b": None}
    fleet = Fleet(
        [maker(f"test://{tmp_path}/a.xml", "a"), maker("test:///default", "b")],
        last_epoch=lambda _, node_id: epochs[node_id],
        interval_seconds=0.1,
    )
    fleet.start()

    records, _ = records_of(fleet, lambda found: sum(isinstance(each, HypervisorAudited) for each in found) >= 6)
    fleet.close()

    audits = {name: [each for each in records if isinstance(each, HypervisorAudited) and each.node_id == name] for name in "ab"}
    assert {each.epoch for each in audits["a"]} == {7_000_000_000_001}
    assert all(each.epoch < 7_000_000_000_000 for each in audits["b"])
    for own in audits.values():
        assert [each.counter for each in own] == list(range(1, len(own) + 1))
        assert own[0].hypervisor is not None
        assert own[0].hypervisor.service_host == "compute-1"
        assert own[1].hypervisor is None


def test_a_host_without_an_active_pool_is_said_to_have_no_disk_to_give_and_once(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(node_xml([1]))
    fleet = Fleet(
        [maker(f"test://{tmp_path}/a.xml", "a"), maker("test:///default", "b")], last_epoch=lambda *_: None, interval_seconds=0.05
    )
    fleet.start()

    # Each audits again in full meanwhile, which is every 20th time.
    records, said = records_of(fleet, lambda found: sum(isinstance(each, HypervisorAudited) for each in found) >= 50)
    fleet.close()

    assert {each.node_id: each.hypervisor.disk_mib for each in records if isinstance(each, HypervisorAudited) and each.hypervisor} == {
        "a": None,
        "b": 102_400,
    }
    assert [sentence for sentence in said if "no storage pool is active" in sentence] == [f"a: {NO_DISK}"]


def test_a_host_that_had_a_pool_in_between_is_told_of_again() -> None:
    fleet = Fleet([maker("test:///default", "a")], last_epoch=lambda *_: None, interval_seconds=0.05)
    said: list[str] = []

    with closing(libvirt.open("test:///default")) as host:
        pool = host.storagePoolLookupByName("default-pool")
        pool.destroy()
        fleet.start()
        for change, disk_mib in ((pool.create, None), (pool.destroy, 102_400), (pool.create, None)):
            said += records_of(fleet, partial(offers, disk_mib))[1]
            change()
    fleet.close()

    assert [sentence for sentence in said if "no storage pool is active" in sentence] == [f"a: {NO_DISK}"] * 2


def offers(disk_mib: int | None, records: list[Any]) -> bool:
    """Whether a full audit says so."""
    full = [each.hypervisor for each in records if isinstance(each, HypervisorAudited) and each.hypervisor]
    return any(hypervisor.disk_mib == disk_mib for hypervisor in full)


def test_a_host_that_hangs_delays_nobody_and_is_unknown(daemon: Daemon) -> None:
    threads = threading.active_count()
    fleet = Fleet(
        [maker(daemon.test_uri(), "hangs", 0.7), maker("test:///default", "well")], last_epoch=lambda *_: None, interval_seconds=0.2
    )
    fleet.start()
    records_of(fleet, lambda found: {each.node_id for each in found if isinstance(each, HypervisorAudited)} == {"hangs", "well"})

    with daemon.stopped():
        during, said = records_of(fleet, lambda found: sum(isinstance(each, AuditFailed) for each in found) >= 2)
    after, heard = records_of(fleet, lambda found: any(isinstance(each, HypervisorAudited) and each.node_id == "hangs" for each in found))
    fleet.close()

    assert {each.node_id for each in during if isinstance(each, AuditFailed)} == {"hangs"}
    assert sum(isinstance(each, HypervisorAudited) and each.node_id == "well" for each in during) >= 3
    assert any(sentence.startswith("hangs: not answering: ") for sentence in said)
    assert any(sentence == "hangs: audited" for sentence in heard)
    assert not any(isinstance(each, AuditFailed) and each.node_id == "well" for each in after)
    until(lambda: threading.active_count() <= threads)


def test_an_audit_of_five_hundred_domains_asks_for_none_of_them_unless_something_changed(daemon: Daemon) -> None:
    path = daemon.folder / "five-hundred.xml"
    path.write_text(node_xml(range(500)))
    path.chmod(0o644)
    connection = connect(daemon.test_uri(str(path)))
    full, quick = Auditor(Options(), lambda: 1, lambda: 1, xml_full_every=1), Auditor(Options(), lambda: 1, lambda: 1)
    source, sizes = AuditSource("c01", "libvirt", 1), []

    def audited(auditor: Auditor) -> float:
        began = time.monotonic()
        auditor.look(connection, taken_at_ms=1, timeout_seconds=30)
        found = auditor.result()
        record = source.audited(found.hypervisor, found.instances, taken_at_ms=1, mono_ms=1)
        sizes.append(len(encode(record)))
        return time.monotonic() - began

    for auditor in (full, quick):
        audited(auditor)
    best = {name: min(audited(auditor) for _ in range(5)) for name, auditor in (("full", full), ("quick", quick))}
    domain = connection.handle.lookupByName("vm-7")
    again = Survey(quick._known, quick.disks, changed={domain.UUIDString()}, everything=False)
    again.run(connection.handle)
    connection.close()

    assert best["quick"] * 2 < best["full"]
    assert set(again.found) == {domain.UUIDString()}
    assert sizes[0] > 20_000
    assert max(sizes[1:]) < 200


def test_two_uris_that_are_one_node_are_refused() -> None:
    fleet = Fleet([maker("test:///default", "n"), maker("test:///default", "n")], last_epoch=lambda *_: None, interval_seconds=0.1)
    fleet.start()

    with pytest.raises(NodeTwice, match="two of the hosts are node n"):
        records_of(fleet, lambda _: False)
    fleet.close()


def test_what_ended_the_last_host_is_raised_before_all_is_over() -> None:
    class Broken(LibvirtHost):
        def audit(self) -> AuditFailed:
            raise RuntimeError("no file handle is left")

    def broken(publish: Any, epochs: Any) -> LibvirtHost:
        options, clock = Options(), time.monotonic_ns
        return Broken("test:///default", publish, options=options, last_epoch=epochs, wall_ms=clock, mono_ms=clock, node_id="n")

    fleet = Fleet([broken], last_epoch=lambda *_: None, interval_seconds=0.1)
    fleet.start()
    until(lambda: not fleet._threads[0].is_alive())

    with pytest.raises(RuntimeError, match="no file handle is left"):
        while not fleet.over:
            fleet.turn(0.1)
        pytest.fail("it was over, and nobody heard why")
    fleet.close()


def test_while_nobody_takes_what_they_say_hosts_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(node_xml(range(40)))
    fleet = Fleet([maker(f"test://{tmp_path}/a.xml", "a")], last_epoch=lambda *_: None, interval_seconds=0.01, outbox_max=5)
    fleet.start()
    until(lambda: fleet._outbox.qsize() >= 1)
    fleet.turn(1.0)  # the question about the epoch
    until(fleet._outbox.full)
    time.sleep(0.3)

    records, _ = records_of(fleet, lambda found: len(found) >= 60)
    fleet.close()

    events = [each for each in records if not isinstance(each, HypervisorAudited | AuditFailed)]
    assert [each.counter for each in events] == list(range(1, 41))
    audits = [each.counter for each in records if isinstance(each, HypervisorAudited)]
    assert audits == list(range(1, len(audits) + 1))


def claimlog(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from streams.cli.main import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def on_the_log(path: Path, topic: str) -> list[Any]:
    with SqliteLog.open(path) as log:
        found = [record for number in range(log.topics()[topic]) for record in log.read(topic, number, 0)]
    return [decode_keyed(topic, record.key, record.value) for record in found]


def waiting(spool: Path) -> int:
    """How many records; while the file is being made, none."""
    try:
        with SqliteLog.open(spool) as log:
            return log.end("spooled", 0) - log.start("spooled", 0) if "spooled" in log.topics() else 0
    except LogError:
        return 0


def _wait_for(spool: Path, count: int) -> bool:
    return waiting(spool) >= count


def test_what_two_killed_producers_said_while_the_log_was_away_is_on_it_in_order_when_it_is_there(tmp_path: Path) -> None:
    folder, spool = tmp_path / "later", tmp_path / "spool"
    flags = ("produce", "libvirt", "--log", f"sqlite:{folder}/l.sqlite", "--spool", str(spool), "--interval", "0.1")
    for count in (8, 16):
        with claimlog(*flags, "--node", "c01") as process:
            until(partial(_wait_for, spool, count))
            process.send_signal(signal.SIGKILL)

    folder.mkdir()
    with claimlog(*flags, "--node", "c01") as process:
        until(lambda: (folder / "l.sqlite").exists() and waiting(spool) == 0)
        until(lambda: len({record.epoch for record in on_the_log(folder / "l.sqlite", AUDITS)}) == 3)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)

    audits, events = on_the_log(folder / "l.sqlite", AUDITS), on_the_log(folder / "l.sqlite", LIFECYCLE)
    assert process.returncode == 0
    assert "of an earlier process in" in err
    order = [(record.epoch, record.counter) for record in audits]
    assert order == sorted(set(order))
    for epoch in {record.epoch for record in audits}:
        counters = [record.counter for record in audits if record.epoch == epoch]
        assert counters == list(range(1, len(counters) + 1))
    assert [(event.counter, event.resync) for event in events] == [(1, True)] * 3
    assert len({event.epoch for event in events}) == 3


def test_what_was_said_before_a_broker_could_be_reached_is_there_when_it_can(tmp_path: Path) -> None:
    host, _, port = bootstrap().rpartition(":")
    prefix, spool = f"spool-{os.getpid()}-{tmp_path.name[-12:]}", tmp_path / "spool"
    with TcpProxy() as proxy:
        proxy.target = (host, int(port))
        proxy.becomes(Weather(refuses=True))
        address = f"kafka://{proxy.address}/{prefix}?single-broker=true&message.timeout.ms=1000"
        with claimlog("produce", "libvirt", "--node", "c01", "--log", address, "--spool", str(spool), "--interval", "0.1") as process:
            until(partial(_wait_for, spool, 12))
            proxy.becomes(FINE)
            until(lambda: waiting(spool) <= 1)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)

    with KafkaLog.open(KafkaSettings(bootstrap=bootstrap(), prefix=prefix, single_broker=True)) as log:
        records = [record for number in range(log.topics()[AUDITS]) for record in log.read(AUDITS, number, 0)]
    counters = [decode_keyed(AUDITS, record.key, record.value).counter for record in records]
    assert process.returncode == 0
    assert f"what is produced waits in {spool}" in err
    assert "nothing waits" in err
    assert counters[:10] == list(range(1, 11))
    assert counters == list(range(1, len(counters) + 1))


def test_one_look_waits_in_the_spool_if_the_log_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, spool = f"sqlite:{tmp_path}/none/l.sqlite", tmp_path / "spool"
    program = "import streams.cli.produce.libvirt_hosts as h; h.DRAIN_SECONDS_MAX = 0.5; from streams.cli.main import main; main()"
    command = [sys.executable, "-c", program, "produce", "libvirt", "--once", "--log", log, "--spool", str(spool)]

    process = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))

    assert process.returncode == 5
    assert f"not in the log yet, but in {spool}: 2 records" in process.stderr
    assert waiting(spool) == 2
