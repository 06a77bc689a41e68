"""`claimlog produce libvirt`: audits and life-cycle events of real hypervisors, from libvirt itself."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from streams.cli.flags import LogFlag
from streams.cli.given.units_in import of_seconds, whole
from streams.cli.interrupts import ended_by_sigterm
from streams.cli.problems import UsageProblem
from streams.cli.produce.verb import SECONDS_MAX, Once, Seconds, check_above_0, persistence
from streams.cli.reading.open_log import opened
from streams.clock import SystemClock

Uris = Annotated[
    tuple[str, ...],
    Parameter(
        negative=(),
        help="As for virsh: qemu:///system, qemu+tls://HOST/system; NAME=URI names the node. Repeatable; default: test:///default.",
    ),
]
HostsFile = Annotated[Path | None, Parameter(help="TOML file of many hosts, a [[host]] with uri, node, pools, dedicated_cpus … for each.")]
NodeId = Annotated[str, Parameter(help="The node's id; default: its hostname as libvirt gives it.")]
Pools = Annotated[tuple[str, ...], Parameter(negative=(), help="Storage pool of instances' disks; repeatable; default: all active.")]
DedicatedCpus = Annotated[str, Parameter(help="CPUs kept for pinned guests: 4-7,12-15.")]
PciDevices = Annotated[
    tuple[str, ...],
    Parameter(negative=(), help="PCI devices that guests may have: 0000:3b:*, or 8086:1520; repeatable; default: all."),
]
HostIp = Annotated[str, Parameter(help="The address that other hosts reach it by.")]
ServiceHost = Annotated[str, Parameter(help="The compute service that has these nodes, where one has several.")]
Timeout = Annotated[float, of_seconds("Seconds, or 2m, until a look at the host counts as failed.")]
DiskInterval = Annotated[float, of_seconds("Seconds, or 2m, from one look at the guests' disks to the next.")]
RefreshPools = Annotated[bool, Parameter(negative=(), help="Have pools looked at again before that; needs a read-write connection.")]
SpoolFile = Annotated[Path | None, Parameter(help="File that keeps what is produced until the log has it, also while it is away.")]
SpoolMib = Annotated[int, Parameter(converter=whole, help="Most that waits there; then audits wait.")]
INTERVAL_SECONDS, DISK_INTERVAL_SECONDS = 60.0, 300.0
SPOOL_MIB = 1024
SPOOL_MIB_MAX = 1 << 24
"""16 TiB is what a file of SQLite's can hold."""
NOT_INSTALLED = (
    "libvirt-python is not installed: pip install 'claimlog[libvirt]' (it is compiled, and needs libvirt-dev, pkg-config and gcc)"
)


def libvirt(
    *,
    uri: Uris = (),
    hosts: HostsFile = None,
    log: LogFlag = None,
    once: Once = False,
    interval: Seconds = INTERVAL_SECONDS,
    node: NodeId = "",
    pool: Pools = (),
    dedicated_cpus: DedicatedCpus = "",
    pci_device: PciDevices = (),
    host_ip: HostIp = "",
    service_host: ServiceHost = "",
    timeout: Timeout = 30.0,
    disk_interval: DiskInterval = DISK_INTERVAL_SECONDS,
    refresh_pools: RefreshPools = False,
    spool: SpoolFile = None,
    spool_mib: SpoolMib = SPOOL_MIB,
) -> int:
    """Audits and life-cycle events of hypervisors, from libvirt itself."""
    try:
        from producers.libvirt_connect import EventLoop
        from producers.libvirt_xml import cpuset
    except ModuleNotFoundError as missing:
        if missing.name != "libvirt":
            raise
        raise UsageProblem(NOT_INSTALLED) from None
    from streams.cli.produce import libvirt_hosts

    for flag, seconds in (("--interval", interval), ("--timeout", timeout), ("--disk-interval", disk_interval)):
        check_above_0(flag, seconds, SECONDS_MAX)
    if once and (interval, disk_interval) != (INTERVAL_SECONDS, DISK_INTERVAL_SECONDS):
        raise UsageProblem("--once takes one audit of each host: leave --interval and --disk-interval out")
    _check_spool(spool, spool_mib)
    common = libvirt_hosts.HostFlags(
        uri="",
        pools=pool,
        dedicated_cpus=libvirt_hosts.cpus_named("--dedicated-cpus", dedicated_cpus, cpuset),
        pci_devices=libvirt_hosts.devices_named("--pci-device", pci_device) or None,
        host_ip=host_ip,
        service_host=service_host,
        refresh_pools=refresh_pools,
    )
    if hosts is not None and (uri or node):
        raise UsageProblem(f"--hosts {hosts} names all hosts: leave --uri and --node out")
    uris = uri or ("test:///default",)
    wanted = libvirt_hosts.hosts_of(uris, node, common) if hosts is None else libvirt_hosts.hosts_in(hosts, common, cpuset)
    libvirt_hosts.check_distinct(wanted)
    libvirt_hosts.check_address(host_ip, wanted)
    pace = libvirt_hosts.Pace(interval_seconds=interval, disks_seconds=disk_interval, timeout_seconds=timeout, once=once)
    context = copy_context()  # the forwarding thread opens the log with the settings of this command line
    loop = EventLoop()
    try:
        with ended_by_sigterm():
            if spool is not None:
                target = partial(context.run, opened, log, create=True)
                return libvirt_hosts.report_spooled(wanted, pace, SystemClock(), spool, spool_mib << 20, target)
            with opened(log, create=True) as ledger:
                return libvirt_hosts.report(wanted, pace, SystemClock(), ledger, persistence())
    finally:
        loop.stop()


def _check_spool(spool: Path | None, spool_mib: int) -> None:
    """Raises UsageProblem for a size that is none, or of no spool."""
    check_above_0("--spool-mib", spool_mib, SPOOL_MIB_MAX)
    if spool is None and spool_mib != SPOOL_MIB:
        raise UsageProblem(f"--spool-mib {spool_mib}: nothing waits anywhere without --spool FILE")
