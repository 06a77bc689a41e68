"""Where groups stand: offsets stored with the broker, for groups without members.

Each group is asked about through a consumer of its own that never joins it. The admin client could do the same in one call, but after its
broker was killed and came back it waits for ever (librdkafka 2.16), and giving up such a request may abort the process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streams.log.kafka_client import Clients
from streams.log.kafka_errors import error_of, is_not_allowed, is_passing, is_vanished, log_error

# Sleeps in one call, the first and the longest. The answer is heard in a call but does not end it, and comes after a millisecond or two.
POLL_SECONDS_FIRST, POLL_SECONDS_MAX = 0.001, 0.1


Places = dict[tuple[str, int], int]


def _offsets(places: Sequence[TopicPartition]) -> Places:
    return {(place.topic, place.partition): place.offset for place in places}


class _Member:
    """A consumer that speaks for a group and is no member of it, with the answer that came last."""

    def __init__(self, clients: Clients, group: str) -> None:
        self.consumer: Consumer = clients.member({"group.id": clients.settings.group(group), "on_commit": self._answered})
        self._answers: list[tuple[KafkaError | None, Places]] = []
        self._open: Places = {}
        """What was given to `store_soon` and is not known to be stored, since `_open_since`."""
        self._open_since = 0.0

    def _answered(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        refused = [problem for problem in (error, *(place.error for place in places)) if problem is not None]
        self._answers.append((refused[0] if refused else None, _offsets(places)))

    def committed(self, asked: Sequence[TopicPartition], timeout_seconds: float) -> Sequence[TopicPartition]:
        """What is stored of these. Raises KafkaException.

        Where this user may not even look for the group librdkafka asks until its time is up, and tells the reason to who polls.
        """
        try:
            return self.consumer.committed(list(asked), timeout=timeout_seconds)
        except KafkaException:
            told = self.consumer.poll(0)
            if told is not None and (error := told.error()) is not None and is_not_allowed(error):
                raise KafkaException(error) from None
            raise

    def commit(self, stored: Sequence[TopicPartition], timeout_seconds: float) -> None:
        """Store these and wait for the answer. Raises KafkaException."""
        wanted, until = _offsets(stored), time.monotonic() + timeout_seconds
        sleep_seconds = POLL_SECONDS_FIRST
        self._answers.clear()
        self._open = {place: offset for place, offset in self._open.items() if place not in wanted}
        self.consumer.commit(offsets=list(stored), asynchronous=True)
        while True:
            for error, places in self._answers:
                # What is answered late to an earlier try is not the answer to this one.
                if places == wanted:
                    if error is not None:
                        raise KafkaException(error)
                    return
            left = until - time.monotonic()
            if left <= 0:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - librdkafka's own errors begin so
            self.consumer.poll(min(left, sleep_seconds))
            sleep_seconds = min(2 * sleep_seconds, POLL_SECONDS_MAX)

    def store_soon(self, stored: Sequence[TopicPartition], patience_seconds: float) -> None:
        """Store these without waiting, and again what was not stored yet. Raises KafkaException of what is refused or takes too long."""
        now = time.monotonic()
        self.consumer.poll(0)
        answers, self._answers = self._answers, []
        for error, places in answers:
            if error is None:
                self._open = {place: offset for place, offset in self._open.items() if places.get(place) != offset}
            elif not (is_passing(error) or is_vanished(error)):
                raise KafkaException(error)
        is_late = bool(self._open) and now - self._open_since > patience_seconds
        if not self._open or is_late:
            self._open_since = now
        self._open |= _offsets(stored)
        if self._open:
            again = [TopicPartition(topic, number, offset) for (topic, number), offset in self._open.items()]
            self.consumer.commit(offsets=again, asynchronous=True)
        # Said once it is under way again: of tries that nobody answers any more none would ever be stored.
        if is_late:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - librdkafka's own errors begin so


class GroupOffsets:
    """The offsets of groups on one cluster. See `committed` and `commit` of the log's contract."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._members: dict[str, _Member] = {}

    def _member(self, group: str) -> _Member:
        if group not in self._members:
            self._members[group] = _Member(self._clients, group)
        return self._members[group]

    def committed(self, group: str, topic: str, count: int) -> dict[int, int]:
        """The stored offsets of a topic's `count` partitions; those without one are absent. Raises LogError."""
        name = self._clients.settings.topic(topic)
        asked = [TopicPartition(name, number) for number in range(count)]

        def ask(timeout: float) -> dict[int, int]:
            found = self._member(group).committed(asked, timeout)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
            return {place.partition: place.offset for place in found if place.offset >= 0}

        return self._clients.patiently(ask, f"asking for the offsets of group {group}", was_there=True)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store these offsets, durably. Raises LogError."""
        stored = self._places(topic, offsets)

        def ask(timeout: float) -> None:
            self._member(group).commit(stored, timeout)

        self._clients.patiently(ask, f"storing the offsets of group {group}", was_there=True)

    def commit_soon(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store these offsets in the background; with none it only sees to those before. Raises LogError of what did not get through."""
        settings = self._clients.settings
        try:
            self._member(group).store_soon(self._places(topic, offsets), settings.patience_ms / 1000)
        except KafkaException as problem:
            doing = f"storing the offsets of group {group}"
            raise log_error(error_of(problem), settings.place, doing, self._clients.last_seen, was_there=True) from None

    def _places(self, topic: str, offsets: Mapping[int, int]) -> list[TopicPartition]:
        name = self._clients.settings.topic(topic)
        return [TopicPartition(name, number, offset) for number, offset in offsets.items()]

    def give_up(self) -> list[Consumer]:
        """Commit no more; returns the consumers, which the caller ends."""
        members, self._members = self._members, {}
        return [member.consumer for member in members.values()]
