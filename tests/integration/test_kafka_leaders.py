"""Partitions that change their leader, as whoever asks and reads meets it."""

from __future__ import annotations

from schemas.topics import RESULTS
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.kafka_cluster import cluster

PATIENCE_MS = 4000


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
