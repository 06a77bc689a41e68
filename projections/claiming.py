"""What claims do: granted or refused, renewed, released, and the homes of affinity groups (rules 2, 8, 9 and 10)."""

from __future__ import annotations

from msgspec.structs import replace

from projections import evidence, fit, numa_node
from projections.ledger_state import LedgerState, Step
from projections.node import Claim, Home, Node, amounts_of
from projections.rules import REMEMBERED_RECORDS
from schemas import claims as say
from schemas.resources import Shortfall
from schemas.results import ClaimOutcome, Granted, OutcomeKind

Grant = tuple[say.ClaimItem, Node, tuple[Shortfall, ...], Granted | None]
"""An item that fits: its node, what it takes beyond the limits, and its cells and devices if it wants some."""


def requested(ledger: LedgerState, event: say.ClaimRequested, step: Step) -> None:
    """All items are granted, each on the first of its nodes where it fits with those before it laid over, or all are refused."""
    items = event.items
    if len(items) == 1 and granted_at_once(ledger, event, items[0], step):
        return
    for item in items:
        if item.claim_id in ledger.claims or item.claim_id in ledger.remembered:
            step.ignored = f"a copy: {item.claim_id} was seen before"
            return
    if len({item.claim_id for item in items}) != len(items):
        step.ignored = "two items of one record have the same claim id"
        return
    stale = not _current(event, step)
    early = [item for item in items if item.claim_id in ledger.released_early]
    granted: list[Grant] = []
    refusals: list[tuple[str, tuple[str, ...], tuple[tuple[Shortfall, ...], ...]]] = []
    for item in items:
        if stale:
            lack = Shortfall(
                resource="basis",
                detail=f"expected to be folded up to one of the {REMEMBERED_RECORDS} records before, got {event.basis}",
            )
            refusals.append((item.claim_id, (), ((lack,),)))
        elif early and item in early:
            refusals.append((item.claim_id, (), ((Shortfall(resource="released", detail="released before it was requested"),),)))
        else:
            _try(ledger, event, item, granted, refusals)
    if refusals:
        _refuse(ledger, event, refusals, step)
    else:
        for item, node, over, devices in granted:
            _grant(ledger, event, item, node, over, devices, step)


def _current(event: say.ClaimRequested, step: Step) -> bool:
    """Whether its scheduler had folded up to one of the last records before it: then a copy of it is still known for one (rule 8)."""
    return step.offset - REMEMBERED_RECORDS <= event.basis < step.offset


def granted_at_once(ledger: LedgerState, event: say.ClaimRequested, item: say.ClaimItem, step: Step) -> bool:
    """The common case, in a quarter of the time: one plain claim of an instance new to the first of its nodes, which has room for it.

    False, with nothing done, leaves everything to the long way; a property test holds that both say the same.
    """
    claim_id, instance_id = item.claim_id, item.instance_id
    if claim_id in ledger.claims or claim_id in ledger.remembered or claim_id in ledger.released_early:
        return False
    node = ledger.nodes.get(item.nodes[0])
    if node is None or item.forced or not _current(event, step) or not fit.fits_at_once(node, item):
        return False
    claim = _held(ledger, event, item, node, (), step)
    node.claims[instance_id] = [claim]
    amounts = node.uses[instance_id] = claim.amounts
    used = node.used
    used[0] += amounts[0]
    used[1] += amounts[1]
    used[2] += amounts[2]
    used[3] += amounts[3]
    if node.settled_ms is not None:
        node.loose.add(instance_id)
    return True


def _try(
    ledger: LedgerState,
    event: say.ClaimRequested,
    item: say.ClaimItem,
    granted: list[Grant],
    refusals: list[tuple[str, tuple[str, ...], tuple[tuple[Shortfall, ...], ...]]],
) -> None:
    """Find the first of the item's nodes where it fits."""
    lacks = []
    for node_id in item.nodes:
        node = ledger.nodes.get(node_id)
        overlay = [other for other, there, _, _ in granted if there.node_id == node_id] if granted else ()
        lack = fit.fits(node, item, event.request_id, overlay) or _closed_home(node, item)
        if not lack and node is not None:
            over = fit.overrun(node, item, overlay) if item.forced else ()
            devices = numa_node.kept(node, item.instance_id) if item.keep else None
            granted.append((item, node, over, numa_node.granted(node, item, overlay) if item.numa or item.pci else devices))
            return
        lacks.append(lack)
    refusals.append((item.claim_id, item.nodes, tuple(lacks)))


def _closed_home(node: Node | None, item: say.ClaimItem) -> tuple[Shortfall, ...]:
    """A member's claim of an affinity group names its home's epoch; one that is closed here lets nobody in (rule 10)."""
    group = item.group
    if node is None or group is None or group.policy != "affinity" or item.keep:
        return ()
    closed = node.homes_closed.get(group.group_id, 0)
    if group.epoch > closed:
        return ()
    return (Shortfall(resource="group", detail=f"epoch {group.epoch} of the group's home is closed here (up to {closed})"),)


def _grant(
    ledger: LedgerState,
    event: say.ClaimRequested,
    item: say.ClaimItem,
    node: Node,
    over: tuple[Shortfall, ...],
    devices: Granted | None,
    step: Step,
) -> None:
    evidence.loosen(node, item.instance_id)
    claim = _held(ledger, event, item, node, over, step)
    if devices is not None:
        claim.cells, claim.pci_addresses = devices.cells, devices.pci_addresses
        claim.pinned_cpus = tuple(sorted({cpu for cell in devices.cells for cpu in cell.held_cpus}))
        step.outcomes[-1] = replace(step.outcomes[-1], granted=devices)
    node.claims.setdefault(item.instance_id, []).append(claim)
    node.recount(item.instance_id)


def _held(
    ledger: LedgerState, event: say.ClaimRequested, item: say.ClaimItem, node: Node, over: tuple[Shortfall, ...], step: Step
) -> Claim:
    """The claim of a granted item, told of and held in the ledger; what it uses on the node is left to do."""
    time_ms, node_id, instance_id, claim_id, ttl_ms = step.time_ms, node.node_id, item.instance_id, item.claim_id, event.ttl_ms
    amounts, owner, shared = amounts_of(item.resources), event.owner, ledger.shared.setdefault
    claim = ledger.claims[claim_id] = Claim(
        claim_id,
        event.request_id,
        instance_id,
        node_id,
        shared(owner, owner),
        step.offset,
        shared(amounts, amounts),
        time_ms,
        time_ms + ttl_ms,
        ttl_ms,
        item.resize,
        item.forced,
        group=item.group,
        project_id=item.project_id,
        numa=item.numa,
        pci=item.pci,
        granted_ms=time_ms,
        keep=item.keep,
        flavor=item.flavor,
    )
    node.io_claims += 1
    step.node_ids += (node_id,)
    step.outcomes.append(
        ClaimOutcome(
            outcome="granted",
            claim_id=claim_id,
            request_id=claim.request_id,
            instance_id=instance_id,
            node_id=node_id,
            partition=ledger.partition,
            offset=step.offset,
            overrun=over,
        )
    )
    return claim


def _refuse(
    ledger: LedgerState,
    event: say.ClaimRequested,
    refusals: list[tuple[str, tuple[str, ...], tuple[tuple[Shortfall, ...], ...]]],
    step: Step,
) -> None:
    """Refuse every item of the record; those that would have fitted say which others did not."""
    lacking = {claim_id: (tried, lacks) for claim_id, tried, lacks in refusals}
    together = Shortfall(resource="request", detail=f"fits, but {len(refusals)} of {len(event.items)} instances of the request do not")
    for item in event.items:
        tried, lacks = lacking.get(item.claim_id, (item.nodes[:1], ((together,),)))
        ledger.remember(item.claim_id, step.offset)
        step.outcomes.append(
            ClaimOutcome(
                outcome="refused",
                claim_id=item.claim_id,
                request_id=event.request_id,
                instance_id=item.instance_id,
                partition=ledger.partition,
                offset=step.offset,
                tried=tried,
                shortfalls=lacks,
            )
        )


def renewed(ledger: LedgerState, event: say.ClaimRenewed, step: Step) -> None:
    """The claim's deadline moves, and what spoke against it until now is forgotten (rule 9)."""
    if ledger.seen(event.record_id, step):
        return
    claim = ledger.claims.get(event.claim_id)
    if claim is None or claim.node_id != event.node_id:
        step.outcomes.append(_absent("not-held", event.claim_id, event.node_id, ledger.partition, step.offset))
        return
    evidence.loosen(ledger.nodes[claim.node_id], claim.instance_id)
    claim.renewed = True
    claim.deadline_ms = max(claim.deadline_ms, step.time_ms + event.ttl_ms)
    claim.since_ms = step.time_ms  # Append times never run back.
    claim.ttl_ms = event.ttl_ms
    claim.run_epoch = None
    step.node_ids = (claim.node_id,)
    ledger.tell(step, "renewed", claim)


def released(ledger: LedgerState, event: say.ClaimReleased, step: Step) -> None:
    """The claim is given back, or if it is not known yet, refused when it comes (rule 9)."""
    if ledger.seen(event.record_id, step):
        return
    claim = ledger.claims.get(event.claim_id)
    if claim is None:
        if event.claim_id not in ledger.remembered:
            ledger.released_early[event.claim_id] = step.offset
            ledger.expiry.append((step.offset, event.claim_id))
        if event.node_id in ledger.nodes:
            step.node_ids = (event.node_id,)  # It may be the owner's late word on a claim that vanished: a finding less.
        step.outcomes.append(_absent("not-held", event.claim_id, event.node_id, ledger.partition, step.offset))
        return
    step.node_ids = (claim.node_id,)
    if event.reason == "cancelled" and (claim.renewed or claim.confirmed_ms is not None):
        ledger.tell(step, "in-use", claim)
        return
    evidence.loosen(ledger.nodes[claim.node_id], claim.instance_id)
    ledger.close(claim, "released", step)


def _absent(outcome: OutcomeKind, claim_id: str, node_id: str, partition: int, offset: int) -> ClaimOutcome:
    return ClaimOutcome(outcome=outcome, claim_id=claim_id, node_id=node_id, partition=partition, offset=offset)


def home_proposed(ledger: LedgerState, event: say.GroupHomeProposed, step: Step) -> None:
    """The first proposal of the next epoch wins (rule 10)."""
    if ledger.seen(event.record_id, step):
        return
    home = ledger.groups.get(event.group_id)
    if event.epoch != (home.epoch if home is not None else 0) + 1:
        step.ignored = f"epoch {event.epoch} does not follow {home.epoch if home is not None else 0}"
        return
    ledger.groups[event.group_id] = Home(event.epoch, event.node_id)


def home_closed(ledger: LedgerState, event: say.GroupHomeClosed, step: Step) -> None:
    """Accepted only where no member of the group is held or shown, unless the operator says otherwise (rule 10)."""
    if ledger.seen(event.record_id, step):
        return
    node = ledger.node(event.node_id)
    if event.epoch <= node.homes_closed.get(event.group_id, 0):
        step.ignored = f"epoch {event.epoch} is closed already"
    elif node.members(event.group_id) and not event.unconditional:
        step.ignored = f"{len(node.members(event.group_id))} members of the group are still there"
    else:
        node.homes_closed[event.group_id] = event.epoch
        step.node_ids = (event.node_id,)
