"""The embedded log and its archive when the power fails: what was acknowledged or read is there, in one or in the other."""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.log.archive import ArchivedLog, archive
from streams.log.base import Log, LogDamaged, Message, Partition, TopicSpec
from streams.log.blocks import Block, BlockDamaged
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_ends import ends_file
from streams.log.sqlite_shelf import Place
from streams.snapshot_writer import write_snapshot
from tests.faults.played_disk import Disk, Folders, Killed, PlayedFiles, syncing

PARTITIONS = 2
TRUNCATED, ARCHIVED = range(PARTITIONS)
Values = dict[int, list[bytes]]


def values(log: Log) -> Values:
    there: Values = {number: [] for number in range(PARTITIONS)}
    for number, found in there.items():
        at = log.start("claims", number)
        while records := log.read("claims", number, at):
            found += [record.value for record in records]
            at = records[-1].offset + 1
    return there


class Site:
    """Three processes on one log on a played disk, and what each of them may rely on."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.disk, self.folders = Disk(path), Folders(path.with_name("archive"))
        stack.callback(PlayedFiles(self.disk).unregister)
        stack.enter_context(syncing(self._sync_wal))
        stack.enter_context(self.folders.played())
        self._stack = stack
        self.logs = [stack.enter_context(SqliteLog.open(path, create=True)) for _ in range(3)]
        self.logs[0].create([TopicSpec("claims", PARTITIONS)])
        self.said: Values = {number: [] for number in range(PARTITIONS)}
        self.starts = dict.fromkeys(range(PARTITIONS), 0)
        self.committed = 0
        self.relied_on = dict.fromkeys(range(PARTITIONS), 0)
        """The end of what was acknowledged or handed out, by partition."""
        self.order: list[dict[int, int]] = [dict(self.relied_on)]
        """The ends after each append."""

    def _sync_wal(self, fd: int) -> None:
        self.folders.step()
        self.disk.sync_wal(fd)

    def ends(self) -> dict[int, int]:
        return {number: len(said) for number, said in self.said.items()}

    def append(self, who: int, numbers: list[int], *, early: bool) -> None:
        log = self.logs[who]
        batch = [Message("claims", b"k", b"%d " % len(self.order) + bytes(37 * at), (), number) for at, number in enumerate(numbers)]
        for message, number in zip(batch, numbers, strict=True):
            self.said[number].append(message.value)
        self.order.append(self.ends())
        if early:
            log.append_early(batch)
        else:
            log.append(batch)
            self.relied_on |= self.ends()

    def read(self, who: int, number: int, how: str = "read") -> None:
        start = self.starts[number]
        found = getattr(self.logs[who], how)("claims", number, start)
        assert [record.value for record in found] == self.said[number][start:]
        if how != "read_early":
            self.relied_on[number] = len(self.said[number])

    def fold(self, who: int, how: str) -> None:
        file = self.logs[who]._file
        if how == "aside":
            file._fold_aside()
        else:
            file.fold_wal_back(how == "anew")

    def commit(self, who: int) -> None:
        self.committed += 1
        self.logs[who].commit("group", "claims", {0: self.committed})
        self.relied_on |= self.ends()

    def truncate(self, who: int) -> None:
        before = self._half(TRUNCATED)
        self.logs[who].truncate("claims", TRUNCATED, before)
        self.starts[TRUNCATED] = before
        self.relied_on |= self.ends()

    def archive(self, who: int, file_records_max: int, kill_in: int | None) -> None:
        """As `claimlog archive` does, perhaps killed on its way."""
        partition, log = Partition("claims", ARCHIVED), self.logs[who]
        self.folders.kill_in = kill_in
        with suppress(Killed):
            archive(
                log,
                self.folders.root / "of a cloud",
                {partition: self._half(ARCHIVED)},
                verified=lambda _: 1 << 40,
                file_records_max=file_records_max,
            )
            self.relied_on |= self.ends()
        self.folders.kill_in = None
        self.starts[ARCHIVED] = log.start(*partition)

    def _half(self, number: int) -> int:
        return (self.starts[number] + len(self.said[number]) + 1) // 2

    def reopen(self, who: int) -> None:
        self.logs[who].close()
        self.logs[who] = self._stack.enter_context(SqliteLog.open(self.disk.path))

    def close(self) -> None:
        """The last one folds the WAL back and deletes it."""
        for log in self.logs:
            log.close()
        for who in range(3):
            self.reopen(who)


READS = ("read_early", "read_early", "read", "read_lazily")
WHO, NUMBER = st.integers(0, 2), st.integers(0, PARTITIONS - 1)
append = st.builds(
    lambda who, numbers, early: lambda site: site.append(who, numbers, early=early),
    WHO,
    st.lists(NUMBER, min_size=1, max_size=4),
    st.booleans(),
)
steps = st.one_of(
    append,
    append,
    st.builds(lambda who, number, how: lambda site: site.read(who, number, how), WHO, NUMBER, st.sampled_from(READS)),
    st.builds(lambda who, how: lambda site: site.fold(who, how), WHO, st.sampled_from(("aside", "beside", "anew"))),
    st.builds(lambda who: lambda site: site.commit(who), WHO),
    st.builds(lambda who: lambda site: site.truncate(who), WHO),
    st.builds(
        lambda who, most, kill_in: lambda site: site.archive(who, most, kill_in),
        WHO,
        st.sampled_from((1, 2, 100)),
        st.none() | st.integers(0, 20),
    ),
    st.builds(lambda who: lambda site: site.reopen(who), WHO),
    st.just(Site.close),
)


@settings(max_examples=300, deadline=None)
@given(history=st.lists(steps, min_size=5, max_size=40), seed=st.integers(0, 2**32 - 1))
def test_nothing_that_was_acknowledged_or_read_is_lost_and_nothing_stands_without_what_was_before_it(
    tmp_path_factory: pytest.TempPathFactory, history: list[Callable[[Site], None]], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("power")
    with ExitStack() as stack:
        site = Site(folder / "log.db", stack)
        for step in history:
            step(site)
        (folder / "left").mkdir()
        left = site.disk.fail(folder / "left", Random(seed))
        archived = site.folders.fail(folder / "left", Random(seed)) / "of a cloud"

    with SqliteLog.open(left) as log:
        assert log.verify() == sum(end - log.start("claims", number) for number, end in log.ends("claims").items())
        ends = log.ends("claims")
        assert log.committed("group", "claims").get(0, 0) == site.committed
    with ArchivedLog(SqliteLog.open(left), archived) as whole:
        there = values(whole)
    starts = {TRUNCATED: site.starts[TRUNCATED], ARCHIVED: 0}
    assert there == {number: said[starts[number] : ends[number]] for number, said in site.said.items()}
    files = [path.stem.split("-") for path in archived.glob("claims/*/*.archive")]
    assert all(int(end) <= ends[ARCHIVED] for _, end in files), "nothing is archived that may be gone"
    assert ends in site.order, "a moment that was, with whole batches"
    assert all(ends[number] >= end for number, end in site.relied_on.items())


def test_the_played_disk_loses_what_nobody_synced(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        stack.enter_context(syncing(lambda _: None))
        site.append(0, [0, 1], early=False)
        (tmp_path / "left").mkdir()
        left = site.disk.fail(tmp_path / "left", Random(1))

    with pytest.raises(LogDamaged, match="acknowledged records are missing: offset 0 of claims/0, offset 0 of claims/1"):
        SqliteLog.open(left)
    ends_file(left).unlink()
    with SqliteLog.open(left) as log:
        assert values(log) == {0: [], 1: []}


@pytest.mark.parametrize("how", ["read", "read_bare", "read_lazily"])
@pytest.mark.parametrize("records_max", [1, 2, 1000])
def test_what_was_read_is_on_disk(tmp_path: Path, how: str, records_max: int) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        site.append(0, [0], early=True)
        found = [*getattr(site.logs[1], how)("claims", 0, 0, records_max)]
        assert [record.value for record in found] == site.said[0]
        for seed in range(8):
            (tmp_path / str(seed)).mkdir()
            site.disk.fail(tmp_path / str(seed), Random(seed))

    for seed in range(8):
        with SqliteLog.open(tmp_path / str(seed) / "log.db") as log:
            assert values(log) == site.said


def test_what_was_copied_is_on_disk_with_its_times(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        site.logs[0].append_at([Message("claims", b"k", b"%d" % at, (), at % 2) for at in range(5)], [1, 1, 2, 2, 3])
        for seed in range(8):
            (tmp_path / str(seed)).mkdir()
            site.disk.fail(tmp_path / str(seed), Random(seed))

    for seed in range(8):
        with SqliteLog.open(tmp_path / str(seed) / "log.db") as log:
            found = [[(record.time_ms, record.value) for record in log.read("claims", number, 0)] for number in range(PARTITIONS)]
        assert found == [[(1, b"0"), (2, b"2"), (3, b"4")], [(1, b"1"), (2, b"3")]]


def test_a_reader_syncs_once_for_what_is_new(tmp_path: Path) -> None:
    synced: list[int] = []
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        stack.enter_context(syncing(synced.append))
        site.append(0, [0], early=True)
        site.read(1, 0, "read_early")
        early = len(synced)
        site.read(1, 0)
        once = len(synced)
        site.read(1, 0)
        site.read(1, 1)
        again = len(synced)
        site.append(2, [0], early=True)
        site.read(1, 0)
        more = len(synced)
        site.append(0, [0], early=False)

    assert (early, once, again, more, len(synced)) == (0, 1, 1, 2, 3)


def refuse(_: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_disk_that_does_not_take_it_ends_all_that_rests_on_it_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    value = Message("claims", b"k", b"v", (), 0)
    with ExitStack() as stack:
        one, other, third = Site(tmp_path / "log.db", stack).logs
        with syncing(refuse):
            for act in (lambda: one.append([value]), lambda: other.read("claims", 0, 0)):
                with pytest.raises(LogDamaged, match=r"log\.db-wal: the disk did not take .*Input/output error.*start the machine again"):
                    act()
        again: tuple[Callable[[SqliteLog], object], ...] = (
            lambda log: log.append([value]),
            lambda log: log.append_early([value]),
            lambda log: log.commit("group", "claims", {0: 1}),
            lambda log: log.truncate("claims", 0, 1),
            lambda log: log.read("claims", 0, 0),
        )
        for log in (one, other):  # The kernel says it once; to ask again would be told that all is well.
            for do in again:
                with pytest.raises(LogDamaged, match="the disk did not take"):
                    do(log)

        assert (third.start("claims", 0), third.end("claims", 0)) == (0, 1), "nothing is written behind what may be gone"


def test_what_goes_wrong_while_the_wal_is_folded_back_aside_is_for_who_writes_to_tell(tmp_path: Path) -> None:
    with ExitStack() as stack:
        log, _, _ = Site(tmp_path / "log.db", stack).logs
        with syncing(refuse):
            log._file._fold_aside()
        with pytest.raises(LogDamaged, match="the disk did not take"):
            log.append([Message("claims", b"k", b"v", (), 0)])


def test_a_disk_that_does_not_take_a_snapshot_does_not_cost_the_older_ones(tmp_path: Path) -> None:
    chunk = Message("ledger-snapshots", b"k", b"v", (), 0)
    with ExitStack() as stack:
        one, other, _ = Site(tmp_path / "log.db", stack).logs
        one.create([TopicSpec("ledger-snapshots", 1)])
        one.append([chunk])

        with syncing(refuse), pytest.raises(LogDamaged, match="the disk did not take"):
            write_snapshot(one, 0, [chunk])

        assert other.start("ledger-snapshots", 0) == 0


def test_a_log_syncs_the_wal_it_writes_whatever_stands_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        wal = site.disk.wal.stat()
        site.append(0, [0], early=True)
        for file in tmp_path.glob("log.db*"):
            file.rename(tmp_path / "moved" / file.name)
        synced: list[os.stat_result] = []
        stack.enter_context(syncing(lambda fd: synced.append(os.fstat(fd))))
        site.read(1, 0)

    assert [os.path.samestat(wal, each) for each in synced] == [True]


def test_who_reads_what_has_been_there_for_long_does_not_sync_whenever_another_appends(tmp_path: Path) -> None:
    synced: list[int] = []
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        site.append(0, [0] * 20, early=True)
        site.read(1, 0)
        stack.enter_context(syncing(synced.append))
        for at in range(20):
            site.append(0, [0], early=True)
            assert site.logs[1].read("claims", 0, at, 1)[0].offset == at
            assert [record.offset for record in site.logs[1].read_lazily("claims", 0, at, 1)] == [at]

    assert synced == []


@pytest.mark.parametrize("looks_again", [False, True])
def test_a_read_gives_nothing_that_came_after_its_sync(tmp_path: Path, looks_again: bool) -> None:
    """Others append and compact between its sync and its look at the blocks, and one that is not on disk is in a block with the rest."""
    with ExitStack() as stack:
        reader, other, _ = Site(tmp_path / "log.db", stack).logs
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        other.create([TopicSpec("rows", 1, compacted=True)])
        other.append([Message("rows", b"k", b"%d" % at) for at in range(10)])
        blocks_from = reader._shelf.blocks_from

        def after_others(place: Place, *wanted: int) -> list[Block]:
            other.append_early([Message("rows", b"other", b"early")])
            with other._file.writing("compact"):
                other._shelf.compact_from(place, 0, 10, {b"k": 9})
            if looks_again:
                raise BlockDamaged("as where a block was found that others have dropped")
            return blocks_from(place, *wanted)

        patch.setattr(reader._shelf, "blocks_from", after_others)
        found = [[record.offset for record in reader.read("rows", 0, offset)] for offset in (9, 3, 10, 0)]

    assert found == [[9], [9, 10], [10, 11], [9, 10, 11, 12]]


class Failing:
    """A connection whose disk did not take what folding the WAL back wrote."""

    def __init__(self, extended: int) -> None:
        self._extended = extended

    def wal_checkpoint(self, *, mode: int) -> None:
        problem = apsw.IOError(f"disk I/O error in mode {mode}")
        problem.extendedresult = self._extended  # type: ignore[attr-defined] # As apsw does.
        raise problem


def test_only_a_sync_that_failed_ends_a_log_when_its_wal_is_folded_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        log, _, _ = Site(tmp_path / "log.db", stack).logs
        log._file._fold(Failing(apsw.SQLITE_IOERR_WRITE), 0)  # type: ignore[arg-type]
        assert log.append([Message("claims", b"k", b"v", (), 0)])
        log._file._fold(Failing(apsw.SQLITE_IOERR_FSYNC), 0)  # type: ignore[arg-type]
        with pytest.raises(LogDamaged, match="the disk did not take"):
            log.append([Message("claims", b"k", b"v", (), 0)])
