"""What the clients of one cluster heard, and tell with the error that follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, ThrottleEvent
from msgspec import structs

from streams.cli.exits import Exit, exit_of
from streams.log.base import LogError, LogOutdated, LogUnreachable
from streams.log.kafka_client import HELD_BACK_SECONDS, Clients
from streams.log.kafka_settings import KafkaSettings, SettingsProblem, parse_settings


@pytest.mark.parametrize(
    ("seconds", "heard"),
    [(HELD_BACK_SECONDS / 2, ""), (12.4, "a quota of the brokers holds this user back, for 12 s each time")],
)
def test_a_quota_that_holds_a_client_back_for_long_is_remembered(seconds: float, heard: str) -> None:
    clients = Clients(KafkaSettings(bootstrap="127.0.0.1:9092"))

    clients._held_back(ThrottleEvent("127.0.0.1", 1, seconds))

    assert clients.last_seen == heard


def test_who_waits_for_a_record_hears_of_a_quota_only_if_it_was_in_the_way_meanwhile() -> None:
    clients = Clients(KafkaSettings(bootstrap="127.0.0.1:9092"))
    clients._held_back(ThrottleEvent("127.0.0.1", 1, 12.0))
    began = clients.times_heard

    before = str(clients.not_come("claims/0@7", 9, began))
    clients._held_back(ThrottleEvent("127.0.0.1", 1, 12.0))
    meanwhile = str(clients.not_come("claims/0@7", 9, began))

    place = "kafka://127.0.0.1:9092: claims/0@7 has not come so far, though the end is 9"
    assert before == f"{place}. Check the partition's leader"
    assert meanwhile == (
        f"{place}; last heard: a quota of the brokers holds this user back, for 12 s each time. See what its quotas allow"
    )


@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"])
def test_a_file_of_certificates_that_is_not_there_is_named_and_one_that_goes_later_is_no_mistake_of_the_command(
    name: str, tmp_path: Path
) -> None:
    gone = tmp_path / "gone.pem"
    options = {"security.protocol": "ssl", name: str(gone)}
    begun, running = (Clients(KafkaSettings(bootstrap="127.0.0.1:9092", options=each)) for each in (options, {}))
    running.consumer().close()
    running.settings = structs.replace(running.settings, options=options)

    with pytest.raises(SettingsProblem, match=f"{name}={gone} cannot be read: No such file or directory") as at_start:
        begun.consumer()
    with pytest.raises(LogError, match=f"{name}={gone} cannot be read") as later:
        running.consumer()

    assert (exit_of(at_start.value), exit_of(later.value)) == (Exit.USAGE, Exit.ERROR)


@pytest.mark.parametrize(("name", "value"), [("max.in.flight.requests.per.connection", "6"), ("retries", "0")])
def test_a_setting_that_only_the_producer_refuses_is_a_mistake_of_the_command_though_a_consumer_was_made(name: str, value: str) -> None:
    clients = Clients(KafkaSettings(bootstrap="127.0.0.1:9092", options={name: value}))
    clients.consumer().close()

    with pytest.raises(SettingsProblem, match="must be set") as refused:
        clients.producer()

    assert exit_of(refused.value) == Exit.USAGE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ssl.ca.location": "/nope", "compression.type": "foo"}, 'Invalid value "foo" for configuration property "compression'),
        ({"ssl.ca.location": "/nope", "retries": "0"}, "`retries` must be set"),
        ({"ssl.ca.location": "/nope", "ssl.endpoint.identification.algorithm": "foo"}, "ssl.endpoint.identification.algorithm"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nope", "ssl.key.location": "/no"}, "ssl.ca.location=/nope cannot be read"),
        ({"security.protocol": "ssl", "ssl.engine.location": "/nope"}, "ssl.engine.location=/nope cannot be read"),
    ],
)
def test_a_file_of_certificates_is_blamed_for_what_it_is_the_reason_of_alone(options: dict[str, str], said: str) -> None:
    clients = Clients(KafkaSettings(bootstrap="127.0.0.1:9092", options=options))

    with pytest.raises(SettingsProblem) as refused:
        clients.producer()

    assert said in str(refused.value)
    assert ("cannot be read" in said) == ("cannot be read" in str(refused.value))


REFUSED = "sasl_ssl://b:9092/1: SASL authentication error: Authentication failed during authentication due to invalid credentials"


@pytest.mark.parametrize(
    ("heard", "now", "ends"),
    [
        (REFUSED, "new", True),
        (REFUSED, "old", False),
        (REFUSED, None, False),
        ("ssl://b:9092/1: SSL handshake failed: ...: sslv3 alert certificate expired", "new", True),
        ("sasl_ssl://b:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused", "new", False),
        ("sasl_ssl://certificate-alerts:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused", "new", False),
    ],
    ids=["replaced", "the same", "gone", "certificate", "away", "called so"],
)
def test_who_is_refused_with_a_secret_that_was_replaced_ends_at_once(heard: str, now: str | None, ends: bool, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("old")
    settings = parse_settings("kafka://127.0.0.1:9092", {"CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": str(secret)})
    clients = Clients(settings)
    if now is None:
        secret.unlink()
    else:
        secret.write_text(now)

    def ask(_timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, heard))

    with pytest.raises(LogError) as problem:
        clients.patiently(ask, "asking for offsets", 0.0)

    assert isinstance(problem.value, LogOutdated) == ends
    assert exit_of(problem.value) == Exit.UNREACHABLE
    told = f"{secret} has changed since this process began: start it again"
    assert (told in str(problem.value)) == ends


def test_what_was_refused_before_ends_nobody_whose_secret_was_replaced_since(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("old")
    clients = Clients(parse_settings("kafka://127.0.0.1:9092", {"CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": str(secret)}))
    clients._heard(KafkaError(KafkaError._TRANSPORT, REFUSED))
    secret.write_text("new")

    def ask(_timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "loading"))

    with pytest.raises(LogUnreachable):
        clients.patiently(ask, "asking for offsets", 0.0)


@pytest.mark.parametrize(
    ("variable", "address", "said"),
    [
        ("CLAIMLOG_KAFKA_SERVICE_HOST", "", 'property: "service.host"; CLAIMLOG_KAFKA_SERVICE_HOST in the environment says so'),
        # Its name in librdkafka's words is "queue.buffering.max.ms".
        ("CLAIMLOG_KAFKA_LINGER_MS", "", "CLAIMLOG_KAFKA_LINGER_MS in the environment says so"),
        ("CLAIMLOG_KAFKA_FETCH_MIN_BYTES", "?fetch.min.bytes=foo", 'property "fetch.min.bytes"'),
    ],
)
def test_a_wrong_setting_names_the_variable_that_made_it_but_not_one_that_did_not_count(variable: str, address: str, said: str) -> None:
    """As Kubernetes gives every pod some for a service named `claimlog-kafka`."""
    clients = Clients(parse_settings(f"kafka://127.0.0.1:9092{address}", {variable: "wrong", "CLAIMLOG_KAFKA_CLIENT_RACK": "r1"}))

    with pytest.raises(SettingsProblem) as refused:
        clients.producer() if "LINGER" in variable else clients.consumer()

    assert said in str(refused.value)
    assert ("in the environment" in str(refused.value)) != bool(address)
