"""A cloud's compute services and aggregates as their records stand: which node is on which host, and what the operator says of each node.

Of each service and aggregate the newest word counts, by its own time. What follows for a node (status, zone, aggregates) becomes one
`NodeConfigured`, whose id names what it says, so that saying it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from msgspec.structs import replace

from producers.openstack_payloads import AggregateFact, ServiceFact
from schemas.claims import NodeConfigured, NodeStatus
from schemas.codec import encode
from schemas.inventory import Aggregate, OperatorFields

ZONE_KEY = "availability_zone"
"""An aggregate with this in its metadata is a zone (Nova)."""
DIGEST_BYTES = 8
REASON_DELETED = "its compute service was deleted"


class Services:
    """What is known of hosts, services and aggregates, whatever order it came in."""

    def __init__(self) -> None:
        self._nodes: dict[str, set[str]] = {}
        self._services: dict[str, ServiceFact] = {}
        self._aggregates: dict[str, AggregateFact] = {}
        self._left_us: dict[str, int] = {}
        """When a host was last taken out of an aggregate."""
        self._said: dict[str, bytes] = {}
        self._has_news = False

    def has_node(self, host: str, node: str) -> bool:
        """Note that `host` has this node; True if that is new."""
        nodes = self._nodes.setdefault(host, set())
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

    def aggregate(self, fact: AggregateFact) -> None:
        """An aggregate's record stands like this, unless a newer word is known."""
        known = self._aggregates.get(fact.aggregate_id)
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
        self._has_news = False
        for node_id, record in sorted(self._configurations()):
            told = encode(record)
            if self._said.get(node_id) != told:
                self._said[node_id] = told
                records.append(record)
        return records

    def waiting_hosts(self) -> list[str]:
        """Hosts that services or aggregates name and whose node is not known: nothing can be said of them."""
        return sorted(host for host in self._hosts() if not self._nodes.get(host))

    def _hosts(self) -> set[str]:
        named = {host for fact in self._aggregates.values() if not fact.is_deleted for host in fact.hosts}
        return named | self._services.keys()

    def _configurations(self) -> Iterator[tuple[str, NodeConfigured]]:
        # A host that was in an aggregate once has an empty list of them now: said as such, or it would stay in it.
        for host in self._nodes.keys() & (self._hosts() | self._left_us.keys()):
            service = self._services.get(host)
            aggregates = [each for _, each in sorted(self._aggregates.items()) if not each.is_deleted and host in each.hosts]
            for node_id in self._nodes[host]:
                yield node_id, _configuration(node_id, service, aggregates, self._left_us.get(host, 0))


def _configuration(node_id: str, service: ServiceFact | None, aggregates: list[AggregateFact], left_us: int) -> NodeConfigured:
    named = (zone.strip() for fact in aggregates for zone in fact.metadata.get(ZONE_KEY, "").split(","))
    zones = sorted(filter(None, named))
    fields = OperatorFields(
        zone=zones[0] if zones else service.zone if service is not None else "",
        aggregates=tuple(Aggregate(name=fact.name, metadata=fact.metadata) for fact in aggregates),
    )
    # In the id, so that the same settings a second time are another record: in an aggregate, out of it, and in it again.
    newest = max([left_us, *(fact.key.time_us for fact in aggregates), service.key.time_us if service is not None else 0])
    bare = NodeConfigured(node_id=node_id, record_id="nova", fields=fields)
    if service is not None:
        status, reason = _status(service)
        bare = replace(bare, status=status, reason=reason)
    return replace(bare, record_id=f"nova/{newest}/{blake2b(encode(bare), digest_size=DIGEST_BYTES).hexdigest()}")


def _status(service: ServiceFact) -> tuple[NodeStatus, str]:
    if service.is_deleted:
        return "withdrawn", REASON_DELETED
    return ("disabled", service.reason) if service.is_disabled else ("enabled", "")
