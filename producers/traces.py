"""The Azure extract as a stream of requests and ends of lifetimes, read line by line.

Columns: arrival_s (bins of 5 minutes), batch, flavor, life_lo_s, life_hi_s (bounds of the lifetime), censored (still alive at the window's
end). Within a bin arrivals are spread uniformly and a lifetime is drawn uniformly between its bounds, both from a seed. The trace knows
vCPUs and memory only, so its requests ask for no disk.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from random import Random
from typing import TextIO

import msgspec
from msgspec import Struct

from producers.workload import BIN_MS, Arrival, Departure, Timeline
from schemas.requests import Flavor, PlacementRequested
from schemas.units import NAME_CHARACTERS_MAX

TRACE_FILE = "azure_v1_2017_d20-30.csv.gz"
FLAVORS_FILE = "azure_v1_2017_flavors.csv"
COLUMNS = ("arrival_s", "batch", "flavor", "life_lo_s", "life_hi_s", "censored")


class TraceUnreadable(Exception):
    """A file of the trace is missing or says something else than expected; the message names file and line and what to do."""


class Row(Struct, frozen=True, gc=False):
    """One VM of the trace; `line` is where it stands in the file."""

    line: int
    arrival_s: int
    batch: str
    flavor: str
    life_lo_s: int
    life_hi_s: int


def trace(directory: Path, *, seed: int, instances: int | None = None, start_ms: int = 0) -> Iterator[Arrival | Departure]:
    """The first `instances` VMs (None: all) of the extract in `directory`, in time order; the first bin begins at `start_ms`.

    One request a VM, `azure-LINE`; the tenant is the batch. Raises TraceUnreadable.
    """
    flavors = read_flavors(directory / FLAVORS_FILE)
    random = Random(seed)
    timeline = Timeline()
    first_s: int | None = None
    for arrival_s, group in groupby(_rows(directory / TRACE_FILE, flavors, instances), key=lambda each: each.arrival_s):
        first_s = arrival_s if first_s is None else first_s
        bin_ms = start_ms + (arrival_s - first_s) * 1000
        coming: list[tuple[int, int, Arrival, int]] = []
        for row in group:
            time_ms = bin_ms + random.randrange(BIN_MS)
            lifetime_ms = random.randrange(row.life_lo_s * 1000, row.life_hi_s * 1000)
            request = PlacementRequested(request_id=f"azure-{row.line}", flavor=flavors[row.flavor], project_id=f"batch-{row.batch}")
            coming.append((time_ms, row.line, Arrival(time_ms, request), lifetime_ms))
        for _, _, arrival, lifetime_ms in sorted(coming, key=lambda each: each[:2]):
            yield from timeline.arrival(arrival, [lifetime_ms])
    yield from timeline.until()


def check(directory: Path, *, instances: int | None = None) -> int:
    """Read all that `trace` would, so that nothing is played of a file that is found wrong half-way; returns how many VMs those are.

    Raises TraceUnreadable.
    """
    return sum(1 for _ in _rows(directory / TRACE_FILE, read_flavors(directory / FLAVORS_FILE), instances))


def read_flavors(path: Path) -> dict[str, Flavor]:
    """The flavors by their letter: vCPUs, and memory given in GiB. Raises TraceUnreadable."""
    flavors: dict[str, Flavor] = {}
    with _opened(path) as lines:
        for line, fields in _fields(path, lines, ("flavor", "vcpus", "mem_gb")):
            letter = fields["flavor"]
            try:
                size = {"vcpus": int(fields["vcpus"]), "memory_mib": int(float(fields["mem_gb"]) * 1024)}
                flavor = msgspec.convert({"name": f"azure-{letter}", **size}, Flavor)  # a record with less than nothing is one nobody reads
            except (ValueError, OverflowError) as error:
                raise TraceUnreadable(f"{path}:{line}: expected a flavor, whole vCPUs and memory in GiB: {error}") from error
            if flavors.setdefault(letter, flavor) != flavor:
                raise TraceUnreadable(f"{path}:{line}: flavor {letter!r} is there before with another size")
    if not flavors:
        raise TraceUnreadable(f"{path}: expected flavors, the file has none")
    return flavors


def _rows(path: Path, flavors: dict[str, Flavor], instances: int | None) -> Iterator[Row]:
    """The VMs in order."""
    last_s = -1
    with _opened(path) as lines:
        for count, (line, fields) in enumerate(_fields(path, lines, COLUMNS)):
            if instances is not None and count >= instances:
                return
            row = _row(path, line, fields)
            if row.flavor not in flavors:
                raise TraceUnreadable(f"{path}:{line}: flavor {row.flavor!r} is not in {FLAVORS_FILE}; known: {', '.join(sorted(flavors))}")
            if row.arrival_s < last_s:
                raise TraceUnreadable(
                    f"{path}:{line}: arrivals must be in order of time: {row.arrival_s} comes after {last_s}; sort the file"
                )
            last_s = row.arrival_s
            yield row


def _row(path: Path, line: int, fields: dict[str, str]) -> Row:
    try:
        arrival_s, low_s, high_s = (int(fields[name]) for name in ("arrival_s", "life_lo_s", "life_hi_s"))
    except ValueError as error:
        raise TraceUnreadable(f"{path}:{line}: expected whole seconds: {error}") from error
    row = Row(line, arrival_s, fields["batch"], fields["flavor"], low_s, high_s)
    if len(row.batch) > NAME_CHARACTERS_MAX:  # it becomes a project's
        raise TraceUnreadable(f"{path}:{line}: expected a batch of at most {NAME_CHARACTERS_MAX} characters, got {len(row.batch)}")
    if not 0 <= row.life_lo_s < row.life_hi_s or row.arrival_s < 0:
        raise TraceUnreadable(f"{path}:{line}: expected 0 <= life_lo_s < life_hi_s and arrival_s >= 0, got {fields}")
    return row


def _opened(path: Path) -> TextIO:
    """The file as text, unpacked if its name ends in .gz."""
    try:
        return gzip.open(path, "rt", encoding="utf-8", newline="") if path.suffix == ".gz" else path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise TraceUnreadable(
            f"{path}: {error.strerror or error}; name the folder that has {TRACE_FILE} and {FLAVORS_FILE} with --data or CLAIMLOG_DATA"
        ) from error


def _fields(path: Path, lines: TextIO, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Each line after the heading, with its number in the file; every column has a value."""
    reader = csv.DictReader(lines)
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceUnreadable(f"{path}:1: expected the columns {', '.join(columns)}; missing: {', '.join(missing)}")
        heading = reader.fieldnames or ()
        if twice := [name for name in columns if heading.count(name) > 1]:
            raise TraceUnreadable(f"{path}:1: expected each column once; several are called {', '.join(twice)}")
        for fields in reader:
            if None in fields:  # a number written 1,200 moves all that follows it into other columns
                raise TraceUnreadable(f"{path}:{reader.line_num}: expected {len(heading)} columns, the line has more")
            if any(fields[name] is None for name in columns):
                raise TraceUnreadable(f"{path}:{reader.line_num}: expected {len(heading)} columns, the line is cut short")
            yield reader.line_num, fields
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise TraceUnreadable(f"{path}:{reader.line_num + 1}: cannot be read on: {error}; fetch the file again") from error
