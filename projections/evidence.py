"""What observations do to a node and its claims: rules 4 to 7. A claim goes by evidence, never by time passing.

No observation is newer than its own record: a time above the append time counts as the append time. Otherwise what a host with a clock far
ahead has shown could not be taken back, once the clock is right again, for as long as it had been wrong.

An instance is *settled* if it is shown as the last complete audit lists it, every claim of it is confirmed and nothing speaks against any.
To be listed once more then moves nothing of it but the time of its last showing, so that is kept once for the whole node in `settled_ms`,
and an audit looks only at those in `loose`, the node's instances that are not settled. Whoever touches one loosens it first (`loosen`
spells out its time). It saves the walk over all guests at each audit; who walks it (`unsettle`) comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from projections import numa_node
from projections.ledger_state import LedgerState, Step
from projections.node import Amounts, Audit, Claim, FullAudit, Node, ObservedAmounts, Shown, cut_to, observed_amounts
from projections.rules import GRACE_MS, SKEW_MS
from schemas.claims import InstanceObserved, NodeObserved
from schemas.codec import event_type

if TYPE_CHECKING:
    from schemas.audits import InstanceReport
    from schemas.results import OutcomeKind

_SHOWINGS = frozenset({"arrived", "started", "stopped", "paused", "resized"})
"""Changes that show the instance on the node; the others are departures."""
_BY_ID = attrgetter("claim_id")


def node_observed(ledger: LedgerState, event: NodeObserved, step: Step) -> None:
    """Fold one hypervisor audit: totals, what is shown, and the evidence for and against each claim there."""
    node = ledger.nodes.get(event.node_id) or ledger.node(event.node_id)
    if not _newer(node, f"audits|{event.producer}", event.epoch, event.counter):
        step.ignored = f"not above the last audit of {event.producer}"
        return
    step.node_ids = (event.node_id,)
    if event.taken_at_ms > step.time_ms:
        event = replace(event, taken_at_ms=step.time_ms)
    if event.failed:
        _unknown(node, event, event.failed)
        return
    full, settled_ms = node.full, node.settled_ms
    goes_on = settled_ms is not None and event.complete and event.taken_at_ms >= settled_ms
    if event.instances is not None and event.hypervisor is not None:
        hypervisor = node.hypervisor if event.hypervisor == node.hypervisor else event.hypervisor
        instances = _known_again(node, event.instances)
        if event.complete:
            node.full = FullAudit(event.digest, event.epoch, hypervisor, instances, step.offset)
        listed = {report.instance_id: report for report in instances}
        open_ = _changed(node, listed, event.instances) if goes_on else _everything(node, listed)
    else:
        if full is None or full.digest != event.digest or full.epoch != event.epoch:
            _unknown(node, event, "an unchanged audit whose full one was not applied")
            return
        # An incomplete audit in between may have known less of the host than the full one that this stands for.
        hypervisor, open_ = full.hypervisor, node.loose
        if goes_on and not open_:
            _applied(node, event, step)
            node.settled_ms = event.taken_at_ms
            step.times_only = True
            return
        listed = {report.instance_id: report for report in full.instances if not goes_on or report.instance_id in open_}
        if not goes_on:
            open_ = _everything(node, listed)
    if hypervisor is not node.hypervisor:
        node.hypervisor = hypervisor
        node.refresh()
    _audited(ledger, node, event, step, listed, open_)


def _everything(node: Node, listed: dict[str, InstanceReport]) -> set[str]:
    """All instances shown, held or listed, none of them settled any more."""
    unsettle(node)
    return {*node.shown, *node.claims, *listed}


def _known_again(node: Node, instances: tuple[InstanceReport, ...]) -> tuple[InstanceReport, ...]:
    """The list with each report that says nothing new in the object that is there: it takes no memory and is known by its identity."""
    shown_of = node.shown.get
    return tuple(
        [report if (shown := shown_of(report.instance_id)) is None or shown.report != report else shown.report for report in instances]
    )


def _changed(node: Node, listed: dict[str, InstanceReport], told: tuple[InstanceReport, ...]) -> set[str]:
    """The instances that a full list (`told`, see `_known_again`) says something new about, and those that are not settled anyway."""
    for instance_id in [report.instance_id for report in told if listed[report.instance_id] is report]:
        loosen(node, instance_id)
    if node.shown.keys() != listed.keys():
        for instance_id in node.shown.keys() - listed.keys():
            loosen(node, instance_id)
    return node.loose


def _audited(
    ledger: LedgerState, node: Node, event: NodeObserved, step: Step, listed: dict[str, InstanceReport], instances: set[str]
) -> None:
    """Show those of `instances` that the audit lists, weigh what speaks against the others, and see which of them are settled now."""
    taken_at_ms = event.taken_at_ms
    step.audited = instances
    if event.complete:
        _remove_unlisted(node, [i for i in instances if i not in listed], taken_at_ms)
    for instance_id in sorted([i for i in instances if i in listed]):
        _show(ledger, node, listed[instance_id], taken_at_ms, step, is_event=False)
    _applied(node, event, step)
    if event.complete:  # What an incomplete audit lists was shown; what it omits says nothing.
        _weigh_evidence(ledger, node, instances, listed, event, step)
        shown, claims = node.shown, node.claims
        node.loose = {i for i in instances if (not _settles(node, i, listed[i], taken_at_ms) if i in listed else i in claims or i in shown)}
        node.settled_ms = taken_at_ms


def instance_observed(ledger: LedgerState, event: InstanceObserved, step: Step) -> None:
    """Fold one life-cycle event: a showing, or a departure of the instance."""
    node = ledger.nodes.get(event.node_id) or ledger.node(event.node_id)
    if not _newer(node, f"lifecycle|{event.producer}", event.epoch, event.counter):
        step.ignored = f"not above the last event of {event.producer}"
        return
    step.node_ids = (event.node_id,)
    if event.event_time_ms > step.time_ms:
        event = replace(event, event_time_ms=step.time_ms)
    instance_id = event.instance.instance_id
    if event.change in _SHOWINGS:
        if instance_id not in node.shown and event.event_time_ms <= node.complete_ms:
            step.ignored = "older than the last audit, which omits the instance"
            return
        loosen(node, instance_id)
        _show(ledger, node, event.instance, event.event_time_ms, step, is_event=True)
        return
    loosen(node, instance_id)
    shown = node.shown.get(instance_id)
    if shown is not None and shown.seen_ms <= event.event_time_ms:
        del node.shown[instance_id]
        node.recount(instance_id)
    _departure(ledger, node, event, step)


def loosen(node: Node, instance_id: str) -> None:
    """Spell out the time of the last showing of one instance; the next audit looks at it."""
    if node.settled_ms is None or instance_id in node.loose:
        return
    _spell(node, instance_id, node.settled_ms)
    node.loose.add(instance_id)


def unsettle(node: Node) -> None:
    """Spell out the time of the last showing for all that is shown and held on a node; the next audit looks at all of it."""
    if node.settled_ms is None:
        return
    for instance_id in node.shown:
        if instance_id not in node.loose:
            _spell(node, instance_id, node.settled_ms)
    node.settled_ms = None
    node.loose.clear()


def _spell(node: Node, instance_id: str, seen_ms: int) -> None:
    shown = node.shown.get(instance_id)
    if shown is not None:
        shown.seen_ms = max(shown.seen_ms, seen_ms)
    for claim in node.claims.get(instance_id, ()):
        claim.seen_ms = max(claim.seen_ms, seen_ms)


def _in_order(claims: Sequence[Claim]) -> Sequence[Claim]:
    """By claim id: outcomes must not come in the order in which a state happened to be restored (rule 1)."""
    return claims if len(claims) < 2 else sorted(claims, key=_BY_ID)


def _newer(node: Node, source: str, epoch: int, counter: int) -> bool:
    """Rule 4: only what is above the highest (epoch, counter) of its source topic and producer counts."""
    if (epoch, counter) <= node.sources.get(source, (-1, -1)):
        return False
    node.sources[source] = (epoch, counter)
    return True


def would_count(node: Node | None, event: NodeObserved | InstanceObserved) -> bool:
    """Whether an observation would count on the node as it is now, by rule 4; of a copy this says no."""
    kind = "audits" if isinstance(event, NodeObserved) else "lifecycle"
    return node is None or (event.epoch, event.counter) > node.sources.get(f"{kind}|{event.producer}", (-1, -1))


def _unknown(node: Node, event: NodeObserved, reason: str) -> None:
    """A failed audit is "unknown since", never an empty list; it is no evidence and ends no run."""
    if node.unknown_since_ms is None:
        node.unknown_since_ms = event.unknown_since_ms if event.unknown_since_ms is not None else event.taken_at_ms
    node.unknown_reason = reason


def _applied(node: Node, event: NodeObserved, step: Step) -> None:
    if node.audit is not None and node.audit.producer != event.producer:
        # Another producer's monotonic clock: what it says cannot lengthen a run that this one's measured, even if the epochs are equal.
        for claim in node.held():
            claim.run_epoch = None
    node.audit = Audit(event.producer, event.epoch, event.counter, event.taken_at_ms, event.complete, step.offset)
    node.unknown_instances = event.unknown_instances
    node.silent_since_ms = None
    if event.complete:
        node.complete_ms = event.taken_at_ms
        node.unknown_since_ms, node.unknown_reason = None, ""


def _settles(node: Node, instance_id: str, report: InstanceReport, taken_at_ms: int) -> bool:
    """Whether a further audit that lists the instance like this can do nothing but show it again."""
    shown = node.shown[instance_id]
    if not _is_as_listed(shown.amounts, observed_amounts(report.resources)) or not numa_node.same_devices(shown.report, report):
        return False
    for claim in node.claims.get(instance_id, ()):
        if claim.confirmed_ms is None or claim.departed_ms is not None or claim.run_epoch is not None:
            return False
        if taken_at_ms < claim.since_ms - SKEW_MS or taken_at_ms < claim.gone_ms:
            return False  # As in `_confirm`: it is not shown by audits up to then.
    return True


def _is_as_listed(amounts: ObservedAmounts, listed: ObservedAmounts) -> bool:
    """Whether to be listed once more changes nothing of the size."""
    return amounts == listed or all(new is None or new == old for old, new in zip(amounts, listed, strict=True))


def _remove_unlisted(node: Node, unlisted: Iterable[str], taken_at_ms: int) -> None:
    """Rule 5: a complete audit removes what it omits, unless the instance's last event is not older than the audit less the skew."""
    for instance_id in unlisted:
        shown = node.shown.get(instance_id)
        if shown is not None and (shown.event_ms < 0 or shown.event_ms < taken_at_ms - SKEW_MS):
            del node.shown[instance_id]
            node.recount(instance_id)


def _show(ledger: LedgerState, node: Node, report: InstanceReport, time_ms: int, step: Step, *, is_event: bool) -> None:
    """The instance is on the node at `time_ms`: remember its size, and confirm its claims there."""
    instance_id = report.instance_id
    amounts = observed_amounts(report.resources)
    shown = node.shown.get(instance_id)
    changed = shown is None
    if shown is None:
        amounts, report = ledger.shared.setdefault(amounts, amounts), ledger.with_shared_size(report)
        shown = node.shown[instance_id] = Shown(report, amounts, time_ms, time_ms if is_event else -1, step.offset)
    elif _show_again(shown, report, amounts, time_ms, is_event=is_event):
        shown.offset = step.offset
        changed = True
    claims = node.claims.get(instance_id)
    if claims is not None:
        for claim in _in_order(claims):
            if _confirm(ledger, node, claim, shown, amounts, time_ms, step):
                changed = True
    if changed:
        node.recount(instance_id)


def _show_again(shown: Shown, report: InstanceReport, amounts: ObservedAmounts, time_ms: int, *, is_event: bool) -> bool:
    """Fold a further showing; True if the size changed. An audit no newer than the last event, less the skew, does not shrink (rule 5).

    A resource that this showing does not report stays as the last one reported it: not reported is not zero.
    """
    late_event = is_event and time_ms < shown.seen_ms - SKEW_MS
    protected = not is_event and shown.event_ms >= 0 and shown.event_ms >= time_ms - SKEW_MS
    shown.seen_ms = max(shown.seen_ms, time_ms)
    if is_event:
        shown.event_ms = max(shown.event_ms, time_ms)
    if late_event:
        return False
    shown.report = numa_node.reported(shown.report, report, is_event=is_event, protected=protected)
    old = shown.amounts
    if old == amounts:
        return False
    known = _most if protected else _latest
    shown.amounts = (known(old[0], amounts[0]), known(old[1], amounts[1]), known(old[2], amounts[2]), known(old[3], amounts[3]))
    return shown.amounts != old


def _most(old: int | None, new: int | None) -> int | None:
    """The larger of two reports; one that is missing says nothing."""
    if old is None or new is None:
        return new if old is None else old
    return max(old, new)


def _latest(old: int | None, new: int | None) -> int | None:
    """The later of two reports; one that is missing says nothing."""
    return old if new is None else new


def _confirm(ledger: LedgerState, node: Node, claim: Claim, shown: Shown, amounts: ObservedAmounts, time_ms: int, step: Step) -> bool:
    """Let a showing speak for a claim; True if it is confirmed by it.

    One older than the grant or renewal less the skew, or older than a known departure, says nothing. A resize's claim is confirmed only by
    exactly its size (rule 7), one that keeps a place only after its deadline: nobody has said since that the guest is to leave, so it has
    stayed or come back, and takes what is shown.
    """
    if time_ms < claim.since_ms - SKEW_MS or time_ms < claim.gone_ms:
        return False
    if claim.resize and claim.confirmed_ms is None and not _is_size(claim, amounts, shown.amounts):
        return False
    if claim.keep and claim.confirmed_ms is None and time_ms < claim.deadline_ms:
        return False
    claim.seen_ms = max(claim.seen_ms, time_ms)
    claim.run_epoch = None
    if claim.departed_ms is not None and time_ms > claim.departed_ms:
        claim.departed_ms = None
    if claim.confirmed_ms is not None:
        return False
    claim.confirmed_ms, claim.confirmed_offset, claim.confirmed_by = time_ms, step.offset, event_type(step.event)
    node.io_claims -= 1
    if claim.group is not None:
        shown.group_id = claim.group.group_id
    if claim.resize:
        _cut_older(node, claim)
    if claim.keep:
        claim.amounts = cut_to(claim.amounts, shown.amounts)
    if None in amounts and shown.amounts != amounts:
        shown.amounts = _as_claimed(shown.amounts, amounts, claim.amounts)
    ledger.tell(step, "confirmed", claim)
    return True


def _is_size(claim: Claim, amounts: ObservedAmounts, shown: ObservedAmounts) -> bool:
    """Whether everything the observation reports is what the claim says and what is shown from now on, and it reports something.

    An event that is too late to change what is shown is older than what is shown, so the resize may be undone already.
    """
    reported = [r for r, observed in enumerate(amounts) if observed is not None]
    return bool(reported) and all(amounts[r] == claim.amounts[r] == shown[r] for r in reported)


def _cut_older(node: Node, resize: Claim) -> None:
    """A confirmed resize is the whole size: older confirmed claims of the instance here no longer stand for more.

    The room of a smaller size is granted to others; once the guest has left, an older and larger claim would take it a second time.
    """
    for claim in node.claims[resize.instance_id]:
        if claim.confirmed_ms is not None and claim.offset < resize.offset:
            old, new = claim.amounts, resize.amounts
            claim.amounts = (min(old[0], new[0]), min(old[1], new[1]), min(old[2], new[2]), min(old[3], new[3]))
            claim.cells, claim.pinned_cpus, claim.pci_addresses = resize.cells, resize.pinned_cpus, resize.pci_addresses


def _as_claimed(shown: ObservedAmounts, reported: ObservedAmounts, claimed: Amounts) -> ObservedAmounts:
    """What is shown once a claim is confirmed: where the observation says nothing, the larger of what was known before and the claim's.

    Where all that is known is from this observation, that is nothing.
    """
    old = [
        known if known is None or said is not None else max(known, claim)
        for known, said, claim in zip(shown, reported, claimed, strict=True)
    ]
    return (old[0], old[1], old[2], old[3])


def _weigh_evidence(
    ledger: LedgerState, node: Node, instances: Iterable[str], listed: dict[str, InstanceReport], event: NodeObserved, step: Step
) -> None:
    """Rule 6: start, continue or end each claim's run of complete audits that do not list its instance, and close it when that lasted."""
    claims_of, newest_ms = node.claims.get, event.taken_at_ms - SKEW_MS
    ended: list[tuple[str, Claim, OutcomeKind]] = []
    for instance_id in instances:
        for claim in claims_of(instance_id, ()):
            if instance_id in listed and not (claim.resize and claim.confirmed_ms is None):
                claim.run_epoch = None
            elif claim.since_ms <= newest_ms and claim.seen_ms <= newest_ms and (outcome := _run(claim, event, step)) is not None:
                ended.append((claim.claim_id, claim, outcome))
    ended.sort()  # By claim id, as `_in_order`.
    for _, claim, outcome in ended:
        ledger.close(claim, outcome, step)


def _run(claim: Claim, event: NodeObserved, step: Step) -> OutcomeKind | None:
    """Start or continue a claim's run; how the claim ends if that lasted, else None."""
    if claim.run_epoch != event.epoch:
        claim.run_epoch, claim.run_mono_ms, claim.run_since_ms = event.epoch, event.mono_ms, step.time_ms
        return None
    # By the log's clock as well: audits that waited and come all at once are minutes apart, but may all be older than the last showing.
    lasted_ms = min(event.mono_ms - claim.run_mono_ms, step.time_ms - claim.run_since_ms + SKEW_MS)
    shown_once = claim.confirmed_ms is not None
    if not shown_once and event.taken_at_ms < claim.deadline_ms - SKEW_MS:
        return None
    if claim.departed_ms is not None and claim.departed_ms >= claim.since_ms - SKEW_MS:
        return "departed" if lasted_ms >= GRACE_MS else None
    if lasted_ms < claim.ttl_ms:
        return None
    return "vanished" if shown_once else "expired"


def _departure(ledger: LedgerState, node: Node, event: InstanceObserved, step: Step) -> None:
    """Note a departure for the instance's claims here; `deleted`, the owner's final word, closes them at once (rule 6)."""
    time_ms = event.event_time_ms
    for claim in tuple(_in_order(node.claims.get(event.instance.instance_id, ()))):
        claim.gone_ms = max(claim.gone_ms, time_ms)
        last_word = event.change == "deleted" and time_ms > max(claim.seen_ms, claim.since_ms) + SKEW_MS
        if event.change == "deleted" and (last_word or event.claim_id == claim.claim_id):
            ledger.close(claim, "deleted", step)
        elif claim.confirmed_ms is not None and time_ms >= claim.seen_ms - SKEW_MS:
            claim.departed_ms = time_ms if claim.departed_ms is None else max(claim.departed_ms, time_ms)
