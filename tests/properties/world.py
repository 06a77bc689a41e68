"""An adversarial world around the real ledger: hosts, producers, reconcilers, schedulers and a log, run by one seed on an invented clock.

Everything that goes wrong in a fleet can be switched on (`FAULTS`): messages late, lost, doubled; processes frozen, crashed or woken as
zombies; clocks wrong; hosts down, reinstalled, rebooting; two schedulers that both believe they own a request. What must hold meanwhile
is checked at every record (`World.check`) and what must hold once all is quiet at the end (`World.check_at_rest`). Fleet and schedulers
are in `world_fleet` and `world_scheduling`; each process there is a generator that yields the seconds it waits.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

from msgspec import Struct

from projections import evidence
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Claim
from projections.snapshots import encoded, restored
from schemas.claims import ClaimReleased, ClaimRequested, InstanceObserved, NodeConfigured, NodeObserved, ReleaseReason
from schemas.codec import encode, key_of
from schemas.partitioner import partition_of
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from streams.log.base import Record
from tests.ledger_history import START_MS, full_use, state

FAULTS = (
    "migrate", "resize", "evac", "reboot", "lcrash", "acrash", "nova", "owners", "cancel", "skew", "freeze", "loss", "delay", "zrec",
    "recreate", "quickret", "epochflap", "unch", "dead", "step", "slowclk", "fastclk", "clockfix", "zcommit", "trunc", "dupreq",
)  # fmt: skip
"""The families of faults. migrate, resize, evac(uate), reboot, cancel, quick ret(urn): what people do. lcrash, acrash, zrec: producers and
reconcilers that crash or act as zombies. nova: a second, late and repeating source of events. owners: both schedulers own every request,
and crash. freeze, loss, delay, dead, zcommit, trunc, dupreq: of processes, appends, deliveries, dead letters redriven, commits, request
offsets, requests. recreate, epochflap, unch(anged audits): hosts and epochs. skew, step, slowclk, fastclk, clockfix: of clocks, which are
wrong and may be set right."""

PARTITIONS = 2
NODES_EACH = 2
HOST_SIZE = 8
TTL_S, SKEW_S = 60, 5
GIVE_UP_S = TTL_S // 4
CLOSING = frozenset({"released", "departed", "deleted", "expired", "vanished"})

Process = Generator[int, None, Any]


def _names() -> dict[str, int]:
    """Node names and the partition each belongs to, the same number in each."""
    names: dict[str, int] = {}
    for number in range(100):
        name = f"node{number}"
        partition = partition_of(name.encode(), PARTITIONS)
        if sum(there == partition for there in names.values()) < NODES_EACH:
            names[name] = partition
    return names


PARTITION_OF = _names()
NODES = tuple(PARTITION_OF)


class Guest(Struct):
    """A domain that really is on a host."""

    size: int
    since_s: int
    on: bool = True


class Host(Struct):
    """A hypervisor as it really is, whatever anybody knows of it. `events` are those its producer has not sent yet."""

    node_id: str
    host_uuid: str
    clock_off_s: int
    guests: dict[str, Guest]
    events: list[tuple[Any, int, str, int]]
    up: bool = True

    def used(self) -> int:
        """What its guests really use."""
        return sum(guest.size for guest in self.guests.values())


class Request(Struct):
    """A placement request. `only` and `source` name nodes: the one it may go to, the one it comes from."""

    request_id: str
    partition: int
    kind: str
    instances: list[str]
    sizes: list[int]
    source: str = ""
    only: str = ""


class Placed(Struct, frozen=True):
    """One claim that a result names."""

    claim_id: str
    node_id: str
    instance_id: str
    size: int


class Result(Struct, frozen=True):
    """What a scheduler says of a request. `time_s` is the append time; the first one not after its `commit_by_s` counts."""

    request_id: str
    ok: bool
    placed: tuple[Placed, ...] = ()
    taken_up_s: int = 0
    commit_by_s: int = 0
    time_s: int = 0

    def counts(self) -> bool:
        """Whether it came in time."""
        return not self.ok or self.time_s <= self.commit_by_s

    def names(self, claim_id: str) -> bool:
        """Whether the claim is one of its placement's."""
        return self.ok and any(placed.claim_id == claim_id for placed in self.placed)


class World:
    """The engine, the log, the truth and the invariants. `violations` maps each broken invariant to what was seen."""

    def __init__(self, seed: int, faults: Iterable[str], *, busy_s: int = 500, rest_s: int = 700) -> None:
        self.random = random.Random(seed)
        self.faults = frozenset(faults)
        if unknown := self.faults - set(FAULTS):
            raise ValueError(f"faults: expected some of {FAULTS}, got {sorted(unknown)}")
        self.now_s = 0
        self._tick = (0, 0)
        self.busy_s, self.end_s = busy_s, busy_s + rest_s
        self._queue: list[tuple[int, int, Process, bool]] = []
        self._started = 0
        self._last_id = 0
        self.logs: dict[tuple[str, int], list[Record]] = {(t, p): [] for t in (CLAIMS, AUDITS, LIFECYCLE) for p in range(PARTITIONS)}
        self.request_log: list[list[tuple[str, str]]] = [[] for _ in range(PARTITIONS)]
        self.result_log: list[list[Result]] = [[] for _ in range(PARTITIONS)]
        self.requests: dict[str, Request] = {}
        self.counting: dict[str, Result] = {}
        self.committed = [0] * PARTITIONS
        self.hosts = {n: Host(n, f"{n} first", self._clock_off_s(i), {}, []) for i, n in enumerate(NODES)}
        self.nova_off_s = self._skew_s()
        self.ledgers = [Ledger(p, PARTITIONS) for p in range(PARTITIONS)]
        self.spelled = [Ledger(p, PARTITIONS) for p in range(PARTITIONS)]
        self.granted: set[tuple[int, str]] = set()
        self.leased_s: dict[str, int] = {}
        self.violations: dict[str, list[str]] = {}
        self.seen: Counter[str] = Counter()
        self.on_counting: list[Any] = []

    # The engine

    def go(self, process: Process, delay_s: int = 0, *, steady: bool = False) -> None:
        """Start a process, or go on with it, after `delay_s`. A `steady` one never freezes."""
        self._started += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._started, process, steady))

    def run(self) -> World:
        """Run to the end and check the state of rest."""
        while self._queue and self._queue[0][0] <= self.end_s:
            self.now_s, _, process, steady = heapq.heappop(self._queue)
            try:
                wait_s = next(process)
            except StopIteration:
                continue
            if not steady and self.happens("freeze", 0.004):
                wait_s += self.choice(20, 40, 90, 150)
            self.go(process, wait_s, steady=steady)
        self.check_at_rest()
        return self

    def has(self, fault: str) -> bool:
        """Whether this family of faults is switched on."""
        return fault in self.faults

    def happens(self, fault: str, chance: float) -> bool:
        """Whether a fault strikes now: never once the world has come to rest."""
        return fault in self.faults and self.now_s < self.busy_s and self.random.random() < chance

    def choice(self, *values: int) -> int:
        """One of the values."""
        return self.random.choice(values)

    def lag(self, *values: int) -> int:
        """How late a delivery is."""
        return self.random.choice(values) if "delay" in self.faults else 0

    def new_id(self) -> int:
        """A number never used before: epochs and the ids of records are made of it."""
        self._last_id += 1
        return self._last_id

    def clock_ms(self, host: Host) -> int:
        """What the host's wall clock says."""
        return self._tick_ms() + host.clock_off_s * 1000

    def _tick_ms(self) -> int:
        """The true time, a millisecond later at each call: of two things in one second the second one is later, and says so."""
        second, calls = self._tick
        self._tick = (self.now_s, min(calls + 1, 999) if second == self.now_s else 0)
        return START_MS + self._tick[0] * 1000 + self._tick[1]

    def _skew_s(self) -> int:
        return self.random.randint(-2, 2) if "skew" in self.faults else 0

    def _clock_off_s(self, index: int) -> int:
        """The first host's clock is far behind, the last one's far ahead, if those faults are on."""
        if index == 0 and "slowclk" in self.faults:
            return -100
        return 100_000 if index == len(NODES) - 1 and "fastclk" in self.faults else self._skew_s()

    # The log

    def land(self, topic: str, partition: int, record: Struct) -> Record:
        """The record stands in the log now."""
        return self.land_bytes(topic, partition, key_of(record) or b"", encode(record))

    def land_bytes(self, topic: str, partition: int, key: bytes, value: bytes) -> Record:
        """The bytes stand in the log now."""
        log = self.logs[topic, partition]
        written = Record(topic, partition, len(log), self._tick_ms(), key, value)
        log.append(written)
        if topic == CLAIMS:
            self.check(written)
        return written

    def append(self, record: Struct, node_id: str) -> Generator[int, None, bool]:
        """Append to `claims` as a client does; False if not acknowledged: landed all the same, lost, or still on its way."""
        partition = PARTITION_OF[node_id]
        return (yield from self._deliver(lambda: self.land(CLAIMS, partition, record)))

    def append_result(self, result: Result) -> Generator[int, None, bool]:
        """Append to the results as a client does."""
        return (yield from self._deliver(lambda: self._land_result(result)))

    def release(self, claim_id: str, node_id: str, reason: ReleaseReason) -> Generator[int, None, bool]:
        """Append a release."""
        release = ClaimReleased(node_id=node_id, record_id=f"release {self.new_id()}", claim_id=claim_id, reason=reason)
        return (yield from self.append(release, node_id))

    def _deliver(self, land: Any) -> Generator[int, None, bool]:
        yield self.choice(0, 0, 1)
        if not self.happens("loss", 0.1):
            land()
            return True
        fate = self.random.random()
        if fate < 0.4:
            land()
        elif fate > 0.7:
            self.go(self._late(land))
        yield 2
        return False

    def _late(self, land: Any) -> Process:
        yield self.choice(5, 30, 50)
        land()

    def _land_result(self, result: Result) -> None:
        request = self.requests[result.request_id]
        result = Result(request.request_id, result.ok, result.placed, result.taken_up_s, result.commit_by_s, self.now_s)
        self.result_log[request.partition].append(result)
        counting = self.counting.get(request.request_id)
        if counting is not None:
            if result.ok and result.taken_up_s > counting.time_s + TTL_S:
                self.violated("I6b", f"{request.request_id} placed again, taken up long after it was decided at {counting.time_s}")
        elif result.counts():
            self.counting[request.request_id] = result
            for react in self.on_counting:
                react(self, result)

    # What must hold at every record

    def violated(self, invariant: str, what: str) -> None:
        """Note a broken invariant."""
        self.violations.setdefault(invariant, []).append(f"at {self.now_s} s: {what}")

    def check(self, written: Record) -> None:
        """Fold the record with everybody's fold and look at what it did."""
        ledger = self.ledgers[written.partition]
        before = dict(ledger.claims)
        used = {node_id: node.used[2] for node_id, node in ledger.nodes.items()}
        copied = restored(encoded(ledger)) if self.random.random() < 0.05 else None
        step = self._fold(ledger, written)
        if step.dead is not None:
            self.violated("I0", f"{written.position} is dead: {step.dead.reason}")
        self._check_long_way(written)
        self._check_uses(ledger, step, used)
        for outcome in step.outcomes:
            self.seen[outcome.outcome] += 1
            if outcome.outcome == "granted":
                self._check_grant(written, outcome.claim_id)
            elif outcome.outcome == "renewed":
                self.leased_s[outcome.claim_id] = self.now_s
            elif outcome.outcome in CLOSING:
                self._check_closing(before[outcome.claim_id], outcome.outcome, written)
        if copied is not None:
            self._check_snapshot_and_copy(copied, ledger, written)

    def _fold(self, ledger: Ledger, written: Record) -> Step:
        step = ledger.apply(written.offset, written.time_ms, written.key, written.value)
        assert step is not None, f"{written.position} was folded before it was written"
        return step

    def _check_long_way(self, written: Record) -> None:
        """I14: a fold that never takes the short cut of settled nodes says the same."""
        spelled = self.spelled[written.partition]
        for node_id in self._fold(spelled, written).node_ids:
            evidence.unsettle(spelled.nodes[node_id])
        if spelled.digest != self.ledgers[written.partition].digest:
            self.violated("I14", f"{written.position}: the settled way differs from the long way")

    def _check_uses(self, ledger: Ledger, step: Step, used: dict[str, int]) -> None:
        for node_id in step.node_ids:
            node = ledger.nodes[node_id]
            if tuple(node.used) != full_use(node):
                self.violated("I13", f"{node_id}: used {node.used}, summed anew {full_use(node)}")
            if node.io_claims != sum(claim.confirmed_ms is None for claim in node.held()):
                self.violated("I13", f"{node_id}: {node.io_claims} unconfirmed claims counted")
            over = node.used[2] > HOST_SIZE and node.used[2] > used.get(node_id, 0)
            if over and isinstance(step.event, ClaimRequested):
                self.violated("I1", f"a grant at {step.offset} takes {node_id} to {node.used[2]}")
            elif over and not isinstance(step.event, NodeObserved | InstanceObserved | NodeConfigured):
                self.violated("I12", f"{step.event} takes {node_id} to {node.used[2]}")

    def _check_grant(self, written: Record, claim_id: str) -> None:
        self.leased_s[claim_id] = self.now_s
        if any((partition, claim_id) in self.granted for partition in range(PARTITIONS)):
            self.violated("I9", f"{claim_id} is granted twice, now at {written.position}")
        self.granted.add((written.partition, claim_id))

    def _check_closing(self, claim: Claim, outcome: str, written: Record) -> None:
        leased_for_s = self.now_s - self.leased_s[claim.claim_id]
        if outcome == "expired" and claim.gone_ms < 0 and leased_for_s < TTL_S - 3 * SKEW_S:
            self.violated("I11", f"{claim.claim_id} expired {leased_for_s} s after its grant or renewal")
        guest = self.hosts[claim.node_id].guests.get(claim.instance_id)
        node = self.ledgers[written.partition].nodes[claim.node_id]
        result = self.counting.get(claim.request_id)
        if guest is None or claim.instance_id in node.claims or result is None or not result.names(claim.claim_id):
            return
        if (guest.on and claim.instance_id in node.shown) or guest.since_s < self.now_s - 30:
            self.violated("I4", f"{claim.claim_id} of running {claim.instance_id} on {claim.node_id} {outcome} by {written.value!r}")

    def _check_snapshot_and_copy(self, copied: Ledger, ledger: Ledger, written: Record) -> None:
        """I2: who starts from a snapshot before the record comes to the same state; I3: a copy of the record changes nothing."""
        self._fold(copied, written)
        if state(copied) != state(ledger):
            self.violated("I2", f"{written.position}: restored and live differ")
        step = copied.apply(written.offset + 1, written.time_ms, written.key, written.value)
        if state(copied) | {"next": 0} != state(ledger) | {"next": 0}:
            self.violated("I3", f"{written.position}: a copy changed the state: {step}")

    # What must hold at rest

    def check_at_rest(self) -> None:
        """I5 to I8: nothing is left over, nothing is missing."""
        for request_id in self.requests.keys() - self.counting.keys():
            self.violated("I6", f"{request_id} has no result")
        for ledger, spelled in zip(self.ledgers, self.spelled, strict=True):
            if state(ledger) != state(spelled):
                self.violated("I14", f"partition {ledger.partition}: the settled way ends in another state")
            for claim in ledger.claims.values():
                self._check_left(claim)
        for node_id, host in self.hosts.items():
            node = self.ledgers[PARTITION_OF[node_id]].nodes[node_id]
            if node.used[2] != host.used():
                self.violated("I8", f"{node_id}: used {node.used[2]}, {host.used()} really runs")
            self.seen["guests without a claim at rest"] += len(host.guests.keys() - node.claims.keys())

    def _check_left(self, claim: Claim) -> None:
        result = self.counting.get(claim.request_id)
        named = result is not None and result.names(claim.claim_id)
        if claim.instance_id not in self.hosts[claim.node_id].guests:
            kind = self.requests[claim.request_id].kind
            self.violated("I5", f"{claim.claim_id} ({kind}) of {claim.instance_id} on {claim.node_id} is held, no guest; named: {named}")
            if claim.confirmed_ms is not None:
                self.violated("I7", f"{claim.claim_id} is confirmed and its guest is gone")
        elif not named:
            self.violated("I5n", f"{claim.claim_id} on {claim.node_id} is held but its result does not name it")
