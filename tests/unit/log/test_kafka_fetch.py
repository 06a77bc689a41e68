"""The fetcher alone, over a consumer that answers as it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from streams.log import kafka_fetch
from streams.log.base import Partition, Record
from streams.log.kafka_fetch import IDLE_SECONDS, REST_SECONDS, REST_UNREAD_SECONDS, Fetcher
from streams.log.kafka_settings import parse_settings
from streams.log.kafka_window import AHEAD_BYTES

PLACE = Partition("hypervisor-audits", 0)
VALUE = b"v" * 8_000
MANY = AHEAD_BYTES // len(VALUE) + 100


class Sent:
    """A message as the client has it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return PLACE.topic

    def partition(self) -> int:
        return PLACE.number

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return VALUE

    def headers(self) -> list[Any]:
        return []


class Standing:
    """A consumer whose broker stands still until `until`, and then sends more than may be held."""

    def __init__(self, now: list[float], until: float) -> None:
        self._now, self._until, self._sent = now, until, 0

    def list_topics(self, timeout: float) -> Any:
        del timeout
        return type("Found", (), {"topics": {PLACE.topic: None}})

    def incremental_assign(self, _places: Any) -> None:
        """Nothing to do."""

    incremental_unassign = incremental_assign

    def offsets_for_times(self, _places: Any, timeout: float) -> None:
        del timeout

    def consume(self, count: int, timeout: float) -> list[Sent]:
        self._now[0] += timeout
        if self._now[0] < self._until:
            return []
        first, self._sent = self._sent, min(self._sent + count, MANY)
        return [Sent(offset) for offset in range(first, self._sent)]


class Forgetful:
    """Remembers nothing."""

    def note(self, place: Partition, records: Sequence[Record], messages: Sequence[Any], *, begins: bool) -> None:
        """See the class."""


class Paused(Standing):
    """A consumer in a call of which the process is stopped for longer than that."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(now, 0.0)
        self._calls = 0

    def consume(self, count: int, timeout: float) -> list[Sent]:
        self._calls += 1
        if self._calls < 3:
            return []
        self._now[0] += 1.5 * IDLE_SECONDS * (self._calls == 3)
        return super().consume(count, timeout)


@pytest.mark.parametrize("consumer_of", [lambda now: Standing(now, IDLE_SECONDS + 5.0), Paused], ids=["its broker", "this process"])
def test_a_partition_that_somebody_waits_for_is_not_let_go_whoever_stood_still(
    monkeypatch: pytest.MonkeyPatch, consumer_of: Callable[[list[float]], Standing]
) -> None:
    now = [0.0]
    monkeypatch.setattr(kafka_fetch, "Fetched", Sent)
    monkeypatch.setattr(kafka_fetch, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    consumer: Any = consumer_of(now)
    fetcher = Fetcher(consumer, parse_settings("kafka://h:1/", {}), {PLACE: MANY}, Forgetful())
    fetcher.follow({PLACE: 0})
    fetcher.take(PLACE, 0, 1, 1)
    began = time.monotonic()

    came = fetcher.await_beyond(PLACE, 0, lambda: 60.0 - now[0] if time.monotonic() - began < 30.0 else 0.0)

    assert came
    assert [record.offset for record in fetcher.take(PLACE, 0, 2, 1 << 20)] == [0, 1]


class Assigned(Standing):
    """A consumer that says which partitions it was given, at which offsets."""

    def __init__(self) -> None:
        super().__init__([0.0], 0.0)
        self.given: dict[str, int] = {}

    def incremental_assign(self, places: Any) -> None:
        self.given |= {place.topic: place.offset for place in places}

    def incremental_unassign(self, places: Any) -> None:
        for place in places:
            del self.given[place.topic]


def test_history_that_nobody_asks_for_is_fetched_no_more_and_again_once_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(kafka_fetch, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    consumer: Any = Assigned()
    fetcher = Fetcher(consumer, parse_settings("kafka://h:1/", {}), {}, Forgetful())
    other = Partition("placement-requests", 0)
    fetcher.follow({PLACE: 7, other: 5})

    now[0] += REST_SECONDS  # Neither is forgotten before it could be asked for.
    fetcher.rest(now[0])
    assert consumer.given == {PLACE.topic: 7, other.topic: 5}

    consumer.consume = lambda _count, _timeout: []
    assert fetcher.take(other, 5, 1, 1) == []
    now[0] += 0.001
    fetcher.rest(now[0])
    assert consumer.given == {other.topic: 5}
    assert list(fetcher.windows) == [other]

    fetcher.follow({PLACE: 9})
    assert consumer.given == {PLACE.topic: 9, other.topic: 5}


def test_history_that_was_fetched_and_not_read_is_kept_longer_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(kafka_fetch, "Fetched", Sent)
    monkeypatch.setattr(kafka_fetch, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    consumer: Any = Assigned()
    fetcher = Fetcher(consumer, parse_settings("kafka://h:1/", {}), {}, Forgetful())
    fetcher.follow({PLACE: 0})
    assert len(fetcher.take(PLACE, 0, 10, AHEAD_BYTES)) == 10
    kept = fetcher.windows[PLACE]

    now[0] += REST_UNREAD_SECONDS
    fetcher.rest(now[0])
    assert fetcher.windows[PLACE] is kept

    now[0] += 0.001
    fetcher.rest(now[0])
    assert fetcher.windows == {}
