"""Poison for a ledger that works: garbage and harm on every topic between honest requests, and what must hold afterwards."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from subprocess import CompletedProcess

from projections.ledger import Ledger
from schemas import topics
from schemas.codec import Unreadable, decode_keyed
from schemas.requests import Flavor, PlacementRequested
from schemas.results import InstancesPlaced
from streams.cli.produce.driving import request_message
from streams.log.base import Log, Message
from streams.scheduler import Scheduler
from streams.scheduling_engine import materialized
from tests.faults.checkers import Acknowledged, counting, hash_of, records, requests
from tests.faults.garbage import MUTATIONS, fault_of, garbage, hostile, stolen, valid_records
from tests.faults.harness import SOAKS, until

MESSAGES = 50_000 if SOAKS else 10_000
BATCH = 100
NODES = MESSAGES // 1000
"""Room for half of what is asked for, at least."""
REQUESTS_PER_BATCH = 3
PATIENCE_SECONDS = 120.0
QUESTIONS = (
    ["nodes"],
    ["nodes", "-o", "json"],
    ["claims", "list", "-o", "json"],
    ["leaks"],
    ["events", "-o", "jsonl"],
    ["replay", "--verify"],
    ["doctor"],
)
"""What people ask: `leaks` and `doctor` may exit 3, as they find some."""


def ask(log: Log, draw: Random, number: int) -> str:
    """Honest traffic."""
    request_id = f"honest-{number}"
    flavor = Flavor(vcpus=draw.randint(1, 2), memory_mib=512)
    log.append([request_message(PlacementRequested(request_id=request_id, flavor=flavor, count=draw.choice([1, 1, 2])), 1)])
    return request_id


def read_dead(log: Log) -> int:
    return log.end(topics.DEAD_LETTERS, 0)


def throw(
    log: Log, draw: Random, nodes: tuple[str, ...], beside: Scheduler
) -> tuple[dict[tuple[str, int, int], str], Counter[str], list[str], list[Acknowledged]]:
    """Garbage in batches, harm and honest requests between; what must become dead letters, what was sent, and what was acknowledged."""
    partitions = dict(log.topics())
    expected: dict[tuple[str, int, int], str] = {}
    sent: Counter[str] = Counter()
    honest: list[str] = []
    kept: list[Acknowledged] = []
    bad = garbage(draw, MESSAGES, partitions)
    while batch := list(itertools.islice(bad, BATCH)):
        batch_messages = [each for _, each, _ in batch]
        for (name, each, kind), offset in zip(batch, log.append(batch_messages), strict=True):
            assert each.partition is not None, "garbage is put into a partition"
            expected[each.topic, each.partition, offset] = kind
            sent[name] += 1
            kept.append(Acknowledged(each.topic, each.partition, offset, hash_of(each.value)))
        honest += [ask(log, draw, len(honest) + number) for number in range(REQUESTS_PER_BATCH)]
        log.append(harm(log, draw, honest, nodes, partitions))
        beside.turn()
    return expected, sent, honest, kept


def harm(log: Log, draw: Random, honest: list[str], nodes: tuple[str, ...], partitions: dict[str, int]) -> list[Message]:
    """Hostile records; about a request that is answered, if there is one. All of them are records: none may become a dead letter."""
    answered = sorted(counting(log)[0].keys() & set(honest)) if len(honest) % 30 == 0 else []
    found = hostile(draw, draw.choice(nodes), partitions)
    if answered:
        found += stolen(draw.choice(answered), draw.choice(nodes))
    for each in found:
        partition = log.partition(each.topic, each.key) if each.partition is None else each.partition
        kind = fault_of(each.topic, partition, partitions[each.topic], each.key, each.value)
        assert kind is None, f"{each} is {kind}"
        assert not isinstance(decode_keyed(each.topic, each.key, each.value), Unreadable)
    return found


def settle(log: Log, beside: Scheduler, expected: dict[tuple[str, int, int], str], honest: list[str]) -> None:
    """Wait until everything readable is answered and everything else a dead letter."""

    def done() -> bool:
        for _ in range(20):
            beside.turn()
        return read_dead(log) >= len(expected) and requests(log).keys() <= counting(log)[0].keys()

    until(done, PATIENCE_SECONDS, "requests are answered and garbage is in the dead letters")
    time.sleep(0.5)
    for _ in range(20):
        beside.turn()


def all_was_thrown(expected: dict[tuple[str, int, int], str], sent: Counter[str]) -> None:
    """As many messages as there should be, by every mutation, on every topic. Raises AssertionError."""
    assert sum(sent.values()) == len(expected) == MESSAGES
    assert sent.keys() == {mutation.__name__ for mutation in MUTATIONS}
    assert {topic for topic, _, _ in expected} == set(valid_records())


def enough_were_placed(log: Log, honest: list[str]) -> None:
    """The traffic that flowed meanwhile found room between the hostile claims, whose number a seed decides. Raises AssertionError."""
    counts, _ = counting(log)
    placed = sum(isinstance(counts[request_id], InstancesPlaced) for request_id in honest)
    assert placed > len(honest) // 4, f"only {placed} of {len(honest)} honest requests were placed"


def readers_apart(log: Log, beside: Scheduler, digests: list[bytes]) -> list[str]:
    """Readers with another digest than the fold from the first record: a scheduler that ran all the time, and one that starts now."""
    beside_now = beside.ledgers
    told: list[str] = []
    fresh = materialized(log, told.append)
    found = []
    for name, ledgers in (("the scheduler that ran", beside_now), ("a scheduler that starts", fresh)):
        for ledger, digest in zip(ledgers, digests, strict=True):
            caught_up(log, ledger)
            if ledger.digest != digest:
                found.append(f"{name} has another digest of {topics.CLAIMS}/{ledger.partition} than the fold from the start")
    return found


def caught_up(log: Log, ledger: Ledger) -> None:
    """Fold what is new, as the scheduler would in its next turn."""
    for record in records(log, topics.CLAIMS, ledger.partition):
        ledger.apply(record.offset, record.time_ms, record.key, record.value)


def questions_unanswered(ask_it: Callable[..., CompletedProcess[str]]) -> list[str]:
    """Verbs that do not answer on such a log; `ask_it` runs one."""
    found = []
    for verb in QUESTIONS:
        answer = ask_it(*verb)
        allowed = {0, 3} if verb[0] in {"leaks", "doctor"} else {0}
        if answer.returncode not in allowed or "Traceback" in answer.stderr:
            found.append(f"claimlog {' '.join(verb)} ended with {answer.returncode}: {answer.stderr[-2000:]}")
    return found
