"""`claimlog fleet`: the operator's settings of all nodes, applied from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from cyclopts import App, Parameter
from msgspec import structs, to_builtins

from projections.node import Node
from schemas.few import few
from streams.cli.flags import SHOW, LogFlag, MomentFlag, Show
from streams.cli.fleet.file import Change, FleetFile, all_reserved, is_pattern, named, pages_text, read, settings, unknown_names, wanted
from streams.cli.fleet.writing import Wants, would_change, write_settings
from streams.cli.given.asking import file_or_stdin
from streams.cli.given.documents import file_text
from streams.cli.given.node_names import NodeNames, matching, unknown_node
from streams.cli.printed import units
from streams.cli.printed.amounts import TITLES, amount_text
from streams.cli.printed.output import Column, Report, plain
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import moment_of, state_at

app = App(name="fleet", help="Ratios, reserved amounts, zones, aggregates and traits of all nodes, from a file.")

CHANGES = [Column(name="node_id", title="node"), Column(name="field"), Column(name="before"), Column(name="after")]

NewFlag = Annotated[bool, Parameter(name="--new", negative=(), help="Write settings of nodes that have not been reported yet, too.")]
DryRunFlag = Annotated[bool, Parameter(name="--dry-run", negative=(), help="Say what would change and write nothing.")]


@app.command
def apply(
    file: Annotated[str, file_or_stdin("TOML: [defaults], [nodes.NAME-OR-PATTERN], [aggregates.NAME]; - is stdin.")],
    /,
    *,
    dry_run: DryRunFlag = False,
    new: NewFlag = False,
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Write what a file wants otherwise than it is, and nothing else; applied twice it changes nothing.

    Sections: [defaults] for every node, [nodes.NAME] or [nodes."c0*"] over it, [aggregates.NAME] with nodes and metadata. Settings:
    vcpus, pcpus, memory_mib, disk_mib = { ratio, reserved, min_unit, max_unit, step_size }; zone; traits;
    pages_reserved = [{ size_kib, reserved }], of each NUMA cell.
    ratio is a decimal with up to three places, or "unlimited". What the file does not mention stays as it is, but for aggregates: with
    one in the file those are all there are, and nodes leave the others.
    """
    wants = _file(file)
    report = Report(columns=CHANGES, items=(), like=dict.fromkeys(Change.__struct_fields__))
    show.check(report)
    with opened(log) as source:
        # Nodes that are reported but not carried yet are known as well. Where there are none, that is the ledger, folded once.
        everyone = state_at(source, views=False)
        state = state_at(source, views=False, pending=False) if everyone.laid else everyone
        nodes = {node_id: state.node(node_id) or _unheard_of(node_id) for node_id in _nodes(wants, everyone, new=new)}
        apply_to = would_change if dry_run else partial(write_settings, source, state)
        changed = apply_to(nodes, Wants(partial(wanted, wants), partial(named, wants)))
        reserved = [said for node_id in changed for said in all_reserved(nodes[node_id], wanted(wants, nodes[node_id]))]
    listed = [to_builtins(change) for found in changed.values() for change in found]
    report = structs.replace(report, items=listed, cut=state.cut)
    show.write(report)
    if reserved:
        say(f"more is reserved than there is, so nothing fits: {few(reserved, separator='; ')}")
    say(_summary(len(changed), len(nodes), dry_run=dry_run))
    return 0


@app.command(name="show")
def show_(*names: NodeNames, log: LogFlag = None, at: MomentFlag = "now", show: Show = SHOW) -> int:
    """The operator's settings of every node, as they stand in the ledger.

    zone is the setting alone; `claimlog nodes` has the zones of a node's aggregates, too.
    """
    with opened(log) as source:
        state = state_at(source, moment_of(at), views=False)
    items = [settings(node) for node_id in matching(state.node_ids(), names) if (node := state.node(node_id)) is not None]
    show.write(Report(columns=_columns(), items=items, cut=state.cut, like=settings(Node(""))))
    return 0


def _columns() -> list[Column]:
    amounts = []
    for resource in ("memory_mib", "vcpus", "disk_mib", "pcpus"):
        title, shown, is_wide = TITLES[resource], partial(amount_text, resource), resource == "pcpus"
        amounts.append(Column(name=f"{resource}.ratio_milli", title=f"{title} ratio", shown=units.ratio, right=True, wide=is_wide))
        amounts.append(Column(name=f"{resource}.reserved", title="reserved", shown=shown, right=True, wide=is_wide))
        amounts.append(Column(name=resource, title=f"{title} units", shown=_units, wide=True))
    return [
        Column(name="node_id", title="node"),
        Column(name="status"),
        Column(name="status_reason", title="reason", shown=lambda reason: reason or "-", wide=True),
        Column(name="zone", shown=lambda zone: zone or "-"),
        *amounts,
        Column(name="aggregates", shown=lambda aggregates: plain([each["name"] for each in aggregates]) or "-"),
        Column(name="traits", shown=lambda traits: plain(traits) or "-"),
        Column(name="pages_reserved", title="pages reserved", shown=_pages, wide=True),
    ]


def _units(rule: Mapping[str, Any]) -> str:
    """How instances may be cut: least and greatest amount, and in steps of how much; `-` where any will do."""
    least, most, step = rule["min_unit"], rule["max_unit"], rule["step_size"]
    if least <= 1 and most is None and step <= 1:
        return "-"
    return f"{least} to {'any' if most is None else most} by {max(step, 1)}"


def _pages(pages: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(pages_text(**each) for each in pages) or "-"


def _file(path: str) -> FleetFile:
    name = "stdin" if path == "-" else path
    return read(file_text(path, f"{name} cannot be read", or_stdin=True), name)


def _nodes(wants: FleetFile, state: State, *, new: bool) -> list[str]:
    """Whom the file is about: every known node, and with --new those it names. Raises UsageProblem for a name that nobody reported."""
    known = state.node_ids()
    unknown = unknown_names(wants, known)
    for pattern in [name for name in unknown if is_pattern(name)]:
        say(f"{wants.name}: the pattern {pattern!r} fits no node")
    named = [name for name in unknown if not is_pattern(name)]
    if named and not new:
        raise UsageProblem(f"{wants.name}: {unknown_node(named[0], known)}; --new writes settings before a node's first report")
    return sorted({*known, *named})


def _unheard_of(node_id: str) -> Node:
    node = Node(node_id)
    node.refresh()
    return node


def _summary(changed: int, nodes: int, *, dry_run: bool) -> str:
    if not changed:
        return f"nothing to change on {units.counted(nodes, 'node')}"
    return f"{changed} of {nodes} nodes {'would change; nothing was written (--dry-run)' if dry_run else 'changed'}"
