"""Notifications out of their envelopes: all of Nova's samples parse, each form of one comes to the same, and what is none says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from producers.openstack_messages import Key, Notification, read_notification, time_us_of
from producers.openstack_payloads import AggregateFact, HostFact, InstanceFact, ServiceFact, read_fact
from schemas.codec import Unreadable
from schemas.resources import Resources
from schemas.units import AMOUNT_MAX
from tests.nova_cloud import LARGE, START_S, NovaCloud, Sent, envelope, sample, samples

NAMES = (
    "aggregate-add_host-end", "compute_task-build_instances-error", "instance-create-end", "instance-create-error", "instance-create-start",
    "instance-delete-end", "instance-delete-end_not_scheduled", "instance-delete-start", "instance-evacuate", "instance-exists",
    "instance-live_migration_post-end", "instance-live_migration_post_dest-end", "instance-live_migration_rollback-end",
    "instance-pause-end", "instance-power_off-end", "instance-power_on-end", "instance-reboot-end", "instance-rebuild-end",
    "instance-resize-end", "instance-resize_confirm-end", "instance-resize_finish-end", "instance-resize_prep-end",
    "instance-resize_revert-end", "instance-restore-end", "instance-shelve_offload-end", "instance-soft_delete-end",
    "instance-suspend-end", "instance-unshelve-end", "instance-update", "libvirt-connect-error", "metrics-update",
    "scheduler-select_destinations-end", "scheduler-select_destinations-start", "service-update",
)  # fmt: skip


def enveloped(name: str) -> bytes:
    return envelope(json.loads(sample(name)), START_S * 1_000_000, "m1")


def notification(value: bytes) -> Notification:
    found = read_notification(value)
    assert isinstance(found, Notification), found
    return found


def fact_of(value: bytes) -> Any:
    return read_fact(notification(value), {})


def reason_of(value: bytes) -> str:
    found = read_notification(value)
    if isinstance(found, Notification):
        fault = read_fact(found, {})
        assert isinstance(fault, Unreadable), fault
        return fault.reason
    return found.reason


def changed(name: str, **changes: Any) -> bytes:
    """A sample's message with other data in its payload."""
    message = json.loads(sample(name))
    message["payload"]["nova_object.data"] |= changes
    return envelope(message, START_S * 1_000_000, "m1")


def test_the_samples_are_those_that_are_named_here() -> None:
    assert sorted(path.stem for path in samples().glob("*.json")) == sorted(NAMES)
    assert len(NAMES) == 34


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_of_nova_parses(name: str) -> None:
    bare, wrapped = read_notification(sample(name).encode()), read_notification(enveloped(name))

    assert isinstance(bare, Notification)
    assert isinstance(wrapped, Notification)
    assert wrapped.event == json.loads(sample(name))["event_type"] == bare.event
    assert bare.payload == wrapped.payload
    assert not isinstance(read_fact(wrapped, {}), Unreadable)
    if name.startswith("instance-"):
        assert isinstance(read_fact(wrapped, {}), InstanceFact)


def test_an_instance_comes_out_of_a_sample_as_its_record_stands() -> None:
    fact = fact_of(enveloped("instance-create-end"))

    assert (fact.instance_id, fact.host, fact.node) == ("178b0921-8f85-4257-88b6-2e743b5a975c", "compute", "fake-mini")
    assert (fact.action, fact.phase, fact.compute, fact.state, fact.power_state) == (
        "instance.create",
        "end",
        "compute",
        "active",
        "running",
    )
    assert fact.size == Resources(vcpus=1, memory_mib=512, disk_mib=1024)
    assert fact.key == Key(START_S * 1_000_000, 2, "compute:compute", "m1")


def test_a_resize_in_preparation_names_both_sizes() -> None:
    fact = fact_of(enveloped("instance-resize_prep-end"))

    assert (fact.size.memory_mib, fact.new_size) == (512, Resources(vcpus=1, memory_mib=256, disk_mib=1024))


def test_services_aggregates_and_metrics_come_out_of_their_samples() -> None:
    service, aggregate, host = map(fact_of, map(enveloped, ("service-update", "aggregate-add_host-end", "metrics-update")))

    assert isinstance(service, ServiceFact)
    assert (service.host, service.is_disabled, service.is_deleted) == ("host1", False, False)
    assert isinstance(aggregate, AggregateFact)
    assert (aggregate.name, aggregate.hosts, aggregate.metadata) == ("my-aggregate", ("compute",), {"availability_zone": "nova"})
    assert isinstance(host, HostFact)
    assert host == HostFact(host="compute", node="fake-mini", time_us=host.time_us)


def test_ephemeral_disk_and_swap_count_and_a_root_on_a_volume_does_not() -> None:
    cloud = NovaCloud()

    sizes = [fact_of(last(cloud, on_volume=on_volume)).size for on_volume in (False, True)]

    assert [size.disk_mib for size in sizes] == [(20 + 5) * 1024 + 256, 5 * 1024 + 256]


def last(cloud: NovaCloud, *, on_volume: bool) -> bytes:
    *_, sent = cloud.create("a", "h1", LARGE, on_volume=on_volume)
    assert isinstance(sent, Sent)
    return sent.value


def test_a_root_volume_among_the_block_devices_takes_no_local_disk() -> None:
    device = {"nova_object.name": "BlockDevicePayload", "nova_object.data": {"boot_index": 0, "volume_id": "v1"}}

    fact = fact_of(changed("instance-create-end", block_devices=[device]))

    assert fact.size.disk_mib == 0


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({}, (8, 0)),
        ({"hw:cpu_policy": "dedicated"}, (0, 8)),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-3,^1"}, (5, 3)),
        ({"hw:cpu_policy": "shared"}, (8, 0)),
    ],
)
def test_dedicated_cpus_are_counted_apart(specs: dict[str, str], expected: tuple[int, int]) -> None:
    flavor = json.loads(sample("instance-create-end"))["payload"]["nova_object.data"]["flavor"]
    flavor["nova_object.data"] |= {"vcpus": 8, "extra_specs": specs}

    fact = fact_of(changed("instance-create-end", flavor=flavor))

    assert (fact.size.vcpus, fact.size.pcpus) == expected


def test_a_legacy_message_says_the_same_but_for_swap_and_that_can_be_named() -> None:
    *_, versioned = NovaCloud().create("a", "h1", LARGE)
    *_, legacy = NovaCloud(legacy=True).create("a", "h1", LARGE)

    exact, flat = fact_of(versioned.value), fact_of(legacy.value)
    named = read_fact(notification(legacy.value), {"large": 256})

    assert isinstance(named, InstanceFact)
    assert (flat.action, flat.phase, flat.host, flat.node, flat.state) == (exact.action, exact.phase, exact.host, exact.node, exact.state)
    assert (flat.compute, flat.key[:3]) == (exact.compute, exact.key[:3])
    assert (flat.size.disk_mib, named.size, flat.is_exact) == (25 * 1024, exact.size, False)


@pytest.mark.parametrize(
    ("legacy", "versioned"),
    [
        ("compute.instance.finish_resize.end", "instance.resize_finish.end"),
        ("compute.instance.resize.prep.start", "instance.resize_prep.start"),
        ("compute.instance.resize.confirm.end", "instance.resize_confirm.end"),
        ("compute.instance.live_migration._post.end", "instance.live_migration_post.end"),
        ("compute.instance.live_migration.post.dest.end", "instance.live_migration_post_dest.end"),
        ("compute.instance.live_migration.rollback.dest.start", "instance.live_migration_rollback_dest.start"),
        ("compute.instance.shelve_offload.end", "instance.shelve_offload.end"),
        ("compute.instance.update", "instance.update"),
        ("compute_task.build_instances", "compute_task.build_instances.error"),
        ("compute_task.rebuild_server", "compute_task.rebuild_server.error"),
        ("scheduler.select_destinations.start", "scheduler.select_destinations.start"),
    ],
)
def test_legacy_events_have_the_names_of_versioned_ones(legacy: str, versioned: str) -> None:
    message = {"event_type": legacy, "payload": {}, "publisher_id": "compute.h1.example.org", "timestamp": "2026-11-21 10:42:07.5"}

    found = notification(json.dumps(message).encode())

    assert (found.event, found.binary, found.host) == (versioned, "compute", "h1.example.org")


def test_a_line_of_kcat_is_opened_as_well() -> None:
    line = {"topic": "versioned_notifications.info", "partition": 0, "offset": 7, "payload": enveloped("instance-exists").decode()}

    assert notification(json.dumps(line).encode()) == notification(enveloped("instance-exists"))


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("2015-12-13 17:36:30.118239", 1_450_028_190_118_239),
        ("2015-12-13T17:36:30.118239Z", 1_450_028_190_118_239),
        ("2015-12-13T18:36:30+01:00", 1_450_028_190_000_000),
        ("2015-12-13 17:36:30+00:00", 1_450_028_190_000_000),
    ],
)
def test_times_are_utc_to_the_microsecond(text: str, time_us: int) -> None:
    assert time_us_of(text, "timestamp") == time_us


def test_without_an_envelope_the_payload_says_when_it_was() -> None:
    assert notification(sample("instance-delete-end").encode()).time_us == time_us_of("2012-10-29T13:42:11Z", "x")


def legacy(event_type: str, **payload: Any) -> bytes:
    message = {"event_type": event_type, "payload": payload, "publisher_id": "compute.h1", "timestamp": "2026-11-21 10:42:07"}
    return json.dumps(message).encode()


@pytest.mark.parametrize("said", [{"instance_ids": ["a"]}, {"instance_uuids": ["a"]}, {"$ref": "common_payloads/InstancePayload.json#"}])
def test_a_message_about_many_instances_or_about_another_file_is_none_of_one(said: dict[str, Any]) -> None:
    assert fact_of(legacy("compute.instance.booting", **said)) is None


@pytest.mark.parametrize("said", [{"state": "deleted"}, {"state": "active", "terminated_at": "2026-11-21T10:42:06Z"}])
def test_a_legacy_deletion_needs_no_size(said: dict[str, str]) -> None:
    fact = fact_of(legacy("compute.instance.delete.end", instance_id="a", host="h1", node="n1", **said))

    assert (fact.instance_id, fact.compute, fact.host, fact.node, fact.is_deleted) == ("a", "h1", "h1", "n1", True)


UNREADABLE = {
    "nothing": (b"", "expected JSON: Input data was truncated"),
    "cut short": (b"{", "expected JSON: Input data was truncated"),
    "no text": (b"\xff\xfe", "expected JSON"),
    "a list": (b"[]", "expected a notification: Expected `object`, got `array`"),
    "no field": (b"{}", "expected a notification: Object missing required field `event_type`; it has nothing"),
    "an envelope cut short": (b'{"oslo.version": "2.0", "oslo.message": "{"}', "expected JSON"),
    "a number for its type": (
        b'{"event_type": 1, "payload": {}}',
        "expected a notification: Expected `str`, got `int` - at `$.event_type`",
    ),
    "no payload": (b'{"event_type": "instance.create.end"}', "expected a notification: Object missing required field `payload`"),
    "a word for its time": (b'{"event_type": "x", "payload": {}, "timestamp": "soon"}', "timestamp: expected a time such as"),
    "a time before 1970": (
        b'{"event_type": "x", "payload": {}, "timestamp": "1969-12-31T23:59:59Z"}',
        "timestamp: expected a time after 1970",
    ),
    "a name without data": (b'{"event_type": "instance.exists", "payload": {"nova_object.name": "X"}}', "expected nova_object.data in X"),
    "a list for its data": (
        b'{"event_type": "instance.exists", "payload": {"nova_object.data": [1]}}',
        "Expected `object`, got `list` - at `$.payload.nova",
    ),
    "too deep": (b"[" * 100_000, "nested too deep"),
    "too long": (b" " * ((8 << 20) + 1), "expected at most 8388608 bytes"),
    "an instance without flavor": (
        b'{"event_type": "instance.exists", "payload": {"nova_object.data": {"uuid": "a"}}}',
        "instance.exists: Object missing required field `flavor`",
    ),
    "legacy, without memory": (
        legacy("compute.instance.create.end", instance_id="a"),
        "instance.create.end: Object missing required field `memory_mb`",
    ),
    "legacy, deleted but active": (
        legacy("compute.instance.delete.end", instance_id="a", state="active"),
        "Object missing required field `memory_mb`",
    ),
    "legacy, deleted without id": (
        legacy("compute.instance.delete.end", state="deleted"),
        "Object missing required field `instance_id`",
    ),
    "legacy, without vCPUs": (
        legacy("compute.instance.create.end", instance_id="a", memory_mb=512),
        "Object missing required field `vcpus`",
    ),
    "legacy, updated without id": (legacy("compute.instance.update"), "Object missing required field `instance_id`"),
    "legacy, by today's name": (legacy("instance.create.end"), "instance.create.end: Object missing required field `instance_id`"),
}


@pytest.mark.parametrize(("value", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_says_what_was_expected(value: bytes, reason: str) -> None:
    assert reason in reason_of(value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"uuid": None}, "instance.create.end: Expected `str`, got `null` - at `$.uuid`"),
        ({"uuid": ""}, "Expected `str` of length >= 1 - at `$.uuid`"),
        ({"host": 7}, "Expected `str | null`, got `int` - at `$.host`"),
        ({"node": "n" * 256}, "Expected `str` of length <= 255 - at `$.node`"),
        ({"flavor": {}}, "Object missing required field `vcpus` - at `$.flavor`"),
        ({"flavor": {"vcpus": -1, "memory_mb": 1, "root_gb": 1}}, "Expected `int` >= 0 - at `$.flavor.vcpus`"),
        ({"flavor": {"vcpus": 1, "memory_mb": 1, "root_gb": 1 << 50}}, "Expected `int` <= 137438953472 - at `$.flavor.root_gb`"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_an_instance_is_named_with_its_place(changes: dict[str, Any], reason: str) -> None:
    assert reason in reason_of(changed("instance-create-end", **changes))


def test_the_largest_flavor_counted_twice_on_one_host_is_still_an_amount() -> None:
    most = {"vcpus": 1, "memory_mb": 1 << 47, "root_gb": 1 << 37, "ephemeral_gb": 1 << 37, "swap": 1 << 47}

    size = fact_of(changed("instance-create-end", flavor=most)).size

    assert max(size.memory_mib, size.disk_mib) * 2 <= AMOUNT_MAX


def test_a_message_without_any_time_cannot_be_put_in_order() -> None:
    assert "without one it cannot be put in order" in reason_of(sample("aggregate-add_host-end").encode())
