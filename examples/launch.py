"""A starter of guests on one libvirt host: consumes `placement-results`, makes sure of each claim, starts the domain.

    export CLAIMLOG_LOG=sqlite:/tmp/lab.sqlite
    claimlog run &
    python examples/launch.py &
    echo 'defaults.memory_mib.ratio = 4' | claimlog fleet apply -          # once the host is reported: it has 3 GiB and a domain of 8
    claimlog place --vcpus 1 --memory 128MiB
    claimlog claims list                                                   # confirmed by the domain's own event

On Kafka it is the same with `--log kafka://HOST:PORT` and one more process, `claimlog run --only scheduler`.

Before it starts anything it renews the claim and reads the renewal back through the same fold as everybody: held means that nobody else
gets this room. The driver `test:///default` lives inside this process, so this process also reports the host; with `--no-report` a
`claimlog produce libvirt` elsewhere does.

One call makes a domain and starts it, so whenever this process ends, a domain that is there was started; it is gone when its guest shuts
down. Where libvirt is lost this process ends, too: its next start reads all results again, and starts what is held and not there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from xml.sax.saxutils import escape, quoteattr

try:
    from libvirt import libvirtError
except ModuleNotFoundError:
    from streams.cli.produce.libvirt import NOT_INSTALLED

    sys.exit(NOT_INSTALLED)

from producers.libvirt_connect import EventLoop, HypervisorUnreachable, connect
from producers.libvirt_host import LibvirtHost
from producers.libvirt_system import Options
from projections.ledger import Ledger
from projections.placements import Answered, Placements
from projections.snapshots import load_newest
from schemas.codec import decode
from schemas.results import InstancesPlaced, Placement
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from schemas.units import bounded_name
from streams.cli.exits import guarded
from streams.cli.produce.publishing import last_epoch, publisher
from streams.cli.reading.open_log import open_log
from streams.clock import SystemClock
from streams.ledger_topics import open_ledger
from streams.log.base import Log, Partition
from streams.operator import Stamp, release, renew

TTL_MS = 10 * 60 * 1000
AUDIT_SECONDS = 5.0


class Claims:
    """The ledger, folded as far as the log goes."""

    def __init__(self, log: Log) -> None:
        self.log, self.count = log, log.topics()[CLAIMS]
        self.ledgers = [self._begun(number) for number in range(self.count)]

    def hold(self, placement: Placement, now_ms: int) -> bool:
        """Renew the claim, read on up to the renewal, and tell whether the claim was held there."""
        ledger = self._read_on(placement.partition, self.log.end(CLAIMS, placement.partition))
        if placement.claim_id not in ledger.claims:
            return False  # Of a guest that has come and gone: after a start all results are read again.
        # With the time: a renewal under an id that was there before would be a copy, and hold nothing for longer.
        stamp = Stamp(bounded_name(f"launch/{placement.claim_id}/{now_ms}"), now_ms)
        (offset,) = self.log.append([renew(placement.claim_id, placement.node_id, stamp, ttl_ms=TTL_MS)])
        return placement.claim_id in self._read_on(placement.partition, offset + 1).claims

    def give_back(self, placement: Placement, now_ms: int) -> None:
        """Release the claim of a guest that could not be started."""
        stamp = Stamp(bounded_name(f"launch/{placement.claim_id}/failed"), now_ms)
        self.log.append([release(placement.claim_id, placement.node_id, stamp, reason="failed")])

    def _begun(self, partition: int) -> Ledger:
        """As the newest snapshot has it: what is older may be in an archive."""
        return load_newest(self.log, partition) or Ledger(partition, self.count)

    def _read_on(self, partition: int, end: int) -> Ledger:
        if self.ledgers[partition].next_offset < self.log.start(CLAIMS, partition):
            self.ledgers[partition] = self._begun(partition)
        ledger = self.ledgers[partition]
        while ledger.next_offset < end:
            for record in self.log.read(CLAIMS, partition, ledger.next_offset):
                ledger.apply(record.offset, record.time_ms, record.key, record.value)
        return ledger


def domain_xml(placement: Placement, kind: str, architecture: str) -> str:
    size = placement.resources
    return (
        f"<domain type={quoteattr(kind)}><name>guest-{escape(placement.instance_id)}</name><uuid>{escape(placement.instance_id)}</uuid>"
        f"<memory unit='MiB'>{size.memory_mib}</memory><vcpu>{size.vcpus}</vcpu>"
        f"<os><type arch={quoteattr(architecture)}>hvm</type></os></domain>"
    )


class Launcher:
    """Starts what is placed on one host, once."""

    def __init__(self, log: Log, uri: str, node_id: str) -> None:
        self.log, self.node_id, self.clock = log, node_id, SystemClock()
        self.handle = connect(uri, read_only=False).handle
        self.claims = Claims(log)
        self.kind = "test" if self.handle.getType() == "TEST" else "qemu"
        self.architecture = "i686" if self.kind == "test" else self.handle.getInfo()[0]
        count = log.topics()[RESULTS]
        self.placements = [Placements(number, count, requests_next=log.end(REQUESTS, number)) for number in range(count)]

    def turn(self) -> int:
        """Start what new results place here; returns how many domains were started. Raises HypervisorUnreachable."""
        if not self.handle.isAlive():
            raise HypervisorUnreachable("the connection to libvirt is lost")
        started = 0
        for placements in self.placements:
            for record in self.log.read(RESULTS, placements.partition, placements.results_next):
                answered = placements.apply_result(record.offset, record.time_ms, record.key, record.value)
                result = decode(RESULTS, record.value)
                if isinstance(answered, Answered) and answered.counts and isinstance(result, InstancesPlaced):
                    started += sum(self.start(placement) for placement in result.placements if placement.node_id == self.node_id)
        return started

    def start(self, placement: Placement) -> bool:
        if self.is_there(placement):
            return False
        if not self.claims.hold(placement, self.clock.wall_ms()):
            print(f"{placement.instance_id}: not started, claim {placement.claim_id} is not held any more", file=sys.stderr)
            return False
        if placement.instance_id != placement.instance_id.lower():
            return self.not_started(placement, "libvirt says a uuid in small letters, and nobody would know the guest by this one")
        size = placement.resources
        if size.disk_mib or size.pcpus:
            print(f"{placement.instance_id}: this example makes no disks and pins no CPUs; `claimlog leaks` will tell", file=sys.stderr)
        try:
            self.handle.createXML(domain_xml(placement, self.kind, self.architecture))
        except libvirtError as error:
            if not self.handle.isAlive():
                raise  # it may have been started all the same: the claim stays
            if self.is_there(placement):
                return False  # another launcher of this host was faster
            return self.not_started(placement, str(error))
        print(f"{placement.instance_id}: started on {self.node_id} under claim {placement.claim_id}", flush=True)
        return True

    def not_started(self, placement: Placement, why: str) -> bool:
        self.claims.give_back(placement, self.clock.wall_ms())
        print(f"{placement.instance_id}: not started, its claim is given back: {why}", file=sys.stderr)
        return False

    def is_there(self, placement: Placement) -> bool:
        return placement.instance_id in {domain.UUIDString() for domain in self.handle.listAllDomains(0)}

    def wait(self, seconds: float) -> None:
        self.log.wait({Partition(RESULTS, each.partition): each.results_next for each in self.placements}, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Start the domains that placement results put on this host.")
    parser.add_argument("--log", default=None, help="sqlite:PATH or kafka://HOST:PORT[/PREFIX]; default: CLAIMLOG_LOG")
    parser.add_argument("--uri", default="test:///default")
    parser.add_argument("--limit", type=int, default=0, help="end after so many starts; 0: go on")
    parser.add_argument("--no-report", action="store_true", help="somebody else reports this host")
    try:
        serve(parser.parse_args())
    except (libvirtError, HypervisorUnreachable) as problem:
        sys.exit(f"{problem}; start it again when libvirt answers: it takes up where it was")


def serve(options: argparse.Namespace) -> None:
    """Report the host and start what is placed there, until `--limit`. Raises libvirtError, HypervisorUnreachable."""
    clock = SystemClock()
    with open_log(options.log, os.environ, sys.stdin.buffer, create=True) as log:
        open_ledger(log)
        events = EventLoop()
        host = LibvirtHost(
            options.uri,
            publisher(log),
            options=Options(),
            last_epoch=last_epoch(log, "libvirt"),
            wall_ms=clock.wall_ms,
            mono_ms=clock.boot_ms,
        )
        if not options.no_report:
            host.audit()
        launcher = Launcher(log, options.uri, host.node_id or connect(options.uri).handle.getHostname())
        started, audit_due = 0, time.monotonic() + AUDIT_SECONDS
        while not options.limit or started < options.limit:
            launcher.wait(0.2)
            started += launcher.turn()
            if not options.no_report:
                host.pump(0.1)
                if time.monotonic() >= audit_due or (options.limit and started >= options.limit):
                    host.audit()
                    audit_due = time.monotonic() + AUDIT_SECONDS
        host.close()
        events.stop()


if __name__ == "__main__":
    sys.exit(guarded(main, sys.stderr))
