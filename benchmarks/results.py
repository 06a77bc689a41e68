"""How every benchmark says what it measured: a table for people, an object a line with `--json`, always with the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

Parameters = Mapping[str, int | float | str | bool]


@cache
def machine() -> str:
    """Processor, its cores, kernel and Python: what a figure depends on besides the code."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # Not Linux: the processor's short name has to do.
    system, python = f"{platform.system()} {platform.release()}", f"{platform.python_implementation()} {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {system}, {python}"


class Report:
    """The results of one benchmark, each printed as soon as it is known."""

    def __init__(self, benchmark: str, *, as_json: bool) -> None:
        self.benchmark, self.as_json = benchmark, as_json
        self._headed = False

    def row(self, subject: str, value: float, unit: str, parameters: Parameters | None = None) -> None:
        """One figure."""
        said = dict(parameters or {})
        if self.as_json:
            line = {
                "benchmark": self.benchmark,
                "subject": subject,
                "parameters": said,
                "value": round(value, 4),
                "unit": unit,
                "machine": machine(),
            }
            print(json.dumps(line), flush=True)
            return
        if not self._headed:
            print(f"{self.benchmark} on {machine()}")
            self._headed = True
        shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
        print(f"  {subject:<34} {shown:>14} {unit:<12} {' '.join(f'{name}={text}' for name, text in said.items())}", flush=True)
