"""Nova's notifications as a source: an existing OpenStack cloud is followed read-only, and what its instances use is adopted.

Each message is put in order by its content (`openstack_messages.Key`), each instance is folded from its own facts (`openstack_places`), and
what changed of it on a node becomes a life-cycle event of that node. So the end does not depend on the order of arrival, messages that come
twice change nothing, and a follower that starts again and reads everything again says nothing that it said before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from producers.openstack_fleet import Services
from producers.openstack_messages import Notification, read_notification
from producers.openstack_payloads import AggregateFact, HostFact, InstanceFact, ServiceFact, read_fact
from producers.openstack_places import MIGRATED, MIGRATING, RESIZED, RESIZING, History, InstanceStanding, Place
from producers.source import EventSource
from schemas.audits import InstanceReport
from schemas.claims import NodeConfigured
from schemas.codec import Unreadable
from schemas.lifecycle import (
    InstanceArrived,
    InstanceDeleted,
    InstanceDeparted,
    InstancePaused,
    InstanceResized,
    InstanceStarted,
    InstanceStopped,
    LifecycleEvent,
)
from schemas.resources import ObservedResources, Resources

PRODUCER = "nova"
KEPT_US = 86_400_000_000
"""A day of the cloud's own time. Facts older than that are not kept one by one, so a message that comes later cannot be put in order; one
about an instance deleted before that is taken for a new one's. Buses and their readers are behind by minutes."""
POWERED: dict[str, type[LifecycleEvent]] = {
    "running": InstanceStarted,
    "stopped": InstanceStopped,
    "crashed": InstanceStopped,
    "paused": InstancePaused,
    "suspended": InstancePaused,
}
SEEN_HAPPENING = (
    "instance.create", "instance.update", "instance.resize", "instance.live_migration", "instance.rebuild", "instance.unshelve",
    "instance.evacuate",
)  # fmt: skip
"""Actions that bring an instance to a node; any other finds it there (a resync)."""


class Told(Struct):
    """The last that was said of an instance on a node."""

    time_ms: int
    report: InstanceReport | None
    """None: gone from there."""
    is_deleted: bool = False


class Reach(Struct, frozen=True):
    """What could not be said for want of a node's name, and how many messages came too late to be put in order.

    On `hosts` there are `instances` whose use is not told; of `unnamed_services` status and aggregates are not told.
    """

    hosts: tuple[str, ...] = ()
    instances: int = 0
    unnamed_services: tuple[str, ...] = ()
    too_late: int = 0


class OpenStack:
    """Folds notifications, in whatever order they come, into life-cycle events of nodes, numbered in this process's epoch."""

    def __init__(
        self,
        epoch_of: Callable[[str], int],
        *,
        swap_mib: Mapping[str, int] | None = None,
        told: Mapping[tuple[str, str], Told] | None = None,
        configured: Callable[[], Mapping[str, NodeConfigured]] = dict,
        now_us: Callable[[], int] | None = None,
    ) -> None:
        """`epoch_of` gives the epoch for a node, `swap_mib` the swap of flavors by name for legacy messages.

        `configured` gives what earlier processes said of nodes' settings (`Services`).

        With `now_us` (wall clock) one publisher whose clock is ahead makes nobody else's messages late.

        `told` is what is in the log already, by instance and node. Of these instances nothing is said until `caught_up`: on the way there
        the follower is where an earlier one was already.
        """
        self.services = Services(configured)
        self._epoch_of, self._swap_mib, self._now_us = epoch_of, swap_mib or {}, now_us
        self._sources: dict[str, EventSource] = {}
        self._histories: dict[str, History] = {}
        self._told: dict[str, dict[str, Told]] = {}
        for (instance_id, node_id), last in (told or {}).items():
            self._told.setdefault(instance_id, {})[node_id] = last
        self._waiting: dict[str, InstanceFact | None] | None = dict.fromkeys(self._told)
        """Instances of which something is in the log already, with the last fact of each; None once caught up."""
        moving = {each: {node for node, last in nodes.items() if _is_moving(last)} for each, nodes in self._told.items()}
        self._carried = {each: nodes for each, nodes in moving.items() if nodes}
        """Nodes that instances on their way hold as the log says, and of which no message has said anything: it may have left the bus."""
        self._at_host: dict[str, set[str]] = {}
        self._unnamed: dict[str, set[str]] = {}
        """Hosts where instances have room and whose node their messages do not name; and the other way round."""
        self._deleted: dict[str, int] = {}
        self._tombstones: deque[tuple[int, str]] = deque()
        self._newest_us = self._settled_us = self._too_late = 0

    def take(self, value: bytes) -> list[LifecycleEvent] | Unreadable:
        """The events that follow from one message as it stands on the bus, or why it is none."""
        said = read_notification(value)
        return said if isinstance(said, Unreadable) else self.took(said)

    def took(self, said: Notification) -> list[LifecycleEvent] | Unreadable:
        """The events that follow from one notification; none if it is not about instances, or says nothing new."""
        fact = read_fact(said, self._swap_mib)
        if isinstance(fact, InstanceFact):
            return list(self._lived(fact))
        if isinstance(fact, HostFact):
            return list(self._located(fact.host, fact.node, fact.time_us))
        if isinstance(fact, ServiceFact):
            self.services.service(fact)
        elif isinstance(fact, AggregateFact):
            self.services.aggregate(fact)
        return fact if isinstance(fact, Unreadable) else []

    def located(self, host: str, node: str, time_us: int = 0) -> list[LifecycleEvent]:
        """A service's host had this node then, as somebody else knows."""
        return list(self._located(host, node, time_us))

    def epoch(self, node_id: str) -> int:
        """The epoch in which this process speaks of a node, or would."""
        source = self._sources.get(node_id)
        return self._epoch_of(node_id) if source is None else source.epoch

    def caught_up(self) -> list[LifecycleEvent]:
        """All that there was has been read: what is otherwise than an earlier process of this producer said. Nothing, the next time."""
        waiting, self._waiting = self._waiting or {}, None
        events = [event for _, fact in sorted(waiting.items()) if fact is not None for event in self._told_of(fact)]
        for instance_id in [each for each in waiting if all(last.is_deleted for last in self._told.get(each, {}).values())]:
            self._told.pop(instance_id, None)
        return events

    def configured(self) -> list[NodeConfigured]:
        """What services and aggregates say of nodes and was not said before; to be asked when all that there is was read."""
        return self.services.configured()

    def reach(self) -> Reach:
        """What could not be said until now."""
        waiting = {host for host, instances in self._at_host.items() if instances and not self.services.node_of(host)}
        instances = {each for host in waiting for each in self._at_host[host]}
        return Reach(tuple(sorted(waiting)), len(instances), tuple(self.services.waiting_hosts()), self._too_late)

    def _lived(self, fact: InstanceFact) -> Iterator[LifecycleEvent]:
        time_us = fact.key.time_us if self._now_us is None else min(fact.key.time_us, self._now_us())
        self._newest_us = max(self._newest_us, time_us)
        if self._newest_us - self._settled_us > KEPT_US:
            self._settle()
        if fact.host and fact.node:
            yield from self._located(fact.host, fact.node, time_us)
        instance_id = fact.instance_id
        if instance_id in self._deleted:
            return
        history = self._histories.setdefault(instance_id, History())
        if not history.add(fact):
            self._too_late += history.is_too_late(fact)
            return
        if self._waiting is not None and instance_id in self._waiting:
            self._waiting[instance_id] = fact
            self._said_of(instance_id, self._by_node(history))
            return
        yield from self._told_of(fact)

    def _settle(self) -> None:
        """Once a day of the cloud's time: most instances have had no news for longer, and their past takes memory."""
        self._settled_us = self._newest_us
        for history in self._histories.values():
            history.settle(self._newest_us - KEPT_US)

    def _told_of(self, fact: InstanceFact) -> Iterator[LifecycleEvent]:
        history = self._histories[fact.instance_id]
        yield from self._changed(fact.instance_id, history, fact)
        if history.now.is_deleted:
            self._bury(fact.instance_id, history.now.newest or fact)

    def _located(self, host: str, node: str, time_us: int) -> Iterator[LifecycleEvent]:
        if self.services.has_node(host, node, time_us):
            for instance_id in sorted(self._at_host.get(host, ())):
                newest = self._histories[instance_id].now.newest
                if newest is not None:
                    yield from self._changed(instance_id, self._histories[instance_id], newest)

    def _changed(self, instance_id: str, history: History, fact: InstanceFact) -> Iterator[LifecycleEvent]:
        """What is to be said of an instance on each node where it is, or was the last time. `fact` made the difference."""
        newest = history.now.newest or fact
        self._note_unnamed(instance_id, {host for host, place in history.now.places.items() if not place.node})
        here = self._by_node(history)
        told = self._told.setdefault(instance_id, {})
        for node_id in sorted((here.keys() | told.keys()).difference(self._kept(instance_id, history.now, here))):
            place, last = here.get(node_id), told.get(node_id)
            if place is None:
                event = self._gone(node_id, instance_id, last, newest, is_deleted=history.now.is_deleted)
            else:
                report = _report(place.takes, history.now.flavor_of(place.takes), newest)
                event = self._there(node_id, report, place.since_us, last, newest, is_found=not fact.action.startswith(SEEN_HAPPENING))
            if event is not None:
                yield event

    def _kept(self, instance_id: str, standing: InstanceStanding, here: Iterable[str]) -> Collection[str]:
        """The nodes of which what the log says of the instance stays as it is, as the messages that said it have left the bus."""
        newest = standing.newest
        if newest is not None and not standing.is_deleted:
            if (newest.action, newest.phase) == MIGRATED and not standing.places:
                return self._told[instance_id].keys() - {newest.node}  # Only that it left is known.
            if _moving(newest):
                return self._said_of(instance_id, here)
        self._carried.pop(instance_id, None)
        return ()

    def _said_of(self, instance_id: str, nodes: Iterable[str]) -> Collection[str]:
        """Something is said of the instance on these nodes; returns those that it holds on its way as the log alone says."""
        carried = self._carried.get(instance_id, set())
        carried.difference_update(nodes)
        return carried

    def _by_node(self, history: History) -> dict[str, Place]:
        """The places whose node is known."""
        found = {place.node or self.services.node_of(host): place for host, place in history.now.places.items()}
        found.pop("", None)
        return found

    def _note_unnamed(self, instance_id: str, hosts: set[str]) -> None:
        """Where an instance has room on a node that is known only by its host, if at all."""
        before = self._unnamed.get(instance_id, set())
        for host in hosts - before:
            self._at_host.setdefault(host, set()).add(instance_id)
        for host in before - hosts:
            self._at_host[host].discard(instance_id)
        if hosts:
            self._unnamed[instance_id] = hosts
        elif before:
            del self._unnamed[instance_id]

    def _there(
        self, node_id: str, report: InstanceReport, since_us: int, last: Told | None, newest: InstanceFact, *, is_found: bool
    ) -> LifecycleEvent | None:
        before = last.report if last is not None else None
        if before == report:
            return None
        if before is None:
            kind: type[LifecycleEvent] = InstanceArrived
        elif before.resources != report.resources:
            kind = InstanceResized
        elif (before.power_state, before.task_state) != (report.power_state, report.task_state):
            kind = POWERED.get(report.power_state, InstanceResized)
        else:
            return None  # A new name moves nothing.
        time_us = newest.key.time_us if kind in POWERED.values() else since_us
        return self._say(kind, node_id, report, last, time_us // 1000, is_found=is_found and before is None)

    def _gone(self, node_id: str, instance_id: str, last: Told | None, newest: InstanceFact, *, is_deleted: bool) -> LifecycleEvent | None:
        if last is None or last.is_deleted or (last.report is None and not is_deleted):
            return None
        report = last.report or InstanceReport(instance_id=instance_id, name=newest.name)
        kind = InstanceDeleted if is_deleted else InstanceDeparted
        return self._say(kind, node_id, report, last, newest.key.time_us // 1000)

    def _say(
        self, kind: type[LifecycleEvent], node_id: str, report: InstanceReport, last: Told | None, time_ms: int, *, is_found: bool = False
    ) -> LifecycleEvent:
        """The event, never older than what was said of the instance there."""
        time_ms = max(time_ms, last.time_ms if last is not None else 0)
        is_gone, is_deleted = kind in (InstanceDeparted, InstanceDeleted), kind is InstanceDeleted
        self._told[report.instance_id][node_id] = Told(time_ms, None if is_gone else report, is_deleted)
        return self._source(node_id).event(kind, report, time_ms, resync=is_found)

    def _source(self, node_id: str) -> EventSource:
        source = self._sources.get(node_id)
        if source is None:
            source = self._sources[node_id] = EventSource(node_id, PRODUCER, self._epoch_of(node_id))
        return source

    def _bury(self, instance_id: str, fact: InstanceFact) -> None:
        """Nothing more is to be said of it; that it is gone is remembered for a day of the cloud's own time."""
        del self._histories[instance_id]
        self._told.pop(instance_id, None)
        self._carried.pop(instance_id, None)
        self._note_unnamed(instance_id, set())
        self._deleted[instance_id] = fact.key.time_us
        self._tombstones.append((self._newest_us, instance_id))
        while self._tombstones[0][0] < self._newest_us - KEPT_US:
            del self._deleted[self._tombstones.popleft()[1]]


def _is_moving(last: Told) -> bool:
    return last.report is not None and last.report.task_state == MIGRATING


def _report(size: Resources, flavor: str, fact: InstanceFact) -> InstanceReport:
    amounts = ObservedResources(vcpus=size.vcpus, pcpus=size.pcpus, memory_mib=size.memory_mib, disk_mib=size.disk_mib)
    return InstanceReport(
        instance_id=fact.instance_id,
        resources=amounts,
        name=fact.name,
        power_state=fact.power_state,
        task_state=_moving(fact),
        project_id=fact.project_id,
        flavor=flavor,
    )


def _moving(fact: InstanceFact) -> str:
    """While the instance is on its way, or its resize waits to be confirmed, two nodes hold it by right. Other tasks are not told."""
    return MIGRATING if fact.state == RESIZED or fact.task == MIGRATING or fact.task in RESIZING else ""
