"""How every benchmark reports: a table for people, or with `--json` one object a line.

An object has benchmark, subject, parameters, value, unit and machine. A benchmark measures its peer in the same run, so that a
figure can be read without knowing the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self


def machine() -> str:
    """Processor, cores and Python, such as `Xeon 2.20GHz, 2 cores, CPython 3.11.2`."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = models[0] if models else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, {platform.python_implementation()} {platform.python_version()}"


def arguments(description: str, add: Callable[[argparse.ArgumentParser], None] = lambda _: None) -> argparse.Namespace:
    """The command line of a benchmark: `--json`, and what `add` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one object a line instead of a table")
    add(parser)
    return parser.parse_args()


def positive(text: str) -> int:
    """A number from 1 on: so many runs, or processes."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"at least 1 is needed, not {number}")
    return number


def positives(text: str) -> list[int]:
    """Such numbers with commas between: sizes of fleets, or rates. None for an empty text."""
    return [positive(each) for each in text.split(",") if each]


def duration_seconds(text: str) -> float:
    """How long something is measured: more than no time, and not for ever."""
    if not 0 < (seconds := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"more than 0 seconds are needed, and an end, not {text}")
    return seconds


class Report:
    """Takes figures as they come: `--json` prints each at once, a table is printed by `close`, or at the end of a `with` block."""

    def __init__(self, benchmark: str, *, as_json: bool) -> None:
        self.benchmark, self._as_json = benchmark, as_json
        self._machine = machine()
        self._rows: list[tuple[str, str, str, str]] = []

    def add(self, subject: str, value: float, unit: str, **parameters: Any) -> None:
        """One figure: what was measured, how much of what unit, under which parameters."""
        if self._as_json:
            figure = {"benchmark": self.benchmark, "subject": subject, "parameters": parameters, "value": value, "unit": unit}
            print(json.dumps(figure | {"machine": self._machine}), flush=True)
            return
        self._rows.append((subject, ", ".join(f"{name}={said(held)}" for name, held in parameters.items()), said(value), unit))
        if sys.stderr.isatty():
            print(f"... {subject}: {said(value)} {unit}", file=sys.stderr)

    def close(self) -> None:
        """Print the table."""
        if self._rows:
            print(f"{self.benchmark}  ({self._machine})")
            print(table(["subject", "parameters", "value", "unit"], self._rows, right={2}))
            self._rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows in columns as wide as they need; the columns in `right` are set to the right."""
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join(map(line, [titles, ["-" * width for width in widths], *rows]))


def said(value: object) -> str:
    """A figure as people read it: `250,000`, `1.53`, `0.00042`."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which `share` of them are (nearest rank); of an empty list, 0."""
    return sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)] if sorted_values else 0.0


def percentiles(values: Sequence[float], shares: Mapping[str, float]) -> dict[str, float]:
    """Several of them by name."""
    ordered = sorted(values)
    return {name: percentile(ordered, share) for name, share in shares.items()}


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure by name the median of what several runs found."""
    return {name: median([run[name] for run in runs]) for name in runs[0]}
