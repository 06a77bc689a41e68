"""Dead letters: what no reader could use, kept byte for byte with the place it came from and the reason, and its way back.

A letter is not JSON: its value is the original's, and everything about it stands in headers. `redrive` makes the message that appends
the original to its source topic again: for an observation the topic it was observed on, for a `claims` record `claims` itself.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from hashlib import blake2b

from msgspec import Struct

from schemas.codec import Unreadable
from schemas.envelope import Headers
from schemas.topics import DEAD_LETTERS, TOPICS
from streams.log.base import Message, Record

VALUE_BYTES_MAX = TOPICS[DEAD_LETTERS].value_bytes_max
# With these a letter stays under 700 kB, inside the 1 MB that a broker takes unless it is told otherwise.
KEY_BYTES_MAX = 48 * 1024
HEADER_BYTES_MAX = 64 * 1024
REASON_BYTES_MAX = 4096

PREFIX = "dead_letter_"
ORIGINAL = "original_"
REDRIVEN_FROM = "redriven_from"


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A letter as people read it. `size_bytes` is the original value's; `cut_short` names what was too long to be kept whole."""

    topic: str
    partition: int
    offset: int
    kind: str
    reason: str
    key: bytes
    value: bytes
    size_bytes: int
    hash: str
    cut_short: tuple[str, ...] = ()
    headers: Headers = ()

    @property
    def position(self) -> str:
        """Where the original stands: `claims/0@1204`."""
        return f"{self.topic}/{self.partition}@{self.offset}"


def hash_of(value: bytes) -> str:
    """What tells an original's value from any other."""
    return blake2b(value, digest_size=16).hexdigest()


def dead_letter(record: Record, fault: Unreadable) -> Message:
    """The letter for a record that `fault` makes unusable, keyed by the record's position. The same record gives the same bytes."""
    headers, dropped = _kept_headers(record.headers)
    cut_short = [
        name
        for name, is_cut in (("value", len(record.value) > VALUE_BYTES_MAX), ("key", len(record.key) > KEY_BYTES_MAX), ("headers", dropped))
        if is_cut
    ]
    said = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "kind": fault.kind,
        "reason": fault.reason,
        "key": b64encode(record.key[:KEY_BYTES_MAX]).decode(),
        "size": str(len(record.value)),
        "hash": hash_of(record.value),
        "cut_short": ",".join(cut_short),
    }
    return Message(
        topic=DEAD_LETTERS,
        key=str(record.position).encode(),
        value=record.value[:VALUE_BYTES_MAX],
        headers=(
            *((PREFIX + name, _header_bytes(name, text)) for name, text in said.items() if text or name == "key"),
            *((ORIGINAL + name, value) for name, value in headers),
        ),
    )


def kind_of(letter: Message) -> str:
    """Why the record of a letter counts for nothing, in one word."""
    return dict(letter.headers)[PREFIX + "kind"].decode()


def read_letter(record: Record) -> DeadLetter | Unreadable:
    """What a record of `dead-letters` says, or why it says nothing (somebody else wrote it, or it is damaged)."""
    said = {name.removeprefix(PREFIX): value for name, value in record.headers if name.startswith(PREFIX)}
    try:
        return DeadLetter(
            topic=said["topic"].decode(),
            partition=int(said["partition"]),
            offset=int(said["offset"]),
            kind=said["kind"].decode(),
            reason=said.get("reason", b"").decode(errors="replace"),
            key=b64decode(said["key"], validate=True),
            value=record.value,
            size_bytes=int(said["size"]),
            hash=said["hash"].decode(),
            cut_short=tuple(name for name in said.get("cut_short", b"").decode().split(",") if name),
            headers=tuple((name.removeprefix(ORIGINAL), value) for name, value in record.headers if name.startswith(ORIGINAL)),
        )
    except KeyError as missing:
        named = f"{PREFIX}{missing.args[0]}"
        return Unreadable("not-a-letter", f"{record.position}: expected the header {named}; it was not written by a dead-letter step")
    except (ValueError, Base64Error) as error:
        return Unreadable("not-a-letter", f"{record.position}: a header of the letter cannot be read: {error}")


def redrive(record: Record) -> Message | Unreadable:
    """The message that appends a letter's original to its source topic again, or why that cannot be.

    It goes to the partition it came from, unless that was its fault: then to the one its key belongs to.
    """
    letter = read_letter(record)
    if isinstance(letter, Unreadable):
        return letter
    place = record.position
    for name in ("value", "key"):
        if name in letter.cut_short:
            return Unreadable(
                "cut-short", f"{place}: only the start of the {name} of {letter.position} was kept; append it from its source"
            )
    if hash_of(letter.value) != letter.hash:
        return Unreadable("damaged", f"{place}: expected bytes with hash {letter.hash}, as at {letter.position}; nothing is redriven")
    if letter.topic not in TOPICS or letter.topic == DEAD_LETTERS:
        source = f"{letter.topic!r} is none of the ledger's topics that records are redriven to"
        again = f"once it is mended at its source, it is read there; `claimlog dead-letters show {place}` has its bytes"
        return Unreadable("unknown-topic", f"{place}: {source}: {again}")
    return Message(
        topic=letter.topic,
        key=letter.key,
        value=letter.value,
        headers=(*(header for header in letter.headers if header[0] != REDRIVEN_FROM), (REDRIVEN_FROM, str(record.position).encode())),
        partition=None if letter.kind == "wrong-partition" else letter.partition,
    )


def _kept_headers(headers: Headers) -> tuple[Headers, bool]:
    """The headers that fit, from the first on, and whether some did not."""
    kept: list[tuple[str, bytes]] = []
    room = HEADER_BYTES_MAX
    for name, value in headers:
        room -= len(ORIGINAL) + len(name.encode()) + len(value)
        if room < 0:
            return tuple(kept), True
        kept.append((name, value))
    return tuple(kept), False


def _header_bytes(name: str, text: str) -> bytes:
    encoded = text.encode(errors="replace")
    return encoded[:REASON_BYTES_MAX] if name == "reason" else encoded
