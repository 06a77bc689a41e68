"""The leak audit as a step of the stream processor: findings of each fold step as messages, and the timer that notices silence.

The audit itself is pure and lives in `projections.leaks` (one partition) and `projections.doubles` (across partitions). This adds what a
host needs: one object a partition with its state in and out, and messages in place of records. A host that starts again from an older
state says the same findings again, byte for byte; readers know them by finding, partition and offset.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from projections.doubles import KIND as DOUBLE
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Node
from projections.observed import Observed
from projections.open_finding import ended
from schemas.claims import NodeObserved, NodeSilent
from schemas.codec import decode_keyed, event_type
from schemas.findings import Cause, FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.topics import CLAIMS, FINDINGS
from schemas.units import bounded_name
from streams.log.base import Message, Record
from streams.message import message_of

SOURCE = "claimlog/leak-audit"
# One audit may be lost and one late without anything being wrong; the third that does not come is worth a word.
INTERVALS_UNTIL_SILENT = 3

STRANDED = frozenset({"stranded-claim", "stranded-member"})
"""Kinds that no audit of a dead node can confirm."""


class LeakAudit:
    """The leak audit of one partition. `leaks` is its state, restored from a snapshot or new."""

    def __init__(self, partition: int, leaks: Leaks | None = None) -> None:
        self.leaks = leaks if leaks is not None else Leaks(partition)
        self._heard_here: dict[str, tuple[int, int]] = {}
        """Of nodes whose append times are still to come: where the last audit is that told something, and when the timer found it."""
        self._told_ms: dict[str, int] = {}
        """When the last audit came that told something of a node, of those that were folded here."""

    def step(self, ledger: Ledger, observed: Observed, step: Step) -> list[FindingRecord]:
        """The findings that one step of the ledger made, confirmed or resolved; call after both folds applied it, for every step."""
        event = step.event
        if type(event) is NodeObserved and _told(ledger.nodes.get(event.node_id), step):
            self._told_ms[event.node_id] = step.time_ms
        return self.leaks.apply(ledger, observed, step)

    def open_findings(self) -> list[LeakSuspected | LeakConfirmed]:
        """Every unresolved finding of the partition."""
        return self.leaks.open_findings()

    def silences(self, ledger: Ledger, now_ms: int, interval_ms: int, ran_ms: int | None = None) -> list[Message]:
        """`NodeSilent` for nodes without an audit for three times `interval_ms`, and a second one after six, which confirms the finding.

        A failed audit is none: it says that the host is not known, and what is not known for so long takes nothing new.

        More are said only where they make or confirm a finding that nothing else would, as no record touches such a node: of a claim past
        its deadline that nothing confirmed, of members that a group left, and of what is still claimed on a withdrawn node. However many
        claims wait for it, that is at most one in three times `interval_ms`.

        `now_ms` is compared with append times, so it must be the clock of whoever stamps them, and the ledger must be folded to the
        end of its partition. Saying one again changes nothing.

        A partition's time never goes back, so after a record that was ahead it may stand still for long: a node that was heard of since is
        silent by `ran_ms`, a clock of this host that only runs (`now_ms` unless given), from when this timer first found its last audit.
        """
        ran_ms = now_ms if ran_ms is None else ran_ms
        limit_ms = INTERVALS_UNTIL_SILENT * interval_ms
        found: list[Message] = []
        for node_id in sorted(self.leaks.marks):
            node = ledger.nodes[node_id]
            heard_ms = self._heard_ms(node, now_ms, ran_ms)
            silent_ms = now_ms - heard_ms
            if silent_ms < limit_ms:
                continue
            is_active = node.status != "withdrawn"
            if is_active and node.silent_since_ms is None:
                found.append(_message(_silence(node, 1, heard_ms), ledger.partition))
                continue
            is_due = is_active and silent_ms >= 2 * limit_ms
            looks: tuple[int, ...] = ()
            if is_due and self._is_to_confirm(node_id, now_ms):
                looks = (2, 2 + silent_ms // limit_ms)
            elif self._is_stranded(node_id, now_ms) or (is_due and self._is_overdue(node, now_ms)):
                looks = (2 + silent_ms // limit_ms,)
            words = (_silence(node, look, heard_ms) for look in looks)
            found += [_message(word, ledger.partition) for word in words if word.record_id not in ledger.remembered][:1]
        return found

    def _heard_ms(self, node: Node, now_ms: int, ran_ms: int) -> int:
        """When a node last told something: the append time of that audit, or what this timer knows where that was still to come."""
        node_id, heard_ms = node.node_id, self.leaks.marks[node.node_id].heard_ms
        if node.audits_fail and node.audit is not None:
            # Of one that another process folded its host's own time is known, cut to that of its record.
            heard_ms = self._told_ms.get(node_id, node.audit.taken_at_ms)
        if heard_ms <= now_ms and node_id not in self._heard_here:
            return heard_ms
        last = -1 if node.audit is None else node.audit.offset
        known, first_ms = self._heard_here.get(node_id, (None, ran_ms))
        if known != last:
            if heard_ms <= now_ms:
                del self._heard_here[node_id]
                return heard_ms
            first_ms = ran_ms
            self._heard_here[node_id] = last, first_ms
        return min(heard_ms, now_ms - (ran_ms - first_ms))

    def _is_to_confirm(self, node_id: str, now_ms: int) -> bool:
        """Whether another word would confirm that a node is silent. One said earlier would be passed over, and so would be its copies."""
        findings = [each for each in self.leaks.open.get(node_id, {}).values() if each.record.kind == "silent-node"]
        return not any(each.confirmed or now_ms < each.not_before_ms for each in findings)

    def _is_stranded(self, node_id: str, now_ms: int) -> bool:
        """Whether a claim on a withdrawn node, or a member left at a closed home, waits to be confirmed as stranded."""
        findings = self.leaks.open.get(node_id, {}).values()
        waiting = [each for each in findings if each.record.kind in STRANDED and not each.confirmed]
        return any(each.not_before_ms <= now_ms for each in waiting)

    def _is_overdue(self, node: Node, now_ms: int) -> bool:
        """Whether a claim that nothing confirmed has passed its deadline and is not found yet, or what was found waits to be confirmed."""
        if not node.io_claims:
            return False  # Every claim is confirmed: nearly all nodes that fall silent are so.
        findings = self.leaks.open.get(node.node_id, {}).values()
        found = {each.record.claim_id: each for each in findings if each.record.kind == "expired-claim"}
        overdue = [found.get(claim.claim_id) for claim in node.held() if claim.confirmed_ms is None and claim.deadline_ms < now_ms]
        return any(each is None or (not each.confirmed and each.not_before_ms <= now_ms) for each in overdue)


def _told(node: Node | None, step: Step) -> bool:
    """Whether an audit told something of its node: one that failed, or counts for nothing, is not the last applied one."""
    return node is not None and node.audit is not None and node.audit.offset == step.offset


def _silence(node: Node, look: int, heard_ms: int) -> NodeSilent:
    """The timer's word on a node: its id names the audit it follows, so that several hosts say it once."""
    producer, (epoch, counter) = max(node.last_audits().items(), key=lambda last: last[::-1], default=("", (0, 0)))
    record_id = bounded_name(f"silent/{node.node_id}/{epoch}.{counter}/{look}")
    return NodeSilent(
        node_id=node.node_id, record_id=record_id, producer=producer, epoch=epoch, counter=counter, silent_since_ms=max(0, heard_ms)
    )


def _message(record: NodeSilent, partition: int) -> Message:
    return message_of(CLAIMS, record, event_id=record.record_id, source=SOURCE, subject=record.node_id, partition=partition)


def ended_below(records: Iterable[Record], ledger: Ledger, open_ids: Container[str]) -> list[LeakResolved]:
    """The ends of findings that a state begun from a snapshot does not have, and that were open by what was said last.

    `records` are those of its partition of `leak-findings`, `open_ids` what is open in the snapshot. Doubles, and what was said of records
    that are still to be folded, are left out. The record that mended each is below the snapshot, and not known.
    """
    last: dict[str, FindingRecord] = {}
    for record in records:
        event = decode_keyed(FINDINGS, record.key, record.value)
        if not isinstance(event, FindingRecord) or event.kind == DOUBLE or event.partition != ledger.partition:
            continue
        known = last.get(event.finding_id)
        if known is None or event.offset >= known.offset:
            last[event.finding_id] = event
    offset, time_ms = ledger.next_offset - 1, ledger.time_ms
    summary = "gone by here, where the state was begun from a snapshot"
    gone = Cause(topic=CLAIMS, partition=ledger.partition, offset=offset, time_ms=time_ms, event="snapshot", summary=summary)
    return [
        ended(event, gone, time_ms)
        for name, event in sorted(last.items())
        if not isinstance(event, LeakResolved) and event.offset <= offset and name not in open_ids
    ]


def finding_messages(partition: int, records: Iterable[FindingRecord]) -> list[Message]:
    """The messages of findings for `leak-findings`, in the partition of the ledger they come from."""
    return [_finding_message(record, partition) for record in records]


def _finding_message(record: FindingRecord, partition: int) -> Message:
    """A finding's event id is the place it follows from, so a copy has the id of its original."""
    cause = record.causes[-1] if record.causes else None
    return message_of(
        FINDINGS,
        record,
        event_id=f"{event_type(record)}/{record.finding_id}@{record.partition}/{record.offset}",
        source=SOURCE,
        time_ms=record.time_ms,
        subject=record.node_id,
        correlation_id=record.instance_id,
        causation_id=f"{cause.topic}/{cause.partition}@{cause.offset}" if cause is not None else "",
        partition=partition,
    )
