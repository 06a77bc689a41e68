"""What does an audit of a libvirt host with 500 domains cost over a socket, and what do 100 hosts in one process?

The hosts are libvirt's test driver behind a real libvirtd, so every question is a real remote call. Beside it, in the same run: asking
every domain for its state and its XML, as most exporters do.
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from benchmarks.report import Report, arguments, duration_seconds, percentiles, positive, seconds
from producers.libvirt_audit import Auditor
from producers.libvirt_connect import EventLoop, connect
from producers.libvirt_fleet import Fleet, MakeHost
from producers.libvirt_host import LibvirtHost
from producers.libvirt_system import Options
from producers.source import AuditSource, said
from schemas.topics import AUDITS
from tests.libvirt_daemon import Daemon, running

NODE = """<node><cpu><mhz>2600</mhz><model>x86_64</model><active>64</active><nodes>2</nodes><sockets>1</sockets><cores>16</cores>
<threads>2</threads></cpu><memory>268435456</memory>{domains}</node>"""
DOMAIN = """<domain type='test'><name>vm-{name}</name><uuid>{uuid}</uuid><memory unit='KiB'>2097152</memory>
<currentMemory unit='KiB'>1048576</currentMemory><vcpu>2</vcpu><os><type arch='x86_64'>hvm</type></os>
<devices><disk type='file' device='disk'><source file='/var/lib/x/{name}.img'/><target dev='vda' bus='virtio'/></disk></devices></domain>"""
RUNS = 15


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--domains", type=positive, default=500)
        parser.add_argument("--hosts", type=positive, default=100)
        parser.add_argument("--seconds", type=duration_seconds, default=30.0, help="of reporting, an audit of each host every 10 s")

    options = arguments("What does an audit of a libvirt host cost, and what do many hosts in one process?", add)
    loop = EventLoop()
    with running() as daemon, Report("libvirt", as_json=options.json) as report:
        one_host(report, daemon, options.domains)
        many_hosts(report, daemon, options.hosts, 20, options.seconds)
    loop.stop()


def node_file(folder: Path, domains: int) -> str:
    path = folder / f"node-{domains}.xml"
    made = (DOMAIN.format(name=f"{number:04d}", uuid=uuid.uuid5(uuid.NAMESPACE_DNS, f"vm{number}")) for number in range(domains))
    path.write_text(NODE.format(domains="".join(made)))
    path.chmod(0o644)
    return str(path)


def one_host(report: Report, daemon: Daemon, domains: int) -> None:
    uri = daemon.test_uri(node_file(daemon.folder, domains))
    connection, second = connect(uri), connect(uri)
    source = AuditSource("compute-01", "libvirt", 1_700_000_000_000, full_every=1 << 30)
    sizes: dict[bool, int] = {}

    def audit(auditor: Auditor) -> None:
        auditor.look(connection, taken_at_ms=1_700_000_000_000, timeout_seconds=60, second_connection=lambda: second)
        found = auditor.result()
        record = source.audited(found.hypervisor, found.instances, taken_at_ms=1_700_000_000_000, mono_ms=1)
        sizes[record.instances is None] = len(said(AUDITS, record).value)

    def timed(what: str, work: Callable[[], Any], **parameters: Any) -> None:
        taken = [seconds(work) * 1000 for _ in range(RUNS)]
        report.add(what, min(taken), "ms", domains=domains, at="best", **parameters)
        report.add(what, median(taken), "ms", domains=domains, at="p50", **parameters)

    timed("first audit, everything read and parsed", lambda: audit(Auditor(Options(), int, int)))
    everything, changes = Auditor(Options(), int, int, xml_full_every=1), Auditor(Options(), int, int, xml_full_every=1 << 30)
    audit(everything)
    timed("audit, nothing changed, everything read", lambda: audit(everything))
    audit(changes)
    timed("audit, nothing changed", lambda: audit(changes))
    timed("asking each domain for state and XML", lambda: connection.ask(naive, 60))
    report.add("record of an unchanged audit", sizes[True], "bytes", domains=domains)
    report.add("record of a full audit", sizes[False], "bytes", domains=domains)
    connection.close()
    second.close()


def naive(handle: Any) -> None:
    for domain in handle.listAllDomains(0):
        domain.info()
        domain.XMLDesc(0)


def many_hosts(report: Report, daemon: Daemon, hosts: int, domains: int, run_seconds: float) -> None:
    uri = daemon.test_uri(node_file(daemon.folder, domains))

    def make(number: int, publish: Any, epochs: Any) -> LibvirtHost:
        return Timed(
            uri,
            publish,
            options=Options(),
            last_epoch=epochs,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            mono_ms=lambda: time.monotonic_ns() // 1_000_000,
            node_id=f"compute-{number:03d}",
        )

    makers: list[MakeHost] = [partial(make, number) for number in range(hosts)]
    fleet = Fleet(makers, last_epoch=lambda *_: None, interval_seconds=10.0)
    fleet.start()
    taken = 0
    while taken < 2 * hosts:  # every host is connected, said what is there, and was audited again
        taken += sum(record.topic == AUDITS for record in fleet.turn(0.5).records)
    Timed.audits_ms.clear()
    audits, started, spent = 0, time.monotonic(), time.process_time()
    while time.monotonic() - started < run_seconds:
        audits += sum(record.topic == AUDITS for record in fleet.turn(0.5).records)
    wall_seconds, core_seconds = time.monotonic() - started, time.process_time() - spent
    at = {"hosts": hosts, "domains": domains, "every_s": 10}
    report.add("many hosts, of one core", 100 * core_seconds / wall_seconds, "%", **at)
    report.add("many hosts, audits", audits / wall_seconds, "audits/s", **at)
    for name, value in percentiles(Timed.audits_ms, {"p50": 0.5, "p99": 0.99, "max": 1.0}).items():
        report.add("many hosts, an audit", value, "ms", at=name, **at)
    report.add("many hosts, threads", threading.active_count(), "threads", **at)
    fleet.close()


class Timed(LibvirtHost):
    """A host whose audits are timed."""

    audits_ms: ClassVar[list[float]] = []

    def audit(self) -> Any:
        started = time.perf_counter()
        record = super().audit()
        self.audits_ms.append((time.perf_counter() - started) * 1000)
        return record


if __name__ == "__main__":
    main()
