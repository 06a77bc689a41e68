"""How an answer is printed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.cut import Cut
from schemas.units import mib_text
from streams.cli.printed import output
from streams.cli.printed.output import Column, Item, Report, Style, table, write
from streams.cli.problems import UsageProblem

CUT = Cut.of({("claims", 0): 1841})
COLUMNS = [
    Column(name="node_id", title="node"),
    Column(name="memory_mib_free", title="free", shown=mib_text, right=True, alarm=lambda free_mib: free_mib < 0),
    Column(name="zone", wide=True),
]
ITEMS: list[Item] = [
    {"node_id": "c02", "memory_mib_free": -512, "zone": "az1", "vcpus": 4},
    {"node_id": "c10", "memory_mib_free": 10240, "zone": None, "vcpus": 16},
    {"node_id": "c01", "memory_mib_free": 2048, "zone": "az2", "vcpus": 9},
]


def printed(style: Style, items: list[Item] | None = None, summary: Item | None = None) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    write(Report(columns=COLUMNS, items=ITEMS if items is None else items, cut=CUT, summary=summary), style, out, err)
    return out.getvalue(), err.getvalue()


def test_a_table_is_aligned_and_its_cut_is_not_among_the_data() -> None:
    assert printed(Style()) == ("node      free\nc02   -512 MiB\nc10     10 GiB\nc01      2 GiB\n", f"{CUT}\n")


def test_wide_has_the_wide_columns_too() -> None:
    out, _ = printed(Style(format="wide"))

    assert out.splitlines()[1:3] == ["c02   -512 MiB  az1", "c10     10 GiB  -"]


def test_json_is_one_document_with_cut_and_items() -> None:
    out, err = printed(Style(format="json"), summary={"nodes": 3})

    assert json.loads(out) == {"cut": str(CUT), "summary": {"nodes": 3}, "items": ITEMS}
    assert err == ""


def test_json_of_nothing_is_still_a_document_and_a_table_of_nothing_its_headings() -> None:
    assert json.loads(printed(Style(format="json"), items=[])[0]) == {"cut": str(CUT), "items": []}
    assert printed(Style(), items=[])[0] == "node  free\n"


def test_jsonl_is_an_object_a_line_with_the_chosen_columns() -> None:
    out, err = printed(Style(format="jsonl", columns=("vcpus", "node_id"), sort="node_id"))

    assert out == '{"vcpus":9,"node_id":"c01"}\n{"vcpus":4,"node_id":"c02"}\n{"vcpus":16,"node_id":"c10"}\n'
    assert err == f"{CUT}\n"


def test_value_is_for_scripts_raw_and_without_headings() -> None:
    out, _ = printed(Style(format="value", columns=("node_id", "memory_mib_free", "zone")))

    assert out == "c02\t-512\taz1\nc10\t10240\t\nc01\t2048\taz2\n"


def test_a_chosen_column_may_be_any_key_of_an_item() -> None:
    assert printed(Style(columns=("vcpus", "memory_mib_free"), headers=False))[0].splitlines()[0] == "4   -512 MiB"


@pytest.mark.parametrize(
    ("sort", "nodes"),
    [("memory_mib_free", ["c02", "c01", "c10"]), ("-memory_mib_free", ["c10", "c01", "c02"]), ("zone", ["c02", "c01", "c10"]),
     ("-zone", ["c01", "c02", "c10"]), ("-vcpus", ["c10", "c01", "c02"])],
)  # fmt: skip
def test_sorting_goes_by_value_and_nothing_comes_last(sort: str, nodes: list[str]) -> None:
    assert printed(Style(format="value", columns=("node_id",), sort=sort))[0].split() == nodes


def test_numbers_in_texts_are_numbers_where_it_is_sorted_by_them() -> None:
    places = ["claims/0@9", "claims/10@1", "claims/0@10", "claims/2@5", "claims/0@007", "audits/3@1"]
    report = Report(columns=[Column(name="position")], items=[{"position": place} for place in places])
    out = io.StringIO()

    write(report, Style(format="value", sort="position"), out, io.StringIO())

    assert out.getvalue().split() == ["audits/3@1", "claims/0@007", "claims/0@9", "claims/0@10", "claims/2@5", "claims/10@1"]


@pytest.mark.parametrize("sort", ["", "-"])
def test_an_empty_name_is_no_column_to_sort_by(sort: str) -> None:
    with pytest.raises(UsageProblem, match="there is no column ''"):
        printed(Style(sort=sort))


@pytest.mark.parametrize("format_", ["table", "wide", "json", "jsonl", "value"])
@pytest.mark.parametrize("wrong", [{"columns": ("nod",)}, {"sort": "-nod"}])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(format_: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem, match="no column 'nod'; there are: node_id, memory_mib_free, zone, vcpus"):
        printed(Style(format=format_, **wrong))


def test_an_answer_without_an_end_is_printed_item_by_item() -> None:
    out = io.StringIO()

    def items() -> Iterator[Item]:
        for number in range(3):
            yield {"node_id": f"c{number}"}
        assert out.getvalue().count("\n") >= 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(Report(columns=COLUMNS, items=items()), Style(format="jsonl"), out, io.StringIO())

    assert out.getvalue() == '{"node_id":"c0"}\n{"node_id":"c1"}\n{"node_id":"c2"}\n'


def test_a_long_table_comes_in_pieces_none_narrower_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "TABLE_LINES", 2)
    out, shown = io.StringIO(), list[str]()

    def items() -> Iterator[Item]:
        for node_id in ("c1", "compute-2", "c3", "c4", "compute-0000005"):
            shown.append(out.getvalue())
            yield {"node_id": node_id, "memory_mib_free": 1024, "zone": None}

    write(Report(columns=COLUMNS, items=items()), Style(), out, io.StringIO())

    assert (
        out.getvalue()
        == "node        free\nc1         1 GiB\ncompute-2  1 GiB\nc3         1 GiB\nc4         1 GiB\ncompute-0000005  1 GiB\n"
    )
    assert [len(each.splitlines()) for each in shown] == [0, 0, 3, 3, 5]


def test_colour_marks_headings_and_alarms_and_nothing_else() -> None:
    lines = table(COLUMNS[:2], ITEMS, colour=True).splitlines()

    assert lines[0] == "\x1b[1mnode\x1b[0m  \x1b[1m    free\x1b[0m"
    assert lines[1] == "c02   \x1b[31m-512 MiB\x1b[0m"
    assert lines[2] == "c10     10 GiB"


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=6))
def test_no_text_from_a_message_breaks_a_table(cells: list[tuple[str, str]]) -> None:
    columns = [Column(name="a"), Column(name="b")]
    items: list[Item] = [{"a": a, "b": b} for a, b in cells]

    text = table(columns, items)

    assert len(text.split("\n")) == len(cells) + 2
    assert text.replace("\n", "").isprintable()


def test_names_of_double_width_stay_aligned() -> None:
    assert table([Column(name="a"), Column(name="b")], [{"a": "計算", "b": 1}, {"a": "c1", "b": 2}]) == "a     b\n計算  1\nc1    2\n"


def test_a_dotted_column_names_a_part_of_a_value_in_every_format() -> None:
    items = [{"node": name, "memory_mib": {"free": free}} for name, free in (("b", 5), ("a", 7), ("c", None))]
    out, err = io.StringIO(), io.StringIO()

    style = Style(format="value", columns=("node", "memory_mib.free"), sort="-memory_mib.free")
    write(Report(columns=[Column(name="node")], items=items), style, out, err)

    assert out.getvalue() == "a\t7\nb\t5\nc\t\n"


def test_a_column_may_be_named_by_what_stands_above_it_where_that_stands_above_one_only() -> None:
    by_heading = Style(format="jsonl", columns=("node", "free"), sort="-free")

    assert printed(by_heading)[0].splitlines()[0] == '{"node_id":"c10","memory_mib_free":10240}'
    assert printed(by_heading, items=[])[0] == ""
    twice = [*COLUMNS, Column(name="disk_mib_free", title="free")]
    with pytest.raises(UsageProblem, match="'free' stands above several columns; there are: node_id, memory_mib_free, zone, disk_mib_free"):
        write(Report(columns=twice, items=ITEMS), by_heading, io.StringIO(), io.StringIO())
    named_so: list[Item] = [{"node_id": "c1", "node": "its own", "memory_mib_free": 1}]
    assert printed(Style(format="value", columns=("node",)), items=named_so)[0] == "its own\n"
