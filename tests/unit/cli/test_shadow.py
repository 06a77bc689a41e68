"""`claimlog shadow`: Nova's choices held against ours on the same fleet at the same moments, with reasons that an operator can check."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from producers.openstack_messages import Notification, read_notification
from producers.openstack_requests import Answered, Asked, read_request
from schemas.codec import Unreadable
from schemas.inventory import Hypervisor, OperatorFields, ResourceRule, SupportedGuest
from schemas.pinning import wants
from schemas.resources import Resources
from streams.cli.main import run
from streams.cli.shadow.shadowing import Given, Outcome, Row, Shadow, given, history, outcomes
from streams.log.base import Record
from streams.scheduling.loading import named
from streams.scheduling.select import ENGINES
from tests.cli_log import FleetLog
from tests.nova_cloud import LARGE, SMALL, START_S, Instance, NovaCloud, Sent, Size, envelope, node_of, sample

HUGE = Size("huge", 200, 512, 1)
HOSTS = ("h1", "h2", "h3")
H1, H2, H3 = map(node_of, HOSTS)
GUESTS = (SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm"),)
MEMORY_MIB = (18_432, 17_408, 16_384)
"""The first has the most, so that it is the best while nothing runs."""


def nodes_of(*memory_mib: int) -> list[Given]:
    return [
        given(
            node_of(host),
            Hypervisor(vcpus=16, memory_mib=memory, disk_mib=200 * 1024, service_host=host, supported_guests=GUESTS),
            OperatorFields(),
        )
        for host, memory in zip(HOSTS, memory_mib, strict=True)
    ]


NODES = nodes_of(*MEMORY_MIB)


def history_of(messages: Iterable[Sent]) -> Any:
    return history(Record("file:n", 0, number, 0, b"", sent.value) for number, sent in enumerate(messages))


def shadowed(messages: Iterable[Sent], *, engine: str = "reference", policy: str = "nova", nodes: Any = NODES) -> list[Row]:
    found = history_of(messages)
    answers = outcomes(found.messages, nodes)
    return list(Shadow(nodes, ENGINES[engine], named(policy, str)).rows(found.messages, answers))


def verdicts(rows: Iterable[Row]) -> list[tuple[str, str | None, str]]:
    return [(row.compared.verdict, row.compared.theirs, row.compared.ours) for row in rows]


def about(value: bytes) -> Any:
    notification = read_notification(value)
    assert isinstance(notification, Notification)
    return read_request(notification)


def request_of(cloud: NovaCloud, size: Size = SMALL, **changes: Any) -> Asked:
    asked = about(next(iter(cloud.select("a", size, **changes))).value)
    assert isinstance(asked, Asked)
    return asked


def test_novas_samples_of_requests_parse() -> None:
    start, end, failed = (
        about(envelope(json.loads(sample(name)), START_S * 1_000_000, "m"))
        for name in ("scheduler-select_destinations-start", "scheduler-select_destinations-end", "compute_task-build_instances-error")
    )

    assert isinstance(start, Asked)
    assert start.request.resources == Resources(vcpus=1, memory_mib=512, disk_mib=1024)
    assert (start.instance_id, start.request.image.properties) == ("d5e6a7b7-80e5-4166-85a3-cd6115201082", {"hw_architecture": "x86_64"})
    assert isinstance(end, Answered)
    assert (end.instance_id, end.reason) == (start.instance_id, "")
    assert isinstance(failed, Answered)
    assert failed.reason == "NoValidHost"


def test_what_nova_wants_of_nodes_is_asked_of_ours() -> None:
    group = {"uuid": "g1", "policies": ["anti-affinity"], "policy": None, "rules": {"max_server_per_host": "2"}, "members": ["a", "b"]}
    pci = {"requests": [{"count": 2, "spec": [{"vendor_id": "8086", "tag": None}], "alias_name": "nic", "numa_policy": None}]}

    asked = request_of(
        NovaCloud(),
        availability_zone="east",
        ignore_hosts=["h9"],
        force_hosts="h1",
        force_nodes=None,
        instance_group=group,
        pci_requests=pci,
        requested_destination={"host": "h2", "node": None},
        retry={"num_attempts": 2, "hosts": ["n7"]},
        scheduler_hints={"same_host": ["x", "y"], "query": ['[">=", "$free_ram_mb", 1]'], "own": ["1"]},
        num_instances=3,
    )

    request = asked.request
    assert (request.availability_zone, request.ignored_hosts, request.forced_hosts, request.retry_nodes) == (
        "east",
        ("h9",),
        ("h1",),
        ("n7",),
    )
    assert request.group is not None
    assert (request.group.group_id, request.group.policy, request.group.max_per_node) == ("g1", "anti-affinity", 2)
    assert (asked.members, asked.wanted_host) == (("b",), "h2")
    assert (request.hints.same_host, request.hints.query, request.hints.other) == (("x", "y"), '[">=", "$free_ram_mb", 1]', {"own": "1"})
    assert (request.count, request.instance_ids) == (3, ("a", "a/1", "a/2"))
    assert [(want.alias, want.count, want.specs) for want in request.pci] == [("nic", 2, ({"vendor_id": "8086"},))]


def test_cells_and_traits_that_an_image_lists_are_those_that_nova_placed() -> None:
    listed = {"hw_numa_nodes": 2, "hw_numa_cpus": [[0], [1, 2, 3]], "hw_numa_mem": [1024, 3072], "traits_required": ["CUSTOM_A"]}

    request = request_of(NovaCloud(), Size("numa", 4, 4096, 1), image={"id": "i1", "properties": {**listed, "hw_pmu": True}}).request

    assert [(cell.cpus, cell.memory_mib) for cell in wants(request.flavor, request.image).numa] == [((0,), 1024), ((1, 2, 3), 3072)]
    assert (request.image.properties["trait:CUSTOM_A"], request.image.properties["hw_pmu"]) == ("required", "True")


def test_a_rebuild_that_only_asks_whether_its_host_suits_is_no_request() -> None:
    (start, _) = NovaCloud().select("a", SMALL, scheduler_hints={"_nova_check_type": ["rebuild"]})

    assert about(start.value) is None


def test_a_root_on_a_volume_is_asked_for_without_its_disk() -> None:
    asked = request_of(NovaCloud(), LARGE, image=None)

    assert asked.request.resources.disk_mib == 5 * 1024 + 256


def test_a_legacy_request_is_read_for_its_size_and_zone() -> None:
    spec = {
        "instance_type": {"vcpus": 2, "memory_mb": 1024, "root_gb": 3, "ephemeral_gb": 0, "swap": 0, "name": "m"},
        "instance_properties": {"uuid": "a", "availability_zone": "east", "project_id": "p"},
        "num_instances": 1,
        "image": {"id": "i1", "properties": {}},
    }
    message = {"event_type": "scheduler.select_destinations.start", "payload": {"request_spec": spec}, "publisher_id": "scheduler.s1"}

    asked = about(envelope(message, START_S * 1_000_000, "m"))

    assert isinstance(asked, Asked)
    assert asked.request.resources == Resources(vcpus=2, memory_mib=1024, disk_mib=3 * 1024)
    assert (asked.request.availability_zone, asked.request.project_id) == ("east", "p")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"instance_uuid": None}, "Expected `str`, got `null` - at `$.instance_uuid`"),
        ({"ignore_hosts": "h1"}, "Expected `array | null`, got `str` - at `$.ignore_hosts`"),
    ],
)
def test_a_request_that_cannot_be_read_says_why(changes: dict[str, Any], reason: str) -> None:
    message = json.loads(sample("scheduler-select_destinations-start"))
    message["payload"]["nova_object.data"] |= changes

    fault = about(envelope(message, START_S * 1_000_000, "m"))

    assert isinstance(fault, Unreadable)
    assert reason in fault.reason


def test_where_the_instance_shows_next_is_novas_choice() -> None:
    cloud = NovaCloud()
    messages = [*cloud.select("a", SMALL), *cloud.create("a", "h2")]
    messages += [*cloud.select("a", LARGE), *cloud.resize("a", "h3", LARGE), *cloud.confirm("a")]
    messages += [*cloud.select("a", LARGE), *cloud.live_migrate("a", "h1")]
    messages += [*cloud.select("b", SMALL, is_found=False), *cloud.select("c", SMALL)]

    found = outcomes(history_of(messages).messages, NODES)

    assert found == [Outcome(H2), Outcome(H3), Outcome(H1), Outcome("", "NoValidHost"), Outcome(None)]


def test_a_tie_that_was_broken_otherwise_is_no_difference() -> None:
    cloud = NovaCloud()
    asked = [sent for host in HOSTS for sent in (*cloud.select(f"on {host}", SMALL), *cloud.create(f"on {host}", host))]

    first, *_ = shadowed(asked, nodes=nodes_of(16_384, 16_384, 16_384))

    assert first.compared.theirs == H1
    assert first.compared.verdict == ("agrees" if first.compared.ours == H1 else "equal")
    assert first.compared.why == ("" if first.compared.ours == H1 else "both score 3.000")


def test_agreement_and_difference_are_told_apart_with_what_makes_it() -> None:
    cloud = NovaCloud()
    messages = [*cloud.select("a", SMALL), *cloud.create("a", "h2")]
    messages += [*cloud.select("b", SMALL), *cloud.create("b", "h1")]

    worse, same = shadowed(messages)

    assert verdicts([worse, same]) == [("differs", H2, H1), ("agrees", H1, H1)]
    assert worse.compared.why == "3.000 against 2.944: RAMWeigher +0.056 (18432, 17408)"
    assert same.compared.why == ""


def test_a_node_that_our_filters_refuse_is_told_with_the_amounts() -> None:
    cloud = NovaCloud()
    quarter = OperatorFields(vcpus=ResourceRule(ratio_milli=250))
    nodes = [given(node.node_id, node.hypervisor, quarter, "draining" if node.node_id == H3 else "enabled") for node in NODES]
    messages = [*cloud.select("a", LARGE), *cloud.create("a", "h1", LARGE), *cloud.select("b", SMALL), *cloud.create("b", "h1")]
    messages += [*cloud.select("c", SMALL), *cloud.create("c", "h3")]

    first, second, third = shadowed(messages, nodes=nodes)

    assert verdicts([first]) == [("agrees", H1, H1)]
    assert verdicts([second, third]) == [("refuses", H1, H2), ("refuses", H3, H2)]
    assert second.compared.why == "CoreFilter: vcpus: 1 needed of 0"
    assert third.compared.why.startswith("ComputeFilter: ")


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_said_of_nodes_counts_from_when_it_was_said_in_whatever_order_nodes_are_given(*, backwards: bool) -> None:
    cloud = NovaCloud()
    start_ms, messages = cloud.now_us // 1000, [*cloud.select("a", SMALL), *cloud.create("a", "h3")]
    for uuid in ("b", "c"):
        cloud.now_us += 120_000_000
        messages += [*cloud.select(uuid, SMALL), *cloud.create(uuid, "h3")]
    later_ms = {H1: start_ms + 60_000, H2: start_ms + 180_000}
    nodes = [replace(node, since_ms=later_ms.get(node.node_id, 0)) for node in NODES]
    out = [
        replace(node, configured=replace(node.configured, status="disabled")) if node.node_id in later_ms else node
        for node in (reversed(nodes) if backwards else nodes)
    ]

    assert [row.compared.ours for row in shadowed(messages, nodes=out)] == [H1, H2, H3]


def test_requests_that_only_one_of_the_two_can_place() -> None:
    cloud = NovaCloud()
    messages = [*cloud.select("a", HUGE), *cloud.create("a", "h1", HUGE)]
    messages += [*cloud.select("b", SMALL, is_found=False), *cloud.select("c", HUGE, is_found=False), *cloud.select("d", SMALL)]

    rows = shadowed(messages)

    assert verdicts(rows) == [("only-they", H1, ""), ("only-we", "", H2), ("both-refuse", "", ""), ("unknown", None, H2)]
    assert rows[0].compared.why == "CoreFilter: vcpus: 200 needed of 16"
    assert rows[1].compared.why == "they said: NoValidHost"


def test_novas_choice_takes_its_room_at_once_as_its_allocation_does() -> None:
    cloud = NovaCloud()
    asked = [*cloud.select("a", LARGE), *cloud.select("b", LARGE)]
    messages = [*asked, *cloud.create("a", "h1", LARGE), *cloud.create("b", "h2", LARGE)]

    rows = shadowed(messages)

    assert verdicts(rows) == [("agrees", H1, H1), ("agrees", H2, H2)]


BIG = Size("big", 1, 12 * 1024, 1)
"""No two of it fit one of the nodes."""


def room_after(messages: Iterable[Sent], cloud: NovaCloud) -> int:
    """How many nodes have room for a big one after these messages."""
    *_, probe = shadowed([*messages, *cloud.select("probe", BIG, is_found=False)])
    return probe.decision.passed


def test_a_build_that_never_began_to_use_its_host_gives_its_room_back() -> None:
    """As when its claim fails on the host: the record is never there."""
    cloud = NovaCloud()
    asked = list(cloud.select("a", BIG))
    a = cloud.instances["a"] = Instance("a", BIG)
    began = [*asked, cloud.say("create.start", a, "compute:h1")]
    failed = [*began, cloud.say("create.error", a, "compute:h1")]
    elsewhere = [*failed, cloud.say("create.start", a, "compute:h2")]
    given_up = [*elsewhere, cloud.say("create.error", a, "compute:h2")]
    a.state = "error"
    in_error = [*elsewhere, cloud.say("update", a, "conductor:conductor")]
    deleted = [*began, *cloud.delete("a")]
    refused = [*began, *islice(cloud.select("a", BIG, is_found=False), 1, None)]

    found = [room_after(each, cloud) for each in (asked, began, failed, elsewhere, given_up, in_error, deleted, refused)]

    assert found == [3, 2, 3, 2, 3, 3, 3, 3], "asked alone: no message says where"


@pytest.mark.parametrize("move", ["resize", "live_migrate", "evacuate"])
def test_a_move_keeps_its_room_until_it_shows_there_whatever_is_said_where_it_comes_from(move: str) -> None:
    cloud = NovaCloud()
    before = list(cloud.create("a", "h1", BIG))
    moving = cloud.resize("a", "h2", BIG) if move == "resize" else getattr(cloud, move)("a", "h2")
    a = cloud.instances["a"]
    a.task = "resize_prep" if move == "resize" else "migrating" if move == "live_migrate" else "rebuilding"
    asked = [*before, cloud.say("update", a, "api:api"), *cloud.select("a", BIG, ignore_hosts=["h1"])]
    probes = [*cloud.select("p1", BIG, is_found=False)]
    a.power = "shutdown"  # as nova-compute finds it there
    probes += [cloud.say("update", a, "compute:h1"), *cloud.select("p2", BIG, is_found=False)]

    _, *rows = shadowed([*asked, *probes, *moving, *cloud.select("p3", BIG, is_found=False)])

    assert [row.decision.passed for row in rows] == [1, 1, 1 if move == "resize" else 2], "a resize waits to be confirmed"


def asked_to_move(cloud: NovaCloud, task: str) -> list[Sent]:
    """An instance on h1, its task, and the request of a host for it."""
    before = list(cloud.create("a", "h1", BIG))
    cloud.instances["a"].task = task
    return [*before, cloud.say("update", cloud.instances["a"], "api:api"), *cloud.select("a", BIG, ignore_hosts=["h1"])]


@pytest.mark.parametrize("task", ["resize_prep", "migrating"])
def test_where_an_instance_goes_later_without_asking_is_no_answer_to_a_move_that_was_over_before(task: str) -> None:
    """As one that was aborted while it waited for its turn."""
    cloud = NovaCloud()
    asked = asked_to_move(cloud, task)
    cloud.instances["a"].task = None
    over = [cloud.say("update", cloud.instances["a"], "conductor:conductor"), *cloud.select("p", BIG, is_found=False)]

    first, second = shadowed([*asked, *over, *cloud.live_migrate("a", "h2")])

    assert verdicts([first]) == [("unknown", None, H2)]
    assert second.decision.passed == 2


def test_an_evacuation_whose_claim_failed_was_to_go_where_that_was_said() -> None:
    cloud = NovaCloud()
    asked = [*asked_to_move(cloud, "rebuilding"), *cloud.select("p1", BIG, is_found=False)]
    failed = [cloud.say("rebuild.error", cloud.instances["a"], "compute:h3")]
    cloud.instances["a"].task = None
    failed += [cloud.say("update", cloud.instances["a"], "compute:h3"), *cloud.select("p2", BIG, is_found=False)]

    first, *probes = shadowed([*asked, *failed, *cloud.evacuate("a", "h2")])

    assert verdicts([first]) == [("differs", H3, H2)]
    assert [row.decision.passed for row in probes] == [1, 2]


@pytest.mark.parametrize("state", ["active", "stopped", "error"])
def test_an_evacuation_holds_its_destination_until_its_service_says_that_it_is_over(state: str) -> None:
    """Nova's tracker counts it there only while the instance is active or stopped, and has a task; Placement does all the time."""
    cloud = NovaCloud()
    list(cloud.create("a", "h1", BIG))
    cloud.instances["a"].state = state
    messages = [cloud.say("update", cloud.instances["a"], "compute:h1")]
    cloud.instances["a"].task = "rebuilding"
    messages += [cloud.say("update", cloud.instances["a"], "api:api"), *cloud.select("a", BIG, ignore_hosts=["h1"])]
    messages += [cloud.say("rebuild.start", cloud.instances["a"], "compute:h2"), cloud.say("update", cloud.instances["a"], "compute:h2")]
    messages += cloud.select("p1", BIG, is_found=False)
    cloud.instances["a"].state, cloud.instances["a"].task = "active", None
    messages += [cloud.say("update", cloud.instances["a"], "compute:h2"), *cloud.select("p2", BIG, is_found=False)]
    ends = [cloud.say("rebuild.end", cloud.instances["a"], "compute:h2")]
    cloud.instances["a"].host = "h2"
    ends += [cloud.say("update", cloud.instances["a"], "compute:h2"), *cloud.select("p3", BIG, is_found=False)]

    _, *probes = shadowed([*messages, *ends])

    assert [row.decision.passed for row in probes] == [1, 1, 2]


def test_a_build_that_failed_after_its_claim_takes_room_as_soon_as_the_next_one_begins() -> None:
    cloud = NovaCloud()
    asked = list(cloud.select("a", BIG))
    failed = [*asked, *islice(cloud.fail_to_create("a", "h1", BIG), 3)]
    cloud.instances["a"].state, cloud.instances["a"].task = "building", None
    elsewhere = [*failed, cloud.say("create.start", cloud.instances["a"], "compute:h2")]
    again = [*elsewhere, cloud.say("create.error", cloud.instances["a"], "compute:h2")]

    assert [room_after(each, cloud) for each in (asked, failed, elsewhere, again)] == [3, 3, 2, 3]


def test_a_build_is_over_when_it_ends_also_where_nova_says_nothing_of_tasks() -> None:
    """As without `notify_on_state_change`. Where the instance goes then is not the choice's to hold."""
    cloud = NovaCloud()
    built = [*cloud.select("a", BIG), *(each for each in cloud.create("a", "h1", BIG) if event_of(each) != "instance.update")]

    assert room_after([*built, *cloud.live_migrate("a", "h2")], cloud) == 2


def event_of(sent: Sent) -> str:
    notification = read_notification(sent.value)
    assert isinstance(notification, Notification)
    return notification.event


def test_the_room_of_a_move_that_was_first_heard_of_under_way_is_where_it_goes() -> None:
    """The same message finds the instance where it comes from."""
    cloud = NovaCloud()
    list(cloud.create("a", "h3"))
    asked = [*cloud.create("b", "h1"), *cloud.create("c", "h3"), *cloud.select("a", LARGE)]

    (row,) = shadowed([*asked, *cloud.resize("a", "h1", LARGE)])

    assert row.compared.theirs == H1


@pytest.mark.parametrize(("task", "legacy"), [("rebuild_server", False), ("rebuild_server", True), ("migrate_server", False)])
def test_a_move_or_an_evacuation_without_a_host_is_one_that_nova_found_none_for(task: str, *, legacy: bool) -> None:
    cloud = NovaCloud()
    before = [*cloud.create("a", "h1"), *islice(cloud.select("a", SMALL, ignore_hosts=["h1"]), 1)]
    failed = json.loads(sample("compute_task-build_instances-error"))
    failed["event_type"] = f"compute_task.{task}.error"
    failed["payload"]["nova_object.data"]["instance_uuid"] = "a"
    if legacy:
        failed |= {"event_type": f"compute_task.{task}", "payload": {"instance_id": "a", "reason": "NoValidHost_Remote: none"}}

    (row,) = shadowed([*before, cloud._sent(failed, "conductor:conductor")])

    assert (row.compared.verdict, row.compared.theirs) == ("only-we", "")
    assert "NoValidHost" in row.compared.why


def test_a_host_where_a_build_failed_comes_last_until_one_goes_well_there() -> None:
    cloud = NovaCloud()
    messages = [*cloud.select("a", SMALL), *cloud.fail_to_create("a", "h1")]
    messages += [*cloud.select("b", SMALL), *cloud.create("b", "h2")]
    messages += cloud.create("c", "h1")
    messages += [*cloud.select("d", SMALL), *cloud.create("d", "h1")]

    _, after, again = shadowed(messages)

    assert verdicts([after, again]) == [("agrees", H2, H2), ("agrees", H1, H1)]


def test_a_build_is_novas_choice_where_it_begins_whatever_becomes_of_it() -> None:
    cloud = NovaCloud()
    asked = list(cloud.select("a", SMALL))
    start, *_ = cloud.fail_to_create("a", "h1")
    fault = cloud.say("create.error", cloud.instances["a"], "compute:h1", host=None)

    (row,) = shadowed([*asked, start, fault, *cloud.create("a", "h2")])

    assert verdicts([row]) == [("agrees", H1, H1)]


def test_the_same_build_said_in_both_formats_fails_once_and_one_refused_by_its_group_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, legacy = NovaCloud(), NovaCloud(legacy=True, start_ms=START_S * 1000 + 1)
    twice = [each for both in zip(cloud.fail_to_create("a", "h1"), legacy.fail_to_create("a", "h1"), strict=True) for each in both]
    assert weights_of_failed_builds([*twice, *cloud.select("b", SMALL)]) == {H1: 1.0, H2: 0.0, H3: 0.0}

    refused = [each._replace(value=each.value.replace(b"FlavorDiskTooSmall", b"GroupAffinityViolation")) for each in failing(cloud, "c")]
    assert weights_of_failed_builds([*refused, *cloud.select("d", SMALL)]) == {H1: 0.0, H2: 0.0, H3: 0.0}
    assert weights_of_failed_builds([*failing(cloud, "e"), *cloud.select("f", SMALL)]) == {H1: 1.0, H2: 0.0, H3: 0.0}


def failing(cloud: NovaCloud, uuid: str) -> list[Sent]:
    """A build that begins on h1 and ends as Nova's sample of an error has it."""
    start, *_ = cloud.fail_to_create(uuid, "h1")
    message = json.loads(sample("instance-create-error"))
    message["payload"]["nova_object.data"]["uuid"] = uuid
    return [start, cloud._sent(message, "compute:h1")]


def weights_of_failed_builds(messages: Iterable[Sent]) -> dict[str, float]:
    """What BuildFailureWeigher reads of each node at the last request."""
    *_, row = shadowed(messages)
    return {each.node_id: weight.raw for each in row.decision.best for weight in each.weights if weight.weigher == "BuildFailureWeigher"}


def test_a_legacy_request_counts_where_no_versioned_one_says_the_same() -> None:
    legacy, cloud = NovaCloud(legacy=True), NovaCloud(start_ms=(START_S + 600) * 1000)
    flavor = {"vcpus": 1, "memory_mb": 512, "root_gb": 1}
    spec = {"instance_type": flavor, "instance_properties": {"uuid": "a"}, "num_instances": 1, "image": {}}
    message = {"event_type": "scheduler.select_destinations.start", "payload": {"request_spec": spec}, "publisher_id": "scheduler.s1"}
    early = [Sent("scheduler:s1", envelope(message, legacy.now_us, "legacy")), *legacy.create("a", "h1")]

    rows = shadowed([*early, *cloud.select("b", SMALL), *cloud.create("b", "h1")])

    assert [row.asked.instance_id for row in rows] == ["a", "b"]


def test_a_legacy_request_that_names_no_instance_is_none() -> None:
    message = {"event_type": "scheduler.select_destinations.start", "payload": {"request_spec": {"instance_properties": {}}}}

    assert about(envelope(message | {"publisher_id": "scheduler.s1"}, START_S * 1_000_000, "m")) is None


def test_messages_without_an_id_are_told_apart_by_what_they_say() -> None:
    cloud = NovaCloud(step_ms=0)
    messages = [*cloud.create("a", "h1"), *cloud.create("b", "h1")]
    anonymous = [each._replace(value=re.sub(rb'\\"message_id\\": \\"[^"]*\\", ', b"", each.value)) for each in messages]
    assert all(b"message_id" not in each.value for each in anonymous)

    found = history_of([*anonymous, *anonymous])

    assert len(found.messages) == len(messages)


def test_a_host_that_builds_and_one_that_moves_a_guest_away_are_busy_as_nova_counts_them() -> None:
    cloud = NovaCloud()
    messages = list(cloud.create("a", "h1"))
    moves, builds = cloud.resize("a", "h3", SMALL), cloud.create("b", "h2")
    messages += [next(moves), *islice(builds, 3), *cloud.select("c", SMALL), *moves, *builds, *cloud.select("d", SMALL)]

    shadow = Shadow(NODES, ENGINES["reference"], named("nova", str))
    found = history_of(messages)
    rows = shadow.rows(found.messages, outcomes(found.messages, NODES))

    busy, calm = [
        {each.node_id: weight.raw for each in row.decision.best for weight in each.weights if weight.weigher == "IoOpsWeigher"}
        for row in rows
    ]
    assert busy == {H1: 1.0, H2: 1.0, H3: 0.0}
    assert calm == {H1: 0.0, H2: 0.0, H3: 0.0}


def test_a_request_that_is_said_in_both_formats_is_one_request() -> None:
    cloud = NovaCloud()
    spec = {
        "instance_type": {"vcpus": 1, "memory_mb": 512, "root_gb": 1},
        "instance_properties": {"uuid": "a"},
        "num_instances": 1,
        "image": {},
    }
    legacy = {"event_type": "scheduler.select_destinations.start", "payload": {"request_spec": spec}, "publisher_id": "scheduler.s1"}
    twice = [Sent("scheduler:s1", envelope(legacy, cloud.now_us, "legacy")), *cloud.select("a", SMALL), *cloud.create("a", "h1")]

    rows = shadowed(twice)

    assert verdicts(rows) == [("agrees", H1, H1)]


def test_a_groups_members_stay_apart_as_the_request_says() -> None:
    cloud = NovaCloud()
    group = {"uuid": "g1", "policy": "anti-affinity", "rules": {}, "members": ["a", "b"]}
    messages = [*cloud.create("a", "h1"), *cloud.select("b", SMALL, instance_group=group), *cloud.create("b", "h1")]

    (row,) = shadowed(messages)

    assert verdicts([row]) == [("refuses", H1, H2)]
    assert row.compared.why.startswith("ServerGroupAntiAffinityFilter: ")


def test_a_resize_that_may_stay_on_its_host_needs_room_for_both_sizes_there() -> None:
    cloud = NovaCloud()
    larger = Size("larger", 4, 12_000, 20)
    messages = [*cloud.create("a", "h1", Size("old", 4, 8000, 20)), *cloud.select("a", larger), *cloud.resize("a", "h2", larger)]

    (row,) = shadowed(messages)

    assert row.asked.instance_id == "a"
    assert verdicts([row]) == [("agrees", H2, H2)]
    assert [each.reason for each in row.decision.rejections if each.filter == "RamFilter"] == ["memory_mib: 12000 needed of 10432"]


def test_who_is_named_no_more_is_no_member_any_more() -> None:
    cloud = NovaCloud()
    group = {"uuid": "g1", "policy": "anti-affinity", "rules": {}, "members": ["a", "b"]}
    smaller = group | {"members": ["b", "c"]}
    messages = [*cloud.create("a", "h1"), *cloud.select("b", SMALL, instance_group=group), *cloud.create("b", "h2")]
    messages += [*cloud.select("c", SMALL, instance_group=smaller), *cloud.create("c", "h1")]

    rows = shadowed(messages)

    assert verdicts(rows) == [("agrees", H2, H2), ("agrees", H1, H1)]


def test_both_engines_say_the_same() -> None:
    cloud = NovaCloud()
    messages = [
        sent for number in range(12) for sent in (*cloud.select(f"i{number}", SMALL), *cloud.create(f"i{number}", HOSTS[number % 2]))
    ]

    assert verdicts(shadowed(messages, engine="profiles")) == verdicts(shadowed(messages, engine="reference"))


def test_services_that_were_disabled_on_the_way_are_not_chosen_from_then_on() -> None:
    cloud = NovaCloud()
    service = json.loads(sample("service-update"))
    service["payload"]["nova_object.data"] |= {"host": "h1", "disabled": True, "disabled_reason": "fan broken"}
    cloud.now_us += 1_000_000
    messages = [Sent("compute:h1", envelope(service, cloud.now_us, "s")), *cloud.select("a", SMALL), *cloud.create("a", "h1")]

    (row,) = shadowed(messages)

    assert verdicts([row]) == [("refuses", H1, H2)]
    assert row.compared.why == "ComputeFilter: disabled (fan broken)"


def test_copies_and_any_order_of_arrival_give_the_same_rows() -> None:
    cloud = NovaCloud()
    messages = [*cloud.select("a", SMALL), *cloud.create("a", "h2"), *cloud.select("b", SMALL), *cloud.create("b", "h2")]

    assert verdicts(shadowed([*reversed(messages), *messages])) == verdicts(shadowed(messages))


def lines(path: Path, messages: Iterable[Sent]) -> str:
    path.write_bytes(b"".join(sent.value + b"\n" for sent in messages))
    return str(path)


def detail(path: Path, **more: object) -> str:
    size = {"vcpus": 16, "local_gb": 200, "hypervisor_type": "QEMU", "cpu_info": '{"arch": "x86_64"}'}
    hosts = [
        {"hypervisor_hostname": node_of(host), "service": {"host": host}, "memory_mb": memory_mib, **size, **more}
        for host, memory_mib in zip(HOSTS, MEMORY_MIB, strict=True)
    ]
    path.write_text(json.dumps({"hypervisors": hosts}))
    return str(path)


@pytest.mark.parametrize("more", [{"state": "down"}, {"status": "disabled"}])
def test_hosts_that_the_list_calls_down_or_disabled_are_so_from_when_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, str]
) -> None:
    """One that was asked for today says nothing of what could be chosen a week ago."""
    cloud = NovaCloud()
    messages = [*cloud.select("a", SMALL), *cloud.create("a", "h1")]
    cloud.now_us += 60_000_000
    written_s = cloud.now_us // 1_000_000
    cloud.now_us += 60_000_000
    messages += [*cloud.select("b", SMALL), *cloud.create("b", "h1")]
    hypervisors = detail(tmp_path / "h.json", **more)
    os.utime(hypervisors, (written_s, written_s))

    code = run(["shadow", "--from", lines(tmp_path / "n.jsonl", messages), "--hypervisors", hypervisors, "--all", "-o", "json"])

    before, after = json.loads(capsys.readouterr().out)["items"]
    assert (before["verdict"], bool(before["ours"])) == ("agrees", True)
    assert (code, after["verdict"], after["ours"]) == (3, "only-they", "")


@pytest.mark.parametrize(
    ("more", "verdict"), [({}, "refuses"), ({"state": "up"}, "refuses"), ({"state": "up", "status": "enabled"}, "agrees")]
)
def test_a_list_that_does_not_say_how_a_service_is_leaves_it_as_a_message_said(
    more: dict[str, str], verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = NovaCloud()
    service = json.loads(sample("service-update"))
    service["payload"]["nova_object.data"] |= {"host": "h1", "disabled": True, "disabled_reason": "fan broken"}
    cloud.now_us += 1_000_000
    messages = [Sent("compute:h1", envelope(service, cloud.now_us, "s"))]
    written_s = cloud.now_us // 1_000_000 + 60
    cloud.now_us += 120_000_000
    messages += [*cloud.select("a", SMALL), *cloud.create("a", "h1")]
    hypervisors = detail(tmp_path / "h.json", **more)
    os.utime(hypervisors, (written_s, written_s))

    run(["shadow", "--from", lines(tmp_path / "n.jsonl", messages), "--hypervisors", hypervisors, "--all", "-o", "json"])

    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["verdict"] == verdict


def test_the_verb_shows_what_differs_counts_everything_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    messages = [*cloud.select("a", SMALL), *cloud.create("a", "h1"), *cloud.select("b", SMALL), *cloud.create("b", "h1")]
    arguments = ["shadow", "--from", lines(tmp_path / "n.jsonl", messages), "--hypervisors", detail(tmp_path / "h.json")]

    code = run(arguments)
    shown = capsys.readouterr()
    everything = run([*arguments, "--all", "-o", "json"])
    document = json.loads(capsys.readouterr().out)

    assert (code, everything) == (3, 3)
    assert len(shown.out.splitlines()) == 2
    assert "differs" in shown.out
    assert shown.err.startswith("2 requests\n       1  agrees       the same node\n       1  differs ")
    assert [item["verdict"] for item in document["items"]] == ["agrees", "differs"]
    assert document["summary"] == {"requests": 2, "verdicts": {"agrees": 1, "differs": 1}, "unreadable": 0}


def test_the_verb_takes_nodes_from_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    messages = lines(tmp_path / "n.jsonl", [*cloud.select("a", SMALL), *cloud.create("a", "h1")])
    spec = f"sqlite:{tmp_path}/l.db"
    assert run(["produce", "openstack", "--from", messages, "--hypervisors", detail(tmp_path / "h.json"), "--log", spec]) == 0
    capsys.readouterr()

    code = run(["shadow", "--from", messages, "--log", spec, "--all"])

    shown = capsys.readouterr()
    assert code == 0
    assert shown.out.rstrip().endswith("agrees")
    assert "cut:" in shown.err


def test_a_filter_that_nothing_is_known_for_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    messages = lines(tmp_path / "n.jsonl", [*cloud.select("a", SMALL), *cloud.create("a", "h1")])

    code = run(["shadow", "--from", messages, "--hypervisors", detail(tmp_path / "h.json", cpu_info=None)])

    assert code == 0
    assert "ImagePropertiesFilter is left out: which guests the nodes can run is not known" in capsys.readouterr().err


def test_a_log_without_totals_is_no_fleet_to_decide_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)

    code = run(["shadow", "--from", lines(tmp_path / "n.jsonl", []), "--log", fleet.spec])

    assert code == 6
    assert "no node on this log has totals: pass --hypervisors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "reason"), [("--engine", 'Choose from: "auto", "reference", "profiles".'), ("--policy", "expected a TOML file, or one of")]
)
def test_an_unknown_engine_or_policy_exits_2(flag: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["shadow", "--from", lines(tmp_path / "n.jsonl", []), "--hypervisors", detail(tmp_path / "h.json"), flag, "nonsense"])

    assert code == 2
    assert reason in capsys.readouterr().err


def test_requests_without_a_word_on_what_became_of_them_make_the_answer_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lines(tmp_path / "n.jsonl", NovaCloud().select("a", SMALL))

    code = run(["shadow", "--from", file, "--hypervisors", detail(tmp_path / "h.json")])

    assert code == 6
    assert "1  unknown      no message says what Nova chose" in capsys.readouterr().err


def test_messages_that_cannot_be_read_are_named_and_make_the_answer_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    file, bad = tmp_path / "n.jsonl", tmp_path / "bad.jsonl"
    lines(file, [*cloud.select("a", SMALL), *cloud.create("a", "h1")])
    bad.write_bytes(b"no json\n" + b"[1]\n" * 20)
    arguments = ["shadow", "--hypervisors", detail(tmp_path / "h.json"), "--from", str(bad)]

    only_bad = run(arguments)
    said = capsys.readouterr()
    some_bad = run([*arguments, "--from", str(file)])

    assert (only_bad, some_bad) == (6, 6)
    assert "21 messages could not be read, so what they say is missing here:" in said.err
    assert f"  file:{bad}/0@1: expected JSON" in said.err
    assert said.err.count(f"file:{bad}/0@") == 10
    assert "1  agrees" in capsys.readouterr().err


def test_nothing_to_compare_is_no_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["shadow", "--from", lines(tmp_path / "n.jsonl", []), "--hypervisors", detail(tmp_path / "h.json")])

    assert code == 6
    assert "0 requests: the scheduler's notifications" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "flag"), [(("--at", "-2h"), "--at"), (("--log", "sqlite:nowhere", "--at", "-2h"), "--log")])
def test_a_log_beside_a_list_of_hypervisors_is_refused(
    flags: tuple[str, ...], flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["shadow", "--from", lines(tmp_path / "n.jsonl", []), "--hypervisors", detail(tmp_path / "h.json"), *flags])

    assert code == 2
    assert capsys.readouterr().err.startswith(f"claimlog: {flag} goes with nodes of a log")


def test_services_whose_node_is_not_known_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    service = json.loads(sample("service-update"))
    service["payload"]["nova_object.data"] |= {"host": "h9", "disabled": True}
    cloud.now_us += 1_000_000
    said = [Sent("compute:h9", envelope(service, cloud.now_us, "s")), *cloud.select("a", SMALL), *cloud.create("a", "h1")]

    code = run(["shadow", "--from", lines(tmp_path / "n.jsonl", said), "--hypervisors", detail(tmp_path / "h.json")])

    assert code == 0
    assert "services on h9: no message named their node, so status and aggregates are not told" in capsys.readouterr().err


def test_a_node_of_a_log_keeps_its_status_and_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = NovaCloud()
    messages = lines(tmp_path / "n.jsonl", [*cloud.select("a", SMALL), *cloud.create("a", "h1")])
    spec = f"sqlite:{tmp_path}/l.db"
    run(["produce", "openstack", "--from", messages, "--hypervisors", detail(tmp_path / "h.json"), "--log", spec])
    run(["node", "drain", H1, "--reason", "fan broken", "--log", spec])

    code = run(["shadow", "--from", messages, "--log", spec])

    assert code == 3
    assert "ComputeFilter: draining (fan broken)" in capsys.readouterr().out
