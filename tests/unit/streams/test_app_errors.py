"""What Faust's client says, in words of ours."""

from __future__ import annotations

import aiokafka.errors
import pytest

from streams.app_errors import meant
from streams.log.base import LogError, LogUnreachable
from streams.log.kafka_client import Clients
from streams.log.kafka_send import Sender
from streams.log.kafka_settings import KafkaSettings, SettingsProblem

SETTINGS = KafkaSettings(bootstrap="b:9092", prefix="fleet")


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (aiokafka.errors.UnsupportedCodecError("zstd"), LogError, "Delete it while no worker runs"),
        (aiokafka.errors.GroupAuthorizationFailedError("stream-processor"), LogError, "group fleet."),
        (aiokafka.errors.NodeNotReadyError("1"), LogUnreachable, "Check that the brokers run"),
    ],
)
def test_what_somebody_can_do_something_about_says_what(problem: Exception, kind: type[LogError], words: str) -> None:
    said = meant(SETTINGS, problem)

    assert type(said) is kind
    assert words in str(said)


def test_a_fault_of_ours_stays_one() -> None:
    fault = ValueError("a mistake")

    assert meant(SETTINGS, fault) is fault


def test_a_number_is_read_as_librdkafka_reads_it_and_anything_else_refused() -> None:
    Sender(Clients(KafkaSettings(bootstrap="b:9092", options={"message.max.bytes": "0xF4240"})))
    with pytest.raises(SettingsProblem, match=r"message\.max\.bytes 'much': expected a whole number"):
        Sender(Clients(KafkaSettings(bootstrap="b:9092", options={"message.max.bytes": "much"})))


def test_a_member_of_a_group_keeps_the_name_that_tells_it_from_others_whatever_the_operator_calls_connections() -> None:
    clients = Clients(KafkaSettings(bootstrap="b:9092", options={"client.id": "site-1"}))

    assert clients._config({"group.id": "g", "client.id": "scheduler-1"})["client.id"] == "scheduler-1"
    assert clients._config({"linger.ms": 0})["client.id"] == "site-1"
