"""Zombies on Kafka: a scheduler and a worker that are stopped for longer than their session, replaced, and woken up again under load.

They believe for a moment that they still own what others have taken over, and append what they held: none of it may count.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from schemas import topics
from schemas.claims import ClaimItem, ClaimRequested, NodeObserved
from schemas.codec import decode, encode, key_of
from schemas.inventory import Hypervisor
from schemas.resources import Resources
from schemas.results import InstancesPlaced, NodeResources
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.metrics import Metrics
from streams.republisher import Republisher
from tests.faults.checkers import counting, records
from tests.faults.harness import until
from tests.faults.kafka_world import SESSION_SECONDS, world
from tests.kafka_broker import bootstrap


def test_a_scheduler_and_a_worker_that_slept_past_their_session_change_nothing_that_counts(tmp_path: Path, seed: int) -> None:
    with world(tmp_path, seed) as here:
        for name in ("w0", "w1"):
            here.worker(name)
        for name in ("s0", "s1"):
            here.scheduler(name)
        load = here.begin(seed)
        here.goes_on(40, "both schedulers place")

        for name in ("w0", "s0"):
            here.signal(name, signal.SIGSTOP)
        stopped = time.monotonic()
        for name in ("w2", "s2"):
            here.worker(name) if name == "w2" else here.scheduler(name)
        asked_until = len(load.kept)
        while time.monotonic() - stopped < SESSION_SECONDS + 1.0:
            here.goes_on(1, "the others place though two are stopped")
        here.goes_on(150, "the others own the partitions of those that are stopped")
        before = counting(here.log)[0]
        for name in ("w0", "s0"):
            here.signal(name, signal.SIGCONT)
        here.goes_on(60, "all place")
        here.comes_to_rest()

        after = counting(here.log)[0]
        wrong = here.wrong(["w0", "w1", "w2"])
        print(f"\nseed {seed}: slept {time.monotonic() - stopped:.0f} s at most; {load.tally}; {len(load.kept)} records acknowledged")
        assert wrong == []
        assert {request_id: after[request_id] for request_id in before} == before
        assert len(load.kept) > asked_until
        assert sum(isinstance(result, InstancesPlaced) for result in before.values()) > 50, "there was hardly any load"


MINE = frozenset({0})


class Gate:
    """A log that keeps the first row with a claim back until the gate is open: a process that is stopped between its fold and its flush.

    What comes before such a row goes through, as a read may hand out fewer records than there are.
    """

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self.reached, self.open = threading.Event(), threading.Event()

    def append(self, messages: Sequence[Message]) -> list[int]:
        if any(vcpus_claimed(each.topic, each.value) for each in messages):
            self.reached.set()
            assert self.open.wait(60), "the gate was never opened"
        return self._log.append(messages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def claim(number: int) -> Message:
    size = Resources(vcpus=1, memory_mib=64)
    item = ClaimItem(claim_id=f"r{number}/0/1.{number}", instance_id=f"i{number}", nodes=("n1",), resources=size)
    record = ClaimRequested(request_id=f"r{number}", owner="s", basis=0, ttl_ms=3_600_000, items=(item,))
    return Message(topics.CLAIMS, key_of(record) or b"", encode(record), (), 0)


def vcpus_claimed(topic: str, value: bytes) -> int:
    """What a row of a node says; 0 for what is no row."""
    row = decode(topic, value) if topic == topics.NODE_RESOURCES else None
    return row.vcpus.claimed if isinstance(row, NodeResources) else 0


def rows(log: KafkaLog) -> list[int]:
    """The vCPUs claimed on the node, as one row after the other said it."""
    return [vcpus_claimed(record.topic, record.value) for record in records(log, topics.NODE_RESOURCES, 0)]


def test_a_row_that_a_worker_stopped_between_fold_and_flush_publishes_late_is_followed_by_the_owners(tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"late-{uuid4().hex[:10]}", single_broker=True)
    with KafkaLog.open(settings) as log, KafkaLog.open(settings) as stopped, KafkaLog.open(settings) as owned:
        open_ledger(log, ledger_partitions=1, request_partitions=1)
        host = Hypervisor(vcpus=8, memory_mib=8192, disk_mib=100_000)
        audit = NodeObserved(node_id="n1", producer="a", epoch=1, counter=1, taken_at_ms=1, mono_ms=0, hypervisor=host, instances=())
        log.append([Message(topics.CLAIMS, b"n1", encode(audit), (), 0), claim(1)])
        gate: Any = Gate(stopped)
        zombie = Folder(gate, tmp_path / "zombie", "zombie", Metrics("test"), lambda _: None)
        wakes = threading.Thread(target=until, args=(lambda: zombie.turn(MINE) > 0 and gate.reached.is_set(), 120, "it flushed late"))
        wakes.start()
        assert gate.reached.wait(60), "the zombie has folded the first claim"

        log.append([claim(2)])
        metrics = Metrics("test")
        folder = Folder(owned, tmp_path / "owner", "owner", metrics, lambda _: None)
        mender = Republisher(owned, folder)
        until(lambda: folder.turn(MINE) + mender.turn(MINE) == 0 and rows(log)[-1:] == [2], 60, "the owner has published and looked")
        before = rows(log)
        gate.open.set()
        wakes.join(60)
        late = rows(log)
        until(lambda: mender.turn(MINE) > 0 and metrics.republished._value.get() > 0, 60, "the owner reads the late row")
        mended = rows(log)
        zombie.close()
        folder.close()

    assert (before[-1], late[len(before) :], mended[len(late) :]) == (2, [1], [2])
    assert metrics.republished._value.get() == 1
