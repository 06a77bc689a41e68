"""Replay: the ledger as it was at an end, a time or a cut, from the first record or a snapshot; and the proof that both are the same.

State at time T is the state just before the first record with an append time at or after T, partition by partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import Struct

from projections.cut import Cut
from projections.digests import Published, read_digests
from projections.ledger import Ledger
from projections.ledger_id import check_cut, ledger_id_of
from projections.ledger_state import Step
from projections.observed import Observed
from projections.reading import HistoryMissing, ProjectionError, Readable, at_hand, between, for_a_fold, where_archived
from projections.rows import node_resources
from projections.snapshots import Tell, encoded, load_newest, restored
from projections.whole import check_whole
from schemas.codec import decode_keyed
from schemas.results import NodeResources
from schemas.topics import CLAIMS, FOLDED, NODE_RESOURCES

READ_RECORDS = 5_000

Each = Callable[[Ledger, Step], None]
"""Called for every folded record, after the ledger has it: where further projections fold."""
Progress = Callable[[int], None]
"""Hears how many more records are folded."""
Until = Cut | int | None
"""A cut, a time in ms since 1970, or None for the ends as they are now."""


class Replayed(Struct, kw_only=True):
    """One partition's replay. `begun` is the offset it began at: 0, or the one after a snapshot. `outcomes` counts what happened since."""

    ledger: Ledger
    begun: int
    outcomes: Counter[str]
    dead: int = 0


class ReplayDifference(Struct, frozen=True, kw_only=True):
    """Two that must be equal and are not: what was compared, as of which offset, and how each has it."""

    partition: int
    what: str
    offset: int
    expected: str
    found: str


class Checks(Struct, kw_only=True):
    """What a verification compared, and what differed."""

    digests: int = 0
    rows: int = 0
    snapshots: int = 0
    differences: list[ReplayDifference] = []

    def add(self, other: Checks) -> None:
        """Take in what was compared elsewhere."""
        self.digests += other.digests
        self.rows += other.rows
        self.snapshots += other.snapshots
        self.differences += other.differences


class Folded(Struct, frozen=True, kw_only=True):
    """What a replay says of one partition: everything but the ledger itself, so that another process can tell it."""

    partition: int
    next_offset: int
    digest: str
    nodes: int
    claims: int
    begun: int
    outcomes: dict[str, int]
    dead: int
    rules_version: int
    ledger_id: str


def replayed(
    log: Readable,
    number: int,
    end: int,
    *,
    from_snapshots: bool = True,
    each: Each | None = None,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> Replayed:
    """One partition as of the offset `end`, exclusive; with `from_snapshots` it begins at the newest that fits: `each` sees the rest only.

    `tell` hears of snapshots passed over. Raises HistoryMissing if records that are needed are not at hand, and the fold's own errors.
    """
    ledger = load_newest(log, number, at_most=end, tell=tell) if from_snapshots else None
    return fold(log, ledger or Ledger(number, log.topics()[CLAIMS]), end, each, progress)


def folded(partition: Replayed) -> Folded:
    """What is said of a partition."""
    ledger = partition.ledger
    return Folded(
        partition=ledger.partition,
        next_offset=ledger.next_offset,
        digest=ledger.digest.hex(),
        nodes=len(ledger.nodes),
        claims=len(ledger.claims),
        begun=partition.begun,
        outcomes=dict(sorted(partition.outcomes.items())),
        dead=partition.dead,
        rules_version=ledger.rules_version,
        ledger_id=ledger.ledger_id,
    )


def cut_at(log: Readable, ends: Mapping[int, int]) -> Cut:
    """The cut of the ledger at these next offsets of its partitions."""
    return Cut.of({(CLAIMS, number): end for number, end in ends.items()}, ledger_id_of(log))


def ends_of(log: Readable, until: Until, tell: Tell | None = None) -> dict[int, int]:
    """The next offset of each partition at a moment; `tell` hears of snapshots passed over.

    Every place of a cut must be at hand, also those that a replay of the ledger does not read: what they say of the log is then true.
    Raises WrongCut for a cut of another log, HistoryMissing for a moment that this log does not reach, ProjectionError for no ledger.
    """
    check_whole(log)
    count = log.topics().get(CLAIMS)
    if count is None:
        hidden = "or it is hidden from this user"
        raise ProjectionError(f"this log has no topic {CLAIMS}, {hidden}, so there is no ledger to fold; `claimlog run` makes it")
    if until is None:
        return dict(log.ends(CLAIMS))
    if isinstance(until, int):
        ends = {number: log.at_time(CLAIMS, number, until) for number in range(count)}
        check_at_hand(log, ends, until, tell)
        return ends
    check_cut(log, until, FOLDED)
    ends = {place.partition: place.next_offset for place in until.places if place.topic == CLAIMS}
    if sorted(ends) != list(range(count)):
        raise HistoryMissing(f"the cut ({until.described() or 'empty'}) does not have the {count} partitions of {CLAIMS} in this log")
    return ends


def check_at_hand(log: Readable, ends: Mapping[int, int], time_ms: int, tell: Tell | None = None) -> None:
    """Raise HistoryMissing if one of `ends`, which the log gave for a time, only stands where what is at hand begins.

    The records that left the log may be later than that time; the snapshot that includes them knows the latest.
    """
    for number, end in ends.items():
        if not 0 < end == log.start(CLAIMS, number):
            continue
        begun = load_newest(log, number, at_most=end, tell=tell)
        if begun is None or begun.next_offset < end or begun.time_ms >= time_ms:
            left = f"the moment lies among the records below {end}, which have left the log"
            raise HistoryMissing(f"{CLAIMS}/{number}: {left}; {where_archived(log)}")


def fold(log: Readable, ledger: Ledger, end: int, each: Each | None = None, progress: Progress | None = None) -> Replayed:
    """Fold `ledger` on up to the offset `end`, exclusive. Raises HistoryMissing."""
    number = ledger.partition
    partition = Replayed(ledger=ledger, begun=ledger.next_offset, outcomes=Counter())
    read = for_a_fold(log)
    while (at := ledger.next_offset) < end:
        start = log.start(CLAIMS, number)
        for record in read(CLAIMS, number, at, min(READ_RECORDS, end - at)) if at >= start else ():
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            if step is None:
                continue
            for outcome in step.outcomes:
                partition.outcomes[outcome.outcome] += 1
            partition.dead += step.dead is not None
            if each is not None:
                each(ledger, step)
        if ledger.next_offset == at:
            there = at_hand(start, log.end(CLAIMS, number))
            raise HistoryMissing(f"{CLAIMS}/{number}: records from {at} on are needed, {there}; {where_archived(log)}")
        if progress is not None:
            progress(ledger.next_offset - at)
    return partition


def verified_partition(
    log: Readable, number: int, end: int, *, progress: Progress | None = None, tell: Tell | None = None
) -> tuple[Replayed, Checks]:
    """One partition from the first record up to the offset `end`, exclusive, compared with everything that was published of it.

    Rows and digests are compared at their own offsets; a row's number of leaks is taken over. The newest snapshot (one of our own half-way
    if none was published) is folded on to the end, where both ledgers must have the same bytes. Raises as `replayed`.
    """
    checks = Checks()
    begun = load_newest(log, number, at_most=end, tell=tell)
    watch = _Watch(log, number, end, checks, half_way=end // 2 if begun is None else -1)
    ledger = Ledger(number, log.topics()[CLAIMS])
    found = fold(log, ledger, end, watch, progress)
    checks.snapshots += begun is not None
    begun = restored(watch.half) if watch.half else begun
    if begun is None:
        return found, checks  # Not a record is there, or one: nothing to fold on.
    offset = begun.next_offset - 1
    fold(log, begun, end, None, progress)
    whole, again = (ledger.digest, encoded(ledger)), (begun.digest, encoded(begun))
    if whole != again:
        what = f"the state folded on from the snapshot of offset {offset}"
        expected, got = (f"digest {digest.hex()}, {len(data)} bytes of state" for digest, data in (whole, again))
        checks.differences.append(ReplayDifference(partition=number, what=what, offset=end - 1, expected=expected, found=got))
    return found, checks


class _Watch:
    """Compares one partition's fold with what was published of it, at each offset of which something was; `half` is its state half-way."""

    def __init__(self, log: Readable, number: int, end: int, checks: Checks, half_way: int) -> None:
        self._number, self._checks, self._half_way = number, checks, half_way
        self.half = b""
        self._observed = Observed(number)
        self._digests: dict[int, list[Published]] = {}
        for published in read_digests(log, number):
            if published.digest.offset < end:
                self._digests.setdefault(published.digest.offset, []).append(published)
        newest: dict[str, NodeResources] = {}
        for row in _rows(log, number):
            if row.offset < end and (row.node_id not in newest or newest[row.node_id].offset <= row.offset):
                newest[row.node_id] = row
        self._rows: dict[int, list[NodeResources]] = {}
        for row in newest.values():
            self._rows.setdefault(row.offset, []).append(row)

    def __call__(self, ledger: Ledger, step: Step) -> None:
        self._observed.apply(ledger, step)
        if ledger.next_offset == self._half_way:
            self.half = encoded(ledger)
        for published in self._digests.get(step.offset, ()):
            if published.is_about(step.time_ms):
                self._checks.digests += 1
                self._compare(f"the digest of process {published.who()}", step.offset, ledger.digest.hex(), published.digest.digest)
        for row in self._rows.get(step.offset, ()):
            self._checks.rows += 1
            known = row.node_id in ledger.nodes
            expected = node_resources(ledger, row.node_id, self._observed, row.leaks) if known else "no such node"
            self._compare(f"the row of {row.node_id}", step.offset, expected, row)

    def _compare(self, what: str, offset: int, expected: object, found: object) -> None:
        if expected != found:
            said, got = _apart(expected, found)
            self._checks.differences.append(ReplayDifference(partition=self._number, what=what, offset=offset, expected=said, found=got))


def _apart(expected: object, found: object) -> tuple[str, str]:
    """Both as text; of two rows only the fields that differ."""
    if not (isinstance(expected, NodeResources) and isinstance(found, NodeResources)):
        return str(expected), str(found)
    names = [name for name in expected.__struct_fields__ if getattr(expected, name) != getattr(found, name)]
    return (
        ", ".join(f"{name}={getattr(expected, name)}" for name in names),
        ", ".join(f"{name}={getattr(found, name)}" for name in names),
    )


def _rows(log: Readable, number: int) -> list[NodeResources]:
    """Every record of a partition of `node-resources` that is one (rule 11) and is about it; what else lies there says nothing."""
    if number >= log.topics().get(NODE_RESOURCES, 0):
        return []
    records = between(log, NODE_RESOURCES, number, log.start(NODE_RESOURCES, number), log.end(NODE_RESOURCES, number), READ_RECORDS)
    events = (decode_keyed(NODE_RESOURCES, record.key, record.value) for record in records)
    return [event for event in events if isinstance(event, NodeResources) and event.partition == number]
