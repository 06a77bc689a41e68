"""Ten thousand messages that are no records, on every topic, and valid ones that mean harm, while traffic flows: see README.md here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from producers.load import SimulatedFleet
from producers.source import said
from schemas import topics
from streams.cli.produce.publishing import message
from streams.scheduler import Scheduler
from tests.faults.checkers import dead_letters, everything_wrong
from tests.faults.garbage import KEYED, fault_of, valid_records
from tests.faults.harness import site, until_known
from tests.faults.poisoning import NODES, all_was_thrown, enough_were_placed, questions_unanswered, readers_apart, settle, throw


def test_whatever_is_valid_in_the_golden_records_is_no_garbage() -> None:
    valid = valid_records()

    assert valid.keys() >= {topic for topic in topics.TOPICS if topics.TOPICS[topic].records is not None}
    for topic, examples in valid.items():
        for key, value in examples:
            opened = b"partition-opened" in value
            assert fault_of(topic, 0, 1, key, value) == ("misplaced" if opened else None), value


def test_garbage_and_harm_on_every_topic_stop_nothing_and_end_in_the_dead_letters(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    with site(tmp_path) as here, here.opened() as log:
        fleet = SimulatedFleet(NODES, seed=seed, epoch=1)
        log.append([message(said(topics.AUDITS, fleet.audit(node_id, 1_000, 1))) for node_id in fleet.nodes])
        here.processor()
        here.scheduler("s0")
        until_known(log, NODES)
        beside = Scheduler(log, "beside", lease_timeout_seconds=1.0)
        expected, sent, honest, kept = throw(log, draw, fleet.nodes, beside)

        settle(log, beside, expected, honest)
        here.all_must_run()
        beside.close()
        here.stop_all()
        here.process_to_the_end()

        fold, wrong = everything_wrong(log, here.state, kept, expected)
        print(f"\nseed {seed}: {sum(sent.values())} messages: {dict(sent)}; {Counter(letter.kind for letter in dead_letters(log))}")
        assert wrong == []
        all_was_thrown(expected, sent)
        assert readers_apart(log, beside, [ledger.digest for ledger in fold.ledgers]) == []
        enough_were_placed(log, honest)
        assert questions_unanswered(here.verb) == []


def test_the_oracle_of_garbage_agrees_on_what_belongs_to_a_partition() -> None:
    """Only topics whose partition follows from the key can have a record in a wrong one."""
    for topic, examples in valid_records().items():
        found = {fault_of(topic, partition, 4, key, value) for key, value in examples for partition in range(4)}
        assert ("wrong-partition" in found) == (topic in KEYED)
