"""Nova's counts of a host, followed by its notifications: what goes on there, and how many builds failed in a row."""

from __future__ import annotations

from collections.abc import Iterable

from producers.openstack_messages import Notification, read_notification
from producers.openstack_payloads import InstanceFact, read_fact
from producers.openstack_stats import HostStats
from tests.nova_cloud import START_S, NovaCloud, Sent


def told(stats: HostStats, messages: Iterable[Sent]) -> list[set[str]]:
    """What each message touched."""
    touched = []
    for each in messages:
        notification = read_notification(each.value)
        assert isinstance(notification, Notification)
        fact = read_fact(notification, {})
        assert isinstance(fact, InstanceFact)
        touched.append(stats.took(fact))
    return touched


def test_a_build_counts_on_its_host_until_it_runs() -> None:
    stats, cloud = HostStats(), NovaCloud()
    scheduling, start, spawning, end = cloud.create("a", "h1")

    told(stats, [scheduling, start])
    assert stats.io_workload("h1") == 0, "its record stands nowhere yet"
    told(stats, [spawning])
    assert stats.io_workload("h1") == 1
    assert told(stats, [end]) == [{"h1"}]
    assert stats.io_workload("h1") == 0


def test_failed_builds_are_counted_where_they_were_tried_and_a_build_that_goes_well_ends_the_row() -> None:
    stats, cloud = HostStats(), NovaCloud()

    told(stats, [*cloud.fail_to_create("a", "h1"), *cloud.fail_to_create("b", "h1"), *cloud.fail_to_create("c", "h2")])
    assert (stats.failed_builds("h1"), stats.failed_builds("h2"), stats.failed_builds("h3")) == (2, 1, 0)
    assert stats.io_workload("h1") == 0, "what failed has left"

    told(stats, cloud.create("d", "h1"))
    assert (stats.failed_builds("h1"), stats.failed_builds("h2")) == (0, 1)


def test_a_guest_that_moves_is_work_for_the_host_where_its_record_stands() -> None:
    stats, cloud = HostStats(), NovaCloud()
    told(stats, cloud.create("a", "h1"))
    seen = []
    for message in cloud.resize("a", "h2", cloud.instances["a"].size):
        told(stats, [message])
        seen.append((stats.io_workload("h1"), stats.io_workload("h2")))

    assert seen[0] == (1, 0)
    assert seen[-1] == (0, 0)
    assert max(elsewhere for _, elsewhere in seen) == 0, "once it is there its task is one that Nova does not count"


def test_what_is_deleted_while_it_is_built_is_work_no_more() -> None:
    stats, cloud = HostStats(), NovaCloud()
    _, *building, _ = cloud.create("a", "h1")
    told(stats, building)
    assert stats.io_workload("h1") == 1

    assert told(stats, cloud.delete("a"))[-1] == {"h1"}
    assert stats.io_workload("h1") == 0


def test_a_build_that_is_said_in_both_formats_fails_once() -> None:
    stats = HostStats()
    versioned, legacy = (NovaCloud(legacy=legacy, start_ms=START_S * 1000 + legacy) for legacy in (False, True))
    both = zip(versioned.fail_to_create("a", "h1"), legacy.fail_to_create("a", "h1"), strict=True)

    told(stats, [each for pair in both for each in pair])

    assert stats.failed_builds("h1") == 1
