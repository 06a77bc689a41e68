"""The quick fold of an answer leaves nothing out but what it does not say: digests and steps."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from producers import history_load
from projections.companions import Doubles, all_rows
from projections.snapshots import chunks_of
from streams.cli.main import run
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.log.sqlite import SqliteLog

RECORDS = 12_000


def said(state: State) -> object:
    """Everything that a state can say, but for its digests."""
    rows = [all_rows(state.observed[number], state.leaks[number], Doubles()) for number in state.ledgers]
    return state.cut, state.findings(), [state.row(node_id) for node_id in state.node_ids()], rows


def test_who_asks_for_the_state_alone_gets_the_one_that_every_step_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_load, "LEAK_EVERY", 300)
    path = tmp_path / "log.db"
    run(["produce", "load", "--history", str(RECORDS), "--nodes", "4", "--log", f"sqlite:{path}"])

    with SqliteLog.open(path) as log:
        quick = state_at(log, now_ms=0, stderr=StringIO())
        stepwise = state_at(log, now_ms=0, stderr=StringIO(), each=lambda *_: None)

    assert said(quick) == said(stepwise)
    assert len(quick.findings()) > 1


def test_a_state_without_a_digest_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    run(["produce", "load", "--history", "500", "--nodes", "4", "--log", f"sqlite:{path}"])

    with SqliteLog.open(path) as log:
        state = state_at(log, now_ms=0, stderr=StringIO())

    with pytest.raises(ValueError, match="folded without a digest"):
        chunks_of(state.ledgers[0])
