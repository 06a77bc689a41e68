"""The history of a fleet at work, for audits of large logs: what hosts, starters and schedulers wrote, in the order in which they did.

Of 20 records of the log one is an audit, three are life-cycle events, and sixteen stand in `claims`: twelve of schedulers and starters, and
the four observations, carried by the reconciler, which is not this module's to do. The fleet fills up to `HELD_PER_NODE` guests a node,
then guests come and go on a few busy nodes at a time, so about a tenth of the audits are in full. Now and then a guest is started or
destroyed behind everybody's back: those are the leaks that an audit of the history has to find, and no others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from producers.ledger_load import HOST, SCHEDULER, SIZES, START_MS, TTL_MS, Guest, GuestHost, claim_on, guest_of
from producers.source import said
from schemas.audits import AuditRecord, InstanceReport
from schemas.claims import ClaimReleased, ClaimRenewed, ClaimRequested, ReleaseReason
from schemas.codec import encode, event_type
from schemas.envelope import Envelope, Headers, to_headers
from schemas.ids import claim_id as claim_id_of
from schemas.lifecycle import InstanceDeleted, InstanceDeparted, InstanceStarted, LifecycleEvent
from schemas.partitioner import partition_of
from schemas.resources import Resources
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE

HELD_PER_NODE = 20
RECORDS_OF_AN_AUDIT = 20
"""Records of the log from one audit to the next."""
RECORDS_OF_A_LIFE = 12
"""What one guest adds to a log: two claims, four renewals and two releases, start and end, and the carried copies of these two."""
REFUSED_EVERY = 8
"""One guest of so many has a third claim, refused by both of its nodes, in place of a renewal: 6 % of all claims."""
FULL_EVERY = 50
"""Every 50th audit of a node is in full although nothing changed."""
BUSY_SHARE = 14
"""One node of so many is busy at a time."""
BUSY_ROUNDS = 4
"""How often the busy part goes round the fleet, whatever the length of the history."""
STEP_MS = 3
"""Between two records: 1,000 nodes are audited about once a minute."""
DELAY_RECORDS = 40
"""Between two records of one life."""
LEAK_EVERY = 5_000
"""One life of so many leaves a leak, by turns a guest that no claim holds and a claim whose guest was destroyed silently."""
SMALLEST = min(SIZES, key=lambda size: size.memory_mib)

_CALM_FROM = 0.9
"""Nothing leaks in the last tenth of a history, so that audits and deadlines have gone over every leak."""
_TOO_LARGE = Resources(vcpus=(HOST.vcpus or 0) + 1, memory_mib=1024, disk_mib=1024)


class HistoryRecord(NamedTuple):
    """One record that somebody else than the reconciler wrote at `time_ms`."""

    topic: str
    partition: int
    time_ms: int
    key: bytes
    value: bytes
    headers: Headers


class _Node(GuestHost):
    """A node on which some guests run `unclaimed`, and others are `coming`: their claims are on their way."""

    __slots__ = ("coming", "unclaimed")

    def __init__(self, node_id: str, partition: int) -> None:
        super().__init__(node_id, partition, START_MS, FULL_EVERY)
        self.unclaimed: list[InstanceReport] = []
        self.coming = 0

    def reports(self) -> list[InstanceReport]:
        """Also the guests that no claim holds."""
        return [*super().reports(), *self.unclaimed]


def history_records(seed: int, *, nodes: int, records: int, partitions: int) -> Iterator[HistoryRecord]:
    """A history that makes exactly `records` records of a log, those that the reconciler carries included, but for `PartitionOpened`."""
    return _Maker(Random(seed), nodes, records, partitions).all()


def leak_id(number: int) -> str:
    """The instance of a history's leak number `number`, counted from 0."""
    life = number * LEAK_EVERY + LEAK_EVERY // 2
    return f"leak-{_uuid(life)}"


def leaks_about(records: int) -> int:
    """How many leaks a history of so many records has, one more or less."""
    return int(records * _CALM_FROM * 0.9 / RECORDS_OF_A_LIFE / LEAK_EVERY + 0.5)


def _uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


class _Maker:
    def __init__(self, random: Random, nodes: int, records: int, partitions: int) -> None:
        self.random, self.records = random, records
        names = [f"node-{number:06d}" for number in range(nodes)]
        self.nodes = [_Node(name, partition_of(name.encode(), partitions)) for name in names]
        self.in_partition: list[list[_Node]] = [[] for _ in range(partitions)]
        for node in self.nodes:
            self.in_partition[node.partition].append(node)
        self.claims_ends = [1] * partitions
        self.said = self.made = self.lives = self.filled = 0
        self.steps: deque[tuple[int, Callable[[], HistoryRecord]]] = deque()

    def all(self) -> Iterator[HistoryRecord]:
        """All records, in the order in which they are written."""
        audits = 0
        while self.made < self.records:
            if self.made >= RECORDS_OF_AN_AUDIT * audits:
                record = self.audit(self.nodes[audits % len(self.nodes)])
                audits += 1
            elif self.steps and self.steps[0][0] <= self.said:
                record = self.steps.popleft()[1]()
            else:
                record = self.churn()
            self.said += 1
            places = 1 if record.topic == CLAIMS else 2
            if self.made + places <= self.records:  # Else one place is left: a record of `claims` alone comes soon.
                self.made += places
                self.claims_ends[record.partition] += 1
                yield record

    @property
    def now_ms(self) -> int:
        """When the next record is written."""
        return START_MS + self.said * STEP_MS

    def churn(self) -> HistoryRecord:
        """A guest goes from a busy node that has enough of them; else one comes."""
        if self.filled < HELD_PER_NODE * len(self.nodes):
            node = self.nodes[self.filled // HELD_PER_NODE]
            self.filled += 1
            return self.comes(node)
        first = self.made * BUSY_ROUNDS * len(self.nodes) // self.records
        busy = self.random.randrange(max(1, len(self.nodes) // BUSY_SHARE))
        node = self.nodes[(first + busy) % len(self.nodes)]
        if node.held and len(node.held) + node.coming >= HELD_PER_NODE:
            return self.goes(node, node.held.pop(self.random.randrange(len(node.held))))
        return self.comes(node)

    def comes(self, node: _Node) -> HistoryRecord:
        """A guest comes: held and given back elsewhere, then claimed, renewed four times and started here; some are refused first."""
        self.lives += 1
        life = self.lives
        leak, number = None, life // LEAK_EVERY
        if life % LEAK_EVERY == LEAK_EVERY // 2 and self.made < _CALM_FROM * self.records:
            leak = ("unclaimed", "destroyed")[number % 2]
        name = _uuid(life) if leak is None else leak_id(number)
        drawn = self.random.choice(SIZES)
        size = drawn if node.fits(drawn) else SMALLEST
        node.take(size)
        others = self.in_partition[node.partition]
        other = others[life % len(others)]
        lost, given_back, kept = (claim_id_of(f"load-{life:08d}", 0, SCHEDULER, START_MS, 3 * life + attempt) for attempt in range(3))
        guest = guest_of(kept, name, size)
        refused = life % REFUSED_EVERY == 0
        elsewhere: list[Callable[[], HistoryRecord]] = [
            *([partial(self.claim, other, node, lost, name, _TOO_LARGE)] if refused else []),
            partial(self.claim, other, node, given_back, name, SMALLEST),
            partial(self.release, other, given_back, "loser"),
        ]
        if leak == "unclaimed":
            node.unclaimed.append(guest.report)
            node.changed = True
            return self.follow(elsewhere)
        node.coming += 1
        renewals = [partial(self.renew, node, kept, count) for count in range(3 if refused else 4)]
        started = partial(self.started, node, guest, stays=leak is None)
        return self.follow([*elsewhere, partial(self.claim, node, other, kept, name, size), *renewals, started])

    def goes(self, node: _Node, guest: Guest) -> HistoryRecord:
        """A guest goes by its owner's final word or by a departure; its claim is given back in either case."""
        kind = InstanceDeleted if self.random.random() < 0.5 else InstanceDeparted
        return self.follow([partial(self.event, node, kind, guest), partial(self.released, node, guest)])

    def follow(self, steps: Sequence[Callable[[], HistoryRecord]]) -> HistoryRecord:
        """Take the first step now and the others by and by."""
        first, *rest = steps
        if rest:
            self.steps.append((self.said + DELAY_RECORDS, partial(self.follow, rest)))
        return first()

    def claim(self, node: _Node, alternate: _Node, claim_id: str, instance_id: str, size: Resources) -> HistoryRecord:
        """A claim on the node, with another of its partition as alternate."""
        basis = self.claims_ends[node.partition] - 1
        return self.of_claims(node, claim_id, claim_on(node, alternate, claim_id, instance_id, size, basis))

    def renew(self, node: _Node, claim_id: str, count: int) -> HistoryRecord:
        """The starter is at work."""
        record_id = f"renew-{count}/{claim_id}"
        return self.of_claims(node, record_id, ClaimRenewed(node_id=node.node_id, record_id=record_id, claim_id=claim_id, ttl_ms=TTL_MS))

    def release(self, node: _Node, claim_id: str, reason: ReleaseReason) -> HistoryRecord:
        """A claim is given back."""
        record_id = f"release/{claim_id}"
        return self.of_claims(node, record_id, ClaimReleased(node_id=node.node_id, record_id=record_id, claim_id=claim_id, reason=reason))

    def released(self, node: _Node, guest: Guest) -> HistoryRecord:
        """Only now is there room again: a departure alone closes no claim at once."""
        node.take(guest.resources, -1)
        return self.release(node, guest.claim_id, "deleted")

    def started(self, node: _Node, guest: Guest, *, stays: bool) -> HistoryRecord:
        """The guest runs; one that does not stay is destroyed before an audit has seen it."""
        node.coming -= 1
        if stays:
            node.held.append(guest)
        return self.event(node, InstanceStarted, guest)

    def event(self, node: _Node, kind: type[LifecycleEvent], guest: Guest) -> HistoryRecord:
        """One life-cycle event, as the host's producer writes it."""
        node.changed = True
        return self.observed(LIFECYCLE, node, node.events.event(kind, guest.report, self.now_ms, claim_id=guest.claim_id))

    def audit(self, node: _Node) -> HistoryRecord:
        """One look at the node: in full if it changed."""
        return self.observed(AUDITS, node, node.audit(self.now_ms, self.now_ms - START_MS))

    def observed(self, topic: str, node: _Node, record: AuditRecord | LifecycleEvent) -> HistoryRecord:
        """An observation as a source publishes it."""
        message = said(topic, record)
        return HistoryRecord(topic, node.partition, self.now_ms, message.key, message.value, message.headers)

    def of_claims(self, node: _Node, event_id: str, record: ClaimRequested | ClaimRenewed | ClaimReleased) -> HistoryRecord:
        """A record of `claims` as a scheduler publishes it."""
        request_id = event_id.partition("/")[0]
        envelope = Envelope(
            event_id=event_id,
            event_type=event_type(record),
            source=f"claimlog/scheduler/{SCHEDULER}",
            time_ms=self.now_ms,
            subject=node.node_id,
            correlation_id=request_id,
            causation_id=request_id,
        )
        return HistoryRecord(CLAIMS, node.partition, self.now_ms, node.key, encode(record), to_headers(envelope))
