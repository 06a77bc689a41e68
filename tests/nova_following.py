"""Notifications through the follower, the real reconciler and the real fold, and what the nodes then use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from random import Random

from producers.openstack import OpenStack
from producers.openstack_messages import Notification, read_notification
from producers.source import said
from projections.ledger import Ledger
from projections.observed import Observed
from schemas.claims import NodeConfigured
from schemas.codec import Unreadable, encode
from schemas.lifecycle import LifecycleEvent
from schemas.partitioner import partition_of
from schemas.topics import LIFECYCLE
from streams.log.base import Message, Record
from streams.reconciler import reconcile
from tests.nova_cloud import START_S, Sent, Usage

APPENDED_MS = (START_S + 86_400) * 1000


class Following:
    """A follower with a ledger of one partition behind it."""

    def __init__(self, follower: OpenStack | None = None) -> None:
        self.follower = follower or OpenStack(lambda _: 1)
        self.ledger, self.observed = Ledger(0, 1), Observed(0)
        self.events: list[LifecycleEvent] = []

    def take(self, messages: Iterable[Sent]) -> Following:
        """Each message in turn."""
        for sent in messages:
            self.events += self._fold(self.follower.took(parsed(sent.value)))
        return self

    def goes_on(self, follower: OpenStack) -> Following:
        """Another follower, on the same ledger."""
        self.follower = follower
        return self

    def located(self, nodes: Mapping[str, str]) -> None:
        """The nodes of these hosts, as somebody else knows them."""
        for host, node in nodes.items():
            self.events += self._fold(self.follower.located(host, node))

    def catch_up(self) -> None:
        """All that there is has been read."""
        self.events += self._fold(self.follower.caught_up())

    def configure(self) -> None:
        """What services and aggregates say, onto the ledger."""
        for record in self.follower.configured():
            self.append(record)

    def append(self, record: NodeConfigured) -> None:
        """One record of an operator, or of somebody like it."""
        self._apply(record.node_id.encode(), encode(record))

    def _fold(self, events: list[LifecycleEvent] | Unreadable) -> list[LifecycleEvent]:
        assert not isinstance(events, Unreadable), events
        for event in events:
            message = said(LIFECYCLE, event)
            record = Record(LIFECYCLE, partition_of(message.key, 1), len(self.events), APPENDED_MS, message.key, message.value)
            carried = reconcile(record, 1)
            assert isinstance(carried, Message)
            self._apply(carried.key, carried.value)
        return events

    def _apply(self, key: bytes, value: bytes) -> None:
        step = self.ledger.apply(self.ledger.next_offset, APPENDED_MS, key, value)
        assert step is not None
        assert step.dead is None, step.dead
        self.observed.apply(self.ledger, step)

    def used(self) -> dict[str, Usage]:
        """What the ledger holds in use on each node, but for nodes that nothing uses."""
        sums = {node_id: (node.used[0] + node.used[1], node.used[2], node.used[3]) for node_id, node in self.ledger.nodes.items()}
        return {node_id: used for node_id, used in sums.items() if any(used)}

    def tracked(self) -> dict[str, Usage]:
        """The view that life-cycle events alone give."""
        views = {node_id: view.tracked_amounts() for node_id, view in self.observed.nodes.items()}
        sums = {node_id: ((vcpus or 0) + (pcpus or 0), mib or 0, disk or 0) for node_id, (vcpus, pcpus, mib, disk) in views.items()}
        return {node_id: used for node_id, used in sums.items() if any(used)}

    def state(self) -> dict[str, dict[str, object]]:
        """All of it that means something: each node's instances with size, power state and the move it is in."""
        return {
            node_id: {
                each: (node.uses[each], shown.report.power_state, shown.report.task_state) for each, shown in sorted(node.shown.items())
            }
            for node_id, node in sorted(self.ledger.nodes.items())
            if node.shown or node.claims
        }


@cache
def parsed(value: bytes) -> Notification:
    """The notification; parsed once for all orders that it comes in."""
    found = read_notification(value)
    assert isinstance(found, Notification), found
    return found


def followed(messages: Iterable[Sent]) -> Following:
    """The state after these messages, in this order."""
    return Following().take(messages)


def interleavings(messages: Sequence[Sent]) -> Iterator[list[Sent]]:
    """Every order of the messages in which each publisher's come in their own order."""
    queues = by_publisher(messages)

    def merged(heads: tuple[int, ...]) -> Iterator[list[Sent]]:
        if all(head == len(queue) for head, queue in zip(heads, queues, strict=True)):
            yield []
        for number, queue in enumerate(queues):
            if heads[number] < len(queue):
                for rest in merged((*heads[:number], heads[number] + 1, *heads[number + 1 :])):
                    yield [queue[heads[number]], *rest]

    return merged((0,) * len(queues))


def some_interleaving(messages: Sequence[Sent], random: Random) -> list[Sent]:
    """One such order, drawn."""
    turns = [number for number, queue in enumerate(by_publisher(messages)) for _ in queue]
    random.shuffle(turns)
    queues = [iter(queue) for queue in by_publisher(messages)]
    return [next(queues[turn]) for turn in turns]


def by_publisher(messages: Sequence[Sent]) -> list[list[Sent]]:
    """Each publisher's messages in order."""
    queues: dict[str, list[Sent]] = {}
    for sent in messages:
        queues.setdefault(sent.publisher, []).append(sent)
    return list(queues.values())


def first(messages: Iterable[Sent], count: int) -> Iterator[Sent]:
    """The first messages of an operation that is cut short."""
    return islice(messages, count)
