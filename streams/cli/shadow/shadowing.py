"""A cloud's own scheduler and ours, asked the same at the same moments: the requests of a followed cloud, replayed.

Notifications are taken in the order of their content. At each `select_destinations` our scheduler decides on the fleet as the messages
before it leave it. Where the instance then shows is Nova's choice; it takes its room from the request on, as Placement's allocation does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from producers.openstack import OpenStack, Reach
from producers.openstack_messages import Key, Notification, read_notification
from producers.openstack_payloads import Fact, InstanceFact, read_fact
from producers.openstack_requests import Answered, Asked, read_request
from producers.openstack_stats import HostStats
from producers.source import said
from projections.ledger import Ledger
from schemas.claims import NodeConfigured, NodeObserved, NodeStatus
from schemas.codec import Unreadable, encode
from schemas.inventory import Hypervisor, OperatorFields
from schemas.lifecycle import InstanceArrived, InstanceResized, LifecycleEvent
from schemas.results import Decision
from schemas.topics import LIFECYCLE
from streams.cli.shadow.choices import OWNER, Choices
from streams.cli.shadow.underway import Underway
from streams.log.base import Message, Record
from streams.reconciler import reconcile
from streams.scheduling.comparing import Compared, compare
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy, digest
from streams.scheduling.select import Engine

TWICE_US = 5_000_000
"""So far apart at most are a legacy and a versioned message that Nova sends of one thing."""

BEGINNINGS = frozenset({("instance.create", "start"), ("instance.rebuild", "start"), ("instance.rebuild", "error")})
"""A compute service's first word on what it was asked for; of an evacuation whose claim failed that is an error."""


class Given(Struct, frozen=True, kw_only=True):
    """A node as it is known: what it has, and what the operator says of it."""

    node_id: str
    host: str
    hypervisor: Hypervisor | None
    configured: NodeConfigured
    since_ms: int = 0
    """From when on that is so: nobody knows what it was before."""


class Outcome(Struct):
    """What became of one request at the other scheduler: its node, empty for none, None if no message says."""

    node_id: str | None = None
    reason: str = ""


class Row(Struct, frozen=True, kw_only=True):
    """One request and both answers."""

    time_ms: int
    asked: Asked
    decision: Decision
    compared: Compared


class Said(NamedTuple):
    """A notification with its place in the order, what it says of the fleet, and of a request, if it is about one."""

    key: Key
    notification: Notification
    fact: Fact | None
    about: Asked | Answered | None


class History(Struct):
    """All messages in order, and where those stand that could not be put there, each with the reason."""

    messages: list[Said]
    unreadable: list[str] = []

    @property
    def requests(self) -> int:
        """How many of them ask for a destination."""
        return sum(isinstance(each.about, Asked) for each in self.messages)


def history(records: Iterable[Record]) -> History:
    """Messages as they were read, in the order of their content; copies of a message once.

    Where Nova says a request twice (`notification_format = both`), the versioned one is taken: a legacy one says less of the same.
    """
    found: dict[tuple[Key, bytes], Said] = {}
    unreadable: list[str] = []
    for record in records:
        read = _read(record.value)
        if isinstance(read, str):
            unreadable.append(f"{record.position}: {read}")
            continue
        # Of messages without an id only their bytes tell two of one moment apart.
        found.setdefault((read.key, b"" if read.notification.message_id else record.value), read)
    said = [each for _, each in sorted(found.items())]
    twice = _versioned_at(said)
    return History([each for each in said if not _is_said_better(each, twice)], unreadable)


def _read(value: bytes) -> Said | str:
    """A message, or why it has no place in the history: also one that should say what the fleet uses and does not, as that is missing."""
    notification = read_notification(value)
    if isinstance(notification, Unreadable):
        return notification.reason
    fact = read_fact(notification, {})
    if isinstance(fact, Unreadable):
        return fact.reason
    about = read_request(notification)
    if isinstance(about, Unreadable):
        return about.reason
    if notification.time_us is None:
        return "expected a time, so that it has a place in the order"
    return Said(notification.key, notification, fact, about)


def _versioned_at(messages: Iterable[Said]) -> dict[tuple[type, str], list[int]]:
    """When each kind of word on the request of each instance was said in a versioned message."""
    found: dict[tuple[type, str], list[int]] = {}
    for each in messages:
        if each.about is not None and each.notification.is_versioned:
            found.setdefault((type(each.about), each.about.instance_id), []).append(each.key.time_us)
    return found


def _is_said_better(each: Said, versioned: Mapping[tuple[type, str], Sequence[int]]) -> bool:
    """Whether a legacy message says what a versioned one says at the same time."""
    if each.about is None or each.notification.is_versioned:
        return False
    times = versioned.get((type(each.about), each.about.instance_id), ())
    return any(abs(time_us - each.key.time_us) <= TWICE_US for time_us in times)


def outcomes(messages: Sequence[Said], nodes: Iterable[Given]) -> list[Outcome]:
    """What the other scheduler made of each request, in order, or why there was nothing.

    It is the node whose service begins to build the instance or to evacuate it, though that may fail and be tried elsewhere; else where it
    next takes room. Of a build or move that is over before anything of the kind, no message says it.
    """
    follower = _follower(nodes)
    found: list[Outcome] = []
    open_: Underway[Outcome] = Underway()
    for each in messages:
        if isinstance(each.about, Asked):
            found.append(Outcome())
            open_.begin(each.about.instance_id, found[-1])
        elif isinstance(each.about, Answered) and each.about.reason:
            refused = open_.end(each.about.instance_id)
            if refused is not None:
                refused.node_id, refused.reason = "", each.about.reason
        events = _events(follower, each)
        for instance_id, node_id in (_begun_at(each, follower) or _shown_at(each, events)).items():
            placed = open_.end(instance_id)
            if placed is not None:
                placed.node_id = node_id
        if isinstance(each.fact, InstanceFact):
            open_.told(each.fact)
    return found


def _begun_at(each: Said, follower: OpenStack) -> dict[str, str]:
    """The instance that a service begins to build, and its node; of an evacuation the first word may be that its claim failed."""
    fact = each.fact
    if not isinstance(fact, InstanceFact) or (fact.action, fact.phase) not in BEGINNINGS:
        return {}
    node_id = follower.services.node_of(fact.compute)
    return {fact.instance_id: node_id} if node_id else {}


def _shown_at(each: Said, events: Sequence[LifecycleEvent]) -> dict[str, str]:
    """The instances that take room where they took none, or not so much, by node. That one was there before is no answer to a request.

    So it is where its first message comes from the API, or finds it; and of both nodes of a move it is not the one where it comes from.
    """
    about, source, is_api = "", "", False
    if isinstance(each.fact, InstanceFact):
        about, source, is_api = each.fact.instance_id, each.fact.node, not each.fact.compute
    shown = [event for event in events if isinstance(event, InstanceArrived | InstanceResized) and not event.resync]
    new = [(event.instance.instance_id, event.node_id) for event in shown if not (is_api and event.instance.instance_id == about)]
    return dict(sorted(new, key=lambda place: place != (about, source)))


class Shadow:
    """The fleet as the messages so far leave it, and our scheduler on it."""

    def __init__(self, nodes: Sequence[Given], engine: Engine, policy: Policy) -> None:
        self.ledger = Ledger(0, 1)
        self._engine, self._policy, self._digest = engine, policy, digest(policy)
        self._follower, self._stats = _follower(nodes), HostStats()
        self._members: dict[str, frozenset[str]] = {}
        """Who was in each group when it was named last."""
        self.fleet = Fleet([self.ledger])
        self._choices = Choices(self.fleet)
        for node in nodes:
            self._observe(node.node_id, node.hypervisor or Hypervisor(), 0)
        self._configured = sorted(nodes, key=lambda node: -node.since_ms)
        """What is said of nodes and is not so yet, the first to be last."""
        self._configure(0)

    def reach(self) -> Reach:
        """What could not be told of the fleet until now."""
        return self._follower.reach()

    def rows(self, messages: Iterable[Said], answers: Sequence[Outcome]) -> Iterator[Row]:
        """A row for each request, as it is come to; `answers` are the other scheduler's, in the same order."""
        left = iter(answers)
        for each in messages:
            time_ms = each.key.time_us // 1000
            self._configure(time_ms)
            if isinstance(each.about, Asked):
                yield self._asked(each.about, next(left), time_ms)
                continue
            for event in _events(self._follower, each):
                self._fold(event, time_ms)
            if isinstance(each.fact, InstanceFact):
                self._choices.told(each.fact, self._follower.services.node_of(each.fact.compute))
                self._count(each.fact, time_ms)
            elif isinstance(each.about, Answered) and each.about.reason:
                self._choices.give_back(each.about.instance_id)
            for record in self._follower.configured():
                self._apply(time_ms, record.node_id, encode(record))
                self.fleet.touch(0, [record.node_id])

    def _configure(self, now_ms: int) -> None:
        while self._configured and self._configured[-1].since_ms <= now_ms:
            node = self._configured.pop()
            self._apply(now_ms, node.node_id, encode(node.configured))
            self.fleet.touch(0, [node.node_id])

    def _asked(self, asked: Asked, answer: Outcome, time_ms: int) -> Row:
        request = asked.request
        if asked.wanted_host:
            request = replace(request, requested_nodes=(self._follower.services.node_of(asked.wanted_host) or asked.wanted_host,))
        if request.group is not None and asked.members is not None:
            # Nova's filters leave out where the instance itself is, its weighers do not.
            itself = (asked.instance_id,) if request.group.policy.startswith("soft") else ()
            self._join(request.group.group_id, (*asked.members, *itself))
        if any(asked.instance_id in node.shown for node in self.ledger.nodes.values()):
            # Of a move both places count, on one host both sizes: what it asks for is another guest's until the move is over.
            request = replace(request, instance_ids=(f"{asked.instance_id}/move",))
        ask = self.fleet.ask(request, 0, owner=OWNER)
        decision = self._engine(self.fleet, ask, self._policy, self._digest)
        compared = compare(self.fleet, ask, decision, answer.node_id, self._policy, their_reason=answer.reason)
        self._choices.take(asked.instance_id, ask, answer.node_id)
        return Row(time_ms=time_ms, asked=asked, decision=decision, compared=compared)

    def _join(self, group_id: str, members: Sequence[str]) -> None:
        """The request names its group's members, those and no others; the fleet's own instances do not say."""
        left = self._members.get(group_id, frozenset()).difference(members)
        self._members[group_id] = frozenset(members)
        for node in self.ledger.nodes.values():
            there = [(each, shown) for each in (*left, *members) if (shown := node.shown.get(each)) is not None]
            other = [(each, shown) for each, shown in there if (shown.group_id == group_id) == (each in left)]
            for instance_id, shown in other:
                shown.group_id = "" if instance_id in left else group_id
                node.recount(instance_id)
            if other:
                self.fleet.touch(0, [node.node_id])

    def _fold(self, event: LifecycleEvent, time_ms: int) -> None:
        self._choices.shown(event)
        message = said(LIFECYCLE, event)
        carried = reconcile(Record(LIFECYCLE, 0, 0, time_ms, message.key, message.value), 1)
        assert isinstance(carried, Message), carried
        self._apply(max(time_ms, event.event_time_ms), event.node_id, carried.value)
        self.fleet.touch(0, [event.node_id])

    def _count(self, fact: InstanceFact, time_ms: int) -> None:
        """What Nova's weighers read of a host besides room: I/O operations, and builds that failed."""
        for host in self._stats.took(fact):
            node = self.ledger.nodes.get(self._follower.services.node_of(host))
            if node is None or node.hypervisor is None:
                continue
            counted = {"io_workload": self._stats.io_workload(host), "failed_builds": self._stats.failed_builds(host)}
            hypervisor = replace(node.hypervisor, **counted)
            if hypervisor != node.hypervisor:
                self._observe(node.node_id, hypervisor, time_ms)

    def _observe(self, node_id: str, hypervisor: Hypervisor, time_ms: int) -> None:
        """What the node has; of instances it says nothing."""
        observed = NodeObserved(
            node_id=node_id,
            producer=OWNER,
            epoch=0,
            counter=self.ledger.next_offset + 1,
            taken_at_ms=time_ms,
            mono_ms=time_ms,
            complete=False,
            hypervisor=hypervisor,
            instances=(),
        )
        self._apply(time_ms, node_id, encode(observed))
        self.fleet.touch(0, [node_id])

    def _apply(self, time_ms: int, node_id: str, value: bytes) -> None:
        self.ledger.apply(self.ledger.next_offset, time_ms, node_id.encode(), value)


def _follower(nodes: Iterable[Given]) -> OpenStack:
    follower = OpenStack(lambda _: 1)
    for node in nodes:
        follower.located(node.host, node.node_id)
    return follower


def _events(follower: OpenStack, each: Said) -> list[LifecycleEvent]:
    """What one message changes; one that cannot be used, which `history` has named, changes nothing."""
    found = follower.took(each.notification)
    return [] if isinstance(found, Unreadable) else found


def given(
    node_id: str,
    hypervisor: Hypervisor | None,
    fields: OperatorFields,
    status: NodeStatus | UnsetType = "enabled",
    reason: str = "",
    since_ms: int = 0,
) -> Given:
    """A node with the operator's fields, its status (UNSET: nobody says) and the reason for it as they stand since then."""
    host = hypervisor.service_host if hypervisor is not None else ""
    configured = NodeConfigured(
        node_id=node_id,
        record_id=f"{OWNER}/{node_id}",
        fields=fields,
        status=status,
        reason=reason,
    )
    return Given(node_id=node_id, host=host or node_id, hypervisor=hypervisor, configured=configured, since_ms=since_ms)
