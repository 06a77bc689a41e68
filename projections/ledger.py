"""The ledger: folds one partition of `claims` into node rows; a claim's verdict is what stands before it in its partition.

`apply` is pure in its arguments and the state: no clock, no randomness, no I/O (rule 1). Every reader of the same prefix has the same
state, outcomes and digest. What claims do is in `claiming`, what observations do to them in `evidence`, whether one fits in `fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from msgspec import UNSET

from projections import claiming, evidence
from projections.ledger_state import DIGEST_BYTES, LedgerState, Step
from projections.reading import OffsetGap, UnknownRules, WrongLedger
from projections.rules import REMEMBERED_RECORDS, RULES_KNOWN
from schemas import claims as say
from schemas.codec import CLAIMS_DECODER, Unreadable, decode, event_type, key_of
from schemas.partitioner import partition_of
from schemas.results import ClaimOutcome
from schemas.topics import CLAIMS, TOPICS

VALUE_BYTES_MAX = TOPICS[CLAIMS].value_bytes_max


class Ledger(LedgerState):
    """The state of one partition of `claims` after the record `next_offset − 1`, which takes the next one."""

    def apply(self, offset: int, time_ms: int, key: bytes, value: bytes) -> Step | None:
        """Fold the next record; None if it was folded before.

        Raises OffsetGap above the next offset, UnknownRules where the log moves to rules unknown here, WrongLedger where the partition
        is another than this one.
        """
        if offset != self.next_offset:
            if offset < self.next_offset:
                return None
            raise OffsetGap(self._gap(offset))
        now_ms = self.time_ms
        if time_ms > now_ms:
            now_ms = self.time_ms = time_ms
        step = Step(offset, now_ms)
        if offset >= self.forgets_at:
            self.forget(offset - REMEMBERED_RECORDS)
        try:
            event = CLAIMS_DECODER.decode(value) if len(value) <= VALUE_BYTES_MAX else None
        except (ValueError, RecursionError):
            event = None
        if event is None:
            step.dead = decode(CLAIMS, value)
        else:
            kind = type(event)
            if kind in _UNDER_THEIR_NODE:  # As `_misplaced` finds nothing: the node is known here, and the key is its own.
                at_home = (node := self.nodes.get(event.node_id)) is not None and node.key == key
            else:
                at_home = kind is say.ClaimRequested and self._at_home(event, key)
            if at_home or (dead := self._misplaced(event, key, offset)) is None:
                step.event = event
                _HANDLERS[kind](self, event, step)
            else:
                step.dead = dead
        self.next_offset = offset + 1
        self.last_value = value
        if self.digest:
            self.digest = blake2b(self.digest + value + outcome_bytes(step), digest_size=DIGEST_BYTES).digest()
        return step

    def fault(self, offset: int, key: bytes, value: bytes) -> Unreadable | None:
        """Why a record would count for nothing; nothing is folded. Raises WrongLedger as `apply`."""
        event = decode(CLAIMS, value)
        return event if isinstance(event, Unreadable) else self._misplaced(event, key, offset)

    def hash_no_more(self) -> None:
        """From here on the digest is empty: for answers that say none. What is folded so is no state to publish."""
        self.digest = b""

    def _gap(self, offset: int) -> str:
        number, last = self.next_offset, offset - 1
        missing = f"record {number} is" if number == last else f"records {number} to {last} are"
        return f"{CLAIMS}/{self.partition}: {missing} missing, and the fold needs every one; fetch them and read a log that has no gap"

    def _at_home(self, event: say.ClaimRequested, key: bytes) -> bool:
        """The common case of `_misplaced` finding nothing: all nodes are known here, and the key is the first one's."""
        nodes, items = self.nodes, event.items
        node = nodes.get(items[0].nodes[0])
        if node is None or node.key != key:
            return False
        for item in items:
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
    first = outcomes[0]
    if len(outcomes) == 1 and not first.shortfalls and not first.overrun and first.granted is None:
        return f"{first.outcome} {first.claim_id} {first.node_id}".encode()  # As `_outcome_text`: most records have one plain outcome.
    return ";".join([_outcome_text(outcome) for outcome in outcomes]).encode()


def _outcome_text(outcome: ClaimOutcome) -> str:
    text = f"{outcome.outcome} {outcome.claim_id} {outcome.node_id}"
    if outcome.shortfalls or outcome.overrun:
        lacks = [[str(shortfall) for shortfall in shortfalls] for shortfalls in (*outcome.shortfalls, outcome.overrun)]
        text = f"{text} {lacks}"
    if outcome.granted is not None:
        cells = [(each.cell_id, each.page_size_kib, each.pinned_cpus, each.held_cpus) for each in outcome.granted.cells]
        text = f"{text} {cells} {outcome.granted.pci_addresses}"
    return text


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
    if any(seen > (event.epoch, event.counter) for seen in node.last_audits().values()):
        step.ignored = "a newer audit is applied"
        return
    step.node_ids = (event.node_id,)
    if node.silent_since_ms is None:
        node.silent_since_ms = event.silent_since_ms


def _finding_ignored(ledger: Ledger, event: say.FindingIgnored, step: Step) -> None:
    """Nothing that decides depends on it; the leak audit hears it in the step."""
    if ledger.seen(event.record_id, step):
        return
    if event.node_id not in ledger.nodes:
        step.ignored = "the node is not known"
        return
    step.node_ids = (event.node_id,)


_HANDLERS: dict[type, Callable[[Ledger, Any, Step], None]] = {
    say.PartitionOpened: _opened,
    say.NodeObserved: evidence.node_observed,
    say.InstanceObserved: evidence.instance_observed,
    say.NodeSilent: _silent,
    say.NodeConfigured: _configured,
    say.ClaimRequested: claiming.requested,
    say.ClaimRenewed: claiming.renewed,
    say.ClaimReleased: claiming.released,
    say.GroupHomeProposed: claiming.home_proposed,
    say.GroupHomeClosed: claiming.home_closed,
    say.FindingIgnored: _finding_ignored,
    say.RulesChanged: _rules,
}
"""What each type of record does: the whole of the ledger on one screen."""

_UNDER_THEIR_NODE = frozenset(
    {
        say.NodeObserved,
        say.InstanceObserved,
        say.NodeSilent,
        say.NodeConfigured,
        say.ClaimRenewed,
        say.ClaimReleased,
        say.GroupHomeClosed,
        say.FindingIgnored,
    }
)
"""The types whose key is their `node_id`; a test holds it to `key_of`."""
