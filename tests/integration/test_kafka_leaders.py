"""Partitions that change their leader, as whoever asks and reads meets it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from threading import Event, Timer

import pytest
from confluent_kafka import KafkaError

from schemas.topics import CLAIMS, REQUESTS, RESULTS, TOPICS
from streams.app import FaustHost
from streams.cli.main import run
from streams.cli.reading.open_log import open_log
from streams.log.base import Log, LogUnreachable, Message
from streams.log.kafka import KafkaLog
from streams.log.kafka_lease import JOIN_SECONDS
from streams.log.kafka_settings import KafkaSettings
from streams.metrics import Health
from streams.runner import Engine
from tests.faults.harness import until
from tests.kafka_cluster import cluster

PATIENCE_MS = 4000
PRODUCE, OFFSET_COMMIT = 0, 8
"""The numbers of requests in Kafka's protocol."""

LOOK_SECONDS = 20.0
"""How long what has to come is waited for, on a busy machine as well."""
CLIENT_TRIES_SECONDS = 1.0
"""librdkafka gives up before that what it was told to store, and says so."""


def test_questions_go_to_the_new_leader_of_a_partition_though_the_old_one_is_gone_for_good() -> None:
    with cluster() as brokers:
        brokers.topic(RESULTS, 1)
        brokers.lead(RESULTS, 0, 1)
        with KafkaLog.open(KafkaSettings(bootstrap=brokers.address, patience_ms=PATIENCE_MS)) as log:
            assert log.start(RESULTS, 0) == 0
            brokers.lose(1)
            brokers.lead(RESULTS, 0, 2)

            found = log.start(RESULTS, 0)

        assert found == 0


def test_a_log_is_opened_again_though_the_one_broker_of_its_address_is_gone() -> None:
    with cluster() as brokers, KafkaLog.open(KafkaSettings(bootstrap=brokers.address.split(",")[0], patience_ms=PATIENCE_MS)) as log:
        brokers.topic(RESULTS, 1)
        brokers.lose(1)

        with KafkaLog.open(log.settings) as again:
            assert dict(again.topics()) == {RESULTS: 1}
            assert again.settings.place == log.settings.place


def test_a_worker_that_is_given_partitions_while_brokers_are_away_begins_when_they_are_back(tmp_path: Path) -> None:
    with cluster() as brokers:
        settings = KafkaSettings(bootstrap=brokers.address, patience_ms=500)
        began, said = Event(), StringIO()

        def make_engines(_log: Log) -> list[Engine]:
            began.set()
            return []

        host = FaustHost(settings, tmp_path, "worker", 1, make_engines, Health(time.monotonic), said)
        for broker in (1, 2, 3):
            brokers.lose(broker)
        host._begin(frozenset({0}), Event().set)
        until(lambda: "trying again for 300 s" in said.getvalue(), LOOK_SECONDS, "it says that it waits")
        for broker in (1, 2, 3):
            brokers.find(broker)

        assert began.wait(LOOK_SECONDS), said.getvalue()
        asyncio.run(host._close())


def test_a_request_of_which_nobody_knows_whether_it_was_asked_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # These brokers do not answer who asks for the settings of topics.
    monkeypatch.setattr(KafkaLog, "has_times_of_writers", lambda _: False)
    with cluster() as brokers:
        for name in TOPICS:
            brokers.topic(name, 1)
        brokers.refuse(PRODUCE, KafkaError.NOT_ENOUGH_REPLICAS)

        code = run(["place", "--vcpus", "1", "--log", f"kafka://{brokers.address}?message.timeout.ms=1000"])

    named = re.search(r"`--request (\S+)`.* `claimlog cancel (\S+)`", capsys.readouterr().err)
    assert code == 5
    assert named is not None
    assert named[1] == named[2]


@pytest.mark.parametrize("call", [
    lambda log: log.start(REQUESTS, 0),
    lambda log: log.append([Message(REQUESTS, b"", b"{}")]),
])  # fmt: skip
def test_who_is_told_to_hurry_waits_no_more_for_brokers_that_are_away(call: Callable[[KafkaLog], object]) -> None:
    with cluster() as brokers:
        brokers.topic(REQUESTS, 1)
        with KafkaLog.open(KafkaSettings(bootstrap=brokers.address, patience_ms=3_600_000)) as log:
            for broker in (1, 2, 3):
                brokers.lose(broker)
            log.hurry(0.1)

            with pytest.raises(LogUnreachable):
                call(log)


def test_a_log_that_is_being_opened_is_told_to_hurry_as_well() -> None:
    with cluster() as brokers:
        brokers.topic(CLAIMS, 1)

        def met(log: KafkaLog) -> None:
            for broker in (1, 2, 3):
                brokers.lose(broker)
            log.hurry(0.1)

        began = time.monotonic()
        with pytest.raises(LogUnreachable):
            open_log(f"kafka://{brokers.address}", {}, BytesIO(), met=met)

        assert time.monotonic() - began < LOOK_SECONDS


def test_who_is_to_end_does_not_wait_for_the_answer_of_its_group() -> None:
    with cluster() as brokers:
        brokers.topic(REQUESTS, 1)
        with KafkaLog.open(KafkaSettings(bootstrap=brokers.address)) as log:
            lease = log.lease("schedulers", REQUESTS, "ends")
            for broker in (1, 2, 3):
                brokers.lose(broker)
            Timer(0.2, log.hurry).start()
            began = time.monotonic()

            assert lease.partitions() == frozenset()
            assert time.monotonic() - began < JOIN_SECONDS / 2


def test_what_could_not_be_stored_soon_for_too_long_is_stored_once_the_coordinator_is_back() -> None:
    with cluster() as brokers:
        brokers.topic(REQUESTS, 1)
        with KafkaLog.open(KafkaSettings(bootstrap=brokers.address, patience_ms=1500)) as log:
            log.commit("g", REQUESTS, {0: 1})
            brokers.refuse(OFFSET_COMMIT, KafkaError.NOT_COORDINATOR)
            log.commit_soon("g", REQUESTS, {0: 2})
            given_up = time.monotonic() + CLIENT_TRIES_SECONDS
            until(lambda: _is_late(log) and time.monotonic() > given_up, LOOK_SECONDS, "storing takes too long, for the client as well")
            brokers.answer(OFFSET_COMMIT)

            until(lambda: not _is_late(log) and _stored(log) == {0: 2}, LOOK_SECONDS, "it is stored later")


def _is_late(log: KafkaLog) -> bool:
    """Sees to what is to be stored, as a scheduler does; whether that has taken too long."""
    try:
        log.commit_soon("g", REQUESTS, {})
    except LogUnreachable:
        return True
    return False


def _stored(log: KafkaLog) -> dict[int, int]:
    """What is stored; nothing where the answer does not come in the short time that is given here."""
    try:
        return dict(log.committed("g", REQUESTS))
    except LogUnreachable:
        return {}
