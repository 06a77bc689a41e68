"""`claimlog explain`: the recorded evidence, made again at its own cut, and joined with the leaks that stand in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.ids import instance_id
from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=8192)
    fleet.audit("c02", {}, memory_mib=4096)
    fleet.audit("c03", {}, memory_mib=16_384)
    return fleet


def asked(fleet: FleetLog, capsys: pytest.CaptureFixture[str], request_id: str, *flags: str) -> None:
    assert fleet.run(capsys, "place", *flags, "--request", request_id, "--wait", "0s").code == 0
    fleet.schedule()


def test_a_placement_names_its_cut_its_funnel_and_gives_the_same_choice_again(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asked(fleet, capsys, "r1", "--memory", "6GiB", "--count", "2")
    fleet.audit("c01", {"late": 4096}, memory_mib=8192)

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 0
    assert said.out.count("made again, it gives the same choice") == 2
    assert "3 = 1 rejected + 2 left" in said.out
    assert "chosen: c0" in said.out
    assert "granted on c0" in said.out
    assert said.err.startswith("cut:")


def test_a_refusal_exits_4_and_names_the_leak_that_would_make_room(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.claim("r0/0/s-1.1", "i1", "c03", memory_mib=7168, request_id="r0")
    fleet.audit("c03", {"i1": 7168}, memory_mib=16_384)
    fleet.now_ms += 60_000
    fleet.audit("c03", {}, memory_mib=16_384)
    asked(fleet, capsys, "r1", "--memory", "12GiB")

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 4
    assert "no-valid-node" in said.out
    assert "closest: c03, if 3 GiB memory more were free (12 GiB needed of 9 GiB)" in said.out
    room = "1 leak on c03 holds 7 GiB; without it the request would fit there -> claimlog leaks --node c03 --explain"
    assert room in said.out
    cut = fleet.run(capsys, "leaks", "-o", "json").json["cut"]
    assert fleet.run(capsys, "claims", "release", "r0/0/s-1.1", "--reason", "deleted").code == 0
    assert room not in fleet.run(capsys, "explain", "r1").out
    assert room in fleet.run(capsys, "explain", "r1", "--at", cut).out


def test_a_leak_elsewhere_that_would_make_room_is_named_too_but_not_where_something_else_forbids(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for node_id, claim_id in (("c01", "r0/0/s-1.1"), ("c03", "r0/1/s-1.2")):
        fleet.claim(claim_id, f"i-{node_id}", node_id, memory_mib=8192, request_id="r0")
        fleet.audit(node_id, {f"i-{node_id}": 8192}, memory_mib=8192 if node_id == "c01" else 9216)
    fleet.now_ms += 60_000
    fleet.audit("c01", {}, memory_mib=8192)
    fleet.audit("c03", {}, memory_mib=9216)
    asked(fleet, capsys, "r1", "--memory", "5GiB", "--avoid", "c03")

    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]

    assert item["nearest_miss"]["node_id"] == "c02"
    assert [(leak["node_id"], leak["held"]["memory_mib"], leak["fits_without"]) for leak in item["leaks"]] == [("c01", 8192, True)]


def test_an_instance_is_explained_by_its_request(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asked(fleet, capsys, "r1", "--memory", "6GiB", "--count", "2")

    said = fleet.run(capsys, "explain", instance_id("r1", 1), "-o", "json")

    assert said.code == 0
    assert [item["instance_id"] for item in said.json["items"]] == [instance_id("r1", 1)]
    assert said.json["summary"]["request_id"] == "r1"
    (item,) = said.json["items"]
    assert item["rerun"]["same"] is True
    assert [fate["outcome"] for fate in item["outcomes"]] == ["granted"]
    assert item["nodes_known"] == sum(each["rejected"] for each in item["rejections"]) + item["passed"]


def test_one_node_is_asked_of_every_filter(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asked(fleet, capsys, "r1", "--memory", "6GiB", "--vcpus", "17")

    said = fleet.run(capsys, "explain", "r1", "--node", "c02", "-o", "json")

    (item,) = said.json["items"]
    verdicts = {each["filter"]: each["reason"] for each in item["node"]["verdicts"]}
    assert verdicts["ComputeFilter"] == "passes"
    assert "17" in verdicts["CoreFilter"]
    assert "6144" in verdicts["RamFilter"]


def test_a_node_that_was_not_known_then_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asked(fleet, capsys, "r1", "--memory", "6GiB")

    said = fleet.run(capsys, "explain", "r1", "--node", "c99")

    assert said.code == 2
    assert "at the decision's cut node 'c99' is not known" in said.err


def test_a_request_without_an_answer_is_incomplete(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r1", "--wait", "0s")

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 6
    assert "has no answer yet" in said.err


def test_what_is_no_request_and_no_instance_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "explain", "nobody")

    assert said.code == 2
    assert "'nobody' is no request and no instance of one" in said.err
