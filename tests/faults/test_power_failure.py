"""The embedded log when the power fails: the disk has what was synced, and of what was written since, any sectors or none.

The disk is played: what was written is read from the files, and what is on disk is what was there at the last sync. The log's file itself
is written by folding the WAL back only, which syncs both.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.log import sqlite_wal
from streams.log.base import LogDamaged, Message, TopicSpec
from streams.log.sqlite import SqliteLog

SECTOR = 512
PARTITIONS = 2
Values = dict[int, list[bytes]]


class Disk:
    """The files of the log at `path` as a power failure would leave them."""

    def __init__(self, path: Path) -> None:
        self.path, self.wal = path, path.with_name(path.name + "-wal")
        self._file = self._synced = b""

    def sync(self) -> None:
        """The WAL as it is now is on disk."""
        self._synced = self.wal.read_bytes()

    def folded(self) -> None:
        """SQLite has synced both."""
        self._file = self.path.read_bytes()
        self.sync()

    def fail(self, copy: Path, chance: Random) -> None:
        """Write what is left to `copy`: of each sector that was written since the last sync the old content or the new."""
        copy.write_bytes(self._file)
        now, then, share = self.wal.read_bytes(), self._synced, chance.random()
        sectors = [
            (now if chance.random() < share else then.ljust(len(now), b"\0"))[at : at + SECTOR] for at in range(0, len(now), SECTOR)
        ]
        copy.with_name(copy.name + "-wal").write_bytes(b"".join(sectors)[: max(len(then), chance.randrange(len(now) + 1))])


@contextmanager
def syncing(act: Callable[[int], None]) -> Iterator[None]:
    """`act` instead of the sync of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_wal, "_to_disk", act)
        yield


def values(log: SqliteLog) -> Values:
    return {number: [record.value for record in log.read("claims", number, 0, 100_000)] for number in range(PARTITIONS)}


class Site:
    """Three processes on one log, and what each of them may rely on."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.disk = Disk(path)
        self.logs = [stack.enter_context(SqliteLog.open(path, create=True)) for _ in range(3)]
        self.logs[0].create([TopicSpec("claims", PARTITIONS)])
        self.logs[0]._file.fold_wal_back(is_full=True)
        self.disk.folded()
        self.said: Values = {number: [] for number in range(PARTITIONS)}
        self.relied_on = dict.fromkeys(range(PARTITIONS), 0)
        """The end of what was acknowledged or handed out, by partition."""
        self.order: list[dict[int, int]] = [dict(self.relied_on)]
        """The ends after each append."""

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

    def read(self, who: int, number: int, *, early: bool) -> None:
        log = self.logs[who]
        if early:
            assert [record.value for record in log.read_early("claims", number, 0)] == self.said[number]
            return
        assert [record.value for record in log.read("claims", number, 0)] == self.said[number]
        self.relied_on[number] = len(self.said[number])

    def fold(self, who: int) -> None:
        self.logs[who]._file.fold_wal_back(is_full=True)
        self.disk.folded()


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=4), st.booleans()),
    st.tuples(st.just("read"), st.integers(0, 2), st.integers(0, PARTITIONS - 1), st.booleans()),
    st.tuples(st.just("fold"), st.integers(0, 2), st.none(), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(history=st.lists(steps, min_size=5, max_size=30), chance=st.randoms(use_true_random=False))
def test_nothing_that_was_acknowledged_or_read_is_lost_and_nothing_stands_without_what_was_before_it(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, object, bool]], chance: Random
) -> None:
    folder = tmp_path_factory.mktemp("power")
    with ExitStack() as stack:
        site = Site(folder / "log.db", stack)
        stack.enter_context(syncing(lambda _: site.disk.sync()))
        for what, who, which, early in history:
            if what == "append":
                assert isinstance(which, list)
                site.append(who, which, early=early)
            elif what == "read":
                assert isinstance(which, int)
                site.read(who, which, early=early)
            else:
                site.fold(who)
        site.disk.fail(folder / "copy.db", chance)

    with SqliteLog.open(folder / "copy.db") as log:
        left = values(log)
        assert log.verify() == sum(map(len, left.values()))
    ends = {number: len(there) for number, there in left.items()}
    assert left == {number: said[: ends[number]] for number, said in site.said.items()}
    assert ends in site.order, "a moment that was, with whole batches"
    assert all(ends[number] >= end for number, end in site.relied_on.items())


def test_the_played_disk_loses_what_nobody_synced(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        stack.enter_context(syncing(lambda _: None))
        site.append(0, [0, 1], early=False)
        site.disk.fail(tmp_path / "copy.db", Random(1))

    with SqliteLog.open(tmp_path / "copy.db") as log:
        assert values(log) == {0: [], 1: []}


def test_a_reader_syncs_once_for_what_is_new(tmp_path: Path) -> None:
    synced: list[int] = []
    with ExitStack() as stack:
        site = Site(tmp_path / "log.db", stack)
        stack.enter_context(syncing(synced.append))
        site.append(0, [0], early=True)
        site.read(1, 0, early=True)
        early = len(synced)
        site.read(1, 0, early=False)
        once = len(synced)
        site.read(1, 0, early=False)
        site.read(1, 1, early=False)
        again = len(synced)
        site.append(2, [0], early=True)
        site.read(1, 0, early=False)
        more = len(synced)
        site.append(0, [0], early=False)

    assert (early, once, again, more, len(synced)) == (0, 1, 1, 2, 3)


def test_a_disk_that_does_not_take_it_ends_all_that_rests_on_it_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    with ExitStack() as stack:
        one, other, _ = Site(tmp_path / "log.db", stack).logs
        with syncing(refuse):
            for act in (
                lambda: one.append([Message("claims", b"k", b"v", (), 0)]),
                lambda: other.read("claims", 0, 0),
                lambda: one.commit("group", "claims", {0: 1}),
            ):
                with pytest.raises(LogDamaged, match=r"log\.db-wal: the disk did not take .*Input/output error.*start again"):
                    act()
        for log in (one, other):  # The kernel says it once; to ask again would be told that all is well.
            with pytest.raises(LogDamaged, match="the disk did not take"):
                log.append([Message("claims", b"k", b"v", (), 0)])

    with SqliteLog.open(tmp_path / "log.db") as again:
        assert again.append([Message("claims", b"k", b"v", (), 0)])


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
