"""Consumers that do not come to an end: nobody waits for them, and a process does not gather them without limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event

import pytest

from streams.log.kafka_aside import LEFT_MAX, Aside
from streams.log.kafka_errors import LogFatal

SOON_SECONDS = 5.0


class Stuck:
    """A consumer whose `close` returns when it is let go, as that of a partition nobody answers for."""

    def __init__(self) -> None:
        self.freed, self.began, self.ended = Event(), Event(), Event()

    def close(self) -> None:
        self.began.set()
        self.freed.wait()
        self.ended.set()


class Quick(Stuck):
    """One that ends as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.freed.set()


@pytest.fixture
def stuck() -> Iterator[list[Stuck]]:
    made = [Stuck() for _ in range(LEFT_MAX)]
    yield made
    for each in made:
        each.freed.set()


def test_a_consumer_that_does_not_end_is_given_up_at_once(stuck: list[Stuck]) -> None:
    aside, one = Aside("kafka://here"), stuck[0]

    aside.give_up(one)

    assert one.began.wait(SOON_SECONDS)
    assert not one.ended.is_set()
    one.freed.set()
    assert one.ended.wait(SOON_SECONDS)


def test_any_number_that_end_may_be_given_up() -> None:
    aside = Aside("kafka://here")
    for _ in range(3 * LEFT_MAX):
        quick = Quick()
        aside.give_up(quick)
        assert quick.ended.wait(SOON_SECONDS)
        # The thread ends a moment after the consumer.
        time.sleep(0.001)


def test_too_many_that_do_not_end_are_a_reason_to_start_again(stuck: list[Stuck]) -> None:
    aside = Aside("kafka://here")
    for each in stuck:
        aside.give_up(each)

    with pytest.raises(LogFatal, match=r"kafka://here: 16 consumers were given up and do not come to an end.*start it again"):
        aside.give_up(Quick())


def test_leaving_waits_for_what_ends_and_not_for_what_does_not(stuck: list[Stuck]) -> None:
    aside, quick = Aside("kafka://here"), Quick()
    assert aside.leave([quick, Quick()], SOON_SECONDS)
    assert quick.ended.is_set()

    began = time.monotonic()
    assert not aside.leave([stuck[0], quick, stuck[1]], 0.2)

    assert 0.2 <= time.monotonic() - began < SOON_SECONDS
    assert stuck[1].began.is_set()
