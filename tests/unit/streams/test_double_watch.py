"""Double claims whose sides belong to two workers: found by the one that has partition 0, whoever has what, and said in one place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from projections.ledger import Ledger
from projections.reading import OffsetGap
from schemas import topics
from schemas.claims import FindingIgnored
from schemas.codec import decode_keyed
from schemas.findings import FindingRecord, LeakConfirmed, LeakResolved, LeakSuspected
from schemas.partitioner import partition_of
from streams import double_watch
from streams import folder as folder_module
from streams.double_watch import DoubleWatch
from streams.folder import Folder
from streams.ledger_topics import open_ledger
from streams.log.base import LogFull, Message, Partition, Record
from streams.log.memory import MemoryLog
from streams.metrics import Metrics
from tests.ledger_history import History
from tests.unit.streams.test_leak_audit import HERE, THERE, by_time, moved_without_a_word

SUSPECTED, CONFIRMED = ("double-claim", "suspected"), ("double-claim", "confirmed")
ZERO, ONE, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


class Workers:
    """Workers with tables of their own, and a log in whose two partitions `i` is held twice: on HERE (0) and THERE (1)."""

    def __init__(self, path: Path) -> None:
        self.now_ms = 0
        self.log = MemoryLog(clock=lambda: self.now_ms)
        self.path = path
        open_ledger(self.log, ledger_partitions=2, request_partitions=1)
        self.here, self.there = moved_without_a_word()
        self.written = [0, 0]
        self.write()

    def worker(self, name: str) -> Folder:
        return Folder(self.log, self.path / name, name, Metrics(name), print, clock=lambda: self.now_ms)

    def write(self) -> None:
        """Append what the histories have by now, behind the record that opens each partition."""
        for number, written in by_time(self.here, self.there):
            if written.offset == self.written[number]:
                self.written[number] += 1
                self.now_ms = max(self.now_ms, written.time_ms)
                self.log.append([Message(topics.CLAIMS, written.key, written.value, (), number)])

    def audits(self, *times_s: int, on_here: bool = False) -> None:
        for at_s in times_s:
            self.here.audit({"i": 4} if on_here else {}, at_s=at_s, node=HERE)
            self.there.audit({"i": 4}, at_s=at_s, node=THERE)
        self.write()

    def said(self) -> list[FindingRecord]:
        """What `leak-findings` has of doubles, which stands in one partition."""
        records = [record for number in range(2) for record in self.log.read(topics.FINDINGS, number, 0)]
        found = [(record.partition, decode_keyed(record.topic, record.key, record.value)) for record in records]
        doubles = [(number, each) for number, each in found if isinstance(each, FindingRecord) and each.kind == "double-claim"]
        assert len({number for number, _ in doubles}) <= 1
        return [each for _, each in doubles]


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


def turns(*folders: tuple[Folder, frozenset[int]]) -> None:
    """Each in its turn, until none has anything left to do."""
    while sum(folder.turn(owned) for folder, owned in folders):
        pass


def not_taken(workers: Workers) -> Callable[[Sequence[Message]], list[int]]:
    """A log's `append` that takes everything but findings."""
    take = workers.log.append

    def full(messages: Sequence[Message]) -> list[int]:
        if any(message.topic == topics.FINDINGS for message in messages):
            raise LogFull("no space is left")
        return take(messages)

    return full


def kinds(said: Sequence[FindingRecord]) -> list[type]:
    return [type(each) for each in said]


def doubles_of(folder: Folder) -> Counter[tuple[str, str]]:
    return Counter({key: count for key, count in folder.metrics.findings.items() if key[0] == "double-claim"})


def test_a_double_between_two_workers_is_found_confirmed_and_resolved_once_by_the_one_that_has_partition_0(workers: Workers) -> None:
    first, second = workers.worker("first"), workers.worker("second")
    turns((first, ZERO), (second, ONE))
    workers.audits(120)
    turns((first, ZERO), (second, ONE))
    suspected = [doubles_of(first), doubles_of(second)]
    workers.audits(180, 240)
    turns((first, ZERO), (second, ONE))
    confirmed = [doubles_of(first), doubles_of(second)]
    workers.here.release("old", at_s=300, reason="migrated", node=HERE)
    workers.write()
    turns((first, ZERO), (second, ONE))

    assert (suspected, confirmed) == ([Counter({SUSPECTED: 1}), Counter()], [Counter({CONFIRMED: 1}), Counter()])
    assert kinds(workers.said()) == [LeakSuspected, LeakConfirmed, LeakResolved]
    assert [doubles_of(first)[CONFIRMED], doubles_of(second)[CONFIRMED]] == [0, 0]


def test_a_worker_wakes_for_what_others_have_only_where_it_sees_to_doubles(workers: Workers) -> None:
    first, second = workers.worker("first"), workers.worker("second")
    turns((first, ZERO), (second, ONE))

    ends = [workers.log.end(topics.CLAIMS, number) for number in range(2)]
    assert first.waits(ZERO) == {Partition(topics.CLAIMS, number): ends[number] for number in range(2)}
    assert second.waits(ONE) == {Partition(topics.CLAIMS, 1): ends[1]}


@pytest.mark.parametrize("is_snapshot_new", [False, True])
def test_who_takes_partition_0_over_goes_on_with_what_is_open_and_with_the_operators_word(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, is_snapshot_new: bool
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1 if is_snapshot_new else 1_000_000)
    first, second = workers.worker("first"), workers.worker("second")
    workers.audits(130, 190, 250)
    turns((first, ZERO), (second, ONE))
    workers.there.say(FindingIgnored(node_id=THERE, record_id="w", finding_id="double-claim/i", reason="known"), at_s=260)
    workers.write()
    turns((first, ZERO), (second, ONE))
    before = workers.said()
    first.close()

    turns((second, BOTH))
    ignored = doubles_of(second)
    workers.here.release("old", at_s=300, reason="migrated", node=HERE)
    workers.audits(310)
    turns((second, BOTH))

    assert kinds(before) == [LeakSuspected, LeakConfirmed, LeakConfirmed]
    assert (before[-1].ignored, ignored) == ("known", Counter())
    assert kinds(workers.said())[-1] is LeakResolved
    assert {each.ignored for each in workers.said()[len(before) :]} == {"known"}


def test_a_worker_that_loses_partition_0_sees_to_doubles_no_more_and_one_that_gets_it_back_knows_what_became_of_them(
    workers: Workers,
) -> None:
    first, second = workers.worker("first"), workers.worker("second")
    workers.audits(130, 190, 250)
    turns((first, BOTH))
    turns((first, ONE), (second, ZERO))
    mine, theirs = doubles_of(first), doubles_of(second)
    workers.here.release("old", at_s=300, reason="migrated", node=HERE)
    workers.write()
    turns((first, ONE), (second, ZERO))
    second.close()
    turns((first, BOTH))

    assert (mine, theirs) == (Counter(), Counter({CONFIRMED: 1}))
    assert kinds(workers.said())[-1] is LeakResolved
    assert doubles_of(first)[CONFIRMED] == 0


def test_a_double_that_ends_while_its_partitions_change_hands_is_said_to_have_ended(workers: Workers) -> None:
    first, second = workers.worker("first"), workers.worker("second")
    workers.audits(130, 190, 250)
    turns((first, ZERO), (second, ONE))
    first.close()
    workers.there.release("new", at_s=300, reason="migrated", node=THERE)
    workers.write()
    turns((second, ONE))
    before = workers.said()
    third = workers.worker("third")

    turns((third, ZERO), (second, ONE))

    assert kinds(before) == [LeakSuspected, LeakConfirmed]
    assert kinds(workers.said())[-1] is LeakResolved
    assert doubles_of(third) == Counter()


def test_a_guest_evacuated_from_a_dead_host_is_found_twice_though_nothing_more_comes_from_there(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    first, second = workers.worker("first"), workers.worker("second")
    workers.there.release("new", at_s=110, reason="operator", node=THERE)
    workers.there.audit({}, at_s=130, node=THERE)
    workers.here.audit({"i": 4}, at_s=130, node=HERE)
    workers.there.claim("evacuated", "i", 4, at_s=700, nodes=(THERE,))
    for at_s in (720, 780, 1500, 1560):
        workers.there.audit({"i": 4}, at_s=at_s, node=THERE)
        workers.write()
        turns((first, ZERO), (second, ONE))

    assert kinds(workers.said()) == [LeakSuspected, LeakResolved, LeakSuspected, LeakConfirmed], "the second one is that of the dead host"
    silent = workers.log.read(topics.CLAIMS, 0, len(workers.here.records))
    assert silent, "the timer said that the host is silent"


def test_what_others_have_is_followed_from_a_snapshot_where_its_beginning_has_left(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1)
    second = workers.worker("second")
    workers.audits(120)
    turns((second, ONE))
    workers.log.truncate(topics.CLAIMS, 1, workers.log.end(topics.CLAIMS, 1))
    first = workers.worker("first")

    turns((first, ZERO), (second, ONE))

    assert kinds(workers.said()) == [LeakSuspected]


def test_what_leaves_before_it_was_followed_is_taken_from_the_snapshot_that_includes_it_and_without_one_that_is_said(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1)
    first, second = workers.worker("first"), workers.worker("second")
    turns((first, ZERO), (second, ONE))
    workers.audits(130, 190, 250)
    turns((second, ONE))
    workers.log.truncate(topics.CLAIMS, 1, workers.log.end(topics.CLAIMS, 1))
    turns((first, ZERO), (second, ONE))
    workers.log.truncate(topics.SNAPSHOTS, 1, workers.log.end(topics.SNAPSHOTS, 1))

    assert kinds(workers.said()) == [LeakSuspected, LeakConfirmed]
    told: list[str] = []
    watch, ours = DoubleWatch(workers.log, told.append), {0: Ledger(0, 2)}
    for _ in range(2):
        watch.take(ours, ZERO)
    (said,) = told
    assert re.match(r"claims/1: records 0 to \d+ have left the log, and no snapshot includes them: no double claims are said", said)
    assert (watch.open_findings(), watch.waits()) == ([], {})


def test_of_several_partitions_that_leave_one_is_taken_from_its_snapshot_and_the_others_wait_for_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1)
    log = MemoryLog()
    open_ledger(log, ledger_partitions=3, request_partitions=1)
    first, second = (Folder(log, tmp_path / name, name, Metrics(name), print) for name in ("first", "second"))
    others = frozenset({1, 2})
    turns((first, ZERO), (second, others))
    for number in others:
        history = History(number, 3)
        node = next(name for name in (f"n{n}" for n in range(99)) if partition_of(name.encode(), 3) == number)
        history.audit({}, at_s=0, node=node)
        log.append([Message(topics.CLAIMS, each.key, each.value, (), number) for each in history.records])
    turns((second, others))
    log.truncate(topics.CLAIMS, 1, log.end(topics.CLAIMS, 1))

    turns((first, ZERO))

    assert first.waits(ZERO) == {Partition(topics.CLAIMS, number): log.end(topics.CLAIMS, number) for number in range(3)}


def test_what_is_known_of_doubles_only_from_others_words_is_kept_over_a_restart(workers: Workers) -> None:
    first, second = workers.worker("first"), workers.worker("second")
    workers.audits(130, 190, 250)
    turns((first, ZERO), (second, ONE))
    first.close()
    third = workers.worker("third")
    workers.audits(310)
    turns((third, ZERO), (second, ONE))
    third.close()
    workers.here.release("old", at_s=400, reason="migrated", node=HERE)
    workers.audits(430)

    again = workers.worker("third")
    turns((again, ZERO), (second, ONE))

    assert kinds(workers.said())[-1] is LeakResolved


def test_who_sees_to_doubles_no_more_says_nothing_of_them_that_it_could_not_say_before(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = workers.worker("first"), workers.worker("second")
    workers.audits(110)
    turns((first, ZERO), (second, ONE))
    with monkeypatch.context() as full:
        full.setattr(workers.log, "append", not_taken(workers))
        workers.audits(190, 250)
        with pytest.raises(LogFull):
            turns((first, ZERO))
    turns((second, BOTH))
    workers.here.release("old", at_s=300, reason="migrated", node=HERE)
    workers.audits(310)
    turns((second, BOTH))

    turns((first, frozenset()), (second, BOTH))
    turns((first, ONE), (second, ZERO))

    assert kinds(workers.said())[-1] is LeakResolved


@pytest.mark.parametrize("words", [("known",), ("known", "")])
def test_the_operators_word_that_another_heard_while_nobody_saw_to_doubles_is_said(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    monkeypatch.setattr(folder_module, "SNAPSHOT_EVERY", 1)
    first, second = workers.worker("first"), workers.worker("second")
    workers.audits(130, 190, 250)
    turns((first, ZERO), (second, ONE))
    for number, word in enumerate(words):
        first.close()
        said = FindingIgnored(node_id=THERE, record_id=f"w{number}", finding_id="double-claim/i", reason=word)
        workers.there.say(said, at_s=260 + number)
        workers.write()
        turns((second, ONE))
        first = workers.worker("first")
        turns((first, ZERO), (second, ONE))

    assert workers.said()[-1].ignored == words[-1]
    assert doubles_of(first) == Counter({CONFIRMED: 1} if not words[-1] else {})
    before = len(workers.said())
    first.close()
    turns((workers.worker("first"), ZERO), (second, ONE))
    assert len(workers.said()) == before


def test_what_the_log_does_not_take_is_said_again_before_anything_is_kept(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    first = workers.worker("first")
    workers.audits(110)
    for at_s in (190, 250):
        workers.here.audit({}, at_s=at_s, node=HERE)
    workers.write()
    turns((first, ZERO))
    take = workers.log.append
    monkeypatch.setattr(workers.log, "append", not_taken(workers))
    for at_s in (190, 250):
        workers.there.audit({"i": 4}, at_s=at_s, node=THERE)
    workers.write()
    for _ in range(2):
        with pytest.raises(LogFull):
            first.turn(ZERO)
    before = kinds(workers.said())
    monkeypatch.setattr(workers.log, "append", take)
    turns((first, ZERO))

    assert before == [LeakSuspected]
    assert kinds(workers.said()) == [LeakSuspected, LeakConfirmed]


def test_a_double_is_found_though_one_of_its_partitions_has_long_nothing_to_say(tmp_path: Path) -> None:
    """Its host is known to be silent before the guest is evacuated: no record of that partition comes after the double arose."""
    workers = Workers(tmp_path)
    first, second = workers.worker("first"), workers.worker("second")
    workers.there.release("new", at_s=110, reason="operator", node=THERE)
    workers.there.event("departed", "i", at_s=111, node=THERE)
    for at_s in range(130, 750, 60):
        workers.there.audit({}, at_s=at_s, node=THERE)
        workers.write()
        turns((first, ZERO), (second, ONE))
    ends = workers.log.end(topics.CLAIMS, 0)
    workers.there.claim("evacuated", "i", 4, at_s=800, nodes=(THERE,))
    for at_s in (820, 880, 1600, 1660):
        workers.there.audit({"i": 4}, at_s=at_s, node=THERE)
        workers.write()
        turns((first, ZERO), (second, ONE))

    assert kinds(workers.said())[-2:] == [LeakSuspected, LeakConfirmed]
    assert workers.log.end(topics.CLAIMS, 0) == ends


def test_nothing_is_concluded_from_half_of_what_others_have(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_watch, "BATCH_RECORDS", 1)
    workers.there.release("new", at_s=110, reason="operator", node=THERE)
    workers.write()
    ours = Ledger(0, 2)
    for record in workers.log.read(topics.CLAIMS, 0, 0):
        ours.apply(record.offset, record.time_ms, record.key, record.value)
    watch = DoubleWatch(workers.log, print)
    watch.take({0: ours}, ZERO)

    while watch.follow(lambda: True, workers.now_ms + 60_000):
        watch.say()

    assert watch.waits() == {Partition(topics.CLAIMS, 1): workers.log.end(topics.CLAIMS, 1)}
    assert workers.said() == []


def test_a_record_that_is_missing_in_what_others_have_is_told_and_not_jumped_over(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = DoubleWatch(workers.log, print)
    watch.take({0: Ledger(0, 2)}, ZERO)

    def lost(*_: object) -> list[Record]:
        raise OffsetGap("records 1 to 2 are missing")

    monkeypatch.setattr(watch, "_read", lost)
    with pytest.raises(OffsetGap, match="records 1 to 2"):
        watch.follow(lambda: True)


@pytest.mark.parametrize("unsaid", [(True, False), (False, True)])
def test_what_a_table_knows_and_may_never_have_said_is_said_however_many_tables_there_are(
    workers: Workers, unsaid: tuple[bool, bool]
) -> None:
    """One partition is taken over twice before the worker has all of its own."""
    workers.audits(130, 190, 250)
    first = workers.worker("first")
    turns((first, BOTH))
    said, doubles = workers.said(), first._doubles.known()
    ours = {number: Ledger(number, 2) for number in range(2)}
    watch = DoubleWatch(workers.log, print)
    for is_unsaid in unsaid:
        watch.heard_of(doubles, ours[0], is_unsaid=is_unsaid)

    watch.take(ours, BOTH)

    assert watch.say()
    assert kinds(workers.said()[len(said) :]) == [LeakConfirmed]
