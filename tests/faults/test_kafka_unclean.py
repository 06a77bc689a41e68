"""A broker without the newest records is made the leader of the ledger, and others are written: acknowledged records are gone.

Nobody may set a cluster up so, and an operator who has lost two disks may have no other way. Who folded what is gone must notice it.
"""

from __future__ import annotations

import functools
import signal
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # public, though not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from producers.load import SimulatedFleet
from schemas import topics
from streams.cli.exits import Exit
from streams.ledger_topics import open_ledger, topic_specs
from streams.log.base import Log
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.log.kafka_topics import wanted
from tests.faults import checkers
from tests.faults.harness import CLAIMLOG, SOAKS, Process, Site, until
from tests.faults.harness import site as processes
from tests.faults.test_kafka_rewound import are_placed, ask, carry_all, folded_nodes, is_published, report
from tests.kafka_broker import started
from tests.kafka_brokers import Brokers

PATIENCE_SECONDS = 90.0
DISCARDED = "claims/0: the state in the table is discarded"
STAYS, NEWER, OLDER = 1, 2, 3
"""The broker that nothing happens to, the one that has all of the ledger and is lost, and the one that has its beginning."""


def made(brokers: Brokers, settings: KafkaSettings) -> None:
    """The topics of a ledger with one partition each, `claims` on the two brokers that come and go."""
    found = [
        NewTopic(
            settings.topic(spec.name),
            spec.partitions,
            replica_assignment=[[NEWER, OLDER] if spec.name == topics.CLAIMS else [STAYS]] * spec.partitions,
            config=wanted(spec, single_broker=True),
        )
        for spec in topic_specs(1, 1)
    ]
    for future in brokers.admin.create_topics(found).values():
        future.result()


def lets_anybody_lead(brokers: Brokers, topic: str, yes: bool) -> None:
    """Whether a broker that is behind may lead a topic."""
    entry = ConfigEntry("unclean.leader.election.enable", str(yes).lower(), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])

    def is_set() -> bool:
        try:
            brokers.admin.list_topics(timeout=5.0)
            brokers.admin.incremental_alter_configs([resource], request_timeout=5.0)[resource].result()
        except KafkaException:
            return False
        return True

    until(is_set, PATIENCE_SECONDS, f"the settings of {topic} are changed")


def in_sync(brokers: Brokers, topic: str) -> list[int]:
    return list(brokers.admin.list_topics(topic, timeout=5.0).topics[topic].partitions[0].isrs)


def rests_on(brokers: Brokers, topic: str, node: int) -> list[str]:
    """Partitions of other topics (those of groups are among them) of which no broker but this one has everything."""
    others = [each for each in brokers.admin.list_topics(timeout=5.0).topics.values() if each.topic != topic]
    return [f"{each.topic}/{number}" for each in others for number, place in each.partitions.items() if set(place.isrs) <= {node}]


def place(log: Log, prefix: str, count: int) -> None:
    """Requests are asked and placed."""
    ids = ask(log, prefix, count)
    until(lambda: are_placed(log, ids), PATIENCE_SECONDS, f"the requests {prefix} are placed")


def start(site: Site, spec: str, name: str, *options: str) -> None:
    site.start(name, [*CLAIMLOG, "run", "--log", spec, "--name", name, *options])


def tell(site: Site, number: signal.Signals) -> None:
    """Send all processes a signal."""
    for process in site.processes.values():
        process.must_run()
        assert process.running is not None
        process.running.send_signal(number)


def all_notice(site: Site) -> None:
    """Each ends by itself and says that records were lost; or the worker folds anew, if it stood still for longer than its session.

    It was given its partition anew then, and has compared its table with the log as one that begins does.
    """

    def has_noticed(process: Process) -> bool:
        assert process.running is not None
        return process.running.poll() is not None or DISCARDED in process.said()

    for name, process in site.processes.items():
        until(functools.partial(has_noticed, process), PATIENCE_SECONDS, f"{name} notices that records were lost")
        said = process.said()
        if DISCARDED in said:
            process.must_stop()
        else:
            code = process.ended()
            assert code == Exit.INCOMPLETE, f"{name} ended with {code}:\n{said[-2000:]}"
            assert "records were lost" in process.said()
        assert "Traceback" not in process.said()


# A log that is shorter afterwards is what a lost disk leaves as well (test_kafka_rewound).
@pytest.mark.parametrize("written_on", [False, True] if SOAKS else [True], ids=lambda written_on: "written on" if written_on else "shorter")
def test_a_ledger_that_an_unclean_election_has_rewound_is_noticed_and_folded_anew(tmp_path: Path, written_on: bool) -> None:
    with started(Brokers(tmp_path / "brokers")) as brokers, processes(tmp_path) as site:
        settings = KafkaSettings(bootstrap=brokers.address, prefix="unclean", single_broker=True)
        made(brokers, settings)
        spec, ledger = f"{settings.place}?single-broker=true", settings.topic(topics.CLAIMS)
        with KafkaLog.open(settings) as log:
            open_ledger(log, ledger_partitions=1, request_partitions=1)
            report(log, SimulatedFleet(4, epoch=1), 1)
            worker = ("--only", "processor", "--state", str(tmp_path / "w"), "--audit-interval", "3600")
            start(site, spec, "w", *worker)
            start(site, spec, "s", "--only", "scheduler", "--lease-timeout", "6")
            until(lambda: folded_nodes(log) == 4, PATIENCE_SECONDS, "the hosts are in the ledger")
            place(log, "kept", 5)
            brokers.members[OLDER].kill()
            until(lambda: in_sync(brokers, ledger) == [NEWER], PATIENCE_SECONDS, "one broker has all of the ledger")
            place(log, "lost", 5)
            lost_end = log.end(topics.CLAIMS, 0)
            until(lambda: sum(log.ends(topics.VERDICTS).values()) >= 10, PATIENCE_SECONDS, "the worker has folded that")

        lets_anybody_lead(brokers, ledger, True)
        until(lambda: rests_on(brokers, ledger, NEWER) == [], PATIENCE_SECONDS, "nothing but the ledger goes with the broker")
        if written_on:
            tell(site, signal.SIGSTOP)
        brokers.members[NEWER].kill()
        brokers.again(OLDER)
        until(lambda: brokers.leader(ledger, 0) == OLDER, PATIENCE_SECONDS, "a broker that is behind leads the ledger")
        with KafkaLog.open(settings) as log:
            kept_end = log.end(topics.CLAIMS, 0)
            assert kept_end < lost_end
            if written_on:
                others = SimulatedFleet(lost_end - kept_end + 5, epoch=2)
                report(log, others, 2)
                carry_all(log)
                assert log.end(topics.CLAIMS, 0) > lost_end
                tell(site, signal.SIGCONT)
            all_notice(site)
            lets_anybody_lead(brokers, ledger, False)

            start(site, spec, "w", *worker)
            start(site, spec, "s", "--only", "scheduler", "--lease-timeout", "6")
            place(log, "then", 5)
            until(lambda: DISCARDED in site.processes["w"].said(), PATIENCE_SECONDS, "the worker folds anew")
            # Rows alone do not tell that it has come to the end: those of what was lost may be the same.
            until(lambda: is_published(log), PATIENCE_SECONDS, "all that follows is published")
            until(lambda: checkers.rows_wrong(log, checkers.folded(log)) == [], PATIENCE_SECONDS, "the rows are those of this ledger")
            site.stop_all()
            fold = checkers.folded(log)
            assert checkers.tables_wrong(tmp_path / "w", fold) == []
            assert fold.overgrants == []
