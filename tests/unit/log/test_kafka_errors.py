"""Kafka's errors say what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from streams.log.base import LogError, LogUnreachable
from streams.log.kafka_errors import LogFatal, log_error

GAPLESS = "ProduceRequest for claims [3] with 1 message(s) failed: Broker: Message size too large: unable to satisfy gap-less guarantee"

DESYNCHRONIZED = "ProduceRequest for claims [0] with 1 message(s) failed due to sequence desynchronization with broker 3"


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (KafkaError(KafkaError._GAPLESS_GUARANTEE, GAPLESS, fatal=True), LogError, "`claimlog topics check` says which topic"),
        (KafkaError(KafkaError.UNKNOWN_MEMBER_ID), LogError, "Another program has joined this group"),
        (KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), LogUnreachable, "Check that the topics are still there"),
        (KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION), LogUnreachable, "Check that the brokers run"),
        (KafkaError(KafkaError.INVALID_SESSION_TIMEOUT), LogError, "group.min.session.timeout.ms"),
        (KafkaError(KafkaError._UNKNOWN_PARTITION), LogUnreachable, "no leader, or is there no more: `claimlog doctor` names it"),
        (KafkaError(KafkaError.LEADER_NOT_AVAILABLE), LogUnreachable, "no leader, or is there no more"),
        (KafkaError(KafkaError.OFFSET_NOT_AVAILABLE), LogUnreachable, "Too few copies of the partition are in step"),
        (KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), LogUnreachable, "start the brokers that are missing"),
        (
            KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, DESYNCHRONIZED, fatal=True),
            LogFatal,
            "docs/kafka.md, When records have left",
        ),
        (KafkaError(KafkaError._FATAL, "another", fatal=True), LogFatal, "start it again"),
        (KafkaError(KafkaError.GROUP_MAX_SIZE_REACHED), LogError, "see their group.max.size"),
    ],
)
def test_an_error_of_the_brokers_says_what_to_do(error: KafkaError, kind: type[LogError], advice: str) -> None:
    told = log_error(error, "kafka://here:9092", "appending", was_there=True)

    assert type(told) is kind
    assert advice in str(told)


@pytest.mark.parametrize(
    ("broker", "place", "verify"),
    [
        ("ssl://b1.example:9093/bootstrap", "b1.example:9093", "-verify_hostname b1.example"),
        ("sasl_ssl://10.0.0.1:9093/1", "10.0.0.1:9093", "-verify_ip 10.0.0.1"),
        ("sasl_ssl://[::1]:9093/1", "[::1]:9093", "-verify_ip ::1"),
    ],
)
def test_a_certificate_that_is_not_accepted_may_have_expired_or_be_for_another_host(broker: str, place: str, verify: str) -> None:
    heard = f"{broker}: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not be …"

    told = log_error(KafkaError(KafkaError._TRANSPORT), "kafka://here:9092", "asking for its topics", heard)

    assert type(told) is LogUnreachable
    assert "has expired, is not valid yet or is for another host name reads alike" in str(told)
    assert f"`openssl s_client -connect {place} -CAfile CA.pem {verify} </dev/null`" in str(told)
