"""Homes of affinity groups as one scheduler keeps them: proposed before the first member is claimed, closed before a group moves (rule 10).

A group's members are claimed on its open home only, under that home's epoch. A home that is to be another one is closed first: the ledger
accepts that only while no member is held or shown there, and from then on refuses claims of its epoch. Only when the close was read back
accepted the next one is proposed. So no two nodes ever hold members of one group, whatever schedulers do at the same time; of two proposals
the first in the group's partition counts. An operator closes the home of a dead node, on which members are still held.
"""

from __future__ import annotations

from msgspec import structs

from schemas.claims import GroupHomeClosed, GroupHomeProposed
from schemas.requests import PlacementRequested
from schemas.results import Decision
from streams.log.base import Message
from streams.placement.messages import Sender
from streams.placement.work import Work
from streams.scheduling.fleet import Fleet, GroupHome

_Word = tuple[str, int, bool]
"""Group, epoch, and whether it is a close."""


class Homes:
    """What one scheduler said of homes and has not read back. Works of one group share its words."""

    def __init__(self, fleet: Fleet, send: Sender) -> None:
        self._fleet = fleet
        self._send = send
        self._said: dict[_Word, str] = {}
        self._words: dict[str, _Word] = {}

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
        """The open home that the work may have closed because nothing fits there: one without members that others proposed."""
        request = work.asked.request
        if request.dry_run or not has_home(request):
            return None
        assert request.group is not None
        home = self._fleet.empty_home(request.group.group_id)
        return None if home is None or home.epoch == work.proposed else home

    def joins(self, work: Work, epoch: int) -> bool:
        """Whether a home of this epoch is proposed already and on its way; then the work waits for it."""
        assert work.asked.request.group is not None
        said = self._said.get((work.asked.request.group.group_id, epoch, False))
        if said is not None:
            work.awaits = said
        return said is not None

    def propose(self, work: Work, epoch: int, decision: Decision, record_id: str, now_ms: int) -> Message:
        """Say that the chosen node is to be the home, and have the work wait until that is read back: where its first seat goes is open."""
        group = work.asked.request.group
        assert group is not None
        work.proposed, work.home, work.seats[0].decision = epoch, structs.replace(decision, attempt=0), None
        self._note(work, (group.group_id, epoch, False), record_id)
        record = GroupHomeProposed(group_id=group.group_id, record_id=record_id, epoch=epoch, node_id=decision.chosen)
        return self._send.home(record, work.asked.request.request_id, now_ms)

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


def has_home(request: PlacementRequested) -> bool:
    """Whether the request's instances belong to a group that has to stay together."""
    return request.group is not None and request.group.policy == "affinity"
