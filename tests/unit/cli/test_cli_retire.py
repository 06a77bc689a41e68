"""`claimlog node retire`: silent nodes go by a policy's word, and never with anything on them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from schemas.audits import AuditFailed, HypervisorAudited
from schemas.inventory import Hypervisor
from schemas.topics import AUDITS
from streams.cli.fresh import Fresh
from streams.log.base import LogFull
from tests.cli_log import FleetLog

DAY_MS = 86_400_000


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """Ten days ago: gone (empty), full (a guest), held (a claim); dead never answered; here was audited a moment ago."""
    fleet = FleetLog(tmp_path)
    now_ms = time.time_ns() // 1_000_000
    fleet.now_ms = now_ms - 10 * DAY_MS
    fleet.audit("gone", {})
    fleet.audit("full", {"i1": 512})
    fleet.audit("held", {})
    fleet.claim("r1/0/s-1.1", "i2", "held")
    fleet.append(
        AUDITS,
        AuditFailed(
            node_id="dead", producer="p", epoch=1, counter=1, taken_at_ms=fleet.now_ms, mono_ms=1, reason="r", unknown_since_ms=fleet.now_ms
        ),
    )
    fleet.now_ms = now_ms - 60_000
    fleet.audit("here", {})
    return fleet


def test_it_says_what_it_would_withdraw_and_writes_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "-o", "json")

    assert said.code == 3
    assert {item["node_id"]: item["what"].partition(":")[0] for item in said.json["items"]} == {
        "dead": "to be retired", "full": "in use", "gone": "to be retired", "held": "in use",
    }  # fmt: skip
    assert {round(item["unheard_ms"] / DAY_MS) for item in said.json["items"]} == {10}
    assert {node["status"] for node in fleet.run(capsys, "nodes", "-o", "json").json["items"]} == {"enabled"}


def test_with_yes_the_empty_ones_are_withdrawn_with_the_reason_and_stay_so(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "--yes")
    again = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "--yes", "-o", "json")

    assert said.code == 0
    nodes = {node["node_id"]: node for node in fleet.run(capsys, "nodes", "-o", "json").json["items"]}
    assert {name: node["status"] for name, node in nodes.items()} == {
        "dead": "withdrawn", "full": "enabled", "gone": "withdrawn", "held": "enabled", "here": "enabled",
    }  # fmt: skip
    assert nodes["gone"]["status_reason"] == "not heard of for 7d"
    assert {item["node_id"] for item in again.json["items"]} == {"full", "held"}


@pytest.mark.parametrize("is_carried", [True, False])
def test_a_node_that_reports_while_others_are_withdrawn_stays(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_carried: bool
) -> None:
    write = Fresh.write

    def and_then_the_other_reports(its: Fresh, messages: Any) -> Any:
        done = write(its, messages)
        fleet.audit("gone", {"i9": 512}, carry=is_carried)
        return done

    monkeypatch.setattr(Fresh, "write", and_then_the_other_reports)
    said = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "--yes", "-o", "json")

    assert said.code == 0
    assert {item["node_id"]: item["what"].partition(":")[0] for item in said.json["items"]} == {
        "dead": "retired", "full": "in use", "held": "in use",
    }  # fmt: skip
    assert {node["node_id"] for node in fleet.run(capsys, "nodes", "-o", "json").json["items"] if node["status"] != "enabled"} == {"dead"}


def test_what_was_withdrawn_before_it_failed_is_told(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Fresh.write

    def once(its: Fresh, messages: Any) -> Any:
        if messages[0].key == b"gone":
            raise LogFull("no room left")
        return write(its, messages)

    monkeypatch.setattr(Fresh, "write", once)
    said = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "--yes", "-o", "json")

    assert said.code == 1
    assert [item["node_id"] for item in said.json["items"] if item["what"] == "retired"] == ["dead"]
    assert "it ended before all was looked at; until then:" in said.err
    assert "no room left" in said.err


def test_nobody_is_silent_for_longer_than_ever(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "node", "retire", "--unheard-for", "30d", "-o", "json")

    assert (said.code, said.json["items"]) == (0, [])


def test_who_asks_by_a_clock_that_is_years_ahead_finds_no_more_nodes(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: here_ns + 3650 * DAY_MS * 1_000_000)

    said = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "-o", "json")

    assert {item["node_id"] for item in said.json["items"]} == {"dead", "full", "gone", "held"}


def test_a_length_of_time_that_is_none_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.run(capsys, "node", "retire", "--unheard-for", "long").code == 2


@pytest.mark.parametrize("carry", [False, True])
def test_a_node_that_reports_by_a_clock_that_is_days_behind_is_heard_of(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], *, carry: bool
) -> None:
    behind = HypervisorAudited(
        node_id="slow",
        producer="p",
        epoch=1,
        counter=1,
        taken_at_ms=fleet.now_ms - 9 * DAY_MS,
        mono_ms=1,
        digest="d",
        hypervisor=Hypervisor(vcpus=1),
        instances=(),
    )
    fleet.append(AUDITS, behind)
    if carry:
        fleet.carry()

    said = fleet.run(capsys, "node", "retire", "--unheard-for", "7d", "-o", "json")

    assert {item["node_id"] for item in said.json["items"]} == {"dead", "full", "gone", "held"}
