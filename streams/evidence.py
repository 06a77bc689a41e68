"""Keeping evidence within bounds: results and verdicts stay under their topics' limits, however many instances or shortfalls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import structs

from schemas.codec import encode
from schemas.resources import Shortfall
from schemas.results import ClaimOutcome, Decision, InstancesPlaced, PlacementFailed
from schemas.topics import RESULTS, TOPICS, VERDICTS
from schemas.units import bounded_text
from streams.scheduling.overlay import with_one, without

Result = TypeVar("Result", InstancesPlaced, PlacementFailed)

IN_FULL_MAX = 10
"""Decisions that keep all of their evidence when a result would be too large: the others differ from them by little."""


def shortened(decisions: Sequence[Decision], claim_ids: Sequence[str], process: str) -> tuple[Decision, ...]:
    """The decisions without what repeats: an overlay that is the one before it and that one's own claim is left out.

    `claim_ids[k]` is what decision `k` was claimed as, `process` whose claims they are. `streams.scheduling.explain.spelled_out` puts back
    what was left out. Where one found nothing, those made with it were never claimed: what it lay under is spelled out, since no record
    says what a counter stood for.
    """
    if len(decisions) < 2:
        return tuple(decisions)
    failed_on = next((decision.cut for decision in decisions if not decision.chosen), None)
    unclaimed = _Unclaimed(process)
    short: list[Decision] = []
    for k, decision in enumerate(decisions):
        before = decisions[k - 1] if k else None
        if before is not None and decision.cut == before.cut and decision.overlay == with_one(before.overlay, process, claim_ids[k - 1]):
            short.append(structs.replace(decision, overlay=()))
        elif decision.cut == failed_on:
            short.append(structs.replace(decision, overlay=unclaimed.over(decision)))
        else:
            short.append(decision)
        if decision.cut == failed_on and decision.chosen:
            unclaimed.add(decision, claim_ids[k])
    return tuple(short)


class _Unclaimed:
    """The choices on the cut where one found nothing, in their order: none of them was claimed."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._claim_ids: list[str] = []
        self._spelled: list[str] = []
        self._others: tuple[str, ...] = ()
        self._overlay: tuple[str, ...] | None = None
        """What lies over the next decision if nothing but choices of this cut was laid since `others` was worked out."""

    def over(self, decision: Decision) -> tuple[str, ...]:
        """What lay over it: other claims by their counters, the choices spelled out."""
        if decision.overlay != self._overlay:
            self._overlay = decision.overlay
            self._others = without(decision.overlay, self._process, self._claim_ids)
        return (*self._others, *self._spelled)

    def add(self, decision: Decision, claim_id: str) -> None:
        """A choice on that cut, which whatever is decided next lay under."""
        self._claim_ids.append(claim_id)
        self._spelled.append(f"{claim_id}@{decision.chosen}")
        if decision.overlay == self._overlay:
            self._overlay = with_one(decision.overlay, self._process, claim_id)


def within_bounds(result: Result) -> tuple[Result, bytes]:
    """The result and its bytes with as much evidence as its topic has room for.

    The decision that found nothing, the reason of a failure, keeps all of its own, unless there is no room for any.
    """
    value = encode(result)
    for lessen in _LESS:
        if len(value) <= TOPICS[RESULTS].value_bytes_max:
            break
        kept = [decision if k < IN_FULL_MAX or not decision.chosen else lessen(decision) for k, decision in enumerate(result.decisions)]
        result = structs.replace(result, decisions=tuple([decision for decision in kept if decision is not None]))
        value = encode(result)
    if len(value) > TOPICS[RESULTS].value_bytes_max:
        result = structs.replace(result, decisions=())
        value = encode(result)
    return result, value


def verdict_within_bounds(outcome: ClaimOutcome) -> ClaimOutcome:
    """The outcome with as many of its shortfalls as its topic has room for: the first node's first, each under its node in `tried`.

    What they say in words beside the numbers is no longer than a text may be.
    """
    room = TOPICS[VERDICTS].value_bytes_max - len(encode(structs.replace(outcome, shortfalls=((),) * len(outcome.shortfalls))))
    kept: list[tuple[Shortfall, ...]] = []
    for shortfalls in outcome.shortfalls:
        of_node: list[Shortfall] = []
        for shortfall in shortfalls:
            short = structs.replace(shortfall, detail=bounded_text(shortfall.detail))
            room -= len(encode(short)) + len(",")
            if room < 0:
                break
            of_node.append(short)
        kept.append(tuple(of_node))
    return structs.replace(outcome, shortfalls=tuple(kept))


def _without_scores(decision: Decision) -> Decision:
    return structs.replace(decision, best=())


def _without_counts(decision: Decision) -> Decision:
    return structs.replace(_without_scores(decision), rejections=(), nearest_miss=None)


def _without_alternates(decision: Decision) -> Decision:
    return structs.replace(_without_counts(decision), alternates=())


def _left_out(decision: Decision) -> Decision | None:
    del decision
    return None


_LESS: tuple[Callable[[Decision], Decision | None], ...] = (_without_scores, _without_counts, _without_alternates, _left_out)
