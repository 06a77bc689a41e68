"""All partitions of the ledger as folded up to one moment, with the views and the findings beside them: what numbers are read from.

`streams.cli.reading.state_at` makes one; it can be folded on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from projections.companions import Doubles
from projections.cut import Cut
from projections.doubles import MAKES_NONE, DoubleClaims
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Node
from projections.observed import OBSERVES, Observed
from projections.reading import for_a_fold
from projections.rows import node_resources
from schemas.findings import Cause, LeakConfirmed, LeakSuspected
from schemas.results import NodeResources
from schemas.topics import CLAIMS
from streams.cli.reading.apart import Added
from streams.cli.reading.records import check_claims_at_hand
from streams.log.base import Log, Position
from streams.log.holes import Hole

READ_RECORDS = 5_000


class Begun(NamedTuple):
    """Where the fold of one partition begins, with the doubles of the snapshot that it is from."""

    ledger: Ledger
    observed: Observed
    leaks: Leaks
    doubles: Doubles | None


class State(Struct, kw_only=True):
    """All partitions of the ledger as of `cut`, with what audits and life cycles say beside them, and the findings.

    `ledgers` are in the order of their partitions. `ends` is the next offset of each partition of `claims` that the fold includes. `laid`
    has, for what was laid on the end, where it really stands; `pending` counts it, `unreadable` those observations that will be dead
    letters, `lost` those that left the log before anybody carried them, `holes` where some may have that have others behind them. Ages
    count to `as_of_ms`. Without `has_views` there are ledgers only: no rows, no findings.
    """

    partitions: int
    ledgers: dict[int, Ledger]
    observed: dict[int, Observed]
    leaks: dict[int, Leaks]
    doubles: DoubleClaims
    ends: dict[int, int]
    as_of_ms: int
    cut: Cut = Cut()
    has_views: bool = True
    pending: int = 0
    unreadable: int = 0
    lost: int = 0
    holes: list[Hole] = field(default_factory=list)
    laid: dict[tuple[int, int], Position] = field(default_factory=dict)

    def node_ids(self) -> list[str]:
        """Every known node, sorted."""
        return sorted(node_id for ledger in self.ledgers.values() for node_id in ledger.nodes)

    def ledger_of(self, node_id: str) -> Ledger | None:
        """The partition that knows a node; None if none does."""
        return next((ledger for ledger in self.ledgers.values() if node_id in ledger.nodes), None)

    def node(self, node_id: str) -> Node | None:
        """A node as the fold has it; read it only. None if it is not known."""
        ledger = self.ledger_of(node_id)
        return None if ledger is None else ledger.nodes[node_id]

    def row(self, node_id: str) -> NodeResources:
        """A node's row as of the cut. Raises KeyError for a node that is not known."""
        return self.rows([node_id])[node_id]

    def rows(self, node_ids: Iterable[str]) -> dict[str, NodeResources]:
        """The rows of several nodes. Raises as `row` does."""
        rows: dict[str, NodeResources] = {}
        doubles = Counter(finding.node_id for finding in self.doubles.open_findings() if not finding.ignored)
        for node_id in node_ids:
            ledger = self.ledger_of(node_id)
            if ledger is None or not self.has_views:
                raise KeyError(node_id)
            leaks = self.leaks[ledger.partition].count(node_id) + doubles[node_id]
            row = node_resources(ledger, node_id, self.observed[ledger.partition], leaks)
            rows[node_id] = replace(row, offset=min(row.offset, self.ends[ledger.partition] - 1))
        return rows

    def findings(self) -> list[LeakSuspected | LeakConfirmed]:
        """Every open finding, by node; causes are named by where they really stand."""
        found = [*self.doubles.open_findings()]
        for leaks in self.leaks.values():
            found += leaks.open_findings()
        return sorted(map(self._placed, found), key=lambda finding: (finding.node_id, finding.finding_id))

    def finding_again(self, finding: LeakSuspected | LeakConfirmed) -> LeakSuspected | LeakConfirmed | None:
        """What a finding of an earlier state is now; None if it is no longer open. It costs the same however many are."""
        ledger = self.ledger_of(finding.node_id)
        on_node = {} if ledger is None else self.leaks[ledger.partition].open.get(finding.node_id, {})
        on_it = on_node.get(finding.finding_id)
        found = on_it.record if on_it is not None else self.doubles.open_finding(finding.instance_id)
        return self._placed(found) if found is not None and found.finding_id == finding.finding_id else None

    def _placed(self, finding: LeakSuspected | LeakConfirmed) -> LeakSuspected | LeakConfirmed:
        if not self.laid:
            return finding
        offset = min(finding.offset, self.ends[finding.partition] - 1)
        return replace(finding, offset=max(-1, offset), causes=tuple(self._cause(cause) for cause in finding.causes))

    def _cause(self, cause: Cause) -> Cause:
        place = self.laid.get((cause.partition, cause.offset))
        return cause if place is None else replace(cause, topic=place.topic, partition=place.partition, offset=place.offset)

    def step(self, partition: int, offset: int, time_ms: int, key: bytes, value: bytes) -> Step | None:
        """Fold one more record, views and findings included; None if it was folded before."""
        ledger, observed = self.ledgers[partition], self.observed[partition]
        step = ledger.apply(offset, time_ms, key, value)
        if step is not None and self.has_views:
            observed.apply(ledger, step)
            self.leaks[partition].apply(ledger, observed, step)
            self.doubles.apply(partition, step)
        return step

    def follow(self, log: Log, partition: int, until: int) -> Iterator[Step]:
        """Fold on up to the offset `until`, exclusive, and yield what each record did. For a state made without `pending` only."""
        ledger, read = self.ledgers[partition], for_a_fold(log)
        self._check_at_hand(log, ledger, until)
        while ledger.next_offset < until:
            for record in read(CLAIMS, partition, ledger.next_offset, READ_RECORDS):
                if record.offset >= until:
                    return
                step = self.step(partition, record.offset, record.time_ms, record.key, record.value)
                self.ends[partition] = record.offset + 1
                if step is not None:
                    yield step

    def fold(self, log: Log, partition: int, until: int, added: Added, *, keeps_digest: bool = False) -> None:
        """As `follow`, in less time, for who asks for the state alone: no step is told, nor a digest kept that nobody is to publish."""
        ledger, read = self.ledgers[partition], for_a_fold(log)
        self._check_at_hand(log, ledger, until)
        if not keeps_digest:
            ledger.hash_no_more()
        observed, has_views, apply = self.observed[partition], self.has_views, ledger.apply
        look, audit, doubles, watched = observed.apply, self.leaks[partition].apply, self.doubles.apply, self.doubles.watched
        while (at := ledger.next_offset) < until:
            for record in read(CLAIMS, partition, at, min(READ_RECORDS, until - at)):
                step = apply(record.offset, record.time_ms, record.key, record.value)
                if step is None or not has_views:
                    continue
                kind = type(step.event)
                if kind in OBSERVES:
                    look(ledger, step)
                audit(ledger, observed, step)
                if kind not in MAKES_NONE or watched:
                    doubles(partition, step)
            self.ends[partition] = ledger.next_offset
            added(ledger.next_offset - at)

    def _check_at_hand(self, log: Log, ledger: Ledger, until: int) -> None:
        if ledger.next_offset < until:
            check_claims_at_hand(log, ledger.partition, ledger.next_offset)


def begun_at(state: State) -> dict[int, Begun]:
    """Where a later state of the same log begins that goes on from this one. It is this one's tables that are folded on."""
    return {number: Begun(ledger, state.observed[number], state.leaks[number], None) for number, ledger in state.ledgers.items()}
