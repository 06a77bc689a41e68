"""A cloud's compute services and aggregates as their records stand: which node is on which host, and what the operator says of each node.

Of each service and aggregate the newest word counts, by its own time. What follows for a node (status, zone, aggregates) and was not said
before becomes a `NodeConfigured`: what others say of the node meanwhile holds until Nova says something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from producers.openstack_payloads import AggregateFact, ServiceFact
from schemas.claims import NodeConfigured, NodeStatus
from schemas.codec import encode
from schemas.inventory import Aggregate, OperatorFields

ZONE_KEY = "availability_zone"
"""An aggregate with this in its metadata is a zone (Nova)."""
RECORD_PREFIX = "nova"
"""Of the ids of these records."""
DIGEST_BYTES = 8
REASON_DELETED = "its compute service was deleted"


class ListedService(Struct, frozen=True):
    """A compute service as Nova's list of hypervisors has it, and when that was written. One that is fenced is down, and is neither."""

    is_disabled: bool
    is_enabled: bool
    reason: str
    time_us: int


class _Times(NamedTuple):
    """When the newest of all that a word rests on was said, and when what it says of the status.

    `is_contested`: a list says something of the service that is older than that, and newer than what was said of the node's status.
    """

    newest_us: int
    status_us: int
    is_contested: bool = False


def together(before: NodeConfigured | None, later: NodeConfigured) -> NodeConfigured:
    """What two words on a node, one after the other, say of it; under the id of the one that has the last word on its status."""
    if before is None:
        return later
    fields = OperatorFields(
        zone=before.fields.zone if later.fields.zone is UNSET else later.fields.zone,
        aggregates=before.fields.aggregates if later.fields.aggregates is UNSET else later.fields.aggregates,
    )
    of_status = before if later.status is UNSET else later
    last = before if later.status is UNSET and not _says_when(later.record_id) else later
    return replace(later, record_id=last.record_id, fields=fields, status=of_status.status, reason=of_status.reason)


class Services:
    """What is known of hosts, services and aggregates, whatever order it came in.

    `said_before` gives what processes said of each node so far, all their words together; it is asked for when there is something to say.
    """

    def __init__(self, said_before: Callable[[], Mapping[str, NodeConfigured]] = dict) -> None:
        self._nodes: dict[str, set[str]] = {}
        self._named: dict[str, tuple[int, str]] = {}
        """Of each node the host that it had last, with the time: one of ironic's may go from service to service."""
        self._listed: dict[str, ListedService] = {}
        self._services: dict[str, ServiceFact] = {}
        self._aggregates: dict[str, AggregateFact] = {}
        self._names: set[str] = set()
        """Names that aggregates have or had."""
        self._left_us: dict[str, int] = {}
        """When a host was last taken out of an aggregate."""
        self._said_before = said_before
        self._said: dict[str, NodeConfigured] = {}
        self._has_news = False

    def has_node(self, host: str, node: str, time_us: int) -> bool:
        """Note that `host` had this node then; True if that is new."""
        nodes = self._nodes.setdefault(host, set())
        before = self._named.get(node, (-1, ""))
        last = self._named[node] = max(before, (time_us, host))
        self._has_news |= last[1] != before[1]
        if node in nodes:
            return False
        nodes.add(node)
        self._has_news = True
        return True

    def node_of(self, host: str) -> str:
        """The node of a host; empty if none is known, or several (then only a message that names one can tell)."""
        nodes = self._nodes.get(host, ())
        return next(iter(nodes)) if len(nodes) == 1 else ""

    def service(self, fact: ServiceFact) -> None:
        """A service's record stands like this, unless a newer word is known."""
        known = self._services.get(fact.host)
        if known is None or known.key < fact.key:
            self._services[fact.host] = fact
            self._has_news = True

    def listed(self, host: str, said: ListedService) -> None:
        """What Nova's list says of a service: it counts if it is newer than what was said of the node's and no message speaks of it."""
        if self._listed.get(host) != said:
            self._listed[host] = said
            self._has_news = True

    def aggregate(self, fact: AggregateFact) -> None:
        """An aggregate's record stands like this, unless a newer word is known."""
        known = self._aggregates.get(fact.aggregate_id)
        self._names.add(fact.name)
        if known is not None and known.key >= fact.key:
            return
        self._aggregates[fact.aggregate_id] = fact
        self._has_news = True
        here = set() if fact.is_deleted else set(fact.hosts)
        for host in set(known.hosts if known is not None else ()) - here:
            self._left_us[host] = max(fact.key.time_us, self._left_us.get(host, 0))

    def configured(self) -> list[NodeConfigured]:
        """What is to be said of nodes that was not said before, in order of node and for all changes since the last call at once."""
        records: list[NodeConfigured] = []
        if not self._has_news:
            return records
        self._said |= self._said_before()
        self._has_news = False
        inside: dict[str, list[AggregateFact]] = {}
        for fact in self._aggregates.values():
            for host in () if fact.is_deleted else fact.hosts:
                inside.setdefault(host, []).append(fact)
        named = {fact.name: fact for fact in self._aggregates.values()}
        for node_id, (_, host) in sorted(self._named.items()):
            before = self._said.get(node_id)
            changed = [named[each.name] for each in _aggregates(before) if each.name in named]
            told, times = self._told(node_id, host, before, inside.get(host, []), changed)
            record = _news(before, told, times)
            if record is not None:
                self._said[node_id] = together(before, record)
                records.append(record)
        return records

    def waiting_hosts(self) -> list[str]:
        """Hosts that services or aggregates name and whose node is not known: nothing can be said of them."""
        return sorted(host for host in self._hosts() if not self._nodes.get(host))

    def _hosts(self) -> set[str]:
        named = {host for fact in self._aggregates.values() if not fact.is_deleted for host in fact.hosts}
        return named | self._services.keys()

    def _told(
        self, node_id: str, host: str, before: NodeConfigured | None, inside: list[AggregateFact], changed: list[AggregateFact]
    ) -> tuple[NodeConfigured, _Times]:
        """All that messages say of a node, and when. What they do not speak of is left out.

        Its host is in the aggregates `inside`; `changed` are those that it was said to be in, as they stand now.
        """
        service, left_us = self._services.get(host), self._left_us.get(host, 0)
        said_us, is_contested = service.key.time_us if service is not None else 0, False
        told = NodeConfigured(node_id=node_id, record_id=RECORD_PREFIX)
        zone = service.zone if service is not None else ""
        if inside or changed or left_us:
            # What was said of aggregates that no message speaks of any more, as these have left the bus, stays.
            by_name = {each.name: each for each in _aggregates(before) if each.name not in self._names}
            by_name |= {fact.name: Aggregate(name=fact.name, metadata=fact.metadata) for fact in inside}
            aggregates = tuple(each for _, each in sorted(by_name.items()))
            told = replace(told, fields=OperatorFields(aggregates=aggregates))
            zone = _zone(aggregates) or zone
        if zone or left_us or (changed and before is not None and before.fields.zone):
            told = replace(told, fields=replace(told.fields, zone=zone))
        if service is not None:
            status, reason = _status(service)
            if before is None or not _says_when(before.record_id) or _status_us(before) <= said_us:  # Else a newer list said it elsewhere.
                told = replace(told, status=status, reason=reason)
            is_contested = host in self._listed and _status_us(before) < self._listed[host].time_us < said_us
        elif (listed := self._news_of(host, before)) is not None:
            said_us = listed.time_us
            told = replace(told, status="disabled" if listed.is_disabled else "enabled", reason=listed.reason)
        return told, _Times(max(left_us, said_us, *(fact.key.time_us for fact in (*inside, *changed)), 0), said_us, is_contested)

    def _news_of(self, host: str, before: NodeConfigured | None) -> ListedService | None:
        """What the list says of the host's service, if that is news. An operator of ours is not contradicted by one that says enabled.

        A service that was deleted and is listed has been made again.
        """
        listed = self._listed.get(host)
        if listed is None or listed.time_us <= _status_us(before):
            return None
        is_out = before is not None and before.status in {"disabled", "withdrawn"}
        return listed if listed.is_disabled or (is_out and listed.is_enabled) else None


def _status_us(word: NodeConfigured | None) -> int:
    """When the status of all words together was said, as their id has it; in ids of older versions is only the newest of all times."""
    if word is None or word.status is UNSET:
        return -1
    _, newest, *rest = word.record_id.split("/")
    said = rest[1] if len(rest) > 1 else newest
    return int(said) if said.isdecimal() else -1


def _says_when(record_id: str) -> bool:
    """Whether an id has the time of the status in it, be it only that it was said again."""
    return record_id.count("/") > 2


def _aggregates(word: NodeConfigured | None) -> tuple[Aggregate, ...]:
    """What a word says of aggregates, in order of their names."""
    said = UNSET if word is None else word.fields.aggregates
    return () if isinstance(said, UnsetType) else tuple(sorted(said, key=lambda each: each.name))


def _zone(aggregates: tuple[Aggregate, ...]) -> str:
    named = (zone.strip() for each in aggregates for zone in each.metadata.get(ZONE_KEY, "").split(","))
    return min(filter(None, named), default="")


def _news(before: NodeConfigured | None, told: NodeConfigured, times: _Times) -> NodeConfigured | None:
    """What of it was not said before. The id names it and when: in an aggregate, out of it, and in it again are three records.

    With a status it ends in when that was said (`_status_us`). A status that is as it was said before is not repeated: an operator of ours
    may have set another since. Where a list contests it, the id alone says that it is newer.
    """
    if before is not None:
        is_same = before.fields.aggregates is not UNSET and _aggregates(told) == _aggregates(before)
        fields = OperatorFields(
            zone=UNSET if told.fields.zone == before.fields.zone else told.fields.zone,
            aggregates=UNSET if is_same else told.fields.aggregates,
        )
        told = replace(told, fields=fields)
        if (told.status, told.reason) == (before.status, before.reason):
            told = replace(told, status=UNSET, reason="")
    if told.fields == OperatorFields() and told.status is UNSET and not times.is_contested:
        return None
    record_id = f"{RECORD_PREFIX}/{times.newest_us}/{blake2b(encode(told), digest_size=DIGEST_BYTES).hexdigest()}"
    is_of_status = told.status is not UNSET or times.is_contested
    return replace(told, record_id=f"{record_id}/{times.status_us}" if is_of_status else record_id)


def _status(service: ServiceFact) -> tuple[NodeStatus, str]:
    if service.is_deleted:
        return "withdrawn", REASON_DELETED
    return ("disabled", service.reason) if service.is_disabled else ("enabled", "")
