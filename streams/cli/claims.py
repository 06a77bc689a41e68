"""`claimlog claims`: which claims are held, holding one for longer, and giving one back."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote
from typing import Annotated, Literal

from cyclopts import App, Parameter

from projections.subjects import Subject
from projections.wording import amounts_text
from schemas.claims import ReleaseReason
from schemas.ids import instance_id
from schemas.partitioner import partition_of
from schemas.requests import TTL_MS_DEFAULT
from schemas.resources import RESOURCES
from schemas.results import OutcomeKind
from streams.cli.exits import Exit
from streams.cli.flags import LIVE, Live, LogFlag, MomentFlag
from streams.cli.given.node_names import unknown_node
from streams.cli.given.units_in import duration_ms, not_empty
from streams.cli.node.verb import claim_item
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report, plain
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.reading.state_at import ledger_partitions, moment_of, state_at
from streams.cli.watching import watchable
from streams.cli.writing import appended_to, check_writable, new_stamp
from streams.log.base import Log, Message, Position
from streams.operator import release as release_message
from streams.operator import renew

app = App(name="claims", help="The claims that are held; holding one for longer, giving one back.")

ClaimStates = Literal["held", "unconfirmed", "confirmed", "overdue"]
ClaimName = Annotated[str, Parameter(help="The claim's id, as placement results and `claims list` name it.")]
NodeOfClaim = Annotated[
    str,
    Parameter(name="--node", converter=not_empty, help="Its node, where the ledger does not know the claim (yet).", show_default=False),
]

COLUMNS = [
    Column(name="claim_id", title="claim"),
    Column(name="state", alarm=lambda state: state == "overdue"),
    Column(name="node_id", title="node"),
    Column(name="instance_id", title="instance"),
    Column(name="resources"),
    Column(name="age_ms", title="age", shown=lambda age_ms: "-" if age_ms is None else units.span(age_ms), right=True),
    Column(name="request_id", title="request", wide=True),
    Column(name="owner", wide=True),
    Column(name="deadline_ms", title="deadline", shown=units.moment, wide=True),
    Column(name="group_id", title="group", shown=lambda group: group or "-", wide=True),
    *(Column(name=name, wide=True) for name in ("keep", "resize", "forced")),
    Column(name="pinned_cpus", title="CPUs", shown=lambda cpus: plain(cpus) or "-", wide=True),
    Column(name="pci_addresses", title="devices", shown=lambda addresses: plain(addresses) or "-", wide=True),
    Column(name="position", wide=True),
]
_LIKE = dict.fromkeys([*(column.name for column in COLUMNS), *RESOURCES, "granted_ms", "confirmed_ms", "cells"])


@app.command(name="list")
@watchable
def list_(
    *,
    node: Annotated[str | None, Parameter(help="Only those on this node.", show_default=False)] = None,
    instance: Annotated[str | None, Parameter(help="Only those of this instance.", show_default=False)] = None,
    request: Annotated[str | None, Parameter(help="Only those of this request.", show_default=False)] = None,
    state: Annotated[ClaimStates, Parameter(help="overdue: unconfirmed after its deadline.")] = "held",
    at: MomentFlag = "now",
    log: LogFlag = None,
    show: Live = LIVE,
) -> int:
    """The claims held at a moment, oldest first."""
    for flag, name in (("--node", node), ("--instance", instance), ("--request", request)):
        if name == "":
            raise UsageProblem(f"{flag} '': expected a name; leave it out for all")
    with opened(log) as source:
        folded = state_at(source, moment_of(at), views=False)
    claims = [claim for ledger in folded.ledgers.values() for claim in ledger.claims.values()]
    claims = [
        claim
        for claim in sorted(claims, key=lambda claim: (claim.granted_ms, claim.claim_id))
        if node in {None, claim.node_id} and instance in {None, claim.instance_id} and request in {None, claim.request_id}
    ]
    if node and not claims and folded.node(node) is None:
        raise UsageProblem(unknown_node(node, folded.node_ids()))
    items = [claim_item(claim, folded) for claim in claims]
    wanted = {"unconfirmed": {"unconfirmed", "overdue"}}.get(state, {state})
    items = [
        item | {"resources": amounts_text([item[resource] for resource in RESOURCES])}
        for item in items
        if state == "held" or item["state"] in wanted
    ]
    show.write(Report(columns=COLUMNS, items=items, cut=folded.cut, like=_LIKE))
    for subject in (Subject("instance", instance or ""), Subject("request", request or "")):
        if subject.name and not claims:
            # Whether the name is known at all only the whole log says, and nothing held is an answer without it.
            say(f"nothing is held for {subject}; `claimlog timeline {quote(str(subject))}` says whether it is known")
    return 0


@app.command
def hold(
    claim: ClaimName,
    /,
    *,
    ttl: Annotated[str, Parameter(allow_leading_hyphen=True, help="For how long from now, such as 10m.")] = f"{TTL_MS_DEFAULT // 1000}s",
    node: NodeOfClaim = "",
    log: LogFlag = None,
) -> int:
    """Hold a claim for longer, before its instance is started: prints held and exits 0, or not held and exits 1.

    Along with a claim that a guest is to move to goes the place that it keeps where it comes from; with --node only if it is found there.
    """
    ttl_ms = duration_ms(ttl)
    if not ttl_ms:
        raise UsageProblem(f"--ttl {ttl}: that holds it for no time; expected a time such as 10m, or `claimlog claims release`")
    with opened(log) as source:
        check_writable(source)
        found = _found(source, claim, node)
        if found is None:
            return _not_held(claim, "not held")
        state, node_id = found
        position, outcome = _written(source, state, renew(claim, node_id, new_stamp(), ttl_ms=ttl_ms), claim)
        print("held" if outcome == "renewed" else "not held")
        say(f"{claim}: {outcome} at {position}")
        if outcome == "renewed":
            _hold_kept(source, state, claim, ttl_ms, state.ledgers if node else range(state.partitions))
    return 0 if outcome == "renewed" else 1


@app.command
def release(
    claim: ClaimName,
    /,
    *,
    reason: Annotated[ReleaseReason, Parameter(help="cancelled acts only on a claim that nobody confirmed or renewed.")] = "operator",
    note: Annotated[str, Parameter(help="Words for those who read it later.", show_default=False)] = "",
    node: NodeOfClaim = "",
    log: LogFlag = None,
) -> int:
    """Give a claim back: prints released and exits 0; in-use or not-held exits 1.

    Of one that vanished, which is a finding of `claimlog leaks`, the word is noted: it prints noted and exits 0.
    """
    with opened(log) as source:
        check_writable(source)
        found = _found(source, claim, node, views=True) or _vanished(source, claim)
        if found is None:
            return _not_held(claim, "not-held")
        state, node_id = found
        is_finding = _has_vanished(state, claim, node_id)
        position, outcome = _written(source, state, release_message(claim, node_id, new_stamp(), reason=reason, note=note), claim)
    if is_finding and outcome == "not-held":
        print("noted")
        say(f"{claim}: it had vanished from {node_id}, and no longer counts there; noted at {position}")
        return 0
    print(outcome)
    hint = "; its guest must be deleted first" if outcome == "in-use" else ""
    say(f"{claim}: {outcome} at {position}{hint}")
    return 0 if outcome == "released" else 1


def _vanished(log: Log, claim_id: str) -> tuple[State, str] | None:
    """The partition and the node of an open finding that the claim, which nothing holds, ended without anybody's word; None without one."""
    for number in range(ledger_partitions(log)):
        state = state_at(log, pending=False, only=(number,))
        of_it = (finding for finding in state.findings() if (finding.kind, finding.claim_id) == ("vanished-claim", claim_id))
        if (finding := next(of_it, None)) is not None:
            return state, finding.node_id
    return None


def _has_vanished(state: State, claim_id: str, node_id: str) -> bool:
    """Whether it is an open finding that the claim ended on the node without anybody's word."""
    it = ("vanished-claim", node_id, claim_id)
    return any((finding.kind, finding.node_id, finding.claim_id) == it for finding in state.findings())


def _found(log: Log, claim_id: str, node: str, *, views: bool = False) -> tuple[State, str] | None:
    """The partition that holds a claim, and the claim's node; if none does, those that the asker names, or None.

    One partition at a time, that of the asker's node first: the whole ledger may be a hundred times as much as the answer needs. `views`:
    that one with its findings.
    Raises UsageProblem if the nodes differ, or if nobody knows the node: a word there would stand where the claim never comes.
    """
    partitions = ledger_partitions(log)
    named = partition_of(node.encode(), partitions)
    of_node = state_at(log, views=views and bool(node), pending=False, only=(named,))
    known: list[str] = []
    for number in sorted(range(partitions), key=lambda number: number != named):
        state = of_node if number == named else state_at(log, views=False, pending=False, only=(number,))
        held = state.ledgers[number].claims.get(claim_id)
        if held is not None and node and node != held.node_id:
            raise UsageProblem(f"claim {claim_id} is held on {held.node_id}, not on {node}; leave out --node")
        if held is not None:
            return state, held.node_id
        known += state.node_ids()
    if not node:
        return None
    if node not in known:
        raise UsageProblem(unknown_node(node, sorted(known)))
    return of_node, node


def _hold_kept(log: Log, state: State, claim_id: str, ttl_ms: int, partitions: Iterable[int]) -> None:
    """Hold along what the claim's instance keeps, by the same request, on the node that it leaves.

    It may be in any of the partitions, so they are looked through only for an instance that its requester has named, as all are that move.
    """
    claim = next(held for ledger in state.ledgers.values() if (held := ledger.claims.get(claim_id)) is not None)
    number = claim_id.removeprefix(f"{claim.request_id}/").partition("/")[0]
    if claim.keep or (number.isdecimal() and claim.instance_id == instance_id(claim.request_id, int(number))):
        return
    for partition in partitions:
        there = state if partition in state.ledgers else state_at(log, views=False, pending=False, only=(partition,))
        for kept in list(there.ledgers[partition].claims.values()):
            is_its = (kept.request_id, kept.instance_id) == (claim.request_id, claim.instance_id)
            if is_its and kept.keep and kept.confirmed_ms is None:
                message = renew(kept.claim_id, kept.node_id, new_stamp(), ttl_ms=ttl_ms)
                position, outcome = _written(log, there, message, kept.claim_id)
                say(f"{kept.claim_id}, the place that it keeps on {kept.node_id}: {outcome} at {position}")


def _not_held(claim_id: str, said: str) -> int:
    """Nothing is written: without its node nobody knows where a word about the claim would belong."""
    print(said)
    why = "no partition holds it, so nothing was written; --node NODE writes it for a claim still on its way"
    say(f"{claim_id}: {why}")
    return Exit.ERROR


def _written(log: Log, state: State, message: Message, claim_id: str) -> tuple[Position, OutcomeKind]:
    """Append, fold up to it, and return what it did to the claim."""
    position, step = appended_to(state, log, message)
    return position, next((done.outcome for done in step.outcomes if done.claim_id == claim_id), "not-held")
