"""The world outside claimlog as one process that may be killed: requesters, starters, and hypervisors with their audits and events.

Guests outlive their reporter, so what happened to them stands in `world.jsonl` before anything is said about it: after a kill the fleet is
as it was, and events that were not sent are lost, as on real hosts. `acknowledged.jsonl` keeps what the log has acknowledged, and each
process its history (`tests.faults.history`): all calls, and which guests run where.

    python -m tests.faults.player FOLDER CLOCK SEED

It plays until SIGTERM. Once there is a file `calm` in the folder it asks for nothing more, but goes on with everything else.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct

from producers.load import NodeKind, SimulatedFleet
from producers.source import said
from projections.ledger import Ledger
from projections.ledger_state import Step
from schemas.claims import ClaimReleased, ClaimRenewed
from schemas.codec import encode, key_of
from schemas.lifecycle import LifecycleEvent
from schemas.requests import Flavor, PlacementCancelled, PlacementRequested, ServerGroup
from schemas.resources import Resources
from schemas.results import Placement
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE, REQUESTS, RESULTS
from schemas.units import GIB
from streams.cli.produce.publishing import message
from streams.clock import Clock, parse
from streams.log.base import Log, Message, Partition
from streams.log.sqlite import SqliteLog
from tests.faults.checkers import Acknowledged, hash_of
from tests.faults.history import Journal, Recorded
from tests.faults.results import in_time

NODES = 24
KINDS = (
    NodeKind(name="big", vcpus=24, memory_mib=48 * GIB, disk_mib=1000 * GIB, share=1),
    NodeKind(name="small", vcpus=16, memory_mib=64 * GIB, disk_mib=500 * GIB, share=2),
)
TTL_MS = 400_000
RENEWED_TTL_MS = 120_000
"""What a starter asks for: guests that go without a word are missed after so long."""
AUDIT_EVERY_MS = 30_000
LIFETIME_MS_MEAN = 45_000
ASKS_PER_STEP_MAX = 3
STEP_SECONDS = 0.03


class Happened(Struct, omit_defaults=True):
    """One line of the world: a guest came, or went."""

    instance_id: str
    node_id: str = ""
    resources: Resources | None = None
    claim_id: str = ""
    ends_ms: int = 0
    gone: bool = False


class Player:
    """See the module."""

    def __init__(self, log: Log, folder: Path, clock: Clock, seed: int) -> None:
        self.epoch = clock.wall_ms()
        self._log, self._folder, self._clock = Recorded(log, folder, f"player-{self.epoch}"), folder, clock
        self._random = Random(f"{seed}/{self.epoch}")
        self._world, self._kept = Journal(folder / "world.jsonl"), Journal(folder / "acknowledged.jsonl")
        self._fleet = SimulatedFleet(NODES, seed=seed, epoch=self.epoch, kinds=KINDS)
        self._lives: dict[str, Happened] = {}
        self._out: list[Message] = []
        self._remember(folder / "world.jsonl")
        topics = log.topics()
        self._ledgers = [Ledger(number, topics[CLAIMS]) for number in range(topics[CLAIMS])]
        self._results_next = dict.fromkeys(range(topics[RESULTS]), 0)
        self._answered: set[str] = set()
        self._placed: dict[str, Placement] = {}
        self._renewals: set[str] = set()
        self._renewed: set[str] = set()
        self._unwanted: set[str] = set()
        self._asked: list[str] = []
        self._count = 0
        self._audits = [(self.epoch, node_id) for node_id in self._fleet.nodes]
        for node_id in self._fleet.nodes:
            self._events(self._fleet.resync(node_id, self.epoch))

    def _remember(self, world: Path) -> None:
        """Guests as they were when the last process of this kind was killed."""
        for line in world.read_bytes().splitlines():
            happened = msgspec.json.decode(line, type=Happened)
            if happened.gone:
                self._fleet.destroy(happened.instance_id, self.epoch, silently=True)
                self._lives[happened.instance_id].gone = True
            else:
                self._arrive(happened, silently=True)

    def step(self) -> None:
        """Everything that is due now."""
        self._fold()
        self._read_results()
        self._start()
        self._end()
        if not (self._folder / "calm").exists():
            self._ask()
        self._audit()
        self._flush()
        next_ones = {Partition(RESULTS, number): offset for number, offset in self._results_next.items()}
        self._log.wait(next_ones | {Partition(CLAIMS, ledger.partition): ledger.next_offset for ledger in self._ledgers}, STEP_SECONDS)

    def _fold(self) -> None:
        for ledger in self._ledgers:
            while found := self._log.read(CLAIMS, ledger.partition, ledger.next_offset):
                for record in found:
                    step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
                    if step is not None:
                        self._note(step)

    def _note(self, step: Step) -> None:
        """Which of our renewals came through, and whose cancellation came too late."""
        if isinstance(step.event, ClaimRenewed):
            self._renewals.add(step.event.claim_id)
        for outcome in step.outcomes:
            if outcome.outcome == "renewed":
                self._renewed.add(outcome.claim_id)
            elif outcome.outcome == "in-use":
                self._unwanted.add(outcome.claim_id)

    def _read_results(self) -> None:
        """Results that count: the first of a request that was not late."""
        for result in in_time(self._log, self._results_next):
            if result.request_id not in self._answered:
                self._answered.add(result.request_id)
                self._placed.update({placement.claim_id: placement for placement in getattr(result, "placements", ())})

    def _start(self) -> None:
        """A starter renews the claim, sees it held, and only then starts the guest. One in twenty never does: its claim runs out."""
        for claim_id, placement in list(self._placed.items()):
            instance_id = placement.instance_id
            if claim_id not in self._renewals:
                if Random(instance_id).random() < 0.05:
                    del self._placed[claim_id]
                    continue
                self._renewals.add(claim_id)
                record_id = f"{claim_id}/renew"
                self._say(CLAIMS, ClaimRenewed(node_id=placement.node_id, record_id=record_id, claim_id=claim_id, ttl_ms=RENEWED_TTL_MS))
            elif claim_id in self._ledgers[placement.partition].claims and claim_id in self._renewed:
                del self._placed[claim_id]
                if instance_id in self._lives:
                    continue
                if claim_id in self._unwanted:
                    release = ClaimReleased(
                        node_id=placement.node_id, record_id=f"{claim_id}/not-started", claim_id=claim_id, reason="failed"
                    )
                    self._say(CLAIMS, release)
                    continue
                ends_ms = self._clock.wall_ms() + int(self._random.expovariate(1 / LIFETIME_MS_MEAN))
                happened = Happened(instance_id, placement.node_id, placement.resources, claim_id, ends_ms)
                self._world.write([happened])
                self._log.holds(instance_id, placement.node_id, placement.resources)
                self._arrive(happened, silently=False)

    def _arrive(self, happened: Happened, *, silently: bool) -> None:
        assert happened.resources is not None, "a guest that comes has a size"
        self._lives[happened.instance_id] = happened
        now_ms, claim_id = self._clock.wall_ms(), happened.claim_id
        where = happened.node_id, happened.instance_id, happened.resources, now_ms
        self._events(self._fleet.start_guest(*where, claim_id=claim_id, silently=silently))

    def _end(self) -> None:
        """Lifetimes end, and guests whose request was cancelled after their start are deleted; some end without a word."""
        now_ms = self._clock.wall_ms()
        for instance_id in list(self._fleet.guests):
            life = self._lives[instance_id]
            if life.ends_ms > now_ms and life.claim_id not in self._unwanted:
                continue
            life.gone = True
            self._log.gives_back(instance_id)
            self._world.write([Happened(instance_id, gone=True)])
            self._events(self._fleet.destroy(instance_id, now_ms, silently=self._random.random() < 0.05))

    def _ask(self) -> None:
        for _ in range(self._random.randint(0, ASKS_PER_STEP_MAX)):
            request_id = f"r-{self.epoch}-{self._count}"
            self._count += 1
            self._asked.append(request_id)
            self._say(REQUESTS, self._request(request_id))
        if self._asked and self._random.random() < 0.08:
            request_id = self._random.choice(self._asked[-20:])
            self._say(REQUESTS, PlacementCancelled(request_id=request_id, record_id=f"{request_id}/cancel"))

    def _request(self, request_id: str) -> PlacementRequested:
        draw = self._random
        flavor = Flavor(vcpus=draw.randint(1, 4), memory_mib=draw.choice([1024, 2048, 8192]), root_gib=draw.choice([0, 10]))
        count = draw.choice([1, 1, 1, 1, 2, 5])
        group = None
        if draw.random() < 0.2:
            group = ServerGroup(group_id=f"group-{self.epoch}-{self._count // 8}", policy="anti-affinity", max_per_node=draw.randint(1, 2))
        return PlacementRequested(request_id=request_id, flavor=flavor, count=count, group=group, ttl_ms=TTL_MS)

    def _audit(self) -> None:
        now_ms = self._clock.wall_ms()
        for at, (due_ms, node_id) in enumerate(self._audits):
            if due_ms <= now_ms:
                self._out.append(message(said(AUDITS, self._fleet.audit(node_id, now_ms, self._clock.boot_ms()))))
                self._audits[at] = (now_ms + AUDIT_EVERY_MS, node_id)

    def _events(self, events: Iterable[LifecycleEvent]) -> None:
        self._out.extend(message(said(LIFECYCLE, event)) for event in events)

    def _say(self, topic: str, record: Struct) -> None:
        self._out.append(Message(topic, key_of(record) or b"", encode(record)))

    def _flush(self) -> None:
        """Append, and keep what was acknowledged."""
        if not self._out:
            return
        offsets = self._log.append(self._out)
        self._kept.write(
            Acknowledged(message.topic, self._log.partition(message.topic, message.key), offset, hash_of(message.value))
            for message, offset in zip(self._out, offsets, strict=True)
        )
        self._out.clear()


def play(folder: Path, clock: Clock, seed: int) -> None:
    """Play until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    with SqliteLog.open(folder / "log", clock=clock.wall_ms) as log:
        player = Player(log, folder, clock, seed)
        while not stopped:
            player.step()


if __name__ == "__main__":
    play(Path(sys.argv[1]), parse(sys.argv[2]), int(sys.argv[3]))
