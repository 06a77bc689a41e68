"""How long does `claimlog --help` take, as a whole process? The design allows 150 ms."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.report import Report, arguments, seconds

RUNS = 15
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    options = arguments("How long does `claimlog --help` take?")
    with Report("bench_cli", as_json=options.json) as report:
        for name, command in (("python", ["-c", "pass"]), ("help", ["-m", "streams.cli.main", "--help"])):
            taken = sorted(seconds(partial(run, command)) for _ in range(RUNS))
            report.add(name, taken[len(taken) // 2] * 1000, "ms", runs=RUNS)


def run(command: list[str]) -> None:
    subprocess.run([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
