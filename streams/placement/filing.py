"""Answers that nobody needs any more are filed away: of each only remains that there is one, here and for whoever takes the partition over.

Without that a scheduler would keep every answer there ever was, and read every result with its evidence when it starts. What was filed away
is said in `answered-requests`; a ledger that was made without that topic only reads more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from projections.filed import Filed, filed_by
from projections.ledger import Ledger
from projections.reading import between
from schemas.codec import decode
from schemas.results import RequestsAnswered
from schemas.topics import ANSWERED, RESULTS
from streams.log.base import Log, Message, may_write
from streams.placement.messages import Sender
from streams.placement.work import Desk, Filing

KEPT_MS: Final = 600_000
"""How long an answer is kept: as long as claims live unless told otherwise, so a claim that comes late is gone by itself when it is not."""
FILED_PER_TURN: Final = 20_000
"""Of all partitions together: 0.05 s. Who files a long log away for the first time has millions, and the lease is renewed between turns."""
SAID_PER_TURN: Final = 4
"""Records of 107 kB. Who files a long log away for the first time has thousands, and requests wait meanwhile."""

RECORDS_PER_READ: Final = 100


def may_say(log: Log, tell: Callable[[str], None]) -> bool:
    """Whether what is filed away can be said, else `tell` hears why. The topic and the right to write it are younger than some ledgers."""
    if ANSWERED not in log.topics():
        return False
    if may_write(log, ANSWERED):
        return True
    tell(f"{ANSWERED}: this user may not write it, so each start reads all results; who may do what to which topic: docs/kafka.md")
    return False


def known(log: Log, partition: int) -> Filed:
    """What the log says of a partition's requests, as far as its results are those that it was said of."""
    if ANSWERED not in log.topics():
        return Filed()
    # Not beyond the end: on Kafka who has read there is sent what comes from then on, and cannot go on when the topic is deleted.
    start, end = log.start(ANSWERED, partition), log.end(ANSWERED, partition)
    events = [decode(ANSWERED, record.value) for record in between(log, ANSWERED, partition, start, end, RECORDS_PER_READ)]
    records = [event for event in events if isinstance(event, RequestsAnswered) and event.partition == partition]
    return filed_by(records, lambda newest: _is_there(log, newest))


def _is_there(log: Log, newest: RequestsAnswered) -> bool:
    """Whether the log still has the result that this record ends with. One that has left as it was is as good."""
    partition, offset = newest.partition, newest.last_offset
    if offset < log.start(RESULTS, partition):
        return True
    if offset >= log.end(RESULTS, partition):
        return False
    result = log.read(RESULTS, partition, offset, 1)[0]
    return result.key == newest.last_request_id.encode() and result.time_ms <= newest.last_time_ms


def file_away(desk: Desk, ledgers: Sequence[Ledger], claims_ends: Callable[[], tuple[int, ...]], answers_max: int) -> None:
    """File away what was answered long before the newest result, up to the first request of which something is released or cancelled.

    That waits until all is folded that stood in `claims` when the newest of these answers had been read: so whatever is granted for them
    afterwards is named by none of them. Claims that are held by such an answer are remembered as those are whose result was never read: a
    cancellation gives them back.
    """
    placements = desk.placements
    before_ms = placements.results_time_ms - KEPT_MS
    if desk.filing is None:
        oldest = next(iter(placements.answers.values()), None)
        if oldest is None or oldest.time_ms >= before_ms:
            return
        desk.filing = Filing(before_ms, claims_ends())
    ends = zip(ledgers, desk.filing.claims_ends, desk.claims_ends, strict=True)
    if not all(ledger.next_offset >= max(end, taken_over) for ledger, end, taken_over in ends):
        return
    busy = desk.cancels.keys() | {release.claim.claim_id.rsplit("/", 2)[0] for release in desk.releases.values()}
    found = placements.file_away(desk.filing.before_ms, busy, answers_max)
    for answer in found:
        for named in answer.named:
            claim = ledgers[named.partition].claims.get(named.claim_id)
            if claim is not None and claim.node_id == named.node_id:
                desk.held.setdefault(answer.request_id, {})[named.claim_id] = named
    if len(found) < answers_max:
        desk.filing = None


def said(desk: Desk, send: Sender, now_ms: int) -> Iterator[Message]:
    """What is to be written of it now. It is left out where the topic was deleted: then a start reads more, as before it was made."""
    due = desk.placements.filed.due
    for record in due[:SAID_PER_TURN]:
        yield send.answered(record, now_ms)
    del due[:SAID_PER_TURN]
