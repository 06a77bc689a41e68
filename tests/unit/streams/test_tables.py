"""Tables that cannot be used: damaged ones, those that another process keeps, and those whose loading hangs are made anew."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.rocks import RocksTable
from projections.table import TableDamaged, TableError
from schemas import topics
from streams import fold as fold_module
from streams.folder import Folder
from streams.log.base import Log, LogUnreachable
from streams.metrics import Metrics
from streams.tables import Tables, mark_overdue
from tests.unit.streams.test_folder import ALL, World, claim, folded

DEADLINE_SECONDS = 300.0
ROOT = Path(__file__).parents[3]


class Seconds:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def folder_of(world: World, seconds: Callable[[], float]) -> Folder:
    return Folder(
        world.log, world.path, "p1", Metrics("test"), world.said.append,
        clock=lambda: world.now_ms, recovery_seconds=DEADLINE_SECONDS, seconds=seconds,
    )  # fmt: skip


def kept(world: World, seconds: Seconds, claims: int = 3) -> None:
    """A table with a node and claims, left in order."""
    world.append(world.audit(1), *(claim(number) for number in range(claims)))
    first = folder_of(world, seconds)
    first.turn(ALL)
    first.close()


def discarded(folder: Folder) -> float:
    return folder.metrics.registry.get_sample_value("claimlog_states_discarded_total") or 0.0


def stands_as_the_log_says(folder: Folder, world: World) -> bool:
    ledger, expected = folder.folds[0].ledger, folded(world)
    return (ledger.digest, ledger.nodes, ledger.next_offset) == (expected.digest, expected.nodes, folder.folds[0].table.next_offset)


@pytest.mark.parametrize(("pattern", "left_bytes"), [("*.sst", 40), ("*.sst", 0), ("CURRENT", 0), ("MANIFEST-*", 10)])
def test_a_damaged_table_is_made_anew_from_the_log_and_says_so(world: World, pattern: str, left_bytes: int) -> None:
    kept(world, Seconds())
    files = list((world.path / "claims-0").glob(pattern))
    for file in files:
        file.write_bytes(file.read_bytes()[:left_bytes])

    again = folder_of(world, Seconds())
    again.turn(ALL)

    assert files != []
    assert any("claims-0: discarded, and made anew from the newest snapshot or the log" in said for said in world.said)
    assert discarded(again) == 1
    assert stands_as_the_log_says(again, world)
    again.close()


def test_a_table_with_damaged_rows_that_cannot_be_closed_either_is_made_anew(world: World) -> None:
    first = folder_of(world, Seconds())
    world.append(world.audit(1))
    for number in range(3):
        # Three files of sorted rows and records not yet in one: RocksDB makes a fourth of those as soon as it is opened, begins to merge
        # all of them, and meets the damage.
        world.append(claim(number))
        first.turn(ALL)
        first.folds[0].table._table._open_db().flush()  # type: ignore[attr-defined]  # the table is one of RocksDB
    world.append(claim(9))
    first.turn(ALL)
    table = world.path / "claims-0"
    shutil.copytree(table, world.path / "killed")
    first.close()
    shutil.rmtree(table)
    (world.path / "killed").rename(table)
    for file in table.glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[10] ^= 0xFF
        file.write_bytes(data)

    again = folder_of(world, Seconds())
    again.turn(ALL)

    assert (discarded(again), stands_as_the_log_says(again, world)) == (1, True)
    again.close()


def test_a_table_that_turns_out_to_be_damaged_while_its_rows_are_loaded_is_made_anew_in_the_same_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(world, Seconds())
    load, damage = LedgerTable.load, [TableDamaged("a block was sound a moment ago")]

    def loaded(table: LedgerTable, tell: Callable[[str], None]) -> Ledger | None:
        if damage:
            raise damage.pop()
        return load(table, tell)

    monkeypatch.setattr(LedgerTable, "load", loaded)
    again = folder_of(world, Seconds())
    again.turn(ALL)

    assert damage == []
    assert (discarded(again), stands_as_the_log_says(again, world)) == (1, True)
    again.close()


# RocksDB 9.8 reads this behind the end of its list of files for ever, and no other thread of Python runs meanwhile.
ENDLESS = b"\xff" * 6 + b"\x0b" + bytes(8)

OPENING = """
import sys
from pathlib import Path
from streams.tables import Tables
Tables(Path(sys.argv[1]), print, deadline_seconds=1.0).opened(0)
"""


def test_a_table_that_hangs_while_it_is_opened_ends_the_process_and_is_made_anew_by_the_third_start(world: World) -> None:
    kept(world, Seconds())
    files = next(iter((world.path / "claims-0").glob("MANIFEST-*")))
    files.write_bytes(files.read_bytes() + ENDLESS)

    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", OPENING, str(world.path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, "Timeout (0:00:01)!" in ran.stderr) == (1, True)

    again = folder_of(world, Seconds())
    again.turn(ALL)
    assert world.said[-1].endswith(": the last 2 starts ended while they loaded it")
    assert (discarded(again), stands_as_the_log_says(again, world)) == (1, True)
    again.close()
    assert [path.name for path in world.path.iterdir()] == ["claims-0"]


def test_a_table_is_not_discarded_under_a_process_that_has_it(world: World) -> None:
    kept(world, Seconds())
    context = multiprocessing.get_context("spawn")
    holds = context.Event()
    holder = context.Process(target=hold, args=(world.path / "claims-0", holds), daemon=True)
    holder.start()
    assert holds.wait(60)
    for marker, text in (("claims-0.loading", "2"), ("claims-0.overdue", "")):
        (world.path / marker).write_text(text)
    folder = folder_of(world, Seconds())

    waited = folder.turn(ALL)

    assert (waited, discarded(folder), folder.folds) == (1, 0, {})
    assert (world.path / "claims-0" / "CURRENT").exists()
    folder.close()
    holder.kill()
    holder.join()


def test_a_table_that_cannot_be_opened_just_now_is_kept_however_often_that_is_tried(world: World) -> None:
    kept(world, Seconds())
    table = world.path / "claims-0"
    table.rename(world.path / "away")
    table.write_text("in the way")
    for _ in range(4):
        with pytest.raises(TableError, match="cannot be made"):
            folder_of(world, Seconds()).turn(ALL)
    table.unlink()
    (world.path / "away").rename(table)

    again = folder_of(world, Seconds())
    again.turn(ALL)

    assert (discarded(again), stands_as_the_log_says(again, world)) == (0, True)
    again.close()


def test_a_table_whose_views_cannot_be_read_is_folded_anew(world: World) -> None:
    kept(world, Seconds())
    with RocksTable.open(world.path / "claims-0") as table:
        table.write({b"xnn1": b"\xc1"}, next_offset=table.next_offset)

    again = folder_of(world, Seconds())
    again.turn(ALL)

    assert any("the state in the table is discarded: its views and findings cannot be read" in said for said in world.said)
    assert (discarded(again), stands_as_the_log_says(again, world)) == (1, True)
    again.close()


class AwayLog:
    """A log that does not say where it ends, as one whose brokers are away."""

    def __init__(self, log: Log) -> None:
        self._log, self.is_away = log, True

    def __getattr__(self, name: str) -> Any:
        if name == "topics" and self.is_away:
            raise LogUnreachable("no broker answers")
        return getattr(self._log, name)


def test_a_table_is_kept_however_often_the_log_is_away_while_it_is_loaded(world: World) -> None:
    kept(world, Seconds())
    log: Any = AwayLog(world.log)
    folder = Folder(log, world.path, "p1", Metrics("test"), world.said.append, clock=lambda: world.now_ms, seconds=Seconds())
    for _ in range(4):
        with pytest.raises(LogUnreachable):
            folder.turn(ALL)

    log.is_away = False
    folder.turn(ALL)

    assert (discarded(folder), stands_as_the_log_says(folder, world)) == (0, True)
    folder.close()


def hold(path: Path, holds: Event) -> None:
    """In another process: keep a table open and hang."""
    with RocksTable.open(path):
        holds.set()
        signal.pause()


def test_a_table_that_another_process_keeps_beyond_the_deadline_is_left_to_it(world: World) -> None:
    seconds = Seconds()
    kept(world, seconds)
    context = multiprocessing.get_context("spawn")
    holds = context.Event()
    holder = context.Process(target=hold, args=(world.path / "claims-0", holds), daemon=True)
    holder.start()
    assert holds.wait(60)
    folder = folder_of(world, seconds)

    waited = folder.turn(ALL)
    seconds.now += DEADLINE_SECONDS + 1
    folder.turn(ALL)

    assert (waited, stands_as_the_log_says(folder, world), discarded(folder)) == (1, True, 1)
    assert "waited 300 s for this table; begun anew in claims-0+1 from the newest snapshot or the log" in world.said[-1]
    folder.close()
    holder.kill()
    holder.join()
    again = folder_of(world, seconds)
    again.turn(ALL)
    assert stands_as_the_log_says(again, world)
    assert sorted(path.name for path in world.path.iterdir() if path.is_dir()) == ["claims-0+1"]
    again.close()


def test_a_table_whose_loading_hung_is_made_anew_by_the_next_start(world: World) -> None:
    kept(world, Seconds())
    tables = Tables(world.path, world.said.append)
    hanging = tables.opened(0)

    marked = mark_overdue(world.path, 0)

    assert hanging is not None
    hanging.close()
    again = folder_of(world, Seconds())
    again.turn(ALL)
    assert (marked, discarded(again), stands_as_the_log_says(again, world)) == (["claims-0"], 1, True)
    assert "loading it took longer than 300 s the last time" in world.said[-1]
    again.close()
    assert mark_overdue(world.path, 0) == []
    assert [path.name for path in world.path.iterdir()] == ["claims-0"]


def test_what_an_earlier_start_left_half_loaded_is_not_marked_with_the_table_that_hangs(world: World) -> None:
    for partition in (0, 2, 1):
        tables = Tables(world.path, world.said.append)
        table = tables.opened(partition)
        assert table is not None
        table.close()

    os.utime(world.path / "claims-2.loading")  # As of a clock that was set back since.
    marked = mark_overdue(world.path, 1)

    files = sorted(path.name for path in world.path.iterdir() if path.is_file())
    assert (marked, files) == (["claims-1"], ["claims-0.loading", "claims-1.overdue", "claims-2.loading"])


def test_a_table_far_behind_a_snapshot_is_begun_at_the_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "AHEAD_RECORDS", 5)
    kept(world, Seconds())
    publish_far_ahead(world)
    verdicts = world.log.end(topics.VERDICTS, 0)

    again = folder_of(world, Seconds())
    again.turn(ALL)

    assert "claims/0: the table is 20 records behind the newest snapshot; it is discarded and begun there" in world.said
    assert (world.log.end(topics.VERDICTS, 0), discarded(again), stands_as_the_log_says(again, world)) == (verdicts, 1, True)
    again.close()


def publish_far_ahead(world: World) -> None:
    """Another process, with a directory of its own, folds 20 more records and writes a snapshot."""
    own, world.path = world.path, world.path.with_name("other")
    world.append(*(claim(number) for number in range(100, 120)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams.folder.SNAPSHOT_EVERY", 10)
        other = folder_of(world, Seconds())
        while other.turn(ALL):
            pass
        other.close()
    world.path = own


def test_a_fold_that_does_not_catch_up_by_the_deadline_begins_at_a_newer_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "AHEAD_RECORDS", 8)
    monkeypatch.setattr("streams.folder.AHEAD_RECORDS", 8)
    for name, records in (("BATCH_RECORDS", 2), ("BACKLOG_RECORDS", 2), ("KEPT_RECORDS", 4)):
        monkeypatch.setattr(f"streams.folder.{name}", records)
    world.append(world.audit(1), *(claim(number) for number in range(30)))
    seconds = Seconds()
    slow = folder_of(world, seconds)
    slow.turn(ALL)
    publish_far_ahead(world)
    seconds.now += DEADLINE_SECONDS + 1

    slow.turn(ALL)
    shown = slow.metrics.rows.copy(), slow.metrics.times_ms.copy()
    slow.turn(ALL)

    assert shown == ({}, {})
    assert any("records are left after 300 s, and a snapshot is far ahead" in said for said in world.said)
    assert discarded(slow) == 1
    while slow.turn(ALL):
        pass
    assert stands_as_the_log_says(slow, world)
    slow.close()


def test_a_fold_without_a_better_start_goes_on_and_says_so_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, records in (("BATCH_RECORDS", 2), ("BACKLOG_RECORDS", 2)):
        monkeypatch.setattr(f"streams.folder.{name}", records)
    world.append(world.audit(1), *(claim(number) for number in range(30)))
    seconds = Seconds()
    slow = folder_of(world, seconds)
    slow.turn(ALL)
    seconds.now += DEADLINE_SECONDS + 1

    while slow.turn(ALL):
        pass

    assert [said for said in world.said if "folding on" in said] == [
        "claims/0: 28 records are left after 300 s, and no snapshot is far ahead: folding on"
    ]
    assert (discarded(slow), stands_as_the_log_says(slow, world)) == (0, True)
    slow.close()
