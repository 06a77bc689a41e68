"""Where one instance takes room, from what notifications say of it: the fold of its facts in their own order, whatever order they come in.

The rules are those of Nova's resource tracker (release 34): an instance takes room where its record stands, unless it is deleted, or
shelved and offloaded; while it is being resized, rebuilt or live-migrated also where it goes to or came from. A compute service speaks for
its own host, so what it says there is not taken back by anybody's word of an earlier time.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable
from operator import attrgetter

from msgspec import Struct, field
from msgspec.structs import replace

from producers.openstack_messages import Key
from producers.openstack_payloads import InstanceFact
from schemas.resources import Resources, addition

FACTS_MAX = 64
"""Facts kept to be put in order with late ones: a day's worth of one instance, a few actions of a dozen messages each."""
OFFLOADED, RESIZED, SPAWNING = "shelved_offloaded", "resized", "spawning"
ACTIVE, STOPPED, PAUSED = "active", "stopped", "paused"
RESIZING = frozenset({"resize_prep", "resize_migrating", "resize_migrated", "resize_finish"})
"""A resize that is being confirmed or reverted is one of an instance that is still `resized`."""
ARRIVED = frozenset({"resize_migrated", "resize_finish"})
"""The record names the destination then, still with the old size."""
REBUILDING = frozenset({"rebuilding", "rebuild_block_device_mapping", "rebuild_spawning"})
MIGRATING = "migrating"
MIGRATED = ("instance.live_migration_post", "end")
"""The source's last word on a live migration that went well."""
FOLLOWING = frozenset({"instance.live_migration_abort", "instance.live_migration_force_complete", "instance.live_migration_rollback_dest"})
"""Actions that follow a live migration, and never begin one. Who says them has the record as it was when it was asked to do them: that
another service has ended the migration meanwhile, it does not know."""


class Place(Struct):
    """What the instance takes of one host: `own` while its record stands there, `move` for a move that comes here or may come back.

    `node` is empty where only the service's host is known. `since_us` is when this last changed.
    """

    node: str = ""
    own: Resources | None = None
    move: Resources | None = None
    since_us: int = 0

    @property
    def takes(self) -> Resources:
        """Both together: during a resize on one host the tracker counts the old size and the new one."""
        if self.own is None or self.move is None:
            return self.own or self.move or Resources()
        return addition(self.own, self.move)


class InstanceStanding(Struct):
    """One instance after some of its facts, in their order."""

    places: dict[str, Place] = field(default_factory=dict)
    """By service host."""
    newest: InstanceFact | None = None
    """The last fact, with the task that goes on: it may be over already where that fact's publisher does not know it yet."""
    is_deleted: bool = False
    exact: dict[str, Resources] = field(default_factory=dict)
    """Sizes by flavor, as versioned messages say them."""
    names: dict[Resources, str] = field(default_factory=dict)
    """The name of the flavor that was last said to be of a size."""

    def copy(self) -> InstanceStanding:
        """Another one to go on from."""
        places = {host: replace(place) for host, place in self.places.items()}
        return InstanceStanding(places, self.newest, self.is_deleted, dict(self.exact), dict(self.names))

    def flavor_of(self, size: Resources) -> str:
        """The name of the flavor that the instance has where it takes so much; empty for both sizes together, on one host."""
        return self.names.get(size, "")


class History:
    """The facts of one instance. Whatever order they are added in, `now` is the same once all of them are there."""

    def __init__(self) -> None:
        self._base = InstanceStanding()
        self._facts: list[InstanceFact] = []
        self.now = InstanceStanding()

    def is_too_late(self, fact: InstanceFact) -> bool:
        """Whether what came after the fact is no longer kept one by one, so that it cannot be put in order."""
        return self._base.newest is not None and fact.key <= self._base.newest.key

    def add(self, fact: InstanceFact) -> bool:
        """Put the fact where it belongs; False if it was there before, or is too late."""
        facts = self._facts
        at = bisect(facts, fact.key, key=_key)
        if (at and facts[at - 1].key == fact.key) or self.is_too_late(fact):
            return False
        insort(facts, fact, key=_key)
        if at == len(facts) - 1:
            step(self.now, fact)
        else:
            self.now = self._base.copy()
            for each in facts:
                step(self.now, each)
        if len(facts) > FACTS_MAX:
            self._shorten(len(facts) // 2)
        return True

    def settle(self, before_us: int) -> None:
        """What is older than `before_us` need no longer be kept one by one."""
        self._shorten(sum(each.key.time_us < before_us for each in self._facts))

    def _shorten(self, count: int) -> None:
        """The oldest facts become the state that the others are added to."""
        for each in self._facts[:count]:
            step(self._base, each)
        del self._facts[:count]


def step(standing: InstanceStanding, fact: InstanceFact) -> None:
    """Fold the next fact of an instance. A deletion is final: no uuid of Nova's comes back."""
    is_behind = not knows_task(fact)
    standing.newest = replace(fact, task=_task_before(standing, fact)) if is_behind else fact
    if standing.is_deleted:
        return
    if fact.is_deleted:
        standing.is_deleted = True
        standing.places.clear()
        return
    size = _size(standing, fact)
    if (fact.state == OFFLOADED and fact.task != SPAWNING) or not fact.host:
        standing.places.clear()
        return
    special = ACTIONS.get((fact.action, fact.phase))
    if special is None and standing.places and is_behind:
        return
    if special is None or not special(standing, fact, size):
        _stands(standing, fact, size)


def is_moving(vm_state: str | None, task_state: str | None) -> bool:
    """Whether an instance in these states is resized, rebuilt or live-migrated.

    Source: the tracker's `_instance_in_resize_state` and `_instance_is_live_migrating`.
    """
    if vm_state == RESIZED:
        return True
    if task_state == MIGRATING:
        return vm_state in {ACTIVE, PAUSED}
    return vm_state in {ACTIVE, STOPPED} and (task_state in RESIZING or task_state in REBUILDING)


def knows_task(fact: InstanceFact) -> bool:
    """Whether the task that a fact names, or names none, is that of its moment: not so of some words on a live migration."""
    return fact.task != MIGRATING or ((fact.action, fact.phase) != MIGRATED and fact.action not in FOLLOWING)


def _task_before(standing: InstanceStanding, fact: InstanceFact) -> str:
    if standing.newest is None or (fact.action, fact.phase) == MIGRATED:
        return ""
    return standing.newest.task


def _size(standing: InstanceStanding, fact: InstanceFact) -> Resources:
    """The instance's size. A legacy message says it without swap and dedicated CPUs; a versioned one of the same flavor said it better."""
    size = fact.size if fact.is_exact else standing.exact.get(fact.flavor_id, fact.size)
    if fact.is_exact and fact.flavor_id:
        standing.exact[fact.flavor_id] = size
    if fact.new_size is not None:
        standing.names[fact.new_size] = fact.new_flavor
        if fact.is_exact and fact.new_flavor_id:
            standing.exact[fact.new_flavor_id] = fact.new_size
    standing.names[size] = fact.flavor
    return size


def _stands(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> None:
    """The instance's record stands on a host: it takes room there, and nowhere else unless a move goes on."""
    if not is_moving(fact.state, fact.task):
        _only_at(standing, fact, fact.host, fact.node, size)
        return
    there = standing.places.get(fact.host)
    if fact.state == RESIZED:
        _resize_finished(standing, fact, size)
    elif there is not None:
        _name(there, fact.node)
    elif fact.task in ARRIVED or any(place.own is not None for place in standing.places.values()):
        _move(standing, fact, fact.host, fact.node, size)
    else:
        _own(standing, fact, fact.host, fact.node, size)


def _only_at(standing: InstanceStanding, fact: InstanceFact, host: str, node: str, size: Resources) -> None:
    for other in [each for each in standing.places if each != host]:
        del standing.places[other]
    place = _own(standing, fact, host, node, size)
    if place.move is not None:
        place.move, place.since_us = None, fact.key.time_us


def _own(standing: InstanceStanding, fact: InstanceFact, host: str, node: str, size: Resources) -> Place:
    place = standing.places.setdefault(host, Place())
    _name(place, node)
    if place.own != size:
        place.own, place.since_us = size, fact.key.time_us
    return place


def _move(standing: InstanceStanding, fact: InstanceFact, host: str, node: str, size: Resources) -> None:
    place = standing.places.setdefault(host, Place())
    _name(place, node)
    if place.move != size:
        place.move, place.since_us = size, fact.key.time_us


def _came_from(place: Place, fact: InstanceFact) -> None:
    """The record stands elsewhere now; the room is kept for the way back."""
    place.move, place.own = place.own if place.move is None else place.move, None
    place.since_us = fact.key.time_us


def _name(place: Place, node: str) -> None:
    place.node = node or place.node


def _failed_build(standing: InstanceStanding, fact: InstanceFact, _: Resources) -> bool:
    """The claim is given back before this is said; the record may still name the host."""
    standing.places.pop(fact.compute or fact.host, None)
    return True


def _resize_prepared(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """The destination claims the new size. Said before the claim; the end comes also after a failure, so it says nothing of it."""
    _stands(standing, fact, size)
    if fact.phase == "start" and fact.compute and fact.new_size is not None:
        _move(standing, fact, fact.compute, "", fact.new_size)
    return True


def _resize_failed(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """The destination gave its claim back: nothing is kept there but what is the instance's own."""
    _stands(standing, fact, size)
    place = standing.places.get(fact.compute)
    if place is not None and place.move is not None:
        place.move, place.since_us = None, fact.key.time_us
        if place.own is None:
            del standing.places[fact.compute]
    return True


def _resize_moved(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """The source has sent the guest away: the record names the destination already, still with the old size."""
    if not fact.compute:
        return False
    if fact.compute == fact.host:
        if fact.host not in standing.places:
            _own(standing, fact, fact.host, fact.node, size)
        return fact.task in ARRIVED
    source = standing.places.setdefault(fact.compute, Place())
    if source.own is None and source.move is None:
        source.own = size
    if source.own is not None:
        _came_from(source, fact)
    place = standing.places.get(fact.host)
    if place is None:
        _move(standing, fact, fact.host, fact.node, size)
    else:
        _name(place, fact.node)
    return True


def _resize_finished(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """The guest runs in its new size, to be confirmed or reverted: the old size is kept where it was, on the same host beside the new.

    The record may say so several times (`instance.update`, the end, the start of what comes next): it is kept once. Of an instance that is
    first heard of now nobody knows what it was before.
    """
    others = [place for host, place in standing.places.items() if host != fact.host]
    for place in others:
        if place.own is not None:
            _came_from(place, fact)
    before = standing.places.get(fact.host, Place())
    old = None if others else before.move if before.own == size else before.own
    place = _own(standing, fact, fact.host, fact.node, size)
    if place.move != old:
        place.move, place.since_us = old, fact.key.time_us
    return True


def _migration_prepared(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """The destination of a live migration gets ready."""
    _stands(standing, fact, size)
    if fact.compute and fact.compute != fact.host and fact.host in standing.places:
        _move(standing, fact, fact.compute, "", size)
    return True


def _migrated_away(standing: InstanceStanding, fact: InstanceFact, _: Resources) -> bool:
    """The source has cleaned up; its view of the record is older than the destination's."""
    if fact.task != MIGRATING:
        return False
    standing.places.pop(fact.compute or fact.host, None)
    return True


def _migration_rolled_back(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """The destination has cleaned up."""
    _stands(standing, fact, size)
    if fact.compute and fact.compute != fact.host:
        standing.places.pop(fact.compute, None)
    return True


def _rebuild_started(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """A rebuild that another host than the record's is at is an evacuation."""
    if not fact.compute or fact.compute == fact.host:
        return False
    if fact.host not in standing.places:
        _own(standing, fact, fact.host, fact.node, size)
    _move(standing, fact, fact.compute, "", size)
    return True


def _rebuilt(standing: InstanceStanding, fact: InstanceFact, size: Resources) -> bool:
    """Evacuated: Nova writes the new host into the record just after it says so."""
    if not fact.compute or fact.compute == fact.host:
        return False
    node = standing.places[fact.compute].node if fact.compute in standing.places else ""
    _only_at(standing, fact, fact.compute, node, size)
    return True


def _rebuild_failed(standing: InstanceStanding, fact: InstanceFact, _: Resources) -> bool:
    if not fact.compute or fact.compute == fact.host:
        return False
    standing.places.pop(fact.compute, None)
    return True


_key: Callable[[InstanceFact], Key] = attrgetter("key")
Rule = Callable[[InstanceStanding, InstanceFact, Resources], bool]
ACTIONS: dict[tuple[str, str], Rule] = {
    ("instance.create", "error"): _failed_build,
    ("instance.resize_prep", "start"): _resize_prepared,
    ("instance.resize_prep", "end"): _resize_prepared,
    ("instance.resize", "error"): _resize_failed,
    ("instance.resize", "end"): _resize_moved,
    ("instance.resize_finish", "end"): _resize_finished,
    ("instance.live_migration_pre", "start"): _migration_prepared,
    ("instance.live_migration_pre", "end"): _migration_prepared,
    ("instance.live_migration_post_dest", "start"): _migration_prepared,
    MIGRATED: _migrated_away,
    ("instance.live_migration_rollback_dest", "start"): _migration_rolled_back,
    ("instance.live_migration_rollback_dest", "end"): _migration_rolled_back,
    ("instance.rebuild", "start"): _rebuild_started,
    ("instance.rebuild", "end"): _rebuilt,
    ("instance.rebuild", "error"): _rebuild_failed,
}
"""Events that say more than where the record stands. A rule that answers False leaves it at that."""
