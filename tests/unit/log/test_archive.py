"""Archive and log together are the log as it was."""

import random
import resource
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
from msgspec import structs

from streams.cli.doctor.cluster import of_brokers
from streams.log import archive as archive_module
from streams.log import archive_file
from streams.log.archive import ArchiveBusy, ArchivedLog, ArchiveGap, SnapshotMissing, archive
from streams.log.base import Log, LogDamaged, LogError, Message, OffsetOutOfRange, Partition, Record, TopicSpec, present_of
from streams.log.kafka_health import Cluster
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


@pytest.mark.parametrize("records_max", [1, 7, 10_000])
def test_files_of_many_blocks_and_batches_give_the_same_records_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_max: int
) -> None:
    monkeypatch.setattr(archive_module, "_READ_RECORDS", 50)
    monkeypatch.setattr(archive_file, "BLOCK_RECORDS_MAX", 8)
    ticks = Ticks()
    log = MemoryLog([TopicSpec("claims", 1)], clock=ticks)
    for at in range(200):
        log.append([Message("claims", b"k", b"%d" % at)])
    before, times = everything(log, CLAIMS_0), range(990, ticks.now_ms + 20, 5)
    found = [log.at_time(*CLAIMS_0, time_ms) for time_ms in times]

    archive(log, tmp_path, {CLAIMS_0: 170}, verified=anywhere)

    with ArchivedLog(log, tmp_path) as whole:
        assert [whole.at_time(*CLAIMS_0, time_ms) for time_ms in times] == found
        assert everything(whole, CLAIMS_0, records_max) == before


class Ahead(MemoryLog):
    """The clock of whoever appended was ahead for a moment: as on Kafka, times of records fall."""

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        found = super().read(topic, partition, offset, records_max, bytes_max)
        return [structs.replace(each, time_ms=each.time_ms + 1_500 * (70 <= each.offset < 83)) for each in found]


def test_after_times_that_were_ahead_for_a_moment_those_of_the_archive_are_found_as_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_file, "BLOCK_RECORDS_MAX", 8)
    log = Ahead([TopicSpec("claims", 1)], clock=Ticks())
    for at in range(300):
        log.append([Message("claims", b"k", b"%d" % at)])
    before = everything(log, CLAIMS_0)
    times = range(990, before[69].time_ms + 2_000, 5)
    found = [next((each.offset for each in before if each.time_ms >= time_ms), 300) for time_ms in times]

    archive(log, tmp_path, {CLAIMS_0: 270}, verified=anywhere)

    with ArchivedLog(log, tmp_path) as whole:
        assert [whole.at_time(*CLAIMS_0, time_ms) for time_ms in times if time_ms <= before[82].time_ms] == [
            offset for offset, time_ms in zip(found, times, strict=True) if time_ms <= before[82].time_ms
        ]


def test_a_file_of_the_archive_that_may_not_be_read_is_said_with_what_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog([TopicSpec("claims", 1)])
    log.append([Message("claims", b"k", b"v")] * 9)
    archive(log, tmp_path, {CLAIMS_0: 5}, verified=anywhere)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with (
        ArchivedLog(log, tmp_path) as whole,
        pytest.raises(LogError, match=r"\.archive: Permission denied; expected a file of"),
    ):
        whole.read(*CLAIMS_0, 2)


def test_what_one_kind_of_log_alone_can_do_is_asked_of_the_log_that_history_stands_before(tmp_path: Path) -> None:
    class Clustered(MemoryLog):
        def cluster(self) -> Cluster:
            return Cluster(brokers=1, partitions=1, leaderless=(CLAIMS_0,), thin=())

        def members(self, groups: object) -> object:
            return groups

    with ArchivedLog(Clustered([TopicSpec("claims", 1)]), tmp_path) as whole:
        (check,) = of_brokers(whole)

        assert present_of(whole) is present_of(present_of(whole)) is whole.present
        assert (check.status, check.check) == ("fail", "brokers")


def test_above_the_end_of_the_log_nothing_at_all_is_moved(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 100)
    end = log.end(*CLAIMS_0)

    with pytest.raises(OffsetOutOfRange, match=rf"claims/0@{end + 1}: the log ends at {end}"):
        archive(log, tmp_path, {CLAIMS_1: 5, CLAIMS_0: end + 1}, verified=anywhere)

    assert log.start(*CLAIMS_1) == 0
    assert [*tmp_path.iterdir()] == []


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


def test_what_another_ledger_s_archive_says_alike_does_not_leave_the_log(tmp_path: Path) -> None:
    """Nothing would be read of it: the file is the other ledger's."""
    log, other = (MemoryLog(ledger_id=ledger_id, clock=lambda: 5) for ledger_id in "ab")
    for each in (log, other):
        filled(each, 50)
    archive(log, tmp_path, {CLAIMS_0: 10}, verified=anywhere)

    with pytest.raises(LogDamaged, match="ledger a, not claims/0 of b"):
        archive(other, tmp_path, {CLAIMS_0: 10}, verified=anywhere)

    assert other.start(*CLAIMS_0) == 0


@pytest.mark.parametrize(("archives_less", "before", "named"), [(True, 4, 1), (True, 2, 1), (False, 4, 2)])
def test_what_an_archive_lacks_or_has_more_than_the_log_does_not_leave_the_log(
    tmp_path: Path, archives_less: bool, before: int, named: int
) -> None:
    """The one was compacted, and the other not, as it was restored from an older copy."""
    whole, compacted = (MemoryLog([TopicSpec("rows", 1, compacted=True)], clock=lambda: 5) for _ in range(2))
    for each in (whole, compacted):
        each.append([Message("rows", key, b"v") for key in (b"a", b"b", b"c", b"b")])
    compacted.compact("rows", 0)
    first, second = (compacted, whole) if archives_less else (whole, compacted)
    archive(first, tmp_path, {Partition("rows", 0): 4}, verified=anywhere)

    with pytest.raises(LogDamaged, match=f"does not hold what the log has at rows/0@{named}: "):
        archive(second, tmp_path, {Partition("rows", 0): before}, verified=anywhere)

    assert second.start("rows", 0) == 0


def test_what_is_archived_between_two_looks_of_a_reader_is_read_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(clock=Ticks())
    filled(log, 200)
    before, read = everything(log, CLAIMS_0), log.read

    def after_another(topic: str, partition: int, offset: int, *most: int) -> list[Record]:
        monkeypatch.setattr(log, "read", read)
        archive(log, tmp_path, {CLAIMS_0: 50}, verified=anywhere)
        return read(topic, partition, offset, *most)

    monkeypatch.setattr(log, "read", after_another)
    with ArchivedLog(log, tmp_path) as whole:
        assert whole.read(*CLAIMS_0, 30, 5) == before[30:35]


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


def test_what_is_before_a_damaged_block_is_served_and_the_block_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_file, "BLOCK_RECORDS_MAX", 8)
    log = MemoryLog()
    filled(log, 200)
    before = everything(log, CLAIMS_0)
    archive(log, tmp_path, {CLAIMS_0: 50}, verified=anywhere)
    (path,) = (tmp_path / "claims" / "0").iterdir()
    with archive_file.ArchiveFile(path) as file:
        bad = next(frame for frame in file.frames() if frame.first >= 24)
    data = bytearray(path.read_bytes())
    data[bad.place + bad.length // 2] ^= 1
    path.write_bytes(data)

    with ArchivedLog(log, tmp_path) as whole:
        served = whole.read(*CLAIMS_0, 3)
        with pytest.raises(LogDamaged, match=f"claims/0@{bad.first}: .*Restore the file from a copy"):
            whole.read(*CLAIMS_0, bad.first)

    assert served == before[3 : bad.first]


def test_an_archive_of_another_ledger_is_refused(tmp_path: Path) -> None:
    log, other = MemoryLog(ledger_id="a"), MemoryLog(ledger_id="b")
    for each in (log, other):
        filled(each, 50)
    archive(log, tmp_path, {CLAIMS_0: 10}, verified=anywhere)
    other.truncate(*CLAIMS_0, 10)

    with ArchivedLog(other, tmp_path) as whole, pytest.raises(LogDamaged, match="ledger a, not claims/0 of b"):
        whole.read(*CLAIMS_0, 0)


def test_a_file_under_another_ones_name_is_refused_and_so_is_what_is_no_file(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 500)
    archive(log, tmp_path, {CLAIMS_0: 100}, verified=anywhere)
    archive(log, tmp_path, {CLAIMS_0: 150}, verified=anywhere)
    first, second = sorted((tmp_path / "claims" / "0").iterdir())

    second.write_bytes(first.read_bytes())
    with ArchivedLog(log, tmp_path) as whole, pytest.raises(LogDamaged, match="holds offsets 0 to 100, not what its name says"):
        whole.start(*CLAIMS_0)
    second.unlink()
    second.mkdir()
    with ArchivedLog(log, tmp_path) as whole, pytest.raises(LogDamaged, match=r"Is a directory, where a file of the archive is expected"):
        whole.start(*CLAIMS_0)
    second.rmdir()
    second.symlink_to(tmp_path / "nowhere")
    with ArchivedLog(log, tmp_path) as whole, pytest.raises(LogDamaged, match=r"No such file .*, where a file of the archive is expected"):
        whole.start(*CLAIMS_0)


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path: Path) -> None:
    log = MemoryLog()
    filled(log, 500)
    archive(log, tmp_path, {CLAIMS_0: 100}, verified=anywhere)
    folder = tmp_path / "claims" / "0"
    rmtree(folder)
    folder.write_bytes(b"")  # As one without rights, which root has all the same.

    with ArchivedLog(log, tmp_path) as whole, pytest.raises(LogError, match="Not a directory; expected a folder that can be read"):
        whole.start(*CLAIMS_0)


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


def test_a_folder_that_lacks_what_left_before_is_refused(tmp_path: Path) -> None:
    """Two folders with a part each would be no archive, and both commands would have ended well."""
    log = MemoryLog(clock=Ticks())
    filled(log, 400)
    both = (CLAIMS_0, CLAIMS_1)
    archive(log, tmp_path / "one", {CLAIMS_0: 50}, verified=anywhere, whole=both)

    with pytest.raises(ArchiveGap, match=r"claims/0: the log begins at 50, and .*two has none of it: .* the one of the first time"):
        archive(log, tmp_path / "two", {CLAIMS_1: 50}, verified=anywhere, whole=both)
    assert log.start(*CLAIMS_1) == 0, "nothing was moved"

    archive(log, tmp_path / "one", {CLAIMS_0: 60, CLAIMS_1: 50}, verified=anywhere, whole=both)
    next((tmp_path / "one" / "claims" / "0").glob("0000000000000000-*")).unlink()
    with pytest.raises(ArchiveGap, match="has only what is from 50 on"):
        archive(log, tmp_path / "one", {CLAIMS_0: 70}, verified=anywhere, whole=both)


def test_what_another_archive_takes_meanwhile_is_said(tmp_path: Path) -> None:
    log = MemoryLog(clock=Ticks())
    filled(log, 400)

    class Shared(MemoryLog):
        def __init__(self) -> None:
            self.__dict__ = log.__dict__

        def truncate(self, topic: str, partition: int, before: int) -> int:
            moved = super().truncate(topic, partition, before)
            if (topic, partition) == CLAIMS_0:
                archive(log, tmp_path / "other", {CLAIMS_1: 30}, verified=anywhere)
            return moved

    with pytest.raises(ArchiveGap, match=r"claims/1: somebody else took the records from 0 to 30 out of the log just now"):
        archive(Shared(), tmp_path / "one", {CLAIMS_0: 50, CLAIMS_1: 50}, verified=anywhere)
