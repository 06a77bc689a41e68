"""`claimlog place`: publish a request and wait for the result that counts."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Annotated, Any
from uuid import uuid4

from cyclopts import Parameter
from msgspec import structs

from projections.description import release_command
from projections.reading import ProjectionError, between
from schemas.codec import decode_keyed
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES, Limits, Resources
from schemas.results import Decision, InstancesPlaced, NearestMiss, Placement, PlacementFailed
from schemas.topics import REQUESTS, RESULTS
from streams.cli.exits import Exit, exit_of_failed
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.given.asking import ASKING, Asking, file_or_stdin, from_json
from streams.cli.given.units_in import duration_ms
from streams.cli.printed import units
from streams.cli.printed.funnel import decision_item, funnel_lines, miss_line, request_text
from streams.cli.printed.output import Column, Report, item_of
from streams.cli.printed.printable import printable, say
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.answers import RecordedResult, awaited, decided_at, request_history
from streams.cli.reading.open_log import opened
from streams.cli.reading.relief import relief_lines
from streams.cli.reading.rerun import Reruns
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.writing import appended, check_writable, new_stamp
from streams.ledger_topics import check_topics
from streams.log.base import Log, LogError, LogUnreachable, Position
from streams.log.reading import READ_RECORDS
from streams.operator import ask

PLACED = [
    Column(name="instance_id", title="instance"),
    Column(name="node_id", title="node"),
    Column(name="claim_id", title="claim"),
    Column(name="partition", wide=True, right=True),
]
FAILED = [PLACED[0], Column(name="nodes_known"), Column(name="passed"), *(structs.replace(column, wide=True) for column in PLACED[1:])]
ASKED = [Column(name="request_id", title="request"), Column(name="position")]
"""What there is to say of a request whose answer nobody waits for."""
NOT_FOLDED = (AnswerIncomplete, ProjectionError, LogError)
"""What keeps the ledger from being folded for what is told besides: the answer is there all the same, and so is its exit code."""
_LIKE = decision_item(Decision(instance_id="", cut=())) | {
    **item_of(Placement(instance_id="", claim_id="", partition=0, node_id="", resources=Resources())),
    "resources": dict.fromkeys(RESOURCES),
}
"""An item of any answer: nobody knows before whether it is placed, and a column of the other answer is there, and empty."""


def _no_name(_type: type[str | None], name: str | None) -> None:
    """An empty variable of a script is no wish for a new id. Raises ValueError."""
    if name == "":
        raise ValueError("an id has 1 to 255 characters; leave --request out and one is made")


REQUEST_HELP = (
    "The request's id; asked again with the same id it has the same answer. Up to 100 characters are always accepted: ids of claims, which "
    "may have 255, begin with it and have the scheduler's name behind it."
)
RequestName = Annotated[str | None, Parameter(validator=_no_name, show_default=False, help=REQUEST_HELP)]
RequestFile = Annotated[str, file_or_stdin("The whole request as JSON instead of flags; - is stdin.")]


def place(
    file: RequestFile = "",
    /,
    *,
    asking: Asking = ASKING,
    request: RequestName = None,
    wait: Annotated[str, Parameter(allow_leading_hyphen=True, help="How long to wait for the answer; 0s only publishes.")] = "10s",
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """Ask for instances to be placed, and wait for the result that counts.

    Exits 0 with the placements, 4 with the reasons if nothing fits, 1 if the request is invalid or cancelled, its scheduler gave up, or
    there is no answer in time.
    """
    if file:
        asking.only()
    wanted = from_json(file, request) if file else asking.request(request or str(uuid4()))
    return _placed(wanted, duration_ms(wait), log, show, fresh=not (request or file))


def _placed(request: PlacementRequested, wait_ms: int, spec: str | None, show: Show, *, fresh: bool) -> int:
    """Publish and wait. An id that is not `fresh` may have been answered before, so its answer is looked for from the start."""
    show.check(Report(columns=PLACED, items=(), like=_LIKE) if wait_ms else Report(columns=ASKED, items=()))
    with opened(spec, for_work=True) as log:
        check_writable(log)
        check_topics(log)
        number = log.partition(RESULTS, request.request_id.encode())
        since = log.end(RESULTS, number) if fresh else log.start(RESULTS, number)
        asked_since = None if fresh else log.end(REQUESTS, number)
        if not fresh and _was_asked(log, request):
            asked_since = None
        name = quote(request.request_id)
        try:
            position = appended(log, ask(request, new_stamp()))
        except LogUnreachable as problem:
            raise LogUnreachable(
                f"{problem}. So it is open whether this was asked: ask the same with `--request {name}`, which counts once, or take it "
                f"back with `claimlog cancel {name}`"
            ) from None
        say(f"{position} request {request.request_id}: {request_text(request)}")
        if asked_since is not None:
            _refuse_overtaken(log, request, asked_since, position)
        if not wait_ms:
            if show.in_words:
                print(printable(request.request_id))
            else:
                show.write(Report(columns=ASKED, items=[{"request_id": request.request_id, "position": str(position)}]))
            return 0
        try:
            found = awaited(log, request.request_id, number, since, wait_ms)
        except LogError:
            say(
                f"claimlog: {name} was asked, and its answer cannot be read: once it can, `claimlog explain {name}` has it. The same "
                f"with `--request {name}` counts once, any other is another instance; `claimlog cancel {name}` takes it back"
            )
            raise
        if found is None:
            say(
                f"claimlog: no answer to {name} within {units.span(wait_ms)}. Is a scheduler on this log? `claimlog run` "
                f"is one, `claimlog doctor` says who is behind. It may still be answered: `claimlog explain {name}`; "
                f"`claimlog cancel {name}` takes it back"
            )
            return Exit.ERROR
        if isinstance(found.result, InstancesPlaced):
            if request.dry_run:
                return _say_would(log, request.count, found, found.result, show)
            return _say_placed(log, found, found.result, show)
        return _say_failed(log, request, found, found.result, show)


def _was_asked(log: Log, request: PlacementRequested) -> bool:
    """Whether this is asked again. Raises UsageProblem for an id that stands for another request: the answer would be that one's."""
    found = request_history(log, request.request_id)
    if found.request is not None:
        _refuse_differing(request, found.request, found.position)
    return found.request is not None


def _refuse_overtaken(log: Log, request: PlacementRequested, since: int, position: Position) -> None:
    """As `_was_asked`, for who asked with the same id at the same time and stands before it in the log. Raises UsageProblem."""
    key = request.request_id.encode()
    for record in between(log, REQUESTS, position.partition, since, position.offset, READ_RECORDS):
        before = decode_keyed(REQUESTS, record.key, record.value) if record.key == key else None
        if isinstance(before, PlacementRequested):
            _refuse_differing(request, before, record.position)
            return


def _refuse_differing(request: PlacementRequested, before: PlacementRequested, position: Position | None) -> None:
    if before == request:
        return
    differing = ", ".join(name for name in request.__struct_fields__ if getattr(before, name) != getattr(request, name))
    raise UsageProblem(
        f"request {request.request_id} was asked before, at {position}, with {request_text(before)}; this one "
        f"differs in {differing}; use another --request"
    )


def _say_placed(log: Log, found: RecordedResult, result: InstancesPlaced, show: Show) -> int:
    report = Report(
        columns=PLACED, items=[*map(item_of, result.placements)], cut=decided_at(log, found), summary=_summary(found), like=_LIKE
    )
    show.write(report)
    _say_kept(log, result.kept)
    say(f"placed at {found.position} by {result.owner}")
    return 0


def _say_kept(log: Log, kept: Sequence[Placement]) -> None:
    """Of each place that is kept for how long, and what is to be given back once its instance has moved for good.

    That is all it has there: the claim that it was started under stays where no host reports departures.
    """
    if not kept:
        return
    try:
        ledgers = state_at(log, views=False, pending=False, only={place.partition for place in kept}).ledgers
    except NOT_FOLDED as problem:
        places = ", ".join(f"{place.node_id} for {place.instance_id} with claim {place.claim_id}" for place in kept)
        say(f"kept: {places}; until when is not known: {problem}")
        return
    for place in kept:
        ledger, said = ledgers[place.partition], f"{place.instance_id} keeps its place on {place.node_id}"
        claim = ledger.claims.get(place.claim_id)
        if claim is None or claim.confirmed_ms is not None:
            say(f"{said} no longer")
            continue
        there = ledger.nodes[place.node_id].claims[place.instance_id]
        all_there = sorted(there, key=lambda each: each.claim_id != place.claim_id)
        longer = f"`claimlog claims hold {quote(place.claim_id)} --ttl 24h`"
        say(f"{said} until {units.moment(claim.deadline_ms)}, and longer by {longer}")
        say(f"once the move is confirmed: `{'; '.join(release_command(each, 'migrated') for each in all_there)}`")


def _say_would(log: Log, count: int, found: RecordedResult, result: InstancesPlaced, show: Show) -> int:
    """Of a dry run the nodes that were chosen: nothing is claimed, so there are no claims to name."""
    items = [{"instance_id": each.instance_id, "node_id": each.chosen, "claim_id": "", "partition": None} for each in result.decisions]
    summary = {**_summary(found), "outcome": "dry-run"}
    report = Report(columns=PLACED, items=items, cut=decided_at(log, found), summary=summary, like=_LIKE)
    show.write(report)
    told = "" if len(items) == count else f" (of {count} instances the first {len(items)} are told)"
    say(f"dry run: it would be placed so{told}, nothing is claimed; {found.position} by {result.owner}")
    return 0


def _say_failed(log: Log, request: PlacementRequested, found: RecordedResult, result: PlacementFailed, show: Show) -> int:
    """The reasons, and what the leaks on the nearest node hold."""
    code = exit_of_failed(result.reason)
    if not show.in_words:
        items = [decision_item(decision) for decision in result.decisions if decision.attempt]
        report = Report(columns=FAILED, items=items, cut=decided_at(log, found), summary=_summary(found), like=_LIKE)
        show.write(report)
        return code
    for line in failed_lines(log, request, result):
        print(printable(line))
    say(str(decided_at(log, found)))
    say(f"{result.reason} at {found.position} by {result.owner}; see: claimlog explain {quote(request.request_id)}")
    return code


def failed_lines(log: Log, request: PlacementRequested, result: PlacementFailed) -> list[str]:
    """Why a request was not placed: reason, funnel of the last decision that found nothing, nearest miss, leaks there."""
    lines = [f"not placed ({result.reason})" + (f": {result.message}" if result.message else "")]
    decision = next((each for each in reversed(result.decisions) if not each.chosen), result.decisions[-1] if result.decisions else None)
    if decision is None:
        return lines
    lines += [f"instance {decision.instance_id}"] if request.count > 1 else []
    lines += funnel_lines(decision)
    miss = decision.nearest_miss
    try:
        state = state_at(log)
        policy = Reruns(log, request).policy_or_default(decision)
        leaks = relief_lines(state, request, policy, miss.node_id if miss is not None else "")
    except NOT_FOLDED as problem:
        return [*lines, *([miss_line(miss)] if miss is not None else []), f"whether leaks are in the way is not known: {problem}"]
    return [*lines, *([miss_line(_told(miss, decision, state, request.limits))] if miss is not None else []), *leaks]


def _told(miss: NearestMiss, decision: Decision, state: State, limits: Limits | None) -> NearestMiss:
    """The nearest miss as `explain` tells it: where the node could not hold the instance were it empty, more that is free would not do."""
    from streams.scheduling.filters.amounts import told_now
    from streams.scheduling.matrix import TESTED

    node = state.node(miss.node_id)
    if node is None or miss.filter not in TESTED:
        return miss
    return structs.replace(miss, shortfalls=tuple([told_now(node, decision.instance_id, lack, limits) for lack in miss.shortfalls]))


def _summary(found: RecordedResult) -> dict[str, Any]:
    """What happened, for the JSON document."""
    result = found.result
    said = {"request_id": result.request_id, "owner": result.owner, "position": str(found.position), "time_ms": found.time_ms}
    if isinstance(result, InstancesPlaced):
        return {"outcome": "placed", **said} | ({"kept": [*map(item_of, result.kept)]} if result.kept else {})
    return {"outcome": "failed", "reason": result.reason, "message": result.message, **said}
