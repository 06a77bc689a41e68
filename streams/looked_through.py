"""Up to where topics were looked through for what cannot be read, from the dead letters themselves: each names the place it came from.

For when nobody else knows it: brokers forget what a group has stored after a while, and each letter would be written once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from schemas.codec import Unreadable
from schemas.topics import DEAD_LETTERS
from streams.dead_letters import DeadLetter, hash_of, read_letter
from streams.log.base import Log, Partition
from streams.log.reading import topic_records

LOOK_BACK_RECORDS: Final = 100_000
"""So far back is looked; what has its letter before that gets another, and people see the same letter twice."""


def newest_letters(log: Log) -> dict[Partition, DeadLetter]:
    """The newest letter of each partition that has one."""
    found: dict[Partition, DeadLetter] = {}
    for letter in _letters(log):
        place = Partition(letter.topic, letter.partition)
        if place not in found or letter.offset > found[place].offset:
            found[place] = letter
    return found


def letters_of(log: Log, topic: str) -> dict[int, dict[int, str]]:
    """What of a topic has a letter: by partition the offsets, each with the hash that tells its record from one of a topic made anew."""
    found: dict[int, dict[int, str]] = {}
    for letter in _letters(log):
        if letter.topic == topic:
            found.setdefault(letter.partition, {})[letter.offset] = letter.hash
    return found


def _letters(log: Log) -> Iterator[DeadLetter]:
    for record in topic_records(log, DEAD_LETTERS, LOOK_BACK_RECORDS):
        letter = read_letter(record)
        if not isinstance(letter, Unreadable):
            yield letter


class Letters:
    """How far the letters of partitions go, looked up when that is first asked."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._newest: dict[Partition, DeadLetter] | None = None

    def first_behind(self, place: Partition) -> int:
        """As `first_to_look_through`."""
        if self._newest is None:
            self._newest = newest_letters(self._log)
        return first_to_look_through(self._log, self._newest, place)

    def forget(self) -> None:
        """Look again the next time: somebody else may write letters until then."""
        self._newest = None


def first_to_look_through(log: Log, newest: Mapping[Partition, DeadLetter], place: Partition) -> int:
    """One behind the record of the newest letter; 0 without one, and where another record stands there: then the topic was made anew."""
    letter = newest.get(place)
    if letter is None or not log.start(*place) <= letter.offset < log.end(*place):
        return 0
    (record, *_) = log.read(*place, letter.offset, 1)
    return letter.offset + 1 if record.offset == letter.offset and hash_of(record.value) == letter.hash else 0
