"""The requests of one partition that were answered long ago: that they were is all that is kept of them, in eight bytes each.

An id stands for itself by a number of 64 bits. Among ten million ids one of ten million others is taken for answered by chance once in
180,000 such ledgers.
"""

from __future__ import annotations

import struct
import sys
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from msgspec import structs

from schemas.results import RequestsAnswered

SAID_REQUESTS = 10_000
"""So many requests a record: as many results, at most, are read by whoever takes a partition over, beside the newest of all."""
BUCKETS = 256
"""Sorted lists of numbers: of ten million each has 40,000, and to take one in moves 160 kB, which is ten microseconds."""


class Filed:
    """The ids of one partition; they only grow. `next_offset`: every result below that counts has its request here.

    `time_ms` is the time of the last of these results. `numbers` are those of ids that were said already, and `said` is the
    digest of the newest record that says them.
    """

    def __init__(self, numbers: Iterable[int] = (), next_offset: int = 0, time_ms: int = 0, said: str = "") -> None:
        self.next_offset, self.time_ms = next_offset, time_ms
        self.lost_ms = 0
        """Results up to this time may have left the log before anybody filed them away; 0: none have."""
        self.due: list[RequestsAnswered] = []
        """Records that are to be written, in order."""
        self._said, self._unsaid = said, list[int]()
        buckets = [array("Q") for _ in range(BUCKETS)]
        for number in numbers:
            buckets[number % BUCKETS].append(number)
        self._buckets = [array("Q", sorted(set(bucket))) for bucket in buckets]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def __contains__(self, request_id: str) -> bool:
        if not self.next_offset:
            return False
        number = _number(request_id)
        bucket = self._buckets[number % BUCKETS]
        at = bisect_left(bucket, number)
        return at < len(bucket) and bucket[at] == number

    def add(self, partition: int, request_id: str, offset: int, time_ms: int) -> None:
        """This request was answered by the result at `offset`, appended at `time_ms`. They come in the order of their results."""
        number = _number(request_id)
        insort(self._buckets[number % BUCKETS], number)
        self._unsaid.append(number)
        self.next_offset, self.time_ms = offset + 1, time_ms
        if len(self._unsaid) == SAID_REQUESTS:
            record = RequestsAnswered(
                partition=partition,
                previous=self._said,
                last_offset=offset,
                last_request_id=request_id,
                last_time_ms=time_ms,
                lost_ms=self.lost_ms,
                numbers=b64encode(struct.pack(f">{SAID_REQUESTS}Q", *sorted(self._unsaid))).decode(),
            )
            record = structs.replace(record, digest=_digest(record))
            self._said, self._unsaid = record.digest, []
            self.due.append(record)


def filed_by(records: Iterable[RequestsAnswered], is_there: Callable[[RequestsAnswered], bool]) -> Filed:
    """What the newest record says that is sound and whose last result `is_there`, with all before it; without any, nothing is filed.

    Each record names the one before, so what was said of results that are gone stands in no such chain.
    """
    known = {record.digest: record for record in records if record.digest == _digest(record)}
    for newest in sorted(known.values(), key=lambda record: -record.last_offset):
        chain = [newest]
        while chain[-1].previous in known:
            chain.append(known[chain[-1].previous])
        if not chain[-1].previous and is_there(newest) and (found := _said_by(chain)) is not None:
            return found
    return Filed()


def _said_by(chain: Sequence[RequestsAnswered]) -> Filed | None:
    """What a chain says, newest first; None if it says no numbers."""
    numbers = array("Q")
    for record in chain:
        try:
            numbers.frombytes(b64decode(record.numbers, validate=True))
        except ValueError:
            return None
    if sys.byteorder == "little":
        numbers.byteswap()
    newest = chain[0]
    found = Filed(numbers, newest.last_offset + 1, newest.last_time_ms, newest.digest)
    found.lost_ms = newest.lost_ms
    return found


def _number(request_id: str) -> int:
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest())


def _digest(record: RequestsAnswered) -> str:
    """Over all its fields but this one."""
    *says, _ = structs.astuple(record)
    return blake2b("\0".join(map(str, says)).encode(), digest_size=16).hexdigest()
