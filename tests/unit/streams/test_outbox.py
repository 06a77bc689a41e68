"""What a process says is sent in order, kept until it has landed, and sent again byte for byte where it was given up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from streams.log.base import LogFull, LogUnreachable, Message, Partition, TopicMismatch, TopicSpec
from streams.log.memory import MemoryLog
from streams.outbox import Outbox

PLACE = Partition("one", 0)


def message(text: str) -> Message:
    return Message("one", b"k", text.encode(), partition=0)


class Sent:
    """Messages on their way over a log that is far away; `far` says when they land."""

    def __init__(self, far: Far, messages: Sequence[Message]) -> None:
        self.messages, self.ends = messages, dict[Partition, int]()
        self._far = far

    def landed(self, timeout_seconds: float = 0.0) -> bool:
        if self._far.lost is not None:
            raise self._far.lost
        if self._far.holds and not timeout_seconds:
            return False
        self.ends = {PLACE: self._far.log.append(self.messages)[-1] + 1}
        return True


class Far:
    """A log that takes records without being waited for. While it `holds` nothing lands unless somebody waits; `lost` is what is raised."""

    def __init__(self) -> None:
        self.log = MemoryLog([TopicSpec("one", 1)])
        self.holds, self.begun = True, list[list[bytes]]()
        self.lost: Exception | None = None

    def begin(self, messages: Sequence[Message]) -> Sent:
        self.begun.append([each.value for each in messages])
        return Sent(self, messages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


def values(log: MemoryLog) -> list[bytes]:
    return [record.value for record in log.read("one", 0, 0)]


def outbox(log: Any) -> Outbox:
    return Outbox(log)


def test_on_a_log_at_hand_what_is_sent_is_appended_and_nothing_is_awaited() -> None:
    log = MemoryLog([TopicSpec("one", 1)])
    box = outbox(log)
    box.add([message("a"), message("b")])

    sent = box.send()

    assert (sent, values(log), box.is_open) == (2, [b"a", b"b"], False)
    assert box.send() == 0


def test_on_a_log_far_away_it_is_awaited_until_it_has_landed_and_was_read_back() -> None:
    far = Far()
    box = outbox(far)
    box.add([message("a")])
    assert box.send() == 1

    under_way = box.awaits({PLACE: 0})
    far.holds = False
    box.send()
    landed = box.awaits({PLACE: 0})
    read_back = box.awaits({PLACE: 1})

    assert (under_way, landed, read_back) == (True, True, False)
    assert values(far.log) == [b"a"]


def test_what_lands_in_a_partition_that_nobody_reads_is_not_awaited() -> None:
    far = Far()
    far.holds = False
    box = outbox(far)
    box.add([message("a")])
    box.send()
    box.send()

    assert not box.awaits({Partition("other", 0): 0})


def test_what_was_given_up_goes_first_the_next_time_and_byte_for_byte() -> None:
    far = Far()
    box = outbox(far)
    for text in ("a", "b"):
        box.add([message(text)])
        box.send()
    far.lost = LogUnreachable("not acknowledged")
    box.add([message("c")])
    with pytest.raises(LogUnreachable):
        box.send()
    far.lost, far.holds = None, False

    again = box.send()

    assert again == 3
    assert far.begun == [[b"a"], [b"b"], [b"a", b"b", b"c"]]
    assert box.finish(1.0)
    assert values(far.log) == [b"a", b"b", b"c"]


def test_what_a_log_at_hand_refuses_is_kept_too() -> None:
    class Full(MemoryLog):
        failures = 1

        def append(self, messages: Sequence[Message]) -> list[int]:
            if self.failures:
                self.failures -= 1
                raise LogFull("no room left")
            return super().append(messages)

    log = Full([TopicSpec("one", 1)])
    box = outbox(log)
    box.add([message("a")])
    with pytest.raises(LogFull):
        box.send()

    assert box.send() == 1
    assert values(log) == [b"a"]


def test_what_was_said_in_a_topic_that_may_go_is_left_out_once_it_has_gone_and_what_was_said_elsewhere_is_not() -> None:
    log = MemoryLog([TopicSpec("one", 1)])
    box = Outbox(log, may_go={"gone"})
    gone = Message("gone", b"k", b"g", partition=0)
    box.add([message("a"), gone, message("b")])

    assert box.send() == 2
    assert box.send() == 0
    assert values(log) == [b"a", b"b"]
    box.add([gone, Message("lost", b"k", b"l", partition=0)])
    with pytest.raises(TopicMismatch, match="lost"):
        box.send()
    with pytest.raises(TopicMismatch, match="lost"):
        box.send()


def test_who_leaves_waits_for_what_it_said_last() -> None:
    far = Far()
    box = outbox(far)
    box.add([message("a")])

    done = box.finish(0.5)

    assert done
    assert values(far.log) == [b"a"]


def test_who_leaves_waits_for_all_that_is_under_way_no_longer_than_it_was_told() -> None:
    far, waited = Far(), list[float]()

    class Slow(Sent):
        def landed(self, timeout_seconds: float = 0.0) -> bool:
            waited.append(timeout_seconds)
            time.sleep(timeout_seconds / 2)
            return super().landed(timeout_seconds)

    far.begin = lambda messages: Slow(far, messages)  # type: ignore[method-assign]
    box = outbox(far)
    for number in range(5):
        box.add([message(str(number))])
        box.send()
    waited.clear()

    done = box.finish(0.2)

    assert done
    asked, *left = waited
    assert asked == 0.0
    assert left[0] <= 0.2
    assert all(later <= earlier / 2 for earlier, later in pairwise(left[:5]))
