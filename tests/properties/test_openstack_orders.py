"""For all histories of a cloud and all orders in which its notifications come: the end is what Nova's tracker counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.openstack import OpenStack
from producers.openstack_messages import Notification, read_notification
from producers.openstack_payloads import read_fact
from schemas.codec import Unreadable, decode, encode
from schemas.topics import LIFECYCLE
from tests.nova_cloud import LARGE, SMALL, Instance, NovaCloud, Sent, Size, Usage, sample
from tests.nova_following import Following, followed, parsed, some_interleaving

HOSTS = ("h1", "h2", "h3")
SIZES = (SMALL, LARGE, Size("swapped", 2, 1024, 5, 0, 512))

Draw = Callable[[st.SearchStrategy[str]], str]


def possible(cloud: NovaCloud, uuid: str, host: str, size: Size) -> dict[str, Callable[[], Iterable[Sent]]]:
    """What Nova would let somebody do to an instance as its record stands; of these one is drawn."""
    instance = cloud.instances.get(uuid)
    if instance is None:
        return {
            "create": lambda: cloud.create(uuid, host, size),
            "create on a volume": lambda: cloud.create(uuid, host, size, on_volume=True),
            "fail to create": lambda: cloud.fail_to_create(uuid, host, size),
        }
    if instance.state == "deleted":
        return {}
    return {"delete": lambda: cloud.delete(uuid), "delete locally": lambda: cloud.delete(uuid, locally=True)} | (
        _of_present(cloud, instance, host, size) if instance.host is not None else _of_absent(cloud, instance, host)
    )


def _of_absent(cloud: NovaCloud, instance: Instance, host: str) -> dict[str, Callable[[], Iterable[Sent]]]:
    uuid = instance.uuid
    return {"unshelve": lambda: cloud.unshelve(uuid, host)} if instance.state == "shelved_offloaded" else {}


def _of_present(cloud: NovaCloud, instance: Instance, host: str, size: Size) -> dict[str, Callable[[], Iterable[Sent]]]:
    uuid = instance.uuid
    if instance.state == "resized":
        return {"confirm": lambda: cloud.confirm(uuid), "revert": lambda: cloud.revert(uuid), "exists": lambda: cloud.exists(uuid)}
    if instance.state != "active":
        return {"exists": lambda: cloud.exists(uuid)}
    moves: dict[str, Callable[[], Iterable[Sent]]] = {
        "resize": lambda: cloud.resize(uuid, host, size),
        "rebuild": lambda: cloud.rebuild(uuid),
        "shelve": lambda: cloud.shelve(uuid),
        "shelve and keep": lambda: cloud.shelve(uuid, offload=False),
        "soft delete": lambda: [*cloud.change(uuid, "soft_delete", "soft-delete"), *cloud.change(uuid, "restore", "active")],
        "reboot": lambda: cloud.change(uuid, "reboot", "active"),
    }
    if host != instance.host:
        moves |= {
            "fail to resize": lambda: cloud.fail_to_resize(uuid, host, size),
            "live migrate": lambda: cloud.live_migrate(uuid, host),
            "fail to live migrate": lambda: cloud.fail_to_live_migrate(uuid, host),
            "fail to live migrate, late": lambda: cloud.fail_to_live_migrate(uuid, host, is_dest_late=True),
            "abort a live migration": lambda: cloud.abort_live_migration(uuid, host),
            "evacuate": lambda: cloud.evacuate(uuid, host),
            "fail to evacuate": lambda: cloud.fail_to_evacuate(uuid, host),
        }
    return moves


@st.composite
def histories(draw: st.DrawFn) -> tuple[NovaCloud, list[Sent], Random]:
    """A cloud after some operations on a few instances, what its services said of them, and a source of orders."""
    cloud = NovaCloud()
    # Each host has had an instance, so that its node is known.
    messages = [sent for host in HOSTS for sent in cloud.create(f"first on {host}", host)]
    for _ in range(draw(st.integers(1, 10))):
        uuid, host = draw(st.sampled_from(["a", "b", "c"])), draw(st.sampled_from(HOSTS))
        choices = possible(cloud, uuid, host, draw(st.sampled_from(SIZES)))
        if choices:
            messages += choices[draw(st.sampled_from(sorted(choices)))]()
    return cloud, messages, draw(st.randoms(use_true_random=False))


def between(message: Notification) -> bool:
    """Where the tracker's next audit would say something else for a moment.

    Between the end of a resize's copy and the start in the new size it counts the old size at the destination, where the claim, and we,
    count the new one; and it is behind while a resize on one host is being reverted.
    """
    step = (message.action, message.phase)
    return (
        step in {("instance.resize", "end"), ("instance.resize_finish", "start")} or message.payload.get("task_state") == "resize_reverting"
    )


@st.composite
def watched(draw: st.DrawFn) -> list[tuple[Sent, dict[str, Usage]]]:
    """Each message of a history with what the tracker counted when it was sent."""
    cloud = NovaCloud()
    said = [(sent, cloud.usage()) for host in HOSTS for sent in cloud.create(f"first on {host}", host)]
    for _ in range(draw(st.integers(1, 8))):
        uuid, host = draw(st.sampled_from(["a", "b", "c"])), draw(st.sampled_from(HOSTS))
        choices = possible(cloud, uuid, host, draw(st.sampled_from(SIZES)))
        if choices:
            said += [(sent, cloud.usage()) for sent in choices[draw(st.sampled_from(sorted(choices)))]()]
    return said


@given(watched())
def test_after_every_single_message_in_order_the_tracker_counts_the_same(said: list[tuple[Sent, dict[str, Usage]]]) -> None:
    following = Following()

    for sent, usage in said:
        following.take([sent])
        message = parsed(sent.value)
        if not between(message):
            assert following.used() == following.tracked() == usage, message.event


@given(histories())
def test_the_end_is_what_novas_tracker_counts_in_every_order_that_keeps_each_publishers(
    history: tuple[NovaCloud, list[Sent], Random],
) -> None:
    cloud, messages, random = history

    ended, other = followed(messages), followed(some_interleaving(messages, random))

    assert ended.used() == ended.tracked() == cloud.usage()
    assert other.used() == other.tracked() == cloud.usage()
    assert other.state() == ended.state()
    assert moving(other) == moving(ended) == {each.uuid for each in cloud.instances.values() if each.state == "resized"}


def moving(following: Following) -> set[str]:
    """The instances that two nodes may hold by right, as far as is told."""
    return {each for node in following.ledger.nodes.values() for each, shown in node.shown.items() if shown.report.task_state}


@given(histories(), st.data())
def test_copies_and_any_order_at_all_change_nothing(history: tuple[NovaCloud, list[Sent], Random], data: st.DataObject) -> None:
    cloud, messages, random = history
    copies = data.draw(st.lists(st.sampled_from(messages), max_size=10))

    ended = followed(random.sample([*messages, *copies], len(messages) + len(copies)))

    assert ended.used() == ended.tracked() == cloud.usage()


@given(histories())
def test_every_event_is_a_record_that_reads_back_as_it_was(history: tuple[NovaCloud, list[Sent], Random]) -> None:
    _, messages, _ = history

    for event in followed(messages).events:
        assert decode(LIFECYCLE, encode(event)) == event


@given(histories())
def test_events_of_an_instance_on_a_node_never_go_back_in_time(history: tuple[NovaCloud, list[Sent], Random]) -> None:
    _, messages, random = history
    newest: dict[tuple[str, str], int] = {}

    for event in Following().take(some_interleaving(messages, random)).events:
        place = (event.instance.instance_id, event.node_id)
        assert event.event_time_ms >= newest.get(place, 0)
        newest[place] = event.event_time_ms


@settings(max_examples=150)
@given(st.binary(max_size=60), st.integers(0, 6000), st.sampled_from(["instance-create-end", "service-update", "aggregate-add_host-end"]))
def test_no_bytes_at_all_are_more_than_a_value_that_says_why(junk: bytes, at: int, name: str) -> None:
    good = sample(name).encode()
    at %= len(good)

    for value in (junk, good[:at] + junk + good[at:], good[:at], good[: at + 1] + good[at + 2 :]):
        said = read_notification(value)
        if not isinstance(said, Unreadable):
            read_fact(said, {})
        assert isinstance(OpenStack(lambda _: 1).take(value), list | Unreadable)
