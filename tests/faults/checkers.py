"""What must hold of a log and its tables at rest, each as a named checker: it returns a sentence for everything that does not.

A checker works out anew what it compares: which result counts, and what a node has to give, are computed here and not asked of the
code that decides them. `tests/unit/project/test_fault_checkers.py` shows for each one that it catches a history with its fault.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from projections.differences import Closed
from projections.leaks import Mark
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.ledger_table import LedgerTable
from projections.node import Node
from projections.observed import NodeView, Observed
from projections.open_finding import OpenFinding
from projections.rocks import RocksTable
from projections.rows import node_resources
from projections.snapshots import encoded
from projections.table import Table
from schemas.claims import ClaimItem, ClaimRequested
from schemas.codec import decode_keyed
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from schemas.results import ClaimOutcome, InstancesPlaced, LedgerDigest, NodeResources, Placement, PlacementFailed
from schemas.topics import CLAIMS, DEAD_LETTERS, DIGESTS, NODE_RESOURCES, REQUESTS, RESULTS, VERDICTS
from streams.dead_letters import DeadLetter, read_letter
from streams.leak_audit import LeakAudit
from streams.log.base import Log, Partition, Record

READ_RECORDS = 5_000
CLOSING = frozenset({"released", "departed", "deleted", "expired", "vanished"})
Result = InstancesPlaced | PlacementFailed


class Beside(Struct, array_like=True):
    """What a table keeps of one node beside the ledger, as it is stored: read here with a decoder of its own."""

    view: NodeView | None
    mark: Mark | None
    open: dict[str, OpenFinding]
    closed: dict[str, Closed]


BESIDE = msgspec.msgpack.Decoder(Beside).decode


class Acknowledged(Struct, frozen=True):
    """What a client knows of a record that the log has acknowledged."""

    topic: str
    partition: int
    offset: int
    hash: str


def hash_of(value: bytes) -> str:
    """How a client remembers what it wrote."""
    return blake2b(value, digest_size=16).hexdigest()


class Seen:
    """A log as checkers that wait for something look at it, again and again: what was read stays at hand, and the fold goes on from there.

    For logs that only grow: one that is rewound is to be read anew.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: dict[Partition, list[Record]] = {}
        self.fold = Folded()

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        """See `Log`."""
        kept = self._kept.setdefault(Partition(topic, partition), [])
        if kept and kept[0].offset <= offset <= kept[-1].offset:
            first = bisect_left(kept, offset, key=lambda record: record.offset)
            return kept[first : first + records_max]
        found = self._log.read(topic, partition, offset, records_max, bytes_max)
        if not kept or offset == kept[-1].offset + 1:
            kept += found
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def seen(log: Log) -> Log:
    """The same log, of which each record is read once: see `Seen`."""
    return cast("Log", Seen(log))


def records(log: Log, topic: str, partition: int | None = None, first: int = 0) -> Iterator[Any]:
    """Every record of a topic that is at hand, partition by partition; from offset `first` on."""
    numbers = range(log.topics()[topic]) if partition is None else (partition,)
    for number in numbers:
        at, end = max(first, log.start(topic, number)), log.end(topic, number)
        while at < end:
            found = log.read(topic, number, at, READ_RECORDS)
            yield from found
            if not found:
                break
            at = found[-1].offset + 1


def readable(log: Log, topic: str, kind: type[Any] | tuple[type[Any], ...]) -> Iterator[tuple[Any, Any]]:
    """Every record of these types that counts as one, with the log's record around it; one under another's key does not."""
    for record in records(log, topic):
        event = decode_keyed(topic, record.key, record.value)
        if isinstance(event, kind):
            yield record, event


class Folded(Struct):
    """The pure fold of a whole log, by partition, with everything on the way that checkers want to see."""

    ledgers: list[Ledger] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    audits: list[LeakAudit] = field(default_factory=list)
    books: list[Books] = field(default_factory=list)
    outcomes: Counter[bytes] = field(default_factory=Counter)
    granted: dict[str, ClaimOutcome] = field(default_factory=dict)
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    dead: dict[tuple[str, int, int], str] = field(default_factory=dict)
    overgrants: list[str] = field(default_factory=list)

    def kinds(self) -> Counter[str]:
        """How often each outcome came."""
        found: Counter[str] = Counter()
        for outcome, times in self.outcomes.items():
            found[msgspec.json.decode(outcome)["outcome"]] += times
        return found


def folded(log: Log, below: Mapping[int, int] | None = None) -> Folded:
    """Fold all of `claims`, recounting every grant; with `below` only these partitions' records below these offsets."""
    all_of = log.fold if isinstance(log, Seen) and below is None else Folded()
    count = log.topics()[CLAIMS]
    for number in range(len(all_of.ledgers), count):
        all_of.ledgers.append(Ledger(number, count))
        all_of.observed.append(Observed(number))
        all_of.audits.append(LeakAudit(number))
        all_of.books.append(Books())
    for number, ledger in enumerate(all_of.ledgers):
        for record in records(log, CLAIMS, number, ledger.next_offset) if below is None or number in below else ():
            if below is not None and record.offset >= below[number]:
                break
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            assert step is not None, f"{CLAIMS}/{number}@{record.offset} was read twice"
            all_of.observed[number].apply(ledger, step)
            all_of.audits[number].step(ledger, all_of.observed[number], step)
            all_of.overgrants += all_of.books[number].overgrants(ledger, step)
            _note(all_of, ledger, step)
    return all_of


def _note(all_of: Folded, ledger: Ledger, step: Step) -> None:
    all_of.digests[ledger.partition, step.offset] = ledger.digest.hex()
    if step.dead is not None:
        all_of.dead[CLAIMS, ledger.partition, step.offset] = step.dead.kind
    for outcome in step.outcomes:
        all_of.outcomes[msgspec.json.encode(outcome)] += 1
        if outcome.outcome == "granted":
            all_of.granted[outcome.claim_id] = outcome


class Entry(Struct, frozen=True):
    """One held claim in the checker's own books."""

    instance_id: str
    amounts: tuple[int, ...]
    offset: int
    confirmed: bool = False
    group_id: str = ""
    resize: bool = False
    keep: bool = False


class Books:
    """Held claims by node, kept from records and outcomes alone, and summed up anew at each grant (rule 3)."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Entry]] = {}

    def overgrants(self, ledger: Ledger, step: Step) -> list[str]:
        """Book the step; every grant of it that did not fit at its own offset."""
        items = {item.claim_id: item for item in step.event.items} if isinstance(step.event, ClaimRequested) else {}
        granted: dict[str, list[ClaimItem]] = {}
        for outcome in step.outcomes:
            on_node = self.claims.setdefault(outcome.node_id, {})
            if outcome.outcome == "granted":
                item = items[outcome.claim_id]
                group_id = item.group.group_id if item.group is not None else ""
                amounts = tuple(getattr(item.resources, name) for name in RESOURCES)
                on_node[outcome.claim_id] = Entry(
                    item.instance_id, amounts, step.offset, group_id=group_id, resize=item.resize, keep=item.keep
                )
                granted.setdefault(outcome.node_id, []).append(item)
            elif outcome.outcome == "confirmed":
                confirmed = on_node[outcome.claim_id] = msgspec.structs.replace(on_node[outcome.claim_id], confirmed=True)
                if confirmed.resize:
                    _cut_older(on_node, confirmed)
                if confirmed.keep:
                    on_node[outcome.claim_id] = _cut_to_shown(confirmed, ledger.nodes[outcome.node_id])
            elif outcome.outcome in CLOSING:
                del on_node[outcome.claim_id]
        return [wrong for node_id, new in granted.items() for wrong in self._over(ledger.nodes[node_id], new, step.offset)]

    def _over(self, node: Node, new: list[ClaimItem], offset: int) -> Iterator[str]:
        held = self.claims[node.node_id]
        before = {claim_id: entry for claim_id, entry in held.items() if claim_id not in {item.claim_id for item in new}}
        for r, name in enumerate(RESOURCES):
            used, used_before = _used(node, held.values(), r), _used(node, before.values(), r)
            asked = any(getattr(item.resources, name) and not item.forced for item in new)
            total = getattr(node.hypervisor, name) if node.hypervisor is not None else None
            rule = getattr(node, name)
            if not asked or used == used_before or rule.ratio_milli is None:
                continue
            if total is None or used * 1000 > (total - rule.reserved) * rule.ratio_milli:
                yield f"{CLAIMS}@{offset}: granted on {node.node_id} with {name} {used} used of {total} at {rule.ratio_milli}/1000"
        for item in new:
            group = item.group
            if group is None or group.policy != "anti-affinity":
                continue
            members = {entry.instance_id for entry in held.values() if entry.group_id == group.group_id}
            if len(members) > max(group.max_per_node, 1):
                yield f"{CLAIMS}@{offset}: {len(members)} members of {group.group_id} on {node.node_id}, {group.max_per_node} allowed"


def _cut_older(on_node: dict[str, Entry], resize: Entry) -> None:
    """A confirmed resize is the whole size: older confirmed claims of its instance there stand for no more (decision 0006, rule 7)."""
    for claim_id, entry in on_node.items():
        if entry.instance_id == resize.instance_id and entry.confirmed and entry.offset < resize.offset:
            on_node[claim_id] = msgspec.structs.replace(entry, amounts=tuple(map(min, entry.amounts, resize.amounts)))


def _cut_to_shown(kept: Entry, node: Node) -> Entry:
    """Whoever stayed after all keeps what is shown of it and no more."""
    shown = node.shown[kept.instance_id].amounts
    amounts = tuple(most if seen is None else min(most, seen) for most, seen in zip(kept.amounts, shown, strict=True))
    return msgspec.structs.replace(kept, amounts=amounts)


def _used(node: Node, held: Iterable[Entry], r: int) -> int:
    """Rule 3, for one resource: what is shown or its unconfirmed claims, whichever is more; else its claims."""
    entries: dict[str, list[Entry]] = {}
    for entry in held:
        entries.setdefault(entry.instance_id, []).append(entry)
    used = 0
    for instance_id in entries.keys() | node.shown.keys():
        seen = node.shown[instance_id].amounts[r] if instance_id in node.shown else None
        counts = [entry.amounts[r] for entry in entries.get(instance_id, []) if seen is None or not entry.confirmed]
        used += max([*counts, seen or 0])
    return used


def lost(log: Log, acknowledged: Iterable[Acknowledged]) -> list[str]:
    """Acknowledged records that are not where the log said, byte for byte."""
    there = {}
    wanted = list(acknowledged)
    for topic in {each.topic for each in wanted}:
        there.update({(topic, record.partition, record.offset): hash_of(record.value) for record in records(log, topic)})
    return [
        f"{each.topic}/{each.partition}@{each.offset} was acknowledged and is {'another record' if found else 'not there'}"
        for each in wanted
        if (found := there.get((each.topic, each.partition, each.offset))) != each.hash
    ]


def counting(log: Log) -> tuple[dict[str, Result], set[str]]:
    """The counting result of each request, and the requests that have results of which none counts.

    The first in the partition whose append time is not after its `commit_by_ms`; a failure has no such time (DESIGN section 3).
    """
    counts: dict[str, Result] = {}
    seen: set[str] = set()
    for record, result in readable(log, RESULTS, (InstancesPlaced, PlacementFailed)):
        if log_partition(log, RESULTS, record.key) != record.partition:
            continue
        seen.add(result.request_id)
        on_time = isinstance(result, PlacementFailed) or record.time_ms <= result.commit_by_ms
        if on_time and result.request_id not in counts:
            counts[result.request_id] = result
    return counts, seen - counts.keys()


def log_partition(log: Log, topic: str, key: bytes) -> int:
    """Where a key belongs, as the log says."""
    return log.partition(topic, key)


def requests(log: Log) -> dict[str, PlacementRequested]:
    """Every request in the log, by id; the first of an id is the one."""
    found: dict[str, PlacementRequested] = {}
    for record, request in readable(log, REQUESTS, PlacementRequested):
        if log_partition(log, REQUESTS, record.key) == record.partition:
            found.setdefault(request.request_id, request)
    return found


def unanswered(log: Log, request_ids: Iterable[str]) -> list[str]:
    """Requests without exactly one counting result."""
    counts, none_counts = counting(log)
    missing = [f"{request_id} has no counting result" for request_id in request_ids if request_id not in counts]
    return missing + [f"{request_id} has results and none of them counts" for request_id in sorted(none_counts)]


def unfounded(log: Log, fold: Folded) -> list[str]:
    """Counting results that name a claim which was not granted there, or not one for each instance."""
    found = []
    asked = requests(log)
    for request_id, result in counting(log)[0].items():
        request = asked.get(request_id)
        if not isinstance(result, InstancesPlaced) or request is None or request.dry_run:
            continue
        for placement in result.placements:
            granted = fold.granted.get(placement.claim_id)
            place = (placement.node_id, placement.partition, placement.instance_id)
            if granted is None or (granted.node_id, granted.partition, granted.instance_id) != place:
                found.append(f"{request_id} names {placement.claim_id} on {placement.node_id}, which was not granted there")
        instances = sorted(placement.instance_id for placement in result.placements)
        if instances != sorted(request.instance(index) for index in range(request.count)):
            found.append(f"{request_id} asked for {request.count} instances, its result places {len(instances)}")
    return found


def places(result: Result) -> tuple[Placement, ...]:
    """All places that a result names: where its instances go, and those that they leave and keep."""
    return (*result.placements, *result.kept) if isinstance(result, InstancesPlaced) else ()


def unnamed(log: Log, fold: Folded) -> list[str]:
    """Held claims of answered requests that the counting result does not name."""
    counts = counting(log)[0]
    named = {request_id: {place.claim_id for place in places(result)} for request_id, result in counts.items()}
    return [
        f"{claim.claim_id} is held on {claim.node_id}, and the result of {claim.request_id} does not name it"
        for ledger in fold.ledgers
        for claim in ledger.claims.values()
        if claim.request_id in named and claim.claim_id not in named[claim.request_id]
    ]


def rows_wrong(log: Log, fold: Folded) -> list[str]:
    """Nodes whose newest row on `node-resources` is missing, or not what the pure fold says of them."""
    newest: dict[str, NodeResources] = {}
    for record, row in readable(log, NODE_RESOURCES, NodeResources):
        old = newest.get(row.node_id)
        if record.partition == row.partition and (old is None or old.offset <= row.offset):
            newest[row.node_id] = row
    found = []
    for ledger, observed, audit in zip(fold.ledgers, fold.observed, fold.audits, strict=True):
        for node_id in sorted(ledger.nodes):
            row = newest.pop(node_id, None)
            if row is None:
                found.append(f"{node_id} has no row")
                continue
            pure = msgspec.structs.replace(node_resources(ledger, node_id, observed, audit.leaks.count(node_id)), offset=row.offset)
            differing = [name for name in pure.__struct_fields__ if getattr(pure, name) != getattr(row, name)]
            if differing:
                found.append(f"the row of {node_id} at {row.offset} differs from the fold in {', '.join(differing)}")
    return found + [f"there is a row of {node_id}, which the fold does not know" for node_id in newest]


def verdicts_wrong(log: Log, fold: Folded) -> list[str]:
    """Outcomes of the pure fold that were never published, and published ones that the fold does not have."""
    published = {msgspec.json.encode(outcome) for _, outcome in readable(log, VERDICTS, ClaimOutcome)}
    missing = [f"never published: {outcome.decode()}" for outcome in fold.outcomes.keys() - published]
    return missing + [f"published and not so: {outcome.decode()}" for outcome in published - fold.outcomes.keys()]


def digests_wrong(log: Log, fold: Folded) -> list[str]:
    """Published digests that are not the pure fold's at their offset."""
    return [
        f"{CLAIMS}/{digest.partition}@{digest.offset}: process {digest.process} has another digest than the fold"
        for _, digest in readable(log, DIGESTS, LedgerDigest)
        if fold.digests.get((digest.partition, digest.offset)) != digest.digest
    ]


def tables_wrong(state: Path, fold: Folded) -> list[str]:
    """Tables in RocksDB that are not the pure fold, ledger and companions."""
    found = []
    for number in range(len(fold.ledgers)):
        with RocksTable.open(state / f"{CLAIMS}-{number}") as table:
            found += table_wrong(table, fold, number)
    return found


def workers_tables_wrong(log: Log, homes: Iterable[Path], fold: Folded) -> list[str]:
    """As `tables_wrong` for workers that have a directory each: one of them holds the end of each partition, and what another has left of
    a partition that it once owned is the pure fold up to there."""
    found = []
    ends = {number: ledger.next_offset for number, ledger in enumerate(fold.ledgers)}
    stands: dict[int, dict[str, int]] = {number: {} for number in ends}
    for home, (number, end) in product(homes, ends.items()):
        if not (home / f"{CLAIMS}-{number}").exists():
            continue
        with RocksTable.open(home / f"{CLAIMS}-{number}") as table:
            stands[number][home.name] = table.next_offset
            if table.next_offset >= end:
                found += [f"{home.name}: {wrong}" for wrong in table_wrong(table, fold, number)]
            elif table.next_offset:
                up_to = folded(log, {number: table.next_offset})
                found += [f"{home.name} before the end: {wrong}" for wrong in table_wrong(table, up_to, number)]
    behind = {number: end for number, end in ends.items() if max(stands[number].values(), default=-1) < end}
    return found + [f"no table stands at the end of {CLAIMS}/{number}, {end}: {stands[number]}" for number, end in behind.items()]


def limits(fold: Folded) -> dict[str, dict[str, int]]:
    """The most that fits on each node, by resource."""
    return {
        node_id: {name: limit for name in RESOURCES if (limit := node.limit(name)) is not None}
        for ledger in fold.ledgers
        for node_id, node in ledger.nodes.items()
    }


def table_wrong(table: Table, fold: Folded, number: int) -> list[str]:
    """As `tables_wrong`, one table."""
    place, pure = f"the table of {CLAIMS}/{number}", fold.ledgers[number]
    kept = LedgerTable(table)
    ledger = kept.load()
    if ledger is None:
        return [f"{place} is empty"]
    if (ledger.next_offset, ledger.digest) != (pure.next_offset, pure.digest):
        return [f"{place} stands at {ledger.next_offset} with {ledger.digest.hex()}, the fold at {pure.next_offset}, {pure.digest.hex()}"]
    if encoded(ledger) != encoded(pure):
        nodes = [node_id for node_id in sorted(pure.nodes | ledger.nodes) if pure.nodes.get(node_id) != ledger.nodes.get(node_id)]
        return [f"{place} differs from the fold, in the nodes {nodes}"]
    views, leaks = fold.observed[number].nodes, fold.audits[number].leaks
    rows = {key: row for key, row in kept.extras() if key.startswith(b"n")}
    found = [f"{place} has a row of the unknown node {key[1:]!r}" for key in rows if key[1:].decode() not in pure.nodes]
    for node_id in sorted(pure.nodes):
        expected = (views.get(node_id), leaks.marks.get(node_id), leaks.open.get(node_id, {}), leaks.closed.get(node_id, {}))
        row = rows.get(b"n" + node_id.encode())
        if row is None:
            found += [f"{place} has no view of {node_id}"] if expected != (None, None, {}, {}) else []
            continue
        has = BESIDE(row)
        got = (has.view, has.mark, has.open, has.closed)
        differing = [name for name, x, y in zip(("view", "mark", "open", "closed"), expected, got, strict=True) if x != y]
        if differing:
            found.append(f"{place} differs from the fold in {', '.join(differing)} of {node_id}")
    return found


def dead_letters(log: Log) -> list[DeadLetter]:
    """Every dead letter. Raises AssertionError for one that cannot be read."""
    found = []
    for record in records(log, DEAD_LETTERS):
        letter = read_letter(record)
        assert isinstance(letter, DeadLetter), f"{record.position}: {letter.reason}"
        found.append(letter)
    return found


def letters_wrong(log: Log, expected: Mapping[tuple[str, int, int], str]) -> list[str]:
    """Positions that should be in the dead letters, by kind, and are not; and letters of anything else."""
    found: dict[tuple[str, int, int], set[str]] = {}
    for letter in dead_letters(log):
        found.setdefault((letter.topic, letter.partition, letter.offset), set()).add(letter.kind)
    wrong = []
    for position, kind in expected.items():
        kinds = found.pop(position, set())
        if kinds != {kind}:
            wrong.append(f"{position} is {kind}; the dead letters say {sorted(kinds) or 'nothing'}")
    return wrong + [f"{position} is in the dead letters as {sorted(kinds)} and is sound" for position, kinds in found.items()]


def everything_wrong(
    log: Log,
    state: Path | Sequence[Path],
    acknowledged: Iterable[Acknowledged],
    dead: Mapping[tuple[str, int, int], str] | None = None,
) -> tuple[Folded, list[str]]:
    """The pure fold, and all that the checkers find at rest. `dead` are the positions that belong into the dead letters.

    `state` is the folder of the tables, or those of several workers that each have their own.
    """
    log = seen(log)
    fold, kept = folded(log), list(acknowledged)
    checks: tuple[Callable[[], list[str]], ...] = (
        lambda: lost(log, kept),
        lambda: unanswered(log, requests(log)),
        lambda: fold.overgrants,
        lambda: unfounded(log, fold),
        lambda: unnamed(log, fold),
        lambda: tables_wrong(state, fold) if isinstance(state, Path) else workers_tables_wrong(log, state, fold),
        lambda: rows_wrong(log, fold),
        lambda: verdicts_wrong(log, fold),
        lambda: digests_wrong(log, fold),
        lambda: letters_wrong(log, dead or {}),
    )
    return fold, [wrong for check in checks for wrong in check()]
