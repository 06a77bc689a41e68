"""Instances that hold two nodes for a moment, because two owners of their request claimed them at the same time.

Who takes a request over stays on the node where it is held (`scheduling.holding`), but what its former owner had on its way may land after
that was chosen. The loser goes as soon as the counting result was read. Until then it takes room that is nobody's: who finds none is not
refused, but waits a little and is decided again.
"""

from __future__ import annotations

from schemas.claims import ClaimRequested
from streams.placement.work import Work
from streams.scheduling.fleet import Fleet

PATIENCE_MS = 5_000
"""So long a request waits for the losers of others at most: they go within milliseconds, unless the owner of those died as well."""
REMEMBERED = 2_048
"""Requests whose claims are remembered, twice as many at most: records of two owners of one request stand close together."""

_Said = list[ClaimRequested]
"""The claims of one request, as they stand in the log."""


class Doubles:
    """What one scheduler knows of them, from the claims that it folds."""

    def __init__(self, fleet: Fleet) -> None:
        self._ledgers = fleet.ledgers
        self._young: dict[str, _Said] = {}
        self._old: dict[str, _Said] = {}
        self._shared: dict[str, _Said] = {}
        """Those of requests that two owners claimed for, or two starts of one."""

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
        self._young[request_id] = [event]

    def delay(self, work: Work, boot_ms: int) -> bool:
        """Whether a request that finds no room waits, because some is held twice; `boot_ms` is the clock that it is measured with."""
        if not self._are_there():
            work.is_delayed = False
            return False
        if work.delayed_until_ms < 0:
            work.delayed_until_ms = boot_ms + PATIENCE_MS
        work.is_delayed = boot_ms < work.delayed_until_ms
        return work.is_delayed

    def _are_there(self) -> bool:
        while self._shared:
            request_id, said = next(iter(self._shared.items()))
            if self._is_double(said):
                return True
            del self._shared[request_id]
        return False

    def _is_double(self, said: _Said) -> bool:
        """Whether one of the instances is held on two nodes. What it keeps on one that it leaves is meant to be held."""
        nodes: dict[str, str] = {}
        for claim_id in [item.claim_id for event in said for item in event.items]:
            for ledger in self._ledgers:
                claim = ledger.claims.get(claim_id)
                if claim is not None and not claim.keep and nodes.setdefault(claim.instance_id, claim.node_id) != claim.node_id:
                    return True
        return False


def _start_of(event: ClaimRequested) -> tuple[str, str]:
    """Who claimed, and in which of its starts: what the ids of its claims have between the last slash and the counter."""
    return event.owner, event.items[0].claim_id.rpartition("/")[2].rpartition(".")[0]
