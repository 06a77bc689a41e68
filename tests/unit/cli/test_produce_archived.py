"""Producers that go on from what they said before need that to be at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.topics import LIFECYCLE
from tests.cli_log import FleetLog
from tests.nova_cloud import SMALL, NovaCloud


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    return FleetLog(tmp_path)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    folder = tmp_path / "history"
    folder.mkdir()
    return folder


def archived(fleet: FleetLog, capsys: pytest.CaptureFixture[str], history: Path) -> None:
    """All that happened leaves the log."""
    fleet.carry()
    assert fleet.run(capsys, "archive", str(history), "--below", "now").code == 0
    assert fleet.log.start(LIFECYCLE, 0) + fleet.log.start(LIFECYCLE, 1) > 0


def test_load_does_not_begin_where_it_cannot_know_what_its_hosts_run(
    fleet: FleetLog, history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.lived("node-00000", "i1", 512)
    archived(fleet, capsys, history)
    end = fleet.log.ends(LIFECYCLE)

    blind = fleet.run(capsys, "produce", "load", "--nodes", "2", "--once")
    untouched = fleet.log.ends(LIFECYCLE) == end
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(history))
    whole = fleet.run(capsys, "produce", "load", "--nodes", "2", "--once")

    assert (blind.code, untouched, whole.code) == (6, True, 0)
    assert "what earlier runs left on these nodes, and what was answered, is not known: instance-lifecycle/" in blind.err
    assert "set CLAIMLOG_ARCHIVE to the folder that `claimlog archive` wrote the others to" in blind.err


def test_notifications_that_come_again_are_told_again_only_where_it_is_said(
    fleet: FleetLog, history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = tmp_path / "n.jsonl"
    messages.write_bytes(b"".join(sent.value + b"\n" for sent in NovaCloud().create("a", "h1", SMALL)))
    feed = ("produce", "openstack", "--from", str(messages))
    first = fleet.run(capsys, *feed)
    archived(fleet, capsys, history)
    end = sum(fleet.log.ends(LIFECYCLE).values())

    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(history))
    whole = fleet.run(capsys, *feed)
    nothing_new = sum(fleet.log.ends(LIFECYCLE).values()) == end
    monkeypatch.delenv("CLAIMLOG_ARCHIVE")
    blind = fleet.run(capsys, *feed)

    assert (first.code, whole.code, nothing_new, blind.code) == (0, 0, True, 0)
    assert "what was told before is not known, so notifications that come again are told again: instance-lifecycle/" in blind.err
    assert "told before" not in whole.err
    assert sum(fleet.log.ends(LIFECYCLE).values()) > end
