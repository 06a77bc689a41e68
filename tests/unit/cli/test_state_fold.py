"""The quick fold of an answer leaves nothing out but what it does not say: digests and steps."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from producers import history_load
from projections.companions import Doubles, all_rows
from projections.snapshots import chunks_of
from schemas.requests import Flavor, PlacementRequested, ServerGroup
from schemas.topics import CLAIMS, REQUESTS
from streams.cli.main import run
from streams.cli.printed import progress
from streams.cli.reading import state_at as module
from streams.cli.reading.state import Begun, State
from streams.cli.reading.state_at import _begun, state_at
from streams.log.base import Log
from streams.log.sqlite import SqliteLog
from tests.cli_log import FleetLog

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


def test_the_rows_of_all_nodes_are_those_of_each_and_count_what_is_claimed_twice(tmp_path: Path) -> None:
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "c03"):
        fleet.audit(node_id)
    for node_id in ("c01", "c02"):
        fleet.claim(f"{node_id}/0/s-1.1", "i-77", node_id, memory_mib=512)
    for node_id in ("c01", "c02", "c03"):
        fleet.now_ms += 60_000
        fleet.audit(node_id, {"i-77": 512} if node_id != "c03" else {})

    state = state_at(fleet.log, stderr=StringIO())
    rows = state.rows(state.node_ids())

    found = Counter(finding.node_id for finding in state.findings())
    assert "double-claim" in {finding.kind for finding in state.findings()}
    assert rows == {node_id: state.row(node_id) for node_id in ("c01", "c02", "c03")}
    assert {node_id: row.leaks for node_id, row in rows.items()} == {"c01": 0, "c02": 0, "c03": 0} | found


def test_loading_snapshots_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_SHOW_EVERY_SECONDS", 0.0)
    spec, terminal = f"sqlite:{tmp_path / 'log.db'}", Terminal()
    run(["produce", "load", "--history", "500", "--nodes", "4", "--log", spec])
    run(["snapshot", "write", "--log", spec])

    with SqliteLog.open(tmp_path / "log.db") as log:
        total = sum(log.ends(CLAIMS).values())
        state_at(log, stderr=terminal)

    assert f"load: {total} of {total} records" in terminal.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["node", "disable", "c01", "--reason", "r"],
        ["node", "close-home", "c01", "--group", "of-c01"],
        ["claims", "hold", "r1/0/s-1.1", "--node", "c01"],
        ["claims", "release", "r1/0/s-1.1", "--node", "c01"],
    ],
)
def test_a_word_about_one_node_loads_no_partition_but_those_concerned(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(8):
        fleet.audit(f"c{number:02}")
    together = ServerGroup(group_id="of-c01", policy="affinity")
    fleet.claim("r1/0/s-1.1", "i1", "c01", request_id="r1")
    fleet.append(REQUESTS, PlacementRequested(request_id="r2", flavor=Flavor(), group=together, requested_nodes=("c01",)))
    fleet.schedule(turns=12)
    concerned = {fleet.log.partition(CLAIMS, name) for name in (b"c01", *([b"of-c01"] if "close-home" in words else []))}
    loaded = set()

    def noted(log: Log, number: int, *args: Any, **options: Any) -> Begun:
        loaded.add(number)
        return _begun(log, number, *args, **options)

    monkeypatch.setattr(module, "_begun", noted)
    answer = fleet.run(capsys, *words)

    assert answer.code == 0, answer.err
    assert loaded == concerned < set(range(fleet.log.topics()[CLAIMS]))


def test_a_claim_is_found_in_whatever_partition_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    nodes = [f"c{number:02}" for number in range(8)]
    for node_id in nodes:
        fleet.audit(node_id)
        fleet.claim(f"{node_id}/0/s-1.1", f"i-{node_id}", node_id)

    assert len({fleet.log.partition(CLAIMS, node_id.encode()) for node_id in nodes}) > 1
    for node_id in nodes:
        assert fleet.run(capsys, "claims", "hold", f"{node_id}/0/s-1.1").out == "held\n"
        assert fleet.run(capsys, "claims", "release", f"{node_id}/0/s-1.1").out == "released\n"


@pytest.mark.parametrize(("node", "code"), [("c03", 1), ("nobody", 2)])
def test_a_claim_that_nobody_holds_costs_each_partition_once(
    node: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(8):
        fleet.audit(f"c{number:02}")
    loaded: list[int] = []

    def noted(log: Log, number: int, *args: Any, **options: Any) -> Begun:
        loaded.append(number)
        return _begun(log, number, *args, **options)

    monkeypatch.setattr(module, "_begun", noted)
    answer = fleet.run(capsys, "claims", "release", "r9/0/s-1.9", "--node", node)

    assert answer.code == code, answer.err
    assert sorted(loaded) == list(range(fleet.log.topics()[CLAIMS]))
