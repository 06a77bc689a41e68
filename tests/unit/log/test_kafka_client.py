"""What the clients of one cluster heard, and tell with the error that follows."""

from __future__ import annotations

import pytest
from confluent_kafka import ThrottleEvent

from streams.log.kafka_client import HELD_BACK_SECONDS, Clients
from streams.log.kafka_settings import KafkaSettings


@pytest.mark.parametrize(
    ("seconds", "heard"),
    [(HELD_BACK_SECONDS / 2, ""), (12.4, "a quota of the brokers holds this user back, for 12 s each time")],
)
def test_a_quota_that_holds_a_client_back_for_long_is_remembered(seconds: float, heard: str) -> None:
    clients = Clients(KafkaSettings(bootstrap="127.0.0.1:9092"))

    clients._held_back(ThrottleEvent("127.0.0.1", 1, seconds))

    assert clients.last_seen == heard
