"""What an embedded log has lost: records that somebody was told are on disk, and that are not in it any more."""

from __future__ import annotations

from contextlib import suppress

from schemas.few import few
from streams.log.base import LogDamaged, Position
from streams.log.sqlite_ends import Ends
from streams.log.sqlite_file import BROKEN, SqliteFile, row_mark
from streams.log.sqlite_names import RESTORE


def check_ends(file: SqliteFile, ends: Ends) -> None:
    """Raises LogDamaged if a partition ends before what was acknowledged. Rows that do not hold are for others to find."""
    told = ends.all()  # before the look into the log, so that what is told meanwhile is there
    if not told:
        return
    with suppress(*BROKEN), file.reading():
        topics = file.rows("SELECT id, name, partitions, compacted, mark FROM topics")
        rows = file.rows("SELECT id, start, end, time_ms, mark FROM partitions")
        if any(row[4] != row_mark(*row[:4]) for row in [*topics, *rows]):
            return
        names = {first + number: (name, number) for first, name, partitions, *_ in topics for number in range(partitions)}
        if {row[0] for row in rows} != names.keys():
            return
        there = {row[0]: row[2] for row in rows}
        missing = [
            (*names.get(number, ("a topic that is not there", number)), there.get(number, 0), end)
            for number, end in sorted(told.items())
            if there.get(number, 0) < end
        ]
        if missing:
            raise lost(file, missing)


def check_end(file: SqliteFile, ends: Ends, topic: str, number: int, partition_id: int, end: int) -> None:
    """Raises LogDamaged if this partition, which is found to end at `end`, ends before what was acknowledged."""
    told = ends.end(partition_id)
    if told > end:
        raise lost(file, [(topic, number, end, told)])


def lost(file: SqliteFile, missing: list[tuple[str, int, int, int]]) -> LogDamaged:
    """What to raise: each is a topic and partition, where that ends, and where it ended."""
    name = file.path.name
    said = few([f"{_offsets(end, told)} of {topic}/{number}" for topic, number, end, told in missing])
    topic, number, end, _ = missing[0]
    return LogDamaged(
        f"{file.path}: acknowledged records are missing: {said}. What was written last stands in {name}-wal until it is folded back. That "
        f"was damaged, cut short or deleted, or {name}-shm, which says what stands there, was; or an older copy took its place. First "
        "end all processes that have the log open, but not by kill -9: the last one puts into it what it has. Where that does not help "
        f"{RESTORE}. To go on without these records, by which guests may be running, delete {name}-ends",
        Position(topic, number, end),
    )


def _offsets(end: int, told: int) -> str:
    return f"offset {end}" if told == end + 1 else f"offsets {end} to {told - 1}"
