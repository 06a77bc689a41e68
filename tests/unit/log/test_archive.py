"""Archive and log together are the log as it was."""

import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.log.archive import ArchiveBusy, ArchivedLog, SnapshotMissing, archive
from streams.log.base import Log, LogDamaged, LogError, Message, OffsetOutOfRange, Partition, Record, TopicSpec
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog

CLAIMS_0, CLAIMS_1 = Partition("claims", 0), Partition("claims", 1)


def everything(log: Log, partition: Partition, records_max: int = 313) -> list[Record]:
    at, end = log.start(*partition), log.end(*partition)
    records: list[Record] = []
    while at < end:
        found = log.read(*partition, at, records_max)
        assert 1 <= len(found) <= records_max
        records += found
        at = found[-1].offset + 1
    return records


def anywhere(_partition: Partition) -> int:
    return 1 << 40


def filled(log: Log, records: int = 3000) -> None:
    log.create([TopicSpec("claims", 2)])
    chance = random.Random(3)
    done = 0
    while done < records:
        size = chance.choice([1, 1, 7, 200])
        log.append([Message("claims", b"k%d" % at, b"%d " % at * chance.randrange(30), (("h", b"%d" % at),), at % 2) for at in range(size)])
        done += size


class Ticks:
    """A clock that goes on by 10 ms at each look."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        self.now_ms += 10
        return self.now_ms


@pytest.mark.parametrize("make", [lambda _path: MemoryLog(clock=Ticks()), lambda path: SqliteLog.open(path, create=True, clock=Ticks())])
def test_archive_and_log_together_give_the_same_records(tmp_path: Path, make: Callable[[Path], MemoryLog | SqliteLog]) -> None:
    log = make(tmp_path / "log.db")
    filled(log)
    before = {partition: everything(log, partition) for partition in (CLAIMS_0, CLAIMS_1)}
    times = range(900, before[CLAIMS_0][-1].time_ms + 50, 37)
    found = [log.at_time(*CLAIMS_0, time_ms) for time_ms in times]

    first = archive(log, tmp_path / "old", {CLAIMS_0: 700, CLAIMS_1: 33}, verified=anywhere)
    second = archive(log, tmp_path / "old", {CLAIMS_0: 1100}, verified=anywhere, file_records_max=150)

    with ArchivedLog(log, tmp_path / "old") as whole:
        assert first == {CLAIMS_0: 700, CLAIMS_1: 33}
        assert second == {CLAIMS_0: 400}
        assert (log.start(*CLAIMS_0), whole.start(*CLAIMS_0), whole.start(*CLAIMS_1)) == (1100, 0, 0)
        assert {partition: everything(whole, partition) for partition in before} == before
        assert everything(whole, CLAIMS_0, records_max=1) == before[CLAIMS_0]
        assert [whole.at_time(*CLAIMS_0, time_ms) for time_ms in times] == found
        assert whole.read(*CLAIMS_0, 5, bytes_max=1) == before[CLAIMS_0][5:6]
        assert whole.append([Message("claims", b"k", b"new", partition=0)]) == [len(before[CLAIMS_0])]
        with pytest.raises(OffsetOutOfRange):
            whole.read(*CLAIMS_0, whole.end(*CLAIMS_0) + 1)
        with pytest.raises(OffsetOutOfRange):
            whole.read(*CLAIMS_0, -1)


def test_history_leaves_the_log_only_below_a_verified_snapshot(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 100)

    with pytest.raises(SnapshotMissing, match=r"claims/0.*at 20, below 21"):
        archive(log, tmp_path, {CLAIMS_1: 5, CLAIMS_0: 21}, verified=lambda _partition: 20)

    assert log.start(*CLAIMS_1) == 0, "nothing at all was moved"
    assert archive(log, tmp_path, {CLAIMS_0: 20}, verified=lambda _partition: 20) == {CLAIMS_0: 20}


def test_an_interrupted_archive_goes_on_where_it_was(tmp_path: Path) -> None:
    first, log = MemoryLog(clock=lambda: 5), MemoryLog(clock=lambda: 5)
    for each in (first, log):
        filled(each, 500)
    before = everything(log, CLAIMS_0)
    archive(first, tmp_path, {CLAIMS_0: 100}, verified=anywhere)  # as if `log` had been killed before it let go of its records
    (tmp_path / "claims" / "0" / "being-written").write_bytes(b"half a file")

    with ArchivedLog(log, tmp_path) as whole:
        overlapping = everything(whole, CLAIMS_0)
    moved = archive(log, tmp_path, {CLAIMS_0: 180}, verified=anywhere)

    assert overlapping == before
    assert moved == {CLAIMS_0: 180}
    with ArchivedLog(log, tmp_path) as whole:
        assert everything(whole, CLAIMS_0) == before
    assert [path.name for path in sorted((tmp_path / "claims" / "0").iterdir())] == [
        f"{0:016d}-{100:016d}.archive",
        f"{100:016d}-{180:016d}.archive",
    ]


def test_what_a_log_that_was_restored_says_otherwise_than_its_archive_does_not_leave_it(tmp_path: Path) -> None:
    """The log went on from a copy that is older than the archive, so that other records stand at the same offsets."""
    first, restored, shorter = (MemoryLog(ledger_id="a", clock=lambda: 5) for _ in range(3))
    for log in (first, restored):
        filled(log, 500)
    filled(shorter, 100)
    here, there = len(everything(shorter, CLAIMS_0)), first.end(*CLAIMS_0)
    archive(first, tmp_path, {CLAIMS_0: there}, verified=anywhere)
    shorter.append([Message("claims", b"k", b"since then", partition=0)] * there)
    before = everything(shorter, CLAIMS_0)

    with pytest.raises(LogDamaged, match=rf"archive does not hold what the log has at claims/0@{here}.*archive into another folder"):
        archive(shorter, tmp_path, {CLAIMS_0: here + 1}, verified=anywhere)

    assert everything(shorter, CLAIMS_0) == before
    assert archive(shorter, tmp_path, {CLAIMS_0: here}, verified=anywhere) == {CLAIMS_0: here}, "what they have in common"
    assert archive(restored, tmp_path, {CLAIMS_0: there}, verified=anywhere) == {CLAIMS_0: there}


def test_a_disk_without_room_for_the_archive_is_named_and_the_log_keeps_its_records(tmp_path: Path) -> None:
    log = MemoryLog(clock=Ticks())
    filled(log)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(LogError, match=r"old/claims/0: File too large. The log keeps claims/0 from 0 on"):
            archive(log, tmp_path / "old", {CLAIMS_0: 700}, verified=anywhere)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert archive(log, tmp_path / "old", {CLAIMS_0: 700}, verified=anywhere) == {CLAIMS_0: 700}


def test_a_flipped_byte_in_the_archive_is_reported_or_harmless_and_never_served(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 4000)
    before = everything(log, CLAIMS_0)
    archive(log, tmp_path, {CLAIMS_0: len(before) - 5}, verified=anywhere)
    (path,) = (tmp_path / "claims" / "0").iterdir()
    sound = path.read_bytes()
    chance = random.Random(5)

    reported = 0
    for _ in range(150):
        damaged = bytearray(sound)
        damaged[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        served: list[Record] = []
        with ArchivedLog(log, tmp_path) as whole:
            try:
                while len(served) < len(before):
                    served += whole.read(*CLAIMS_0, len(served), 500)
            except LogDamaged:
                reported += 1
        assert served == before[: len(served)]

    assert reported >= 145, "only the few bits that fill up the last byte of a compressed block mean nothing"


def test_damage_is_named_by_position(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 4000)
    count = log.end(*CLAIMS_0)
    archive(log, tmp_path, {CLAIMS_0: count}, verified=anywhere)
    (path,) = (tmp_path / "claims" / "0").iterdir()
    path.write_bytes(path.read_bytes()[:-10])

    with ArchivedLog(log, tmp_path) as whole, pytest.raises(LogDamaged, match=r"claims/0@\d+") as raised:
        everything(whole, CLAIMS_0)

    assert raised.value.position is not None
    assert 0 < raised.value.position.offset < count


def test_an_archive_of_another_ledger_is_refused(tmp_path: Path) -> None:
    log, other = MemoryLog(ledger_id="a"), MemoryLog(ledger_id="b")
    for each in (log, other):
        filled(each, 50)
    archive(log, tmp_path, {CLAIMS_0: 10}, verified=anywhere)
    other.truncate(*CLAIMS_0, 10)

    with ArchivedLog(other, tmp_path) as whole, pytest.raises(LogDamaged, match="ledger a, not claims/0 of b"):
        whole.read(*CLAIMS_0, 0)


def test_without_an_archive_it_is_the_log(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 50)
    log.truncate(*CLAIMS_0, 5)

    with ArchivedLog(log, tmp_path / "none") as whole:
        assert whole.start(*CLAIMS_0) == 5
        assert everything(whole, CLAIMS_0) == everything(log, CLAIMS_0)
        with pytest.raises(OffsetOutOfRange):
            whole.read(*CLAIMS_0, 4)


def test_a_file_with_a_name_of_its_own_in_the_archive_is_passed_over(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 500)
    before = everything(log, CLAIMS_0)
    archive(log, tmp_path, {CLAIMS_0: 100}, verified=anywhere)
    (path,) = (tmp_path / "claims" / "0").iterdir()
    for name in ("my-own.archive", f"{path.stem} (copy).archive"):
        path.with_name(name).write_bytes(b"")

    assert archive(log, tmp_path, {CLAIMS_0: 150}, verified=anywhere) == {CLAIMS_0: 50}
    with ArchivedLog(log, tmp_path) as whole:
        assert everything(whole, CLAIMS_0) == before


def test_a_folder_that_cannot_be_one_is_named_with_what_is_expected(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path / "log.db", create=True, clock=Ticks())
    filled(log, 10)
    (tmp_path / "file").touch()

    with pytest.raises(LogError, match="file: File exists; expected a folder that can be written"):
        archive(log, tmp_path / "file", {CLAIMS_0: 1}, verified=anywhere)


def test_two_archives_into_one_folder_at_once_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path / "log.db", create=True, clock=Ticks())
    filled(log)
    before = everything(log, CLAIMS_0)
    busy: list[str] = []

    def other(_partition: Partition, _at: int, _before: int) -> None:
        with pytest.raises(ArchiveBusy) as problem:
            archive(log, tmp_path / "archive", {CLAIMS_0: 1000}, verified=anywhere)
        busy.append(str(problem.value))

    moved = archive(log, tmp_path / "archive", {CLAIMS_0: 1000}, verified=anywhere, progress=other, file_records_max=400)

    assert busy == [f"{tmp_path / 'archive'}: another process archives into it; wait until it has ended, then do it again"] * 3
    assert moved == {CLAIMS_0: 1000}
    with ArchivedLog(log, tmp_path / "archive") as whole:
        assert everything(whole, CLAIMS_0) == before
