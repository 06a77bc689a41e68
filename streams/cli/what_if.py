"""`claimlog what-if`: what would be decided if something were otherwise. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat, takewhile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from projections.cut import Cut
from projections.ledger import Ledger
from projections.ledger_id import ledger_id_of
from projections.reading import HistoryMissing, ProjectionError, between
from schemas.claims import GroupHomeProposed
from schemas.codec import decode_keyed
from schemas.ids import NOBODYS, instance_id
from schemas.partitioner import partition_of
from schemas.requests import INSTANCES_MAX, PlacementRequested
from schemas.results import Decision
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.cli.changing import CHANGING, Changing, ChosenBy, as_of
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, BoundFlag, LogFlag, Show
from streams.cli.given.asking import ASKING, Asking, file_or_stdin, from_json
from streams.cli.given.documents import code_vouched_for
from streams.cli.printed import units
from streams.cli.printed.funnel import closest_lines, decision_item, funnel_lines, matrix_lines, request_text, supply_lines
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import printable, say
from streams.cli.printed.stdout import own_code
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.answers import astray, may_have_been_answered, not_at_hand, request_history, request_of_instance, results_by
from streams.cli.reading.open_log import opened
from streams.cli.reading.rerun import Reruns
from streams.cli.reading.state_at import moment_of, state_at
from streams.cli.reading.there import check_there
from streams.log.base import Log, OffsetOutOfRange
from streams.log.reading import READ_RECORDS
from streams.placement.checks import unfit
from streams.scheduling.ask import seed_of
from streams.scheduling.explain import CannotRerun, engine_of, spelled_out
from streams.scheduling.fleet import Fleet
from streams.scheduling.holding import nodes_begun_by, nodes_chosen_from
from streams.scheduling.keeping import refused_move
from streams.scheduling.loading import PolicyError
from streams.scheduling.policy import Policy, digest
from streams.scheduling.select import DEFAULT as ENGINE_DEFAULT
from streams.scheduling.what_if import OWNER, Basis, BasisOf, CannotChange, Changes, Outcome, change, counted, decide

COLUMNS = [
    Column(name="instance_id", title="instance"),
    Column(name="chosen", title="node", shown=lambda node: node or "-"),
    Column(name="unchanged", title="as it is", shown=lambda node: node or "-"),
    Column(name="nodes_known", title="known", right=True),
    Column(name="passed", right=True),
]

HOME_LOOKED_BACK = 10_000
"""So many records before a decision the home of its group is looked for: a request proposes it just before its instances are decided."""


class Subject(NamedTuple):
    """What is asked about: a request, and if it was decided, its decisions with their overlays in full and who made them.

    `count_asked`: for how many instances, where --count says another number.
    """

    request: PlacementRequested
    decisions: Sequence[Decision] = ()
    owner: str = OWNER
    count_asked: int | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it is for another number of instances than was asked for."""
        return self.count_asked is not None

    def told(self) -> list[str]:
        """What --count changes, in words."""
        return [] if self.count_asked is None else [f"{units.counted(self.request.count, 'instance')} instead of {self.count_asked}"]


class Played(NamedTuple):
    """How it came out: with the changes, as it is, on what cut, by which policy and where that is from."""

    outcome: Outcome
    unchanged: Sequence[Decision]
    cut: Cut
    policy: Policy
    source: str


def what_if(
    subject: Annotated[str, file_or_stdin("A request's id, a file with a request as JSON, or - for stdin.", "REQUEST-OR-FILE")] = "",
    /,
    *,
    asking: Asking = ASKING,
    changing: Changing = CHANGING,
    at: BoundFlag = None,
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """What would be decided if ratios, nodes, the policy or the number of instances were otherwise. Nothing is written.

    A request that was decided is decided again where its scheduler stood, or at --at; with no change that is the same decision. Whatever
    else is asked for is decided on the present, or at --at, one instance after the other, all or none, by the policy of the scheduler that
    had started last.

    Code that a recorded policy names is not run on the word of a log: it is if the policy that --by names has it too.

    Exits 4 if it could not be placed.
    """
    if asking.ttl is not None:
        raise UsageProblem("--ttl: nothing is claimed here, so no claim waits; `claimlog place` takes it")
    with opened(log) as source:
        check_there(source)
        about = _subject(source, subject, asking, is_of_a_moment=at is not None)
        changes = changing.changes()
        try:
            with own_code():
                if about.decisions and at is None:
                    played = _on_the_record(source, about, changes, changing)
                else:
                    played = _at_a_moment(source, about, changes, changing, "now" if at is None else at, asking)
        except CannotChange as problem:
            raise UsageProblem(str(problem)) from None
    request, told = about.request, [*about.told(), *changing.told()]
    if show.in_words:
        for line in _told(request, played, told, wide=show.output == "wide"):
            print(printable(line))
        say(str(played.cut))
    else:
        report = Report(columns=COLUMNS, items=_items(played), cut=played.cut, summary=_summary(request, played, told))
        show.write(report)
    return Exit.DONE if played.outcome.placed == request.count else Exit.UNPLACEABLE


def _is_file(text: str) -> bool:
    """Whether a file of that name is here; no request's id is too long to be asked for it."""
    try:
        return Path(text).is_file()
    except OSError:
        return False


def _subject(log: Log, text: str, asking: Asking, *, is_of_a_moment: bool) -> Subject:
    """Whom it is about; what became of it counts unless it `is_of_a_moment`. Raises UsageProblem, AnswerIncomplete."""
    if not text:
        request = asking.request(OWNER)
        ids = request.instance_ids or tuple(instance_id(NOBODYS, index) for index in range(request.count))
        return Subject(replace(request, instance_ids=ids))
    if text == "-" or text.endswith(".json") or _is_file(text):
        return _counted(Subject(from_json(text, None)), asking)
    check_there(log, REQUESTS)
    found = request_history(log, text)
    if found.request is None:
        gone = not_at_hand(log, REQUESTS)
        what = "its record is not at hand" if found.is_known else "it is not on this log, and no file of that name is here"
        request_id = None if found.is_known else request_of_instance(log, text)
        if request_id is not None:
            raise UsageProblem(f"{text!r} is an instance of request {request_id}; what would be otherwise is asked of all of it")
        raise (AnswerIncomplete if found.is_known or gone else UsageProblem)(f"request {text!r}: {what}{gone or astray(log, text)}")
    if found.counting is None:
        if not is_of_a_moment and may_have_been_answered(log, found):
            said = f"request {text!r}: whether it was answered, and how, is not known{not_at_hand(log, RESULTS)}"
            raise AnswerIncomplete(f"{said}; --at now decides on the present")
        return _counted(Subject(found.request), asking)
    result = found.counting.result
    decisions = _in_order(found.request, [each for each in spelled_out(found.request, result.decisions) if each.attempt])
    return _counted(Subject(found.request, decisions, result.owner), asking)


def _in_order(request: PlacementRequested, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Those of the first instances, one of each: the evidence of a large request may lack some behind them."""
    follow = takewhile(lambda pair: pair[1].instance_id == request.instance(pair[0]), enumerate(decisions))
    return [decision for _, decision in follow]


def _counted(subject: Subject, asking: Asking) -> Subject:
    """With --count; the other flags of an instance do not go with a request that is given. Raises UsageProblem."""
    asking.only("count")
    if asking.count is None:
        return subject
    if not 1 <= asking.count <= INSTANCES_MAX:
        raise UsageProblem(f"--count {asking.count}: expected 1 to {INSTANCES_MAX}")
    if asking.count == subject.request.count:
        return subject
    return subject._replace(request=counted(subject.request, asking.count), count_asked=subject.request.count)


def _on_the_record(log: Log, about: Subject, changes: Changes, changing: Changing) -> Played:
    """Decide a request again where its scheduler stood. Raises AnswerIncomplete where that is not at hand."""
    reruns = Reruns(log, about.request, code_vouched_for(changing.by, "--by"))
    try:
        recorded = reruns.policy(about.decisions[0])
        policy, source, _ = changing.policy(log) if changing.by else ChosenBy(recorded, "the one it was decided by")
        differs = changes.any or policy != recorded or about.is_counted
        basis, own_home = _recorded_basis(log, about, reruns, changes, recorded, policy), _own_home(log, about) if differs else 0
        outcome = decide(about.request, basis, policy, leaves_home=differs, left=own_home)
    except (CannotRerun, PolicyError, OffsetOutOfRange, ProjectionError) as problem:
        raise AnswerIncomplete(f"the decision cannot be made again: {problem}; --at now decides on the present") from None
    places = {(CLAIMS, number): end for number, end in enumerate(about.decisions[-1].cut)}
    return Played(outcome, about.decisions, Cut.of(places, ledger_id_of(log)), policy, source)


def _own_home(log: Log, about: Subject) -> int:
    """The epoch of the newest home that the request itself proposed for its group, just before it was decided there; 0 for none."""
    group, cut = about.request.group, about.decisions[0].cut
    if group is None or group.policy != "affinity":
        return 0
    key, own = group.group_id.encode(), f"{about.request.request_id}/"
    number = partition_of(key, len(cut))
    first = max(log.start(CLAIMS, number), cut[number] - HOME_LOOKED_BACK)
    records = between(log, CLAIMS, number, first, cut[number], READ_RECORDS)
    events = (decode_keyed(CLAIMS, record.key, record.value) for record in records if record.key == key)
    return max((event.epoch for event in events if isinstance(event, GroupHomeProposed) and event.record_id.startswith(own)), default=0)


def _recorded_basis(log: Log, about: Subject, reruns: Reruns, changes: Changes, recorded: Policy, policy: Policy) -> BasisOf:
    """Each instance on the cut and under the claims in flight of its own decision, as long as those before came out as recorded.

    From the first that did not, all are decided on the fleet of that one: what the log has later follows from the other choice.
    """
    done: set[tuple[int, ...]] = set()
    last: list[Fleet] = []

    def basis(index: int, before: Sequence[Decision]) -> Basis:
        as_recorded = index < len(about.decisions) and all(
            now.chosen == then.chosen for now, then in zip(before, about.decisions, strict=False)
        )
        if not as_recorded:
            fleet = last[-1]
            return Basis(fleet, seed_of(about.owner, about.request.request_id, index, 1), unusable=_unusable(about, fleet, policy, index))
        decision = about.decisions[index]
        ledgers = reruns.folded(decision)
        if changes.any and decision.cut not in done:
            change(ledgers, as_of(log, ledgers, changes))
            done.add(decision.cut)
        fleet = reruns.fleet(decision, ledgers, recorded)
        last[:] = [fleet]
        held = nodes_chosen_from(fleet, about.request, index, decision)
        engine = engine_of(decision) if policy == recorded else ENGINE_DEFAULT
        begun = nodes_begun_by(fleet, about.request)
        return Basis(fleet, decision.seed, decision.attempt, engine, held, begun, _unusable(about, fleet, policy, index))

    return basis


def _at_a_moment(log: Log, about: Subject, changes: Changes, changing: Changing, at: str, asking: Asking) -> Played:
    """Decide on the ledger as of a moment, what hosts reported and nobody has carried yet included.

    The policy is that of the moment, too. Raises UsageProblem for a flag of `asking` that names a node which is not known then.
    """
    moment = moment_of(at)
    state = state_at(log, moment, views=False)
    ledgers = list(state.ledgers.values())
    own, trusted = None, code_vouched_for(changing.by, "--by")
    try:
        own = CHANGING.policy(log, results_by(log, moment, state.as_of_ms), trusted)
    except (UsageProblem, AnswerIncomplete, HistoryMissing):
        if not changing.by:
            raise  # With --by another is chosen by, and what is chosen as it is, nobody can tell here.
    policy, source, _ = changing.policy(log) if changing.by or own is None else own
    differs = changes.any or own is None or policy != own.policy
    unchanged = _decided(about, ledgers, own.policy).decisions if differs and own is not None else []
    change(ledgers, as_of(log, ledgers, changes))
    asking.check_nodes({node_id for ledger in ledgers for node_id in ledger.nodes})
    outcome = _decided(about, ledgers, policy)
    # What was laid on the end is in no partition of `claims` yet: the cut of each decision is the part of it that is.
    ends = tuple(end for _, end in sorted(state.ends.items()))
    outcome = outcome._replace(decisions=[replace(decision, cut=ends) for decision in outcome.decisions])
    cut = state.cut if own is None else own.cut(state.cut)
    return Played(outcome, unchanged if differs else outcome.decisions, cut, policy, source)


def _decided(about: Subject, ledgers: Sequence[Ledger], policy: Policy) -> Outcome:
    fleet, request = Fleet(ledgers), about.request

    def basis(index: int, _before: Sequence[Decision]) -> Basis:
        return Basis(fleet, seed_of(about.owner, request.request_id, index, 1), unusable=_unusable(about, fleet, policy, index))

    return decide(request, basis, policy)


def _unusable(about: Subject, fleet: Fleet, policy: Policy, index: int) -> str:
    """Why a scheduler of this policy would not look for a node at all."""
    return unfit(about.request, policy, about.owner, 0, fleet) or refused_move(fleet, about.request, index)


def _told(request: PlacementRequested, played: Played, told: Sequence[str], *, wide: bool) -> list[str]:
    outcome = played.outcome
    lines = [
        f"what if  {', '.join(told) or 'nothing were otherwise'}",
        f"request  {request.request_id}  {request_text(request)}",
        f"decided on {played.cut}, by policy {digest(played.policy)} ({played.source}); nothing is written",
        "",
    ]
    for item in _items(played):
        before = "" if item["unchanged"] in {None, item["chosen"]} else f"  (as it is: {item['unchanged'] or 'no node'})"
        lines.append(f"{item['instance_id']}  {item['chosen'] or 'no node'}{before}")
    failed = outcome.decisions[-1] if not outcome.decisions[-1].chosen else None
    if failed is not None:
        lines += funnel_lines(failed, outcome.matrix) + supply_lines(outcome.supplies)
        lines += closest_lines(failed, outcome.matrix)
        lines += matrix_lines(outcome.matrix) if wide and outcome.matrix is not None else []
    verdict = "placed" if outcome.placed == request.count else "not placed: all or none"
    return [*lines, f"{units.count(outcome.placed)} of {units.count(request.count)} have a node: {verdict}"]


def _items(played: Played) -> list[dict[str, Any]]:
    """The decisions, each with what is chosen as it is; None where that was not decided."""
    unchanged = chain((decision.chosen for decision in played.unchanged), repeat(None))
    return [decision_item(decision) | {"unchanged": before} for decision, before in zip(played.outcome.decisions, unchanged, strict=False)]


def _summary(request: PlacementRequested, played: Played, told: Sequence[str]) -> dict[str, Any]:
    outcome = played.outcome
    return {
        "outcome": "placed" if outcome.placed == request.count else "not-placed",
        "count": request.count,
        "placed": outcome.placed,
        "unchanged_placed": sum(bool(decision.chosen) for decision in played.unchanged),
        "changes": told,
        "policy_digest": digest(played.policy),
        "policy_source": played.source,
        "request": to_builtins(request),
        "supplies": [asdict(each) for each in outcome.supplies],
    }
