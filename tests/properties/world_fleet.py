"""The world's fleet: hosts and their producers, reconcilers, starters, guests' lives, and what operators and clients do. See `world`."""

from __future__ import annotations

from collections.abc import Generator

from msgspec import UNSET

from schemas.audits import HypervisorAudited, InstanceReport
from schemas.claims import Change, ClaimRenewed, NodeConfigured
from schemas.inventory import Hypervisor
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceResized, InstanceStarted, LifecycleEvent
from schemas.resources import ObservedResources
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from streams.log.base import Message
from streams.reconciler import reconcile
from tests.properties.world import (
    GIVE_UP_S,
    HOST_SIZE,
    NODES,
    PARTITION_OF,
    PARTITIONS,
    TTL_S,
    Guest,
    Host,
    Placed,
    Process,
    Request,
    Result,
    World,
)

EVENTS: dict[str, type[LifecycleEvent]] = {
    "arrived": InstanceArrived,
    "started": InstanceStarted,
    "resized": InstanceResized,
    "departed": InstanceDeparted,
    "deleted": InstanceDeleted,
}


class Fleet:
    """Starts every process of the fleet in a world. `late` are Nova's events on their way: when due, and what."""

    def __init__(self, world: World, requests: int) -> None:
        self.world = world
        self.late: list[tuple[int, int, Host, str, str, int]] = []
        for host in world.hosts.values():
            world.go(self.auditor(host))
            world.go(self.life_cycle_producer(host))
        if world.has("nova"):
            world.go(self.nova())
        for partition in range(PARTITIONS):
            for topic in (AUDITS, LIFECYCLE):
                for _ in range(2 if world.has("zrec") else 1):
                    world.go(self.reconciler(topic, partition))
        world.on_counting.append(self.start_all)
        world.go(self.client(requests))
        world.go(self.operators())

    # Producers

    def auditor(self, host: Host) -> Process:
        """Audits every 15 to 25 s; crashes lose an audit, or let it land much later."""
        world = self.world
        epoch, counter, said, started_s = world.new_id(), 0, ("", 0), -world.random.randint(0, 9)
        while True:
            if world.happens("step", 0.02):
                host.clock_off_s += 100
            if host.up:
                counter += 1
                audit, said = self._audit(host, epoch, counter, world.now_s - started_s, said)
                yield world.lag(0, 0, 1, 3)
                if world.happens("acrash", 0.03):
                    if world.random.random() < 0.5:
                        world.go(self._zombie(audit))
                    epoch, counter, said, started_s = world.new_id(), 0, ("", 0), world.now_s
                    yield 5
                    continue
                world.land(AUDITS, PARTITION_OF[host.node_id], audit)
            if world.has("epochflap") and world.now_s % 50 < 25 and world.now_s < world.busy_s:
                epoch, counter, said = world.new_id(), 0, ("", 0)
            yield world.random.randint(15, 25)

    def _audit(self, host: Host, epoch: int, counter: int, mono_s: int, said: tuple[str, int]) -> tuple[HypervisorAudited, tuple[str, int]]:
        """An audit taken now, in full or unchanged, and the last full one said."""
        world = self.world
        complete = world.now_s > world.busy_s or world.random.random() < 0.93
        listed = {i: guest.size for i, guest in sorted(host.guests.items()) if guest.on and (complete or world.random.random() > 0.3)}
        digest = f"{listed} {host.host_uuid}"
        unchanged = world.has("unch") and complete and said == (digest, epoch) and counter % 5 != 0
        audit = HypervisorAudited(
            node_id=host.node_id,
            producer=f"audits {host.node_id}",
            epoch=epoch,
            counter=counter,
            taken_at_ms=world.clock_ms(host),
            mono_ms=mono_s * 1000,
            digest=digest,
            complete=complete,
            hypervisor=None if unchanged else Hypervisor(memory_mib=HOST_SIZE, host_uuid=host.host_uuid),
            instances=None if unchanged else tuple(_report(i, size) for i, size in listed.items()),
        )
        return audit, (digest, epoch) if complete else said

    def _zombie(self, audit: HypervisorAudited) -> Process:
        yield self.world.choice(10, 70)
        self.world.land(AUDITS, PARTITION_OF[audit.node_id], audit)

    def happened(self, host: Host, change: Change, instance: str, size: int) -> None:
        """Something happened on the host: its producer will tell, and Nova too, late and perhaps twice."""
        world = self.world
        host.events.append((change, world.clock_ms(host), instance, size))
        if world.has("nova"):
            off_s = world.nova_off_s - host.clock_off_s
            for _ in range(world.choice(1, 1, 2)):
                due_s = world.now_s + world.choice(1, 2, 10, 40)
                self.late.append((due_s, world.clock_ms(host) + off_s * 1000, host, change, instance, size))

    def life_cycle_producer(self, host: Host) -> Process:
        """Sends the host's events in order; a crash loses those not sent."""
        world = self.world
        epoch, counter = world.new_id(), 0
        while True:
            while host.events:
                change, time_ms, instance, size = host.events.pop(0)
                counter += 1
                yield world.lag(0, 1, 2, 8)
                self._tell(f"libvirt {host.node_id}", epoch, counter, time_ms, host, change, instance, size)
            if world.happens("lcrash", 0.01):
                yield 10
                host.events.clear()
                epoch, counter = world.new_id(), 0
            yield 1

    def nova(self) -> Process:
        """Sends what is due, for every host."""
        epoch, counter = self.world.new_id(), 0
        while True:
            due = sorted((event for event in self.late if event[0] <= self.world.now_s), key=lambda event: event[0])
            for event in due:
                self.late.remove(event)
                _, time_ms, host, change, instance, size = event
                counter += 1
                self._tell("nova", epoch, counter, time_ms, host, change, instance, size)
            yield 1

    def _tell(self, producer: str, epoch: int, counter: int, time_ms: int, host: Host, change: str, instance: str, size: int) -> None:
        event = EVENTS[change](
            node_id=host.node_id, producer=producer, epoch=epoch, counter=counter, event_time_ms=time_ms, instance=_report(instance, size)
        )
        self.world.land(LIFECYCLE, PARTITION_OF[host.node_id], event)

    def reconciler(self, topic: str, partition: int) -> Process:
        """Carries each record over to `claims`; some become dead letters that somebody redrives later, and a zombie goes over old ones."""
        world, position = self.world, 0
        while True:
            source = world.logs[topic, partition]
            while position < len(source):
                message = reconcile(source[position], PARTITIONS)
                assert isinstance(message, Message), f"{source[position].position}: {message}"
                position += 1
                if world.happens("dead", 0.05):
                    world.go(self._redrive(message, partition))
                    continue
                yield world.lag(0, 0, 1, 2)
                world.land_bytes(CLAIMS, partition, message.key, message.value)
                if world.happens("zrec", 0.02):
                    position = max(0, position - world.random.randint(1, 6))
            yield 1

    def _redrive(self, message: Message, partition: int) -> Process:
        yield self.world.choice(20, 60, 120)
        self.world.land_bytes(CLAIMS, partition, message.key, message.value)

    # Starters and guests

    def start_all(self, world: World, result: Result) -> None:
        """A placement counts: somebody starts what it names."""
        if result.ok:
            world.go(self.starter(world.requests[result.request_id], result), 1)

    def starter(self, request: Request, result: Result) -> Process:
        """Renews each claim, sees it held, and only then acts, in time."""
        world = self.world
        yield world.choice(1, 2, 5)
        for placed in result.placed:
            if (yield from self._renewed(placed)):
                yield from self._act(request, placed)
                if world.hosts[placed.node_id].used() > HOST_SIZE:
                    world.violated("O1", f"the guests of {placed.node_id} exceed it")

    def _renewed(self, placed: Placed) -> Generator[int, None, bool]:
        world = self.world
        while True:
            renewal = ClaimRenewed(
                node_id=placed.node_id, record_id=f"renewal {world.new_id()}", claim_id=placed.claim_id, ttl_ms=TTL_S * 1000
            )
            while not (yield from world.append(renewal, placed.node_id)):
                pass  # Not acknowledged: again, byte for byte.
            renewed_s = world.now_s
            yield 2
            claim = world.ledgers[PARTITION_OF[placed.node_id]].claims.get(placed.claim_id)
            if claim is None or claim.node_id != placed.node_id:
                world.seen["renewals not held"] += 1
                return False
            yield world.choice(1, 3, 10)
            if world.now_s - renewed_s <= GIVE_UP_S:
                return world.hosts[placed.node_id].up

    def _act(self, request: Request, placed: Placed) -> Process:
        """What the request was for."""
        world, host, instance = self.world, self.world.hosts[placed.node_id], placed.instance_id
        if request.kind == "resize":
            if instance in host.guests and world.random.random() < 0.8:
                host.guests[instance].size = placed.size
                self.happened(host, "resized", instance, placed.size)
        elif request.kind in {"migrate", "evac"}:
            yield from self._move(request, placed)
        elif world.random.random() > 0.1:
            host.guests[instance] = Guest(placed.size, world.now_s)
            self.happened(host, "started", instance, placed.size)
            world.go(self.life(instance), world.choice(1, 3, 20, 80), steady=True)

    def _move(self, request: Request, placed: Placed) -> Process:
        world, instance, source = self.world, placed.instance_id, self.world.hosts[request.source]
        live = request.kind == "migrate"
        if (live and instance not in source.guests) or world.random.random() < 0.2:
            world.seen["moves abandoned"] += 1
            return
        host = world.hosts[placed.node_id]
        host.guests[instance] = Guest(placed.size, world.now_s)
        self.happened(host, "arrived", instance, placed.size)
        if live:
            yield world.choice(0, 1, 3)
            source.guests.pop(instance, None)
            self.happened(source, "departed", instance, placed.size)
            if world.has("quickret") and world.random.random() < 0.5:
                back = self.request("migrate", [instance], [placed.size], source=placed.node_id, only=request.source)
                world.go(back, world.choice(1, 3, 8))

    def life(self, instance: str) -> Process:
        """What happens to a guest: deleted, migrated, resized, rebooted, or nothing."""
        world = self.world
        while world.now_s < world.busy_s:
            host = next((host for host in sorted(world.hosts.values(), key=lambda host: host.node_id) if instance in host.guests), None)
            if host is None:
                return
            if not host.up:
                yield 10
                continue
            guest, fate = host.guests[instance], world.random.random()
            if fate < 0.35:
                del host.guests[instance]
                self.happened(host, "deleted", instance, guest.size)
                return
            if fate < 0.55 and world.has("migrate"):
                yield from self.request("migrate", [instance], [guest.size], source=host.node_id)
            elif fate < 0.75 and world.has("resize"):
                size = world.choice(*({1, 2, 3, 4} - {guest.size}))
                yield from self.request("resize", [instance], [size], source=host.node_id, only=host.node_id)
            elif fate < 0.85 and world.has("reboot"):
                yield from self._reboot(host, instance, guest)
            yield world.choice(10, 40, 90)

    def _reboot(self, host: Host, instance: str, guest: Guest) -> Process:
        guest.on = False
        self.happened(host, "departed", instance, guest.size)
        yield self.world.choice(0, 1, 4)
        if instance in host.guests:
            guest.on = True
            self.happened(host, "arrived", instance, guest.size)

    # Clients and operators

    def request(self, kind: str, instances: list[str], sizes: list[int], source: str = "", only: str = "") -> Process:
        """A request is published; it may be cancelled, and published again."""
        world = self.world
        number = len(world.requests)
        request = Request(f"r{number}", number % PARTITIONS, kind, instances, sizes, source, only)
        world.requests[request.request_id] = request
        log = world.request_log[request.partition]
        log.append(("place", request.request_id))
        if kind == "new" and world.has("cancel") and world.random.random() < 0.25:
            yield world.choice(1, 4, 10, 30)
            log.append(("cancel", request.request_id))
        if world.has("dupreq") and world.random.random() < 0.3:
            yield 150
            log.append(("place", request.request_id))
        yield 0

    def client(self, requests: int) -> Process:
        """Asks for new instances, one to three at a time."""
        world = self.world
        for number in range(requests):
            yield world.random.randint(1, 20)
            count = world.choice(1, 1, 1, 2, 3)
            sizes = [world.choice(1, 2, 3) for _ in range(count)]
            world.go(self.request("new", [f"vm{number}.{index}" for index in range(count)], sizes))

    def operators(self) -> Process:
        """Registers the nodes; evacuates hosts that went down; reinstalls hosts, or only changes their uuid."""
        world = self.world
        for node_id in NODES:
            world.land(CLAIMS, PARTITION_OF[node_id], NodeConfigured(node_id=node_id, record_id=f"register {node_id}", status=UNSET))
        while world.now_s < world.busy_s:
            yield world.random.randint(40, 120)
            for wrong in world.hosts.values():
                if wrong.clock_off_s not in range(-2, 3) and world.happens("clockfix", 0.3):
                    wrong.clock_off_s = 0
            host = world.hosts[world.random.choice(NODES)]
            if world.now_s < world.busy_s - 150 and world.happens("evac", 0.6):
                yield from self._evacuate(host)
            elif world.happens("recreate", 0.5):
                if world.random.random() < 0.5:
                    host.guests.clear()
                host.host_uuid = f"{host.node_id} of {world.now_s}"

    def _evacuate(self, host: Host) -> Process:
        world = self.world
        world.seen["evacuations"] += 1
        host.up = False
        yield 20
        for instance, guest in sorted(host.guests.items()):
            world.go(self.request("evac", [instance], [guest.size], source=host.node_id))
        yield world.choice(40, 100)
        host.up = True
        yield world.choice(0, 8)
        for instance in sorted(host.guests):
            if sum(instance in other.guests for other in world.hosts.values()) > 1:
                guest = host.guests.pop(instance)
                self.happened(host, "departed", instance, guest.size)
                yield 1


def _report(instance: str, size: int) -> InstanceReport:
    return InstanceReport(instance_id=instance, resources=ObservedResources(memory_mib=size))
