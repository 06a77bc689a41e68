"""Scripted histories of a cloud: followed in every order that keeps each publisher's, they end in what Nova's tracker counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from random import Random

import pytest

from producers.openstack import KEPT_US, OpenStack, Reach, Told
from producers.openstack_places import FACTS_MAX
from schemas.audits import InstanceReport
from schemas.codec import Unreadable
from schemas.lifecycle import (
    InstanceArrived,
    InstanceDeleted,
    InstanceDeparted,
    InstanceResized,
    InstanceStarted,
    InstanceStopped,
    LifecycleEvent,
)
from schemas.resources import ObservedResources
from tests.nova_cloud import LARGE, SMALL, START_S, NovaCloud, Sent, Size, envelope, sample
from tests.nova_following import Following, first, followed, interleavings, parsed, some_interleaving

EXHAUSTIVE_MAX = 400
"""Histories with more orders than this are tried in as many drawn ones."""
H1, H2, H3 = (f"h{number}.example.org" for number in (1, 2, 3))
Script = Callable[[NovaCloud], Iterable[Iterable[Sent]]]

SCRIPTS: dict[str, Script] = {
    "created": lambda c: (c.create("a", "h1", LARGE),),
    "created on a volume": lambda c: (c.create("a", "h1", LARGE, on_volume=True),),
    "failed to build": lambda c: (c.fail_to_create("a", "h1"),),
    "failed to build, then built elsewhere": lambda c: (c.fail_to_create("a", "h1"), c.create("a", "h2")),
    "stopped": lambda c: (c.create("a", "h1"), c.change("a", "power_off", "stopped", "shutdown")),
    "resized and waiting": lambda c: (c.create("a", "h1"), c.resize("a", "h2", LARGE)),
    "resized and confirmed": lambda c: (c.create("a", "h1"), c.resize("a", "h2", LARGE), c.confirm("a")),
    "resized and reverted": lambda c: (c.create("a", "h1"), c.resize("a", "h2", LARGE), c.revert("a")),
    "resized on its host and waiting": lambda c: (c.create("a", "h1"), c.resize("a", "h1", LARGE)),
    "resized on its host and confirmed": lambda c: (c.create("a", "h1"), c.resize("a", "h1", LARGE), c.confirm("a")),
    "resized on its host and reverted": lambda c: (c.create("a", "h1"), c.resize("a", "h1", LARGE), c.revert("a")),
    "cold migrated": lambda c: (c.create("a", "h1"), c.resize("a", "h2", SMALL), c.confirm("a")),
    "resize that fails": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.fail_to_resize("a", "h2", LARGE)),
    "resize in preparation": lambda c: (c.create("b", "h2"), c.create("a", "h1"), first(c.resize("a", "h2", LARGE), 3)),
    "live migrated": lambda c: (c.create("a", "h1"), c.live_migrate("a", "h2")),
    "live migrated and back": lambda c: (c.create("a", "h1"), c.live_migrate("a", "h2"), c.live_migrate("a", "h1")),
    "live migration under way": lambda c: (c.create("b", "h2"), c.create("a", "h1"), first(c.live_migrate("a", "h2"), 3)),
    "live migration rolled back late": lambda c: (
        c.create("b", "h2"), c.create("a", "h1"), c.fail_to_live_migrate("a", "h2", is_dest_late=True),
    ),
    "live migration aborted": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.abort_live_migration("a", "h2")),
    "live migration rolled back": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.fail_to_live_migrate("a", "h2")),
    "evacuated": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.evacuate("a", "h2")),
    "evacuated and returned": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.evacuate("a", "h2"), c.live_migrate("a", "h1")),
    "evacuation that fails": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.fail_to_evacuate("a", "h2")),
    "rebuilt": lambda c: (c.create("a", "h1"), c.rebuild("a")),
    "shelved": lambda c: (c.create("a", "h1"), c.shelve("a", offload=False)),
    "shelved and offloaded": lambda c: (c.create("a", "h1"), c.shelve("a")),
    "unshelving": lambda c: (c.create("a", "h1"), c.shelve("a"), first(c.unshelve("a", "h2"), 2)),
    "unshelved elsewhere": lambda c: (c.create("a", "h1"), c.shelve("a"), c.unshelve("a", "h2")),
    "soft deleted": lambda c: (c.create("a", "h1"), c.change("a", "soft_delete", "soft-delete")),
    "soft deleted and restored": lambda c: (
        c.create("a", "h1"), c.change("a", "soft_delete", "soft-delete"), c.change("a", "restore", "active"),
    ),
    "deleted": lambda c: (c.create("a", "h1"), c.delete("a")),
    "deleted while the compute was down": lambda c: (c.create("a", "h1"), c.delete("a", locally=True)),
    "never scheduled and deleted": lambda c: (first(c.fail_to_create("a", "h1"), 1), c.delete("a")),
    "deleted during a resize": lambda c: (c.create("a", "h1"), first(c.resize("a", "h2", LARGE), 5), c.delete("a")),
    "deleted before a resize was confirmed": lambda c: (c.create("a", "h1"), c.resize("a", "h2", LARGE), c.delete("a")),
    "deleted during a live migration": lambda c: (c.create("a", "h1"), first(c.live_migrate("a", "h2"), 2), c.delete("a")),
    "deleted after an evacuation": lambda c: (c.create("b", "h2"), c.create("a", "h1"), c.evacuate("a", "h2"), c.delete("a")),
}  # fmt: skip


def played(script: Script) -> tuple[NovaCloud, list[Sent]]:
    cloud = NovaCloud()
    return cloud, [sent for operation in script(cloud) for sent in operation]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_history_ends_in_what_novas_tracker_counts_in_every_order_that_keeps_each_publishers(name: str, seed: int) -> None:
    cloud, messages = played(SCRIPTS[name])
    ended = followed(messages)
    orders = list(islice(interleavings(messages), EXHAUSTIVE_MAX + 1))
    if len(orders) > EXHAUSTIVE_MAX:
        orders = [some_interleaving(messages, Random(seed + number)) for number in range(EXHAUSTIVE_MAX // 4)]

    found = [followed(order) for order in orders]

    assert ended.used() == ended.tracked() == cloud.usage()
    for other in found:
        assert other.state() == ended.state()
        assert other.used() == other.tracked() == cloud.usage()


@pytest.mark.parametrize("name", ["resized and confirmed", "live migrated and back", "evacuated and returned", "deleted during a resize"])
def test_without_any_order_and_with_copies_the_end_is_the_same(name: str, seed: int) -> None:
    cloud, messages = played(SCRIPTS[name])
    random = Random(seed)

    for _ in range(30):
        shuffled = random.sample(messages * 2, 2 * len(messages))
        assert followed(shuffled).tracked() == cloud.usage()


def test_what_a_script_takes_is_what_one_counts_by_hand() -> None:
    small, large = (1, 512, 1024), (4, 4096, 25 * 1024 + 256)

    assert played(SCRIPTS["resized and waiting"])[0].usage() == {H1: small, H2: large}
    assert played(SCRIPTS["resized on its host and waiting"])[0].usage() == {H1: tuple(map(sum, zip(small, large, strict=True)))}
    assert played(SCRIPTS["created on a volume"])[0].usage() == {H1: (4, 4096, 5 * 1024 + 256)}
    assert played(SCRIPTS["shelved and offloaded"])[0].usage() == {}
    assert played(SCRIPTS["soft deleted"])[0].usage() == {H1: small}
    assert played(SCRIPTS["evacuated"])[0].usage() == {H2: (2, 1024, 2048)}


def test_events_tell_the_story_of_each_node() -> None:
    _, messages = played(SCRIPTS["resized and confirmed"])

    events = followed(messages).events

    assert [(type(event), event.node_id) for event in events] == [
        (InstanceArrived, H1), (InstanceStarted, H1), (InstanceStarted, H1), (InstanceArrived, H2), (InstanceDeparted, H1),
        (InstanceStarted, H2),
    ]  # fmt: skip
    assert [event.instance.task_state for event in events] == ["", "", "migrating", "migrating", "migrating", ""]
    assert [event.event_time_ms for event in events] == sorted(event.event_time_ms for event in events)
    assert [(event.epoch, event.counter) for event in events if event.node_id == H1] == [(1, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    "name", ["live migrated", "live migration rolled back", "live migration rolled back late", "live migration aborted"]
)
@pytest.mark.parametrize("legacy", [False, True])
def test_a_live_migration_is_over_when_it_is_though_some_say_so_with_an_older_view_of_the_record(name: str, *, legacy: bool) -> None:
    cloud = NovaCloud(legacy=legacy)
    *before, migration = [list(each) for each in SCRIPTS[name](cloud)]
    following = Following().take(sent for each in before for sent in each)

    following.take(migration[:1])
    assert tasks(following) == {"migrating"}
    following.take(migration[1:])

    assert tasks(following) == {""}


def tasks(following: Following) -> set[str]:
    """Of instance `a`, wherever it is."""
    return {node.shown["a"].report.task_state for node in following.ledger.nodes.values() if "a" in node.shown}


def test_a_word_of_before_does_not_bring_a_guest_back_to_where_it_came_from() -> None:
    """To force the end of a live migration is said to be done by its source, which may be when the guest runs elsewhere already."""
    cloud = NovaCloud()
    messages = [*cloud.create("b", "h2"), *cloud.create("a", "h1"), *cloud.live_migrate("a", "h2")]
    late = cloud.say("live_migration_force_complete.end", cloud.instances["a"], "compute:h1", host="h1", task="migrating")

    assert followed([*messages, late]).used() == cloud.usage()


def test_the_flavor_is_told_of_the_size_that_counts_on_each_node() -> None:
    waiting = followed(played(SCRIPTS["resized and waiting"])[1])
    confirmed = followed(played(SCRIPTS["resized and confirmed"])[1])

    flavors = [(event.node_id, event.instance.flavor) for event in waiting.events]
    assert flavors == [(H1, "small"), (H1, "small"), (H1, "small"), (H2, "large")]
    assert confirmed.ledger.nodes[H2].flavors("a") == {"large"}


def test_stopping_and_starting_is_told_and_frees_nothing() -> None:
    cloud = NovaCloud()
    messages = [*cloud.create("a", "h1"), *cloud.change("a", "power_off", "stopped", "shutdown"), *cloud.change("a", "power_on", "active")]

    ended = followed(messages)

    assert [type(event) for event in ended.events] == [InstanceArrived, InstanceStarted, InstanceStopped, InstanceStarted]
    assert ended.used() == cloud.usage() == {H1: (1, 512, 1024)}


@pytest.mark.parametrize("name", ["resized and waiting", "resized on its host and waiting"])
def test_what_waits_to_be_confirmed_when_it_is_first_heard_of_counts_once_however_often_it_is_said(name: str) -> None:
    """What it was before, and where, nobody says any more."""
    cloud, _ = played(SCRIPTS[name])
    instance = cloud.instances["a"]

    ended = followed([*cloud.exists("a"), *cloud.exists("a"), *cloud.exists("a")])

    assert ended.used() == {f"{instance.host}.example.org": (4, 4096, 25 * 1024 + 256)}
    assert followed([*cloud.exists("a"), *cloud.exists("a"), *cloud.confirm("a"), *cloud.exists("a")]).used() == cloud.usage()


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {"resize in preparation", "live migration under way"}))
def test_a_history_that_is_joined_anywhere_ends_in_what_novas_tracker_counts(name: str) -> None:
    """But where only its last words are heard: what a source has sent away it alone says, and that it has cleaned up, not where it went."""
    cloud = NovaCloud()
    nodes = [sent for host in ("h1", "h2", "h3") for sent in cloud.create(f"first on {host}", host)]
    messages = [sent for operation in SCRIPTS[name](cloud) for sent in operation]
    about = [parsed(sent.value).payload["uuid"] == "a" for sent in messages]
    others, story = ([sent for sent, is_a in zip(messages, about, strict=True) if is_a == wanted] for wanted in (False, True))

    for at in range(len(story)):
        left = [parsed(sent.value).event for sent in story[at:]]
        is_waiting = name.endswith("waiting") and "instance.resize_finish.start" not in left[1:]
        if not is_waiting and left[0] != "instance.live_migration_post.end":
            assert followed([*nodes, *others, *story[at:]]).used() == cloud.usage(), left[0]


def test_a_cloud_that_was_there_before_is_adopted_from_any_word_of_its_instances() -> None:
    cloud = NovaCloud()
    for operation in (cloud.create("a", "h1"), cloud.create("b", "h2", LARGE), cloud.create("c", "h2")):
        list(operation)

    ended = followed([*cloud.exists("a"), *cloud.change("b", "power_off", "stopped", "shutdown"), *cloud.exists("c")])

    assert ended.tracked() == ended.used() == cloud.usage()
    arrived = [event for event in ended.events if isinstance(event, InstanceArrived)]
    assert [(event.instance.instance_id, event.resync) for event in arrived] == [("a", True), ("b", True), ("c", True)]


@pytest.mark.parametrize(
    ("script", "kept"),
    [("resized and confirmed", 5), ("live migrated", 4), ("evacuated", 8), ("shelved and offloaded", 4), ("resized and reverted", 12)],
)
def test_the_periodic_word_mends_what_lost_messages_left_wrong(script: str, kept: int) -> None:
    cloud, messages = played(SCRIPTS[script])
    said = [sent for uuid, each in sorted(cloud.instances.items()) if each.host is not None for sent in cloud.exists(uuid)]

    if script == "shelved and offloaded":
        assert followed([*messages[:kept], messages[-1]]).tracked() == cloud.usage()
    else:
        assert followed([*messages[:kept], *said]).tracked() == cloud.usage()


def test_a_source_that_has_cleaned_up_holds_nothing_though_the_destination_did_not_say_that_it_is_done() -> None:
    cloud, messages = played(SCRIPTS["live migrated"])
    known = list(cloud.create("b", "h2"))
    lost = [sent for sent in messages if parsed(sent.value).event != "instance.live_migration_post_dest.end"]

    ended = followed([*known, *lost])

    assert ended.used() == ended.tracked() == cloud.usage() == {H2: (2, 1024, 2048)}


def test_a_late_message_is_put_in_order_after_what_is_no_longer_kept_one_by_one() -> None:
    cloud, messages = played(SCRIPTS["resized and waiting"])
    messages += [sent for _ in range(2 * FACTS_MAX) for sent in cloud.exists("a")]

    ended = followed([*messages[:-2], messages[-1], messages[-2]])

    assert ended.used() == ended.tracked() == cloud.usage() == {H1: (1, 512, 1024), H2: (4, 4096, 25 * 1024 + 256)}


def test_an_instance_that_was_deleted_does_not_come_back_by_a_late_word() -> None:
    cloud = NovaCloud()
    messages = [*cloud.create("a", "h1"), *cloud.delete("a")]

    ended = followed([messages[-1], *messages[:-1]])

    assert ended.events == []
    assert ended.used() == ended.tracked() == {}


@pytest.mark.parametrize("legacy", [False, True])
def test_an_instance_whose_deletion_failed_is_there_though_nova_says_that_it_ended(legacy: bool) -> None:
    cloud = NovaCloud(legacy=legacy)
    messages = [*cloud.create("a", "h1"), *cloud.fail_to_delete("a"), *cloud.exists("a")]

    ended = followed(messages)

    assert ended.used() == ended.tracked() == cloud.usage() == {H1: (1, 512, 1024)}
    assert not any(isinstance(event, InstanceDeleted) for event in ended.events)


def test_a_deletion_that_fails_after_a_soft_one_leaves_the_instance_too() -> None:
    cloud = NovaCloud()
    created = list(cloud.create("a", "h1"))
    late = [*cloud.change("a", "soft_delete", "soft-delete"), *cloud.fail_to_delete("a"), *cloud.exists("a")]
    unset, stamp = b'\\"deleted_at\\": null', b'\\"deleted_at\\": \\"2025-06-15T15:07:00Z\\"'
    stamped = [sent._replace(value=sent.value.replace(unset, stamp)) for sent in late]
    assert all(b"2025-06-15T15:07:00Z" in sent.value for sent in stamped)

    ended = followed([*created, *stamped])

    assert ended.used() == ended.tracked() == cloud.usage() == {H1: (1, 512, 1024)}


def test_a_legacy_deletion_without_the_size_is_told_with_the_size_that_was() -> None:
    cloud = NovaCloud(legacy=True)
    messages = [*cloud.create("a", "h1"), *cloud.delete("a")]
    sizes = ("vcpus", "memory_mb", "root_gb", "ephemeral_gb")

    def bare(sent: Sent) -> Sent:
        message = json.loads(json.loads(sent.value)["oslo.message"])
        message["payload"] = {name: each for name, each in message["payload"].items() if name not in sizes}
        return sent._replace(value=json.dumps(message).encode())

    ended = followed([*messages[:-1], bare(messages[-1])])

    *_, last = ended.events
    assert ended.used() == ended.tracked() == {}
    assert (type(last), last.instance.resources.memory_mib) == (InstanceDeleted, 512)


def test_a_deletion_is_said_to_every_node_that_had_the_instance() -> None:
    _, messages = played(SCRIPTS["deleted after an evacuation"])

    deletions = [event for event in followed(messages).events if isinstance(event, InstanceDeleted)]

    assert [(event.node_id, event.instance.instance_id) for event in deletions] == [(H1, "a"), (H2, "a")]


def told_by(events: Iterable[LifecycleEvent]) -> dict[tuple[str, str], Told]:
    """What a log with these events holds."""
    gone = (InstanceDeparted, InstanceDeleted)
    return {
        (event.instance.instance_id, event.node_id): Told(
            event.event_time_ms, None if isinstance(event, gone) else event.instance, isinstance(event, InstanceDeleted)
        )
        for event in events
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_follower_that_starts_again_and_reads_all_again_says_nothing_again(name: str, seed: int) -> None:
    _, messages = played(SCRIPTS[name])
    told = told_by(followed(messages).events)
    other_order = some_interleaving(messages, Random(seed))

    again = OpenStack(lambda _: 2, told=told)
    said = [again.took(parsed(sent.value)) for sent in other_order]

    assert [events for events in said if events] == []
    assert again.caught_up() == []


def test_a_follower_that_starts_again_says_what_happened_meanwhile() -> None:
    cloud, messages = played(SCRIPTS["live migrated and back"])
    told = told_by(followed(messages).events)
    missed, later = list(cloud.resize("a", "h1", LARGE)), list(cloud.delete("a"))

    again = Following(OpenStack(lambda _: 2, told=told))
    before = again.take([*messages, *missed]).events.copy()
    (resized,) = again.follower.caught_up()
    after = again.take(later).events

    assert before == []
    assert (type(resized), resized.node_id, resized.epoch) == (InstanceResized, H1, 2)
    assert resized.instance.resources == ObservedResources(vcpus=5, pcpus=0, memory_mib=4608, disk_mib=26 * 1024 + 256)
    assert [(type(event), event.node_id) for event in after] == [(InstanceDeleted, H1), (InstanceDeleted, H2)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_move_holds_is_kept_by_a_follower_that_starts_again_when_its_beginning_has_left_the_bus(name: str) -> None:
    """But on one host, where both sizes are one sum."""
    cloud = NovaCloud()
    nodes = [sent for host in ("h1", "h2", "h3") for sent in cloud.create(f"first on {host}", host)]
    messages = [sent for operation in SCRIPTS[name](cloud) for sent in operation]

    for told_at in range(1, len(messages) + 1):
        told = told_by(followed([*nodes, *messages[:told_at]]).events)
        for kept_from in range(told_at):
            left = [parsed(sent.value).event for sent in messages[kept_from:]]
            if name == "resized on its host and waiting" and "instance.resize_finish.start" not in left[1:]:
                continue
            again = followed([*nodes, *messages[:told_at]]).goes_on(OpenStack(lambda _: 2, told=told))
            again.located({host: f"{host}.example.org" for host in ("h1", "h2", "h3")})
            again.take(messages[kept_from:]).catch_up()
            assert again.used() == cloud.usage(), (told_at, left[0])


def test_what_the_log_says_of_an_instance_elsewhere_is_taken_back_when_its_record_stands_here() -> None:
    cloud = NovaCloud()
    list(cloud.create("a", "h1"))
    known = InstanceReport(instance_id="a", resources=ObservedResources(vcpus=1, pcpus=0, memory_mib=512, disk_mib=1024))
    follower = OpenStack(lambda _: 2, told={("a", H3): Told(START_S * 1000, known)})

    Following(follower).take(cloud.exists("a"))

    assert [(type(event), event.node_id) for event in follower.caught_up()] == [(InstanceArrived, H1), (InstanceDeparted, H3)]


def test_a_host_whose_node_nobody_named_waits_and_is_told_of_when_it_is_known() -> None:
    cloud = NovaCloud()
    messages = [*cloud.create("a", "h1"), *first(cloud.resize("a", "h2", LARGE), 3)]
    following = followed(messages)

    waiting = following.follower.reach()
    events = following.follower.located("h2", H2)

    assert waiting == Reach(("h2",), 1)
    assert following.follower.reach() == Reach()
    assert [(type(event), event.node_id) for event in events] == [(InstanceArrived, H2)]


def test_the_metrics_of_a_host_name_its_node() -> None:
    cloud = NovaCloud()
    following = followed([*cloud.create("a", "h1"), *first(cloud.resize("a", "h2", LARGE), 3)])
    metrics = json.loads(sample("metrics-update"))
    metrics["payload"]["nova_object.data"] |= {"host": "h2", "nodename": H2}

    following.take([Sent("compute:h2", envelope(metrics, cloud.now_us, "m"))])

    assert following.follower.reach() == Reach()
    assert following.used() == cloud.usage()


def test_a_message_that_comes_after_all_that_it_could_be_ordered_with_is_counted() -> None:
    cloud = NovaCloud()
    early = list(cloud.create("a", "h1"))
    late = [sent for _ in range(FACTS_MAX + 8) for sent in cloud.exists("a")]

    following = followed([*late, *early])

    assert following.follower.reach().too_late == len(early)
    assert following.tracked() == cloud.usage()


def test_after_a_day_the_past_is_not_kept_one_by_one_and_still_counts() -> None:
    cloud, messages = played(SCRIPTS["resized and waiting"])
    cloud.now_us += KEPT_US + 1
    other = list(cloud.create("b", "h3"))
    cloud.now_us += KEPT_US + 1
    news = [*cloud.create("c", "h3"), *cloud.exists("a")]

    following = followed([*messages, *other, *news, messages[2]])

    assert following.follower.reach().too_late == 1
    assert following.used() == following.tracked() == cloud.usage()


def test_a_host_whose_clock_is_years_ahead_makes_no_message_of_others_late() -> None:
    cloud, ahead = NovaCloud(), NovaCloud(start_ms=(START_S + 3_000 * 86_400) * 1000)
    messages = [*cloud.create("a", "h1"), *cloud.resize("a", "h2", LARGE)]
    following = Following(OpenStack(lambda _: 1, now_us=lambda: cloud.now_us))

    following.take([*messages[4:], *ahead.create("b", "h3"), *messages[:4]])

    assert following.follower.reach().too_late == 0
    assert following.tracked() == cloud.usage() | ahead.usage()


def test_versioned_and_legacy_messages_of_one_event_do_not_contradict_each_other() -> None:
    size = Size("large", 4, 4096, 20, 5, 256)
    both = zip(NovaCloud().create("a", "h1", size), NovaCloud(legacy=True).create("a", "h1", size), strict=True)
    versioned, legacy = zip(*both, strict=True)
    named = [sent._replace(value=sent.value.replace(b"00000000-0000", b"11111111-0000")) for sent in legacy]

    ended = followed([sent for pair in zip(versioned, named, strict=True) for sent in pair])

    assert ended.tracked() == {H1: (4, 4096, 25 * 1024 + 256)}
    assert sum(isinstance(event, InstanceResized) for event in ended.events) == 0


@pytest.mark.parametrize("script", ["resized and confirmed", "resized and reverted", "live migrated", "evacuated", "deleted"])
def test_legacy_messages_alone_end_in_the_same_state(script: str, seed: int) -> None:
    cloud = NovaCloud(legacy=True)
    messages = [sent for operation in SCRIPTS[script](cloud) for sent in operation]
    follower = OpenStack(lambda _: 1, swap_mib={"large": 256})

    ended = Following(follower).take(some_interleaving(messages, Random(seed)))

    assert ended.tracked() == cloud.usage()


def test_a_message_that_is_none_is_a_value_and_changes_nothing() -> None:
    follower = OpenStack(lambda _: 1)

    fault = follower.take(b'{"event_type": "instance.exists", "payload": {"uuid": "a"}}')

    assert fault == Unreadable("invalid", "instance.exists: Object missing required field `flavor`")
    assert follower.reach() == Reach()


def test_parsing_is_the_same_for_the_same_bytes() -> None:
    _, messages = played(SCRIPTS["created"])

    assert [parsed(sent.value).event for sent in messages] == [
        "instance.update", "instance.create.start", "instance.update", "instance.create.end",
    ]  # fmt: skip
