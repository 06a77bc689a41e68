"""Homes of affinity groups as one scheduler keeps them: proposed before the first member is claimed, closed before a group moves (rule 10).

A group's members are claimed on its open home only, under that home's epoch. A home that is to be another one is closed first: the ledger
accepts that only while no member is held or shown there, and from then on refuses claims of its epoch. Only when the close was read back
accepted the next one is proposed. So no two nodes ever hold members of one group, whatever schedulers do at the same time; of two proposals
the first in the group's partition counts. An operator closes the home of a dead node, on which members are still held.

From its proposal until its members are claimed nothing on the log says that a home's room is spoken for. The scheduler that proposed it
keeps it from what came later; what others take meanwhile shows when the members are decided, and then the home is left for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from schemas.claims import ClaimItem, GroupHomeClosed, GroupHomeProposed
from schemas.requests import PlacementRequested
from schemas.results import Decision
from streams.log.base import Message
from streams.placement.messages import Sender
from streams.placement.work import Seat, Work
from streams.scheduling.fleet import Fleet, GroupHome

_Word = tuple[str, int, bool]
"""Group, epoch, and whether it is a close."""


class Chosen(NamedTuple):
    """A node chosen to be a home, and what a member claims there; `is_evident`: the decision can be made again from the log alone."""

    decision: Decision
    item: ClaimItem
    is_evident: bool = True


Choose = Callable[[Work, Seat], tuple[Decision, ClaimItem]]


class _Kept(NamedTuple):
    """The room that the members of a work will claim on the node that it proposed as their home."""

    work: Work
    node_id: str
    partition: int
    items: tuple[ClaimItem, ...]


class Homes:
    """What one scheduler said of homes and has not read back. Works of one group share its words."""

    def __init__(self, fleet: Fleet, send: Sender) -> None:
        self._fleet = fleet
        self._send = send
        self._said: dict[_Word, str] = {}
        self._words: dict[str, _Word] = {}
        self._kept: dict[str, _Kept] = {}
        """What is kept for works that proposed a home and have not decided their members since, by request."""

    def is_awaited(self, work: Work) -> bool:
        """Whether a word that the work needs is still on its way."""
        return work.awaits in self._words

    def read_back(self, record_id: str) -> None:
        """A record about a home was folded."""
        word = self._words.pop(record_id, None)
        if word is not None:
            del self._said[word]

    def to_find(self, request: PlacementRequested) -> GroupHome | None:
        """The home that has to be found before anything of the request is claimed; None if there is one or none is needed.

        A dry run claims nothing, so it needs none.
        """
        if request.dry_run or not has_home(request):
            return None
        assert request.group is not None
        home = self._fleet.home_of(request.group.group_id)
        return None if home.node_id else home

    def to_leave(self, work: Work) -> GroupHome | None:
        """The open home that the work may have closed because nothing fits there: one without members."""
        request = work.asked.request
        if request.dry_run or not has_home(request):
            return None
        assert request.group is not None
        return self._fleet.empty_home(request.group.group_id)

    def keeps_from(self, work: Work, seat: Seat, chosen: Chosen, choose: Choose) -> bool:
        """Whether a seat waits for members of a group who are to have the room where it would go."""
        return bool(self._kept) and self.beside(work, seat, chosen, choose) is not chosen

    def beside(self, work: Work, seat: Seat, chosen: Chosen, choose: Choose) -> Chosen:
        """What is chosen, or would be if the members of all requests that came before were claimed already; then the work waits for one.

        No evidence can name those, since they may never be claimed; what was decided for the seat stays.
        """
        before = [] if work.asked.request.dry_run else [each for each in self._kept.values() if _came(each.work) < _came(work)]
        there = [each for each in before if each.node_id == chosen.decision.chosen]
        if not there:
            return chosen
        for each in before:
            for item in each.items:
                self._fleet.lay(item, each.node_id, each.partition)
        try:
            other = Chosen(*choose(work, seat), is_evident=False)
        finally:
            seat.decision = chosen.decision
            for each in before:
                for item in each.items:
                    self._fleet.lift(item.claim_id)
        if other.decision.chosen == chosen.decision.chosen:
            return chosen
        work.awaits = there[0].work.awaits
        return other

    def let_go(self, work: Work) -> None:
        """The members of the work are decided now, or never."""
        self._kept.pop(work.asked.request.request_id, None)

    def joins(self, work: Work, epoch: int) -> bool:
        """Whether a home of this epoch is proposed already and on its way; then the work waits for it."""
        assert work.asked.request.group is not None
        said = self._said.get((work.asked.request.group.group_id, epoch, False))
        if said is not None:
            work.awaits = said
        return said is not None

    def propose(self, work: Work, epoch: int, chosen: Chosen, record_id: str, now_ms: int) -> Message:
        """Say that the chosen node is to be the home, and have the work wait until that is read back: where its first seat goes is open."""
        request, node_id = work.asked.request, chosen.decision.chosen
        assert request.group is not None
        work.proposed, work.seats[0].decision = epoch, None
        work.home = structs.replace(chosen.decision, attempt=0) if chosen.is_evident else None
        self._note(work, (request.group.group_id, epoch, False), record_id)
        members = [(f"{record_id}/{index}", request.instance(index)) for index in range(request.count)]
        items = tuple([structs.replace(chosen.item, claim_id=claim_id, instance_id=instance_id) for claim_id, instance_id in members])
        self._kept[request.request_id] = _Kept(work, node_id, self._fleet.partition_of_node(node_id), items)
        record = GroupHomeProposed(group_id=request.group.group_id, record_id=record_id, epoch=epoch, node_id=node_id)
        return self._send.home(record, request.request_id, now_ms)

    def close(self, work: Work, home: GroupHome, record_id: str, now_ms: int) -> list[Message]:
        """Say that the node is no longer the home, and have the work wait until that is read back. Nothing if it was said already."""
        group = work.asked.request.group
        assert group is not None
        word = group.group_id, home.epoch, True
        if word in self._said:
            work.awaits = self._said[word]
            return []
        self._note(work, word, record_id)
        record = GroupHomeClosed(node_id=home.node_id, record_id=record_id, group_id=group.group_id, epoch=home.epoch)
        return [self._send.home(record, work.asked.request.request_id, now_ms)]

    def own_choice(self, work: Work) -> tuple[Decision, ...]:
        """How the group's home was chosen, if the work proposed it: of two proposals one counts, and a home may be closed."""
        group = work.asked.request.group
        if work.home is None or group is None:
            return ()
        home = self._fleet.home_of(group.group_id)
        return (work.home,) if (home.epoch, home.node_id) == (work.proposed, work.home.chosen) else ()

    def _note(self, work: Work, word: _Word, record_id: str) -> None:
        work.awaits = self._said[word] = record_id
        self._words[record_id] = word


def _came(work: Work) -> tuple[int, str]:
    """The order in which requests came, whichever partition they are in."""
    return work.asked.time_ms, work.asked.request.request_id


def has_home(request: PlacementRequested) -> bool:
    """Whether the request's instances belong to a group that has to stay together."""
    return request.group is not None and request.group.policy == "affinity"
