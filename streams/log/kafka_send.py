"""Appends to Kafka: idempotent, gapless, and all or an error; waited for, or under way while the caller does something else.

librdkafka tries on by itself for as long as we let it. When our patience is over, everything that was not acknowledged is taken back and
the producer thrown away, so that of each partition a prefix of the batch has landed and nothing stands behind a gap. What is still on
its way may land later: a copy of what the caller appends again, which every fold ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from streams.log.base import LogError, LogUnreachable, Message, Partition
from streams.log.kafka_client import Clients
from streams.log.kafka_errors import error_of, is_about_topic, log_error
from streams.log.kafka_settings import SettingsProblem

RECORD_BYTES_MAX_DEFAULT: Final = 1_000_000
"""librdkafka's `message.max.bytes`, with what it adds to a record."""
# What librdkafka counts to a message beside key, value and headers.
OVERHEAD_BYTES: Final = 512
UNKNOWN: Final = -1
"""The offset of a record that stands in the log though its acknowledgement was lost with a leader: one behind it was acknowledged."""
# Longest sleep in one call, so that the process hears a signal; acknowledgements end it at once.
POLL_SECONDS: Final = 0.5
AGAIN: Final = "Some records may stand in the log; append the same bytes again"
HEAR_SECONDS: Final = 0.05
"""How long room in the queue, or the word of what went wrong, is waited for at once."""


class _Landing:
    """The acknowledged offsets of one partition, in the order of sending, and the first error."""

    __slots__ = ("error", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.error: KafkaError | None = None

    def note(self, error: KafkaError | None, message: Delivered) -> None:
        if error is None:
            offset = message.offset()
            self.offsets.append(UNKNOWN if offset is None else offset)
        elif self.error is None:
            self.error = error


class Batch:
    """Messages on their way to the broker. See `streams.outbox.Appending`."""

    def __init__(self, sender: Sender, messages: Sequence[Message], numbers: Sequence[int], left: Callable[[], float]) -> None:
        self.messages, self.left = messages, left
        self.lost: LogError | None = None
        """Why the rest of it was taken back."""
        self._sender = sender
        self._places = [Partition(message.topic, number) for message, number in zip(messages, numbers, strict=True)]
        self.landings = {place: _Landing() for place in self._places}

    def is_whole(self) -> bool:
        """Whether all of it is acknowledged."""
        return sum([len(landing.offsets) for landing in self.landings.values()]) == len(self._places)

    @property
    def ends(self) -> dict[Partition, int]:
        """Behind which offset the last of each partition stands, as far as the brokers said where; of one that has landed."""
        return {place: max(landing.offsets) + 1 for place, landing in self.landings.items()}

    def offsets(self) -> list[int]:
        """Those of its messages, in their order, UNKNOWN where the brokers did not say; of one that has landed."""
        offsets = self._by_place()
        return [next(offsets[place]) for place in self._places]

    def acknowledged(self) -> list[int | None]:
        """As `offsets`, of one that may have been given up: of each partition the first ones, None for those that nobody acknowledged."""
        offsets = self._by_place()
        return [next(offsets[place], None) for place in self._places]

    def _by_place(self) -> dict[Partition, Iterator[int]]:
        return {place: iter(landing.offsets) for place, landing in self.landings.items()}

    def error(self) -> tuple[str, KafkaError] | None:
        """The first thing that went wrong in any partition, and its topic."""
        return next(((place.topic, landing.error) for place, landing in self.landings.items() if landing.error is not None), None)

    def landed(self, timeout_seconds: float = 0.0) -> bool:
        """See `streams.outbox.Appending`."""
        return self._sender.has_landed(self, timeout_seconds)


class Sender:
    """One producer, made when it is needed and again after it was given up."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._settings = clients, clients.settings
        self._record_bytes_max = _number(self._settings.options.get("message.max.bytes", str(RECORD_BYTES_MAX_DEFAULT)))
        self._producer: Producer | None = None
        self._under_way: list[Batch] = []

    def warm_up(self) -> None:
        """Connect now: a producer waits half a second for its id, which it may do while the caller still reads."""
        self._producer = self._producer or self._clients.producer()

    def append(self, messages: Sequence[Message], numbers: Sequence[int], times_ms: Sequence[int] | None = None) -> list[int]:
        """Send each message to its partition and return their offsets, in the order given; UNKNOWN where the brokers did not say.

        Raises LogUnreachable, LogFatal, LogError.
        `times_ms` are theirs where the topic takes the writers' times (CreateTime).
        """
        batch = self.begin(messages, numbers, times_ms)
        while not self.has_landed(batch, min(POLL_SECONDS, max(batch.left(), 0.0))):
            pass
        return batch.offsets()

    def begin(self, messages: Sequence[Message], numbers: Sequence[int], times_ms: Sequence[int] | None = None) -> Batch:
        """As `append`, but only hands them over: the batch says what becomes of them. Raises as `append` does, and then all is given up."""
        self._refuse_too_large(messages)
        if self._clients.fatal is not None:
            raise self._clients.fatal
        self.warm_up()
        producer = self._producer
        assert producer is not None
        batch = Batch(self, messages, numbers, self._clients.patience())
        names = {topic: self._settings.topic(topic) for topic in {message.topic for message in messages}}
        self._under_way.append(batch)
        try:
            for message, number, time_ms in zip(messages, numbers, times_ms or [0] * len(messages), strict=True):
                landing = batch.landings[Partition(message.topic, number)]
                self._produce(producer, names[message.topic], message, number, time_ms, landing, batch.left)
        except BaseException:
            self._give_up()
            raise
        return batch

    def has_landed(self, batch: Batch, timeout_seconds: float) -> bool:
        """Whether a batch is acknowledged, now or in so many seconds. Raises LogError, and then everything under way is given up.

        So it is where the caller is interrupted while it waits: nothing is sent that nobody waits for.
        """
        if batch.lost is not None:
            raise batch.lost
        if not batch.is_whole():
            try:
                self._hear(timeout_seconds)
                self._refuse_errors()
                if not batch.is_whole() and batch.left() < 0:
                    raise self._late("not acknowledged")
            except BaseException:
                self._give_up()
                raise
        return batch.is_whole()

    def _produce(
        self, producer: Producer, name: str, message: Message, number: int, time_ms: int, landing: _Landing, left: Callable[[], float]
    ) -> None:
        headers: list[tuple[str, str | bytes | None]] = list(message.headers)
        while True:
            try:
                # A time of 0 is none: the client's own.
                producer.produce(name, message.value, message.key, number, on_delivery=landing.note, timestamp=time_ms, headers=headers)
                return
            except BufferError:
                # The queue is full: wait for room. Nothing is lost, the caller only sends slower.
                if left() < 0:
                    raise self._late("the queue stays full") from None
                self._hear(HEAR_SECONDS, of_all=False)
            except KafkaException as problem:
                # It may follow from what befell a record before it, of which nobody has heard yet.
                self._hear(HEAR_SECONDS)
                raise self._error(*self._refused() or ("", error_of(problem))) from None
            except TypeError:
                if any(type(header) is not str for header, _ in message.headers):
                    raise
                # Interrupted: the client takes what a signal's handler raised at a header for a header that is none.
                raise KeyboardInterrupt from None

    def _refuse_errors(self) -> None:
        refused = self._refused()
        if refused is not None:
            raise self._error(*refused)
        self._under_way = [batch for batch in self._under_way if not batch.is_whole()]
        if self._clients.fatal is not None and self._under_way:
            raise self._clients.fatal

    def _hear(self, timeout_seconds: float, *, of_all: bool = True) -> None:
        """Hear of acknowledgements, waiting at most so long until there are all, one wake-up for everything, or only some."""
        producer = self._producer
        assert producer is not None
        try:
            if of_all and timeout_seconds > 0:
                producer.flush(timeout_seconds)
            else:
                producer.poll(timeout_seconds)
        except (KafkaException, SystemError) as problem:
            # A fatal error comes out of here too, but the call returns all the same: Python calls that a mistake, and names the cause.
            cause = problem if isinstance(problem, KafkaException) else problem.__cause__
            if cause is None:
                # Interrupted within an acknowledgement: the client has lost what the signal's handler raised there.
                raise KeyboardInterrupt from None
            if not isinstance(cause, KafkaException):
                raise
            raise self._error(*self._refused() or ("", error_of(cause))) from None

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

    def _refused(self) -> tuple[str, KafkaError] | None:
        """What a record under way was refused for, and its topic: it says more than the errors that follow from it."""
        return next((found for batch in self._under_way if (found := batch.error()) is not None), None)

    def _error(self, topic: str, error: KafkaError) -> LogError:
        if self._clients.fatal is not None and not is_about_topic(error):
            return self._clients.fatal
        doing = f"appending to {topic}" if topic else "appending"
        return log_error(error, self._settings.place, doing, self._clients.last_seen, was_there=True)

    def _late(self, what: str) -> LogUnreachable:
        seen = f"; last heard: {self._clients.last_seen}" if self._clients.last_seen else ""
        waited = "in the time that an end may take" if self._clients.is_hurried else f"for {self._settings.patience_ms} ms"
        return LogUnreachable(f"{self._settings.place}: appending: {what} {waited}{seen}. {AGAIN}")

    def _give_up(self) -> None:
        """Take back what waits and what is under way, so that this producer sends none of it again.

        It counts that as a fatal error of its own, which is true of it and of nobody else: it is not asked for its news any more.
        """
        producer, self._producer = self._producer, None
        lost, self._under_way = self._under_way, []
        why = f"{self._settings.place}: appending: given up with what was sent beside it. {AGAIN}"
        for batch in lost:
            if not batch.is_whole():
                batch.lost = LogUnreachable(why)
        if producer is not None:
            with suppress(KafkaException):
                producer.purge(blocking=False)

    def close(self) -> None:
        """What is under way is taken back: who wanted it in the log has waited for it."""
        self._give_up()


def _number(text: str) -> int:
    """As librdkafka reads one, also in hexadecimal. Raises SettingsProblem."""
    try:
        return int(text, 0)
    except ValueError:
        raise SettingsProblem(f"message.max.bytes {text!r}: expected a whole number") from None
