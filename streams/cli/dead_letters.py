"""`claimlog dead-letters`: messages that count for nothing, why, and their way back once the cause is mended."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import App, Parameter

from schemas.codec import UNREADABLE_KINDS, Unreadable
from schemas.topics import ANSWERED, DEAD_LETTERS, TOPICS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, BoundFlag, LogFlag, MomentFlag, Show
from streams.cli.given.moments import past_moment
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import printable, say
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.open_log import open_log, opened
from streams.cli.reading.records import Range, cut_of, records_of
from streams.cli.reading.state_at import moment_of
from streams.cli.reading.there import check_there
from streams.cli.writing import check_writable
from streams.clock import wall_clock_ms
from streams.dead_letters import DeadLetter, read_letter, redrive
from streams.log.base import Log, Message, Partition, Record, TopicMismatch, is_stand_in, may_write
from streams.log.partitioner import route
from streams.log.reading import places
from streams.topology import DERIVED_TOPICS

if TYPE_CHECKING:
    from streams.log.kafka_send import Batch

app = App(name="dead-letters", help="Messages that count for nothing: what they are, why, and their way back.")

BATCH_RECORDS = 1_000
WHOLE = Range(None, None)
BATCH_BYTES = 4 << 20
"""A letter may have half a MiB: of what is redriven so much is held at once, and appended at once."""
# Longest sleep in one call; acknowledgements end it at once.
WAIT_SECONDS = 0.5
_POSITION = re.compile(r"(?P<topic>[\w.-]+)/(?P<partition>\d{1,9})@(?P<offset>\d{1,18})", re.ASCII)

LetterName = Annotated[str, Parameter(help="Where the letter or its original stands: dead-letters/0@12, or claims/0@1204.")]

COLUMNS = [
    Column(name="letter"),
    Column(name="time_ms", title="time", shown=units.moment),
    Column(name="original"),
    Column(name="kind"),
    Column(name="size_bytes", title="bytes", shown=units.count, right=True),
    Column(name="reason"),
    Column(name="key", wide=True),
    Column(name="cut_short", wide=True),
]
_LIKE = dict.fromkeys(("letter", "time_ms", "original", "topic", "kind", "size_bytes", "reason", "key", "cut_short"))


@app.command(name="list")
def list_(
    *,
    topic: Annotated[str | None, Parameter(help="Only originals of this topic.", show_default=False)] = None,
    kind: Annotated[str | None, Parameter(help="Only of this kind, such as unreadable or wrong-partition.", show_default=False)] = None,
    since: BoundFlag = None,
    until: MomentFlag = "now",
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """One line a letter: where its original stands, and why nobody could use it."""
    with opened(log) as source:
        check_there(source, DEAD_LETTERS)
        within = Range(None if since is None else past_moment(since, wall_clock_ms()), moment_of(until))
        _check_known(source, "topic", topic, TOPICS)
        _check_known(source, "kind", kind, UNREADABLE_KINDS)
        within = within.naming(source, (DEAD_LETTERS,))
        cut = cut_of(source, (DEAD_LETTERS,), within)
        items = [
            item
            for record in _letters(source, Range(within.since, cut))
            if (item := _item(record)) and topic in {None, item["topic"]} and kind in {None, item["kind"]}
        ]
        left = _left(source)
    show.write(Report(columns=COLUMNS, items=items, cut=cut, like=_LIKE))
    if left:
        say(f"of the letters {left}")
    return Exit.INCOMPLETE if left else Exit.DONE


@app.command(name="show")
def show_(letter: LetterName, /, *, log: LogFlag = None, show: Show = SHOW) -> int:
    """One letter with the original's bytes: as text where they are UTF-8, else as hexadecimal."""
    with opened(log) as source:
        check_there(source, DEAD_LETTERS)
        record = _letter(source, letter)
    item = _item(record)
    read = read_letter(record)
    if isinstance(read, DeadLetter):
        item |= {"headers": _headers(read), "value": _text(read.value)}
    if show.in_words:
        for name, value in item.items():
            print(printable(f"{name:<10} {units.moment(value) if name == 'time_ms' else value}"))
        return 0
    columns = [Column(name=name) for name in item]
    show.write(Report(columns=columns, items=[item], cut=None))
    return 0


@app.command(name="redrive")
def redrive_(
    *letters: Annotated[str, Parameter(help="Letters or originals by position; none with --all.", show_default=False)],
    every: Annotated[bool, Parameter(name="--all", negative=(), help="All of them, oldest first.")] = False,
    topic: Annotated[str | None, Parameter(help="With --all: only originals of this topic.", show_default=False)] = None,
    dry_run: Annotated[bool, Parameter(negative=(), help="Say what would be appended and append nothing.")] = False,
    log: LogFlag = None,
) -> int:
    """Append originals to their topics again, byte for byte, once what made them unusable is mended.

    What is still unusable becomes a dead letter again, and what counted meanwhile is known for a copy; letters of one message are redriven
    once. Exits 1 if one cannot be redriven.
    """
    if bool(letters) == every:
        raise UsageProblem("name the letters to redrive, or pass --all")
    if topic is not None and not every:
        raise UsageProblem(f"--topic {topic}: it goes with --all; letters that are named are redriven whatever their topic")
    # Dead letters are never archived, and only the log itself says who may write what.
    with open_log(log, os.environ, sys.stdin.buffer) as source:
        if not dry_run:
            check_writable(source)
        check_there(source, DEAD_LETTERS)
        _check_known(source, "topic", topic, TOPICS)
        letters_there: Iterable[Record]
        if every:
            letters_there = (record for record in _letters(source) if topic in {None, _item(record)["topic"]})
        else:
            letters_there = [_letter(source, name) for name in letters]
        redriven = _Redriven(source, dry_run=dry_run)
        try:
            for piece in _pieces(letters_there):
                redriven.add(piece)
        finally:
            redriven.say_forbidden()
        if every and (left := _left(source)):
            say(f"of the letters {left}")
    if not redriven.letters:
        say("there is no letter to redrive")
    if redriven.copies:
        say(f"{units.counted(redriven.copies, 'letter')} more of the same messages")
    return Exit.ERROR if redriven.refused else Exit.DONE


def _pieces(letters: Iterable[Record]) -> Iterator[list[Record]]:
    """The letters in pieces, each of which is appended at once."""
    piece: list[Record] = []
    size = 0
    for record in letters:
        piece.append(record)
        size += len(record.value)
        if len(piece) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


class _Due(NamedTuple):
    """A letter that can be redriven, and where its original goes."""

    letter: Record
    message: Message
    place: Partition


class _Redriven:
    """What becomes of letters, a piece of them at a time: how many there were, and how many could not be redriven or were copies."""

    def __init__(self, log: Log, *, dry_run: bool) -> None:
        self._log, self._dry_run = log, dry_run
        self._said: set[bytes] = set()
        self._may_write: dict[str, bool] = {}
        self._forbidden: Counter[str] = Counter()
        self.letters = self.refused = self.copies = 0

    def add(self, letters: Sequence[Record]) -> None:
        """Append the originals of these letters at once, but for those that were appended before, and say where each stands now.

        Raises what the log raises, and then has said which of them are known to stand there.
        """
        pending: list[_Due] = []
        there = self._log.topics()
        self.letters += len(letters)
        for record in letters:
            due = self._due(record, there)
            if isinstance(due, str):
                self.refused += 1
                say(f"{record.position}: cannot be redriven: {due}")
            elif (same := _same(due.message)) in self._said:
                self.copies += 1  # Redriven before in vain: with each of its letters there would be twice as many after each try.
            else:
                self._said.add(same)
                pending.append(due)
        if self._dry_run:
            for due in pending:
                print(f"{due.letter.position} -> {due.place} (dry run)")
        elif pending:
            self._append(pending)

    def say_forbidden(self) -> None:
        """What was left out because this user may not write it, and what to do about it."""
        for topic, count in sorted(self._forbidden.items()):
            if topic in {*DERIVED_TOPICS, ANSWERED}:
                what = "nothing is missing: what stands there is derived, and claimlog writes it by itself"
            else:
                what = f"redrive what is left as a user that may: name it, or pass --all --topic {topic}"
            left = f"{units.counted(count, 'letter')} not redriven, as this user may not write it"
            say(f"{topic}: {left}; {what}; who may do what to which topic: docs/kafka.md")

    def _due(self, record: Record, there: Mapping[str, int]) -> _Due | str:
        """A letter's original and its place, or why it cannot be redriven: what the log would refuse takes others of its piece along."""
        message = redrive(record)
        if isinstance(message, Unreadable):
            return message.reason
        try:
            (number,) = route([message], there)
        except TopicMismatch as problem:
            return str(problem)
        if not self._is_allowed(message.topic):
            self._forbidden[message.topic] += 1
            return f"this user may not write {message.topic}"
        return _Due(record, message, Partition(message.topic, number))

    def _is_allowed(self, topic: str) -> bool:
        if topic not in self._may_write:
            self._may_write[topic] = may_write(self._log, topic)
        return self._may_write[topic]

    def _append(self, pending: Sequence[_Due]) -> None:
        """Append all, and say where each stands: also where the log fails halfway, as far as it has acknowledged them."""
        begin: Callable[[Sequence[Message]], Batch] | None = getattr(self._log, "begin", None)
        messages = [due.message for due in pending]
        offsets: Sequence[int | None] = [None] * len(pending)
        try:
            if begin is None:
                offsets = self._log.append(messages)
            else:
                batch = begin(messages)
                try:
                    while not batch.landed(WAIT_SECONDS):
                        pass
                finally:
                    offsets = batch.acknowledged()  # Also when it is given up.
        finally:
            _say_landed(pending, offsets)


def _say_landed(pending: Sequence[_Due], offsets: Sequence[int | None]) -> None:
    """One line for each original that the log has acknowledged, out at once, and what to do about the others."""
    unheard: list[_Due] = []
    for due, offset in zip(pending, offsets, strict=True):
        if offset is None:
            unheard.append(due)
        else:
            # Without an offset: its acknowledgement was lost with a leader, and one behind it was acknowledged.
            print(f"{due.letter.position} -> {due.place}" + (f"@{offset}" if offset >= 0 else " (its offset was not told)"))
    sys.stdout.flush()
    if unheard:
        which = f"{units.counted(len(unheard), 'letter')} without a line here, from {unheard[0].letter.position} on"
        say(f"{which}: not acknowledged, each may stand in the log or not; redrive these and what follows again, as copies do no harm")


def _same(message: Message) -> bytes:
    """What the letters of one message have in common, short enough to be kept of each."""
    number = "" if message.partition is None else str(message.partition)
    hashed = blake2b(f"{message.topic}/{number}/{len(message.key)}/".encode(), digest_size=16)
    hashed.update(message.key)
    hashed.update(message.value)
    return hashed.digest()


def _item(record: Record) -> dict[str, Any]:
    """A letter as an item; what is no letter says so itself."""
    letter = read_letter(record)
    said: dict[str, Any] = {"letter": str(record.position), "time_ms": record.time_ms}
    if isinstance(letter, Unreadable):
        said |= {"original": "", "topic": "", "kind": letter.kind, "size_bytes": len(record.value), "reason": letter.reason}
        return said | {"key": _text(record.key), "cut_short": []}
    said |= {"original": letter.position, "topic": letter.topic, "kind": letter.kind, "size_bytes": letter.size_bytes}
    return said | {"reason": letter.reason, "key": _text(letter.key), "cut_short": list(letter.cut_short)}


def _headers(letter: DeadLetter) -> dict[str, str | list[str]]:
    """The original's headers by name; of several with one name the texts of all."""
    found: dict[str, list[str]] = {}
    for name, value in letter.headers:
        found.setdefault(name, []).append(_text(value))
    return {name: texts[0] if len(texts) == 1 else texts for name, texts in found.items()}


def _check_known(log: Log, field: str, name: str | None, known: Iterable[str]) -> None:
    """Raises UsageProblem for a name that is neither one of ours nor that of any letter: letters may be of other topics and versions."""
    if name is None or name in known:
        return
    found = {_item(record)[field] for record in _letters(log)} - {""}
    if name not in found:
        raise UsageProblem(f"--{field} {name!r}: there is no such {field}; there are: {', '.join(sorted(found.union(known)))}")


def _letters(log: Log, within: Range = WHOLE) -> Iterator[Record]:
    """Without the marks that transactions of somebody else's leave there."""
    return (record for record in records_of(log, (DEAD_LETTERS,), within, BATCH_RECORDS) if not is_stand_in(record))


def _left(log: Log) -> str:
    """Which letters have left the log; nothing if none has."""
    firsts = [f"{place}@{start}" for place in places(log, DEAD_LETTERS) if (start := log.start(*place))]
    return f"those below {', '.join(firsts)} have left the log: a retention is set, or somebody deleted them" if firsts else ""


def _letter(log: Log, name: str) -> Record:
    """The letter at a position, or the newest one of the original at a position. Raises UsageProblem, AnswerIncomplete."""
    place = _POSITION.fullmatch(name)
    if place is None:
        raise UsageProblem(f"{name!r} is no position; write one such as dead-letters/0@12 or claims/0@1204")
    number, offset = int(place["partition"]), int(place["offset"])
    if place["topic"] == DEAD_LETTERS:
        if number < log.topics().get(DEAD_LETTERS, 0) and log.start(DEAD_LETTERS, number) <= offset < log.end(DEAD_LETTERS, number):
            return log.read(DEAD_LETTERS, number, offset, 1)[0]
        if number < log.topics().get(DEAD_LETTERS, 0) and offset < log.start(DEAD_LETTERS, number):
            raise AnswerIncomplete(f"the letter at {name} is not at hand: {_left(log)}")
        raise UsageProblem(f"there is no letter at {name}; `claimlog dead-letters list` has them all")
    key = name.encode()
    found = [record for record in _letters(log) if record.key == key]
    if not found and (left := _left(log)):
        raise AnswerIncomplete(f"{name} is not in the dead letters at hand: {left}")
    if not found:
        raise UsageProblem(f"{name} is not in the dead letters; `claimlog dead-letters list` has them all")
    return found[-1]


def _text(data: bytes) -> str:
    """Bytes as people read them: text if it is UTF-8, else hexadecimal that says so."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
