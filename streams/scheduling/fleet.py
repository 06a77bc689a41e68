"""The fleet as engines read it: a room for each known node in order of `node_id`, with the decider's own claims in flight laid over.

A room is worked out anew only when the fold touched its node or something was laid over it or lifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import attrgetter, contains
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from projections.ledger import Ledger
from projections.room import Room, mark_of, room
from schemas.claims import ClaimItem
from schemas.partitioner import partition_of
from schemas.requests import PlacementRequested
from streams.scheduling.ask import Ask, ask_of, seed_of
from streams.scheduling.crowd import Crowd
from streams.scheduling.gathering import Gathering
from streams.scheduling.moving import told_apart, with_its_pages
from streams.scheduling.options import OPTIONS, Options
from streams.scheduling.whereabouts import Whereabouts

GATHERING, WHEREABOUTS = "groups", "instances"
"""The followers that know where groups are, and instances."""
_instances, _next_offset = attrgetter("instances"), attrgetter("next_offset")


class GroupHome(NamedTuple):
    """Where newcomers of an affinity group may go: `nodes`, or anywhere if there are none.

    `node_id` is its open home, "" if it has none; `epoch` is that home's, or the one that the next home would have (rule 10).
    """

    epoch: int
    node_id: str
    nodes: frozenset[str]


class Follower(Protocol):
    """What keeps something of its own in step with the rooms."""

    def follow(self, rooms: list[Room]) -> None:
        """The list has new rooms: begin anew. It stays the fleet's own."""

    def changed(self, ordinal: int) -> None:
        """The room with this number was made anew."""


_Index = TypeVar("_Index", Gathering, Whereabouts)


class Fleet:
    """All nodes of `ledgers` (one for each partition of `claims`, in order)."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.ledgers = tuple(ledgers)
        self._rooms: list[Room] = []
        self._at: dict[str, int] = {}
        self._dirty: dict[str, int] = {}
        self._laid: dict[str, tuple[str, int]] = {}
        self._over: dict[str, dict[str, ClaimItem]] = {}
        self._texts: dict[str, str] = {}
        self.followers: dict[str, Follower] = {}
        self._homes_left: dict[str, int] = {}
        self._homes_found: dict[str, GroupHome] = {}
        self.crowd = Crowd()
        """Figures of the rooms, as of the last call of `rooms`."""
        for ledger in self.ledgers:
            self.touch(ledger.partition, ledger.nodes)

    @property
    def cut(self) -> tuple[int, ...]:
        """The next offset of each partition of `claims`."""
        return tuple(map(_next_offset, self.ledgers))

    @property
    def overlay(self) -> tuple[str, ...]:
        """What is laid over the fold, as `claim id@node`, in the order it was laid."""
        return tuple(self._texts.values())

    def touch(self, partition: int, node_ids: Iterable[str]) -> None:
        """The fold of `partition` changed these nodes."""
        for node_id in node_ids:
            self._dirty[node_id] = partition

    def lay(self, item: ClaimItem, node_id: str, partition: int) -> None:
        """Lay an own claim in flight over its node until it is lifted."""
        self._laid[item.claim_id] = (node_id, partition)
        self._over.setdefault(node_id, {})[item.claim_id] = item
        self._texts[item.claim_id] = f"{item.claim_id}@{node_id}"
        self._dirty[node_id] = partition

    def lift(self, claim_id: str) -> None:
        """Take an own claim off again: it was read back, or never made. One that is not laid is let pass."""
        laid = self._laid.pop(claim_id, None)
        if laid is None:
            return
        node_id, partition = laid
        over = self._over[node_id]
        del over[claim_id], self._texts[claim_id]
        if not over:
            del self._over[node_id]
        self._dirty[node_id] = partition

    def laid(self) -> frozenset[str]:
        """The claims in flight."""
        return frozenset(self._laid)

    def is_any_laid(self, claim_ids: frozenset[str]) -> bool:
        """Whether one of these claims is in flight."""
        return bool(claim_ids) and not claim_ids.isdisjoint(self._laid)

    def rooms(self) -> list[Room]:
        """The room of every known node, in order of `node_id`. The list is the fleet's own: read it, and do not keep it."""
        if self._dirty:
            self._refresh()
        return self._rooms

    def followed(self, name: str, follower: Follower) -> None:
        """From now on by this follower, under this name."""
        follower.follow(self.rooms())
        self.followers[name] = follower

    def knows(self, instance_id: str) -> bool:
        """Whether any node has something of this instance, in the fold or laid over it."""
        self.rooms()
        return any(map(contains, self.crowd.figures(_instances).values, repeat(instance_id)))

    def is_known(self, node_id: str) -> bool:
        """Whether the fold has this node."""
        self.rooms()
        return node_id in self._at

    def rooms_of(self, instance_id: str) -> list[Room]:
        """The rooms that an instance is on, in order of `node_id`. The index of them follows from the first that is moved or resized on."""
        on, rooms = self._following(WHEREABOUTS, Whereabouts).on, self.rooms()
        return [rooms[ordinal] for ordinal in sorted(on.get(instance_id, ()))]

    def left_by(self, instance_id: str) -> frozenset[str]:
        """The nodes that hold claims of an instance and have not shown it for longer than another one that shows it.

        One whose audits fail goes on with what it showed before.
        """
        there = self.rooms_of(instance_id)
        latest_ms = max((room.node.seen_ms(instance_id) for room in there if instance_id in room.node.shown), default=-1)
        without = (room.node for room in there if instance_id not in room.node.shown or room.node.unknown_since_ms is not None)
        return frozenset([node.node_id for node in without if node.seen_ms(instance_id) < latest_ms])

    def _following(self, name: str, kind: type[_Index]) -> _Index:
        """The follower of that name and kind; it follows from the first time on that it is asked for."""
        known = self.followers.get(name)
        if not isinstance(known, kind):
            known = kind()
            self.followed(name, known)
        return known

    def room_of(self, node_id: str) -> Room:
        """The room of a known node."""
        return self.rooms()[self._at[node_id]]

    def partition_of_node(self, node_id: str) -> int:
        """The partition of `claims` a known node belongs to."""
        return self.rooms()[self._at[node_id]].partition

    def _refresh(self) -> None:
        grown = False
        changed: list[int] = []
        for node_id, partition in self._dirty.items():
            node = self.ledgers[partition].nodes.get(node_id)
            if node is None:
                continue  # Laid over a node that this fold does not know yet.
            over = self._over.get(node_id)
            overlay = tuple(over.values()) if over else ()
            at = self._at.get(node_id)
            if at is None:
                grown = True
                self._rooms.append(room(node, partition, mark_of(node_id), overlay))
            else:
                other = self._rooms[at] = room(node, partition, self._rooms[at].mark, overlay)
                self.crowd.put(at, other)
                changed.append(at)
        self._dirty.clear()
        if grown:
            self._rooms.sort(key=lambda room: room.node_id)
            self._at = {room.node_id: at for at, room in enumerate(self._rooms)}
            self.crowd.begin(self._rooms)
        for follower in self.followers.values():
            if grown:
                follower.follow(self._rooms)
            else:
                for at in changed:
                    follower.changed(at)

    def ask(self, request: PlacementRequested, index: int, *, owner: str, attempt: int = 1, options: Options = OPTIONS) -> Ask:
        """The ask for one instance on this fold: with its seed, and where its group is. `options` are the policy's."""
        seed = seed_of(owner, request.request_id, index, attempt)
        return self.ask_seeded(request, index, seed=seed, attempt=attempt, options=options)

    def ask_seeded(self, request: PlacementRequested, index: int, *, seed: int, attempt: int = 1, options: Options = OPTIONS) -> Ask:
        """As `ask`, with the seed of a decision that was recorded.

        As long as an affinity group is nowhere, the first of several instances is asked for in the company of all others: one node must
        take them.
        """
        group = request.group
        if group is None or group.policy != "affinity":
            return self._moving(ask_of(request, index, seed=seed, attempt=attempt, options=options))
        home = self.home_of(group.group_id)
        found = ask_of(request, index, seed=seed, attempt=attempt, group_epoch=home.epoch, group_nodes=home.nodes, options=options)
        found = self._moving(found)
        if home.nodes or index or request.count == 1:
            return found
        company = tuple([replace(found.item, instance_id=request.instance(number)) for number in range(1, request.count)])
        return replace(found, company=company)

    def _moving(self, ask: Ask) -> Ask:
        """With what a running guest takes along from where it is, and what one to be resized has left behind it."""
        source = ask.request.source_node
        if ask.request.action == "resize":
            ask = replace(ask, left_nodes=self.left_by(ask.instance_id))
        elif ask.request.live and ask.item.numa and self.is_known(source):
            ask = with_its_pages(ask, self.room_of(source).node)
        has_wants = ask.item.numa or ask.item.pci
        return told_apart(ask, [room.node for room in self.rooms_of(ask.instance_id)]) if has_wants else ask

    def home_of(self, group_id: str) -> GroupHome:
        """An affinity group's open home; without one, the nodes where members are and that no home was closed on."""
        if group_id in self._homes_found:
            return self._homes_found[group_id]
        home = self.ledgers[partition_of(group_id.encode(), len(self.ledgers))].homes(group_id)
        rooms = self.rooms()
        if home is not None and home.epoch > self._homes_left.get(group_id, 0):
            at = self._at.get(home.node_id)
            if at is None or home.epoch > rooms[at].node.homes_closed.get(group_id, 0):
                return GroupHome(home.epoch, home.node_id, frozenset({home.node_id}))
        there = [rooms[at] for at in self._following(GATHERING, Gathering).at.get(group_id, ())]
        nodes = frozenset(room.node_id for room in there if group_id not in room.node.homes_closed and room.members(group_id))
        return GroupHome(1 if home is None else home.epoch + 1, "", nodes)

    def other_policy(self, group_id: str, policy: str) -> tuple[str, str] | None:
        """A policy that claims of a server group have, and a node where one of them is; None if some have this one, or none are known.

        Where members are without a claim, at an open home of their group, that says affinity.
        """
        rooms, other = self.rooms(), None
        for at in sorted(self._following(GATHERING, Gathering).at.get(group_id, ())):
            node = rooms[at].node
            claims = (claim.group for instance_id in node.members(group_id) for claim in node.claims.get(instance_id, ()))
            for group in (*claims, *(item.group for item in rooms[at].overlay)):
                if group is not None and group.group_id == group_id:
                    if group.policy == policy:
                        return None
                    other = other or (group.policy, node.node_id)
        home = self.home_of(group_id).node_id if other is None and policy != "affinity" else ""
        lives_there = home != "" and self.is_known(home) and self.room_of(home).members(group_id)
        return ("affinity", home) if lives_there else other

    def empty_home(self, group_id: str) -> GroupHome | None:
        """An affinity group's open home, on a known node where nobody of it is: schedulers leave it where it does not take the next."""
        home = self.home_of(group_id)
        if not home.node_id or not self.is_known(home.node_id) or self.room_of(home.node_id).members(group_id):
            return None
        return home

    def leave_home(self, group_id: str, epoch: int) -> None:
        """As if the homes of an affinity group up to this epoch were closed, which nobody wrote: for questions."""
        self._homes_left[group_id] = epoch

    def find_home(self, group_id: str, node_id: str) -> None:
        """As if an affinity group without open home had one here, which nobody wrote: for questions."""
        self._homes_found[group_id] = GroupHome(self.home_of(group_id).epoch, node_id, frozenset({node_id}))

    def take_home_back(self, group_id: str) -> None:
        """An affinity group's home is again what the fold says."""
        self._homes_left.pop(group_id, None)
        self._homes_found.pop(group_id, None)
