"""A benchmark of nothing is a wrong command line, not a figure."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.report import positive


def test_a_number_of_runs_is_one_or_more() -> None:
    assert [positive("1"), positive("4000")] == [1, 4000]


@pytest.mark.parametrize("text", ["0", "-3"])
def test_less_than_one_is_refused_and_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"at least 1 is needed, not {text}"):
        positive(text)


def test_argparse_ends_with_2_on_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=positive)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--runs", "many"])
    assert "--runs" in capsys.readouterr().err
