"""Room that is held and may be given back in a moment: who finds none meanwhile is not refused, but waits a little and is decided again.

There are two kinds. An instance holds two nodes, because two owners of its request claimed it at the same time: who takes a request over
stays on the node where it is held (`scheduling.holding`), but what its former owner had on its way may land after that was chosen. The
loser goes as soon as the counting result was read.

And a request of several instances holds some of them and was refused others: it gets all in the end, or gives back what it has. If those
that hold parts refused each other, each for what the others have, none would be placed where one fits; so of two that do the one with the
smaller id waits, and the other fails and lets go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from projections.node import Claim
from schemas.claims import ClaimItem, ClaimRequested
from schemas.results import ClaimOutcome
from streams.placement.work import Work
from streams.scheduling.fleet import Fleet

PATIENCE_MS = 5_000
"""So long a request waits for others at most, and for any of them: they let go within milliseconds, unless their owner died as well."""
WAITING_MAX = 128
"""So many begin to wait in that time at most, and for so many parts: where more find no room, the fleet is full."""
LOOK_MS = 250
"""Who waits is decided again so often at most, where something was folded."""
REMEMBERED = 2_048
"""Requests whose claims are remembered, twice as many at most: records of two owners of one request stand close together."""

_Said = list[tuple[int, ClaimRequested]]
"""The claims of one request, as they stand in the log, each with its partition."""


class Unsettled:
    """What one scheduler knows of it, from the claims that it folds. Times are of the boot-time clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._young: dict[str, _Said] = {}
        self._old: dict[str, _Said] = {}
        self._shared: dict[str, _Said] = {}
        """Those of requests that two owners claimed for, or two starts of one."""
        self._partly: dict[str, int] = {}
        """Until when a request of several claims is waited for that was refused one."""
        self._known_at: tuple[int, ...] = ()
        """The cut at which it was looked last who holds a part (`_parts`), and whether something is held twice (`_is_twice`)."""
        self._parts: list[str] = []
        self._is_twice = False
        self._waits: deque[int] = deque()
        """Until when those wait at most that began to last."""

    def claimed(self, partition: int, event: ClaimRequested) -> None:
        """A record of claims was folded."""
        request_id = event.request_id
        said = self._said_of(request_id)
        if said:
            said.append((partition, event))
            if _start_of(event) != _start_of(said[0][1]):
                self._shared[request_id] = said
            return
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, {}
            self._shared = {name: each for name, each in self._shared.items() if self._is_double(each)}
        self._young[request_id] = [(partition, event)]

    def became(self, outcomes: Sequence[ClaimOutcome], boot_ms: int) -> None:
        """This became of the claims of a record."""
        for outcome in outcomes:
            said = self._said_of(outcome.request_id) if outcome.outcome == "refused" else []
            if sum(len(event.items) for _, event in said) > 1:
                self._partly.pop(outcome.request_id, None)
                self._partly[outcome.request_id] = boot_ms + PATIENCE_MS
        for request_id in {outcome.request_id for outcome in outcomes if outcome.outcome == "granted"} if self._partly else ():
            if request_id in self._partly and self._shares(request_id) == {True}:
                del self._partly[request_id]  # It has all that it wants: what it loses later it does not get back.
        if len(self._partly) > WAITING_MAX:
            self._make_room(boot_ms)

    def _make_room(self, boot_ms: int) -> None:
        """Forget who is not waited for any more, then who holds nothing, and in the end who was refused first."""
        self._partly = {name: until_ms for name, until_ms in self._partly.items() if boot_ms < until_ms}
        too_many = max(0, len(self._partly) - WAITING_MAX)
        for name in sorted(self._partly, key=lambda each: True in self._shares(each))[:too_many] if too_many else ():
            del self._partly[name]

    def delay(self, work: Work, boot_ms: int) -> bool:
        """Whether a request that finds no room waits."""
        work.is_delayed = self._is_any(work, boot_ms) and self._has_patience(work, boot_ms)
        work.delayed_cut, work.delayed_again_ms = self._fleet.cut, boot_ms + LOOK_MS
        return work.is_delayed

    def is_to_wait(self, work: Work, boot_ms: int) -> bool:
        """Whether one that waits goes on with that, and is not decided again: there is nothing new, or there just was."""
        is_news = work.delayed_cut != self._fleet.cut and boot_ms >= work.delayed_again_ms
        work.is_delayed = not is_news and boot_ms < work.delayed_until_ms and self._is_any(work, boot_ms)
        return work.is_delayed

    def _has_patience(self, work: Work, boot_ms: int) -> bool:
        if work.delayed_until_ms < 0:
            while self._waits and self._waits[0] <= boot_ms:
                self._waits.popleft()
            if len(self._waits) >= WAITING_MAX:
                return False
            self._waits.append(boot_ms + PATIENCE_MS)
            work.delayed_until_ms = min(boot_ms + PATIENCE_MS, work.taken_up_boot_ms + work.give_up_ms * 3 // 4)
        return boot_ms < work.delayed_until_ms

    def _is_any(self, work: Work, boot_ms: int) -> bool:
        """Whether an instance is held twice, or another request holds a part that this one is to wait for."""
        cut = self._fleet.cut
        if self._known_at != cut:
            self._known_at, self._is_twice = cut, self._has_doubles()
            self._parts = [name for name, until_ms in self._partly.items() if boot_ms < until_ms and len(self._shares(name)) == 2]
        request_id = work.asked.request.request_id
        has_part = bool(work.desk.held.get(request_id))
        others = (name for name in self._parts if name != request_id and boot_ms < self._partly.get(name, 0))
        return self._is_twice or any(not has_part or request_id < name for name in others)

    def _said_of(self, request_id: str) -> _Said:
        return self._young.get(request_id) or self._old.get(request_id) or []

    def _claims(self, said: _Said) -> Iterator[tuple[ClaimItem, Claim | None]]:
        """Each of these, and what is held by it."""
        for partition, event in said:
            claims = self._fleet.ledgers[partition].claims
            for item in event.items:
                yield item, claims.get(item.claim_id)

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
        for _, claim in self._claims(said):
            if claim is not None and not claim.keep and nodes.setdefault(claim.instance_id, claim.node_id) != claim.node_id:
                return True
        return False

    def _shares(self, request_id: str) -> set[bool]:
        """Whether what the request claimed is held: both where some of it is, and some is not."""
        wanted: dict[tuple[str, bool], bool] = {}
        for item, claim in self._claims(self._said_of(request_id)):
            seat = item.instance_id, item.keep
            wanted[seat] = wanted.get(seat, False) or claim is not None
        return {*wanted.values()}


def _start_of(event: ClaimRequested) -> tuple[str, str]:
    """Who claimed, and in which of its starts: what the ids of its claims have between the last slash and the counter."""
    return event.owner, event.items[0].claim_id.rpartition("/")[2].rpartition(".")[0]
