"""Each of the five checkers of recorded histories catches a history that has its fault, and nothing is wrong in the same one without it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from schemas.resources import Resources
from streams.ledger_topics import open_ledger
from streams.log.base import LogUnreachable, Message, Partition
from streams.log.memory import MemoryLog
from tests.faults import history
from tests.faults.history import AtRest, Call, History, Recorded, Use, identity

PLACE = Partition("placement-requests", 0)
REST: AtRest = {PLACE: {0: "a", 1: "b", 2: "c"}}
LIMITS = {"n1": {"vcpus": 4}}


def call(
    client: str, number: int, kind: Literal["append", "read"], *seen: tuple[int, str], offset: int = -1, answered: bool = True
) -> Call:
    """A call that took 5 ns; the next number's began 5 ns later."""
    asked_ns = number * 10
    return Call(
        client=client, number=number, kind=kind, topic=PLACE.topic, partition=PLACE.number,
        asked_ns=asked_ns, answered_ns=asked_ns + 5 if answered else 0, offset=offset, seen=seen,
    )  # fmt: skip


def sound() -> list[Call]:
    """Two clients append, one was not told whether it did, and a third reads it all."""
    return [
        call("x", 1, "append", (0, "a")),
        call("y", 2, "append", (1, "b")),
        call("y", 3, "append", (-1, "c"), answered=False),
        call("z", 4, "read", (0, "a"), (1, "b"), offset=0),
        call("z", 5, "read", (2, "c"), offset=2),
        call("z", 6, "read", offset=3),
    ]


def wrong(calls: list[Call], rest: AtRest = REST) -> dict[str, list[str]]:
    """What each checker of calls finds, if anything."""
    recorded = History(calls)
    found = {
        "lost write": history.lost_writes(recorded, rest),
        "duplicate": history.duplicates(recorded, rest),
        "phantom read": history.phantom_reads(recorded, rest, [PLACE.topic]),
        "non-monotonic read": history.non_monotonic_reads(recorded),
    }
    return {name: sentences for name, sentences in found.items() if sentences}


def test_a_sound_history_has_nothing_wrong() -> None:
    assert wrong(sound()) == {}


def test_an_acknowledged_record_that_is_not_there_is_a_lost_write() -> None:
    gone = wrong(sound()[:2], {PLACE: {0: "a"}})
    other = wrong(sound()[:2], {PLACE: {0: "a", 1: "x"}})

    assert gone == {"lost write": ["y: placement-requests/0@1 was acknowledged and is not there"]}
    assert other == {"lost write": ["y: placement-requests/0@1 was acknowledged and is another record"]}


def test_a_record_that_stands_more_often_than_it_was_appended_is_a_duplicate() -> None:
    twice = wrong(sound(), {PLACE: {**REST[PLACE], 3: "b"}})

    assert twice == {"duplicate": ["placement-requests/0: b stands 2 times, and was appended 1 times"]}


def test_a_few_records_that_stand_twice_may_be_let_pass_and_no_more_and_none_that_stands_three_times() -> None:
    recorded = History(sound()[:2])
    once, thrice = {PLACE: {0: "a", 1: "b", 2: "b"}}, {PLACE: {0: "a", 1: "b", 2: "b", 3: "b"}}

    assert history.history_wrong(recorded, once, {}, copies_max=1) == []
    assert history.history_wrong(recorded, once, {}) == ["placement-requests/0: b stands 2 times, and was appended 1 times"]
    assert history.history_wrong(recorded, {PLACE: {**once[PLACE], 3: "a"}}, {}, copies_max=1) != []
    assert history.history_wrong(recorded, thrice, {}, copies_max=9) != []


def test_a_record_appended_again_since_nobody_said_that_it_was_is_none() -> None:
    again = [*sound(), call("y", 7, "append", (3, "c"))]

    assert wrong(again, {PLACE: {**REST[PLACE], 3: "c"}}) == {}


def test_an_offset_given_to_two_appends_is_a_duplicate() -> None:
    both = wrong([*sound(), call("x", 7, "append", (0, "a"))])

    assert both == {"duplicate": ["placement-requests/0@0 was given to 2 appends"]}


def test_what_was_read_and_is_not_there_is_a_phantom_read() -> None:
    ghost = wrong([*sound(), call("z", 7, "read", (3, "d"), offset=3)])

    assert ghost == {"phantom read": ["z: placement-requests/0@3 was read and is not there at rest"]}


def test_what_nobody_appended_or_only_later_is_a_phantom_read() -> None:
    rest = {PLACE: {**REST[PLACE], 3: "d"}}
    read = call("w", 7, "read", (3, "d"), offset=3)

    assert wrong([*sound(), read], rest) == {"phantom read": ["w: placement-requests/0@3 was read and nobody appended it"]}
    assert wrong([*sound(), read, call("x", 8, "append", (3, "d"))], rest) == {
        "phantom read": ["w: placement-requests/0@3 was read before anybody appended it"]
    }


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (call("z", 7, "read", (2, "c"), offset=1), "z: a read of placement-requests/0@1 gave the offsets [2] ..."),
        (call("z", 7, "read", (1, "b"), (0, "a"), offset=1), "z: a read of placement-requests/0@1 gave the offsets [1, 0] ..."),
        (call("z", 7, "read", offset=2), "z: a read of placement-requests/0@2 found nothing, though 2 was known to be there"),
        (call("x", 7, "read", offset=0), "x: a read of placement-requests/0@0 found nothing, though 0 was known to be there"),
    ],
    ids=["a gap", "back", "less than it read", "not what it wrote"],
)
def test_a_client_that_reads_less_or_in_another_order_than_before_has_a_non_monotonic_read(read: Call, sentence: str) -> None:
    assert wrong([*sound(), read]) == {"non-monotonic read": [sentence]}


def test_another_record_at_an_offset_that_was_read_before_is_a_non_monotonic_read() -> None:
    found = wrong([*sound(), call("z", 7, "read", (1, "x"), offset=1)])

    assert found["non-monotonic read"] == ["z: a read of placement-requests/0@1 gave another record at 1 than before"]


def use(at_ns: int, name: str, vcpus: int = 0) -> Use:
    """What a client knew to be on the node from then on; 0 vCPUs: it gives it back."""
    return Use(at_ns=at_ns, name=name, node_id="n1", resources=Resources(vcpus=vcpus)) if vcpus else Use(at_ns=at_ns, name=name)


def test_more_on_a_node_at_once_than_it_may_have_is_an_over_grant() -> None:
    fits = History(uses=[use(1, "a", 3), use(2, "a"), use(3, "b", 4), use(4, "b"), use(5, "c", 4)])
    over = History(uses=[use(1, "a", 3), use(2, "b", 2), use(3, "a")])

    assert history.over_grants(fits, LIMITS) == []
    assert history.over_grants(over, LIMITS) == ["n1 was told to have b: vcpus 5 of 4"]


def test_a_recorder_writes_down_what_was_asked_before_it_is_answered_and_what_was_told(tmp_path: Path) -> None:
    log = MemoryLog(clock=lambda: 1)
    open_ledger(log, ledger_partitions=1, request_partitions=1)
    client = Recorded(log, tmp_path, "x")
    client.append([Message(PLACE.topic, b"r1", b"{}")])
    read = client.read(*PLACE, 0)
    client.holds("i1", "n1", Resources(vcpus=1))
    client.gives_back("i1")

    found = history.read_history(tmp_path)

    each = identity(b"r1", b"{}")
    assert [(entry.kind, entry.seen, entry.answered_ns > entry.asked_ns) for entry in found.calls] == [
        ("append", ((0, each),), True),
        ("read", ((0, each),), True),
    ]
    assert [(entry.name, entry.resources) for entry in found.uses] == [("i1", Resources(vcpus=1)), ("i1", None)]
    assert history.history_wrong(found, history.at_rest(read), LIMITS, [PLACE.topic]) == []


class _Away(MemoryLog):
    """A log that is out of reach."""

    def append(self, messages: object) -> list[int]:
        raise LogUnreachable("away")


def test_an_append_without_an_answer_stays_in_the_history(tmp_path: Path) -> None:
    log = _Away(clock=lambda: 1)
    log.create([])
    with pytest.raises(LogUnreachable):
        Recorded(log, tmp_path, "x").append([Message("one", b"k", b"v", partition=0)])

    (left,) = history.read_history(tmp_path).calls

    assert (left.answered_ns, left.seen) == (0, ((-1, identity(b"k", b"v")),))
