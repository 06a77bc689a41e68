"""Notifications from files, into messages for the log: events in order, dead letters with their place, nothing twice."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import json
import os
import resource
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from producers.openstack import OpenStack, Told
from producers.openstack_fleet import ListedService
from producers.openstack_hosts import Listing, read_hypervisors
from projections.wording import event_text
from schemas.audits import InstanceReport
from schemas.claims import NodeConfigured
from schemas.codec import decode, decode_keyed, encode
from schemas.inventory import Aggregate, OperatorFields
from schemas.lifecycle import InstanceArrived
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, LIFECYCLE
from streams.cli.problems import UsageProblem
from streams.cli.produce.notifications import (
    LOOK_SECONDS,
    Feed,
    Overtaken,
    Settings,
    letters_before,
    swaps,
    told_before,
)
from streams.cli.produce.openstack import _Beneath
from streams.cli.produce.sources import BACKLOG_MS, BATCH_RECORDS, REST_MS, Bus, Lines, Piped
from streams.cli.shadow.shadowing import history
from streams.dead_letters import DeadLetter, read_letter
from streams.ledger_topics import open_ledger
from streams.log.base import LogUnreachable, Message, NameTaken, Record, TopicMismatch, TopicSpec
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog
from tests.hand_clock import HandClock
from tests.nova_cloud import START_S, NovaCloud, envelope, sample
from tests.nova_following import Following

NOW_MS = (START_S + 60) * 1000


def lines(*values: bytes) -> Lines:
    return Lines("file:n.jsonl", BytesIO(b"\n".join(values)), NOW_MS)


def fed(feed: Feed, *values: bytes) -> list[Message]:
    return feed.take(lines(*values).read())


def service(host: str = "h1", *, action: str = "update", at_s: int = 0, **changes: object) -> bytes:
    message = json.loads(sample("service-update"))
    message["event_type"] = f"service.{action}"
    message["payload"]["nova_object.data"] |= {"host": host, **changes}
    return envelope(message, (START_S + at_s) * 1_000_000, f"service {host} {at_s}")


def aggregate(hosts: list[str], *, action: str = "add_host", at_s: int = 0, **metadata: str) -> bytes:
    message = json.loads(sample("aggregate-add_host-end"))
    message["event_type"] = f"aggregate.{action}.end"
    message["payload"]["nova_object.data"] |= {"hosts": hosts, "metadata": metadata}
    return envelope(message, (START_S + at_s) * 1_000_000, f"aggregate {at_s}")


def created(host: str = "h1", uuid: str = "a") -> list[bytes]:
    return [sent.value for sent in NovaCloud().create(uuid, host)]


def node_settings(messages: list[Message]) -> list[NodeConfigured]:
    return [decode_keyed(CLAIMS, message.key, message.value) for message in messages if message.topic == CLAIMS]


def test_a_file_of_lines_is_read_in_batches_and_keeps_its_lines_numbers() -> None:
    source = lines(*([b"{}", b""] * (BATCH_RECORDS + 1)))

    first, second, third = source.read(), source.read(), source.read()

    assert [len(first), len(second), third] == [BATCH_RECORDS, 1, []]
    assert (second[0].offset, source.is_over) == (2 * BATCH_RECORDS + 1, True)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b'{\n "a": 1\n}', [b'{"a":1}']),
        (b'[{"a": 1}, {"b": 2}]', [b'{"a":1}', b'{"b":2}']),
        (b"{\n", [b"{\n"]),
    ],
)
def test_a_file_that_is_one_document_is_a_message_or_a_list_of_them(text: bytes, values: list[bytes]) -> None:
    source = Lines("file:n.json", BytesIO(text), NOW_MS, is_document=True)

    assert [record.value.strip() for record in source.read()] == [value.strip() for value in values]


def test_lines_in_a_file_that_is_called_a_document_are_lines() -> None:
    source = Lines("file:n.json", BytesIO(b'\n{"a":1}\n\n{"b":2}\nbroken\n'), NOW_MS, is_document=True)

    assert [(record.offset, record.value) for record in source.read()] == [(2, b'{"a":1}'), (4, b'{"b":2}'), (5, b"broken")]


BEYOND_SELECT = 1_024
"""The first file that `select` does not know, where a process may have so many."""


def test_a_pipe_rests_once_nothing_has_come_for_a_while_or_nothing_will() -> None:
    """Who is started with `kcat … | claimlog produce openstack` has read nothing for a moment, and all of the bus comes after that."""
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as file:
        clock = HandClock()
        source = Piped("stdin", file, clock)
        rests = [source.rests]
        clock.now_ms += REST_MS - 1
        os.write(writes, b"{}\n")
        source.read()
        clock.now_ms += REST_MS - 1
        rests.append(source.rests)
        clock.now_ms += 1
        rests.append(source.rests)
        os.write(writes, b"{}\n")
        source.read()
        rests.append(source.rests)
        os.close(writes)
        source.read()
        rests.append(source.rests)

    assert rests == [False, False, True, True, True]


def test_a_pipe_that_never_pauses_rests_after_a_minute() -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as file:
        clock, rests = HandClock(), []
        source = Piped("stdin", file, clock)
        for _ in range(BACKLOG_MS // 2_000):
            os.write(writes, b"{}\n")
            source.read()
            rests.append(source.rests)
            clock.now_ms += 2_000
        rests.append(source.rests)
        os.close(writes)

    assert (set(rests[:-1]), rests[-1]) == ({False}, True)


def test_of_a_pipe_what_is_there_is_read_and_what_is_not_is_not_waited_for() -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as file, os.fdopen(writes, "wb", buffering=0) as writer:
        source = Piped("stdin", file, HandClock())
        said: list[list[tuple[int, bytes]]] = []
        for written in (b"", b'\xef\xbb\xbf{"a":1}\n{"b"', b"", b':2}\r\n\n{"c":3}\n', b"the last one"):
            writer.write(written)
            source.wait(0.0 if not written else 5.0)
            said.append([(record.offset, record.value) for record in source.read()])
        is_over = source.is_over
        writer.close()
        source.wait(5.0)
        said.append([(record.offset, record.value) for record in source.read()])

        assert said == [[], [(1, b'{"a":1}')], [], [(2, b'{"b":2}'), (4, b'{"c":3}')], [], [(5, b"the last one")]]
        assert (is_over, source.is_over, source.read()) == (False, True, [])


def test_much_that_waits_in_a_pipe_comes_in_batches_however_many_files_are_open() -> None:
    low, writes = os.pipe()
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reads = fcntl.fcntl(low, fcntl.F_DUPFD, min(BEYOND_SELECT, most - 1))
    os.close(low)
    with os.fdopen(reads, "rb") as file:
        os.write(writes, b"{}\n" * (2 * BATCH_RECORDS + 1))
        os.close(writes)
        source = Piped("stdin", file, HandClock())

        assert [len(source.read()) for _ in range(4)] == [BATCH_RECORDS, BATCH_RECORDS, 1, 0]
        assert source.is_over


@pytest.mark.parametrize("is_document", [False, True])
def test_a_mark_of_utf8_is_no_part_of_the_first_message(is_document: bool) -> None:
    source = Lines("file:n", BytesIO(b'\xef\xbb\xbf{"a":1}'), NOW_MS, is_document=is_document)

    assert [record.value for record in source.read()] == [b'{"a":1}']


@pytest.mark.parametrize("is_document", [False, True])
@pytest.mark.parametrize(
    ("text", "what"),
    [(gzip.compress(b"{}\n", mtime=0), "packed by gzip"), (bz2.compress(b"{}\n"), "packed by bzip2"), ("{}\n".encode("utf-16"), "UTF-16")],
)
def test_a_file_that_is_no_text_is_refused_and_not_a_dead_letter_a_line(text: bytes, what: str, is_document: bool) -> None:
    with pytest.raises(UsageProblem, match=f"file:n is {what}, and JSON in UTF-8 was expected"):
        Lines("file:n", BytesIO(text), NOW_MS, is_document=is_document).read()


def test_events_are_messages_under_their_nodes_key() -> None:
    feed = Feed(OpenStack(lambda _: 7))

    messages = fed(feed, *created())

    assert [(message.topic, message.key) for message in messages] == [(LIFECYCLE, b"h1.example.org")] * 2
    arrived = decode_keyed(LIFECYCLE, messages[0].key, messages[0].value)
    assert isinstance(arrived, InstanceArrived)
    assert (arrived.producer, arrived.epoch, arrived.counter) == ("nova", 7, 1)
    assert (feed.tally.notifications, feed.tally.events) == (4, 2)


def test_what_is_no_notification_becomes_a_dead_letter_with_its_line_and_is_not_sent_twice() -> None:
    feed = Feed(OpenStack(lambda _: 1))

    (letter,) = fed(feed, created()[0], b"junk", created()[1])
    log = MemoryLog()
    open_ledger(log)
    log.append([letter])
    again = Feed(OpenStack(lambda _: 1), letters_before(log))

    assert letter.topic == DEAD_LETTERS
    read = read_letter(Record(letter.topic, 0, 0, NOW_MS, letter.key, letter.value, letter.headers))
    assert isinstance(read, DeadLetter)
    assert (read.position, read.kind, read.value) == ("file:n.jsonl/0@2", "unreadable", b"junk")
    assert read.reason.startswith("expected JSON")
    assert fed(again, created()[0], b"junk") == []
    assert again.tally.dead_letters == 1
    (other,) = fed(again, created()[0], b"other junk")  # line 2 of another file of that name
    assert (other.key, other.value) == (letter.key, b"other junk")


def test_a_disabled_or_fenced_service_disables_its_node_and_a_deleted_one_withdraws_it() -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, *created(), service(disabled=True, disabled_reason="fan broken"))

    (disabled,) = node_settings(feed.settle())
    fed(feed, service(at_s=1, forced_down=True))
    (fenced,) = node_settings(feed.settle())
    fed(feed, service(at_s=2))
    (enabled,) = node_settings(feed.settle())
    fed(feed, service(at_s=3, action="delete"))
    (deleted,) = node_settings(feed.settle())

    assert (disabled.node_id, disabled.status, disabled.reason) == ("h1.example.org", "disabled", "fan broken")
    assert [(each.status, each.reason) for each in (fenced, enabled)] == [("disabled", "forced down"), ("enabled", "")]
    assert (deleted.status, deleted.reason) == ("withdrawn", "its compute service was deleted")
    assert node_settings(feed.settle()) == []


def test_the_newest_word_on_a_service_counts_whenever_it_comes() -> None:
    words = [service(at_s=1, disabled=True, disabled_reason="old"), service(at_s=2, disabled=True, disabled_reason="new"), service(at_s=3)]
    said = []

    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        feed = Feed(OpenStack(lambda _: 1))
        fed(feed, *created(), *[words[number] for number in order])
        said.append(node_settings(feed.settle()))

    assert said[0] == said[1] == said[2]
    assert (said[0][0].status, said[0][0].reason) == ("enabled", "")


def test_aggregates_and_zones_follow_their_hosts_and_leave_with_them() -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, *created("h1"), *created("h2", "b"), aggregate(["h1", "h2"], availability_zone="east", ssd="true"))

    both = node_settings(feed.settle())
    fed(feed, aggregate(["h2"], action="remove_host", at_s=1, availability_zone="east", ssd="true"))
    left = node_settings(feed.settle())

    metadata = {"availability_zone": "east", "ssd": "true"}
    inside = OperatorFields(zone="east", aggregates=(Aggregate(name="my-aggregate", metadata=metadata),))
    assert [(each.node_id, each.fields) for each in both] == [("h1.example.org", inside), ("h2.example.org", inside)]
    assert [(each.node_id, each.fields) for each in left if each.node_id == "h1.example.org"] == [
        ("h1.example.org", OperatorFields(zone="", aggregates=()))
    ]


def test_of_an_aggregate_with_several_zones_the_first_is_the_nodes_own_and_the_metadata_has_all() -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, *created("h1"), aggregate(["h1"], availability_zone=" west,east"))

    (word,) = node_settings(feed.settle())

    named = Aggregate(name="my-aggregate", metadata={"availability_zone": " west,east"})
    assert word.fields == OperatorFields(zone="east", aggregates=(named,))


def test_a_host_that_enters_and_leaves_an_aggregate_again_and_again_ends_where_it_is_last() -> None:
    following = Following().take(NovaCloud().create("a", "h1"))
    inside = []

    for at_s in range(1, 7):
        following.follower.take(aggregate(["h1"] if at_s % 2 else [], at_s=at_s, ssd="true"))
        following.configure()
        inside.append(bool(following.ledger.nodes["h1.example.org"].aggregates))

    assert inside == [True, False, True, False, True, False]


def begun_again(*said: NodeConfigured) -> Feed:
    """A follower that starts again where a log has these of its records."""
    own = [NodeConfigured(node_id=each.node_id, record_id="o/1", status="draining", fields=OperatorFields(zone="north")) for each in said]
    return Feed(OpenStack(lambda _: 2, configured=Settings(log_with(*said, *own))))


def log_with(*said: NodeConfigured) -> MemoryLog:
    log = MemoryLog()
    open_ledger(log)
    append(log, said)
    return log


def append(log: MemoryLog, said: Iterable[NodeConfigured]) -> None:
    log.append([Message(CLAIMS, each.node_id.encode(), encode(each)) for each in said])


def test_a_follower_that_starts_again_leaves_an_operators_own_word_on_a_node_however_long_ago_nova_said_its_own() -> None:
    """Ids are remembered for some 100,000 records: that the same record changes nothing is no help after that."""
    bus = [*created(), service(), aggregate(["h1"], availability_zone="east")]
    first = Feed(OpenStack(lambda _: 1))
    fed(first, *bus)
    (said,) = node_settings(first.settle())
    again = begun_again(said)

    fed(again, *bus)
    nothing = node_settings(again.settle())
    fed(again, service(at_s=5, disabled=True, disabled_reason="fan broken"))
    (news,) = node_settings(again.settle())

    assert nothing == []
    assert (news.status, news.reason, news.fields) == ("disabled", "fan broken", OperatorFields())


def test_what_nova_says_of_a_service_leaves_zone_and_aggregates_alone_and_the_other_way_round() -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, *created(), service())
    (of_service,) = node_settings(feed.settle())
    fed(feed, aggregate(["h1"], at_s=1, ssd="true"))
    (of_aggregate,) = node_settings(feed.settle())

    assert (of_service.status, of_service.fields) == ("enabled", OperatorFields())
    inside = (Aggregate(name="my-aggregate", metadata={"ssd": "true"}),)
    assert (of_aggregate.status, of_aggregate.fields) == (UNSET, OperatorFields(aggregates=inside))


def test_aggregates_of_which_the_bus_has_no_word_any_more_are_kept_and_others_follow_their_messages() -> None:
    old, both = Aggregate(name="old", metadata={"availability_zone": "east"}), Aggregate(name="my-aggregate", metadata={})
    again = begun_again(
        NodeConfigured(node_id="h1.example.org", record_id="nova/1/a", fields=OperatorFields(zone="east", aggregates=(old,))),
        NodeConfigured(node_id="h1.example.org", record_id="nova/2/b", fields=OperatorFields(aggregates=(both, old)), status="enabled"),
    )

    fed(again, *created(), aggregate(["h1"], ssd="true"))
    (inside,) = node_settings(again.settle())
    fed(again, aggregate([], at_s=1))
    (left,) = node_settings(again.settle())

    assert inside.fields == OperatorFields(aggregates=(Aggregate(name="my-aggregate", metadata={"ssd": "true"}), old))
    assert (left.fields, left.status) == (OperatorFields(aggregates=(old,)), UNSET)


def test_the_newest_word_on_an_aggregate_counts_whenever_it_comes_and_a_services_zone_where_no_aggregate_has_one() -> None:
    feed = Feed(OpenStack(lambda _: 1))

    fed(feed, *created(), service(availability_zone="x"), aggregate(["h1"], at_s=2, ssd="true"), aggregate([], at_s=1))
    (word,) = node_settings(feed.settle())

    assert word.fields == OperatorFields(zone="x", aggregates=(Aggregate(name="my-aggregate", metadata={"ssd": "true"}),))


def test_a_zone_that_is_taken_out_of_an_aggregate_is_the_nodes_no_more() -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, *created(), aggregate(["h1"], availability_zone="east"))
    node_settings(feed.settle())

    fed(feed, aggregate(["h1"], at_s=1, action="update_metadata"))
    (word,) = node_settings(feed.settle())

    assert word.fields == OperatorFields(zone="", aggregates=(Aggregate(name="my-aggregate", metadata={}),))


def test_what_services_say_reaches_the_ledger() -> None:
    cloud = NovaCloud()
    following = Following().take(cloud.create("a", "h1"))
    following.follower.take(service(disabled=True, disabled_reason="fan broken"))

    following.configure()

    node = following.ledger.nodes["h1.example.org"]
    assert (node.status, node.uses["a"]) == ("disabled", (1, 0, 512, 1024))


def test_a_service_whose_node_nobody_named_is_said_to_be_unknown() -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, service("h9"))

    assert feed.settle() == []
    assert feed.follower.reach().unnamed_services == ("h9",)


def test_what_was_said_before_is_read_from_the_log(tmp_path: Path) -> None:
    feed = Feed(OpenStack(lambda _: 41))
    with SqliteLog.open(str(tmp_path / "l.db"), create=True) as log:
        open_ledger(log)
        log.append(fed(feed, *created(), b"junk"))

        before, letters = told_before(log), letters_before(log)

    (key,), (told,) = before.told.keys(), before.told.values()
    assert key == ("a", "h1.example.org")
    assert isinstance(told, Told)
    assert isinstance(told.report, InstanceReport)
    assert told.report.power_state == "running"
    assert (before.epoch_of(5)("h1.example.org"), before.epoch_of(50)("h1.example.org"), before.epoch_of(5)("h2")) == (42, 50, 5)
    assert {letter.place for letter in letters} == {b"file:n.jsonl/0@5"}


def test_what_was_said_in_an_epoch_that_another_process_had_passed_is_said_again(tmp_path: Path) -> None:
    """A follower runs, and beside it another one reads once what a bus had lost: the fold ignores what the first says after that."""
    first, beside = Feed(OpenStack(lambda _: 41)), Feed(OpenStack(lambda _: 42))
    with SqliteLog.open(str(tmp_path / "l.db"), create=True) as log:
        open_ledger(log)
        for feed, uuid in ((first, "a"), (beside, "b"), (first, "c")):
            log.append(fed(feed, *created(uuid=uuid)))

        before = told_before(log)

    assert sorted(instance_id for instance_id, _ in before.told) == ["a", "b"]
    assert before.epoch_of(5)("h1.example.org") == 43


def test_a_follower_that_another_has_overtaken_ends_and_says_so(tmp_path: Path) -> None:
    own, later = OpenStack(lambda _: 41), OpenStack(lambda _: 42)
    now_seconds = 0.0
    with SqliteLog.open(str(tmp_path / "l.db"), create=True) as log:
        open_ledger(log)
        overtaken = Overtaken(log, own, log.ends(LIFECYCLE), lambda: now_seconds)
        log.append(fed(Feed(own), *created(uuid="a")))
        overtaken.check()
        log.append(fed(Feed(later), *created(uuid="b")))
        overtaken.check()  # Not yet: it looks now and then.

        now_seconds = LOOK_SECONDS
        with pytest.raises(NameTaken, match=r"which began later, told of h1\.example\.org at instance-lifecycle/\d@\d+"):
            overtaken.check()


def test_a_look_that_failed_is_due_again_at_once(tmp_path: Path) -> None:
    """Whoever tries it again would hear that all is well."""
    log = Flaky([TopicSpec(LIFECYCLE, 2)])
    overtaken = Overtaken(log, OpenStack(lambda _: 41), {0: 0, 1: 0}, lambda: 0.0)
    log.append([Message(LIFECYCLE, b"", b"{}", partition=1)])

    with pytest.raises(LogUnreachable):
        overtaken.check()
    overtaken.check()

    assert log.failed
    assert overtaken._next == {0: 0, 1: 1}


def test_of_a_node_that_went_from_service_to_service_the_last_one_counts_whatever_order_messages_come_in() -> None:
    """As one of ironic's does. It was named both ways, and each start said again what the other one had said."""
    moved = [located("h1", 0), service("h1", at_s=1, disabled=True), located("h2", 2), service("h2", at_s=3)]
    first = Feed(OpenStack(lambda _: 1))
    fed(first, *moved)
    said = node_settings(first.settle())
    again = Feed(OpenStack(lambda _: 2, configured=lambda: {each.node_id: each for each in said}))
    fed(again, *reversed(moved))

    assert [(each.node_id, each.status) for each in said] == [("n1", "enabled")]
    assert again.settle() == []


def located(host: str, at_s: int) -> bytes:
    message = json.loads(sample("metrics-update"))
    message["payload"]["nova_object.data"] |= {"host": host, "nodename": "n1"}
    return envelope(message, (START_S + at_s) * 1_000_000, f"metrics {host} {at_s}")


def test_a_service_that_a_list_calls_disabled_is_so_until_a_list_says_otherwise_or_a_message_speaks_of_it() -> None:
    follower = OpenStack(lambda _: 1)
    follower.located("h1", "n1")
    said: list[tuple[object, str]] = []
    for written_us, is_disabled in enumerate((False, True, True, False, True), start=1):
        follower.services.listed("h1", ListedService(is_disabled, not is_disabled, "broken" if is_disabled else "", written_us))
        said += [(each.status, each.reason) for each in follower.configured()]
    feed = Feed(follower)
    fed(feed, service("h1"))

    (spoken,) = node_settings(feed.settle())

    assert said == [("disabled", "broken"), ("enabled", ""), ("disabled", "broken")]
    assert spoken.status == "enabled"


@pytest.mark.parametrize(("written_s", "is_enabled", "told"), [(-10, True, []), (10, False, []), (10, True, ["enabled"])])
def test_a_list_takes_nothing_back_that_was_said_after_it_or_of_a_host_that_it_does_not_call_enabled_and_up(
    written_s: int, is_enabled: bool, told: list[str]
) -> None:
    """A message disabled the host or fenced it, and has left the bus; Nova's list calls one that is fenced enabled, and down.

    A list may also say neither.
    """
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, located("h1", 0), service("h1", at_s=1, disabled=True))
    said = {each.node_id: each for each in node_settings(feed.settle())}
    again = OpenStack(lambda _: 2, configured=lambda: said)
    again.located("h1", "n1")

    again.services.listed("h1", ListedService(False, is_enabled, "", (START_S + 1 + written_s) * 1_000_000))

    assert [each.status for each in again.configured()] == told


@pytest.mark.parametrize("is_new", [True, False], ids=["told together", "told before"])
def test_a_list_counts_that_is_newer_than_what_was_said_of_the_status_whatever_was_said_of_aggregates(is_new: bool) -> None:
    """A service is enabled, the list of a minute later disables it, and the message on an aggregate is newer than that."""
    bus = [located("h1", 0), service("h1", at_s=1), aggregate(["h1"], at_s=120, ssd="true")]
    feed, said = Feed(OpenStack(lambda _: 1)), list[NodeConfigured]()
    for message in [bus] if is_new else [[each] for each in bus]:
        fed(feed, *message)
        said += node_settings(feed.settle())
    again = begun_again(*said).follower
    again.located("h1", "n1")

    again.services.listed("h1", ListedService(True, False, "broken", (START_S + 61) * 1_000_000))

    (news,) = again.configured()
    assert (news.status, news.reason, news.fields) == ("disabled", "broken", OperatorFields())
    older = begun_again(*said, news).follower
    older.located("h1", "n1")
    older.services.listed("h1", ListedService(False, True, "", (START_S + 60) * 1_000_000))
    assert older.configured() == [], "what a list said is as old as that list"


def test_a_list_takes_nothing_back_that_a_message_said_again_after_it_though_that_has_left_the_bus() -> None:
    """Disabled and enabled again between two readings: nothing to say of that, but that a list from in between says nothing either."""
    log, fleet = log_with(), Following()
    lists = {at_s: ListedService(True, False, "broken", (START_S + at_s) * 1_000_000) for at_s in (60, 180)}

    def read(listed_s: int, *bus: bytes) -> list[NodeConfigured]:
        feed = Feed(OpenStack(lambda _: 1, configured=Settings(log)))
        feed.follower.located("h1", "n1")
        fed(feed, *bus)
        feed.follower.services.listed("h1", lists[listed_s])
        said = node_settings(feed.settle())
        append(log, said)
        for each in said:
            fleet.append(each)
        return said

    (enabled,) = read(60, service("h1", at_s=1))[:1]
    fleet.append(NodeConfigured(node_id="n1", record_id="o/1", status="draining"))
    (again,) = read(60, service("h1", at_s=120))
    nothing = read(60)
    own_word = fleet.ledger.nodes["n1"].status
    news = read(180)

    assert (enabled.status, again.status, nothing, own_word) == ("enabled", UNSET, [], "draining")
    assert event_text(again) == "said again of the node: its settings are as they were"
    assert [(each.status, each.reason) for each in news] == [("disabled", "broken")]


def beside_a_list() -> tuple[MemoryLog, Feed]:
    """A follower by which Nova enabled a node, and a later list, which another process read once beside it, disables that."""
    log = log_with()
    feed, beside = (Feed(OpenStack(lambda _: 1, configured=Settings(log))) for _ in range(2))
    fed(feed, located("h1", 0), service("h1", at_s=1))
    append(log, node_settings(feed.settle()))
    beside.follower.located("h1", "n1")
    beside.follower.services.listed("h1", ListedService(True, False, "broken", (START_S + 2) * 1_000_000))
    append(log, node_settings(beside.settle()))
    return log, feed


def test_a_follower_says_what_another_process_said_otherwise_meanwhile() -> None:
    """Nova says enabled, as it did before the list."""
    _, feed = beside_a_list()

    fed(feed, service("h1", at_s=3))

    assert [each.status for each in node_settings(feed.settle())] == ["enabled"]


def test_an_old_message_does_not_contradict_a_newer_list_that_another_process_read_again_and_again() -> None:
    log, feed = beside_a_list()

    said = []
    for at_s in range(3, 7):
        fed(feed, aggregate([], at_s=at_s, ssd="true"))
        news = node_settings(feed.settle())
        append(log, news)
        said += news

    assert said == []


@pytest.mark.parametrize(("written_s", "told"), [(0, []), (2, ["enabled"])])
def test_a_node_whose_service_was_deleted_is_enabled_by_a_newer_list_that_has_it(written_s: int, told: list[str]) -> None:
    feed = Feed(OpenStack(lambda _: 1))
    fed(feed, located("h1", 0), service("h1", action="delete", at_s=1))
    (deleted,) = node_settings(feed.settle())
    again = begun_again(deleted).follower
    again.located("h1", "n1")

    again.services.listed("h1", ListedService(False, True, "", (START_S + written_s) * 1_000_000))

    assert deleted.status == "withdrawn"
    assert [each.status for each in again.configured()] == told


def test_swaps_are_named_by_flavor() -> None:
    assert swaps(["m1.small=512", "odd=name=1"]) == {"m1.small": 512, "odd=name": 1}
    for wrong in ("m1.small", "=5", "m1.small=much"):
        with pytest.raises(UsageProblem, match="expected FLAVOR=MIB"):
            swaps([wrong])
    for many in (f"{1 << 50}", f"{1 << 60}", "9" * 5_000):
        with pytest.raises(UsageProblem, match="expected at most 140737488355328 MiB"):
            swaps([f"m1.small={many}"])


def test_an_instance_that_cannot_be_read_is_missing_from_a_shadows_fleet_and_named() -> None:
    message = json.loads(sample("instance-create-end"))
    message["payload"]["nova_object.data"]["flavor"]["nova_object.data"]["vcpus"] = "two"

    found = history(lines(*created(), json.dumps(message).encode()).read())

    (unreadable,) = found.unreadable
    assert unreadable.startswith("file:n.jsonl/0@")
    assert unreadable.endswith(": instance.create.end: Expected `int`, got `str` - at `$.flavor.vcpus`")


class Flaky(MemoryLog):
    """A log that is out of reach once, when its second partition is read."""

    failed = False

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        if partition == 1 and not self.failed:
            self.failed = True
            raise LogUnreachable("the broker is away")
        return super().read(topic, partition, offset, records_max, bytes_max)


def bus_of(log: MemoryLog, told: list[str]) -> Bus:
    return Bus(lambda: log, sorted, lambda topic: f"nova.{topic}", told.append)


class Refusing(MemoryLog):
    """A log on which a look at the topics may fail."""

    trouble: Exception | None = None

    def topics(self) -> Mapping[str, int]:
        if self.trouble is not None:
            raise self.trouble
        return super().topics()


CHANGED = TopicMismatch("topic 'nova.info' has 2 partitions now and had 1")
"""What a log on Kafka says that refuses to go on."""


def test_topics_and_partitions_of_a_bus_that_come_later_are_read_from_their_first_message() -> None:
    logs = [Refusing([TopicSpec("info", 1)]), Refusing([TopicSpec("info", 2), TopicSpec("error", 1)])]
    for log in logs:
        log.append([Message("info", b"", b"1", partition=0)])
    before, now = logs
    opened, told = iter(logs), list[str]()
    bus = Bus(lambda: next(opened), sorted, str, told.append)
    first = [record.value for record in bus.read()]
    before.create([TopicSpec("error", 1)])
    before.append([Message("error", b"", b"2", partition=0)])

    later = [record.value for record in bus.read()]
    before.trouble = CHANGED
    now.append([Message("info", b"", b"3", partition=1), Message("error", b"", b"2"), Message("error", b"", b"4")])
    added = sorted(record.value for record in bus.read())

    assert (first, later, added, told) == ([b"1"], [b"2"], [b"3", b"4"], [])


def test_a_bus_goes_on_over_its_new_connection_though_that_does_not_answer_at_first() -> None:
    """The old one is closed by then, and would refuse for good."""
    before, now = Refusing([TopicSpec("info", 1)]), Refusing([TopicSpec("info", 2)])
    now.append([Message("info", b"", b"1", partition=1)])
    opened = iter([before, now])
    bus = Bus(lambda: next(opened), sorted, str, print)
    before.trouble, now.trouble = CHANGED, LogUnreachable("the broker is away")

    with pytest.raises(LogUnreachable):
        bus.read()
    now.trouble = None

    assert [record.value for record in bus.read()] == [b"1"]


@pytest.mark.parametrize(
    ("topic", "there", "read"),
    [
        ("notifications", ["notifications.info", "other"], ["notifications.info"]),
        ("notifications", ["notifications", "notifications.info"], ["notifications", "notifications.info"]),
        ("", ["error", "info"], ["error", "info"]),
    ],
)
def test_a_topic_is_read_with_its_priorities_also_once_one_of_its_own_name_is_there(topic: str, there: list[str], read: list[str]) -> None:
    assert _Beneath("kafka://b", "nova", topic).chosen(reversed(there)) == read


def test_a_topic_of_a_bus_that_was_made_anew_is_read_from_its_start() -> None:
    logs = [MemoryLog([TopicSpec("info", 1)]) for _ in range(2)]
    logs[0].append([Message("info", b"", b"old %d" % number) for number in range(5)])
    logs[1].append([Message("info", b"", b"new %d" % number) for number in range(3)])
    told = list[str]()
    bus = bus_of(logs[0], told)
    bus.read()

    bus._log = logs[1]

    assert [record.value for record in bus.read()] == [b"new 0", b"new 1", b"new 2"]
    assert told == ["nova.info/0: it was made anew, and is read from its start"]


class Named(MemoryLog):
    """A log whose topics have ids, as on Kafka, and may go."""

    def __init__(self, topics: dict[str, str]) -> None:
        super().__init__([TopicSpec(name, 1) for name in topics])
        self.there, self.ids, self.is_closed = list(topics), topics, False

    def topics(self) -> Mapping[str, int]:
        return dict.fromkeys(self.there, 1)

    def topic_id(self, topic: str) -> str:
        return self.ids[topic]

    def close(self) -> None:
        self.is_closed = True


def test_a_topic_that_was_made_anew_and_has_as_much_as_before_is_read_from_its_start() -> None:
    """Only its id tells it from the one that was read."""
    logs = [Named({"info": id_, "error": "e"}) for id_ in ("old", "new", "new")]
    for log, values in zip(logs, ((b"1", b"2"), (b"3", b"4", b"5"), (b"3", b"4", b"5")), strict=True):
        log.append([Message("info", b"", value) for value in values] + [Message("error", b"", b"e")])
    opened, told = iter([logs[0], logs[2]]), list[str]()
    bus = Bus(lambda: next(opened), sorted, str, told.append)
    first = sorted(record.value for record in bus.read())

    bus._log = logs[1]

    assert first == [b"1", b"2", b"e"]
    assert [record.value for record in bus.read()] == [b"3", b"4", b"5"]
    assert told == ["info: it was made anew, and is read from its start"]
    assert logs[1].is_closed, "it has records of the one before at hand"
    assert bus.read() == []


def test_a_bus_of_which_a_topic_went_goes_on_over_another_connection() -> None:
    """The one before goes on asking for what has gone, and is answered nothing, for none of its topics."""
    logs = [Named({"info": "i", "error": "e"}) for _ in range(2)]
    for log in logs:
        log.append([Message("info", b"", b"1"), Message("error", b"", b"2")])
    opened = iter(logs)
    bus = Bus(lambda: next(opened), sorted, str, print)
    bus.read()
    for log in logs:
        log.there = ["info"]
    logs[1].append([Message("info", b"", b"3")])

    assert [record.value for record in bus.read()] == [b"3"]
    assert logs[0].is_closed
    assert bus.name == "info"


def test_a_bus_that_was_away_for_a_moment_loses_nothing() -> None:
    log = Flaky([TopicSpec("info", 2)])
    log.append([Message("info", b"", b"%d" % number, partition=number % 2) for number in range(4)])
    bus = bus_of(log, [])

    with pytest.raises(LogUnreachable):
        bus.read()

    assert sorted(record.value for record in bus.read()) == [b"0", b"1", b"2", b"3"]
    assert bus.read() == []


def test_a_partition_with_much_in_it_is_not_left_behind_by_one_with_little() -> None:
    now_ms = 0
    log = MemoryLog([TopicSpec("info", 2)], clock=lambda: now_ms)
    for now_ms in range(3 * BATCH_RECORDS):
        log.append([Message("info", b"", b"%d" % now_ms, partition=int(now_ms % 10 == 0))])
    bus = bus_of(log, [])

    first, second = bus.read(), bus.read()
    rest = [record for _ in range(5) for record in bus.read()]

    assert [record.value for record in first + second + rest] == [b"%d" % number for number in range(3 * BATCH_RECORDS)]
    assert first[-1].partition == 0
    assert BATCH_RECORDS <= len(first) < 2 * BATCH_RECORDS


def test_of_two_partitions_with_much_in_them_neither_runs_ahead_of_the_other() -> None:
    now_ms = 0
    log = MemoryLog([TopicSpec("info", 2)], clock=lambda: now_ms)
    for now_ms in range(6 * BATCH_RECORDS):
        log.append([Message("info", b"", b"%d" % now_ms, partition=int(now_ms % 3 == 0))])

    found = [record.value for batch in iter(bus_of(log, []).read, []) for record in batch]

    assert found == [b"%d" % number for number in range(6 * BATCH_RECORDS)]


class Short(MemoryLog):
    """A log that hands out what it has at hand, as a broker's client does: less than there is."""

    reads = 0

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        self.reads += 1
        return super().read(topic, partition, offset, (7, 166)[self.reads % 2], bytes_max)


def test_a_partition_of_which_little_is_at_hand_is_not_left_behind_by_one_of_which_all_is() -> None:
    """As `.info` is by `.error`: a word that came a month too late could not be put in order."""
    now_ms = 0
    log = Short([TopicSpec("info", 2)], clock=lambda: now_ms)
    for now_ms in range(1000):
        log.append([Message("info", b"", b"%d" % now_ms, partition=int(now_ms % 100 == 0))])
    bus = bus_of(log, [])

    found = [record.value for batch in iter(bus.read, []) for record in batch]

    assert found == [b"%d" % number for number in range(1000)]


class Stamped(MemoryLog):
    """A log whose records have the times of their senders, which go back."""

    def __init__(self, topics: list[TopicSpec], times_ms: list[list[int]]) -> None:
        super().__init__(topics)
        self._times_ms = times_ms
        self.append([Message("info", b"", b"%d" % number, partition=p) for p, times in enumerate(times_ms) for number in range(len(times))])

    def read(self, topic: str, partition: int, offset: int, records_max: int = 1000, bytes_max: int = 8 << 20) -> list[Record]:
        records = super().read(topic, partition, offset, records_max, bytes_max)
        return [replace(record, time_ms=self._times_ms[partition][record.offset]) for record in records]


@given(
    old=st.lists(st.lists(st.integers(0, 2 * BATCH_RECORDS + 10), max_size=4), min_size=1, max_size=3),
    lengths=st.lists(st.integers(0, 2 * BATCH_RECORDS + 10), min_size=3, max_size=3),
)
@example(old=[[BATCH_RECORDS - 1]], lengths=[BATCH_RECORDS + 100, 0, 0])
@settings(max_examples=50, deadline=None)
def test_all_messages_of_a_bus_are_read_whatever_the_clocks_of_their_senders_say(old: list[list[int]], lengths: list[int]) -> None:
    """`old` are those of each partition whose sender's clock is a minute behind."""
    times_ms = [[100_000 + each - 60_000 * (each in old[p]) for each in range(lengths[p])] for p in range(len(old))]
    bus = bus_of(Stamped([TopicSpec("info", len(old))], times_ms), [])

    found = [(record.partition, record.offset) for batch in iter(bus.read, []) for record in batch]

    assert sorted(found) == [(p, offset) for p, times in enumerate(times_ms) for offset in range(len(times))]


def test_messages_that_were_deleted_before_they_were_read_are_told_and_passed_over() -> None:
    told: list[str] = []
    log = MemoryLog([TopicSpec("info", 1)])
    log.append([Message("info", b"", b"%d" % number) for number in range(5)])
    bus = bus_of(log, told)
    log.truncate("info", 0, 3)

    records = bus.read()

    assert [(record.value, str(record.position)) for record in records] == [(b"3", "nova.info/0@3"), (b"4", "nova.info/0@4")]
    assert told == ["nova.info/0: 3 messages deleted before they were read"]


def test_messages_that_were_all_deleted_before_they_were_read_are_told_once() -> None:
    told: list[str] = []
    log = MemoryLog([TopicSpec("info", 1)])
    log.append([Message("info", b"", b"%d" % number) for number in range(5)])
    bus = bus_of(log, told)
    log.truncate("info", 0, 5)

    assert [bus.read(), bus.read()] == [[], []]
    assert told == ["nova.info/0: 5 messages deleted before they were read"]


DETAIL = {
    "hypervisor_hostname": "h1.example.org", "service": {"host": "h1", "id": 7}, "vcpus": 64, "memory_mb": 262144, "local_gb": 2000,
    "host_ip": "10.0.0.1", "hypervisor_type": "QEMU", "hypervisor_version": 8_002_002, "state": "up", "status": "enabled",
    "cpu_info": '{"arch": "x86_64", "model": "EPYC", "vendor": "AMD", "topology": {"cells": 2, "sockets": 1, "cores": 16, "threads": 2}, '
    '"features": ["sse", "aes"]}',
}  # fmt: skip


@pytest.mark.parametrize("document", [{"hypervisors": [DETAIL]}, [DETAIL]])
def test_novas_list_of_hypervisors_becomes_totals_and_says_nothing_of_instances(document: object) -> None:
    (listed,) = read_hypervisors(json.dumps(document).encode())

    (audit,) = Listing([listed], producer="nova", epochs={"h1.example.org": 3}, interval_ms=1).audits(NOW_MS, 0)

    assert (listed.host, audit.node_id, audit.complete, audit.instances) == ("h1", "h1.example.org", False, ())
    assert audit.hypervisor is not None
    assert (audit.hypervisor.vcpus, audit.hypervisor.memory_mib, audit.hypervisor.disk_mib) == (64, 262_144, 2_000 * 1024)
    assert (audit.hypervisor.cpu_info.features, audit.hypervisor.cpu_info.threads, audit.hypervisor.service_host) == (
        ("aes", "sse"),
        2,
        "h1",
    )
    encoded = Feed(OpenStack(lambda _: 1))
    assert encoded.settle() == []
    assert decode(AUDITS, b"{}").kind == "unreadable"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "expected JSON"),
        (b"{}", 'expected {"hypervisors": [...]}'),
        (b"[]", "expected hypervisors, the list is empty"),
        (b'{"hypervisors": []}', "expected hypervisors, the list is empty"),
        (
            b"[%s]" % b", ".join([b'{"hypervisor_hostname": "n1", "vcpus": 1, "memory_mb": 1, "local_gb": 1}'] * 2),
            "hypervisor n1 is listed 2 times",
        ),
        (b"[1]", r"hypervisors\[0\]: Expected `object`, got `int`"),
        (b'[{"vcpus": 1}]', r"hypervisors\[0\]: Object missing required field `hypervisor_hostname`"),
        (b'[{"hypervisor_hostname": "n1", "cpu_info": {"features": [1, "a"]}}]', "cpu_info is none of Nova's"),
        (b'[{"hypervisor_hostname": "n1", "cpu_info": {"features": 5}}]', "cpu_info is none of Nova's"),
        (b'[{"hypervisor_hostname": "n1", "cpu_info": {"topology": ["cells"]}}]', "cpu_info is none of Nova's"),
        (b'[{"hypervisor_hostname": "n1", "vcpus": 1, "memory_mb": 1, "local_gb": 1125899906842624}]', "Expected `int` <= 1099511627776"),
        (
            b'[{"ID": 1, "Hypervisor Hostname": "n1", "vCPUs": 8, "Memory MB": 16000}]',
            "`openstack hypervisor list` says no disk; ask the API for os-hypervisors/detail",
        ),
        (
            b'{"hypervisors": [{"hypervisor_hostname": "n1", "vcpus": 1, "memory_mb": 1, "local_gb": 1}], "hypervisors_links": [{}]}',
            "one page of several; ask for the list at microversion 2.32",
        ),
        (b'[{"hypervisor_hostname": "n1"}]', "it has no vcpus, memory_mb or local_gb; ask for it at microversion 2.87 or below"),
    ],
)
def test_a_list_that_says_too_little_says_what_is_missing(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("{", r"\{").replace("[...]", r"\[\.\.\.\]")):
        read_hypervisors(text)
