"""A `claims` partition as a fleet at work writes it, from a seed: audits, claims, guests that start and go. The fold's benchmarks read it.

Simulated time moves in audit periods. Each node is audited once a period, in full when its guests changed and every `full_every`-th time;
in between guests are claimed, started, some claims renewed, and at the end of their lives deleted, or released and departed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from msgspec import Struct

from schemas import claims as say
from schemas.audits import InstanceReport
from schemas.codec import encode, key_of
from schemas.inventory import CpuInfo, Hypervisor, OperatorFields, Physical, ResourceRule, SupportedGuest
from schemas.resources import ObservedResources, Resources

START_MS = 1_790_000_000_000
AUDIT_PERIOD_MS = 60_000
TTL_MS = 300_000
EPOCH = START_MS - 3_600_000
FLAVORS = ((1, 1_792, 20_480), (2, 3_584, 40_960), (2, 8_192, 40_960), (4, 7_168, 81_920), (8, 14_336, 163_840), (16, 57_344, 327_680))
"""vCPUs, MiB of memory, MiB of disk."""
FLAVOR_WEIGHTS = (47, 25, 10, 13, 4, 1)


class LogRecord(NamedTuple):
    """What `Ledger.apply` takes."""

    offset: int
    time_ms: int
    key: bytes
    value: bytes


class Guest(NamedTuple):
    """An instance with its claim."""

    report: InstanceReport
    claim_id: str
    node: int


class _NodeState:
    """What one hypervisor would tell its auditor."""

    def __init__(self, number: int) -> None:
        self.node_id = f"compute-{number:06}.example.net"
        self.guests: dict[str, InstanceReport] = {}
        self.counter = 0
        self.digest = ""
        self.changed = True
        self.hypervisor = Hypervisor(
            vcpus=96,
            memory_mib=786_432,
            disk_mib=16_777_216,
            host_uuid=f"00000000-0000-4000-8000-{number:012}",
            host_ip=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            hypervisor_type="QEMU",
            hypervisor_version=8_002_002,
            cpu_info=CpuInfo(architecture="x86_64", model="EPYC-Rome", vendor="AMD", sockets=2, cores=24, threads=2, features=("aes", "svm")),
            supported_guests=(SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm"),),
            physical=Physical(memory_mib_total=786_432),
        )


class LedgerLog:
    """Makes the records; `guests_running` afterwards says how many claims the fold must hold (each is confirmed)."""

    def __init__(
        self, *, nodes: int = 1_000, guests_per_node: int = 20, lifetime_periods: int = 360, full_every: int = 30, seed: int = 1
    ) -> None:
        self.random = Random(seed)
        self.nodes = [_NodeState(number) for number in range(nodes)]
        self.guests_per_node, self.lifetime_periods, self.full_every = guests_per_node, lifetime_periods, full_every
        self.time_ms = START_MS
        self.offset = 0
        self.placed = 0
        self.guests_running = 0
        self.kinds: Counter[str] = Counter()
        self._events_seen = 0
        self._ends: list[tuple[int, int, Guest]] = []

    def records(self, count: int) -> Iterator[LogRecord]:
        """The first `count` records of the partition."""
        return self._recorded(islice(self._at_work(), count))

    def filled(self) -> Iterator[LogRecord]:
        """Every node with its guests claimed, started and audited twice, and nothing more."""
        return self._recorded(self._filling())

    def _recorded(self, events: Iterable[tuple[int, Struct]]) -> Iterator[LogRecord]:
        for time_ms, event in events:
            self.time_ms = max(self.time_ms, time_ms)
            self.kinds[kind_of(event)] += 1
            yield LogRecord(self.offset, self.time_ms, key_of(event) or b"ledger", encode(event))
            self.offset += 1

    def _opening(self) -> Iterator[tuple[int, Struct]]:
        yield START_MS, say.PartitionOpened(ledger_id="benchmark", partition=0, partitions=1)
        for number, node in enumerate(self.nodes):
            vcpus, memory_mib = ResourceRule(reserved=2, ratio_milli=4_000), ResourceRule(reserved=8_192)
            fields = OperatorFields(vcpus=vcpus, memory_mib=memory_mib, zone=f"az{number % 3}")
            yield START_MS, say.NodeConfigured(node_id=node.node_id, record_id=f"fleet/{number}", fields=fields)
            yield self._audit(number, START_MS)

    def _at_work(self) -> Iterator[tuple[int, Struct]]:
        yield from self._opening()
        for number in range(len(self.nodes)):
            yield from self._fill_node(number)
        now_ms = self.time_ms + AUDIT_PERIOD_MS
        while True:
            yield from self._period(now_ms)
            now_ms += AUDIT_PERIOD_MS

    def _filling(self) -> Iterator[tuple[int, Struct]]:
        yield from self._opening()
        for number in range(len(self.nodes)):
            yield from self._fill_node(number)
        for at_ms in (self.time_ms + 10_000, self.time_ms + 20_000):
            for number in range(len(self.nodes)):
                yield self._audit(number, at_ms)

    def _fill_node(self, number: int) -> Iterator[tuple[int, Struct]]:
        for _ in range(self.guests_per_node):
            yield from self._place(number, self.time_ms + 1)

    def _period(self, now_ms: int) -> Iterator[tuple[int, Struct]]:
        """One audit of every node, with the period's arrivals and ends between them."""
        count = len(self.nodes)
        # Each arrives at the moment of the audit with its number.
        arrivals = sorted(self.random.randrange(count) for _ in range(max(1, count * self.guests_per_node // self.lifetime_periods)))
        for number in range(count):
            at_ms = now_ms + AUDIT_PERIOD_MS * number // count
            while arrivals and arrivals[0] == number:
                arrivals.pop(0)
                yield from self._place(self.random.randrange(count), at_ms)
            while self._ends and self._ends[0][0] <= at_ms:
                yield from self._end(heappop(self._ends)[2], at_ms)
            yield self._audit(number, at_ms)

    def _audit(self, number: int, at_ms: int) -> tuple[int, Struct]:
        node = self.nodes[number]
        in_full = node.changed or node.counter % self.full_every == 0
        node.counter += 1
        instances = None
        if in_full:
            instances = tuple(node.guests[instance_id] for instance_id in sorted(node.guests))
            node.digest = blake2b(b"".join(map(encode, instances)), digest_size=16).hexdigest()
            node.changed = False
        event = say.NodeObserved(
            node_id=node.node_id,
            producer=f"audit@{node.node_id}",
            epoch=EPOCH,
            counter=node.counter,
            taken_at_ms=at_ms - 20,
            mono_ms=at_ms - EPOCH,
            digest=node.digest,
            hypervisor=node.hypervisor if in_full else None,
            instances=instances,
        )
        return at_ms, event

    def _place(self, number: int, at_ms: int) -> Iterator[tuple[int, Struct]]:
        """A claim with two alternates; one in fifty is larger than any node and refused, the others start; a third is renewed before."""
        self.placed += 1
        ordinal, node = self.placed, self.nodes[number]
        too_large = ordinal % 50 == 0
        vcpus, memory_mib, disk_mib = self.random.choices(FLAVORS, FLAVOR_WEIGHTS)[0]
        resources = Resources(vcpus=vcpus, memory_mib=1 << 20 if too_large else memory_mib, disk_mib=disk_mib)
        request_id = f"{self.random.getrandbits(64):016x}-{ordinal}"
        instance_id = f"{ordinal:08x}-{self.random.getrandbits(16):04x}-4000-8000-{self.random.getrandbits(48):012x}"
        claim_id = f"{request_id}/0/scheduler-1-{EPOCH}.{ordinal}"
        ranked = dict.fromkeys((number, (number + 1) % len(self.nodes), (number + 7) % len(self.nodes)))
        node_ids = tuple(self.nodes[other].node_id for other in ranked)
        item = say.ClaimItem(claim_id=claim_id, instance_id=instance_id, nodes=node_ids, resources=resources)
        basis = max(0, self.offset - 5)
        yield at_ms, say.ClaimRequested(request_id=request_id, owner="scheduler-1", basis=basis, ttl_ms=TTL_MS, items=(item,))
        if too_large:
            return
        if ordinal % 3 == 0:
            yield at_ms + 1, say.ClaimRenewed(node_id=node.node_id, record_id=f"renew/{ordinal}", claim_id=claim_id, ttl_ms=TTL_MS)
        report = InstanceReport(
            instance_id=instance_id,
            name=f"instance-{ordinal:08x}",
            project_id=f"{ordinal % 97:032x}",
            resources=ObservedResources(vcpus=vcpus, memory_mib=memory_mib, disk_mib=disk_mib),
        )
        yield at_ms + 2, self._event(node, "started", report, at_ms + 2, claim_id)
        node.guests[instance_id] = report
        node.changed = True
        self.guests_running += 1
        lifetime_ms = int(self.random.expovariate(1 / (self.lifetime_periods * AUDIT_PERIOD_MS)))
        heappush(self._ends, (max(at_ms, START_MS + AUDIT_PERIOD_MS) + lifetime_ms, ordinal, Guest(report, claim_id, number)))

    def _end(self, guest: Guest, at_ms: int) -> Iterator[tuple[int, Struct]]:
        """Half are deleted with their claim named, half released by their owner and then gone."""
        node, ordinal = self.nodes[guest.node], int(guest.report.name.removeprefix("instance-"), 16)
        if ordinal % 2:
            yield at_ms, self._event(node, "deleted", guest.report, at_ms, guest.claim_id)
        else:
            yield at_ms, say.ClaimReleased(node_id=node.node_id, record_id=f"release/{ordinal}", claim_id=guest.claim_id, reason="deleted")
            yield at_ms, self._event(node, "departed", guest.report, at_ms, None)
        del node.guests[guest.report.instance_id]
        node.changed = True
        self.guests_running -= 1

    def _event(self, node: _NodeState, change: say.Change, report: InstanceReport, at_ms: int, claim_id: str | None) -> Struct:
        self._events_seen += 1
        return say.InstanceObserved(
            node_id=node.node_id,
            producer=f"lifecycle@{node.node_id}",
            epoch=EPOCH,
            counter=self._events_seen,
            change=change,
            event_time_ms=at_ms - 3,
            instance=report,
            claim_id=claim_id,
        )


def kind_of(event: Any) -> str:
    """The type as a benchmark tells it apart: a full audit is other work than an unchanged one."""
    name: str = event.__struct_config__.tag
    if name == "node-observed":
        return "audit-full" if event.instances is not None else "audit-unchanged"
    return f"{name}-{event.change}" if name == "instance-observed" else name
