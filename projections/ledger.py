"""The ledger: folds one partition of `claims` into node rows; a claim's verdict is what stands before it in its partition.

`apply` is pure in its arguments and the state: no clock, no randomness, no I/O (rule 1). Every reader of the same prefix has the same
state, outcomes and digest. What observations do to claims is in `evidence`; whether a claim fits is in `fit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from msgspec import UNSET, Struct

from projections import evidence, fit
from projections.node import Amounts, Claim, Home, Node, amounts_of
from projections.projection import OffsetGap, UnknownRules, WrongLedger
from projections.rules import REMEMBERED_RECORDS, RULES_KNOWN, RULES_VERSION
from schemas import claims as say
from schemas.codec import CLAIMS_DECODER, Unreadable, decode, event_type, key_of
from schemas.partitioner import partition_of
from schemas.resources import Shortfall
from schemas.results import ClaimOutcome, OutcomeKind
from schemas.topics import CLAIMS, TOPICS

VALUE_BYTES_MAX = TOPICS[CLAIMS].value_bytes_max
DIGEST_BYTES = 16
DIGEST_START = bytes(DIGEST_BYTES)


class Step(Struct, gc=False):
    """What one record did.

    `event` is None if it counted for nothing (`dead` says why); `ignored` says why a well-formed one changed nothing. `node_ids` are the
    nodes whose rows may have changed, `closed` the claims that it ended, as they were.
    """

    offset: int
    time_ms: int
    event: Any = None
    outcomes: list[ClaimOutcome] = []
    dead: Unreadable | None = None
    ignored: str = ""
    node_ids: tuple[str, ...] = ()
    closed: tuple[Claim, ...] = ()


class Ledger:
    """The state of one partition of `claims` after the record `next_offset − 1`."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition = partition
        self.partitions = partitions
        self.ledger_id = ""
        self.rules_version = RULES_VERSION
        self.next_offset = 0
        self.time_ms = 0
        self.digest = DIGEST_START
        self.last_value = b""
        self.nodes: dict[str, Node] = {}
        self.claims: dict[str, Claim] = {}
        self.groups: dict[str, Home] = {}
        self.remembered: dict[str, int] = {}
        self.released_early: dict[str, int] = {}
        self.expiry: deque[tuple[int, str]] = deque()
        self.shared: dict[Amounts, Amounts] = {}
        """One tuple for all claims of a size: flavors are few, claims are many. No part of the state."""

    def apply(self, offset: int, time_ms: int, key: bytes, value: bytes) -> Step | None:
        """Fold the next record; None if it was folded before.

        Raises OffsetGap above the next offset, UnknownRules where the log moves to rules unknown here, WrongLedger where the partition
        is another than this one.
        """
        if offset != self.next_offset:
            if offset < self.next_offset:
                return None
            raise OffsetGap(f"{CLAIMS}/{self.partition}: expected offset {self.next_offset}, got {offset}; read the records between first")
        self.time_ms = max(self.time_ms, time_ms)
        step = Step(offset, self.time_ms)
        expiry = self.expiry
        while expiry and expiry[0][0] < offset - REMEMBERED_RECORDS:
            self._forget(*expiry.popleft())
        try:
            event = CLAIMS_DECODER.decode(value) if len(value) <= VALUE_BYTES_MAX else None
        except (ValueError, RecursionError):
            event = None
        if event is None:
            step.dead = decode(CLAIMS, value)
        elif not self._at_home(event, key):
            step.dead = self._misplaced(event, key, offset)
        if step.dead is None:
            step.event = event
            _HANDLERS[type(event)](self, event, step)
        self.next_offset = offset + 1
        self.last_value = value
        self.digest = blake2b(self.digest + value + outcome_bytes(step), digest_size=DIGEST_BYTES).digest()
        return step

    def node(self, node_id: str) -> Node:
        """The row of a node, made if it is new, with the times of its claims and guests spelled out."""
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = Node(node_id)
            node.refresh()
        elif node.settled_ms is not None:
            evidence.unsettle(node)
        return node

    def homes(self, group_id: str) -> Home | None:
        """The home of an affinity group as proposed in this partition."""
        return self.groups.get(group_id)

    def close(self, claim: Claim, outcome: OutcomeKind, step: Step) -> None:
        """End a held claim; its id is remembered from here on, its guest stays a member of its group as long as it is shown."""
        node = self.nodes[claim.node_id]
        del self.claims[claim.claim_id]
        held = node.claims[claim.instance_id]
        held.remove(claim)
        if not held:
            del node.claims[claim.instance_id]
        if claim.confirmed_ms is None:
            node.io_claims -= 1
        shown = node.shown.get(claim.instance_id)
        if shown is not None and claim.group is not None:
            shown.group_id = claim.group.group_id
        node.recount(claim.instance_id)
        self.remember(claim.claim_id, step.offset)
        step.closed = (*step.closed, claim)
        self.tell(step, outcome, claim)

    def tell(self, step: Step, outcome: OutcomeKind, claim: Claim) -> None:
        """Add an outcome of a held or just closed claim to the step."""
        step.outcomes.append(
            ClaimOutcome(
                outcome=outcome,
                claim_id=claim.claim_id,
                request_id=claim.request_id,
                instance_id=claim.instance_id,
                node_id=claim.node_id,
                partition=self.partition,
                offset=step.offset,
            )
        )

    def remember(self, identity: str, offset: int) -> None:
        """Know an id for a copy for the next `REMEMBERED_RECORDS` records."""
        self.remembered[identity] = offset
        self.expiry.append((offset, identity))

    def seen(self, identity: str, step: Step) -> bool:
        """Whether a record with this id was applied before; if not it is remembered now (rule 8)."""
        if identity in self.remembered:
            step.ignored = f"a copy: {identity} was seen before"
            return True
        self.remember(identity, step.offset)
        return False

    def _forget(self, offset: int, identity: str) -> None:
        if self.remembered.get(identity) == offset:
            del self.remembered[identity]
        if self.released_early.get(identity) == offset:
            del self.released_early[identity]

    def _at_home(self, event: Any, key: bytes) -> bool:
        """The common case of `_misplaced` finding nothing: all nodes are known here, and the key is the first one's."""
        nodes = self.nodes
        if type(event) is not say.ClaimRequested:
            node = nodes.get(getattr(event, "node_id", ""))
            return node is not None and node.key == key and type(event) is not say.GroupHomeProposed
        node = nodes.get(event.items[0].nodes[0])
        if node is None or node.key != key:
            return False
        for item in event.items:
            for node_id in item.nodes:
                if node_id not in nodes:
                    return False
        return True

    def _misplaced(self, event: Any, key: bytes, offset: int) -> Unreadable | None:
        """Key and partition belong together, and all of a claim's nodes are of this partition (rule 11)."""
        kind = type(event)
        if kind is say.PartitionOpened:
            return self._misopened(event, offset)
        expected = key_of(event)
        if expected is not None and expected != key:
            return Unreadable("wrong-key", f"expected the key {expected!r} of this {event_type(event)}, got {key[:80]!r}")
        if kind is say.ClaimRequested:
            names = {node_id for item in event.items for node_id in item.nodes}
        else:
            names = set() if expected is None else {key.decode()}
        for name in sorted(names):
            if name not in self.nodes and partition_of(name.encode(), self.partitions) != self.partition:
                belongs = partition_of(name.encode(), self.partitions)
                return Unreadable("wrong-partition", f"{name!r} belongs to {CLAIMS}/{belongs}, this is {CLAIMS}/{self.partition}")
        return None

    def _misopened(self, event: say.PartitionOpened, offset: int) -> Unreadable | None:
        if offset != 0:
            return Unreadable("misplaced", f"partition-opened is expected at offset 0 only, this is offset {offset}")
        if (event.partition, event.partitions) != (self.partition, self.partitions):
            raise WrongLedger(
                f"{CLAIMS}/{self.partition}: opened as partition {event.partition} of {event.partitions}, read as {self.partition} of "
                f"{self.partitions}; check the topic's number of partitions"
            )
        return None


def outcome_bytes(step: Step) -> bytes:
    """A step's outcome for the digest: whether the record counted, and each claim's fate in order.

    Why a record is dead stays out: how deep it follows nested garbage, and which types it knows beyond the rules, is a reader's own affair.
    """
    if step.dead is not None:
        return b"dead"
    if step.ignored:
        return b"ignored"
    outcomes = step.outcomes
    if not outcomes:
        return b""
    if len(outcomes) == 1:
        return _outcome_text(outcomes[0]).encode()
    return ";".join([_outcome_text(outcome) for outcome in outcomes]).encode()


def _outcome_text(outcome: ClaimOutcome) -> str:
    if outcome.shortfalls or outcome.overrun:
        lacks = [[str(shortfall) for shortfall in shortfalls] for shortfalls in (*outcome.shortfalls, outcome.overrun)]
        return f"{outcome.outcome} {outcome.claim_id} {outcome.node_id} {lacks}"
    return f"{outcome.outcome} {outcome.claim_id} {outcome.node_id}"


def _opened(ledger: Ledger, event: say.PartitionOpened, step: Step) -> None:
    if event.rules_version not in RULES_KNOWN:
        raise UnknownRules(_unknown_rules(ledger, event.rules_version, step.offset))
    ledger.ledger_id, ledger.rules_version = event.ledger_id, event.rules_version


def _rules(ledger: Ledger, event: say.RulesChanged, step: Step) -> None:
    """Only the next version moves the rules; one that is unknown here stops the reader, whose numbers would be wrong from here on."""
    follows = event.rules_version == ledger.rules_version + 1
    if follows and event.rules_version not in RULES_KNOWN and event.record_id not in ledger.remembered:
        # Before the id is remembered: who tries this record again must stop again.
        raise UnknownRules(_unknown_rules(ledger, event.rules_version, step.offset))
    if ledger.seen(event.record_id, step):
        return
    if not follows:
        step.ignored = f"rules {event.rules_version} do not follow {ledger.rules_version}"
        return
    ledger.rules_version = event.rules_version


def _unknown_rules(ledger: Ledger, version: int, offset: int) -> str:
    return (
        f"{CLAIMS}/{ledger.partition}@{offset}: the log moves to rules version {version}, this claimlog knows {sorted(RULES_KNOWN)}; "
        "upgrade claimlog on this machine and start it again: it goes on from here"
    )


def _configured(ledger: Ledger, event: say.NodeConfigured, step: Step) -> None:
    if ledger.seen(event.record_id, step):
        return
    node = ledger.node(event.node_id)
    step.node_ids = (event.node_id,)
    node.configure(event.fields)
    if event.status is not UNSET:
        node.status, node.status_reason = event.status, event.reason


def _silent(ledger: Ledger, event: say.NodeSilent, step: Step) -> None:
    if ledger.seen(event.record_id, step):
        return
    node = ledger.node(event.node_id)
    if any(seen > (event.epoch, event.counter) for source, seen in node.sources.items() if source.startswith("audits|")):
        step.ignored = "a newer audit is applied"
        return
    if node.silent_since_ms is None:
        node.silent_since_ms = event.silent_since_ms
        step.node_ids = (event.node_id,)


def _requested(ledger: Ledger, event: say.ClaimRequested, step: Step) -> None:
    """All items are granted, each on the first of its nodes where it fits with those before it laid over, or all are refused."""
    items = event.items
    for item in items:
        if item.claim_id in ledger.claims or item.claim_id in ledger.remembered:
            step.ignored = f"a copy: {item.claim_id} was seen before"
            return
    if len(items) == 1 and _grant_at_once(ledger, event, items[0], step):
        return
    if len({item.claim_id for item in items}) != len(items):
        step.ignored = "two items of one record have the same claim id"
        return
    stale = not _current(event, step)
    early = [item for item in items if item.claim_id in ledger.released_early]
    granted: list[tuple[say.ClaimItem, Node, tuple[Shortfall, ...]]] = []
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
        for item, node, over in granted:
            _grant(ledger, event, item, node, over, step)


def _current(event: say.ClaimRequested, step: Step) -> bool:
    """Whether its scheduler had folded up to one of the last records before it: then a copy of it is still known for one (rule 8)."""
    return step.offset - REMEMBERED_RECORDS <= event.basis < step.offset


def _grant_at_once(ledger: Ledger, event: say.ClaimRequested, item: say.ClaimItem, step: Step) -> bool:
    """The common case: one item, not forced, that fits its first node. False leaves everything to the long way."""
    node = ledger.nodes.get(item.nodes[0])
    if node is None or item.forced or item.claim_id in ledger.released_early or not _current(event, step):
        return False
    if fit.fits(node, item, event.request_id) or (item.group is not None and _closed_home(node, item)):
        return False
    _grant(ledger, event, item, node, (), step)
    return True


def _try(
    ledger: Ledger,
    event: say.ClaimRequested,
    item: say.ClaimItem,
    granted: list[tuple[say.ClaimItem, Node, tuple[Shortfall, ...]]],
    refusals: list[tuple[str, tuple[str, ...], tuple[tuple[Shortfall, ...], ...]]],
) -> None:
    """Find the first of the item's nodes where it fits."""
    lacks = []
    for node_id in item.nodes:
        node = ledger.nodes.get(node_id)
        overlay = [other for other, there, _ in granted if there.node_id == node_id] if granted else ()
        lack = fit.fits(node, item, event.request_id, overlay) or _closed_home(node, item)
        if not lack and node is not None:
            granted.append((item, node, fit.overrun(node, item, overlay) if item.forced else ()))
            return
        lacks.append(lack)
    refusals.append((item.claim_id, item.nodes, tuple(lacks)))


def _closed_home(node: Node | None, item: say.ClaimItem) -> tuple[Shortfall, ...]:
    """A member's claim of an affinity group names its home's epoch; one that is closed here lets nobody in (rule 10)."""
    group = item.group
    if node is None or group is None or group.policy != "affinity":
        return ()
    closed = node.homes_closed.get(group.group_id, 0)
    if group.epoch > closed:
        return ()
    return (Shortfall(resource="group", detail=f"epoch {group.epoch} of the group's home is closed here (up to {closed})"),)


def _grant(ledger: Ledger, event: say.ClaimRequested, item: say.ClaimItem, node: Node, over: tuple[Shortfall, ...], step: Step) -> None:
    if node.settled_ms is not None:
        evidence.unsettle(node)
    time_ms, instance_id = step.time_ms, item.instance_id
    amounts = amounts_of(item.resources)
    claim = Claim(
        item.claim_id,
        event.request_id,
        instance_id,
        node.node_id,
        event.owner,
        step.offset,
        ledger.shared.setdefault(amounts, amounts),
        time_ms,
        time_ms + event.ttl_ms,
        event.ttl_ms,
        item.resize,
        item.forced,
        group=item.group,
        project_id=item.project_id,
        numa=item.numa,
        pci=item.pci,
        granted_ms=time_ms,
    )
    ledger.claims[item.claim_id] = claim
    claims = node.claims.get(instance_id)
    if claims is None:
        node.claims[instance_id] = [claim]
    else:
        claims.append(claim)
    node.io_claims += 1
    node.recount(instance_id)
    step.node_ids = (*step.node_ids, node.node_id)
    step.outcomes.append(
        ClaimOutcome(
            outcome="granted",
            claim_id=item.claim_id,
            request_id=event.request_id,
            instance_id=instance_id,
            node_id=node.node_id,
            partition=ledger.partition,
            offset=step.offset,
            overrun=over,
        )
    )


def _refuse(
    ledger: Ledger, event: say.ClaimRequested, refusals: list[tuple[str, tuple[str, ...], tuple[tuple[Shortfall, ...], ...]]], step: Step
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


def _renewed(ledger: Ledger, event: say.ClaimRenewed, step: Step) -> None:
    if ledger.seen(event.record_id, step):
        return
    claim = ledger.claims.get(event.claim_id)
    if claim is None or claim.node_id != event.node_id:
        step.outcomes.append(_absent("not-held", event.claim_id, event.node_id, ledger.partition, step.offset))
        return
    if (node := ledger.nodes[claim.node_id]).settled_ms is not None:
        evidence.unsettle(node)
    claim.renewed = True
    claim.deadline_ms = max(claim.deadline_ms, step.time_ms + event.ttl_ms)
    claim.since_ms = max(claim.since_ms, step.time_ms)
    claim.ttl_ms = event.ttl_ms
    claim.run_epoch = None
    step.node_ids = (claim.node_id,)
    ledger.tell(step, "renewed", claim)


def _released(ledger: Ledger, event: say.ClaimReleased, step: Step) -> None:
    if ledger.seen(event.record_id, step):
        return
    claim = ledger.claims.get(event.claim_id)
    if claim is None:
        if event.claim_id not in ledger.remembered:
            ledger.released_early[event.claim_id] = step.offset
            ledger.expiry.append((step.offset, event.claim_id))
        step.outcomes.append(_absent("not-held", event.claim_id, event.node_id, ledger.partition, step.offset))
        return
    step.node_ids = (claim.node_id,)
    if event.reason == "cancelled" and (claim.renewed or claim.confirmed_ms is not None):
        ledger.tell(step, "in-use", claim)
        return
    ledger.node(claim.node_id)
    ledger.close(claim, "released", step)


def _absent(outcome: OutcomeKind, claim_id: str, node_id: str, partition: int, offset: int) -> ClaimOutcome:
    return ClaimOutcome(outcome=outcome, claim_id=claim_id, node_id=node_id, partition=partition, offset=offset)


def _home_proposed(ledger: Ledger, event: say.GroupHomeProposed, step: Step) -> None:
    """The first proposal of the next epoch wins (rule 10)."""
    if ledger.seen(event.record_id, step):
        return
    home = ledger.groups.get(event.group_id)
    if event.epoch != (home.epoch if home is not None else 0) + 1:
        step.ignored = f"epoch {event.epoch} does not follow {home.epoch if home is not None else 0}"
        return
    ledger.groups[event.group_id] = Home(event.epoch, event.node_id)


def _home_closed(ledger: Ledger, event: say.GroupHomeClosed, step: Step) -> None:
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


_HANDLERS: dict[type, Callable[[Ledger, Any, Step], None]] = {
    say.PartitionOpened: _opened,
    say.NodeObserved: evidence.node_observed,
    say.InstanceObserved: evidence.instance_observed,
    say.NodeSilent: _silent,
    say.NodeConfigured: _configured,
    say.ClaimRequested: _requested,
    say.ClaimRenewed: _renewed,
    say.ClaimReleased: _released,
    say.GroupHomeProposed: _home_proposed,
    say.GroupHomeClosed: _home_closed,
    say.RulesChanged: _rules,
}
"""What each type of record does: the whole of the ledger on one screen."""
