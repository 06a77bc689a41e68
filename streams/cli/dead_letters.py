"""`claimlog dead-letters`: messages that count for nothing, why, and their way back once the cause is mended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, Any

from cyclopts import App, Parameter

from schemas.codec import UNREADABLE_KINDS, Unreadable
from schemas.topics import DEAD_LETTERS, TOPICS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, MomentFlag, Show
from streams.cli.given.moments import moment
from streams.cli.printed import units
from streams.cli.printed.output import Answer, Column
from streams.cli.printed.printable import printable, say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.records import Range, cut_of, records_of
from streams.cli.reading.state_at import moment_of
from streams.dead_letters import DeadLetter, read_letter, redrive
from streams.log.base import Log, Message, Record, wall_clock_ms

app = App(name="dead-letters", help="Messages that count for nothing: what they are, why, and their way back.")

BATCH_RECORDS = 1_000
BATCH_BYTES = 4 << 20
"""A letter may have half a MiB: of what is redriven so much is held at once, and appended at once."""
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
    since: MomentFlag = "",
    until: MomentFlag = "now",
    log: LogFlag = None,
    show: Show = SHOW,
) -> int:
    """One line a letter: where its original stands, and why nobody could use it."""
    with opened(log) as source:
        within = Range(moment(since, wall_clock_ms()) if since else None, moment_of(until))
        _check_known(source, "topic", topic, TOPICS)
        _check_known(source, "kind", kind, UNREADABLE_KINDS)
        cut = cut_of(source, (DEAD_LETTERS,), within)
        items = [
            item
            for record in records_of(source, (DEAD_LETTERS,), Range(within.since, cut), BATCH_RECORDS)
            if (item := _item(record)) and topic in {None, item["topic"]} and kind in {None, item["kind"]}
        ]
    show.write(Answer(columns=COLUMNS, items=items, cut=cut, like=_LIKE))
    return 0


@app.command(name="show")
def show_(letter: LetterName, /, *, log: LogFlag = None, show: Show = SHOW) -> int:
    """One letter with the original's bytes: as text where they are UTF-8, else as hexadecimal."""
    with opened(log) as source:
        record = _letter(source, letter)
    item = _item(record)
    read = read_letter(record)
    if isinstance(read, DeadLetter):
        item |= {"headers": {name: _text(value) for name, value in read.headers}, "value": _text(read.value)}
    if show.in_words:
        for name, value in item.items():
            print(printable(f"{name:<10} {units.moment(value) if name == 'time_ms' else value}"))
        return 0
    columns = [Column(name=name) for name in item]
    show.write(Answer(columns=columns, items=[item], cut=None))
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
    with opened(log) as source:
        _check_known(source, "topic", topic, TOPICS)
        letters_there: Iterable[Record]
        if every:
            letters_there = (record for record in _letters(source) if topic in {None, _item(record)["topic"]})
        else:
            letters_there = [_letter(source, name) for name in letters]
        redriven = _Redriven(source, dry_run=dry_run)
        for piece in _pieces(letters_there):
            redriven.add(piece)
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


class _Redriven:
    """What becomes of letters, a piece of them at a time: how many there were, and how many could not be redriven or were copies."""

    def __init__(self, log: Log, *, dry_run: bool) -> None:
        self._log, self._dry_run = log, dry_run
        self._said: set[bytes] = set()
        self.letters = self.refused = self.copies = 0

    def add(self, letters: Sequence[Record]) -> None:
        """Append the originals of these letters at once, but for those that were appended before, and say where each stands now."""
        messages: list[tuple[Record, Message]] = []
        self.letters += len(letters)
        for record in letters:
            message = redrive(record)
            if isinstance(message, Unreadable):
                self.refused += 1
                say(f"{record.position}: cannot be redriven: {message.reason}")
            elif (same := _same(message)) in self._said:
                self.copies += 1  # Redriven before in vain: with each of its letters there would be twice as many after each try.
            else:
                self._said.add(same)
                messages.append((record, message))
        offsets = [] if self._dry_run or not messages else self._log.append([message for _, message in messages])
        for at, (record, message) in enumerate(messages):
            number = self._log.partition(message.topic, message.key) if message.partition is None else message.partition
            where = f"{message.topic}/{number}" + (" (dry run)" if self._dry_run else f"@{offsets[at]}")
            print(f"{record.position} -> {where}")


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


def _check_known(log: Log, field: str, name: str | None, known: Iterable[str]) -> None:
    """Raises UsageProblem for a name that is neither one of ours nor that of any letter: letters may be of other topics and versions."""
    if name is None or name in known:
        return
    found = {_item(record)[field] for record in _letters(log)} - {""}
    if name not in found:
        raise UsageProblem(f"--{field} {name!r}: there is no such {field}; there are: {', '.join(sorted(found.union(known)))}")


def _letters(log: Log) -> Iterator[Record]:
    return records_of(log, (DEAD_LETTERS,), Range(None, None), BATCH_RECORDS)


def _letter(log: Log, name: str) -> Record:
    """The letter at a position, or the newest one of the original at a position. Raises UsageProblem."""
    place = _POSITION.fullmatch(name)
    if place is None:
        raise UsageProblem(f"{name!r} is no position; write one such as dead-letters/0@12 or claims/0@1204")
    number, offset = int(place["partition"]), int(place["offset"])
    if place["topic"] == DEAD_LETTERS:
        if number < log.topics().get(DEAD_LETTERS, 0) and log.start(DEAD_LETTERS, number) <= offset < log.end(DEAD_LETTERS, number):
            return log.read(DEAD_LETTERS, number, offset, 1)[0]
        raise UsageProblem(f"there is no letter at {name}; `claimlog dead-letters list` has them all")
    key = name.encode()
    found = [record for record in _letters(log) if record.key == key]
    if not found:
        raise UsageProblem(f"{name} is not in the dead letters; `claimlog dead-letters list` has them all")
    return found[-1]


def _text(data: bytes) -> str:
    """Bytes as people read them: text if it is UTF-8, else hexadecimal that says so."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
