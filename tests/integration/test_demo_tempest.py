"""`claimlog demo --scenario tempest-leak`: a published case, whose figures come out of the log to the last unit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(sys.executable).with_name("claimlog")


def said(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *words], cwd=folder, text=True, capture_output=True, timeout=90)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("tempest")
    return folder, said(folder, "demo", "--scenario", "tempest-leak")


def test_the_published_figures_are_shown_and_each_instance_that_makes_the_difference(
    played: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, ended = played
    lines = [line.split() for line in ended.stdout.splitlines()]

    assert ended.returncode == 0, ended.stderr
    assert ["memory", "MiB", "126,265", "23,353", "-46,683", "70,036"] in lines
    assert ["vCPUs", "24", "-43", "-90", "47"] in lines
    assert [f"{amount * 1024:,}" for amount in (4_271, -7_332, 11_603)] in [line[-3:] for line in lines if line[:1] == ["disk"]]
    assert sum(line[:1] != [] and line[0].endswith("-resize") and len(line) == 6 for line in lines) == 14
    assert ["14", "instances", "70,036", f"{11_603 * 1024:,}", "47"] in lines


def test_the_log_that_it_leaves_says_the_same_to_every_verb(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = played
    log = ("--log", "sqlite:demo-data/ledger.sqlite", "-o", "json")

    row: dict[str, Any] = json.loads(said(folder, "nodes", *log).stdout)["items"][0]
    diff = json.loads(said(folder, "diff", "--at", "1970-01-01", "--why", *log).stdout)["items"]

    free = {name: (of["limit"] - of["reported"], of["limit"] - of["tracked"]) for name in ("memory_mib", "vcpus") for of in [row[name]]}
    leaks = json.loads(said(folder, "leaks", "--kind", "stale-instance", "--kind", "ghost-instance", *log).stdout)
    assert [item["kind"] for item in leaks["items"]] == ["stale-instance"] * 14
    assert leaks["summary"]["counted"] == {"vcpus": 47, "pcpus": 0, "memory_mib": 70_036, "disk_mib": 11_603 * 1024}
    assert leaks["summary"]["held"]["memory_mib"] == 0
    assert free == {"memory_mib": (23_353, -46_683), "vcpus": (-43, -90)}
    gaps = {item["resource"]: item["delta"]["gap"] for item in diff if item["kind"] == "change" and item["resource"]}
    sums = {name: sum(item["delta"]["gap"] for item in diff if item["kind"] == "record" and item["resource"] == name) for name in gaps}
    assert gaps == sums == {"vcpus": 47, "memory_mib": 70_036, "disk_mib": 11_603 * 1024}
