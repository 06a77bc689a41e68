"""The questions that people ask of schedulers and get no answer to, asked of `claimlog explain`; each test is named after its question.

HashiCorp Nomad's issue 3833 has six, Kubernetes' issue 91340 one: do the counts add up?
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli_log import FleetLog

NAMES = ("c01", "c02", "c03")


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, vcpus: int) -> tuple[FleetLog, dict[str, Any], str]:
    """Three nodes of 4, 8 and 8 vCPUs, of which 1, 8 and 5 are in use, and a request for `vcpus` that nobody could place."""
    fleet = FleetLog(tmp_path)
    for name, total, used in zip(NAMES, (4, 8, 8), (1, 8, 5), strict=True):
        fleet.audit(name, {}, vcpus=total)
        fleet.claim(f"r0/{name}/s-1.1", f"of-{name}", name, memory_mib=64, vcpus=used, request_id=f"r-{name}")
    assert fleet.run(capsys, "place", "--vcpus", str(vcpus), "--memory", "64", "--request", "r1", "--wait", "0s").code == 0
    fleet.schedule()
    told = fleet.run(capsys, "explain", "r1")
    assert told.code == 4
    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]
    return fleet, item, told.out


def vcpus_of(item: dict[str, Any]) -> dict[str, Any]:
    supply: dict[str, Any] = next(each for each in item["supplies"] if each["resource"] == "vcpus")
    return supply


def test_have_i_exhausted_the_cpu_across_the_entire_cluster_or_just_a_single_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, item, told = refused(tmp_path, capsys, vcpus=4)

    cpu = vcpus_of(item)

    assert (cpu["nodes"], cpu["has"], cpu["full"], cpu["small"]) == (3, 0, 3, 0)
    assert "vcpus: 4 needed; of 3 ready nodes 3 full" in told


def test_if_it_is_a_single_node_which_node_was_the_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, item, told = refused(tmp_path, capsys, vcpus=4)

    rejected = {line["node_id"]: [each["filter"] for each in line["rejected"]] for line in item["matrix"]["nodes"]}

    assert rejected == {name: ["CoreFilter", "fit"] for name in NAMES}
    assert "c01: short 1 vcpus (4 needed of 3) · c02: short 4 vcpus (4 needed of 0) · c03: short 1 vcpus (4 needed of 3)" in told


def test_does_my_job_ask_for_more_than_there_is_or_do_the_others_use_so_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    _, others_use_it, _ = refused(tmp_path / "a", capsys, vcpus=6)
    _, asks_too_much, told = refused(tmp_path / "b", capsys, vcpus=9)

    assert (vcpus_of(others_use_it)["full"], vcpus_of(others_use_it)["small"]) == (2, 1)
    assert (vcpus_of(asks_too_much)["full"], vcpus_of(asks_too_much)["small"]) == (0, 3)
    assert "3 too small when empty" in told
    assert "the largest limit is 8" in told


def test_by_how_much_have_i_exhausted_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, item, told = refused(tmp_path, capsys, vcpus=4)

    lacks = {line["node_id"]: line["rejected"][0]["shortfalls"] for line in item["matrix"]["nodes"]}

    assert lacks["c02"] == [{"resource": "vcpus", "needed": 4, "free": 0, "detail": ""}]
    assert lacks["c03"] == [{"resource": "vcpus", "needed": 4, "free": 3, "detail": ""}]
    assert "closest: c01, if 1 vcpus more were free (4 needed of 3)" in told


def test_how_much_is_available_on_my_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, item, told = refused(tmp_path, capsys, vcpus=4)

    cpu = vcpus_of(item)

    assert (cpu["free"], cpu["used"], cpu["limit"]) == (6, 14, 20)
    assert "free 6 of 20 in all" in told


def test_how_much_is_available_on_my_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet, item, told = refused(tmp_path, capsys, vcpus=4)

    of_one = fleet.run(capsys, "explain", "r1", "--node", "c03").out.partition("c03 at that cut:")[2]
    document = fleet.run(capsys, "explain", "r1", "--node", "c03", "-o", "json").json

    assert (vcpus_of(item)["free_most"], vcpus_of(item)["free_most_node"]) == (3, "c01")
    assert "at most 3 on one (c01)" in told
    assert "CoreFilter     vcpus: 4 needed of 3" in of_one
    assert "RamFilter      passes" in of_one
    assert of_one.endswith("  vcpus: 4 needed; free 3 of 8\n  memory: 64 MiB needed; free 8,128 MiB of 8 GiB\n")
    assert [(each["resource"], each["free"]) for each in document["items"][0]["node"]["supplies"]] == [("vcpus", 3), ("memory_mib", 8128)]


def test_the_number_of_reasons_equals_the_number_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(9):
        fleet.audit(f"c{number}", {}, vcpus=2 if number < 8 else 16, memory_mib=8192 if number < 8 else 512)
    fleet.run(capsys, "node", "disable", "c3", "--reason", "fan")
    fleet.run(capsys, "place", "--vcpus", "4", "--memory", "1GiB", "--request", "r1", "--wait", "0s")
    fleet.schedule()

    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]
    told = fleet.run(capsys, "explain", "r1").out

    assert {each["filter"]: each["rejected"] for each in item["rejections"] if each["rejected"]} == {
        "ComputeFilter": 1,
        "CoreFilter": 7,
        "RamFilter": 1,
    }
    assert "9 = 1 + 7 + 1 rejected + 0 left" in told
    assert "c3: disabled (fan)" in told
    firsts = [line["rejected"][0]["filter"] for line in item["matrix"]["nodes"]]
    assert sorted(firsts) == ["ComputeFilter"] + ["CoreFilter"] * 7 + ["RamFilter"]
