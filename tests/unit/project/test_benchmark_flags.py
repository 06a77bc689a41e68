"""A benchmark of nothing is a wrong command line, not a figure."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import collect
from benchmarks.report import duration_seconds, positive, positives


def test_a_number_of_runs_is_one_or_more() -> None:
    assert [positive("1"), positive("4000")] == [1, 4000]


@pytest.mark.parametrize("text", ["0", "-3"])
def test_less_than_one_is_refused_and_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"at least 1 is needed, not {text}"):
        positive(text)


def test_a_list_of_sizes_or_rates_may_be_empty_but_holds_no_zero() -> None:
    assert [positives(""), positives("200,1000")] == [[], [200, 1000]]
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1 is needed, not 0"):
        positives("200,0")


@pytest.mark.parametrize("text", ["0", "-1.5", "inf", "nan"])
def test_no_time_and_no_end_are_refused(text: str) -> None:
    assert duration_seconds("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match=f"more than 0 seconds are needed, and an end, not {text}"):
        duration_seconds(text)


def test_argparse_ends_with_2_on_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=positive)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--runs", "many"])
    assert "--runs" in capsys.readouterr().err


def test_collect_has_a_help_that_names_all_and_runs_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["collect", "--help"])

    with pytest.raises(SystemExit, match="0"):
        collect.main()

    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m benchmarks.collect [-h] [NAME ...] [-- FLAG ...]")
    assert "select" in shown
    assert "placement_kafka_5000" in shown


def test_collect_refuses_a_benchmark_that_is_not_there_before_it_runs_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["collect", "cli", "nonsense", "--", "--runs", "1"])

    with pytest.raises(SystemExit, match="2"):
        collect.main()

    assert "not known: nonsense; known: cli, " in capsys.readouterr().err
