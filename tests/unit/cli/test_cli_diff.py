"""`claimlog diff`: what changed between two moments, and the records whose changes add up to it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.lifecycle import InstanceDeparted
from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """Two audited nodes."""
    fleet = FleetLog(tmp_path)
    fleet.audit("n1")
    fleet.audit("n2")
    return fleet


def at(moment_ms: int) -> tuple[str, str]:
    return "--at", str(moment_ms)


def sums(items: list[dict[str, Any]]) -> dict[tuple[str, str], Counter[str]]:
    """What the records under each change add up to, by node and resource."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for item in items:
        if item["kind"] == "record":
            found.setdefault((item["node_id"], item["resource"]), Counter()).update(item["delta"])
    return found


def test_the_records_between_two_moments_add_up_to_the_change_in_every_column(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    start = fleet.now_ms + 1
    fleet.lived("n1", "a", 1024)
    fleet.audit("n1", {"a": 1024, "stranger": 512})
    fleet.lived("n1", "a", 1024, InstanceDeparted)

    said = fleet.run(capsys, "diff", "--why", *at(start), "-o", "json")

    assert said.code == 3
    items = said.json["items"]
    changes = {(item["node_id"], item["resource"]): item for item in items if item["kind"] == "change"}
    assert changes.keys() == {("n1", "memory_mib")}
    memory = changes["n1", "memory_mib"]
    assert {name: memory["delta"][name] for name in ("reported", "used", "free", "limit")} == {
        "reported": 1536,
        "used": 512,
        "free": -512,
        "limit": 0,
    }
    assert memory["after"]["free"] - memory["before"]["free"] == -512
    assert dict(sums(items)["n1", "memory_mib"]) == memory["delta"]
    assert [item["event"] for item in items if item["kind"] == "record"] == ["instance-observed", "node-observed", "instance-observed"]


def test_without_why_there_are_the_changes_only_and_a_node_can_be_chosen(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    start = fleet.now_ms + 1
    fleet.audit("n1", {"a": 100})
    fleet.audit("n2", {"b": 200})

    said = fleet.run(capsys, "diff", "node/n2", *at(start), "--at", "now", "-o", "json")
    told, of_all = (fleet.run(capsys, "diff", *node, "--why", *at(start), "--at", "now", "-o", "json") for node in (["n2"], []))

    assert [(item["kind"], item["node_id"], item["delta"]["used"]) for item in said.json["items"]] == [("change", "n2", 200)]
    assert told.json["items"] == [item for item in of_all.json["items"] if item["node_id"] == "n2"]
    assert {item["kind"] for item in told.json["items"]} == {"change", "record"}


def test_nothing_differs_between_a_moment_and_itself(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "diff", "--why", "--at", "now", "--at", "now", "-o", "json")

    assert (said.code, said.json["items"]) == (0, [])


def test_a_node_that_came_between_is_said_to_have_come(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    start = fleet.now_ms + 1
    fleet.audit("n3")

    said = fleet.run(capsys, "diff", *at(start))

    assert "not known -> enabled" in said.out
    assert "+8,192" in said.out


def test_what_was_reported_before_and_carried_later_is_no_change(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.lived("n1", "a", 1024, carry=False)
    start = fleet.now_ms + 1
    fleet.now_ms = start
    fleet.carry()

    said = fleet.run(capsys, "diff", "--why", *at(start), "-o", "json")

    items = said.json["items"]
    assert said.code == 0
    assert {(item["kind"], item["delta"]["tracked"]) for item in items} == {("change", 0), ("record", -1024), ("record", 1024)}
    assert "carried into the ledger later" in next(item["summary"] for item in items if item["delta"]["tracked"] == -1024)


@pytest.mark.parametrize(
    ("moments", "says"),
    [
        ((), "diff needs --at once or twice"),
        (("--at", "now", "--at", "2020-01-01"), "give the earlier one first"),
        (("--at", "now", "--at", "now", "--at", "now"), "not 3 times"),
        (("--at", "now", "nowhere"), "node 'nowhere' is not known"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_usage_error(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], moments: tuple[str, ...], says: str
) -> None:
    said = fleet.run(capsys, "diff", *moments)

    assert (said.code, says in said.err) == (2, True), said.err
