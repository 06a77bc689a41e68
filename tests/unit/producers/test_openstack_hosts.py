"""A cloud's list of hypervisors, said as audits again and again; how it is read is told in `test_notifications`."""

from __future__ import annotations

import json

import pytest

from producers.openstack_hosts import ListedHost, Listing, read_hypervisors
from schemas.inventory import Hypervisor

NOW_MS, RAN_MS, INTERVAL_MS = 1_763_716_147_000, 5_000, 60_000
HOSTS = [ListedHost(f"h{number}", f"n{number}", Hypervisor(vcpus=number, memory_mib=1024, disk_mib=1024)) for number in (1, 2)]


def listing(*hosts: ListedHost) -> Listing:
    return Listing(hosts, producer="nova", epochs={"n1": 7, "n2": 8}, interval_ms=INTERVAL_MS)


def test_a_list_is_due_at_once_and_after_each_interval() -> None:
    said = listing(*HOSTS)
    first = said.is_due(RAN_MS)
    said.audits(NOW_MS, RAN_MS)

    due = [said.is_due(RAN_MS + passed_ms) for passed_ms in (0, INTERVAL_MS - 1, INTERVAL_MS, 9 * INTERVAL_MS)]

    assert (first, due) == (True, [False, False, True, True])


@pytest.mark.parametrize(
    ("said", "is_enabled"),
    [({"state": "up", "status": "enabled"}, True), ({"state": "down", "status": "enabled"}, False), ({"state": "up"}, False), ({}, False)],
)
def test_a_service_is_listed_as_enabled_where_it_is_said_to_be_that_and_up(said: dict[str, str], *, is_enabled: bool) -> None:
    """One that is fenced is enabled, and down."""
    entry = {"hypervisor_hostname": "h1", "vcpus": 8, "memory_mb": 1024, "local_gb": 10, **said}

    (listed,) = read_hypervisors(json.dumps([entry]).encode())

    assert listed.is_enabled == is_enabled


def test_an_empty_list_is_never_due() -> None:
    assert not listing().is_due(RAN_MS)


def test_what_is_repeated_is_what_was_said_first_under_the_next_number() -> None:
    said = listing(*HOSTS)

    first = said.audits(NOW_MS, RAN_MS)
    second = said.audits(NOW_MS + INTERVAL_MS, RAN_MS + INTERVAL_MS)

    assert [(audit.node_id, audit.epoch, audit.counter, audit.taken_at_ms) for audit in first + second] == [
        ("n1", 7, 1, NOW_MS), ("n2", 8, 1, NOW_MS), ("n1", 7, 2, NOW_MS + INTERVAL_MS), ("n2", 8, 2, NOW_MS + INTERVAL_MS),
    ]  # fmt: skip
    assert [(audit.digest, audit.hypervisor) for audit in first] == [(audit.digest, audit.hypervisor) for audit in second]
    assert {(audit.complete, audit.instances) for audit in first + second} == {(False, ())}


def test_of_a_node_that_another_producer_reports_nothing_is_said() -> None:
    assert [audit.node_id for audit in listing(*HOSTS).audits(NOW_MS, RAN_MS, {"n1"})] == ["n2"]
