"""Snapshots: a whole partition's ledger at one offset, as bytes and as records of `ledger-snapshots`.

A reader starts from the newest one that fits the log it reads (rule 13) and folds the records after it; nothing depends on a snapshot
being there. The same state gives the same bytes in every process, so chunks of one snapshot written twice do not disturb each other.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from projections import companions, state
from projections.ledger import Ledger
from projections.misfit import misfit
from projections.reading import Readable, Recorded, RecordsDamaged, between
from projections.state import STATE_VERSION, StateError
from schemas.codec import Unreadable, decode
from schemas.results import SnapshotChunk
from schemas.topics import CLAIMS, SNAPSHOTS

# Base64 makes 880,000 of them; with the other fields a record stays under 900 kB, which a broker takes as it comes.
CHUNK_BYTES = 660_000
# Of the chunks of one snapshot read in one go while looking back for the newest: some megabytes.
CHUNKS_AT_ONCE = 8
# Level 1 takes a third of level 6's time here and makes about a tenth more bytes.
COMPRESSION_LEVEL = 1
# States compress to a tenth; nothing but zeros compresses to a thousandth. A small one may be all alike.
UNPACKED_RATIO_MAX = 200
UNPACKED_BYTES_MIN = 1 << 20

Tell = Callable[[str], None]
"""Is told what was passed over, and why."""


class _Whole(Struct, array_like=True):
    """Everything of one ledger, each part as `projections.state` writes it."""

    header: bytes
    nodes: list[tuple[bytes, bytes]]
    groups: tuple[tuple[str, bytes], ...]
    ids: bytes
    extras: tuple[tuple[bytes, bytes], ...] = ()


Extras = tuple[tuple[bytes, bytes], ...]
"""Rows beside the ledger, by key."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Whole).decode


def encoded(ledger: Ledger, extras: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The ledger's whole state, compressed; with it rows of what is kept beside it (`projections.companions`)."""
    whole = _Whole(
        header=state.header_of(ledger),
        nodes=[(state.facts_of(node), state.times_of(node)) for node in state.nodes_in_order(ledger)],
        groups=tuple((group_id, state.home_of(home)) for group_id, home in sorted(ledger.groups.items())),
        ids=state.ids_bytes(state.ids_of(ledger, 0)),
        extras=tuple(extras),
    )
    return zlib.compress(_encode(whole), COMPRESSION_LEVEL)


def restored(data: bytes) -> Ledger:
    """The ledger that `encoded` wrote; folding on gives what folding from offset 0 gives. Raises StateError."""
    return restored_with(data)[0]


def restored_with(data: bytes) -> tuple[Ledger, Extras]:
    """As `restored`, with the rows beside the ledger: none if they were not written. Raises StateError."""
    try:
        whole = _decode(_unpacked(data))
    except (zlib.error, msgspec.DecodeError, ValueError) as problem:
        raise StateError(f"it cannot be read: {problem}") from problem
    ledger = state.begun(whole.header)
    whole.nodes.reverse()
    while whole.nodes:  # taken out one by one, so that bytes go as nodes come
        state.add_node(ledger, *whole.nodes.pop())
    for group_id, home in whole.groups:
        state.add_home(ledger, group_id, home)
    state.add_ids(ledger, state.read_ids(whole.ids))
    return ledger, whole.extras


def _unpacked(data: bytes) -> bytes:
    """The bytes that were compressed. Raises StateError for what unpacks to more than any ledger does: it would fill the memory."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, UNPACKED_BYTES_MIN + UNPACKED_RATIO_MAX * len(data))
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise StateError("it cannot be read: it is cut short, or unpacks to more than a ledger does")
    return unpacked


def chunks_of(ledger: Ledger, chunk_bytes: int = CHUNK_BYTES, *, extras: Iterable[tuple[bytes, bytes]] = ()) -> list[SnapshotChunk]:
    """The ledger, and rows beside it, as records of `ledger-snapshots`, in order. Raises ValueError before its first record."""
    if not ledger.next_offset:
        raise ValueError(f"{CLAIMS}/{ledger.partition}: nothing is folded yet, so there is nothing to keep; fold its first record first")
    if not ledger.digest:
        raise ValueError(f"{CLAIMS}/{ledger.partition}: it was folded without a digest, so nobody could check it; fold it anew")
    data = encoded(ledger, extras)
    parts = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    return [
        SnapshotChunk(
            ledger_id=ledger.ledger_id or "?",
            partition=ledger.partition,
            offset=ledger.next_offset - 1,
            index=index,
            chunks=len(parts),
            rules_version=ledger.rules_version,
            state_version=STATE_VERSION,
            digest=ledger.digest.hex(),
            data=b64encode(part).decode(),
        )
        for index, part in enumerate(parts)
    ]


def load_newest(log: Readable, partition: int, *, at_most: int | None = None, tell: Tell | None = None) -> Ledger | None:
    """The ledger of `load_newest_with`, whatever is kept beside it."""
    found = _newest(log, partition, at_most, tell, has_use_of_rows=False)
    return None if found is None else found[0]


def load_newest_with(
    log: Readable, partition: int, *, at_most: int | None = None, tell: Tell | None = None
) -> tuple[Ledger, Extras] | None:
    """The ledger of the newest complete snapshot that fits `log` and includes no offset at or above `at_most`; None if there is none.

    `tell` hears of every snapshot passed over: one whose bytes are damaged too, since all that it says is in `claims`. Raises what reading
    `claims` raises.
    """
    return _newest(log, partition, at_most, tell, has_use_of_rows=True)


def _newest(
    log: Readable, partition: int, at_most: int | None, tell: Tell | None, *, has_use_of_rows: bool
) -> tuple[Ledger, Extras] | None:
    if partition >= log.topics().get(SNAPSHOTS, 0):
        return None
    tell = _once(tell)
    for data, chunk in _complete(log, partition, at_most, tell):
        found = _usable(log, partition, data, chunk, has_use_of_rows=has_use_of_rows)
        if not isinstance(found, str):
            return found
        tell(f"{SNAPSHOTS}/{partition}: the snapshot of offset {chunk.offset} is passed over: {found}")
    return None


def _usable(
    log: Readable, partition: int, data: bytes, chunk: SnapshotChunk, *, has_use_of_rows: bool = True
) -> tuple[Ledger, Extras] | str:
    """What a reader of `log` begins with, or why it cannot begin there."""
    try:
        ledger, extras = restored_with(data)
        if has_use_of_rows:
            companions.taken(partition, extras)
    except StateError as problem:
        return str(problem)
    if (ledger.partition, ledger.next_offset - 1, ledger.digest.hex()) != (partition, chunk.offset, chunk.digest):
        return f"its content is of {CLAIMS}/{ledger.partition}@{ledger.next_offset - 1}"
    return misfit(ledger, log, partition) or (ledger, extras)


class Listed(Struct, frozen=True, kw_only=True):
    """One snapshot that stands in a partition of `ledger-snapshots`, its first chunk `at` this offset and written at `time_ms`.

    `offset` is the last record of `claims` that it includes; of its `chunks` so many are `found`, with `size_bytes` of records. `trouble`
    is why no reader begins there, empty if one can; `state_hash` is of the ledger in it, to be compared with `state_hash`, empty with
    trouble or if nobody asked for it. `has_views` if what is kept beside the ledger is in it.
    """

    partition: int
    offset: int
    at: int
    time_ms: int
    chunks: int
    found: int
    size_bytes: int
    digest: str
    rules_version: int
    state_version: int
    trouble: str = ""
    state_hash: str = ""
    has_views: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is there. One is not while it is being written, or once the log let go of its first chunks."""
        return self.found == self.chunks


def state_hash(ledger: Ledger) -> str:
    """Equal for equal states, by all their bytes."""
    return blake2b(encoded(ledger), digest_size=16).hexdigest()


def listed(log: Readable, partition: int, tell: Tell | None = None, *, hashed: bool = False) -> Iterator[Listed]:
    """Every snapshot of a partition that the log has, also those that no reader begins at, by offset; `tell` hears of what is none.

    Each is loaded as it is asked for; `hashed` those are whose content is to be compared.
    """
    if partition >= log.topics().get(SNAPSHOTS, 0):
        return
    tell = _once(tell)
    found: dict[tuple[int, str, int, int], dict[int, tuple[Recorded, SnapshotChunk]]] = {}
    for record, chunk in _backwards(log, partition, tell):
        if isinstance(chunk, SnapshotChunk):
            found.setdefault((chunk.offset, chunk.digest, chunk.chunks, chunk.state_version), {}).setdefault(chunk.index, (record, chunk))
        else:
            tell(f"{SNAPSHOTS}/{partition}@{record.offset} is no part of a snapshot: {chunk.reason}")
    for key in sorted(found):
        yield _listed(log, partition, found[key], hashed=hashed)


def _listed(log: Readable, partition: int, parts: dict[int, tuple[Recorded, SnapshotChunk]], *, hashed: bool) -> Listed:
    first, chunk = min(parts.values(), key=lambda part: part[0].offset)
    entry = Listed(
        partition=partition,
        offset=chunk.offset,
        at=first.offset,
        time_ms=first.time_ms,
        chunks=chunk.chunks,
        found=len(parts),
        size_bytes=sum(len(record.value) for record, _ in parts.values()),
        digest=chunk.digest,
        rules_version=chunk.rules_version,
        state_version=chunk.state_version,
    )
    if not entry.is_complete:
        return replace(entry, trouble=f"incomplete: {entry.found} of {entry.chunks} chunks are there")
    if chunk.state_version != STATE_VERSION:
        return replace(entry, trouble=f"of state version {chunk.state_version}; known here: {STATE_VERSION}")
    data = _joined({index: part.data for index, (_, part) in parts.items()})
    usable = "its chunks do not belong together" if data is None else _usable(log, partition, data, chunk)
    if isinstance(usable, str):
        return replace(entry, trouble=usable)
    return replace(entry, state_hash=state_hash(usable[0]) if hashed else "", has_views=bool(usable[1]))


def newest_offset(log: Readable, partition: int) -> int:
    """The next offset after the snapshot that was written last; 0 without one. Nothing is checked: it says where one seems to be."""
    chunk = newest_chunk(log, partition)
    return 0 if chunk is None else min(chunk.offset + 1, log.end(CLAIMS, partition))


def newest_chunk(
    log: Readable, partition: int, tell: Tell | None = None, of_another_version: Callable[[int], None] | None = None
) -> SnapshotChunk | None:
    """The part of a snapshot that was written last; `tell` hears of what cannot be read behind it.

    With `of_another_version`, of a snapshot that a reader here can begin at: that hears the state versions that are passed over.
    """
    if partition >= log.topics().get(SNAPSHOTS, 0):
        return None
    tell = _once(tell)
    for record, chunk in _backwards(log, partition, tell):
        if not isinstance(chunk, SnapshotChunk):
            tell(_unreadable(partition, record, chunk))
        elif of_another_version is None or chunk.state_version == STATE_VERSION:
            return chunk
        else:
            of_another_version(chunk.state_version)
    return None


def damaged_at(log: Readable, partition: int) -> str:
    """The first place in a partition of `ledger-snapshots` that cannot be read back, or that no reader takes; empty if there is none.

    Ask last: a log may serve nothing beyond damage that it has met.
    """
    if partition >= log.topics().get(SNAPSHOTS, 0):
        return ""
    try:
        for record in between(log, SNAPSHOTS, partition, log.start(SNAPSHOTS, partition), log.end(SNAPSHOTS, partition), CHUNKS_AT_ONCE):
            if not isinstance(decode(SNAPSHOTS, record.value), SnapshotChunk):
                return f"{SNAPSHOTS}/{partition}@{record.offset}"
    except RecordsDamaged as problem:
        return str(getattr(problem, "position", None) or f"{SNAPSHOTS}/{partition}")
    return ""


def _needed(log: Readable, partition: int) -> str:
    """What to do about snapshots that are of no use here, where the records before them have left the log as well."""
    return "; `claimlog snapshot write` with CLAIMLOG_ARCHIVE writes one to begin at" if log.start(CLAIMS, partition) else ""


def _once(tell: Tell | None) -> Tell:
    """`tell`, but each reason only once: an old snapshot has many chunks."""
    told: set[str] = set()

    def tell_once(reason: str) -> None:
        if tell is not None and reason not in told:
            told.add(reason)
            tell(reason)

    return tell_once


def _complete(log: Readable, partition: int, at_most: int | None, tell: Tell) -> Iterator[tuple[bytes, SnapshotChunk]]:
    """The complete snapshots of a partition, the last written first, with one chunk of each."""
    found: dict[tuple[int, str, int], dict[int, str]] = {}
    for record, chunk in _backwards(log, partition, tell):
        place = f"{SNAPSHOTS}/{partition}@{record.offset}"
        if isinstance(chunk, Unreadable):
            tell(_unreadable(partition, record, chunk))
        elif chunk.state_version != STATE_VERSION:
            known = f"{STATE_VERSION}{_needed(log, partition)}"
            tell(f"{SNAPSHOTS}/{partition}: snapshots of state version {chunk.state_version} are passed over; known here: {known}")
        elif at_most is None or chunk.offset < at_most:
            parts = found.setdefault((chunk.offset, chunk.digest, chunk.chunks), {})
            parts.setdefault(chunk.index, chunk.data)
            if len(parts) == chunk.chunks and (data := _joined(parts)) is not None:
                yield data, chunk
            elif len(parts) == chunk.chunks:
                tell(f"{place}: the snapshot of offset {chunk.offset} is passed over: its chunks do not belong together")


def _joined(parts: dict[int, str]) -> bytes | None:
    try:
        return b"".join(b64decode(parts[index], validate=True) for index in range(len(parts)))
    except (KeyError, Base64Error, ValueError):
        return None


def _backwards(log: Readable, partition: int, tell: Tell) -> Iterator[tuple[Recorded, SnapshotChunk | Unreadable]]:
    """The records of a snapshots partition from its end to its start, each with what it says; `tell` hears of damage, which is left out.

    A log may serve nothing beyond damage that it has met. So what is read in one go belongs to one snapshot: with one chunk of it lost
    the others are of no use, and no sound snapshot stands behind it that was not read before.
    """
    try:
        start, end = log.start(SNAPSHOTS, partition), log.end(SNAPSHOTS, partition)
    except RecordsDamaged:
        tell(_damaged(f"{SNAPSHOTS}/{partition}"))
        return
    beside = 0  # chunks that stand before the one that was read last and belong to the same snapshot
    while end > start:
        first = max(start, end - min(max(beside, 1), CHUNKS_AT_ONCE))
        beside = 0
        for record in reversed(_read(log, partition, first, end, tell)):
            chunk: SnapshotChunk | Unreadable = decode(SNAPSHOTS, record.value)
            beside = chunk.index if isinstance(chunk, SnapshotChunk) else 0
            yield record, chunk
        end = first


def _read(log: Readable, partition: int, first: int, end: int, tell: Tell) -> list[Recorded]:
    """The records from `first` up to `end`, exclusive, as far as they are sound."""
    records: list[Recorded] = []
    try:
        records.extend(between(log, SNAPSHOTS, partition, first, end, end - first))  # What came before the damage stays in it.
    except RecordsDamaged as problem:
        place, at = getattr(problem, "position", None), records[-1].offset + 1 if records else first
        tell(_damaged(f"{SNAPSHOTS}/{partition}@{at if place is None else place.offset}"))
    return records


def _damaged(place: str) -> str:
    return f"{place} is passed over: its bytes are not what was written; `claimlog snapshot write` writes a new one and drops this"


def _unreadable(partition: int, record: Recorded, chunk: Unreadable) -> str:
    return f"{SNAPSHOTS}/{partition}@{record.offset} is passed over: {chunk.reason}; `claimlog snapshot write` writes a new one"
