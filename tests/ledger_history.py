"""A claims partition being written: each call appends one record, folds it and returns what it did.

For tests that read as history, decision, outcome. Times are whole seconds after `START_MS` and sizes are MiB of memory, because the
rules are the same for every resource; a test about another resource says so itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec import UNSET, Struct

from projections import claiming, evidence, fit
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Claim, Node, Shown
from schemas.audits import InstanceReport
from schemas.claims import (
    Change,
    ClaimItem,
    ClaimReleased,
    ClaimRenewed,
    ClaimRequested,
    GroupMember,
    InstanceObserved,
    NodeConfigured,
    NodeObserved,
    NodeSilent,
    NodeStatus,
    ReleaseReason,
)
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor, OperatorFields
from schemas.requests import NumaWant, PciWant
from schemas.resources import Limits, ObservedResources, Resources

START_MS = 1_700_000_000_000
"""What `second 0` of every history is: any time will do, but a small one would hide arithmetic below zero."""
Size = int | ObservedResources | InstanceReport
UNREPORTED = ObservedResources()
"""The size in an event that does not say it."""


SHORT_WAYS: tuple[tuple[Any, str], ...] = (
    (claiming, "granted_at_once"),
    (fit, "fits_at_once"),
    (fit, "lacks_at_once"),
    (Ledger, "_at_home"),
)
"""What the fold takes a short way by."""


class Written(NamedTuple):
    """A record as it stands in the partition."""

    offset: int
    time_ms: int
    key: bytes
    value: bytes


class History:
    """One partition of `claims`, its records so far and their fold.

    `spelled` goes the long way through each record: no node settles (see `evidence`), and no common case is told apart.
    """

    def __init__(self, partition: int = 0, partitions: int = 1, *, spelled: bool = False) -> None:
        self.ledger = Ledger(partition, partitions)
        self.records: list[Written] = []
        self.steps: list[Step] = []
        self.now_s = 0
        self._spelled = spelled
        self._counters: dict[tuple[str, str, int], int] = {}

    def append(self, key: bytes, value: bytes, at_s: int | None = None) -> Step:
        """Append raw bytes."""
        self.now_s = self.now_s if at_s is None else at_s
        written = Written(len(self.records), START_MS + self.now_s * 1000, key, value)
        step = self._the_long_way(written) if self._spelled else self.ledger.apply(*written)
        assert step is not None, f"offset {written.offset} was folded before it was written"
        self.records.append(written)
        self.steps.append(step)
        return step

    def _the_long_way(self, written: Written) -> Step | None:
        # Not pytest's way: the conformance command runs where only claimlog is installed, too.
        short_ways = [(place, name, vars(place)[name]) for place, name in SHORT_WAYS]
        try:
            for place, name in SHORT_WAYS:
                setattr(place, name, lambda *_: False)
            step = self.ledger.apply(*written)
        finally:
            for place, name, short_way in short_ways:
                setattr(place, name, short_way)
        for node_id in step.node_ids if step is not None else ():
            evidence.unsettle(self.ledger.nodes[node_id])
        return step

    def say(self, record: Struct, at_s: int | None = None) -> Step:
        """Append a record under its key."""
        return self.append(key_of(record) or b"any", encode(record), at_s)

    def again(self, step: Step, at_s: int | None = None) -> Step:
        """Append a copy of an earlier record, byte for byte."""
        written = self.records[step.offset]
        return self.append(written.key, written.value, at_s)

    def audit(
        self,
        listed: Mapping[str, Size] | None = None,
        *,
        at_s: int,
        taken_s: int | None = None,
        mono_s: int | None = None,
        node: str = "n1",
        memory_mib: int | None = 8,
        hypervisor: Hypervisor | None = None,
        producer: str = "audits",
        epoch: int = 1,
        counter: int | None = None,
        complete: bool = True,
        unchanged: str = "",
        failed: str = "",
    ) -> Step:
        """An audit that lists `listed`; with `unchanged` only the digest of an earlier one (`digest_of`), with `failed` nothing at all."""
        taken_s = at_s if taken_s is None else taken_s
        full = not unchanged and not failed
        reports = tuple(report(i, size) for i, size in sorted((listed or {}).items()))
        host = hypervisor or Hypervisor(vcpus=64, pcpus=0, memory_mib=memory_mib, disk_mib=1000)
        return self.say(
            NodeObserved(
                node_id=node,
                producer=producer,
                epoch=epoch,
                counter=self._next("audits", producer, epoch) if counter is None else counter,
                taken_at_ms=START_MS + taken_s * 1000,
                mono_ms=(5000 + (taken_s if mono_s is None else mono_s)) * 1000,
                digest=unchanged or ("" if failed else digest_of(listed)),
                complete=complete and not failed,
                hypervisor=host if full else None,
                instances=reports if full else None,
                failed=failed,
            ),
            at_s,
        )

    def event(
        self,
        change: Change,
        instance: str,
        *,
        at_s: int,
        event_s: int | None = None,
        size: Size = UNREPORTED,
        node: str = "n1",
        producer: str = "libvirt",
        epoch: int = 1,
        counter: int | None = None,
        claim_id: str | None = None,
    ) -> Step:
        """A life-cycle event."""
        return self.say(
            InstanceObserved(
                node_id=node,
                producer=producer,
                epoch=epoch,
                counter=self._next("lifecycle", producer, epoch) if counter is None else counter,
                change=change,
                event_time_ms=START_MS + (at_s if event_s is None else event_s) * 1000,
                instance=report(instance, size),
                claim_id=claim_id,
            ),
            at_s,
        )

    def claim(self, claim_id: str, instance: str, memory_mib: int, *, at_s: int, nodes: tuple[str, ...] = ("n1",), **options: Any) -> Step:
        """A request for one claim; `options` are those of `item` and `claims`."""
        batch = {name: options.pop(name) for name in ("request_id", "ttl_s", "basis") if name in options}
        return self.claims(item(claim_id, instance, memory_mib, nodes=nodes, **options), at_s=at_s, **batch)

    def claims(self, *items: ClaimItem, at_s: int, request_id: str | None = None, ttl_s: int = 60, basis: int | None = None) -> Step:
        """A record of several claims. Its request is the first claim's unless named."""
        basis = len(self.records) - 1 if basis is None else basis
        request_id = f"of {items[0].claim_id}" if request_id is None else request_id
        return self.say(ClaimRequested(request_id=request_id, owner="scheduler", basis=basis, ttl_ms=ttl_s * 1000, items=items), at_s)

    def renew(self, claim_id: str, *, at_s: int, node: str = "n1", ttl_s: int = 60, record_id: str = "") -> Step:
        """A renewal."""
        record_id = record_id or self._id("renewal")
        return self.say(ClaimRenewed(node_id=node, record_id=record_id, claim_id=claim_id, ttl_ms=ttl_s * 1000), at_s)

    def release(
        self, claim_id: str, *, at_s: int | None = None, reason: ReleaseReason = "loser", node: str = "n1", record_id: str = ""
    ) -> Step:
        """A release."""
        return self.say(ClaimReleased(node_id=node, record_id=record_id or self._id("release"), claim_id=claim_id, reason=reason), at_s)

    def configure(
        self,
        node: str = "n1",
        *,
        at_s: int | None = None,
        status: NodeStatus | None = None,
        reason: str = "",
        record_id: str = "",
        **fields: Any,
    ) -> Step:
        """The operator's word on a node."""
        return self.say(
            NodeConfigured(
                node_id=node,
                record_id=record_id or self._id("configuration"),
                fields=OperatorFields(**fields),
                status=UNSET if status is None else status,
                reason=reason,
            ),
            at_s,
        )

    def silent(self, *, at_s: int, epoch: int, counter: int, producer: str = "audits", node: str = "n1") -> Step:
        """The timer's word that no audit came after the named one."""
        return self.say(
            NodeSilent(
                node_id=node,
                record_id=self._id("silence"),
                producer=producer,
                epoch=epoch,
                counter=counter,
                silent_since_ms=START_MS + at_s * 1000,
            ),
            at_s,
        )

    def held(self) -> list[str]:
        """The ids of the held claims, sorted."""
        return sorted(self.ledger.claims)

    def node(self, node: str = "n1") -> Node:
        """The row of a node."""
        return self.ledger.nodes[node]

    def used(self, node: str = "n1") -> int:
        """MiB in use on a node."""
        return self.node(node).used[2]

    def fates(self) -> list[tuple[str, str]]:
        """Every outcome so far that is not a refusal, in order: (outcome, claim id)."""
        return [fate for step in self.steps for fate in fates(step)]

    def _next(self, topic: str, producer: str, epoch: int) -> int:
        source = (topic, producer, epoch)
        self._counters[source] = self._counters.get(source, 0) + 1
        return self._counters[source]

    def _id(self, kind: str) -> str:
        return f"{kind} {len(self.records)}"


def report(instance: str, size: Size) -> InstanceReport:
    """An instance as an observation has it; where its size alone does not do, `size` is the whole report."""
    if isinstance(size, InstanceReport):
        return size
    return InstanceReport(instance_id=instance, resources=ObservedResources(memory_mib=size) if isinstance(size, int) else size)


def digest_of(listed: Mapping[str, Size] | None) -> str:
    """What an audit of `listed` calls itself."""
    said = f"digest of {sorted((listed or {}).items(), key=lambda pair: pair[0])}"
    return said.replace(", flavor=''", "")  # Golden logs are from before reports had flavors.


def item(
    claim_id: str,
    instance: str,
    memory_mib: int,
    *,
    nodes: tuple[str, ...] = ("n1",),
    resize: bool = False,
    forced: bool = False,
    keep: bool = False,
    limits: Limits | None = None,
    group: GroupMember | None = None,
    resources: Resources | None = None,
    numa: tuple[NumaWant, ...] = (),
    pci: tuple[PciWant, ...] = (),
) -> ClaimItem:
    """One claim of a record; `resources` instead of `memory_mib` where memory alone does not do."""
    return ClaimItem(
        claim_id=claim_id,
        instance_id=instance,
        nodes=nodes,
        resources=resources or Resources(memory_mib=memory_mib),
        resize=resize,
        forced=forced,
        keep=keep,
        limits=limits,
        group=group,
        numa=numa,
        pci=pci,
    )


def fates(step: Step) -> list[tuple[str, str]]:
    """A step's outcomes: (outcome, claim id), in order."""
    return [(outcome.outcome, outcome.claim_id) for outcome in step.outcomes]


def shortfalls(step: Step) -> list[str]:
    """All shortfalls of a step's refusals, as an operator reads them."""
    return [str(lack) for outcome in step.outcomes for node in outcome.shortfalls for lack in node]


def full_use(node: Node) -> tuple[int, int, int, int]:
    """Use of a node summed from nothing, by rule 3 as DESIGN words it: the check of `Node.used`, written without looking at it."""
    totals = [0, 0, 0, 0]
    for instance_id in {*node.claims, *node.shown}:
        held = node.claims.get(instance_id, [])
        shown = node.shown.get(instance_id)
        for r in range(4):
            observed = None if shown is None else shown.amounts[r]
            if observed is None:
                totals[r] += max((claim.amounts[r] for claim in held), default=0)
            else:
                totals[r] += max([observed, *(claim.amounts[r] for claim in held if claim.confirmed_ms is None)])
    return (totals[0], totals[1], totals[2], totals[3])


def state(ledger: Ledger) -> dict[str, Any]:
    """All that decides what comes next, with a settled node's times spelled out: equal states fold every future alike."""
    return {
        "next": (ledger.next_offset, ledger.time_ms, ledger.digest, ledger.rules_version, ledger.ledger_id),
        "nodes": {node_id: _row(node) for node_id, node in sorted(ledger.nodes.items())},
        "claims": sorted(ledger.claims),
        "groups": {group: (home.epoch, home.node_id) for group, home in sorted(ledger.groups.items())},
        "remembered": dict(sorted(ledger.remembered.items())),
        "released_early": dict(sorted(ledger.released_early.items())),
    }


def _row(node: Node) -> dict[str, Any]:
    settled_ms = -1 if node.settled_ms is None else node.settled_ms

    def spelled(instance_id: str, of: Shown | Claim) -> dict[str, Any]:
        return _plain(of) | {"seen_ms": of.seen_ms if instance_id in node.loose else max(of.seen_ms, settled_ms)}

    row = _plain(node) | {"settled_ms": None, "loose": set()}
    row["shown"] = {i: spelled(i, shown) for i, shown in sorted(node.shown.items())}
    row["claims"] = {
        i: sorted((spelled(i, claim) for claim in claims), key=itemgetter("claim_id")) for i, claims in sorted(node.claims.items())
    }
    row["used"] = tuple(node.used)
    return row


def _plain(struct: Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
