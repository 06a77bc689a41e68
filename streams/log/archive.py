"""Moves history below a verified snapshot out of a log into files, and reads files and log as one.

Archive and log together give the same records as before, with their times, so replays give the same digests.
The files of a partition are `DIRECTORY/TOPIC/PARTITION/START-END.archive`; one appears under its name only when it is complete, synced
and read back, and only then the log lets go of what it holds.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from streams.log.alone import alone
from streams.log.archive_file import ArchiveFile, Frame, Head, write
from streams.log.base import Lease, Log, LogDamaged, LogError, Message, OffsetOutOfRange, Partition, Record, TopicSpec
from streams.log.blocks import encode_record

# One file a call for most partitions; more of them keep a read-back, and what is lost with a bad file, in bounds.
FILE_RECORDS_MAX = 1_000_000
_READ_RECORDS = 10_000
_NAME = re.compile("[0-9]+-[0-9]+")

Progress = Callable[[Partition, int, int], None]


class SnapshotMissing(LogError):  # noqa: N818 - see streams.log.base
    """History may only leave the log below a verified snapshot."""


class ArchiveBusy(LogError):  # noqa: N818 - see streams.log.base
    """Somebody else archives into the same folder right now."""


class ArchiveGap(LogError):  # noqa: N818 - see streams.log.base
    """What has left the log is not in this folder: it would not be whole."""


def archive(
    log: Log,
    directory: Path,
    below: Mapping[Partition, int],
    *,
    verified: Callable[[Partition], int],
    whole: Iterable[Partition] = (),
    progress: Progress | None = None,
    file_records_max: int = FILE_RECORDS_MAX,
) -> dict[Partition, int]:
    """Move the records below the offsets in `below` into files; returns how many left the log. Interrupted, call it again.

    `verified` gives the offset up to which a partition need not be read from the log again: that of its newest verified snapshot. `whole`
    are the partitions whose records leave the log this way only, so that the folder must hold all that has left.

    Raises SnapshotMissing if one of `below` is above that, before anything is moved; OffsetOutOfRange above the end of the log; ArchiveBusy
    while another process archives into `directory`; ArchiveGap if others have taken from the log what is not in it; LogDamaged if what was
    written reads back differently (the log then keeps everything); LogError with what the disk says.
    """
    for partition, before in below.items():
        if before > verified(partition):
            raise SnapshotMissing(f"{partition}: the newest verified snapshot is at {verified(partition)}, below {before}; make one first")
        if before > log.end(*partition):
            raise OffsetOutOfRange(f"{partition}@{before}: the log ends at {log.end(*partition)}")
    moved: dict[Partition, int] = {}
    with _alone(directory):
        for partition in whole:
            _check_whole(log, directory, partition)
        starts = {partition: log.start(*partition) for partition in below}
        for partition, before in below.items():
            if (now := log.start(*partition)) != starts[partition]:
                raise ArchiveGap(
                    f"{partition}: somebody else took the records from {starts[partition]} to {now} out of the log just now (another "
                    f"archive, or the log's own retention), so {directory} lacks them. Let one archive at a time run, into one folder"
                )
            _write_files(log, directory, partition, before, file_records_max, progress)
            moved[partition] = log.truncate(*partition, before)
    return moved


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep others from writing here: two at once would write into each other's files, and the log lets go of what they hold."""
    busy = ArchiveBusy(f"{directory}: another process archives into it; wait until it has ended, then do it again")
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(directory, busy))
        except OSError as problem:
            raise LogError(f"{directory}: {problem.strerror or problem}; expected a folder that can be written, or a new name") from problem
        yield


def _check_whole(log: Log, directory: Path, partition: Partition) -> None:
    """Raises ArchiveGap unless the folder holds all that has left the log."""
    start = log.start(*partition)
    held = _leading_to(directory, partition, start)
    begins = _range(held[0])[0] if held else start
    if begins > 0:
        there = f"has only what is from {begins} on" if held else "has none of it"
        raise ArchiveGap(
            f"{partition}: the log begins at {start}, and {directory} {there}: what was before went elsewhere. Archive into the folder "
            "that has it, the one of the first time"
        )


def _write_files(log: Log, directory: Path, partition: Partition, before: int, records_max: int, progress: Progress | None) -> None:
    folder = _folder(directory, partition)
    folder.mkdir(parents=True, exist_ok=True)
    at = log.start(*partition)
    try:
        for path in _files(folder):  # of an earlier call that was interrupted before the log let go
            start, end = _range(path)
            if start <= at < min(end, before):
                _check_same(log, path, partition, at, min(end, before))
                _sync(path)
                at = end
        while at < before:
            end = min(before, at + records_max)
            _write_file(folder, Head(log.ledger_id, partition.topic, partition.number, at, end), _batches(log, partition, at, end))
            at = end
            if progress is not None:
                progress(partition, at, before)
        _sync_names(folder)
    except OSError as problem:
        raise LogError(
            f"{folder}: {problem.strerror or problem}. The log keeps {partition} from {log.start(*partition)} on; mend that, then do it "
            "again"
        ) from problem


def _write_file(folder: Path, head: Head, records: Iterator[list[Record]]) -> None:
    """Write one file, read it back, and give it its name. Raises OSError, and LogDamaged if it reads back differently."""
    partial = folder / "being-written"
    digest = write(partial, head, records)
    with ArchiveFile(partial) as file:
        if file.digest() != digest:
            raise LogDamaged(f"{partial}: what was written reads back differently; the log keeps its records. Check the disk")
    partial.rename(folder / f"{head.start:016d}-{head.end:016d}.archive")


def _batches(log: Log, partition: Partition, at: int, end: int) -> Iterator[list[Record]]:
    """The records from `at` to `end`, in lists that are not empty."""
    while at < end:
        records = [record for record in log.read(*partition, at, _READ_RECORDS) if record.offset < end]
        if not records:
            raise OffsetOutOfRange(f"{partition}@{end - 1} was compacted away; an archive ends with a record: choose the offset after one")
        at = records[-1].offset + 1
        yield records


def _check_same(log: Log, path: Path, partition: Partition, at: int, end: int) -> None:
    """Raises LogDamaged if a file does not hold what the log has from `at` to `end`, as where the log was restored from an older copy."""
    with ArchiveFile(path) as file:
        _check_owner(file, log.ledger_id, partition)
        archived = (record for frame in file.frames() if frame.end > at for record in file.records(frame) if at <= record.offset < end)
        for record, held in zip_longest(chain.from_iterable(_batches(log, partition, at, end)), archived):
            if encode_record(record) != encode_record(held):
                raise LogDamaged(
                    f"{path} does not hold what the log has at {(record or held).position}: the log was restored from an older copy and "
                    "went on. Nothing leaves it; archive into another folder"
                )


def _check_owner(file: ArchiveFile, ledger_id: str, partition: Partition) -> None:
    head = file.head
    if (head.ledger_id, head.topic, head.partition) != (ledger_id, *partition):
        raise LogDamaged(
            f"{file.path} holds {head.topic}/{head.partition} of ledger {head.ledger_id}, not {partition} of {ledger_id}; "
            "it belongs to another log. Restore the file from a copy"
        )
    if (head.start, head.end) != _range(file.path):
        raise LogDamaged(f"{file.path} holds offsets {head.start} to {head.end}, not what its name says. Restore the file from a copy")


def _folder(directory: Path, partition: Partition) -> Path:
    return directory / quote(partition.topic, safe="") / str(partition.number)


def _files(folder: Path) -> list[Path]:
    """Those with a name that an archive gives; others, such as copies that somebody made beside them, are nothing of ours.

    Raises LogError for a folder that cannot be listed: it is no empty one.
    """
    try:
        there = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise LogError(f"{folder}: {problem.strerror}; expected a folder that can be read") from problem
    return [path for path in there if path.suffix == ".archive" and _NAME.fullmatch(path.stem)]


def _leading_to(directory: Path, partition: Partition, start: int) -> list[Path]:
    """The partition's files that lead without a gap up to `start`, oldest first."""
    found: list[Path] = []
    for path in reversed(_files(_folder(directory, partition))):
        first, end = _range(path)
        if first < start <= end:
            found.append(path)
            start = first
    return found[::-1]


def _range(path: Path) -> tuple[int, int]:
    start, _, end = path.stem.partition("-")
    return int(start), int(end)


def _sync_names(folder: Path) -> None:
    """Have a folder on disk with the names of its files, and those that lead to it, of which an earlier call may have made some."""
    _sync(folder)
    for above in folder.resolve().parents:
        with suppress(PermissionError):  # not one that was made here
            _sync(above)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_AS_THE_LOGS = frozenset({"path", "settings", "may_write", "begin", "verify"})


class ArchivedLog:
    """A log whose archived history can be read: `start` is where the archive starts. What the contract has besides goes to the log itself.

    What a kind of log alone can do is asked of `present`.
    """

    def __init__(self, log: Log, directory: Path) -> None:
        self._log, self.history, self.present = log, directory, log
        self._opened: dict[Path, ArchiveFile] = {}

    @property
    def ledger_id(self) -> str:
        """As the log's: no archive of another ledger is read with it."""
        return self._log.ledger_id

    def __getattr__(self, name: str) -> Any:
        """What some logs do and others do not, as far as history makes no difference to it."""
        if name not in _AS_THE_LOGS:
            raise AttributeError(name)
        return getattr(self._log, name)

    def verify_history(self, progress: Callable[[Partition, int, int], None] | None = None, *, without: Collection[str] = ()) -> int:
        """Read every record of the history; returns how many. Raises LogDamaged."""
        count = 0
        for topic, partitions in self.topics().items():
            for partition in [Partition(topic, number) for number in range(partitions)] if topic not in without else ():
                for file in self._chain(partition):
                    for frame in file.frames():
                        count += len(file.records(frame))
                    if progress is not None:
                        progress(partition, file.head.end, self.end(*partition))
        return count

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See the contract."""
        if offset >= self._log.start(topic, partition):
            try:
                return self._log.read(topic, partition, offset, records_max, bytes_max)
            except OffsetOutOfRange:
                if offset >= self._log.start(topic, partition):
                    raise
                # Another process archived it just now: it is in the files.
        for file in self._chain(Partition(topic, partition)):
            if offset < file.head.end:
                if offset < file.head.start:
                    break
                frames = file.frames()
                first = bisect_right(frames, offset, key=_first_of) - 1
                return self._from_files(file, frames[first:], offset, records_max, bytes_max)
        raise OffsetOutOfRange(f"{topic}/{partition}@{offset}: the archive in {self.history} starts at {self.start(topic, partition)}")

    def _from_files(self, file: ArchiveFile, frames: Sequence[Frame], offset: int, records_max: int, bytes_max: int) -> list[Record]:
        found: list[Record] = []
        size = 0
        for frame in frames:
            try:
                records = file.records(frame)
            except LogDamaged:
                if not found:
                    raise
                return found  # up to the damage; the next read names it
            for record in records:
                size += len(record.key) + len(record.value)
                if record.offset < offset:
                    size = 0
                elif len(found) >= max(records_max, 1) or (found and size > bytes_max):
                    return found
                else:
                    found.append(record)
        # A file ends with a record, so there is at least one at or above the offset.
        return found

    def start(self, topic: str, partition: int) -> int:
        """The first offset of the archive, if it reaches to the log's own start without a gap; else that of the log."""
        chain = self._chain(Partition(topic, partition))
        return chain[0].head.start if chain else self._log.start(topic, partition)

    def at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """See the contract."""
        start = self._log.start(topic, partition)
        for file in self._chain(Partition(topic, partition)):
            frames = file.frames()
            # Brokers whose clock was ahead for a moment leave later times before earlier ones.
            at = bisect_left(list(accumulate((frame.time_ms_last for frame in frames), max)), time_ms)
            if at < len(frames):
                offset = next(record.offset for record in file.records(frames[at]) if record.time_ms >= time_ms)
                if offset < start:
                    return offset
        return self._log.at_time(topic, partition, time_ms)

    def _chain(self, partition: Partition) -> list[ArchiveFile]:
        """The files that lead without a gap up to the log's own start, oldest first."""
        return [self._open(path, partition) for path in _leading_to(self.history, partition, self._log.start(*partition))]

    def _open(self, path: Path, partition: Partition) -> ArchiveFile:
        file = self._opened.get(path)
        if file is None:
            file = self._opened[path] = ArchiveFile(path)
        _check_owner(file, self._log.ledger_id, partition)
        return file

    def close(self) -> None:
        """Close the files and the log."""
        for file in self._opened.values():
            file.close()
        self._opened.clear()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """See the contract."""
        self._log.create(topics)

    def topics(self) -> Mapping[str, int]:
        """See the contract."""
        return self._log.topics()

    def partition(self, topic: str, key: bytes) -> int:
        """See the contract."""
        return self._log.partition(topic, key)

    def append(self, messages: Sequence[Message]) -> list[int]:
        """See the contract."""
        return self._log.append(messages)

    def end(self, topic: str, partition: int) -> int:
        """See the contract."""
        return self._log.end(topic, partition)

    def ends(self, topic: str) -> dict[int, int]:
        """See the contract."""
        return self._log.ends(topic)

    def wait(self, offsets: Mapping[Partition, int], timeout_seconds: float) -> bool:
        """See the contract."""
        return self._log.wait(offsets, timeout_seconds)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """See the contract."""
        return self._log.committed(group, topic)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See the contract."""
        self._log.commit(group, topic, offsets)

    def lease(self, group: str, topic: str, member: str, timeout_seconds: float = 10.0) -> Lease:
        """See the contract."""
        return self._log.lease(group, topic, member, timeout_seconds)

    def compact(self, topic: str, partition: int) -> int:
        """See the contract; the archive is left as it is."""
        return self._log.compact(topic, partition)

    def truncate(self, topic: str, partition: int, before: int) -> int:
        """Drops records of the log only; what the archive holds stays at hand."""
        return self._log.truncate(topic, partition, before)


def _first_of(frame: Frame) -> int:
    return frame.first
