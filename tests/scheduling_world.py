"""A log with a fleet on it, and what schedulers did there: for tests of placement.

Times are ms of a clock that tests move by hand. `At` stands between one scheduler and the log, and is where things go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from projections.ledger import Ledger
from projections.placements import Placements
from schemas.claims import ClaimItem, ClaimRequested, GroupHomeProposed, NodeConfigured, NodeObserved, NodeStatus
from schemas.codec import decode, encode, key_of
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementCancelled, PlacementRequested
from schemas.resources import RESOURCES
from schemas.results import Decision
from schemas.topics import ANSWERED, CLAIMS, REQUESTS, RESULTS
from streams.log.base import Lease, Log, LogUnreachable, Message, Record, TopicSpec
from streams.log.memory import MemoryLog
from streams.placement.work import Counters
from streams.scheduler import Clocks, Scheduler
from streams.scheduling.explain import Laid, Rerun, rerun_on
from streams.scheduling.policy import Policy

START_MS = 1_700_000_000_000
TTL_MS = 600_000
TURNS_MAX = 200
"""Within which schedulers come to rest: the longest stories here take a tenth."""


class Killed(Exception):  # noqa: N818 - what happened to the process
    """The process is gone at this point."""


class Clock(Struct):
    """Both clocks of the world."""

    now_ms: int = START_MS

    def wall(self) -> int:
        return self.now_ms

    def boot(self) -> int:
        return self.now_ms - START_MS


class World(Struct):
    """The log, the clock, and the requests made so far."""

    log: Log
    clock: Clock
    requests: list[PlacementRequested] = field(default_factory=list)

    def say(self, topic: str, record: Any) -> None:
        """Append a record under its key."""
        self.log.append([Message(topic, key_of(record) or b"", encode(record))])

    def host(self, node_id: str, **totals: Any) -> None:
        """A hypervisor of 8 vCPUs, 16 GiB and 100 GiB unless told, with nothing on it."""
        amounts: dict[str, Any] = {"vcpus": 8, "pcpus": 0, "memory_mib": 16_384, "disk_mib": 102_400} | totals
        has, source = Hypervisor(**amounts), f"audits of {node_id}"
        self.say(
            CLAIMS,
            NodeObserved(
                node_id=node_id, producer=source, epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=has, instances=()
            ),
        )

    def set_status(self, node_id: str, status: NodeStatus) -> None:
        """The operator's word."""
        ends = sum(self.log.ends(CLAIMS).values())
        self.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"status {ends}", status=status, reason="told"))

    def request(self, request_id: str, vcpus: int = 1, memory_mib: int = 1024, count: int = 1, **options: Any) -> PlacementRequested:
        """Somebody asks for instances."""
        options = {"ttl_ms": TTL_MS} | options
        request = PlacementRequested(request_id=request_id, flavor=Flavor(vcpus=vcpus, memory_mib=memory_mib), count=count, **options)
        self.requests.append(request)
        self.say(REQUESTS, request)
        return request

    def cancel(self, request_id: str) -> None:
        """Somebody no longer wants it."""
        self.say(REQUESTS, PlacementCancelled(request_id=request_id, record_id=f"{request_id}/cancel"))

    def scheduler(self, name: str = "s", log: Log | None = None, **options: Any) -> Scheduler:
        """A scheduler process on the log."""
        return Scheduler(log or self.log, name, clocks=Clocks(self.clock.wall, self.clock.boot), **options)

    def records(self, topic: str, partition: int) -> Iterator[Record]:
        """All that a partition still has: a read may hand out fewer than there are."""
        at, end = self.log.start(topic, partition), self.log.end(topic, partition)
        while at < end:
            found = self.log.read(topic, partition, at)
            yield from found
            at = found[-1].offset + 1 if found else at

    def ledgers(self, check: Callable[[Ledger, Any], object] = lambda *_: None) -> list[Ledger]:
        """A fresh fold of all claims; `check` is called after each record."""
        folded = []
        for partition in sorted(self.log.ends(CLAIMS)):
            ledger = Ledger(partition, self.log.topics()[CLAIMS])
            for record in self.records(CLAIMS, partition):
                check(ledger, ledger.apply(record.offset, record.time_ms, record.key, record.value))
            folded.append(ledger)
        return folded

    def ledgers_at(self, cut: tuple[int, ...]) -> list[Ledger]:
        """A fresh fold of the claims below a cut."""
        folded = [Ledger(partition, len(cut)) for partition in range(len(cut))]
        for ledger, end in zip(folded, cut, strict=True):
            for record in self.records(CLAIMS, ledger.partition):
                if record.offset < end:
                    ledger.apply(record.offset, record.time_ms, record.key, record.value)
        return folded

    def placements(self) -> list[Placements]:
        """A fresh fold of all requests and results."""
        folded = []
        for partition in sorted(self.log.ends(REQUESTS)):
            placements = Placements(partition, self.log.topics()[REQUESTS])
            for record in self.records(RESULTS, partition):
                placements.apply_result(record.offset, record.time_ms, record.key, record.value)
            for record in self.records(REQUESTS, partition):
                placements.apply_request(record.offset, record.time_ms, record.key, record.value)
            folded.append(placements)
        return folded

    def answer(self, request_id: str) -> Any:
        """The counting result of a request; KeyError without one."""
        return next(placements.answers[request_id] for placements in self.placements() if request_id in placements.answers)


def world(claims: int = 2, requests: int = 2) -> World:
    """An empty log in memory."""
    clock = Clock()
    topics = [TopicSpec(CLAIMS, claims), *(TopicSpec(topic, requests) for topic in (REQUESTS, RESULTS, ANSWERED))]
    return World(MemoryLog(topics, clock.wall), clock)


def hosts(*names: str, claims: int = 2, **totals: int) -> World:
    """A log in memory with these nodes, which answers requests in one partition."""
    here = world(claims=claims, requests=1)
    for name in names:
        here.host(name, **totals)
    return here


def settle(*schedulers: Scheduler) -> None:
    """Turns until nobody has anything to do; raises AssertionError where that does not come."""
    for _ in range(TURNS_MAX):
        if not sum(scheduler.turn() for scheduler in schedulers):
            return
    raise AssertionError(f"the schedulers do not come to rest within {TURNS_MAX} turns")


def said(here: World, topic: str, *types: type) -> list[Any]:
    """The records of these types in a topic, partition by partition."""
    records = [record for number in sorted(here.log.ends(topic)) for record in here.records(topic, number)]
    return [event for record in records if isinstance(event := decode(topic, record.value), types)]


def rival(claim: ClaimRequested, number: int = 1) -> ClaimRequested:
    """Another scheduler's claim of the same room for an instance of its own."""
    item = replace(claim.items[0], claim_id=f"rival/0/x-1.{number}", instance_id=f"rival {number}")
    return replace(claim, request_id="rival", owner="x", items=(item,))


class At:
    """The log as one scheduler has it. `act` is asked at every append and may raise, before or after the records are in the log."""

    def __init__(self, log: Any, act: Callable[[str, Sequence[Message]], None], *, owns_all: bool = False) -> None:
        self._log, self._act, self._owns_all = log, act, owns_all

    def append(self, messages: Sequence[Message]) -> list[int]:
        return self._through(self._log.append, messages)

    def _through(self, append: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message]) -> list[int]:
        self._act("before", messages)
        offsets = append(messages)
        self._act("after", messages)
        return offsets

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> Lease:
        if self._owns_all:
            return Everything(self._log.topics()[topic])
        taken: Lease = self._log.lease(group, topic, member, timeout_seconds)
        return taken

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._log, name)
        return partial(self._through, there) if name == "append_early" else there


class Everything:
    """The lease of one that believes it owns all partitions."""

    def __init__(self, partitions: int) -> None:
        self._all = frozenset(range(partitions))

    def partitions(self) -> frozenset[int]:
        return self._all

    def waits_for(self) -> str:
        return ""

    def is_rest_at_work(self, _seconds: float) -> bool:
        return True

    def release(self) -> None:
        self._all = frozenset()


class Weather(Struct):
    """What goes wrong, each as a chance at one append; all end with `calm`."""

    random: random.Random
    clock: Clock
    kill: float = 0.0
    lost_acknowledgement: float = 0.0
    freeze: float = 0.0
    is_calm: bool = False

    def act(self, when: str, messages: Sequence[Message]) -> None:
        """Decide what happens here."""
        if self.is_calm or not messages:
            return
        chance = self.random.random()
        if chance < self.kill:
            raise Killed
        if when == "after" and chance < self.kill + self.lost_acknowledgement:
            raise LogUnreachable("the acknowledgement was lost")
        if when == "before" and self.random.random() < self.freeze:
            self.clock.now_ms += self.random.choice([TTL_MS // 8, TTL_MS // 2])


def over_limit(ledger: Ledger, step: Any) -> list[str]:
    """The nodes that a grant of this step took over a limit."""
    if type(step.event) is not ClaimRequested:
        return []
    found = []
    for outcome in step.outcomes:
        node = ledger.nodes.get(outcome.node_id)
        if outcome.outcome == "granted" and node is not None:
            found += [f"{node.node_id} {resource} at {step.offset}" for resource in RESOURCES if (node.free(resource) or 0) < 0]
    return found


def wrongs(world: World) -> list[str]:
    """Every invariant of placement that does not hold at rest."""
    found: list[str] = []
    ledgers = world.ledgers(lambda ledger, step: found.extend(over_limit(ledger, step)))
    answers = {request_id: answer for placements in world.placements() for request_id, answer in placements.answers.items()}
    cancelled = {request_id for placements in world.placements() for request_id in placements.cancels}
    found += [f"{request.request_id} has no counting result" for request in world.requests if request.request_id not in answers]
    held = {claim_id: claim for ledger in ledgers for claim_id, claim in ledger.claims.items()}
    for claim in held.values():
        answer = answers.get(claim.request_id)
        if answer is not None and not answer.names(claim.claim_id):
            found.append(f"{claim.claim_id} is held and not named")
        elif answer is not None and answer.placed and claim.request_id in cancelled:
            found.append(f"{claim.claim_id} is held, though its request was cancelled after the placement")
    for request_id, answer in answers.items():
        if request_id not in cancelled:
            found += [f"{named.claim_id} is named and not held" for named in answer.named if named.claim_id not in held]
    return found


def groups_wrong(world: World) -> list[str]:
    """Every way in which server groups do not hold: on which nodes each epoch's members were ever granted, and who is where at rest."""
    found: list[str] = []
    homes: dict[tuple[str, int], str] = {}
    granted: dict[tuple[str, int], set[str]] = {}

    def look(ledger: Ledger, step: Any) -> None:
        event = step.event
        if type(event) is GroupHomeProposed and not step.ignored:
            homes[event.group_id, event.epoch] = event.node_id
        elif type(event) is ClaimRequested:
            members = {item.claim_id: item.group for item in event.items}
            for outcome in step.outcomes:
                group = members[outcome.claim_id]
                if outcome.outcome == "granted" and group is not None and group.policy == "affinity":
                    granted.setdefault((group.group_id, group.epoch), set()).add(outcome.node_id)
                elif outcome.outcome == "granted" and group is not None and group.policy == "anti-affinity":
                    members_there = ledger.nodes[outcome.node_id].members(group.group_id)
                    if len(members_there) > group.max_per_node:
                        found.append(f"{group.group_id}: {len(members_there)} members on {outcome.node_id} at {step.offset}")

    ledgers = world.ledgers(look)
    found += [f"{key}: granted on {nodes}, home is {homes.get(key)}" for key, nodes in granted.items() if nodes != {homes.get(key)}]
    together = {group_id for group_id, _ in homes}
    for group_id in sorted(together):
        nodes = [node.node_id for ledger in ledgers for node in ledger.nodes.values() if node.members(group_id)]
        if len(nodes) > 1:
            found.append(f"{group_id}: members on {nodes}")
    return found


def total(schedulers: Mapping[str, Scheduler]) -> Counters:
    """What all of them counted together, without failures and latencies."""
    counters = Counters()
    for scheduler in schedulers.values():
        each = scheduler.placer.counters
        for name in ("placed", "decisions", "claims", "conflicts", "alternates_used", "lost_races", "late_results", "releases"):
            setattr(counters, name, getattr(counters, name) + getattr(each, name))
    return counters


def rerun(
    ledgers: Sequence[Ledger],
    request: PlacementRequested,
    index: int,
    recorded: Decision,
    items: Mapping[str, ClaimItem],
    policy: Policy,
    written: str = "",
) -> Rerun:
    """One decision made again on a fleet laid for it alone."""
    return rerun_on(Laid(request).under(ledgers, recorded, items, policy), request, index, recorded, policy, written)
