"""The Makefile: `make setup` installs again, as those are told to do whose tests of libvirt were skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_setup_installs_although_it_was_done_before(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".dev"):
        (tmp_path / name).touch()

    said = subprocess.run(["make", "-n", "-C", str(ROOT), f"VENV={tmp_path}", "setup"], capture_output=True, text=True, check=True).stdout

    assert f"{tmp_path}/bin/python -m pip install" in said
