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
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say, teller
from streams.cli.printed.progress import Progress
from streams.cli.problems import UsageProblem
from streams.cli.reading.apart import Tell
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.writing import appended, appended_to, check_writable, new_stamp
from streams.healing import OpenRecord, Place, Remedy, adopted, ignored, remedy
from streams.log.base import Log, Position

FindingName = Annotated[str, Parameter(help="Its id, as `claimlog leaks -o json` or -c finding_id names it.")]
ReasonFlag = Annotated[str, Parameter(help="Words for those who read it later.")]
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
    mender = _Mender(log, teller(sys.stderr))
    with Progress("mend", len(chosen)) as progress:
        for finding in chosen:
            progress.add()
            now = mender.finding_now(finding)
            if now is None:
                done.append((Remedy(finding, "it is gone by now"), "resolved", None))
                continue
            mends = remedy(now, _place(mender.state, now), new_stamp(), report_age_ms=report_age_ms)
            if not mends.messages:
                done.append((mends, "left alone", None))
            elif not yes:
                done.append((mends, "would write", None))
            else:
                position, step = mender.write(mends)
                is_noted = (now.kind, _outcome(step)) == ("vanished-claim", "not-held")
                done.append((_told(mends, step), "noted" if is_noted else _outcome(step), position))
    state = mender.look()
    items = []
    for mends, action, place in done:
        left = place is not None and state.finding_again(mends.finding) is not None
        items.append(_item(mends, f"{action}; still open" if left else action, place))
    show.write(structs.replace(report, items=items, cut=state.cut))
    if not yes and any(item["action"] == "would write" for item in items):
        say("nothing was written; --yes writes it")
    healed = all(item["action"] == "resolved" or (item["position"] and "still open" not in item["action"]) for item in items)
    return Exit.DONE if healed else Exit.FINDINGS


class _Mender:
    """The state by which findings are mended one after the other.

    It goes on from record to record, unless hosts have reported what nobody has carried: that lies on the end of the ledger, in front of
    which the next record goes, so the ledger is loaded anew where a finding may concern what was written since the last look.
    """

    def __init__(self, log: Log, tell: Tell) -> None:
        self._log, self._tell = log, tell
        self.state = state_at(log, tell=tell)
        self._ledger: State | None = None
        self._touched: set[str] = set()

    def look(self) -> State:
        """The state with all that was written and reported by now."""
        if self._touched:
            self.state = state_at(self._log, tell=self._tell, begun=None if self.state.laid else self.state)
            self._touched.clear()
        return self.state

    def finding_now(self, finding: OpenRecord) -> OpenRecord | None:
        """What has become of it; None if it is no longer open."""
        if not self.state.laid or {finding.node_id, finding.instance_id} & self._touched:
            self.look()
        return self.state.finding_again(finding)

    def write(self, mends: Remedy) -> tuple[Position, Step]:
        """Append what mends a finding; returns as `appended_to`."""
        self._touched |= {mends.finding.node_id, mends.finding.instance_id} - {""}
        if self.state.laid and self._ledger is None:
            self._ledger = state_at(self._log, views=False, pending=False)
        return appended_to(self._ledger or self.state, self._log, *mends.messages)


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
        if state.laid and _found(state_at(source, pending=False), finding) is None:
            # The word would stand in front of the observations, and be of nothing.
            say(f"{finding}: what it rests on is not in the ledger yet, so nothing was written; `claimlog run` carries it there")
            return Exit.ERROR
        position = appended(source, ignored(record, new_stamp(), reason))
        now = _found(state_at(source), finding)
    print("resolved" if now is None else "ignored" if now.ignored else "alarms again")
    say(f"{finding}: {position}")
    return Exit.DONE if now is None or now.ignored == reason else Exit.ERROR


def adopt(finding: FindingName, /, *, reason: ReasonFlag, log: LogFlag = None) -> int:
    """Claim what an instance uses that is on its host without a claim: its reported size, and the PCI devices that it has.

    The claim is confirmed by the next audit. Where it is refused that is said, with the reason, and the finding stays.
    """
    with opened(log) as source:
        check_writable(source)
        state = state_at(source)
        record = _known(state, finding)
        mends = adopted(record, _place(state, record), new_stamp())
        if not mends.messages:
            say(mends.says)
            return Exit.ERROR
        ledger = state_at(source, views=False, pending=False) if state.laid else state
        position, step = appended_to(ledger, source, *mends.messages)
        outcome = _outcome(step)
        if outcome == "granted":  # Only then and not before: the word alone would hide the finding.
            appended(source, ignored(record, new_stamp(), f"adopted: {reason}"))
    print(outcome)
    say(f"{_told(mends, step).says}: {position} ({reason})")
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
