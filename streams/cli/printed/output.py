"""How an answer is printed: `-o table|wide|json|jsonl|value`, `-c COLUMN`, `--sort COLUMN`.

Items are mappings of plain values with units in their names, the same in every format; a column says how people read one of them.
stdout has the data and nothing else; the cut of an answer is part of the JSON document, and otherwise a line on stderr.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal, TextIO

import msgspec
from msgspec import Struct, structs

from projections.cut import Cut
from streams.cli.printed.printable import printable
from streams.cli.printed.stdout import check_heard, hush_stdout
from streams.cli.problems import UsageProblem

Format = Literal["table", "wide", "json", "jsonl", "value"]
Item = Mapping[str, Any]

TABLE_LINES = 10_000
"""A longer table comes in pieces of so many lines: to align all records of a large log would take more memory than there is."""
_GAP = "  "
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"
_DIGITS = re.compile(r"(\d+)")


def plain(value: object) -> str:
    """A value as people read it when its column says nothing else; `-` for none."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple() | set() | frozenset():
            return ",".join(plain(part) for part in value)
        case Mapping():
            return ",".join(f"{key}={plain(part)}" for key, part in value.items())
        case _:
            return str(value)


class Column(Struct, frozen=True, kw_only=True):
    """One column: the item's key `name` (`memory_mib.free` for a part of a value), how a cell is `shown`, which values are an `alarm`.

    `told` shows a cell by its whole item instead, where the value alone does not say it all, and `alarm` is asked about that as well.
    `wide` columns are for `-o wide` only.
    """

    name: str
    title: str = ""
    shown: Callable[[Any], str] = plain
    told: Callable[[Item], str] | None = None
    right: bool = False
    wide: bool = False
    alarm: Callable[[Any], bool] | None = None

    @property
    def heading(self) -> str:
        """What stands above the column."""
        return self.title or self.name

    def cell(self, item: Item) -> str:
        """What this column says of an item."""
        return self.shown(value_of(item, self.name)) if self.told is None else self.told(item)

    def is_alarming(self, item: Item) -> bool:
        """Whether what it says of an item is for somebody to look at."""
        return self.alarm is not None and self.alarm(value_of(item, self.name) if self.told is None else item)


class Report(Struct, frozen=True, kw_only=True):
    """What a verb found out: its items, the columns people see by default, the cut it is true for, and totals for the JSON document.

    `mixed` are keys whose values have other parts from item to item. `like` is an item with all that any of them would have: where there
    is none, it says which columns there are, so that what a script asks for is wrong today and not on the day of the first leak.
    """

    columns: Sequence[Column]
    items: Iterable[Item]
    cut: Cut | None = None
    summary: Item | None = None
    mixed: tuple[str, ...] = ()
    like: Item | None = None


class Style(Struct, frozen=True, kw_only=True):
    """How the asker wants it; `colour` when stdout is a terminal that nobody told to be plain (NO_COLOR), `compact` a document a line."""

    format: Format = "table"
    columns: tuple[str, ...] = ()
    sort: str | None = None
    headers: bool = True
    colour: bool = False
    compact: bool = False


def item_of(record: Struct) -> dict[str, Any]:
    """A record as an item: every field, set or not, and every field of what is in it."""
    return {name: spelled(getattr(record, name)) for name in record.__struct_fields__}


def spelled(value: object) -> Any:
    """A value of a record as JSON has it, with all fields of the records in it: those of a log leave out what is zero or empty."""
    if isinstance(value, Struct):
        return item_of(value)
    if isinstance(value, tuple | list):
        return [spelled(each) for each in value]
    return msgspec.to_builtins(value)


def value_of(item: Item, name: str) -> Any:
    """The value under a key, or of the part of a value that `key.part` names; None if there is none."""
    if name in item or "." not in name:
        return item.get(name)
    key, _, part = name.partition(".")
    inner = item.get(key)
    return value_of(inner, part) if isinstance(inner, Mapping) else None


def write(report: Report, style: Style, out: TextIO, err: TextIO) -> None:
    """Print `report` to `out`; its cut goes to `err` unless it is in the document. Raises UsageProblem for a column that is not there.

    Who has read enough (`claimlog leaks | head -1`) is told no more, and what the answer means is still the exit code.
    """
    try:
        write_on(report, style, out, err)
    except BrokenPipeError:
        hush_stdout()


def write_on(report: Report, style: Style, out: TextIO, err: TextIO) -> None:
    """As `write`, but raises BrokenPipeError once nobody reads any more.

    Each item is printed as it comes, in tables with some thousand others; only `json`, one document, and what is sorted are kept in memory.
    """
    items = iter(report.items)
    first = list(islice(items, 1))
    style = _checked(style, report, first[0] if first else None)
    items = chain(first, items)
    if style.sort is not None:
        items = iter(_sorted(items, style.sort))
    items = _heard(items, out)
    columns = _columns(report.columns, style)
    match style.format:
        case "json":
            out.write(_document(report, [_chosen(item, style.columns) for item in items], compact=style.compact))
        case "jsonl":
            out.writelines(msgspec.json.encode(_chosen(item, style.columns)).decode() + "\n" for item in items)
        case "value":
            out.writelines("\t".join(printable(_raw(value_of(item, column.name))) for column in columns) + "\n" for item in items)
        case "table" | "wide":
            out.writelines(_pieces(columns, items, style))
    if report.cut is not None and style.format != "json":
        err.write(f"{report.cut}\n")


def in_order(report: Report, style: Style) -> list[Item]:
    """The items in the order in which `write` prints them, for who tells of each in words. Raises UsageProblem as that does."""
    items = list(report.items)
    style = _checked(style, report, items[0] if items else None)
    return _sorted(items, style.sort) if style.sort is not None else items


def check_asked(report: Report, style: Style) -> None:
    """Raises UsageProblem for what is neither a column nor in an item like `report.like`: for who writes before there is an answer."""
    _checked(style, report, report.like or {})


def _heard(items: Iterable[Item], out: TextIO) -> Iterator[Item]:
    for item in items:
        check_heard(out)
        yield item


def _pieces(columns: Sequence[Column], items: Iterator[Item], style: Style) -> Iterator[str]:
    """The table, in pieces of `TABLE_LINES`, each as wide as the one before where its own cells need less."""
    widths = [0] * len(columns)
    piece = list(islice(items, TABLE_LINES))
    yield table(columns, piece, headers=style.headers, colour=style.colour, widths=widths)
    while piece := list(islice(items, TABLE_LINES)):
        yield table(columns, piece, headers=False, colour=style.colour, widths=widths)


def table(
    columns: Sequence[Column], items: Sequence[Item], *, headers: bool = True, colour: bool = False, widths: list[int] | None = None
) -> str:
    """Aligned columns, a line an item; alarming cells are red where `colour` is allowed. `widths` are the least, and grow as is needed."""
    cells = [[printable(column.cell(item)) for column in columns] for item in items]
    lines = [[printable(column.heading) for column in columns], *cells] if headers else cells
    widths = [0] * len(columns) if widths is None else widths
    widths[:] = [max([least, *(text_width(line[place]) for line in lines)]) for place, least in enumerate(widths)]
    padded = [[_pad(text, widths[place], right=columns[place].right) for place, text in enumerate(line)] for line in lines]
    if colour:
        _paint(padded, columns, items, headers=headers)
    return "".join(_GAP.join(line).rstrip() + "\n" for line in padded)


def _paint(padded: list[list[str]], columns: Sequence[Column], items: Sequence[Item], *, headers: bool) -> None:
    if headers:
        padded[0] = [f"{_BOLD}{text}{_PLAIN}" for text in padded[0]]
    for line, item in zip(padded[1:] if headers else padded, items, strict=True):
        for place, column in enumerate(columns):
            if column.is_alarming(item):
                line[place] = f"{_RED}{line[place]}{_PLAIN}"


def _document(report: Report, items: list[Item], *, compact: bool) -> str:
    document: dict[str, Any] = {"cut": None if report.cut is None else str(report.cut)}
    if report.summary is not None:
        document["summary"] = report.summary
    document["items"] = items
    encoded = msgspec.json.encode(document)
    return (encoded if compact else msgspec.json.format(encoded, indent=2)).decode() + "\n"


def _checked(style: Style, report: Report, first: Item | None) -> Style:
    """The style with the names of its columns. Raises UsageProblem for one that is in none of the items."""
    known = {**(report.like or {}), **(first or {})}
    style = _by_name(style, report.columns, known)
    if first is None and report.like is None:
        return style  # Of no item nobody knows what it would have.
    for name in [*style.columns, *([] if style.sort is None else [style.sort.removeprefix("-")])]:
        there = [column.name for column in report.columns]
        if name not in {*there, *known} and not (name.partition(".")[0] in report.mixed or _may_have(known, name)):
            is_heading = name in {column.heading for column in report.columns}
            said = f"{name!r} stands above several columns" if is_heading else f"there is no column {name!r}"
            raise UsageProblem(f"{said}; there are: {', '.join(dict.fromkeys([*there, *known]))}")
    return style


def _by_name(style: Style, columns: Sequence[Column], first: Item) -> Style:
    """The style with the names of columns that are asked for by what stands above them, as far as that stands above one only."""
    headings = Counter(column.heading for column in columns)
    known = {*first, *(column.name for column in columns)}
    names = {each.heading: each.name for each in columns if headings[each.heading] == 1 and each.heading not in known}
    chosen = tuple([names.get(each, each) for each in style.columns])
    if style.sort is None:
        return structs.replace(style, columns=chosen)
    descends, name = "-" * style.sort.startswith("-"), style.sort.removeprefix("-")
    return structs.replace(style, columns=chosen, sort=f"{descends}{names.get(name, name)}")


def _may_have(item: Item, name: str) -> bool:
    """Whether there is such a part of a value, or may be in other items: of a value that this one lacks nobody knows its parts."""
    if name in item:
        return True
    key, dot, part = name.partition(".")
    inner = item.get(key, "")
    return bool(dot) and (inner is None or (isinstance(inner, Mapping) and _may_have(inner, part)))


def _chosen(item: Item, chosen: Sequence[str]) -> Item:
    return {name: value_of(item, name) for name in chosen} if chosen else item


def _columns(columns: Sequence[Column], style: Style) -> list[Column]:
    if not style.columns:
        return [column for column in columns if style.format == "wide" or not column.wide]
    by_name = {column.name: column for column in columns}
    return [by_name.get(name) or Column(name=name) for name in style.columns]


def _sorted(items: Iterable[Item], sort: str) -> list[Item]:
    """By the value, not by its text; `-NAME` descends; what has no value comes last either way. Numbers in texts count as numbers."""
    listed = list(items)
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    having = [item for item in listed if value_of(item, name) is not None]
    try:
        having.sort(key=lambda item: _ranked(value_of(item, name)), reverse=descending)
    except TypeError:  # values of several kinds have no order of their own
        having.sort(key=lambda item: _ranked(plain(value_of(item, name))), reverse=descending)
    return having + [item for item in listed if value_of(item, name) is None]


def _ranked(value: Any) -> Any:
    """A value in its order; of texts, `claims/0@9` comes before `claims/0@10`, and node-2 before node-10."""
    if not isinstance(value, str):
        return value
    parts = _DIGITS.split(value)
    return [(part, 0, "") if at % 2 == 0 else ("", len(part.lstrip("0")), part.lstrip("0")) for at, part in enumerate(parts)]


def _raw(value: object) -> str:
    """A value for scripts: the number itself, JSON for what has parts, nothing for none."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return msgspec.json.encode(value).decode()


def text_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(part) else 1 + (unicodedata.east_asian_width(part) in "WF") for part in text)


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - text_width(text))
    return space + text if right else text + space
