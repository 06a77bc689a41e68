"""`claimlog leaks`: where claims, life cycles and audits do not agree, what each difference holds, and the events that made it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Parameter
from msgspec.structs import asdict

from projections.node import amounts_of
from projections.wording import amounts_text
from schemas.findings import Finding, FindingKind, LeakConfirmed, LeakSuspected
from schemas.resources import RESOURCES
from streams.cli.exits import Exit
from streams.cli.flags import LIVE, Live, LogFlag, MomentFlag
from streams.cli.given.node_names import unknown_node
from streams.cli.given.units_in import duration_ms, not_empty
from streams.cli.leaks import mending
from streams.cli.leaks.claimed_beyond import beyond_lines, beyond_on, beyond_text
from streams.cli.leaks.views_apart import ViewsApart, apart_lines, apart_on, apart_text
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report, in_order, item_of
from streams.cli.printed.printable import printable, say
from streams.cli.problems import UsageProblem
from streams.cli.reading.apart import Apart, JobsFlag, Source, jobs_of
from streams.cli.reading.held import counted_by, held_by
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import moment_of, state_at
from streams.cli.watching import watchable
from streams.healing import OpenRecord, adopting, may_be_adopted, mends
from streams.log.base import Log

app = App(name="leaks")

_LIKE = LeakSuspected(finding_id="", kind="orphan-claim", node_id="", partition=0, offset=0, time_ms=0, since_ms=0, suspected_ms=0)

NodeFlag = Annotated[tuple[str, ...], Parameter(name="--node", negative=(), show_default=False, help="Only of this node; repeatable.")]
KindFlag = Annotated[
    tuple[FindingKind, ...], Parameter(name="--kind", negative=(), show_default=False, help="Only of this kind; repeatable.")
]


IgnoredFlag = Annotated[bool, Parameter(name="--ignored", negative=(), help="Also those that the operator said to ignore.")]
HealFlag = Annotated[bool, Parameter(name="--heal", negative=(), help="Print the events that mend the findings; --yes writes them.")]
YesFlag = Annotated[bool, Parameter(name="--yes", negative=(), help="With --heal: write them.")]
REPORT_AGE = "15m"
ReportAgeFlag = Annotated[
    str | None,
    Parameter(
        show_default=False,
        allow_leading_hyphen=True,
        converter=not_empty,
        help=f"With --heal: how old a host's last complete audit may be ({REPORT_AGE}); what an older one shows may be gone by now.",
    ),
]
ExplainFlag = Annotated[
    bool, Parameter(name="--explain", negative=(), help="The events that made each finding, the one that is missing, and how to mend it.")
]


class Selected(NamedTuple):
    """A state and the findings chosen of it, what people are told of them all, and what `apart_on` and `beyond_on` have of the nodes."""

    state: State
    findings: list[OpenRecord]
    told: list[str]
    views_apart: dict[str, ViewsApart]
    beyond: dict[str, list[str]]


class Selection(NamedTuple):
    """Which findings are asked for: those of these nodes and kinds, or of all where none is named. `apart` are the processes that fold."""

    nodes: tuple[str, ...]
    kinds: tuple[str, ...]
    with_ignored: bool
    apart: Apart

    def made(self, log: Log, moment: str) -> Selected:
        """Those of a moment; says how many are hidden. Raises UsageProblem for a node that is not known, and as `state_at`."""
        state = state_at(log, moment_of(moment), apart=self.apart)
        for name in self.nodes:
            if state.node(name) is None:
                raise UsageProblem(unknown_node(name, state.node_ids()))
        known = state.findings()
        found = [
            finding
            for finding in known
            if (not self.nodes or finding.node_id in self.nodes) and (not self.kinds or finding.kind in self.kinds)
        ]
        hidden = here = 0
        if not self.with_ignored:
            here = sum(bool(finding.ignored) for finding in found)
            if here:
                say(f"{units.counted(here, 'finding')} more, ignored by the operator: --ignored shows them")
            hidden = sum(bool(finding.ignored) for finding in known)
            found = [finding for finding in found if not finding.ignored]
        told = [summary_text(found, of=len(known) - hidden, nodes_known=len(state.node_ids()), hidden=hidden, here=here)]
        names, open_ = self.nodes or state.node_ids(), len(known) - hidden
        views_apart, beyond = apart_on(state, names, known), beyond_on(state, names, known)
        said_so = open_ + len(views_apart)
        differs = [apart_text(views_apart, found=open_, hidden=hidden), beyond_text(beyond, found=said_so, hidden=hidden)]
        if any(differs):
            told = [*(told if open_ else []), *filter(None, differs)]
        return Selected(state, found, told, views_apart, beyond)


@app.default
@watchable
def leaks(
    *,
    node: NodeFlag = (),
    kind: KindFlag = (),
    explain: ExplainFlag = False,
    with_ignored: IgnoredFlag = False,
    heal: HealFlag = False,
    yes: YesFlag = False,
    report_age: ReportAgeFlag = None,
    log: LogFlag = None,
    at: MomentFlag = "now",
    jobs: JobsFlag = None,
    show: Live = LIVE,
) -> int:
    """Every open finding: suspected by one look, confirmed by a later audit. Exits 3 if there is any that is not ignored.

    With --explain each has the events that made it, oldest first with their places in the log, the event that should be there and is
    not, and the command that mends it, if there is one. With --heal each has the event that would make up for the missing one, as far as
    one can, and --yes writes it; the newest report of the host is looked at first.
    """
    if heal and (explain or at != "now" or show.watch):
        raise UsageProblem("--heal is about the present and prints what it does: leave out --explain, --at and --watch")
    if yes and not heal:
        raise UsageProblem("--yes goes with --heal")
    if report_age is not None and not heal:
        raise UsageProblem("--report-age goes with --heal")
    _check_told(explain, show)
    oldest_ms = duration_ms(report_age or REPORT_AGE)
    selection = Selection(node, kind, with_ignored, Apart(Source(log), jobs_of(jobs)))
    if heal:
        return _heal(log, selection, show, yes=yes, report_age_ms=oldest_ms)
    with opened(log) as source:
        state, found, told, views_apart, beyond = selection.made(source, at)
    items = [finding_item(finding, state.as_of_ms) for finding in found]
    totals = summary(found) | {"nodes_apart": sorted(views_apart), "nodes_claimed_beyond": sorted(beyond)}
    report = Report(columns=columns(), items=items, cut=state.cut, summary=totals, like=finding_item(_LIKE, 0))
    if explain and show.for_people:
        _explain(report, dict(zip(map(id, items), found, strict=True)), state, show)
        for name, differ in () if kind else views_apart.items():
            sys.stdout.write(apart_lines(state, name, differ))
        for name, instances in () if kind else beyond.items():
            sys.stdout.write(beyond_lines(state, name, instances))
        say(str(state.cut))
    else:
        show.write(report)
    for sentence in told if show.for_people else ():
        say(sentence)
    return Exit.FINDINGS if any(not finding.ignored for finding in found) else Exit.DONE


def _heal(log: str | None, selection: Selection, show: Live, *, yes: bool, report_age_ms: int) -> int:
    """Print what would mend the chosen findings or, with `yes`, write it; where there is none people are told what there is."""
    with opened(log) as source:
        _, found, told, *_ = selection.made(source, "now")
        code = mending.heal(source, found, show, yes=yes, report_age_ms=report_age_ms)
    for sentence in told if not found and show.in_words else ():
        say(sentence)
    return code


def _check_told(explain: bool, show: Live) -> None:
    """Raises UsageProblem for what the answer would be told without."""
    if explain:
        show.check(Report(columns=columns(), items=(), like=finding_item(_LIKE, 0)))
        if show.column and show.for_people:
            raise UsageProblem("--explain tells in words, which have no columns: leave out -c, or add -o jsonl")


def _explain(report: Report, of_item: Mapping[int, OpenRecord], state: State, show: Live) -> None:
    """Tell of each finding in words, in the order asked for; `of_item` has them by the identity of their items."""
    items = in_order(report, show.style(sys.stdout))
    sys.stdout.write("".join(explained(of_item[id(item)], state) for item in items))


app.command(mending.ignore)
app.command(mending.adopt)


def finding_item(finding: OpenRecord, as_of_ms: int) -> dict[str, Any]:
    """A finding as an item: every field of its record, its state and its age."""
    item = item_of(finding)
    item["held"] = {resource: getattr(finding.held, resource) for resource in RESOURCES}
    item["counted"] = {resource: getattr(finding.counted, resource) for resource in RESOURCES}
    item["causes"] = [asdict(cause) for cause in finding.causes]
    item["state"] = state_of(finding)
    item["age_ms"] = max(0, as_of_ms - finding.since_ms)
    return item


def state_of(finding: Finding) -> str:
    """`suspected` or `confirmed`."""
    return "confirmed" if isinstance(finding, LeakConfirmed) else "suspected"


def summary(findings: Sequence[OpenRecord]) -> dict[str, Any]:
    """The totals of an answer."""
    return {
        "findings": len(findings),
        "confirmed": sum(isinstance(finding, LeakConfirmed) for finding in findings),
        "nodes": len({finding.node_id for finding in findings}),
        "held": dict(zip(RESOURCES, held_by(findings), strict=True)),
        "counted": dict(zip(RESOURCES, counted_by(findings), strict=True)),
    }


def summary_text(findings: Sequence[OpenRecord], *, of: int, nodes_known: int, hidden: int = 0, here: int = 0) -> str:
    """The totals as a line: `2 findings on 1 node, 1 confirmed; held: 2 vCPUs, 4 GiB; counted and on no audit: 1 GiB`.

    `of` all that are open, less the `hidden` ones that are ignored, of which as many as `here` were asked for: where none of them is
    shown, it is not said that all is well.
    """
    if not findings and not nodes_known:
        return "nothing found: no node is known, so there is nothing to compare"
    if not findings:
        all_well = "nothing found: claims, life cycles and audits agree"
        if hidden:
            all_well = "nothing else found" if here else "nothing found of that kind or there; what is open is ignored by the operator"
        return f"nothing found of that kind or there; open in all: {units.counted(of, 'finding')}" if of else all_well
    nodes = len({finding.node_id for finding in findings})
    confirmed = sum(isinstance(finding, LeakConfirmed) for finding in findings)
    counted = counted_by(findings)
    stale = f"; counted and on no audit: {amounts_text(counted)}" if any(counted) else ""
    found = f"{units.counted(len(findings), 'finding')} on {units.counted(nodes, 'node')}, {confirmed} confirmed"
    return f"{found}; held: {amounts_text(held_by(findings))}{stale}"


def explained(finding: OpenRecord, state: State) -> str:
    """A finding as a paragraph: what it is, the events that made it, the one that is missing, and what to do."""
    about = finding.claim_id or finding.instance_id
    since = f"since {units.moment(finding.since_ms)} ({units.age(finding.since_ms, state.as_of_ms)})"
    lines = [
        f"{finding.kind} on {finding.node_id}{': ' + about if about else ''}",
        f"  {state_of(finding)}, {since}, holds {amounts_text(amounts_of(finding.held))}",
    ]
    if finding.instance_id and finding.claim_id:
        lines.append(f"  instance  {finding.instance_id}")
    counted = amounts_of(finding.counted)
    lines.append(f"  counted   {amounts_text(counted)} that no audit lists" if any(counted) else "")
    lines.append(f"  devices   {', '.join(finding.devices)}" if finding.devices else "")
    lines.append(f"  {finding.note}" if finding.note else "")
    for cause in finding.causes:
        position = f"{cause.topic}/{cause.partition}@{cause.offset}"
        lines.append(f"  {units.moment(cause.time_ms)}  {position:<18}  {cause.event:<17}  {cause.summary}")
    if finding.missing:
        lines.append(f"  missing   {finding.missing}")
    if finding.fix:
        lines.append(f"  {'to mend ' if mends(finding.fix) else 'see also'}  {finding.fix}")
    if may_be_adopted(finding, state.node(finding.node_id)):
        lines.append(f"  to adopt  {adopting(finding)}")
    return "\n".join(printable(line) for line in lines if line) + "\n\n"


def columns() -> list[Column]:
    """The columns of a table of findings."""
    return [
        Column(name="kind"),
        Column(name="node_id", title="node"),
        Column(name="instance_id", title="instance", shown=lambda name: name or "-"),
        Column(name="claim_id", title="claim", shown=lambda name: name or "-", wide=True),
        Column(name="held", shown=lambda held: amounts_text(held.values())),
        Column(name="counted", shown=lambda counted: amounts_text(counted.values()) if any(counted.values()) else "-"),
        Column(name="devices", shown=lambda names: ", ".join(names) or "-", wide=True),
        Column(name="age_ms", title="age", shown=units.span, right=True),
        Column(name="state", alarm=lambda state: state == "confirmed"),
        Column(name="ignored", title="ignored because", shown=lambda reason: reason or "-", wide=True),
        Column(name="causes", title="last event", shown=_last_cause),
        Column(name="missing", shown=lambda name: name or "-"),
        Column(name="note", wide=True),
        Column(name="fix", title="to mend", wide=True),
    ]


def _last_cause(causes: Sequence[dict[str, Any]]) -> str:
    if not causes:
        return "-"
    last = causes[-1]
    return f"{last['topic']}/{last['partition']}@{last['offset']}"
