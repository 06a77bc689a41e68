"""`claimlog node close-home`: a dead home is left for another node, and what cannot be meant is said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from schemas.lifecycle import InstanceDeleted
from schemas.requests import Flavor, PlacementRequested, ServerGroup
from schemas.topics import REQUESTS
from tests.cli_log import FleetLog

TOGETHER = ServerGroup(group_id="g", policy="affinity")


def place(fleet: FleetLog, request_id: str) -> None:
    fleet.append(REQUESTS, PlacementRequested(request_id=request_id, flavor=Flavor(memory_mib=1024), group=TOGETHER))
    fleet.schedule(turns=12)


def homes(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The node of each request's claim."""
    claims = fleet.run(capsys, "claims", "list", "-o", "json").json["items"]
    return {claim["request_id"]: claim["node_id"] for claim in claims}


def test_newcomers_go_elsewhere_when_the_home_is_closed_though_members_are_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for node in ("c01", "c02"):
        fleet.audit(node, {})
    place(fleet, "r1")
    dead = homes(fleet, capsys)["r1"]
    fleet.run(capsys, "node", "disable", dead, "--reason", "burnt")

    said = fleet.run(capsys, "node", "close-home", dead, "--group", "g")
    again = fleet.run(capsys, "node", "close-home", dead, "--group", "g")
    place(fleet, "r2")

    assert "still takes instances" not in said.err
    assert (said.code, said.out) == (0, f"{dead}: home of g closed (epoch 1); 1 member is left there\n")
    assert again.code == 2
    assert "is closed already" in again.err
    assert homes(fleet, capsys)["r2"] == {"c01": "c02", "c02": "c01"}[dead]


def test_members_left_at_a_closed_home_are_findings_until_they_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    place(fleet, "r1")
    (claim,) = fleet.run(capsys, "claims", "list", "-o", "json").json["items"]
    fleet.audit("c01", {claim["instance_id"]: 1024})
    said = fleet.run(capsys, "node", "close-home", "c01", "--group", "g")

    assert "c01 still takes instances, so it may become the group's home once more: claimlog node disable c01 --reason WORDS" in said.err
    suspected = fleet.run(capsys, "leaks", "-o", "json")
    fleet.now_ms = time.time_ns() // 1_000_000 + 60_000
    fleet.audit("c01", {claim["instance_id"]: 1024})
    told = fleet.run(capsys, "leaks", "--explain")
    (mended,) = fleet.run(capsys, "leaks", "--heal", "--report-age", "100d", "-o", "json").json["items"]
    fleet.lived("c01", claim["instance_id"], 1024, InstanceDeleted)
    after = fleet.run(capsys, "leaks")

    assert (suspected.code, told.code, after.code) == (3, 3, 0)
    assert [(item["kind"], item["state"]) for item in suspected.json["items"]] == [("stranded-member", "suspected")]
    assert (mended["action"], mended["what"].split(" ", 3)[:3]) == ("left alone", ["evacuate", "or", "delete"])
    assert told.out.startswith(f"stranded-member on c01: {claim['claim_id']}\n  confirmed, since ")
    assert f"home of g closed here (epoch 1), {claim['instance_id']} in it" in told.out
    assert f"to mend   claimlog claims release {claim['claim_id']} --reason migrated" in told.out


def test_a_node_that_is_not_the_home_is_refused_with_the_one_that_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for node in ("c01", "c02"):
        fleet.audit(node, {})
    unknown = fleet.run(capsys, "node", "close-home", "c01", "--group", "g")
    place(fleet, "r1")
    home = homes(fleet, capsys)["r1"]
    other = {"c01": "c02", "c02": "c01"}[home]

    said = fleet.run(capsys, "node", "close-home", other, "--group", "g")

    assert (unknown.code, said.code) == (2, 2)
    assert "group g has no home" in unknown.err
    assert f"group g is at home on {home}, not on {other}" in said.err
