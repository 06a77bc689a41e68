"""`claimlog events`: the records themselves, of every topic, in the order of their append times; also as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from projections.subjects import Subject, mentions, node_of, subject_of
from projections.wording import record_text
from schemas.codec import Unreadable, decode_keyed, event_type, known_types
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, FINDINGS, LIFECYCLE, REQUESTS, RESULTS, TOPICS, VERDICTS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, BoundFlag, LogFlag, Show
from streams.cli.given.moments import past_moment
from streams.cli.given.units_in import not_empty
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report, check_asked, write_on
from streams.cli.printed.printable import say
from streams.cli.printed.progress import Progress
from streams.cli.printed.stdout import check_heard
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.naming import Naming
from streams.cli.reading.never_named import check_named
from streams.cli.reading.open_log import opened
from streams.cli.reading.records import Range, begins_late, count_of, cut_of, records_of
from streams.cli.reading.there import missing, missing_text, not_made
from streams.cli.watching import check_grows
from streams.clock import wall_clock_ms
from streams.dead_letters import read_letter
from streams.log.base import Log, LogUnreachable, Partition, Record, is_stand_in
from streams.log.reading import READ_RECORDS, by_time, places

TOPICS_SHOWN = (REQUESTS, AUDITS, LIFECYCLE, CLAIMS, VERDICTS, FINDINGS, RESULTS, DEAD_LETTERS)
"""Topics of facts; rows, snapshots and digests are shown when asked for by `--topic`."""
OTHER_TYPES = ("unreadable", "dead-letter")
"""What `--type` calls records that are none of ours to decode."""
WAIT_SECONDS = 1.0
MIXED = ("record",)
"""Every type of record has its own parts."""
COLUMNS = [
    Column(name="time_ms", title="time", shown=units.moment),
    Column(name="position"),
    Column(name="type"),
    Column(name="key"),
    Column(name="node_id", title="node", shown=lambda name: name or "-", wide=True),
    Column(name="summary", title="what"),
]
_LIKE = dict.fromkeys(("time_ms", "position", "type", "key", "node_id", "summary", "record"))

Chosen = Callable[[Record], bool]

AboutFlag = Annotated[
    str, Parameter(name="--for", converter=not_empty, show_default=False, help="Only what names node/N, instance/I, request/R.")
]
TypeFlag = Annotated[
    tuple[str, ...], Parameter(name="--type", negative=(), show_default=False, help="Only of this type: claim-requested, 'leak-*' ...")
]
TopicFlag = Annotated[
    tuple[str, ...], Parameter(name="--topic", negative=(), show_default=False, help=f"Only of this topic: {', '.join(TOPICS)}.")
]
WatchFlag = Annotated[bool, Parameter(name=["--watch", "-w"], negative=(), help="Go on and print records as they come, until interrupted.")]


def events(
    *,
    about: AboutFlag = "",
    kind: TypeFlag = (),
    topic: TopicFlag = (),
    since: BoundFlag = None,
    until: BoundFlag = None,
    watch: WatchFlag = False,
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """The records of the log, oldest first: when, where, what. With -w also those to come, and without --since only these.

    Rows, snapshots, digests and filed answers, which follow from the others, are shown where --topic or --type asks for them.
    A subject that no record of the log names exits 2, unless one that does may still come (-w). Where some of what is asked for has left
    the log, or may have, the rest is printed, and the exit code is 6.
    """
    for name in topic:
        if name not in TOPICS:
            raise UsageProblem(f"there is no topic {name!r}; there are: {', '.join(TOPICS)}")
    if watch and until is not None:
        raise UsageProblem("--until and --watch do not go together: a watch has no end")
    if watch and show.output == "json":
        raise UsageProblem("-o json is one document, and a watch has no end: -o jsonl prints an object a line, as records come")
    if watch and show.sort is not None:
        raise UsageProblem("--sort and --watch do not go together: records are printed as they come")
    if watch:
        check_grows(log)
    now_ms = wall_clock_ms()
    within = Range(None if since is None else past_moment(since, now_ms), None if until is None else past_moment(until, now_ms))
    subject = _subject(about)
    _check_types(kind)
    chosen = chooser(subject, kind)
    # Asked for by its type a record is looked for wherever it may stand.
    topics = tuple(dict.fromkeys(topic)) or (tuple(name for name in TOPICS if _may_have(name, kind)) if kind else TOPICS_SHOWN)
    with opened(log) as source:
        if watch:
            within.check(source, topics)
            _warn(source, topics, kind, within)
            _watch(source, topics, within.since, chosen, show)
        else:
            lacks = missing(source, topics)
            if topic and lacks:
                raise AnswerIncomplete(missing_text(lacks))
            within = within.naming(source, topics)
            cut = cut_of(source, topics, within)
            having = tuple([name for name in topics if _may_have(name, kind)])
            found = _found(source, having, Range(within.since, cut), chosen)
            first = list(islice(found, 1))
            if subject is not None and not first:
                check_named(source, subject)
            items = chain(first, found)
            show.write(Report(columns=COLUMNS, items=items, cut=cut, mixed=MIXED, like=_LIKE))
            said = [*begins_late(source, having, within), *([missing_text(lacks)] if lacks else ())]
            for each in (*not_made(source, having), *said):
                say(each)
            return Exit.INCOMPLETE if said else Exit.DONE
    return Exit.DONE


def _found(log: Log, topics: tuple[str, ...], within: Range, chosen: Chosen) -> Iterator[dict[str, Any]]:
    """The items of the records asked for. How far the search has come is said on stderr while nothing is found."""
    with Progress("events", count_of(log, topics, within)) as progress:
        for record in records_of(log, topics, within, READ_RECORDS):
            progress.add()
            if chosen(record):
                progress.hide()
                yield record_item(record)


def chooser(subject: Subject | None, types: tuple[str, ...]) -> Chosen:
    """Whether a record is asked for, by subject and type; an unreadable one has the type `unreadable` and is about nothing."""
    naming = None if subject is None else Naming([subject.name])

    def chosen(record: Record) -> bool:
        if naming is not None and not naming.may_name(record):
            return False
        event = decoded(record)
        if types and not any(fnmatchcase(type_of(record, event), pattern) for pattern in types):
            return False
        return subject is None or (not isinstance(event, Unreadable) and mentions(event, subject))

    return chosen


def decoded(record: Record) -> Any:
    """What a record says, or `Unreadable`; a dead letter is what its headers say."""
    if record.topic == DEAD_LETTERS:
        return read_letter(record)
    if is_stand_in(record):
        return Unreadable("not-a-record", "no record has this offset: the mark of a transaction takes one")
    if TOPICS[record.topic].records is None:
        return Unreadable("not-a-record", f"{record.topic} has no records of its own")
    return decode_keyed(record.topic, record.key, record.value)


def type_of(record: Record, event: Any) -> str:
    """The type as `--type` and the table name it."""
    if isinstance(event, Unreadable):
        return "unreadable"
    return "dead-letter" if record.topic == DEAD_LETTERS else event_type(event)


def record_item(record: Record) -> dict[str, Any]:
    """A record as an item: where it stands, what it is and says; `record` is its JSON, None where it has none."""
    event = decoded(record)
    if isinstance(event, Unreadable):
        summary, value = event.reason, None
    elif record.topic == DEAD_LETTERS:
        summary, value = f"{event.position} {event.kind}: {event.reason}", None
    else:
        summary, value = record_text(event), msgspec.to_builtins(event)
    return {
        "time_ms": record.time_ms,
        "position": str(record.position),
        "type": type_of(record, event),
        "key": record.key.decode(errors="replace"),
        "node_id": "" if value is None else node_of(event),
        "summary": summary,
        "record": value,
    }


def _may_have(topic: str, patterns: tuple[str, ...]) -> bool:
    """Whether a topic may have records of a type that one of the patterns fits; without a pattern all are asked for."""
    others = OTHER_TYPES if topic == DEAD_LETTERS else ("unreadable",)
    types = (*others, *(known_types(topic) if TOPICS[topic].records is not None else ()))
    return not patterns or any(fnmatchcase(name, pattern) for name in types for pattern in patterns)


def _check_types(patterns: tuple[str, ...]) -> None:
    """Raises UsageProblem for a pattern that no type fits."""
    known = sorted({*OTHER_TYPES, *(name for topic in TOPICS if TOPICS[topic].records is not None for name in known_types(topic))})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise UsageProblem(f"--type {pattern!r}: there is no such type; there are: {', '.join(known)}")


def _subject(text: str) -> Subject | None:
    if not text:
        return None
    try:
        return subject_of(text)
    except ValueError as problem:
        raise UsageProblem(f"--for {text}: {problem}") from None


def _warn(log: Log, topics: tuple[str, ...], types: tuple[str, ...], within: Range) -> None:
    """Say what a watch does not have of what it is asked for: what has left the log, and topics, which may still be made."""
    there = log.topics()
    if lacks := missing(log, topics) if CLAIMS in there else []:
        say(f"{missing_text(lacks)}; what comes there is waited for")
    elif not any(name in there for name in topics):
        say("this log has none of these topics yet; they are waited for")
    if within.since is not None:
        for each in begins_late(log, tuple([name for name in topics if _may_have(name, types)]), within):
            say(each)


def _watch(log: Log, topics: tuple[str, ...], since: Any, chosen: Chosen, show: Show) -> None:
    """Print records as they come, a batch at a time; ends by an interrupt (exit 130), or once nobody reads any more."""
    style = show.style(sys.stdout)
    check_asked(Report(columns=COLUMNS, items=(), mixed=MIXED, like=_LIKE), style)
    headers = style.headers
    for batch in coming(log, topics, since):
        items = [record_item(record) for record in batch if chosen(record)]
        if items:
            write_on(
                Report(columns=COLUMNS, items=items, mixed=MIXED), msgspec.structs.replace(style, headers=headers), sys.stdout, sys.stderr
            )
            sys.stdout.flush()
            headers = False
        check_heard(sys.stdout)


def coming(log: Log, topics: tuple[str, ...], since: Any) -> Iterator[list[Record]]:
    """Batches of records from `since` on (None: from the end), without an end; an empty one after each wait.

    What is there already comes in the order of all partitions together, what comes later as it does. A log that goes out of reach meanwhile
    is said once, and waited for.
    """
    within = Range(since, None).naming(log, topics)
    offsets = {place: log.end(*place) if since is None else within.starts(log, *place) for place in places(log, *topics)}
    is_away = False
    if since is not None:
        try:
            there = records_of(log, topics, Range(within.since, cut_of(log, topics, within)), READ_RECORDS)
            while batch := list(islice(there, READ_RECORDS)):
                offsets |= {Partition(record.topic, record.partition): record.offset + 1 for record in batch}
                yield batch
        except LogUnreachable as problem:
            say(f"claimlog: {problem}; it is waited for")
            is_away = True
    while True:
        found: list[Sequence[Record]] = []
        try:
            for place, start in offsets.items():
                records = log.read(*place, start, READ_RECORDS)
                if records:
                    found.append(records)
                    offsets[place] = records[-1].offset + 1
            if not found:
                log.wait(offsets, WAIT_SECONDS)
                # Topics that are made while somebody waits for them (`topics apply`) are read from their first record.
                offsets = {place: log.start(*place) for place in places(log, *topics)} | offsets
            is_away = False
        except LogUnreachable as problem:
            if not is_away:
                say(f"claimlog: {problem}; it is waited for")
            is_away = True
            time.sleep(WAIT_SECONDS)
        yield by_time(found)
