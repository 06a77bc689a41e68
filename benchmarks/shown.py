"""The few figures that the README shows, each beside what was measured in the same run.

`benchmarks.collect` writes them between two marks of the README whenever it writes the results, and a test holds that they are those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.report import said

Figure = Mapping[str, Any]
BEGIN, END = "<!-- figures: python -m benchmarks.collect -->\n", "<!-- end of figures -->\n"


class Picked(NamedTuple):
    """One figure of the results: of a module, the subject's first with these parameters."""

    module: str
    subject: str
    parameters: Mapping[str, Any]

    def of(self, figures: Sequence[Figure]) -> Figure:
        """The figure. Raises LookupError, saying which is missing."""
        for figure in figures:
            has = figure["parameters"]
            if (figure["module"], figure["subject"]) == (self.module, self.subject) and self.parameters.items() <= has.items():
                return figure
        raise LookupError(f"results.jsonl: no figure of {self.module}, {self.subject}, {dict(self.parameters)}")


class Row(NamedTuple):
    """A line of the table: what is done, ours, and what another does in the same run, if any does."""

    what: str
    ours: Picked
    other: Picked | None = None
    others_name: str = ""


def _decisions(subject: str, nodes: int) -> Picked:
    return Picked("select", subject, {"nodes": nodes, "policy": "nova", "classes": 16})


NOVA = "Nova 34's own code"
ROWS = (
    Row("decisions on 1,000 nodes, Nova's filters and weighers, one core", _decisions("engine", 1_000), _decisions("nova", 1_000), NOVA),
    Row("the same on 10,000 nodes", _decisions("engine", 10_000), _decisions("nova", 10_000), NOVA),
    Row("requests to results on the embedded log, 500 nodes, evidence included", Picked("end_to_end", "profiles", {"nodes": 500})),
    Row("one of them at 200 a second, 99 of 100 within", Picked("end_to_end", "profiles p99", {"rate": 200})),
    Row("the same through Kafka, the broker on the same two cores", Picked("placement_kafka", "profiles", {"beside": "nothing"})),
    Row(
        "claims that a stream processor folds, its tables in RocksDB",
        Picked("processor_kafka", "worker, claims", {}),
        Picked("processor_kafka", "plain Faust table, rocksdb", {}),
        "a plain Faust table",
    ),
    Row("leak audit of a log of 10,000,000 records, from its first one, two processes", Picked("leak_audit_large", "leaks", {"jobs": 2})),
)


def section(figures: Sequence[Figure]) -> str:
    """The table for the README. Raises LookupError if a figure is missing."""
    first, *_ = found = [row.ours.of(figures) for row in ROWS]
    machine = first["machine"]
    dates = sorted({figure["date"] for figure in found if figure["machine"] == machine})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    lines = [f"{machine}; {when}:\n", "| | claimlog | in the same run |", "|---|--:|---|"]
    for row, ours in zip(ROWS, found, strict=True):
        other = "" if row.other is None else f"{row.others_name}: {_value(row.other.of(figures))}"
        elsewhere = "" if ours["machine"] == machine else f" ({ours['machine']}; {ours['date']})"
        lines.append(f"| {row.what}{elsewhere} | {_value(ours)} | {other} |")
    return "\n".join(lines) + "\n"


def _value(figure: Figure) -> str:
    return f"{said(figure['value'])} {figure['unit']}"


def with_section(readme: str, figures: Sequence[Figure]) -> str:
    """The README with the table between its marks. Raises ValueError if a mark is missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md: expected the marks {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}{section(figures)}{end}{after}"
