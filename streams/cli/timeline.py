"""`claimlog timeline`: what happened to one instance, node or request, record by record, with what each changed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from projections.cut import Cut
from projections.ledger import Ledger
from projections.ledger_id import ledger_id_of
from projections.ledger_state import Step
from projections.observed import Observed
from projections.subjects import Subject, subject_of
from projections.timeline import AROUND, Entry, Timeline
from schemas.codec import Unreadable, decode_keyed
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES
from schemas.topics import CLAIMS, FINDINGS, REQUESTS, RESULTS
from streams.cli.exits import Exit
from streams.cli.flags import LIVE, BoundFlag, Live, LogFlag, MomentFlag
from streams.cli.given.moments import past_moment
from streams.cli.given.timegrammar import Moment
from streams.cli.printed import units
from streams.cli.printed.amounts import TITLES, amount_text
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say, teller
from streams.cli.problems import UsageProblem
from streams.cli.reading.answers import out_of_place
from streams.cli.reading.naming import Naming, claimed_by, firsts_naming
from streams.cli.reading.never_named import check_named
from streams.cli.reading.open_log import opened
from streams.cli.reading.records import Range, cut_of, late_places, records_of, said_late
from streams.cli.reading.state import READ_RECORDS, State
from streams.cli.reading.state_at import ends_at, moment_of, state_at
from streams.cli.reading.there import missing, missing_text, not_made
from streams.cli.watching import watchable_at_its_end
from streams.clock import wall_clock_ms
from streams.log.base import Log, Partition, Position

_LIKE = Entry(time_ms=0, topic=CLAIMS, partition=0, offset=0, event="")
SubjectName = Annotated[str, Parameter(help="The id of an instance, or node/NODE, instance/INSTANCE, request/REQUEST.")]


@watchable_at_its_end
def timeline(subject: SubjectName, /, *, since: BoundFlag = None, until: MomentFlag = "now", log: LogFlag = None, show: Live = LIVE) -> int:
    """Every record that made a difference to an instance, a node or a request, in the order of the log, with what it changed.

    Of a request those are told that made one to its instances, on every node, from its first claim on. Amounts are the use of the node: of
    the instance there, or of the whole node. Audits that changed nothing are left out. --since and --until choose what is shown; what came
    before is folded all the same. A subject that no record names exits 2.
    """
    try:
        named = subject_of(subject)
    except ValueError as problem:
        raise UsageProblem(str(problem)) from None
    now_ms = wall_clock_ms()
    with opened(log) as source:
        lacks, absent = missing(source, (CLAIMS, *AROUND)), not_made(source, AROUND)
        end = moment_of(until, now_ms)
        start = None if since is None else past_moment(since, now_ms)
        within = Range(start, end).naming(source, (CLAIMS, *AROUND))
        around = cut_of(source, AROUND, Range(None, within.until))
        about, state = _folded(source, named, end)
        _tell(source, about, Range(None, around))
        late = _lacking(source, about, within)
        elsewhere = _elsewhere(source, about)
        if not about.entries and state.node(about.subject.name if about.subject.kind == "node" else "") is None:
            check_named(source, about.subject, end)
        cut = Cut.of(around.next_offsets | state.cut.next_offsets, ledger_id_of(source))
        within = Range(within.since, None)
        found = [entry for entry in about.ordered() if within.includes(entry.topic, entry.partition, entry.offset, entry.time_ms)]
    items = [entry_item(entry, state.laid.get((entry.partition, entry.offset))) for entry in found]
    show.write(Report(columns=columns(), items=items, cut=cut, like=entry_item(_LIKE)))
    for each in (*absent, *late):
        say(each)
    if lacks:
        say(missing_text(lacks))
    if elsewhere:
        say(f"{about.subject}{elsewhere}")
    if not about.entries:
        say(f"no record made a difference to {about.subject}; `claimlog events --for {about.subject}`")
    return Exit.INCOMPLETE if lacks or late else Exit.DONE


def _folded(log: Log, subject: Subject, end: Moment | None) -> tuple[Timeline, State]:
    """What the ledger says of the subject up to a moment, and its state then, as far as that was needed."""
    tell = teller(sys.stderr)
    ends = ends_at(log, end, tell)
    since_ms = claimed_by(log, ends, subject.name) if subject.kind == "request" else {}
    about = Timeline(subject, since_ms=since_ms)

    def each(ledger: Ledger, observed: Observed, step: Step) -> None:
        del observed
        about.apply(ledger, step)

    firsts = firsts_naming(log, ends, subject.name, whole=since_ms)
    return about, state_at(log, end, each=each, firsts=firsts, views=False, tell=tell)


def _tell(log: Log, about: Timeline, within: Range) -> None:
    """The records around the ledger. Results are many and long; what names nothing of the timeline is not decoded."""
    known = set(about.requests)
    for topics in ((REQUESTS,), tuple(topic for topic in AROUND if topic != REQUESTS)):
        naming = Naming([about.subject.name, *about.requests])
        for record in records_of(log, topics, within, READ_RECORDS):
            if naming.may_name(record):
                event = decode_keyed(record.topic, record.key, record.value)
                if not isinstance(event, Unreadable):
                    about.tell(record.topic, record.partition, record.offset, record.time_ms, event)
            if record.topic == RESULTS:
                about.heard(record.partition, record.time_ms)
    _tell_asked(log, about, {request_id for _, request_id in about.asked} - known, within)


def _lacking(log: Log, about: Timeline, within: Range) -> list[str]:
    """What to say of records that have left and may have been of the timeline: a request has one partition for asking, one for answers."""
    late = late_places(log, [topic for topic in AROUND if topic in log.topics()], within)
    answered = {Partition(entry.topic, entry.partition) for entry in about.entries if entry.topic == RESULTS}
    needed = set[Partition]()
    for request in about.requests if late else ():
        asked = Partition(REQUESTS, log.partition(REQUESTS, request.encode())) if REQUESTS in log.topics() else None
        if asked is not None and (asked.number, request) not in about.asked:
            needed.add(asked)
        if RESULTS in log.topics():
            needed.add(Partition(RESULTS, log.partition(RESULTS, request.encode())))
    return said_late(log, [place for place in late if place.topic == FINDINGS or (place in needed and place not in answered)])


def _elsewhere(log: Log, about: Timeline) -> str:
    """What to say of a request of which a record lies where nobody reads it."""
    if about.subject.kind != "request":
        return ""
    asked = (Position(entry.topic, entry.partition, entry.offset) for entry in about.entries if entry.topic == REQUESTS)
    return next(filter(None, (out_of_place(log, about.subject.name, position) for position in asked)), "")


def _tell_asked(log: Log, about: Timeline, requests: set[str], within: Range) -> None:
    """The other records that ask for these requests: the first one, which is the request, may name nothing of the timeline."""
    keys = {request_id.encode() for request_id in requests}
    for record in records_of(log, (REQUESTS,), within, READ_RECORDS) if keys else ():
        if record.key in keys and isinstance(event := decode_keyed(record.topic, record.key, record.value), PlacementRequested):
            about.asked_at(record.partition, record.offset, event.request_id)


def entry_item(entry: Entry, laid: object = None) -> dict[str, Any]:
    """An entry as an item. `laid` is where a record that was not yet carried into the ledger really stands."""
    return {
        "time_ms": entry.time_ms,
        "position": entry.position if laid is None or entry.topic != "claims" else str(laid),
        "event": entry.event,
        "node_id": entry.node_id,
        "instance_id": entry.instance_id,
        "delta": dict(zip(RESOURCES, entry.deltas, strict=True)),
        "use": dict(zip(RESOURCES, entry.use or (None,) * len(RESOURCES), strict=True)),
        "summary": entry.summary,
    }


def columns() -> list[Column]:
    """The columns of a timeline."""
    return [
        Column(name="time_ms", title="time", shown=units.moment),
        Column(name="position"),
        Column(name="event"),
        Column(name="node_id", title="node", shown=lambda name: name or "-"),
        Column(name="instance_id", title="instance", shown=lambda name: name or "-", wide=True),
        *(_delta(resource) for resource in ("memory_mib", "vcpus", "disk_mib", "pcpus")),
        Column(name="use.memory_mib", shown=_used, title="memory used", right=True),
        Column(name="summary", title="what"),
    ]


def _used(memory_mib: int | None) -> str:
    return "" if memory_mib is None else amount_text("memory_mib", memory_mib)


def _delta(resource: str) -> Column:
    def shown(amount: int | None) -> str:
        return amount_text(resource, amount, signed=True) if amount else ""

    return Column(name=f"delta.{resource}", title=TITLES[resource], shown=shown, right=True, wide=resource == "pcpus")
