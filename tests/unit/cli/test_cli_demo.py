"""`claimlog demo` replaces what an earlier demonstration left, and nobody's ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.cli.main import run
from tests.cli_log import FleetLog


@pytest.mark.parametrize("scenario", ["story", "tempest-leak"])
def test_a_ledger_that_no_demonstration_made_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.log.close()
    path = fleet.path.rename(tmp_path / "ledger.sqlite")
    before = path.read_bytes()

    code = run(["demo", "--directory", str(tmp_path), "--scenario", scenario])

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert "is not known to be of an earlier demonstration (ledger.sqlite-demo is missing), so it is not replaced" in said.err
    assert path.read_bytes() == before


def test_what_a_demonstration_left_is_replaced_by_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for _ in range(2):
        assert run(["demo", "--directory", str(tmp_path), "--scenario", "tempest-leak"]) == 0
        assert run(["events", "--type", "partition-opened", "--log", f"sqlite:{tmp_path}/ledger.sqlite", "-o", "value"]) == 0
        runs.append(capsys.readouterr().out.splitlines()[-1])

    assert runs[0] != runs[1]
