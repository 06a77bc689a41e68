"""Which records of `claims` may name an id, by their bytes: looking at those takes a tenth of what folding the records does.

What stands in front of the first record that may name a node, an instance or a request made no difference to it, so whoever asks about one
subject folds a partition from a snapshot in front of that record, and not at all where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from projections.reading import Recorded, for_a_fold
from schemas.claims import ClaimRequested
from schemas.codec import decode_keyed
from schemas.topics import CLAIMS, REQUESTS
from streams.cli.printed.progress import Progress
from streams.cli.reading.records import check_claims_at_hand
from streams.log.base import Log, Record
from streams.log.reading import READ_RECORDS


class Naming:
    """Whether the bytes of a record may name one of several ids; whether the record does, its decoding says.

    Each of `names` may stand inside another id, as a request's does in those of its claims, and is looked for by itself; `whole`, of which
    there may be a thousand, are ids that stand as strings of their own, as those of instances do.
    """

    def __init__(self, names: Iterable[str], whole: Iterable[str] = ()) -> None:
        names, whole = tuple(names), tuple(whole)
        texts = {name.encode() for name in names}
        for name in (*names, *whole):
            # Whoever wrote a record may have spelled any character as \u and four digits, and these few with a backslash before them.
            texts.add(b"\\" if any(char in '"\\/' or char < " " for char in name) else b"\\u")
        self._texts = sorted(texts, key=len, reverse=True)
        self._whole = frozenset([name.encode() for name in whole])

    def may_be_in(self, value: bytes) -> bool:
        """Whether one of the ids may be named there."""
        if any(text in value for text in self._texts):
            return True
        return bool(self._whole) and not self._whole.isdisjoint(value.split(b'"'))

    def may_name(self, record: Record) -> bool:
        """Whether a record of any topic may name one of the ids; those of a request's instances may follow from its own."""
        return record.topic == REQUESTS or self.may_be_in(record.value)


def firsts_naming(log: Log, ends: Mapping[int, int], name: str, whole: Iterable[str] = ()) -> dict[int, int]:
    """For each partition of `claims` the first offset below its end in `ends` that may name `name` or one of `whole`; its end if none does.

    Raises AnswerIncomplete for history that is not at hand.
    """
    naming = Naming([name], whole)
    with Progress("search", sum(ends.values())) as progress:
        return {
            number: next((record.offset for record in _naming(log, number, end, naming, progress.add)), end) for number, end in ends.items()
        }


def claimed_by(log: Log, ends: Mapping[int, int], request_id: str) -> dict[str, int]:
    """The instances that were claimed for a request below these ends of `claims`, each with the time of the first record that did.

    Raises as `firsts_naming`.
    """
    naming, found = Naming([request_id]), dict[str, int]()
    with Progress("search", sum(ends.values())) as progress:
        for number, end in ends.items():
            for record in _naming(log, number, end, naming, progress.add):
                event = decode_keyed(CLAIMS, record.key, record.value)
                if isinstance(event, ClaimRequested) and event.request_id == request_id:
                    for item in event.items:
                        found[item.instance_id] = min(record.time_ms, found.get(item.instance_id, record.time_ms))
    return found


def _naming(log: Log, number: int, end: int, naming: Naming, added: Callable[[int], None]) -> Iterator[Recorded]:
    """The records of a partition of `claims` below `end` that may name what is looked for."""
    if end:
        check_claims_at_hand(log, number, 0)
    read, at, may_be_in = for_a_fold(log), 0, naming.may_be_in
    while at < end:
        before = at
        for record in read(CLAIMS, number, at, min(READ_RECORDS, end - at)):
            if may_be_in(record.value):
                yield record
            at = record.offset + 1
        if at == before:
            return
        added(at - before)
