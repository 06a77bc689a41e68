"""Kafka's errors in the words of the log's contract: what passes, what must be mended, and what ends the process."""

# ruff: noqa: SLF001 - the names of librdkafka's own errors begin with an underscore

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from streams.log.base import LogDamaged, LogError, LogUnreachable, OffsetOutOfRange, TopicMismatch

# What librdkafka does not mark as retriable though another try may go through: a broker that starts, moves or is away.
_PASSING: Final = frozenset(
    (
        KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT, KafkaError._WAIT_COORD, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._RETRY,
        KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
        KafkaError.BROKER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION, KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.KAFKA_STORAGE_ERROR, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._DESTROY_BROKER,
    )
)  # fmt: skip
_TOO_FEW_COPIES: Final = frozenset(
    (KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.OFFSET_NOT_AVAILABLE)
)
# A producer's sequence starts anew on brokers that lost what it wrote.
_LOST: Final = frozenset((KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID))
_LOST_SAID: Final = "sequence desynchronization"
_NO_TOPIC: Final = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))
_NO_LEADER: Final = frozenset((KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION))
_NOT_ALLOWED: Final = frozenset(
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
)
_OTHERS_IN_GROUP: Final = frozenset(
    (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.REBALANCE_IN_PROGRESS)
)
_TOO_LARGE: Final = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
# A gapless producer makes a refusal fatal and keeps only its words.
_NOT_ALLOWED_SAID: Final = "authorization failed"
_TOO_LARGE_SAID: Final = "Message size too large"
_BROKERS_BOUNDS: Final = {
    KafkaError.INVALID_SESSION_TIMEOUT: "The brokers allow no session of this length: see their group.min.session.timeout.ms and "
    "group.max.session.timeout.ms; of a scheduler --lease-timeout is another, a worker's is 6 s",
    KafkaError.GROUP_MAX_SIZE_REACHED: "The brokers allow no more members in this group: see their group.max.size",
}
# What librdkafka says of a connection that the broker, or we, did not want: the address was right then.
_REFUSALS: Final = ("SASL", "SSL", "security.protocol")
# The same, where it is about passwords and certificates.
_NOT_WELCOME: Final = re.compile("uthentication (error|failed)|SSL handshake failed|certificate")
_BROKER_SAID: Final = re.compile(r"^\S+:\d+/\S+: ")
# One word of librdkafka for whatever is wrong with a broker's certificate, and the broker that it is of.
_NOT_VERIFIED: Final = "certificate verify failed"
_WHOSE: Final = re.compile(r"ssl://(\[[^\]]+\]|[^:/\s]+):(\d+)")
NOT_ALLOWED: Final = "This user may not; who may do what to which topic: docs/kafka.md"
CHECK_ADDRESS: Final = "Check that the brokers run, and that the address and security.protocol are theirs"
CHECK_COPIES: Final = (
    "Too few copies of the partition are in step (min.insync.replicas): start the brokers that are missing; `claimlog doctor` names it"
)
CHECK_TOPICS: Final = "Check that the topics are still there: claimlog topics check"
CHECK_LEADER: Final = "The partition has no leader, or is there no more: `claimlog doctor` names it"
CHECK_SECURITY: Final = "Check security.protocol, the certificates and the SASL settings"
MAY_BE_LOST: Final = (
    "The brokers have lost what this client wrote, as after an unclean election: records may be gone, see docs/kafka.md, "
    "When records have left"
)
OTHERS_IN_GROUP: Final = (
    "Another program has joined this group, which is claimlog's alone: stop it, `claimlog doctor` names it; then start this process again"
)


class LogFatal(LogError):
    """This client of the broker cannot go on, and no other try of this process would: end it and start another."""


def error_of(problem: KafkaException) -> KafkaError:
    """The error an exception of the client carries."""
    error = problem.args[0]
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(problem))


def is_passing(error: KafkaError) -> bool:
    """Whether the same may succeed in a moment."""
    return bool(error.retriable()) or error.code() in _PASSING


def is_not_allowed(error: KafkaError) -> bool:
    """Whether this user lacks the right to what was asked."""
    return error.code() in _NOT_ALLOWED


def is_about_topic(error: KafkaError) -> bool:
    """Whether it is the topic's settings or rights that refuse a record."""
    return is_not_allowed(error) or error.code() in _TOO_LARGE


def is_vanished(error: KafkaError) -> bool:
    """Whether a topic or partition is not known. Of one that was there this passes: a broker that starts does not know its topics yet."""
    return error.code() in _NO_TOPIC


def is_refused(said: str) -> bool:
    """Whether words of the client are about who this process, or the broker, says it is."""
    return bool(_NOT_WELCOME.search(_BROKER_SAID.sub("", said)))  # how a broker is called says nothing


def is_end(error: KafkaError) -> bool:
    """Whether it is no error but the word that a reader has come to the end of a partition."""
    return bool(error.code() == KafkaError._PARTITION_EOF)


def log_error(error: KafkaError, place: str, doing: str, last_seen: str = "", *, was_there: bool = False) -> LogError:
    """The contract's error for Kafka's; `place` says which log or position, `doing` what was tried, `last_seen` what connections said.

    `was_there` says that the topic was known before: that a broker does not know it now passes.
    """
    said = f"{error.str()} ({error.name()})"
    if is_not_allowed(error) or (error.fatal() and _NOT_ALLOWED_SAID in said):
        return LogError(f"{place}: {doing}: {said}. {NOT_ALLOWED}")
    if error.code() in _TOO_LARGE or (error.fatal() and _TOO_LARGE_SAID in said):
        return LogError(f"{place}: {doing}: {said}. `claimlog topics check` says which topic takes too little (max.message.bytes)")
    if error.fatal():
        lost = f". {MAY_BE_LOST}" if error.code() in _LOST or _LOST_SAID in said else ""
        return LogFatal(f"{place}: {doing}: {said}. This process cannot go on; start it again{lost}")
    if is_passing(error) or (was_there and is_vanished(error)):
        seen = f"; last heard: {last_seen}" if last_seen and last_seen not in said else ""
        about_security = any(word in f"{said}{seen}" for word in _REFUSALS)
        check = CHECK_TOPICS if is_vanished(error) else _check_security(f"{said}{seen}") if about_security else CHECK_ADDRESS
        if error.code() in _TOO_FEW_COPIES:
            check = CHECK_COPIES
        elif error.code() in _NO_LEADER:
            check = CHECK_LEADER
        return LogUnreachable(f"{place}: {doing}: {said}{seen}. {check}")
    code = error.code()
    if code in _NO_TOPIC:
        return TopicMismatch(f"{place}: {doing}: {said}. Create the topics first: claimlog topics apply")
    if code in _OTHERS_IN_GROUP:
        return LogError(f"{place}: {doing}: {said}. {OTHERS_IN_GROUP}")
    if code in {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}:
        return OffsetOutOfRange(f"{place}: the broker has no such offset: {error.str()}")
    if code == KafkaError._BAD_MSG:
        return LogDamaged(f"{place}: {doing}: {said}. The broker served bytes whose checksum is wrong; look at its disk")
    if code in {KafkaError._AUTHENTICATION, KafkaError._SSL}:
        return LogUnreachable(f"{place}: {doing}: {said}. {_check_security(said)}")
    return LogError(f"{place}: {doing}: {said}" + (f". {_BROKERS_BOUNDS[code]}" if code in _BROKERS_BOUNDS else ""))


def _check_security(said: str) -> str:
    """What to look at; of a broker's certificate that was not accepted also what else may be wrong with it than who vouches for it."""
    if _NOT_VERIFIED not in said:
        return CHECK_SECURITY
    whose = _WHOSE.search(said)
    host, port = whose.groups() if whose else ("HOST", "PORT")
    name = host.strip("[]")
    verify = f"-verify_ip {name}" if _is_address(name) else f"-verify_hostname {name}"
    return (
        f"{CHECK_SECURITY}. A certificate that has expired, is not valid yet or is for another host name reads alike; which it is says "
        f"`openssl s_client -connect {host}:{port} -CAfile CA.pem {verify} </dev/null`, in its line `Verify return code`"
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
