"""A fleet acted out for the leak audit: what its schedulers, guests, hosts and (if it is followed) its cloud say, late and sometimes twice.

A clean history loses nothing. Schedulers claim, guests start after their claims, some with a PCI device or bound to a NUMA cell; they are
resized under a claim of the new size, migrate with a claim of the destination (cold ones keep their place until they are confirmed or
reverted), are evacuated from a host that is down for minutes, and are deleted with a release. Every event is on the log within less than
the grace, in its producer's order; audits come every minute and are late as well; producers crash, send the last records again, and go on
in a new epoch with a resync.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct, field

from projections.rules import GRACE_MS
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimReleased, ClaimRequested, InstanceObserved, NodeObserved
from schemas.codec import encode
from schemas.inventory import Hypervisor, NumaCell, PciDevice
from schemas.requests import NumaWant, PciWant
from schemas.resources import ObservedResources, Resources

NODES = ("n1", "n2", "n3")
START_MS = 1_700_000_000_000
AUDIT_MS = 60_000
TTL_MS = 600_000
LATE_MS_MAX = GRACE_MS - 1_000
"""How late a record may be: below the grace."""
BUILD_MS_MAX = 300_000
"""How long a cloud may count an instance before its host has it."""
DEVICES = 32
HOST = Hypervisor(
    vcpus=64,
    memory_mib=1 << 20,
    pci_devices=tuple(PciDevice(address=f"0000:{number:02x}:00.0") for number in range(DEVICES)),
    numa_cells=tuple(NumaCell(cell_id=cell, cpus=tuple(range(32 * cell, 32 * cell + 32)), memory_mib=1 << 19) for cell in (0, 1)),
)


class Guest(Struct):
    """A guest that runs: where, how large, and the claims that hold it. It is left alone until `settled_ms`, when they are confirmed."""

    node: str
    memory_mib: int
    claims: list[tuple[str, str]]
    settled_ms: int = 0
    device: str = ""
    bound: bool = False
    left_on: str = ""
    """The node where a cold migration's domain stays defined until it is confirmed."""
    task: str = ""


class Producer(Struct):
    """One source of observations of a node: its place in its own sequence, and what it may send again after a crash."""

    name: str
    node: str
    epoch: int = 1
    counter: int = 0
    free_ms: int = 0
    sent: list[Any] = field(default_factory=list)


class Fleet:
    """Acts out a history: `records` are (append time, record), in append order.

    It is clean unless one guest leaves without a word at the end (`leak`) or is made again there, smaller, with its claim left behind
    (`remade`), or this share of all life-cycle events is `lost`. `followed`: there are no claims; a cloud tells the log what it counts,
    before its hosts have it.
    """

    def __init__(self, seed: int, *, leak: bool = False, remade: bool = False, lost: float = 0.0, followed: bool = False) -> None:
        self._random = random.Random(seed)
        self._now_ms = START_MS
        self._guests: dict[str, Guest] = {}
        self._out: list[tuple[int, int, Any]] = []
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0
        self._devices = {node: [device.address for device in HOST.pci_devices] for node in NODES}
        self._audits = {node: Producer("libvirt", node) for node in NODES}
        self._events = {node: Producer("libvirt", node) for node in NODES}
        self._cloud = {node: Producer("nova", node) for node in NODES}
        self._down: dict[str, int] = {}
        self._leak, self._remade, self._lost, self._followed = leak or remade, remade, lost, followed

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
                self._due()
            for node in NODES:
                if node not in self._down and self._random.random() < 0.1:
                    self._crash(node)
                self._audit(node)
        if self._leak:
            leaking = next(i for i, guest in self._guests.items() if not guest.left_on and guest.node not in self._down)
            gone = self._guests.pop(leaking)
            if self._remade:
                self._make_again(leaking, gone)
        for _ in range(4 if self._leak else 16):  # long enough for abandoned claims to expire, unless the leak is to be seen
            self._now_ms += AUDIT_MS
            self._due()
            for node in NODES:
                self._audit(node)
        while self._out:
            at_ms, _, record = heappop(self._out)
            yield at_ms, record

    def _due(self) -> None:
        """What was to happen by now."""
        while self._later and self._later[0][0] <= self._now_ms:
            heappop(self._later)[2]()

    def _in(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._made += 1
        heappush(self._later, (self._now_ms + delay_ms, self._made, act))

    def _act(self, minute: int) -> None:
        settled = [i for i, guest in sorted(self._guests.items()) if guest.settled_ms <= self._now_ms and guest.node not in self._down]
        instance_id = self._random.choice(settled) if settled else ""
        match self._random.choice(["create", "create", "create", "delete", "resize", "migrate", "cold", "stop", "abandon", "evacuate"]):
            case "create":
                self._create(f"i{self._made}")
            case "delete" if instance_id and not (self._leak and minute > 3):
                self._delete(instance_id)
            case "resize" if instance_id:
                self._resize(instance_id)
            case "migrate" if instance_id:
                self._migrate(instance_id, self._elsewhere(instance_id))
            case "cold" if instance_id and not self._guests[instance_id].device:
                self._cold(instance_id)
            case "stop" if instance_id:
                self._event("stopped", instance_id, self._guests[instance_id])
            case "abandon" if not self._followed:
                # A scheduler dies with its claim in flight: nobody starts the guest, nobody releases the claim.
                self._claim(f"i{self._made}", Guest(self._up(), 256, []))
            case "evacuate" if minute > 1 and not self._down and not self._leak:
                self._evacuate(self._random.choice(NODES))

    def _up(self, *but: str) -> str:
        return self._random.choice([node for node in NODES if node not in self._down and node not in but])

    def _elsewhere(self, instance_id: str) -> str:
        return self._up(self._guests[instance_id].node)

    def _create(self, instance_id: str) -> None:
        guest = Guest(self._up(), self._random.choice([256, 512, 1024]), [], bound=self._random.random() < 0.3)
        free = self._devices[guest.node]
        guest.device = free.pop() if free and self._random.random() < 0.3 else ""
        guest.claims = self._claim(instance_id, guest)
        self._tell("arrived", instance_id, guest)
        self._guests[instance_id] = guest
        if self._followed and self._random.random() < 0.5:
            guest.settled_ms = 1 << 62
            self._in(self._random.randrange(BUILD_MS_MAX), lambda: self._start(instance_id, guest))
            return
        self._now_ms += self._random.randrange(500, 20_000)
        self._start(instance_id, guest)

    def _start(self, instance_id: str, guest: Guest) -> None:
        if guest.node in self._down:
            self._in(AUDIT_MS, lambda: self._start(instance_id, guest))
            return
        guest.settled_ms = self._now_ms + GRACE_MS
        self._event("arrived", instance_id, guest)
        self._event("started", instance_id, guest)
        self._tell("started", instance_id, guest)

    def _delete(self, instance_id: str) -> None:
        guest = self._guests.pop(instance_id)
        self._event(self._random.choice(["departed", "deleted"]), instance_id, guest)
        self._tell("deleted", instance_id, guest)
        self._release(guest.claims, "deleted")

    def _make_again(self, instance_id: str, gone: Guest) -> None:
        """Deleted and made again on its node within seconds; nobody gives the claims of the guest that is gone back."""
        self._now_ms = max(self._now_ms, gone.settled_ms)
        self._event("stopped", instance_id, gone)
        self._now_ms += 500
        self._event("deleted", instance_id, gone)
        guest = Guest(gone.node, gone.memory_mib // 2, [])
        guest.claims = self._claim(instance_id, guest)
        self._now_ms += 500
        self._event("arrived", instance_id, guest)
        self._guests[instance_id] = guest

    def _resize(self, instance_id: str) -> None:
        guest = self._guests[instance_id]
        memory_mib = guest.memory_mib * 2 if self._random.random() < 0.5 else max(128, guest.memory_mib // 2)
        new = Guest(guest.node, memory_mib, [], device=guest.device, bound=guest.bound)
        guest.claims += self._claim(instance_id, new, resize=True)
        self._now_ms += self._random.randrange(500, 10_000)
        guest.memory_mib = memory_mib
        self._event("resized", instance_id, guest)
        self._tell("resized", instance_id, guest)
        guest.settled_ms = self._now_ms + GRACE_MS

    def _migrate(self, instance_id: str, node: str, *, told: bool = True) -> None:
        """Live, or (not `told` by the source) from a host that is down. A device stays behind."""
        guest = self._guests[instance_id]
        source = Guest(guest.node, guest.memory_mib, guest.claims, device=guest.device, bound=guest.bound)
        there = Guest(node, guest.memory_mib, [], bound=guest.bound)
        claims = self._claim(instance_id, there)
        self._tell("arrived", instance_id, there, "migrating")
        self._now_ms += self._random.randrange(500, 10_000)
        guest.node, guest.claims, guest.device = node, claims, ""
        guest.settled_ms = self._now_ms + GRACE_MS
        self._event("arrived", instance_id, guest)
        if told:
            self._event("departed", instance_id, source)
        self._tell("started", instance_id, guest)
        self._tell("departed", instance_id, source)
        self._release(source.claims, "migrated")

    def _cold(self, instance_id: str) -> None:
        """Its domain stays defined at the source, which keeps its place, until somebody confirms or reverts."""
        guest = self._guests[instance_id]
        source = Guest(guest.node, guest.memory_mib, guest.claims, bound=guest.bound)
        there = Guest(self._elsewhere(instance_id), guest.memory_mib, [], bound=guest.bound, task="resize_migrated")
        claims, keep = self._claim(instance_id, there), self._claim(instance_id, source, keep=True)
        self._tell("arrived", instance_id, there, "resize_migrating")
        self._now_ms += self._random.randrange(500, 10_000)
        guest.node, guest.claims, guest.left_on, guest.settled_ms = there.node, claims, source.node, 1 << 62
        self._event("arrived", instance_id, guest)
        back = self._random.random() < 0.4
        self._in(self._random.randrange(5_000, 240_000), lambda: self._end(instance_id, guest, source, keep, back=back))

    def _end(self, instance_id: str, guest: Guest, source: Guest, keep: list[tuple[str, str]], *, back: bool) -> None:
        if guest.node in self._down or source.node in self._down:
            self._in(AUDIT_MS, lambda: self._end(instance_id, guest, source, keep, back=back))
            return
        gone = Guest(guest.node, guest.memory_mib, guest.claims) if back else source
        guest.left_on = ""
        if back:
            guest.node, guest.claims = source.node, source.claims
            self._event("started", instance_id, guest)
        guest.settled_ms = self._now_ms + GRACE_MS
        self._event("departed", instance_id, gone)
        self._tell("started", instance_id, guest)
        self._tell("departed", instance_id, gone)
        self._release([*gone.claims, *keep], "migrated")

    def _evacuate(self, node: str) -> None:
        """The host is down; its guests go elsewhere, and what it has when it is back was destroyed at its start."""
        if any(guest.left_on or guest.settled_ms > self._now_ms for guest in self._guests.values()):
            return
        self._down[node] = self._now_ms
        for instance_id, guest in sorted(self._guests.items()):
            if guest.node == node:
                self._now_ms += 1_000
                self._migrate(instance_id, self._elsewhere(instance_id), told=False)
        self._in(self._random.randrange(60_000, 300_000), lambda: self._back(node))

    def _back(self, node: str) -> None:
        del self._down[node]
        self._crash(node)

    def _claim(self, instance_id: str, guest: Guest, *, resize: bool = False, keep: bool = False) -> list[tuple[str, str]]:
        if self._followed:
            return []
        self._made += 1
        claim_id = f"r{self._made}/0/s-1.{self._made}"
        item = ClaimItem(
            claim_id=claim_id,
            instance_id=instance_id,
            nodes=(guest.node,),
            resources=Resources(memory_mib=guest.memory_mib),
            resize=resize,
            keep=keep,
            pci=(PciWant(specs=({"address": guest.device},)),) if guest.device else (),
            numa=(NumaWant(cpus=(0,), memory_mib=guest.memory_mib),) if guest.bound else (),
        )
        request = ClaimRequested(request_id=f"r{self._made}", owner="s", basis=0, ttl_ms=TTL_MS, items=(item,))
        self._put(request, self._now_ms)
        if self._random.random() < 0.2:
            self._put(request, self._now_ms + self._random.randrange(LATE_MS_MAX))
        self._now_ms += 5
        return [(claim_id, guest.node)]

    def _release(self, claims: list[tuple[str, str]], reason: Any) -> None:
        for claim_id, node in claims:
            late_ms = self._random.randrange(LATE_MS_MAX) * self._random.randrange(2)
            self._put(ClaimReleased(node_id=node, record_id=self._id(), claim_id=claim_id, reason=reason), self._now_ms + late_ms)

    def _event(self, change: Any, instance_id: str, guest: Guest) -> None:
        """The hypervisor's own word."""
        self._say(self._events[guest.node], change, _report(instance_id, guest))

    def _tell(self, change: Any, instance_id: str, guest: Guest, task: str = "") -> None:
        """The cloud's word, if there is one. It does not know of devices."""
        if self._followed:
            size = ObservedResources(memory_mib=guest.memory_mib)
            self._say(self._cloud[guest.node], change, InstanceReport(instance_id=instance_id, resources=size, task_state=task))

    def _say(self, producer: Producer, change: Any, report: InstanceReport) -> None:
        producer.counter += 1
        if self._random.random() < self._lost:
            return
        self._send(
            producer,
            InstanceObserved(
                node_id=producer.node,
                producer=producer.name,
                epoch=producer.epoch,
                counter=producer.counter,
                change=change,
                event_time_ms=self._now_ms,
                instance=report,
            ),
        )

    def _there(self, node: str) -> list[tuple[str, Guest]]:
        """The guests that the host has: not those that are still being built."""
        building = 1 << 62
        found = []
        for instance_id, guest in sorted(self._guests.items()):
            if guest.left_on == node or (guest.node == node and (guest.settled_ms != building or guest.left_on)):
                found.append((instance_id, guest))
        return found

    def _audit(self, node: str) -> None:
        if node in self._down:
            return
        producer = self._audits[node]
        producer.counter += 1
        reports = tuple(_report(instance_id, guest) for instance_id, guest in self._there(node))
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
                digest=blake2b(b"".join(map(encode, reports)), digest_size=8).hexdigest(),
                hypervisor=None if unchanged else HOST,
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
        for instance_id, guest in self._there(node):
            self._say(self._events[node], "started", _report(instance_id, guest))

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


def _report(instance_id: str, guest: Guest) -> InstanceReport:
    return InstanceReport(
        instance_id=instance_id,
        resources=ObservedResources(memory_mib=guest.memory_mib),
        pci_addresses=(guest.device,) if guest.device else (),
    )
