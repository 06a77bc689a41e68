"""Where the watcher goes on when nobody knows any more how far it was."""

from __future__ import annotations

from schemas.topics import DEAD_LETTERS, REQUESTS, RESULTS
from streams.engines import WATCHERS, Watcher
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from streams.log.memory import MemoryLog


class Forgetful(MemoryLog):
    """A log that can forget what groups have stored, as brokers do after a week without members."""

    has_forgotten = False

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return {} if self.has_forgotten else super().committed(group, topic)


def ledger() -> Forgetful:
    log = Forgetful(clock=lambda: 1)
    open_ledger(log, ledger_partitions=1, request_partitions=2)
    return log


def garbage(log: Forgetful, topic: str, partition: int, *values: bytes) -> None:
    log.append([Message(topic, b"k", value, (), partition) for value in values])


def letters(log: Forgetful) -> list[bytes]:
    return [record.key for record in log.read(DEAD_LETTERS, 0, 0)]


def test_what_has_its_letter_gets_no_other_when_the_stored_offsets_are_forgotten() -> None:
    log = ledger()
    garbage(log, REQUESTS, 0, b"one", b"two")
    garbage(log, RESULTS, 1, b"three")
    Watcher(log).turn(frozenset({0}))

    log.has_forgotten = True
    garbage(log, REQUESTS, 0, b"four")
    garbage(log, REQUESTS, 1, b"five")
    again = Watcher(log)
    again.turn(frozenset({0}))

    assert letters(log) == [b"placement-requests/0@0", b"placement-requests/0@1", b"placement-results/1@0", b"placement-requests/0@2",
                            b"placement-requests/1@0"]  # fmt: skip
    assert again.dead == 2
    assert super(Forgetful, log).committed(WATCHERS, REQUESTS) == {0: 3, 1: 1}


def test_a_letter_of_what_stood_there_before_the_topic_was_made_anew_says_nothing_of_what_stands_there_now() -> None:
    old, new = ledger(), ledger()
    garbage(old, REQUESTS, 0, b"one", b"two")
    Watcher(old).turn(frozenset({0}))
    garbage(new, REQUESTS, 0, b"other", b"than before", b"and more")
    new.append([Message(DEAD_LETTERS, each.key, each.value, each.headers) for each in old.read(DEAD_LETTERS, 0, 0)])

    watcher = Watcher(new)
    watcher.turn(frozenset({0}))

    assert watcher.dead == 3
