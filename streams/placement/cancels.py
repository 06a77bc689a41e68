"""Cancellations and releases of one partition's requests: what is to be said of them now.

A cancellation acts by becoming the counting failure, or after a placement as releases with reason `cancelled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from schemas.results import Decision
from streams.log.base import Message
from streams.placement.messages import Sender
from streams.placement.work import Counters, Desk, Work


def cancelled(
    desk: Desk, send: Sender, evidence: Callable[[Work], tuple[Decision, ...]], now_ms: int, *, is_folded: Callable[[Sequence[int]], bool]
) -> Iterator[Message]:
    """The failures that may become the counting results of cancelled requests; of those that were placed the releases are begun.

    A request that was read by nobody here and holds claims was placed, and its result is filed away or has left the log: a failure now
    would give its claims back from under its guests. Which are held is known once all is folded up to where the partition was taken over
    (`is_folded`).
    """
    for request_id, cancelling in list(desk.cancels.items()):
        answer = desk.placements.answers.get(request_id)
        named = answer.named if answer is not None else ()
        if answer is None and request_id not in desk.placements.open:
            if not is_folded(desk.claims_ends):
                continue
            named = tuple(desk.held.get(request_id, {}).values())
        if cancelling.releases is None:
            if answer is not None or named or request_id in desk.placements.filed:
                cancelling.releases = {desk.release(claim, "cancelled", cancelling.cancel.offset) for claim in named}
            elif not cancelling.failure_sent:
                cancelling.failure_sent = True
                work = desk.works.get(request_id)
                decisions = evidence(work) if work is not None else ()
                if work is not None:
                    work.result_sent = True
                taken_up_ms = work.taken_up_ms if work is not None else now_ms
                yield send.failed(request_id, taken_up_ms, "cancelled", "cancelled by its requester", decisions, now_ms)
        if cancelling.releases is not None and not cancelling.releases & desk.releases.keys():
            del desk.cancels[request_id]
            if request_id in desk.placements.filed:
                desk.placements.cancels.pop(request_id, None)  # Most come long after the answer, and nothing else would end them here.


def released(desk: Desk, send: Sender, counters: Counters, now_ms: int) -> Iterator[Message]:
    """The releases that were not sent yet."""
    for release in desk.releases.values():
        if not release.sent:
            release.sent = True
            counters.releases += 1
            yield send.release(release, now_ms)
