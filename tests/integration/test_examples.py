"""The examples, run as they are: a request becomes a domain on a real libvirt, and the dashboard shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from schemas.inventory import OperatorFields, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import AUDITS
from streams.cli.main import run
from streams.log.sqlite import SqliteLog
from streams.operator import Stamp, ask, configure

needs_libvirt = pytest.mark.skipif(
    find_spec("libvirt") is None, reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
UNLIMITED = OperatorFields(memory_mib=ResourceRule(ratio_milli=None), disk_mib=ResourceRule(ratio_milli=None))


def example(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def soon(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.1)


def audited(path: Path) -> bool:
    if not path.exists():
        return False
    with SqliteLog.open(str(path), create=True) as log:
        return any(log.ends(AUDITS).values()) if AUDITS in log.topics() else False


@needs_libvirt
def test_from_request_to_claim_to_running_domain_to_confirmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.sqlite"
    log_flag = ("--log", f"sqlite:{path}")
    launcher = example("launch.py", *log_flag, "--limit", "1")
    soon(lambda: audited(path), "the host is audited")
    request = PlacementRequested(request_id="r-1", flavor=Flavor(vcpus=1, memory_mib=128))
    with SqliteLog.open(str(path)) as log:
        log.append([configure("vm", Stamp("c-1", 1), fields=UNLIMITED), ask(request, Stamp("r-1", 1))])
    assert launcher.poll() is None

    command = [sys.executable, "-c", "from streams.cli.main import main; main()", "run", *log_flag, "--until-idle"]
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=60).returncode == 0
    out, err = launcher.communicate(timeout=30)

    assert (launcher.returncode, err) == (0, "")
    assert out.startswith(f"{request.instance(0)}: started on ")
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=60).returncode == 0
    assert run(["claims", "list", *log_flag, "-o", "json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["items"]
    assert (claim["state"], claim["instance_id"], claim["memory_mib"]) == ("confirmed", request.instance(0), 128)
    shown, _ = example("dashboard.py", *log_flag, "--once").communicate(timeout=30)
    assert "16 / 3 / 1 / 13" in shown


def test_the_dashboard_is_at_most_sixty_lines() -> None:
    assert len((ROOT / "examples" / "dashboard.py").read_text().splitlines()) <= 60
