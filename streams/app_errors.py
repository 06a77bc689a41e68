"""What Faust's client of Kafka (aiokafka) says has happened, in our errors: those tell what to do, and each has its exit code."""

from __future__ import annotations

from typing import Final

from schemas.topics import STREAM_PARTITIONS
from streams.log.base import LogError, LogUnreachable
from streams.log.kafka_errors import NOT_ALLOWED
from streams.log.kafka_settings import KafkaSettings
from streams.watchdog import GROUP

_NOT_ALLOWED: Final = frozenset(("GroupAuthorizationFailedError", "TopicAuthorizationFailedError"))
"""What it calls it where brokers say that this user may not."""


def is_not_allowed(problem: BaseException) -> bool:
    """Whether brokers said that this user may not."""
    return type(problem).__name__ in _NOT_ALLOWED


def meant(settings: KafkaSettings, problem: BaseException) -> BaseException:
    """The error in our words; one of the client's that would pass means that no broker answered it. Any other as it is."""
    if type(problem).__module__.startswith("aiokafka.") and getattr(problem, "retriable", False):
        asked = settings.options.get("security.protocol", "plaintext").lower()
        check = "that the brokers run" if asked == "plaintext" else "that the brokers run, the certificates and the SASL settings"
        return LogUnreachable(f"{settings.place}: joining the other workers: {problem}. Check {check}")
    if is_not_allowed(problem):
        return LogError(f"{settings.place}: group {settings.group(GROUP)}: {problem}. {NOT_ALLOWED}")
    if type(problem).__name__ == "UnsupportedCodecError":
        name = settings.topic(STREAM_PARTITIONS)
        return LogError(
            f"{settings.place}: somebody wrote to {name}, from which nothing is read, and packed it so that it cannot be passed over "
            f"({problem}). Delete it while no worker runs (`kafka-topics.sh --delete --topic {name}`); `claimlog topics apply` makes it"
        )
    return problem
