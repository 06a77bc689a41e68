"""For all histories of services and aggregates: nodes are set as they stand, once, whoever else sets them, however little a bus keeps."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from producers.openstack import OpenStack
from producers.openstack_fleet import together
from schemas.claims import NodeConfigured
from tests.nova_cloud import START_S, NovaCloud, envelope, node_of, sample
from tests.nova_following import Following

HOSTS = ("h1", "h2", "h3")
NAMES = ("ssd", "gpu", "west")
Metadata = dict[str, str]


class Cloud(RuleBasedStateMachine):
    """Operators of Nova and of claimlog, and a follower that is started again and again on a bus that forgets."""

    @initialize()
    def begin(self) -> None:
        self.at_s, self.number = 0, 0
        self.bus: list[bytes] = []
        self.known = [sent.value for host in HOSTS for sent in NovaCloud().create(f"on {host}", host)]
        self.services: dict[str, str] = {}
        self.aggregates: dict[str, tuple[set[str], Metadata]] = {}
        self.said: dict[str, NodeConfigured] = {}
        self.standing: dict[str, str] = {}
        """The status that was set last on each host, by Nova where it changed, or by an operator of claimlog."""
        self.ledger = Following()
        self.follower = self.started()

    def started(self) -> OpenStack:
        follower = OpenStack(lambda _: 1, configured=lambda: dict(self.said))
        for value in (*self.known, *self.bus):
            follower.take(value)
        return follower

    def notify(self, message: dict[str, Any], changes: dict[str, Any]) -> None:
        self.at_s += 1
        message["payload"]["nova_object.data"] |= changes
        value = envelope(message, (START_S + self.at_s) * 1_000_000, f"m{self.at_s}")
        self.bus.append(value)
        self.follower.take(value)

    def settle(self) -> list[NodeConfigured]:
        records = self.follower.configured()
        for record in records:
            self.said[record.node_id] = together(self.said.get(record.node_id), record)
            self.ledger.append(record)
        return records

    @rule(host=st.sampled_from(HOSTS), disabled=st.booleans())
    def service(self, host: str, *, disabled: bool) -> None:
        self.notify(json.loads(sample("service-update")), {"host": host, "disabled": disabled, "disabled_reason": None})
        status = "disabled" if disabled else "enabled"
        if self.services.get(host) != status:
            self.services[host] = self.standing[host] = status
        self.settle()

    @rule(name=st.sampled_from(NAMES), hosts=st.sets(st.sampled_from(HOSTS)), zone=st.sampled_from(["", "x", "y"]))
    def aggregate(self, name: str, hosts: set[str], zone: str) -> None:
        metadata = {"availability_zone": zone} if zone else {}
        self.aggregates[name] = (hosts, metadata)
        self.of_aggregate("aggregate.add_host.end", name)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.aggregates:
            self.of_aggregate("aggregate.delete.end", name)
            del self.aggregates[name]

    def of_aggregate(self, event: str, name: str) -> None:
        hosts, metadata = self.aggregates[name]
        changes = {"uuid": f"id of {name}", "name": name, "hosts": sorted(hosts), "metadata": metadata}
        self.notify(json.loads(sample("aggregate-add_host-end")) | {"event_type": event}, changes)

    @rule(host=st.sampled_from(HOSTS), status=st.sampled_from(["enabled", "draining", "disabled"]))
    def operator(self, host: str, status: Any) -> None:
        self.settle()
        self.number += 1
        self.ledger.append(NodeConfigured(node_id=node_of(host), record_id=f"own/{self.number}", status=status))
        self.standing[host] = status

    @rule(forgotten=st.integers(0, 10))
    def start_again(self, forgotten: int) -> None:
        self.settle()
        del self.bus[: max(0, min(forgotten, len(self.bus)))]
        self.follower = self.started()
        assert self.settle() == []

    @invariant()
    def nodes_are_set_as_they_stand(self) -> None:
        self.settle()
        for host in HOSTS:
            node = self.ledger.ledger.node(node_of(host))
            inside = {name: metadata for name, (hosts, metadata) in self.aggregates.items() if host in hosts}
            zones = sorted(filter(None, (metadata.get("availability_zone") for metadata in inside.values())))
            assert {each.name: each.metadata for each in node.aggregates} == inside
            assert node.zone == (zones[0] if zones else "")
            assert node.status == self.standing.get(host, node.status)


TestCloud = Cloud.TestCase
TestCloud.settings = settings(max_examples=100, stateful_step_count=25)
