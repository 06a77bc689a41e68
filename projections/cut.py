"""The cut: exactly which records an answer is true for, as text that fits into a terminal, a URL and a bug report.

A time is not a place in a log: records arrive late, clocks differ, partitions are not ordered among themselves. A cut is the vector of
next offsets, one a partition, and the whole of it is in the text, so nobody has to keep a table of cuts:

    cut:<base64url, unpadded, of: version · mark · topics · crc32>

with `mark` four bytes of a hash of the ledger's id, so that a cut is refused on another log (version 1 has none: nobody knew the id), and
`topics` a sequence of (length and bytes of the name, 2 x partitions + dense, offsets) in LEB128 varints. Dense means partitions 0, 1, 2 …;
otherwise each offset is preceded by the distance from the partition before. A cut has one text only, so texts can be compared.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple, Self, TypeVar
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

PREFIX = "cut:"
_VERSION_UNMARKED, _VERSION_MARKED = 1, 2
# Tells logs that somebody may mix up from one another, no more: one pair in four thousand million has the same.
MARK_BYTES = 4
# Kafka's own limits: an int64 offset, an int32 partition, 249 characters of a topic's name.
OFFSET_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
TOPIC_BYTES_MAX = 249

PartitionKey = TypeVar("PartitionKey", bound=tuple[str, int])


class CutError(ValueError):
    """A text that is no cut; the message says what is wrong with it."""


class Place(NamedTuple):
    """How far one partition was read: `next_offset` is the first offset that the answer does not include."""

    topic: str
    partition: int
    next_offset: int


class Cut(Struct, frozen=True):
    """An offset vector; `places` are in order of topic and partition, each partition once.

    `mark` is a hash of the id of the ledger that it is a cut of, empty where none is known.
    """

    places: tuple[Place, ...] = ()
    mark: bytes = b""

    @classmethod
    def of(cls, next_offsets: Mapping[PartitionKey, int], ledger_id: str = "") -> Self:
        """The cut of a mapping of (topic, partition) to next offset, of that ledger. Raises CutError for what no log can have."""
        places = tuple(Place(topic, partition, offset) for (topic, partition), offset in sorted(next_offsets.items()))
        cut = cls(places, _mark(ledger_id))
        for place in cut.places:
            _check(place)
        return cut

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cut that `str(cut)` wrote. Raises CutError, whose message tells a mistyped text from one that was cut short."""
        if not text.startswith(PREFIX):
            raise CutError(f"a cut begins with {PREFIX!r}, this is {text[:40]!r}")
        mark, data = _unarmoured(text.removeprefix(PREFIX))
        cut = cls(tuple(_Reader(data).places()), mark)
        if str(cut) != text or list(cut.places) != sorted(cut.places):
            raise CutError(f"{text[:40]!r} is not how claimlog writes this cut; copy it from the answer as it stands")
        return cut

    @property
    def next_offsets(self) -> dict[tuple[str, int], int]:
        """The same as a mapping of (topic, partition)."""
        return {(place.topic, place.partition): place.next_offset for place in self.places}

    def next_offset(self, topic: str, partition: int) -> int | None:
        """The first offset of that partition which is not included; None if the answer did not read the partition."""
        at = bisect_left(self.places, (topic, partition))
        found = self.places[at] if at < len(self.places) else None
        return found.next_offset if found is not None and found[:2] == (topic, partition) else None

    def naming(self, topic: str, partition: int, next_offset: int) -> Self:
        """The same with this place, for an answer that rests on a record of another topic as well."""
        places = self.next_offsets | {(topic, partition): next_offset}
        return replace(self, places=tuple(Place(*key, offset) for key, offset in sorted(places.items())))

    def may_be_of(self, ledger_id: str) -> bool:
        """Whether nothing speaks against it: the same ledger, or one of both does not say which it is."""
        return not self.mark or not ledger_id or self.mark == _mark(ledger_id)

    def described(self) -> str:
        """The same for people: `claims 0@1841 1@1790; hypervisor-audits 0@220`."""
        topics = groupby(self.places, key=lambda place: place.topic)
        return "; ".join(" ".join([topic, *(f"{place.partition}@{place.next_offset}" for place in places)]) for topic, places in topics)

    def __str__(self) -> str:
        data = bytearray([_VERSION_MARKED if self.mark else _VERSION_UNMARKED]) + self.mark
        for topic, group in groupby(self.places, key=lambda place: place.topic):
            _write_topic(data, topic, list(group))
        data += crc32(data).to_bytes(4, "big")
        return PREFIX + urlsafe_b64encode(data).rstrip(b"=").decode()


def _mark(ledger_id: str) -> bytes:
    return blake2b(ledger_id.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest() if ledger_id else b""


def _check(place: Place) -> None:
    if not 0 < len(place.topic.encode("utf-8", "surrogatepass")) <= TOPIC_BYTES_MAX:
        raise CutError(f"a topic's name has 1 to {TOPIC_BYTES_MAX} bytes, not {place.topic!r}")
    if not 0 <= place.partition <= PARTITION_MAX:
        raise CutError(f"{place.topic}: there is no partition {place.partition}")
    if not 0 <= place.next_offset <= OFFSET_MAX:
        raise CutError(f"{place.topic}/{place.partition}: there is no offset {place.next_offset}")


def _write_topic(data: bytearray, topic: str, places: list[Place]) -> None:
    name = topic.encode()
    dense = [place.partition for place in places] == list(range(len(places)))
    data += _varint(len(name)) + name + _varint(2 * len(places) + dense)
    before = -1
    for place in places:
        if not dense:
            data += _varint(place.partition - before - 1)
        data += _varint(place.next_offset)
        before = place.partition


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _unarmoured(text: str) -> tuple[bytes, bytes]:
    """The mark and the body of a cut without its prefix."""
    try:
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, UnicodeEncodeError) as problem:
        raise CutError(f"{PREFIX}{text[:40]!s} has characters that no cut has, or too few: {problem}") from None
    if len(data) < 5 or crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        raise CutError(f"{PREFIX}{text[:40]!s} is incomplete or mistyped: its checksum does not fit; copy the whole word")
    version, body = data[0], data[1:-4]
    if version == _VERSION_UNMARKED:
        return b"", body
    if version != _VERSION_MARKED:
        known = f"versions {_VERSION_UNMARKED} and {_VERSION_MARKED}"
        raise CutError(f"this cut is of version {version}, this claimlog knows {known}; use the claimlog that wrote it")
    if len(body) < MARK_BYTES:
        raise CutError("this cut ends in the middle of its ledger's mark")
    return body[:MARK_BYTES], body[MARK_BYTES:]


class _Reader:
    """Takes the body of a cut apart; whatever does not fit is a CutError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def places(self) -> Iterator[Place]:
        while self._at < len(self._data):
            yield from self._topic()

    def _topic(self) -> Iterator[Place]:
        try:
            topic = self._bytes(self._number()).decode()
        except UnicodeDecodeError:
            raise CutError("a topic's name in this cut is not UTF-8") from None
        count, dense = divmod(self._number(), 2)
        partition = -1
        for _ in range(count):
            partition += 1 + (0 if dense else self._number())
            place = Place(topic, partition, self._number())
            _check(place)
            yield place

    def _bytes(self, length: int) -> bytes:
        if self._at + length > len(self._data):
            raise CutError("this cut ends in the middle of a topic")
        self._at += length
        return self._data[self._at - length : self._at]

    def _number(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._bytes(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise CutError("a number in this cut is too large")
