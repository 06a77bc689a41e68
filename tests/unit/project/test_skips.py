"""On CI a skip is a failure: tried on a small project with our conftest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
TESTS = """
import pytest

def test_runs():
    pass

def test_skips():
    pytest.skip("no libvirt here")

@pytest.mark.needs_docker
def test_needs_docker():
    pytest.skip("no docker here")

@pytest.mark.xfail
def test_expected_to_fail():
    raise ValueError
"""


def run(folder: Path, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(TESTS)
    (folder / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module_here')\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = needs_docker: x\n")
    options = ["-ra", "-p", "no:cacheprovider", "--hypothesis-seed=77", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, "."]
    return subprocess.run(command, cwd=folder, env={**os.environ, "CI": ci}, capture_output=True, text=True, timeout=60)


def test_on_ci_only_a_test_that_needs_docker_may_be_skipped(tmp_path: Path) -> None:
    ran = run(tmp_path, "true")

    assert ran.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in ran.stdout
    assert "no libvirt here" in ran.stdout


def test_elsewhere_a_skip_is_a_skip_and_the_seed_is_printed(tmp_path: Path) -> None:
    ran = run(tmp_path, "")

    assert ran.returncode == 0
    assert "1 passed, 3 skipped, 1 xfailed" in ran.stdout
    assert "make test SEED=77" in ran.stdout
