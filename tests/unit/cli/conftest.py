"""What tests of several verbs are run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """c01 has 8 GiB and 16 vCPUs, c02 half of the memory."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=8192)
    fleet.audit("c02", {}, memory_mib=4096)
    return fleet
