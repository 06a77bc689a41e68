"""What happened to one instance, node or request: the records that made a difference, in log order, each with what it changed.

What changes is the use of the node, by the instance or by all of them.
The ledger's partitions are folded by whoever reads the log; this looks at every step, and at the records of the topics around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from projections.node import NOTHING, Amounts, Node
from projections.rules import SKEW_MS
from projections.subjects import Subject, concerns, node_of
from projections.wording import event_text, outcome_text, record_text
from schemas import claims as say
from schemas.codec import event_type
from schemas.few import few
from schemas.findings import Finding
from schemas.requests import PlacementRequested
from schemas.results import ClaimOutcome, InstancesPlaced, PlacementFailed
from schemas.topics import CLAIMS, FINDINGS, REQUESTS, RESULTS, VERDICTS

if TYPE_CHECKING:
    from projections.ledger import Ledger
    from projections.ledger_state import Step

AROUND = (REQUESTS, RESULTS, FINDINGS)
"""Topics whose records stand in a timeline beside those of `claims`; observations are there as their `claims` records."""
_RANK = {REQUESTS: 0, CLAIMS: 1, VERDICTS: 2, FINDINGS: 3, RESULTS: 4}


class Entry(Struct, frozen=True, kw_only=True):
    """One record of the timeline.

    `deltas` is what it added to the use of the node (vcpus, pcpus, memory_mib, disk_mib), `use` that use afterwards: of the instance on
    the node, or of the whole node in a node's timeline. None, which is not 0, where the record is of no node's use: a request, a result,
    a finding, a claim that no node took.
    """

    time_ms: int
    topic: str
    partition: int
    offset: int
    event: str
    node_id: str = ""
    instance_id: str = ""
    deltas: Amounts = NOTHING
    use: Amounts | None = None
    summary: str = ""

    @property
    def position(self) -> str:
        """Where the record stands: `claims/0@1204`."""
        return f"{self.topic}/{self.partition}@{self.offset}"


class Timeline(Struct):
    """Collects the entries of `subject`; `apply` for each step of each partition in order, `tell` for the topics around."""

    subject: Subject
    entries: list[Entry] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    """Requests that name the subject instance, or claimed something for it."""
    since_ms: dict[str, int] = field(default_factory=dict)
    """The instances that are told of, each with the time from which on: of a subject request that of its first claim of it."""
    last: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    """Use as of the last look, by node and instance (empty for the whole node)."""
    limits: dict[str, Amounts] = field(default_factory=dict)
    shown: set[tuple[str, str]] = field(default_factory=set)
    """Where observations show which of the instances."""
    claim_ids: set[str] = field(default_factory=set)
    asked: dict[tuple[int, str], int] = field(default_factory=dict)
    """The offset of the first record that asks for a request, by partition and request: of several with one id that is the request."""
    counting: dict[str, str] = field(default_factory=dict)
    """Where the result of each request stands that counts."""
    _found: set[tuple[str, str, int, int]] = field(default_factory=set)
    """What was said of findings, by type, finding, partition and offset: a processor that starts from an older state says it again."""
    _asks: dict[str, str] = field(default_factory=dict)
    """The requests that entries ask for, by position."""
    results_ms: dict[int, int] = field(default_factory=dict)
    """The newest append time of each partition of results."""

    def __post_init__(self) -> None:
        """Begin with what the subject itself says."""
        if self.subject.kind == "instance":
            self.since_ms[self.subject.name] = -1
        elif self.subject.kind == "request":
            self.requests.add(self.subject.name)

    def apply(self, ledger: Ledger, step: Step) -> None:
        """Look at one step of a partition, right after the ledger applied it."""
        if step.times_only or step.event is None:
            return
        if self.subject.kind == "node":
            self._of_node(ledger, step)
        else:
            self._of_instances(ledger, step)

    def tell(self, topic: str, partition: int, offset: int, time_ms: int, event: Any) -> None:
        """Look at one record of a topic of `AROUND`: after the ledger is folded, and of requests first.

        Those and claims tell which requests an instance had; a result that refuses or cancels one names no instance.
        """
        if isinstance(event, Finding):
            said = (event_type(event), event.finding_id, event.partition, event.offset)
            if said in self._found:
                return
            self._found.add(said)
        note = self._note(partition, offset, time_ms, event) if isinstance(event, InstancesPlaced | PlacementFailed) else ""
        mine = concerns(event, self.subject)
        if not mine and self.subject.kind == "instance":
            mine = any(concerns(event, Subject("request", request_id)) for request_id in self.requests)
        if mine:
            if topic == REQUESTS and self.subject.kind == "instance":
                self.requests.add(event.request_id)
            self._add(
                Entry(
                    time_ms=time_ms,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    event=event_type(event),
                    node_id=node_of(event),
                    summary=record_text(event, self.subject.name if self.subject.kind == "instance" else "") + note,
                )
            )
            if isinstance(event, PlacementRequested):
                self.asked_at(partition, offset, event.request_id)
                self._asks[self.entries[-1].position] = event.request_id

    def asked_at(self, partition: int, offset: int, request_id: str) -> None:
        """There is a record that asks for this request, whether or not it names the subject."""
        place = (partition, request_id)
        self.asked[place] = min(offset, self.asked.get(place, offset))

    def heard(self, partition: int, time_ms: int) -> None:
        """There was a record of `placement-results`, whatever it says: those behind it are no older."""
        self.results_ms[partition] = max(time_ms, self.results_ms.get(partition, 0))

    def _note(self, partition: int, offset: int, time_ms: int, result: InstancesPlaced | PlacementFailed) -> str:
        """What is to be added where a result does not count: one of each request does, the rest changed nothing."""
        self.heard(partition, time_ms)
        if isinstance(result, InstancesPlaced) and self.results_ms[partition] > result.commit_by_ms:
            return " (does not count: appended after its commit_by_ms)"
        here = f"{RESULTS}/{partition}@{offset}"
        counts = self.counting.setdefault(result.request_id, here)
        return "" if counts == here else f" (does not count: {counts} does)"

    def ordered(self) -> list[Entry]:
        """All entries in the order of the log: by append time, cause before effect where times are equal, and by offset."""
        entries = [self._said_again(entry) for entry in self.entries]
        return sorted(entries, key=lambda entry: (entry.time_ms, _RANK.get(entry.topic, 9), entry.partition, entry.offset))

    def _said_again(self, entry: Entry) -> Entry:
        """The entry; of a record that asks with an id that was asked for before it says so: schedulers pass over it, whatever it wants."""
        request_id = self._asks.get(entry.position)
        if request_id is None or (first := self.asked[entry.partition, request_id]) == entry.offset:
            return entry
        counts = f"{REQUESTS}/{entry.partition}@{first}"
        return replace(entry, summary=f"{entry.summary} (asked again with an id that {counts} has: counts for nothing)")

    def _of_node(self, ledger: Ledger, step: Step) -> None:
        node_id = self.subject.name
        outcomes = [outcome for outcome in step.outcomes if outcome.node_id == node_id or node_id in outcome.tried]
        node = ledger.nodes.get(node_id) if node_id in step.node_ids else None
        if node is None and not outcomes:
            return
        deltas = NOTHING if node is None else self._deltas(node, "", node.used)
        limits = self.limits.get(node_id) if node is None else node.limits
        new_limits = limits is not None and limits != self.limits.get(node_id)
        if limits is not None:
            self.limits[node_id] = limits
        quiet = type(step.event) is say.NodeObserved and not step.event.failed and step.event.complete
        if deltas == NOTHING and not outcomes and not new_limits and quiet:
            return
        self._enter(ledger, step, node_id, "", deltas, outcomes)

    def _of_instances(self, ledger: Ledger, step: Step) -> None:
        outcomes = [outcome for outcome in step.outcomes if self._mine(outcome)]
        for outcome in outcomes:
            self._learn(outcome, step.time_ms)
        entered: set[str] = set()
        for node_id in dict.fromkeys(step.node_ids):  # A record of several claims names a node as often as it takes one.
            node = ledger.nodes.get(node_id)
            if node is None:
                continue
            for instance_id, since_ms in sorted(self.since_ms.items()):
                use = node.uses.get(instance_id, NOTHING)
                changed = use != self.last.get((node_id, instance_id), NOTHING)
                deltas = self._deltas(node, instance_id, use) if changed else NOTHING
                there = [outcome for outcome in outcomes if outcome.instance_id == instance_id and outcome.node_id in {"", node_id}]
                moved = self._moved(node, instance_id)
                if step.time_ms < since_ms:
                    continue
                if moved or deltas != NOTHING or there or self._observed(step, instance_id, node_id):
                    entered.update(outcome.claim_id for outcome in there)
                    self._enter(ledger, step, node_id, instance_id, deltas, there)
        rest = [outcome for outcome in outcomes if outcome.claim_id not in entered]
        if rest:
            self._enter(ledger, step, rest[0].node_id, rest[0].instance_id, NOTHING, rest)
        elif not step.node_ids and step.ignored:
            known = (name for name, since_ms in self.since_ms.items() if step.time_ms >= since_ms)
            for instance_id in sorted(name for name in known if concerns(step.event, Subject("instance", name)))[:1]:
                self._enter(ledger, step, node_of(step.event), instance_id, NOTHING, [])

    def _mine(self, outcome: ClaimOutcome) -> bool:
        if self.subject.kind == "request":
            return outcome.request_id == self.subject.name or outcome.claim_id in self.claim_ids
        return outcome.instance_id == self.subject.name or outcome.claim_id in self.claim_ids

    def _learn(self, outcome: ClaimOutcome, time_ms: int) -> None:
        self.claim_ids.add(outcome.claim_id)
        if outcome.request_id:
            self.requests.add(outcome.request_id)
        if outcome.instance_id:
            self.since_ms.setdefault(outcome.instance_id, time_ms)  # Claimed after who asks looked for claims.

    def _moved(self, node: Node, instance_id: str) -> bool:
        """Whether the instance came to the sight of observations of the node, or went out of it."""
        place = (node.node_id, instance_id)
        if (instance_id in node.shown) == (place in self.shown):
            return False
        self.shown ^= {place}
        return True

    def _observed(self, step: Step, instance_id: str, node_id: str) -> bool:
        event = step.event
        return type(event) is say.InstanceObserved and event.node_id == node_id and event.instance.instance_id == instance_id

    def _deltas(self, node: Node, instance_id: str, use: Iterable[int]) -> Amounts:
        vcpus, pcpus, memory_mib, disk_mib = use
        before = self.last.get((node.node_id, instance_id), NOTHING)
        self.last[node.node_id, instance_id] = (vcpus, pcpus, memory_mib, disk_mib)
        return (vcpus - before[0], pcpus - before[1], memory_mib - before[2], disk_mib - before[3])

    def _enter(self, ledger: Ledger, step: Step, node_id: str, instance_id: str, deltas: Amounts, outcomes: list[ClaimOutcome]) -> None:
        said = event_text(step.event, instance_id or (self.subject.name if self.subject.kind == "instance" else ""))
        if step.ignored:
            said = f"{said} (ignored: {step.ignored})"
        said += _still_held(ledger, step)
        results = [f"{outcome.claim_id} {outcome_text(outcome)}" for outcome in outcomes]
        # A record of a claim that nobody knows has a node and no instance, whose use there were.
        is_told = node_id and (instance_id or self.subject.kind == "node")
        self._add(
            Entry(
                time_ms=step.time_ms,
                topic=CLAIMS,
                partition=ledger.partition,
                offset=step.offset,
                event=event_type(step.event),
                node_id=node_id,
                instance_id=instance_id,
                deltas=deltas,
                use=self.last.get((node_id, instance_id), NOTHING) if is_told else None,
                summary=": ".join(part for part in (said, "; ".join(results)) if part),
            )
        )

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)


def _still_held(ledger: Ledger, step: Step) -> str:
    """What a deletion did not close: it says nothing of a claim that was granted, renewed or shown less than the skew before, or since."""
    event = step.event
    if type(event) is not say.InstanceObserved or event.change != "deleted" or step.ignored or event.node_id not in ledger.nodes:
        return ""
    held = sorted(claim.claim_id for claim in ledger.nodes[event.node_id].claims.get(event.instance.instance_id, ()))
    within = f"not more than {SKEW_MS // 1000} s after it was granted, renewed or shown"
    return f" (closes nothing of {few(held)}: {within})" if held else ""
