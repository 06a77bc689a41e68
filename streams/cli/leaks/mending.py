"""`claimlog leaks --heal`, `leaks ignore` and `leaks adopt`: what an operator does about findings, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import structs

from projections.ledger_state import Step
from projections.wording import outcome_text
from streams.cli.exits import Exit
from streams.cli.flags import LogFlag, Show
from streams.cli.fresh import Fresh, telling_what_stands
from streams.cli.given.units_in import not_empty
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say, teller
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.writing import appended, appended_to, check_readable, check_writable, new_stamp
from streams.healing import OpenRecord, Place, Remedy, adopted, ignored, remedy
from streams.log.base import Log, Position
from streams.operator import release

FindingName = Annotated[str, Parameter(help="Its id, as `claimlog leaks -o json` or -c finding_id names it.")]
ReasonFlag = Annotated[str, Parameter(converter=not_empty, help="Words for those who read it later.")]
COLUMNS = [
    Column(name="finding_id", title="finding"),
    Column(name="action", alarm=lambda action: "still open" in action),
    Column(name="what"),
    Column(name="position", shown=lambda place: place or "-"),
]


def heal(log: Log, chosen: Sequence[OpenRecord], show: Show, *, yes: bool, report_age_ms: int) -> int:
    """Print what would mend each finding and, with `yes`, write it; what nothing can be written for says why. Returns the exit code.

    All are looked at anew before the first, and each after what was written on its node or for its instance, with all that hosts have
    reported by then. 0 if nothing is left to do, else 3.
    """
    report = Report(columns=COLUMNS, items=(), like=_LIKE)
    show.check(report)
    if yes:
        check_writable(log)
    done: list[tuple[Remedy, str, Position | None]] = []
    fresh = Fresh(log, teller(sys.stderr))

    def written() -> Report:
        return structs.replace(report, items=[_item(*each) for each in done] if any(place for _, _, place in done) else ())

    with telling_what_stands(show, written):
        with Progress("mend", len(chosen)) as progress:
            for finding in chosen:
                progress.add()
                done.append(_mended(fresh, finding, yes=yes, report_age_ms=report_age_ms))
        state = fresh.now() if yes else fresh.loaded
    items = []
    for mends, action, place in done:
        is_open = state.finding_again(mends.finding) is not None
        if place is None:  # What was written for another one may have ended it.
            items.append(_item(mends, action if is_open else "resolved", place))
        else:
            items.append(_item(mends, f"{action}; still open" if is_open else action, place))
    show.write(structs.replace(report, items=items, cut=state.cut))
    if not yes and any(item["action"] == "would write" for item in items):
        say("nothing was written; --yes writes it")
    healed = all(item["action"] == "resolved" or (item["position"] and "still open" not in item["action"]) for item in items)
    return Exit.DONE if healed else Exit.FINDINGS


def _mended(fresh: Fresh, finding: OpenRecord, *, yes: bool, report_age_ms: int) -> tuple[Remedy, str, Position | None]:
    """What mends a finding as it is by now, what became of it, and where that stands if it was written."""
    state = fresh.now(finding.node_id, finding.instance_id) if yes else fresh.loaded
    now = state.finding_again(finding)
    if now is None:
        return Remedy(finding, "it is gone by now"), "resolved", None
    mends = remedy(now, _place(state, now), new_stamp(), report_age_ms=report_age_ms)
    if not mends.messages:
        return mends, "left alone", None
    if not yes:
        return mends, "would write", None
    position, step = fresh.write(mends.messages)
    is_noted = (now.kind, _outcome(step)) == ("vanished-claim", "not-held")
    return _told(mends, step), "noted" if is_noted else _outcome(step), position


def ignore(
    finding: FindingName,
    /,
    *,
    reason: Annotated[str, Parameter(help="Words for those who read it later; needed without --undo.", show_default=False)] = "",
    undo: Annotated[bool, Parameter(negative=(), help="Let it alarm again.")] = False,
    log: LogFlag = None,
) -> int:
    """Say that a finding is known and may stand: it is shown with --ignored only, until it is resolved. --undo takes that back.

    Nothing is written of one that rests on observations which are not in the ledger yet (exit 1): `claimlog run` carries them first.
    """
    if bool(reason) == undo:
        raise UsageProblem("leaks ignore needs --reason WORDS, or --undo to let the finding alarm again")
    with opened(log) as source:
        check_writable(source)
        state = state_at(source)
        record = _known(state, finding)
        if _carried(source, state, finding) is None:
            return Exit.ERROR
        position = appended(source, ignored(record, new_stamp(), reason))
        now = _found(state_at(source), finding)
    print("resolved" if now is None else "ignored" if now.ignored else "alarms again")
    say(f"{finding}: {position}")
    return Exit.DONE if now is None or now.ignored == reason else Exit.ERROR


def adopt(finding: FindingName, /, *, reason: ReasonFlag, log: LogFlag = None) -> int:
    """Claim what an instance uses that is on its host without a claim: its reported size, and the PCI devices that it has.

    The claim is confirmed by the next audit. Where it is refused that is said, with the reason, and the finding stays; where another was
    granted just before, or the instance left, it is given back (both exit 1). Of what rests on observations that are not in the ledger yet
    nothing is written, as with `leaks ignore`.
    """
    with opened(log) as source:
        check_writable(source)
        fresh = Fresh(source, teller(sys.stderr))
        record = _known(fresh.loaded, finding)
        state = fresh.now(record.node_id, record.instance_id)  # To read a long log takes a while.
        record = _known(state, finding)
        mends = adopted(record, _place(state, record), new_stamp())
        if not mends.messages:
            say(mends.says)
            return Exit.ERROR
        word = ignored(record, new_stamp(), f"adopted: {reason}")
        check_readable(word)  # Before the claim is written, which would stand without it.
        ledger = _carried(source, state, finding)
        if ledger is None:
            return Exit.ERROR
        position, step = appended_to(ledger, source, *mends.messages)
        outcome = _outcome(step)
        if outcome == "granted" and (why := _overtaken(ledger, record, step)):
            back = appended(source, release(step.outcomes[0].claim_id, record.node_id, new_stamp(), reason="operator", note=why))
            print("released")
            say(f"{why}: the claim at {position} is given back by {back}")
            return Exit.ERROR
        print(outcome, flush=True)
        say(f"{_told(mends, step).says}: {position} ({reason})")
        if outcome == "granted":  # Only then and not before: the word alone would hide the finding.
            appended(source, word)
    return Exit.DONE if outcome == "granted" else Exit.ERROR


_LIKE = dict.fromkeys(("finding_id", "kind", "node_id", "instance_id", "action", "what", "position"))


def _item(mends: Remedy, action: str, position: Position | None) -> dict[str, Any]:
    return {
        "finding_id": mends.finding.finding_id,
        "kind": mends.finding.kind,
        "node_id": mends.finding.node_id,
        "instance_id": mends.finding.instance_id,
        "action": action,
        "what": mends.says,
        "position": str(position) if position is not None else None,
    }


def _found(state: State, finding_id: str) -> OpenRecord | None:
    return next((finding for finding in state.findings() if finding.finding_id == finding_id), None)


def _known(state: State, finding_id: str) -> OpenRecord:
    """The open finding of that id. Raises UsageProblem if there is none."""
    found = _found(state, finding_id)
    if found is None:
        names = [finding.finding_id for finding in state.findings()]
        raise UsageProblem(f"there is no open finding {finding_id!r}; open are: {', '.join(names[:10]) or 'none'}")
    return found


def _carried(log: Log, state: State, finding_id: str) -> State | None:
    """The state, which has the finding, without what nobody has carried; None, which is said, where the finding rests on that.

    What is written would stand in front of the observations: a word would be of nothing, a claim of what no audit is known of.
    """
    if not state.laid:
        return state
    ledger = state_at(log, pending=False)
    if _found(ledger, finding_id) is not None:
        return ledger
    say(f"{finding_id}: what it rests on is not in the ledger yet, so nothing was written; `claimlog run` carries it there")
    return None


def _overtaken(state: State, finding: OpenRecord, step: Step) -> str:
    """What was written between the look and a claim that was granted, and leaves nothing to claim; empty if nothing was."""
    ledger = state.ledger_of(finding.node_id)
    assert ledger is not None
    node, instance_id = ledger.nodes[finding.node_id], finding.instance_id
    others = [claim.claim_id for claim in node.claims.get(instance_id, ()) if claim.offset < step.offset]
    if others:
        return f"{instance_id} was claimed meanwhile ({others[0]})"
    return "" if instance_id in node.shown else f"{instance_id} left {finding.node_id} meanwhile"


def _place(state: State, finding: OpenRecord) -> Place:
    ledger = state.ledger_of(finding.node_id)
    if ledger is None:
        raise UsageProblem(f"node {finding.node_id!r} of the finding is not known")
    view = state.observed[ledger.partition].view(finding.node_id)
    return Place(ledger.nodes[finding.node_id], state.ends[ledger.partition] - 1, view)


def _outcome(step: Step) -> str:
    """What became of what was written, in a word each."""
    return ", ".join(done.outcome for done in step.outcomes) or step.ignored or "done"


def _told(mends: Remedy, step: Step) -> Remedy:
    """As it was to be done and, of what the ledger refuses, why."""
    refusals = [outcome_text(done) for done in step.outcomes if done.outcome == "refused"]
    return structs.replace(mends, says="; ".join([mends.says, *refusals]))
