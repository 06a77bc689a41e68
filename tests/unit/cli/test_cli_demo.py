"""`claimlog demo` replaces what an earlier demonstration left, and nobody's ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.cli.main import run
from streams.log.sqlite import SqliteLog
from tests.cli_log import FleetLog


@pytest.mark.parametrize("scenario", ["story", "tempest-leak"])
def test_a_ledger_that_no_demonstration_made_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.log.close()
    path = fleet.path.rename(tmp_path / "ledger.sqlite")
    before = path.read_bytes()

    refused = run(["demo", "--directory", str(tmp_path), "--scenario", scenario])
    first = capsys.readouterr()
    (tmp_path / "ledger.sqlite-demo").write_text("of another log that was here")
    again = run(["demo", "--directory", str(tmp_path), "--scenario", scenario])

    assert (refused, again, first.out) == (2, 2, "")
    assert f"{path} is not known to be of an earlier demonstration (whose ledger ledger.sqlite-demo names)" in first.err
    assert path.read_bytes() == before


def test_what_is_left_of_a_ledger_without_its_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ledger.sqlite-wal").write_bytes(b"acknowledged records")

    assert run(["demo", "--directory", str(tmp_path)]) == 2
    assert "ledger.sqlite-wal is not known" in capsys.readouterr().err
    assert (tmp_path / "ledger.sqlite-wal").read_bytes() == b"acknowledged records"


def test_what_a_demonstration_left_is_replaced_by_the_next_which_may_be_replaced_in_turn(tmp_path: Path) -> None:
    path, mark = tmp_path / "ledger.sqlite", tmp_path / "ledger.sqlite-demo"
    with SqliteLog.open(path, create=True) as log:
        mark.write_text(log.ledger_id)

    assert run(["demo", "--directory", str(tmp_path), "--scenario", "tempest-leak"]) == 0

    with SqliteLog.open(path) as replaced:
        assert mark.read_text() == replaced.ledger_id != log.ledger_id
