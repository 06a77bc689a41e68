"""`claimlog shadow`: would our scheduler have chosen as Nova did, and if not, why."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, MomentFlag, Show
from streams.cli.given.documents import policy_named
from streams.cli.printed import units
from streams.cli.printed.funnel import miss_line, request_text
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import printable, say
from streams.cli.printed.stdout import own_code
from streams.cli.printed.units import counted
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.produce.openstack import NEWER_LIST, FromFlag, HypervisorsFlag, notifications, reach_lines
from streams.cli.reading.open_log import opened

if TYPE_CHECKING:
    from producers.openstack_hosts import ListedHost
    from projections.cut import Cut
    from schemas.claims import NodeStatus
    from streams.cli.produce.sources import Source
    from streams.cli.shadow.shadowing import Given, Row
    from streams.log.base import Record
    from streams.scheduling.policy import Policy

EngineName = Literal["auto", "reference", "profiles"]
UNREADABLE_SHOWN_MAX = 10
"""So many messages that cannot be read are named by their place."""
GUESTS_FILTER = "ImagePropertiesFilter"
ALIKE = frozenset({"agrees", "equal", "both-refuse"})
SAYS = {
    "agrees": "the same node",
    "equal": "another node of the same score",
    "differs": "another node with a better score",
    "refuses": "another node; our filters refuse Nova's",
    "only-they": "no node, Nova found one",
    "only-we": "a node, Nova found none",
    "both-refuse": "none, like Nova",
    "unknown": "no message says what Nova chose",
}

COLUMNS = [
    Column(name="time", shown=units.moment),
    Column(name="instance_id", title="instance"),
    Column(name="wants"),
    Column(name="nova", shown=lambda node: "?" if node is None else node or "(none)"),
    Column(name="ours", shown=lambda node: node or "(none)"),
    Column(name="verdict", alarm=lambda verdict: verdict not in ALIKE),
    Column(name="why"),
]


def shadow(
    *,
    source: FromFlag,
    hypervisors: HypervisorsFlag = None,
    policy: Annotated[str, Parameter(help="A policy by name (nova, spread, pack …) or its TOML file.")] = "nova",
    engine: Annotated[
        EngineName,
        Parameter(help="reference looks at every node, profiles are faster in large fleets, auto takes either; they choose alike."),
    ] = "auto",
    all_: Annotated[bool, Parameter(name="--all", negative=(), help="Those that agree as well.")] = False,
    at: MomentFlag = "now",
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Replay the requests that Nova's scheduler answered through ours, and say where they agree, where they differ, and why.

    What nodes have, and the operator's settings, are those of the log at --at; with --hypervisors instead nodes have what is listed there,
    and no settings. What instances use at each request follows from the notifications before it. Nothing is written. Exits 3 where the two
    differ; else 6 if there is no request to compare, if no message says what Nova chose, or if messages cannot be read: what they say is
    missing from the fleet.
    """
    from streams.cli.shadow.shadowing import Shadow, history, outcomes
    from streams.scheduling.select import engine as engine_of

    if hypervisors is not None and (log is not None or at != "now"):
        flag = "--at" if log is None else "--log"
        raise UsageProblem(f"{flag} goes with nodes of a log: leave it out, or leave out --hypervisors, which are the nodes then")
    chosen = policy_named(policy, "--policy")
    nodes, cut = _nodes(hypervisors, log, at)
    chosen, untested = _testable(chosen, nodes)
    with ExitStack() as stack:
        sources = [each for spec in source for each in stack.enter_context(notifications(spec))]
        messages = history(record for each in sources for record in _read_all(each))
    answers = outcomes(messages.messages, nodes)
    fleet = Shadow(nodes, engine_of(engine), chosen)
    with own_code():
        rows = list(fleet.rows(messages.messages, answers))
    counts: Counter[str] = Counter(row.compared.verdict for row in rows)
    shown = [_item(row) for row in rows if all_ or row.compared.verdict not in ALIKE]
    summary = {"requests": len(rows), "verdicts": dict(counts), "unreadable": len(messages.unreadable)}
    show.write(Report(columns=COLUMNS, items=shown, cut=cut, summary=summary))
    lacking = "no node of the log is of that service_host" if hypervisors is None else NEWER_LIST
    sys.stderr.write(_told(counts, messages.unreadable, nodes) + untested)
    for line in reach_lines(fleet.reach(), lacking):
        say(line)
    if counts.keys() - ALIKE - {"unknown"}:
        return Exit.FINDINGS
    return Exit.INCOMPLETE if counts["unknown"] or messages.unreadable or not rows else Exit.DONE


def _nodes(hypervisors: Path | None, log: str | None, at: str) -> tuple[list[Given], Cut | None]:
    """The nodes and the cut that they are of. Raises UsageProblem, AnswerIncomplete."""
    from schemas.inventory import OperatorFields
    from streams.cli.produce.listing import ListFile
    from streams.cli.shadow.shadowing import given

    if hypervisors is not None:
        file = ListFile(hypervisors)
        since_ms = file.written_us // 1000
        return [given(each.node_id, each.hypervisor, OperatorFields(), *_status(each), since_ms) for each in file.hosts], None
    from streams.cli.reading.state_at import moment_of, state_at

    with opened(log) as ledger_log:
        state = state_at(ledger_log, moment_of(at))
    found = []
    for node_id in state.node_ids():
        node = state.node(node_id)
        if node is not None:
            fields = {name: getattr(node, name) for name in OperatorFields.__struct_fields__}
            found.append(given(node_id, node.hypervisor, OperatorFields(**fields), node.status, node.status_reason))
    if not any(node.hypervisor is not None for node in found):
        raise AnswerIncomplete("no node on this log has totals: pass --hypervisors, or let `claimlog produce` audit the hosts")
    return found, state.cut


def _status(listed: ListedHost) -> tuple[NodeStatus | UnsetType, str]:
    """Nova's ComputeFilter passes neither a host that is disabled nor one that is down; of others what messages say may stand."""
    if listed.is_disabled:
        return "disabled", listed.reason
    if listed.is_down:
        return "disabled", "Nova lists it as down"
    return "enabled" if listed.is_enabled else UNSET, ""


def _testable(policy: Policy, nodes: Iterable[Given]) -> tuple[Policy, str]:
    """The policy without a filter that would reject every node because nothing is known of what it tests, and what is said of that."""
    known = any(node.hypervisor is not None and node.hypervisor.supported_guests for node in nodes)
    if known or GUESTS_FILTER not in policy.filters:
        return policy, ""
    filters = tuple(name for name in policy.filters if name != GUESTS_FILTER)
    return replace(policy, filters=filters), f"{GUESTS_FILTER} is left out: which guests the nodes can run is not known\n"


def _read_all(source: Source) -> Iterator[Record]:
    """All that is there now."""
    while records := source.read():
        yield from records


def _item(row: Row) -> dict[str, Any]:
    compared, decision = row.compared, row.decision
    why = compared.why
    if not compared.ours and compared.verdict != "only-they" and decision.nearest_miss is not None:
        why = "; ".join(filter(None, [why, miss_line(decision.nearest_miss)]))
    return {
        "time": row.time_ms,
        "request_id": row.asked.request.request_id,
        "instance_id": row.asked.instance_id,
        "wants": request_text(row.asked.request),
        "nova": compared.theirs,
        "ours": compared.ours,
        "verdict": compared.verdict,
        "why": why,
        "alternates": list(decision.alternates),
        "passed": decision.passed,
        "nodes_known": decision.nodes_known,
        "filters": {each.filter: each.rejected for each in decision.rejections if each.rejected},
    }


def _told(counts: Counter[str], unreadable: Sequence[str], nodes: Iterable[Given]) -> str:
    """What it comes to, on stderr."""
    total = sum(counts.values())
    lines = [
        f"{counted(total, 'request')}"
        + ("" if total else ": the scheduler's notifications (scheduler.select_destinations) are not among what could be read")
    ]
    lines += [f"  {counts[verdict]:>6}  {verdict:<12} {SAYS[verdict]}" for verdict in SAYS if counts[verdict]]
    without = sum(node.hypervisor is None for node in nodes)
    lines += [f"{counted(without, 'node')} without totals: nothing fits there"] if without else []
    if unreadable:
        lines.append(f"{units.counted(len(unreadable), 'message')} could not be read, so what they say is missing here:")
        lines += [f"  {printable(each)}" for each in unreadable[:UNREADABLE_SHOWN_MAX]]
        lines += ["  ..."] if len(unreadable) > UNREADABLE_SHOWN_MAX else []
    return "\n".join(lines) + "\n"
