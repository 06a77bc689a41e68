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


def test_what_a_demonstration_left_is_replaced_by_the_next_which_may_be_replaced_in_turn(tmp_path: Path) -> None:
    left, mark = tmp_path / "ledger.sqlite", tmp_path / "ledger.sqlite-demo"
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-ends", "ledger.sqlite-demo"):
        (tmp_path / name).write_bytes(b"of the last time")

    assert run(["demo", "--directory", str(tmp_path), "--scenario", "tempest-leak"]) == 0

    assert left.read_bytes().startswith(b"SQLite format 3")
    assert run(["doctor", "--quick", "--log", f"sqlite:{left}"]) in {0, 3}
    assert mark.exists()
