"""The Azure extract: as many VMs as asked for, in time order, the same for the same seed; bad files are named with their line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from producers.traces import FLAVORS_FILE, TRACE_FILE, TraceUnreadable, read_flavors, trace
from producers.workload import Arrival, Departure

HEADING = "arrival_s,batch,flavor,life_lo_s,life_hi_s,censored"
LINES = [
    "1800000,0,m,300,600,0",
    "1800000,1,a,1200,1500,0",
    "1800000,2,m,0,300,0",
    "1800600,3,a,432300,518700,1",
]
Extract = Callable[..., Path]


@pytest.fixture
def extract(tmp_path: Path) -> Extract:
    def write(
        lines: list[str] = LINES, heading: str = HEADING, flavors: str = "flavor,vcpus,mem_gb,count\na,1,0.75,9\nm,8,14.0,3\n"
    ) -> Path:
        with gzip.open(tmp_path / TRACE_FILE, "wt") as file:
            file.write("\n".join([heading, *lines]) + "\n")
        (tmp_path / FLAVORS_FILE).write_text(flavors)
        return tmp_path

    return write


def complaint(directory: Path) -> str:
    with pytest.raises(TraceUnreadable) as caught:
        list(trace(directory, seed=1))
    return str(caught.value)


def test_arrivals_fall_into_their_bins_and_lifetimes_between_their_bounds(extract: Extract) -> None:
    events = list(trace(extract(), seed=1, start_ms=1_000))

    arrivals = {event.request.request_id: event for event in events if isinstance(event, Arrival)}
    ends = {event.request_id: event.time_ms for event in events if isinstance(event, Departure)}
    assert [event.time_ms for event in events] == sorted(event.time_ms for event in events)
    assert set(arrivals) == set(ends) == {"azure-2", "azure-3", "azure-4", "azure-5"}
    assert all(1_000 <= arrivals[name].time_ms < 301_000 for name in ("azure-2", "azure-3", "azure-4"))
    assert 601_000 <= arrivals["azure-5"].time_ms < 901_000
    lives_s = {name: (ends[name] - arrivals[name].time_ms) / 1000 for name in ends}
    assert 300 <= lives_s["azure-2"] < 600
    assert 0 <= lives_s["azure-4"] < 300
    assert 432_300 <= lives_s["azure-5"] < 518_700


def test_flavors_have_memory_in_mib_and_no_disk(extract: Extract) -> None:
    first = next(iter(trace(extract(LINES[1:2]), seed=1)))

    assert isinstance(first, Arrival)
    assert (first.request.resources.vcpus, first.request.resources.memory_mib, first.request.resources.disk_mib) == (1, 768, 0)
    assert (first.request.flavor.name, first.request.project_id) == ("azure-a", "batch-1")


def test_the_same_seed_gives_the_same_stream_and_a_limit_ends_it(extract: Extract) -> None:
    directory = extract()

    assert list(trace(directory, seed=5)) == list(trace(directory, seed=5)) != list(trace(directory, seed=6))
    assert len(list(trace(directory, seed=5, instances=2))) == 4


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["1800000,0,m,300,600"], f"{TRACE_FILE}:2: expected 6 columns, the line is cut short"),
        (["1800000,0,m,1,200,1,500,0"], f"{TRACE_FILE}:2: expected 6 columns, the line has more"),
        ([f"1800000,{'7' * 300},m,300,600,0"], f"{TRACE_FILE}:2: expected a batch of at most 255 characters, got 300"),
        (["soon,0,m,300,600,0"], f"{TRACE_FILE}:2: expected whole seconds: invalid literal for int() with base 10: 'soon'"),
        (["1800000,0,m,600,600,0"], f"{TRACE_FILE}:2: expected 0 <= life_lo_s < life_hi_s"),
        (["1800000,0,z,300,600,0"], f"{TRACE_FILE}:2: flavor 'z' is not in {FLAVORS_FILE}; known: a, m"),
        (
            ["1800300,0,m,300,600,0", "1800000,0,m,300,600,0"],
            f"{TRACE_FILE}:3: arrivals must be in order of time: 1800000 comes after 1800300",
        ),
    ],
)
def test_a_bad_line_is_named(extract: Extract, lines: list[str], expected: str) -> None:
    assert expected in complaint(extract(lines))


def test_missing_columns_are_named(extract: Extract) -> None:
    assert f"{TRACE_FILE}:1: expected the columns" in complaint(extract(heading="arrival_s,batch,flavor"))
    assert "missing: life_lo_s, life_hi_s, censored" in complaint(extract(heading="arrival_s,batch,flavor"))


def test_a_column_that_is_there_twice_is_named(extract: Extract) -> None:
    heading = HEADING.replace("batch", "life_lo_s,batch")
    assert f"{TRACE_FILE}:1: expected each column once; several are called life_lo_s" in complaint(extract(heading=heading))


def test_a_missing_file_says_where_it_may_be_named(tmp_path: Path) -> None:
    assert complaint(tmp_path).endswith(f"{TRACE_FILE} and {FLAVORS_FILE} with --data or CLAIMLOG_DATA")


def test_a_cut_archive_is_an_error_and_not_an_end(extract: Extract) -> None:
    directory = extract([f"{1_800_000 + 300 * number},{number},m,300,600,0" for number in range(5_000)])
    packed = (directory / TRACE_FILE).read_bytes()
    (directory / TRACE_FILE).write_bytes(packed[: len(packed) // 2])

    assert "cannot be read on" in complaint(directory)


def test_an_archive_that_is_none_is_an_error(extract: Extract) -> None:
    directory = extract()
    (directory / TRACE_FILE).write_bytes(b"plain text")

    assert "cannot be read on: Not a gzipped file" in complaint(directory)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flavor,vcpus,mem_gb\n", "the file has none"),
        ("flavor,vcpus,mem_gb\na,x,1\n", ":2: expected a flavor"),
        ("flavor,vcpus,mem_gb\na,-1,1\n", ":2: expected a flavor, .* >= 0"),
        ("flavor,vcpus,mem_gb\na,1,-1\n", ":2: expected a flavor, .* >= 0"),
        ("flavor,vcpus,mem_gb\na,1,nan\n", ":2: expected a flavor, .*NaN"),
        ("flavor,vcpus,mem_gb\na,1,1e300\n", ":2: expected a flavor, .* <= "),
        ("flavor,vcpus,mem_gb\na,1,1\na,2,1\n", ":3: flavor 'a' is there before with another size"),
    ],
)
def test_bad_flavors_are_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "f.csv").write_text(text)

    with pytest.raises(TraceUnreadable, match=expected):
        read_flavors(tmp_path / "f.csv")
