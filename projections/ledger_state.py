"""The state of one partition of `claims`, and what a record did to it: what `claiming` and `evidence` change, and `ledger` folds."""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from projections.node import Claim, Home, Node
from projections.rules import REMEMBERED_RECORDS, RULES_VERSION
from schemas.audits import InstanceReport
from schemas.codec import Unreadable
from schemas.results import ClaimOutcome, OutcomeKind

DIGEST_BYTES = 16
DIGEST_START = bytes(DIGEST_BYTES)


class Step(Struct, gc=False):
    """What one record did.

    `event` is None if it counted for nothing (`dead` says why); `ignored` says why a well-formed one changed nothing. `node_ids` are the
    nodes whose rows may have changed, `closed` the claims that it ended, as they were. `times_only`: a settled node was audited again, so
    nothing in its row changed but `TIMES` (see `projections.state`). `audited`: the instances that an audit looked at; what is shown and
    held of the node's others is as it was.
    """

    offset: int
    time_ms: int
    event: Any = None
    outcomes: list[ClaimOutcome] = []
    dead: Unreadable | None = None
    ignored: str = ""
    node_ids: tuple[str, ...] = ()
    closed: tuple[Claim, ...] = ()
    times_only: bool = False
    audited: AbstractSet[str] | None = None

    def outcome_of(self, claim_id: str) -> OutcomeKind:
        """How a claim that this step closed has ended. Raises LookupError for one that it did not close."""
        for told in self.outcomes:
            if told.claim_id == claim_id:
                return told.outcome
        raise LookupError(f"{claim_id} was closed and no outcome says how; every step that closes a claim tells one")


class LedgerState:
    """What one partition of `claims` comes to after the record `next_offset − 1`: its nodes, claims and homes, and the ids it knows."""

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
        self.forgets_at = 0
        """The first offset at which there may be something to forget."""
        self.shared: dict[Any, Any] = {}
        """One object for all equal sizes and owners: flavors and schedulers are few, claims are many. No part of the state."""

    def node(self, node_id: str) -> Node:
        """The row of a node, made if it is new."""
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = Node(node_id)
            node.refresh()
        return node

    def with_shared_size(self, report: InstanceReport) -> InstanceReport:
        """The report with the one object for its size that all of that size share: it is in the processor's cache when it is compared."""
        size = self.shared.setdefault(report.resources, report.resources)
        return report if size is report.resources else replace(report, resources=size)

    def homes(self, group_id: str) -> Home | None:
        """The home of an affinity group as proposed in this partition."""
        return self.groups.get(group_id)

    def close(self, claim: Claim, outcome: OutcomeKind, step: Step) -> None:
        """End a held claim; its id is remembered from here on, its guest stays a member of its group as long as it is shown."""
        claim_id, instance_id, node = claim.claim_id, claim.instance_id, self.nodes[claim.node_id]
        del self.claims[claim_id]
        held = node.claims[instance_id]
        if len(held) == 1:
            del node.claims[instance_id]
        else:
            held.remove(claim)
        if claim.confirmed_ms is None:
            node.io_claims -= 1
        if claim.group is not None and (shown := node.shown.get(instance_id)) is not None:
            shown.group_id = claim.group.group_id
        node.recount(instance_id)
        self.remember(claim_id, step.offset)
        step.closed += (claim,)
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
        self.remembered[identity] = step.offset  # As `remember`.
        self.expiry.append((step.offset, identity))
        return False

    def forget(self, oldest: int) -> None:
        """Forget the ids met before the offset `oldest`, but for those that have been met again since."""
        expiry, remembered, released_early = self.expiry, self.remembered, self.released_early
        while expiry and expiry[0][0] < oldest:
            offset, identity = expiry.popleft()
            if remembered.get(identity) == offset:
                del remembered[identity]
            if released_early and released_early.get(identity) == offset:
                del released_early[identity]
        self.forgets_at = (expiry[0][0] if expiry else oldest + REMEMBERED_RECORDS) + REMEMBERED_RECORDS + 1
