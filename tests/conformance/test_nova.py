"""The vectors of Nova's and Placement's behaviour, one test each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.nova import difference, load

HERE = Path(__file__).parent
VECTORS = load(HERE / "nova_vectors.json")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_the_product_does_what_nova_does(vector: dict[str, Any]) -> None:
    assert difference(vector) == ""


@pytest.mark.parametrize("name", ["ServerGroupAffinityFilter", "ServerGroupAntiAffinityFilter"])
def test_a_group_of_a_policy_that_no_filter_knows_is_passed_by(name: str) -> None:
    host = {"host": "host1", "instances": ["i1"]}
    group = {"policy": "legacy", "members": ["i1"], "hosts": ["host2"], "rules": {}}

    vector = {"area": "filter", "subject": name, "given": {"host": host, "request": {"group": group}}, "expect": {"pass": True}}

    assert difference(vector) == ""


def test_an_area_that_nobody_knows_is_a_failure_and_the_script_counts_it(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    file.write_text('{"vectors": [{"id": "x-1", "area": "astrology", "subject": "s", "given": {}, "expect": {}}]}')

    done = subprocess.run([sys.executable, str(HERE / "nova.py"), str(file)], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"
    assert "x-1" in done.stdout
    assert done.returncode == 1
