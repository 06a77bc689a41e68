"""What `produce libvirt` is to report, from its flags or a file, and the loop that does it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.units import NAME_CHARACTERS_MAX
from streams.cli.exits import Exit
from streams.cli.given.documents import file_text, read_toml
from streams.cli.printed import units
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem
from streams.cli.produce.publishing import Persistent, Reporting, last_epoch, message, reporting
from streams.ledger_topics import open_ledger

if TYPE_CHECKING:
    from producers.libvirt_fleet import Fleet, MakeHost
    from producers.libvirt_host import LastEpoch
    from producers.source import Said
    from streams.clock import SystemClock
    from streams.log.base import Log

NAMED = re.compile(r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<uri>[^=]+:/.*)")
DEVICES = re.compile(r"[0-9a-f?]{4}:[0-9a-f?]{2}:[0-9a-f?]{2}\.[0-7?]|[0-9a-f?]{4}:[0-9a-f?]{4}|[0-9a-f?:.]*\*[0-9a-f*?:.]*")
"""A whole address, a vendor and product, or what an asterisk completes."""
WAIT_SECONDS = 0.5
"""Longest sleep: how late an interrupt is heard."""
FULL_PAUSE_SECONDS = 0.5
DRAIN_SECONDS_MAX = 30.0
"""For how long --once waits until what it found has left the spool."""
PRODUCER = "libvirt"
HOST_KEYS: Mapping[str, type[Any]] = {
    "uri": str, "node": str, "pools": list, "dedicated_cpus": str, "pci_devices": list, "host_ip": str, "service_host": str,
    "refresh_pools": bool,
}  # fmt: skip
"""What a [[host]] of a file of many may say."""


@dataclass(frozen=True, kw_only=True)
class HostFlags:
    """One hypervisor to report."""

    uri: str
    node: str = ""
    pools: tuple[str, ...] = ()
    dedicated_cpus: frozenset[int] = field(default_factory=frozenset)
    pci_devices: tuple[str, ...] | None = None
    host_ip: str = ""
    service_host: str = ""
    refresh_pools: bool = False


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often, and how long at most."""

    interval_seconds: float
    disks_seconds: float
    timeout_seconds: float
    once: bool


def hosts_of(uris: Sequence[str], node: str, common: HostFlags) -> list[HostFlags]:
    """The hosts that --uri names, each `URI` or `NAME=URI`; all else is `common`. Raises UsageProblem."""
    found = []
    for text in uris:
        if not text.strip():  # libvirt would open whatever is its default here
            raise UsageProblem("--uri is empty: expected one such as qemu:///system, or NAME=URI")
        named = NAMED.fullmatch(text)
        found.append(replace(common, uri=named["uri"], node=named["node"]) if named else replace(common, uri=text))
    if node:
        if len(found) != 1:
            raise UsageProblem(f"--node {node} names one host, and --uri {len(found)}: write --uri NAME=URI for each")
        if found[0].node:
            raise UsageProblem(f"--node {node} and --uri {uris[0]} both name the node; leave one of them out")
        found = [replace(found[0], node=node)]
    return found


def hosts_in(path: Path, common: HostFlags, cpuset: Callable[[str], set[int]]) -> list[HostFlags]:
    """The hosts of a TOML file, one `[[host]]` each; what it leaves out is as in `common`. Raises UsageProblem."""
    document = read_toml(file_text(path, f"--hosts {path} cannot be read"), f"--hosts {path}")
    tables = document.pop("host", [])
    if document or not isinstance(tables, list) or not tables:
        raise UsageProblem(f"--hosts {path}: expected [[host]] tables with {', '.join(HOST_KEYS)} and no more")
    return [_host(table, f"--hosts {path}: host {number}", common, cpuset) for number, table in enumerate(tables, 1)]


def _host(table: Any, place: str, common: HostFlags, cpuset: Callable[[str], set[int]]) -> HostFlags:
    if not isinstance(table, dict) or not str(table.get("uri", "")).strip():
        raise UsageProblem(f"{place}: expected a uri, such as qemu+tls://HOST/system")
    for name, value in table.items():
        if name not in HOST_KEYS:
            raise UsageProblem(f"{place}: {name} is not known; known: {', '.join(HOST_KEYS)}")
        if not isinstance(value, HOST_KEYS[name]) or (HOST_KEYS[name] is list and not all(isinstance(each, str) for each in value)):
            raise UsageProblem(
                f"{place}: {name} {value!r}: expected a {'list of strings' if HOST_KEYS[name] is list else HOST_KEYS[name].__name__}"
            )
    given = dict(table)
    if "dedicated_cpus" in given:
        given["dedicated_cpus"] = cpus_named(f"{place}: dedicated_cpus", given["dedicated_cpus"], cpuset)
    if "pools" in given:
        given["pools"] = tuple(given["pools"])
    if "pci_devices" in given:
        given["pci_devices"] = devices_named(f"{place}: pci_devices", given["pci_devices"])
    return replace(common, **given)


def cpus_named(place: str, listed: str, cpuset: Callable[[str], set[int]]) -> frozenset[int]:
    """The CPUs of a list as libvirt has them; `place` is where it stands. Raises UsageProblem."""
    try:
        return frozenset(cpuset(listed))
    except ValueError:
        raise UsageProblem(f"{place} {listed!r}: expected a list such as 4-7,12-15") from None


def devices_named(place: str, named: Sequence[str]) -> tuple[str, ...]:
    """Which devices a host offers, as `producers.libvirt_system.Options` has them. Raises UsageProblem for what matches no address."""
    for each in named:
        if not DEVICES.fullmatch(each):
            raise UsageProblem(f"{place} {each!r}: expected an address or vendor:product in small letters, such as 0000:3b:*, 8086:1520")
    return tuple(named)


def check_distinct(hosts: Sequence[HostFlags]) -> None:
    """Raises UsageProblem if two are the same node by name, or the same URI under no name; and for a name that no record can say."""
    seen: set[str] = set()
    for host in hosts:
        if len(host.node) > NAME_CHARACTERS_MAX or (host.node and not host.node.strip()):
            raise UsageProblem(f"node {host.node[:40]!r}…: expected a name of 1 to {NAME_CHARACTERS_MAX} characters, got {len(host.node)}")
        name = host.node or host.uri
        if name in seen:
            raise UsageProblem(f"{name} is there twice: each node is reported once; give each a name of its own (NAME=URI)")
        seen.add(name)


def check_address(host_ip: str, hosts: Sequence[HostFlags]) -> None:
    """Raises UsageProblem for an address from the command line that several hosts would have."""
    if host_ip and sum(each.host_ip == host_ip for each in hosts) > 1:
        raise UsageProblem(f"--host-ip {host_ip}: several hosts cannot have one address; --hosts FILE has a host_ip for each")


def make_hosts(hosts: Sequence[HostFlags], pace: Pace, clock: SystemClock) -> list[MakeHost]:
    """What makes each of them, in its thread."""
    from producers.libvirt_host import LibvirtHost
    from producers.libvirt_system import Options

    def maker(flags: HostFlags) -> MakeHost:
        options = Options(
            pools=flags.pools or None,
            dedicated_cpus=flags.dedicated_cpus,
            pci_devices=flags.pci_devices,
            host_ip=flags.host_ip,
            service_host=flags.service_host,
            refresh_pools=flags.refresh_pools,
        )
        return lambda publish, epochs: LibvirtHost(
            flags.uri,
            publish,
            options=options,
            last_epoch=epochs,
            wall_ms=clock.wall_ms,
            mono_ms=clock.boot_ms,
            node_id=flags.node,
            producer=PRODUCER,
            audit_timeout_seconds=pace.timeout_seconds,
            disks_every_ms=int(pace.disks_seconds * 1000),
        )

    return [maker(flags) for flags in hosts]


def report(hosts: Sequence[HostFlags], pace: Pace, clock: SystemClock, target: Log, persistent: Persistent) -> int:
    """Report straight into `target`, each record durable there before the next is taken, until interrupted or once."""
    from producers.libvirt_fleet import Fleet

    open_ledger(target)
    look = last_epoch(target, PRODUCER)

    def others(node_id: str) -> Reporting | None:
        return persistent(lambda: reporting(target, PRODUCER, node_id, clock.wall_ms()))

    def epoch(topic: str, node_id: str) -> int | None:
        return persistent(lambda: look(topic, node_id))

    epochs = beside_none(epoch, others) if pace.once else epoch
    fleet = Fleet(make_hosts(hosts, pace, clock), last_epoch=epochs, interval_seconds=pace.interval_seconds, once=pace.once)

    def take(records: list[Said]) -> None:
        if records:
            persistent(lambda: target.append([message(said) for said in records]))

    code = _driven(fleet, take, len(hosts))
    _tell_refused(fleet)
    return code


def beside_none(epoch: LastEpoch, others: Callable[[str], Reporting | None]) -> LastEpoch:
    """As `epoch`; the first question about a node, before anything is published of it, raises ReportedElsewhere if `others` finds one."""
    from producers.libvirt_fleet import ReportedElsewhere

    alone: set[str] = set()

    def look(topic: str, node_id: str) -> int | None:
        if node_id not in alone and (other := others(node_id)) is not None:
            every, ago, ends = (units.span(ms) for ms in (other.every_ms, max(0, other.ago_ms), other.ends_ms))
            raise ReportedElsewhere(
                f"{node_id} is reported by another process, every {every}, the last time {ago} ago: after one look of a later one nothing "
                f"that it says would count. What it reports is in the log anyway; to look with --once, end it, and wait {ends} then"
            )
        alone.add(node_id)
        return epoch(topic, node_id)

    return look


def report_spooled(
    hosts: Sequence[HostFlags],
    pace: Pace,
    clock: SystemClock,
    spool_file: Path,
    spool_bytes_max: int,
    open_target: Callable[[], Log],
) -> int:
    """Report into the spool, from where a thread carries it on to the log that `open_target` opens."""
    from producers.libvirt_fleet import Fleet
    from producers.spool import Spool
    from streams.cli.produce.spooling import Forwarder, SqliteSpoolStore

    with ExitStack() as leaving:
        store = SqliteSpoolStore.open(spool_file)
        leaving.callback(store.close)
        spool = Spool(store, spool_bytes_max)
        if spool.waiting:
            say(f"of an earlier process in {spool_file}, and first to go: {units.counted(spool.waiting, 'record')}")
        forwarder = Forwarder(spool_file, open_target, PRODUCER, say)
        leaving.callback(forwarder.stop)

        def epoch(topic: str, node_id: str) -> int | None:
            return max(
                (each for each in (store.epoch(topic, node_id), forwarder.last_epoch(topic, node_id)) if each is not None), default=None
            )

        def take(records: list[Said]) -> None:
            _into(spool, records, forwarder)

        def others(node_id: str) -> Reporting | None:
            return forwarder.ask(lambda log: reporting(log, PRODUCER, node_id, clock.wall_ms()))

        epochs = beside_none(epoch, others) if pace.once else epoch
        fleet = Fleet(make_hosts(hosts, pace, clock), last_epoch=epochs, interval_seconds=pace.interval_seconds, once=pace.once)
        code = _driven(fleet, take, len(hosts))
        until = time.monotonic() + DRAIN_SECONDS_MAX
        while spool.waiting and time.monotonic() < until:
            _raise(forwarder.failure)
            time.sleep(0.05)
        if spool.waiting:
            say(f"not in the log yet, but in {spool_file}: {units.counted(spool.waiting, 'record')}")
            code = Exit.UNREACHABLE
        _tell_refused(fleet)
        return code


def _into(spool: Any, records: list[Said], forwarder: Any) -> None:
    """Put the records into the spool; while it is full the hosts wait, which is said once."""
    from producers.spool import SpoolFull

    was_full = False
    while True:
        _raise(forwarder.failure)
        try:
            spool.put(records)
        except SpoolFull as full:
            if not was_full:
                say(f"the spool is full, and audits wait until some of it has gone on: {full}")
            was_full = True
            time.sleep(FULL_PAUSE_SECONDS)
        else:
            if was_full:
                say("the spool has room again")
            return


def _driven(fleet: Fleet, take: Callable[[list[Said]], None], hosts: int) -> int:
    from producers.libvirt_fleet import NodeTwice

    fleet.start()
    try:
        while not fleet.over:
            turn = fleet.turn(WAIT_SECONDS)
            for sentence in turn.sentences:
                say(sentence)
            take(turn.records)
    except NodeTwice as problem:
        raise UsageProblem(str(problem)) from None
    finally:
        fleet.close()
    return Exit.DONE if fleet.answered == hosts else Exit.ERROR


def _tell_refused(fleet: Fleet) -> None:
    """Raises UsageProblem if hosts were refused; the others were looked at."""
    if fleet.refused:
        raise UsageProblem("\n".join(fleet.refused))


def _raise(failure: BaseException | None) -> None:
    if failure is not None:
        raise failure
