"""Store and forward: nothing lost, nothing out of order, whenever either end dies, and never more than its room."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from shutil import disk_usage
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.source import Said
from producers.spool import Spool, SpoolFull, forward, size_of
from schemas.audits import AuditFailed
from schemas.codec import encode
from schemas.topics import AUDITS
from streams.cli.problems import UsageProblem
from streams.cli.produce import spooling
from streams.cli.produce.publishing import last_epoch, message
from streams.cli.produce.spooling import ROOM_BYTES, Forwarder, SqliteSpoolStore
from streams.ledger_topics import open_ledger
from streams.log.base import LogFull
from streams.log.sqlite import SqliteLog
from tests.cli_log import FleetLog


def said(number: int, node_id: str = "n1", epoch: int = 1) -> Said:
    record = AuditFailed(
        node_id=node_id, producer="p", epoch=epoch, counter=number, taken_at_ms=number, mono_ms=number, reason="r", unknown_since_ms=0
    )
    return Said(AUDITS, node_id.encode(), encode(record), (("ce_id", str(number).encode()),))


def some(*numbers: int) -> list[Said]:
    return [said(number) for number in numbers]


def until(holds: Callable[[], Any]) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.01)


def test_what_was_put_goes_on_in_order_with_its_topic_key_and_headers(tmp_path: Path) -> None:
    store, landed = SqliteSpoolStore.open(tmp_path / "spool"), list[Said]()
    spool = Spool(store)

    spool.put(some(1, 2))
    spool.put(some(3))

    assert forward(store, landed.extend) == 3
    assert landed == some(1, 2, 3)
    assert (spool.waiting, forward(store, landed.extend)) == (0, 0)
    store.close()


def test_what_the_log_did_not_take_stays_and_goes_on_later(tmp_path: Path) -> None:
    store, landed = SqliteSpoolStore.open(tmp_path / "spool"), list[Said]()
    spool = Spool(store)
    spool.put(some(1, 2))

    def away(records: Sequence[Said]) -> None:
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        forward(store, away)
    spool.put(some(3))

    assert forward(store, landed.extend) == 3
    assert landed == some(1, 2, 3)
    store.close()


def test_a_full_spool_takes_nothing_and_loses_nothing_and_takes_more_when_some_has_gone_on(tmp_path: Path) -> None:
    store, landed = SqliteSpoolStore.open(tmp_path / "spool"), list[Said]()
    spool = Spool(store, bytes_max=2 * size_of(some(1)))
    spool.put(some(1))
    spool.put(some(2))

    with pytest.raises(SpoolFull, match="2 records wait"):
        spool.put(some(3))
    forward(store, landed.extend, records_max=1)
    spool.put(some(3))
    forward(store, landed.extend)

    assert landed == some(1, 2, 3)
    store.close()


def test_a_disk_that_is_nearly_full_takes_nothing_more_until_all_has_gone_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there would be no room to forget what was forwarded, and the spool would be full for ever."""
    store, landed = SqliteSpoolStore.open(tmp_path / "spool"), list[Said]()
    spool = Spool(store)
    spool.put(some(1))
    nearly_full = disk_usage(tmp_path)._replace(free=ROOM_BYTES - 1)
    monkeypatch.setattr(spooling, "disk_usage", lambda _: nearly_full)

    with pytest.raises(SpoolFull, match="64 MiB are free on its disk"):
        spool.put(some(2))
    forward(store, landed.extend)
    spool.put(some(2))
    forward(store, landed.extend)

    assert landed == some(1, 2)
    store.close()


def test_what_an_earlier_process_left_goes_first_and_takes_its_room(tmp_path: Path) -> None:
    before = SqliteSpoolStore.open(tmp_path / "spool")
    Spool(before).put(some(1, 2))
    before.close()

    store, landed = SqliteSpoolStore.open(tmp_path / "spool"), list[Said]()
    spool = Spool(store, bytes_max=size_of(some(1, 2, 3)))

    assert spool.waiting == 2
    spool.put(some(3))
    with pytest.raises(SpoolFull):
        spool.put(some(4))
    forward(store, landed.extend)
    assert landed == some(1, 2, 3)
    store.close()


def test_the_last_epoch_of_each_node_is_remembered_after_its_records_have_gone_on(tmp_path: Path) -> None:
    store = SqliteSpoolStore.open(tmp_path / "spool")
    Spool(store).put([said(1, "n1", 70), said(2, "n2", 5), said(1, "n1", 71), said(9, "n1", 70)])
    forward(store, list[Said]().extend)
    store.close()

    again = SqliteSpoolStore.open(tmp_path / "spool")

    assert [again.epoch(AUDITS, node) for node in ("n1", "n2", "n3")] == [71, 5, None]
    again.close()


def test_on_a_disk_without_room_to_forget_anything_what_has_gone_on_goes_once_and_is_forgotten_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, landed = SqliteSpoolStore.open(tmp_path / "spool"), list[Said]()
    spool = Spool(SqliteSpoolStore.open(tmp_path / "spool"))
    spool.put(some(1, 2, 3))

    def full(*_: object) -> None:
        raise LogFull("no room left on the disk")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "truncate", full)
        sent = [forward(store, landed.extend, records_max=2) for _ in range(4)]
        assert (sent, landed, spool.waiting) == ([2, 1, 0, 0], some(1, 2, 3), 3)

    assert forward(store, landed.extend) == 0
    assert (spool.waiting, landed) == (0, some(1, 2, 3))


@settings(max_examples=25)  # each step syncs a file
@given(st.lists(st.sampled_from(["put", "send", "fail", "half", "restart"]), max_size=30))
def test_whatever_happens_in_between_all_arrive_in_order(steps: list[str]) -> None:
    """`half`: the log took them, and the process died before it could drop them; they arrive again, in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spool"
        store = SqliteSpoolStore.open(path)
        spool, counter, landed = Spool(store), 0, list[Said]()

        def half(records: Sequence[Said]) -> None:
            landed.extend(records)
            raise ConnectionError("the acknowledgement was lost")

        def fail(records: Sequence[Said]) -> None:
            raise ConnectionError("away")

        for step in [*steps, "send"]:
            if step == "put":
                counter += 2
                spool.put(some(counter - 1, counter))
            elif step == "send":
                forward(store, landed.extend)
            elif step == "restart":
                store.close()
                store = SqliteSpoolStore.open(path)
                spool = Spool(store)
            elif spool.waiting:
                with pytest.raises(ConnectionError):
                    forward(store, half if step == "half" else fail)
        store.close()

    first_seen = list(dict.fromkeys(landed))
    assert first_seen == some(*range(1, counter + 1))


@pytest.mark.parametrize(("call", "epoch"), [("create", None), ("append", 70)])
def test_while_the_log_has_no_room_all_waits_in_the_spool_and_goes_on_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, epoch: int | None
) -> None:
    """It can be read all the same, unless there is not even room for its topics."""
    path, ledger, full, told = tmp_path / "spool", tmp_path / "ledger", [True], list[str]()
    with closing(SqliteLog.open(ledger, create=True)) as log:
        if call == "append":
            open_ledger(log)
            log.append([message(said(1, epoch=70))])
    act = getattr(SqliteLog, call)

    def act_if_there_is_room(log: SqliteLog, given: Any) -> Any:
        if log.path == ledger and full[0]:
            raise LogFull("no room left on the disk")
        return act(log, given)

    monkeypatch.setattr(SqliteLog, call, act_if_there_is_room)
    monkeypatch.setattr(spooling, "PAUSE_SECONDS", 0.01)
    spool = Spool(SqliteSpoolStore.open(path))
    spool.put([said(1, epoch=71), said(2, epoch=71)])
    forwarder = Forwarder(path, lambda: SqliteLog.open(ledger, create=True), "p", told.append)
    until(lambda: told)
    known = forwarder.last_epoch(AUDITS, "n1")
    time.sleep(0.1)
    waiting = spool.waiting
    full[0] = False
    until(lambda: len(told) > 1)
    forwarder.stop()

    assert (known, waiting, spool.waiting, forwarder.failure) == (epoch, 2, 0, None)
    assert told == [
        f"what is produced waits in {path}: no room left on the disk",
        f"there is room again, and nothing waits in {path} any more",
    ]
    with closing(SqliteLog.open(ledger)) as log:
        assert last_epoch(log, "p")(AUDITS, "n1") == 71


def test_a_ledger_is_no_spool(tmp_path: Path) -> None:
    fleet = FleetLog(tmp_path)
    before = dict(fleet.log.topics())

    with pytest.raises(UsageProblem, match="name a file that is new"):
        SqliteSpoolStore.open(fleet.path)

    assert fleet.log.topics() == before


def test_a_new_file_is_not_spool_and_log_at_once(tmp_path: Path) -> None:
    path = tmp_path / "both"
    SqliteSpoolStore.open(path).close()

    forwarder = Forwarder(path, lambda: SqliteLog.open(path, create=True), "p", lambda _: None)
    assert forwarder.last_epoch(AUDITS, "n1") is None  # answers once the log was tried
    forwarder.stop()

    assert isinstance(forwarder.failure, UsageProblem)
    assert "are one file" in str(forwarder.failure)
    with closing(SqliteLog.open(path)) as log:
        assert set(log.topics()) == {"spooled", "epochs"}
