"""The broker that tests share is found by locks that die with their process: what a killed run left behind names no broker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests import kafka_broker
from tests.kafka_broker import locked

SERVER = """\
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[2])
time.sleep(0.2)
(folder / "part").write_text(f"new:{os.getpid()}")
(folder / "part").rename(folder / "address")
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a broker is shared, with a stand-in for the process that serves one."""
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    monkeypatch.setattr(kafka_broker, "shared_folder", lambda: tmp_path)
    monkeypatch.setattr(kafka_broker, "__file__", str(server))
    with locked(tmp_path / "shared"):
        return tmp_path / "shared"


def test_an_address_left_by_a_killed_run_is_not_taken_for_a_broker(folder: Path) -> None:
    """Nor is one that a process left whose number another process has by now."""
    (folder / "address").write_text("old:1")
    (folder / "pid").write_text(str(os.getpid()))
    address = kafka_broker._shared()
    assert address.startswith("new:")
    assert kafka_broker._shared() == address, "the second to ask shares the first one's"

    os.kill(int(address.partition(":")[2]), signal.SIGKILL)
    while kafka_broker._is_held(folder / "serving"):
        time.sleep(0.01)
    after = kafka_broker._shared()
    assert after.startswith("new:")
    assert after != address, "the killed one's is forgotten"
    os.kill(int(after.partition(":")[2]), signal.SIGKILL)
