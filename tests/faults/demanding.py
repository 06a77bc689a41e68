"""The world outside claimlog for what is more than amounts: groups, cells, pinned CPUs, pages, devices, traits, moves and resizes.

It plays in the test's own process and is never killed (`player` is); schedulers and stream processors are. It knows where each guest really
runs, and says so when two of them have what only one may have: `wrong`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec import Struct, structs

from producers.source import AuditSource, EventSource, said
from projections.ledger import Ledger
from projections.ledger_state import Step
from schemas.claims import ClaimReleased, ClaimRenewed, GroupHomeClosed, NodeConfigured, ReleaseReason
from schemas.codec import encode, key_of
from schemas.inventory import Aggregate, HugePages, OperatorFields, ResourceRule
from schemas.lifecycle import InstanceArrived, InstanceDeleted, InstanceDeparted, InstanceResized, LifecycleEvent
from schemas.requests import PlacementCancelled, PlacementRequested
from schemas.results import Granted, InstancesPlaced, Placement, PlacementFailed
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE, REQUESTS, RESULTS
from streams.cli.produce.publishing import message
from streams.clock import Clock
from streams.log.base import Log, Message
from tests.faults.demanding_hosts import GIB, Guest, Host, hypervisors, truly_wrong
from tests.faults.demanding_requests import TTL_MS, move, request
from tests.faults.results import in_time

NODES = 14
AUDIT_EVERY_MS = 30_000
LIFETIME_MS_MEAN = 60_000
MOVES_AFTER_MS = 8_000
"""How long a cold migration waits until it is confirmed or reverted."""
OPEN_MAX = 60


class Start(Struct):
    """A placement that counts and whose guest is not started, moved or resized yet."""

    request: PlacementRequested
    placement: Placement
    kept: Placement | None


class Demanding:
    """See the module. Call `step` again and again; with `calm` it asks for nothing more, and with `ending` it ends its guests."""

    def __init__(self, log: Log, clock: Clock, seed: int) -> None:
        self.calm = self.ending = False
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self.guests: dict[str, Guest] = {}
        self.asked: dict[str, PlacementRequested] = {}
        self._log, self._clock, self._random = log, clock, Random(seed)
        self._out: list[Message] = []
        self._epoch = clock.wall_ms()
        self._count = 0
        self.hosts = {name: Host(name, host, *self._sources(name, self._epoch), due_ms=0) for name, host in hypervisors(NODES).items()}
        topics = log.topics()
        self._ledgers = [Ledger(number, topics[CLAIMS]) for number in range(topics[CLAIMS])]
        self._results_next = dict.fromkeys(range(topics[RESULTS]), 0)
        self._answers: dict[str, InstancesPlaced | PlacementFailed] = {}
        self._granted: dict[str, Granted] = {}
        self._starts: dict[str, Start] = {}
        self._renewals: dict[str, str] = {}
        self._closed: set[tuple[str, str]] = set()
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._operate(0)

    @property
    def open(self) -> int:
        """Requests that nobody answered."""
        return len(self.asked) - len(self._answers)

    @property
    def held(self) -> int:
        """Claims that are held."""
        return sum(len(ledger.claims) for ledger in self._ledgers)

    @property
    def is_busy(self) -> bool:
        """Whether something that was placed is not started, or a move not finished."""
        return bool(self._starts or self._later)

    def step(self) -> None:
        """Everything that is due now."""
        now_ms = self._clock.wall_ms()
        self._fold()
        self._read_results()
        for claim_id, start in list(self._starts.items()):
            self._start(claim_id, start, now_ms)
        due = [each for each in self._later if each[0] <= now_ms]
        self._later = [each for each in self._later if each[0] > now_ms]
        for _, act in due:
            act()
        self._end(now_ms)
        for host in self.hosts.values():
            if not host.is_up and (self.calm or host.back_ms <= now_ms):
                self._boot(host, now_ms)
        if not self.calm:
            self._ask()
            self._operate(now_ms)
        self._audit(now_ms)
        if self._out:
            self._log.append(self._out)
            self._out.clear()

    # What it reads

    def _fold(self) -> None:
        for ledger in self._ledgers:
            while found := self._log.read(CLAIMS, ledger.partition, ledger.next_offset):
                for record in found:
                    step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
                    assert step is not None
                    self._note(step)

    def _note(self, step: Step) -> None:
        for outcome in step.outcomes:
            self.seen[outcome.outcome] += 1
            if outcome.outcome == "granted":
                self._granted[outcome.claim_id] = outcome.granted or Granted()
            elif outcome.outcome in {"renewed", "not-held", "in-use"} and outcome.claim_id in self._starts:
                self._renewals[outcome.claim_id] = "in-use" if self._renewals.get(outcome.claim_id) == "in-use" else outcome.outcome
            elif outcome.outcome == "in-use":
                for guest in self.guests.values():
                    if guest.claim_id == outcome.claim_id:
                        guest.ends_ms = 0

    def _read_results(self) -> None:
        for result in in_time(self._log, self._results_next):
            if result.request_id not in self._answers:
                self._answered(result)

    def _answered(self, result: InstancesPlaced | PlacementFailed) -> None:
        self._answers[result.request_id] = result
        request = self.asked[result.request_id]
        kind = request.action + (" dry" if request.dry_run else "")
        self.seen[f"{kind} {result.reason if isinstance(result, PlacementFailed) else 'placed'}"] += 1
        if isinstance(result, PlacementFailed):
            for instance_id in request.instance_ids:
                if instance_id in self.guests:
                    self.guests[instance_id].busy = False
            return
        kept = {each.instance_id: each for each in result.kept}
        for placement in result.placements:
            self._starts[placement.claim_id] = Start(request, placement, kept.get(placement.instance_id))

    # Starters

    def _start(self, claim_id: str, start: Start, now_ms: int) -> None:
        """Renew, see it held, and act at once. One in twenty never does; its claims run out, and its kept place is given back."""
        place = start.placement
        if claim_id not in self._renewals:
            if Random(claim_id).random() < 0.05:
                del self._starts[claim_id]
                self._give_up(start)
                return
            self._renewals[claim_id] = "sent"
            self._say(CLAIMS, ClaimRenewed(node_id=place.node_id, record_id=f"{claim_id}/renew", claim_id=claim_id, ttl_ms=TTL_MS // 2))
            return
        state = self._renewals[claim_id]
        if state == "sent":
            return
        del self._starts[claim_id]
        held = self._ledgers[place.partition].claims.get(claim_id)
        host = self.hosts[place.node_id]
        if state != "renewed" or held is None or not host.is_up:
            self.seen[f"not started: {state if held is not None else 'not held'}"] += 1
            if held is not None:
                self._back_out(start)
            return
        {"create": self._create, "resize": self._resize, "migrate": self._migrate, "evacuate": self._evacuate}[start.request.action](
            start, now_ms
        )

    def _back_out(self, start: Start) -> None:
        self._release(start.placement, "failed")
        self._give_up(start)

    def _give_up(self, start: Start) -> None:
        if start.kept is not None:
            self._release(start.kept, "migrated")
        guest = self.guests.get(start.placement.instance_id)
        if guest is not None:
            guest.busy = False

    def _create(self, start: Start, now_ms: int) -> None:
        place = start.placement
        if place.instance_id in self.guests:
            self._release(place, "failed")  # It was asked for again while it lives: nobody starts it twice.
            return
        ends_ms = now_ms + int(self._random.expovariate(1 / LIFETIME_MS_MEAN))
        self._arrive(Guest(place.instance_id, place.node_id, start.request, place, self._granted[place.claim_id], ends_ms, place.claim_id))

    def _resize(self, start: Start, now_ms: int) -> None:
        del now_ms
        place, guest = start.placement, self.guests.get(start.placement.instance_id)
        if guest is None or guest.node_id != place.node_id:
            self._back_out(start)
            return
        self._release(guest.placement, "operator")
        guest.placement, guest.held, guest.claim_id, guest.busy = place, self._granted[place.claim_id], place.claim_id, False
        self._event(InstanceResized, guest)
        self._check(guest)

    def _evacuate(self, start: Start, now_ms: int) -> None:
        del now_ms
        guest = self.guests.get(start.placement.instance_id)
        if guest is None or self.hosts[guest.node_id].is_up:
            self._back_out(start)
            return
        del self.hosts[guest.node_id].guests[guest.instance_id]
        self._moved(guest, start)

    def _migrate(self, start: Start, now_ms: int) -> None:
        guest = self.guests.get(start.placement.instance_id)
        if guest is None or guest.node_id != start.request.source_node or not self.hosts[guest.node_id].is_up:
            self._back_out(start)
            return
        before = structs.replace(guest)
        self._depart(guest)
        self._moved(guest, start)
        if start.kept is None:
            self._release(before.placement, "migrated")
            return
        guest.busy = True
        self._later.append((now_ms + MOVES_AFTER_MS, lambda: self._finish(guest, before, start)))

    def _finish(self, guest: Guest, before: Guest, start: Start) -> None:
        """Confirm a cold migration, or revert it: then the guest is back where it was, with what it had there."""
        assert start.kept is not None
        guest.busy = False
        back = self.hosts[before.node_id]
        kept = self._ledgers[start.kept.partition].claims.get(start.kept.claim_id)
        is_there = self.guests.get(guest.instance_id) is guest and self.hosts[guest.node_id].is_up
        if is_there and back.is_up and kept is not None and self._random.random() < 0.5:
            self.seen["reverted"] += 1
            self._depart(guest)
            guest.node_id, guest.placement, guest.held, guest.claim_id = before.node_id, before.placement, before.held, start.kept.claim_id
            self._arrive(guest)
            self._release(start.placement, "migrated")
            # Its kept claim is what it lives on now, until the deadline of that; then what is shown counts.
        else:
            self.seen["confirmed move"] += 1
            self._release(start.kept, "migrated")
            self._release(before.placement, "migrated")

    def _moved(self, guest: Guest, start: Start) -> None:
        place = start.placement
        guest.node_id, guest.placement, guest.claim_id, guest.busy = place.node_id, place, place.claim_id, False
        guest.held = self._granted[place.claim_id]
        self._arrive(guest)

    # Guests

    def _arrive(self, guest: Guest) -> None:
        self.guests[guest.instance_id] = self.hosts[guest.node_id].guests[guest.instance_id] = guest
        self._event(InstanceArrived, guest)
        self._check(guest)

    def _depart(self, guest: Guest) -> None:
        del self.hosts[guest.node_id].guests[guest.instance_id]
        self._event(InstanceDeparted, guest)

    def _end(self, now_ms: int) -> None:
        """Lifetimes end; some without a word."""
        for guest in list(self.guests.values()):
            if (guest.ends_ms > now_ms and not self.ending) or guest.busy:
                continue
            del self.guests[guest.instance_id]
            self.hosts[guest.node_id].guests.pop(guest.instance_id, None)
            if self._random.random() > 0.05:
                self._event(InstanceDeparted, guest)
                self._event(InstanceDeleted, guest)

    def _check(self, guest: Guest) -> None:
        """Members of a group whose home was closed under them are a finding, and nobody's fault."""
        groups = ((each, each.request.group) for each in self.guests.values())
        everywhere = [each for each, group in groups if group is None or (group.group_id, each.node_id) not in self._closed]
        self.wrong += truly_wrong(guest, self.hosts[guest.node_id].guests.values(), everywhere)

    # Requesters

    def _ask(self) -> None:
        for _ in range(self._random.randint(0, 3) if self.open < OPEN_MAX else 0):
            request_id = f"d-{self._count}"
            self._count += 1
            request = self._request(request_id)
            self.asked[request_id] = request
            self._say(REQUESTS, request)
        names = list(self.asked)[-30:]
        if names and self._random.random() < 0.08:
            name = self._random.choice(names)
            self._say(REQUESTS, PlacementCancelled(request_id=name, record_id=f"{name}/cancel-{self._count}"))
        if names and self._random.random() < 0.05:
            self._say(REQUESTS, self.asked[self._random.choice(names)])

    def _request(self, request_id: str) -> PlacementRequested:
        idle = [guest for guest in self.guests.values() if not guest.busy]
        if idle and self._random.random() < 0.35:
            guest = self._random.choice(idle)
            guest.busy = True
            is_up = self.hosts[guest.node_id].is_up
            return move(self._random, request_id, guest.instance_id, guest.node_id, guest.request, is_up=is_up)
        return request(self._random, request_id, self._count, list(self.hosts), [guest.instance_id for guest in idle])

    # Operators and hosts

    def _operate(self, now_ms: int) -> None:
        """At first all nodes are set up; then settings change, hosts die and come back."""
        draw = self._random
        if not now_ms:
            for number, node_id in enumerate(self.hosts):
                fields = OperatorFields(zone="north" if number % 2 else "south", vcpus=ResourceRule(ratio_milli=2000))
                self._configure(node_id, fields=fields)
            return
        if draw.random() < 0.03:
            host = draw.choice(list(self.hosts.values()))
            down = [each for each in self.hosts.values() if not each.is_up]
            if host.is_up and len(down) < 2 and not any(guest.busy for guest in host.guests.values()):
                host.is_up, host.back_ms = False, now_ms + 90_000
                self._configure(host.node_id, status="disabled", reason="down")
                for guest in host.guests.values():
                    group = guest.request.group
                    if group is not None and group.policy == "affinity":
                        self._later.append((now_ms + 2_000, lambda name=group.group_id, at=host.node_id: self._close(name, at)))  # type: ignore[misc]
        if draw.random() < 0.1:
            node_id = draw.choice(list(self.hosts))
            if not self.hosts[node_id].is_up:
                return
            change = draw.randrange(5)
            if change == 0:
                self._configure(node_id, status=draw.choice(["enabled", "enabled", "disabled", "draining"]), reason="told")
            elif change == 1:
                ratio = ResourceRule(ratio_milli=draw.choice([1000, 1500]), reserved=draw.choice([0, 4 * GIB]))
                self._configure(node_id, fields=OperatorFields(memory_mib=ratio, vcpus=ResourceRule(ratio_milli=2000)))
            elif change == 2:
                tier = {"tier": draw.choice(["gold", "silver"]), "ram_allocation_ratio": draw.choice(["0.5", "1.0", "1.5"])}
                self._configure(node_id, fields=OperatorFields(aggregates=(Aggregate(name="tiers", metadata=tier),)))
            elif change == 3:
                self._configure(node_id, fields=OperatorFields(traits=draw.choice([(), ("CUSTOM_SSD",)])))
            else:
                reserved = HugePages(size_kib=2048, total=2048, reserved=draw.choice([0, 512]))
                self._configure(node_id, fields=OperatorFields(pages_reserved=(reserved,)))

    def _close(self, group_id: str, node_id: str) -> None:
        """The operator's word that a group's home is dead: whoever is evacuated may go elsewhere."""
        if self.hosts[node_id].is_up:
            return
        home = next((home for ledger in self._ledgers if (home := ledger.homes(group_id)) is not None), None)
        if home is not None and home.node_id == node_id:
            self.seen["home closed"] += 1
            self._closed.add((group_id, node_id))
            name = f"close-{group_id}-{home.epoch}-{node_id}"
            self._say(CLAIMS, GroupHomeClosed(node_id=node_id, record_id=name, group_id=group_id, epoch=home.epoch, unconditional=True))

    def _boot(self, host: Host, now_ms: int) -> None:
        host.is_up, host.due_ms = True, now_ms
        host.audits, host.events = self._sources(host.node_id, now_ms)
        for guest in host.guests.values():
            self._event(InstanceArrived, guest, resync=True)
        self._configure(host.node_id, status="enabled")

    def _configure(self, node_id: str, **more: Any) -> None:
        self._count += 1
        self._say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"configure-{self._count}", **more))

    def _sources(self, node_id: str, epoch: int) -> tuple[AuditSource, EventSource]:
        return AuditSource(node_id, "demanding", epoch, 20), EventSource(node_id, "demanding", epoch)

    def _audit(self, now_ms: int) -> None:
        for host in self.hosts.values():
            if host.is_up and host.due_ms <= now_ms:
                host.due_ms = now_ms + AUDIT_EVERY_MS
                reports = [guest.report for guest in host.guests.values()]
                audit = host.audits.audited(host.host, reports, taken_at_ms=now_ms, mono_ms=self._clock.boot_ms())
                self._out.append(message(said(AUDITS, audit)))

    def _event(self, kind: type[LifecycleEvent], guest: Guest, *, resync: bool = False) -> None:
        host = self.hosts[guest.node_id]
        if host.is_up:
            event = host.events.event(kind, guest.report, self._clock.wall_ms(), claim_id=guest.claim_id, resync=resync)
            self._out.append(message(said(LIFECYCLE, event)))

    def _release(self, place: Placement, reason: ReleaseReason) -> None:
        name = f"{place.claim_id}/{reason}-{self._count}"
        self._count += 1
        self._say(CLAIMS, ClaimReleased(node_id=place.node_id, record_id=name, claim_id=place.claim_id, reason=reason))

    def _say(self, topic: str, record: Struct) -> None:
        self._out.append(Message(topic, key_of(record) or b"", encode(record)))
