"""What an embedded log has lost: records that somebody was told are on disk, and that are not in it any more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from schemas.few import few, offsets
from schemas.topics import CLAIMS
from streams.log.base import LogDamaged, Position
from streams.log.sqlite_ends import Ends, ends_file, has_been_told
from streams.log.sqlite_file import BROKEN, SqliteFile, row_mark
from streams.log.sqlite_names import RESTORE

LOOKS: Final = 20
LOOK_SECONDS: Final = 0.025
"""A log is made within some milliseconds, on a busy machine within some ten."""


def refuse_emptied(path: Path) -> None:
    """Raises LogDamaged for a file without a byte that was a log: whoever may make a log would begin a new one in it."""
    with suppress(OSError):  # what is wrong there is told by who opens it
        if path.stat().st_size == 0 and has_been_told(ends := ends_file(path)) and _stays_empty(path):
            raise LogDamaged(
                f"{path}: the file is empty, and {ends.name} beside it says that it had acknowledged records; {RESTORE}. "
                f"To begin a new log in this place delete {ends.name}"
            )


def _stays_empty(path: Path) -> bool:
    """Whether nobody is making a log of it just now: for a moment that is a file without a byte as well."""
    for _ in range(LOOKS):
        if path.stat().st_size:
            return False
        time.sleep(LOOK_SECONDS)
    return path.stat().st_size == 0


def refuse_left_behind(path: Path) -> None:
    """Raises LogDamaged where a log was that is gone and what it was told last still stands: a new log would delete that.

    Or write into it beside those who have the old one open.
    """
    is_left, name = False, path.name
    with suppress(OSError):  # as above
        name = path.resolve().name
        # In this order: who makes a log at the same time makes its file first.
        is_left = path.resolve().with_name(f"{name}-wal").exists() and not path.exists()
    if is_left:
        raise LogDamaged(
            f"{path}: there is no such file, and {name}-wal, in which a log's newest records stand, is there: the log was moved or deleted "
            f"without it. Put the file back; or, to begin a new log in this place, end all who had the old one open and move {name}-wal, "
            f"{name}-shm and {name}-ends to where it is now, if there is any"
        )


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
        missing = {names.get(number): (there.get(number, 0), end) for number, end in told.items() if there.get(number, 0) < end}
        if missing:
            raise _lost(file, missing)


def check_end(file: SqliteFile, told: int, place: tuple[str, int], end: int) -> None:
    """Raises LogDamaged if this partition, which is found to end at `end`, ends before what was acknowledged before that look."""
    if told > end:
        raise _lost(file, {place: (end, told)})


def _lost(file: SqliteFile, missing: Mapping[tuple[str, int] | None, tuple[int, int]]) -> LogDamaged:
    """What to raise: of each partition, None for those of topics that are gone as well, where it ends, and where it ended."""
    name = file.path.name
    known = sorted((place[0] != CLAIMS, *place, *ends) for place, ends in missing.items() if place is not None)
    said = few([f"{offsets(end, told)} of {topic}/{number}" for _, topic, number, end, told in known]) or "all, with their topics"
    position = Position(*known[0][1:4]) if known else None
    return LogDamaged(
        f"{file.path}: acknowledged records are missing: {said}. {name}-wal, where what was written last stands, was damaged, cut short or "
        f"deleted, or {name}-shm was, or an older copy took this file's place, or this is a copy of files that were in use. First end all "
        f"processes that have the log open, but not by kill -9: the last one puts into it what it has. Where that does not help {RESTORE}. "
        f"To go on without these records, by which guests may be running, delete {name}-ends",
        position,
    )
