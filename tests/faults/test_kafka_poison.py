"""The same garbage and harm as in test_garbage.py, on a real broker with Faust workers and schedulers; and letters that go back, mended."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

from producers.load import SimulatedFleet
from producers.source import said
from schemas import topics
from schemas.codec import encode
from schemas.requests import Flavor, PlacementRequested
from schemas.results import InstancesPlaced
from streams.cli.produce.publishing import message
from streams.log.base import Log, Message
from streams.scheduler import Scheduler
from tests.faults.checkers import counting, dead_letters, everything_wrong, folded, rows_wrong, seen, verdicts_wrong
from tests.faults.harness import until, until_known
from tests.faults.poisoning import NODES, all_was_thrown, enough_were_placed, questions_unanswered, readers_apart, settle, throw
from tests.faults.shared_site import PATIENCE_SECONDS, UNMISSED, SharedSite, shared_site

WORKERS = ("left", "right")
SCHEDULERS = ("s0", "s1")


def with_a_fleet(log: Log, seed: int) -> SimulatedFleet:
    fleet = SimulatedFleet(NODES, seed=seed, epoch=1)
    log.append([message(said(topics.AUDITS, fleet.audit(node_id, 1_000, 1))) for node_id in fleet.nodes])
    return fleet


def pids(here: SharedSite) -> dict[str, int]:
    """The processes by name. Raises AssertionError if one has ended."""
    for process in here.processes.values():
        process.must_run()
    return {name: process.running.pid for name, process in here.processes.items() if process.running is not None}


def is_published(log: Log) -> bool:
    """Whether verdicts and rows are those of the whole ledger."""
    fold = folded(log)
    return not verdicts_wrong(log, fold) and not rows_wrong(log, fold)


def test_garbage_and_harm_on_every_topic_end_in_the_dead_letters_and_no_process_restarts(tmp_path: Path, seed: int) -> None:
    with shared_site(tmp_path) as here, here.opened() as log:
        fleet = with_a_fleet(log, seed)
        for worker in WORKERS:
            here.worker(worker, *UNMISSED)
        for scheduler in SCHEDULERS:
            here.scheduler(scheduler)
        until_known(log, NODES)
        before = pids(here)
        beside = Scheduler(log, "beside", lease_timeout_seconds=6.0)
        expected, sent, honest, kept = throw(log, Random(seed), fleet.nodes, beside)

        settle(log, beside, expected, honest)
        assert pids(here) == before
        beside.close()
        looked = seen(log)
        until(lambda: is_published(looked), PATIENCE_SECONDS, "all that follows from the ledger is published")
        for name in before:
            here.stop(name)

        fold, wrong = everything_wrong(log, [here.home(worker) for worker in WORKERS], kept, expected)
        print(f"\nseed {seed}: {sum(sent.values())} messages: {dict(sent)}; {Counter(letter.kind for letter in dead_letters(log))}")
        assert wrong == []
        all_was_thrown(expected, sent)
        assert readers_apart(log, beside, [ledger.digest for ledger in fold.ledgers]) == []
        enough_were_placed(log, honest)
        assert questions_unanswered(here.verb) == []


def test_letters_redriven_after_a_mend_are_judged_where_they_land(tmp_path: Path, seed: int) -> None:
    """Somebody's producer had another partitioner than Kafka's murmur2, and another one wrote what is no record at all."""
    with shared_site(tmp_path) as here, here.opened() as log:
        with_a_fleet(log, seed)
        here.worker("left", *UNMISSED)
        here.scheduler("s0")
        until_known(log, NODES)
        asked = PlacementRequested(request_id="astray", flavor=Flavor(vcpus=1, memory_mib=512))
        key = asked.request_id.encode()
        wrong_one = (log.partition(topics.REQUESTS, key) + 1) % log.topics()[topics.REQUESTS]
        hopeless = Message(topics.CLAIMS, b"any", b"no record", (("from", b"somebody"),), 0)
        log.append([Message(topics.REQUESTS, key, encode(asked), (), wrong_one), hopeless])
        until(lambda: len(dead_letters(log)) == 2, PATIENCE_SECONDS, "both are dead letters")
        unanswered = asked.request_id not in counting(log)[0]

        redriven = here.verb("dead-letters", "redrive", "--all")

        assert (unanswered, redriven.returncode, len(redriven.stdout.splitlines())) == (True, 0, 2), redriven.stderr
        until(lambda: asked.request_id in counting(log)[0], PATIENCE_SECONDS, "the request is answered where it belongs")
        assert isinstance(counting(log)[0][asked.request_id], InstancesPlaced)
        until(lambda: len(dead_letters(log)) == 3, PATIENCE_SECONDS, "what is no record is a dead letter again")
        again = max(dead_letters(log), key=lambda letter: letter.offset if letter.topic == topics.CLAIMS else -1)
        letters = {letter.position: dict(letter.headers) for letter in dead_letters(log)}
        assert (again.value, letters[again.position]["from"]) == (b"no record", b"somebody")
        assert letters[again.position]["redriven_from"].startswith(b"dead-letters/0@")
        listed = here.verb("dead-letters", "list", "-o", "json")
        assert [item["kind"] for item in json.loads(listed.stdout)["items"]].count("unreadable") == 2
        for name in ("left", "s0"):
            here.stop(name)
