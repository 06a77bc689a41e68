"""Keeping evidence within bounds: one result stays under its topic's limit, whatever the number of instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import structs

from schemas.codec import encode
from schemas.results import Decision, InstancesPlaced, PlacementFailed
from schemas.topics import RESULTS, TOPICS
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
    short: list[Decision] = []
    for k, decision in enumerate(decisions):
        before = decisions[k - 1] if k else None
        if (
            before is not None
            and decision.cut == before.cut
            and decision.overlay == with_one(before.overlay, process, claim_ids[k - 1])
        ):
            short.append(structs.replace(decision, overlay=()))
        elif decision.cut == failed_on:
            own = {claim_ids[j]: decisions[j].chosen for j in range(k) if decisions[j].cut == failed_on and decisions[j].chosen}
            spelled = [f"{claim_id}@{node_id}" for claim_id, node_id in own.items()]
            short.append(structs.replace(decision, overlay=(*without(decision.overlay, process, own), *spelled)))
        else:
            short.append(decision)
    return tuple(short)


def within_bounds(result: Result) -> tuple[Result, bytes]:
    """The result and its bytes with as much evidence as its topic has room for.

    The decision that found nothing, the reason of a failure, keeps all of its own.
    """
    value = encode(result)
    for lessen in _LESS:
        if len(value) <= TOPICS[RESULTS].value_bytes_max:
            break
        kept = [decision if k < IN_FULL_MAX or not decision.chosen else lessen(decision) for k, decision in enumerate(result.decisions)]
        result = structs.replace(result, decisions=tuple([decision for decision in kept if decision is not None]))
        value = encode(result)
    return result, value


def _without_scores(decision: Decision) -> Decision | None:
    return structs.replace(decision, best=())


def _without_counts(decision: Decision) -> Decision | None:
    return structs.replace(decision, best=(), rejections=(), nearest_miss=None)


def _without_alternates(decision: Decision) -> Decision | None:
    return structs.replace(decision, best=(), rejections=(), nearest_miss=None, alternates=())


def _left_out(decision: Decision) -> Decision | None:
    del decision
    return None


_LESS: tuple[Callable[[Decision], Decision | None], ...] = (_without_scores, _without_counts, _without_alternates, _left_out)
