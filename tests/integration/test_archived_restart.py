"""After history has left the log, the present is still there: for questions, and for a stream processor that lost its tables."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from schemas.topics import NODE_RESOURCES
from streams.cli.main import run
from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> FleetLog:
    """Two nodes, one with a guest that no claim knows, carried and folded; then all history archived."""
    fleet = FleetLog(tmp_path)
    for _ in range(3):
        fleet.audit("n1", {"ghost": 512})
        fleet.audit("n2")
        fleet.now_ms += 60_000
    process(fleet)
    fleet.log.close()
    before = answers(fleet, capsys)
    assert run(["archive", str(tmp_path / "archive"), "--below", "now", "--log", fleet.spec, "-o", "json"]) == 0
    moved = json.loads(capsys.readouterr().out)["items"]
    assert sum(each["moved"] for each in moved) > 0
    assert answers(fleet, capsys) == before
    return fleet


def process(fleet: FleetLog) -> None:
    """A stream processor that lives in the fleet's own time, where nobody has been silent for long."""
    clock = f"x1@{time.time_ns() // 1_000_000}:{fleet.now_ms}"
    assert run(["run", "--until-idle", "--only", "processor", "--clock", clock, "--log", fleet.spec]) == 0


def answers(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> list[object]:
    """What nodes and leaks say, but for ages and the number of records that the cut counts."""
    capsys.readouterr()
    said: list[object] = []
    for verb, expected in (("nodes", 0), ("leaks", 3)):
        assert run([verb, "--log", fleet.spec, "-o", "json"]) == expected
        items = json.loads(capsys.readouterr().out)["items"]
        said.append([{name: value for name, value in item.items() if "age" not in name} for item in items])
    return said


def test_questions_about_the_present_begin_at_the_snapshot(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, leaks = answers(fleet, capsys)

    assert isinstance(nodes, list)
    assert isinstance(leaks, list)
    assert [node["node_id"] for node in nodes] == ["n1", "n2"]
    assert [(leak["kind"], leak["node_id"]) for leak in leaks] == [("ghost-instance", "n1")]


def test_a_stream_processor_that_lost_its_tables_starts_from_the_snapshot(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    before = answers(fleet, capsys)
    shutil.rmtree(f"{fleet.path}-state")

    process(fleet)

    assert answers(fleet, capsys) == before


def test_a_stream_processor_that_begins_at_a_snapshot_publishes_the_row_of_every_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("n1", {"ghost": 512})
    fleet.audit("n2")
    assert run(["snapshot", "write", "--log", fleet.spec]) == 0

    process(fleet)

    rows = [record.key for number in fleet.log.ends(NODE_RESOURCES) for record in fleet.log.read(NODE_RESOURCES, number, 0)]
    fleet.log.close()
    assert sorted(rows) == [b"n1", b"n2"]
    capsys.readouterr()
