"""What a Kafka log is told: brokers, prefix, and any setting of librdkafka, from the address, a file, the environment and `-X`.

Pure but for the files it is pointed to: nothing here connects. Settings that the log's contract stands on cannot be changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from msgspec import Struct, structs

ENVIRONMENT: Final = "CLAIMLOG_KAFKA_"
"""CLAIMLOG_KAFKA_SECURITY_PROTOCOL is `security.protocol`; with _FILE behind it, the file that holds the value (passwords)."""
CONFIG: Final = "CLAIMLOG_KAFKA_CONFIG"
"""A file of `key=value` lines."""
NAMES_OF_FILES: Final = frozenset(f"sasl.oauthbearer.assertion.{which}file" for which in ("", "private.key.", "jwt.template."))
"""Settings of librdkafka that are paths, and are called so: in the environment the path itself is given."""
FORM: Final = "kafka://HOST:PORT[,HOST:PORT][/PREFIX][?key=value&...]"
SINGLE_BROKER: Final = "single-broker"
REPLICAS: Final = 3
"""Copies of each topic. With `min.insync.replicas` 2 and acks=all, an acknowledged record outlives any one broker."""

PATIENCE_MS_DEFAULT: Final = 30_000
"""How long a broker may be away before an append or a read gives up: a broker that restarts is back in half of that."""

# What the contract promises depends on these, so they are set in one place and nowhere else.
FIXED: Final = frozenset(
    (
        "acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "transactional.id", "partitioner",
        "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "isolation.level", "auto.offset.reset", "group.id",
        "group.instance.id", "group.protocol", "partition.assignment.strategy", "enable.partition.eof", "bootstrap.servers",
        "metadata.broker.list", "allow.auto.create.topics", "heartbeat.interval.ms", "max.poll.interval.ms", "delivery.report.only.error",
        "check.crcs", "topic.blacklist", "test.mock.num.brokers", "logger", "on_delivery", "on_commit", "default.topic.config",
    )
)  # fmt: skip
PATIENCE: Final = "message.timeout.ms"
# Second names of settings, ours and librdkafka's ("Alias for" in its CONFIGURATION.md), so that what is said later wins by either name.
ALIASES: Final[Mapping[str, str]] = {
    "single.broker": SINGLE_BROKER,
    "delivery.timeout.ms": PATIENCE,
    "sasl.mechanisms": "sasl.mechanism",
    "queue.buffering.max.ms": "linger.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
SESSION: Final = "session.timeout.ms"
UNNAMED: Final = "claimlog"
"""What the consumer groups of a ledger without a prefix begin with."""
PORT_MAX = 65_535
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#\[\]]+):\d{1,5}")
# A dot parts the prefix from the topic, so there is none in the prefix.
_PREFIX = re.compile(r"[A-Za-z0-9_-]*")
_UNSECURE = "enable.sasl.oauthbearer.unsecure.jwt"


class SettingsProblem(ValueError):
    """An address or a setting that cannot be meant; the message says what would be right."""


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """Where a log is and how to reach it.

    `prefix` sets several ledgers on one cluster apart: topic `claims` is `PREFIX.claims` there. `single_broker` says that a replication
    of 1 is meant. `patience_ms` is how long to go on trying before an error. `options` are passed to librdkafka as they are. `known` are
    brokers that the cluster has named, HOST:PORT: any of them lets in whoever comes later, when those of `bootstrap` are gone. `files`
    are those that settings, secrets and certificates come from, each with a hash of what was in it. `variables` are those of the
    environment, by the setting that each makes.
    """

    bootstrap: str
    prefix: str = ""
    single_broker: bool = False
    patience_ms: int = PATIENCE_MS_DEFAULT
    options: Mapping[str, str] = {}
    known: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}

    @property
    def brokers(self) -> list[str]:
        """Whom to ask first: those that were given, and those that the cluster has named."""
        return list(dict.fromkeys([*self.bootstrap.split(","), *self.known]))

    @property
    def place(self) -> str:
        """How messages name this log; without options, which may hold secrets."""
        return f"kafka://{self.bootstrap}" + (f"/{self.prefix}" if self.prefix else "")

    def topic(self, name: str) -> str:
        """What a topic is called on the cluster."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def own(self, topic: str) -> str | None:
        """The log's name of a topic of the cluster; None if it belongs to another ledger or to Kafka."""
        if self.prefix:
            name = topic.removeprefix(f"{self.prefix}.")
            return name if name != topic and name else None
        return None if topic.startswith("__") or "." in topic else topic

    def group(self, name: str) -> str:
        """What a consumer group is called on the cluster; an unnamed prefix has a name here, since groups of others are there too."""
        return f"{self.prefix or UNNAMED}.{name}"

    def told(self, refusal: str) -> str:
        """What librdkafka says of a setting it refuses, and which variable of the environment made it: it may be meant for others."""
        quoted = re.findall(r'"([^"]+)"', refusal)
        made = [self.variables[name] for each in quoted if (name := _one_name(each)) in self.variables]
        return f"{refusal}; {made[0]} in the environment says so" if made else refusal

    def same_groups(self) -> KafkaSettings | None:
        """The other ledger on the cluster whose groups would have the same names: the one without a prefix, and the one of its groups'."""
        others = {"": UNNAMED, UNNAMED: ""}
        return structs.replace(self, prefix=others[self.prefix]) if self.prefix in others else None


def without_secrets(address: str) -> str:
    """An address as it may be shown: without the values of its settings, nor anybody's password, which has no place in one."""
    place, mark, query = address.partition("?")
    # A password may have any character, so all up to the last @ is one.
    return re.sub(r"^(\w*://)?.*@", r"\1...@", place) + mark + re.sub(r"=[^&]*", "=...", query)


def parse_settings(address: str, environ: Mapping[str, str], given: Iterable[str] = ()) -> KafkaSettings:
    """The settings of an address `kafka://…`; `given` are the `key=value` of `-X`.

    What is said later wins: file of CLAIMLOG_KAFKA_CONFIG, environment, address, `-X`. Raises SettingsProblem.
    """
    rest = address.removeprefix("kafka://")
    if rest == address:
        raise SettingsProblem(f"{without_secrets(address)}: the address of a Kafka log is {FORM}")
    place, _, query = rest.partition("?")
    bootstrap, _, prefix = place.partition("/")
    for broker in bootstrap.split(","):
        if not _BROKER.fullmatch(broker):
            shown = without_secrets(place) if "@" in place else broker
            raise SettingsProblem(f"{shown or 'nothing'} is no broker's HOST:PORT; the address of a Kafka log is {FORM}")
        if not 1 <= (port := int(broker.rpartition(":")[2])) <= PORT_MAX:  # The client would take the rest of it by 65,536.
            raise SettingsProblem(f"{broker}: expected a port from 1 to {PORT_MAX}, got {port}")
    if not _PREFIX.fullmatch(prefix):
        raise SettingsProblem(f"prefix {prefix!r} may have letters, digits, - and _ only; the address of a Kafka log is {FORM}")
    # Before they are read: what changes in between is then taken for changed.
    files = _hashes(value for name, value in environ.items() if name == CONFIG or (name.startswith(ENVIRONMENT) and name.endswith("_FILE")))
    in_environment = _from_environment(environ)
    nearer = {_one_name(key): value for key, value in parse_qsl(_flags_said(query), keep_blank_values=True)}
    nearer |= dict(_pair(text, "-X") for text in given)
    options = _from_file(environ) | {name: value for name, (_, value) in in_environment.items()} | nearer
    single_broker = _flag(options.pop(SINGLE_BROKER, "false"))
    patience_ms = _milliseconds(options)
    if SESSION in options:
        raise SettingsProblem(f"{SESSION} cannot be changed here: a scheduler's is `run --lease-timeout`, a worker's 6 s; leave it out")
    # What ends in _cb is a function, which no text names.
    wrong = sorted(name for name in options if name in FIXED or name.endswith("_cb"))
    if wrong:
        raise SettingsProblem(f"{', '.join(wrong)} cannot be changed: what claimlog promises depends on it; leave it out")
    _check_tokens(options)
    files |= _hashes(value for name, value in options.items() if name.startswith("ssl.") and name.endswith(".location"))
    return KafkaSettings(
        bootstrap=bootstrap,
        prefix=prefix,
        single_broker=single_broker,
        patience_ms=patience_ms,
        options=options,
        files=files,
        variables={name: variable for name, (variable, _) in in_environment.items() if name not in nearer},
    )


def changed(files: Mapping[str, str]) -> list[str]:
    """Which of these files of `KafkaSettings` have something else in them by now; one that cannot be read is not among them."""
    now = _hashes(files)
    return sorted(file for file, was in files.items() if now.get(file, was) != was)


def _hashes(files: Iterable[str]) -> dict[str, str]:
    """Of those files that can be read, and more than once: of a pipe nothing would be left for who needs it."""
    found: dict[str, str] = {}
    for file in files:
        with suppress(OSError, ValueError):
            if Path(file).is_file():
                found[file] = blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    return found


def unreadable(options: Mapping[str, str], said: str) -> str:
    """Which file of certificates or keys cannot be read, and why: a client that cannot has `said` at most which setting that is of.

    Empty if it has said something else: nobody reads such a file where the connection is not encrypted.
    """
    for name, place in sorted(options.items()):
        # An engine's library has another sentence, "OpenSSL engine initialization failed", without the name.
        is_meant = name in said or (name == "ssl.engine.location" and "engine" in said)
        if is_meant and name.startswith("ssl.") and name.endswith(".location") and place not in {"", "probe"}:
            try:
                if not Path(place).is_dir():
                    Path(place).open("rb").close()
            except (OSError, ValueError) as problem:
                return f"{name}={place} cannot be read: {getattr(problem, 'strerror', None) or 'it is no path'}"
    return ""


def _milliseconds(options: dict[str, str]) -> int:
    """The time-out of a delivery is ours to keep: librdkafka's own would send what comes after a message that it gave up."""
    text = options.pop(PATIENCE, str(PATIENCE_MS_DEFAULT))
    if not text.isdecimal() or not int(text):
        raise SettingsProblem(f"{PATIENCE}: a number of milliseconds above 0 is needed, not {text!r}")
    return int(text)


def _check_tokens(options: Mapping[str, str]) -> None:
    """A client of OAUTHBEARER that nobody gives a token waits for one, and says no more than that its connection failed."""
    is_given = options.get("sasl.oauthbearer.method", "default") != "default" or options.get(_UNSECURE, "false").lower() in {"true", "1"}
    if options.get("sasl.mechanism", "").upper() == "OAUTHBEARER" and not is_given:
        raise SettingsProblem(
            "sasl.mechanism=OAUTHBEARER: expected where tokens come from: sasl.oauthbearer.method=oidc, with "
            "sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
        )


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0", "yes", "no"}:
        raise SettingsProblem(f"{SINGLE_BROKER} is true or false, not {text!r}")
    return text.lower() in {"true", "1", "yes"}


def _flags_said(query: str) -> str:
    """A query in which what has no `=` is a flag, which is meant to be `true`."""
    return "&".join(part if "=" in part else f"{part}=true" for part in query.split("&") if part)


def _one_name(key: str) -> str:
    return ALIASES.get(key, key)


def _pair(text: str, place: str) -> tuple[str, str]:
    """Raises SettingsProblem, which does not show the text: it may be a password."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsProblem(f"{place}: expected key=value, such as security.protocol=SASL_SSL")
    return _one_name(key.strip()), value.strip()


def _from_file(environ: Mapping[str, str]) -> dict[str, str]:
    file = environ.get(CONFIG)
    if not file:
        return {}
    lines = enumerate(map(str.strip, _content(CONFIG, file, file).splitlines()), 1)
    return dict(_pair(line, f"{file}:{number}") for number, line in lines if line and not line.startswith("#"))


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By setting, the variable that makes it, and what to."""
    options: dict[str, tuple[str, str]] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT) or variable == CONFIG:
            continue
        name = variable.removeprefix(ENVIRONMENT)
        # Not shown: whoever gives the password itself instead of a file has said it in a wrong place, too.
        is_secret = name.endswith("_FILE") and _dotted(name) not in NAMES_OF_FILES
        meant = _content(variable, value, "the file that it names").rstrip("\n") if is_secret else value
        name = name.removesuffix("_FILE") if is_secret else name
        if is_secret and ENVIRONMENT + name in environ:
            raise SettingsProblem(f"{variable} and {ENVIRONMENT}{name} are both set; expected one of them")
        options[_one_name(_dotted(name))] = (variable, meant)
    return options


def _dotted(name: str) -> str:
    return name.lower().replace("_", ".")


def _content(variable: str, file: str, shown: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsProblem(f"{variable}: {shown} cannot be read: it is no UTF-8") from None
    except (OSError, ValueError) as problem:
        raise SettingsProblem(f"{variable}: {shown} cannot be read: {getattr(problem, 'strerror', None) or 'it is no path'}") from None
