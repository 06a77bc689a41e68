"""Holes: runs of offsets without a record that are longer than what the marks of transactions take, which is one offset each.

Where everybody passes over what is no record (`streams.log.kafka_gaps`), a hole is the only sign of records that a compaction or a disk
lost in the middle of a partition. A few lost records look like the marks of transactions that ended one after the other, and are not told.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from streams.log.base import Record, is_stand_in

MARK_OFFSETS: Final = 8
"""What transactions leave in a partition beside their records, those of aborted ones too (all of them are read): one mark each, and so many
side by side where as many producers' transactions overlapped."""
CAUSE: Final = f"a compaction or a disk lost them, unless more than {MARK_OFFSETS} producers' transactions ended there at once"


class Hole(NamedTuple):
    """So many offsets of a partition, from `first` on, have no record."""

    topic: str
    partition: int
    first: int
    offsets: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: the offsets from {self.first} to {self.first + self.offsets - 1} have no record"


class Holes:
    """Looks for holes in one partition, which comes in order and in pieces of any length."""

    def __init__(self) -> None:
        self._run: Hole | None = None

    def ended(self, records: Iterable[Record]) -> Iterator[Hole]:
        """The holes that end in this piece: a record stands behind them."""
        for record in records:
            if is_stand_in(record):
                run = self._run or Hole(record.topic, record.partition, record.offset, 0)
                self._run = run._replace(offsets=run.offsets + 1)
            elif self._run is not None:
                yield from self.open()
                self._run = None

    def open(self) -> Iterator[Hole]:
        """The hole that nothing stands behind yet, if there is one."""
        if self._run is not None and self._run.offsets > MARK_OFFSETS:
            yield self._run


def told(holes: Sequence[Hole]) -> str:
    """The first of them in words, and how many more there are."""
    more = f", nor have {sum(hole.offsets for hole in holes[1:])} others, the last of them in {holes[-1].topic}/{holes[-1].partition}"
    return f"{holes[0]}" + (more if len(holes) > 1 else "")


def holes_in(records: Iterable[Record]) -> list[Hole]:
    """The holes in records of one partition that come in order."""
    looked = Holes()
    return [*looked.ended(records), *looked.open()]
