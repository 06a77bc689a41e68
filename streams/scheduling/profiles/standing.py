"""What the filters leave for one ask: what its lane says of all profiles, and the nodes that rules about names tell apart, one by one.

Those few leave their profiles for this one decision; the others share one verdict of each filter about names.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from projections.room import Room, room_for
from streams.scheduling.ask import Ask, Check
from streams.scheduling.filters import LAST, RESTRICTIONS, Filter, filters_of
from streams.scheduling.policy import Policy
from streams.scheduling.profiles.kinds import NAMES
from streams.scheduling.profiles.lane import Lane
from streams.scheduling.profiles.verdicts import PASSES
from streams.scheduling.profiles.view import View


class Standing(Struct, gc=False):
    """What the filters left for one ask.

    `names` are the filters about names that take part, `closed` the place of the first that rejects all nodes but those in `apart`
    (PASSES: none does). `counts` are the rejected by place, `single` those looked at one by one that passed, `short` those that lacked
    amounts, with the place of the filter, `firsts` the first that each place rejected of them. `is_own`: rooms in `apart` were made for
    this very instance.
    """

    names: list[tuple[int, Filter, Check]]
    apart: dict[int, Room]
    closed: int
    counts: dict[int, int]
    single: list[Room]
    short: list[tuple[int, Room]]
    firsts: dict[int, tuple[int, Check]]
    is_own: bool = False


class Filtering:
    """The filters of `policy` over the nodes of `view`; a forced ask is asked only what no policy leaves out."""

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        self._filters = (*RESTRICTIONS, *filters_of(policy), LAST)
        self._forced = (*RESTRICTIONS, LAST)
        self._named, self._named_forced = _named(self._filters), _named(self._forced)

    def filters(self, ask: Ask) -> Sequence[Filter]:
        """All that there are for this ask, in order: their numbers are places."""
        return self._forced if ask.item.forced else self._filters

    def stand(self, lane: Lane, ask: Ask) -> Standing:
        """What is left of the nodes as they are now."""
        is_plain = self._is_plain(ask)
        names = [] if is_plain else self._names(ask)
        apart = {} if is_plain and ask.instance_id not in self._view.on and not ask.request.source_node else self._apart(ask)
        counts = lane.rejected()
        standing = Standing(names, apart, PASSES, counts, [], [], {})
        if names:
            rest = next((ordinal for ordinal in range(len(self._view.rooms)) if ordinal not in apart), None)
            if rest is not None:
                room = self._view.rooms[rest]
                standing.closed = next((place for place, _, check in names if check.rejects(room)), PASSES)
        if apart:
            of = self._view.profiles.of
            for ordinal in apart:
                place = lane.places[of(ordinal).slot]
                if place != PASSES:
                    counts[place] -= 1
        if standing.closed != PASSES:
            behind = [place for place in counts if place > standing.closed]
            before = sum(counts[place] for place in counts if place < standing.closed)
            for place in behind:
                del counts[place]
            counts[standing.closed] = len(self._view.rooms) - len(apart) - before
        if apart:
            self._one_by_one(lane, ask, standing)
        return standing

    def _is_plain(self, ask: Ask) -> bool:
        """Whether the request names nobody: neither hosts nor instances, nor a group."""
        request, hints = ask.request, ask.request.hints
        return (
            ask.item.group is None
            and not (ask.held_nodes or ask.begun_nodes)
            and request.action == "create"
            and not (request.forced_nodes or request.ignored_nodes or request.requested_nodes or request.retry_nodes)
            and not (request.forced_hosts or request.ignored_hosts or request.requested_hosts or request.retry_hosts)
            and not (hints.same_host or hints.different_host)
        )

    def _names(self, ask: Ask) -> list[tuple[int, Filter, Check]]:
        """The filters about names that have something to test."""
        named = self._named_forced if ask.item.forced else self._named
        return [(place, filter_, check) for place, filter_ in named if (check := filter_.prepare(ask)) is not None]

    def _apart(self, ask: Ask) -> dict[int, Room]:
        """The nodes that rules about names tell apart, by ordinal in order, as rooms for this very instance."""
        view, request, item = self._view, ask.request, ask.item
        hints, own = request.hints, set(view.on.get(item.instance_id, ()))
        own.update([ordinal for node_id in ask.begun_nodes if (ordinal := view.ordinals.get(node_id)) is not None])
        ordinals: set[int] = set(own)
        for instance_id in (*hints.same_host, *hints.different_host):
            ordinals.update(view.on.get(instance_id, ()))
        if item.group is not None:
            ordinals.update(view.grouped.get(item.group.group_id, ()))
        for host in (*request.forced_hosts, *request.ignored_hosts, *request.requested_hosts, *request.retry_hosts):
            ordinals.update(view.hosts.get(host.lower(), ()))
        named = [*request.ignored_nodes, *request.forced_nodes, *request.requested_nodes, *request.retry_nodes]
        if request.source_node:
            named.append(request.source_node)
        named += ask.group_nodes
        named += ask.held_nodes
        ordinals.update([ordinal for node_id in named if (ordinal := view.ordinals.get(node_id)) is not None])
        if not ordinals:
            return {}
        forced: set[int] = set()
        if item.forced:
            forced.update(ordinal for node_id in request.forced_nodes if (ordinal := view.ordinals.get(node_id)) is not None)
            for host in request.forced_hosts:
                forced.update(view.hosts.get(host.lower(), ()))
        rooms, special = view.rooms, forced if item.forced else own
        return {at: room_for(rooms[at], item, request.request_id) if at in special else rooms[at] for at in sorted(ordinals)}

    def _one_by_one(self, lane: Lane, ask: Ask, standing: Standing) -> None:
        """The nodes of `apart` through the filters."""
        rooms = self._view.rooms
        standing.is_own = any(rooms[ordinal] is not room for ordinal, room in standing.apart.items())
        if standing.is_own:
            self._through_all(lane, ask, standing)
        else:
            self._as_the_class(lane, ask, standing)

    def _through_all(self, lane: Lane, ask: Ask, standing: Standing) -> None:
        """Through each filter, since rooms that were made for this instance are not what the lane looked at."""
        checks = [(place, filter_, filter_.prepare(ask)) for place, (filter_, _) in lane.checks.items()]
        checks += standing.names
        left = list(standing.apart.values())
        for place, filter_, check in sorted(checks, key=lambda each: each[0]):
            if not left:
                break
            passed = check.keep(left) if check is not None else left
            if check is None or len(passed) == len(left):
                continue
            kept = set(map(id, passed))
            out = [room for room in left if id(room) not in kept]
            standing.counts[place] = standing.counts.get(place, 0) + len(out)
            standing.firsts[place] = (self._view.ordinals[out[0].node_id], check)
            if filter_.amounts:
                standing.short += [(place, room) for room in out]
            left = passed
        standing.single = left

    def _as_the_class(self, lane: Lane, ask: Ask, standing: Standing) -> None:
        """What the lane knows of a node holds for this ask as well, but for filters about names and what the last says of a group."""
        apart, of = standing.apart, self._view.profiles.of
        places = {ordinal: lane.places[of(ordinal).slot] for ordinal in apart}
        rooms = list(apart.values())
        for at, _, check in standing.names:
            passed = check.keep(rooms)
            if len(passed) < len(rooms):
                kept = set(map(id, passed))
                places |= {ordinal: at for ordinal, room in apart.items() if at < places[ordinal] and id(room) not in kept}
        last = len(self.filters(ask)) - 1
        fit = LAST.prepare(ask) if ask.item.group is not None and PASSES in places.values() else None
        for ordinal, room in apart.items():
            place = places[ordinal]
            if place == PASSES and fit is not None and fit.rejects(room):
                place = last
            if place == PASSES:
                standing.single.append(room)
                continue
            standing.counts[place] = standing.counts.get(place, 0) + 1
            filter_ = self.filters(ask)[place]
            if filter_.amounts:
                standing.short.append((place, room))
            if place not in standing.firsts:
                made = filter_.prepare(ask)
                assert made is not None, "it rejects the node"
                standing.firsts[place] = ordinal, made


def _named(filters: Sequence[Filter]) -> list[tuple[int, Filter]]:
    return [(place, filter_) for place, filter_ in enumerate(filters) if filter_.name in NAMES]
