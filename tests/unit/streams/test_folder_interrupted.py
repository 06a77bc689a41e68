"""A folder that is interrupted, by a log that takes nothing, by a kill, by others who take its partitions, owes nothing afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from projections import companions
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_table import LedgerTable
from projections.observed import Observed
from projections.rocks import RocksTable
from projections.snapshots import chunks_of
from projections.table import TableError
from schemas import topics
from schemas.audits import InstanceReport
from schemas.codec import encode
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved
from streams.dead_letters import DeadLetter, read_letter
from streams.folder import SNAPSHOTS_KEPT, Folder
from streams.log.base import LogFull, LogUnreachable, Message
from streams.metrics import Metrics
from streams.tables import HANDOVER_SECONDS
from tests.unit.streams.test_folder import ALL, World, claim

BOTH, SECOND, NONE = frozenset({0, 1}), frozenset({1}), frozenset[int]()
LONG_SECONDS = 600.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def takes_no(world: World, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """No room for records of this topic."""
    append = world.log.append

    def full(messages: Sequence[Message]) -> list[int]:
        if any(message.topic == topic for message in messages):
            raise LogFull("no room")
        return append(messages)

    monkeypatch.setattr(world.log, "append", full)


def snapshot_of_all(world: World) -> None:
    """As `claimlog snapshot write` writes one: of what no processor has folded."""
    ledger, observed, leaks = Ledger(0, 1), Observed(0), Leaks(0)
    for record in world.log.read(topics.CLAIMS, 0, 0, 1_000):
        step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
        assert step is not None
        observed.apply(ledger, step)
        leaks.apply(ledger, observed, step)
    chunks = chunks_of(ledger, extras=companions.all_rows(observed, leaks, companions.Doubles()))
    world.log.append([Message(topics.SNAPSHOTS, b"0", encode(chunk), (), 0) for chunk in chunks])


def test_what_is_owed_at_a_snapshot_is_said_by_the_next_start_where_the_first_had_not_said_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.append([Message(topics.FINDINGS, b"n9", b"{}", (), 0)])  # The topic is not empty, so it says nothing by that.
    world.append(world.audit(1))
    world.log.append([Message(topics.CLAIMS, b"n1", b"poison", (), 0)])
    for counter in (2, 3):
        world.now_ms += 60_000
        world.append(world.audit(counter, (InstanceReport(instance_id="ghost"),)))
    snapshot_of_all(world)
    with monkeypatch.context() as patched:
        takes_no(world, patched, topics.DEAD_LETTERS)
        first = world.folder()
        with pytest.raises(LogFull):
            first.turn(ALL)
        first.close()
    second = world.folder()

    second.turn(ALL)

    second.close()
    third = world.folder()
    third.turn(ALL)
    third.close()
    letters = [read_letter(record) for record in world.log.read(topics.DEAD_LETTERS, 0, 0)]
    assert [letter.position for letter in letters if isinstance(letter, DeadLetter)] == ["claims/0@2"]
    assert [finding.kind for finding in world.read(topics.FINDINGS) if isinstance(finding, LeakConfirmed)] == ["ghost-instance"]


def test_letters_owed_at_a_snapshot_are_written_though_only_verdicts_of_the_first_batch_came_through(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Kafka a batch lands topic by topic; the newest verdict says to the next start which letters are there."""
    world.append(world.audit(1))
    world.log.append([Message(topics.CLAIMS, b"n1", b"poison", (), 0)])
    snapshot_of_all(world)
    world.append(claim(1))
    append = world.log.append

    def lands_in_part(messages: Sequence[Message]) -> list[int]:
        if not any(message.topic == topics.VERDICTS for message in messages):
            return append(messages)
        append([message for message in messages if message.topic == topics.VERDICTS])
        raise LogUnreachable("killed on the way")

    with monkeypatch.context() as patched:
        patched.setattr(world.log, "append", lands_in_part)
        first = world.folder()
        with pytest.raises(LogUnreachable):
            first.turn(ALL)
        first.close()
    second = world.folder()
    while second.turn(ALL):
        pass
    second.close()

    letters = [read_letter(record) for record in world.log.read(topics.DEAD_LETTERS, 0, 0)]
    assert [letter.position for letter in letters if isinstance(letter, DeadLetter)] == ["claims/0@2"]


def test_a_snapshot_is_written_once_where_older_ones_cannot_be_dropped_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise LogUnreachable("dropping records: timed out")

    monkeypatch.setattr("streams.folder.SNAPSHOT_EVERY", 1)
    world.append(world.audit(1))
    host = world.folder()
    for number in range(1, SNAPSHOTS_KEPT + 1):
        world.append(claim(number))
        host.turn(ALL)
    before = world.log.end(topics.SNAPSHOTS, 0)
    world.append(claim(9))
    with monkeypatch.context() as patched:
        patched.setattr(world.log, "truncate", refuses)
        with pytest.raises(LogUnreachable):
            host.turn(ALL)
        host.turn(ALL)
    after = world.log.end(topics.SNAPSHOTS, 0)
    host.close()

    assert (after - before, host.folds) == (1, {})


def test_a_batch_whose_snapshot_finds_no_room_is_published_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.folder.SNAPSHOT_EVERY", 1)
    world.append(world.audit(1), claim(1), claim(2))
    world.log.append([Message(topics.CLAIMS, b"n1", b"poison", (), 0)])
    host = world.folder()
    with monkeypatch.context() as patched:
        takes_no(world, patched, topics.SNAPSHOTS)
        for _ in range(3):
            with pytest.raises(LogFull):
                host.turn(ALL)

    host.turn(ALL)

    host.close()
    published = {topic: world.log.end(topic, 0) for topic in (topics.VERDICTS, topics.NODE_RESOURCES, topics.DEAD_LETTERS)}
    assert published == {topics.VERDICTS: 2, topics.NODE_RESOURCES: 1, topics.DEAD_LETTERS: 1}
    assert world.log.end(topics.SNAPSHOTS, 0) > 0


def test_the_wait_for_a_table_begins_anew_with_a_partition_that_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.append(world.audit(1), claim(1))
    now = 0.0

    def folder(name: str) -> Folder:
        return Folder(world.log, world.path, name, Metrics("t"), world.said.append, clock=lambda: world.now_ms, seconds=lambda: now)

    holder, other = folder("holder"), folder("other")
    holder.turn(BOTH)
    other.turn(SECOND)
    other.turn(NONE)
    now += LONG_SECONDS

    other.turn(SECOND)
    now += HANDOVER_SECONDS / 2
    other.turn(SECOND)
    holder.turn(BOTH - SECOND)
    other.turn(SECOND)

    assert world.said == []
    assert sorted(path.name for path in world.path.iterdir() if path.is_dir()) == ["claims-0", "claims-1"]
    assert (list(holder.folds), list(other.folds)) == ([0], [1])
    holder.close()
    other.close()


def test_a_table_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, partitions=2)
    host = world.folder()
    host.turn(BOTH)
    close = host.folds[0].close

    def closed() -> None:
        close()
        raise TableError("claims-0: the disk is gone")

    monkeypatch.setattr(host.folds[0], "close", closed)

    with pytest.raises(TableError, match="the disk is gone"):
        host.close()

    after = world.folder()
    after.turn(BOTH)
    assert list(after.folds) == [0, 1]
    after.close()


def test_a_table_of_another_log_is_replaced_by_what_a_snapshot_has_with_the_first_batch(tmp_path: Path) -> None:
    """Also where it stands at the very offset of the snapshot, and further on."""
    for stale in (2, 40):
        folder = tmp_path / f"{stale}"
        folder.mkdir()
        other, world = World(folder), World(folder)
        other.append(other.audit(1), *(claim(number) for number in range(stale)))
        before = other.folder()
        while before.turn(ALL):
            pass
        before.close()
        world.append(world.audit(1), *(claim(1_000 + number) for number in range(2)))
        snapshot_of_all(world)

        digests = []
        for _ in range(3):
            host = world.folder()
            host.turn(ALL)
            digests.append(host.folds[0].ledger.digest)
            host.close()

        assert len([said for said in world.said if "is discarded" in said]) == 1
        with RocksTable.open(world.path / "claims-0") as table:
            kept = LedgerTable(table).load()
        assert kept is not None
        assert ({kept.digest}, kept.next_offset) == (set(digests), 4)


def test_the_end_of_a_finding_is_said_by_who_begins_at_a_snapshot_that_does_not_have_it_any_more(world: World) -> None:
    ghosts = tuple(InstanceReport(instance_id=name) for name in ("stays", "went"))
    for counter in (1, 2):
        world.now_ms += 60_000
        world.append(world.audit(counter, ghosts))
    first = world.folder()
    first.turn(ALL)
    first.close()
    before = len(world.read(topics.FINDINGS))
    world.now_ms += 60_000
    world.append(world.audit(3, ghosts[:1]))
    snapshot_of_all(world)

    for number in range(2):
        world.path = world.path.with_name(f"another worker's {number}")
        again = world.folder()
        again.turn(ALL)
        again.close()

    said = [finding for finding in world.read(topics.FINDINGS) if isinstance(finding, FindingRecord)]
    ends = [finding for finding in said if isinstance(finding, LeakResolved)]
    assert [(each.finding_id, each.offset, each.time_ms, each.causes[-1].event) for each in ends] == [
        ("ghost-instance/n1/went", 3, world.now_ms, "snapshot")
    ]
    assert {finding.finding_id for finding in said[before:]} == {"ghost-instance/n1/went", "ghost-instance/n1/stays"}
    assert all(finding.partition == 0 for finding in said)
