"""Where a Kafka log is and what its client is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from streams.cli.main import run
from streams.log.kafka_settings import ALIASES, SINGLE_BROKER, KafkaSettings, SettingsProblem, changed, parse_settings
from streams.log.kafka_topics import MISSING, TopicDifference


def test_an_address_names_brokers_prefix_and_settings() -> None:
    settings = parse_settings("kafka://a:9092,[::1]:9093/fleet-1?client.rack=r%201&single-broker", {})

    assert settings == KafkaSettings(bootstrap="a:9092,[::1]:9093", prefix="fleet-1", single_broker=True, options={"client.rack": "r 1"})


def test_what_is_said_nearer_to_the_command_wins(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\nclient.rack = file\nlinger.ms=1\nsocket.timeout.ms=2\nretries=3\n")
    environ = {"CLAIMLOG_KAFKA_CONFIG": str(file), "CLAIMLOG_KAFKA_LINGER_MS": "4", "CLAIMLOG_KAFKA_CLIENT_RACK": "rack", "LINGER_MS": "9"}

    settings = parse_settings("kafka://a:1?client.rack=address&socket.timeout.ms=5", environ, ["client.rack=flag"])

    assert settings.options == {"client.rack": "flag", "linger.ms": "4", "socket.timeout.ms": "5", "retries": "3"}


@pytest.mark.parametrize(("one", "other"), sorted(ALIASES.items()))
@pytest.mark.parametrize("place", ["environment", "address", "-X"])
def test_of_two_names_of_a_setting_what_is_said_nearer_to_the_command_wins(one: str, other: str, place: str, tmp_path: Path) -> None:
    values = ("true", "false") if other == SINGLE_BROKER else ("1", "2")
    for first, last in ((one, other), (other, one)):
        file = tmp_path / "kafka.conf"
        file.write_text(f"{first}={values[0]}\n")
        environ = {"CLAIMLOG_KAFKA_CONFIG": str(file)}
        if place == "environment":
            environ[f"CLAIMLOG_KAFKA_{last.upper().replace('.', '_').replace('-', '_')}"] = values[1]
        query = f"?{last}={values[1]}" if place == "address" else ""

        both = parse_settings(f"kafka://b:9092{query}", environ, [f"{last}={values[1]}"] if place == "-X" else [])

        assert structs.replace(both, files={}, variables={}) == parse_settings("kafka://b:9092", {}, [f"{last}={values[1]}"])


def test_of_two_names_of_a_setting_in_one_file_the_last_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "kafka.conf"
    file.write_text("linger.ms=1\nqueue.buffering.max.ms=2\nlinger.ms=3\n")

    assert parse_settings("kafka://b:9092", {"CLAIMLOG_KAFKA_CONFIG": str(file)}).options == {"linger.ms": "3"}


def test_a_secret_comes_from_its_file_and_is_not_in_the_name_of_the_log(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("p=ss word\n")

    settings = parse_settings("kafka://a:1/x", {"CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": str(secret)})

    assert settings.options == {"sasl.password": "p=ss word"}
    assert settings.place == "kafka://a:1/x"


def test_of_an_address_what_has_no_equals_sign_is_a_flag_and_an_empty_value_is_one() -> None:
    settings = parse_settings("kafka://a:1?single-broker&sasl.password=&&client.rack=r", {})

    assert settings.single_broker
    assert settings.options == {"sasl.password": "", "client.rack": "r"}


def test_a_setting_that_is_called_a_file_is_the_path_itself(tmp_path: Path) -> None:
    key, name = tmp_path / "key.pem", "CLAIMLOG_KAFKA_SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY"
    key.write_text("secret")

    settings = parse_settings("kafka://a:1", {f"{name}_FILE": str(key), f"{name}_PASSPHRASE_FILE": str(key)})

    setting = "sasl.oauthbearer.assertion.private.key"
    assert settings.options == {f"{setting}.file": str(key), f"{setting}.passphrase": "secret"}


def test_patience_is_the_message_time_out_and_kept_from_the_client() -> None:
    settings = parse_settings("kafka://a:1", {"CLAIMLOG_KAFKA_SINGLE_BROKER": "1"}, ["message.timeout.ms=1500"])

    assert (settings.patience_ms, settings.single_broker, settings.options) == (1500, True, {})


def test_topics_of_other_ledgers_and_of_kafka_are_not_ours() -> None:
    one, plain = KafkaSettings(bootstrap="a:1", prefix="one"), KafkaSettings(bootstrap="a:1")

    assert one.own("one.claims") == "claims"
    assert [one.own(name) for name in ("one.", "ones.claims", "claims", "__consumer_offsets")] == [None] * 4
    assert [plain.own(name) for name in ("claims", "one.claims", "__consumer_offsets")] == ["claims", None, None]
    assert (one.topic("claims"), plain.topic("claims"), one.group("g"), plain.group("g")) == ("one.claims", "claims", "one.g", "claimlog.g")


@pytest.mark.parametrize(
    ("address", "given", "message"),
    [
        ("kafka://", [], "nothing is no broker's HOST:PORT"),
        ("kafka://a:1,b", [], "b is no broker's HOST:PORT"),
        ("kafka://a:1,b:99999", [], "b:99999: expected a port from 1 to 65535, got 99999"),
        ("kafka://a:0", [], "a:0: expected a port from 1 to 65535, got 0"),
        ("kafka://user@a:1/x/y", [], "prefix 'x/y'"),
        ("kafka://a:1", ["acks"], "expected key=value"),
        ("kafka://a:1", ["enable.idempotence=false"], "enable.idempotence cannot be changed"),
        ("kafka://a:1?single-broker=maybe", [], "single-broker is true or false"),
        ("kafka://a:1?message.timeout.ms=0", [], "message.timeout.ms: a number"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(address: str, given: list[str], message: str) -> None:
    with pytest.raises(SettingsProblem, match=message):
        parse_settings(address, {}, given)


def test_a_secret_file_that_cannot_be_read_is_told_by_its_variable_which_may_hold_the_secret_itself(tmp_path: Path) -> None:
    (tmp_path / "latin-1").write_bytes("größe".encode("latin-1"))
    told = []
    for value in ("hunter2", str(tmp_path / "latin-1"), "hunter2\0"):
        with pytest.raises(SettingsProblem) as problem:
            parse_settings("kafka://a:1", {"CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": value})
        told.append(str(problem.value).removeprefix("CLAIMLOG_KAFKA_SASL_PASSWORD_FILE: the file that it names cannot be read: "))
    with pytest.raises(SettingsProblem, match="CLAIMLOG_KAFKA_CONFIG: /nowhere/at-all cannot be read: No such file or directory"):
        parse_settings("kafka://a:1", {"CLAIMLOG_KAFKA_CONFIG": "/nowhere/at-all"})

    assert told == ["No such file or directory", "it is no UTF-8", "it is no path"]


@pytest.mark.parametrize(
    "said",
    [
        ["nodes", "--log", "kafka://me:hunter2@broker:9092/fleet"],
        ["nodes", "--log", "kafka://me:hunter2/and+more@broker:9092/fleet"],
        ["nodes", "--log", "kafak://broker:9092,me:hunter2/and,more@broker:9092"],
        ["nodes", "--log", "kafak://broker:9092?sasl.password=hunter2"],
        ["nodes", "--log", "kafka://broker:9092", "-X", "sasl.password:hunter2"],
        ["nodes", "--log", "kafka://broker:9092"],
    ],
)
def test_a_password_is_not_shown_where_it_is_said_in_a_wrong_way(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kafka.conf"
    file.write_text("security.protocol=SASL_SSL\nsasl.password: hunter2\n")
    monkeypatch.setenv("CLAIMLOG_KAFKA_CONFIG", str(file))

    code = run(said)
    heard = capsys.readouterr().err

    assert code == 2
    assert "hunter2" not in heard
    assert "expected" in heard or "is no" in heard


def test_a_topic_that_is_not_there_is_said_to_be_missing_and_how_it_is_made() -> None:
    missing = TopicDifference("claims", MISSING, "`claimlog topics apply` makes it", MISSING)

    assert str(missing) == "topic 'claims': missing; `claimlog topics apply` makes it"


def test_a_secret_and_the_file_that_holds_it_are_not_both_set(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("of the file")
    both = {"CLAIMLOG_KAFKA_SASL_PASSWORD": "of the variable", "CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": str(secret)}

    with pytest.raises(SettingsProblem, match="CLAIMLOG_KAFKA_SASL_PASSWORD_FILE and CLAIMLOG_KAFKA_SASL_PASSWORD are both set") as problem:
        parse_settings("kafka://a:1", both)

    assert "of the variable" not in str(problem.value)


def test_files_that_have_something_else_in_them_than_when_they_were_read_are_named_and_those_that_are_gone_are_not(tmp_path: Path) -> None:
    config, secret, ca, gone = files = [tmp_path / name for name in ("kafka.conf", "password", "ca.pem", "key.pem")]
    for file in files:
        file.write_text(f"ssl.ca.location={ca}\nssl.key.location={gone}\n" if file == config else "old")
    settings = parse_settings("kafka://b:9092", {"CLAIMLOG_KAFKA_CONFIG": str(config), "CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": str(secret)})
    before = changed(settings.files)

    secret.write_text("new")
    ca.write_text("new")
    gone.unlink()

    assert (before, changed(settings.files)) == ([], sorted([str(ca), str(secret)]))
    assert "old" not in settings.files.values()


def test_settings_from_a_pipe_count_and_are_read_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"security.protocol=SASL_SSL\n")
    os.close(writing)
    try:
        settings = parse_settings("kafka://127.0.0.1:9092", {"CLAIMLOG_KAFKA_CONFIG": f"/dev/fd/{reading}"})
    finally:
        os.close(reading)

    assert settings.options == {"security.protocol": "SASL_SSL"}
    assert settings.files == {}


def test_tokens_have_to_come_from_somewhere() -> None:
    endpoint = ("sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.method=oidc", "sasl.oauthbearer.token.endpoint.url=https://sso/token")

    with pytest.raises(SettingsProblem, match=r"expected where tokens come from: sasl\.oauthbearer\.method=oidc"):
        parse_settings("kafka://b:9092", {"CLAIMLOG_KAFKA_SASL_MECHANISMS": "OAUTHBEARER"})

    assert parse_settings("kafka://b:9092", {}, endpoint).options["sasl.oauthbearer.method"] == "oidc"
    unsecured = ("sasl.mechanism=oauthbearer", "enable.sasl.oauthbearer.unsecure.jwt=true")
    assert parse_settings("kafka://b:9092", {}, unsecured).options["sasl.mechanism"] == "oauthbearer"
