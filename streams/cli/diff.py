"""`claimlog diff`: what changed on the nodes between two moments, and which records made each change."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from projections.changes import VIEWS, Change, Changes, Figures, difference, figures, total
from schemas.resources import RESOURCES
from schemas.results import NodeResources
from schemas.topics import CLAIMS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.given.node_names import unknown_node
from streams.cli.given.timegrammar import GRAMMAR
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import teller
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import ends_at, moment_of, state_at
from streams.clock import wall_clock_ms
from streams.log.base import Log

CARRIED_LATER = "was in the answer at the first moment already, carried into the ledger later"

OnlyNodes = Annotated[str, Parameter(help="Only these nodes, as NAME or node/NAME.", show_default=False)]
AtFlag = Annotated[
    tuple[str, ...],
    Parameter(
        name="--at",
        allow_leading_hyphen=True,
        consume_multiple=False,
        negative=(),
        show_default=False,
        help=f"Twice: from when, to when; without the second: now. One of: {GRAMMAR}.",
    ),
]
WhyFlag = Annotated[bool, Parameter(name="--why", negative=(), help="Also the records between, each with what it changed; they add up.")]
UNITS = {"memory_mib": "memory MiB", "disk_mib": "disk MiB", "vcpus": "vcpus", "pcpus": "pcpus"}


def diff(*names: OnlyNodes, at: AtFlag = (), why: WhyFlag = False, log: LogFlag = None, show: Show = SHOW) -> int:
    """What changed on each node between two moments, resource by resource; with --why also by which record.

    A figure that nothing reports counts as 0 here. The records under a resource add up to its change, in every column; it is checked
    before anything is printed. Exits 0 if nothing differs, 3 if something does.
    """
    if len(at) not in {1, 2}:
        raise UsageProblem(f"diff needs --at once or twice (from when, to when), not {len(at)} times; for example --at -1h --at now")
    now_ms = wall_clock_ms()
    start, end = moment_of(at[0], now_ms), moment_of(at[1], now_ms) if len(at) > 1 else None
    tell, wanted = teller(sys.stderr), [name.removeprefix("node/") for name in names]
    with opened(log) as source:
        first = state_at(source, start, now_ms=now_ms, tell=tell)
        before = _rows(first)
        base = state_at(source, start, pending=False, now_ms=now_ms, tell=tell) if first.pending else first
        _check_order(source, base, ends_at(source, end, tell), at)
        changes = Changes(_rows(base), wanted)
        changes.settle(before, CARRIED_LATER, first.as_of_ms)
        last = state_at(source, end, each=changes.apply, begun=base, now_ms=now_ms, tell=tell)
    after = _rows(last)
    chosen = _chosen(wanted, sorted({*before, *after}))
    found = [change for change in changes.found if change.node_id in chosen]
    items = list(_items(chosen, before, after, found, last, why=why))
    summary = {"from": {"cut": str(first.cut)}, "to": {"cut": str(last.cut)}}
    report = Report(columns=columns(), items=items, cut=last.cut, summary=summary, like=_item("change", "", "", {}))
    show.write(report)
    differs = any(item["kind"] == "change" and (not item["resource"] or any(item["delta"].values())) for item in items)
    return Exit.FINDINGS if differs else Exit.DONE


def _rows(state: State) -> dict[str, NodeResources]:
    return state.rows(state.node_ids())


def _check_order(log: Log, first: State, last: Mapping[int, int], at: Sequence[str]) -> None:
    """Raises UsageProblem if the second moment does not include all that the first has."""
    for number, end in first.ends.items():
        if last.get(number, 0) < end:
            raise UsageProblem(
                f"--at {' --at '.join(at)}: the second moment is before the first ({CLAIMS}/{number} ends at {last.get(number, 0)}, "
                f"at the first at {end} of {log.end(CLAIMS, number)}); give the earlier one first"
            )


def _chosen(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The nodes asked for; all without names. Raises UsageProblem for one that neither moment knows."""
    for name in wanted:
        if name not in known:
            raise UsageProblem(unknown_node(name, known))
    return sorted(set(wanted)) or list(known)


def _items(
    chosen: Sequence[str],
    before: Mapping[str, NodeResources],
    after: Mapping[str, NodeResources],
    changes: Sequence[Change],
    last: State,
    *,
    why: bool,
) -> Iterator[dict[str, Any]]:
    """Per node its change of status, then per resource its change and, with `why`, the records that made it. Raises ValueError.

    A sum that is not the difference would be a fault of ours, and a wrong number is worse than none.
    """
    by_node: dict[str, list[Change]] = {}
    for change in changes:
        by_node.setdefault(change.node_id, []).append(change)
    for node_id in chosen:
        old, new = before.get(node_id), after.get(node_id)
        was, now = _status(old), _status(new)
        if was != now:
            yield _item("change", node_id, "", {}, summary=f"{was} -> {now}")
        made = by_node.get(node_id, [])
        delta = difference(figures(old) if old is not None else {}, figures(new) if new is not None else {})
        if total(made) != delta:
            raise ValueError(
                f"node {node_id!r}: the records between add up to {total(made)}, the difference is {delta}; this is a fault of claimlog, "
                "please report it with the log"
            )
        for resource in RESOURCES:
            parts = [change for change in made if resource in change.deltas] if why else []
            if resource in delta or parts:
                yield _change(node_id, resource, old, new, delta)
                yield from (_event(change, resource, last) for change in _in_order(parts))


def _status(row: NodeResources | None) -> str:
    if row is None:
        return "not known"
    return f"{row.status} ({row.status_reason})" if row.status_reason else row.status


def _in_order(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: (change.offset >= 0, change.time_ms, change.partition, change.offset))


def _change(node_id: str, resource: str, old: NodeResources | None, new: NodeResources | None, delta: Figures) -> dict[str, Any]:
    return _item("change", node_id, resource, delta.get(resource, {})) | {"before": _views(old, resource), "after": _views(new, resource)}


def _views(row: NodeResources | None, resource: str) -> dict[str, int | None] | None:
    return None if row is None else {view: getattr(getattr(row, resource), view) for view in VIEWS}


def _event(change: Change, resource: str, last: State) -> dict[str, Any]:
    item = _item("record", change.node_id, resource, change.deltas[resource], summary=change.summary)
    if change.offset >= 0:
        laid = last.laid.get((change.partition, change.offset))
        place = f"{CLAIMS}/{change.partition}@{change.offset}" if laid is None else str(laid)
        item |= {"time_ms": change.time_ms, "position": place, "event": change.event}
    return item


def _item(kind: str, node_id: str, resource: str, delta: Mapping[str, int], summary: str = "") -> dict[str, Any]:
    return {
        "kind": kind,
        "node_id": node_id,
        "resource": resource,
        "time_ms": None,
        "position": None,
        "event": None,
        "delta": {view: delta.get(view, 0) for view in VIEWS},
        "before": None,
        "after": None,
        "summary": summary,
    }


def _exactly(amount: int) -> str:
    """With its sign and to the last unit, so that a column can be added up by whoever doubts it."""
    return f"{amount:+,}" if amount else ""


def columns() -> list[Column]:
    """The columns of a difference: a line a change, under it a line for each record that has part in it."""
    return [
        Column(name="node_id", title="node"),
        Column(name="resource", shown=lambda name: UNITS.get(name, "status")),
        Column(name="time_ms", title="time", shown=lambda at: "" if at is None else units.moment(at)),
        Column(name="position", shown=lambda place: place or ""),
        Column(name="event", shown=lambda event: event or ""),
        *(Column(name=f"delta.{view}", title=view, right=True, wide=view == "used", shown=_exactly) for view in VIEWS),
        Column(name="summary", title="what"),
    ]
