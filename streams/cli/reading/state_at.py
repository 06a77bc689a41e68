"""The state of the whole ledger at one moment: what every verb that answers with numbers starts from.

    state = state_at(log, moment)           # None: the end of the log
    state.row("n1"), state.findings(), state.cut

An answer includes what hosts have reported although nobody has carried it into the ledger yet (`claimlog run` is not on, or is behind):
such observations are carried in memory, by the same reconciler, and laid on the end of the fold. The cut then names the places in the
observation topics as well, so that the answer can be had again.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TextIO

from projections.companions import Doubles, all_rows, newest, taken
from projections.cut import Cut
from projections.doubles import DoubleClaims
from projections.leaks import Leaks
from projections.ledger import Ledger
from projections.ledger_id import check_cut, ledger_id_of
from projections.observed import Observed
from projections.replay import check_at_hand
from projections.rules import SKEW_MS
from projections.snapshots import encoded, load_newest_with, newest_offset, restored_with
from projections.whole import check_whole
from schemas.partitioner import partition_of
from schemas.topics import CLAIMS, FOLDED
from streams import collector
from streams.cli.given.moments import past_moment
from streams.cli.given.timegrammar import Instant, Moment
from streams.cli.printed import units
from streams.cli.printed.printable import teller
from streams.cli.printed.progress import Progress
from streams.cli.problems import AnswerIncomplete
from streams.cli.reading.apart import Added, Apart, Task, Tell, run_apart
from streams.cli.reading.pending import Each, behind_of, lay_pending, say_pending
from streams.cli.reading.records import at_time
from streams.cli.reading.state import Begun, State, begun_at
from streams.cli.reading.there import check_seen, folded_partitions
from streams.clock import wall_clock_ms
from streams.log.base import Log, LogDamaged
from streams.reconciler import CARRIERS, SOURCES


def moment_of(text: str, now_ms: int | None = None) -> Moment | None:
    """The moment of `--at`; None for `now`, which is the end of the log and no time: clocks differ. Raises as `past_moment`."""
    return None if text.strip() == "now" else past_moment(text, wall_clock_ms() if now_ms is None else now_ms)


def state_at(
    log: Log,
    at: Moment | None = None,
    *,
    each: Each | None = None,
    each_laid: Each | None = None,
    views: bool = True,
    pending: bool = True,
    stderr: TextIO | None = None,
    now_ms: int | None = None,
    apart: Apart | None = None,
    from_the_first: bool = False,
    begun: State | None = None,
    tell: Tell | None = None,
    only: Collection[int] | None = None,
    firsts: Mapping[int, int] | None = None,
) -> State:
    """The state just before the first records at or after `at` (a time), or exactly at a cut; None: at the end of the log.

    `each` sees every record's step, those laid on the end included, `each_laid` those alone. With `pending` False nothing is laid on the
    end. Progress and what an answer includes beyond the ledger are said on `stderr`; `tell`, else `stderr` too, hears of snapshots passed
    over. The fold begins at the newest ones, unless `each` wants every step or what is folded is to be published (`from_the_first`), or
    goes on with an earlier state of the same log, `begun`; who asks for claims and settings only needs no `views`. With `apart` a long fold
    is shared by processes; the state is the same.
    Without `views`, since doubles span partitions, some of these may do: with `only` (and nothing `pending`) no others are there; with
    `firsts`, from which offset on `each` wants the steps of each, those are that have such steps, folded from a snapshot in front of them.
    Raises TopicMismatch for a log without ledger, WrongCut for a cut of another log, HistoryMissing for one that this log does not reach
    and for a ledger that lacks a partition, AnswerIncomplete for one of another kind of answer and where observations are hidden,
    OffsetOutOfRange for history that is not at hand, and the fold's own errors.
    """
    stderr = sys.stderr if stderr is None else stderr
    tell = tell or teller(stderr)
    check_seen(log, *(SOURCES if pending else ()))
    # In this order: what is carried up to here stands in `claims` before their ends are read.
    there = log.topics()
    carried = {topic: log.committed(CARRIERS, topic) for topic in SOURCES if topic in there}
    sources = {topic: _ends(log, topic, at, tell) for topic in SOURCES}
    every, behind = ends_at(log, at, tell, carried), behind_of(carried if at is None else {}, sources)
    ends = {number: end for number, end in every.items() if only is None or number in only}
    if firsts is not None:
        ends = {number: end for number, end in ends.items() if firsts[number] < end or number in behind}
    needs_not_all = (each is None or firsts is not None) and CLAIMS in there
    from_snapshots = needs_not_all and not from_the_first
    begins = {} if begun is None else begun_at(begun)
    if apart is not None and needs_not_all and not begins:
        begins = _folded_apart(log, ends, apart, views=views, from_snapshots=from_snapshots, stderr=stderr, tell=tell)
    with Progress("load", sum(ends.values()), stderr) as progress:
        for number, end in ends.items():
            if number not in begins:
                most = end if firsts is None else min(end, firsts[number])
                begins[number] = _begun(log, number, len(every), most, views=views, from_snapshots=from_snapshots, tell=tell)
                progress.add(begins[number].ledger.next_offset)
    state = _state(begins, ends, len(every), has_views=views, doubles=None if begun is None else begun.doubles)
    total = sum(end - state.ledgers[number].next_offset for number, end in ends.items())
    with Progress("fold", total, stderr) as progress, collector.calmed():
        for number, end in ends.items():
            if each is None:
                state.fold(log, number, end, progress.add, keeps_digest=from_the_first)
                continue
            for step in state.follow(log, number, end):
                progress.add()
                each(state.ledgers[number], state.observed[number], step)
    if views:
        state.doubles.read_to_the_ends(max((ledger.time_ms for ledger in state.ledgers.values()), default=0))
    places = {(CLAIMS, number): end for number, end in (every | state.ends).items()}
    if pending:
        lay_pending(log, state, carried if at is None else {}, behind, each or each_laid, at)
        if state.pending:
            places |= {(topic, number): end for topic, found in sources.items() for number, end in found.items()}
        say_pending(state, stderr)
    state.as_of_ms = _as_of_ms(state, at, now_ms)
    state.cut = Cut.of(places, ledger_id_of(log))
    return state


def ends_at(log: Log, at: Moment | None, tell: Tell, carried: Mapping[str, Mapping[int, int]] | None = None) -> dict[int, int]:
    """Where each partition of `claims` ends at that moment. Raises as `state_at`, but for what folding raises."""
    partitions = ledger_partitions(log, carried)
    if isinstance(at, Cut):
        check_cut(log, at, FOLDED)  # What else it names is read by other answers, and a copy of the ledger may not have it.
    ends = _ends(log, CLAIMS, at, tell)
    return {number: ends.get(number, 0) for number in range(partitions)}


def _begun(log: Log, number: int, partitions: int, end: int, *, views: bool, from_snapshots: bool, tell: Tell) -> Begun:
    """Where the fold of a partition begins: at its newest snapshot not above `end` that fits this log and has what is asked, or empty."""
    found = load_newest_with(log, number, at_most=end, tell=tell) if from_snapshots else None
    if found is None or (views and not found[1]):
        return Begun(Ledger(number, partitions), Observed(number), Leaks(number), None)
    return Begun(found[0], *taken(number, found[1]))


def _state(
    begun: Mapping[int, Begun], ends: Mapping[int, int], partitions: int, *, has_views: bool, doubles: DoubleClaims | None = None
) -> State:
    """The state that begins there; of the doubles, which span partitions, the newest count, unless those of an earlier state go on."""
    ledgers = {number: each.ledger for number, each in sorted(begun.items())}
    known = newest([each.doubles for each in begun.values() if each.doubles is not None])
    return State(
        partitions=partitions,
        ledgers=ledgers,
        observed={number: each.observed for number, each in sorted(begun.items())},
        leaks={number: each.leaks for number, each in sorted(begun.items())},
        doubles=DoubleClaims(ledgers, known.open, known.words) if doubles is None else doubles,
        ends=dict(ends),
        as_of_ms=0,
        has_views=has_views,
    )


def _folded_apart(
    log: Log, ends: Mapping[int, int], apart: Apart, *, views: bool, from_snapshots: bool, stderr: TextIO, tell: Tell
) -> dict[int, Begun]:
    """Partitions folded to their ends by processes of their own; none where that does not pay.

    Doubles span partitions, and what is said of one depends on the moment it is looked at. So partitions that hold an instance twice
    are left to be folded here, in their order, as if none had been folded elsewhere; in the others there is nothing to look at.
    """
    tasks = []
    for number, end in ends.items():
        snapshot = newest_offset(log, number) if apart.jobs > 1 and from_snapshots else 0
        tasks.append(Task(number, end, end - snapshot if snapshot <= end else end, (len(ends), views, from_snapshots)))
    if not apart.pays(tasks):
        return {}
    with Progress("fold", sum(task.records for task in tasks), stderr) as progress:
        done = run_apart(apart, log, tasks, _encoded_state, added=progress.add, tell=tell)
    begun = {}
    for number, (data, doubles) in enumerate(done):
        ledger, rows = restored_with(data)
        begun[number] = Begun(ledger, *taken(number, rows)[:2], doubles)
    if views:
        homes = DoubleClaims({number: each.ledger for number, each in begun.items()}).shared()
        for number in {partition_of(node_id.encode(), len(ends)) for nodes in homes.values() for node_id in nodes}:
            begun[number] = _begun(log, number, len(ends), ends[number], views=views, from_snapshots=from_snapshots, tell=tell)
        for each in begun.values():
            if each.doubles is not None:
                each.doubles.open = {name: finding for name, finding in each.doubles.open.items() if name in homes}
    return begun


def _encoded_state(log: Log, task: Task, added: Added, tell: Tell) -> tuple[bytes, Doubles | None]:
    """In another process: a partition folded to its end, as bytes, and the doubles of the snapshot that it began at."""
    partitions, views, from_snapshots = task.options
    begun = _begun(log, task.partition, partitions, task.end, views=views, from_snapshots=from_snapshots, tell=tell)
    none = DoubleClaims({task.partition: begun.ledger})
    state = _state({task.partition: begun}, {task.partition: task.end}, partitions, has_views=views, doubles=none)
    state.fold(log, task.partition, task.end, added, keeps_digest=not from_snapshots)
    rows = all_rows(begun.observed, begun.leaks, Doubles()) if views else ()
    return encoded(begun.ledger, rows), begun.doubles


def ledger_partitions(log: Log, carried: Mapping[str, Mapping[int, int]] | None = None) -> int:
    """How many partitions the ledger has. Raises TopicMismatch for a log with neither `claims` nor observations, else as `check_whole`."""
    known = folded_partitions(log.topics())
    # A file of JSON lines may lack the last partitions, so what the ledger says of itself counts too.
    return max(check_whole(log, carried), *known)


def _ends(log: Log, topic: str, at: Moment | None, tell: Tell) -> dict[int, int]:
    """The next offset of each partition at a moment; a cut has none of a topic that its answer did not read."""
    count = log.topics().get(topic)
    if count is None:
        return {}
    if at is None:
        return dict(log.ends(topic))
    if isinstance(at, Instant):
        found = {number: at_time(log, topic, number, at.time_ms) for number in range(count)}
        if topic == CLAIMS:
            check_at_hand(log, found, at.time_ms, tell)
            tell_if_before_all(found, at, tell)
            _tell_if_ahead(log, found, tell)
        return found
    ends = {place.partition: place.next_offset for place in at.places if place.topic == topic}
    if topic == CLAIMS and not ends:
        raise AnswerIncomplete(f"the cut ({at.described() or 'empty'}) does not include {CLAIMS}: it is of another kind of answer")
    return ends


def tell_if_before_all(ends: Mapping[int, int], at: Moment | None, tell: Tell) -> None:
    """Say that a time lies before every record: nobody who meant the past hour wants an answer about none, by a clock that is wrong."""
    if isinstance(at, Instant) and not any(ends.values()):
        tell(f"{units.moment(at.time_ms)} lies before the first record of the ledger: then there was nothing")


def _tell_if_ahead(log: Log, ends: Mapping[int, int], tell: Tell) -> None:
    """Say that records are stamped later than it is here: a time is in other places of the topics then than whoever asks believes."""
    for number, found in ends.items():
        if found < (end := log.end(CLAIMS, number)):
            with suppress(LogDamaged):  # What the answer does not need may be damaged.
                newest_ms = log.read(CLAIMS, number, end - 1, 1)[0].time_ms
                if newest_ms > wall_clock_ms() + SKEW_MS:
                    wrong = "a clock is wrong, there or here, so times may mean other records than you believe; a cut is exact"
                    tell(f"{CLAIMS}/{number} goes on to {units.moment(newest_ms)}, which is still to come: {wrong}")


def _as_of_ms(state: State, at: Moment | None, now_ms: int | None) -> int:
    """What ages count to: now, the time asked for, or a cut's newest record, be it one that is laid on the end."""
    if isinstance(at, Instant):
        return at.time_ms
    if at is not None:
        return max((ledger.time_ms for ledger in state.ledgers.values()), default=0)
    return wall_clock_ms() if now_ms is None else now_ms
