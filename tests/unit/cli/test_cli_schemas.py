"""`claimlog schemas` answers on stdout and says the rest on stderr."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.export import schemas
from streams.cli.main import run
from streams.cli.schemas import export, list_, show


def test_list_has_a_line_for_each_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_() == 0

    lines = capsys.readouterr().out.splitlines()
    assert "claim-requested\tclaims\tnode or group" in lines
    assert len(lines) == len(schemas())


def test_show_prints_one_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("claim-requested") == 0

    assert msgspec.json.decode(capsys.readouterr().out)["$id"] == "urn:claimlog:schema:claim-requested"


def test_an_unknown_type_is_a_mistake_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schemas", "show", "claim"]) == 2

    printed = capsys.readouterr()
    assert (printed.out, printed.err[:52]) == ("", "claimlog: type 'claim' is not known; known: audit-fa")


def test_export_writes_a_file_a_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(tmp_path / "out") == 0

    assert {path.stem for path in (tmp_path / "out").iterdir()} == set(schemas())
    assert capsys.readouterr().out == ""


def test_a_directory_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")

    assert export(tmp_path / "file") == 1

    assert f"{tmp_path}/file: the schemas cannot be written" in capsys.readouterr().err


def test_a_name_with_control_characters_moves_nobodys_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(tmp_path / "red \x1b[31m") == 0

    assert capsys.readouterr().err == f"{len(schemas())} schemas written to {tmp_path}/red \\x1b[31m\n"
