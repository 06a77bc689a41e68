"""Double claims are the same whoever has which partition: at rest the worker of partition 0 and `leak-findings` say what one fold says.

Histories and hand-overs are drawn by chance: claims, showings, departures, releases and the operator's words on the partitions of a log,
while its partitions go from one worker to another, who have tables of their own, lose them, or begin at snapshots.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from projections.doubles import DoubleClaims
from projections.ledger import Ledger
from schemas import topics
from schemas.claims import FindingIgnored
from schemas.codec import decode_keyed
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved
from schemas.partitioner import partition_of
from streams import folder as folder_module
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.memory import MemoryLog
from streams.metrics import Metrics
from tests.ledger_history import START_MS, History

INSTANCES = ("i", "j")
WORKERS = ("first", "second")
SEEDS = 300 if os.environ.get("CLAIMLOG_SOAK") else 12


class Shared:
    """A log, the histories of its partitions, of one node each, and the workers that have them."""

    def __init__(self, folder: Path, draw: Random, partitions: int) -> None:
        self.partitions = partitions
        names = [f"n{number}" for number in range(99)]
        self.nodes = [next(each for each in names if partition_of(each.encode(), partitions) == number) for number in range(partitions)]
        self.now_s, self.folder, self.draw = 0, folder, draw
        self.log = MemoryLog(clock=self.now_ms)
        open_ledger(self.log, ledger_partitions=partitions, request_partitions=1)
        self.histories = [History(number, partitions) for number in range(partitions)]
        self.written = [0] * partitions
        self.shown: list[dict[str, int]] = [{} for _ in range(partitions)]
        self.held: list[tuple[int, str]] = []
        self.owner = [draw.choice(WORKERS) for _ in range(partitions)]
        self.running: dict[str, Folder] = {}

    def now_ms(self) -> int:
        return START_MS + self.now_s * 1000

    def write(self) -> None:
        """Append what the histories have by now."""
        for number, history in enumerate(self.histories):
            for written in history.records[self.written[number] :]:
                self.log.append([Message(topics.CLAIMS, written.key, written.value, (), number)])
            self.written[number] = len(history.records)

    def audit(self, number: int) -> None:
        self.histories[number].audit(self.shown[number], at_s=self.now_s, node=self.nodes[number], memory_mib=1000)

    def happens(self) -> None:
        """One thing, somewhere."""
        draw = self.draw
        self.now_s += draw.randrange(1, 40)
        number, instance = draw.randrange(self.partitions), draw.choice(INSTANCES)
        node, history = self.nodes[number], self.histories[number]
        match draw.choice(("audit", "audit", "claim", "claim", "leave", "release", "word")):
            case "audit":
                self.audit(number)
            case "claim":
                claim_id = f"c{len(history.records)}-{number}"
                history.claim(claim_id, instance, 4, at_s=self.now_s, nodes=(node,), ttl_s=draw.choice((30, 600)))
                if draw.random() < 0.8:
                    self.shown[number][instance] = 4
                    history.event("started", instance, at_s=self.now_s + 1, size=4, node=node)
                    self.now_s += 1
                self.held.append((number, claim_id))
            case "leave":
                if self.shown[number].pop(instance, None) is not None and draw.random() < 0.5:
                    history.event("departed", instance, at_s=self.now_s, node=node)
            case "release":
                if self.held:
                    at, claim_id = self.held.pop(draw.randrange(len(self.held)))
                    self.histories[at].release(claim_id, at_s=self.now_s, reason="migrated", node=self.nodes[at])
            case "word":
                word = FindingIgnored(
                    node_id=node, record_id=f"w{self.now_s}", finding_id=f"double-claim/{instance}", reason=draw.choice(("", "known"))
                )
                history.say(word, self.now_s)
        self.write()

    def changes_hands(self) -> None:
        """Partitions go to another worker; one that ends may lose its tables."""
        name = self.draw.choice(WORKERS)
        if self.draw.random() < 0.3 and name in self.running:
            self.running.pop(name).close()
            if self.draw.random() < 0.5:
                shutil.rmtree(self.folder / name, ignore_errors=True)
        for number in range(self.partitions):
            if self.draw.random() < 0.4:
                self.owner[number] = name
        for other in self.running.values():  # Whoever loses partitions hears of it first.
            self._turn(other)

    def works(self, *, to_the_end: bool = False) -> None:
        """Both take their turns."""
        while True:
            for name in WORKERS:
                if name not in self.running:
                    self.running[name] = Folder(self.log, self.folder / name, name, Metrics(name), lambda _: None, clock=self.now_ms)
            done = sum(self._turn(folder) for folder in self.running.values())
            if not (to_the_end and done):
                return

    def _turn(self, folder: Folder) -> int:
        name = next(name for name, each in self.running.items() if each is folder)
        return folder.turn(frozenset(number for number, owner in enumerate(self.owner) if owner == name))

    def close(self) -> None:
        for folder in self.running.values():
            folder.close()


def truth(log: MemoryLog, partitions: int) -> dict[str, tuple[bool, str]]:
    """Of each instance whose double is open whether it is confirmed, and the word on it, as one fold in order of time has it."""
    records = sorted(
        (record.time_ms, number, record.offset, record)
        for number in range(partitions)
        for record in log.read(topics.CLAIMS, number, 0, 100_000)
    )
    ledgers = {number: Ledger(number, partitions) for number in range(partitions)}
    doubles = DoubleClaims(ledgers)
    for time_ms, number, _, record in records:
        step = ledgers[number].apply(record.offset, time_ms, record.key, record.value)
        assert step is not None
        doubles.apply(number, step)
    doubles.read_to_the_ends(records[-1][0])
    return {each.instance_id: (isinstance(each, LeakConfirmed), each.ignored) for each in doubles.open_findings()}


def published(log: MemoryLog, partitions: int) -> dict[str, tuple[bool, str]]:
    """The same by the last record of each in `leak-findings`."""
    last: dict[str, FindingRecord] = {}
    for number in range(partitions):
        for record in log.read(topics.FINDINGS, number, 0, 100_000):
            event = decode_keyed(record.topic, record.key, record.value)
            if isinstance(event, FindingRecord) and event.kind == "double-claim":
                last[event.instance_id] = event
    open_ = {name: event for name, event in last.items() if not isinstance(event, LeakResolved)}
    return {name: (isinstance(event, LeakConfirmed), event.ignored) for name, event in open_.items()}


def shown(workers: Shared) -> list[int]:
    """How many doubles each worker's metrics have that alarm."""
    return [sum(count for (kind, _), count in each.metrics.findings.items() if kind == "double-claim") for each in workers.running.values()]


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("number", range(SEEDS))
def test_who_shares_the_ledger_with_whom_makes_no_difference_to_double_claims(
    tmp_path: Path, seed: int, number: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three sides it is not known of an earlier word whether it was on the same two; then who reads late may take it otherwise."""
    draw = Random(f"{seed} {number}")
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", draw.choice((3, 20, 10_000)))
    workers = Shared(tmp_path, draw, partitions)
    for node in range(partitions):
        workers.audit(node)
    workers.write()

    for _ in range(60):
        workers.happens()
        if draw.random() < 0.4:
            workers.works()
        if draw.random() < 0.15:
            workers.changes_hands()
    # So much later that every double is due, and seen by an audit of each of its nodes.
    for _ in range(3):
        workers.now_s += 700
        for node in range(partitions):
            workers.audit(node)
        workers.write()
        workers.works(to_the_end=True)

    expected, said = truth(workers.log, partitions), published(workers.log, partitions)
    assert {name: is_confirmed for name, (is_confirmed, _) in said.items()} == {
        name: is_confirmed for name, (is_confirmed, _) in expected.items()
    }
    assert partitions == 3 or said == expected
    assert sorted(shown(workers)) == [0, sum(not word for _, word in said.values())]
    workers.close()
