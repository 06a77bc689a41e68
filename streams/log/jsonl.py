"""A log as lines of JSON: what `kcat -J` and `rpk topic consume -f json` print, read into memory; and the same lines written.

One record a line, in kcat's form: `{"topic", "partition", "offset", "tstype", "ts", "headers": [name, value, ...], "key", "payload"}`.
rpk's form is read as well: `timestamp`, `value` and `headers` of `{"key", "value"}`, on one line or, as it prints them unless it is told
otherwise, indented over several. Topics that all carry one ledger's prefix (`fleet.claims`) are read without it.

JSON holds text only. What is not UTF-8 is written by this module as `payload_base64` or `key_base64` beside an empty `payload` or `key`,
and a header's value as `{"base64": ...}`. A first line `{"claimlog": 1, "ledger_id", "topics": [...], "ends": {...}}` tells how many
partitions topics have and where each ends, so that a copy that was cut short is noticed; without it a topic has what was seen.
"""

from __future__ import annotations

import base64
import binascii
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Struct

from schemas.topics import TOPICS
from schemas.units import AMOUNT_MAX
from streams.log.base import Headers, LogCutShort, LogDamaged, Record, TopicSpec
from streams.log.memory import MemoryLog

PARTITIONS_MAX = 100_000
"""More than a whole cluster of brokers has; each takes some memory, and no file is worth all of it."""
_Offset = Annotated[int, Meta(ge=0, lt=AMOUNT_MAX)]
_End = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
_TimeMs = Annotated[int, Meta(le=AMOUNT_MAX)]
"""kcat prints -1 where a record has none."""


class _Head(Struct, frozen=True, kw_only=True):
    """The first line of a file that this module wrote."""

    claimlog: int
    ledger_id: str = ""
    topics: tuple[TopicSpec, ...] = ()
    ends: dict[str, tuple[_End, ...]] = {}


class _Line(Struct, frozen=True, kw_only=True):
    """A record in kcat's form or in rpk's."""

    topic: str
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
    offset: _Offset
    ts: _TimeMs | None = None
    timestamp: _TimeMs | None = None
    key: str | None = None
    payload: str | None = None
    value: str | None = None
    key_base64: str | None = None
    payload_base64: str | None = None
    headers: list[str | dict[str, str | None] | None] = []


_HEAD = re.compile(rb'\s*{\s*"claimlog"')  # also as `jq .` prints it
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_line = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


def read_jsonl(lines: Iterable[bytes], name: str, tell: Callable[[str], None] | None = None) -> MemoryLog:
    """A read-only log of the records in `lines`; `name` says in messages where they are from.

    `tell` hears that a first line promises more records than there are: who pipes lines through `head` wants so many. Without it that
    raises LogCutShort, as does such a file that ends within a line. Raises LogDamaged for a line that is no record, or if the offsets of
    a partition do not rise.
    """
    head = _Head(claimlog=1)
    records: list[Record] = []
    for number, line in _documents(lines):
        try:
            if number == 1 and _HEAD.match(line):
                head = _head(line)
            else:
                records.append(_record(_decode_line(line)))
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as problem:
            if head.ends and tell is None and not line.endswith(b"\n"):
                raise LogCutShort(f"{name}: it was cut short within line {number}. Copy it again") from problem
            raise LogDamaged(f"{name}:{number}: {problem}. Expected a record as `kcat -J` or `rpk topic consume` prints it") from problem
    records = _without_prefix(records)
    counts = {spec.name: spec.partitions for spec in head.topics}
    for record in records:
        counts[record.topic] = max(counts.get(record.topic, 1), record.partition + 1)
    compacted = {spec.name for spec in head.topics if spec.compacted}
    specs = [TopicSpec(topic, count, topic in compacted) for topic, count in counts.items()]
    log = MemoryLog.of(records, specs, name=name, ledger_id=head.ledger_id)
    if missing := _missing(log, head):
        if tell is None:
            raise LogCutShort(f"{name}: {missing}. Copy it again, or leave out its first line to read the records that are there")
        tell(f"{name}: {missing}; answers are about the records that are there")
    return log


def _head(line: bytes) -> _Head:
    """Raises ValueError for more partitions than there may be."""
    head = _decode_head(line)
    for spec in head.topics:
        if spec.partitions > PARTITIONS_MAX:
            raise ValueError(f"topic {spec.name!r}: {spec.partitions} partitions, expected at most {PARTITIONS_MAX}")
    return head


def _missing(log: MemoryLog, head: _Head) -> str:
    """What the first line promises and the records do not keep; empty if they do."""
    found = []
    for topic, ends in head.ends.items():
        for number, end in enumerate(ends):
            there = log.end(topic, number) if number < log.topics().get(topic, 0) else 0
            if there < end:
                found.append(f"{topic}/{number} ends at {there}, its first line says {end}")
    more = f" (and {len(found) - 1} partitions more)" if len(found) > 1 else ""
    return f"it was cut short: {found[0]}{more}" if found else ""


def _documents(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each JSON document with the number of its first line: a line, or from a lone `{` to the `}` that stands at the same place."""
    begun, parts = 0, list[bytes]()
    for number, each in enumerate(lines, 1):
        line = each.removeprefix(BOM_UTF8) if number == 1 else each
        if parts:
            parts.append(line)
            if line.rstrip() == b"}":
                yield begun, b"".join(parts)
                parts = []
        elif line.rstrip() == b"{":
            begun, parts = number, [line]
        elif line.strip():
            yield number, line
    if parts:
        yield begun, b"".join(parts)  # cut short: its reader says so


def _without_prefix(records: list[Record]) -> list[Record]:
    """The records under their topics' own names, if all of them are a ledger's under one prefix (see `streams.log.kafka_settings`)."""
    parted = {record.topic: record.topic.partition(".") for record in records}
    prefixes = {prefix for prefix, _, name in parted.values() if name in TOPICS}
    if len(prefixes) != 1 or any(name not in TOPICS for _, _, name in parted.values()):
        return records
    return [msgspec.structs.replace(record, topic=parted[record.topic][2]) for record in records]


def write_jsonl(
    records: Iterable[Record],
    stream: BinaryIO,
    topics: Sequence[TopicSpec] = (),
    ledger_id: str = "",
    ends: Mapping[str, Mapping[int, int]] | None = None,
) -> int:
    """Write `records` to `stream`, one a line, and return how many. With `topics` a first line tells their partitions, and `ends`."""
    if topics:
        said = {topic: tuple(numbers[number] for number in sorted(numbers)) for topic, numbers in (ends or {}).items()}
        stream.write(_encode(_Head(claimlog=1, ledger_id=ledger_id, topics=tuple(topics), ends=said)) + b"\n")
    count = 0
    for line in map(_line, records):
        stream.write(_encode(line) + b"\n")
        count += 1
    return count


def _line(record: Record) -> dict[str, Any]:
    headers: list[str | dict[str, str]] = []
    for name, value in record.headers:
        text = _text(value)
        headers += [name, {"base64": _base64(value)} if text is None else text]
    line: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "tstype": "create"}
    line |= {"ts": record.time_ms, "headers": headers}
    for field, value in (("key", record.key), ("payload", record.value)):
        text = _text(value)
        line[field] = text or ""
        if text is None:
            line[f"{field}_base64"] = _base64(value)
    return line


def _record(line: _Line) -> Record:
    time_ms = line.ts if line.ts is not None else line.timestamp
    payload = line.payload if line.payload is not None else line.value
    return Record(
        line.topic, line.partition, line.offset, max(time_ms or 0, 0),
        _bytes(line.key, line.key_base64), _bytes(payload, line.payload_base64), _headers(line.headers),
    )  # fmt: skip


def _headers(found: Sequence[str | dict[str, str | None] | None]) -> Headers:
    if found and isinstance(found[0], dict):
        return tuple((_name(header.get("key")), _bytes(header.get("value"), None)) for header in found if isinstance(header, dict))
    return tuple(_pairs(found))


def _pairs(found: Sequence[str | dict[str, str | None] | None]) -> Iterator[tuple[str, bytes]]:
    for name, value in zip(found[::2], found[1::2], strict=True):
        yield _name(name), _bytes(None, value.get("base64")) if isinstance(value, dict) else _bytes(value, None)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a header's name must be text, not {name!r}")
    return name


def _bytes(text: str | None, encoded: str | None) -> bytes:
    return (text or "").encode() if encoded is None else base64.b64decode(encoded, validate=True)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
