"""Room that is held and may be given back in a moment: who finds none meanwhile is not refused, but waits a little and is decided again.

There are two kinds. An instance holds two nodes, because two owners of its request claimed it at the same time: who takes a request over
stays on the node where it is held (`scheduling.holding`), but what its former owner had on its way may land after that was chosen. The
loser goes as soon as the counting result was read.

And a request of several instances holds some of them and was refused others: it gets all in the end, or gives back what it has. If those
that hold parts refused each other, each for what the others have, none would be placed where one fits; so of two that do the one with the
smaller id waits, and the other fails and lets go.
"""

from __future__ import annotations

from collections.abc import Iterator

from projections.node import Claim
from schemas.claims import ClaimItem, ClaimRequested
from streams.placement.work import Work
from streams.scheduling.fleet import Fleet

PATIENCE_MS = 5_000
"""So long a request waits for others at most, and for any of them: they let go within milliseconds, unless their owner died as well."""
REMEMBERED = 2_048
"""Requests whose claims are remembered, twice as many at most: records of two owners of one request stand close together."""

_Said = list[ClaimRequested]
"""The claims of one request, as they stand in the log."""


class Unsettled:
    """What one scheduler knows of it, from the claims that it folds. Times are of the boot-time clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._ledgers = fleet.ledgers
        self._young: dict[str, _Said] = {}
        self._old: dict[str, _Said] = {}
        self._shared: dict[str, _Said] = {}
        """Those of requests that two owners claimed for, or two starts of one."""
        self._partly: dict[str, int] = {}
        """Until when a request of several claims is waited for that was refused one."""

    def claimed(self, event: ClaimRequested) -> None:
        """A record of claims was folded."""
        request_id = event.request_id
        said = self._young.get(request_id) or self._old.get(request_id)
        if said is not None:
            said.append(event)
            if _start_of(event) != _start_of(said[0]):
                self._shared[request_id] = said
            return
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, {}
            self._shared = {name: each for name, each in self._shared.items() if self._is_double(each)}
            self._partly = {name: until_ms for name, until_ms in self._partly.items() if self._is_part(name)}
        self._young[request_id] = [event]

    def refused(self, request_id: str, boot_ms: int) -> None:
        """A claim of the request was refused."""
        said = self._said_of(request_id)
        if len(said) > 1 or (said and len(said[0].items) > 1):
            self._partly[request_id] = boot_ms + PATIENCE_MS

    def delay(self, work: Work, boot_ms: int) -> bool:
        """Whether a request that finds no room waits."""
        if not (self._has_doubles() or self._has_parts(work, boot_ms)):
            work.is_delayed = False
            return False
        if work.delayed_until_ms < 0:
            work.delayed_until_ms = boot_ms + PATIENCE_MS
        work.is_delayed = boot_ms < work.delayed_until_ms
        return work.is_delayed

    def _said_of(self, request_id: str) -> _Said:
        return self._young.get(request_id) or self._old.get(request_id) or []

    def _held(self, said: _Said) -> Iterator[tuple[ClaimItem, Claim | None]]:
        """Each claim of these, and what is held by it."""
        for item in [item for event in said for item in event.items]:
            found = (ledger.claims.get(item.claim_id) for ledger in self._ledgers)
            yield item, next((claim for claim in found if claim is not None), None)

    def _has_doubles(self) -> bool:
        while self._shared:
            request_id, said = next(iter(self._shared.items()))
            if self._is_double(said):
                return True
            del self._shared[request_id]
        return False

    def _is_double(self, said: _Said) -> bool:
        """Whether one of the instances is held on two nodes. What it keeps on one that it leaves is meant to be held."""
        nodes: dict[str, str] = {}
        claims = (claim for _, claim in self._held(said) if claim is not None and not claim.keep)
        return any(nodes.setdefault(claim.instance_id, claim.node_id) != claim.node_id for claim in claims)

    def _has_parts(self, work: Work, boot_ms: int) -> bool:
        """Whether another request holds a part that this one is to wait for."""
        own_id = work.asked.request.request_id
        for request_id, until_ms in list(self._partly.items()):
            if boot_ms >= until_ms or not self._is_part(request_id):
                del self._partly[request_id]
            elif request_id != own_id and (own_id < request_id or not any(seat.state == "held" for seat in work.seats)):
                return True
        return False

    def _is_part(self, request_id: str) -> bool:
        """Whether some of what the request claimed is held, and some is not."""
        wanted: dict[tuple[str, bool], bool] = {}
        for item, claim in self._held(self._said_of(request_id)):
            seat = item.instance_id, item.keep
            wanted[seat] = wanted.get(seat, False) or claim is not None
        return len({*wanted.values()}) == 2


def _start_of(event: ClaimRequested) -> tuple[str, str]:
    """Who claimed, and in which of its starts: what the ids of its claims have between the last slash and the counter."""
    return event.owner, event.items[0].claim_id.rpartition("/")[2].rpartition(".")[0]
