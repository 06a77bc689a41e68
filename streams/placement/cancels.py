"""Cancellations and releases of one partition's requests: what is to be said of them now.

A cancellation acts by becoming the counting failure, or after a placement as releases with reason `cancelled`. The place that an instance
keeps where it comes from goes after the one it was to go to, and only if that one went: of a move under way both sides stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from projections.ledger import Ledger
from projections.placements import Named
from schemas.results import Decision
from streams.log.base import Message
from streams.placement.messages import Sender
from streams.placement.work import Counters, Desk, Work


def cancelled(
    desk: Desk,
    send: Sender,
    evidence: Callable[[Work], tuple[Decision, ...]],
    now_ms: int,
    *,
    ledgers: Sequence[Ledger],
    is_folded: Callable[[Sequence[int]], bool],
) -> Iterator[Message]:
    """The failures that may become the counting results of cancelled requests; of those that were placed the releases are begun.

    A request that was read by nobody here and holds claims was placed, and its result is filed away or has left the log: a failure now
    would give its claims back from under its guests. Which are held is known once all is folded up to where the partition was taken over
    (`is_folded`).
    """
    for request_id, cancelling in list(desk.cancels.items()):
        answer = desk.placements.answers.get(request_id)
        named, kept = (answer.named, answer.kept) if answer is not None else ((), ())
        if answer is None and request_id not in desk.placements.open:
            if not is_folded(desk.claims_ends):
                continue
            named = tuple(desk.held.get(request_id, {}).values())
            kept = tuple([each for each in named if _keeps(each, ledgers)])
        moving = [claim for claim in named if claim not in kept]
        if cancelling.releases is None:
            if answer is not None or named or request_id in desk.placements.filed:
                cancelling.kept = kept
                cancelling.releases = {desk.release(claim, "cancelled", cancelling.cancel.offset) for claim in moving}
            elif not cancelling.failure_sent:
                cancelling.failure_sent = True
                work = desk.works.get(request_id)
                decisions = evidence(work) if work is not None else ()
                if work is not None:
                    work.result_sent = True
                taken_up_ms = work.taken_up_ms if work is not None else now_ms
                yield send.failed(request_id, taken_up_ms, "cancelled", "cancelled by its requester", decisions, now_ms)
        if cancelling.kept and cancelling.releases is not None and not cancelling.releases & desk.releases.keys():
            going = _going(moving, ledgers)
            back = [claim for claim in cancelling.kept if _instance(claim) not in going]
            cancelling.kept = ()
            cancelling.releases = {desk.release(claim, "cancelled", cancelling.cancel.offset) for claim in back}
        if cancelling.releases is not None and not cancelling.releases & desk.releases.keys():
            del desk.cancels[request_id]
            if request_id in desk.placements.filed:
                desk.placements.cancels.pop(request_id, None)  # Most come long after the answer, and nothing else would end them here.


def _keeps(claim: Named, ledgers: Sequence[Ledger]) -> bool:
    held = ledgers[claim.partition].claims.get(claim.claim_id)
    return held is not None and held.keep


def _going(claims: Sequence[Named], ledgers: Sequence[Ledger]) -> set[str]:
    """The instances that go where they were placed all the same: what was to be released for them is held."""
    return {_instance(claim) for claim in claims if claim.claim_id in ledgers[claim.partition].claims}


def _instance(claim: Named) -> str:
    """The request and the number of the instance that a claim is for: see `schemas.ids.claim_id`."""
    return claim.claim_id.rpartition("/")[0]


def released(desk: Desk, send: Sender, counters: Counters, now_ms: int) -> Iterator[Message]:
    """The releases that were not sent yet."""
    for release in desk.releases.values():
        if not release.sent:
            release.sent = True
            counters.releases += 1
            yield send.release(release, now_ms)
