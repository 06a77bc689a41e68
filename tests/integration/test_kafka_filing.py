"""Schedulers that file answers away on a real broker, and what becomes of the topic meanwhile."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from projections import filed
from schemas.topics import ANSWERED
from streams import scheduler as scheduling
from streams.ledger_topics import open_ledger
from streams.log import kafka, kafka_topics
from streams.log.base import LogUnreachable
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.placement import filing
from streams.scheduler import Scheduler
from tests.kafka_broker import bootstrap
from tests.scheduling_world import Clock, World

PATIENCE_SECONDS = 60.0
LANDS_SECONDS = 10.0


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    """Answers are filed away in each turn, and each two are a record; that a topic is gone is believed soon."""
    monkeypatch.setattr(filing, "KEPT_MS", 0)
    monkeypatch.setattr(filed, "SAID_REQUESTS", 2)
    monkeypatch.setattr(scheduling, "COMMIT_EVERY_MS", 0)
    monkeypatch.setattr(kafka, "TOPICS_SECONDS", 0.0)
    monkeypatch.setattr(kafka_topics, "VANISHED_SECONDS", 0.1)
    return KafkaSettings(bootstrap=bootstrap(), prefix=f"filing-{uuid4().hex[:12]}", single_broker=True)


def place(here: World, scheduler: Scheduler, count: int) -> int:
    """So many requests, one after the other, so that each is older than the next; returns how often the log was out of reach."""
    until, troubles = time.monotonic() + PATIENCE_SECONDS, 0
    for _ in range(count):
        placed = scheduler.placer.counters.placed
        here.request(f"r{len(here.requests)}", memory_mib=64)
        while scheduler.placer.counters.placed == placed:
            assert time.monotonic() < until, "requests are not answered"
            try:
                scheduler.turn(0.02)
            except LogUnreachable:  # Its host bears that and has it take the next turn.
                troubles += 1
    return troubles


def delete(settings: KafkaSettings, topic: str) -> None:
    """Returns when brokers know the topic no more."""
    admin, name = AdminClient({"bootstrap.servers": settings.bootstrap}), settings.topic(topic)
    admin.delete_topics([name])[name].result()
    until = time.monotonic() + PATIENCE_SECONDS
    while name in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < until, "the topic is not deleted"
        time.sleep(0.05)


def test_a_scheduler_goes_on_where_the_topic_of_what_is_filed_away_is_deleted_under_it(settings: KafkaSettings) -> None:
    with KafkaLog.open(settings) as log, KafkaLog.open(settings) as asking:
        open_ledger(log, ledger_partitions=1, request_partitions=1)
        here = World(asking, Clock())
        here.host("n1", vcpus=64)
        scheduler = Scheduler(log, "s", lease_timeout_seconds=6.0)
        place(here, scheduler, 10)
        assert asking.end(ANSWERED, 0) > 0
        delete(settings, ANSWERED)
        filed_before = len(scheduler.placer.desks[0].placements.filed)

        troubles = place(here, scheduler, 10)

        assert troubles == 0
        assert len(scheduler.placer.desks[0].placements.filed) > filed_before + 2
        assert scheduler.outbox.finish(LANDS_SECONDS), "something was said that can stand nowhere"
        scheduler.close()


def test_what_a_scheduler_said_there_before_it_knew_that_the_topic_is_gone_does_not_keep_it(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = replace(settings, patience_ms=2000)
    with KafkaLog.open(impatient) as log, KafkaLog.open(settings) as asking:
        open_ledger(log, ledger_partitions=1, request_partitions=1)
        here = World(asking, Clock())
        here.host("n1", vcpus=64)
        scheduler = Scheduler(log, "s", lease_timeout_seconds=6.0)
        place(here, scheduler, 4)
        log.topics()
        monkeypatch.setattr(kafka, "TOPICS_SECONDS", 5.0)
        delete(settings, ANSWERED)

        troubles = place(here, scheduler, 4)
        time.sleep(5.0)
        troubles += place(here, scheduler, 4)

        assert troubles > 0
        assert scheduler.outbox.finish(LANDS_SECONDS), "something was said that can stand nowhere"
        scheduler.close()
