"""Appends to Kafka: idempotent, gapless, and all or an error.

librdkafka tries on by itself for as long as we let it. When our patience is over, everything that was not acknowledged is taken back and
the producer thrown away, so that of each partition a prefix of the batch has landed and nothing stands behind a gap. What is still on
its way may land later: a copy of what the caller appends again, which every fold ignores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from streams.log.base import LogError, LogUnreachable, Message
from streams.log.kafka_client import Clients
from streams.log.kafka_errors import error_of, log_error

RECORD_BYTES_MAX_DEFAULT: Final = 1_000_000
"""librdkafka's `message.max.bytes`, with what it adds to a record."""
# What librdkafka counts to a message beside key, value and headers.
OVERHEAD_BYTES: Final = 512
# Longest sleep in one call, so that the process hears a signal; acknowledgements end it at once.
POLL_SECONDS: Final = 0.5


class _Landing:
    """The acknowledged offsets of one partition, in the order of sending, and the first error."""

    __slots__ = ("error", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.error: KafkaError | None = None

    def note(self, error: KafkaError | None, message: Delivered) -> None:
        if error is None:
            self.offsets.append(message.offset() or 0)
        elif self.error is None:
            self.error = error


class Sender:
    """One producer, made when it is needed and again after it was given up."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._settings = clients, clients.settings
        self._record_bytes_max = int(self._settings.options.get("message.max.bytes", RECORD_BYTES_MAX_DEFAULT))
        self._producer: Producer | None = None

    def warm_up(self) -> None:
        """Connect now: a producer waits half a second for its id, which it may do while the caller still reads."""
        self._producer = self._producer or self._clients.producer()

    def append(self, messages: Sequence[Message], numbers: Sequence[int], times_ms: Sequence[int] | None = None) -> list[int]:
        """Send each message to its partition and return their offsets, in the order given. Raises LogUnreachable, LogFatal, LogError.

        `times_ms` are theirs where the topic takes the writers' times (CreateTime).
        """
        self._refuse_too_large(messages)
        if self._clients.fatal is not None:
            raise self._clients.fatal
        self.warm_up()
        producer = self._producer
        assert producer is not None
        until = time.monotonic() + self._settings.patience_ms / 1000
        landings: dict[tuple[str, int], _Landing] = {}
        names = {topic: self._settings.topic(topic) for topic in {message.topic for message in messages}}
        try:
            for message, number, time_ms in zip(messages, numbers, times_ms or [0] * len(messages), strict=True):
                landing = landings.setdefault((message.topic, number), _Landing())
                self._produce(producer, names[message.topic], message, number, time_ms, landing, until)
            self._await(producer, landings, len(messages), until)
        except BaseException:
            self._give_up()
            raise
        streams = {place: iter(landing.offsets) for place, landing in landings.items()}
        return [next(streams[message.topic, number]) for message, number in zip(messages, numbers, strict=True)]

    def _produce(
        self, producer: Producer, name: str, message: Message, number: int, time_ms: int, landing: _Landing, until: float
    ) -> None:
        headers: list[tuple[str, str | bytes | None]] = list(message.headers)
        while True:
            try:
                # A time of 0 is none: the client's own.
                producer.produce(name, message.value, message.key, number, on_delivery=landing.note, timestamp=time_ms, headers=headers)
                return
            except BufferError:
                # The queue is full: wait for room. Nothing is lost, the caller only sends slower.
                if time.monotonic() > until:
                    raise self._late("the queue stays full") from None
                producer.poll(0.05)
            except KafkaException as problem:
                raise self._clients.fatal or self._error(error_of(problem)) from None

    def _await(self, producer: Producer, landings: dict[tuple[str, int], _Landing], count: int, until: float) -> None:
        while True:
            for landing in landings.values():
                if landing.error is not None:
                    raise self._clients.fatal or self._error(landing.error)
            if sum(len(landing.offsets) for landing in landings.values()) == count:
                return
            if self._clients.fatal is not None:
                raise self._clients.fatal
            left = until - time.monotonic()
            if left <= 0:
                raise self._late("not acknowledged")
            try:
                # Sends what lingers, and returns when all is acknowledged: one wake-up for the whole batch.
                producer.flush(min(left, POLL_SECONDS))
            except (KafkaException, SystemError) as problem:
                # A fatal error comes out of here too, but `flush` returns all the same: Python calls that a mistake, and names the cause.
                cause = problem if isinstance(problem, KafkaException) else problem.__cause__
                if not isinstance(cause, KafkaException):
                    raise
                # What the record was refused for says more.
                refused = next((landing.error for landing in landings.values() if landing.error is not None), None)
                raise self._error(refused or error_of(cause)) from None

    def _refuse_too_large(self, messages: Sequence[Message]) -> None:
        """Before anything is sent: a batch that cannot go through leaves nothing behind."""
        for message in messages:
            size = len(message.value) + len(message.key) + OVERHEAD_BYTES
            # A name's characters take up to 4 bytes; counting values so, too, is quicker, and enough for all but the largest.
            if size + 4 * sum(map(len, chain.from_iterable(message.headers))) <= self._record_bytes_max:
                continue
            size += sum([len(name) * 4 + len(value) for name, value in message.headers])
            if size > self._record_bytes_max:
                raise LogError(
                    f"{self._settings.place}: a record for {message.topic} with {size} bytes is larger than the {self._record_bytes_max} "
                    "of message.max.bytes; nothing of its batch was sent"
                )

    def _error(self, error: KafkaError) -> LogError:
        return log_error(error, self._settings.place, "appending", self._clients.last_seen, was_there=True)

    def _late(self, what: str) -> LogUnreachable:
        seen = f"; last heard: {self._clients.last_seen}" if self._clients.last_seen else ""
        return LogUnreachable(
            f"{self._settings.place}: appending: {what} for {self._settings.patience_ms} ms{seen}. Some records may stand in the log; "
            "append the same bytes again"
        )

    def _give_up(self) -> None:
        """Take back what waits and what is under way, so that this producer sends none of it again.

        It counts that as a fatal error of its own, which is true of it and of nobody else: it is not asked for its news any more.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge(blocking=False)

    def close(self) -> None:
        """Every append has been waited for, so nothing is left to send."""
        self._give_up()
