"""The stage of `claimlog demo`: a log, real processes on it, simulated hypervisors, and a fold of its own that checks them all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from producers.load import NodeKind, SimulatedFleet
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Claim
from projections.observed import Observed
from projections.placements import Answered, Placements
from schemas.claims import ClaimRequested
from schemas.codec import decode
from schemas.findings import LeakConfirmed, LeakResolved
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from schemas.results import InstancesPlaced, PlacementFailed, SchedulerStarted
from schemas.topics import CLAIMS, FINDINGS, REQUESTS, RESULTS
from schemas.units import GIB
from streams.cli.interrupts import held_back
from streams.cli.produce.driving import Driver, request_message
from streams.clock import ScaledClock, wall_clock_ms
from streams.ledger_topics import open_ledger
from streams.log.base import BareRecord, Message
from streams.log.sqlite import SqliteLog

FACTOR = 60
"""Simulated seconds in a real one: a leak is confirmed by two audits half a minute apart, and nobody wants to wait for that."""
AUDIT_EVERY_MS = 30_000
AUDITS_IN_TURN = 10
"""So many times that is the interval that the stream processor is told: while the story prints an answer, nobody audits. On a busy machine
that takes seconds, and nodes are not silent for that."""
STORY_SECONDS_MAX = 60
"""The story takes about 10 real seconds, on a busy machine some times that; begun so much earlier, it never runs ahead of the present, and
its ages make sense afterwards."""
LEASE_SECONDS = 60
"""Simulated, so one real second: how long it takes until others finish what a killed scheduler left."""
PATIENCE_SECONDS = 15.0

KINDS = (
    NodeKind(name="general", vcpus=32, memory_mib=64 * GIB, disk_mib=1024 * GIB, share=3),
    NodeKind(name="large", vcpus=64, memory_mib=128 * GIB, disk_mib=2048 * GIB, cpu_model="EPYC-Rome", share=1),
)


class DemoProblem(Exception):
    """The demonstration did not come to what it shows; the message says what was waited for."""


class Tally(Struct):
    """What the log says happened, record by record."""

    granted: int = 0
    refused: int = 0
    met_conflict: int = 0
    by_alternate: int = 0
    decided_again: int = 0
    over_committed: int = 0
    placed: int = 0
    failed: int = 0
    placed_twice: int = 0
    owners: Counter[str] = field(default_factory=Counter)


class Stage:
    """Opens the log, starts and ends processes, lets simulated time pass, and folds everything that comes."""

    def __init__(self, path: Path, seed: int, nodes: int) -> None:
        now_ms = wall_clock_ms()
        self.clock = ScaledClock(FACTOR, now_ms, now_ms - STORY_SECONDS_MAX * 1000 * FACTOR)
        self.path, self.spec = path, f"sqlite:{path}"
        self.log = SqliteLog.open(path, create=True, clock=self.clock.wall_ms)
        open_ledger(self.log, ledger_partitions=2, request_partitions=6)
        self.fleet = SimulatedFleet(nodes, seed=seed, epoch=self.clock.wall_ms(), kinds=KINDS, name="compute-{:02d}", producer="demo")
        self.driver = Driver(self.log, self.fleet, iter(()), self.clock, speed=1.0, audit_every_ms=AUDIT_EVERY_MS)
        counts = self.log.topics()
        self.ledgers = [Ledger(number, counts[CLAIMS]) for number in range(counts[CLAIMS])]
        self.observed = [Observed(number) for number in range(counts[CLAIMS])]
        self.schedulers: set[str] = set()
        self.placements = [Placements(number, counts[RESULTS]) for number in range(counts[RESULTS])]
        self.results: dict[str, InstancesPlaced | PlacementFailed] = {}
        self.requests: dict[str, PlacementRequested] = {}
        self.findings: list[tuple[BareRecord, LeakConfirmed | LeakResolved]] = []
        self.tally = Tally()
        self._findings_next = dict.fromkeys(range(counts[FINDINGS]), 0)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, only: str) -> None:
        """Start a process of claimlog on the log."""
        command = [sys.executable, "-m", "streams.cli.main", "run", "--log", self.spec, "--only", only, "--name", name]
        command += ["--clock", str(self.clock), "--lease-timeout", str(LEASE_SECONDS)]
        if only == "processor":
            command += ["--audit-interval", str(AUDITS_IN_TURN * AUDIT_EVERY_MS // 1000)]
        with held_back():
            self._processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._processes[name].send_signal(number)

    def killed(self, name: str) -> None:
        """Kill a process with SIGKILL and see it gone."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End the processes and close the log."""
        self.stop()
        self.log.close()

    def stop(self) -> None:
        """End every process in good order; those that do not end in time are killed."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def ask(self, requests: Sequence[PlacementRequested]) -> None:
        """Publish requests, all in one append."""
        self.requests |= {request.request_id: request for request in requests}
        self.append([request_message(request, self.clock.wall_ms()) for request in requests])

    def append(self, messages: Sequence[Message]) -> None:
        """Append and read on, both without waiting for the disk: a power failure ends the story too.

        On a slow disk a request would be answered before it was on it, and no scheduler ever seen between its claims and their results.
        """
        self.log.append_early(messages)
        self.read()

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Let time pass, hypervisors report and guests start until `holds`. Raises DemoProblem if a process ends or it takes too long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise DemoProblem(f"process {name} ended with exit code {process.returncode} while waiting for {what}")
            if time.monotonic() > deadline:
                raise DemoProblem(f"waited {PATIENCE_SECONDS:.0f} s for {what}; `claimlog doctor --log {self.spec}` looks into it")
            self.driver.step()
            self.read()
            self.driver.wait(0.02)

    def pause(self, seconds: float) -> None:
        """Let some real time pass."""
        deadline = time.monotonic() + seconds
        self.until("time to pass", lambda: time.monotonic() >= deadline)

    def answered(self) -> bool:
        """Whether every request has its counting result."""
        return all(request_id in self.results for request_id in self.requests)

    def in_flight(self, owner: str) -> list[Claim]:
        """Claims of a process that are held for requests without counting result: what it would leave behind now."""
        self.read()
        held = [claim for ledger in self.ledgers for claim in ledger.claims.values() if claim.owner == owner]
        return [claim for claim in held if claim.request_id not in self.results]

    def read(self) -> None:
        """Fold whatever is new, and count."""
        for placements in self.placements:
            for record in self._new(REQUESTS, placements.partition, placements.requests_next):
                placements.apply_request(record.offset, record.time_ms, record.key, record.value)
            for record in self._new(RESULTS, placements.partition, placements.results_next):
                self._result(placements, record)
        for ledger, observed in zip(self.ledgers, self.observed, strict=True):
            for record in self._new(CLAIMS, ledger.partition, ledger.next_offset):
                step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
                if step is None:
                    continue
                observed.apply(ledger, step)
                if isinstance(step.event, ClaimRequested):
                    self._claim(ledger, step, step.event)
        for partition, offset in self._findings_next.items():
            for record in self._new(FINDINGS, partition, offset):
                self._findings_next[partition] = record.offset + 1
                finding = decode(FINDINGS, record.value)
                if isinstance(finding, LeakConfirmed | LeakResolved):
                    self.findings.append((record, finding))

    def _new(self, topic: str, partition: int, offset: int) -> list[BareRecord]:
        return self.log.read_early(topic, partition, offset, 10_000)

    def _result(self, placements: Placements, record: BareRecord) -> None:
        answered = placements.apply_result(record.offset, record.time_ms, record.key, record.value)
        result = decode(RESULTS, record.value)
        if isinstance(result, SchedulerStarted):
            self.schedulers.add(result.owner)
        if not isinstance(answered, Answered) or not answered.counts:
            return
        tally, request_id = self.tally, answered.answer.request_id
        tally.placed_twice += request_id in self.results
        tally.placed += isinstance(result, InstancesPlaced)
        tally.failed += isinstance(result, PlacementFailed)
        tally.owners[result.owner] += 1
        self.results[request_id] = result

    def _claim(self, ledger: Ledger, step: Step, event: ClaimRequested) -> None:
        """Count a verdict; and see for ourselves that no granted claim takes a node over its limit."""
        tally = self.tally
        first = {item.claim_id: item.nodes[0] for item in event.items}
        for outcome in step.outcomes:
            if outcome.outcome == "refused":
                tally.refused += 1
                tally.met_conflict += 1
                tally.decided_again += 1
                continue
            tally.granted += 1
            if outcome.node_id != first[outcome.claim_id]:
                tally.met_conflict += 1
                tally.by_alternate += 1
            tally.over_committed += is_over(ledger, outcome.node_id)


def is_over(ledger: Ledger, node_id: str) -> bool:
    """Whether a node's use, summed up anew instance by instance, is above a limit."""
    node = ledger.nodes[node_id]
    instances = {*node.shown, *node.claims}
    uses = [node.use_of(instance_id) for instance_id in instances]
    for r, resource in enumerate(RESOURCES):
        limit = node.limit(resource)
        if limit is not None and sum(use[r] for use in uses) > limit:
            return True
    return False
