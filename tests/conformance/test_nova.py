"""The vectors of Nova's and Placement's behaviour, one test each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conformance.nova import difference, load, main

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


def test_what_nobody_knows_and_what_is_no_vector_are_failures_and_the_script_counts_them(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    good = {"id": "good", "area": "normalize", "subject": "normalize", "given": {"values": [], "minval": None, "maxval": None}}
    empty: dict[str, Any] = {"given": {}, "expect": {"pass": True}}
    filled: dict[str, Any] = {"expect": {"weights": []}}
    bad = [
        {"id": "x-1", "area": "astrology", "subject": "s", **empty},
        {"id": "x-2", "area": "filter", "subject": "HoroscopeFilter", **empty},
        {"id": "x-3", "area": "normalize", "subject": "standardize", **filled, "given": good["given"]},
        {**good, "id": "x-4", "expect": {}},
        {"id": "x-5", "area": "normalize", "subject": "normalize", **filled},
        {"id": "x-6", "area": ["filter"], "subject": {}},
        "x-7",
        None,
    ]
    file.write_bytes(msgspec.json.encode({"vectors": [*bad, {**good, **filled}]}))

    done = subprocess.run([sys.executable, str(HERE / "nova.py"), str(file)], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "1 passed, 8 failed"
    assert "area 'astrology' is not known" in done.stdout
    assert "subject 'HoroscopeFilter' is not known" in done.stdout
    assert "number 7 None: expected an object" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("text", ["", "{}", "3", '{"vectors": 1}'])
def test_a_file_without_vectors_is_no_success(tmp_path: Path, text: str) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(text)

    assert main([str(file)]) == 2
    assert main([str(tmp_path / "none.json")]) == 2
