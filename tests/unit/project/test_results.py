"""The tables of results say what was measured: those of the README and of benchmarks/results.md are made from benchmarks/results.jsonl."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.collect import PAGE, README, RESULTS, page
from benchmarks.shown import ROWS, with_section


@pytest.fixture(scope="module")
def figures() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def test_the_figures_of_the_readme_are_those_of_the_results(figures: list[dict[str, Any]]) -> None:
    readme = README.read_text()
    assert with_section(readme, figures) == readme


def test_the_page_of_results_is_made_from_them(figures: list[dict[str, Any]]) -> None:
    assert page(figures) == PAGE.read_text()


def test_another_figure_would_stand_in_the_readme(figures: list[dict[str, Any]]) -> None:
    shown = ROWS[0].ours.of(figures)
    others = [{**figure, "value": figure["value"] + 1000} if figure is shown else figure for figure in figures]
    assert with_section(README.read_text(), others) != README.read_text()


def test_a_figure_that_was_not_measured_is_named(figures: list[dict[str, Any]]) -> None:
    with pytest.raises(LookupError, match="no figure of select, engine"):
        with_section(README.read_text(), [figure for figure in figures if figure["module"] != "select"])


def test_a_readme_without_a_place_for_them_is_refused(figures: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"README\.md: expected the marks"):
        with_section("# claimlog\n", figures)


def test_a_figure_of_another_machine_says_so(figures: list[dict[str, Any]]) -> None:
    elsewhere = {"machine": "a slow one", "date": "2026-01-02"}
    moved = [figure | elsewhere if figure["module"] == "leak_audit_large" else figure for figure in figures]

    readme = with_section(README.read_text(), moved)

    (line,) = [line for line in readme.splitlines() if "leak audit of a log" in line]
    assert "two processes (a slow one; 2026-01-02) |" in line
    assert "2026-01-02 to" not in readme
