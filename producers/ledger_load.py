"""Large `claims` logs for benchmarks and soak tests, made at some hundred thousand records a second.

First the fleet fills up, evenly; then it is a fleet at work under a packing scheduler: claims and ends of lifetimes fall on a busy eighth
of the nodes, which moves on; audits go round all nodes and are mostly unchanged. No claim is more than its node has, every claim is
confirmed, every key and partition belongs. The mix of record types is a result of these rules; `MIX` says how often which rule is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any, NamedTuple

from producers.source import FULL_EVERY, AuditSource, EventSource
from producers.workload import FLAVORS
from schemas.audits import HypervisorAudited, InstanceReport
from schemas.claims import Change, ClaimItem, ClaimReleased, ClaimRenewed, ClaimRequested, InstanceObserved, NodeObserved, PartitionOpened
from schemas.codec import encode
from schemas.ids import claim_id as claim_id_of
from schemas.inventory import Hypervisor
from schemas.lifecycle import InstanceDeleted, InstanceDeparted, InstanceStarted, LifecycleEvent
from schemas.partitioner import partition_of
from schemas.resources import ObservedResources, Resources

MIX = {"audit": 50, "claim": 26, "leave": 24}
"""Of 100 draws. A claim leads to two or three records (request, half of the time a renewal, the start), a leave to one or two.

Slightly more claims than leaves are drawn, so the fleet stays as full as `held_max` lets it be, however long the log gets.
"""

BUSY_SHARE = 8
"""One node of so many is busy at a time."""
BUSY_ROUND_RECORDS = 50_000
"""After so many records the busy part has gone once round the fleet."""
STEP_MS = 10
"""Between two records: 100 records a second, so 1,000 nodes are audited about every 20 seconds."""
START_MS = 1_700_000_000_000
TTL_MS = 600_000
SIZES = tuple(
    Resources(vcpus=vcpus, memory_mib=memory_mib, disk_mib=10 * 1024 * vcpus)
    for vcpus, memory_mib, count in FLAVORS
    for _ in range(max(1, count // 10_000))
)
"""The workload's flavors, as often as they come there."""
HOST = Hypervisor(vcpus=256, memory_mib=512 * 1024, disk_mib=4 * 1024 * 1024, hypervisor_type="QEMU", hypervisor_version=9_000_000)
SCHEDULER, PRODUCER = "s1", "load"


class LedgerRecord(NamedTuple):
    """One record of `claims`; `time_ms` is the append time that its content was made for."""

    partition: int
    time_ms: int
    key: bytes
    value: bytes


class Guest(NamedTuple):
    """One guest: its claim, and how its host shows it."""

    claim_id: str
    report: InstanceReport
    resources: Resources


class GuestHost:
    """One node as its producers and its scheduler know it. `held` are the guests there, `changed`: since its last audit."""

    __slots__ = ("audits", "changed", "events", "free_disk", "free_memory", "free_vcpus", "held", "key", "node_id", "partition")

    def __init__(self, node_id: str, partition: int, epoch: int, full_every: int = FULL_EVERY) -> None:
        self.node_id, self.key, self.partition = node_id, node_id.encode(), partition
        self.audits = AuditSource(node_id, PRODUCER, epoch, full_every)
        self.events = EventSource(node_id, PRODUCER, epoch)
        self.held: list[Guest] = []
        self.changed = True
        self.free_vcpus, self.free_memory, self.free_disk = HOST.vcpus or 0, HOST.memory_mib or 0, HOST.disk_mib or 0

    def take(self, size: Resources, sign: int = 1) -> None:
        """Its scheduler counts a guest of this size here; with a negative sign no more."""
        self.free_vcpus -= sign * size.vcpus
        self.free_memory -= sign * size.memory_mib
        self.free_disk -= sign * size.disk_mib

    def fits(self, size: Resources) -> bool:
        """Whether its scheduler finds room for that."""
        return size.vcpus <= self.free_vcpus and size.memory_mib <= self.free_memory and size.disk_mib <= self.free_disk

    def reports(self) -> list[InstanceReport]:
        """What an audit lists here."""
        return [guest.report for guest in self.held]

    def audit(self, now_ms: int, mono_ms: int) -> HypervisorAudited:
        """One look: in full if something changed since the last."""
        made = None if self.changed else self.audits.unchanged(taken_at_ms=now_ms, mono_ms=mono_ms)
        if made is None:
            made = self.audits.audited(HOST, self.reports(), taken_at_ms=now_ms, mono_ms=mono_ms)
            self.changed = False
        return made


def guest_of(claim_id: str, instance_id: str, size: Resources) -> Guest:
    """A guest of that size."""
    observed = ObservedResources(vcpus=size.vcpus, memory_mib=size.memory_mib, disk_mib=size.disk_mib)
    return Guest(claim_id, InstanceReport(instance_id=instance_id, resources=observed), size)


def claim_on(node: GuestHost, alternate: GuestHost, claim_id: str, instance_id: str, size: Resources, basis: int) -> ClaimRequested:
    """A claim on the node, with another of its partition as alternate, if there is one."""
    names = (node.node_id,) if alternate is node else (node.node_id, alternate.node_id)
    item = ClaimItem(claim_id=claim_id, instance_id=instance_id, nodes=names, resources=size)
    return ClaimRequested(request_id=claim_id.partition("/")[0], owner=SCHEDULER, basis=basis, ttl_ms=TTL_MS, items=(item,))


def ledger_records(
    seed: int, *, nodes: int, records: int, partitions: int = 1, held_max: int | None = None, start_ms: int = START_MS
) -> Iterator[LedgerRecord]:
    """Exactly `records` records in append order; the first of each partition opens it, then each node is audited once.

    `held_max` is how many claims are held at most (10 a node unless said otherwise); until then claims come faster than they go.
    """
    maker = _Maker(seed, nodes, partitions, start_ms, held_max or 10 * nodes)
    made = maker.all()
    for _ in range(records):
        yield next(made)


class _Maker:
    def __init__(self, seed: int, nodes: int, partitions: int, start_ms: int, held_max: int) -> None:
        self.random = Random(seed)
        self.partitions = partitions
        self.start_ms = start_ms
        self.held_max = held_max
        self.held = 0
        self.full = False
        self.requests = 0
        self.made = 0
        self.next_offsets = [0] * partitions
        names = [f"node-{number:06d}" for number in range(nodes)]
        self.nodes = [GuestHost(name, partition_of(name.encode(), partitions), start_ms) for name in names]
        self.by_partition: list[list[GuestHost]] = [[] for _ in range(partitions)]
        for node in self.nodes:
            self.by_partition[node.partition].append(node)
        self.followups: deque[tuple[int, Callable[[], LedgerRecord]]] = deque()

    def all(self) -> Iterator[LedgerRecord]:
        """Records without end."""
        for partition in range(self.partitions):
            opened = PartitionOpened(ledger_id="load", partition=partition, partitions=self.partitions)
            candidates = (b"partition-%d" % number for number in count())
            yield self.record(partition, next(key for key in candidates if partition_of(key, self.partitions) == partition), opened)
        for node in self.nodes:
            yield self.audit(node)
        audits_below, claims_below = MIX["audit"] / 100, (MIX["audit"] + MIX["claim"]) / 100
        audited = 0
        while True:
            draw = self.random.random()
            if draw < audits_below:
                audited = (audited + 1) % len(self.nodes)
                yield self.audit(self.nodes[audited])
            elif self.followups and self.followups[0][0] <= self.made:
                yield self.followups.popleft()[1]()
            else:
                yield self.churn(claims=draw < claims_below or not self.full)

    def churn(self, *, claims: bool) -> LedgerRecord:
        """A claim or the end of one on a busy node; an audit if the node has room for neither."""
        node = self.busy_node() if self.full else self.random.choice(self.nodes)
        size = self.random.choice(SIZES)
        if claims and self.held < self.held_max and node.fits(size):
            self.full = self.full or self.held + 1 >= self.held_max
            return self.claim(node, size)
        if node.held:
            return self.leave(node)
        return self.audit(node)

    def busy_node(self) -> GuestHost:
        count = len(self.nodes)
        width = max(1, count // BUSY_SHARE)
        first = self.made * count // BUSY_ROUND_RECORDS
        return self.nodes[(first + self.random.randrange(width)) % count]

    def claim(self, node: GuestHost, size: Resources) -> LedgerRecord:
        """Claim on the node, with the node after it in its partition as alternate; renewal (every other time) and start follow."""
        self.requests += 1
        self.held += 1
        instance_id = f"{self.requests:08x}-0000-4000-8000-{self.requests:012x}"
        claim_id = claim_id_of(f"load-{self.requests:08d}", 0, SCHEDULER, self.start_ms, self.requests)
        neighbours = self.by_partition[node.partition]
        alternate = neighbours[self.requests % len(neighbours)]
        node.take(size)
        held = guest_of(claim_id, instance_id, size)
        if self.requests % 2:
            self.followups.append((self.made + 40, lambda: self.renewal(node, held)))
        self.followups.append((self.made + 80, lambda: self.started(node, held)))
        basis = self.next_offsets[node.partition] - 1
        return self.record(node.partition, node.key, claim_on(node, alternate, claim_id, instance_id, size, basis))

    def renewal(self, node: GuestHost, held: Guest) -> LedgerRecord:
        renewed = ClaimRenewed(node_id=node.node_id, record_id=f"renew/{held.claim_id}", claim_id=held.claim_id, ttl_ms=TTL_MS)
        return self.record(node.partition, node.key, renewed)

    def started(self, node: GuestHost, held: Guest) -> LedgerRecord:
        node.held.append(held)
        return self.event(node, InstanceStarted, "started", held)

    def leave(self, node: GuestHost) -> LedgerRecord:
        """An instance goes: by the owner's final word, or by a departure and a release."""
        held = node.held.pop(self.random.randrange(len(node.held)))
        self.held -= 1
        if self.random.random() < 0.5:
            node.take(held.resources, -1)
            return self.event(node, InstanceDeleted, "deleted", held)
        self.followups.append((self.made + 20, lambda: self.released(node, held)))
        return self.event(node, InstanceDeparted, "departed", held)

    def released(self, node: GuestHost, held: Guest) -> LedgerRecord:
        """Only now is there room again: a departure alone closes no claim at once."""
        node.take(held.resources, -1)
        gone = ClaimReleased(node_id=node.node_id, record_id=f"release/{held.claim_id}", claim_id=held.claim_id, reason="deleted")
        return self.record(node.partition, node.key, gone)

    def event(self, node: GuestHost, kind: type[LifecycleEvent], change: Change, held: Guest) -> LedgerRecord:
        node.changed = True
        made = node.events.event(kind, held.report, self.now_ms)
        observed = InstanceObserved(
            node_id=made.node_id,
            producer=made.producer,
            epoch=made.epoch,
            counter=made.counter,
            change=change,
            event_time_ms=made.event_time_ms,
            instance=made.instance,
            claim_id=held.claim_id,
        )
        return self.record(node.partition, node.key, observed)

    def audit(self, node: GuestHost) -> LedgerRecord:
        made = node.audit(self.now_ms, self.now_ms - self.start_ms)
        observed = NodeObserved(
            node_id=made.node_id,
            producer=made.producer,
            epoch=made.epoch,
            counter=made.counter,
            taken_at_ms=made.taken_at_ms,
            mono_ms=made.mono_ms,
            digest=made.digest,
            hypervisor=made.hypervisor,
            instances=made.instances,
        )
        return self.record(node.partition, node.key, observed)

    @property
    def now_ms(self) -> int:
        return self.start_ms + self.made * STEP_MS

    def record(self, partition: int, key: bytes, record: Any) -> LedgerRecord:
        made = LedgerRecord(partition, self.now_ms, key, encode(record))
        self.made += 1
        self.next_offsets[partition] += 1
        return made
