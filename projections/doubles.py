"""Double claims: one instance held, confirmed, on more than one node, across all partitions.

A claim's partition follows from its node, so the two claims of a double mostly lie in two partitions, and no fold of one partition sees
both. This one sits above the ledgers of all partitions: an index from instance to nodes, kept by confirmations and closings and made anew
from the ledgers at a start.

Partitions are not ordered among themselves, so nothing here depends on which was read first: a double counts only when every ledger
concerned has been folded up to the moment when it arose, or is known to have nothing more of that time, as that of a dead host which was
the last one there to say anything. It is confirmed only by complete audits of all its nodes after the grace, but for nodes known to be
silent or withdrawn: an evacuated instance is held on its dead host until that returns. A claim with a known departure is on its way out
and no double; a migration with the guest on both hosts gets the claim's TTL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from projections.description import release_command, resources_of
from projections.holding import Holding, is_dead
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Claim
from projections.open_finding import OpenFinding
from projections.rules import GRACE_MS, SKEW_MS
from projections.wording import amounts_text
from schemas.claims import ClaimRenewed, ClaimRequested, FindingIgnored
from schemas.findings import Cause, FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.partitioner import partition_of
from schemas.topics import CLAIMS
from schemas.units import bounded_name, bounded_text

KIND: Final = "double-claim"
MAKES_NONE = frozenset({ClaimRequested, ClaimRenewed})
"""The records that confirm and close no claim."""
GRANTED = "claim-requested"
"""The event of the one cause that each side of a double has for certain."""
_Open = LeakSuspected | LeakConfirmed


class DoubleClaims:
    """The doubles of a log. `ledgers` are those of all partitions; `open` and `words` are the only state of its own."""

    def __init__(
        self,
        ledgers: Mapping[int, Ledger],
        open_findings: Mapping[str, OpenFinding] | None = None,
        words: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        self._ledgers = ledgers
        self.open = dict(open_findings or {})
        """Unresolved findings by instance."""
        self.words = dict(words or {})
        """By finding, the operator's last word on it and its time: it may be read before the other side of the double is."""
        self._read_to_ms = 0
        """Up to when every partition is known to be folded, even if it has no record of that time."""
        self._home: dict[str, str] = {}
        self._homes: dict[str, set[str]] = {}
        self.watched: dict[str, set[str]] = {}
        """By node, the instances held there and elsewhere."""
        for ledger in ledgers.values():
            for claim in ledger.claims.values():
                if claim.confirmed_ms is not None:
                    self._add(claim.instance_id, claim.node_id)
        self.reworded: list[_Open] = []
        """Those on which another word counts than was said of them: it was heard by who kept another partition."""
        for instance_id, finding in self.open.items():
            word, said_ms = self.words.get(finding.record.finding_id, ("", 0))
            if finding.record.since_ms <= said_ms and word != finding.record.ignored:
                finding.record = replace(finding.record, ignored=word, **self._place_now(finding))
                self.reworded.append(finding.record)
            # One that ended before these ledgers were taken over: nothing is held twice, and nothing closes any more.
            self.watched.setdefault(finding.record.node_id, set()).add(instance_id)

    def apply(self, partition: int, step: Step) -> list[FindingRecord]:
        """Look at what one step of a partition touched; called after the ledger applied it."""
        kind = type(step.event)
        if kind is FindingIgnored:
            return self._ignored(partition, step.event, step)
        if not self.watched and (kind in MAKES_NONE or not (step.outcomes or step.closed)):
            return []
        instances: set[str] = set()
        for outcome in step.outcomes:
            if outcome.outcome == "confirmed":
                self._add(outcome.instance_id, outcome.node_id)
                instances.add(outcome.instance_id)
        known = self._homes or self.open
        for claim in step.closed:
            if claim.confirmed_ms is None and not known:
                continue  # It was nobody's home.
            if not self._confirmed(partition, claim.node_id, claim.instance_id):
                self._drop(claim.instance_id, claim.node_id)
                instances.add(claim.instance_id)
        if not self._homes and not self.open:
            return []
        if self.watched:
            for node_id in step.node_ids:
                instances |= self.watched.get(node_id, set())
        records = [self._look(instance_id) for instance_id in sorted(instances) if instance_id in self._homes or instance_id in self.open]
        return [record for record in records if record is not None]

    def read_to_the_ends(self, at_ms: int) -> list[FindingRecord]:
        """Look at all that is, or was, held twice; returns what follows from it.

        Every partition is folded with all that it had when a record of the time `at_ms` stood in one of them: so it makes no difference
        which was folded last, or has nothing new. As clocks of brokers differ, all is taken to be known up to the skew before that.
        """
        self._read_to_ms = max(self._read_to_ms, at_ms - SKEW_MS)
        found: list[FindingRecord] = []
        for instance_id in sorted(self._homes.keys() | self.open.keys()):
            while (record := self._look(instance_id)) is not None:  # What was not suspected yet may be due already.
                found.append(record)
        return found

    def open_findings(self) -> list[_Open]:
        """Every unresolved double, by instance, as its hosts hold and show it now."""
        return [self._now(finding) for _, finding in sorted(self.open.items())]

    def open_finding(self, instance_id: str) -> _Open | None:
        """The unresolved double of an instance, as its hosts hold and show it now."""
        finding = self.open.get(instance_id)
        return None if finding is None else self._now(finding)

    def said(self) -> list[_Open]:
        """The same as `open_findings`, each as it was found or confirmed."""
        return [finding.record for _, finding in sorted(self.open.items())]

    def _ignored(self, partition: int, event: FindingIgnored, step: Step) -> list[FindingRecord]:
        """The same double, said again with the operator's word on it; by now it may name another side than it did to the operator."""
        if not newer_word(self.words, step):
            return []
        for finding in self.open.values():
            record = finding.record
            if record.finding_id == event.finding_id and record.ignored != event.reason:
                holdings = self._holdings(record.instance_id)
                if step.time_ms < record.since_ms:
                    return []  # It was said of an earlier one, by a fold that is behind this one.
                if len(holdings) > 1 and self._came_ms(holdings)[-1] > step.time_ms:
                    return []  # It was said of an earlier one, or before this had so many sides: then it alarms once too often.
                finding.record = replace(record, ignored=event.reason, partition=partition, offset=step.offset, time_ms=step.time_ms)
                return [finding.record]
        return []

    def shared(self) -> dict[str, frozenset[str]]:
        """Instances with confirmed claims on several nodes now, and these nodes: no other instance can be a double."""
        return {instance_id: frozenset(homes) for instance_id, homes in self._homes.items()}

    def _add(self, instance_id: str, node_id: str) -> None:
        first = self._home.setdefault(instance_id, node_id)
        if first != node_id:
            homes = self._homes.setdefault(instance_id, {first})
            homes.add(node_id)
            for home in homes:
                self.watched.setdefault(home, set()).add(instance_id)

    def _drop(self, instance_id: str, node_id: str) -> None:
        homes = self._homes.get(instance_id)
        if homes is None:
            if self._home.get(instance_id) == node_id:
                del self._home[instance_id]
            return
        homes.discard(node_id)
        self._unwatch(instance_id, node_id)
        self._home[instance_id] = min(homes)
        if len(homes) == 1:
            del self._homes[instance_id]
            self._unwatch(instance_id, self._home[instance_id])

    def _unwatch(self, instance_id: str, node_id: str) -> None:
        watched = self.watched.get(node_id, set())
        watched.discard(instance_id)
        if not watched:
            self.watched.pop(node_id, None)

    def _confirmed(self, partition: int, node_id: str, instance_id: str) -> list[Claim]:
        """The instance's confirmed claims on a node."""
        node = self._ledgers[partition].nodes[node_id]
        return [claim for claim in node.claims.get(instance_id, ()) if claim.confirmed_ms is not None]

    def _staying(self, partition: int, node_id: str, instance_id: str) -> list[Claim]:
        """Those of them that are not on their way out."""
        return [claim for claim in self._confirmed(partition, node_id, instance_id) if claim.departed_ms is None]

    def _holdings(self, instance_id: str) -> list[Holding]:
        """Every node that holds the instance and from which it is not known to have departed; the one to keep it comes last."""
        found: list[Holding] = []
        first = self._home.get(instance_id)
        for node_id in self._homes.get(instance_id) or (() if first is None else (first,)):
            partition = self._partition_of(node_id)
            if staying := self._staying(partition, node_id, instance_id):
                newest = max(staying, key=lambda claim: (claim.offset, claim.claim_id))
                found.append(Holding(partition, self._ledgers[partition].nodes[node_id], newest))
        return sorted(found, key=lambda holding: holding.order)

    def _look(self, instance_id: str) -> FindingRecord | None:
        holdings, finding = self._holdings(instance_id), self.open.get(instance_id)
        if finding is not None and self._is_behind(finding):
            return None
        if len(holdings) < 2:
            if finding is None:
                return None
            del self.open[instance_id]
            if finding.record.node_id not in self._homes.get(instance_id, ()):
                self._unwatch(instance_id, finding.record.node_id)
            return self._resolved(finding)
        arose_ms = self._came_ms(holdings)[1]  # Neither a third side nor a resize makes another double of it.
        if finding is not None and arose_ms > finding.record.since_ms:
            finding = None  # Of an earlier one, which ended while nobody saw both of its sides.
        since_ms = max(holding.claim.confirmed_ms or 0 for holding in holdings)
        folded_ms = self._folded_ms(holdings)
        if finding is None:
            if folded_ms < since_ms:
                return None
            record = _finding(LeakSuspected, holdings, since_ms, since_ms, folded_ms)
            word, said_ms = self.words.get(record.finding_id, ("", 0))
            record = replace(record, ignored=word if arose_ms <= said_ms else "")
            self.open[instance_id] = OpenFinding(record, since_ms + _patience_ms(holdings))
            return record
        due_ms = since_ms + _patience_ms(holdings)
        audited_ms = [holding.node.complete_ms for holding in holdings if not is_dead(holding.node)]
        if finding.confirmed or _migrating(holdings) or _leaving(holdings, folded_ms):
            return None
        if not audited_ms or min(folded_ms, *audited_ms) < due_ms:
            return None
        finding.record = replace(_finding(LeakConfirmed, holdings, since_ms, due_ms, folded_ms), ignored=finding.record.ignored)
        return finding.record

    def _now(self, finding: OpenFinding) -> _Open:
        """It keeps its place, and its side as long as audits may only have begun to omit the instance; nothing mends it meanwhile."""
        record, holdings = finding.record, self._holdings(finding.record.instance_id)
        if len(holdings) < 2:
            return record
        folded_ms = self._folded_ms(holdings)
        named = next((each for each in holdings if each.claim.claim_id == record.claim_id), None)
        if named is not None and _leaving(holdings, folded_ms) and _free_to_go(holdings, folded_ms) is None:
            return replace(record, held=resources_of(named.held), fix="", note=_note(holdings, record.node_id, folded_ms))
        now = _finding(type(record), holdings, record.since_ms, record.time_ms, folded_ms)
        return replace(now, partition=record.partition, offset=record.offset, ignored=record.ignored)

    def _folded_ms(self, holdings: list[Holding]) -> int:
        """Up to when all ledgers that have a side are folded."""
        return max(self._read_to_ms, min(self._ledgers[holding.partition].time_ms for holding in holdings))

    def _came_ms(self, holdings: list[Holding]) -> list[int]:
        """When the instance came to each node that holds it, in order of time."""
        held = (self._staying(each.partition, each.node.node_id, each.claim.instance_id) for each in holdings)
        return sorted(min(claim.confirmed_ms or 0 for claim in claims) for claims in held)

    def _is_behind(self, finding: OpenFinding) -> bool:
        """Whether one of its ledgers has not come to where the double arose, as after a partition was taken over."""
        sides = [self._ledgers[cause.partition].time_ms for cause in finding.record.causes if cause.partition in self._ledgers]
        return max(self._read_to_ms, min(sides, default=0)) < finding.record.since_ms

    def _resolved(self, finding: OpenFinding) -> LeakResolved:
        said = {name: getattr(finding.record, name) for name in finding.record.__struct_fields__}
        return LeakResolved(**said | self._place_now(finding))

    def _place_now(self, finding: OpenFinding) -> dict[str, int]:
        """The last record that is folded of the node's partition: what is said now is so after that."""
        ledger = self._ledgers[self._partition_of(finding.record.node_id)]
        return {"partition": ledger.partition, "offset": max(0, ledger.next_offset - 1), "time_ms": ledger.time_ms}

    def _partition_of(self, node_id: str) -> int:
        return partition_of(node_id.encode(), next(iter(self._ledgers.values())).partitions)


def newer_word(words: dict[str, tuple[str, int]], step: Step) -> bool:
    """Whether a step is the operator's last word on a double so far; it is kept among `words` then, by finding and with its time."""
    event = step.event
    if not isinstance(event, FindingIgnored) or step.ignored or not event.finding_id.startswith(f"{KIND}/"):
        return False
    if step.time_ms < words.get(event.finding_id, ("", 0))[1]:
        return False
    words[event.finding_id] = event.reason, step.time_ms
    return True


def _patience_ms(holdings: list[Holding]) -> int:
    """How long a double may last: the grace, or the TTL while the guest is on all of the hosts, as in a live migration."""
    if all(holding.shown for holding in holdings):
        return max(GRACE_MS, *(holding.claim.ttl_ms for holding in holdings))
    return GRACE_MS


def _leaving(holdings: list[Holding], folded_ms: int) -> list[Holding]:
    """Those whose audits have only just begun to omit the instance: its departure may be on its way, as for any orphan."""
    gone = [holding for holding in holdings if not holding.shown and not is_dead(holding.node)]
    return [each for each in gone if each.claim.run_epoch is None or folded_ms < each.claim.run_since_ms + GRACE_MS]


def _free_to_go(holdings: list[Holding], folded_ms: int) -> Holding | None:
    """The side whose claim can be released as it is: its host is no more, or has not had the guest for a while."""
    leaving = _leaving(holdings, folded_ms)
    gone = (each for each in holdings if each.is_withdrawn or (each.is_known and not each.shown and each not in leaving))
    return next(gone, None)


def _migrating(holdings: list[Holding]) -> bool:
    """Whether the instance is on its way: a report says so (Nova's task states `migrating`, `resize_migrating` …), or a place is kept."""
    if any(claim.keep and claim.confirmed_ms is None for each in holdings for claim in each.node.claims[each.claim.instance_id]):
        return True
    reports = [holding.node.shown[holding.claim.instance_id].report for holding in holdings if holding.shown]
    return any("migrat" in report.task_state for report in reports)


def _finding(kind: type[_Open], holdings: list[Holding], since_ms: int, time_ms: int, folded_ms: int) -> _Open:
    """The record; its place is that of the confirmation which made the double, the same in whatever order the partitions were read."""
    free = _free_to_go(holdings, folded_ms)
    stale = free or holdings[0]
    newest = max(holdings, key=lambda holding: (holding.claim.confirmed_ms or 0, holding.node.node_id))
    instance_id = stale.claim.instance_id
    # Of one that nobody's audit tells of now, or that may just be leaving, no claim is to be released yet.
    waits = free is None and (not stale.is_known or stale in _leaving(holdings, folded_ms))
    return kind(
        finding_id=bounded_name(f"{KIND}/{instance_id}"),
        kind=KIND,
        node_id=stale.node.node_id,
        partition=newest.partition,
        offset=newest.claim.confirmed_offset or 0,
        time_ms=time_ms,
        since_ms=since_ms,
        suspected_ms=since_ms,
        instance_id=instance_id,
        claim_id=stale.claim.claim_id,
        held=resources_of(stale.held),
        causes=_causes(holdings),
        missing=f"InstanceDeparted of {instance_id} on {stale.node.node_id}",
        fix="" if waits else release_command(stale.claim, "migrated"),
        note=_note(holdings, stale.node.node_id, folded_ms),
    )


def _note(holdings: list[Holding], node_id: str, folded_ms: int) -> str:
    others = [holding for holding in holdings if holding.node.node_id != node_id]
    return bounded_text(f"also held on {_names(others)}; {_advice(holdings, folded_ms)}")


def _advice(holdings: list[Holding], folded_ms: int) -> str:
    """What the hosts show of the guest now, and what is to be done about it."""
    leaving = _leaving(holdings, folded_ms)
    withdrawn = [holding for holding in holdings if holding.is_withdrawn]
    empty = [holding for holding in holdings if holding.is_known and not holding.shown and holding not in leaving]
    unsure = [holding for holding in holdings if not holding.is_known]
    if withdrawn:
        return f"{_names(withdrawn)} is withdrawn: the claim there can be released"
    if empty:
        return f"the guest is not on {_names(empty)}: the claim there can be released"
    if unsure:
        return f"no audit tells now whether the guest is on {_names(unsure)}: stop nothing until one does; release the claim once it is off"
    if leaving:
        return f"audits of {_names(leaving)} have only begun to omit the guest: wait for the next"
    return "the guest is on all of them: stop one before its claim is released"


def _names(holdings: list[Holding]) -> str:
    return ", ".join(holding.node.node_id for holding in holdings)


def _causes(holdings: list[Holding]) -> tuple[Cause, ...]:
    """Grant and confirmation on each node, oldest first."""
    causes: list[Cause] = []
    for holding in holdings:
        claim = holding.claim
        granted = f"claim {claim.claim_id} granted {amounts_text(claim.amounts)} on {claim.node_id}"
        seen = f"{claim.instance_id} seen on {claim.node_id}: claim confirmed"
        moments = [(claim.offset, max(0, claim.granted_ms), GRANTED, granted)]
        if claim.confirmed_offset is not None:
            moments.append((claim.confirmed_offset, claim.confirmed_ms or 0, claim.confirmed_by, seen))
        for offset, time_ms, event, summary in moments:
            causes.append(Cause(topic=CLAIMS, partition=holding.partition, offset=offset, time_ms=time_ms, event=event, summary=summary))
    return tuple(sorted(causes, key=lambda cause: (cause.time_ms, cause.partition, cause.offset)))
