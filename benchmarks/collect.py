"""Makes the results table: runs every benchmark with `--json` and writes `benchmarks/results.md`.

Run `python -m benchmarks.collect [NAME …] [-- FLAG …]`; without names all of them, `bench_` left out, but for those in LARGE, which are run
when named. Flags go to each that is run (`select -- --nova PYTHON`). Rows of benchmarks that are not run stay as they are, with their own
date and machine. The few that the README shows are written there as well (see `shown`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.report import said, table
from benchmarks.shown import with_section

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
PAGE = HERE / "results.md"
README = HERE.parent / "README.md"
LARGE = {
    "leak_audit_large": ("leak_audit", "--records", "10000000"),
    "end_to_end_5000": ("end_to_end", "--nodes", "5000", "--engines", "profiles"),
    "placement_kafka_5000": ("placement_kafka", "--nodes", "5000", "--engines", "profiles", "--schedulers", "2"),
}
"""What is not run with the others, as it takes long: a benchmark's name and flags."""
TITLES = ("benchmark", "subject", "parameters", "value", "unit", "date")


def main() -> None:
    known = [*sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")), *LARGE]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collect",
        usage="%(prog)s [-h] [NAME ...] [-- FLAG ...]",
        description="Run benchmarks and write benchmarks/results.md and the README's few figures anew; others' rows stay as they are.",
        epilog=f"Known: {', '.join(known)}. Flags behind -- go to each that is run.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"bench_ left out; default: all but {', '.join(LARGE)}")
    ours, flags = _split(sys.argv[1:])
    asked = parser.parse_args(ours).names or [name for name in known if name not in LARGE]
    if unknown := sorted(set(asked) - set(known)):
        parser.error(f"not known: {', '.join(unknown)}; known: {', '.join(known)}")
    figures = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    for name in asked:
        print(f"{name} …", file=sys.stderr, flush=True)
        figures = [figure for figure in figures if figure["module"] != name] + measured(name, flags)
        RESULTS.write_text("".join(json.dumps(figure) + "\n" for figure in sorted(figures, key=lambda figure: figure["module"])))
        PAGE.write_text(page(figures))
    README.write_text(with_section(README.read_text(), figures))


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is for this module, and what is behind `--` for the benchmarks."""
    ours = list(takewhile(lambda argument: argument != "--", arguments))
    return ours, arguments[len(ours) + 1 :]


def measured(name: str, flags: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The figures of one benchmark, in its own order."""
    benchmark, *own = LARGE.get(name, (name,))
    command = [sys.executable, "-m", f"benchmarks.bench_{benchmark}", "--json", *own, *flags]
    ran = subprocess.run(command, cwd=HERE.parent, check=True, text=True, stdout=subprocess.PIPE)
    date = datetime.now(UTC).date().isoformat()
    return [json.loads(line) | {"module": name, "date": date} for line in ran.stdout.splitlines()]


def page(figures: list[dict[str, Any]]) -> str:
    """The table for people, one section a machine."""
    machines = sorted({figure["machine"] for figure in figures})
    parts = ["# Results\n\nMade by `python -m benchmarks.collect`; what each figure means stands in the benchmark's own module.\n"]
    for machine in machines:
        rows = [row(figure) for figure in sorted(figures, key=lambda figure: figure["module"]) if figure["machine"] == machine]
        parts.append(f"\n## {machine}\n\n```\n{table(TITLES, rows, {3})}\n```\n")
    return "".join(parts)


def row(figure: dict[str, Any]) -> list[str]:
    parameters = ", ".join(f"{name}={said(value)}" for name, value in figure["parameters"].items())
    return [figure["benchmark"], figure["subject"], parameters, said(figure["value"]), figure["unit"], figure["date"]]


if __name__ == "__main__":
    main()
