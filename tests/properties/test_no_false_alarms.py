"""Clean histories raise no alarm: whatever is late, sent twice or said again after a crash, nothing is ever confirmed as a leak.

A clean history loses nothing. Schedulers claim, guests start after their claims, are resized under a claim of the new size, migrate with a
claim of the destination, and are deleted with a release; every event is on the log within less than the grace, in its producer's order;
audits come every minute and are late as well; producers crash, send the last records again, and go on in a new epoch with a resync.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from projections.doubles import DoubleClaims
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.observed import Observed
from projections.rules import GRACE_MS
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, InstanceObserved, NodeObserved
from schemas.codec import encode, key_of
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.inventory import Hypervisor
from schemas.partitioner import partition_of
from schemas.resources import ObservedResources, Resources

PARTITIONS = 2
NODES = ("n1", "n2", "n3")
START_MS = 1_700_000_000_000
AUDIT_MS = 60_000
TTL_MS = 600_000
LATE_MS_MAX = GRACE_MS - 1_000
"""How late a record may be: below the grace."""


class Guest(Struct):
    """A guest that runs: where, how large, and the claims that hold it. It may be resized from `settled_ms` on, when they are confirmed."""

    node: str
    memory_mib: int
    claims: list[tuple[str, str]]
    settled_ms: int = 0


class Producer(Struct):
    """One source of observations of a node: its place in its own sequence, and what it may send again after a crash."""

    name: str
    node: str
    epoch: int = 1
    counter: int = 0
    free_ms: int = 0
    sent: list[Any] = []


class Fleet:
    """Acts out a history: `records` are (append time, record), in append order.

    It is clean unless one guest leaves without a word at the end (`leak`), or this share of all life-cycle events is `lost`.
    """

    def __init__(self, seed: int, *, leak: bool = False, lost: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._now_ms = START_MS
        self._guests: dict[str, Guest] = {}
        self._out: list[tuple[int, int, Any]] = []
        self._made = 0
        self._audits = {node: Producer("libvirt", node) for node in NODES}
        self._events = {node: Producer("libvirt", node) for node in NODES}
        self._leak, self._lost = leak, lost

    def records(self, minutes: int) -> Iterator[tuple[int, Any]]:
        """The whole history."""
        for node in NODES:
            self._audit(node)
        self._now_ms += 20_000
        for minute in range(minutes):
            until_ms = self._now_ms + AUDIT_MS
            while self._now_ms < until_ms:
                self._act(minute)
                self._now_ms += self._random.randrange(3_000, 30_000)
            for node in NODES:
                if self._random.random() < 0.1:
                    self._crash(node)
                self._audit(node)
        if self._leak:
            self._guests.pop(next(iter(self._guests)))
        for _ in range(4 if self._leak else 16):  # long enough for abandoned claims to expire, unless the leak is to be seen
            self._now_ms += AUDIT_MS
            for node in NODES:
                self._audit(node)
        while self._out:
            at_ms, _, record = heappop(self._out)
            yield at_ms, record

    def _act(self, minute: int) -> None:
        instance_id = self._random.choice(sorted(self._guests)) if self._guests else ""
        match self._random.choice(["create", "create", "delete", "resize", "migrate", "stop", "abandon"]):
            case "create":
                self._create(f"i{self._made}")
            case "delete" if instance_id and not (self._leak and minute > 3):
                self._delete(instance_id)
            case "resize" if instance_id and self._guests[instance_id].settled_ms <= self._now_ms:
                self._resize(instance_id)
            case "migrate" if instance_id:
                self._migrate(instance_id)
            case "stop" if instance_id:
                self._event("stopped", instance_id, self._guests[instance_id])
            case "abandon":
                # A scheduler dies with its claim in flight: nobody starts the guest, nobody releases the claim.
                self._claim(f"i{self._made}", self._random.choice(NODES), 256)

    def _create(self, instance_id: str) -> None:
        node, memory_mib = self._random.choice(NODES), self._random.choice([256, 512, 1024])
        claim = self._claim(instance_id, node, memory_mib)
        self._now_ms += self._random.randrange(500, 20_000)
        guest = self._guests[instance_id] = Guest(node, memory_mib, [(claim, node)])
        self._event("arrived", instance_id, guest)
        self._event("started", instance_id, guest)
        guest.settled_ms = self._now_ms + GRACE_MS

    def _delete(self, instance_id: str) -> None:
        guest = self._guests.pop(instance_id)
        self._event(self._random.choice(["departed", "deleted"]), instance_id, guest)
        for claim_id, node in guest.claims:
            self._put(ClaimReleased(node_id=node, record_id=self._id(), claim_id=claim_id, reason="deleted"), self._now_ms)

    def _resize(self, instance_id: str) -> None:
        guest = self._guests[instance_id]
        memory_mib = guest.memory_mib * 2 if self._random.random() < 0.5 else max(128, guest.memory_mib // 2)
        claim = self._claim(instance_id, guest.node, memory_mib, resize=True)
        self._now_ms += self._random.randrange(500, 10_000)
        guest.memory_mib = memory_mib
        guest.claims.append((claim, guest.node))
        self._event("resized", instance_id, guest)
        guest.settled_ms = self._now_ms + GRACE_MS

    def _migrate(self, instance_id: str) -> None:
        guest = self._guests[instance_id]
        node = self._random.choice([other for other in NODES if other != guest.node])
        claim = self._claim(instance_id, node, guest.memory_mib)
        self._now_ms += self._random.randrange(500, 10_000)
        source, old = Guest(guest.node, guest.memory_mib, []), guest.claims
        guest.node, guest.claims = node, [(claim, node)]
        guest.settled_ms = self._now_ms + GRACE_MS
        self._event("arrived", instance_id, guest)
        self._event("departed", instance_id, source)
        for claim_id, there in old:
            self._put(ClaimReleased(node_id=there, record_id=self._id(), claim_id=claim_id, reason="migrated"), self._now_ms)

    def _claim(self, instance_id: str, node: str, memory_mib: int, *, resize: bool = False) -> str:
        self._made += 1
        claim_id = f"r{self._made}/0/s-1.{self._made}"
        size = Resources(memory_mib=memory_mib)
        item = ClaimItem(claim_id=claim_id, instance_id=instance_id, nodes=(node,), resources=size, resize=resize)
        request = ClaimRequested(request_id=f"r{self._made}", owner="s", basis=0, ttl_ms=TTL_MS, items=(item,))
        self._put(request, self._now_ms)
        if self._random.random() < 0.2:
            self._put(request, self._now_ms + self._random.randrange(LATE_MS_MAX))
        self._now_ms += 5
        return claim_id

    def _event(self, change: Any, instance_id: str, guest: Guest) -> None:
        producer = self._events[guest.node]
        producer.counter += 1
        if self._random.random() < self._lost:
            return
        report = InstanceReport(instance_id=instance_id, resources=ObservedResources(memory_mib=guest.memory_mib))
        self._send(
            producer,
            InstanceObserved(
                node_id=guest.node,
                producer=producer.name,
                epoch=producer.epoch,
                counter=producer.counter,
                change=change,
                event_time_ms=self._now_ms,
                instance=report,
            ),
        )

    def _audit(self, node: str) -> None:
        producer = self._audits[node]
        producer.counter += 1
        listed = sorted((i, guest.memory_mib) for i, guest in self._guests.items() if guest.node == node)
        reports = tuple(InstanceReport(instance_id=i, resources=ObservedResources(memory_mib=size)) for i, size in listed)
        last = next((sent for sent in reversed(producer.sent) if sent.instances is not None), None)
        unchanged = last is not None and last.instances == reports and last.epoch == producer.epoch
        self._send(
            producer,
            NodeObserved(
                node_id=node,
                producer=producer.name,
                epoch=producer.epoch,
                counter=producer.counter,
                taken_at_ms=self._now_ms,
                mono_ms=self._now_ms - START_MS,
                digest=f"{listed}",
                hypervisor=None if unchanged else Hypervisor(vcpus=64, memory_mib=1 << 20),
                instances=None if unchanged else reports,
            ),
        )

    def _crash(self, node: str) -> None:
        """Both producers of a node start again: the last records come twice, then new epochs, and a resync of what is there."""
        for producer in (self._audits[node], self._events[node]):
            for record in producer.sent[-3:]:
                self._send(producer, record, again=True)
            producer.epoch += 1
            producer.counter = 0
        for instance_id, guest in sorted(self._guests.items()):
            if guest.node == node:
                self._event("started", instance_id, guest)

    def _send(self, producer: Producer, record: Any, *, again: bool = False) -> None:
        """Onto the log, late, but in the producer's order."""
        producer.free_ms = max(producer.free_ms, self._now_ms + self._random.randrange(LATE_MS_MAX) * self._random.randrange(2))
        self._put(record, producer.free_ms)
        if not again:
            producer.sent.append(record)
        if self._random.random() < 0.1:
            self._put(record, producer.free_ms + self._random.randrange(LATE_MS_MAX))

    def _put(self, record: Any, at_ms: int) -> None:
        self._made += 1
        heappush(self._out, (at_ms, self._made, record))

    def _id(self) -> str:
        self._made += 1
        return f"id {self._made}"


Between = Callable[[Leaks, Observed], tuple[Leaks, Observed]]


def findings(fleet: Fleet, minutes: int, between: Between | None = None) -> tuple[list[FindingRecord], int]:
    """Everything the audit said of a history, and how many claims were confirmed in it; `between` acts on its state after each record."""
    ledgers = {number: Ledger(number, PARTITIONS) for number in range(PARTITIONS)}
    observed, leaks = [Observed(number) for number in range(PARTITIONS)], [Leaks(number) for number in range(PARTITIONS)]
    doubles, said, confirmed = DoubleClaims(ledgers), list[FindingRecord](), 0
    for time_ms, record in fleet.records(minutes):
        key = key_of(record)
        assert key is not None
        number = partition_of(key, PARTITIONS)
        step = ledgers[number].apply(ledgers[number].next_offset, time_ms, key, encode(record))
        assert step is not None
        assert step.dead is None, step.dead
        observed[number].apply(ledgers[number], step)
        said += leaks[number].apply(ledgers[number], observed[number], step)
        said += doubles.apply(number, step)
        if between is not None:
            leaks[number], observed[number] = between(leaks[number], observed[number])
        confirmed += sum(outcome.outcome == "confirmed" for outcome in step.outcomes)
    return said, confirmed


@pytest.mark.parametrize("group", range(10))
def test_two_hundred_clean_histories_confirm_no_finding_and_end_without_one(group: int, seed: int) -> None:
    suspected = confirmations = 0
    for number in range(20):
        history = seed * 1000 + group * 20 + number
        said, confirmed = findings(Fleet(history), minutes=8)

        assert [record for record in said if isinstance(record, LeakConfirmed)] == [], f"history {history}"
        open_ = {record.finding_id for record in said if isinstance(record, LeakSuspected)}
        assert open_ - {record.finding_id for record in said if isinstance(record, LeakResolved)} == set(), f"history {history}"
        suspected += len(open_)
        confirmations += confirmed
    assert confirmations > 100, "guests hardly ever started: the histories are too tame to show anything"
    assert suspected > 0, "lateness was never felt: the histories are too tame to show anything"


def test_the_same_histories_with_one_guest_gone_without_a_word_confirm_that_and_nothing_else(seed: int) -> None:
    for number in range(10):
        said, _ = findings(Fleet(seed * 1000 + number, leak=True), minutes=8)

        confirmed = [record for record in said if isinstance(record, LeakConfirmed)]
        assert {record.kind for record in confirmed} == {"orphan-claim"}
        assert len({record.instance_id for record in confirmed}) == 1


def written_down(leaks: Leaks, observed: Observed) -> tuple[Leaks, Observed]:
    """As after a restart."""
    return (
        msgspec.msgpack.decode(msgspec.msgpack.encode(leaks), type=Leaks),
        msgspec.msgpack.decode(msgspec.msgpack.encode(observed), type=Observed),
    )


def never_quiet(leaks: Leaks, observed: Observed) -> tuple[Leaks, Observed]:
    """As if every audit were looked at in full."""
    for mark in leaks.marks.values():
        mark.quiet = False
    return leaks, observed


@pytest.mark.parametrize("between", [written_down, never_quiet])
def test_a_restart_after_every_record_and_a_full_look_at_every_audit_say_the_same(between: Between, seed: int) -> None:
    confirmed = 0
    for number in range(5):
        plain, _ = findings(Fleet(seed * 1000 + number, lost=0.4), minutes=8)
        other, _ = findings(Fleet(seed * 1000 + number, lost=0.4), minutes=8, between=between)

        assert other == plain
        confirmed += sum(isinstance(record, LeakConfirmed) for record in plain)
    assert confirmed > 0
