"""`claimlog explain`: why an instance went where it went, or nowhere; and the proof that the same records give the same choice."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from msgspec import structs, to_builtins

from projections.cut import Cut, Place
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.observed import Observed
from projections.subjects import Subject
from projections.wording import outcome_text
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES, Shortfall
from schemas.results import ClaimOutcome, Decision, InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.cli.exits import Exit, exit_of_failed
from streams.cli.flags import SHOW, LogFlag, MomentFlag, Show
from streams.cli.given.documents import code_vouched_for
from streams.cli.given.timegrammar import Moment
from streams.cli.given.units_in import not_empty
from streams.cli.printed import units
from streams.cli.printed.funnel import (
    closest_lines,
    decision_item,
    funnel_lines,
    matrix_lines,
    node_supply_lines,
    request_text,
    supply_lines,
    weight_lines,
    without_lines,
)
from streams.cli.printed.output import Column, Report, item_of, spelled
from streams.cli.printed.printable import printable, say, teller
from streams.cli.printed.progress import Progress
from streams.cli.printed.stdout import own_code
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.answers import (
    RecordedResult,
    RequestHistory,
    astray,
    decided_at,
    not_at_hand,
    request_history,
    request_of_instance,
)
from streams.cli.reading.fates import fates_of
from streams.cli.reading.never_named import check_named
from streams.cli.reading.open_log import opened
from streams.cli.reading.records import Range, check_claims_at_hand, cut_of
from streams.cli.reading.relief import relief_lines, reliefs
from streams.cli.reading.rerun import Again, Reruns
from streams.cli.reading.state import State
from streams.cli.reading.state_at import moment_of, state_at
from streams.cli.reading.there import check_there
from streams.log.base import Log
from streams.log.reading import places
from streams.scheduler import GROUP as SCHEDULERS
from streams.scheduling.explain import spelled_out
from streams.scheduling.matrix import Line, Matrix
from streams.scheduling.overlay import count

COLUMNS = [
    Column(name="instance_id", title="instance"),
    Column(name="chosen", title="node", shown=lambda node: node or "-"),
    Column(name="attempt", right=True),
    Column(name="nodes_known", title="known", right=True),
    Column(name="passed", right=True),
    Column(name="engine", wide=True),
    Column(name="policy_digest", title="policy", wide=True),
]


class Now(NamedTuple):
    """What is known today of a request: the state with its findings, and what became of its claims, in the order of the log."""

    request: PlacementRequested
    state: State
    fates: Mapping[str, Sequence[ClaimOutcome]]
    """By instance."""

    def of(self, decision: Decision) -> Sequence[ClaimOutcome]:
        """What became of the claims of the instance that it was made for: none if that was no instance but a home."""
        return self.fates.get(decision.instance_id, ()) if decision.attempt else ()


class Telling(NamedTuple):
    """How much is told: of the node that was asked about (or none), and of all of them."""

    node: str
    wide: bool


def explain(
    subject: Annotated[str, Parameter(name="REQUEST-OR-INSTANCE", help="A request's id, or an instance's.")],
    /,
    *,
    node: Annotated[
        str,
        Parameter(
            converter=not_empty,
            help="Why not this one: what each filter says of it at the decision's cut, and what is free there.",
            show_default=False,
        ),
    ] = "",
    by: Annotated[str, Parameter(help="Run code that the recorded policy and this one, a TOML file, both name.", show_default=False)] = "",
    at: MomentFlag = "now",
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Why a request was placed where it was, or could not be: the recorded evidence, made again at its own cut.

    Every filter's word on every node is in -o wide and -o json; the table names the first few nodes that each filter rejected.

    Leaks that would make room, and what became of its claims, are those known at --at, whose cut the answer has; the decision itself has a
    moment of its own.

    It is made again by the policy that it was made by. Code that this names is not run on the word of a log: it is if the policy that --by
    names has it too.

    Exits 4 if nothing fitted, 1 if the request was invalid or its scheduler gave up, 6 if it has no answer yet or the records that it was
    decided on are not at hand.
    """
    trusted = code_vouched_for(by, "--by")
    with opened(log) as source:
        check_there(source, REQUESTS, RESULTS)
        moment = moment_of(at)
        # What came later is no part of the answer, be it while this one is made.
        ends = cut_of(source, (REQUESTS, RESULTS), Range(None, moment)).next_offsets
        found, request, counting, instance_id = _found(source, subject)
        _check_decided(found, counting, moment, ends)
        found = found.up_to(ends)
        result = counting.result
        if node and not result.decisions:
            raise AnswerIncomplete(f"--node {node}: the answer to request {found.request_id} has no decision that a filter took part in")
        decisions = [each for each in spelled_out(request, result.decisions) if instance_id in {"", each.instance_id} or not each.attempt]
        reruns = Reruns(source, request, trusted)
        with Progress("explain", len(decisions), of="decisions") as progress, own_code():
            runs = []
            for decision in decisions:
                runs.append(reruns.again(decision, node, in_words=show.in_words))
                progress.add()
        decisions = [run.whole or decision for decision, run in zip(decisions, runs, strict=True)]
        now = _now(source, request, moment)
        cut = now.state.cut
        for place in (found.position, counting.position):
            if place is not None:
                cut = cut.naming(place.topic, place.partition, ends.get((place.topic, place.partition), 0))
        if show.in_words:
            for line in _told(found, request, counting, list(zip(decisions, runs, strict=True)), now, Telling(node, show.output == "wide")):
                print(printable(line))
            say(str(cut))
        else:
            items = [_item(decision, run, now, node) for decision, run in zip(decisions, runs, strict=True)]
            summary = _summary(found, request, counting) | {"decided_on": str(decided_at(source, counting))}
            summary["home"] = next((item for item in items if not item["attempt"]), None)
            instances = [item for item in items if item["attempt"]]
            show.write(Report(columns=COLUMNS, items=instances, cut=cut, summary=summary))
    return exit_of_failed(result.reason) if isinstance(result, PlacementFailed) and result.reason != "cancelled" else Exit.DONE


def _check_decided(found: RequestHistory, counting: RecordedResult, at: Moment | None, ends: Mapping[tuple[str, int], int]) -> None:
    """Raises AnswerIncomplete for a moment before the request was answered: it says nothing of what came later.

    `ends` are the next offsets of requests and results at a time.
    """
    answer = counting.position
    is_there = _holds(at, counting) if isinstance(at, Cut) else answer.offset < ends.get((answer.topic, answer.partition), 0)
    if at is not None and not is_there:
        asked, answered = found.position, f"it was answered at {units.moment(counting.time_ms)} ({counting.position})"
        said = f"had no answer yet then: {answered}"
        if asked is not None and not isinstance(at, Cut) and asked.offset >= ends.get((asked.topic, asked.partition), 0):
            said = f"was not asked for yet then, but at {units.moment(found.time_ms)} ({asked}); {answered}"
        raise AnswerIncomplete(f"request {found.request_id} {said}; ask for a later --at")


def _holds(cut: Cut, counting: RecordedResult) -> bool:
    """Whether a cut has the result and all that it was decided on, as far as it has these topics at all."""
    needed = [(RESULTS, counting.position.partition, counting.position.offset + 1)]
    needed += [(CLAIMS, number, end) for decision in counting.result.decisions for number, end in enumerate(decision.cut)]
    return all((read := cut.next_offset(topic, number)) is None or read >= end for topic, number, end in needed)


def _now(log: Log, request: PlacementRequested, at: Moment | None) -> Now:
    """The state at that moment, and what has become of the request's claims by then."""
    laid: list[ClaimOutcome] = []

    def collect(ledger: Ledger, observed: Observed, step: Step) -> None:
        del ledger, observed
        laid.extend(outcome for outcome in step.outcomes if outcome.request_id == request.request_id)

    for place in places(log, CLAIMS):
        check_claims_at_hand(log, place.number, 0)  # Before the long work of loading what is there.
    state = state_at(log, at, each_laid=collect)
    ends = {place.partition: place.next_offset for place in state.cut.places if place.topic == CLAIMS}
    fates: dict[str, list[ClaimOutcome]] = {}
    for outcome in (*fates_of(log, request.request_id, ends, teller(sys.stderr)), *laid):
        fates.setdefault(outcome.instance_id, []).append(outcome)
    return Now(request, state, fates)


def _told_of(log: Log, name: str) -> str:
    """What to add of an instance that no request wanted: where it is told of, if it is."""
    try:
        check_named(log, Subject("instance", name))
    except (UsageProblem, AnswerIncomplete):
        return ""
    return f"; try `claimlog timeline {quote(name)}`"


def _found(log: Log, subject: str) -> tuple[RequestHistory, PlacementRequested, RecordedResult, str]:
    """The request of a subject, its counting result, and the instance if it was named. Raises UsageProblem, AnswerIncomplete."""
    found, instance_id = request_history(log, subject), ""
    if not found.is_known:
        request_id = request_of_instance(log, subject)
        if request_id is None:
            gone = not_at_hand(log, REQUESTS, RESULTS)
            said = f"{subject!r} is no request and no instance of one on this log"
            if gone:
                raise AnswerIncomplete(said + gone)
            raise UsageProblem(said + (astray(log, subject) or _told_of(log, subject)))
        found, instance_id = request_history(log, request_id), subject
    counting = found.counting
    if counting is None:
        raise AnswerIncomplete(_unanswered(log, found))
    if found.request is None:
        raise AnswerIncomplete(f"the record of request {found.request_id} is not at hand; it was archived, or this log has only its result")
    return found, found.request, counting, instance_id


def _unanswered(log: Log, found: RequestHistory) -> str:
    """Why there is no answer, as far as the log says it."""
    asked = found.asked_last
    late = f"; {len(found.results)} came too late to count" if found.results else ""
    if gone := not_at_hand(log, RESULTS):
        late += gone
    elif asked is not None and (stored := log.committed(SCHEDULERS, REQUESTS).get(asked.partition, 0)) > asked.offset:
        # Stored only once the result was read back: it may have come since the results were read here.
        if request_history(log, found.request_id).counting is not None:
            return f"request {found.request_id} at {found.position} was answered a moment ago; ask again"
        late += (
            f", and will have none: schedulers have read past it, as they go on at {REQUESTS}/{asked.partition}@{stored}, where somebody "
            "may have set them. `claimlog place` with the same flags and `--request ID` asks again"
        )
    else:
        late += "; is a scheduler on this log?"
    return f"request {found.request_id} at {found.position} has no answer yet{late}"


def _told(
    found: RequestHistory,
    request: PlacementRequested,
    counting: RecordedResult,
    decided: list[tuple[Decision, Again]],
    now: Now,
    telling: Telling,
) -> list[str]:
    result = counting.result
    lines = [
        f"request  {request.request_id}  {request_text(request)}",
        f"asked    {found.position}  {units.moment(found.time_ms)}",
    ]
    took = f"{units.span(counting.time_ms - found.time_ms)} later, by {result.owner}"
    if isinstance(result, InstancesPlaced):
        lines.append(f"placed   {counting.position}  {took}" + ("; a dry run, nothing was claimed" if request.dry_run else ""))
    else:
        lines.append(f"failed   {counting.position}  {took}: {result.reason}" + (f" ({result.message})" if result.message else ""))
    asked_as = {False: "the same", True: "for something else, which counts for nothing"}
    lines += [f"again    {again.position}  {asked_as[again.other]}" for again in found.again]
    lines += [f"cancel   {position}" for position in found.cancels]
    others = [result for result in found.results if result is not counting]
    lines += [f"also     {other.position} does not count: {'too late' if other.late else 'not the first'}" for other in others]
    if not decided and isinstance(result, InstancesPlaced):
        lines.append("no decision is recorded for it: the evidence of large requests is kept for the first instances only")
    for decision, run in decided:
        lines += ["", *_decision_lines(decision, run, now, telling)]
    return lines


def _decision_lines(decision: Decision, run: Again, now: Now, telling: Telling) -> list[str]:
    """One instance's decision."""
    cut = structs.replace(now.state.cut, places=tuple(Place(CLAIMS, number, end) for number, end in enumerate(decision.cut)))
    overlay = f" and {units.counted(count(decision.overlay), 'own claim')} in flight" if decision.overlay else ""
    lines = [_heading(decision, now.request), f"decided on {cut}{overlay}; {run.told}"]
    lines += funnel_lines(decision, run.matrix)
    if decision.chosen:
        beside = f", alternates {', '.join(decision.alternates)}" if decision.alternates else ""
        lines.append(f"chosen: {decision.chosen}{beside}")
        lines += weight_lines(decision) + without_lines(decision.chosen, run.without)
    if decision.attempt > 1:
        lines.append(f"attempt {decision.attempt}: {units.counted(decision.attempt - 1, 'conflict')} before" + _conflict(decision.refused))
    if not decision.chosen:
        miss = decision.nearest_miss
        lines += supply_lines(run.supplies)
        lines += closest_lines(decision, run.matrix)
        lines += relief_lines(now.state, now.request, run.policy, miss.node_id if miss is not None else "")
    lines += [f"{_where(fate)}  {fate.claim_id}  {outcome_text(fate)}" for fate in now.of(decision)]
    if run.matrix is not None and telling.wide:
        lines += matrix_lines(run.matrix)
    if run.matrix is not None and telling.node:
        verdicts = _verdicts(run.matrix, telling.node)
        width = max(map(len, verdicts))
        lines += [f"{telling.node} at that cut:", *(f"  {name:<{width}}  {reason}" for name, reason in verdicts.items())]
        lines += [f"  {line}" for line in node_supply_lines(run.on_node)]
    return lines


def _heading(decision: Decision, request: PlacementRequested) -> str:
    """Whom a decision is about: an instance, or its group, whose home is chosen before the first member is decided."""
    if decision.attempt or request.group is None:
        return f"instance {decision.instance_id}"
    return f"home of group {request.group.group_id}, chosen before its first member"


def _verdicts(matrix: Matrix, node_id: str) -> dict[str, str]:
    """What every filter says of one node that is known."""
    line = matrix.of(node_id)
    assert line is not None
    return dict.fromkeys(matrix.filters, "passes") | {each.filter: each.reason for each in line.rejected}


def _where(fate: ClaimOutcome) -> str:
    return f"{CLAIMS}/{fate.partition}@{fate.offset}"


def _conflict(refused: tuple[Shortfall, ...]) -> str:
    return f", the last refused for {'; '.join(map(str, refused))}" if refused else ""


def _item(decision: Decision, run: Again, now: Now, node: str) -> dict[str, Any]:
    item = decision_item(decision)
    item["rerun"] = {"same": run.same, "differences": list(run.differences), "told": run.told}
    item["outcomes"] = [item_of(fate) for fate in now.of(decision)]
    if run.matrix is not None:
        item["matrix"] = {"filters": list(run.matrix.filters), "nodes": [_line(line) for line in run.matrix.lines]}
        if node:
            verdicts = [{"filter": name, "reason": reason} for name, reason in _verdicts(run.matrix, node).items()]
            item["node"] = {"node_id": node, "verdicts": verdicts, "supplies": [structs.asdict(each) for each in run.on_node]}
        closest = None if decision.chosen else run.matrix.closest()
        item["closest"] = None if closest is None else _line(closest)
    item["supplies"] = [structs.asdict(each) for each in run.supplies]
    item["without"] = [{"weigher": each.weigher, "chosen": each.chosen} for each in run.without]
    nearest = "" if decision.nearest_miss is None else decision.nearest_miss.node_id
    found = [] if decision.chosen else reliefs(now.state, now.request, run.policy, nearest)
    item["leaks"] = [
        {
            "node_id": each.node_id,
            "leaks": each.leaks,
            "held": dict(zip(RESOURCES, each.held, strict=True)),
            "fits_without": each.fits,
            "one_of_many": each.one_of_many,
        }
        for each in found
    ]
    return item


def _line(line: Line) -> dict[str, Any]:
    rejected = [{"filter": each.filter, "reason": each.reason, "shortfalls": spelled(each.shortfalls)} for each in line.rejected]
    return {"node_id": line.node_id, "rejected": rejected}


def _summary(found: RequestHistory, request: PlacementRequested, counting: RecordedResult) -> dict[str, Any]:
    result = counting.result
    said: dict[str, Any] = {
        "request_id": request.request_id,
        "outcome": "placed" if isinstance(result, InstancesPlaced) else "failed",
        "owner": result.owner,
        "asked": str(found.position),
        "asked_ms": found.time_ms,
        "position": str(counting.position),
        "time_ms": counting.time_ms,
        "again": [{"position": str(again.position), "other": again.other} for again in found.again],
        "cancels": [str(position) for position in found.cancels],
        "request": to_builtins(request),
    }
    if isinstance(result, PlacementFailed):
        said |= {"reason": result.reason, "message": result.message}
    return said
